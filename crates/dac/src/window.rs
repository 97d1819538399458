//! Which frames a range of samples depends on, and which samples a range of frames settles.
//!
//! Interval arithmetic through the decoder, stage by stage. Ranges are half-open and count from the
//! start of the signal.

use std::ops::Range;

use zonos_nn::Edges;

use crate::DacConfig;

/// Dilations of a block's three residual units.
pub(crate) const DILATIONS: [usize; 3] = [1, 3, 9];

/// Taps of all convolutions but the residual units' second.
pub(crate) const TAPS: usize = 7;

impl DacConfig {
    /// Samples that `frames` frames become. A little less than `frames * hop` when a rate is odd.
    ///
    /// ```
    /// # use zonos_dac::DacConfig;
    /// # let config: DacConfig = serde_json::from_str(r#"{"latent_dim": 1024, "decoder_dim": 1536,
    /// #   "decoder_rates": [8, 8, 4, 2], "n_codebooks": 9, "codebook_size": 1024,
    /// #   "codebook_dim": [8, 8, 8, 8, 8, 8, 8, 8, 8], "sample_rate": 44100}"#).unwrap();
    /// assert_eq!(config.decoded_len(3), 3 * 512);
    /// // Ten frames of context on either side:
    /// assert_eq!(config.frames_needed(20 * 512..21 * 512), 10..31);
    /// ```
    pub fn decoded_len(&self, frames: usize) -> usize {
        self.decoded_span(0..frames, Edges::WHOLE).len()
    }

    /// The frames that samples `samples` depend on, not clipped at the end of the signal.
    pub fn frames_needed(&self, samples: Range<usize>) -> Range<usize> {
        let (mut from, mut to) = (samples.start as i64, samples.end as i64);
        let widen = |from: &mut i64, to: &mut i64, by: usize| {
            *from -= by as i64;
            *to += by as i64;
        };
        widen(&mut from, &mut to, TAPS / 2);
        for &rate in self.decoder_rates.iter().rev() {
            for dilation in DILATIONS {
                widen(&mut from, &mut to, dilation * (TAPS / 2));
            }
            // Output n takes the inputs i with 0 <= n + trim - i rate < 2 rate.
            let (rate, trim) = (rate as i64, rate.div_ceil(2) as i64);
            from = (from + trim).div_euclid(rate) - 1;
            to = (to - 1 + trim).div_euclid(rate) + 1;
        }
        widen(&mut from, &mut to, TAPS / 2);
        from.max(0) as usize..to.max(0) as usize
    }

    /// The samples that frames `frames` settle: all that depend on no frame outside, `edges` saying
    /// where the signal ends. What the decoder returns for these frames are exactly these samples.
    /// Empty if the range is too short to settle any.
    pub fn decoded_span(&self, frames: Range<usize>, edges: Edges) -> Range<usize> {
        let (mut from, mut to) = (frames.start as i64, frames.end as i64);
        let narrow = |from: &mut i64, to: &mut i64, by: usize| {
            let (start, end) = edges.choose(0, by);
            *from += start as i64;
            *to -= end as i64;
        };
        narrow(&mut from, &mut to, TAPS / 2);
        for &rate in &self.decoder_rates {
            if from >= to {
                break;
            }
            let (cut_start, cut_end) = edges.choose(rate.div_ceil(2), rate);
            let (rate, trim) = (rate as i64, rate.div_ceil(2) as i64);
            (from, to) = (
                from * rate + cut_start as i64 - trim,
                (to + 1) * rate - cut_end as i64 - trim,
            );
            for dilation in DILATIONS {
                narrow(&mut from, &mut to, dilation * (TAPS / 2));
            }
        }
        narrow(&mut from, &mut to, TAPS / 2);
        let from = from.max(0) as usize;
        from..(to.max(0) as usize).max(from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn config(rates: &[usize]) -> DacConfig {
        DacConfig {
            latent_dim: 8,
            decoder_dim: 32,
            decoder_rates: rates.to_vec(),
            n_codebooks: 1,
            codebook_size: 4,
            codebook_dim: vec![4],
            sample_rate: 44_100,
        }
    }

    /// Lengths and contexts that the reference implementation printed.
    #[test]
    fn published_numbers() {
        let real = config(&[8, 8, 4, 2]);
        assert_eq!(real.frames_needed(100 * 512..101 * 512), 90..111);
        assert_eq!(real.decoded_len(64), 64 * 512);
        let odd = config(&[2, 3, 2]);
        assert_eq!(odd.frames_needed(100 * 12..101 * 12), 66..135);
        for (frames, samples) in [(1, 10), (2, 22), (8, 94), (64, 766), (100, 1198)] {
            assert_eq!(odd.decoded_len(frames), samples);
        }
    }

    proptest! {
        /// The two computations are inverse: the frames that samples need settle them, and no
        /// shorter range does.
        #[test]
        fn needed_frames_are_enough_and_not_more(
            rates in prop::collection::vec(1usize..9, 1..5),
            start in 0usize..3000,
            len in 1usize..500,
        ) {
            let config = config(&rates);
            let samples = start..start + len;
            let frames = config.frames_needed(samples.clone());
            let settled = |frames: Range<usize>| {
                let edges = Edges { start: frames.start == 0, end: false };
                let span = config.decoded_span(frames, edges);
                span.start <= samples.start && samples.end <= span.end
            };
            prop_assert!(settled(frames.clone()));
            prop_assert!(!settled(frames.start..frames.end - 1));
            if frames.start > 0 {
                prop_assert!(!settled(frames.start + 1..frames.end));
            }
        }
    }
}
