//! Bounds on generations that do not end by themselves.
//!
//! A language model now and then misses its end-of-audio id. Two bounds keep such a run short: one
//! that grows with the text, and one on a frame that repeats. Neither is part of the bare
//! generation loop; whoever drives it decides.

use crate::eos::EndReason;

/// Frames a second, rounded up where it counts: 44100 / 512.
pub const FRAME_RATE: f64 = 44_100.0 / 512.0;

/// Bounds on the length of the audio. The default allows 24 frames a byte of text (slow speech
/// reaches 11), at least 260 frames, and 8 seconds of one and the same frame.
///
/// ```
/// use zonos2::{EndReason, Limits};
/// let limits = Limits::default();
/// assert_eq!(limits.frame_cap(5, None, 6000), (260, EndReason::TextBound));
/// assert_eq!(limits.frame_cap(100, None, 6000), (2400, EndReason::TextBound));
/// assert_eq!(limits.frame_cap(100, Some(50), 6000), (50, EndReason::FrameLimit));
/// assert_eq!(limits.frame_cap(1000, None, 6000), (6000, EndReason::Context));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Frames allowed for each UTF-8 byte of text; `None` for no bound by text.
    pub frames_per_byte: Option<usize>,
    /// Frames allowed however short the text is.
    pub frame_floor: usize,
    /// Identical frames in a row after which a generation is stopped; `None` for never.
    pub loop_frames: Option<usize>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            frames_per_byte: Some(24),
            frame_floor: 260,
            loop_frames: Some(seconds_to_frames(8.0)),
        }
    }
}

impl Limits {
    /// No bound by text and no loop breaker.
    pub fn none() -> Self {
        Self {
            frames_per_byte: None,
            frame_floor: 0,
            loop_frames: None,
        }
    }

    /// The bound for a text of `text_bytes` bytes, `None` when it is off.
    pub fn text_bound(&self, text_bytes: usize) -> Option<usize> {
        self.frames_per_byte
            .map(|n| n.saturating_mul(text_bytes).max(self.frame_floor))
    }

    /// The smallest of the text bound, the caller's limit and the positions left, and which it is.
    /// Of equal ones the caller's limit is named first, then the positions.
    pub fn frame_cap(
        &self,
        text_bytes: usize,
        max_frames: Option<usize>,
        positions_left: usize,
    ) -> (usize, EndReason) {
        [
            (max_frames, EndReason::FrameLimit),
            (Some(positions_left), EndReason::Context),
            (self.text_bound(text_bytes), EndReason::TextBound),
        ]
        .into_iter()
        .filter_map(|(frames, reason)| Some((frames?, reason)))
        // The first of equal ones wins.
        .min_by_key(|&(frames, _)| frames)
        .unwrap_or((positions_left, EndReason::Context))
    }

    /// A loop breaker with these settings.
    pub fn loop_breaker(&self) -> LoopBreaker {
        LoopBreaker::new(self.loop_frames)
    }
}

/// Frames in `seconds` of audio, rounded to the nearest; 0 for negative or NaN.
pub fn seconds_to_frames(seconds: f64) -> usize {
    (seconds * FRAME_RATE).round().max(0.0) as usize
}

/// Notices that a generation repeats one frame.
///
/// Only whole frames count: some codebooks standing still is ordinary in quiet passages, all of
/// them for seconds is not.
#[derive(Debug, Clone)]
pub struct LoopBreaker {
    limit: Option<usize>,
    last: Vec<i32>,
    run: usize,
}

impl LoopBreaker {
    /// Stops after `limit` identical frames in a row; `None` never stops, 0 counts as 1.
    pub fn new(limit: Option<usize>) -> Self {
        Self {
            limit,
            last: Vec::new(),
            run: 0,
        }
    }

    /// Takes the next generated frame; [`EndReason::Loop`] once the limit is reached.
    pub fn push(&mut self, frame: &[i32]) -> Option<EndReason> {
        if self.run > 0 && self.last == frame {
            self.run += 1;
        } else {
            self.last.clear();
            self.last.extend_from_slice(frame);
            self.run = 1;
        }
        self.limit
            .is_some_and(|limit| self.run >= limit)
            .then_some(EndReason::Loop)
    }

    /// Identical frames seen in a row, the last one included.
    pub fn run(&self) -> usize {
        self.run
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eight_seconds_of_one_frame() {
        assert_eq!(Limits::default().loop_frames, Some(689));
        let mut breaker = Limits::default().loop_breaker();
        for _ in 0..688 {
            assert_eq!(breaker.push(&[1, 2, 3]), None);
        }
        assert_eq!(breaker.push(&[1, 2, 4]), None);
        assert_eq!(breaker.run(), 1);
        for _ in 0..687 {
            assert_eq!(breaker.push(&[1, 2, 4]), None);
        }
        assert_eq!(breaker.push(&[1, 2, 4]), Some(EndReason::Loop));
    }

    #[test]
    fn switched_off() {
        let limits = Limits::none();
        let mut breaker = limits.loop_breaker();
        assert!((0..5000).all(|_| breaker.push(&[0; 9]).is_none()));
        assert_eq!(limits.frame_cap(1, None, 7), (7, EndReason::Context));
        assert_eq!(limits.frame_cap(1, Some(7), 7), (7, EndReason::FrameLimit));
        assert_eq!(limits.text_bound(10), None);
    }

    #[test]
    fn bounds_do_not_overflow() {
        assert_eq!(Limits::default().text_bound(usize::MAX), Some(usize::MAX));
        assert_eq!(seconds_to_frames(f64::NAN), 0);
        assert_eq!(seconds_to_frames(-1.0), 0);
    }
}
