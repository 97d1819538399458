//! Q8_0: 32 values, a half scale `d` and 32 signed bytes; value = byte * d.

use pulp::Simd;

use crate::numeric::{half_at, inverse_or_zero, put_half};
use crate::search::Encode;

/// Values in a block.
pub const VALUES: usize = 32;
/// Bytes of a block: `d` at 0, codes at 2.
pub const BYTES: usize = 34;

/// Decodes a block.
#[inline]
pub fn dequantize(block: &[u8; BYTES], out: &mut [f32; VALUES]) {
    let d = half_at(block, 0);
    for (v, q) in out.iter_mut().zip(&block[2..]) {
        *v = f32::from(*q as i8) * d;
    }
}

pub(super) struct Format;

impl Encode for Format {
    #[inline(always)]
    fn encode<S: Simd>(_: S, src: &[f32], _: Option<&[f32]>, dst: &mut [u8]) {
        let blocks = dst.as_chunks_mut::<BYTES>().0;
        for (x, block) in src.as_chunks::<VALUES>().0.iter().zip(blocks) {
            put(x, block);
        }
    }
}

/// Encodes a block: `d = largest / 127`, codes rounded half away from zero.
#[inline(always)]
fn put(x: &[f32; VALUES], block: &mut [u8; BYTES]) {
    let mut lanes = [0.0f32; 8];
    for eight in x.as_chunks::<8>().0 {
        for (largest, v) in lanes.iter_mut().zip(eight) {
            let v = v.abs();
            *largest = if v > *largest { v } else { *largest };
        }
    }
    let largest = lanes
        .into_iter()
        .fold(0.0f32, |a, b| if b > a { b } else { a });
    let d = largest / 127.0;
    let inverse = inverse_or_zero(d);
    put_half(block, 0, d);
    for (q, v) in block[2..].iter_mut().zip(x) {
        // Adding the float below one half before cutting rounds halves away from zero and nothing
        // else up: 0.49999997 + 0.49999997 stays below 1.
        let v = v * inverse;
        *q = (v + 0.499_999_97_f32.copysign(v)) as i32 as u8;
    }
}
