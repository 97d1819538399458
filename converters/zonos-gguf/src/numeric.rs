//! Rounding, exactly as the reference does it.

use half::f16;

/// 1.5 * 2^23: adding it leaves the nearest integer in the low bits of the mantissa.
pub(crate) const MAGIC: f32 = 12_582_912.0;

/// Groups whose largest magnitude is below this count as zero.
pub(crate) const ZERO_GROUP: f32 = 1e-15;

/// Nearest integer, ties to even. Meant for magnitudes below 2^22; beyond, and for NaN, the result
/// is what the bits happen to hold, and the reference has the same.
#[inline(always)]
pub(crate) fn nearest(v: f32) -> i32 {
    ((v + MAGIC).to_bits() & 0x007f_ffff) as i32 - 0x0040_0000
}

/// `1 / v`, and 0 for 0.
#[inline(always)]
pub(crate) fn inverse_or_zero(v: f32) -> f32 {
    if v != 0.0 { 1.0 / v } else { 0.0 }
}

/// Bits of the nearest half: ties to even, overflow to infinity.
#[inline]
pub(crate) fn half_bits(v: f32) -> u16 {
    f16::from_f32(v).to_bits()
}

/// The half stored at `bytes[at..at + 2]`.
#[inline(always)]
pub(crate) fn half_at(bytes: &[u8], at: usize) -> f32 {
    half_value(u16::from_le_bytes([bytes[at], bytes[at + 1]]))
}

/// The value of a half: exact, without a table, a branch only for subnormal and non-finite ones.
#[inline(always)]
pub(crate) fn half_value(bits: u16) -> f32 {
    let bits = u32::from(bits);
    let sign = (bits & 0x8000) << 16;
    let magnitude = (bits & 0x7fff) << 13;
    let exponent = bits & 0x7c00;
    let value = if exponent == 0 {
        // A subnormal is its ten bits times 2^-24.
        ((bits & 0x3ff) as f32 * f32::from_bits(0x3380_0000)).to_bits()
    } else if exponent == 0x7c00 {
        magnitude | 0x7f80_0000
    } else {
        magnitude + (112 << 23)
    };
    f32::from_bits(sign | value)
}

/// Writes the half nearest to `v` at `out[at..at + 2]`.
#[inline]
pub(crate) fn put_half(out: &mut [u8], at: usize, v: f32) {
    out[at..at + 2].copy_from_slice(&half_bits(v).to_le_bytes());
}

/// The largest magnitude and the value that has it, the first one of equals; (0, 0) of zeros.
#[inline]
pub(crate) fn peak(x: &[f32]) -> (f32, f32) {
    let (mut largest, mut value) = (0.0f32, 0.0f32);
    for &v in x {
        if v.abs() > largest {
            largest = v.abs();
            value = v;
        }
    }
    (largest, value)
}

/// [`peak`] of a whole number of eights, several lanes at a time.
#[inline]
pub(crate) fn peak_of<const N: usize>(x: &[f32; N]) -> f32 {
    let mut lanes = [0.0f32; 8];
    for eight in x.as_chunks::<8>().0 {
        for (largest, v) in lanes.iter_mut().zip(eight) {
            let v = v.abs();
            *largest = if v > *largest { v } else { *largest };
        }
    }
    let largest = lanes
        .into_iter()
        .fold(0.0f32, |a, b| if b > a { b } else { a });
    if largest == 0.0 {
        return 0.0;
    }
    x.iter()
        .copied()
        .find(|v| v.abs() == largest)
        .unwrap_or(0.0)
}

/// Smallest and largest value; of zeros of both signs the first one, as a loop from the left keeps.
#[inline]
pub(crate) fn range_of<const N: usize>(x: &[f32; N]) -> (f32, f32) {
    let mut low = [f32::MAX; 8];
    let mut high = [-f32::MAX; 8];
    for eight in x.as_chunks::<8>().0 {
        for i in 0..8 {
            low[i] = if eight[i] < low[i] { eight[i] } else { low[i] };
            high[i] = if eight[i] > high[i] {
                eight[i]
            } else {
                high[i]
            };
        }
    }
    let mut l = low
        .into_iter()
        .fold(f32::MAX, |a, b| if b < a { b } else { a });
    let h = high
        .into_iter()
        .fold(-f32::MAX, |a, b| if b > a { b } else { a });
    if l == 0.0 {
        l = x.iter().copied().find(|v| *v == 0.0).unwrap_or(l);
    }
    (l, h)
}

/// Sum of squares from left to right.
#[inline]
pub(crate) fn sum_of_squares(x: &[f32]) -> f32 {
    let mut sum = 0.0f32;
    for &v in x {
        sum += v * v;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_has_its_value() {
        for bits in 0..=u16::MAX {
            let (ours, theirs) = (half_value(bits), f16::from_bits(bits).to_f32());
            assert!(
                ours.to_bits() == theirs.to_bits() || (ours.is_nan() && theirs.is_nan()),
                "{bits:#06x}: {ours} {theirs}"
            );
        }
    }

    #[test]
    fn ties_go_to_even() {
        for (v, n) in [
            (0.5, 0),
            (1.5, 2),
            (-0.5, 0),
            (-1.5, -2),
            (2.5, 2),
            (7.49, 7),
            (-7.51, -8),
        ] {
            assert_eq!(nearest(v), n);
        }
        assert_eq!(nearest(f32::NAN), 0);
        assert_eq!(half_bits(2049.0 / 2048.0), 0x3c00);
        assert_eq!(half_bits(1e30), 0x7c00);
    }

    #[test]
    fn the_first_of_equals_counts() {
        let mut x = [0.5f32; 32];
        (x[3], x[9], x[20]) = (-2.0, 2.0, -2.0);
        assert_eq!(peak_of(&x), -2.0);
        assert_eq!(peak(&x), (2.0, -2.0));
        let mut zeros = [1.0f32; 32];
        (zeros[8], zeros[9]) = (-0.0, 0.0);
        assert!(range_of(&zeros).0.is_sign_negative());
        (zeros[1], zeros[8]) = (0.0, -0.0);
        assert!(range_of(&zeros).0.is_sign_positive());
    }
}
