//! What can go wrong with a checkpoint, each kind with the file, the cause and the remedy in one line.

use std::path::PathBuf;

use crate::shown::shown;

/// Why a checkpoint could not be opened, read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The path does not exist.
    #[error(
        "{path}: no such file or folder; give a checkpoint file, the folder that holds it, or hub:owner/name"
    )]
    NotFound {
        /// The path as given.
        path: PathBuf,
    },
    /// The operating system refused.
    #[error("{path}: {source}{}", remedy(source))]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The file has no bytes.
    #[error("{path}: the file is empty; the download or copy failed, fetch it again")]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// A few lines of text stand where Git LFS should have put the weights.
    #[error(
        "{path}: this is a Git LFS pointer ({size} bytes of text), not the file itself{real}; run `git lfs pull` in that folder or download the file again"
    )]
    LfsPointer {
        /// The file.
        path: PathBuf,
        /// Bytes of the pointer text.
        size: u64,
        /// ` of N bytes`, when the pointer says so.
        real: String,
    },
    /// A web page was saved under the checkpoint's name.
    #[error(
        "{path}: this is an HTML page, not the file itself; the download failed (a login or error page was saved), download the file again"
    )]
    Html {
        /// The file.
        path: PathBuf,
    },
    /// The file ends before its own header says it does.
    #[error(
        "{path}: truncated: expected {expected} bytes, have {have}; the download or copy stopped early, fetch it again"
    )]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Bytes that the header asks for (at least).
        expected: u64,
        /// Bytes that are there.
        have: u64,
    },
    /// None of the known formats.
    #[error(
        "{path}: not a checkpoint this program knows ({found}); expected .pth/.pt, .safetensors, .gguf or .bpk"
    )]
    Unrecognised {
        /// The file.
        path: PathBuf,
        /// What the first bytes look like.
        found: String,
    },
    /// A known format, or a part of one, that is not read.
    #[error("{path}: {}", shown(what))]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// What it is and what to do instead.
        what: String,
    },
    /// A folder without anything to load.
    #[error("{dir}: no checkpoint in this folder; looked for {looked_for}")]
    NoWeights {
        /// The folder.
        dir: PathBuf,
        /// The names that were tried, in order.
        looked_for: String,
    },
    /// The file contradicts itself.
    #[error("{path}: damaged file: {}; download or copy it again", shown(reason))]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A shard index is wrong, or disagrees with its shards.
    #[error("{path}: {}", shown(reason))]
    ShardIndex {
        /// The index file.
        path: PathBuf,
        /// What is wrong, with the tensor and shard named.
        reason: String,
    },
    /// The key the user gave is not in the file.
    #[error(
        "{path}: no dictionary under key '{}'; {}",
        shown(key),
        shown(available)
    )]
    Key {
        /// The file.
        path: PathBuf,
        /// The dotted key.
        key: String,
        /// The keys there are.
        available: String,
    },
    /// No tensor of that name.
    #[error("{path}: no tensor named '{}'{}", shown(name), shown(detail))]
    NoSuchTensor {
        /// The checkpoint.
        path: PathBuf,
        /// The name asked for.
        name: String,
        /// What stands there instead, when something does.
        detail: String,
    },
    /// One tensor cannot be read.
    #[error("{path}: tensor '{}': {}", shown(name), shown(reason))]
    Tensor {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A `params.json`, `config.json` or map file is not what it should be.
    #[error("{path}: {reason}")]
    Sidecar {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A GGUF file is damaged, or of a kind that is not read.
    #[error(transparent)]
    Gguf(#[from] zonos_gguf::GgufError),
    /// A `hub:` reference could not be resolved.
    #[error("{}", shown(.0))]
    Hub(String),
    /// A conversion was ended by its caller.
    #[error("{path}: stopped before it was complete; nothing was written")]
    Stopped {
        /// The file that was to be written.
        path: PathBuf,
    },
    /// A conversion was refused.
    #[error("{path}: {}", shown(reason))]
    Output {
        /// The file that was to be written.
        path: PathBuf,
        /// Why it was not.
        reason: String,
    },
}

/// What to do about an error of the system, where that is known.
pub(crate) fn remedy(error: &std::io::Error) -> &'static str {
    use std::io::ErrorKind::{FileTooLarge, PermissionDenied, QuotaExceeded, StorageFull};
    match error.kind() {
        PermissionDenied => "; check the permissions of the file and of its folders",
        StorageFull | QuotaExceeded | FileTooLarge => "; make room, or write elsewhere",
        _ => "",
    }
}

impl CheckpointError {
    pub(crate) fn io(path: impl Into<PathBuf>, source: std::io::Error) -> Self {
        let path = path.into();
        if source.kind() == std::io::ErrorKind::NotFound {
            Self::NotFound { path }
        } else {
            Self::Io { path, source }
        }
    }

    pub(crate) fn malformed(path: impl Into<PathBuf>, reason: impl Into<String>) -> Self {
        Self::Malformed {
            path: path.into(),
            reason: reason.into(),
        }
    }

    pub(crate) fn unsupported(path: impl Into<PathBuf>, what: impl Into<String>) -> Self {
        Self::Unsupported {
            path: path.into(),
            what: what.into(),
        }
    }
}
