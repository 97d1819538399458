//! What can go wrong.

use thiserror::Error;
use zonos_audio::CodesError;
use zonos_audio::resample::ResampleError;
use zonos_checkpoint::{CheckpointError, LoadError};

/// Why a codec could not be loaded, codes not be decoded or audio not be encoded.
#[derive(Debug, Error)]
pub enum DacError {
    /// The checkpoint could not be opened.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// Its tensors are not those of a codec.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// Its configuration makes no sense.
    #[error("{file}: {problem}")]
    Config {
        /// The checkpoint.
        file: String,
        /// The field, what was expected and what was found.
        problem: String,
    },
    /// Codes outside the codebooks, or more columns than there are codebooks.
    #[error(transparent)]
    Codes(#[from] CodesError),
    /// A stream was given codes of another number of columns than before.
    #[error(
        "a stream that began with {expected} codebooks was given codes with {found}; use one number of codebooks in a stream"
    )]
    Columns {
        /// Columns of the first codes pushed.
        expected: usize,
        /// Columns of these.
        found: usize,
    },
    /// There are no frames.
    #[error("no frames to decode")]
    Empty,
    /// The checkpoint has no encoder.
    #[error(
        "{file}: holds no encoder (no tensor encoder.*), so it decodes but cannot encode; encode with the codec's original weights"
    )]
    NoEncoder {
        /// The checkpoint.
        file: String,
    },
    /// The checkpoint has an encoder, but only the decoder was loaded.
    #[error(
        "{file}: only the decoder was loaded, so nothing can be encoded; load it with DacParts::Whole"
    )]
    DecoderOnly {
        /// The checkpoint.
        file: String,
    },
    /// There is no audio.
    #[error("no samples to encode")]
    NoSamples,
    /// Audio that is no audio.
    #[error("sample {sample} is {value}; only finite samples can be encoded")]
    NotFinite {
        /// Its place, from 0.
        sample: usize,
        /// Its value.
        value: f32,
    },
    /// Audio so loud that no codec knows what to make of it.
    #[error(
        "sample {sample} is {value:e}, {:.0} dB above full scale, which is 1; bring the samples to between -1 and 1",
        20.0 * value.abs().log10()
    )]
    TooLoud {
        /// Its place, from 0.
        sample: usize,
        /// Its value.
        value: f32,
    },
    /// More codebooks than there are, or none.
    #[error("{asked} codebooks asked for; expected 1 to {has}")]
    Codebooks {
        /// Codebooks asked for.
        asked: usize,
        /// Codebooks of the codec.
        has: usize,
    },
    /// Audio of a rate that cannot be brought to the codec's.
    #[error(transparent)]
    Resample(#[from] ResampleError),
    /// Finite audio became values that are not.
    #[error(
        "{file}: encodes frame {frame} to values that are not finite; `zonos inspect {file} --check` tells whether the weights hold NaN or infinity"
    )]
    Latents {
        /// The checkpoint.
        file: String,
        /// The first such frame, from 0.
        frame: usize,
    },
}
