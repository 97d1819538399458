//! How loud a signal is.

/// Peak and root-mean-square level of a signal.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Levels {
    /// Largest magnitude; 1 is full scale.
    pub peak: f32,
    /// Root of the mean square.
    pub rms: f32,
    /// Samples at or beyond full scale, which a 16-bit file clips.
    pub clipped: usize,
    /// Samples that are NaN or infinite; they are left out of the other figures.
    pub non_finite: usize,
}

impl Levels {
    /// Measures `samples`; all zero for an empty signal. Sums in f64.
    pub fn of(samples: &[f32]) -> Self {
        let mut levels = Self::default();
        let mut sum = 0.0_f64;
        for &x in samples {
            if !x.is_finite() {
                levels.non_finite += 1;
                continue;
            }
            levels.peak = levels.peak.max(x.abs());
            levels.clipped += usize::from(x.abs() >= 1.0);
            sum += f64::from(x) * f64::from(x);
        }
        let counted = samples.len() - levels.non_finite;
        if counted > 0 {
            levels.rms = (sum / counted as f64).sqrt() as f32;
        }
        levels
    }

    /// Peak in dB relative to full scale; minus infinity for silence.
    pub fn peak_dbfs(&self) -> f32 {
        dbfs(self.peak)
    }

    /// RMS in dB relative to full scale (a full-scale square wave is 0); minus infinity for silence.
    pub fn rms_dbfs(&self) -> f32 {
        dbfs(self.rms)
    }
}

fn dbfs(x: f32) -> f32 {
    20.0 * x.log10()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_signals() {
        let square = Levels::of(&[0.5, -0.5, 0.5, -0.5]);
        assert_eq!((square.peak, square.rms, square.clipped), (0.5, 0.5, 0));
        assert!((square.rms_dbfs() + 6.0206).abs() < 1e-4);
        let loud = Levels::of(&[1.0, -2.0, f32::NAN]);
        assert_eq!((loud.peak, loud.clipped, loud.non_finite), (2.0, 2, 1));
        assert!((loud.rms - 2.5_f32.sqrt()).abs() < 1e-6);
        let silence = Levels::of(&[]);
        assert_eq!(silence.rms_dbfs(), f32::NEG_INFINITY);
        assert_eq!(Levels::of(&[f32::NAN]).rms, 0.0);
    }
}
