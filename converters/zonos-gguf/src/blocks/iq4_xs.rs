//! IQ4_XS: 8 groups of 32 values, a half scale `d` and a 6-bit scale a group;
//! value = d (scale - 32) grid\[nibble\].

use super::iq4::{GRID, nearest_code, scales};
use super::legacy::{nibbles, put_nibbles};
use crate::numeric::{half_at, inverse_or_zero, nearest, peak, put_half, sum_of_squares};
use crate::search::{F4, gather, importance_weights, squares};

/// Values in a block.
pub const VALUES: usize = 256;
/// Bytes of a block: `d` at 0, upper bits of the scales at 2, lower bits at 4, nibbles at 8.
pub const BYTES: usize = 136;

/// The eight scales, 0..63 (32 stands for zero).
#[inline]
pub fn group_scales(block: &[u8; BYTES]) -> [u8; 8] {
    let upper = u16::from_le_bytes([block[2], block[3]]);
    let mut out = [0u8; 8];
    for (g, s) in out.iter_mut().enumerate() {
        let low = block[4 + g / 2] >> (4 * (g % 2)) & 15;
        *s = low | ((upper >> (2 * g) & 3) << 4) as u8;
    }
    out
}

/// Decodes a block.
#[inline]
pub fn dequantize(block: &[u8; BYTES], out: &mut [f32; VALUES]) {
    let d = half_at(block, 0);
    let groups = out.as_chunks_mut::<32>().0.iter_mut();
    let codes = block[8..].as_chunks::<16>().0;
    for ((values, qs), scale) in groups.zip(codes).zip(group_scales(block)) {
        let scale = d * (i32::from(scale) - 32) as f32;
        for (v, q) in values.iter_mut().zip(nibbles(qs)) {
            *v = scale * f32::from(GRID[usize::from(q & 15)]);
        }
    }
}

/// Encodes a block.
pub fn quantize(x: &[f32; VALUES], importance: Option<&[f32; VALUES]>, block: &mut [u8; BYTES]) {
    let groups = gather::<32>(x);
    let weights = match importance {
        None => squares(&groups),
        Some(w) => {
            let spread = [F4::splat(sum_of_squares(x) * (2.0 / VALUES as f32)); 2];
            importance_weights(&groups, &gather(w), &spread)
        }
    };
    let scale = scales(&groups, &weights);
    let d = -peak(&scale).1 / 32.0;
    let inverse = inverse_or_zero(d);
    put_half(block, 0, d);
    let (mut upper, mut lower) = (0u16, [0u8; 4]);
    for (g, (values, qs)) in x
        .as_chunks::<32>()
        .0
        .iter()
        .zip(block[8..].as_chunks_mut::<16>().0)
        .enumerate()
    {
        let l = nearest(inverse * scale[g]).clamp(-32, 31);
        // The codes follow the scale before it is rounded to a half.
        let inverse = inverse_or_zero(d * l as f32);
        put_nibbles(&values.map(|v| nearest_code(inverse * v)), qs);
        let l = (l + 32) as u16;
        upper |= (l >> 4) << (2 * g);
        lower[g / 2] |= ((l & 15) << (4 * (g % 2))) as u8;
    }
    block[2..4].copy_from_slice(&upper.to_le_bytes());
    block[4..8].copy_from_slice(&lower);
}
