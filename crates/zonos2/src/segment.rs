//! Sequences as callers give them, and packed for a forward pass.

use std::ops::Range;

use burn::tensor::{DType, Device, Int, Tensor, TensorData};

use crate::error::Zonos2Error;
use crate::prompt::TEXT_BYTE_OFFSET;
use crate::{Prompt, Zonos2Config};

/// Rows of one sequence, with the voice they speak in.
#[derive(Debug, Clone, PartialEq)]
pub struct Sequence {
    /// `[rows, codebooks + 1]` ids, row-major: audio codebooks, then text.
    pub rows: Vec<i32>,
    /// Voice vector `[speaker_embedding_dim]` and the row whose embedding it replaces.
    pub speaker: Option<(Vec<f32>, usize)>,
}

impl Sequence {
    /// Plain rows without a voice.
    pub fn new(rows: Vec<i32>) -> Self {
        Self {
            rows,
            speaker: None,
        }
    }

    /// A prompt's rows. A voice vector goes to the slot that the prompt reserves for it.
    ///
    /// # Errors
    ///
    /// [`Zonos2Error::VoiceWithoutSlot`] when a vector is given but the prompt was built without a
    /// voice, or the reverse.
    pub fn from_prompt(prompt: &Prompt, speaker: Option<Vec<f32>>) -> Result<Self, Zonos2Error> {
        let speaker = match (speaker, prompt.speaker_position()) {
            (Some(vector), Some(position)) => Some((vector, position)),
            (None, None) => None,
            (given, _) => {
                return Err(Zonos2Error::VoiceWithoutSlot {
                    vector: given.is_some(),
                });
            }
        };
        Ok(Self {
            rows: prompt.ids().to_vec(),
            speaker,
        })
    }

    /// The same sequence with generated frames behind it, `frames [frames, codebooks]`, delayed as they
    /// were drawn: one row each, whose text is the padding.
    #[must_use]
    pub fn followed_by(mut self, frames: &[i32], config: &Zonos2Config) -> Self {
        for frame in frames.chunks_exact(config.n_codebooks) {
            self.rows.extend_from_slice(frame);
            self.rows.push(config.text_pad_id() as i32);
        }
        self
    }

    /// Number of rows, for rows of `width` ids.
    pub fn len(&self, width: usize) -> usize {
        self.rows.len() / width
    }

    /// UTF-8 bytes of text in the rows, which bound how long the sound should be.
    pub fn text_bytes(&self, config: &Zonos2Config) -> usize {
        self.rows
            .chunks(config.row_width())
            .filter_map(|row| row.last())
            .filter(|id| (TEXT_BYTE_OFFSET..TEXT_BYTE_OFFSET + 256).contains(id))
            .count()
    }

    /// Checks row width, id ranges, the voice's length and place.
    ///
    /// # Errors
    ///
    /// [`Zonos2Error`] naming the sequence, row and column that is wrong.
    pub fn validate(&self, index: usize, config: &Zonos2Config) -> Result<(), Zonos2Error> {
        let width = config.row_width();
        if self.rows.is_empty() || !self.rows.len().is_multiple_of(width) {
            return Err(Zonos2Error::RowWidth {
                sequence: index,
                ids: self.rows.len(),
                width,
            });
        }
        let rows = self.len(width);
        if rows > config.max_seqlen {
            return Err(Zonos2Error::TooLong {
                sequence: index,
                rows,
                limit: config.max_seqlen,
            });
        }
        for (i, &id) in self.rows.iter().enumerate() {
            let column = i % width;
            let entries = if column < config.n_codebooks {
                config.audio_vocab()
            } else {
                config.text_vocab + 1
            };
            if usize::try_from(id).map_or(true, |id| id >= entries) {
                return Err(Zonos2Error::IdOutOfRange {
                    sequence: index,
                    row: i / width,
                    column,
                    id,
                    entries,
                });
            }
        }
        if let Some((vector, position)) = &self.speaker {
            if !config.speaker_enabled {
                return Err(Zonos2Error::NoVoiceInput);
            }
            if vector.len() != config.speaker_embedding_dim {
                return Err(Zonos2Error::VoiceLength {
                    found: vector.len(),
                    expected: config.speaker_embedding_dim,
                });
            }
            if let Some(bad) = vector.iter().position(|x| !x.is_finite()) {
                return Err(Zonos2Error::VoiceNotFinite { index: bad });
            }
            if *position >= rows {
                return Err(Zonos2Error::VoicePosition {
                    position: *position,
                    rows,
                });
            }
        }
        Ok(())
    }
}

/// Rows of several sequences, one after another, on a device.
#[derive(Debug, Clone)]
pub struct Packed {
    /// `[rows, codebooks + 1]`
    pub(crate) ids: Tensor<2, Int>,
    /// `[rows]`: position of each row in its sequence
    pub(crate) positions: Tensor<1, Int>,
    /// Rows of each sequence.
    pub(crate) segments: Vec<Range<usize>>,
    /// Positions already cached for each sequence.
    pub(crate) past: Vec<usize>,
    /// Packed row and voice vector `[1, speaker_embedding_dim]`.
    pub(crate) speakers: Vec<(usize, Tensor<2>)>,
    lengths: Option<(Tensor<1, Int>, usize)>,
}

impl Packed {
    /// Packs whole sequences that start at position 0.
    pub fn sequences(sequences: &[Sequence], width: usize, device: &Device) -> Self {
        let mut ids = Vec::new();
        let mut segments = Vec::new();
        let mut speakers = Vec::new();
        for sequence in sequences {
            let start = ids.len() / width;
            ids.extend_from_slice(&sequence.rows);
            segments.push(start..ids.len() / width);
            if let Some((vector, position)) = &sequence.speaker {
                let data = TensorData::new(vector.clone(), [1, vector.len()]);
                let vector = Tensor::from_data(data, (device, DType::F32));
                speakers.push((start + position, vector));
            }
        }
        let positions = segments
            .iter()
            .flat_map(|rows| 0..rows.len() as i32)
            .collect();
        let past = vec![0; segments.len()];
        Self::build(ids, positions, segments, past, speakers, width, device)
    }

    /// Packs one new row a sequence, `rows [sequences, width]`, each at position `past`.
    pub fn decode(rows: Vec<i32>, past: &[usize], width: usize, device: &Device) -> Self {
        let positions = past.iter().map(|&p| p as i32).collect();
        let segments = (0..past.len()).map(|i| i..i + 1).collect();
        let mut packed = Self::build(
            rows,
            positions,
            segments,
            past.to_vec(),
            Vec::new(),
            width,
            device,
        );
        let lengths: Vec<i32> = past.iter().map(|&p| p as i32 + 1).collect();
        let longest = past.iter().max().map_or(0, |&p| p + 1);
        let data = TensorData::new(lengths, [past.len()]);
        packed.lengths = Some((Tensor::from_data(data, (device, DType::I32)), longest));
        packed
    }

    fn build(
        ids: Vec<i32>,
        positions: Vec<i32>,
        segments: Vec<Range<usize>>,
        past: Vec<usize>,
        speakers: Vec<(usize, Tensor<2>)>,
        width: usize,
        device: &Device,
    ) -> Self {
        let rows = positions.len();
        Self {
            ids: Tensor::from_data(TensorData::new(ids, [rows, width]), (device, DType::I32)),
            positions: Tensor::from_data(TensorData::new(positions, [rows]), (device, DType::I32)),
            segments,
            past,
            speakers,
            lengths: None,
        }
    }

    /// Positions of each sequence once the new row is cached, and the longest of them.
    pub(crate) fn cached_lengths(&self) -> (Tensor<1, Int>, usize) {
        self.lengths
            .clone()
            .expect("only decode steps attend to a cache")
    }
}
