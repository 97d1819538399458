//! What a spoken text is.

use std::time::Duration;

use zonos_audio::{Codes, Waveform};
use zonos2::EndReason;

/// A spoken text.
#[derive(Debug, Clone)]
pub struct Speech {
    /// The audio, faded out if the request asked for it.
    pub waveform: Waveform,
    /// The codec's codes, plain (one row a frame, not delayed) and cut at the end of speech,
    /// `[frames, codebooks]`. An editor, a cache or another decoder can use them.
    pub codes: Codes,
    /// Why generation ended.
    pub end: EndReason,
    /// The seed that makes this audio again, on the same build and device.
    pub seed: u64,
    /// The rows of the prompt and those generated, `[prompt_rows + frames, codebooks + 1]`, delayed as they
    /// were drawn: a sequence to measure models on ([`zonos2::Zonos2::score`]).
    pub ids: Vec<i32>,
    /// Rows of the prompt.
    pub prompt_rows: usize,
    /// Rows generated; more than the codec frames when the model ended the speech itself.
    pub frames: usize,
    /// Where the time went.
    pub timings: Timings,
}

impl Speech {
    /// Whether something other than the model, the caller's `max_frames` aside, ended the speech:
    /// the length bound, the loop breaker or the end of the context.
    pub fn was_cut_short(&self) -> bool {
        matches!(
            self.end,
            EndReason::TextBound | EndReason::Loop | EndReason::Context
        )
    }

    /// The name of the reason for the end, for logs and JSON: `end_of_audio`, `max_frames`,
    /// `context`, `frame_cap` or `loop_breaker`.
    pub fn ended_by(&self) -> &'static str {
        end_name(self.end)
    }
}

/// The name of a reason, for logs and JSON.
pub fn end_name(end: EndReason) -> &'static str {
    match end {
        EndReason::EndOfAudio => "end_of_audio",
        EndReason::FrameLimit => "max_frames",
        EndReason::Context => "context",
        EndReason::TextBound => "frame_cap",
        EndReason::Loop => "loop_breaker",
        EndReason::Stopped => "stopped",
    }
}

/// Where the time went, all measured from the start of the run; loading is not part of it.
#[derive(Debug, Clone, Copy)]
pub struct Timings {
    /// Until the first audio was there.
    pub first_audio: Duration,
    /// Until the last frame was generated (with streaming, decoding runs in between).
    pub generate: Duration,
    /// Until all audio was there.
    pub total: Duration,
}

/// What a streamed speech hands out after each generated frame.
#[derive(Debug, Clone, Copy)]
pub struct Chunk<'a> {
    /// The next samples, mono; empty while the codec waits for more frames.
    pub samples: &'a [f32],
    /// Frames generated so far.
    pub frames: usize,
}
