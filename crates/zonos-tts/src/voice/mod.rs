//! Voices: a speaker vector and where it came from, in files and in a folder of names.
//!
//! # The voice file
//!
//! A voice is saved as `.safetensors`: one tensor `speaker`, F32 `[numbers]`, and metadata strings:
//!
//! | key | value |
//! |---|---|
//! | `format` | `zonos-voice` |
//! | `name` | the name it was saved under |
//! | `model` | the speaker encoder that made it |
//! | `source` | the file it was made from, without its folder, or the voices it was blended from |
//! | `source_sha256` | SHA-256 of that file, 64 hexadecimal digits |
//! | `date` | when, RFC 3339 in UTC |
//! | `library` | the program that made it, with its version |
//! | `seconds` | length of the recording |
//!
//! Every key but `format` may be missing. Vectors of other tools are read too, see [`Voice::load`];
//! they come without provenance.

mod date;
mod name;
mod read;
mod store;
mod write;

use std::path::{Path, PathBuf};

use zonos_audio::npy::NpyError;
use zonos_audio::{AtomicFile, FileError};
use zonos_checkpoint::CheckpointError;
use zonos2::voice::{MAX_DIM, VoiceError};
use zonos2::{SpeakerVector, slerp};

use crate::Speaker;

pub(crate) use read::sha256;

pub use name::{VoiceName, VoiceNameError};
pub use read::VoiceFormat;
pub use store::{StoreError, StoredVoice, VoiceStore};

/// Where a voice came from. Nothing is required: files of other tools know none of it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Provenance {
    /// The name it was saved under.
    pub name: Option<String>,
    /// The speaker encoder that made it: the name of its file or folder, or its hub id.
    pub model: Option<String>,
    /// The file it was made from, without its folder; for a blend, what was blended.
    pub source: Option<String>,
    /// SHA-256 of that file in hexadecimal.
    pub source_sha256: Option<String>,
    /// When it was made, RFC 3339 in UTC (`2026-11-29T21:47:29Z`).
    pub date: Option<String>,
    /// The program that made it, with its version.
    pub library: Option<String>,
    /// Length of the recording in seconds.
    pub seconds: Option<f64>,
}

impl Provenance {
    /// Made now, by this library.
    pub fn now() -> Self {
        Self {
            date: Some(date::now()),
            library: Some(concat!("zonos-tts ", env!("CARGO_PKG_VERSION")).to_owned()),
            ..Self::default()
        }
    }
}

/// Why a voice could not be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VoiceFileError {
    /// The file could not be opened or read.
    #[error("{}: cannot read: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file holds no speaker vector in a form that is read.
    #[error("{}: {problem}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What was expected and found.
        problem: String,
    },
    /// The name to save under ends otherwise.
    #[error(
        "{}: the ending must be .npy or .safetensors; it chooses the format", .0.display()
    )]
    Ending(PathBuf),
    /// A `.npy` array could not be read or written.
    #[error(transparent)]
    Npy(#[from] NpyError),
    /// A `.safetensors` file could not be read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The vector has a length that none has, or numbers that are not finite.
    #[error(transparent)]
    Vector(#[from] VoiceError),
    /// The file could not be written.
    #[error(transparent)]
    Write(#[from] FileError),
}

/// A speaker vector, as a speaker encoder makes it, and its provenance.
///
/// The vector is not normalised: its length is part of the voice.
///
/// ```
/// use zonos_tts::{Provenance, Voice};
///
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("anna.safetensors");
/// let voice = Voice::new(vec![0.25; 2048], Provenance::now())?;
/// voice.save(&path)?;
/// assert_eq!(Voice::load(&path)?, voice);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Voice {
    vector: Vec<f32>,
    provenance: Provenance,
}

impl Voice {
    /// Takes a vector of any length that a model might have.
    ///
    /// # Errors
    /// An empty vector, one of more than 65 536 numbers, one of zeros alone, or numbers that are not
    /// finite or too large for any speaker encoder.
    pub fn new(vector: Vec<f32>, provenance: Provenance) -> Result<Self, VoiceError> {
        Self::named("speaker vector", vector, provenance)
    }

    fn named(name: &str, vector: Vec<f32>, provenance: Provenance) -> Result<Self, VoiceError> {
        if vector.is_empty() || vector.len() > MAX_DIM {
            return Err(VoiceError::Shape {
                name: name.to_owned(),
                shape: vec![vector.len()],
            });
        }
        let dim = vector.len();
        let vector = SpeakerVector::named(name, vector, dim)?.into_values();
        if vector.iter().all(|&x| x == 0.0) {
            return Err(VoiceError::Zero {
                name: name.to_owned(),
            });
        }
        Ok(Self { vector, provenance })
    }

    /// The speaker vector.
    pub fn vector(&self) -> &[f32] {
        &self.vector
    }

    /// Numbers in the vector; a model takes one length only.
    pub fn dim(&self) -> usize {
        self.vector.len()
    }

    /// Where it came from.
    pub fn provenance(&self) -> &Provenance {
        &self.provenance
    }

    /// The same voice with another provenance.
    pub fn with_provenance(self, provenance: Provenance) -> Self {
        Self { provenance, ..self }
    }

    /// As the voice of a request.
    pub fn speaker(&self) -> Speaker {
        Speaker {
            vector: self.vector.clone(),
            position: 0,
        }
    }

    /// Refuses a voice whose length is not the one that a model takes, naming both.
    ///
    /// # Errors
    /// [`VoiceError::Length`] with `name`, the file or the voice.
    pub fn check(&self, name: &str, dim: usize) -> Result<(), VoiceError> {
        if self.dim() == dim {
            return Ok(());
        }
        Err(VoiceError::Length {
            name: name.to_owned(),
            expected: dim,
            found: self.dim(),
        })
    }

    /// Reads a voice, by content: a voice file, any other `.safetensors`, `.npy` or `.npz`.
    ///
    /// Arrays are `[numbers]`, or `[n, numbers]`, whose rows are averaged; axes of length 1 do not
    /// count, and elements may be any integers or floats. Of a `.safetensors` file the tensor
    /// `speaker` or `emb` is taken, or the only one; of a `.npz` archive `emb` or the only array; of
    /// a structured `.npy` array the field `emb`. Nothing pickled is read.
    ///
    /// # Errors
    /// Names the file and what is wrong with it: no vector inside, another shape, numbers that are
    /// not finite, a size beyond what any vector has.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, VoiceFileError> {
        read::load(path.as_ref())
    }

    /// As [`load`](Self::load), for a file that is taken over: where it tells no source, the file
    /// itself becomes it, with its name and SHA-256.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn import(path: impl AsRef<Path>) -> Result<Self, VoiceFileError> {
        read::import(path.as_ref())
    }

    /// Whether [`save`](Self::save) knows what to write under this name.
    ///
    /// # Errors
    /// [`VoiceFileError::Ending`].
    pub fn check_ending(path: impl AsRef<Path>) -> Result<(), VoiceFileError> {
        write::check_ending(path.as_ref())
    }

    /// Writes `.safetensors`, with provenance, or `.npy` (`<f4`, `[numbers]`), without; the ending of
    /// `path` chooses. The file appears whole or not at all.
    ///
    /// # Errors
    /// Another ending, or a file that cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), VoiceFileError> {
        Ok(self.stage(path)?.commit()?)
    }

    /// As [`save`](Self::save), but leaves the commit to the caller, for files that belong together;
    /// see [`AtomicFile::commit_all`].
    ///
    /// # Errors
    /// As [`save`](Self::save).
    pub fn stage(&self, path: impl AsRef<Path>) -> Result<AtomicFile, VoiceFileError> {
        write::stage(self, path.as_ref())
    }

    /// Blends towards `other`: 0 is this voice, 1 the other. Spherical, see [`slerp`]; nearly parallel
    /// vectors are blended in a straight line, opposite ones are refused.
    ///
    /// # Errors
    /// A factor outside 0 to 1, vectors of different lengths, or opposite vectors.
    pub fn blend(&self, other: &Self, t: f64) -> Result<Self, VoiceError> {
        let vector = slerp(&self.vector, &other.vector, t)?;
        let called = |voice: &Self| {
            let from = &voice.provenance;
            from.name.clone().or_else(|| from.source.clone())
        };
        let name = |voice| called(voice).unwrap_or_else(|| "a voice without a name".to_owned());
        let model = match (&self.provenance.model, &other.provenance.model) {
            (Some(a), Some(b)) if a == b => Some(a.clone()),
            (Some(a), Some(b)) => Some(format!("{a}, {b}")),
            _ => None,
        };
        let provenance = Provenance {
            model,
            source: Some(format!(
                "blend of {} and {}, t = {t}",
                name(self),
                name(other)
            )),
            ..Provenance::now()
        };
        Self::named("voice blend", vector, provenance)
    }
}

impl From<&Voice> for Speaker {
    fn from(voice: &Voice) -> Self {
        voice.speaker()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn voice(name: &str, model: &str, vector: &[f32]) -> Voice {
        let provenance = Provenance {
            name: Some(name.to_owned()),
            model: Some(model.to_owned()),
            ..Provenance::now()
        };
        Voice::new(vector.to_vec(), provenance).unwrap()
    }

    #[test]
    fn blends_know_their_parents() {
        let (a, b) = (voice("a", "m", &[1.0, 0.0]), voice("b", "m", &[0.0, 1.0]));
        let c = a.blend(&b, 0.5).unwrap();
        assert!((c.vector()[0] - 0.5_f32.sqrt()).abs() < 1e-6);
        assert_eq!(c.provenance().model.as_deref(), Some("m"));
        assert_eq!(
            c.provenance().source.as_deref(),
            Some("blend of a and b, t = 0.5")
        );
        assert_eq!(a.blend(&b, 0.0).unwrap().vector(), a.vector());
        let other = voice("b", "n", &[0.0, 1.0]);
        let c = a.blend(&other, 0.5).unwrap();
        assert_eq!(c.provenance().model.as_deref(), Some("m, n"));
        let wide = voice("w", "m", &[1.0; 3]);
        let error = a.blend(&wide, 0.5).unwrap_err().to_string();
        assert!(error.contains('2') && error.contains('3'), "{error}");
        let against = voice("n", "m", &[-1.0, 0.0]);
        assert!(matches!(a.blend(&against, 0.5), Err(VoiceError::Opposite)));
        assert!(a.blend(&b, 1.5).is_err());
    }

    #[test]
    fn vectors_that_are_none() {
        let new = |vector| Voice::new(vector, Provenance::default());
        assert!(matches!(new(vec![]), Err(VoiceError::Shape { .. })));
        assert!(new(vec![0.0; MAX_DIM + 1]).is_err());
        assert!(matches!(
            new(vec![0.0, f32::INFINITY]),
            Err(VoiceError::NonFinite { index: 1, .. })
        ));
        assert!(matches!(new(vec![0.0, -0.0]), Err(VoiceError::Zero { .. })));
        assert!(matches!(
            new(vec![1.0, -3e37]),
            Err(VoiceError::TooLarge { index: 1, .. })
        ));
        let error = voice("a", "m", &[0.5; 64])
            .check("a.npy", 2048)
            .unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("a.npy") && text.contains("2048") && text.contains("64"),
            "{text}"
        );
    }
}
