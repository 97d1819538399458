//! Exponential, GELU and SiLU on vectors.

use super::simd::Simd;

/// `1.5 * 2^23`: adding it leaves the nearest integer in the low bits.
const ROUND: f32 = 12_582_912.0;
/// The natural logarithm of 2 in two parts, the first short.
const LN_2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];
/// Arguments below this give 0 instead of numbers below the normal ones.
const LOWEST: f32 = -87.0;
/// Arguments above this are taken as this one, near the largest result.
const HIGHEST: f32 = 88.0;
/// `1/n!` from 7 down to 2: the series of `exp` on `|r| <= ln(2)/2`, relative error 6e-9.
const SERIES: [f32; 6] = [
    1.0 / 5040.0,
    1.0 / 720.0,
    1.0 / 120.0,
    1.0 / 24.0,
    1.0 / 6.0,
    0.5,
];

/// `exp(x)`, relative error below 1.5e-7; exactly 0 below -87, so for negative infinity too. NaN stays.
///
/// # Safety
///
/// The instruction set is `S`'s.
#[inline(always)]
pub(super) unsafe fn exp<S: Simd>(x: S::V) -> S::V {
    // SAFETY: same contract as `Simd`'s methods.
    unsafe {
        let round = S::splat(ROUND);
        // In this order a NaN stays one; the limits keep the power in range.
        let y = S::max(S::splat(LOWEST), x);
        let y = S::sub(S::zero(), S::max(S::splat(-HIGHEST), S::sub(S::zero(), y)));
        let shifted = S::fma(y, S::splat(std::f32::consts::LOG2_E), round);
        let power = S::sub(shifted, round);
        let r = S::fma(power, S::splat(-LN_2[0]), y);
        let r = S::fma(power, S::splat(-LN_2[1]), r);
        let mut series = S::splat(SERIES[0]);
        for term in &SERIES[1..] {
            series = S::fma(series, r, S::splat(*term));
        }
        let series = S::add(S::fma(S::mul(series, r), r, r), S::splat(1.0));
        let result = S::mul(series, S::power_of_two(shifted));
        S::zero_below(x, S::splat(LOWEST), result)
    }
}

/// `exp(x)` of one number up to 0, in plain arithmetic on values and bits, which the compiler turns into
/// vectors. Below -87 it gives the smallest normal numbers, as good as 0 beside the 1 of the largest.
///
/// # Safety
///
/// The instruction set is `S`'s.
#[inline(always)]
pub(super) unsafe fn exp1<S: Simd>(x: f32) -> f32 {
    let x = if x < LOWEST { LOWEST } else { x };
    // SAFETY: the instruction set is `S`'s.
    unsafe {
        let shifted = S::fma1(x, std::f32::consts::LOG2_E, ROUND);
        let power = shifted - ROUND;
        let r = S::fma1(power, -LN_2[0], x);
        let r = S::fma1(power, -LN_2[1], r);
        let mut series = SERIES[0];
        for term in &SERIES[1..] {
            series = S::fma1(series, r, *term);
        }
        let series = S::fma1(series * r, r, r) + 1.0;
        let bits = shifted.to_bits().wrapping_sub(ROUND.to_bits());
        series * f32::from_bits(bits.wrapping_add(127) << 23)
    }
}

/// `tanh(x)`, absolute error below 2e-7. NaN stays.
///
/// # Safety
///
/// The instruction set is `S`'s.
#[inline(always)]
pub(super) unsafe fn tanh<S: Simd>(x: S::V) -> S::V {
    // SAFETY: same contract as `Simd`'s methods.
    unsafe {
        let one = S::splat(1.0);
        let power = exp::<S>(S::add(x, x));
        S::sub(one, S::div(S::splat(2.0), S::add(power, one)))
    }
}

/// Beyond this `erf(x / sqrt 2)` is 1 in f32.
const REACH: f32 = 5.6;

/// `erf(x / sqrt 2) / x = P(x^2) / Q(x^2)` on `|x| <= 5.75`, relative error 3.1e-8 (least maximum error,
/// fitted); lowest power first.
const P: [f32; 6] = [
    0.797_884_5,
    0.069_411_84,
    0.009_444_615,
    0.000_352_665_24,
    1.258_591_8e-5,
    4.281_617_3e-8,
];
/// See [`P`].
const Q: [f32; 6] = [
    1.0,
    0.253_661_03,
    0.029_115_128,
    0.001_927_967_5,
    7.545_503e-5,
    1.153_767_9e-6,
];

/// `x (1 + erf(x / sqrt 2)) / 2`, absolute error below `2.5e-7 |x|`; exactly 0 where the true value is
/// below 6e-8 in magnitude on the negative side. NaN stays.
///
/// # Safety
///
/// The instruction set is `S`'s.
#[inline(always)]
pub(super) unsafe fn gelu<S: Simd>(x: S::V) -> S::V {
    // SAFETY: same contract as `Simd`'s methods.
    unsafe {
        let y = S::max(S::splat(-REACH), x);
        let y = S::sub(S::zero(), S::max(S::splat(-REACH), S::sub(S::zero(), y)));
        let square = S::mul(y, y);
        let (mut p, mut q) = (S::splat(P[5]), S::splat(Q[5]));
        for i in (0..5).rev() {
            p = S::fma(p, square, S::splat(P[i]));
            q = S::fma(q, square, S::splat(Q[i]));
        }
        let half = S::splat(0.5);
        let cdf = S::fma(S::mul(y, half), S::div(p, q), half);
        S::zero_below(x, S::splat(-REACH), S::mul(x, cdf))
    }
}

/// `x / (1 + exp(-x))`, relative error below 4e-7. NaN stays.
///
/// # Safety
///
/// The instruction set is `S`'s.
#[inline(always)]
pub(super) unsafe fn silu<S: Simd>(x: S::V) -> S::V {
    // SAFETY: same contract as `Simd`'s methods.
    unsafe {
        let falling = exp::<S>(S::sub(S::zero(), x));
        S::div(x, S::add(S::splat(1.0), falling))
    }
}

#[cfg(test)]
mod tests {
    use super::super::simd::{Isa, Kernel, dispatch_on};
    use super::*;

    /// Sixteen values through `exp`, `gelu` and `silu`.
    struct All([f32; 16]);

    impl Kernel for All {
        type Output = [[f32; 16]; 3];
        #[inline(always)]
        unsafe fn run<S: Simd>(self) -> [[f32; 16]; 3] {
            let mut out = [[0.0; 16]; 3];
            for i in (0..16).step_by(S::LANES) {
                // SAFETY: 16 is a multiple of the number of lanes; the instruction set is `S`'s.
                unsafe {
                    let x = S::load(self.0.as_ptr().add(i));
                    S::store(out[0].as_mut_ptr().add(i), exp::<S>(x));
                    S::store(out[1].as_mut_ptr().add(i), gelu::<S>(x));
                    S::store(out[2].as_mut_ptr().add(i), silu::<S>(x));
                }
            }
            out
        }
    }

    /// `erf` in f64: its series below 3, a continued fraction above.
    fn erf(x: f64) -> f64 {
        let z = x.abs();
        let value = if z < 3.0 {
            let (mut term, mut sum, mut n) = (z, z, 0.0);
            while term.abs() > 1e-18 {
                n += 1.0;
                term *= -z * z / n;
                sum += term / (2.0 * n + 1.0);
            }
            sum * std::f64::consts::FRAC_2_SQRT_PI
        } else {
            let fraction = (1..=60)
                .rev()
                .fold(0.0, |f, n| f64::from(n) / 2.0 / (z + f));
            1.0 - (-z * z).exp() / (z + fraction) * std::f64::consts::FRAC_2_SQRT_PI / 2.0
        };
        value.copysign(x)
    }

    #[test]
    fn errors_are_as_documented() {
        for isa in Isa::available() {
            let mut worst = [0.0f64; 3];
            for step in -6000..6000 {
                let x: [f32; 16] = std::array::from_fn(|i| (step * 16 + i as i32) as f32 * 9e-4);
                let [exps, gelus, silus] = dispatch_on(isa, All(x));
                for i in 0..16 {
                    let wide = f64::from(x[i]);
                    if x[i] >= -86.9 {
                        let error = f64::from(exps[i]) / wide.exp() - 1.0;
                        worst[0] = worst[0].max(error.abs());
                    }
                    let gelu = wide * 0.5 * (1.0 + erf(wide * std::f64::consts::FRAC_1_SQRT_2));
                    let error = (f64::from(gelus[i]) - gelu) / wide.abs().max(1e-30);
                    worst[1] = worst[1].max(error.abs());
                    if wide > -80.0 && wide != 0.0 {
                        let silu = wide / (1.0 + (-wide).exp());
                        let error = f64::from(silus[i]) / silu - 1.0;
                        worst[2] = worst[2].max(error.abs());
                    }
                }
            }
            let [exp, gelu, silu] = worst;
            assert!(exp < 1.5e-7, "{isa:?}: exp is off by {exp:e}");
            assert!(gelu < 2.5e-7, "{isa:?}: gelu is off by {gelu:e}");
            assert!(silu < 4e-7, "{isa:?}: silu is off by {silu:e}");
        }
    }

    #[test]
    fn far_and_odd_arguments() {
        let x = [
            0.0,
            -0.0,
            1.0,
            -100.0,
            -1e30,
            f32::NEG_INFINITY,
            100.0,
            1e30,
            f32::NAN,
            88.0,
            -87.5,
            -5.7,
            6.0,
            -6.0,
            f32::MIN_POSITIVE,
            5.61,
        ];
        for isa in Isa::available() {
            let [exps, gelus, silus] = dispatch_on(isa, All(x));
            assert_eq!(exps[..2], [1.0; 2], "{isa:?}");
            assert_eq!((exps[3], exps[4], exps[5], exps[10]), (0.0, 0.0, 0.0, 0.0));
            assert!(exps[6].is_finite() && exps[7].is_finite() && exps[8].is_nan());
            assert_eq!(
                (gelus[3], gelus[4], gelus[11], gelus[13]),
                (0.0, 0.0, 0.0, 0.0)
            );
            assert!((gelus[6] - 100.0).abs() < 1e-4 && (gelus[7] / 1e30 - 1.0).abs() < 1e-6);
            assert!((gelus[12] - 6.0).abs() < 1e-6 && (gelus[15] - 5.61).abs() < 1e-6);
            assert!(gelus[8].is_nan() && silus[8].is_nan(), "{isa:?}");
            assert!(
                (silus[6] - 100.0).abs() < 1e-4 && silus[3].abs() < 1e-30,
                "{isa:?}"
            );
        }
    }
}
