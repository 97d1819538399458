//! Q5_0: 32 values, a half scale `d`, the fifth bits `qh`, sixteen bytes of nibbles; value = (code - 16) d.

use pulp::Simd;

use super::legacy::{five_bits, put_fifth_bits, put_nibbles, signed_row};
use crate::numeric::{half_at, put_half};
use crate::search::Encode;

/// Values in a block.
pub const VALUES: usize = super::legacy::VALUES;
/// Bytes of a block: `d` at 0, `qh` at 2, nibbles at 6.
pub const BYTES: usize = 22;

const TOP: i32 = 16;

/// Decodes a block.
#[inline]
pub fn dequantize(block: &[u8; BYTES], out: &mut [f32; VALUES]) {
    let d = half_at(block, 0);
    for (v, q) in out.iter_mut().zip(five_bits(&block[2..6], &block[6..])) {
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
    put_fifth_bits(codes, &mut block[2..6]);
    put_nibbles(codes, &mut block[6..]);
}
