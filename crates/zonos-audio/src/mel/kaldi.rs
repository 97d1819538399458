//! Filterbank features as Kaldi makes them, in double precision.

use std::f64::consts::TAU;
use std::fmt;
use std::sync::Arc;

use rayon::prelude::*;
use realfft::{RealFftPlanner, RealToComplex};

use super::{Mel, MelError};
use crate::stft::StftError;

/// Sizes and scales of [`KaldiFbank`].
#[derive(Debug, Clone, PartialEq)]
pub struct KaldiConfig {
    /// Rate of the signals, Hz.
    pub sample_rate: u32,
    /// Samples of a frame.
    pub window: usize,
    /// Samples from one frame to the next.
    pub hop: usize,
    /// Points of the Fourier transform; zeros follow the frame.
    pub n_fft: usize,
    /// Number of bands.
    pub bands: usize,
    /// Lower edge of the first band, Hz.
    pub f_min: f64,
    /// Upper edge of the last band, Hz.
    pub f_max: f64,
    /// What samples are multiplied by: full scale is 1 here and that of 16 bits in Kaldi.
    pub gain: f64,
    /// Share of the sample before that is taken off each sample.
    pub pre_emphasis: f64,
    /// Least energy of a band, below the logarithm.
    pub floor: f64,
}

impl KaldiConfig {
    /// The front end of Wav2Vec2-BERT and its kin: 16 kHz, 25 ms every 10 ms, 512 points, 80 bands
    /// from 20 Hz to 8 kHz. At least 400 samples; `1 + (samples - 400) / 160` frames.
    pub fn speech() -> Self {
        Self {
            sample_rate: 16_000,
            window: 400,
            hop: 160,
            n_fft: 512,
            bands: 80,
            f_min: 20.0,
            f_max: 8000.0,
            gain: 32_768.0,
            pre_emphasis: 0.97,
            floor: f64::from(f32::EPSILON),
        }
    }

    fn check(&self) -> Result<(), MelError> {
        let refuse = |problem: String| Err(MelError::Config(problem));
        if self.window < 2 || self.hop == 0 {
            return refuse(format!(
                "a window of {} samples every {}: expected at least 2 and 1",
                self.window, self.hop
            ));
        }
        if self.n_fft < self.window || self.n_fft > 1 << 20 {
            return refuse(format!(
                "n_fft is {}, expected {} to {}",
                self.n_fft,
                self.window,
                1 << 20
            ));
        }
        if self.bands == 0 || self.bands > 1 << 16 {
            return refuse(format!("{} bands, expected 1 to 65536", self.bands));
        }
        let highest = f64::from(self.sample_rate) / 2.0;
        // Refuses NaN, too.
        if !(self.f_min >= 0.0 && self.f_min < self.f_max && self.f_max <= highest) {
            return refuse(format!(
                "bands from {} to {} Hz: expected 0 <= f_min < f_max <= {highest}",
                self.f_min, self.f_max
            ));
        }
        if !(self.floor > 0.0 && self.gain.is_finite() && self.pre_emphasis.is_finite()) {
            return refuse(format!(
                "floor {}, gain {}, pre-emphasis {}: expected a floor above 0 and finite numbers",
                self.floor, self.gain, self.pre_emphasis
            ));
        }
        Ok(())
    }
}

/// The Povey window, a symmetric Hann window to the power of 0.85: zero at both ends.
///
/// Source: Povey et al. 2011, "The Kaldi speech recognition toolkit".
pub fn povey_window(n: usize) -> Vec<f64> {
    let steps = n.saturating_sub(1).max(1) as f64;
    (0..n)
        .map(|i| (0.5 - 0.5 * (TAU * i as f64 / steps).cos()).powf(0.85))
        .collect()
}

/// Bands equally spaced on the scale `1127 ln(1 + f / 700)` and triangular on it, where
/// [`MelBank`](super::MelBank)'s are triangular in Hz.
#[derive(Debug, Clone, PartialEq)]
pub struct KaldiBank {
    bins: usize,
    /// First bin and weights of each band.
    bands: Vec<(usize, Vec<f64>)>,
}

impl KaldiBank {
    /// Bands of a transform of `config`'s sizes.
    ///
    /// # Errors
    /// Sizes or frequencies that do not fit together.
    pub fn new(config: &KaldiConfig) -> Result<Self, MelError> {
        config.check()?;
        let mel = |hz: f64| 1127.0 * (1.0 + hz / 700.0).ln();
        let (low, high) = (mel(config.f_min), mel(config.f_max));
        let step = (high - low) / (config.bands + 1) as f64;
        let bins = config.n_fft / 2 + 1;
        let width = f64::from(config.sample_rate) / config.n_fft as f64;
        let places: Vec<f64> = (0..bins).map(|k| mel(width * k as f64)).collect();
        let bands = (0..config.bands)
            .map(|band| {
                let left = low + step * band as f64;
                let weight = |place: f64| {
                    let (up, down) = ((place - left) / step, (left + 2.0 * step - place) / step);
                    up.min(down).max(0.0)
                };
                let start = places.partition_point(|&place| place <= left);
                let weights = places[start..].iter().map(|&place| weight(place));
                (start, weights.take_while(|&w| w > 0.0).collect())
            })
            .collect();
        Ok(Self { bins, bands })
    }

    /// Number of bands.
    pub fn bands(&self) -> usize {
        self.bands.len()
    }

    /// Number of frequencies.
    pub fn bins(&self) -> usize {
        self.bins
    }

    /// The whole bank, `[bins, bands]`.
    pub fn dense(&self) -> Vec<f64> {
        let mut dense = vec![0.0; self.bins * self.bands()];
        for (band, (start, weights)) in self.bands.iter().enumerate() {
            for (i, &w) in weights.iter().enumerate() {
                dense[(start + i) * self.bands() + band] = w;
            }
        }
        dense
    }

    /// Energies of the bands, one by one, from the energies of the frequencies.
    fn sums<'a>(&'a self, energies: &'a [f64]) -> impl Iterator<Item = f64> + 'a {
        self.bands.iter().map(|(start, weights)| {
            let energies = &energies[*start..][..weights.len()];
            energies.iter().zip(weights).map(|(x, w)| x * w).sum()
        })
    }
}

/// A planned filterbank; cheap to clone.
///
/// Frames lie wholly inside the signal; a tail that fills none is left out. Of each frame the mean is
/// removed and every sample but the first loses `pre_emphasis` of the one before it (the first of
/// itself); Povey window, energy of the Fourier transform, bands, floor, natural logarithm.
///
/// ```
/// use zonos_audio::mel::{KaldiConfig, KaldiFbank};
///
/// let front_end = KaldiFbank::new(KaldiConfig::speech())?;
/// let fbank = front_end.log(&[0.0; 16_000])?;
/// assert_eq!((fbank.frames, fbank.bands), (98, 80));
/// assert!(fbank.values.iter().all(|&x| x == f32::EPSILON.ln()));
/// # Ok::<(), zonos_audio::mel::MelError>(())
/// ```
#[derive(Clone)]
pub struct KaldiFbank {
    config: KaldiConfig,
    window: Vec<f64>,
    bank: KaldiBank,
    fft: Arc<dyn RealToComplex<f64>>,
}

/// Frames that one task transforms.
const FRAMES: usize = 16;

impl KaldiFbank {
    /// Plans the transform and makes the bands.
    ///
    /// # Errors
    /// Sizes or frequencies that do not fit together.
    pub fn new(config: KaldiConfig) -> Result<Self, MelError> {
        let bank = KaldiBank::new(&config)?;
        Ok(Self {
            window: povey_window(config.window),
            bank,
            fft: RealFftPlanner::new().plan_fft_forward(config.n_fft),
            config,
        })
    }

    /// Sizes and scales.
    pub fn config(&self) -> &KaldiConfig {
        &self.config
    }

    /// The window, `[window]`.
    pub fn window(&self) -> &[f64] {
        &self.window
    }

    /// The bands.
    pub fn bank(&self) -> &KaldiBank {
        &self.bank
    }

    /// `ln(max(energy, floor))` of each band and frame of `samples` at the configured rate.
    ///
    /// # Errors
    /// Fewer samples than one frame.
    pub fn log(&self, samples: &[f32]) -> Result<Mel, MelError> {
        let KaldiConfig {
            window, hop, bands, ..
        } = self.config;
        let Some(rest) = samples.len().checked_sub(window) else {
            return Err(MelError::Stft(StftError::TooShort {
                samples: samples.len(),
                needed: window,
            }));
        };
        let frames = 1 + rest / hop;
        let mut values = vec![0.0; frames * bands];
        values
            .par_chunks_mut(FRAMES * bands)
            .enumerate()
            .for_each(|(task, rows)| self.rows(&samples[task * FRAMES * hop..], rows));
        Ok(Mel {
            frames,
            bands,
            values,
        })
    }

    /// As many frames as `rows` has room for, from the beginning of `samples`.
    fn rows(&self, samples: &[f32], rows: &mut [f32]) {
        let KaldiConfig {
            window, hop, bands, ..
        } = self.config;
        let mut frame = self.fft.make_input_vec();
        let mut spectrum = self.fft.make_output_vec();
        let mut scratch = self.fft.make_scratch_vec();
        for (t, row) in rows.chunks_mut(bands).enumerate() {
            self.prepare(&samples[t * hop..][..window], &mut frame);
            // Fails for buffers of wrong lengths only, and the plan made these.
            let done = self
                .fft
                .process_with_scratch(&mut frame, &mut spectrum, &mut scratch);
            debug_assert!(done.is_ok());
            let energies: Vec<f64> = spectrum.iter().map(|z| z.norm_sqr()).collect();
            for (y, energy) in row.iter_mut().zip(self.bank.sums(&energies)) {
                *y = energy.max(self.config.floor).ln() as f32;
            }
        }
    }

    /// A windowed frame, with zeros behind it.
    fn prepare(&self, samples: &[f32], frame: &mut [f64]) {
        let KaldiConfig {
            gain, pre_emphasis, ..
        } = self.config;
        let mean = samples.iter().map(|&x| gain * f64::from(x)).sum::<f64>() / samples.len() as f64;
        let centred = |x: f32| gain * f64::from(x) - mean;
        let mut before = centred(samples[0]);
        let (filled, rest) = frame.split_at_mut(samples.len());
        for (y, (&x, w)) in filled.iter_mut().zip(samples.iter().zip(&self.window)) {
            let now = centred(x);
            *y = w * (now - pre_emphasis * before);
            before = now;
        }
        rest.fill(0.0);
    }
}

impl fmt::Debug for KaldiFbank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KaldiFbank")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tone(hz: f64, samples: usize) -> Vec<f32> {
        (0..samples)
            .map(|i| (0.5 * (TAU * hz * i as f64 / 16_000.0).sin()) as f32)
            .collect()
    }

    #[test]
    fn the_window_is_symmetric_and_zero_at_its_ends() {
        let window = povey_window(400);
        assert_eq!((window[0], window[399]), (0.0, 0.0));
        for i in 0..200 {
            assert!((window[i] - window[399 - i]).abs() < 1e-12, "{i}");
        }
        assert!(
            (window[100] - 0.5f64.mul_add(-(TAU * 100.0 / 399.0).cos(), 0.5).powf(0.85)).abs()
                < 1e-15
        );
        assert_eq!(povey_window(0), []);
    }

    #[test]
    fn neighbouring_bands_share_each_frequency() {
        let bank = KaldiBank::new(&KaldiConfig::speech()).unwrap();
        assert_eq!((bank.bins(), bank.bands()), (257, 80));
        let dense = bank.dense();
        // Between the middles of the first and the last band the triangles add up to one.
        let mut whole = 0;
        for row in dense.chunks(80) {
            let sum: f64 = row.iter().sum();
            assert!(sum < 1.0 + 1e-12);
            whole += usize::from((sum - 1.0).abs() < 1e-9);
        }
        assert!(whole > 240, "{whole}");
        // The lowest frequency is below the first band, the highest on the edge of the last.
        assert!(dense[..80].iter().all(|&w| w == 0.0));
        assert!(dense[256 * 80..].iter().all(|&w| w < 1e-12));
    }

    #[test]
    fn a_tone_is_loudest_in_its_band_and_levels_do_not_matter_for_the_mean() {
        let front_end = KaldiFbank::new(KaldiConfig::speech()).unwrap();
        let x = tone(1000.0, 1600);
        let fbank = front_end.log(&x).unwrap();
        assert_eq!((fbank.frames, fbank.bands), (8, 80));
        let row = &fbank.values[4 * 80..5 * 80];
        let top = (0..80).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap();
        let (start, weights) = &front_end.bank().bands[top];
        assert!((*start..start + weights.len()).contains(&32), "band {top}");
        // A constant is removed from each frame; of 16-bit samples, so that adding it rounds nothing.
        let x: Vec<f32> = x
            .iter()
            .map(|x| (x * 32_768.0).round() / 32_768.0)
            .collect();
        let fbank = front_end.log(&x).unwrap();
        let shifted: Vec<f32> = x.iter().map(|x| x + 0.25).collect();
        let shifted = front_end.log(&shifted).unwrap();
        for (a, b) in fbank.values.iter().zip(&shifted.values) {
            assert!((a - b).abs() < 1e-2, "{a} {b}");
        }
    }

    #[test]
    fn frames_are_whole_and_do_not_depend_on_what_follows() {
        let front_end = KaldiFbank::new(KaldiConfig::speech()).unwrap();
        let x = tone(440.0, 8000);
        let all = front_end.log(&x).unwrap();
        for samples in [400, 559, 560, 719, 3217] {
            let some = front_end.log(&x[..samples]).unwrap();
            assert_eq!(some.frames, 1 + (samples - 400) / 160);
            assert_eq!(some.values, all.values[..some.values.len()]);
        }
        let error = front_end.log(&x[..399]).unwrap_err().to_string();
        assert!(error.contains("399") && error.contains("400"), "{error}");
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let good = KaldiConfig::speech();
        for (bad, says) in [
            (
                KaldiConfig {
                    hop: 0,
                    ..good.clone()
                },
                "every 0",
            ),
            (
                KaldiConfig {
                    window: 513,
                    ..good.clone()
                },
                "n_fft is 512",
            ),
            (
                KaldiConfig {
                    bands: 0,
                    ..good.clone()
                },
                "0 bands",
            ),
            (
                KaldiConfig {
                    f_max: 8001.0,
                    ..good.clone()
                },
                "8001",
            ),
            (
                KaldiConfig {
                    f_min: f64::NAN,
                    ..good.clone()
                },
                "NaN",
            ),
            (KaldiConfig { floor: 0.0, ..good }, "floor 0"),
        ] {
            let error = KaldiFbank::new(bad).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    }
}
