//! ZONOS2 backbone: text and speaker to nine delayed DAC codebooks a frame.
//!
//! The way through: [`Prompt`] turns text and conditioning into rows of ten ids; [`Zonos2`] runs
//! [`Sequence`]s of rows through its [`model::Backbone`]; [`Zonos2::generate`] draws frames with a
//! [`Sampler`] until [`EndOfAudio`] or [`Limits`] end them; [`Generation::codec_codes`] is what the
//! codec decodes. [`Zonos2::score`] and [`Importance`] run given sequences to measure a model and to
//! quantise it well. Tensor names and equations follow Zyphra/ZONOS2.

mod cache;
pub mod conditioning;
pub mod config;
pub mod eos;
mod error;
mod evaluate;
mod generate;
pub mod gguf;
mod importance;
pub mod limits;
mod load;
pub mod model;
pub mod profile;
pub mod prompt;
pub mod sampler;
mod segment;
pub mod stream_plan;
pub mod voice;
mod zonos2;

pub use conditioning::{ConditioningError, Quality};
pub use config::{Balancing, ConfigError, QualityFeature, Zonos2Config};
pub use eos::{EndOfAudio, EndReason, codec_codes};
pub use limits::{Limits, LoopBreaker};
pub use prompt::{Prompt, PromptBuilder, PromptError};
pub use sampler::{Sampler, SamplerError, SamplerOptions, random_seed};
pub use stream_plan::{DecodeCall, StreamPlan};
pub use voice::{SpeakerVector, VoiceError, slerp};

pub use cache::{CacheDType, KvCache};
pub use error::Zonos2Error;
pub use evaluate::kld_shape;
pub use generate::{Frame, GenerateOptions, Generation};
pub use importance::Importance;
pub use load::{file_specs, name_map, tensor_specs};
pub use segment::{Packed, Sequence};
pub use zonos2::{Forward, Zonos2};
