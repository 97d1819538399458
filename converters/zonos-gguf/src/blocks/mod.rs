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
        GgmlType::Q8_0 => made(src, dst, q8_0::quantize),
        GgmlType::Q4_0 => q4_0::quantize_row(src, importance, dst),
        GgmlType::Q4_1 => q4_1::quantize_row(src, importance, dst),
        GgmlType::Q5_0 => q5_0::quantize_row(src, importance, dst),
        GgmlType::Q5_1 => q5_1::quantize_row(src, importance, dst),
        GgmlType::Q2K => weighed(src, importance, dst, q2_k::quantize),
        GgmlType::Q3K => weighed(src, importance, dst, q3_k::quantize),
        GgmlType::Q4K => weighed(src, importance, dst, q4_k::quantize),
        GgmlType::Q5K => weighed(src, importance, dst, q5_k::quantize),
        GgmlType::Q6K => weighed(src, importance, dst, q6_k::quantize),
        GgmlType::Iq4Nl => iq4_nl::quantize_row(src, importance, dst),
        GgmlType::Iq4Xs => weighed(src, importance, dst, iq4_xs::quantize),
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

/// Encodes block after block.
#[inline(always)]
fn made<const VALUES: usize, const BYTES: usize>(
    src: &[f32],
    dst: &mut [u8],
    one: impl Fn(&[f32; VALUES], &mut [u8; BYTES]),
) {
    let values = src.as_chunks::<VALUES>().0;
    for (x, block) in values.iter().zip(dst.as_chunks_mut::<BYTES>().0) {
        one(x, block);
    }
}

/// Encodes block after block, each with its importances.
#[inline(always)]
fn weighed<const VALUES: usize, const BYTES: usize>(
    src: &[f32],
    importance: Option<&[f32]>,
    dst: &mut [u8],
    one: impl Fn(&[f32; VALUES], Option<&[f32; VALUES]>, &mut [u8; BYTES]),
) {
    let values = src.as_chunks::<VALUES>().0;
    let weights = importance.map(|w| w.as_chunks::<VALUES>().0);
    for (i, (x, block)) in values
        .iter()
        .zip(dst.as_chunks_mut::<BYTES>().0)
        .enumerate()
    {
        one(x, weights.and_then(|w| w.get(i)), block);
    }
}
