//! Recordings as the encoder takes them.

use thiserror::Error;
use zonos_audio::Waveform;
use zonos_audio::resample::{ResampleError, ResampleRecipe, Resampler};

/// Rate of the audio that goes in and comes out, in Hz.
pub const SAMPLE_RATE: u32 = 44_100;
/// Samples at [`SAMPLE_RATE`] that a frame of codes stands for.
pub const HOP: usize = 2940;
/// Shortest clip that is encoded, in seconds.
pub const MIN_SECONDS: f64 = 0.5;
/// Longest clip that is encoded, in seconds; the rest is cut off.
pub const MAX_SECONDS: f64 = 600.0;

/// How [`prepare_audio`] works.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PrepareOptions {
    /// Seconds to keep, in whole frames: above 0, at most [`MAX_SECONDS`].
    pub max_seconds: f64,
    /// Divide by the peak where it exceeds full scale.
    pub peak_normalize: bool,
}

impl Default for PrepareOptions {
    /// [`MAX_SECONDS`], and no peak above full scale.
    fn default() -> Self {
        Self {
            max_seconds: MAX_SECONDS,
            peak_normalize: true,
        }
    }
}

impl PrepareOptions {
    /// Samples at [`SAMPLE_RATE`] that are kept at most: the whole frames within `max_seconds`.
    ///
    /// # Errors
    /// [`PrepareError::MaxSeconds`] when that is no frame, or `max_seconds` is out of range.
    pub fn max_samples(&self) -> Result<usize, PrepareError> {
        let seconds = self.max_seconds;
        let frames = seconds * f64::from(SAMPLE_RATE) / HOP as f64;
        // NaN is in no range.
        if !(seconds <= MAX_SECONDS && frames >= 1.0) {
            return Err(PrepareError::MaxSeconds { seconds });
        }
        Ok(frames.floor() as usize * HOP)
    }
}

/// Why a recording cannot be encoded.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum PrepareError {
    /// No channel, or channels of different lengths.
    #[error("{}", if *channels == 0 {
        "audio without channels; at least one is needed".to_owned()
    } else {
        format!("{channels} channels of different lengths; they must be equal")
    })]
    Channels {
        /// How many there are.
        channels: usize,
    },
    /// A rate that cannot be converted.
    #[error(transparent)]
    Rate(#[from] ResampleError),
    /// A sample that is NaN or infinite.
    #[error("sample {sample} ({seconds:.2} s) is {value}; only finite samples can be encoded")]
    NotFinite {
        /// Its place in its channel, from 0.
        sample: usize,
        /// Where that is.
        seconds: f64,
        /// Its value.
        value: f32,
    },
    /// Samples too large to average or to resample.
    #[error(
        "samples of up to {peak:e} overflow on the way to {SAMPLE_RATE} Hz; scale the audio to full scale 1"
    )]
    TooLoud {
        /// The largest magnitude given.
        peak: f32,
    },
    /// Shorter than [`MIN_SECONDS`].
    #[error(
        "the audio lasts {:.4} s; at least {MIN_SECONDS} s are needed",
        // Down, so that what is too short never reads as long enough.
        (seconds * 1e4).floor() / 1e4
    )]
    TooShort {
        /// Its length.
        seconds: f64,
    },
    /// Every sample is the same.
    #[error("the audio is silent (every sample is {level}); there is nothing to encode")]
    Silent {
        /// That sample.
        level: f32,
    },
    /// Channels that are each other's opposite, so that their mean is silent.
    #[error(
        "the {channels} channels of the audio cancel each other, so that their mean is silent (one of them is turned \
         upside down); give a file of one of them"
    )]
    Cancels {
        /// How many.
        channels: usize,
    },
    /// A limit of no frame or above [`MAX_SECONDS`].
    #[error(
        "{seconds} s asked for at most; expected a frame, {:.4} s, to {MAX_SECONDS} s",
        HOP as f64 / f64::from(SAMPLE_RATE)
    )]
    MaxSeconds {
        /// What was asked for.
        seconds: f64,
    },
}

/// Audio of any rate, `[channels][samples]`, to mono audio at [`SAMPLE_RATE`]: channels averaged,
/// resampled ([`ResampleRecipe::Functional`]), divided by the peak if that exceeds 1 (unless the
/// options say otherwise), cut to the whole frames within `max_seconds`. A clip that is not cut keeps
/// the part of a frame that it ends with.
///
/// Source: the codec's public description, `prepare_audio`.
///
/// ```
/// use zonos_zac::{PrepareOptions, prepare_audio};
///
/// let tone: Vec<f32> = (0..48_000).map(|i| 1.5 * (i as f32 * 0.05).sin()).collect();
/// let audio = prepare_audio(&[tone.clone(), tone], 48_000, &PrepareOptions::default())?;
/// assert_eq!((audio.sample_rate(), audio.len(), audio.peak()), (44_100, 44_100, 1.0));
/// # Ok::<(), zonos_zac::PrepareError>(())
/// ```
///
/// # Errors
/// [`PrepareError`] says which of its cases it is.
pub fn prepare_audio<C: AsRef<[f32]>>(
    channels: &[C],
    rate: u32,
    options: &PrepareOptions,
) -> Result<Waveform, PrepareError> {
    let keep = options.max_samples()?;
    let mono = average(channels, rate)?;
    let resampler = Resampler::new(rate, SAMPLE_RATE, ResampleRecipe::Functional)?;
    let seconds = mono.len() as f64 / f64::from(rate);
    if resampler.output_len(mono.len()) < (MIN_SECONDS * f64::from(SAMPLE_RATE)) as usize {
        return Err(PrepareError::TooShort { seconds });
    }
    if is_constant(&mono) {
        if channels.iter().any(|c| !is_constant(c.as_ref())) {
            return Err(PrepareError::Cancels {
                channels: channels.len(),
            });
        }
        return Err(PrepareError::Silent { level: mono[0] });
    }
    let mut samples = if rate == SAMPLE_RATE {
        mono
    } else {
        resampler.resample(&mono)
    };
    let peak = samples.iter().fold(0.0f32, |m, x| m.max(x.abs()));
    if !peak.is_finite() || samples.iter().any(|x| x.is_nan()) {
        return Err(too_loud(channels));
    }
    if options.peak_normalize && peak > 1.0 {
        for x in &mut samples {
            *x /= peak;
        }
    }
    samples.truncate(keep);
    Ok(Waveform::new(samples, SAMPLE_RATE))
}

/// Whether every sample is the same, and there is one.
fn is_constant(samples: &[f32]) -> bool {
    matches!(samples, [level, rest @ ..] if rest.iter().all(|x| x == level))
}

/// The mean of the channels, all of them finite and equally long.
fn average<C: AsRef<[f32]>>(channels: &[C], rate: u32) -> Result<Vec<f32>, PrepareError> {
    let [first, others @ ..] = channels else {
        return Err(PrepareError::Channels { channels: 0 });
    };
    let first = first.as_ref();
    if others.iter().any(|c| c.as_ref().len() != first.len()) {
        return Err(PrepareError::Channels {
            channels: channels.len(),
        });
    }
    for channel in channels {
        let channel = channel.as_ref();
        if let Some(sample) = channel.iter().position(|x| !x.is_finite()) {
            return Err(PrepareError::NotFinite {
                sample,
                seconds: sample as f64 / f64::from(rate.max(1)),
                value: channel[sample],
            });
        }
    }
    if others.is_empty() {
        return Ok(first.to_vec());
    }
    let count = channels.len() as f64;
    let mean = |i: usize| {
        let sum: f64 = channels.iter().map(|c| f64::from(c.as_ref()[i])).sum();
        (sum / count) as f32
    };
    Ok((0..first.len()).map(mean).collect())
}

fn too_loud<C: AsRef<[f32]>>(channels: &[C]) -> PrepareError {
    let samples = channels.iter().flat_map(|c| c.as_ref());
    PrepareError::TooLoud {
        peak: samples.fold(0.0, |m, x| m.max(x.abs())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tone(len: usize, level: f32) -> Vec<f32> {
        (0..len).map(|i| level * (i as f32 * 0.07).sin()).collect()
    }

    fn prepare(samples: Vec<f32>, rate: u32, max_seconds: f64) -> Result<Waveform, PrepareError> {
        let options = PrepareOptions {
            max_seconds,
            ..PrepareOptions::default()
        };
        prepare_audio(&[samples], rate, &options)
    }

    #[test]
    fn only_peaks_above_one_are_divided_by() {
        let quiet = prepare(tone(44_100, 0.5), 44_100, 600.0).unwrap();
        assert_eq!(quiet.samples(), tone(44_100, 0.5));
        let loud = prepare(tone(44_100, 3.0), 44_100, 600.0).unwrap();
        assert_eq!(loud.peak(), 1.0);
        let options = PrepareOptions {
            peak_normalize: false,
            ..PrepareOptions::default()
        };
        let raw = prepare_audio(&[tone(44_100, 3.0)], 44_100, &options).unwrap();
        assert_eq!(raw.samples(), tone(44_100, 3.0));
    }

    #[test]
    fn channels_are_averaged() {
        let (a, b) = (tone(30_000, 0.8), vec![0.25; 30_000]);
        let both = prepare_audio(&[a.clone(), b], 44_100, &PrepareOptions::default()).unwrap();
        for (y, x) in both.samples().iter().zip(a) {
            assert!((y - (x + 0.25) / 2.0).abs() < 1e-7);
        }
        let none: [Vec<f32>; 0] = [];
        let error = prepare_audio(&none, 44_100, &PrepareOptions::default()).unwrap_err();
        assert_eq!(error, PrepareError::Channels { channels: 0 });
        let ragged = [tone(30_000, 0.1), tone(30_001, 0.1)];
        let error = prepare_audio(&ragged, 44_100, &PrepareOptions::default()).unwrap_err();
        assert_eq!(error, PrepareError::Channels { channels: 2 });
    }

    /// Cut on whole frames; uncut clips keep their end.
    #[test]
    fn cuts_are_on_whole_frames() {
        let long = |seconds| prepare(tone(100_000, 0.3), 44_100, seconds).unwrap().len();
        assert_eq!(long(600.0), 100_000);
        assert_eq!(long(1.33), 19 * HOP);
        assert_eq!(long(1.0), 15 * HOP);
        // A frame lasts 1/15 s.
        assert_eq!(long(0.067), HOP);
        // 34.01 frames are there, 35 would fit.
        assert_eq!(long(2.34), 100_000);
        for seconds in [0.0, 0.06, -1.0, 600.1, f64::NAN, f64::INFINITY] {
            let error = prepare(tone(100_000, 0.3), 44_100, seconds).unwrap_err();
            assert!(
                matches!(error, PrepareError::MaxSeconds { .. }),
                "{seconds}"
            );
        }
    }

    #[test]
    fn half_a_second_is_the_least() {
        assert!(prepare(tone(22_050, 0.3), 44_100, 600.0).is_ok());
        assert!(prepare(tone(8000, 0.3), 16_000, 600.0).is_ok());
        for (len, rate) in [(0, 44_100), (1, 8000), (22_049, 44_100), (7999, 16_000)] {
            let error = prepare(tone(len, 0.3), rate, 600.0).unwrap_err();
            assert!(matches!(error, PrepareError::TooShort { .. }), "{len}");
            let text = error.to_string();
            assert!(text.contains("0.5 s") && !text.contains("0.500"), "{text}");
        }
    }

    #[test]
    fn silence_and_no_numbers_are_named() {
        for level in [0.0, -0.25] {
            let error = prepare(vec![level; 44_100], 44_100, 600.0).unwrap_err();
            assert_eq!(error, PrepareError::Silent { level });
        }
        // Channels that cancel are no silence.
        let (left, right) = (tone(44_100, 0.3), tone(44_100, -0.3));
        let options = PrepareOptions::default();
        let error = prepare_audio(&[left, right], 44_100, &options).unwrap_err();
        assert_eq!(error, PrepareError::Cancels { channels: 2 });
        let flat = [vec![0.25; 44_100], vec![-0.25; 44_100]];
        let error = prepare_audio(&flat, 44_100, &options).unwrap_err();
        assert_eq!(error, PrepareError::Silent { level: 0.0 });
        // However quiet, sound is sound.
        assert!(prepare(tone(44_100, 1e-6), 44_100, 600.0).is_ok());
        for bad in [f32::NAN, f32::NEG_INFINITY] {
            let mut samples = tone(44_100, 0.3);
            samples[22_050] = bad;
            let error = prepare(samples, 44_100, 600.0).unwrap_err();
            let text = error.to_string();
            assert!(text.contains("22050") && text.contains("0.50 s"), "{text}");
        }
        let error = prepare(tone(44_100, 3e38), 48_000, 600.0);
        assert!(
            error.is_ok() || matches!(error, Err(PrepareError::TooLoud { .. })),
            "{error:?}"
        );
        assert!(matches!(
            prepare(tone(44_100, 0.3), 0, 600.0),
            Err(PrepareError::Rate(_))
        ));
    }
}
