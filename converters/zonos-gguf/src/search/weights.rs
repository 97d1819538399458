//! What an error counts.

use pulp::Simd;

use super::{Each, Groups, TURNS, Vector, gather, sums, take, width};

/// The weights of values.
#[derive(Clone, Copy)]
pub(crate) enum Weights<'a> {
    /// `x^2`.
    Squares,
    /// `|x|`.
    Magnitudes,
    /// The root mean square of the group, plus `|x|`.
    RmsAndMagnitudes,
    /// As they are.
    Given(&'a [f32]),
    /// `importance sqrt(spread + x^2)`, a spread for each group.
    Spread(&'a [f32], &'a Each),
    /// The same, where the spread is twice the group's own mean square.
    OwnSpread(&'a [f32]),
}

impl Weights<'_> {
    /// The weights of the groups `x`, which begin at group `first`.
    #[inline(always)]
    pub(crate) fn of<S: Simd, const N: usize>(
        &self,
        simd: S,
        x: &Groups<S, N>,
        first: usize,
    ) -> Groups<S, N> {
        match *self {
            Self::Squares => squares(simd, x),
            Self::Magnitudes => magnitudes(simd, x, None),
            Self::RmsAndMagnitudes => {
                let mut rms = sums(simd, &squares(simd, x));
                for h in 0..TURNS {
                    rms[h] = (rms[h] / Vector::splat(simd, N as f32)).sqrt();
                }
                magnitudes(simd, x, Some(rms))
            }
            Self::Given(w) => part::<S, N>(simd, w, first),
            Self::Spread(w, spread) => {
                let w = part(simd, w, first);
                spread_out(simd, x, &w, take(simd, spread, first))
            }
            Self::OwnSpread(w) => {
                let mut spread = sums(simd, &squares(simd, x));
                for h in 0..TURNS {
                    spread[h] = spread[h] * Vector::splat(simd, 2.0 / N as f32);
                }
                spread_out(simd, x, &part(simd, w, first), spread)
            }
        }
    }
}

/// The groups of `w` from `first` on.
#[inline(always)]
fn part<S: Simd, const N: usize>(simd: S, w: &[f32], first: usize) -> Groups<S, N> {
    let w = w.get(first * N..).unwrap_or_default();
    gather(simd, &w[..w.len().min(width::<S, TURNS>() * N)])
}

#[inline(always)]
fn squares<S: Simd, const N: usize>(simd: S, x: &Groups<S, N>) -> Groups<S, N> {
    let mut out = *x;
    for i in 0..N {
        for h in 0..TURNS {
            let v = Vector::new(simd, x[i][h]);
            out[i][h] = (v * v).lanes;
        }
    }
    out
}

#[inline(always)]
fn magnitudes<S: Simd, const N: usize>(
    simd: S,
    x: &Groups<S, N>,
    more: Option<[Vector<S>; TURNS]>,
) -> Groups<S, N> {
    let mut out = *x;
    for i in 0..N {
        for h in 0..TURNS {
            let v = Vector::new(simd, x[i][h]).abs();
            out[i][h] = match more {
                Some(more) => (more[h] + v).lanes,
                None => v.lanes,
            };
        }
    }
    out
}

#[inline(always)]
fn spread_out<S: Simd, const N: usize>(
    simd: S,
    x: &Groups<S, N>,
    importance: &Groups<S, N>,
    spread: [Vector<S>; TURNS],
) -> Groups<S, N> {
    let mut out = *x;
    for i in 0..N {
        for h in 0..TURNS {
            let v = Vector::new(simd, x[i][h]);
            let w = Vector::new(simd, importance[i][h]);
            out[i][h] = (w * (spread[h] + v * v).sqrt()).lanes;
        }
    }
    out
}
