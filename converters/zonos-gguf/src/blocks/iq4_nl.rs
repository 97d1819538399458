//! IQ4_NL: 32 values, a half scale `d` and sixteen bytes of nibbles; value = grid\[nibble\] d.

use pulp::Simd;

use super::iq4::{GRID, nearest_code, scales};
use super::legacy::{SPAN, nibbles, put_nibbles};
use crate::numeric::{half_at, inverse_or_zero, put_half};
use crate::search::{Encode, Weights};

/// Values in a block.
pub const VALUES: usize = 32;
/// Bytes of a block: `d` at 0, nibbles at 2.
pub const BYTES: usize = 18;

/// Decodes a block.
#[inline]
pub fn dequantize(block: &[u8; BYTES], out: &mut [f32; VALUES]) {
    let d = half_at(block, 0);
    for (v, q) in out.iter_mut().zip(nibbles(&block[2..])) {
        *v = d * f32::from(GRID[usize::from(q & 15)]);
    }
}

pub(super) struct Format;

impl Encode for Format {
    #[inline(always)]
    fn encode<S: Simd>(simd: S, src: &[f32], importance: Option<&[f32]>, dst: &mut [u8]) {
        let parts = src.chunks(SPAN).zip(dst.chunks_mut(SPAN / VALUES * BYTES));
        for (part, (x, out)) in parts.enumerate() {
            let weights = match importance {
                None => Weights::Squares,
                Some(w) => Weights::OwnSpread(&w[part * SPAN..][..x.len()]),
            };
            let scale = scales::<S, VALUES>(simd, x, weights);
            let blocks = x.as_chunks::<VALUES>().0.iter();
            for (i, (x, block)) in blocks.zip(out.as_chunks_mut::<BYTES>().0).enumerate() {
                put_half(block, 0, scale[i]);
                let inverse = inverse_or_zero(scale[i]);
                put_nibbles(&codes(x, inverse), &mut block[2..]);
            }
        }
    }
}

/// The codes of `x inverse`.
#[inline(always)]
pub(super) fn codes(x: &[f32; VALUES], inverse: f32) -> [u8; VALUES] {
    let mut out = [0; VALUES];
    for (q, v) in out.iter_mut().zip(x) {
        *q = nearest_code(inverse * v);
    }
    out
}
