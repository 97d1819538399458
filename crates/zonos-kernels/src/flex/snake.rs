//! Snake, vectorised.

use super::simd::Simd;

/// Added to alpha before dividing, rounded to f32 with the sum as the reference does.
const EPSILON: f32 = 1e-9;

/// Largest `|alpha x|` that the range reduction covers: multiples of pi up to it are below 2^13, so
/// their products with the first two parts of pi are exact.
const REACH: f32 = 2.0e4;

/// pi in three parts, the first two short.
const PI_PARTS: [f32; 3] = [3.140625, 0.000_967_502_6, 1.509_958e-7];

/// `sin(r) = r + r^3 (S0 + S1 r^2 + S2 r^4 + S3 r^6)` on `|r| <= pi/2`, relative error 6e-9
/// (least maximum error, fitted).
const SINE: [f32; 4] = [
    -0.166_666_6,
    0.008_333_066,
    -0.000_198_095_7,
    2.605_705_7e-6,
];

/// `1.5 * 2^23`: adding and taking it away rounds to the nearest integer.
const ROUND: f32 = 12_582_912.0;

/// `x + sin(alpha x)^2 / divisor` and `|alpha x|`. The sine is squared, so its sign, the parity of
/// the multiple of pi taken away, is not needed. Absolute error of the sine below 1.3e-7.
#[inline(always)]
unsafe fn snake_vector<S: Simd>(x: S::V, alpha: S::V, divisor: S::V) -> (S::V, S::V) {
    // SAFETY: same contract as `Simd`'s methods.
    unsafe {
        let y = S::mul(alpha, x);
        let round = S::splat(ROUND);
        let turns = S::sub(
            S::fma(y, S::splat(std::f32::consts::FRAC_1_PI), round),
            round,
        );
        let r = S::fma(turns, S::splat(-PI_PARTS[0]), y);
        let r = S::fma(turns, S::splat(-PI_PARTS[1]), r);
        let r = S::fma(turns, S::splat(-PI_PARTS[2]), r);
        let square = S::mul(r, r);
        let p = S::fma(square, S::splat(SINE[3]), S::splat(SINE[2]));
        let p = S::fma(square, p, S::splat(SINE[1]));
        let p = S::fma(square, p, S::splat(SINE[0]));
        let sine = S::fma(S::mul(square, r), p, r);
        let out = S::add(x, S::div(S::mul(sine, sine), divisor));
        (out, S::max(y, S::sub(S::zero(), y)))
    }
}

/// Writes `snake(src)` to `dst`, for `len` values of one channel. Each value's bits depend on that
/// value alone. A channel whose alpha is 0 is copied.
///
/// # Safety
///
/// The instruction set is `S`'s; `src` and `dst` are valid for `len` values and do not overlap.
#[inline(always)]
pub(super) unsafe fn snake_row<S: Simd>(src: *const f32, dst: *mut f32, len: usize, alpha: f32) {
    // SAFETY: all accesses are below `len`; the tail goes through a buffer of one vector.
    unsafe {
        if alpha == 0.0 {
            std::ptr::copy_nonoverlapping(src, dst, len);
            return;
        }
        let divisor = alpha + EPSILON;
        let (a, d) = (S::splat(alpha), S::splat(divisor));
        let mut largest = S::zero();
        let mut i = 0;
        while i + S::LANES <= len {
            let (y, angle) = snake_vector::<S>(S::load(src.add(i)), a, d);
            largest = S::max(angle, largest);
            S::store(dst.add(i), y);
            i += S::LANES;
        }
        if i < len {
            let mut buffer = [0.0f32; 16];
            std::ptr::copy_nonoverlapping(src.add(i), buffer.as_mut_ptr(), len - i);
            let (y, angle) = snake_vector::<S>(S::load(buffer.as_ptr()), a, d);
            largest = S::max(angle, largest);
            S::store(buffer.as_mut_ptr(), y);
            std::ptr::copy_nonoverlapping(buffer.as_ptr(), dst.add(i), len - i);
        }
        let mut lanes = [0.0f32; 16];
        S::store(lanes.as_mut_ptr(), largest);
        if lanes.iter().any(|&angle| angle > REACH) {
            far_row(src, dst, len, alpha, divisor);
        }
    }
}

/// Redoes the values whose angle is beyond the range reduction with the standard library's sine.
#[cold]
unsafe fn far_row(src: *const f32, dst: *mut f32, len: usize, alpha: f32, divisor: f32) {
    for i in 0..len {
        // SAFETY: the caller's pointers are valid for `len` values.
        unsafe {
            let x = *src.add(i);
            let angle = alpha * x;
            if angle.abs() > REACH {
                let sine = angle.sin();
                *dst.add(i) = x + sine * sine / divisor;
            }
        }
    }
}
