//! The decoding schedule of the original streaming server.
//!
//! It decodes in chunks of 16 frames, each with the 4 frames before it, and cross-fades the 4
//! frames both chunks have. This is cheaper than decoding with full context and not equal to
//! it; it is here for services that must send chunks of the same sizes at the same times.

/// One call of the codec.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecodeCall {
    /// First aligned frame to decode.
    pub start: usize,
    /// One past the last; equal to `start` when there is nothing to decode and only the held
    /// samples are sent.
    pub stop: usize,
    /// Leading frames that were decoded before and are cross-faded with the held samples.
    pub overlap: usize,
    /// Generated (delayed) rows the call needs, first and one past the last.
    pub raw: (usize, usize),
    /// Samples to send.
    pub emit: usize,
    /// Samples to hold back for the next cross-fade.
    pub held: usize,
}

/// Decides after each generated frame what to decode.
///
/// ```
/// let mut plan = zonos2::StreamPlan::new(9);
/// let first = (0..24).filter_map(|_| plan.push(false, None)).next().unwrap();
/// assert_eq!((first.stop, first.emit, first.held), (16, 6144, 2048));
/// ```
#[derive(Debug, Clone)]
pub struct StreamPlan {
    delay: usize,
    chunk: usize,
    overlap: usize,
    hop: usize,
    frames: usize,
    decoded: usize,
    eos_frame: Option<usize>,
    tail: usize,
}

impl StreamPlan {
    /// The original's schedule: chunks of 16 frames, overlap of 4, 512 samples a frame.
    pub fn new(codebooks: usize) -> Self {
        Self::with(codebooks, 16, 4, 512)
    }

    /// Another chunk length and overlap, in frames, and samples a frame.
    pub fn with(codebooks: usize, chunk: usize, overlap: usize, hop: usize) -> Self {
        Self {
            delay: codebooks.saturating_sub(1),
            chunk: chunk.max(1),
            overlap,
            hop,
            frames: 0,
            decoded: 0,
            eos_frame: None,
            tail: 0,
        }
    }

    /// Counts one more generated frame; `finished` says that it is the last, `eos_frame` where the
    /// audio ends if that is known. Returns what to decode now, if anything.
    pub fn push(&mut self, finished: bool, eos_frame: Option<usize>) -> Option<DecodeCall> {
        self.frames += 1;
        self.eos_frame = eos_frame.or(self.eos_frame);
        let cut = |n: usize| self.eos_frame.map_or(n, |eos| n.min(eos));
        // Frames all of whose codebooks have arrived.
        let ready = cut(self.frames.saturating_sub(self.delay));
        if finished {
            // Without a single complete frame the original sends nothing at all.
            if ready <= self.decoded && self.tail == 0 {
                return None;
            }
        } else if ready < self.decoded + self.chunk {
            return None;
        }
        let stop = if finished { cut(self.frames) } else { ready };
        if stop <= self.decoded {
            if finished && self.tail > 0 {
                return Some(DecodeCall {
                    start: stop,
                    stop,
                    overlap: 0,
                    raw: (0, 0),
                    emit: std::mem::take(&mut self.tail),
                    held: 0,
                });
            }
            return None;
        }
        let overlap = self.overlap.min(self.decoded);
        let start = self.decoded - overlap;
        let samples = (stop - start) * self.hop;
        let held = if finished {
            0
        } else {
            samples.min(self.overlap * self.hop)
        };
        self.tail = held;
        self.decoded = stop;
        Some(DecodeCall {
            start,
            stop,
            overlap,
            raw: (start, (stop + self.delay).min(self.frames)),
            emit: samples - held,
            held,
        })
    }
}

/// Weight of the new chunk at sample `i` of a cross-fade over `n` samples:
/// `0.5 (1 - cos(pi i / (n - 1)))`; the held samples get the rest.
pub fn crossfade_weight(i: usize, n: usize) -> f32 {
    if n <= 1 {
        return 0.0;
    }
    (0.5 * (1.0 - (std::f64::consts::PI * i as f64 / (n - 1) as f64).cos())) as f32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn weights_meet_both_ends() {
        assert_eq!((crossfade_weight(0, 5), crossfade_weight(4, 5)), (0.0, 1.0));
        assert!((crossfade_weight(2, 5) - 0.5).abs() < 1e-7);
        assert_eq!(crossfade_weight(0, 1), 0.0);
    }

    proptest! {
        #[test]
        fn every_sample_is_sent_once(frames in 9_usize..200, eos in 0_usize..250, known in 0_usize..200) {
            let mut plan = StreamPlan::new(9);
            let (mut sent, mut decoded, mut held) = (0, 0, 0);
            // As in a real run, the end is known at least 9 frames before the last frame.
            let eos = (eos + 9 < frames && known + 9 < frames && eos <= known).then_some(eos);
            for i in 0..frames {
                let told = eos.filter(|_| i >= known);
                if let Some(call) = plan.push(i + 1 == frames, told) {
                    prop_assert!(call.raw.1 <= i + 1);
                    sent += call.emit;
                    decoded = decoded.max(call.stop);
                    held = call.held;
                }
            }
            prop_assert_eq!(held, 0);
            // Cross-faded samples replace the held ones, so they count once.
            prop_assert_eq!(sent, decoded * 512);
        }
    }
}
