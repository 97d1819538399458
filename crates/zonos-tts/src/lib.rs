//! Text to audio: prompt, backbone, sampler and codec, as one pipeline.
//!
//! ```text
//! text -> SpeechRequest -> Plan -> Zonos2 -> delayed rows -> Dac -> samples
//!         (plain values)  (checked)          (9 codes a row)       (44.1 kHz)
//! ```
//!
//! [`Tts`] holds the two models. A [`SpeechRequest`] says what to speak; [`SpeechRequest::plan`]
//! checks it against a model once, into a [`Plan`] that cannot be wrong; [`Tts::speak`] and
//! [`Tts::speak_streaming`] run it. Both give the same samples: the codec sees every frame with its
//! exact context, so the seams of streaming are not there to be heard.
//!
//! Speech ends when the model says so. When it does not, a bound on frames a byte of text and a
//! breaker for repeated frames end it ([`Limits`]), and [`Speech::end`] tells.
//!
//! A [`Voice`] is a speaker vector with its provenance; a [`VoiceStore`] keeps voices by name.
//!
//! The module [`demo`] holds a tiny random model, so that all of this runs without weights.

pub mod demo;
mod encoder;
mod error;
mod live;
mod request;
mod speech;
mod tts;
pub mod voice;

pub use encoder::{CLONE_LIMITS, SpeakerEncoder};
pub use error::TtsError;
pub use request::{MAX_FADE_MS, Plan, Speaker, SpeakingRate, SpeechRequest};
pub use speech::{Chunk, Speech, Timings, end_name};
pub use tts::{STREAM_BLOCK, Tts, TtsBuilder};
pub use voice::{
    Provenance, StoreError, StoredVoice, Voice, VoiceFileError, VoiceFormat, VoiceName,
    VoiceNameError, VoiceStore,
};
pub use zonos2::conditioning::Quality;
pub use zonos2::{EndReason, Limits, SamplerOptions};
