//! The uneven grid of IQ4_NL and IQ4_XS, and the search for a scale on it.

use crate::numeric::{MAGIC, ZERO_GROUP};
use crate::search::{F4, Groups, LANES, Lanes, in_order, peaks};

/// What the sixteen codes stand for, before the scale.
pub const GRID: [i8; 16] = [
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
];

/// Entries of the tables below. The grid's midpoints are multiples of one half, so `floor(2 x)`
/// decides; entry `STEPS / 2 + floor(2 x)`.
const STEPS: usize = 512;

const fn codes_by_step() -> [u8; STEPS] {
    let mut out = [0u8; STEPS];
    let mut i = 0;
    while i < STEPS {
        let step = i as i32 - STEPS as i32 / 2;
        let mut code = 0;
        // At a midpoint the larger entry counts.
        while code < 15 && step >= GRID[code] as i32 + GRID[code + 1] as i32 {
            code += 1;
        }
        out[i] = code as u8;
        i += 1;
    }
    out
}

const fn values_by_step() -> [f32; STEPS] {
    let codes = codes_by_step();
    let mut out = [0.0f32; STEPS];
    let mut i = 0;
    while i < STEPS {
        out[i] = GRID[codes[i] as usize] as f32;
        i += 1;
    }
    out
}

static CODES: [u8; STEPS] = codes_by_step();
static NEAREST: [f32; STEPS] = values_by_step();

/// The table entry of `x`; NaN counts as large.
#[inline(always)]
fn step(x: f32) -> usize {
    steps(F4::splat(x))[0]
}

/// The table entries of four.
#[inline(always)]
fn steps(x: F4) -> [usize; 4] {
    let y = (x + x).smaller(F4::splat(227.0)).larger(F4::splat(-256.0));
    let near = (y + F4::splat(MAGIC)) - F4::splat(MAGIC);
    let floor = near.above(y).pick(near - F4::splat(1.0), near);
    let bits = floor + F4::splat(MAGIC + 256.0);
    bits.0.map(|v| (v.to_bits() & 511) as usize)
}

/// The code of the grid's entry nearest to `x`.
#[inline(always)]
pub(super) fn nearest_code(x: f32) -> u8 {
    CODES[step(x)]
}

/// The scale of each group: the best of sixteen by `(sum w x g)^2 / sum w g^2`, g from the grid.
pub(super) fn scales<const N: usize>(x: &Groups<N>, w: &Groups<N>) -> [f32; LANES] {
    let one = F4::splat(1.0);
    let (largest, peak) = peaks(x);
    let zero = largest.map(|v| v.below(F4::splat(ZERO_GROUP)));
    let safe: Lanes = std::array::from_fn(|h| zero[h].pick(one, peak[h]));
    let (mut scale, mut best) = ([F4::ZERO; 2], [F4::ZERO; 2]);
    for h in 0..2 {
        let d = safe[h].neg() / F4::splat(-127.0);
        let (a, b) = grid_sums(&x[h], &w[h], one / d);
        let some = b.above(F4::ZERO);
        scale[h] = some.pick(a / some.pick(b, one), F4::ZERO);
        best[h] = scale[h] * a;
    }
    for t in -7..=7 {
        for h in 0..2 {
            let (a, b) = grid_sums(&x[h], &w[h], F4::splat((t - 127) as f32) / safe[h]);
            let take = b.above(F4::ZERO).and((a * a).above(best[h] * b));
            let s = a / take.pick(b, one);
            scale[h] = take.pick(s, scale[h]);
            best[h] = take.pick(s * a, best[h]);
        }
    }
    in_order(&std::array::from_fn(|h| zero[h].pick(F4::ZERO, scale[h])))
}

#[inline(always)]
fn grid_sums<const N: usize>(x: &[F4; N], w: &[F4; N], inverse: F4) -> (F4, F4) {
    let (mut a, mut b) = (F4::ZERO, F4::ZERO);
    for i in 0..N {
        let near = F4(steps(inverse * x[i]).map(|at| NEAREST[at & (STEPS - 1)]));
        let wg = w[i] * near;
        a = a + wg * x[i];
        b = b + wg * near;
    }
    (a, b)
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
