//! 16 kHz samples to input features, on the host.

use zonos_audio::mel::{KaldiConfig, KaldiFbank, Mel};

use crate::{TeacherConfig, TeacherError};

/// Added to the variance of a band before its root.
const VARIANCE: f64 = 1e-7;
/// Filterbank frames of one token.
const STRIDE: usize = 2;

/// Filterbank, normalisation and stacking as the model was trained with them.
#[derive(Debug, Clone)]
pub(crate) struct FrontEnd {
    fbank: KaldiFbank,
    padding_value: f32,
}

/// What the model reads, on the host.
pub(crate) struct Stacked {
    /// `[tokens, 2 bands]`.
    pub(crate) values: Vec<f32>,
    /// `[tokens]`: whether both of a token's frames are the signal's.
    pub(crate) mask: Vec<bool>,
}

impl FrontEnd {
    pub(crate) fn new(config: &TeacherConfig) -> Result<Self, TeacherError> {
        let fbank = KaldiFbank::new(KaldiConfig {
            bands: config.bands(),
            ..KaldiConfig::speech()
        })?;
        Ok(Self {
            fbank,
            padding_value: config.padding_value,
        })
    }

    /// The fewest samples that make a token.
    pub(crate) fn min_samples(&self) -> usize {
        let config = self.fbank.config();
        config.window + (STRIDE - 1) * config.hop
    }

    /// Log energies of the bands.
    pub(crate) fn fbank(&self, samples: &[f32]) -> Result<Mel, TeacherError> {
        if let Some(index) = samples.iter().position(|x| !x.is_finite()) {
            // The floor below the logarithm would make silence of it.
            let value = samples[index];
            return Err(TeacherError::BadSample { index, value });
        }
        let (found, least) = (samples.len(), self.min_samples());
        if found < least {
            return Err(TeacherError::TooFewSamples { found, least });
        }
        Ok(self.fbank.log(samples)?)
    }

    /// Frames two by two; where one is left over, padding follows it and its token is masked.
    pub(crate) fn stack(&self, mut fbank: Mel) -> Stacked {
        let tokens = fbank.frames.div_ceil(STRIDE);
        fbank
            .values
            .resize(tokens * STRIDE * fbank.bands, self.padding_value);
        let whole = fbank.frames / STRIDE;
        Stacked {
            values: fbank.values,
            mask: (0..tokens).map(|token| token < whole).collect(),
        }
    }
}

/// Each band to mean 0 and, with `n - 1` in its denominator, variance 1 over the clip.
pub(crate) fn normalise(fbank: &mut Mel) {
    let (frames, bands) = (fbank.frames as f64, fbank.bands);
    let mut means = vec![0.0f64; bands];
    let mut squares = vec![0.0f64; bands];
    for row in fbank.values.chunks(bands) {
        for (mean, &x) in means.iter_mut().zip(row) {
            *mean += f64::from(x);
        }
    }
    means.iter_mut().for_each(|mean| *mean /= frames);
    for row in fbank.values.chunks(bands) {
        for ((square, mean), &x) in squares.iter_mut().zip(&means).zip(row) {
            *square += (f64::from(x) - mean).powi(2);
        }
    }
    let scales: Vec<f64> = squares
        .iter()
        .map(|square| (square / (frames - 1.0) + VARIANCE).sqrt().recip())
        .collect();
    for row in fbank.values.chunks_mut(bands) {
        for ((x, mean), scale) in row.iter_mut().zip(&means).zip(&scales) {
            *x = ((f64::from(*x) - mean) * scale) as f32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn front_end() -> FrontEnd {
        FrontEnd::new(&TeacherConfig::released()).unwrap()
    }

    fn noise(samples: usize) -> Vec<f32> {
        let mut state = 0x9E37_79B9u32;
        (0..samples)
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 17;
                state ^= state << 5;
                (state >> 8) as f32 / (1u32 << 24) as f32 - 0.5
            })
            .collect()
    }

    #[test]
    fn two_frames_make_a_token_and_an_odd_one_is_masked() {
        let front_end = front_end();
        assert_eq!(front_end.min_samples(), 560);
        for (samples, frames, mask) in [
            (560, 2, &[true][..]),
            (719, 2, &[true][..]),
            (720, 3, &[true, false][..]),
            (880, 4, &[true, true][..]),
        ] {
            let mut fbank = front_end.fbank(&noise(samples)).unwrap();
            assert_eq!(fbank.frames, frames);
            normalise(&mut fbank);
            let last = fbank.values[(frames - 1) * 80..].to_vec();
            let stacked = front_end.stack(fbank);
            assert_eq!(stacked.mask, mask, "{samples}");
            assert_eq!(stacked.values.len(), mask.len() * 160);
            if frames % 2 == 1 {
                let (signal, padding) = stacked.values[(mask.len() - 1) * 160..].split_at(80);
                assert_eq!(signal, last);
                assert_eq!(padding, [1.0; 80]);
            }
        }
    }

    #[test]
    fn bands_have_no_mean_and_unit_variance() {
        let mut fbank = front_end().fbank(&noise(6400)).unwrap();
        normalise(&mut fbank);
        for band in 0..80 {
            let column = || {
                fbank
                    .values
                    .iter()
                    .skip(band)
                    .step_by(80)
                    .map(|&x| f64::from(x))
            };
            let n = fbank.frames as f64;
            assert!(column().sum::<f64>().abs() < 1e-4);
            let variance = column().map(|x| x * x).sum::<f64>() / (n - 1.0);
            assert!((variance - 1.0).abs() < 1e-5, "{band}: {variance}");
        }
    }

    #[test]
    fn silence_is_zeros() {
        let mut fbank = front_end().fbank(&[0.0; 1600]).unwrap();
        normalise(&mut fbank);
        assert!(fbank.values.iter().all(|&x| x == 0.0));
    }

    #[test]
    fn clips_that_make_no_token_and_samples_that_are_no_numbers_are_refused() {
        let front_end = front_end();
        for samples in [0, 399, 400, 559] {
            let error = front_end.fbank(&noise(samples)).unwrap_err();
            assert!(
                matches!(error, TeacherError::TooFewSamples { found, least: 560 } if found == samples),
                "{error}"
            );
            assert!(error.to_string().contains("35 ms"), "{error}");
        }
        for value in [f32::NAN, f32::NEG_INFINITY] {
            let mut samples = noise(1000);
            samples[777] = value;
            let error = front_end.fbank(&samples).unwrap_err();
            assert!(
                matches!(error, TeacherError::BadSample { index: 777, .. }),
                "{error}"
            );
        }
    }
}
