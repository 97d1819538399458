//! Q4_1: 32 values, half scale `d` and minimum `m`, sixteen bytes of nibbles; value = nibble d + m.

use pulp::Simd;

use super::legacy::{affine_row, nibbles, put_nibbles};
use crate::numeric::{half_at, put_half};
use crate::search::Encode;

/// Values in a block.
pub const VALUES: usize = super::legacy::VALUES;
/// Bytes of a block: `d` at 0, `m` at 2, nibbles at 4.
pub const BYTES: usize = 20;

const TOP: i32 = 15;

/// Decodes a block.
#[inline]
pub fn dequantize(block: &[u8; BYTES], out: &mut [f32; VALUES]) {
    let (d, m) = (half_at(block, 0), half_at(block, 2));
    for (v, q) in out.iter_mut().zip(nibbles(&block[4..])) {
        *v = f32::from(q) * d + m;
    }
}

pub(super) struct Format;

impl Encode for Format {
    #[inline(always)]
    fn encode<S: Simd>(simd: S, src: &[f32], importance: Option<&[f32]>, dst: &mut [u8]) {
        let out = dst.as_chunks_mut::<BYTES>().0;
        affine_row(simd, src, importance, TOP, |i, d, m, codes| {
            put(&mut out[i], d, m, codes)
        });
    }
}

#[inline(always)]
fn put(block: &mut [u8; BYTES], d: f32, m: f32, codes: &[u8; VALUES]) {
    put_half(block, 0, d);
    put_half(block, 2, m);
    put_nibbles(codes, &mut block[4..]);
}
