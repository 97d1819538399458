//! The scale searches of the quantisers (`gguf.md` 4.1).
//!
//! A search sums strictly from left to right inside a group, which no processor does fast. So many
//! groups are searched at once, one in each lane of a few registers: `groups[i][h]` holds value `i` of
//! as many groups as a register has lanes, and the order inside each group stays what it has to be.
//! Several registers take turns, since each sum has to wait for the one before.

#![allow(
    clippy::needless_range_loop,
    reason = "values, weights and codes are walked in step, by lane and by place"
)]

mod affine;
mod descent;
mod dispatch;
mod positive;
mod signed;
mod vector;
mod weights;

use pulp::Simd;

pub(crate) use affine::{Affine, Grid, affine};
pub(crate) use descent::Descent;
#[cfg(test)]
pub(crate) use dispatch::encode_on;
pub(crate) use dispatch::{Encode, encode};
pub(crate) use positive::positive;
pub(crate) use signed::{Signed, signed};
pub(crate) use vector::{Vector, put_whole};
pub(crate) use weights::Weights;

/// Most groups that a search takes: of 16 values, those of four blocks of the K formats.
pub(crate) const MOST: usize = 64;

/// A number for each group.
pub(crate) type Each = [f32; MOST];

/// Registers that take turns.
pub(crate) const TURNS: usize = 2;

/// Groups of `N` values, transposed.
pub(crate) type Groups<S, const N: usize, const U: usize = TURNS> = [[<S as Simd>::f32s; U]; N];

/// One number for each of the groups in `U` registers.
pub(crate) type Lanes<S, const U: usize = TURNS> = [Vector<S>; U];

/// Groups in `U` registers.
#[inline(always)]
pub(crate) fn width<S: Simd, const U: usize>() -> usize {
    U * S::F32_LANES
}

/// The same number for all.
#[inline(always)]
pub(crate) fn all<S: Simd, const U: usize>(simd: S, v: f32) -> Lanes<S, U> {
    [Vector::splat(simd, v); U]
}

/// Puts the numbers of the groups from `first` on in their places.
#[inline(always)]
pub(crate) fn put<S: Simd, const U: usize>(lanes: &Lanes<S, U>, first: usize, out: &mut Each) {
    for h in 0..U {
        let lanes: &[f32] = bytemuck::cast_slice(std::slice::from_ref(&lanes[h].lanes));
        let at = first + h * S::F32_LANES;
        out[at..at + S::F32_LANES].copy_from_slice(lanes);
    }
}

/// Numbers of the groups from `first` on.
#[inline(always)]
pub(crate) fn take<S: Simd, const U: usize>(simd: S, numbers: &Each, first: usize) -> Lanes<S, U> {
    let mut out = all(simd, 0.0);
    for h in 0..U {
        let at = first + h * S::F32_LANES;
        let numbers = S::as_simd_f32s(&numbers[at..at + S::F32_LANES]).0;
        out[h] = Vector::new(simd, numbers[0]);
    }
    out
}

/// Transposes the groups in `x`, at most [`width`]. Missing ones read as zeros.
#[inline(always)]
pub(crate) fn gather<S: Simd, const N: usize, const U: usize>(
    simd: S,
    x: &[f32],
) -> Groups<S, N, U> {
    let mut out = [[simd.splat_f32s(0.0); U]; N];
    let flat: &mut [f32] = bytemuck::cast_slice_mut(out.as_flattened_mut());
    let width = width::<S, U>();
    for (g, group) in x.as_chunks::<N>().0.iter().take(width).enumerate() {
        for i in 0..N {
            flat[i * width + g] = group[i];
        }
    }
    out
}

/// Sum of each group.
#[inline(always)]
pub(crate) fn sums<S: Simd, const N: usize, const U: usize>(
    simd: S,
    x: &Groups<S, N, U>,
) -> Lanes<S, U> {
    let mut out = all(simd, 0.0);
    for i in 0..N {
        for h in 0..U {
            out[h] = out[h] + Vector::new(simd, x[i][h]);
        }
    }
    out
}

/// Largest magnitude of each group and the first value that has it.
#[inline(always)]
pub(crate) fn peaks<S: Simd, const N: usize, const U: usize>(
    simd: S,
    x: &Groups<S, N, U>,
) -> (Lanes<S, U>, Lanes<S, U>) {
    let [mut largest, mut value]: [Lanes<S, U>; 2] = [all(simd, 0.0); 2];
    for i in 0..N {
        for h in 0..U {
            let v = Vector::new(simd, x[i][h]);
            let magnitude = v.abs();
            let more = magnitude.above(largest[h]);
            largest[h] = more.pick(magnitude, largest[h]);
            value[h] = more.pick(v, value[h]);
        }
    }
    (largest, value)
}
