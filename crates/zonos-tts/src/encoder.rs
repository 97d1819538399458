//! From a recording to a voice.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use burn::tensor::Device;
use zonos_audio::Waveform;
use zonos_audio::decode::{DecodeLimits, decode_bytes};
use zonos_audio::reference::{check_reference, reference_of};
use zonos_checkpoint::{Checkpoint, LoadOptions, LoadReport};
use zonos_ecapa::Ecapa;

use crate::voice::sha256;
use crate::{Provenance, TtsError, Voice, VoiceFileError};

/// What a recording to clone may cost: voices need seconds, so ten minutes are plenty.
pub const CLONE_LIMITS: DecodeLimits = DecodeLimits {
    max_encoded_bytes: 256 << 20,
    max_seconds: 600.0,
    max_decoded_bytes: 1 << 30,
};

/// An ECAPA-TDNN speaker encoder: recordings to [`Voice`]s.
///
/// ```no_run
/// use burn::tensor::Device;
/// use zonos_tts::SpeakerEncoder;
///
/// let encoder = SpeakerEncoder::load("speaker-encoder", &Device::flex())?;
/// let (voice, warnings) = encoder.clone_file("anna.mp3")?;
/// voice.save("anna.safetensors")?;
/// # Ok::<(), zonos_tts::TtsError>(())
/// ```
#[derive(Debug)]
pub struct SpeakerEncoder {
    ecapa: Ecapa,
    name: String,
}

impl SpeakerEncoder {
    /// Opens an encoder by path (a folder or a file) or `hub:owner/name`.
    ///
    /// # Errors
    /// The checkpoint cannot be opened or is no speaker encoder.
    pub fn load(path: impl AsRef<Path>, device: &Device) -> Result<Self, TtsError> {
        let path = path.as_ref();
        let checkpoint = Checkpoint::open(path)?;
        let (encoder, _) = Self::open(&checkpoint, &LoadOptions::default(), device)?;
        // A hub id says more than the folder of its snapshot.
        Ok(match path.to_str().filter(|p| p.starts_with("hub:")) {
            Some(id) => encoder.named(id),
            None => encoder,
        })
    }

    /// Loads an encoder from a checkpoint that is already open, with a report on its weights.
    ///
    /// # Errors
    /// The checkpoint is no speaker encoder.
    pub fn open(
        checkpoint: &Checkpoint,
        options: &LoadOptions,
        device: &Device,
    ) -> Result<(Self, LoadReport), TtsError> {
        let (ecapa, report) = Ecapa::load_with(checkpoint, options, device)?;
        let name = called(checkpoint.path());
        Ok((Self { ecapa, name }, report))
    }

    /// The same encoder under another name, which goes into the provenance of its voices. Without it
    /// that is the name of its file, or of the folder of a file called `model`.
    pub fn named(self, name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            ..self
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The model.
    pub fn ecapa(&self) -> &Ecapa {
        &self.ecapa
    }

    /// Numbers in the vectors it makes.
    pub fn dim(&self) -> usize {
        self.ecapa.config().enc_dim
    }

    /// Refuses an encoder whose vectors the backbone does not take, naming both lengths.
    ///
    /// # Errors
    /// [`TtsError::EncoderWidth`].
    pub fn check(&self, dim: usize) -> Result<(), TtsError> {
        if self.dim() == dim {
            return Ok(());
        }
        Err(TtsError::EncoderWidth {
            encoder: self.name.clone(),
            found: self.dim(),
            expected: dim,
        })
    }

    /// The voice of a recording, at any sample rate, mono. Its provenance tells the encoder, the date
    /// and the length.
    ///
    /// # Errors
    /// A recording that makes no voice: shorter than 0.3 s, silent, far beyond full scale, or with samples
    /// that are not finite; see [`check_reference`].
    pub fn clone_voice(&self, recording: &Waveform) -> Result<Voice, TtsError> {
        check_reference(recording)?;
        let vector = self.ecapa.embed(recording)?;
        let provenance = Provenance {
            model: Some(self.name.clone()),
            seconds: Some(recording.seconds()),
            ..Provenance::now()
        };
        Ok(Voice::new(vector, provenance)?)
    }

    /// The voice of an audio file within [`CLONE_LIMITS`], its channels averaged, and what was odd
    /// about the file. The provenance also tells the file's name and SHA-256.
    ///
    /// # Errors
    /// The file cannot be decoded, or as [`clone_voice`](Self::clone_voice); channels that cancel each
    /// other. All of them name the file.
    pub fn clone_file(&self, path: impl AsRef<Path>) -> Result<(Voice, Vec<String>), TtsError> {
        let path = path.as_ref();
        let bytes = read(path).map_err(|source| VoiceFileError::Io {
            path: path.to_path_buf(),
            source,
        })?;
        let hash = sha256(&bytes);
        let name = path.display().to_string();
        let decoded = decode_bytes(&name, bytes, &CLONE_LIMITS)?;
        let warnings = decoded.warnings.clone();
        let voice = reference_of(decoded)
            .map_err(TtsError::from)
            .and_then(|recording| self.clone_voice(&recording))
            .map_err(|error| match error {
                TtsError::Reference(source) => TtsError::Recording { name, source },
                other => other,
            })?;
        let provenance = Provenance {
            source: path.file_name().map(|n| n.to_string_lossy().into_owned()),
            source_sha256: Some(hash),
            ..voice.provenance().clone()
        };
        Ok((voice.with_provenance(provenance), warnings))
    }
}

/// All of a regular file, and of one that is too large a byte more than is allowed, for the decoder to
/// refuse it. Read once, so that what is hashed is what is heard.
fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    if !std::fs::metadata(path)?.is_file() {
        return Err(std::io::Error::other("not a regular file"));
    }
    let mut bytes = Vec::new();
    File::open(path)?
        .take(CLONE_LIMITS.max_encoded_bytes + 1)
        .read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// What to call the model of a file: many are `model.safetensors`, and only their folders differ.
fn called(path: &Path) -> String {
    let parent = path.parent().and_then(Path::file_name);
    let generic = path.file_stem().is_some_and(|stem| stem == "model");
    let name = parent.filter(|_| generic).or(path.file_name());
    name.unwrap_or_default().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoders_are_called_by_what_tells_them_apart() {
        assert_eq!(called(Path::new("/x/ecapa/model.safetensors")), "ecapa");
        assert_eq!(called(Path::new("/x/spk.safetensors")), "spk.safetensors");
        assert_eq!(called(Path::new("model.safetensors")), "model.safetensors");
    }
}
