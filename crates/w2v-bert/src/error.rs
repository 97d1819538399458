//! What can go wrong.

use thiserror::Error;
use zonos_audio::mel::MelError;
use zonos_checkpoint::{CheckpointError, LoadError};

/// Why a model could not be loaded or features not be computed.
#[derive(Debug, Error)]
pub enum TeacherError {
    /// The checkpoint could not be opened.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// Its tensors are not those of the model.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// Its configuration makes no sense, or says something else than its tensors.
    #[error("{file}: {problem}")]
    Config {
        /// The checkpoint.
        file: String,
        /// The field, what was expected and what was found.
        problem: String,
    },
    /// Fewer samples than make one token.
    #[error(
        "{found} samples at 16 kHz are too few: Wav2Vec2-BERT needs at least {least}, {:.0} ms",
        *least as f64 / 16.0
    )]
    TooFewSamples {
        /// Samples given.
        found: usize,
        /// Samples needed.
        least: usize,
    },
    /// A sample is NaN or infinite.
    #[error("sample {index} of the audio is {value}, not a number")]
    BadSample {
        /// The first such sample.
        index: usize,
        /// NaN or infinity.
        value: f32,
    },
    /// Input features and mask that do not fit each other or the model.
    #[error("input features of Wav2Vec2-BERT: {0}")]
    Features(String),
    /// More layers were asked for than the checkpoint has.
    #[error(
        "{file}: {asked} layers were asked for, but the file has {there}; ask for 0 to {there}"
    )]
    FewLayers {
        /// The checkpoint.
        file: String,
        /// Layers asked for.
        asked: usize,
        /// Layers there.
        there: usize,
    },
    /// A layer was asked for that was not loaded.
    #[error("layer {asked} of Wav2Vec2-BERT was asked for; {loaded} were loaded")]
    Layers {
        /// Layers asked for.
        asked: usize,
        /// Layers there.
        loaded: usize,
    },
    /// The filterbank refused the model's sizes.
    #[error(transparent)]
    Mel(#[from] MelError),
}
