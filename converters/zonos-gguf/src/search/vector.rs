//! As many f32 as a register of the processor holds, each on its own.
//!
//! What runs where is [`pulp`]'s: the operations are the same on every processor, and none of them is
//! fused with another.

use std::ops::{Add, Div, Mul, Sub};

use pulp::Simd;

use crate::numeric::MAGIC;

/// A register of f32.
#[derive(Clone, Copy)]
pub(crate) struct Vector<S: Simd> {
    simd: S,
    pub(crate) lanes: S::f32s,
}

/// A decision for each lane.
#[derive(Clone, Copy)]
pub(crate) struct Mask<S: Simd> {
    simd: S,
    lanes: S::m32s,
}

impl<S: Simd> Vector<S> {
    #[inline(always)]
    pub(crate) fn new(simd: S, lanes: S::f32s) -> Self {
        Self { simd, lanes }
    }

    #[inline(always)]
    pub(crate) fn splat(simd: S, v: f32) -> Self {
        Self::new(simd, simd.splat_f32s(v))
    }

    /// A register of `v`.
    #[inline(always)]
    pub(crate) fn same(self, v: f32) -> Self {
        Self::splat(self.simd, v)
    }

    #[inline(always)]
    pub(crate) fn abs(self) -> Self {
        Self::new(self.simd, self.simd.abs_f32s(self.lanes))
    }

    #[inline(always)]
    pub(crate) fn sqrt(self) -> Self {
        Self::new(self.simd, self.simd.sqrt_f32s(self.lanes))
    }

    #[inline(always)]
    pub(crate) fn neg(self) -> Self {
        Self::new(self.simd, self.simd.neg_f32s(self.lanes))
    }

    /// `self` where it is larger, else (and for NaN) `other`.
    #[inline(always)]
    pub(crate) fn larger(self, other: Self) -> Self {
        self.above(other).pick(self, other)
    }

    /// `self` where it is smaller, else (and for NaN) `other`.
    #[inline(always)]
    pub(crate) fn smaller(self, other: Self) -> Self {
        self.below(other).pick(self, other)
    }

    #[inline(always)]
    pub(crate) fn above(self, other: Self) -> Mask<S> {
        let lanes = self.simd.greater_than_f32s(self.lanes, other.lanes);
        Mask::new(self.simd, lanes)
    }

    #[inline(always)]
    pub(crate) fn below(self, other: Self) -> Mask<S> {
        let lanes = self.simd.less_than_f32s(self.lanes, other.lanes);
        Mask::new(self.simd, lanes)
    }

    #[inline(always)]
    pub(crate) fn equals(self, other: Self) -> Mask<S> {
        let lanes = self.simd.equal_f32s(self.lanes, other.lanes);
        Mask::new(self.simd, lanes)
    }

    /// The smallest lane, where none is NaN.
    #[inline(always)]
    pub(crate) fn smallest(self) -> f32 {
        self.simd.reduce_min_f32s(self.lanes)
    }

    /// Limits numbers that are not NaN.
    #[inline(always)]
    fn within(self, low: Self, high: Self) -> Self {
        let simd = self.simd;
        let v = simd.max_f32s(self.lanes, low.lanes);
        Self::new(simd, simd.min_f32s(v, high.lanes))
    }

    /// [`nearest`](crate::numeric::nearest) as floats, wrapping and NaN included, then limited to
    /// `low..=high`: the bits are the integer's, put back into a float of known exponent.
    #[inline(always)]
    pub(crate) fn nearest_within(self, low: Self, high: Self) -> Self {
        let simd = self.simd;
        let magic = Self::splat(simd, MAGIC);
        let bits = simd.transmute_u32s_f32s((self + magic).lanes);
        let bits = simd.and_u32s(bits, simd.splat_u32s(0x007f_ffff));
        let bits = simd.or_u32s(bits, simd.splat_u32s(0x4b00_0000));
        let whole = Self::new(simd, simd.transmute_f32s_u32s(bits));
        (whole - magic).within(low, high)
    }

    /// [`Self::nearest_within`] where no magnitude reaches 2^22: limiting before rounding to between
    /// whole numbers is the same, and cheaper.
    #[inline(always)]
    pub(crate) fn small_nearest_within(self, low: Self, high: Self) -> Self {
        let magic = Self::splat(self.simd, MAGIC);
        (self.within(low, high) + magic) - magic
    }
}

/// Puts the register's whole numbers, none below 0, into the low bits of `out`.
#[inline(always)]
pub(crate) fn put_whole<S: Simd>(v: Vector<S>, out: &mut S::u32s) {
    let whole = v + Vector::splat(v.simd, 8_388_608.0);
    *out = v.simd.transmute_u32s_f32s(whole.lanes);
}

impl<S: Simd> Mask<S> {
    #[inline(always)]
    fn new(simd: S, lanes: S::m32s) -> Self {
        Self { simd, lanes }
    }

    /// `yes` where it holds, else `no`.
    #[inline(always)]
    pub(crate) fn pick(self, yes: Vector<S>, no: Vector<S>) -> Vector<S> {
        let lanes = self.simd.select_f32s(self.lanes, yes.lanes, no.lanes);
        Vector::new(self.simd, lanes)
    }

    #[inline(always)]
    pub(crate) fn and(self, other: Self) -> Self {
        Self::new(self.simd, self.simd.and_m32s(self.lanes, other.lanes))
    }

    #[inline(always)]
    pub(crate) fn or(self, other: Self) -> Self {
        Self::new(self.simd, self.simd.or_m32s(self.lanes, other.lanes))
    }
}

macro_rules! operators {
    ($($name:ident $method:ident $operation:ident;)*) => {$(
        impl<S: Simd> $name for Vector<S> {
            type Output = Self;

            #[inline(always)]
            fn $method(self, other: Self) -> Self {
                Self::new(self.simd, self.simd.$operation(self.lanes, other.lanes))
            }
        }
    )*};
}

operators! {
    Add add add_f32s;
    Sub sub sub_f32s;
    Mul mul mul_f32s;
    Div div div_f32s;
}

#[cfg(test)]
mod tests {
    use pulp::Scalar256b;

    use super::*;
    use crate::numeric::nearest;

    /// Wrapping, NaN and infinities as in the scalar form.
    #[test]
    fn rounding_is_that_of_one_number() {
        let simd = Scalar256b;
        let of = |v: f32| Vector::splat(simd, v);
        let first = |v: Vector<Scalar256b>| bytemuck::cast::<_, [f32; 8]>(v.lanes)[0];
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
            let wanted = nearest(v).clamp(low, high) as f32;
            let (low, high) = (of(low as f32), of(high as f32));
            assert_eq!(first(of(v).nearest_within(low, high)), wanted, "{v}");
            if v.abs() < 4e6 {
                assert_eq!(first(of(v).small_nearest_within(low, high)), wanted, "{v}");
            }
        }
    }
}
