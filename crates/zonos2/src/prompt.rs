//! The rows a generation starts from.
//!
//! Every row is one id for each audio codebook and one text id. Rows that carry text have padding
//! in the audio columns; audio rows have padding in the text column. A prompt is, in order:
//! the speaker slot and its markers (only with a speaker), the speaking rate, the quality rows, the
//! text as UTF-8 bytes between a begin and an end id, and a fifth of a second of recorded silence
//! in the delay pattern, which tells the model where it continues.

use std::path::Path;

use zonos_audio::npy::{self, NpyError};
use zonos_audio::{Codes, CodesError};

use crate::conditioning::{ConditioningError, check_quality};
use crate::config::Zonos2Config;

/// Text id that begins the text.
pub const TEXT_BEGIN: i32 = 2;
/// Text id that ends the text.
pub const TEXT_END: i32 = 3;
/// Text id of byte 0; byte `b` is this plus `b`.
pub const TEXT_BYTE_OFFSET: i32 = 192;

/// Frames of the silence tail.
pub const SILENCE_FRAMES: usize = 17;

const SILENCE_FIRST: [i32; 9] = [568, 778, 338, 524, 967, 360, 728, 550, 90];
const SILENCE_SECOND: [i32; 9] = [568, 778, 10, 674, 364, 981, 741, 378, 731];
const SILENCE_STEADY: [i32; 9] = [568, 804, 10, 674, 364, 981, 568, 378, 731];
const SILENCE_LAST: [i32; 9] = [568, 778, 721, 842, 264, 974, 989, 507, 308];

/// Why a prompt could not be made.
#[derive(Debug, thiserror::Error)]
pub enum PromptError {
    /// A rate or quality bucket the model does not have.
    #[error(transparent)]
    Conditioning(#[from] ConditioningError),
    /// A speaker was asked for, but the model takes none.
    #[error("speaker: this model takes no speaker vector; leave the voice out")]
    NoSpeaker,
    /// The text and its markers leave no position for a single frame.
    #[error(
        "text of {text_bytes} bytes: the prompt needs {rows} rows and at least one frame, but the model has {max_seqlen} positions; split the text"
    )]
    TooLong {
        /// Bytes of the text.
        text_bytes: usize,
        /// Rows of the prompt.
        rows: usize,
        /// Positions of the model.
        max_seqlen: usize,
    },
    /// The silence tail is made of codes this model's codebooks do not have.
    #[error(
        "silence tail: it is recorded for up to 9 codebooks of 1024 entries, this model has {codebooks} of {entries}; build the prompt without it"
    )]
    Silence {
        /// Codebooks of the model.
        codebooks: usize,
        /// Entries of each.
        entries: usize,
    },
    /// The rows are not as wide as the model's.
    #[error("{name}: expected prompt rows of {expected} ids ({codebooks} codebooks and the text), found shape {found:?}", codebooks = expected - 1)]
    Shape {
        /// The file, or `prompt`.
        name: String,
        /// Ids of a row.
        expected: usize,
        /// The shape found.
        found: Vec<usize>,
    },
    /// An id outside its table.
    #[error(
        "{name}: id {value} in row {row}, column {column} is out of range; expected 0 to {highest}"
    )]
    Id {
        /// The file, or `prompt`.
        name: String,
        /// Row of the id.
        row: usize,
        /// Column of the id; the last one is the text.
        column: usize,
        /// The id.
        value: i32,
        /// Largest id of that column.
        highest: usize,
    },
    /// A speaker position outside the prompt.
    #[error("speaker position {position}: the prompt has {rows} rows, numbered from 0")]
    SpeakerPosition {
        /// The position asked for.
        position: usize,
        /// Rows of the prompt.
        rows: usize,
    },
    /// The file could not be read or written.
    #[error(transparent)]
    Npy(#[from] NpyError),
}

/// Text ids of `text`: begin, one id for each UTF-8 byte, end. Nothing is normalised.
pub fn text_ids(text: &str) -> impl Iterator<Item = i32> + '_ {
    std::iter::once(TEXT_BEGIN)
        .chain(text.bytes().map(|b| TEXT_BYTE_OFFSET + i32::from(b)))
        .chain(std::iter::once(TEXT_END))
}

/// The silence at the end of a prompt, `[17, codebooks]`, aligned (not delayed).
///
/// # Errors
/// The model's codebooks have no such codes.
pub fn silence(config: &Zonos2Config) -> Result<Codes, PromptError> {
    let codebooks = config.n_codebooks;
    let refused = || PromptError::Silence {
        codebooks,
        entries: config.codebook_size,
    };
    if codebooks > SILENCE_FIRST.len() {
        return Err(refused());
    }
    let frame = |t| match t {
        0 => &SILENCE_FIRST[..codebooks],
        1 => &SILENCE_SECOND[..codebooks],
        t if t + 1 == SILENCE_FRAMES => &SILENCE_LAST[..codebooks],
        _ => &SILENCE_STEADY[..codebooks],
    };
    let codes: Result<Codes, CodesError> =
        Codes::from_rows(codebooks, (0..SILENCE_FRAMES).map(frame));
    codes
        .ok()
        .filter(|c| {
            c.values()
                .iter()
                .all(|&v| (v as usize) < config.codebook_size)
        })
        .ok_or_else(refused)
}

/// Prompt rows `[rows, codebooks + 1]` and the row whose embedding the speaker vector replaces.
///
/// ```
/// use zonos2::{Prompt, Zonos2Config};
/// let config = Zonos2Config::released();
/// let prompt = Prompt::builder(&config).text("Hi").speaker(true).build()?;
/// assert_eq!(prompt.speaker_position(), Some(0));
/// // Slot, noisy background, accurate mode, then begin, 'H', 'i', end; then silence.
/// let text: Vec<i32> = prompt.rows().map(|row| row[9]).collect();
/// assert_eq!(&text[..8], &[519, 517, 518, 2, 264, 297, 3, 519]);
/// assert_eq!(prompt.len(), 7 + 17);
/// # Ok::<(), zonos2::prompt::PromptError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    ids: Vec<i32>,
    width: usize,
    speaker_position: Option<usize>,
}

impl Prompt {
    /// Starts a prompt for a model. By default: empty text, no speaker, noisy background, accurate
    /// mode, no rate, no quality rows, silence tail.
    pub fn builder(config: &Zonos2Config) -> PromptBuilder<'_> {
        PromptBuilder {
            config,
            text: "",
            speaker: false,
            clean_background: false,
            accurate: true,
            rate_bucket: None,
            quality: Vec::new(),
            silence: true,
        }
    }

    /// Takes ready rows, `[rows, codebooks + 1]` row-major.
    ///
    /// # Errors
    /// Rows of another width, no row, ids outside their tables, or more rows than positions.
    pub fn from_ids(config: &Zonos2Config, ids: Vec<i32>) -> Result<Self, PromptError> {
        Self::checked(config, "prompt", ids)
    }

    /// Reads rows from a `.npy` file of shape `[rows, codebooks + 1]`; ids stored as floats are
    /// rounded.
    ///
    /// # Errors
    /// As [`from_ids`](Self::from_ids), or a file that cannot be read; messages name the file.
    pub fn load_npy(config: &Zonos2Config, path: impl AsRef<Path>) -> Result<Self, PromptError> {
        let array = npy::read(path)?;
        let name = array.path().display().to_string();
        let width = config.row_width();
        if array.shape().len() != 2 || array.shape()[1] != width {
            return Err(PromptError::Shape {
                name,
                expected: width,
                found: array.shape().to_vec(),
            });
        }
        Self::checked(config, &name, array.to_i32()?)
    }

    fn checked(config: &Zonos2Config, name: &str, ids: Vec<i32>) -> Result<Self, PromptError> {
        let width = config.row_width();
        if ids.is_empty() || !ids.len().is_multiple_of(width) {
            return Err(PromptError::Shape {
                name: name.to_string(),
                expected: width,
                found: vec![ids.len().div_ceil(width), ids.len() % width],
            });
        }
        for (i, &value) in ids.iter().enumerate() {
            let column = i % width;
            let highest = if column + 1 == width {
                config.text_pad_id()
            } else {
                config.audio_vocab() - 1
            };
            if !usize::try_from(value).is_ok_and(|v| v <= highest) {
                return Err(PromptError::Id {
                    name: name.to_string(),
                    row: i / width,
                    column,
                    value,
                    highest,
                });
            }
        }
        let rows = ids.len() / width;
        if rows >= config.max_seqlen {
            return Err(PromptError::TooLong {
                text_bytes: text_bytes(config, &ids),
                rows,
                max_seqlen: config.max_seqlen,
            });
        }
        Ok(Self {
            ids,
            width,
            speaker_position: None,
        })
    }

    /// Says that the speaker vector replaces the embedding of row `position`.
    ///
    /// # Errors
    /// There is no such row.
    pub fn with_speaker_position(mut self, position: usize) -> Result<Self, PromptError> {
        if position >= self.len() {
            return Err(PromptError::SpeakerPosition {
                position,
                rows: self.len(),
            });
        }
        self.speaker_position = Some(position);
        Ok(self)
    }

    /// Writes the rows as `<i4` of shape `[rows, codebooks + 1]`, complete or not at all. The
    /// speaker position is not part of the file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save_npy(&self, path: impl AsRef<Path>) -> Result<(), PromptError> {
        Ok(npy::write_i32(path, &[self.len(), self.width], &self.ids)?)
    }

    /// All ids, `[rows, codebooks + 1]` row-major.
    pub fn ids(&self) -> &[i32] {
        &self.ids
    }

    /// The rows in order.
    pub fn rows(&self) -> impl ExactSizeIterator<Item = &[i32]> {
        self.ids.chunks_exact(self.width)
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.ids.len() / self.width
    }

    /// Always false: a prompt has at least the begin and end of its text.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Ids of a row: codebooks + 1.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Row whose embedding the speaker vector replaces, `None` without a speaker.
    pub fn speaker_position(&self) -> Option<usize> {
        self.speaker_position
    }

    /// UTF-8 bytes of the text in this prompt, for bounds on the length of the answer.
    pub fn text_bytes(&self) -> usize {
        self.rows().filter(|row| is_byte(row)).count()
    }
}

fn is_byte(row: &[i32]) -> bool {
    row.last()
        .is_some_and(|id| (TEXT_BYTE_OFFSET..TEXT_BYTE_OFFSET + 256).contains(id))
}

fn text_bytes(config: &Zonos2Config, ids: &[i32]) -> usize {
    ids.chunks_exact(config.row_width())
        .filter(|row| is_byte(row))
        .count()
}

/// Collects what a prompt says; made by [`Prompt::builder`].
#[derive(Debug, Clone)]
#[must_use]
pub struct PromptBuilder<'a> {
    config: &'a Zonos2Config,
    text: &'a str,
    speaker: bool,
    clean_background: bool,
    accurate: bool,
    rate_bucket: Option<usize>,
    quality: Vec<Option<usize>>,
    silence: bool,
}

impl<'a> PromptBuilder<'a> {
    /// The text to speak. Any UTF-8 is accepted, the empty text too.
    pub fn text(mut self, text: &'a str) -> Self {
        self.text = text;
        self
    }

    /// Whether a speaker vector goes with the prompt: reserves row 0 for it and adds its markers.
    pub fn speaker(mut self, on: bool) -> Self {
        self.speaker = on;
        self
    }

    /// Whether the background is clean rather than noisy. Counts only with a speaker.
    pub fn clean_background(mut self, clean: bool) -> Self {
        self.clean_background = clean;
        self
    }

    /// Accurate rather than expressive mode. Counts only with a speaker.
    pub fn accurate(mut self, on: bool) -> Self {
        self.accurate = on;
        self
    }

    /// Bucket of the speaking rate, `None` for no such row.
    pub fn rate_bucket(mut self, bucket: Option<usize>) -> Self {
        self.rate_bucket = bucket;
        self
    }

    /// Bucket of each quality feature in order, as [`Quality::resolve`](crate::conditioning::Quality::resolve)
    /// gives them.
    pub fn quality(mut self, buckets: Vec<Option<usize>>) -> Self {
        self.quality = buckets;
        self
    }

    /// Whether the silence tail ends the prompt.
    pub fn silence(mut self, on: bool) -> Self {
        self.silence = on;
        self
    }

    /// Lays out the rows.
    ///
    /// # Errors
    /// A bucket, speaker or silence tail that the model does not have, or a text that does not fit.
    pub fn build(self) -> Result<Prompt, PromptError> {
        let config = self.config;
        check_quality(config, &self.quality)?;
        let rate =
            match self.rate_bucket {
                None => None,
                Some(bucket) => Some(config.rate_id(bucket).ok_or(
                    ConditioningError::RateBucket {
                        bucket,
                        count: config.speaking_rate_num_buckets,
                    },
                )?),
            };
        if self.speaker && !config.speaker_enabled {
            return Err(PromptError::NoSpeaker);
        }
        let tail = if self.silence {
            Some(silence(config)?.shear(config.audio_pad_id as i32))
        } else {
            None
        };

        let mut text = Vec::with_capacity(self.text.len() + 16);
        if self.speaker {
            text.push(config.text_pad_id() as i32);
            if let Some(id) = config.background_id(self.clean_background) {
                text.push(id as i32);
            }
            if let Some(id) = config.accurate_id().filter(|_| self.accurate) {
                text.push(id as i32);
            }
        }
        text.extend(rate.map(|id| id as i32));
        for (feature, bucket) in self.quality.iter().enumerate() {
            let id = bucket.and_then(|b| config.quality_id(feature, b));
            text.extend(id.map(|id| id as i32));
        }
        text.extend(text_ids(self.text));

        let rows = text.len() + tail.as_ref().map_or(0, Codes::frames);
        if rows >= config.max_seqlen {
            return Err(PromptError::TooLong {
                text_bytes: self.text.len(),
                rows,
                max_seqlen: config.max_seqlen,
            });
        }
        let width = config.row_width();
        let mut ids = Vec::with_capacity(rows * width);
        for id in text {
            ids.resize(ids.len() + config.n_codebooks, config.audio_pad_id as i32);
            ids.push(id);
        }
        for row in tail.iter().flat_map(Codes::rows) {
            ids.extend_from_slice(row);
            ids.push(config.text_pad_id() as i32);
        }
        Ok(Prompt {
            ids,
            width,
            speaker_position: self.speaker.then_some(0),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn too_long() {
        let mut config = Zonos2Config::released();
        config.max_seqlen = 30;
        let text = "x".repeat(10);
        let fits = Prompt::builder(&config).text(&text).build().unwrap();
        assert_eq!((fits.len(), fits.text_bytes()), (29, 10));
        let text = "x".repeat(11);
        let e = Prompt::builder(&config)
            .text(&text)
            .build()
            .unwrap_err()
            .to_string();
        assert!(e.contains("11 bytes") && e.contains("30 positions"), "{e}");
    }

    #[test]
    fn models_without_conditioning() {
        let config = Zonos2Config::from_json(&serde_json::json!({"text_vocab": 448})).unwrap();
        assert!(matches!(
            Prompt::builder(&config).speaker(true).build(),
            Err(PromptError::NoSpeaker)
        ));
        assert!(
            Prompt::builder(&config)
                .rate_bucket(Some(0))
                .build()
                .is_err()
        );
        assert!(
            Prompt::builder(&config)
                .quality(vec![Some(0)])
                .build()
                .is_err()
        );
        let mut small = config.clone();
        small.codebook_size = 64;
        assert!(matches!(
            Prompt::builder(&small).build(),
            Err(PromptError::Silence { .. })
        ));
        assert_eq!(
            Prompt::builder(&small)
                .silence(false)
                .build()
                .unwrap()
                .len(),
            2
        );
        let mut narrow = config;
        narrow.n_codebooks = 2;
        let prompt = Prompt::builder(&narrow).build().unwrap();
        assert_eq!(prompt.width(), 3);
        assert_eq!(prompt.rows().nth(3), Some(&[568, 778, 448][..]));
    }

    #[test]
    fn files() {
        let config = Zonos2Config::released();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ids.npy");
        let prompt = Prompt::builder(&config).text("Hé").build().unwrap();
        prompt.save_npy(&path).unwrap();
        assert_eq!(Prompt::load_npy(&config, &path).unwrap(), prompt);
        let floats: Vec<f32> = prompt.ids().iter().map(|&x| x as f32).collect();
        npy::write_f32(&path, &[prompt.len(), 10], &floats).unwrap();
        let placed = Prompt::load_npy(&config, &path).unwrap();
        assert_eq!(placed, prompt);
        assert_eq!(
            placed.with_speaker_position(1).unwrap().speaker_position(),
            Some(1)
        );
        assert!(prompt.clone().with_speaker_position(prompt.len()).is_err());

        npy::write_i32(&path, &[1, 9], &[0; 9]).unwrap();
        let e = Prompt::load_npy(&config, &path).unwrap_err().to_string();
        assert!(e.contains("ids.npy") && e.contains("[1, 9]"), "{e}");
        let mut row = [0; 10];
        row[9] = 520;
        npy::write_i32(&path, &[1, 10], &row).unwrap();
        let e = Prompt::load_npy(&config, &path).unwrap_err().to_string();
        assert!(
            e.contains("520") && e.contains("column 9") && e.contains("0 to 519"),
            "{e}"
        );
        for bad in [1026, -1] {
            let mut row = vec![0; 10];
            row[3] = bad;
            assert!(matches!(
                Prompt::from_ids(&config, row),
                Err(PromptError::Id { column: 3, .. })
            ));
        }
        assert!(Prompt::from_ids(&config, vec![]).is_err());
        assert!(Prompt::from_ids(&config, vec![0; 11]).is_err());
        assert!(matches!(
            Prompt::from_ids(&config, vec![0; 10 * 6144]),
            Err(PromptError::TooLong { .. })
        ));
    }

    proptest! {
        #[test]
        fn any_text_is_accepted(text in "\\PC{0,40}", speaker: bool, clean: bool, accurate: bool) {
            let config = Zonos2Config::released();
            let prompt = Prompt::builder(&config)
                .text(&text)
                .speaker(speaker)
                .clean_background(clean)
                .accurate(accurate)
                .build()
                .unwrap();
            let markers = if speaker { 2 + usize::from(accurate) } else { 0 };
            prop_assert_eq!(prompt.len(), markers + text.len() + 2 + SILENCE_FRAMES);
            prop_assert_eq!(prompt.text_bytes(), text.len());
            let again = Prompt::from_ids(&config, prompt.ids().to_vec()).unwrap();
            prop_assert_eq!(again.ids(), prompt.ids());
        }
    }
}
