//! What can go wrong.

use thiserror::Error;
use zonos_audio::mel::MelError;
use zonos_checkpoint::{CheckpointError, LoadError};

/// Why an encoder could not be loaded or a voice vector not be computed.
#[derive(Debug, Error)]
pub enum EcapaError {
    /// The checkpoint could not be opened.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// Its tensors are not those of a speaker encoder.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// Its configuration makes no sense.
    #[error("{file}: {problem}")]
    Config {
        /// The checkpoint.
        file: String,
        /// The field, what was expected and what was found.
        problem: String,
    },
    /// Fewer frames than the convolutions can mirror at their ends.
    #[error("{found} mel frames are too few: the speaker encoder needs at least {least}")]
    TooFewFrames {
        /// Frames given.
        found: usize,
        /// Frames needed.
        least: usize,
    },
    /// Fewer samples than make the frames needed.
    #[error(
        "{found} samples at {rate} Hz are too few: the speaker encoder needs at least {least}, {:.0} ms",
        1e3 * *least as f64 / f64::from(*rate)
    )]
    TooFewSamples {
        /// Samples at the encoder's rate.
        found: usize,
        /// Samples needed.
        least: usize,
        /// The encoder's rate.
        rate: u32,
    },
    /// Mel frames of another width than the model's.
    #[error("the speaker encoder takes {expected} mel bands, found {found}")]
    Bands {
        /// The model's.
        expected: usize,
        /// Those given.
        found: usize,
    },
    /// The audio cannot be brought to the encoder's rate.
    #[error("cannot resample from {from} Hz to the speaker encoder's {to} Hz: {problem}")]
    Rate {
        /// The audio's rate.
        from: u32,
        /// The encoder's rate.
        to: u32,
        /// What the resampler said.
        problem: String,
    },
    /// The mel front end refused the model's sizes or the audio.
    #[error(transparent)]
    Mel(#[from] MelError),
    /// A sample is NaN or infinite.
    #[error("sample {index} of the audio is {value}, not a number")]
    BadSample {
        /// The first such sample.
        index: usize,
        /// NaN or infinity.
        value: f32,
    },
    /// A sample so far beyond full scale that the squares of its spectrum would not be finite.
    #[error(
        "sample {index} of the audio is {value:e}, and full scale is 1; bring the samples to between -1 and 1"
    )]
    TooLoud {
        /// The first such sample at the encoder's rate.
        index: usize,
        /// Its value.
        value: f32,
    },
    /// The vector is not made of numbers.
    #[error(
        "the voice vector is not finite (entry {index}); the weights or the mel frames hold NaN or infinite values"
    )]
    NotFinite {
        /// The first such entry.
        index: usize,
    },
}
