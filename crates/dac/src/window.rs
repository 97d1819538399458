//! Which frames a range of samples depends on, and which samples a range of frames settles; for the
//! encoder the same the other way round.
//!
//! Interval arithmetic through the layers, stage by stage. Ranges are half-open and count from the
//! start of the signal.

use std::ops::Range;

use zonos_nn::Edges;

use crate::{DacConfig, EncoderConfig};

/// Dilations of a block's three residual units.
pub(crate) const DILATIONS: [usize; 3] = [1, 3, 9];

/// Taps of all convolutions but the residual units' second, those that change the rate, and the
/// encoder's last.
pub(crate) const TAPS: usize = 7;

/// Taps of the encoder's last convolution.
pub(crate) const LAST_TAPS: usize = 3;

/// A range of positions at some stage; may reach beyond the signal.
#[derive(Clone, Copy)]
struct Span {
    from: i64,
    to: i64,
}

impl Span {
    fn of(range: Range<usize>) -> Self {
        Self {
            from: range.start as i64,
            to: range.end as i64,
        }
    }

    fn widen(&mut self, by: usize) {
        self.from -= by as i64;
        self.to += by as i64;
    }

    /// By as much as a convolution takes off at ends inside the signal.
    fn narrow(&mut self, by: usize, edges: Edges) {
        let (start, end) = edges.choose(0, by);
        self.from += start as i64;
        self.to -= end as i64;
    }

    /// What lies behind the signal's start; nothing when there is nothing.
    fn clipped(self) -> Range<usize> {
        let from = self.from.max(0) as usize;
        from..(self.to.max(0) as usize).max(from)
    }
}

impl EncoderConfig {
    /// Samples that become a frame: the product of the rates.
    pub fn hop(&self) -> usize {
        self.rates.iter().product()
    }

    /// The least multiple of the hop that `samples` fit in.
    pub fn padded_len(&self, samples: usize) -> usize {
        samples.next_multiple_of(self.hop())
    }

    /// Frames that `samples` samples become, the last of them filled up.
    ///
    /// ```
    /// # use zonos_dac::EncoderConfig;
    /// let encoder = EncoderConfig { dim: 64, rates: vec![2, 4, 8, 8] };
    /// assert_eq!(encoder.encoded_len(1025), 3);
    /// // 3733 samples of context on either side:
    /// assert_eq!(encoder.samples_needed(10..11), 10 * 512 - 3733..11 * 512 + 3733);
    /// ```
    pub fn encoded_len(&self, samples: usize) -> usize {
        self.encoded_span(0..self.padded_len(samples), Edges::WHOLE)
            .len()
    }

    /// The samples that frames `frames` depend on, not clipped at the end of the signal.
    pub fn samples_needed(&self, frames: Range<usize>) -> Range<usize> {
        let mut span = Span::of(frames);
        span.widen(LAST_TAPS / 2);
        for &rate in self.rates.iter().rev() {
            // Output n takes the inputs n rate - padding .. n rate - padding + 2 rate.
            let (rate, padding) = (rate as i64, rate.div_ceil(2) as i64);
            span.from = span.from * rate - padding;
            span.to = (span.to + 1) * rate - padding;
            for dilation in DILATIONS {
                span.widen(dilation * (TAPS / 2));
            }
        }
        span.widen(TAPS / 2);
        span.clipped()
    }

    /// The frames that samples `samples` settle: all that depend on no sample outside, `edges` saying
    /// where the signal, a multiple of the hop long, begins and ends. What the encoder returns for
    /// these samples are exactly these frames. Empty if the range is too short to settle any.
    pub fn encoded_span(&self, samples: Range<usize>, edges: Edges) -> Range<usize> {
        let mut span = Span::of(samples);
        span.narrow(TAPS / 2, edges);
        for &rate in &self.rates {
            for dilation in DILATIONS {
                span.narrow(dilation * (TAPS / 2), edges);
            }
            let (rate, padding) = (rate as i64, rate.div_ceil(2) as i64);
            if !edges.start {
                // Rounded up: the first output all of whose inputs are there.
                span.from = -(-(span.from + padding)).div_euclid(rate);
            }
            let behind = if edges.end { padding } else { 0 };
            span.to = (span.to + padding + behind - 2 * rate).div_euclid(rate) + 1;
        }
        span.narrow(LAST_TAPS / 2, edges);
        span.clipped()
    }
}

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
        let mut span = Span::of(samples);
        span.widen(TAPS / 2);
        for &rate in self.decoder_rates.iter().rev() {
            for dilation in DILATIONS {
                span.widen(dilation * (TAPS / 2));
            }
            // Output n takes the inputs i with 0 <= n + trim - i rate < 2 rate.
            let (rate, trim) = (rate as i64, rate.div_ceil(2) as i64);
            span.from = (span.from + trim).div_euclid(rate) - 1;
            span.to = (span.to - 1 + trim).div_euclid(rate) + 1;
        }
        span.widen(TAPS / 2);
        span.clipped()
    }

    /// The samples that frames `frames` settle: all that depend on no frame outside, `edges` saying
    /// where the signal ends. What the decoder returns for these frames are exactly these samples.
    /// Empty if the range is too short to settle any.
    pub fn decoded_span(&self, frames: Range<usize>, edges: Edges) -> Range<usize> {
        let mut span = Span::of(frames);
        span.narrow(TAPS / 2, edges);
        for &rate in &self.decoder_rates {
            if span.from >= span.to {
                break;
            }
            let (cut_start, cut_end) = edges.choose(rate.div_ceil(2), rate);
            let (rate, trim) = (rate as i64, rate.div_ceil(2) as i64);
            span.from = span.from * rate + cut_start as i64 - trim;
            span.to = (span.to + 1) * rate - cut_end as i64 - trim;
            for dilation in DILATIONS {
                span.narrow(dilation * (TAPS / 2), edges);
            }
        }
        span.narrow(TAPS / 2, edges);
        span.clipped()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn config(rates: &[usize]) -> DacConfig {
        DacConfig {
            encoder: None,
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

    /// Lengths that the reference implementation printed, and its receptive field.
    #[test]
    fn published_numbers_of_the_encoder() {
        let encoder = |rates: &[usize]| EncoderConfig {
            dim: 4,
            rates: rates.to_vec(),
        };
        let real = encoder(&[2, 4, 8, 8]);
        assert_eq!(real.samples_needed(100..101), 51_200 - 3733..51_200 + 4245);
        for (samples, frames) in [(1, 1), (512, 1), (513, 2), (8999, 18)] {
            assert_eq!(real.encoded_len(samples), frames);
        }
        assert_eq!(encoder(&[2, 4, 5, 8]).encoded_len(5543), 18);
        assert_eq!(encoder(&[2, 3, 2]).encoded_len(1195), 100);
    }

    proptest! {
        /// As for the decoder below. The end of the signal settles all of its frames.
        #[test]
        fn needed_samples_are_enough_and_not_more(
            rates in prop::collection::vec(2usize..9, 1..5),
            start in 0usize..60,
            len in 1usize..20,
        ) {
            let encoder = EncoderConfig { dim: 1, rates };
            let frames = start..start + len;
            let samples = encoder.samples_needed(frames.clone());
            let settled = |samples: Range<usize>| {
                let edges = Edges { start: samples.start == 0, end: false };
                let span = encoder.encoded_span(samples, edges);
                span.start <= frames.start && frames.end <= span.end
            };
            prop_assert!(settled(samples.clone()));
            prop_assert!(!settled(samples.start..samples.end - 1));
            if samples.start > 0 {
                let edges = Edges { start: false, end: false };
                // The window begins with the first frame exactly.
                prop_assert_eq!(encoder.encoded_span(samples.clone(), edges), frames.clone());
                prop_assert!(!settled(samples.start + 1..samples.end));
            }
            let whole = frames.end * encoder.hop();
            prop_assert_eq!(encoder.encoded_len(whole), frames.end);
            let edges = Edges { start: samples.start == 0, end: true };
            let end = encoder.encoded_span(samples.start..whole.max(samples.start), edges);
            prop_assert!(whole <= samples.start || end.end == frames.end);
        }

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
