//! Where the audio ends, and the codes a codec gets.

use zonos_audio::{Codes, CodesError};

use crate::config::Zonos2Config;

/// Why a generation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EndReason {
    /// The model said so and its last frames are complete.
    EndOfAudio,
    /// The caller's frame limit was reached.
    FrameLimit,
    /// The bound that depends on the length of the text was reached.
    TextBound,
    /// The model has no position left.
    Context,
    /// The same frame came again and again.
    Loop,
    /// The caller stopped it.
    Stopped,
}

impl EndReason {
    /// Whether the model ended the audio itself, so that nothing is cut off.
    pub fn is_complete(self) -> bool {
        self == Self::EndOfAudio
    }
}

impl std::fmt::Display for EndReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::EndOfAudio => "end of audio",
            Self::FrameLimit => "frame limit reached",
            Self::TextBound => "length bound for this text reached",
            Self::Context => "no positions left in the model",
            Self::Loop => "the same frame was repeated for too long",
            Self::Stopped => "stopped",
        })
    }
}

/// Watches generated frames for the end-of-audio id.
///
/// Let `i` be the first frame in which any codebook carries the id, and `m` the highest such
/// codebook in it. The audio then ends at aligned frame `max(0, i - m)`, and generation goes on
/// through frame `i + codebooks`, so that the delayed codes of the last frames arrive. Later
/// end-of-audio ids change nothing.
///
/// ```
/// let mut end = zonos2::EndOfAudio::new(2, 1024, 100);
/// for (frame, done) in [[5, 6], [7, 1024], [8, 9], [1, 1]].iter().zip([false, false, false, true]) {
///     assert_eq!(end.push(frame), done);
/// }
/// assert_eq!((end.eos_frame(), end.frames()), (Some(0), 4));
/// ```
#[derive(Debug, Clone)]
pub struct EndOfAudio {
    codebooks: usize,
    eoa_id: i64,
    max_frames: usize,
    ignore: bool,
    frames: usize,
    eos_frame: Option<usize>,
    left: usize,
    finished: bool,
}

impl EndOfAudio {
    /// Watches frames of `codebooks` codes; ends after `max_frames` frames in any case.
    pub fn new(codebooks: usize, eoa_id: usize, max_frames: usize) -> Self {
        Self {
            codebooks,
            eoa_id: i64::try_from(eoa_id).unwrap_or(i64::MAX),
            max_frames,
            ignore: false,
            frames: 0,
            eos_frame: None,
            left: 0,
            finished: false,
        }
    }

    /// With the codebooks and the end-of-audio id of a model.
    pub fn for_config(config: &Zonos2Config, max_frames: usize) -> Self {
        Self::new(config.n_codebooks, config.eoa_id, max_frames)
    }

    /// Whether to take the id for an ordinary code, and run to the frame limit.
    #[must_use]
    pub fn ignoring_eos(mut self, ignore: bool) -> Self {
        self.ignore = ignore;
        self
    }

    /// Takes the next generated frame and says whether it was the last.
    pub fn push(&mut self, frame: &[i32]) -> bool {
        let index = self.frames;
        self.frames += 1;
        if !self.ignore {
            if self.eos_frame.is_none()
                && let Some(highest) = frame.iter().rposition(|&c| i64::from(c) == self.eoa_id)
            {
                self.eos_frame = Some(index.saturating_sub(highest));
                self.left = self.codebooks + 1;
            }
            if self.eos_frame.is_some() && self.left > 0 {
                self.left -= 1;
                self.finished = self.left == 0;
            }
        }
        self.is_done()
    }

    /// Whether no further frame is wanted.
    pub fn is_done(&self) -> bool {
        self.finished || self.frames >= self.max_frames
    }

    /// Whether the end of audio and the frames after it have all been seen, rather than the limit.
    pub fn is_complete(&self) -> bool {
        self.finished
    }

    /// The limit on generated frames.
    pub fn max_frames(&self) -> usize {
        self.max_frames
    }

    /// Aligned frames of audio, once the end is known.
    pub fn eos_frame(&self) -> Option<usize> {
        self.eos_frame
    }

    /// Frames seen so far.
    pub fn frames(&self) -> usize {
        self.frames
    }
}

/// Turns generated frames (delayed) into the codes a codec decodes: takes the delay back, cuts at
/// `eos_frame`, and clamps what is left of padding to the last code.
///
/// Without an `eos_frame` the last `codebooks - 1` frames are partly such padding.
///
/// # Errors
/// The codes have another number of codebooks than the model.
pub fn codec_codes(
    generated: &Codes,
    eos_frame: Option<usize>,
    config: &Zonos2Config,
) -> Result<Codes, CodesError> {
    if generated.codebooks() != config.n_codebooks {
        return Err(CodesError::Columns {
            found: generated.codebooks(),
            codebooks: config.n_codebooks,
            transposed: false,
        });
    }
    Ok(generated
        .unshear(config.audio_pad_id as i32)
        .truncate(eos_frame.unwrap_or(usize::MAX))
        .clamp_above(config.codebook_size as i32 - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_of_zero_is_done_at_once() {
        assert!(EndOfAudio::new(9, 1024, 0).is_done());
    }

    #[test]
    fn limit_and_end_are_told_apart() {
        let mut cut = EndOfAudio::new(9, 1024, 5);
        while !cut.push(&[1024; 9]) {}
        assert_eq!(
            (cut.frames(), cut.is_complete(), cut.eos_frame()),
            (5, false, Some(0))
        );
        let mut whole = EndOfAudio::new(9, 1024, 50);
        while !whole.push(&[1024; 9]) {}
        assert_eq!((whole.frames(), whole.is_complete()), (10, true));
    }

    #[test]
    fn codes_of_another_model() {
        let codes = Codes::new(1, 2, vec![0, 0]).unwrap();
        assert!(codec_codes(&codes, None, &Zonos2Config::released()).is_err());
    }
}
