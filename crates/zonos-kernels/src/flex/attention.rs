//! Decode attention over the cache, one pass, in its stored type.

use burn::backend::TensorMetadata;
use burn_flex::FlexTensor;
use rayon::prelude::*;

use super::simd::{Isa, Kernel, Simd, dispatch_on};
use super::weights::{Element, contiguous, elements, f32_tensor, with_elements};

/// Cache elements below which one thread does it all.
const PARALLEL: usize = 64 * 1024;

/// The query heads of one kv head against that head's cache.
struct Head<'a, E> {
    /// `[group, dim]`
    q: &'a [f32],
    /// `[positions, dim]`
    k: &'a [E],
    /// `[positions, dim]`
    v: &'a [E],
    dim: usize,
    /// `[group, dim]`
    out: &'a mut [f32],
}

impl<E: Element> Kernel for Head<'_, E> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let dim = self.dim;
        let scale = 1.0 / (dim as f32).sqrt();
        let positions = self.k.len() / dim;
        let mut weights = vec![0.0f32; positions];
        let whole = dim - dim % S::LANES;
        for (q, out) in self.q.chunks_exact(dim).zip(self.out.chunks_exact_mut(dim)) {
            let mut largest = f32::NEG_INFINITY;
            for (k, weight) in self.k.chunks_exact(dim).zip(&mut weights) {
                // SAFETY: loads stay below `whole`, which is at most `dim`, the length of both rows.
                let score = unsafe {
                    let mut sum = S::zero();
                    for at in (0..whole).step_by(S::LANES) {
                        sum = S::fma(
                            E::load::<S>(k.as_ptr().add(at)),
                            S::load(q.as_ptr().add(at)),
                            sum,
                        );
                    }
                    let mut sum = S::sum(sum);
                    for at in whole..dim {
                        sum = S::fma1(k[at].widen(), q[at], sum);
                    }
                    sum * scale
                };
                largest = largest.max(score);
                *weight = score;
            }
            let mut total = 0.0;
            for weight in &mut weights {
                *weight = (*weight - largest).exp();
                total += *weight;
            }
            let inverse = 1.0 / total;
            for (v, &weight) in self.v.chunks_exact(dim).zip(&weights) {
                let weight = weight * inverse;
                // SAFETY: as above, for the value row and the output row.
                unsafe {
                    let factor = S::splat(weight);
                    for at in (0..whole).step_by(S::LANES) {
                        let o = out.as_mut_ptr().add(at);
                        S::store(
                            o,
                            S::fma(E::load::<S>(v.as_ptr().add(at)), factor, S::load(o)),
                        );
                    }
                    for at in whole..dim {
                        out[at] = S::fma1(v[at].widen(), weight, out[at]);
                    }
                }
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
