//! Mel spectrograms, rounded like `torchaudio`'s, and Kaldi's filterbank.

mod bank;
mod kaldi;

use rayon::prelude::*;

use crate::stft::{Complex32, Framing, PadMode, Stft, StftConfig, StftError, hann_window};

pub use bank::{MelBank, MelScale};
pub use kaldi::{KaldiBank, KaldiConfig, KaldiFbank, povey_window};

/// Why a mel spectrogram could not be planned or made.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum MelError {
    /// Sizes or frequencies that do not fit together.
    #[error("mel spectrogram: {0}")]
    Config(String),
    /// The transform's sizes, or a signal that is too short for it.
    #[error(transparent)]
    Stft(#[from] StftError),
}

/// What of each frequency is summed over a band.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MelPower {
    /// The magnitude, `sqrt(re^2 + im^2)` (`power=1`).
    Magnitude,
    /// Its square (`power=2`).
    Energy,
}

/// Sizes and scales of a mel spectrogram.
#[derive(Debug, Clone, PartialEq)]
pub struct MelConfig {
    /// Rate of the signals, Hz.
    pub sample_rate: u32,
    /// Points of the Fourier transform.
    pub n_fft: usize,
    /// Length of the periodic Hann window, at most `n_fft`.
    pub win_length: usize,
    /// Samples from one frame to the next.
    pub hop: usize,
    /// Where frames stand.
    pub framing: Framing,
    /// What is summed.
    pub power: MelPower,
    /// Number of bands.
    pub bands: usize,
    /// Lower edge of the first band, Hz.
    pub f_min: f64,
    /// Upper edge of the last band, Hz.
    pub f_max: f64,
    /// Where the bands lie.
    pub scale: MelScale,
    /// Whether each band is divided by half its width in Hz (`norm="slaney"`).
    pub area_norm: bool,
}

impl MelConfig {
    /// The front end of ECAPA-TDNN speaker encoders: 24 kHz, 1024 points every 256 samples, 128 Slaney
    /// bands up to 12 kHz, magnitudes, reflected ends. At least 385 samples; a frame each 256.
    pub fn speaker() -> Self {
        Self {
            sample_rate: 24_000,
            n_fft: 1024,
            win_length: 1024,
            hop: 256,
            framing: Framing::Same(PadMode::Reflect),
            power: MelPower::Magnitude,
            bands: 128,
            f_min: 0.0,
            f_max: 12_000.0,
            scale: MelScale::Slaney,
            area_norm: true,
        }
    }

    /// The defaults of `torchaudio.transforms.MelSpectrogram`: 400 points every 200 samples, frames
    /// centred, 128 HTK bands of energy up to half the rate, no normalisation.
    pub fn torchaudio(sample_rate: u32) -> Self {
        Self {
            sample_rate,
            n_fft: 400,
            win_length: 400,
            hop: 200,
            framing: Framing::Centred(PadMode::Reflect),
            power: MelPower::Energy,
            bands: 128,
            f_min: 0.0,
            // Of an odd rate the reference drops the half.
            f_max: f64::from(sample_rate / 2),
            scale: MelScale::Htk,
            area_norm: false,
        }
    }

    /// The transform below the bands.
    pub fn stft(&self) -> StftConfig {
        StftConfig {
            n_fft: self.n_fft,
            hop: self.hop,
            window: hann_window(self.win_length.min(self.n_fft), true),
            framing: self.framing,
            normalized: false,
        }
    }

    fn check(&self) -> Result<(), MelError> {
        let refuse = |problem: String| Err(MelError::Config(problem));
        if self.win_length > self.n_fft {
            return refuse(format!(
                "the window has {} samples, expected at most n_fft = {}",
                self.win_length, self.n_fft
            ));
        }
        if self.sample_rate < 2 {
            return refuse(format!("sample rate {} Hz", self.sample_rate));
        }
        if self.bands == 0 || self.bands > 1 << 16 {
            return refuse(format!("{} bands, expected 1 to 65536", self.bands));
        }
        // Refuses NaN, too.
        if !(self.f_min >= 0.0 && self.f_min < self.f_max && self.f_max.is_finite()) {
            return refuse(format!(
                "bands from {} to {} Hz: expected 0 <= f_min < f_max",
                self.f_min, self.f_max
            ));
        }
        Ok(())
    }
}

/// Levels of bands over time.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Mel {
    /// Number of frames.
    pub frames: usize,
    /// Number of bands.
    pub bands: usize,
    /// `[frames, bands]`.
    pub values: Vec<f32>,
}

/// A planned mel spectrogram; cheap to clone.
///
/// ```
/// use zonos_audio::mel::{MelConfig, MelSpectrogram};
///
/// let front_end = MelSpectrogram::new(MelConfig::speaker())?;
/// let silence = vec![0.0; 2560];
/// let mel = front_end.log(&silence, 1e-5)?;
/// assert_eq!((mel.frames, mel.bands), (10, 128));
/// assert!(mel.values.iter().all(|&x| x == 1e-5_f32.ln()));
/// # Ok::<(), zonos_audio::mel::MelError>(())
/// ```
#[derive(Debug, Clone)]
pub struct MelSpectrogram {
    config: MelConfig,
    stft: Stft,
    bank: MelBank,
}

impl MelSpectrogram {
    /// Plans the transform and makes the bands.
    ///
    /// # Errors
    /// Sizes, rates or frequencies that do not fit together.
    pub fn new(config: MelConfig) -> Result<Self, MelError> {
        config.check()?;
        Ok(Self {
            stft: Stft::new(config.stft())?,
            bank: MelBank::new(&config),
            config,
        })
    }

    /// Sizes and scales.
    pub fn config(&self) -> &MelConfig {
        &self.config
    }

    /// The bands.
    pub fn bank(&self) -> &MelBank {
        &self.bank
    }

    /// `sum_f level[t, f] bank[f, m]` of `samples` at the configured rate.
    ///
    /// # Errors
    /// The signal is too short for its framing.
    pub fn linear(&self, samples: &[f32]) -> Result<Mel, MelError> {
        self.map(samples, |level| level)
    }

    /// `ln(max(linear, floor))`.
    ///
    /// # Errors
    /// As [`linear`](Self::linear).
    pub fn log(&self, samples: &[f32], floor: f32) -> Result<Mel, MelError> {
        self.map(samples, move |level| level.max(floor).ln())
    }

    fn map(&self, samples: &[f32], finish: impl Fn(f32) -> f32 + Sync) -> Result<Mel, MelError> {
        let frames = self.stft.config().frames(samples.len())?;
        let bands = self.config.bands;
        let mut values = vec![0.0; frames * bands];
        let level: fn(&Complex32) -> f32 = match self.config.power {
            MelPower::Magnitude => |z| z.norm_sqr().sqrt(),
            MelPower::Energy => Complex32::norm_sqr,
        };
        self.stft
            .each_frame(samples, &mut values, bands, |spectrum, row| {
                let levels: Vec<f32> = spectrum.iter().map(level).collect();
                self.bank.apply(&levels, row);
            })?;
        values
            .par_iter_mut()
            .with_min_len(1 << 14)
            .for_each(|v| *v = finish(*v));
        Ok(Mel {
            frames,
            bands,
            values,
        })
    }
}

#[cfg(test)]
mod tests;
