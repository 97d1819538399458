//! IQ4_XS: 8 groups of 32 values, a half scale `d` and a 6-bit scale a group;
//! value = d (scale - 32) grid\[nibble\].

use pulp::Simd;

use super::iq4::{GRID, scales};
use super::iq4_nl::codes;
use super::k::{SPAN, squares_of_blocks};
use super::legacy::{nibbles, put_nibbles};
use crate::numeric::{half_at, inverse_or_zero, nearest, peak, put_half};
use crate::search::{Each, Encode, MOST, Weights};

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

pub(super) struct Format;

impl Encode for Format {
    #[inline(always)]
    fn encode<S: Simd>(simd: S, src: &[f32], importance: Option<&[f32]>, dst: &mut [u8]) {
        let parts = src.chunks(SPAN).zip(dst.chunks_mut(SPAN / VALUES * BYTES));
        for (part, (x, out)) in parts.enumerate() {
            let mut spread: Each = [0.0; MOST];
            let weights = match importance {
                None => Weights::Squares,
                Some(w) => {
                    let squares = squares_of_blocks(x);
                    for (g, spread) in spread.iter_mut().take(4 * 8).enumerate() {
                        *spread = squares[g / 8] * (2.0 / VALUES as f32);
                    }
                    Weights::Spread(&w[part * SPAN..][..x.len()], &spread)
                }
            };
            let scale = scales::<S, 32>(simd, x, weights);
            let blocks = x.as_chunks::<VALUES>().0.iter();
            for ((x, scale), block) in blocks
                .zip(scale.as_chunks::<8>().0)
                .zip(out.as_chunks_mut::<BYTES>().0)
            {
                put(x, scale, block);
            }
        }
    }
}

/// Encodes a block whose scales are found.
#[inline(always)]
fn put(x: &[f32; VALUES], scale: &[f32; 8], block: &mut [u8; BYTES]) {
    let d = -peak(scale).1 / 32.0;
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
        put_nibbles(&codes(values, inverse_or_zero(d * l as f32)), qs);
        let l = (l + 32) as u16;
        upper |= (l >> 4) << (2 * g);
        lower[g / 2] |= ((l & 15) << (4 * (g % 2))) as u8;
    }
    block[2..4].copy_from_slice(&upper.to_le_bytes());
    block[4..8].copy_from_slice(&lower);
}
