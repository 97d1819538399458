//! Descript audio codec (DAC) at 44.1 kHz: codes to waveform, whole or streamed.
//!
//! ```no_run
//! use burn::tensor::Device;
//! use zonos_audio::Codes;
//! use zonos_dac::Dac;
//!
//! let dac = Dac::load("weights_44khz_8kbps.pth", &Device::flex())?;
//! let codes = Codes::load_npy("codes.npy")?; // [frames, codebooks]
//! dac.decode(&codes)?.save_wav("speech.wav")?;
//!
//! // The same samples, as they become known:
//! let mut stream = dac.stream(8);
//! let mut samples = stream.push(&codes)?;
//! samples.extend(stream.flush()?);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A frame of 9 codes picks 9 vectors, whose sum the decoder turns into 512 samples through
//! convolutions, transposed convolutions and [Snake](zonos_nn::Snake) activations; see
//! [`Decoder`]. Nothing is causal: a sample depends on 10 frames on either side, which
//! [`DacConfig::frames_needed`] computes for any configuration. Windows therefore decode exactly what
//! the whole would have been, and on the Flex device bit for bit: [`Dac::decode`] works in windows
//! because activations then stay in cache, and [`DacStream`] because codes arrive one after another.
//!
//! Source: Kumar et al. 2023, arXiv:2306.06546, and the descript-audio-codec package.

mod config;
mod error;
mod load;
mod model;
mod names;
mod stream;
mod window;

pub use config::DacConfig;
pub use error::DacError;
pub use model::{Dac, Decoder, DecoderBlock, Quantizer, ResidualUnit, VectorQuantizer};
pub use stream::DacStream;
