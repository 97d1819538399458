//! x ~ s l with l in [-top, top - 1].

use super::{F4, Groups, LANES, Lanes, in_order, peaks};
use crate::numeric::{ZERO_GROUP, nearest};

/// What [`signed`] found, a number for each group.
pub(crate) struct Signed {
    /// The scale; 0 for a group of zeros.
    pub(crate) scale: [f32; LANES],
    /// The grid that gave it: codes are `nearest(inverse * x)`, clamped. 0 for a group of zeros.
    inverse: [f32; LANES],
    top: i32,
}

impl Signed {
    /// The code of `x`, a value of group `g`, with `top` added: 0..2 top.
    #[inline]
    pub(crate) fn code(&self, g: usize, x: f32) -> u8 {
        let inverse = self.inverse[g];
        if inverse == 0.0 {
            return 0;
        }
        (nearest(inverse * x).clamp(-self.top, self.top - 1) + self.top) as u8
    }
}

/// The best of nineteen grids around `-top / peak` by `(sum w x l)^2 / sum w l^2`.
pub(crate) fn signed<const N: usize>(x: &Groups<N>, w: &Groups<N>, top: i32) -> Signed {
    let (largest, peak) = peaks(x);
    let zero = largest.map(|v| v.below(F4::splat(ZERO_GROUP)));
    let safe: Lanes = std::array::from_fn(|h| zero[h].pick(F4::splat(1.0), peak[h]));
    let mut wx = *w;
    for h in 0..2 {
        for i in 0..N {
            wx[h][i] = w[h][i] * x[h][i];
        }
    }
    let top_value = top as f32;
    let (mut scale, mut best, mut inverse) = ([F4::ZERO; 2], [F4::ZERO; 2], [F4::ZERO; 2]);
    for h in 0..2 {
        inverse[h] = F4::splat(-top_value) / safe[h];
        let (a, b) = grid_sums(&x[h], &w[h], &wx[h], inverse[h], top_value);
        let some = b.differs(F4::ZERO);
        scale[h] = some.pick(a / some.pick(b, F4::splat(1.0)), F4::ZERO);
        best[h] = scale[h] * a;
    }
    for step in (-9..=9).filter(|&step| step != 0) {
        let grid = F4::splat(-(top_value + 0.1f32 * step as f32));
        for h in 0..2 {
            let candidate = grid / safe[h];
            let (a, b) = grid_sums(&x[h], &w[h], &wx[h], candidate, top_value);
            let take = b.above(F4::ZERO).and((a * a).above(best[h] * b));
            let s = a / take.pick(b, F4::splat(1.0));
            scale[h] = take.pick(s, scale[h]);
            best[h] = take.pick(s * a, best[h]);
            inverse[h] = take.pick(candidate, inverse[h]);
        }
    }
    for h in 0..2 {
        scale[h] = zero[h].pick(F4::ZERO, scale[h]);
        inverse[h] = zero[h].pick(F4::ZERO, inverse[h]);
    }
    Signed {
        scale: in_order(&scale),
        inverse: in_order(&inverse),
        top,
    }
}

/// `(sum (w x) l, sum (w l) l)` of each group. No value passes the peak, so no product passes
/// `top + 1`.
#[inline(always)]
fn grid_sums<const N: usize>(
    x: &[F4; N],
    w: &[F4; N],
    wx: &[F4; N],
    inverse: F4,
    top: f32,
) -> (F4, F4) {
    let (low, high) = (F4::splat(-top), F4::splat(top - 1.0));
    let (mut a, mut b) = (F4::ZERO, F4::ZERO);
    for i in 0..N {
        let q = (inverse * x[i]).small_nearest_within(low, high);
        a = a + wx[i] * q;
        b = b + w[i] * q * q;
    }
    (a, b)
}
