//! Resampling of a signal that arrives in pieces.

use std::sync::Arc;

use super::ResampleKernel;

/// A signal under way from one rate to another.
///
/// A frame of outputs is final once `width` samples beyond it are there. The pieces joined are
/// bit-equal to [`Resampler::resample`](super::Resampler::resample) of the whole. (Of signals whose
/// result is longer than 2^27 samples the reference drops more at the end than was held back; a
/// stream keeps those.)
///
/// ```
/// use zonos_audio::resample::{ResampleRecipe, Resampler};
///
/// let resampler = Resampler::new(16_000, 24_000, ResampleRecipe::Transform)?;
/// let signal: Vec<f32> = (0..1000).map(|i| (i as f32 * 0.1).sin()).collect();
/// let mut stream = resampler.stream();
/// let mut joined = Vec::new();
/// for piece in signal.chunks(77) {
///     stream.push(piece, &mut joined);
/// }
/// stream.finish(&mut joined);
/// assert_eq!(joined, resampler.resample(&signal));
/// # Ok::<(), zonos_audio::resample::ResampleError>(())
/// ```
#[derive(Debug, Clone)]
pub struct ResampleStream {
    kernel: Option<Arc<ResampleKernel>>,
    /// The newest samples, from sample `origin` of the signal on.
    held: Vec<f32>,
    origin: usize,
    /// Frames whose outputs are out.
    frames: usize,
}

impl ResampleStream {
    pub(super) fn new(kernel: Option<Arc<ResampleKernel>>) -> Self {
        Self {
            kernel,
            held: Vec::new(),
            origin: 0,
            frames: 0,
        }
    }

    /// Takes the next samples and appends to `out` those outputs that became final.
    pub fn push(&mut self, samples: &[f32], out: &mut Vec<f32>) {
        let Some(kernel) = &self.kernel else {
            out.extend_from_slice(samples);
            return;
        };
        self.held.extend_from_slice(samples);
        let seen = self.origin + self.held.len();
        let ready = seen.saturating_sub(kernel.width()) / kernel.orig_rate();
        if ready > self.frames {
            let at = out.len();
            out.resize(at + (ready - self.frames) * kernel.new_rate(), 0.0);
            kernel.frames(&self.held, self.origin, self.frames, &mut out[at..]);
            self.frames = ready;
        }
        let keep_from = (self.frames * kernel.orig_rate()).saturating_sub(kernel.width());
        // Moving what is kept costs its length, so it waits until that pays.
        let drop = keep_from - self.origin;
        if drop > self.held.len() / 2 {
            self.held.drain(..drop);
            self.origin = keep_from;
        }
    }

    /// Ends the signal: appends what is left.
    pub fn finish(self, out: &mut Vec<f32>) {
        let Some(kernel) = &self.kernel else { return };
        let total = kernel.output_len(self.origin + self.held.len());
        let left = total.saturating_sub(self.frames * kernel.new_rate());
        let at = out.len();
        out.resize(at + left, 0.0);
        kernel.frames(&self.held, self.origin, self.frames, &mut out[at..]);
    }
}
