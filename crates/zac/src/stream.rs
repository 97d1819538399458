//! Codes in, samples out, as soon as they are final.

use burn::tensor::Tensor;
use zonos_audio::Codes;
use zonos_audio::resample::ResampleStream;
use zonos_nn::Tap;

use crate::convnext::ConvNextState;
use crate::decoder::{host, on_device};
use crate::head::HeadState;
use crate::patch::{Stage, patch_up};
use crate::transformer::TransformerState;
use crate::{ZacDecoder, ZacError};

/// Most frames that go through the network at once: many enough that weights are read seldom, few
/// enough that activations stay small.
const MOST_FRAMES: usize = 80;

/// A decode in progress.
///
/// After `F` frames, however they were cut, exactly `2940 F - 1470` samples have come out (none after
/// none); [`flush`](Self::flush) gives the last 1470. The samples are those of [`ZacDecoder::decode`]:
/// bit for bit on the Flex device, to rounding elsewhere.
///
/// What a piece costs depends on its own length alone: each transformer keeps the keys and values of
/// its window, each block of a stack six inputs, the head a dozen spectra, the resampler less than two
/// blocks.
///
/// A clone, or [`fork`](Self::fork), goes on from the same point independently; until then both share
/// memory.
#[derive(Debug, Clone)]
pub struct ZacStream<'a> {
    decoder: &'a ZacDecoder,
    semantic: ConvNextState,
    /// One a transformer.
    stages: Vec<TransformerState>,
    head: HeadState,
    resample: ResampleStream,
    frames: usize,
    samples: usize,
    flushed: bool,
}

impl<'a> ZacStream<'a> {
    pub(crate) fn new(decoder: &'a ZacDecoder) -> Self {
        let stages = decoder.decoder.iter().filter_map(|stage| match stage {
            Stage::Transformer(stage) => Some(stage.begin()),
            Stage::Patch(_) => None,
        });
        Self {
            decoder,
            semantic: decoder.semantic_head.begin(),
            stages: stages.collect(),
            head: decoder.head.begin(),
            resample: decoder.resampler().resampler().stream(),
            frames: 0,
            samples: 0,
            flushed: false,
        }
    }

    /// The decoder.
    pub fn decoder(&self) -> &'a ZacDecoder {
        self.decoder
    }

    /// Frames taken so far.
    pub fn frames(&self) -> usize {
        self.frames
    }

    /// Samples given so far.
    pub fn samples(&self) -> usize {
        self.samples
    }

    /// A second stream that goes on from the same point.
    #[must_use]
    pub fn fork(&self) -> Self {
        self.clone()
    }

    /// Takes the next frames, `[frames, 10]`, and gives the samples that became final, at the raw
    /// level. No frames give no samples. A code of -1 in codebooks 1 to 9 is missing and adds nothing.
    ///
    /// # Errors
    ///
    /// [`ZacError::Flushed`]; codes as [`ZacDecoder::check_codes`] refuses them, frames counted from
    /// the start of `codes`. The stream is as it was before then. [`ZacError::NotFinite`], after which
    /// the stream is of no more use.
    pub fn decode(&mut self, codes: &Codes) -> Result<Vec<f32>, ZacError> {
        if self.flushed {
            return Err(ZacError::Flushed);
        }
        self.decoder.check_codes(codes)?;
        let mut samples = Vec::new();
        if codes.is_empty() {
            return Ok(samples);
        }
        let hop = self.decoder.config().hop_length;
        samples.reserve_exact(codes.frames() * hop);
        // Pieces of equal length, so that the last is no sliver.
        let pieces = codes.frames().div_ceil(MOST_FRAMES);
        let columns = codes.codebooks();
        for i in 0..pieces {
            let at = |i: usize| codes.frames() * i / pieces * columns;
            self.piece(&codes.values()[at(i)..at(i + 1)], &mut samples)?;
        }
        self.frames += codes.frames();
        self.given(&samples)?;
        Ok(samples)
    }

    fn piece(&mut self, rows: &[i32], samples: &mut Vec<f32>) -> Result<(), ZacError> {
        let decoder = self.decoder;
        let codes = on_device(rows, decoder.config().codebooks(), &decoder.device());
        let mut off = Tap::off();
        let mut x = decoder.latents(codes, Some(&mut self.semantic), &mut off);
        let mut states = self.stages.iter_mut();
        for stage in &decoder.decoder {
            x = match stage {
                Stage::Transformer(stage) => stage.forward(x, states.next(), &mut off),
                Stage::Patch(patch) => patch_up(x, patch.size),
            };
        }
        let inner = decoder.head.push(x, &mut self.head)?;
        self.resampled(inner, samples);
        Ok(())
    }

    fn resampled(&mut self, inner: Option<Tensor<2>>, samples: &mut Vec<f32>) {
        if let Some(inner) = inner {
            self.resample.push(&host(inner), samples);
        }
    }

    /// Ends the signal and gives the rest of the samples; none the second time, and none of a stream
    /// that took no frames.
    ///
    /// # Errors
    ///
    /// [`ZacError::NotFinite`].
    pub fn flush(&mut self) -> Result<Vec<f32>, ZacError> {
        let mut samples = Vec::new();
        if !self.flushed && self.frames > 0 {
            let decoder = self.decoder;
            let inner = decoder.head.flush(&mut self.head)?;
            self.resampled(inner, &mut samples);
            // Silence behind the end brings out the last blocks; counting samples, not dividing them,
            // keeps the length exact however long the stream was.
            if let Some(kernel) = decoder.resampler().resampler().kernel() {
                let silence = vec![0.0; kernel.width() + kernel.orig_rate()];
                self.resample.push(&silence, &mut samples);
            }
            let total = self.frames * decoder.config().hop_length;
            samples.truncate(total - self.samples);
        }
        self.flushed = true;
        self.given(&samples)?;
        Ok(samples)
    }

    /// Counts samples that go out.
    fn given(&mut self, samples: &[f32]) -> Result<(), ZacError> {
        if let Some(at) = samples.iter().position(|sample| !sample.is_finite()) {
            return Err(ZacError::NotFinite {
                file: self.decoder.file().to_owned(),
                sample: self.samples + at,
            });
        }
        self.samples += samples.len();
        Ok(())
    }
}
