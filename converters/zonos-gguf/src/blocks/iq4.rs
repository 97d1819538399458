//! The uneven grid of IQ4_NL and IQ4_XS, and the search for a scale on it.

use crate::numeric::{MAGIC, ZERO_GROUP};
use crate::search::{Groups, Lanes, peaks};

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
    let y = x + x;
    let y = if y < 227.0 { y } else { 227.0 };
    let y = if y > -256.0 { y } else { -256.0 };
    let near = (y + MAGIC) - MAGIC;
    let floor = if near > y { near - 1.0 } else { near };
    ((floor + (MAGIC + 256.0)).to_bits() & 511) as usize
}

/// The code of the grid's entry nearest to `x`.
#[inline(always)]
pub(super) fn nearest_code(x: f32) -> u8 {
    CODES[step(x)]
}

/// The scale of each group: the best of sixteen by `(sum w x g)^2 / sum w g^2`, g from the grid.
pub(super) fn scales<const L: usize, const N: usize>(
    x: &Groups<L, N>,
    w: &Groups<L, N>,
) -> Lanes<L> {
    let (largest, peak) = peaks(x);
    let mut safe = [1.0f32; L];
    for l in 0..L {
        safe[l] = if largest[l] < ZERO_GROUP {
            1.0
        } else {
            peak[l]
        };
    }
    let (a, b) = grid_sums(x, w, &safe.map(|v| 1.0 / (-v / -127.0)));
    let (mut scale, mut best) = ([0.0f32; L], [0.0f32; L]);
    for l in 0..L {
        scale[l] = if b[l] > 0.0 { a[l] / b[l] } else { 0.0 };
        best[l] = scale[l] * a[l];
    }
    for t in -7..=7 {
        let (a, b) = grid_sums(x, w, &safe.map(|v| (t - 127) as f32 / v));
        for l in 0..L {
            let take = b[l] > 0.0 && a[l] * a[l] > best[l] * b[l];
            let s = a[l] / if take { b[l] } else { 1.0 };
            scale[l] = if take { s } else { scale[l] };
            best[l] = if take { s * a[l] } else { best[l] };
        }
    }
    for l in 0..L {
        scale[l] = if largest[l] < ZERO_GROUP {
            0.0
        } else {
            scale[l]
        };
    }
    scale
}

#[inline(always)]
fn grid_sums<const L: usize, const N: usize>(
    x: &Groups<L, N>,
    w: &Groups<L, N>,
    inverse: &Lanes<L>,
) -> (Lanes<L>, Lanes<L>) {
    let (mut a, mut b) = ([0.0f32; L], [0.0f32; L]);
    for i in 0..N {
        let mut at = [0usize; L];
        for l in 0..L {
            at[l] = step(inverse[l] * x[i][l]);
        }
        let near = at.map(|i| NEAREST[i & (STEPS - 1)]);
        for l in 0..L {
            let wg = w[i][l] * near[l];
            a[l] += wg * x[i][l];
            b[l] += wg * near[l];
        }
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
