//! What can be wrong with a file, in one line.

use crate::shown::shown;
use crate::{BlockError, GgmlType};

/// Why a GGUF file could not be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GgufError {
    /// The magic is another one.
    #[error("{file}: not a GGUF file: it starts with {found}; expected the magic 'GGUF'")]
    NotGguf {
        /// The file.
        file: String,
        /// Its first bytes, and what they look like.
        found: String,
    },
    /// Every number is swapped.
    #[error(
        "{file}: big-endian GGUF (version field {field:#010x}); only little-endian files are read, convert it on the machine that made it"
    )]
    BigEndian {
        /// The file.
        file: String,
        /// The version as read.
        field: u32,
    },
    /// Neither version 2 nor 3.
    #[error("{file}: GGUF version {found} is not supported, only 2 and 3; {remedy}")]
    Version {
        /// The file.
        file: String,
        /// The version.
        found: u32,
        /// What to do about it.
        remedy: &'static str,
    },
    /// The file is shorter than its own header says.
    #[error(
        "{file}: the file ends inside {}: {needed} bytes needed at byte {at}, {left} left; download or copy it again",
        shown(what)
    )]
    Truncated {
        /// The file.
        file: String,
        /// What was being read.
        what: String,
        /// Bytes it takes.
        needed: u64,
        /// Where it starts.
        at: u64,
        /// Bytes from there to the end.
        left: u64,
    },
    /// A count that the file is too small for.
    #[error(
        "{file}: {count} {what} announced, but only {left} bytes follow; the header is damaged"
    )]
    Count {
        /// The file.
        file: String,
        /// `metadata entries` or `tensors`.
        what: &'static str,
        /// The count.
        count: u64,
        /// Bytes from there to the end.
        left: u64,
    },
    /// One metadata entry is wrong, missing or of another type.
    #[error("{file}: metadata {}: {}", shown(key), shown_long(problem))]
    Metadata {
        /// The file.
        file: String,
        /// The key in quotes, or `key N` where it cannot be read.
        key: String,
        /// Expected and found.
        problem: String,
    },
    /// One tensor is wrong.
    #[error("{file}: tensor {}: {}", shown(name), shown_long(problem))]
    Tensor {
        /// The file.
        file: String,
        /// The name in quotes, or `N` where it cannot be read.
        name: String,
        /// Expected and found.
        problem: String,
    },
    /// No tensor of that name.
    #[error("{file}: no tensor named '{}'", shown(name))]
    NoSuchTensor {
        /// The file.
        file: String,
        /// The name asked for.
        name: String,
    },
    /// A tensor's values cannot be decoded.
    #[error("{file}: tensor '{}' ({ggml_type}): {source}", shown(name))]
    Block {
        /// The file.
        file: String,
        /// The tensor.
        name: String,
        /// Its type.
        ggml_type: GgmlType,
        /// What is wrong.
        source: BlockError,
    },
    /// Writing failed.
    #[error("{file}: cannot write: {source}{}", remedy(source))]
    Io {
        /// The file.
        file: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// Reading a part of the file failed, after its header was read.
    #[error("{file}: cannot read: {source}")]
    Read {
        /// The file.
        file: String,
        /// The system's error.
        source: std::io::Error,
    },
}

/// What to do about a failed write, where that is known.
pub(crate) fn remedy(error: &std::io::Error) -> &'static str {
    use std::io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    match error.kind() {
        StorageFull | QuotaExceeded | FileTooLarge => "; make room, or write elsewhere",
        _ => "",
    }
}

/// Problems quote names from files too, but are longer than one.
fn shown_long(text: &str) -> String {
    text.chars()
        .flat_map(|c| {
            let plain = !c.is_control();
            let escaped = (!plain).then(|| c.escape_default());
            plain
                .then_some(c)
                .into_iter()
                .chain(escaped.into_iter().flatten())
        })
        .collect()
}

impl GgufError {
    pub(crate) fn metadata(file: &str, key: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Metadata {
            file: file.into(),
            key: key.into(),
            problem: problem.into(),
        }
    }

    pub(crate) fn tensor(file: &str, name: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Tensor {
            file: file.into(),
            name: name.into(),
            problem: problem.into(),
        }
    }
}
