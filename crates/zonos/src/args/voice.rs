//! Whose voice: a file, a stored voice, or a recording.

use std::path::{Path, PathBuf};

use clap::Args;
use zonos_tts::{Speaker, StoreError, TtsError, Voice, VoiceName, VoiceStore};
use zonos2::{PromptError, Zonos2Config};

use crate::commands::tts::refused;
use crate::failure::Failure;

/// The speaker vector, from a file or from the folder of voices.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Voice")]
pub(crate) struct VoiceArgs {
    /// Speaker vector: a voice file (.safetensors), .npy or .npz, [D], or [N, D] to average; D is 2048
    /// for the released model.
    #[arg(long, value_name = "EMB", group = "whose")]
    pub speaker: Option<PathBuf>,
    /// A stored voice by name; `zonos voices list` shows them.
    #[arg(long, value_name = "NAME", group = "whose")]
    pub voice: Option<String>,
    #[command(flatten)]
    pub store: StoreArgs,
    /// Prompt row that the speaker vector replaces.
    #[arg(long, value_name = "P", default_value = "0", requires = "whose", allow_negative_numbers = true, hide_short_help = true, value_parser = super::whole::<u32>(0, u32::MAX))]
    pub speaker_pos: u32,
}

/// The folder of voices.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Voice")]
pub(crate) struct StoreArgs {
    /// Folder of the stored voices [default: zonos/voices where the system keeps a program's data, such
    /// as ~/.local/share].
    #[arg(long, value_name = "DIR", env = "ZONOS_VOICES", global = true)]
    pub voices: Option<PathBuf>,
}

impl StoreArgs {
    /// The folder that was named, or the user's.
    pub(crate) fn open(&self) -> Result<VoiceStore, Failure> {
        match &self.voices {
            Some(folder) => Ok(VoiceStore::new(folder)),
            None => VoiceStore::of_user().map_err(stored),
        }
    }
}

/// A recording to speak like.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Voice")]
pub(crate) struct CloneArgs {
    /// Recording of the voice to speak with, a few seconds of one speaker: WAV, MP3, FLAC, Ogg, M4A and
    /// others, told by content.
    #[arg(long, value_name = "AUDIO", group = "whose")]
    pub clone: Option<PathBuf>,
    /// With --clone: the speaker encoder, a folder, a file or hub:owner/name[@revision], such as
    /// hub:marksverdhei/Qwen3-Voice-Embedding-12Hz-1.7B [env: ZONOS_SPEAKER_ENCODER] [default: in the
    /// model's folder, speaker-encoder/, speaker_encoder/, speaker-encoder.safetensors or
    /// spk-encoder.gguf].
    #[arg(long, value_name = "DIR|FILE|hub:ID", requires = "clone")]
    pub speaker_encoder: Option<String>,
    /// With --clone: also write the speaker vector, for --speaker later.
    #[arg(long, value_name = "EMB.npy|EMB.safetensors", requires = "clone")]
    pub save_speaker: Option<PathBuf>,
}

/// A voice that is a file, as far as the command line tells.
#[derive(Debug)]
pub(crate) struct VoiceFile {
    flag: &'static str,
    path: PathBuf,
    stored: Option<(VoiceStore, VoiceName)>,
    position: usize,
}

impl CloneArgs {
    /// Refuses flags of a recording without one. The parser lets them pass beside another voice, which
    /// excludes the recording that they require.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        let flag = match (&self.clone, &self.speaker_encoder, &self.save_speaker) {
            (Some(_), ..) | (None, None, None) => return Ok(()),
            (None, Some(_), _) => "--speaker-encoder",
            (None, None, Some(_)) => "--save-speaker",
        };
        Err(Failure::usage(format!(
            "{flag} goes with --clone AUDIO; a voice from elsewhere needs neither"
        )))
    }

    /// The recording as typed, for reports.
    pub(crate) fn shown(&self) -> Option<String> {
        Some(self.clone.as_ref()?.display().to_string())
    }
}

impl VoiceArgs {
    /// The file or name as typed, for reports.
    pub(crate) fn shown(&self) -> Option<String> {
        let file = self.speaker.as_ref().map(|path| path.display().to_string());
        file.or_else(|| self.voice.clone())
    }

    /// The file of the voice that was asked for. Nothing is read yet.
    pub(crate) fn resolve(&self) -> Result<Option<VoiceFile>, Failure> {
        let position = self.speaker_pos as usize;
        if let Some(path) = &self.speaker {
            return Ok(Some(VoiceFile {
                flag: "--speaker",
                path: path.clone(),
                stored: None,
                position,
            }));
        }
        let Some(name) = &self.voice else {
            return Ok(None);
        };
        let name = voice_name(name)?;
        let store = self.store.open()?;
        Ok(Some(VoiceFile {
            flag: "--voice",
            path: store.path(&name),
            stored: Some((store, name)),
            position,
        }))
    }
}

impl VoiceFile {
    /// The flag and its file, which no output may be.
    pub(crate) fn input(&self) -> (&'static str, &Path) {
        (self.flag, &self.path)
    }

    /// Reads the vector and checks that the model takes such a one.
    pub(crate) fn load(&self, config: &Zonos2Config) -> Result<Speaker, Failure> {
        takes_voices(config)?;
        let voice = match &self.stored {
            Some((store, name)) => store.get(name).map_err(stored)?,
            None => Voice::load(&self.path)?,
        };
        let path = self.path.display().to_string();
        voice.check(&path, config.speaker_embedding_dim)?;
        Ok(Speaker {
            position: self.position,
            ..voice.speaker()
        })
    }
}

/// Refuses a voice for a model that takes none, whatever the voice.
pub(crate) fn takes_voices(config: &Zonos2Config) -> Result<(), Failure> {
    if config.speaker_enabled {
        Ok(())
    } else {
        Err(refused(TtsError::Conditioning(PromptError::NoSpeaker)))
    }
}

/// A name as typed.
pub(crate) fn voice_name(name: &str) -> Result<VoiceName, Failure> {
    VoiceName::new(name).map_err(|error| Failure::usage(error.to_string()))
}

/// A wrong name is the command line's fault, a voice that is not there a failed run.
pub(crate) fn stored(error: StoreError) -> Failure {
    match error {
        StoreError::Name(_) | StoreError::NoFolder => Failure::usage(error.to_string()),
        other => other.into(),
    }
}
