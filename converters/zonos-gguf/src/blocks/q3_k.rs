//! Q3_K: 16 groups of 16 values with 6-bit scales; value = d (scale - 32) (code - 4), where the
//! code's upper bit lies apart.

use super::k::{add_bit, put_bit, put_two_bits, recode_signed, two_bits};
use crate::numeric::{half_at, half_bits, half_value, nearest, peak, sum_of_squares};
use crate::search::{F4, LANES, descent, gather, importance_weights, in_order, signed, sums};

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

/// Encodes a block.
pub fn quantize(x: &[f32; VALUES], importance: Option<&[f32; VALUES]>, block: &mut [u8; BYTES]) {
    let mut codes = [0u8; VALUES];
    let (d, scales) = match importance {
        None => plain(x, &mut codes),
        Some(w) => weighted(x, w, &mut codes),
    };
    let half = half_bits(d);
    for (g, (x, codes)) in x
        .as_chunks::<16>()
        .0
        .iter()
        .zip(codes.as_chunks_mut::<16>().0)
        .enumerate()
    {
        let step = half_value(half) * (i32::from(scales[g]) - 32) as f32;
        if step != 0.0 {
            recode_signed(x, step, TOP, codes);
        }
    }
    put_bit(&codes, 2, &mut block[..32]);
    put_two_bits(&codes, &mut block[32..96]);
    put_scales(&scales, &mut block[96..108]);
    block[108..].copy_from_slice(&half.to_le_bytes());
}

/// Coordinate descent in each group; the scales as 32nds of their peak.
fn plain(x: &[f32; VALUES], codes: &mut [u8; VALUES]) -> (f32, [u8; 16]) {
    let mut scale = [0.0f32; 16];
    for half in 0..2 {
        let (s, found) = descent(&gather::<16>(&x[128 * half..]));
        scale[LANES * half..][..LANES].copy_from_slice(&s);
        codes[128 * half..][..128].copy_from_slice(found.as_flattened());
    }
    let largest = peak(&scale).1;
    if largest == 0.0 {
        return (0.0, [0; 16]);
    }
    let inverse = -32.0 / largest;
    let scales = scale.map(|s| (i32::from(nearest(inverse * s) as i8).clamp(-32, 31) + 32) as u8);
    (1.0 / inverse, scales)
}

/// The signed search in each group, and once more on the scales.
fn weighted(
    x: &[f32; VALUES],
    importance: &[f32; VALUES],
    codes: &mut [u8; VALUES],
) -> (f32, [u8; 16]) {
    let spread = [F4::splat(2.0 * sum_of_squares(x) / VALUES as f32); 2];
    let (mut scale, mut weight) = ([0.0f32; 128], [0.0f32; 128]);
    for half in 0..2 {
        let part = &x[128 * half..][..128];
        let groups = gather::<16>(part);
        let weights = importance_weights(&groups, &gather(&importance[128 * half..]), &spread);
        let found = signed(&groups, &weights, TOP);
        scale[LANES * half..][..LANES].copy_from_slice(&found.scale);
        weight[LANES * half..][..LANES].copy_from_slice(&in_order(&sums(&weights)));
        for (i, v) in part.iter().enumerate() {
            codes[128 * half + i] = found.code(i / 16, *v);
        }
    }
    // The sixteen scales are one group; the seven others are zeros.
    let found = signed::<16>(&gather(&scale), &gather(&weight), 32);
    let mut scales = [0u8; 16];
    for (code, s) in scales.iter_mut().zip(scale) {
        *code = found.code(0, s);
    }
    (found.scale[0], scales)
}

fn put_scales(scales: &[u8; 16], out: &mut [u8]) {
    out.fill(0);
    for j in 0..16 {
        out[j % 8] |= (scales[j] & 15) << (4 * (j / 8));
        out[8 + j % 4] |= (scales[j] >> 4) << (2 * (j / 4));
    }
}
