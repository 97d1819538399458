//! Waveforms, codec codes, audio files and `.npy` arrays, without tensors.
//!
//! The parts of a speech stack that are plain numbers and files live here, so that tools can read
//! codes or write a WAV without pulling in a tensor library:
//!
//! * [`Codes`]: a `[frames, codebooks]` table with the delay ("shear") a language model works in;
//! * [`Waveform`]: mono samples with their rate, written as WAV; [`WavStream`] for pipes;
//! * [`npy`]: `.npy` arrays in and out, safe on files from strangers;
//! * [`resample`]: sample rates, as `torchaudio` converts them;
//! * [`stft`], [`mel`]: spectra and mel spectrograms, as `torch` and `torchaudio` make them;
//! * [`spectrum`], [`plot`]: levels over time and frequency, and pictures of them;
//! * [`fade`]: the fade-out, whole or streamed;
//! * [`AtomicFile`]: output that appears complete or not at all; [`ScratchFolder`] for what is
//!   temporary by intent.
//!
//! ```
//! use zonos_audio::{Codes, Waveform};
//!
//! let codes = Codes::new(3, 2, vec![1, 2, 3, 4, 5, 6])?;
//! assert_eq!(codes.shear(9).values(), &[1, 9, 3, 2, 5, 4]);
//!
//! let dir = tempfile::tempdir()?;
//! let tone = (0..441).map(|i| (i as f32 * 0.06).sin() * 0.5).collect();
//! let mut wave = Waveform::new(tone, 44_100);
//! wave.fade_out(2.0);
//! wave.save_wav(dir.path().join("tone.wav"))?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod atomic;
pub mod codes;
pub mod decode;
pub mod encode;
pub mod fade;
pub mod levels;
pub mod mel;
pub mod npy;
pub mod plot;
pub mod reference;
pub mod resample;
pub mod scratch;
pub mod spectrum;
pub mod stft;
pub mod wav;
pub mod waveform;

pub use atomic::{
    AtomicFile, FileError, Unfinished, behind_links, discard_unfinished, exit_discarding_unfinished,
};
pub use codes::{CodeLimits, Codes, CodesError};
pub use fade::FadeOut;
pub use levels::Levels;
pub use npy::{NpyArray, NpyData, NpyError};
pub use resample::{ResampleError, ResampleKernel, ResampleRecipe, ResampleStream, Resampler};
pub use scratch::ScratchFolder;
pub use wav::{WavError, WavStream};
pub use waveform::Waveform;
