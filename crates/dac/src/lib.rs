//! Descript audio codec (DAC) at 44.1 kHz: waveform to codes and back, whole, windowed or streamed.
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
//!
//! // And back to codes, all nine a frame:
//! let audio = dac.decode(&codes)?;
//! dac.encode(&audio, None)?.save_npy("again.npy")?;
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
//! The [`Encoder`] is the decoder's mirror image: 512 samples become a latent, which the [`Quantizer`]
//! replaces by the nearest vector of the first codebook, what is left over by that of the second, and
//! so on. A latent depends on 3733 samples on either side of its own
//! ([`EncoderConfig::samples_needed`]), and windows are exact here too. All of it trains: codes pass
//! gradients straight through, and [`Quantized`] has the losses that move the codebooks.
//!
//! Source: Kumar et al. 2023, arXiv:2306.06546, and the descript-audio-codec package.

mod config;
mod encode;
mod encoder;
mod error;
pub mod gguf;
mod load;
mod model;
mod names;
mod quantizer;
mod stream;
mod window;

pub use config::{DacConfig, EncoderConfig};
pub use encode::{Encoding, Roundtrip, snr_db};
pub use encoder::{Encoder, EncoderBlock};
pub use error::DacError;
pub use load::DacParts;
pub use model::{Dac, Decoder, DecoderBlock, ResidualUnit};
pub use quantizer::{Quantized, Quantizer, VectorQuantizer};
pub use stream::DacStream;
