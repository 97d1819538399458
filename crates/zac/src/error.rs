//! What can go wrong.

use thiserror::Error;
use zonos_audio::CodesError;
use zonos_audio::resample::ResampleError;
use zonos_audio::stft::StftError;
use zonos_checkpoint::{CheckpointError, LoadError};
use zonos_w2v_bert::TeacherError;

use crate::ZacKind;
use crate::prepare::PrepareError;

/// Why a codec could not be loaded, codes not be decoded or audio not be encoded.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ZacError {
    /// The checkpoint could not be opened.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// Its tensors are not those of the codec.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The file is no ZAC-1 file.
    #[error(
        "{file}: not a ZAC-1 file: metadata `format` is {found}, expected \"zac-1/1\"{looks_like}"
    )]
    Format {
        /// The checkpoint.
        file: String,
        /// What stands there.
        found: String,
        /// The model that it seems to hold, as a clause; may be empty.
        looks_like: String,
    },
    /// The other half of the codec.
    #[error("{file}: metadata `kind` is {found}, expected \"{expected}\"; {hint}")]
    Kind {
        /// The checkpoint.
        file: String,
        /// What was asked for.
        expected: ZacKind,
        /// What stands there.
        found: String,
        /// What to do instead.
        hint: &'static str,
    },
    /// The configuration makes no sense, or contradicts the tensors.
    #[error("{file}: {problem}")]
    Config {
        /// The checkpoint.
        file: String,
        /// The key, what was expected and what was found.
        problem: String,
    },
    /// Tensors that the model needs are not there.
    #[error(
        "{file}: {} tensors are missing: {}; give the file's own names with a map file {{our name: file name}}",
        tensors.len(), listed(tensors)
    )]
    Missing {
        /// The checkpoint.
        file: String,
        /// Each with the spellings that were tried.
        tensors: Vec<String>,
    },
    /// A map file that is no table of names.
    #[error("map file {file}: {problem}")]
    Map {
        /// The map file.
        file: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A map file gives a name that the checkpoint does not have.
    #[error(
        "{file}: no tensor '{theirs}', which the map file gives for '{ours}'; `zonos inspect {file}` lists its names"
    )]
    MapName {
        /// The checkpoint.
        file: String,
        /// Our name.
        ours: String,
        /// The one that is not there.
        theirs: String,
    },
    /// A head whose windows do not give the promised delay.
    #[error(
        "{file}: head_config.resolutions[{resolution}].n_fft is {n_fft}: its window looks {padding} samples ahead and \
         the resampler {width}, so a stream would have to hold back {blocks} x {block} samples where the codec \
         promises {promised} x {block} ({least} < {padding} + {width} <= {most}); the largest n_fft must be {n_fft_least} to \
         {n_fft_most}: use a decoder whose head has such a window",
        promised = most / block, least = most - block,
        n_fft_least = n_fft_of(*most - *block + 1, *width, *hop),
        n_fft_most = n_fft_of(*most, *width, *hop)
    )]
    Lookahead {
        /// The checkpoint.
        file: String,
        /// The resolution with the largest window.
        resolution: usize,
        /// That window's length.
        n_fft: usize,
        /// Samples of a feature.
        hop: usize,
        /// What both look ahead at most, in samples: the blocks that the codec promises.
        most: usize,
        /// `(largest n_fft - hop) / 2`.
        padding: usize,
        /// The resampler's look-ahead.
        width: usize,
        /// Blocks that would have to be held back.
        blocks: usize,
        /// Samples a block takes.
        block: usize,
    },
    /// Codes outside the codebooks.
    #[error(transparent)]
    Codes(#[from] CodesError),
    /// Codes of another number of columns.
    #[error("codes have {found} columns, expected {expected}: one for each codebook of ZAC-1")]
    Columns {
        /// Codebooks of the codec.
        expected: usize,
        /// Columns of the codes.
        found: usize,
    },
    /// A missing code where there must be one.
    #[error(
        "code -1 at frame {frame}, codebook 0: the semantic code cannot be missing; -1 stands for a missing code in \
         codebooks 1 to {last} only"
    )]
    MissingSemantic {
        /// The first such frame, from 0.
        frame: usize,
        /// The last codebook.
        last: usize,
    },
    /// There are no frames.
    #[error("no frames to decode")]
    Empty,
    /// A stream that has ended.
    #[error(
        "the stream was flushed: it takes no more codes; begin another, or fork before the flush"
    )]
    Flushed,
    /// Finite codes became samples that are not.
    #[error(
        "{file}: decodes to values that are not finite, first at sample {sample}; `zonos inspect {file} --check` tells \
         whether the weights hold NaN or infinity"
    )]
    NotFinite {
        /// The checkpoint.
        file: String,
        /// The first such sample.
        sample: usize,
    },
    /// Audio of a rate that cannot be brought to the codec's, or a kernel that is none.
    #[error(transparent)]
    Resample(#[from] ResampleError),
    /// Windows that no transform has.
    #[error(transparent)]
    Stft(#[from] StftError),
    /// The teacher inside an encoder file.
    #[error(transparent)]
    Teacher(#[from] TeacherError),
    /// Audio that cannot be prepared for encoding.
    #[error(transparent)]
    Prepare(#[from] PrepareError),
    /// Prepared audio at another rate than the encoder takes.
    #[error("audio at {found} Hz, expected {expected} Hz; prepare_audio resamples")]
    Rate {
        /// Its rate.
        found: u32,
        /// The encoder's.
        expected: u32,
    },
    /// Finite audio became values that are not.
    #[error(
        "{file}: encodes frame {frame} to values that are not finite; `zonos inspect {file} --check` tells whether \
         the weights hold NaN or infinity"
    )]
    Latents {
        /// The checkpoint.
        file: String,
        /// The first such frame, from 0.
        frame: usize,
    },
    /// The caller's progress function ended the work.
    #[error("stopped")]
    Stopped,
}

/// The window that looks `ahead` samples ahead together with a resampler that looks `width`.
fn n_fft_of(ahead: usize, width: usize, hop: usize) -> usize {
    2 * ahead.saturating_sub(width) + hop
}

fn listed(names: &[String]) -> String {
    const MOST: usize = 5;
    let mut text = names[..names.len().min(MOST)].join("; ");
    if names.len() > MOST {
        text.push_str("; ..");
    }
    text
}
