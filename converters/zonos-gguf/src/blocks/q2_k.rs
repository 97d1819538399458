//! Q2_K: 16 groups of 16 values with 4-bit scales and minima; value = d scale code - dmin minimum.

use pulp::Simd;

use super::k::{Spec, choose, put_two_bits, two_bits};
use crate::numeric::half_at;
use crate::search::{Encode, Grid, Weights};

/// Values in a block.
pub const VALUES: usize = super::k::VALUES;
/// Bytes of a block: scales (low nibble) and minima at 0, codes at 16, `d` at 80, `dmin` at 82.
pub const BYTES: usize = 84;

const SPEC: Spec<16> = Spec {
    top: 3,
    cap: 15,
    limits: [255, 255],
    stored: read_back,
    plain: Grid {
        first: -0.5,
        step: 0.1,
        steps: 15,
    },
    spread: 1.0,
    weights: Weights::Magnitudes,
};

/// What the two nibbles keep.
fn read_back(sc: &[u8; 16], mn: &[u8; 16]) -> ([u8; 16], [u8; 16]) {
    let (mut scales, mut minima) = (*sc, *mn);
    for (s, m) in scales.iter_mut().zip(&mut minima) {
        let byte = *s | *m << 4;
        (*s, *m) = (byte & 15, byte >> 4);
    }
    (scales, minima)
}

/// Decodes a block.
#[inline]
pub fn dequantize(block: &[u8; BYTES], out: &mut [f32; VALUES]) {
    let (d, dmin) = (half_at(block, 80), half_at(block, 82));
    let codes = two_bits(&block[16..80]);
    let groups = out.as_chunks_mut::<16>().0.iter_mut();
    for ((values, codes), s) in groups.zip(codes.as_chunks::<16>().0).zip(&block[..16]) {
        let (scale, low) = (d * f32::from(s & 15), dmin * f32::from(s >> 4));
        for (v, q) in values.iter_mut().zip(codes) {
            *v = scale * f32::from(*q) - low;
        }
    }
}

pub(super) struct Format;

impl Encode for Format {
    #[inline(always)]
    fn encode<S: Simd>(simd: S, src: &[f32], importance: Option<&[f32]>, dst: &mut [u8]) {
        let blocks = dst.as_chunks_mut::<BYTES>().0;
        choose::<S, 16, 16, true>(simd, src, importance, &SPEC, |i, parts| {
            let block = &mut blocks[i];
            for (s, (scale, low)) in block.iter_mut().zip(parts.sc.iter().zip(parts.mn)) {
                *s = scale | low << 4;
            }
            put_two_bits(&parts.codes, &mut block[16..80]);
            block[80..82].copy_from_slice(&parts.d.to_le_bytes());
            block[82..84].copy_from_slice(&parts.dmin.to_le_bytes());
        });
    }
}
