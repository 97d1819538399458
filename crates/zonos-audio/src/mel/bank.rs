//! Triangular bands, equally spaced on a mel scale.

use super::MelConfig;

/// Where bands lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MelScale {
    /// Linear below 1 kHz, logarithmic above: `3 f / 200`, then `15 + 27 ln(f / 1000) / ln 6.4`.
    ///
    /// Source: M. Slaney 1998, Auditory Toolbox.
    Slaney,
    /// `2595 log10(1 + f / 700)`.
    ///
    /// Source: The HTK Book.
    Htk,
}

/// Where the logarithmic part of Slaney's scale begins, and its steps.
const KNEE_HZ: f32 = 1000.0;
const KNEE_MEL: f64 = 15.0;
const LINEAR_STEP: f64 = 200.0 / 3.0;

impl MelScale {
    fn log_step() -> f64 {
        6.4f64.ln() / 27.0
    }

    fn to_mel(self, hz: f64) -> f64 {
        match self {
            Self::Htk => 2595.0 * (1.0 + hz / 700.0).log10(),
            Self::Slaney if hz >= f64::from(KNEE_HZ) => {
                KNEE_MEL + (hz / f64::from(KNEE_HZ)).ln() / Self::log_step()
            }
            Self::Slaney => hz / LINEAR_STEP,
        }
    }

    /// In f32, each operation rounded.
    fn to_hz(self, mel: f32) -> f32 {
        match self {
            Self::Htk => 700.0 * (10.0f64.powf(f64::from(mel / 2595.0)) as f32 - 1.0),
            Self::Slaney if mel >= KNEE_MEL as f32 => {
                let exponent = Self::log_step() as f32 * (mel - KNEE_MEL as f32);
                KNEE_HZ * f64::from(exponent).exp() as f32
            }
            Self::Slaney => LINEAR_STEP as f32 * mel,
        }
    }
}

/// Bands as sums over frequencies; of each band only the frequencies inside it are stored.
///
/// Made in f32 step by step as the reference does (`torchaudio.functional.melscale_fbanks`), because
/// the rounding of the band edges, up to 1e-7 of full scale, is in the features models were trained
/// with. Entries differ from it in the last bit where its exponential does.
#[derive(Debug, Clone, PartialEq)]
pub struct MelBank {
    bins: usize,
    /// First bin and weights of each band.
    bands: Vec<(usize, Vec<f32>)>,
}

impl MelBank {
    pub(super) fn new(config: &MelConfig) -> Self {
        let bins = config.n_fft / 2 + 1;
        let frequencies = linspace(0.0, f64::from(config.sample_rate / 2), bins);
        let edges: Vec<f32> = linspace(
            config.scale.to_mel(config.f_min),
            config.scale.to_mel(config.f_max),
            config.bands + 2,
        )
        .into_iter()
        .map(|mel| config.scale.to_hz(mel))
        .collect();
        let bands = edges
            .windows(3)
            .map(|edge| {
                let (rise, fall) = (edge[1] - edge[0], edge[2] - edge[1]);
                let scale = if config.area_norm {
                    2.0 / (edge[2] - edge[0])
                } else {
                    1.0
                };
                let weight = |hz: f32| {
                    let (up, down) = ((hz - edge[0]) / rise, (edge[2] - hz) / fall);
                    // A bin on the edge of bands of no width gives 0/0, which counts as outside.
                    up.min(down).max(0.0) * scale
                };
                let inside = |&(_, &hz): &(usize, &f32)| weight(hz) > 0.0;
                let first = frequencies.iter().enumerate().find(inside);
                let start = first.map_or(0, |(i, _)| i);
                let weights = frequencies[start..]
                    .iter()
                    .map(|&hz| weight(hz))
                    .take_while(|&w| w > 0.0)
                    .collect();
                (start, weights)
            })
            .collect();
        Self { bins, bands }
    }

    /// Number of bands.
    pub fn bands(&self) -> usize {
        self.bands.len()
    }

    /// Number of frequencies.
    pub fn bins(&self) -> usize {
        self.bins
    }

    /// First frequency and weights of a band; a band narrower than the distance of two frequencies
    /// may have none.
    ///
    /// # Panics
    /// If there are no more than `band` bands.
    pub fn band(&self, band: usize) -> (usize, &[f32]) {
        let (start, weights) = &self.bands[band];
        (*start, weights)
    }

    /// The whole bank, `[bins, bands]`.
    pub fn dense(&self) -> Vec<f32> {
        let mut dense = vec![0.0; self.bins * self.bands()];
        for (band, (start, weights)) in self.bands.iter().enumerate() {
            for (i, &w) in weights.iter().enumerate() {
                dense[(start + i) * self.bands() + band] = w;
            }
        }
        dense
    }

    /// Levels of the bands from the levels of the frequencies.
    ///
    /// # Panics
    /// If `levels` has fewer than [`bins`](Self::bins) values.
    pub fn apply(&self, levels: &[f32], out: &mut [f32]) {
        for (y, (start, weights)) in out.iter_mut().zip(&self.bands) {
            let levels = &levels[*start..][..weights.len()];
            *y = levels.iter().zip(weights).map(|(x, w)| x * w).sum();
        }
    }
}

/// `steps` numbers from `from` to `to`, counted from the nearer end and rounded once, as
/// `torch.linspace` does in f32.
fn linspace(from: f64, to: f64, steps: usize) -> Vec<f32> {
    let (from, to) = (from as f32, to as f32);
    if steps == 1 {
        return vec![from];
    }
    let step = (to - from) / (steps - 1) as f32;
    (0..steps)
        .map(|i| {
            let from_start = |i: usize| f64::from(from) + f64::from(step) * i as f64;
            let from_end = |i: usize| f64::from(to) - f64::from(step) * i as f64;
            if i < steps / 2 {
                from_start(i) as f32
            } else {
                from_end(steps - 1 - i) as f32
            }
        })
        .collect()
}
