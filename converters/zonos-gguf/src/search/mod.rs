//! The scale searches of the quantisers (`gguf.md` 4.1).
//!
//! A search sums strictly from left to right inside a group, which no processor does fast. So
//! several groups are searched at once, one in each lane: `group[i][lane]` is value `i` of group
//! `lane`, and the order inside each group stays what it has to be.

mod affine;
mod descent;
mod positive;
mod signed;

pub(crate) use affine::{Affine, Grid, affine};
pub(crate) use descent::descent;
pub(crate) use positive::positive;
pub(crate) use signed::{Signed, signed};

/// Groups that are searched at once.
pub(crate) const LANES: usize = 8;

/// One number for each of `L` groups.
pub(crate) type Lanes<const L: usize> = [f32; L];

/// `L` groups of `N` values, transposed: `[value][group]`.
pub(crate) type Groups<const L: usize, const N: usize> = [Lanes<L>; N];

/// Transposes `L * N` values, group after group. Missing values (a short slice) read as zero.
#[inline]
pub(crate) fn gather<const L: usize, const N: usize>(x: &[f32]) -> Groups<L, N> {
    let mut out = [[0.0f32; L]; N];
    for (lane, group) in x.as_chunks::<N>().0.iter().take(L).enumerate() {
        for i in 0..N {
            out[i][lane] = group[i];
        }
    }
    out
}

/// `importance * sqrt(spread + x^2)`: the weight of a value that has an importance.
#[inline]
pub(crate) fn importance_weights<const L: usize, const N: usize>(
    x: &Groups<L, N>,
    importance: &Groups<L, N>,
    spread: &Lanes<L>,
) -> Groups<L, N> {
    let mut out = [[0.0f32; L]; N];
    for i in 0..N {
        for l in 0..L {
            out[i][l] = importance[i][l] * (spread[l] + x[i][l] * x[i][l]).sqrt();
        }
    }
    out
}

/// `x^2`.
#[inline]
pub(crate) fn squares<const L: usize, const N: usize>(x: &Groups<L, N>) -> Groups<L, N> {
    let mut out = *x;
    for lanes in &mut out {
        for v in lanes {
            *v *= *v;
        }
    }
    out
}

/// Sum of each group.
#[inline]
pub(crate) fn sums<const L: usize, const N: usize>(x: &Groups<L, N>) -> Lanes<L> {
    let mut out = [0.0f32; L];
    for lanes in x {
        for l in 0..L {
            out[l] += lanes[l];
        }
    }
    out
}

/// Largest magnitude of each group and the first value that has it.
#[inline]
pub(crate) fn peaks<const L: usize, const N: usize>(x: &Groups<L, N>) -> (Lanes<L>, Lanes<L>) {
    let (mut largest, mut value) = ([0.0f32; L], [0.0f32; L]);
    for lanes in x {
        for l in 0..L {
            let magnitude = lanes[l].abs();
            let more = magnitude > largest[l];
            largest[l] = if more { magnitude } else { largest[l] };
            value[l] = if more { lanes[l] } else { value[l] };
        }
    }
    (largest, value)
}
