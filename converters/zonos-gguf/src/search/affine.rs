//! x ~ s l - m with l in [0, top] and m >= 0.

use super::{Groups, Lanes};
use crate::numeric::{nearest, nearest_within};

/// The candidate grids: `(top + first + step * i) / range` for `i` in `0..=steps`.
#[derive(Clone, Copy)]
pub(crate) struct Grid {
    pub(crate) first: f32,
    pub(crate) step: f32,
    pub(crate) steps: usize,
}

/// What [`affine`] found, a number for each group.
pub(crate) struct Affine<const L: usize> {
    /// The scale s; 0 for a group without spread.
    pub(crate) scale: Lanes<L>,
    /// The minimum m.
    pub(crate) min: Lanes<L>,
    /// The grid that gave them: codes are `nearest(inverse * (x - origin))`, clamped.
    inverse: Lanes<L>,
    origin: Lanes<L>,
    flat: [bool; L],
    top: i32,
}

impl<const L: usize> Affine<L> {
    /// The code of `x`, a value of group `lane`.
    #[inline]
    pub(crate) fn code(&self, lane: usize, x: f32) -> u8 {
        if self.flat[lane] {
            return 0;
        }
        nearest(self.inverse[lane] * (x - self.origin[lane])).clamp(0, self.top) as u8
    }
}

/// Products below this round the same whether they are limited before or after; above 2^22 the
/// reference's rounding wraps round.
const SURE: f32 = 4_000_000.0;

/// The best of `grid` by the weighted error, absolute (`ABSOLUTE`) or squared. The origin that an
/// accepted candidate finds is the origin of all later candidates.
pub(crate) fn affine<const L: usize, const N: usize, const ABSOLUTE: bool>(
    x: &Groups<L, N>,
    w: &Groups<L, N>,
    top: i32,
    grid: Grid,
) -> Affine<L> {
    let (mut lowest, mut high) = (x[0], x[0]);
    let (mut sw, mut sx) = ([0.0f32; L], [0.0f32; L]);
    for i in 0..N {
        for l in 0..L {
            let v = x[i][l];
            lowest[l] = if v < lowest[l] { v } else { lowest[l] };
            high[l] = if v > high[l] { v } else { high[l] };
            sw[l] += w[i][l];
            sx[l] += w[i][l] * v;
        }
    }
    let mut origin = lowest.map(|v| if v > 0.0 { 0.0 } else { v });
    let mut flat = [false; L];
    for l in 0..L {
        flat[l] = high[l] <= origin[l];
    }
    let flat_min = origin.map(|v| -v);
    let range = |origin: &Lanes<L>| {
        let mut out = [1.0f32; L];
        for l in 0..L {
            out[l] = if flat[l] { 1.0 } else { high[l] - origin[l] };
        }
        out
    };
    // Whether no product of a candidate can reach the magnitudes where rounding wraps.
    let sure = |inverse: &Lanes<L>, origin: &Lanes<L>| {
        (0..L).all(|l| {
            let reach = (lowest[l] - origin[l])
                .abs()
                .max((high[l] - origin[l]).abs());
            flat[l] || inverse[l].abs() * reach < SURE
        })
    };

    let ftop = top as f32;
    let mut codes = [[0.0f32; L]; N];
    let mut inverse = range(&origin).map(|v| ftop / v);
    let mut scale = inverse.map(|v| 1.0 / v);
    let sure_now = sure(&inverse, &origin);
    code_sums(x, w, &inverse, &origin, ftop, sure_now, &mut codes);
    let mut best = error::<L, N, ABSOLUTE>(x, w, &scale, &origin, &codes);
    let (mut kept_inverse, mut kept_origin) = (inverse, origin);
    for i in 0..=grid.steps {
        let step = grid.first + grid.step * i as f32 + ftop;
        inverse = range(&origin).map(|v| step / v);
        let sure_now = sure(&inverse, &origin);
        let (sl, sll, sxl) = code_sums(x, w, &inverse, &origin, ftop, sure_now, &mut codes);
        let (mut s, mut low) = ([0.0f32; L], [0.0f32; L]);
        let mut solvable = [false; L];
        for l in 0..L {
            let det = sw[l] * sll[l] - sl[l] * sl[l];
            solvable[l] = det > 0.0;
            let det = if solvable[l] { det } else { 1.0 };
            s[l] = (sw[l] * sxl[l] - sx[l] * sl[l]) / det;
            low[l] = (sll[l] * sx[l] - sl[l] * sxl[l]) / det;
            let above = low[l] > 0.0;
            let through_zero = sxl[l] / if sll[l] != 0.0 { sll[l] } else { 1.0 };
            s[l] = if above { through_zero } else { s[l] };
            low[l] = if above { 0.0 } else { low[l] };
        }
        let e = error::<L, N, ABSOLUTE>(x, w, &s, &low, &codes);
        for l in 0..L {
            let take = solvable[l] & (e[l] < best[l]);
            best[l] = if take { e[l] } else { best[l] };
            scale[l] = if take { s[l] } else { scale[l] };
            kept_inverse[l] = if take { inverse[l] } else { kept_inverse[l] };
            kept_origin[l] = if take { origin[l] } else { kept_origin[l] };
            origin[l] = if take { low[l] } else { origin[l] };
        }
    }
    let mut min = [0.0f32; L];
    for l in 0..L {
        scale[l] = if flat[l] { 0.0 } else { scale[l] };
        min[l] = if flat[l] { flat_min[l] } else { -origin[l] };
    }
    Affine {
        scale,
        min,
        inverse: kept_inverse,
        origin: kept_origin,
        flat,
        top,
    }
}

/// Codes on one grid, and `(sum w l, sum (w l) l, sum (w l) x)` of each group.
#[inline(always)]
fn code_sums<const L: usize, const N: usize>(
    x: &Groups<L, N>,
    w: &Groups<L, N>,
    inverse: &Lanes<L>,
    origin: &Lanes<L>,
    top: f32,
    sure: bool,
    codes: &mut Groups<L, N>,
) -> (Lanes<L>, Lanes<L>, Lanes<L>) {
    if sure {
        sums_by(x, w, inverse, origin, codes, |v| {
            nearest_within(v, 0.0, top)
        })
    } else {
        sums_by(x, w, inverse, origin, codes, |v| {
            nearest(v).clamp(0, top as i32) as f32
        })
    }
}

#[inline(always)]
fn sums_by<const L: usize, const N: usize>(
    x: &Groups<L, N>,
    w: &Groups<L, N>,
    inverse: &Lanes<L>,
    origin: &Lanes<L>,
    codes: &mut Groups<L, N>,
    round: impl Fn(f32) -> f32,
) -> (Lanes<L>, Lanes<L>, Lanes<L>) {
    let (mut sl, mut sll, mut sxl) = ([0.0f32; L], [0.0f32; L], [0.0f32; L]);
    for i in 0..N {
        for l in 0..L {
            let q = round(inverse[l] * (x[i][l] - origin[l]));
            codes[i][l] = q;
            let wq = w[i][l] * q;
            sl[l] += wq;
            sll[l] += wq * q;
            sxl[l] += wq * x[i][l];
        }
    }
    (sl, sll, sxl)
}

/// Weighted error of `s l + low` against x.
#[inline(always)]
fn error<const L: usize, const N: usize, const ABSOLUTE: bool>(
    x: &Groups<L, N>,
    w: &Groups<L, N>,
    s: &Lanes<L>,
    low: &Lanes<L>,
    codes: &Groups<L, N>,
) -> Lanes<L> {
    let mut out = [0.0f32; L];
    for i in 0..N {
        for l in 0..L {
            let d = s[l] * codes[i][l] + low[l] - x[i][l];
            out[l] += w[i][l] * if ABSOLUTE { d.abs() } else { d * d };
        }
    }
    out
}
