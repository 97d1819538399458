//! ECAPA-TDNN speaker encoder: speech to a voice vector.
//!
//! ```no_run
//! use burn::tensor::Device;
//! use zonos_audio::{Waveform, npy};
//! use zonos_ecapa::Ecapa;
//!
//! let encoder = Ecapa::load("models/speaker-encoder", &Device::flex())?;
//! # let samples = vec![0.0; 48_000];
//! let voice = encoder.embed(&Waveform::new(samples, 16_000))?; // any rate, mono
//! npy::write_f32("voice.npy", &[voice.len()], &voice)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Audio at any rate is brought to 24 kHz and made into a log-mel spectrogram ([`Ecapa::log_mel`]); a
//! convolution, SE-Res2Net blocks of growing dilation and a pooling that weighs frames by attention
//! turn it into one vector, used as it is, neither normalised nor centred ([`Ecapa::forward`]). Frames
//! are read once, so long clips cost time in proportion and memory for one utterance.
//!
//! Modules are named as in the checkpoint, which has no batch normalisation: every convolution has a
//! bias, keeps the length of its input and mirrors it at both ends. Everything is computed in f32,
//! whatever the file stores, and differentiable.
//!
//! Resampling is the reference's, which cuts nothing off above the old half rate: a recording of 16 kHz
//! gets mirror images of its sound above 8 kHz, at low levels. Vectors of one clip at 16 kHz and at 24 kHz
//! or more therefore differ in what the top bands say; recordings of at least 24 kHz are better.
//!
//! What makes a usable voice (seconds of speech, no silence) is not judged here: the encoder takes
//! anything that its convolutions can mirror. See [`zonos_audio::reference`] for that judgement.
//!
//! Source: Desplanques et al. 2020, arXiv:2005.07143, as in the speaker encoder of Qwen3-TTS.

mod config;
mod error;
mod front_end;
pub mod gguf;
mod load;
mod model;

pub use config::EcapaConfig;
pub use error::EcapaError;
pub use load::tensor_specs;
pub use model::{
    AttentiveStatisticsPooling, Block, Conv, Ecapa, Res2Net, SeRes2Net, SqueezeExcitation, Tdnn,
};
