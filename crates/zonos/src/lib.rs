//! Text to speech with ZONOS2 and DAC, and the ZAC-1 speech codec, in Rust on Burn.
//!
//! This crate is the front door: it re-exports the types that a program needs, from the crates that
//! hold them. The `zonos` command is built on the same ones.
//!
//! # From text to a WAV file
//!
//! ```
//! use zonos::{Device, SpeechRequest, Tts};
//!
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("hello.wav");
//! // Random weights that speak noise; `Tts::load(model, codec, &device)` opens real ones.
//! let tts = Tts::demo(&Device::flex())?;
//! let request = SpeechRequest {
//!     seed: Some(1),
//!     max_frames: Some(30),
//!     ..SpeechRequest::new("Hello, world.")
//! };
//! let speech = tts.speak(&request)?;
//! speech.waveform.save_wav(&path)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # A voice
//!
//! ```
//! use zonos::{Device, Provenance, SpeechRequest, Tts, Voice, VoiceName, VoiceStore};
//!
//! # let dir = tempfile::tempdir()?;
//! let store = VoiceStore::new(dir.path()); // or `VoiceStore::of_user()?`
//! let anna = VoiceName::new("anna")?;
//! // From a file with `Voice::load`, or from a recording with `Tts::clone_voice`.
//! store.add(&anna, &Voice::new(vec![0.1; 2048], Provenance::now())?, false)?;
//!
//! let tts = Tts::demo(&Device::flex())?;
//! let request = SpeechRequest {
//!     voice: Some(store.get(&anna)?.speaker()),
//!     seed: Some(1),
//!     max_frames: Some(20),
//!     ..SpeechRequest::new("Hello, world.")
//! };
//! assert!(tts.speak(&request)?.waveform.len() > 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # The backbone alone
//!
//! ```
//! use std::ops::ControlFlow;
//! use zonos::{Device, GenerateOptions, SamplerOptions, Sequence, SpeechRequest, Zonos2};
//! # let demo = zonos::demo::DemoCheckpoint::create()?;
//!
//! let model = Zonos2::load(demo.model(), &Device::flex())?;
//! let prompt = SpeechRequest::new("Hello.").prompt(model.config())?;
//! let options = GenerateOptions {
//!     sampler: SamplerOptions::greedy(),
//!     max_frames: Some(8),
//!     ..GenerateOptions::default()
//! };
//! let done = model.generate(&[Sequence::from_prompt(&prompt, None)?], &[options], &mut |_| {
//!     ControlFlow::Continue(())
//! })?;
//! assert_eq!(done[0].frames.codebooks(), 9);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # The codec alone
//!
//! ```
//! use zonos::{Codes, Dac, Device};
//! # let demo = zonos::demo::DemoCheckpoint::create()?;
//!
//! let codec = Dac::load(demo.codec(), &Device::flex())?;
//! let codes = Codes::new(4, 9, vec![17; 4 * 9])?;
//! let waveform = codec.decode(&codes)?;
//! assert_eq!(waveform.len(), 4 * 512);
//!
//! // And back: audio of any rate to codes, of which the first few may be enough.
//! assert_eq!(codec.encode(&waveform, Some(2))?.codebooks(), 2);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # ZAC-1
//!
//! ```no_run
//! use zonos::{Codes, Device, ZacDecoder, ZacEncoder};
//!
//! let device = Device::flex();
//! let decoder = ZacDecoder::load("zac-1-decoder-keep2_plain.safetensors", &device)?;
//! let speech = decoder.decode(&Codes::load_npy("codes.npy")?)?; // [frames, 10] at 15 Hz
//!
//! // Audio of any rate to codes; the teacher is in the same file.
//! let encoder = ZacEncoder::load("zac-1-encoder.safetensors", &device)?;
//! encoder.encode(&speech)?.save_npy("again.npy")?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # A checkpoint
//!
//! ```
//! use zonos::{Checkpoint, ModelKind};
//! # let demo = zonos::demo::DemoCheckpoint::create()?;
//!
//! let checkpoint = Checkpoint::open(demo.model())?;
//! assert_eq!(checkpoint.model_kind(), ModelKind::Zonos2);
//! let head = checkpoint.info("multi_output.weight").expect("the output head");
//! assert_eq!(head.shape, [9 * 1026, 64]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub use burn::tensor::Device;
pub use zonos_audio::{Codes, WavStream, Waveform, decode};
pub use zonos_checkpoint::{Checkpoint, LoadOptions, LoadReport, ModelKind};
pub use zonos_dac::{Dac, DacParts, DacStream, Roundtrip, snr_db};
pub use zonos_gguf::Perplexity;
pub use zonos_kernels::{device::available_devices, parse_device};
pub use zonos_nn::Tap;
pub use zonos_tts::{
    Chunk, EndReason, Limits, Plan, Provenance, Quality, SamplerOptions, Speaker, SpeakerEncoder,
    SpeakingRate, Speech, SpeechRequest, Tts, TtsBuilder, TtsError, Voice, VoiceName, VoiceStore,
    demo,
};
pub use zonos_w2v_bert::{Teacher, TeacherConfig};
pub use zonos_zac::{
    EncodeProgress, PrepareError, PrepareOptions, ZacConfig, ZacDecoder, ZacEncoder, ZacError,
    ZacStream, prepare_audio,
};
pub use zonos2::{
    GenerateOptions, Importance, Prompt, Sequence, SpeakerVector, Zonos2, Zonos2Config,
};
