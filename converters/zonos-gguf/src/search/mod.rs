//! The scale searches of the quantisers (`gguf.md` 4.1).
//!
//! A search sums strictly from left to right inside a group, which no processor does fast. So
//! eight groups are searched at once, one in each lane of two vectors: `groups[h][i]` holds value `i`
//! of groups `4 h .. 4 h + 4`, and the order inside each group stays what it has to be.

#![allow(
    clippy::needless_range_loop,
    reason = "values, weights and codes are walked in step, by lane and by place"
)]

mod affine;
mod descent;
mod lanes;
mod positive;
mod signed;

pub(crate) use affine::{Affine, Grid, affine};
pub(crate) use descent::descent;
pub(crate) use lanes::F4;
pub(crate) use positive::positive;
pub(crate) use signed::signed;

/// Groups that are searched at once.
pub(crate) const LANES: usize = 8;

/// One number for each of the groups.
pub(crate) type Lanes = [F4; 2];

/// Groups of `N` values, transposed.
pub(crate) type Groups<const N: usize> = [[F4; N]; 2];

/// The numbers in the order of the groups.
#[inline(always)]
pub(crate) fn in_order(lanes: &Lanes) -> [f32; LANES] {
    let [a, b] = lanes;
    let mut out = [0.0; LANES];
    out[..4].copy_from_slice(&a.0);
    out[4..].copy_from_slice(&b.0);
    out
}

/// Transposes [`LANES`] groups of `N` values. Missing ones (a short slice) read as zeros.
#[inline]
pub(crate) fn gather<const N: usize>(x: &[f32]) -> Groups<N> {
    let mut out = [[F4::ZERO; N]; 2];
    for (g, group) in x.as_chunks::<N>().0.iter().take(LANES).enumerate() {
        for i in 0..N {
            out[g / 4][i].0[g % 4] = group[i];
        }
    }
    out
}

/// `importance * sqrt(spread + x^2)`: the weight of a value that has an importance.
#[inline]
pub(crate) fn importance_weights<const N: usize>(
    x: &Groups<N>,
    importance: &Groups<N>,
    spread: &Lanes,
) -> Groups<N> {
    let mut out = *x;
    for h in 0..2 {
        for i in 0..N {
            let v = x[h][i];
            out[h][i] = importance[h][i] * (spread[h] + v * v).sqrt();
        }
    }
    out
}

/// `x^2`.
#[inline]
pub(crate) fn squares<const N: usize>(x: &Groups<N>) -> Groups<N> {
    let mut out = *x;
    for v in out.as_flattened_mut() {
        *v = *v * *v;
    }
    out
}

/// Sum of each group.
#[inline]
pub(crate) fn sums<const N: usize>(x: &Groups<N>) -> Lanes {
    let mut out = [F4::ZERO; 2];
    for i in 0..N {
        for h in 0..2 {
            out[h] = out[h] + x[h][i];
        }
    }
    out
}

/// Largest magnitude of each group and the first value that has it.
#[inline]
pub(crate) fn peaks<const N: usize>(x: &Groups<N>) -> (Lanes, Lanes) {
    let (mut largest, mut value) = ([F4::ZERO; 2], [F4::ZERO; 2]);
    for i in 0..N {
        for h in 0..2 {
            let magnitude = x[h][i].abs();
            let more = magnitude.above(largest[h]);
            largest[h] = magnitude.larger(largest[h]);
            value[h] = more.pick(x[h][i], value[h]);
        }
    }
    (largest, value)
}
