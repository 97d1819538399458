//! What the model thinks of given sequences: the logits of every event of a corpus.

use burn::tensor::{DType, Int, Tensor, TensorData};
use zonos_gguf::kld::{Event, KldSequence, KldShape, events};
use zonos_nn::Tap;

use crate::error::Zonos2Error;
use crate::segment::{Packed, Sequence};
use crate::{Zonos2, Zonos2Config};

/// Rows whose logits are on the host at a time: memory does not grow with a sequence's length times
/// the vocabulary.
const LOGIT_ROWS: usize = 64;

/// What a base file of this model says of its shape.
pub fn kld_shape(config: &Zonos2Config) -> KldShape {
    KldShape {
        codebooks: config.n_codebooks as u32,
        vocabulary: config.audio_vocab() as u32,
        pad: config.audio_pad_id as u32,
    }
}

impl From<&KldSequence> for Sequence {
    fn from(sequence: &KldSequence) -> Self {
        let voice = sequence.voice.as_ref();
        Self {
            rows: sequence.ids.clone(),
            speaker: voice.map(|(vector, row)| (vector.clone(), *row as usize)),
        }
    }
}

impl From<&Sequence> for KldSequence {
    fn from(sequence: &Sequence) -> Self {
        let voice = sequence.speaker.as_ref();
        Self {
            ids: sequence.rows.clone(),
            // A row beyond 2^32 is beyond the last one, too, and refused as such.
            voice: voice.map(|(vector, row)| {
                let row = u32::try_from(*row).unwrap_or(u32::MAX);
                (vector.clone(), row)
            }),
        }
    }
}

impl Zonos2 {
    /// Runs sequence number `index` of a corpus, teacher-forced, and hands out each of its events in
    /// order with the logits of its row and codebook, `[vocabulary]`, softly capped. Rows without an
    /// event have no logits computed.
    ///
    /// The same sequence gives the same logits, bit for bit, whatever the corpus around it.
    ///
    /// ```
    /// use burn::tensor::Device;
    /// use zonos_gguf::Perplexity;
    /// use zonos2::{Prompt, Sequence, Zonos2, Zonos2Error};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../validation/fixtures/zonos2/tiny");
    /// let model = Zonos2::load(dir, &Device::flex())?;
    /// // The silence at the end of a prompt is sound to predict, as well.
    /// let prompt = Prompt::builder(model.config()).text("Hello.").build()?;
    /// let sequence = Sequence::from_prompt(&prompt, None)?;
    /// let mut perplexity = Perplexity::new(9);
    /// model.score(0, &sequence, |event, logits| {
    ///     perplexity.push(&event, logits);
    ///     Ok::<(), Zonos2Error>(())
    /// })?;
    /// assert!(perplexity.all().is_some_and(|p| p > 1.0));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// A malformed sequence (see [`Sequence::validate`]), logits that are not finite, naming the row and
    /// the codebook, and whatever `on_event` returns.
    pub fn score<E: From<Zonos2Error>>(
        &self,
        index: usize,
        sequence: &Sequence,
        mut on_event: impl FnMut(Event, &[f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        let config = self.config();
        sequence.validate(index, config)?;
        let shape = kld_shape(config);
        let due: Vec<Event> = events(shape, index, &sequence.rows).collect();
        let mut rows: Vec<usize> = due.iter().map(|event| event.row).collect();
        rows.dedup();
        if rows.is_empty() {
            return Ok(());
        }
        let hidden = self.hidden_of(sequence, &mut Tap::off());
        let vocabulary = config.audio_vocab();
        let mut due = due.into_iter().peekable();
        for rows in rows.chunks(LOGIT_ROWS) {
            let ids: Vec<i32> = rows.iter().map(|&row| row as i32).collect();
            let ids = TensorData::new(ids, [rows.len()]);
            let ids = Tensor::<1, Int>::from_data(ids, (self.device(), DType::I32));
            let logits = self.backbone().logits(hidden.clone().select(0, ids));
            let logits: Vec<f32> = logits.into_data().iter::<f32>().collect();
            let each = logits.chunks_exact(config.n_codebooks * vocabulary);
            for (&row, logits) in rows.iter().zip(each) {
                while let Some(event) = due.next_if(|event| event.row == row) {
                    let logits = &logits[event.codebook * vocabulary..][..vocabulary];
                    if logits.iter().any(|x| !x.is_finite()) {
                        return Err(E::from(Zonos2Error::NonFiniteLogits {
                            sequence: index,
                            row,
                            codebook: event.codebook,
                            layer: self.non_finite_layer(sequence),
                        }));
                    }
                    on_event(event, logits)?;
                }
            }
        }
        Ok(())
    }

    /// Hidden states of a valid sequence, `[rows, dim]`, after the output norm.
    pub(crate) fn hidden_of(&self, sequence: &Sequence, tap: &mut Tap) -> Tensor<2> {
        let one = std::slice::from_ref(sequence);
        let packed = Packed::sequences(one, self.config().row_width(), self.device());
        self.backbone().hidden(&packed, None, tap)
    }
}
