//! What Q4_0, Q4_1, Q5_0 and Q5_1 share: 32 codes, the lower four bits as nibbles (first half of
//! the block in the low ones), the fifth bits in a word.

use pulp::Simd;

use crate::numeric::sum_of_squares;
use crate::search::{Each, Grid, MOST, Weights, affine, signed};

/// Values in a block of any of the four.
pub(super) const VALUES: usize = 32;

/// Values whose blocks are searched together.
pub(super) const SPAN: usize = 1024;

/// With importance the affine types use one grid.
const WEIGHTED: Grid = Grid {
    first: -0.9,
    step: 0.05,
    steps: 36,
};

/// The nibble of code `i`, for all of them.
#[inline(always)]
pub(super) fn nibbles(qs: &[u8]) -> [u8; VALUES] {
    let mut out = [0u8; VALUES];
    for (i, &b) in qs.iter().take(16).enumerate() {
        out[i] = b & 15;
        out[i + 16] = b >> 4;
    }
    out
}

/// The five-bit codes.
#[inline(always)]
pub(super) fn five_bits(high: &[u8], qs: &[u8]) -> [u8; VALUES] {
    let high = u32::from_le_bytes([high[0], high[1], high[2], high[3]]);
    let mut out = nibbles(qs);
    for (i, q) in out.iter_mut().enumerate() {
        *q |= ((high >> i & 1) << 4) as u8;
    }
    out
}

/// Packs the lower four bits.
#[inline(always)]
pub(super) fn put_nibbles(codes: &[u8; VALUES], qs: &mut [u8]) {
    for (i, b) in qs.iter_mut().take(16).enumerate() {
        *b = (codes[i] & 15) | (codes[i + 16] & 15) << 4;
    }
}

/// Packs the fifth bits.
#[inline(always)]
pub(super) fn put_fifth_bits(codes: &[u8; VALUES], high: &mut [u8]) {
    let mut word = 0u32;
    for (i, q) in codes.iter().enumerate() {
        word |= u32::from(q >> 4 & 1) << i;
    }
    high[..4].copy_from_slice(&word.to_le_bytes());
}

/// Codes by one scale: `min(2 top - 1, trunc(x / d + top + 1/2))`, `d = peak / -top`.
#[inline(always)]
fn signed_codes(x: &[f32; VALUES], top: i32) -> (f32, [u8; VALUES]) {
    let d = crate::numeric::peak_of(x) / -(top as f32);
    let inverse = crate::numeric::inverse_or_zero(d);
    let mut codes = [0u8; VALUES];
    for (q, v) in codes.iter_mut().zip(x) {
        *q = ((v * inverse + (top as f32 + 0.5)) as i32).min(2 * top - 1) as u8;
    }
    (d, codes)
}

/// Codes by minimum and scale: `min(top, trunc((x - m) / d + 1/2))`. Returns `(d, m, codes)`.
#[inline(always)]
fn affine_codes(x: &[f32; VALUES], top: i32) -> (f32, f32, [u8; VALUES]) {
    let (low, high) = crate::numeric::range_of(x);
    let d = (high - low) / top as f32;
    let inverse = crate::numeric::inverse_or_zero(d);
    let mut codes = [0u8; VALUES];
    for (q, v) in codes.iter_mut().zip(x) {
        *q = (((v - low) * inverse + 0.5) as i32).min(top) as u8;
    }
    (d, low, codes)
}

/// Codes by one scale for each block of the row, weighted where there is importance: `put(block, scale,
/// codes)`.
#[inline(always)]
pub(super) fn signed_row<S: Simd>(
    simd: S,
    src: &[f32],
    importance: Option<&[f32]>,
    top: i32,
    mut put: impl FnMut(usize, f32, &[u8; VALUES]),
) {
    let Some(importance) = importance else {
        for (block, x) in src.as_chunks::<VALUES>().0.iter().enumerate() {
            let (d, codes) = signed_codes(x, top);
            put(block, d, &codes);
        }
        return;
    };
    let spread: Each = [sum_of_squares(src) / src.len() as f32; MOST];
    for (part, (x, w)) in src.chunks(SPAN).zip(importance.chunks(SPAN)).enumerate() {
        let weights = Weights::Spread(w, &spread);
        let found = signed::<S, VALUES>(simd, x, weights, top);
        for (lane, block) in x.as_chunks::<VALUES>().0.iter().enumerate() {
            let codes = block.map(|v| found.code(lane, v));
            put(part * (SPAN / VALUES) + lane, found.scale[lane], &codes);
        }
    }
}

/// Codes by minimum and scale for each block of the row, weighted where there is importance: `put(block,
/// scale, minimum, codes)`.
#[inline(always)]
pub(super) fn affine_row<S: Simd>(
    simd: S,
    src: &[f32],
    importance: Option<&[f32]>,
    top: i32,
    mut put: impl FnMut(usize, f32, f32, &[u8; VALUES]),
) {
    let Some(importance) = importance else {
        for (block, x) in src.as_chunks::<VALUES>().0.iter().enumerate() {
            let (d, m, codes) = affine_codes(x, top);
            put(block, d, m, &codes);
        }
        return;
    };
    let spread: Each = [sum_of_squares(src) / src.len() as f32; MOST];
    for (part, (x, w)) in src.chunks(SPAN).zip(importance.chunks(SPAN)).enumerate() {
        let weights = Weights::Spread(w, &spread);
        let found = affine::<S, VALUES, false>(simd, x, weights, top, WEIGHTED);
        for (lane, block) in x.as_chunks::<VALUES>().0.iter().enumerate() {
            let codes = block.map(|v| found.code(lane, v));
            put(
                part * (SPAN / VALUES) + lane,
                found.scale[lane],
                -found.min[lane],
                &codes,
            );
        }
    }
}
