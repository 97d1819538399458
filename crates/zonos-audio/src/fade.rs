//! Fade-out: half a cosine over the last milliseconds, down to exactly zero.
//!
//! The gain of sample `i` of the last `n` is `0.5 (1 + cos(pi i / (n - 1)))`: it starts at 1, ends
//! at 0, and a fade of one sample leaves it alone. This is the curve of the original Python server.

use std::f64::consts::PI;

/// Samples a fade of `ms` milliseconds covers at `sample_rate`; none for zero, negative or NaN.
pub fn fade_length(ms: f64, sample_rate: u32) -> usize {
    if ms > 0.0 {
        // Truncates like the original; the cast saturates for absurd lengths.
        (f64::from(sample_rate) * ms / 1000.0) as usize
    } else {
        0
    }
}

/// Gain of sample `i` in a fade over `n` samples.
pub fn fade_gain(i: usize, n: usize) -> f32 {
    if n <= 1 {
        return 1.0;
    }
    if i + 1 >= n {
        return 0.0;
    }
    (0.5 * (1.0 + (PI * i as f64 / (n - 1) as f64).cos())) as f32
}

/// Fades the last `ms` milliseconds of `samples` in place; all of them when there are fewer.
pub fn fade_out(samples: &mut [f32], ms: f64, sample_rate: u32) {
    let n = fade_length(ms, sample_rate).min(samples.len());
    let start = samples.len() - n;
    fade_all(&mut samples[start..]);
}

fn fade_all(tail: &mut [f32]) {
    let n = tail.len();
    for (i, x) in tail.iter_mut().enumerate() {
        *x *= fade_gain(i, n);
    }
}

/// The fade-out of a stream whose end is not known in advance.
///
/// It holds back as many samples as the fade covers, and fades them when the stream ends. The
/// chunks joined are bit-equal to [`fade_out`] of the whole.
///
/// ```
/// use zonos_audio::{FadeOut, fade::fade_out};
/// let mut whole = vec![1.0_f32; 100];
/// fade_out(&mut whole, 1.0, 44_100);
///
/// let mut fade = FadeOut::new(1.0, 44_100);
/// let mut joined = Vec::new();
/// for chunk in vec![1.0_f32; 100].chunks(7) {
///     fade.push(chunk, &mut joined);
/// }
/// fade.finish(&mut joined);
/// assert_eq!(joined, whole);
/// ```
#[derive(Debug, Clone)]
pub struct FadeOut {
    length: usize,
    held: Vec<f32>,
}

impl FadeOut {
    /// A fade over the last `ms` milliseconds; nothing is held back when that is no sample.
    pub fn new(ms: f64, sample_rate: u32) -> Self {
        Self {
            length: fade_length(ms, sample_rate),
            held: Vec::new(),
        }
    }

    /// Takes the next samples and appends to `out` those that cannot be part of the fade.
    pub fn push(&mut self, samples: &[f32], out: &mut Vec<f32>) {
        let ready = (self.held.len() + samples.len()).saturating_sub(self.length);
        let old = ready.min(self.held.len());
        out.extend_from_slice(&self.held[..old]);
        self.held.drain(..old);
        let (now, later) = samples.split_at(ready - old);
        out.extend_from_slice(now);
        self.held.extend_from_slice(later);
    }

    /// Fades what is held back and appends it to `out`.
    pub fn finish(mut self, out: &mut Vec<f32>) {
        fade_all(&mut self.held);
        out.append(&mut self.held);
    }

    /// Samples held back now.
    pub fn held(&self) -> usize {
        self.held.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lengths() {
        assert_eq!(fade_length(10.0, 44_100), 441);
        assert_eq!(fade_length(0.05, 44_100), 2);
        assert_eq!(fade_length(0.0, 44_100), 0);
        assert_eq!(fade_length(-3.0, 44_100), 0);
        assert_eq!(fade_length(f64::NAN, 44_100), 0);
        assert_eq!(fade_length(f64::INFINITY, 44_100), usize::MAX);
    }

    #[test]
    fn ends() {
        assert_eq!(fade_gain(0, 1), 1.0);
        assert_eq!((fade_gain(0, 2), fade_gain(1, 2)), (1.0, 0.0));
        assert_eq!(fade_gain(440, 441), 0.0);
        assert!((fade_gain(220, 441) - 0.5).abs() < 6e-8);
        let mut short = [1.0_f32; 3];
        fade_out(&mut short, 1e9, 44_100);
        assert_eq!(short[0], 1.0);
        assert!((short[1] - 0.5).abs() < 6e-8);
        assert_eq!(short[2], 0.0);
        fade_out(&mut [], 10.0, 44_100);
    }

    proptest! {
        #[test]
        fn streamed_equals_whole(
            samples in prop::collection::vec(-1.0_f32..1.0, 0..300),
            cuts in prop::collection::vec(0_usize..60, 0..20),
            ms in 0.0_f64..8.0,
        ) {
            let mut whole = samples.clone();
            fade_out(&mut whole, ms, 22_050);
            let mut fade = FadeOut::new(ms, 22_050);
            let (mut joined, mut rest) = (Vec::new(), samples.as_slice());
            for cut in cuts {
                let (now, later) = rest.split_at(cut.min(rest.len()));
                fade.push(now, &mut joined);
                prop_assert!(fade.held() <= fade_length(ms, 22_050));
                rest = later;
            }
            fade.push(rest, &mut joined);
            fade.finish(&mut joined);
            prop_assert_eq!(joined, whole);
        }
    }
}
