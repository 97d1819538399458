//! Why a comparison could not be made at all (a comparison that failed is a row of the report).

use std::path::PathBuf;

use crate::folder::Component;

/// A golden folder that cannot be compared. Each message names the file and what to do.
#[derive(Debug, thiserror::Error)]
pub enum GoldenError {
    /// A file could not be read.
    #[error("{}: cannot read: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The golden file is no safetensors file, or one of its tensors has an unusual dtype.
    #[error("{}: {problem}", path.display())]
    Format {
        /// The golden file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// The golden file holds no tensors: nothing to compare is a failure, not a success.
    #[error("{}: holds no tensors, so there is nothing to compare; write the folder again", path.display())]
    Empty {
        /// The golden file.
        path: PathBuf,
    },
    /// The folder holds no golden file.
    #[error(
        "{}: neither golden.safetensors nor grad.safetensors in it; give a golden folder",
        dir.display()
    )]
    NoGolden {
        /// The folder.
        dir: PathBuf,
    },
    /// The keys belong to no component of this build.
    #[error(
        "{}: its keys (first: `{first_key}`) belong to no component that golden-diff knows (zonos2, dac, ecapa, w2v-bert, zac, audio, and their gradients)",
        path.display()
    )]
    Unrecognised {
        /// The golden file.
        path: PathBuf,
        /// Its first key.
        first_key: String,
    },
    /// `component` was given and the folder is another one's.
    #[error("{}: a {found} folder, but component {asked} was asked for", dir.display())]
    WrongComponent {
        /// The folder.
        dir: PathBuf,
        /// What it is.
        found: Component,
        /// What was asked for.
        asked: Component,
    },
    /// No checkpoint to run.
    #[error("{}: no checkpoint in it; name one with --checkpoint FILE", dir.display())]
    NoCheckpoint {
        /// The folder.
        dir: PathBuf,
    },
    /// The checkpoint was refused by its loader, or the model by its input.
    #[error("{container}: {problem}")]
    Model {
        /// The checkpoint, as named in the report.
        container: String,
        /// What the loader or the model said.
        problem: String,
    },
    /// A report could not be written.
    #[error("{}: cannot write the report: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}

/// Shorthand for results of this crate.
pub type Result<T, E = GoldenError> = std::result::Result<T, E>;
