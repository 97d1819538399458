//! Whether a recording can serve as the reference of a voice.
//!
//! A speaker encoder gives a vector for anything, also for silence; what comes of it is not a voice.
//! Quiet speech is one: loudness is no reason to refuse a recording.

use crate::Waveform;

/// Shortest reference, in seconds. A voice takes several; below this there is not even a word.
pub const MIN_SECONDS: f64 = 0.3;

/// Smallest distance between the lowest and the highest sample, 1 being half the full range: 7 steps of
/// a 16-bit file. The noise of a muted 16-bit input stays below it; speech at -55 dBFS lies 30 times
/// above.
pub const MIN_RANGE: f32 = 2e-4;

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
        "the reference audio lasts {seconds:.2} s; at least {MIN_SECONDS} s are needed, and several seconds of speech are better"
    )]
    TooShort {
        /// Its length.
        seconds: f64,
    },
    /// Nothing to hear: a range below [`MIN_RANGE`].
    #[error(
        "the reference audio is silent (its samples span {range:.1e}; at least {MIN_RANGE:.1e} is needed); record speech, however quiet"
    )]
    Silent {
        /// From the lowest to the highest sample.
        range: f32,
    },
}

/// Refuses audio that makes no voice: NaN or infinite samples, less than [`MIN_SECONDS`], silence (a
/// constant is silence too). Everything else is accepted, quiet speech included.
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
    let (low, high) = samples
        .iter()
        .fold((f32::INFINITY, f32::NEG_INFINITY), |(low, high), &x| {
            (low.min(x), high.max(x))
        });
    let range = high - low;
    if range < MIN_RANGE {
        return Err(ReferenceError::Silent { range });
    }
    Ok(())
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
    fn short_clips_and_no_numbers_are_refused_with_the_reason() {
        for len in [0, 1, 160, 4799] {
            let error = check(noise(-20.0, len)).unwrap_err();
            assert!(matches!(error, ReferenceError::TooShort { .. }), "{len}");
            assert!(error.to_string().contains("0.3 s"), "{error}");
        }
        for bad in [f32::NAN, f32::INFINITY] {
            let mut samples = noise(-20.0, 80_000);
            samples[40_000] = bad;
            let error = check(samples).unwrap_err();
            assert!(matches!(error, ReferenceError::NotFinite { count: 1, .. }));
            assert!(error.to_string().contains("2.50 s"), "{error}");
        }
        let no_rate = Waveform::new(vec![0.5; 10], 0);
        assert_eq!(check_reference(&no_rate), Err(ReferenceError::NoRate));
    }
}
