//! Scales x >= 0 ~ s l with l in [0, top].
//!
//! Where importances leave a group next to no weight, its search can end below zero. The reference then
//! keeps the low eight bits of a negative code, and goes on with them; so does this.

use crate::numeric::{ZERO_GROUP, nearest};

/// The scale and the codes: the best of nine grids, then up to five sweeps of coordinate descent.
pub(crate) fn positive<const N: usize>(x: &[f32; N], w: &[f32; N], top: i32) -> (f32, [u8; N]) {
    let mut high = 0.0f32;
    for &v in x {
        high = if v > high { v } else { high };
    }
    if high < ZERO_GROUP {
        return (0.0, [0; N]);
    }
    let ftop = top as f32;
    let mut inverse = ftop / high;
    let mut best = error(x, w, inverse, |l| i32::from(l as u8));
    for step in (-4..=4).filter(|&step| step != 0) {
        let candidate = (0.1f32 * step as f32 + ftop) / high;
        let e = error(x, w, candidate, |l| l.min(top));
        if e < best {
            (best, inverse) = (e, candidate);
        }
    }
    let mut codes = [0u8; N];
    let (mut a, mut b) = (0.0f32, 0.0f32);
    for i in 0..N {
        let code = nearest(inverse * x[i]).min(top);
        codes[i] = code as u8;
        let q = code as f32;
        a += w[i] * x[i] * q;
        b += w[i] * q * q;
    }
    for _ in 0..5 {
        let mut moved = false;
        for i in 0..N {
            let q = f32::from(codes[i]);
            let (less_a, less_b) = (a - w[i] * x[i] * q, b - w[i] * q * q);
            if !(less_a > 0.0 && less_b > 0.0) {
                continue;
            }
            let to = nearest(x[i] * less_b / less_a).min(top);
            if to == i32::from(codes[i]) {
                continue;
            }
            let t = to as f32;
            let (more_a, more_b) = (less_a + w[i] * x[i] * t, less_b + w[i] * t * t);
            if more_a * more_a * b > a * a * more_b {
                (codes[i], a, b, moved) = (to as u8, more_a, more_b, true);
            }
        }
        if !moved {
            break;
        }
    }
    (if b > 0.0 { a / b } else { 0.0 }, codes)
}

fn error<const N: usize>(
    x: &[f32; N],
    w: &[f32; N],
    inverse: f32,
    limit: impl Fn(i32) -> i32,
) -> f32 {
    let scale = 1.0 / inverse;
    let mut sum = 0.0f32;
    for i in 0..N {
        let d = x[i] - scale * limit(nearest(inverse * x[i])) as f32;
        sum += w[i] * d * d;
    }
    sum
}
