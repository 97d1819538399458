//! Four numbers at a time, in a form that compilers turn into vector instructions without help.

use std::ops::{Add, Div, Mul, Sub};

use crate::numeric::MAGIC;

/// Four f32, each on its own.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C, align(16))]
pub(crate) struct F4(pub(crate) [f32; 4]);

/// A decision for each of four numbers.
#[derive(Clone, Copy)]
pub(crate) struct Mask([bool; 4]);

impl F4 {
    pub(crate) const ZERO: Self = Self([0.0; 4]);

    #[inline(always)]
    pub(crate) const fn splat(v: f32) -> Self {
        Self([v; 4])
    }

    #[inline(always)]
    fn zip(self, other: Self, f: impl Fn(f32, f32) -> f32) -> Self {
        let mut out = [0.0; 4];
        for l in 0..4 {
            out[l] = f(self.0[l], other.0[l]);
        }
        Self(out)
    }

    #[inline(always)]
    fn test(self, other: Self, f: impl Fn(f32, f32) -> bool) -> Mask {
        let mut out = [false; 4];
        for l in 0..4 {
            out[l] = f(self.0[l], other.0[l]);
        }
        Mask(out)
    }

    #[inline(always)]
    pub(crate) fn abs(self) -> Self {
        Self(self.0.map(f32::abs))
    }

    #[inline(always)]
    pub(crate) fn sqrt(self) -> Self {
        Self(self.0.map(f32::sqrt))
    }

    #[inline(always)]
    pub(crate) fn neg(self) -> Self {
        Self(self.0.map(|v| -v))
    }

    /// `self` where it is larger, else (and for NaN) `other`.
    #[inline(always)]
    pub(crate) fn larger(self, other: Self) -> Self {
        self.zip(other, |a, b| if a > b { a } else { b })
    }

    /// `self` where it is smaller, else (and for NaN) `other`.
    #[inline(always)]
    pub(crate) fn smaller(self, other: Self) -> Self {
        self.zip(other, |a, b| if a < b { a } else { b })
    }

    #[inline(always)]
    pub(crate) fn above(self, other: Self) -> Mask {
        self.test(other, |a, b| a > b)
    }

    #[inline(always)]
    pub(crate) fn below(self, other: Self) -> Mask {
        self.test(other, |a, b| a < b)
    }

    #[inline(always)]
    pub(crate) fn differs(self, other: Self) -> Mask {
        self.test(other, |a, b| a != b)
    }

    /// [`nearest`](crate::numeric::nearest) as floats, wrapping and NaN included, then limited to
    /// `low..=high`: the bits are the integer's, put back into a float of known exponent.
    #[inline(always)]
    pub(crate) fn nearest_within(self, low: Self, high: Self) -> Self {
        let sum = self + Self::splat(MAGIC);
        let whole = sum
            .0
            .map(|v| f32::from_bits((v.to_bits() & 0x007f_ffff) | 0x4b00_0000));
        (Self(whole) - Self::splat(MAGIC)).larger(low).smaller(high)
    }

    /// [`Self::nearest_within`] where no magnitude reaches 2^22: limiting before rounding to between
    /// whole numbers is the same, and cheaper.
    #[inline(always)]
    pub(crate) fn small_nearest_within(self, low: Self, high: Self) -> Self {
        let magic = Self::splat(MAGIC);
        (self.larger(low).smaller(high) + magic) - magic
    }

    /// Whole numbers in 0..256 as bytes.
    #[inline(always)]
    pub(crate) fn bytes(self) -> [u8; 4] {
        (self + Self::splat(8_388_608.0))
            .0
            .map(|v| v.to_bits() as u8)
    }
}

impl Mask {
    /// `yes` where it holds, else `no`.
    #[inline(always)]
    pub(crate) fn pick(self, yes: F4, no: F4) -> F4 {
        let mut out = [0.0; 4];
        for l in 0..4 {
            out[l] = if self.0[l] { yes.0[l] } else { no.0[l] };
        }
        F4(out)
    }

    #[inline(always)]
    pub(crate) fn and(self, other: Self) -> Self {
        let mut out = [false; 4];
        for l in 0..4 {
            out[l] = self.0[l] & other.0[l];
        }
        Self(out)
    }

    #[inline(always)]
    pub(crate) fn any(self) -> bool {
        self.0[0] | self.0[1] | self.0[2] | self.0[3]
    }

    #[inline(always)]
    pub(crate) fn lane(self, l: usize) -> bool {
        self.0[l]
    }
}

macro_rules! operators {
    ($($name:ident $method:ident $op:tt;)*) => {$(
        impl $name for F4 {
            type Output = Self;

            #[inline(always)]
            fn $method(self, other: Self) -> Self {
                self.zip(other, |a, b| a $op b)
            }
        }
    )*};
}

operators! {
    Add add +;
    Sub sub -;
    Mul mul *;
    Div div /;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numeric::nearest;

    /// Wrapping, NaN and infinities as in the scalar form.
    #[test]
    fn rounding_is_that_of_one_number() {
        let mut v = vec![
            f32::NAN,
            f32::INFINITY,
            f32::NEG_INFINITY,
            4_194_304.0,
            4_194_303.5,
        ];
        v.extend([
            -4_194_305.0,
            1e9,
            -1e9,
            1e38,
            0.5,
            1.5,
            -0.5,
            -2.5,
            31.49,
            1e-20,
        ]);
        for v in v {
            let (low, high) = (-32, 31);
            let got = F4::splat(v).nearest_within(F4::splat(low as f32), F4::splat(high as f32));
            assert_eq!(got, F4::splat(nearest(v).clamp(low, high) as f32), "{v}");
            if v.abs() < 4e6 {
                let low = F4::splat(low as f32);
                assert_eq!(
                    got,
                    F4::splat(v).small_nearest_within(low, F4::splat(high as f32))
                );
                assert_eq!(
                    (got - low).bytes(),
                    [(nearest(v).clamp(-32, high) + 32) as u8; 4]
                );
            }
        }
    }
}
