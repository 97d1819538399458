//! x ~ s l - m with l in [0, top] and m >= 0.

use pulp::Simd;

use super::{Each, Groups, Lanes, MOST, TURNS, Vector, Weights, all, gather, put, width};
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
    pub(crate) scale: Each,
    /// The minimum m.
    pub(crate) min: Each,
    /// Sum of the weights.
    pub(crate) weight: Each,
    /// The grid that gave them: codes are `nearest(inverse * (x - origin))`, clamped. The inverse is 0 for
    /// a group without spread.
    inverse: Each,
    origin: Each,
    top: i32,
}

impl Affine {
    /// The code of `x`, a value of group `g`.
    #[inline]
    pub(crate) fn code(&self, g: usize, x: f32) -> u8 {
        if self.inverse[g] == 0.0 {
            return 0;
        }
        nearest(self.inverse[g] * (x - self.origin[g])).clamp(0, self.top) as u8
    }
}

/// The best of `grid` by the weighted error, absolute (`ABSOLUTE`) or squared, for each group of `N`
/// values in `x`, at most [`MOST`]. The origin that an accepted candidate finds is the origin of all later
/// candidates.
#[inline(always)]
pub(crate) fn affine<S: Simd, const N: usize, const ABSOLUTE: bool>(
    simd: S,
    x: &[f32],
    weights: Weights<'_>,
    top: i32,
    grid: Grid,
) -> Affine {
    let mut out = Affine {
        scale: [0.0; MOST],
        min: [0.0; MOST],
        weight: [0.0; MOST],
        inverse: [0.0; MOST],
        origin: [0.0; MOST],
        top,
    };
    let at_once = width::<S, TURNS>();
    for (part, x) in x.chunks(at_once * N).enumerate() {
        let first = part * at_once;
        let groups = gather::<S, N, TURNS>(simd, x);
        let w = weights.of(simd, &groups, first);
        search::<S, N, ABSOLUTE>(simd, &groups, &w, grid, first, &mut out);
    }
    out
}

#[inline(always)]
fn search<S: Simd, const N: usize, const ABSOLUTE: bool>(
    simd: S,
    x: &Groups<S, N>,
    w: &Groups<S, N>,
    grid: Grid,
    first: usize,
    out: &mut Affine,
) {
    let of = |v: f32| Vector::splat(simd, v);
    let top = out.top as f32;
    let (zero, one) = (of(0.0), of(1.0));
    let mut codes = [[simd.splat_f32s(0.0); TURNS]; N];
    let mut low: Lanes<S> = all(simd, 0.0);
    for h in 0..TURNS {
        low[h] = Vector::new(simd, x[0][h]);
    }
    let mut high = low;
    let [mut sw, mut sx]: [Lanes<S>; 2] = [all(simd, 0.0); 2];
    for i in 0..N {
        for h in 0..TURNS {
            let (x, w) = (Vector::new(simd, x[i][h]), Vector::new(simd, w[i][h]));
            low[h] = x.smaller(low[h]);
            high[h] = x.larger(high[h]);
            sw[h] = sw[h] + w;
            sx[h] = sx[h] + w * x;
        }
    }
    let (mut origin, mut flat_min) = (low, low);
    let (mut scale, mut kept_inverse) = (low, low);
    let mut spread = [zero.above(zero); TURNS];
    for h in 0..TURNS {
        origin[h] = low[h].above(zero).pick(zero, low[h]);
        flat_min[h] = origin[h].neg();
        // A group without spread is searched like any other, on a range of one, and set aside below.
        spread[h] = high[h].above(origin[h]);
        kept_inverse[h] = of(top) / spread[h].pick(high[h] - origin[h], one);
        scale[h] = one / kept_inverse[h];
    }
    let mut kept_origin = origin;
    code_sums(simd, x, w, &kept_inverse, &origin, top, &mut codes);
    let mut best = error::<S, N, ABSOLUTE>(simd, x, w, &scale, &origin, &codes);
    for i in 0..=grid.steps {
        let step = of(grid.first + grid.step * i as f32 + top);
        let mut inverse = origin;
        for h in 0..TURNS {
            inverse[h] = step / spread[h].pick(high[h] - origin[h], one);
        }
        let [sl, sll, sxl] = code_sums(simd, x, w, &inverse, &origin, top, &mut codes);
        let (mut s, mut low, mut solvable) = (origin, origin, spread);
        for h in 0..TURNS {
            let det = sw[h] * sll[h] - sl[h] * sl[h];
            solvable[h] = det.above(zero);
            let det = solvable[h].pick(det, one);
            s[h] = (sw[h] * sxl[h] - sx[h] * sl[h]) / det;
            low[h] = (sll[h] * sx[h] - sl[h] * sxl[h]) / det;
            let above = low[h].above(zero);
            let none = sll[h].equals(zero);
            let through_zero = none.pick(zero, sxl[h] / none.pick(one, sll[h]));
            s[h] = above.pick(through_zero, s[h]);
            low[h] = above.pick(zero, low[h]);
        }
        let e = error::<S, N, ABSOLUTE>(simd, x, w, &s, &low, &codes);
        for h in 0..TURNS {
            let take = solvable[h].and(e[h].below(best[h]));
            best[h] = take.pick(e[h], best[h]);
            scale[h] = take.pick(s[h], scale[h]);
            kept_inverse[h] = take.pick(inverse[h], kept_inverse[h]);
            kept_origin[h] = take.pick(origin[h], kept_origin[h]);
            origin[h] = take.pick(low[h], origin[h]);
        }
    }
    let mut min = origin;
    for h in 0..TURNS {
        scale[h] = spread[h].pick(scale[h], zero);
        min[h] = spread[h].pick(origin[h].neg(), flat_min[h]);
        kept_inverse[h] = spread[h].pick(kept_inverse[h], zero);
    }
    put(&scale, first, &mut out.scale);
    put(&min, first, &mut out.min);
    put(&sw, first, &mut out.weight);
    put(&kept_inverse, first, &mut out.inverse);
    put(&kept_origin, first, &mut out.origin);
}

/// Codes on one grid, and `(sum w l, sum (w l) l, sum (w l) x)` of each group.
#[inline(always)]
fn code_sums<S: Simd, const N: usize>(
    simd: S,
    x: &Groups<S, N>,
    w: &Groups<S, N>,
    inverse: &Lanes<S>,
    origin: &Lanes<S>,
    top: f32,
    codes: &mut Groups<S, N>,
) -> [Lanes<S>; 3] {
    let (zero, top) = (Vector::splat(simd, 0.0), Vector::splat(simd, top));
    let [mut sl, mut sll, mut sxl] = [all(simd, 0.0); 3];
    for i in 0..N {
        for h in 0..TURNS {
            let (x, w) = (Vector::new(simd, x[i][h]), Vector::new(simd, w[i][h]));
            let q = (inverse[h] * (x - origin[h])).nearest_within(zero, top);
            codes[i][h] = q.lanes;
            let wq = w * q;
            sl[h] = sl[h] + wq;
            sll[h] = sll[h] + wq * q;
            sxl[h] = sxl[h] + wq * x;
        }
    }
    [sl, sll, sxl]
}

/// Weighted error of `s l + low` against x.
#[inline(always)]
fn error<S: Simd, const N: usize, const ABSOLUTE: bool>(
    simd: S,
    x: &Groups<S, N>,
    w: &Groups<S, N>,
    s: &Lanes<S>,
    low: &Lanes<S>,
    codes: &Groups<S, N>,
) -> Lanes<S> {
    let mut out = all(simd, 0.0);
    for i in 0..N {
        for h in 0..TURNS {
            let (x, w) = (Vector::new(simd, x[i][h]), Vector::new(simd, w[i][h]));
            let d = s[h] * Vector::new(simd, codes[i][h]) + low[h] - x;
            out[h] = out[h] + w * if ABSOLUTE { d.abs() } else { d * d };
        }
    }
    out
}
