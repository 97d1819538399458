//! Whether a recording can serve as the reference of a voice.
//!
//! A speaker encoder gives a vector for anything, also for silence; what comes of it is not a voice.
//! Quiet speech is one: loudness is no reason to refuse a recording.

use crate::Waveform;
use crate::decode::Decoded;

/// Shortest reference, in seconds. A voice takes several; below this there is not even a word.
pub const MIN_SECONDS: f64 = 0.3;

/// Smallest distance between the lowest and the highest sample, 1 being half the full range: 7 steps of
/// a 16-bit file. The noise of a muted 16-bit input stays below it; speech at -55 dBFS lies 30 times
/// above.
pub const MIN_RANGE: f32 = 2e-4;

/// Largest magnitude of a sample, 1 being full scale: 60 dB above it. Files of floats may well exceed full
/// scale; what exceeds it by more is damage, or integers that were stored as floats, and no voice comes
/// of either.
pub const MAX_PEAK: f32 = 1e3;

/// Why a recording is no reference for a voice. Each message says what was found and what is needed.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum ReferenceError {
    /// No rate, so no length.
    #[error("the reference audio has a sample rate of 0 Hz")]
    NoRate,
    /// Samples that are NaN or infinite.
    #[error(
        "the reference audio holds samples that are not numbers ({count}, the first at {seconds:.2} s)"
    )]
    NotFinite {
        /// How many.
        count: usize,
        /// Where the first is.
        seconds: f64,
    },
    /// Shorter than [`MIN_SECONDS`].
    #[error(
        "the reference audio lasts {} s; at least {MIN_SECONDS} s are needed, and several seconds of speech are better",
        // Down, so that what is too short never reads as long enough.
        (seconds * 1e4).floor() / 1e4
    )]
    TooShort {
        /// Its length.
        seconds: f64,
    },
    /// A magnitude above [`MAX_PEAK`].
    #[error(
        "the reference audio is too loud: it peaks at {peak:.1e}, {:.0} dB above full scale, which is 1; bring its samples to between -1 and 1",
        20.0 * peak.log10()
    )]
    TooLoud {
        /// The largest magnitude.
        peak: f32,
    },
    /// Nothing to hear: a range below [`MIN_RANGE`].
    #[error("the reference audio is silent ({}); record speech, however quiet", span(*range))]
    Silent {
        /// From the lowest to the highest sample.
        range: f32,
    },
    /// Channels that are each other's opposite, so that their mean is silent.
    #[error(
        "the {channels} channels of the reference audio cancel each other, so that their mean is silent (one of them is turned upside down); give a file of one of them"
    )]
    Cancels {
        /// How many.
        channels: usize,
    },
}

fn span(range: f32) -> String {
    if range == 0.0 {
        return "all its samples are the same".to_owned();
    }
    format!("its samples span {range:.1e}; at least {MIN_RANGE:.1e} is needed")
}

/// Refuses audio that makes no voice: NaN or infinite samples, less than [`MIN_SECONDS`], levels beyond
/// [`MAX_PEAK`], silence (a constant is silence too). Everything else is accepted, quiet speech included.
///
/// ```
/// use zonos_audio::{Waveform, reference::check_reference};
///
/// let hum = |level: f32| (0..8000).map(|i| level * (i as f32 * 0.1).sin()).collect();
/// assert!(check_reference(&Waveform::new(hum(0.002), 16_000)).is_ok());
/// assert!(check_reference(&Waveform::new(hum(0.0), 16_000)).is_err());
/// ```
///
/// # Errors
/// [`ReferenceError`] says which of these it is.
pub fn check_reference(audio: &Waveform) -> Result<(), ReferenceError> {
    let rate = f64::from(audio.sample_rate());
    if rate == 0.0 {
        return Err(ReferenceError::NoRate);
    }
    let samples = audio.samples();
    if let Some(first) = samples.iter().position(|x| !x.is_finite()) {
        let count = samples.iter().filter(|x| !x.is_finite()).count();
        let seconds = first as f64 / rate;
        return Err(ReferenceError::NotFinite { count, seconds });
    }
    let seconds = audio.seconds();
    // In samples, so that a clip of exactly the least length is long enough.
    if (samples.len() as f64) < (MIN_SECONDS * rate).floor() {
        return Err(ReferenceError::TooShort { seconds });
    }
    let (low, high) = extremes(samples);
    let peak = high.max(-low);
    if peak > MAX_PEAK {
        return Err(ReferenceError::TooLoud { peak });
    }
    let range = high - low;
    if range < MIN_RANGE {
        return Err(ReferenceError::Silent { range });
    }
    Ok(())
}

/// The mean of a file's channels, as a reference that [`check_reference`] accepts.
///
/// # Errors
/// As [`check_reference`]; where the mean is silent and a channel is not, [`ReferenceError::Cancels`].
pub fn reference_of(decoded: Decoded) -> Result<Waveform, ReferenceError> {
    let mono = decoded.to_mono();
    match check_reference(&mono) {
        Ok(()) => Ok(mono),
        Err(ReferenceError::Silent { .. }) if decoded.channels.iter().any(|c| is_heard(c)) => {
            Err(ReferenceError::Cancels {
                channels: decoded.channels.len(),
            })
        }
        Err(error) => Err(error),
    }
}

fn is_heard(samples: &[f32]) -> bool {
    let (low, high) = extremes(samples);
    high - low >= MIN_RANGE
}

/// The lowest and the highest sample.
fn extremes(samples: &[f32]) -> (f32, f32) {
    let ends = (f32::INFINITY, f32::NEG_INFINITY);
    samples
        .iter()
        .fold(ends, |(low, high), &x| (low.min(x), high.max(x)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Noise of the given RMS level in dB.
    fn noise(dbfs: f32, len: usize) -> Vec<f32> {
        let mut state = 1u32;
        let scale = 10f32.powf(dbfs / 20.0) * 3f32.sqrt();
        let draw = |_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            scale * (state as f32 / (1u64 << 31) as f32 - 1.0)
        };
        (0..len).map(draw).collect()
    }

    fn check(samples: Vec<f32>) -> Result<(), ReferenceError> {
        check_reference(&Waveform::new(samples, 16_000))
    }

    #[test]
    fn quiet_sound_is_a_reference() {
        for dbfs in [0.0, -20.0, -55.0, -70.0] {
            assert_eq!(check(noise(dbfs, 80_000)), Ok(()), "{dbfs} dBFS");
        }
        // As long as the shortest, at a rate that 0.3 s do not fit evenly.
        let shortest = Waveform::new(noise(-20.0, 13_230), 44_100);
        assert_eq!(check_reference(&shortest), Ok(()));
        assert_eq!(
            check_reference(&Waveform::new(noise(-20.0, 3307), 11_025)),
            Ok(())
        );
    }

    #[test]
    fn silence_is_none() {
        for samples in [vec![0.0; 80_000], vec![0.25; 80_000], noise(-95.0, 80_000)] {
            assert!(matches!(check(samples), Err(ReferenceError::Silent { .. })));
        }
    }

    #[test]
    fn channels_that_cancel_are_not_called_silent() {
        let left = noise(-20.0, 80_000);
        let file = |right: Vec<f32>| Decoded {
            info: crate::decode::AudioInfo {
                container: "WAV",
                codec: "PCM",
                sample_rate: 16_000,
                channels: 2,
                bits_per_sample: None,
                frames: Some(80_000),
            },
            channels: vec![left.clone(), right],
            warnings: Vec::new(),
        };
        let opposite = left.iter().map(|x| -x).collect();
        let error = reference_of(file(opposite)).unwrap_err();
        assert_eq!(error, ReferenceError::Cancels { channels: 2 });
        let half: Vec<f32> = left.iter().map(|x| x / 2.0).collect();
        assert_eq!(
            reference_of(file(vec![0.0; 80_000])).unwrap().samples(),
            half
        );
        let mut silent = file(vec![0.0; 80_000]);
        silent.channels[0].fill(0.0);
        let text = reference_of(silent).unwrap_err().to_string();
        assert!(text.contains("all its samples are the same"), "{text}");
    }

    #[test]
    fn short_clips_and_no_numbers_are_refused_with_the_reason() {
        for len in [0, 1, 160, 4799] {
            let error = check(noise(-20.0, len)).unwrap_err();
            assert!(matches!(error, ReferenceError::TooShort { .. }), "{len}");
            assert!(error.to_string().contains("0.3 s"), "{error}");
        }
        // One sample short of it.
        let text = check(noise(-20.0, 4799)).unwrap_err().to_string();
        assert!(text.contains("lasts 0.2999 s"), "{text}");
        for bad in [f32::NAN, f32::INFINITY] {
            let mut samples = noise(-20.0, 80_000);
            samples[40_000] = bad;
            let error = check(samples).unwrap_err();
            assert!(matches!(error, ReferenceError::NotFinite { count: 1, .. }));
            assert!(error.to_string().contains("2.50 s"), "{error}");
        }
        for peak in [2e3, 1e19, 3e38] {
            let quiet = noise(0.0, 80_000).into_iter();
            let loud = quiet.map(|x| (x * peak).clamp(-peak, peak)).collect();
            let error = check(loud).unwrap_err();
            assert!(matches!(error, ReferenceError::TooLoud { .. }), "{error}");
            assert!(error.to_string().contains("above full scale"), "{error}");
        }
        let no_rate = Waveform::new(vec![0.5; 10], 0);
        assert_eq!(check_reference(&no_rate), Err(ReferenceError::NoRate));
    }
}
