//! Whose voice.

use std::path::PathBuf;

use clap::Args;
use zonos_tts::Speaker;
use zonos2::{SpeakerVector, Zonos2Config};

/// The speaker vector.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Voice")]
pub(crate) struct VoiceArgs {
    /// Speaker vector as .npy: [D], or [N, D] to average; D is 2048 for the released model.
    #[arg(long, value_name = "EMB.npy")]
    pub speaker: Option<PathBuf>,
    /// Prompt row that the speaker vector replaces.
    #[arg(
        long,
        value_name = "P",
        default_value = "0",
        requires = "speaker",
        allow_negative_numbers = true,
        hide_short_help = true
    )]
    pub speaker_pos: u32,
}

impl VoiceArgs {
    /// Reads the vector, if one is named, and checks it against the model's length.
    pub(crate) fn load(&self, config: &Zonos2Config) -> anyhow::Result<Option<Speaker>> {
        let Some(path) = &self.speaker else {
            return Ok(None);
        };
        let vector = SpeakerVector::load_npy(path, config.speaker_embedding_dim)?;
        Ok(Some(Speaker {
            vector: vector.into_values(),
            position: self.speaker_pos as usize,
        }))
    }
}
