//! Resampling, spectra and mel against `torch` and `torchaudio` (`validation/fixtures/audio`).

mod golden;
mod mel;
mod resample;
mod settings;
mod stft;
