//! IQ4_NL: 32 values, a half scale `d` and sixteen bytes of nibbles; value = grid\[nibble\] d.

use super::iq4::{GRID, nearest_code, scales};
use super::legacy::{nibbles, put_nibbles};
use crate::numeric::{half_at, inverse_or_zero, put_half};
use crate::search::{F4, LANES, gather, importance_weights, squares, sums};

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

pub(super) fn quantize_row(src: &[f32], importance: Option<&[f32]>, dst: &mut [u8]) {
    let span = LANES * VALUES;
    let parts = src.chunks(span).zip(dst.chunks_mut(LANES * BYTES));
    for (part, (x, out)) in parts.enumerate() {
        let groups = gather::<VALUES>(x);
        let squared = squares(&groups);
        let weights = match importance {
            None => squared,
            Some(w) => {
                let w = w.chunks(span).nth(part).unwrap_or_default();
                let spread = sums(&squared).map(|v| v * F4::splat(2.0 / VALUES as f32));
                importance_weights(&groups, &gather(w), &spread)
            }
        };
        let scale = scales(&groups, &weights);
        let blocks = x.as_chunks::<VALUES>().0.iter();
        for (lane, (x, block)) in blocks.zip(out.as_chunks_mut::<BYTES>().0).enumerate() {
            put_half(block, 0, scale[lane]);
            let inverse = inverse_or_zero(scale[lane]);
            put_nibbles(&x.map(|v| nearest_code(inverse * v)), &mut block[2..]);
        }
    }
}
