//! Codes in, samples out, as soon as they are settled.

use std::ops::Range;

use zonos_audio::Codes;
use zonos_nn::Edges;

use crate::{Dac, DacError};

/// A decode in progress.
///
/// Samples come out as soon as every frame that they depend on is there: 10 frames after their own
/// for the 44.1 kHz model. However the codes are cut, the samples are those of [`Dac::decode`]: bit
/// for bit on the Flex device, to rounding elsewhere, and as many.
///
/// A clone, or [`fork`](Self::fork), goes on from the same point independently.
#[derive(Debug, Clone)]
pub struct DacStream<'a> {
    dac: &'a Dac,
    block: usize,
    /// Columns of the codes, once known.
    codebooks: Option<usize>,
    /// Codes of frames `first..frames`, row by row.
    rows: Vec<i32>,
    first: usize,
    frames: usize,
    /// Samples given out.
    given: usize,
}

impl<'a> DacStream<'a> {
    pub(crate) fn new(dac: &'a Dac, block: usize) -> Self {
        Self {
            dac,
            block: block.max(1),
            codebooks: None,
            rows: Vec::new(),
            first: 0,
            frames: 0,
            given: 0,
        }
    }

    /// The codec.
    pub fn dac(&self) -> &'a Dac {
        self.dac
    }

    /// Frames taken so far.
    pub fn frames(&self) -> usize {
        self.frames
    }

    /// Samples given so far.
    pub fn samples(&self) -> usize {
        self.given
    }

    /// A second stream that goes on from the same point.
    #[must_use]
    pub fn fork(&self) -> Self {
        self.clone()
    }

    /// Takes more frames, `[frames, codebooks]`, and gives the samples that are settled now, if they
    /// make up a block; often none.
    ///
    /// # Errors
    ///
    /// [`DacError::Codes`] for a code out of range, its frame counted from the start of `codes`;
    /// [`DacError::Columns`]. The stream is as it was before then.
    pub fn push(&mut self, codes: &Codes) -> Result<Vec<f32>, DacError> {
        self.take(codes)?;
        let inside = Edges {
            start: true,
            end: false,
        };
        let settled = self.dac.config().decoded_span(0..self.frames, inside).end;
        if settled < self.given + self.block * self.dac.config().hop() {
            return Ok(Vec::new());
        }
        Ok(self.give(settled, false))
    }

    /// Ends the signal and gives the rest of the samples. The stream is as new afterwards.
    ///
    /// # Errors
    ///
    /// None today; a device may yet fail.
    pub fn flush(&mut self) -> Result<Vec<f32>, DacError> {
        let end = self.dac.config().decoded_len(self.frames);
        let samples = if self.frames == 0 {
            Vec::new()
        } else {
            self.give(end, true)
        };
        *self = Self::new(self.dac, self.block);
        Ok(samples)
    }

    /// All of a signal at once, the last window with the end in sight.
    pub(crate) fn push_and_flush(&mut self, codes: &Codes) -> Result<Vec<f32>, DacError> {
        self.take(codes)?;
        self.flush()
    }

    fn take(&mut self, codes: &Codes) -> Result<(), DacError> {
        if codes.is_empty() {
            return Ok(());
        }
        codes.check(&self.dac.limits())?;
        let found = codes.codebooks();
        let expected = *self.codebooks.get_or_insert(found);
        if found != expected {
            return Err(DacError::Columns { expected, found });
        }
        self.rows.extend_from_slice(codes.values());
        self.frames += codes.frames();
        Ok(())
    }

    /// Decodes samples `given..end`, in windows, and forgets the frames that no later sample needs.
    fn give(&mut self, end: usize, ended: bool) -> Vec<f32> {
        let config = self.dac.config();
        let window = self.dac.window_frames() * config.hop();
        let mut samples = Vec::with_capacity(end - self.given);
        // Windows of equal length, so that the last is not a sliver that pays for its context alone.
        let windows = (end - self.given).div_ceil(window).max(1);
        let begin = self.given;
        for i in 1..=windows {
            let to = begin + (end - begin) * i / windows;
            samples.extend(self.window(self.given..to, ended));
            self.given = to;
        }
        let codebooks = self.codebooks.unwrap_or(1);
        let keep = config
            .frames_needed(self.given..self.given + 1)
            .start
            .clamp(self.first, self.frames);
        self.rows.drain(..(keep - self.first) * codebooks);
        self.first = keep;
        samples
    }

    fn window(&self, samples: Range<usize>, ended: bool) -> Vec<f32> {
        if samples.is_empty() {
            return Vec::new();
        }
        let (config, codebooks) = (self.dac.config(), self.codebooks.unwrap_or(1));
        let needed = config.frames_needed(samples.clone());
        let frames = needed.start..needed.end.min(self.frames);
        let edges = Edges {
            start: frames.start == 0,
            end: ended && frames.end == self.frames,
        };
        let rows = &self.rows
            [(frames.start - self.first) * codebooks..(frames.end - self.first) * codebooks];
        let span = config.decoded_span(frames, edges);
        let decoded = self.dac.decode_window(rows, codebooks, edges);
        debug_assert_eq!(decoded.len(), span.len());
        decoded[samples.start - span.start..samples.end - span.start].to_vec()
    }
}
