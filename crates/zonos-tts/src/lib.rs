//! Text to audio: prompt, backbone, sampler, codec, as one pipeline.
