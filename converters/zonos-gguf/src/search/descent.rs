//! x ~ s l with l in [-4, 3] by coordinate descent, weights x^2 (Q3_K without importance).

use super::{F4, Groups, LANES, in_order, peaks};
use crate::numeric::ZERO_GROUP;

const TOP: f32 = 4.0;

/// Scales and codes (`[group][value]`, 4 added; 0 for a group of zeros).
///
/// A group whose sweep changed nothing would not change in the next one either, so groups need no
/// end of their own.
pub(crate) fn descent<const N: usize>(x: &Groups<N>) -> ([f32; LANES], [[u8; N]; LANES]) {
    let (low, high, one) = (F4::splat(-TOP), F4::splat(TOP - 1.0), F4::splat(1.0));
    let (largest, peak) = peaks(x);
    let zero = largest.map(|v| v.below(F4::splat(ZERO_GROUP)));
    let mut codes = [[F4::ZERO; N]; 2];
    let (mut a, mut b) = ([F4::ZERO; 2], [F4::ZERO; 2]);
    for h in 0..2 {
        let inverse = low / zero[h].pick(one, peak[h]);
        for i in 0..N {
            let v = x[h][i];
            let (w, q) = (v * v, (inverse * v).nearest_within(low, high));
            codes[h][i] = q;
            a[h] = a[h] + w * v * q;
            b[h] = b[h] + w * q * q;
        }
    }
    for _ in 0..5 {
        let mut moved = false;
        for i in 0..N {
            for h in 0..2 {
                let (v, q) = (x[h][i], codes[h][i]);
                let w = v * v;
                let (less_a, less_b) = (a[h] - w * v * q, b[h] - w * q * q);
                let some = less_a.above(F4::ZERO);
                let to = (v * less_b / some.pick(less_a, one)).nearest_within(low, high);
                let (more_a, more_b) = (less_a + w * v * to, less_b + w * to * to);
                let take = some
                    .and(to.differs(q))
                    .and(more_b.above(F4::ZERO))
                    .and((more_a * more_a * b[h]).above(a[h] * a[h] * more_b));
                codes[h][i] = take.pick(to, q);
                a[h] = take.pick(more_a, a[h]);
                b[h] = take.pick(more_b, b[h]);
                moved |= take.any();
            }
        }
        if !moved {
            break;
        }
    }
    let mut scale = [F4::ZERO; 2];
    let mut out = [[0u8; N]; LANES];
    for h in 0..2 {
        let some = b[h].above(F4::ZERO);
        let s = some.pick(a[h] / some.pick(b[h], one), F4::ZERO);
        scale[h] = zero[h].pick(F4::ZERO, s);
        for i in 0..N {
            for (l, q) in codes[h][i].0.into_iter().enumerate() {
                if !zero[h].lane(l) {
                    out[4 * h + l][i] = (q + TOP) as u8;
                }
            }
        }
    }
    (in_order(&scale), out)
}
