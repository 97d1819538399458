use std::io;

use super::SUPPORTED;

/// Why a file could not be decoded.
#[derive(Debug, thiserror::Error)]
#[error("{name}: {problem}")]
pub struct DecodeError {
    name: String,
    problem: Problem,
}

impl DecodeError {
    pub(super) fn new(name: &str, problem: Problem) -> Self {
        Self {
            name: name.to_owned(),
            problem,
        }
    }

    /// The file, as it was named.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What is wrong.
    pub fn problem(&self) -> &Problem {
        &self.problem
    }
}

/// What is wrong with a file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// It could not be opened or read.
    #[error("cannot read: {0}")]
    Read(#[source] io::Error),
    /// It has no bytes.
    #[error("the file is empty")]
    Empty,
    /// It is something else; the text says what it looks like.
    #[error("not an audio file ({0}); supported: {SUPPORTED}")]
    NotAudio(String),
    /// It is audio in a format that is not read.
    #[error(
        "{} is not supported; supported: {SUPPORTED}",
        in_container(codec, container)
    )]
    Unsupported {
        /// The codec, or the format as a whole.
        codec: String,
        /// The container; empty where the format is its own.
        container: String,
    },
    /// A header field is impossible.
    #[error("invalid header: {0}")]
    Header(String),
    /// It ends before its samples begin, or has no index of them.
    #[error("the file is cut short: {0}")]
    CutShort(&'static str),
    /// A video, perhaps.
    #[error("the file has no audio track ({0})")]
    NoAudioTrack(&'static str),
    /// The headers are right and nothing follows.
    #[error("the file contains no samples")]
    NoSamples,
    /// The bytes contradict the format.
    #[error("damaged file: {0}")]
    Damaged(String),
    /// Samples that are no numbers.
    #[error(
        "the audio contains NaN or infinite samples, the first at {seconds:.3} s in channel {channel}"
    )]
    NonFinite {
        /// Where.
        seconds: f64,
        /// In which channel, counted from 1.
        channel: usize,
    },
    /// The file is larger than allowed.
    #[error("the file has more than {limit} bytes, the most that is read; cut it or compress it")]
    TooManyBytes {
        /// The limit.
        limit: u64,
    },
    /// The sound is longer than allowed.
    #[error("the sound is longer than {limit} s, the most that is read; cut it into pieces")]
    TooLong {
        /// The limit, in seconds.
        limit: f64,
    },
    /// The sound needs more memory than allowed.
    #[error(
        "the sound needs more than {limit} bytes when decoded, the most that is allowed; cut it into pieces or use fewer channels"
    )]
    TooLarge {
        /// The limit.
        limit: u64,
    },
}

fn in_container(codec: &str, container: &str) -> String {
    match container {
        "" => codec.to_owned(),
        _ => format!("{codec} in {container}"),
    }
}

impl Problem {
    pub(super) fn header(what: impl Into<String>) -> Self {
        Self::Header(what.into())
    }

    pub(super) fn damaged(what: impl Into<String>) -> Self {
        Self::Damaged(what.into())
    }

    pub(super) fn unsupported(codec: impl Into<String>, container: impl Into<String>) -> Self {
        Self::Unsupported {
            codec: codec.into(),
            container: container.into(),
        }
    }
}

impl From<io::Error> for Problem {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::UnexpectedEof {
            return Self::CutShort("it ends where more was expected");
        }
        Self::Read(error)
    }
}
