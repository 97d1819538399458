//! What can go wrong.

use thiserror::Error;
use zonos_audio::CodesError;
use zonos_checkpoint::{CheckpointError, LoadError};

/// Why a codec could not be loaded or codes not be decoded.
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
}
