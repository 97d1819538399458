//! The uneven grid of IQ4_NL and IQ4_XS, and the search for a scale on it.

use pulp::Simd;

use crate::numeric::ZERO_GROUP;
use crate::search::{
    Each, Groups, Lanes, MOST, TURNS, Vector, Weights, all, gather, peaks, put, width,
};

/// What the sixteen codes stand for, before the scale.
pub const GRID: [i8; 16] = [
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
];

/// Halfway between each two entries. At a midpoint the larger entry counts.
const MIDPOINTS: [f32; 15] = {
    let mut out = [0.0; 15];
    let mut i = 0;
    while i < 15 {
        out[i] = (GRID[i] as f32 + GRID[i + 1] as f32) / 2.0;
        i += 1;
    }
    out
};

/// The code of the grid's entry nearest to `x`; NaN counts as large.
#[inline(always)]
pub(super) fn nearest_code(x: f32) -> u8 {
    let mut code = 15;
    for midpoint in MIDPOINTS {
        code -= u8::from(x < midpoint);
    }
    code
}

/// The entry itself.
#[inline(always)]
fn nearest_entry<S: Simd>(simd: S, x: Vector<S>) -> Vector<S> {
    let mut entry = Vector::splat(simd, f32::from(GRID[15]));
    for i in (0..15).rev() {
        let smaller = Vector::splat(simd, f32::from(GRID[i]));
        entry = x
            .below(Vector::splat(simd, MIDPOINTS[i]))
            .pick(smaller, entry);
    }
    entry
}

/// The scale of each group of `N` values in `x`, at most [`MOST`]: the best of sixteen by `(sum w x
/// g)^2 / sum w g^2`, g from the grid.
#[inline(always)]
pub(super) fn scales<S: Simd, const N: usize>(simd: S, x: &[f32], weights: Weights<'_>) -> Each {
    let mut out = [0.0; MOST];
    let at_once = width::<S, TURNS>();
    for (part, x) in x.chunks(at_once * N).enumerate() {
        let first = part * at_once;
        let groups = gather::<S, N, TURNS>(simd, x);
        let w = weights.of(simd, &groups, first);
        put(&search(simd, &groups, &w), first, &mut out);
    }
    out
}

#[inline(always)]
fn search<S: Simd, const N: usize>(simd: S, x: &Groups<S, N>, w: &Groups<S, N>) -> Lanes<S> {
    let of = |v: f32| Vector::splat(simd, v);
    let (zero, one) = (of(0.0), of(1.0));
    let (largest, peak) = peaks(simd, x);
    let mut none = [zero.above(zero); TURNS];
    let (mut safe, mut inverse) = (peak, peak);
    for h in 0..TURNS {
        none[h] = largest[h].below(of(ZERO_GROUP));
        safe[h] = none[h].pick(one, peak[h]);
        inverse[h] = one / (safe[h].neg() / of(-127.0));
    }
    let [a, b] = grid_sums(simd, x, w, &inverse);
    let (mut scale, mut best) = (a, a);
    for h in 0..TURNS {
        let some = b[h].above(zero);
        scale[h] = some.pick(a[h] / some.pick(b[h], one), zero);
        best[h] = scale[h] * a[h];
    }
    for t in -7..=7 {
        for h in 0..TURNS {
            inverse[h] = of((t - 127) as f32) / safe[h];
        }
        let [a, b] = grid_sums(simd, x, w, &inverse);
        for h in 0..TURNS {
            let take = b[h].above(zero).and((a[h] * a[h]).above(best[h] * b[h]));
            let s = a[h] / take.pick(b[h], one);
            scale[h] = take.pick(s, scale[h]);
            best[h] = take.pick(s * a[h], best[h]);
        }
    }
    for h in 0..TURNS {
        scale[h] = none[h].pick(zero, scale[h]);
    }
    scale
}

#[inline(always)]
fn grid_sums<S: Simd, const N: usize>(
    simd: S,
    x: &Groups<S, N>,
    w: &Groups<S, N>,
    inverse: &Lanes<S>,
) -> [Lanes<S>; 2] {
    let [mut a, mut b] = [all(simd, 0.0); 2];
    for i in 0..N {
        for h in 0..TURNS {
            let (x, w) = (Vector::new(simd, x[i][h]), Vector::new(simd, w[i][h]));
            let near = nearest_entry(simd, inverse[h] * x);
            let wg = w * near;
            a[h] = a[h] + wg * x;
            b[h] = b[h] + wg * near;
        }
    }
    [a, b]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_entry_and_the_larger_of_two() {
        for i in -60_000..60_000 {
            let x = i as f32 / 400.0;
            let by_distance = (0..16)
                .rev()
                .min_by(|&a, &b| {
                    let distance = |c: usize| (x - f32::from(GRID[c])).abs();
                    distance(a).total_cmp(&distance(b))
                })
                .unwrap();
            assert_eq!(usize::from(nearest_code(x)), by_distance, "{x}");
        }
        for (x, code) in [
            (f32::NAN, 15),
            (f32::INFINITY, 15),
            (-f32::INFINITY, 0),
            (7.0, 9),
            (6.999_999_5, 8),
            (-4.5, 8),
            (-4.500_000_5, 7),
            (0.0, 8),
        ] {
            assert_eq!(nearest_code(x), code, "{x}");
        }
    }
}
