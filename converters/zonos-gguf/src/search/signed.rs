//! x ~ s l with l in [-top, top - 1].

use pulp::Simd;

use super::{
    Each, Groups, Lanes, MOST, TURNS, Vector, Weights, all, gather, peaks, put, sums, width,
};
use crate::numeric::{ZERO_GROUP, nearest};

/// What [`signed`] found, a number for each group.
pub(crate) struct Signed {
    /// The scale; 0 for a group of zeros.
    pub(crate) scale: Each,
    /// Sum of the weights.
    pub(crate) weight: Each,
    /// The grid that gave it: codes are `nearest(inverse * x)`, clamped. 0 for a group of zeros.
    inverse: Each,
    top: i32,
}

impl Signed {
    /// The code of `x`, a value of group `g`, with `top` added: 0..2 top.
    #[inline(always)]
    pub(crate) fn code(&self, g: usize, x: f32) -> u8 {
        let inverse = self.inverse[g];
        if inverse == 0.0 {
            return 0;
        }
        (nearest(inverse * x).clamp(-self.top, self.top - 1) + self.top) as u8
    }
}

/// The best of nineteen grids around `-top / peak` by `(sum w x l)^2 / sum w l^2`, for each group of `N`
/// values in `x`, at most [`MOST`].
#[inline(always)]
pub(crate) fn signed<S: Simd, const N: usize>(
    simd: S,
    x: &[f32],
    weights: Weights<'_>,
    top: i32,
) -> Signed {
    let mut out = Signed {
        scale: [0.0; MOST],
        weight: [0.0; MOST],
        inverse: [0.0; MOST],
        top,
    };
    let at_once = width::<S, TURNS>();
    for (part, x) in x.chunks(at_once * N).enumerate() {
        let first = part * at_once;
        let groups = gather::<S, N, TURNS>(simd, x);
        let w = weights.of(simd, &groups, first);
        search(simd, &groups, &w, first, &mut out);
    }
    out
}

#[inline(always)]
fn search<S: Simd, const N: usize>(
    simd: S,
    x: &Groups<S, N>,
    w: &Groups<S, N>,
    first: usize,
    out: &mut Signed,
) {
    let of = |v: f32| Vector::splat(simd, v);
    let (zero, one) = (of(0.0), of(1.0));
    let top = out.top as f32;
    let (largest, peak) = peaks(simd, x);
    let mut wx = *w;
    for i in 0..N {
        for h in 0..TURNS {
            wx[i][h] = (Vector::new(simd, w[i][h]) * Vector::new(simd, x[i][h])).lanes;
        }
    }
    let mut none = [zero.above(zero); TURNS];
    let (mut safe, mut inverse) = (peak, peak);
    for h in 0..TURNS {
        none[h] = largest[h].below(of(ZERO_GROUP));
        safe[h] = none[h].pick(one, peak[h]);
        inverse[h] = of(-top) / safe[h];
    }
    let [a, b] = grid_sums(simd, x, w, &wx, &inverse, top);
    let (mut scale, mut best) = (a, a);
    for h in 0..TURNS {
        let nothing = b[h].equals(zero);
        scale[h] = nothing.pick(zero, a[h] / nothing.pick(one, b[h]));
        best[h] = scale[h] * a[h];
    }
    for step in -9..=9 {
        if step == 0 {
            continue;
        }
        let grid = of(-(top + 0.1f32 * step as f32));
        let mut candidate = safe;
        for h in 0..TURNS {
            candidate[h] = grid / safe[h];
        }
        let [a, b] = grid_sums(simd, x, w, &wx, &candidate, top);
        for h in 0..TURNS {
            let take = b[h].above(zero).and((a[h] * a[h]).above(best[h] * b[h]));
            let s = a[h] / take.pick(b[h], one);
            scale[h] = take.pick(s, scale[h]);
            best[h] = take.pick(s * a[h], best[h]);
            inverse[h] = take.pick(candidate[h], inverse[h]);
        }
    }
    for h in 0..TURNS {
        scale[h] = none[h].pick(zero, scale[h]);
        inverse[h] = none[h].pick(zero, inverse[h]);
    }
    put(&scale, first, &mut out.scale);
    put(&inverse, first, &mut out.inverse);
    put(&sums(simd, w), first, &mut out.weight);
}

/// `(sum (w x) l, sum (w l) l)` of each group. No value passes the peak, so no product passes
/// `top + 1`.
#[inline(always)]
fn grid_sums<S: Simd, const N: usize>(
    simd: S,
    x: &Groups<S, N>,
    w: &Groups<S, N>,
    wx: &Groups<S, N>,
    inverse: &Lanes<S>,
    top: f32,
) -> [Lanes<S>; 2] {
    let (low, high) = (Vector::splat(simd, -top), Vector::splat(simd, top - 1.0));
    let [mut a, mut b] = [all(simd, 0.0); 2];
    for i in 0..N {
        for h in 0..TURNS {
            let q = (inverse[h] * Vector::new(simd, x[i][h])).small_nearest_within(low, high);
            a[h] = a[h] + Vector::new(simd, wx[i][h]) * q;
            b[h] = b[h] + Vector::new(simd, w[i][h]) * q * q;
        }
    }
    [a, b]
}
