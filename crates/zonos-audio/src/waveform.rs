//! Mono sound in memory.

use std::path::Path;

use crate::fade;
use crate::levels::Levels;
use crate::resample::{ResampleError, ResampleRecipe, Resampler};
use crate::wav::{WavError, WavFormat, write_wav};

/// Mono samples, nominally -1..1, and their rate in Hz.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Waveform {
    samples: Vec<f32>,
    sample_rate: u32,
}

impl Waveform {
    /// Takes `samples` at `sample_rate` Hz.
    pub fn new(samples: Vec<f32>, sample_rate: u32) -> Self {
        Self {
            samples,
            sample_rate,
        }
    }

    /// The samples.
    pub fn samples(&self) -> &[f32] {
        &self.samples
    }

    /// The samples, to change.
    pub fn samples_mut(&mut self) -> &mut Vec<f32> {
        &mut self.samples
    }

    /// Gives the samples back.
    pub fn into_samples(self) -> Vec<f32> {
        self.samples
    }

    /// Samples a second.
    pub fn sample_rate(&self) -> u32 {
        self.sample_rate
    }

    /// Number of samples.
    pub fn len(&self) -> usize {
        self.samples.len()
    }

    /// Whether there is no sample.
    pub fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }

    /// Length in seconds; 0 when the rate is 0.
    pub fn seconds(&self) -> f64 {
        if self.sample_rate == 0 {
            return 0.0;
        }
        self.samples.len() as f64 / f64::from(self.sample_rate)
    }

    /// Fades the last `ms` milliseconds to zero; see [`fade`].
    pub fn fade_out(&mut self, ms: f64) {
        fade::fade_out(&mut self.samples, ms, self.sample_rate);
    }

    /// Largest magnitude.
    pub fn peak(&self) -> f32 {
        self.levels().peak
    }

    /// Root-mean-square level.
    pub fn rms(&self) -> f32 {
        self.levels().rms
    }

    /// Peak, RMS and how many samples clip.
    pub fn levels(&self) -> Levels {
        Levels::of(&self.samples)
    }

    /// The sound at `rate` Hz; see [`resample`](crate::resample).
    ///
    /// # Errors
    /// `rate` or the sound's own rate is 0 or above [`MAX_RATE`](crate::resample::MAX_RATE).
    pub fn resample(&self, rate: u32, recipe: ResampleRecipe) -> Result<Self, ResampleError> {
        let resampler = Resampler::new(self.sample_rate, rate, recipe)?;
        Ok(Self::new(resampler.resample(&self.samples), rate))
    }

    /// Writes a 16-bit WAV file, complete or not at all.
    ///
    /// # Errors
    /// See [`write_wav`].
    pub fn save_wav(&self, path: impl AsRef<Path>) -> Result<(), WavError> {
        self.save_wav_as(path, WavFormat::Pcm16)
    }

    /// As [`save_wav`](Self::save_wav), but leaves the commit to the caller, for files that belong
    /// together; see [`AtomicFile::commit_all`](crate::AtomicFile::commit_all).
    ///
    /// # Errors
    /// See [`write_wav`].
    pub fn stage_wav(&self, path: impl AsRef<Path>) -> Result<crate::AtomicFile, WavError> {
        crate::wav::stage_wav(path, &self.samples, self.sample_rate, WavFormat::Pcm16)
    }

    /// Writes a WAV file in the given sample format, complete or not at all.
    ///
    /// # Errors
    /// See [`write_wav`].
    pub fn save_wav_as(&self, path: impl AsRef<Path>, format: WavFormat) -> Result<(), WavError> {
        write_wav(path, &self.samples, self.sample_rate, format)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measures_and_fades() {
        let mut w = Waveform::new(vec![0.5; 44_100], 44_100);
        assert_eq!(
            (w.len(), w.seconds(), w.peak(), w.rms()),
            (44_100, 1.0, 0.5, 0.5)
        );
        w.fade_out(10.0);
        assert_eq!(w.samples()[44_100 - 442], 0.5);
        assert_eq!(w.samples()[44_099], 0.0);
        assert_eq!(Waveform::default().seconds(), 0.0);
    }
}
