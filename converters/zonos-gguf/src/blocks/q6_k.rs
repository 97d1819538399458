//! Q6_K: 16 groups of 16 values with 8-bit scales; value = d scale (code - 32).

use pulp::Simd;

use super::k::{SPAN, TOGETHER, narrow, put_two_bits, recode_signed, two_bits};
use crate::numeric::{ZERO_GROUP, half_at, half_bits, half_value, nearest, peak};
use crate::search::{Encode, Signed, Weights, signed};

/// Values in a block.
pub const VALUES: usize = super::k::VALUES;
/// Bytes of a block: nibbles at 0, upper two bits at 128, scales at 192, `d` at 208.
pub const BYTES: usize = 210;

const TOP: i32 = 32;

/// Decodes a block.
#[inline]
pub fn dequantize(block: &[u8; BYTES], out: &mut [f32; VALUES]) {
    let d = half_at(block, 208);
    let mut codes = two_bits(&block[128..192]).map(|q| q << 4);
    let halves = codes.as_chunks_mut::<128>().0.iter_mut();
    for (codes, low) in halves.zip(block[..128].as_chunks::<64>().0) {
        for l in 0..64 {
            codes[l] |= low[l] & 15;
            codes[l + 64] |= low[l] >> 4;
        }
    }
    let groups = out.as_chunks_mut::<16>().0.iter_mut();
    for ((values, codes), s) in groups.zip(codes.as_chunks::<16>().0).zip(&block[192..208]) {
        let scale = d * f32::from(*s as i8);
        for (v, q) in values.iter_mut().zip(codes) {
            *v = scale * (i32::from(*q) - TOP) as f32;
        }
    }
}

pub(super) struct Format;

impl Encode for Format {
    #[inline(always)]
    fn encode<S: Simd>(simd: S, src: &[f32], importance: Option<&[f32]>, dst: &mut [u8]) {
        let parts = src.chunks(SPAN).zip(dst.chunks_mut(TOGETHER * BYTES));
        for (part, (x, out)) in parts.enumerate() {
            let weights = match importance {
                None => Weights::Squares,
                Some(w) => Weights::Given(&w[part * SPAN..][..x.len()]),
            };
            let found = signed::<S, 16>(simd, x, weights, TOP);
            let blocks = x.as_chunks::<VALUES>().0.iter();
            for (i, (x, block)) in blocks.zip(out.as_chunks_mut::<BYTES>().0).enumerate() {
                put(simd, x, &found, 16 * i, block);
            }
        }
    }
}

/// Encodes a block whose groups, from `first` on, are `found`.
#[inline(always)]
fn put<S: Simd>(simd: S, x: &[f32; VALUES], found: &Signed, first: usize, block: &mut [u8; BYTES]) {
    let scale = &found.scale[first..first + 16];
    let (largest, peak) = peak(scale);
    if largest < ZERO_GROUP {
        block.fill(0);
        return;
    }
    let inverse = -128.0 / peak;
    let half = half_bits(1.0 / inverse);
    let mut scales = [0i8; 16];
    for (l, s) in scales.iter_mut().zip(scale) {
        *l = nearest(inverse * s).min(127) as i8;
    }
    let mut codes = [0u32; VALUES];
    for (g, (x, codes)) in x
        .as_chunks::<16>()
        .0
        .iter()
        .zip(codes.as_chunks_mut::<16>().0)
        .enumerate()
    {
        let step = half_value(half) * f32::from(scales[g]);
        if step != 0.0 {
            recode_signed(simd, x, step, TOP, codes);
        } else {
            *codes = x.map(|v| found.code(first + g, v).into());
        }
    }
    let codes = narrow(&codes);
    let halves = codes.as_chunks::<128>().0.iter();
    for (codes, low) in halves.zip(block[..128].as_chunks_mut::<64>().0) {
        for l in 0..64 {
            low[l] = (codes[l] & 15) | (codes[l + 64] & 15) << 4;
        }
    }
    put_two_bits(&codes.map(|q| q >> 4), &mut block[128..192]);
    for (s, out) in scales.iter().zip(&mut block[192..208]) {
        *out = *s as u8;
    }
    block[208..].copy_from_slice(&half.to_le_bytes());
}
