//! x ~ s l - m with l in [0, top] and m >= 0.

use super::{F4, Groups, LANES, Lanes, in_order};
use crate::numeric::nearest;

/// The candidate grids: `(top + first + step * i) / range` for `i` in `0..=steps`.
#[derive(Clone, Copy)]
pub(crate) struct Grid {
    pub(crate) first: f32,
    pub(crate) step: f32,
    pub(crate) steps: usize,
}

/// What [`affine`] found, a number for each group.
pub(crate) struct Affine {
    /// The scale s; 0 for a group without spread.
    pub(crate) scale: [f32; LANES],
    /// The minimum m.
    pub(crate) min: [f32; LANES],
    /// The grid that gave them: codes are `nearest(inverse * (x - origin))`, clamped.
    inverse: [f32; LANES],
    origin: [f32; LANES],
    flat: [bool; LANES],
    top: i32,
}

impl Affine {
    /// The code of `x`, a value of group `g`.
    #[inline]
    pub(crate) fn code(&self, g: usize, x: f32) -> u8 {
        if self.flat[g] {
            return 0;
        }
        nearest(self.inverse[g] * (x - self.origin[g])).clamp(0, self.top) as u8
    }
}

/// The best of `grid` by the weighted error, absolute (`ABSOLUTE`) or squared. The origin that an
/// accepted candidate finds is the origin of all later candidates.
pub(crate) fn affine<const N: usize, const ABSOLUTE: bool>(
    x: &Groups<N>,
    w: &Groups<N>,
    top: i32,
    grid: Grid,
) -> Affine {
    let one = F4::splat(1.0);
    let top_value = F4::splat(top as f32);
    let mut codes = [F4::ZERO; N];
    let (mut high, mut origin) = ([F4::ZERO; 2], [F4::ZERO; 2]);
    let (mut sw, mut sx) = ([F4::ZERO; 2], [F4::ZERO; 2]);
    let (mut scale, mut best) = ([F4::ZERO; 2], [F4::ZERO; 2]);
    let (mut kept_inverse, mut kept_origin) = ([F4::ZERO; 2], [F4::ZERO; 2]);
    for h in 0..2 {
        let mut low = x[h][0];
        high[h] = low;
        for i in 0..N {
            low = x[h][i].smaller(low);
            high[h] = x[h][i].larger(high[h]);
            sw[h] = sw[h] + w[h][i];
            sx[h] = sx[h] + w[h][i] * x[h][i];
        }
        origin[h] = low.above(F4::ZERO).pick(F4::ZERO, low);
    }
    // A group without spread is searched like any other, on a range of one, and set aside below.
    let spread: [_; 2] = std::array::from_fn(|h| high[h].above(origin[h]));
    let flat_min = origin.map(F4::neg);
    for h in 0..2 {
        let inverse = top_value / spread[h].pick(high[h] - origin[h], one);
        scale[h] = one / inverse;
        code_sums(&x[h], &w[h], inverse, origin[h], top_value, &mut codes);
        best[h] = error::<N, ABSOLUTE>(&x[h], &w[h], scale[h], origin[h], &codes);
        (kept_inverse[h], kept_origin[h]) = (inverse, origin[h]);
    }
    for i in 0..=grid.steps {
        let step = F4::splat(grid.first + grid.step * i as f32 + top as f32);
        for h in 0..2 {
            let inverse = step / spread[h].pick(high[h] - origin[h], one);
            let (sl, sll, sxl) = code_sums(&x[h], &w[h], inverse, origin[h], top_value, &mut codes);
            let det = sw[h] * sll - sl * sl;
            let solvable = det.above(F4::ZERO);
            let det = solvable.pick(det, one);
            let s = (sw[h] * sxl - sx[h] * sl) / det;
            let low = (sll * sx[h] - sl * sxl) / det;
            let above = low.above(F4::ZERO);
            let some = sll.differs(F4::ZERO);
            let through_zero = some.pick(sxl / some.pick(sll, one), F4::ZERO);
            let s = above.pick(through_zero, s);
            let low = above.pick(F4::ZERO, low);
            let e = error::<N, ABSOLUTE>(&x[h], &w[h], s, low, &codes);
            let take = solvable.and(e.below(best[h]));
            best[h] = take.pick(e, best[h]);
            scale[h] = take.pick(s, scale[h]);
            kept_inverse[h] = take.pick(inverse, kept_inverse[h]);
            kept_origin[h] = take.pick(origin[h], kept_origin[h]);
            origin[h] = take.pick(low, origin[h]);
        }
    }
    let scale: Lanes = std::array::from_fn(|h| spread[h].pick(scale[h], F4::ZERO));
    let min: Lanes = std::array::from_fn(|h| spread[h].pick(origin[h].neg(), flat_min[h]));
    Affine {
        scale: in_order(&scale),
        min: in_order(&min),
        inverse: in_order(&kept_inverse),
        origin: in_order(&kept_origin),
        flat: std::array::from_fn(|g| !spread[g / 4].lane(g % 4)),
        top,
    }
}

/// Codes on one grid, and `(sum w l, sum (w l) l, sum (w l) x)` of each group.
#[inline(always)]
fn code_sums<const N: usize>(
    x: &[F4; N],
    w: &[F4; N],
    inverse: F4,
    origin: F4,
    top: F4,
    codes: &mut [F4; N],
) -> (F4, F4, F4) {
    let (mut sl, mut sll, mut sxl) = (F4::ZERO, F4::ZERO, F4::ZERO);
    for i in 0..N {
        let q = (inverse * (x[i] - origin)).nearest_within(F4::ZERO, top);
        codes[i] = q;
        let wq = w[i] * q;
        sl = sl + wq;
        sll = sll + wq * q;
        sxl = sxl + wq * x[i];
    }
    (sl, sll, sxl)
}

/// Weighted error of `s l + low` against x.
#[inline(always)]
fn error<const N: usize, const ABSOLUTE: bool>(
    x: &[F4; N],
    w: &[F4; N],
    s: F4,
    low: F4,
    codes: &[F4; N],
) -> F4 {
    let mut out = F4::ZERO;
    for i in 0..N {
        let d = s * codes[i] + low - x[i];
        out = out + w[i] * if ABSOLUTE { d.abs() } else { d * d };
    }
    out
}
