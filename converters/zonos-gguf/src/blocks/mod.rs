//! One file a format: where the bits of a block lie, what value they stand for, how they are chosen.
//!
//! Decoding is exact: a half times a small integer times a small integer fits the 24 bits of a
//! float, so neither order nor fused multiplication matters. Choosing is the reference's search to
//! the bit; where the reference divides by a subnormal or converts a float out of range, which C
//! leaves undefined, no particular bytes are promised.

mod bfloat16;
mod float16;
mod float32;
pub mod iq4;
pub mod iq4_nl;
pub mod iq4_xs;
mod k;
mod legacy;
pub mod q2_k;
pub mod q3_k;
pub mod q4_0;
pub mod q4_1;
pub mod q4_k;
pub mod q5_0;
pub mod q5_1;
pub mod q5_k;
pub mod q6_k;
pub mod q8_0;

use crate::GgmlType;
use crate::search::encode;

/// Why a row cannot be decoded or made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BlockError {
    /// The type is known by name only.
    #[error("type {0} is listed only; it can be neither decoded nor made here")]
    Unsupported(GgmlType),
    /// The row does not fill whole blocks.
    #[error("a row of {values} values is not a multiple of {block}, the block size of {ggml_type}")]
    NotWholeBlocks {
        /// The type.
        ggml_type: GgmlType,
        /// Values in the row.
        values: usize,
        /// Values in a block.
        block: usize,
    },
    /// The two sides do not belong together.
    #[error("{values} values of type {ggml_type} take {expected} bytes, found {found}")]
    Length {
        /// The type.
        ggml_type: GgmlType,
        /// Values on the one side.
        values: usize,
        /// Bytes they take.
        expected: usize,
        /// Bytes on the other side.
        found: usize,
    },
    /// The importances are not one for each value of the row.
    #[error("a row of {values} values needs as many importances, found {found}")]
    Importance {
        /// Values in the row.
        values: usize,
        /// Importances given.
        found: usize,
    },
}

/// Decodes `src` (whole blocks) into `dst`, exactly.
///
/// # Errors
/// If the type is listed only, or the two lengths do not belong together.
pub fn dequantize_row(ggml_type: GgmlType, src: &[u8], dst: &mut [f32]) -> Result<(), BlockError> {
    check(ggml_type, dst.len(), src.len())?;
    match ggml_type {
        GgmlType::F32 => float32::dequantize_row(src, dst),
        GgmlType::F16 => float16::dequantize_row(src, dst),
        GgmlType::Bf16 => bfloat16::dequantize_row(src, dst),
        GgmlType::Q8_0 => each(src, dst, q8_0::dequantize),
        GgmlType::Q4_0 => each(src, dst, q4_0::dequantize),
        GgmlType::Q4_1 => each(src, dst, q4_1::dequantize),
        GgmlType::Q5_0 => each(src, dst, q5_0::dequantize),
        GgmlType::Q5_1 => each(src, dst, q5_1::dequantize),
        GgmlType::Q2K => each(src, dst, q2_k::dequantize),
        GgmlType::Q3K => each(src, dst, q3_k::dequantize),
        GgmlType::Q4K => each(src, dst, q4_k::dequantize),
        GgmlType::Q5K => each(src, dst, q5_k::dequantize),
        GgmlType::Q6K => each(src, dst, q6_k::dequantize),
        GgmlType::Iq4Nl => each(src, dst, iq4_nl::dequantize),
        GgmlType::Iq4Xs => each(src, dst, iq4_xs::dequantize),
        other => return Err(BlockError::Unsupported(other)),
    }
    Ok(())
}

/// Encodes the row `src` into `dst`. `importance` has one number for each value; F32, F16, BF16 and
/// Q8_0 ignore it. The row has to be whole, as Q4_0..Q5_1 weigh importances by its mean square.
///
/// Any input gives bytes, without a panic; values that are not finite, or too large for a half
/// scale (above about 65504 times the largest code), come back as infinities or NaN.
///
/// # Errors
/// If the type is listed only, the row does not fill whole blocks, or lengths do not belong together.
pub fn quantize_row(
    ggml_type: GgmlType,
    src: &[f32],
    importance: Option<&[f32]>,
    dst: &mut [u8],
) -> Result<(), BlockError> {
    check(ggml_type, src.len(), dst.len())?;
    if let Some(found) = importance.map(<[f32]>::len).filter(|&n| n != src.len()) {
        return Err(BlockError::Importance {
            values: src.len(),
            found,
        });
    }
    match ggml_type {
        GgmlType::F32 => float32::quantize_row(src, dst),
        GgmlType::F16 => float16::quantize_row(src, dst),
        GgmlType::Bf16 => bfloat16::quantize_row(src, dst),
        GgmlType::Q8_0 => encode::<q8_0::Format>(src, importance, dst),
        GgmlType::Q4_0 => encode::<q4_0::Format>(src, importance, dst),
        GgmlType::Q4_1 => encode::<q4_1::Format>(src, importance, dst),
        GgmlType::Q5_0 => encode::<q5_0::Format>(src, importance, dst),
        GgmlType::Q5_1 => encode::<q5_1::Format>(src, importance, dst),
        GgmlType::Q2K => encode::<q2_k::Format>(src, importance, dst),
        GgmlType::Q3K => encode::<q3_k::Format>(src, importance, dst),
        GgmlType::Q4K => encode::<q4_k::Format>(src, importance, dst),
        GgmlType::Q5K => encode::<q5_k::Format>(src, importance, dst),
        GgmlType::Q6K => encode::<q6_k::Format>(src, importance, dst),
        GgmlType::Iq4Nl => encode::<iq4_nl::Format>(src, importance, dst),
        GgmlType::Iq4Xs => encode::<iq4_xs::Format>(src, importance, dst),
        other => return Err(BlockError::Unsupported(other)),
    }
    Ok(())
}

fn check(ggml_type: GgmlType, values: usize, bytes: usize) -> Result<(), BlockError> {
    if !ggml_type.is_readable() {
        return Err(BlockError::Unsupported(ggml_type));
    }
    let block = ggml_type.block_values();
    if !values.is_multiple_of(block) {
        return Err(BlockError::NotWholeBlocks {
            ggml_type,
            values,
            block,
        });
    }
    let expected = values / block * ggml_type.block_bytes();
    if expected != bytes {
        return Err(BlockError::Length {
            ggml_type,
            values,
            expected,
            found: bytes,
        });
    }
    Ok(())
}

/// Decodes block after block.
#[inline(always)]
fn each<const BYTES: usize, const VALUES: usize>(
    src: &[u8],
    dst: &mut [f32],
    one: impl Fn(&[u8; BYTES], &mut [f32; VALUES]),
) {
    let blocks = src.as_chunks::<BYTES>().0;
    for (block, out) in blocks.iter().zip(dst.as_chunks_mut::<VALUES>().0) {
        one(block, out);
    }
}

#[cfg(test)]
mod tests {
    use pulp::Arch;

    use super::*;
    use crate::search::{Encode, encode_on};

    /// Every instruction set that this processor has, the plain one first.
    fn sets() -> Vec<Arch> {
        let mut sets = vec![Arch::Scalar];
        #[cfg(target_arch = "x86_64")]
        {
            sets.extend(pulp::x86::V3::try_new().map(Arch::V3));
            sets.extend(pulp::x86::V4::try_new().map(Arch::V4));
        }
        #[cfg(target_arch = "aarch64")]
        sets.push(Arch::new());
        sets
    }

    fn same_bytes<E: Encode>(name: &str, x: &[f32], w: &[f32], bytes: usize) {
        for importance in [None, Some(w)] {
            let of = |arch| {
                let mut out = vec![0; bytes];
                encode_on::<E>(arch, x, importance, &mut out);
                out
            };
            let plain = of(Arch::Scalar);
            for arch in sets() {
                assert!(
                    of(arch) == plain,
                    "{name}, {arch:?}, {}",
                    importance.is_some()
                );
            }
        }
    }

    /// A row of nine blocks: what is searched together is whole for no register.
    #[test]
    fn all_instruction_sets_make_the_same_bytes() {
        let mut state = 1u64;
        let mut number = || {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (state >> 40) as f32 / (1 << 24) as f32 - 0.5
        };
        let x: Vec<f32> = (0..9 * 256)
            .map(|i| number() * if i % 300 < 20 { 0.0 } else { 0.1 })
            .collect();
        let w: Vec<f32> = (0..9 * 256).map(|_| number().powi(2)).collect();
        macro_rules! check {
            ($($format:ident)*) => {$(
                let bytes = x.len() / $format::VALUES * $format::BYTES;
                same_bytes::<$format::Format>(stringify!($format), &x, &w, bytes);
            )*};
        }
        check!(q8_0 q4_0 q4_1 q5_0 q5_1 q2_k q3_k q4_k q5_k q6_k iq4_nl iq4_xs);
    }
}
