//! Q4_0: 32 values, a half scale `d` and sixteen bytes of nibbles; value = (nibble - 8) d.

use pulp::Simd;

use super::legacy::{nibbles, put_nibbles, signed_row};
use crate::numeric::{half_at, put_half};
use crate::search::Encode;

/// Values in a block.
pub const VALUES: usize = super::legacy::VALUES;
/// Bytes of a block: `d` at 0, nibbles at 2.
pub const BYTES: usize = 18;

const TOP: i32 = 8;

/// Decodes a block.
#[inline]
pub fn dequantize(block: &[u8; BYTES], out: &mut [f32; VALUES]) {
    let d = half_at(block, 0);
    for (v, q) in out.iter_mut().zip(nibbles(&block[2..])) {
        *v = (i32::from(q) - TOP) as f32 * d;
    }
}

pub(super) struct Format;

impl Encode for Format {
    #[inline(always)]
    fn encode<S: Simd>(simd: S, src: &[f32], importance: Option<&[f32]>, dst: &mut [u8]) {
        let out = dst.as_chunks_mut::<BYTES>().0;
        signed_row(simd, src, importance, TOP, |i, d, codes| {
            put(&mut out[i], d, codes)
        });
    }
}

#[inline(always)]
fn put(block: &mut [u8; BYTES], d: f32, codes: &[u8; VALUES]) {
    put_half(block, 0, d);
    put_nibbles(codes, &mut block[2..]);
}
