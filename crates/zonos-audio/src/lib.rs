//! Waveforms, codec codes, audio files and .npy arrays, without tensors.
