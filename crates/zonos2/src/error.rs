//! What can go wrong in the backbone.

use std::path::PathBuf;

use thiserror::Error;
use zonos_checkpoint::{CheckpointError, LoadError};

use crate::ConfigError;

/// Errors of loading and running the backbone. Each says what was wrong, where, and what is right.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Zonos2Error {
    /// The checkpoint cannot be read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The weights do not fit the model.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// `params.json` is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// There is no `params.json`.
    #[error(
        "{}: no params.json beside the weights; the model's sizes and conditioning are in it, copy it there",
        .0.display()
    )]
    NoParams(PathBuf),
    /// No sequences were given.
    #[error("no sequence to run")]
    Empty,
    /// Not one set of options a sequence.
    #[error("{sequences} sequences but {options} sets of options")]
    OptionCount {
        /// Sequences given.
        sequences: usize,
        /// Options given.
        options: usize,
    },
    /// A row is not whole.
    #[error("sequence {sequence}: {ids} ids do not make whole rows of {width}")]
    RowWidth {
        /// Sequence, from 0.
        sequence: usize,
        /// Ids given.
        ids: usize,
        /// Ids a row.
        width: usize,
    },
    /// More rows than the model has positions.
    #[error(
        "sequence {sequence}: {rows} rows, but the model has {limit} positions (max_seqlen); shorten the text"
    )]
    TooLong {
        /// Sequence, from 0.
        sequence: usize,
        /// Rows given.
        rows: usize,
        /// Positions of the model.
        limit: usize,
    },
    /// No room to generate behind the prompt.
    #[error(
        "sequence {sequence}: the prompt fills {rows} of {limit} positions (max_seqlen), none is left for sound; shorten the text"
    )]
    NoRoom {
        /// Sequence, from 0.
        sequence: usize,
        /// Rows of the prompt.
        rows: usize,
        /// Positions of the model.
        limit: usize,
    },
    /// An id that its table does not have.
    #[error("sequence {sequence}, row {row}, column {column}: id {id}, expected 0 to {}", entries.saturating_sub(1))]
    IdOutOfRange {
        /// Sequence, from 0.
        sequence: usize,
        /// Row, from 0.
        row: usize,
        /// Column, from 0; the last one is text.
        column: usize,
        /// The id.
        id: i32,
        /// Entries of the column's table.
        entries: usize,
    },
    /// A voice for a model without one.
    #[error("this model has no voice input (speaker_enabled is false in params.json)")]
    NoVoiceInput,
    /// A voice vector of the wrong length.
    #[error("voice vector has {found} numbers, this model takes {expected}")]
    VoiceLength {
        /// Numbers given.
        found: usize,
        /// Numbers wanted.
        expected: usize,
    },
    /// A voice vector with NaN or infinity.
    #[error("voice vector: number {index} is not finite")]
    VoiceNotFinite {
        /// Index of the first such number.
        index: usize,
    },
    /// A voice position beyond the prompt.
    #[error("voice position {position} is beyond the {rows} rows of the prompt")]
    VoicePosition {
        /// Position given.
        position: usize,
        /// Rows of the prompt.
        rows: usize,
    },
    /// A voice vector without a slot for it, or a slot without a vector.
    #[error("{}", if *vector {
        "a voice vector was given, but the prompt has no voice slot; build the prompt with a voice"
    } else {
        "the prompt has a voice slot, but no voice vector was given"
    })]
    VoiceWithoutSlot {
        /// Whether a vector was given.
        vector: bool,
    },
    /// The network produced NaN or infinity.
    #[error("non-finite logits at frame {frame}, {}", since(*layer))]
    NonFinite {
        /// Frame, from 0.
        frame: usize,
        /// First layer whose output is not finite.
        layer: Option<usize>,
    },
    /// The network produced NaN or infinity for a given sequence.
    #[error(
        "sequence {sequence}, row {row}, codebook {codebook}: non-finite logits, {}",
        since(*layer)
    )]
    NonFiniteLogits {
        /// Sequence, from 0.
        sequence: usize,
        /// Row, from 0.
        row: usize,
        /// Codebook, from 0.
        codebook: usize,
        /// First layer whose output is not finite.
        layer: Option<usize>,
    },
    /// What enters the experts of a layer is NaN or infinity.
    #[error(
        "sequence {sequence}: the inputs of the experts of layer {layer} are not finite: {CHECK}"
    )]
    NonFiniteInputs {
        /// Sequence, from 0.
        sequence: usize,
        /// The first such layer.
        layer: usize,
    },
    /// Sampling failed.
    #[error(transparent)]
    Sampler(#[from] crate::SamplerError),
}

const CHECK: &str = "check the weights with `zonos inspect --check`";

/// Where numbers stopped being finite.
fn since(layer: Option<usize>) -> String {
    match layer {
        Some(layer) => format!("first non-finite in layer {layer}: {CHECK}"),
        None => format!("behind the last layer: {CHECK}"),
    }
}
