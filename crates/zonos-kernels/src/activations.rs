//! How activations meet weights that are stored in blocks.

use zonos_gguf::GgmlType;

/// What becomes of the activations before they are multiplied with a weight that is stored in blocks
/// ([`GgmlType::is_quantized`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Activations {
    /// They stay f32: the product is that of the dequantised weight, to f32 rounding.
    Exact,
    /// Each run of 32 values is rounded to 8 bits with a scale of its own, once a row, and sums run in
    /// integers. The product is off by some tenths of a percent of its root mean square, less than
    /// the weight's own rounding.
    EightBit,
}

impl Activations {
    /// What to use where nobody chose: exact activations wherever they cost less than a tenth of the
    /// speed, so rounded ones for every format of blocks.
    ///
    /// Q8_0 is the nearest: at one row and with weights from memory, exact products read them at 0.5 to 0.7 of
    /// the rate of rounded ones, and with more rows at less. Formats of six bits and below come faster than a
    /// processor turns their codes into floats: exact products reach 0.3 (Q2_K) to 0.6 (Q6_K) of the rate.
    pub fn default_for(ggml_type: GgmlType) -> Self {
        if ggml_type.is_quantized() {
            Self::EightBit
        } else {
            Self::Exact
        }
    }
}

/// Values that share a scale when activations are rounded.
pub(crate) const ROUNDED: usize = 32;
/// Magnitudes below this count as zero when activations are rounded: their scale would not be a normal
/// number.
pub(crate) const NOTHING: f32 = 1e-36;

/// The scale of some activations, and what to multiply them with before rounding. The scale is NaN if any
/// value is, infinite if any is infinite.
#[inline(always)]
pub(crate) fn scale_of(x: &[f32]) -> (f32, f32) {
    // As integers, magnitudes of floats are in order, infinity and then NaN above all numbers.
    let largest = x
        .iter()
        .fold(0, |m, v| m.max(v.to_bits() as i32 & i32::MAX));
    let largest = f32::from_bits(largest as u32);
    if largest < NOTHING {
        (0.0, 0.0)
    } else {
        (largest / 127.0, 127.0 / largest)
    }
}

/// The code of a value: the nearest integer, ties to even.
#[inline(always)]
pub(crate) fn code_of(x: f32, inverse: f32) -> i8 {
    // Adding 1.5 * 2^23 leaves the integer in the low bits.
    (x * inverse + 12_582_912.0).to_bits() as i8
}

/// A row as [`Activations::EightBit`] sees it.
pub(crate) fn rounded(row: &mut [f32]) {
    for x in row.chunks_mut(ROUNDED) {
        let (scale, inverse) = scale_of(x);
        for v in x {
            *v = scale * f32::from(code_of(*v, inverse));
        }
    }
}
