//! Frame after frame, for a batch of sequences.

use std::ops::ControlFlow;

use burn::tensor::{DType, Int, Tensor, TensorData};
use rayon::prelude::*;
use zonos_audio::Codes;
use zonos_nn::Tap;

use crate::cache::{CacheDType, KvCache};
use crate::error::Zonos2Error;
use crate::profile::timed;
use crate::sampler::SamplerError;
use crate::segment::{Packed, Sequence};
use crate::{
    EndOfAudio, EndReason, Limits, LoopBreaker, Sampler, SamplerOptions, Zonos2, Zonos2Config,
    codec_codes,
};

/// How to generate one sequence.
#[derive(Debug, Clone)]
pub struct GenerateOptions {
    /// How codes are drawn.
    pub sampler: SamplerOptions,
    /// Seed of the draws; the same seed, build and device give the same codes.
    pub seed: u64,
    /// Most frames to generate; `None` is what the positions allow.
    pub max_frames: Option<usize>,
    /// Go on after the end of audio.
    pub ignore_eos: bool,
    /// Bound by the length of the text and loop breaker; `None` is neither.
    pub limits: Option<Limits>,
    /// Run the whole sequence again for every frame instead of caching keys and values. Slow; for
    /// checks. Counts when any sequence of a batch asks for it.
    pub recompute: bool,
    /// Storage type of the cache. The first sequence's choice counts for a batch.
    pub cache_dtype: CacheDType,
}

impl Default for GenerateOptions {
    fn default() -> Self {
        Self {
            sampler: SamplerOptions::default(),
            seed: 0,
            max_frames: None,
            ignore_eos: false,
            limits: None,
            recompute: false,
            cache_dtype: CacheDType::F32,
        }
    }
}

/// A frame, as soon as it is drawn.
#[derive(Debug, Clone, Copy)]
pub struct Frame<'a> {
    /// The sequence it belongs to, from 0.
    pub sequence: usize,
    /// Its index among that sequence's frames, from 0.
    pub index: usize,
    /// `[codebooks]`, delayed as drawn, end and pad ids included.
    pub codes: &'a [i32],
}

/// What [`Zonos2::generate`] made of one sequence.
#[derive(Debug, Clone, PartialEq)]
pub struct Generation {
    /// `[frames, codebooks]`, delayed as drawn.
    pub frames: Codes,
    /// The aligned frame at which the audio ends, if the model ended it.
    pub eos_frame: Option<usize>,
    /// Why it ended.
    pub end: EndReason,
}

impl Generation {
    /// The codes for the codec: delay taken back, cut at the end of audio, padding clamped.
    pub fn codec_codes(&self, config: &Zonos2Config) -> Codes {
        codec_codes(&self.frames, self.eos_frame, config)
            .expect("a generation has the codebooks of its model")
    }
}

/// One sequence under way.
struct Running {
    /// Its place among the sequences given.
    index: usize,
    sampler: Sampler,
    end: EndOfAudio,
    breaker: LoopBreaker,
    /// What reaching the frame limit means.
    limit: EndReason,
    rows: usize,
    codes: Vec<i32>,
}

impl Running {
    /// Draws the next frame from its logits and appends it to the codes; false, without one, where a logit is not
    /// finite.
    fn draw(&mut self, logits: &[f32]) -> Result<bool, SamplerError> {
        // All are looked at, which goes by the vector.
        if !logits.iter().fold(true, |all, x| all & x.is_finite()) {
            return Ok(false);
        }
        self.codes.extend_from_slice(self.sampler.sample(logits)?);
        Ok(true)
    }
}

impl Zonos2 {
    /// Generates frames for every sequence until each has ended.
    ///
    /// Sequences are independent: a batch gives what each would give alone. `on_frame` sees every
    /// frame at once and stops everything by returning [`ControlFlow::Break`].
    ///
    /// # Errors
    ///
    /// A malformed sequence, a prompt that leaves no position for sound, or logits that are not
    /// finite, naming the frame and the layer.
    pub fn generate(
        &self,
        sequences: &[Sequence],
        options: &[GenerateOptions],
        on_frame: &mut dyn FnMut(Frame<'_>) -> ControlFlow<()>,
    ) -> Result<Vec<Generation>, Zonos2Error> {
        if options.len() != sequences.len() {
            return Err(Zonos2Error::OptionCount {
                sequences: sequences.len(),
                options: options.len(),
            });
        }
        self.validate(sequences)?;
        let config = self.config();
        let width = config.row_width();
        let mut running = sequences
            .iter()
            .zip(options)
            .enumerate()
            .map(|(index, (sequence, options))| self.start(index, sequence, options))
            .collect::<Result<Vec<_>, _>>()?;
        let mut done: Vec<Option<Generation>> = sequences.iter().map(|_| None).collect();
        let recompute = options.iter().any(|o| o.recompute);
        // Rows so far of every sequence; only recomputing needs them again.
        let mut whole = if recompute {
            sequences.to_vec()
        } else {
            Vec::new()
        };

        let mut cache = (!recompute).then(|| {
            let capacity = running
                .iter()
                .map(|r| r.rows + r.end.max_frames())
                .max()
                .unwrap_or(0);
            let capacity = capacity.min(config.max_seqlen);
            let dtype = options[0].cache_dtype;
            KvCache::new(config, sequences.len(), capacity, dtype, self.device())
        });
        let mut packed = Packed::sequences(sequences, width, self.device());
        loop {
            let drawn: Vec<_> = zonos_kernels::on_worker(self.device(), || {
                let cache = cache.as_mut();
                let hidden = self.backbone().hidden(&packed, cache, &mut Tap::off());
                let logits = self.last_logits(hidden, &packed);
                let each = logits.par_chunks_exact(logits.len() / running.len());
                let draws = running.par_iter_mut().zip(each);
                timed!(
                    "sampling",
                    draws.map(|(run, logits)| run.draw(logits)).collect()
                )
            });
            let mut stopped = false;
            let mut keep = Vec::with_capacity(running.len());
            let mut rows = Vec::with_capacity(running.len() * width);
            for (slot, (run, drawn)) in running.iter_mut().zip(drawn).enumerate() {
                let index = run.end.frames();
                if !drawn? {
                    return Err(self.non_finite(&sequences[run.index], &run.codes, index));
                }
                let frame = &run.codes[run.codes.len() - config.n_codebooks..];
                rows.extend_from_slice(frame);
                rows.push(config.text_pad_id() as i32);
                let event = Frame {
                    sequence: run.index,
                    index,
                    codes: frame,
                };
                stopped |= on_frame(event).is_break();
                let looped = run.breaker.push(frame);
                let ended = run.end.push(frame);
                let reason = if run.end.is_complete() {
                    Some(EndReason::EndOfAudio)
                } else if looped.is_some() {
                    looped
                } else if ended {
                    Some(run.limit)
                } else {
                    None
                };
                match reason {
                    Some(reason) => done[run.index] = Some(self.finish(run, reason)),
                    None => keep.push(slot),
                }
            }
            if stopped || keep.is_empty() {
                break;
            }
            let kept_rows: Vec<i32> = keep
                .iter()
                .flat_map(|&slot| &rows[slot * width..(slot + 1) * width])
                .copied()
                .collect();
            if let Some(cache) = &mut cache {
                cache.retain(&keep);
            }
            let mut slot = 0;
            running.retain(|_| {
                slot += 1;
                keep.contains(&(slot - 1))
            });
            packed = match &cache {
                Some(cache) => Packed::decode(kept_rows, cache.lengths(), width, self.device()),
                None => {
                    for (run, row) in running.iter().zip(kept_rows.chunks(width)) {
                        whole[run.index].rows.extend_from_slice(row);
                    }
                    let live: Vec<_> = running.iter().map(|r| whole[r.index].clone()).collect();
                    Packed::sequences(&live, width, self.device())
                }
            };
        }
        for run in &mut running {
            if done[run.index].is_none() {
                done[run.index] = Some(self.finish(run, EndReason::Stopped));
            }
        }
        Ok(done.into_iter().flatten().collect())
    }

    fn start(
        &self,
        index: usize,
        sequence: &Sequence,
        options: &GenerateOptions,
    ) -> Result<Running, Zonos2Error> {
        let config = self.config();
        let rows = sequence.len(config.row_width());
        let left = config.max_seqlen - rows;
        if left == 0 {
            return Err(Zonos2Error::NoRoom {
                sequence: index,
                rows,
                limit: config.max_seqlen,
            });
        }
        let limits = options.limits.unwrap_or_else(Limits::none);
        let text_bytes = sequence.text_bytes(config);
        let (cap, limit) = limits.frame_cap(text_bytes, options.max_frames, left);
        Ok(Running {
            index,
            sampler: Sampler::for_config(options.sampler, config, options.seed)?,
            end: EndOfAudio::for_config(config, cap).ignoring_eos(options.ignore_eos),
            breaker: limits.loop_breaker(),
            limit,
            rows,
            codes: Vec::with_capacity(cap * config.n_codebooks),
        })
    }

    fn finish(&self, run: &mut Running, end: EndReason) -> Generation {
        let codebooks = self.config().n_codebooks;
        let codes = std::mem::take(&mut run.codes);
        Generation {
            frames: Codes::new(codes.len() / codebooks, codebooks, codes)
                .expect("whole frames were collected"),
            eos_frame: run.end.eos_frame(),
            end,
        }
    }

    /// Logits of the last row of each sequence, on the host: `[sequences, codebooks * entries]`.
    fn last_logits(&self, hidden: Tensor<2>, packed: &Packed) -> Vec<f32> {
        let sequences = packed.segments.len();
        let last = if hidden.dims()[0] == sequences {
            hidden
        } else {
            let rows: Vec<i32> = packed.segments.iter().map(|s| s.end as i32 - 1).collect();
            let data = TensorData::new(rows, [sequences]);
            let rows = Tensor::<1, Int>::from_data(data, (self.device(), DType::I32));
            hidden.select(0, rows)
        };
        let logits = self.backbone().logits(last);
        timed!("to the host", {
            let logits = logits.into_data().convert::<f32>();
            logits.try_into_vec().expect("converted to f32")
        })
    }

    /// The error of logits that are not finite.
    fn non_finite(&self, sequence: &Sequence, codes: &[i32], frame: usize) -> Zonos2Error {
        let sequence = sequence.clone().followed_by(codes, self.config());
        let layer = self.non_finite_layer(&sequence);
        Zonos2Error::NonFinite { frame, layer }
    }

    /// Finds the first layer whose output is not finite, by running everything again under a tap.
    pub(crate) fn non_finite_layer(&self, sequence: &Sequence) -> Option<usize> {
        let mut tap = Tap::on();
        self.hidden_of(sequence, &mut tap);
        tap.into_records().into_iter().find_map(|(name, data)| {
            let layer = name
                .strip_prefix("layer.")?
                .strip_suffix(".out")?
                .parse()
                .ok()?;
            data.iter::<f32>().any(|x| !x.is_finite()).then_some(layer)
        })
    }
}
