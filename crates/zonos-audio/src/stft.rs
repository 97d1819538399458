//! Short-time Fourier transform and its inverse, with the conventions of `torch.stft` and
//! `torch.istft`.
//!
//! `S[k, t] = sum_i w[i] x[t hop + i] exp(-2 pi i k i / n_fft)` for `k = 0 ..= n_fft / 2`: one-sided,
//! of real signals, for any `n_fft`. A window shorter than `n_fft` stands in its middle. Both
//! directions take time in proportion to the signal's length, on all cores of rayon's pool.

mod config;
mod inverse;
mod window;

use std::fmt;
use std::sync::Arc;

use rayon::prelude::*;
use realfft::{ComplexToReal, RealFftPlanner, RealToComplex};

pub use config::{Framing, PadMode, StftConfig};
pub use realfft::num_complex::Complex32;
pub use window::{hann_window, ones_window};

/// Why a transform could not be made or applied.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum StftError {
    /// Sizes that do not fit together.
    #[error("STFT: {0}")]
    Config(String),
    /// The signal is shorter than one frame, or than its reflected ends.
    #[error("STFT: {samples} samples are too few: expected at least {needed}")]
    TooShort {
        /// Samples of the signal.
        samples: usize,
        /// The least that this framing can do with.
        needed: usize,
    },
    /// A spectrum of other sizes than this transform's.
    #[error("inverse STFT: expected {expected}, found {found}")]
    Spectrum {
        /// What was expected.
        expected: String,
        /// What was given.
        found: String,
    },
    /// The windows add up to (almost) nothing at a sample that is to be kept.
    #[error(
        "inverse STFT: the squared windows add up to {sum:.1e} at sample {sample}, which cannot be divided by; \
         centre the frames, ask for fewer samples, or take a window without zeros"
    )]
    Uncovered {
        /// The sample of the result.
        sample: usize,
        /// What the squared windows add up to there.
        sum: f64,
    },
}

/// A one-sided spectrum, frame by frame.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Spectrum {
    /// Number of frames.
    pub frames: usize,
    /// `n_fft / 2 + 1`.
    pub bins: usize,
    /// `[frames, bins]`.
    pub values: Vec<Complex32>,
}

impl Spectrum {
    /// From `re` and `im`, each `[bins, frames]` as `torch` lays them out.
    ///
    /// # Errors
    /// A plane has another number of values.
    pub fn from_planes(
        bins: usize,
        frames: usize,
        re: &[f32],
        im: &[f32],
    ) -> Result<Self, StftError> {
        let expected = bins.checked_mul(frames);
        if expected != Some(re.len()) || expected != Some(im.len()) {
            return Err(StftError::Spectrum {
                expected: format!("two planes of {bins} x {frames} values"),
                found: format!("{} and {}", re.len(), im.len()),
            });
        }
        let values = (0..frames)
            .flat_map(|t| (0..bins).map(move |k| k * frames + t))
            .map(|i| Complex32::new(re[i], im[i]))
            .collect();
        Ok(Self {
            frames,
            bins,
            values,
        })
    }

    /// Real and imaginary parts, each `[bins, frames]`.
    pub fn planes(&self) -> (Vec<f32>, Vec<f32>) {
        (0..self.bins)
            .flat_map(|k| (0..self.frames).map(move |t| t * self.bins + k))
            .map(|i| (self.values[i].re, self.values[i].im))
            .unzip()
    }

    /// The bins of frame `t`.
    ///
    /// # Panics
    /// If there are no more than `t` frames.
    pub fn frame(&self, t: usize) -> &[Complex32] {
        &self.values[t * self.bins..][..self.bins]
    }
}

/// A planned transform; cheap to clone.
///
/// ```
/// use zonos_audio::stft::{Stft, StftConfig};
///
/// let stft = Stft::new(StftConfig::hann(400, 160))?;
/// let signal: Vec<f32> = (0..3200).map(|i| (i as f32 * 0.3).sin()).collect();
/// let spectrum = stft.forward(&signal)?;
/// assert_eq!((spectrum.frames, spectrum.bins), (21, 201));
/// let back = stft.inverse(&spectrum, Some(3200))?;
/// assert!(signal.iter().zip(&back).all(|(a, b)| (a - b).abs() < 1e-5));
/// # Ok::<(), zonos_audio::stft::StftError>(())
/// ```
#[derive(Clone)]
pub struct Stft {
    config: StftConfig,
    /// `[n_fft]`, with zeros around a short one.
    window: Vec<f32>,
    forward: Arc<dyn RealToComplex<f32>>,
    backward: Arc<dyn ComplexToReal<f32>>,
    /// `[hop]`: what the squared windows add up to where frames are all around, by position in the hop.
    sums: Arc<[f64]>,
}

/// Frames that one task transforms.
const FRAMES: usize = 16;

impl Stft {
    /// Plans the transform.
    ///
    /// # Errors
    /// [`StftConfig::check`] refuses the sizes.
    pub fn new(config: StftConfig) -> Result<Self, StftError> {
        config.check()?;
        let mut planner = RealFftPlanner::new();
        Ok(Self {
            window: config.full_window(),
            forward: planner.plan_fft_forward(config.n_fft),
            backward: planner.plan_fft_inverse(config.n_fft),
            sums: config.periodic_sums().into(),
            config,
        })
    }

    /// Sizes and window.
    pub fn config(&self) -> &StftConfig {
        &self.config
    }

    /// The spectrum of `samples`; the tail that does not fill a frame is left out.
    ///
    /// # Errors
    /// [`StftError::TooShort`].
    pub fn forward(&self, samples: &[f32]) -> Result<Spectrum, StftError> {
        let (frames, bins) = (self.config.frames(samples.len())?, self.config.bins());
        let mut values = vec![Complex32::default(); frames * bins];
        self.each_frame(samples, &mut values, bins, |spectrum, row| {
            row.copy_from_slice(spectrum);
        })?;
        Ok(Spectrum {
            frames,
            bins,
            values,
        })
    }

    /// As [`forward`](Self::forward), real and imaginary parts apart, each `[frames, bins]`.
    ///
    /// # Errors
    /// [`StftError::TooShort`].
    pub fn forward_parts(&self, samples: &[f32]) -> Result<(Vec<f32>, Vec<f32>), StftError> {
        let (frames, bins) = (self.config.frames(samples.len())?, self.config.bins());
        let padded = self.config.pad(samples);
        let (mut re, mut im) = (vec![0.0; frames * bins], vec![0.0; frames * bins]);
        re.par_chunks_mut(FRAMES * bins)
            .zip(im.par_chunks_mut(FRAMES * bins))
            .enumerate()
            .for_each(|(i, (re, im))| {
                let count = re.len() / bins;
                let mut rows = re.chunks_mut(bins).zip(im.chunks_mut(bins));
                self.transform(&padded, i * FRAMES, count, |spectrum| {
                    if let Some((re, im)) = rows.next() {
                        for ((re, im), z) in re.iter_mut().zip(im).zip(spectrum) {
                            (*re, *im) = (z.re, z.im);
                        }
                    }
                });
            });
        Ok((re, im))
    }

    /// Calls `make` with the spectrum of each frame and the frame's row of `out`, `width` values.
    pub(crate) fn each_frame<T: Send>(
        &self,
        samples: &[f32],
        out: &mut [T],
        width: usize,
        make: impl Fn(&[Complex32], &mut [T]) + Sync,
    ) -> Result<(), StftError> {
        let frames = self.config.frames(samples.len())?;
        let padded = self.config.pad(samples);
        let out = &mut out[..frames * width];
        out.par_chunks_mut(FRAMES * width)
            .enumerate()
            .for_each(|(i, rows)| {
                let mut rows = rows.chunks_mut(width);
                let count = rows.len();
                self.transform(&padded, i * FRAMES, count, |spectrum| {
                    if let Some(row) = rows.next() {
                        make(spectrum, row);
                    }
                });
            });
        Ok(())
    }

    /// Calls `each` with the spectra of `count` frames of a padded signal, from frame `first` on.
    fn transform(
        &self,
        padded: &[f32],
        first: usize,
        count: usize,
        mut each: impl FnMut(&[Complex32]),
    ) {
        let StftConfig { n_fft, hop, .. } = self.config;
        let scale = self
            .config
            .normalized
            .then(|| (n_fft as f32).sqrt().recip());
        let mut frame = self.forward.make_input_vec();
        let mut spectrum = self.forward.make_output_vec();
        let mut scratch = self.forward.make_scratch_vec();
        for t in first..first + count {
            let samples = &padded[t * hop..][..n_fft];
            for (y, (x, w)) in frame.iter_mut().zip(samples.iter().zip(&self.window)) {
                *y = x * w;
            }
            // Fails for buffers of wrong lengths only, and the plan made these.
            let done = self
                .forward
                .process_with_scratch(&mut frame, &mut spectrum, &mut scratch);
            debug_assert!(done.is_ok());
            if let Some(scale) = scale {
                for z in &mut spectrum {
                    *z *= scale;
                }
            }
            each(&spectrum);
        }
    }

    /// The signal whose spectrum is nearest to `spectrum` in the least-squares sense: inverse
    /// transform of each frame, window, overlap-add, division by the overlap-added squared window.
    ///
    /// Imaginary parts at 0 Hz and, for an even `n_fft`, at the highest frequency are ignored. With
    /// `length` the result has that many samples, silence after the last frame; without, it ends
    /// where the signal's own part of the frames does.
    ///
    /// Source: Griffin and Lim 1984, "Signal estimation from modified short-time Fourier transform".
    ///
    /// # Errors
    /// A spectrum without frames or of another number of bins; [`StftError::Uncovered`] where the
    /// squared windows add up to less than 1e-11.
    pub fn inverse(
        &self,
        spectrum: &Spectrum,
        length: Option<usize>,
    ) -> Result<Vec<f32>, StftError> {
        let (frames, bins) = (spectrum.frames, spectrum.bins);
        self.fits(frames, bins, &[spectrum.values.len()])?;
        inverse::run(self, frames, length, |t, column| {
            column.copy_from_slice(spectrum.frame(t));
        })
    }

    /// As [`inverse`](Self::inverse), of real and imaginary parts apart, each `[frames, bins]`.
    ///
    /// # Errors
    /// As [`inverse`](Self::inverse).
    pub fn inverse_parts(
        &self,
        re: &[f32],
        im: &[f32],
        length: Option<usize>,
    ) -> Result<Vec<f32>, StftError> {
        let bins = self.config.bins();
        let frames = re.len() / bins;
        self.fits(frames, bins, &[re.len(), im.len()])?;
        inverse::run(self, frames, length, |t, column| {
            let row = t * bins..(t + 1) * bins;
            let parts = re[row.clone()].iter().zip(&im[row]);
            for (z, (&re, &im)) in column.iter_mut().zip(parts) {
                *z = Complex32::new(re, im);
            }
        })
    }

    fn fits(&self, frames: usize, bins: usize, values: &[usize]) -> Result<(), StftError> {
        let expected = self.config.bins();
        let right = |&n: &usize| frames.checked_mul(bins) == Some(n);
        if frames > 0 && bins == expected && values.iter().all(right) {
            return Ok(());
        }
        Err(StftError::Spectrum {
            expected: format!("at least one frame of {expected} bins"),
            found: format!("{frames} frames of {bins} bins, {values:?} values"),
        })
    }
}

impl fmt::Debug for Stft {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stft")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
