//! From delayed rows, one at a time, to audio.

use std::time::{Duration, Instant};

use zonos_audio::{Codes, FadeOut, Waveform};
use zonos_dac::DacStream;
use zonos2::EndOfAudio;

use crate::TtsError;
use crate::request::Plan;
use crate::tts::{STREAM_BLOCK, Tts};

/// The codec's half of a streamed speech.
///
/// Codebook `c` of frame `t` arrives with row `t + c`, so a frame is complete `codebooks - 1` rows
/// after its own. The end of speech, which can lie `codebooks - 1` frames before the row that tells
/// it, is therefore known by the time any frame at or after it is complete: nothing is ever played
/// that the end cuts off.
pub(crate) struct Live<'a> {
    stream: DacStream<'a>,
    eos: EndOfAudio,
    fade: FadeOut,
    /// Rows as sampled, `[rows, codebooks]`.
    rows: Vec<i32>,
    codebooks: usize,
    top_code: i32,
    /// Frames handed to the codec.
    pushed: usize,
    /// Samples given out.
    played: Vec<f32>,
    sample_rate: u32,
    began: Instant,
    first_audio: Option<Duration>,
}

impl<'a> Live<'a> {
    pub(crate) fn new(tts: &'a Tts, plan: &Plan, began: Instant) -> Self {
        let config = tts.backbone().config();
        Self {
            stream: tts.codec().stream(STREAM_BLOCK),
            eos: EndOfAudio::for_config(config, usize::MAX),
            fade: FadeOut::new(plan.fade_out_ms, tts.sample_rate()),
            rows: Vec::new(),
            codebooks: config.n_codebooks,
            top_code: config.codebook_size as i32 - 1,
            pushed: 0,
            played: Vec::new(),
            sample_rate: tts.sample_rate(),
            began,
            first_audio: None,
        }
    }

    /// Takes the next row and gives the samples that it settles, often none.
    pub(crate) fn push(&mut self, row: &[i32]) -> Result<Vec<f32>, TtsError> {
        self.rows.extend_from_slice(row);
        self.eos.push(row);
        let rows = self.rows.len() / self.codebooks;
        let complete = (rows + 1).saturating_sub(self.codebooks);
        let ready = self
            .eos
            .eos_frame()
            .map_or(complete, |end| complete.min(end));
        if ready <= self.pushed {
            return Ok(Vec::new());
        }
        let mut values = Vec::with_capacity((ready - self.pushed) * self.codebooks);
        for t in self.pushed..ready {
            for c in 0..self.codebooks {
                values.push(self.rows[(t + c) * self.codebooks + c].min(self.top_code));
            }
        }
        let samples = self.decode(ready - self.pushed, values)?;
        self.played.extend_from_slice(&samples);
        Ok(samples)
    }

    /// Takes the frames that only the end of generation settles, and gives the rest of the samples,
    /// all samples, and when the first of them came.
    pub(crate) fn finish(
        mut self,
        codes: &Codes,
    ) -> Result<(Vec<f32>, Waveform, Duration), TtsError> {
        let from = self.pushed.min(codes.frames());
        let values = codes.values()[from * codes.codebooks()..].to_vec();
        let mut rest = self.decode(codes.frames() - from, values)?;
        self.fade.push(&self.stream.flush()?, &mut rest);
        self.fade.finish(&mut rest);
        let first_audio = self.first_audio.unwrap_or_else(|| self.began.elapsed());
        let mut all = self.played;
        all.extend_from_slice(&rest);
        Ok((rest, Waveform::new(all, self.sample_rate), first_audio))
    }

    fn decode(&mut self, frames: usize, values: Vec<i32>) -> Result<Vec<f32>, TtsError> {
        if frames == 0 {
            return Ok(Vec::new());
        }
        let codes = Codes::new(frames, self.codebooks, values)?;
        self.pushed += frames;
        let mut samples = Vec::new();
        self.fade.push(&self.stream.push(&codes)?, &mut samples);
        if !samples.is_empty() {
            self.first_audio.get_or_insert_with(|| self.began.elapsed());
        }
        Ok(samples)
    }
}
