//! Sample-rate conversion by a windowed sinc, as `torchaudio` does it.
//!
//! With `g = gcd(from, to)`, `o = from / g` and `n = to / g`, the signal is cut into frames of `o`
//! samples, and each frame gives `n`: one a phase of the filter ([`ResampleKernel`]). Cutoff 0.99 of
//! the lower Nyquist frequency, six zero crossings a side, Hann window. Of the `o + 2 width` taps of
//! a phase all but a few dozen are zero, and only those few are stored and multiplied, so the work
//! does not grow with `o`.
//!
//! Source: J. O. Smith, "Digital Audio Resampling Home Page", and `torchaudio` 2.11
//! (`functional/functional.py`, `_get_sinc_resample_kernel` and `_apply_sinc_resample_kernel`) for
//! the order of rounding. Outputs differ from it by about 2e-7 of full scale.

mod kernel;
mod stream;

use std::sync::Arc;

use rayon::prelude::*;

pub use kernel::ResampleKernel;
pub use stream::ResampleStream;

/// Highest sample rate that is resampled, in Hz; bounds the size of the filter.
pub const MAX_RATE: u32 = 2_000_000;

/// Which of the two roundings of the filter.
///
/// The filters differ in the last bits of their taps, and the outputs by 2e-6 to 3e-5.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ResampleRecipe {
    /// `torchaudio.transforms.Resample`: f64, but for the phase, which is rounded to f32 first.
    #[default]
    Transform,
    /// `torchaudio.functional.resample` of f32 samples: the whole filter in f32.
    Functional,
}

/// Why a resampler could not be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ResampleError {
    /// A rate of zero, or one that no recording has.
    #[error("sample rate {0} Hz: expected 1 to {MAX_RATE} Hz")]
    Rate(u32),
    /// A stored filter that does not fit its rates.
    #[error("resampling filter: {0}")]
    Kernel(String),
}

/// Converts signals from one rate to another.
///
/// ```
/// use zonos_audio::resample::{ResampleRecipe, Resampler};
///
/// let resampler = Resampler::new(44_100, 24_000, ResampleRecipe::Transform)?;
/// let second = vec![0.25_f32; 44_100];
/// let out = resampler.resample(&second);
/// assert_eq!(out.len(), 24_000);
/// assert!((out[12_000] - 0.25).abs() < 1e-3);
/// # Ok::<(), zonos_audio::resample::ResampleError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Resampler {
    // None between equal rates.
    kernel: Option<Arc<ResampleKernel>>,
}

/// Outputs that one task makes: small enough to share the work of seconds of audio between cores,
/// large enough to hide what a task costs.
const BLOCK: usize = 1 << 14;

impl Resampler {
    /// From `from` Hz to `to` Hz; equal rates pass signals on unchanged.
    ///
    /// # Errors
    /// A rate is 0 or above [`MAX_RATE`].
    pub fn new(from: u32, to: u32, recipe: ResampleRecipe) -> Result<Self, ResampleError> {
        for rate in [from, to] {
            if rate == 0 || rate > MAX_RATE {
                return Err(ResampleError::Rate(rate));
            }
        }
        let kernel = (from != to)
            .then(|| ResampleKernel::new(from, to, recipe).map(Arc::new))
            .transpose()?;
        Ok(Self { kernel })
    }

    /// Applies a filter from elsewhere, for example one stored in a checkpoint.
    pub fn with_kernel(kernel: ResampleKernel) -> Self {
        Self {
            kernel: Some(Arc::new(kernel)),
        }
    }

    /// The filter; `None` between equal rates.
    pub fn kernel(&self) -> Option<&ResampleKernel> {
        self.kernel.as_deref()
    }

    /// Samples that `len` samples become.
    ///
    /// The reference rounds `n * len / o` to f32 before the ceiling, so that above about 1e5 samples
    /// a small remainder is lost: 240,854 samples at 44.1 kHz give 131,077 at 24 kHz, not 131,078.
    pub fn output_len(&self, len: usize) -> usize {
        self.kernel().map_or(len, |k| k.output_len(len))
    }

    /// Resamples a whole signal: [`output_len`](Self::output_len) samples, on all cores of rayon's
    /// pool. Sums are in f32.
    pub fn resample(&self, samples: &[f32]) -> Vec<f32> {
        let Some(kernel) = self.kernel() else {
            return samples.to_vec();
        };
        let mut out = vec![0.0; kernel.output_len(samples.len())];
        let frames = BLOCK.div_ceil(kernel.new_rate());
        let block = frames * kernel.new_rate();
        if out.len() <= block {
            kernel.frames(samples, 0, 0, &mut out);
        } else {
            out.par_chunks_mut(block)
                .enumerate()
                .for_each(|(i, out)| kernel.frames(samples, 0, i * frames, out));
        }
        out
    }

    /// Begins a signal that arrives in pieces.
    pub fn stream(&self) -> ResampleStream {
        ResampleStream::new(self.kernel.clone())
    }
}

#[cfg(test)]
mod tests;
