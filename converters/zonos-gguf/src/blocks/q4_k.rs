//! Q4_K: 8 groups of 32 values with 6-bit scales and minima, 4-bit codes;
//! value = d scale code - dmin minimum.

use pulp::Simd;

use super::k::{Spec, affine_groups, choose, nibbles, packed_scales, put_nibbles, scales};
use crate::numeric::half_at;
use crate::search::{Encode, Grid, Weights};

/// Values in a block.
pub const VALUES: usize = super::k::VALUES;
/// Bytes of a block: `d` at 0, `dmin` at 2, scales at 4, nibbles at 16.
pub const BYTES: usize = 144;

const SPEC: Spec<8> = Spec {
    top: 15,
    cap: 63,
    limits: [63, 255],
    stored: |sc, mn| scales(&packed_scales(sc, mn)),
    plain: Grid {
        first: -1.0,
        step: 0.1,
        steps: 20,
    },
    spread: 2.0,
    weights: Weights::RmsAndMagnitudes,
};

/// The eight scales and the eight minima, 0..63.
#[inline]
pub fn scales_and_minima(block: &[u8; BYTES]) -> ([u8; 8], [u8; 8]) {
    let mut packed = [0u8; 12];
    packed.copy_from_slice(&block[4..16]);
    scales(&packed)
}

/// Decodes a block.
#[inline]
pub fn dequantize(block: &[u8; BYTES], out: &mut [f32; VALUES]) {
    let scales = scales_and_minima(block);
    let codes = nibbles(&block[16..]);
    affine_groups([half_at(block, 0), half_at(block, 2)], scales, &codes, out);
}

pub(super) struct Format;

impl Encode for Format {
    #[inline(always)]
    fn encode<S: Simd>(simd: S, src: &[f32], importance: Option<&[f32]>, dst: &mut [u8]) {
        let blocks = dst.as_chunks_mut::<BYTES>().0;
        choose::<S, 8, 32, false>(simd, src, importance, &SPEC, |i, parts| {
            let block = &mut blocks[i];
            block[..2].copy_from_slice(&parts.d.to_le_bytes());
            block[2..4].copy_from_slice(&parts.dmin.to_le_bytes());
            block[4..16].copy_from_slice(&packed_scales(&parts.sc, &parts.mn));
            put_nibbles(&parts.codes, &mut block[16..]);
        });
    }
}
