//! The polyphase filter.

use std::f64::consts::PI;

use super::{ResampleError, ResampleRecipe};

/// Zero crossings of the sinc on each side.
const CROSSINGS: f64 = 6.0;
/// Cutoff as a share of the lower Nyquist frequency.
const ROLLOFF: f64 = 0.99;
/// Taps are stored in groups of this many, so that sums run over whole lanes.
const LANES: usize = 8;
/// Up to this many samples a frame, sums run over several frames at once and not over taps: with so few,
/// adding up the lanes at the end of each sum would cost as much as the sum.
const FEW: usize = 8;
/// Frames that are summed at once then.
const TILE: usize = 16;
/// Largest dense filter that [`ResampleKernel::dense`] makes, in taps: 256 MiB.
const MAX_DENSE: usize = 1 << 26;

/// A filter of `new` phases with `2 width + orig` taps each, of which only the span that is not zero
/// is stored.
///
/// Output `f * new + j` is `sum_i tap[j][i] * x[f * orig + i - width]`, with zeros outside the
/// signal. Rates are in lowest terms.
#[derive(Debug, Clone, PartialEq)]
pub struct ResampleKernel {
    orig: usize,
    new: usize,
    width: usize,
    /// First stored tap of each phase.
    starts: Vec<usize>,
    /// Stored taps a phase, a multiple of [`LANES`].
    span: usize,
    /// `[new, span]`, zeros at the end of a phase that has fewer.
    taps: Vec<f32>,
}

impl ResampleKernel {
    pub(super) fn new(from: u32, to: u32, recipe: ResampleRecipe) -> Result<Self, ResampleError> {
        let (orig, new) = lowest_terms(from, to);
        let width = width(orig, new);
        let base = ROLLOFF * orig.min(new) as f64;
        let reach = CROSSINGS / base * orig as f64;
        let phases = (0..new).map(|phase| {
            // Where the clamp does not act, with a tap to spare on each side for rounding.
            let centre = width as f64 + phase as f64 * orig as f64 / new as f64;
            let first = (centre - reach).floor().max(1.0) as usize - 1;
            let last = ((centre + reach).ceil() as usize + 1).min(2 * width + orig - 1);
            let mut taps: Vec<f32> = (first..=last)
                .map(|i| match recipe {
                    ResampleRecipe::Transform => transform_tap(orig, new, width, phase, i),
                    ResampleRecipe::Functional => functional_tap(orig, new, width, phase, i),
                })
                .collect();
            let lead = trim(&mut taps);
            (first + lead, taps)
        });
        Ok(Self::from_phases(orig, new, width, phases))
    }

    /// A filter stored whole, `[new, 2 width + orig]` row by row, between rates of which only the
    /// ratio matters.
    ///
    /// # Errors
    /// A rate is zero, the number of taps does not fit the rates, or a tap is not finite.
    pub fn from_dense(from: u32, to: u32, taps: &[f32]) -> Result<Self, ResampleError> {
        for rate in [from, to] {
            if rate == 0 {
                return Err(ResampleError::Rate(rate));
            }
        }
        let (orig, new) = lowest_terms(from, to);
        let row = taps.len() / new;
        let extra = row.checked_sub(orig).filter(|extra| extra % 2 == 0);
        let (Some(extra), 0) = (extra, taps.len() % new) else {
            return Err(ResampleError::Kernel(format!(
                "{} taps for {from} to {to} Hz: expected {new} rows of {orig} taps and an even number more",
                taps.len()
            )));
        };
        if let Some(i) = taps.iter().position(|t| !t.is_finite()) {
            return Err(ResampleError::Kernel(format!(
                "tap {} of phase {} is {}, expected finite numbers",
                i % row,
                i / row,
                taps[i]
            )));
        }
        let phases = taps.chunks_exact(row).map(|row| {
            let mut row = row.to_vec();
            (trim(&mut row), row)
        });
        Ok(Self::from_phases(orig, new, extra / 2, phases))
    }

    fn from_phases(
        orig: usize,
        new: usize,
        width: usize,
        phases: impl Iterator<Item = (usize, Vec<f32>)>,
    ) -> Self {
        let phases: Vec<_> = phases.collect();
        let longest = phases.iter().map(|(_, taps)| taps.len()).max().unwrap_or(0);
        let span = longest.max(1).next_multiple_of(LANES);
        let mut starts = Vec::with_capacity(new);
        let mut all = Vec::with_capacity(new * span);
        for (start, taps) in phases {
            starts.push(start);
            all.extend_from_slice(&taps);
            all.resize(starts.len() * span, 0.0);
        }
        Self {
            orig,
            new,
            width,
            starts,
            span,
            taps: all,
        }
    }

    /// The rate that is left, in lowest terms: samples a frame takes.
    pub fn orig_rate(&self) -> usize {
        self.orig
    }

    /// The rate that is reached, in lowest terms: samples a frame gives, and the number of phases.
    pub fn new_rate(&self) -> usize {
        self.new
    }

    /// Samples that a frame sees before its first and after its last.
    pub fn width(&self) -> usize {
        self.width
    }

    /// The first tap of `phase` that is stored, and the stored taps; those before and after are
    /// zero, and so may be the last ones. The count is the same for all phases.
    ///
    /// # Panics
    /// If there are no more than `phase` phases.
    pub fn phase(&self, phase: usize) -> (usize, &[f32]) {
        (
            self.starts[phase],
            &self.taps[phase * self.span..][..self.span],
        )
    }

    /// The whole filter `[new, 2 width + orig]`, zeros included; `None` above 2^26 taps, which
    /// rates with a small common divisor have.
    pub fn dense(&self) -> Option<Vec<f32>> {
        let row = 2 * self.width + self.orig;
        let count = row.checked_mul(self.new).filter(|&n| n <= MAX_DENSE)?;
        let mut out = vec![0.0; count];
        for (phase, out) in out.chunks_exact_mut(row).enumerate() {
            let (start, taps) = self.phase(phase);
            // The zeros that fill up a span may stand beyond the row.
            let n = taps.len().min(row - start);
            out[start..start + n].copy_from_slice(&taps[..n]);
        }
        Some(out)
    }

    /// See [`Resampler::output_len`](super::Resampler::output_len).
    pub(super) fn output_len(&self, len: usize) -> usize {
        let product = self.new as u128 * len as u128;
        let quotient = (product as f64 / self.orig as f64) as f32;
        // No more than the frames give, however the quotient was rounded.
        (quotient.ceil() as usize).min((len / self.orig + 1) * self.new)
    }

    /// Outputs of the frames from `frame` on, as many as `out` has room for. `samples[0]` is sample
    /// `origin` of the signal; outside of `samples` there is silence.
    pub(super) fn frames(&self, samples: &[f32], origin: usize, frame: usize, out: &mut [f32]) {
        let count = out.len().div_ceil(self.new);
        if count == 0 {
            return;
        }
        let reach = self.starts.iter().max().map_or(0, |s| s + self.span);
        // Positions relative to `samples`; the width before the first may reach below zero.
        let first = (frame * self.orig) as i128 - (self.width + origin) as i128;
        let needed = (count - 1) * self.orig + reach;
        let inside = usize::try_from(first)
            .ok()
            .and_then(|first| samples.get(first..first.checked_add(needed)?));
        let padded;
        let samples = match inside {
            Some(samples) => samples,
            None => {
                let mut window = vec![0.0; needed];
                let from = first.clamp(0, samples.len() as i128) as usize;
                let to = (first + needed as i128).clamp(from as i128, samples.len() as i128);
                let part = &samples[from..to as usize];
                let at = (from as i128 - first).max(0) as usize;
                if !part.is_empty() {
                    window[at..at + part.len()].copy_from_slice(part);
                }
                padded = window;
                &padded
            }
        };
        if self.orig <= FEW {
            return self.across_frames(samples, count, out);
        }
        for (f, out) in out.chunks_mut(self.new).enumerate() {
            let samples = &samples[f * self.orig..];
            let phases = self.starts.iter().zip(self.taps.chunks_exact(self.span));
            for (y, (&start, taps)) in out.iter_mut().zip(phases) {
                *y = dot(&samples[start..start + self.span], taps);
            }
        }
    }

    /// Frame by frame means `orig` samples further, so that each of every `orig` samples goes to a
    /// stream of its own, in which frames are neighbours.
    fn across_frames(&self, samples: &[f32], count: usize, out: &mut [f32]) {
        let reach = samples.len().div_ceil(self.orig);
        let length = reach + TILE;
        let mut streams = vec![0.0; self.orig * length];
        for (i, samples) in samples.chunks(self.orig).enumerate() {
            for (stream, &x) in samples.iter().enumerate() {
                streams[stream * length + i] = x;
            }
        }
        for phase in 0..self.new {
            let (start, taps) = self.phase(phase);
            let taps: Vec<_> = taps
                .iter()
                .enumerate()
                .filter(|(_, tap)| **tap != 0.0)
                .map(|(i, &tap)| {
                    let at = start + i;
                    (at % self.orig * length + at / self.orig, tap)
                })
                .collect();
            for first in (0..count).step_by(TILE) {
                let mut sums = [0.0f32; TILE];
                for &(at, tap) in &taps {
                    let stream = &streams[at + first..][..TILE];
                    for (sum, x) in sums.iter_mut().zip(stream) {
                        *sum += x * tap;
                    }
                }
                let places = out.iter_mut().skip(first * self.new + phase);
                for (y, sum) in places.step_by(self.new).zip(sums) {
                    *y = sum;
                }
            }
        }
    }
}

fn dot(x: &[f32], taps: &[f32]) -> f32 {
    let mut sums = [0.0f32; LANES];
    let pairs = x.as_chunks::<LANES>().0.iter();
    for (x, taps) in pairs.zip(taps.as_chunks::<LANES>().0) {
        for (sum, (x, tap)) in sums.iter_mut().zip(x.iter().zip(taps)) {
            *sum += x * tap;
        }
    }
    let [a, b, c, d, e, f, g, h] = sums;
    ((a + e) + (c + g)) + ((b + f) + (d + h))
}

/// Cuts zeros off both ends; how many were at the front.
fn trim(taps: &mut Vec<f32>) -> usize {
    let end = taps.iter().rposition(|&t| t != 0.0).map_or(0, |i| i + 1);
    taps.truncate(end);
    let lead = taps.iter().position(|&t| t != 0.0).unwrap_or(0);
    taps.drain(..lead);
    lead
}

fn lowest_terms(from: u32, to: u32) -> (usize, usize) {
    let (mut a, mut b) = (from, to);
    while b != 0 {
        (a, b) = (b, a % b);
    }
    ((from / a) as usize, (to / a) as usize)
}

fn width(orig: usize, new: usize) -> usize {
    (CROSSINGS * orig as f64 / (ROLLOFF * orig.min(new) as f64)).ceil() as usize
}

/// f64 but for the phase, which the reference makes by dividing integers, in f32.
fn transform_tap(orig: usize, new: usize, width: usize, phase: usize, i: usize) -> f32 {
    let base = orig.min(new) as f64 * ROLLOFF;
    let phase = f64::from(-(phase as f32) / new as f32);
    let t = (phase + (i as f64 - width as f64) / orig as f64) * base;
    if t.abs() >= CROSSINGS {
        return 0.0;
    }
    let window = (t * PI / CROSSINGS / 2.0).cos().powi(2);
    let t = t * PI;
    let sinc = if t == 0.0 { 1.0 } else { t.sin() / t };
    (sinc * (window * (base / orig as f64))) as f32
}

/// f32 throughout.
fn functional_tap(orig: usize, new: usize, width: usize, phase: usize, i: usize) -> f32 {
    let base = orig.min(new) as f64 * ROLLOFF;
    let pi = PI as f32;
    let phase = -(phase as f32) / new as f32;
    let t = (phase + (i as f32 - width as f32) / orig as f32) * base as f32;
    if t.abs() >= CROSSINGS as f32 {
        return 0.0;
    }
    // Rounded once from f64, which is as near as the reference's vector mathematics comes.
    let cosine = f64::from(t * pi / CROSSINGS as f32 / 2.0).cos() as f32;
    let t = t * pi;
    let sinc = if t == 0.0 {
        1.0
    } else {
        f64::from(t).sin() as f32 / t
    };
    sinc * (cosine * cosine * (base / orig as f64) as f32)
}
