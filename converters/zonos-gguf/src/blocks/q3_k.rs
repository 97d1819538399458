//! Q3_K: 16 groups of 16 values with 6-bit scales; value = d (scale - 32) (code - 4), where the
//! code's upper bit lies apart.

use pulp::Simd;

use super::k::{
    SPAN, TOGETHER, add_bit, narrow, put_bit, put_two_bits, recode_signed, squares_of_blocks,
    two_bits,
};
use crate::numeric::{half_at, half_bits, half_value, nearest, peak};
use crate::search::{Descent, Each, Encode, MOST, Weights, signed};

/// Values in a block.
pub const VALUES: usize = super::k::VALUES;
/// Bytes of a block: upper bits at 0, lower two bits at 32, scales at 96, `d` at 108.
pub const BYTES: usize = 110;

const TOP: i32 = 4;

/// The sixteen scales, 0..63 (32 stands for zero).
#[inline]
pub fn group_scales(block: &[u8; BYTES]) -> [u8; 16] {
    let sc = &block[96..108];
    let mut out = [0u8; 16];
    for j in 0..16 {
        let low = sc[j % 8] >> (4 * (j / 8)) & 15;
        out[j] = low | (sc[8 + j % 4] >> (2 * (j / 4)) & 3) << 4;
    }
    out
}

/// Decodes a block.
#[inline]
pub fn dequantize(block: &[u8; BYTES], out: &mut [f32; VALUES]) {
    let d = half_at(block, 108);
    let mut codes = two_bits(&block[32..96]);
    add_bit(&block[..32], 2, &mut codes);
    let groups = out.as_chunks_mut::<16>().0.iter_mut();
    for ((values, codes), s) in groups
        .zip(codes.as_chunks::<16>().0)
        .zip(group_scales(block))
    {
        let scale = d * (i32::from(s) - 32) as f32;
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
        let mut found = Descent::new();
        for (part, (x, out)) in parts.enumerate() {
            let out = out.as_chunks_mut::<BYTES>().0;
            match importance {
                None => plain(simd, x, &mut found, out),
                Some(w) => weighted(simd, x, &w[part * SPAN..][..x.len()], out),
            }
        }
    }
}

/// Coordinate descent in each group; the scales as 32nds of their peak.
#[inline(always)]
fn plain<S: Simd>(simd: S, x: &[f32], found: &mut Descent<16>, out: &mut [[u8; BYTES]]) {
    found.search(simd, x);
    let blocks = x.as_chunks::<VALUES>().0.iter().zip(out);
    for (i, (x, block)) in blocks.enumerate() {
        let scale = &found.scale[16 * i..][..16];
        let largest = peak(scale).1;
        let (mut d, mut scales) = (0.0, [0; 16]);
        if largest != 0.0 {
            let inverse = -32.0 / largest;
            d = 1.0 / inverse;
            for (l, s) in scales.iter_mut().zip(scale) {
                *l = (i32::from(nearest(inverse * s) as i8).clamp(-32, 31) + 32) as u8;
            }
        }
        put(simd, x, d, &scales, |g, _| found.codes(16 * i + g), block);
    }
}

/// The signed search in each group, and once more on the scales.
#[inline(always)]
fn weighted<S: Simd>(simd: S, x: &[f32], importance: &[f32], out: &mut [[u8; BYTES]]) {
    let mut spread: Each = [0.0; MOST];
    let squares = squares_of_blocks(x);
    for (g, spread) in spread.iter_mut().enumerate() {
        *spread = 2.0 * squares[g / 16] / VALUES as f32;
    }
    let weights = Weights::Spread(importance, &spread);
    let found = signed::<S, 16>(simd, x, weights, TOP);
    // The sixteen scales of a block are one group.
    let groups = x.len() / 16;
    let (scale, weight) = (&found.scale[..groups], &found.weight[..groups]);
    let scales = signed::<S, 16>(simd, scale, Weights::Given(weight), 32);
    let blocks = x.as_chunks::<VALUES>().0.iter().zip(out);
    for (i, (x, block)) in blocks.enumerate() {
        let mut l = [0u8; 16];
        for (l, s) in l.iter_mut().zip(&scale[16 * i..]) {
            *l = scales.code(i, *s);
        }
        let code = |g: usize, x: &[f32; 16]| x.map(|v| found.code(16 * i + g, v));
        put(simd, x, scales.scale[i], &l, code, block);
    }
}

/// Encodes a block whose scales are found; `code` gives the codes of a group that has a stored scale of
/// zero.
#[inline(always)]
fn put<S: Simd>(
    simd: S,
    x: &[f32; VALUES],
    d: f32,
    scales: &[u8; 16],
    code: impl Fn(usize, &[f32; 16]) -> [u8; 16],
    block: &mut [u8; BYTES],
) {
    let mut codes = [0u32; VALUES];
    let half = half_bits(d);
    let d = half_value(half);
    let groups = codes.as_chunks_mut::<16>().0.iter_mut();
    for (g, (x, codes)) in x.as_chunks::<16>().0.iter().zip(groups).enumerate() {
        let step = d * (i32::from(scales[g]) - 32) as f32;
        if step != 0.0 {
            recode_signed(simd, x, step, TOP, codes);
        } else {
            *codes = code(g, x).map(u32::from);
        }
    }
    let codes = narrow(&codes);
    put_bit(&codes, 2, &mut block[..32]);
    put_two_bits(&codes, &mut block[32..96]);
    put_scales(scales, &mut block[96..108]);
    block[108..].copy_from_slice(&half.to_le_bytes());
}

#[inline(always)]
fn put_scales(scales: &[u8; 16], out: &mut [u8]) {
    out.fill(0);
    for j in 0..16 {
        out[j % 8] |= (scales[j] & 15) << (4 * (j / 8));
        out[8 + j % 4] |= (scales[j] >> 4) << (2 * (j / 4));
    }
}
