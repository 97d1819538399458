//! Open .pth, .safetensors, burnpack and hub checkpoints lazily, map their names, report, convert.
