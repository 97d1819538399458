//! The two streaming schemes that published servers use, rebuilt from their description so that
//! their goldens can be compared. This project streams by [`zonos_dac::Dac::stream`], which needs
//! neither: its seams vanish.

use std::f32::consts::PI;

use zonos_audio::Codes;

use super::{PAD, rows};
use crate::error::Result;

/// Decodes codes `[frames, codebooks]`.
type Decode<'a> = dyn FnMut(&Codes) -> Result<Vec<f32>> + 'a;

/// Blocks with real context on both sides, cropped (the C++ server).
pub(super) struct Windows {
    block: usize,
    context: usize,
}

impl Default for Windows {
    fn default() -> Self {
        Self {
            block: 40,
            context: 24,
        }
    }
}

impl Windows {
    /// Plan rows `[lo, hi, left, right]`, flattened, and the samples.
    pub(super) fn run(
        &self,
        raw: &Codes,
        eos: Option<usize>,
        hop: usize,
        highest: i32,
        decode: &mut Decode<'_>,
    ) -> Result<(Vec<i32>, Vec<f32>)> {
        let lag = raw.codebooks() - 1;
        let (mut plan, mut samples, mut done) = (Vec::new(), Vec::new(), 0);
        let mut emit = |have: usize, lo: usize, hi: usize, right: usize| -> Result<()> {
            let first = lo.saturating_sub(self.context);
            let seen = extended(&rows(raw, 0..have), hi + right + raw.codebooks());
            let aligned = seen.unshear(PAD).clamp_above(highest);
            let decoded = decode(&rows(&aligned, first..hi + right))?;
            samples.extend_from_slice(&decoded[(lo - first) * hop..(hi - first) * hop]);
            plan.extend([lo, hi, self.context, right].map(|x| x as i32));
            Ok(())
        };
        for have in 1..=raw.frames() {
            while have - done >= self.block + self.context + lag {
                let hi = have - self.context - lag;
                emit(have, done, hi, self.context)?;
                done = hi;
            }
        }
        let end = eos.filter(|&e| e < raw.frames()).unwrap_or(raw.frames());
        if end > done {
            emit(raw.frames(), done, end, 0)?;
        }
        Ok((plan, samples))
    }
}

/// `codes` cut or padded to `frames` rows.
fn extended(codes: &Codes, frames: usize) -> Codes {
    let mut values = codes.values().to_vec();
    values.resize(frames * codes.codebooks(), PAD);
    Codes::new(frames, codes.codebooks(), values).expect("whole rows")
}

/// Short chunks, each blended with the withheld end of the one before (the Python server). Its
/// samples differ from a whole decode: four frames are less context than the decoder sees.
pub(super) struct Crossfade {
    chunk: usize,
    overlap: usize,
    /// Rows after the end frame until the server learns of it.
    told_after: usize,
}

impl Default for Crossfade {
    fn default() -> Self {
        Self {
            chunk: 16,
            overlap: 4,
            told_after: 5,
        }
    }
}

impl Crossfade {
    /// Samples sent at each row, and the samples.
    pub(super) fn run(
        &self,
        raw: &Codes,
        eos: Option<usize>,
        hop: usize,
        highest: i32,
        decode: &mut Decode<'_>,
    ) -> Result<(Vec<usize>, Vec<f32>)> {
        let (mut sizes, mut samples) = (Vec::new(), Vec::new());
        let mut done = 0;
        let mut tail: Option<Vec<f32>> = None;
        for row in 0..raw.frames() {
            let last = row + 1 == raw.frames();
            let known = eos.filter(|&e| row >= e + self.told_after);
            let part = self.step(
                raw, row, last, known, &mut done, &mut tail, hop, highest, decode,
            )?;
            sizes.push(part.len());
            samples.extend(part);
        }
        Ok((sizes, samples))
    }

    #[allow(clippy::too_many_arguments)] // one step of a loop whose state lives with its caller
    fn step(
        &self,
        raw: &Codes,
        row: usize,
        last: bool,
        eos: Option<usize>,
        done: &mut usize,
        tail: &mut Option<Vec<f32>>,
        hop: usize,
        highest: i32,
        decode: &mut Decode<'_>,
    ) -> Result<Vec<f32>> {
        let lag = raw.codebooks() - 1;
        let total = row + 1;
        let until = |n: usize| eos.map_or(n, |e| n.min(e));
        let ready = until(total.saturating_sub(lag));
        let due = if last {
            ready > *done || tail.is_some()
        } else {
            ready.saturating_sub(*done) >= self.chunk
        };
        if !due {
            return Ok(Vec::new());
        }
        let stop = until(if last {
            total
        } else {
            total.saturating_sub(lag)
        });
        if stop <= *done {
            return Ok(tail.take().filter(|_| last).unwrap_or_default());
        }
        let back = self.overlap.min(*done);
        let first = *done - back;
        let window = rows(raw, first..(stop + lag).min(total));
        let codes = window
            .unshear(PAD)
            .truncate(stop - first)
            .clamp_above(highest);
        let mut part = decode(&codes)?;
        if let Some(held) = tail.take().filter(|_| back > 0) {
            let n = (back * hop).min(held.len()).min(part.len());
            let old = &held[held.len() - n..];
            for (i, (new, old)) in part.iter_mut().zip(old).enumerate() {
                let up = rise(i, n);
                *new = (1.0 - up) * old + up * *new;
            }
        }
        if !last {
            let n = (self.overlap * hop).min(part.len());
            *tail = Some(part.split_off(part.len() - n));
        }
        *done = stop;
        Ok(part)
    }
}

/// Raised cosine from 0 at `i = 0` to 1 at `i = n - 1`.
fn rise(i: usize, n: usize) -> f32 {
    let angle = std::f64::consts::PI * i as f64 / (n.max(2) - 1) as f64;
    (0.5 * (1.0 - angle.cos())) as f32
}

/// A fade-out whose last gain is one step above zero (the C++ server): `0.5 (1 + cos(pi i / n))`.
pub(super) fn fade_without_end_point(samples: &[f32], ms: f64, rate: u32) -> Vec<f32> {
    let n = ((ms * 0.001 * f64::from(rate)) as usize).min(samples.len());
    let mut out = samples.to_vec();
    let start = out.len() - n;
    for (i, x) in out[start..].iter_mut().enumerate() {
        *x *= 0.5 * (1.0 + (PI * (i as f32 / n as f32)).cos());
    }
    out
}
