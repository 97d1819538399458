//! Sizes of a transform, and where its frames stand.

use super::{StftError, hann_window};

/// What a signal continues with beyond its ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PadMode {
    /// Its mirror image, the last sample not repeated (`reflect`).
    Reflect,
    /// Silence (`constant`).
    Zeros,
    /// Its last sample (`replicate`).
    Edge,
}

/// Where frames stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Framing {
    /// The first frame begins with the first sample (`center=False`).
    Bare,
    /// Frame `t` is centred on sample `t hop`: the signal is padded with `n_fft / 2` on both sides
    /// (`center=True`).
    Centred(PadMode),
    /// Padded with `(n_fft - hop) / 2` on both sides, which gives a frame each `hop` samples; the
    /// framing of most vocoders.
    Same(PadMode),
}

/// Sizes, window and framing of a transform.
#[derive(Debug, Clone, PartialEq)]
pub struct StftConfig {
    /// Points of the Fourier transform.
    pub n_fft: usize,
    /// Samples from one frame to the next.
    pub hop: usize,
    /// The window, at most `n_fft` values.
    pub window: Vec<f32>,
    /// Where frames stand.
    pub framing: Framing,
    /// Whether the spectrum is divided by `sqrt(n_fft)`.
    pub normalized: bool,
}

/// Largest `n_fft`, far beyond any use, so that sizes multiply without overflow.
const MAX_FFT: usize = 1 << 24;

impl StftConfig {
    /// What the squared windows must add up to at a sample for the inverse to divide by it; the limit
    /// of `torch.istft`.
    pub const SMALLEST_SUM: f64 = 1e-11;

    /// A periodic Hann window as long as the transform, frames centred, ends reflected: the defaults
    /// of `torch.stft` and `torchaudio`.
    pub fn hann(n_fft: usize, hop: usize) -> Self {
        Self {
            n_fft,
            hop,
            window: hann_window(n_fft.min(MAX_FFT), true),
            framing: Framing::Centred(PadMode::Reflect),
            normalized: false,
        }
    }

    /// Whether the sizes fit together.
    ///
    /// # Errors
    /// A size of zero or above 2^24, a window longer than `n_fft` or with values that are not finite.
    pub fn check(&self) -> Result<(), StftError> {
        let refuse = |problem: String| Err(StftError::Config(problem));
        if self.n_fft == 0 || self.n_fft > MAX_FFT {
            return refuse(format!("n_fft is {}, expected 1 to {MAX_FFT}", self.n_fft));
        }
        if self.hop == 0 || self.hop > MAX_FFT {
            return refuse(format!("hop is {}, expected 1 to {MAX_FFT}", self.hop));
        }
        if self.window.is_empty() || self.window.len() > self.n_fft {
            return refuse(format!(
                "the window has {} values, expected 1 to n_fft = {}",
                self.window.len(),
                self.n_fft
            ));
        }
        if let Some(i) = self.window.iter().position(|w| !w.is_finite()) {
            return refuse(format!("window value {i} is {}", self.window[i]));
        }
        Ok(())
    }

    /// Frequencies of the one-sided spectrum, `n_fft / 2 + 1`.
    pub fn bins(&self) -> usize {
        self.n_fft / 2 + 1
    }

    /// Samples added before and after the signal.
    pub fn padding(&self) -> usize {
        match self.framing {
            Framing::Bare => 0,
            Framing::Centred(_) => self.n_fft / 2,
            Framing::Same(_) => self.n_fft.saturating_sub(self.hop) / 2,
        }
    }

    /// What the signal is padded with; `None` where it is not.
    pub fn pad_mode(&self) -> Option<PadMode> {
        match self.framing {
            Framing::Bare => None,
            Framing::Centred(mode) | Framing::Same(mode) => Some(mode),
        }
    }

    /// The fewest samples that have a spectrum.
    pub fn least(&self) -> usize {
        let padding = self.padding();
        let for_padding = match self.pad_mode() {
            Some(PadMode::Reflect) if padding > 0 => padding + 1,
            Some(PadMode::Edge) if padding > 0 => 1,
            _ => 0,
        };
        self.n_fft.saturating_sub(2 * padding).max(for_padding)
    }

    /// Frames of a signal.
    ///
    /// # Errors
    /// [`StftError::TooShort`] below [`least`](Self::least) samples.
    pub fn frames(&self, samples: usize) -> Result<usize, StftError> {
        let needed = self.least();
        if samples < needed {
            return Err(StftError::TooShort { samples, needed });
        }
        Ok((samples + 2 * self.padding() - self.n_fft) / self.hop + 1)
    }

    /// First sample of the overlapped frames that the inverse keeps, and how many it keeps when no
    /// length is asked for.
    pub fn kept(&self, frames: usize) -> (usize, usize) {
        let total = self.n_fft + self.hop * frames.saturating_sub(1);
        let start = self.padding();
        let len = match self.framing {
            Framing::Bare => total,
            Framing::Centred(_) => total.saturating_sub(2 * start),
            Framing::Same(_) => frames * self.hop,
        };
        (start, len)
    }

    /// What the squared windows of `frames` frames add up to: `n_fft + hop (frames - 1)` values from
    /// the start of the first frame on.
    pub fn window_sums(&self, frames: usize) -> Vec<f64> {
        let squares: Vec<f64> = self
            .full_window()
            .into_iter()
            .map(|w| f64::from(w) * f64::from(w))
            .collect();
        let mut sums = vec![0.0; self.n_fft + self.hop * frames.saturating_sub(1)];
        for t in 0..frames {
            for (sum, square) in sums[t * self.hop..].iter_mut().zip(&squares) {
                *sum += square;
            }
        }
        sums
    }

    /// The same by position in the hop, where as many frames overlap as ever can.
    pub(super) fn periodic_sums(&self) -> Vec<f64> {
        let mut sums = vec![0.0; self.hop];
        for (i, w) in self.full_window().into_iter().enumerate() {
            sums[i % self.hop] += f64::from(w) * f64::from(w);
        }
        sums
    }

    /// The window in the middle of `n_fft` values; an odd zero goes behind it.
    pub fn full_window(&self) -> Vec<f32> {
        let mut full = vec![0.0; self.n_fft];
        let lead = (self.n_fft - self.window.len()) / 2;
        full[lead..lead + self.window.len()].copy_from_slice(&self.window);
        full
    }

    /// The padded signal, which must have [`least`](Self::least) samples.
    pub(super) fn pad(&self, samples: &[f32]) -> Vec<f32> {
        let n = samples.len();
        let padding = self.padding();
        let mut padded = Vec::with_capacity(n + 2 * padding);
        let mode = self.pad_mode().unwrap_or(PadMode::Zeros);
        match mode {
            PadMode::Zeros => padded.resize(padding, 0.0),
            PadMode::Edge => padded.resize(padding, samples.first().copied().unwrap_or(0.0)),
            PadMode::Reflect => padded.extend((0..padding).map(|i| samples[padding - i])),
        }
        padded.extend_from_slice(samples);
        match mode {
            PadMode::Zeros => padded.resize(n + 2 * padding, 0.0),
            PadMode::Edge => {
                padded.resize(n + 2 * padding, samples.last().copied().unwrap_or(0.0));
            }
            PadMode::Reflect => padded.extend((0..padding).map(|i| samples[n - 2 - i])),
        }
        padded
    }
}
