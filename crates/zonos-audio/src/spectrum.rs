//! Levels of a sound over time and frequency, for the eye.

use crate::stft::{Complex32, Framing, PadMode, Stft, StftConfig, StftError};
use crate::waveform::Waveform;

/// Levels below this, in dB, are drawn as silence: far below what 24 bits hold.
pub const SILENCE_DB: f32 = -160.0;

/// Resolution in time, in seconds: windows are the shortest power of two that is longer.
const WINDOW_SECONDS: f64 = 0.035;

/// Levels in dB: a sine of full scale has 0 dB in its bin.
#[derive(Debug, Clone, PartialEq)]
pub struct Spectrogram {
    /// Length of the sound.
    pub seconds: f64,
    /// Number of frames.
    pub frames: usize,
    /// Number of frequencies, from 0 Hz to half the sample rate.
    pub bins: usize,
    /// Frames a second.
    pub frame_rate: f64,
    /// Hz from one bin to the next.
    pub bin_hz: f64,
    /// `[frames, bins]`, at least [`SILENCE_DB`].
    pub levels: Vec<f32>,
}

impl Spectrogram {
    /// Measures `wave` with Hann windows of about 40 ms, four or more to a window's length, in
    /// `max_frames` frames at most; of a long sound windows are skipped.
    ///
    /// Samples that are not finite count as silence.
    ///
    /// # Errors
    /// There is no sample, or the sample rate is 0.
    pub fn of(wave: &Waveform, max_frames: usize) -> Result<Self, StftError> {
        let rate = f64::from(wave.sample_rate());
        if wave.is_empty() || rate == 0.0 {
            return Err(StftError::TooShort {
                samples: if rate == 0.0 { 0 } else { wave.len() },
                needed: 1,
            });
        }
        let n_fft = ((rate * WINDOW_SECONDS) as usize)
            .clamp(16, 1 << 16)
            .next_power_of_two();
        let hop = (n_fft / 4).max(wave.len().div_ceil(max_frames.max(1)));
        let stft = Stft::new(StftConfig {
            framing: Framing::Centred(PadMode::Zeros),
            ..StftConfig::hann(n_fft, hop)
        })?;
        let bins = stft.config().bins();
        let scale = 2.0 / stft.config().window.iter().sum::<f32>();
        let decibel = |z: &Complex32| {
            let level = 20.0 * (z.norm() * scale).log10();
            level.max(SILENCE_DB)
        };
        let cleaned;
        let samples = if wave.samples().iter().all(|x| x.is_finite()) {
            wave.samples()
        } else {
            let finite = |&x: &f32| if x.is_finite() { x } else { 0.0 };
            cleaned = wave.samples().iter().map(finite).collect::<Vec<_>>();
            &cleaned
        };
        let frames = stft.config().frames(samples.len())?;
        let mut levels = vec![0.0; frames * bins];
        stft.each_frame(samples, &mut levels, bins, |spectrum, row| {
            for (level, z) in row.iter_mut().zip(spectrum) {
                *level = decibel(z);
            }
        })?;
        Ok(Self {
            frames,
            bins,
            seconds: wave.seconds(),
            frame_rate: rate / hop as f64,
            bin_hz: rate / n_fft as f64,
            levels,
        })
    }

    /// The loudest level; [`SILENCE_DB`] for silence.
    pub fn loudest(&self) -> f32 {
        self.levels.iter().copied().fold(SILENCE_DB, f32::max)
    }

    /// The loudest level between two times and two frequencies, the nearest one if none lies between;
    /// `None` beyond the end of the sound or its highest frequency.
    pub fn level(&self, seconds: (f64, f64), hz: (f64, f64)) -> Option<f32> {
        // The sound ends inside the last frame's cell, or up to a frame behind it.
        if 0.5 * (seconds.0 + seconds.1) >= self.seconds {
            return None;
        }
        let last = (self.frames - 1) as f64 / self.frame_rate;
        let within = (seconds.0.min(last), seconds.1.min(last));
        let frames = cells(within, self.frame_rate, self.frames)?;
        let bins = cells(hz, self.bin_hz.recip(), self.bins)?;
        let rows = frames.map(|t| &self.levels[t * self.bins..][..self.bins]);
        rows.flat_map(|row| &row[bins.clone()])
            .copied()
            .reduce(f32::max)
    }
}

/// Cells `0..count`, centred on multiples of `1 / rate`, between two positions.
fn cells(range: (f64, f64), rate: f64, count: usize) -> Option<std::ops::RangeInclusive<usize>> {
    let middle = (0.5 * (range.0 + range.1) * rate).round().max(0.0) as usize;
    if middle >= count {
        return None;
    }
    let first = (range.0 * rate).ceil().max(0.0) as usize;
    let last = (range.1 * rate).ceil().max(1.0) as usize - 1;
    Some(if first <= last {
        first.min(count - 1)..=last.min(count - 1)
    } else {
        middle..=middle
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tone(hz: f64, rate: u32, seconds: f64, peak: f64) -> Waveform {
        let n = (seconds * f64::from(rate)) as usize;
        let step = std::f64::consts::TAU * hz / f64::from(rate);
        let samples = (0..n).map(|i| (peak * (i as f64 * step).sin()) as f32);
        Waveform::new(samples.collect(), rate)
    }

    #[test]
    fn a_sine_of_full_scale_has_0_db() {
        // 93.75 bins of 2048 points at 44.1 kHz would fall between two; 86 is a bin.
        let hz = 44_100.0 / 2048.0 * 86.0;
        let map = Spectrogram::of(&tone(hz, 44_100, 1.0, 1.0), 1000).unwrap();
        assert_eq!(map.bins, 1025);
        assert!(map.loudest().abs() < 0.01, "{}", map.loudest());
        let at = |hz| map.level((0.4, 0.5), (hz, hz)).unwrap();
        assert!(at(hz).abs() < 0.01);
        assert!(at(4.0 * hz) < -100.0);
        let quiet = Spectrogram::of(&tone(hz, 44_100, 1.0, 0.1), 1000).unwrap();
        assert!((quiet.loudest() + 20.0).abs() < 0.01);
    }

    #[test]
    fn outside_of_the_sound_there_is_nothing() {
        let map = Spectrogram::of(&tone(440.0, 8000, 0.5, 0.5), 1000).unwrap();
        assert!(map.level((0.0, 0.01), (3999.0, 4000.0)).is_some());
        assert!(map.level((0.0, 0.01), (4100.0, 4200.0)).is_none());
        assert!(map.level((0.7, 0.71), (0.0, 10.0)).is_none());
    }

    /// Whatever the frames' hop, the picture ends where the sound does.
    #[test]
    fn the_last_column_ends_with_the_sound() {
        for samples in [4000, 4010, 4060, 4100, 4127] {
            let wave = Waveform::new(vec![0.5; samples], 8000);
            let map = Spectrogram::of(&wave, 1000).unwrap();
            let at =
                |sample: f64| map.level((sample / 8000.0, (sample + 1.0) / 8000.0), (0.0, 10.0));
            let end = samples as f64;
            assert!(at(end - 1.0).is_some() && at(end).is_none(), "{samples}");
        }
    }

    #[test]
    fn long_sounds_have_no_more_frames() {
        let map = Spectrogram::of(&tone(440.0, 8000, 60.0, 0.5), 100).unwrap();
        assert!((100..=101).contains(&map.frames), "{}", map.frames);
        assert!((map.frames as f64 / map.frame_rate - 60.0).abs() < 1.0);
    }

    #[test]
    fn odd_sounds() {
        let silence = Spectrogram::of(&Waveform::new(vec![0.0; 3], 44_100), 10).unwrap();
        assert_eq!(silence.loudest(), SILENCE_DB);
        let nan = Spectrogram::of(&Waveform::new(vec![f32::NAN, 0.5], 44_100), 10).unwrap();
        assert!(nan.levels.iter().all(|x| x.is_finite()));
        assert!(Spectrogram::of(&Waveform::new(vec![], 44_100), 10).is_err());
        assert!(Spectrogram::of(&Waveform::new(vec![0.1], 0), 10).is_err());
        assert!(Spectrogram::of(&Waveform::new(vec![0.1; 9], 1), 10).is_ok());
        assert!(Spectrogram::of(&Waveform::new(vec![0.1; 9], u32::MAX), 10).is_ok());
    }
}
