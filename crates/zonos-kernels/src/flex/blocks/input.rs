//! Activations as the kernels for blocks read them.
//!
//! Prepared once a row and read with every weight row, in spans of 256 values; what lies beyond the row's
//! end is zero.

use crate::activations::{ROUNDED, code_of, scale_of};

/// Values in a span: the longest block.
pub(super) const SPAN: usize = 256;
/// Values that kernels take at a time.
pub(super) const SLICE: usize = 32;
/// Slices in a span.
pub(super) const SLICES: usize = SPAN / SLICE;

/// A span rounded to 8 bits.
#[derive(Clone, Copy)]
#[repr(C, align(32))]
pub(in crate::flex) struct Rounded {
    pub(super) codes: [i8; SPAN],
    /// Of each slice.
    pub(super) scale: [f32; SLICES],
    /// Of each slice's values.
    pub(super) sum: [f32; SLICES],
    /// Of each half slice's values.
    pub(super) halves: [f32; 2 * SLICES],
    /// Of each slice's codes, negative.
    pub(super) below: [i32; SLICES],
    /// Of each half slice's codes, negative.
    pub(super) below_halves: [i32; 2 * SLICES],
    /// Of each half slice's codes.
    pub(super) pairs: [[i16; 2]; SLICES],
}

const _: () = assert!(ROUNDED == SLICE);

/// A span of f32 values.
#[derive(Clone, Copy)]
#[repr(C, align(32))]
pub(in crate::flex) struct Floats {
    /// Of each slice, value `4 i + b` in lane `i` of vector `b`, times [`FACTOR`].
    pub(super) x: [[[f32; 8]; 4]; SLICES],
    /// Of each slice's values.
    pub(super) sum: [f32; SLICES],
    /// Of each half slice's values.
    pub(super) halves: [f32; 2 * SLICES],
}

/// Codes are turned into floats in the upper byte of a dword, 2^24 times too large.
const FACTOR: f32 = 1.0 / 16_777_216.0;

/// A row `x` in spans.
#[inline(always)]
pub(super) fn round(x: &[f32], spans: &mut [Rounded]) {
    for (x, span) in x.chunks(SPAN).zip(spans) {
        let mut padded = [0.0; SPAN];
        let x = whole(x, &mut padded);
        for j in 0..SLICES {
            let x: &[f32; SLICE] = x[j * SLICE..][..SLICE].try_into().expect("a slice");
            let (scale, inverse) = scale_of(x);
            let mut sums = [0i32; 2];
            for half in 0..2 {
                for i in 16 * half..16 * half + 16 {
                    let code = code_of(x[i], inverse);
                    span.codes[j * SLICE + i] = code;
                    sums[half] += i32::from(code);
                }
                span.halves[2 * j + half] = scale * sums[half] as f32;
                span.below_halves[2 * j + half] = -sums[half];
                span.pairs[j][half] = sums[half] as i16;
            }
            span.below[j] = -(sums[0] + sums[1]);
            span.scale[j] = scale;
            span.sum[j] = scale * (sums[0] + sums[1]) as f32;
        }
    }
}

/// A row `x` in spans, not rounded.
#[inline(always)]
pub(super) fn spread(x: &[f32], spans: &mut [Floats]) {
    for (x, span) in x.chunks(SPAN).zip(spans) {
        let mut padded = [0.0; SPAN];
        let x = whole(x, &mut padded);
        for j in 0..SLICES {
            let x: &[f32; SLICE] = x[j * SLICE..][..SLICE].try_into().expect("a slice");
            let mut sums = [0.0f32; 8];
            for i in 0..8 {
                let four = [x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]];
                for b in 0..4 {
                    span.x[j][b][i] = four[b] * FACTOR;
                }
                sums[i] = (four[0] + four[1]) + (four[2] + four[3]);
            }
            for half in 0..2 {
                let s = &sums[4 * half..][..4];
                span.halves[2 * j + half] = (s[0] + s[1]) + (s[2] + s[3]);
            }
            span.sum[j] = span.halves[2 * j] + span.halves[2 * j + 1];
        }
    }
}

/// `x`, filled up with zeros in `padded` where it is short.
#[inline(always)]
fn whole<'a>(x: &'a [f32], padded: &'a mut [f32; SPAN]) -> &'a [f32] {
    if x.len() == SPAN {
        return x;
    }
    padded[..x.len()].copy_from_slice(x);
    padded
}
