//! Decode attention over the cache, one pass, in its stored type and without memory of its own.

use burn::backend::TensorMetadata;
use burn_flex::FlexTensor;
use rayon::prelude::*;

use super::math;
use super::simd::{Isa, Kernel, Simd, ask, dispatch_on};
use super::weights::{Element, contiguous, elements, f32_tensor, with_elements};

/// Cache elements below which one thread does it all.
const PARALLEL: usize = 64 * 1024;
/// Positions whose weights are held at a time, so that memory does not grow with the history.
const TILE: usize = 64;
/// Query heads that share a pass over keys and values.
const GROUP: usize = 4;
/// Positions ahead of the one at hand whose keys are asked for: a head's rows are too few for processors to find
/// out by themselves what comes next.
const AHEAD: usize = 16;

/// The query heads of one kv head against that head's cache.
struct Head<'a, E> {
    /// `[group, dim]`
    q: &'a [f32],
    /// `[positions, dim]`
    k: &'a [E],
    /// `[positions, dim]`
    v: &'a [E],
    dim: usize,
    /// The keys of the next head.
    next: *const E,
    /// `[group, dim]`, zeros
    out: &'a mut [f32],
}

impl<E: Element> Kernel for Head<'_, E> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self {
            k, v, dim, next, ..
        } = self;
        let cache = Cached { k, v, dim, next };
        let queries = self.q.chunks(GROUP * dim);
        for (q, out) in queries.zip(self.out.chunks_mut(GROUP * dim)) {
            // SAFETY: the caller dispatched to a processor with `S`.
            unsafe {
                match q.len() / dim {
                    1 => heads::<S, E, 1>(q, cache, out),
                    2 => heads::<S, E, 2>(q, cache, out),
                    3 => heads::<S, E, 3>(q, cache, out),
                    _ => heads::<S, E, GROUP>(q, cache, out),
                }
            }
        }
    }
}

/// Keys and values of one kv head, `[positions, dim]`.
#[derive(Clone, Copy)]
struct Cached<'a, E> {
    k: &'a [E],
    v: &'a [E],
    dim: usize,
    /// The keys of the next head.
    next: *const E,
}

impl<E> Cached<'_, E> {
    /// Asks for the values of position `at`, which are read when all keys of its tile have been, and for the
    /// keys [`AHEAD`] of it.
    #[inline(always)]
    fn ask(&self, at: usize) {
        let (ahead, positions) = (at + AHEAD, self.k.len() / self.dim);
        let keys = if ahead < positions {
            self.k.as_ptr().wrapping_add(ahead * self.dim)
        } else {
            self.next.wrapping_add((ahead - positions) * self.dim)
        };
        let values = self.v.as_ptr().wrapping_add(at * self.dim);
        for byte in (0..self.dim * size_of::<E>()).step_by(64) {
            ask(keys.cast::<u8>().wrapping_add(byte));
            ask(values.cast::<u8>().wrapping_add(byte));
        }
    }
}

/// Attention of `G` query heads, a tile of positions at a time: what the tiles before gave is scaled
/// down when a larger score turns up.
///
/// # Safety
///
/// The instruction set is `S`'s.
#[inline(always)]
unsafe fn heads<S: Simd, E: Element, const G: usize>(
    q: &[f32],
    cache: Cached<'_, E>,
    out: &mut [f32],
) {
    let Cached { k, v, dim, .. } = cache;
    assert!(q.len() == G * dim && out.len() == G * dim && k.len() == v.len());
    let mut largest = [f32::NEG_INFINITY; G];
    let mut totals = [0.0f32; G];
    let mut weights = [[0.0f32; TILE]; G];
    for (tile, (k, v)) in k.chunks(TILE * dim).zip(v.chunks(TILE * dim)).enumerate() {
        let positions = k.len() / dim;
        // SAFETY: `S` by the caller's contract; a tile is whole rows of `dim`.
        unsafe {
            let mut at = 0;
            while at + 2 <= positions {
                cache.ask(tile * TILE + at);
                cache.ask(tile * TILE + at + 1);
                scores::<S, E, G, 2>(q, &k[at * dim..], dim, at, &mut weights);
                at += 2;
            }
            if at < positions {
                cache.ask(tile * TILE + at);
                scores::<S, E, G, 1>(q, &k[at * dim..], dim, at, &mut weights);
            }
            for g in 0..G {
                let weights = &mut weights[g];
                // Exponentials come by the vector: what is left of the tile weighs nothing.
                weights[positions..].fill(f32::NEG_INFINITY);
                let top = weights.iter().copied().fold(largest[g], f32::max);
                let fade = (largest[g] - top).exp();
                largest[g] = top;
                totals[g] = totals[g] * fade + exponentials::<S>(weights, top);
                if fade != 1.0 {
                    for value in &mut out[g * dim..][..dim] {
                        *value *= fade;
                    }
                }
            }
            values::<S, E, G>(v, &weights, dim, out);
        }
    }
    for (out, total) in out.chunks_exact_mut(dim).zip(totals) {
        let inverse = 1.0 / total;
        for value in out {
            *value *= inverse;
        }
    }
}

/// Scores of `P` positions from `k` on with `G` query heads, scaled, into `weights[..][at..]`.
///
/// # Safety
///
/// The instruction set is `S`'s.
#[inline(always)]
unsafe fn scores<S: Simd, E: Element, const G: usize, const P: usize>(
    q: &[f32],
    k: &[E],
    dim: usize,
    at: usize,
    weights: &mut [[f32; TILE]; G],
) {
    assert!(q.len() == G * dim && k.len() >= P * dim && at + P <= TILE);
    let scale = 1.0 / (dim as f32).sqrt();
    let whole = dim - dim % S::LANES;
    // SAFETY: loads stay below `whole`, which is at most `dim`, the length of all rows.
    unsafe {
        let mut sums = [[S::zero(); P]; G];
        for d in (0..whole).step_by(S::LANES) {
            let mut keys = [S::zero(); P];
            for p in 0..P {
                keys[p] = E::load::<S>(k.as_ptr().add(p * dim + d));
            }
            for g in 0..G {
                let q = S::load(q.as_ptr().add(g * dim + d));
                for p in 0..P {
                    sums[g][p] = S::fma(keys[p], q, sums[g][p]);
                }
            }
        }
        for g in 0..G {
            for p in 0..P {
                let mut sum = S::sum(sums[g][p]);
                for d in whole..dim {
                    sum = S::fma1(k[p * dim + d].widen(), q[g * dim + d], sum);
                }
                weights[g][at + p] = sum * scale;
            }
        }
    }
}

/// Replaces scores by `exp(score - top)`, and returns their sum.
///
/// # Safety
///
/// The instruction set is `S`'s.
#[inline(always)]
unsafe fn exponentials<S: Simd>(scores: &mut [f32; TILE], top: f32) -> f32 {
    const { assert!(TILE.is_multiple_of(S::LANES)) };
    // SAFETY: a tile is whole vectors.
    unsafe {
        let top = S::splat(top);
        let mut total = S::zero();
        for at in (0..TILE).step_by(S::LANES) {
            let place = scores.as_mut_ptr().add(at);
            let weight = math::exp::<S>(S::sub(S::load(place), top));
            S::store(place, weight);
            total = S::add(total, weight);
        }
        S::sum(total)
    }
}

/// Adds the weighted rows of `v` to the `G` rows of `out`.
///
/// # Safety
///
/// The instruction set is `S`'s.
#[inline(always)]
unsafe fn values<S: Simd, E: Element, const G: usize>(
    v: &[E],
    weights: &[[f32; TILE]; G],
    dim: usize,
    out: &mut [f32],
) {
    assert!(v.len() <= TILE * dim && out.len() == G * dim);
    let mut d = 0;
    // SAFETY: vectors from `d` on end at most at `dim`, the length of the rows of `v` and `out`.
    unsafe {
        while d + 2 * S::LANES <= dim {
            weighted::<S, E, G, 2>(v, weights, dim, d, out);
            d += 2 * S::LANES;
        }
        while d + S::LANES <= dim {
            weighted::<S, E, G, 1>(v, weights, dim, d, out);
            d += S::LANES;
        }
        for (t, v) in v.chunks_exact(dim).enumerate() {
            for g in 0..G {
                for d in d..dim {
                    let out = &mut out[g * dim + d];
                    *out = S::fma1(v[d].widen(), weights[g][t], *out);
                }
            }
        }
    }
}

/// [`values`], for the `N` vectors from `d` on.
///
/// # Safety
///
/// The instruction set is `S`'s, and the vectors end at most at `dim`.
#[inline(always)]
unsafe fn weighted<S: Simd, E: Element, const G: usize, const N: usize>(
    v: &[E],
    weights: &[[f32; TILE]; G],
    dim: usize,
    d: usize,
    out: &mut [f32],
) {
    // SAFETY: the caller's contract.
    unsafe {
        let mut sums = [[S::zero(); N]; G];
        for g in 0..G {
            for n in 0..N {
                sums[g][n] = S::load(out.as_ptr().add(g * dim + d + n * S::LANES));
            }
        }
        for (t, v) in v.chunks_exact(dim).enumerate() {
            let mut row = [S::zero(); N];
            for n in 0..N {
                row[n] = E::load::<S>(v.as_ptr().add(d + n * S::LANES));
            }
            for g in 0..G {
                let weight = S::splat(weights[g][t]);
                for n in 0..N {
                    sums[g][n] = S::fma(row[n], weight, sums[g][n]);
                }
            }
        }
        for g in 0..G {
            for n in 0..N {
                S::store(out.as_mut_ptr().add(g * dim + d + n * S::LANES), sums[g][n]);
            }
        }
    }
}

/// See [`SpeechBackend::decode_attention`](crate::SpeechBackend::decode_attention).
pub(super) fn decode_attention(
    isa: Isa,
    q: FlexTensor,
    k: FlexTensor,
    v: FlexTensor,
    lengths: FlexTensor,
) -> FlexTensor {
    let (q, k, v) = (contiguous(q), contiguous(k), contiguous(v));
    let [batch, heads, dim] = q.shape().dims::<3>();
    let [_, kv_heads, capacity, _] = k.shape().dims::<4>();
    let group = heads / kv_heads;
    let lengths = lengths.into_data().convert::<i64>();
    let lengths: Vec<usize> = lengths
        .as_slice::<i64>()
        .expect("converted to i64")
        .iter()
        .map(|&n| {
            usize::try_from(n)
                .ok()
                .filter(|&n| n <= capacity)
                .expect("a length beyond the cache")
        })
        .collect();
    let queries = elements::<f32>(&q);
    let mut out = vec![0.0; batch * heads * dim];
    with_elements!(k, |k| {
        let v = elements(&v);
        same_type(k, v);
        let run = |(i, out): (usize, &mut [f32])| {
            let (sequence, kv_head) = (i / kv_heads, i % kv_heads);
            let start = (sequence * kv_heads + kv_head) * capacity * dim;
            let rows = start..start + lengths[sequence] * dim;
            dispatch_on(
                isa,
                Head {
                    q: &queries[i * group * dim..(i + 1) * group * dim],
                    k: &k[rows.clone()],
                    v: &v[rows],
                    dim,
                    next: k.as_ptr().wrapping_add(start + capacity * dim),
                    out,
                },
            );
        };
        let work: usize = lengths.iter().sum::<usize>() * kv_heads * dim;
        if work < PARALLEL {
            out.chunks_exact_mut(group * dim).enumerate().for_each(run);
        } else {
            out.par_chunks_exact_mut(group * dim)
                .enumerate()
                .for_each(run);
        }
    });
    f32_tensor(out, [batch, heads, dim])
}

/// Lets keys fix the element type of values.
fn same_type<E>(_: &[E], _: &[E]) {}
