//! Backend operations that speech models need and Burn lacks: packed linear layers, expert layers, Snake, fused convolutions, decode attention.
