//! Whose voice.

use std::path::PathBuf;

use clap::Args;
use zonos_tts::SpeakerVector;

use crate::failure::Failure;
use crate::rows;

/// The speaker vector.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Voice")]
pub struct VoiceArgs {
    /// Speaker vector as .npy: [D] or [1, D], float; D is 2048 for the released model.
    #[arg(long, value_name = "EMB.npy")]
    pub speaker: Option<PathBuf>,
    /// Prompt row that the speaker vector replaces.
    #[arg(
        long,
        value_name = "P",
        default_value = "0",
        requires = "speaker",
        hide_short_help = true
    )]
    pub speaker_pos: u32,
}

impl VoiceArgs {
    /// Reads the vector, if one is named.
    pub fn load(&self) -> Result<Option<SpeakerVector>, Failure> {
        self.speaker
            .as_deref()
            .map(|path| rows::read_speaker(path, self.speaker_pos as usize))
            .transpose()
            .map_err(Failure::from)
    }
}
