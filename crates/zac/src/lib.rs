//! ZAC-1, a speech codec: 44.1 kHz audio to ten codes a frame, 15 frames a second, and back.
//!
//! ```no_run
//! use burn::tensor::Device;
//! use zonos_audio::{Codes, Waveform};
//! use zonos_zac::{ZacDecoder, ZacEncoder};
//!
//! let decoder = ZacDecoder::load("zac-1-decoder-keep2_plain.safetensors", &Device::flex())?;
//! let codes = Codes::load_npy("codes.npy")?; // [frames, 10]
//! decoder.decode(&codes)?.save_wav("speech.wav")?;
//!
//! // The same samples, as they become final:
//! let mut stream = decoder.stream();
//! let mut samples = stream.decode(&codes)?;
//! samples.extend(stream.flush()?);
//!
//! // And back to codes:
//! let encoder = ZacEncoder::load("zac-1-encoder.safetensors", &Device::flex())?;
//! encoder.encode(&Waveform::new(samples, 44_100))?.save_npy("again.npy")?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A frame's first code picks a vector that a ConvNeXt stack (the semantic head) turns into part of a
//! latent; the other nine pick vectors that are added to it. [Transformers](Transformer) with a window
//! of the past raise 15 latents to 240 features a second, which the [head](IstftHead) turns into spectra
//! and samples at 44160 Hz; a resampler with the file's own filter brings them to 44.1 kHz. All of it
//! is causal but for the windows' overlap, so a [stream](ZacStream) is half a frame behind and costs no
//! more the longer it runs.
//!
//! The [encoder](ZacEncoder) is the mirror image: patches and transformers make latents of samples. What
//! is said is coded first, from features of a [teacher](zonos_w2v_bert) that hears the same audio; its
//! part is taken off the latents, and nine codebooks code what is left, each what those before it left
//! over. Long audio is encoded in [lanes](LanePlan).
//!
//! Files say what they are made of: sizes come from the tensors first and from the JSON in their
//! metadata second, see [`ZacConfig`]; names that this build does not know can be given in a map file,
//! see [`NameOverrides`].

mod config;
mod convnext;
mod decoder;
mod encoder;
mod error;
mod head;
mod lanes;
mod load;
mod names;
mod patch;
mod pointwise;
mod prepare;
mod quantizer;
mod rotary;
mod search;
mod stream;
mod transformer;

pub use config::{
    Combine, ConvNextConfig, EncoderConfig, HeadConfig, QuantizerConfig, StageConfig,
    TransformerConfig, ZacConfig, ZacKind,
};
pub use convnext::{ConvNextBlock, ConvNextStack, ConvNextState, Depthwise};
pub use decoder::ZacDecoder;
pub use encoder::{EncodeProgress, Encoded, ZacEncoder};
pub use error::ZacError;
pub use head::{HeadState, IstftHead};
pub use lanes::{Align, Lane, LanePlan};
pub use load::tensor_specs;
pub use names::NameOverrides;
pub use patch::{Patch, Stage, patch_down, patch_up};
pub use pointwise::Pointwise;
pub use prepare::{
    HOP, MAX_SECONDS, MIN_SECONDS, PrepareError, PrepareOptions, SAMPLE_RATE, prepare_audio,
};
pub use quantizer::{ResidualVq, VectorQuantizer};
pub use search::{Quantized, Search};
pub use stream::ZacStream;
pub use transformer::{
    FeedForward, LayerScale, SelfAttention, Transformer, TransformerLayer, TransformerLayers,
    TransformerState,
};
