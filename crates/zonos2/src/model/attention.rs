//! Causal self-attention with grouped heads, normalised queries and keys, and a gate a head.

use burn::module::{Module, Param};
use burn::tensor::activation::softmax;
use burn::tensor::{Tensor, TensorData};
use zonos_kernels::{Activations, PackedTensor, ops};
use zonos_nn::RotaryRows;

use crate::cache::LayerCache;
use crate::profile::timed;
use crate::segment::Packed;

/// Epsilon of the query and key norm; every other norm uses the configured one.
pub(crate) const QK_EPS: f64 = 1e-6;

/// ```text
/// q_j = rope(rmsnorm(W_q h)_j * |temp_j|)                     for each query head j
/// k_g = rope(rmsnorm(W_k h)_g),  v_g = (W_v h)_g              for each kv head g = j * kv_heads / heads
/// a_j = sum over i <= t of softmax_i(q_j . k_g[i] / sqrt(head_dim)) v_g[i]
/// out = W_o concat_j(sigmoid(W_gate h)_j * a_j)
/// ```
///
/// The norms of queries and keys have no weight and an epsilon of their own. Source: Zyphra/ZONOS2
/// `models/zonos2.py`, attention block.
#[derive(Module, Debug)]
pub struct Attention {
    /// `[heads * head_dim, dim]`
    pub(crate) wq: PackedTensor<2>,
    /// `[2, kv_heads * head_dim, dim]`: keys, values
    pub(crate) wkv: PackedTensor<3>,
    /// `[dim, heads * head_dim]`
    pub(crate) wo: PackedTensor<2>,
    /// `[1, heads, 1]`, f32; enters by its absolute value
    pub(crate) temp: Param<Tensor<3>>,
    /// `[heads, dim]`
    pub(crate) gater: PackedTensor<2>,
    #[module(skip)]
    pub(crate) head_dim: usize,
}

impl Attention {
    /// See [`super::Backbone::with_activations`].
    pub(crate) fn with_activations(self, activations: Activations) -> Self {
        Self {
            wq: self.wq.with_activations(activations),
            wkv: self.wkv.with_activations(activations),
            wo: self.wo.with_activations(activations),
            gater: self.gater.with_activations(activations),
            ..self
        }
    }

    /// `h [rows, dim]`, normalised -> what attention adds to the residual stream, `[rows, dim]`.
    pub(crate) fn forward(
        &self,
        h: Tensor<2>,
        packed: &Packed,
        rotary: &RotaryRows,
        cache: Option<LayerCache<'_>>,
    ) -> Tensor<2> {
        let rows = h.dims()[0];
        let dim = self.head_dim;
        let [q, kv, gate] = timed!(
            "projections",
            zonos_kernels::joint_linear(h, &self.wq, &self.wkv, &self.gater)
        );
        let heads = q.dims()[1] / dim;
        let kv_heads = kv.dims()[1] / (2 * dim);

        let (q, k, v) = timed!("rotation", {
            let q = q.reshape([rows, heads, dim]);
            let kv = kv.reshape([rows, 2 * kv_heads, dim]);
            let k = kv.clone().slice([0..rows, 0..kv_heads]);
            let v = kv.slice([0..rows, kv_heads..2 * kv_heads]);
            let temp = self.temp.val().abs().reshape([heads]);
            let q = rotary.apply_normed(q, Some(temp), QK_EPS);
            (q, rotary.apply_normed(k, None, QK_EPS), v)
        });

        let mixed = match cache {
            None => prefill(q, k, v, packed),
            Some(mut cache) => {
                timed!("append", cache.append(k.clone(), v.clone(), packed));
                if cache.is_decode() {
                    timed!("attention", {
                        let (k, v) = cache.keys_values();
                        let (lengths, longest) = packed.cached_lengths();
                        ops::decode_attention(q, k, v, lengths, longest)
                    })
                } else {
                    prefill(q, k, v, packed)
                }
            }
        };
        let gated = timed!("gating", {
            ops::sigmoid_gate(mixed, gate).reshape([rows, heads * dim])
        });
        timed!("output", self.wo.linear(gated))
    }
}

/// Query rows that attend at a time: memory for scores grows with this times the sequence, not with
/// the sequence squared.
const QUERY_ROWS: usize = 256;

/// Attention of whole sequences over themselves: `q [rows, heads, D]`, `k`, `v [rows, kv_heads, D]`
/// -> `[rows, heads, D]`. Query head j reads kv head `j * kv_heads / heads`.
fn prefill(q: Tensor<3>, k: Tensor<3>, v: Tensor<3>, packed: &Packed) -> Tensor<3> {
    let mut parts = Vec::new();
    for segment in &packed.segments {
        let k = k.clone().slice([segment.clone()]).permute([1, 2, 0]);
        let v = v.clone().slice([segment.clone()]).permute([1, 0, 2]);
        for first in (0..segment.len()).step_by(QUERY_ROWS) {
            let last = segment.len().min(first + QUERY_ROWS);
            let q = q.clone().narrow(0, segment.start + first, last - first);
            parts.push(attend(q, k.clone(), v.clone(), first));
        }
    }
    Tensor::cat(parts, 0)
}

/// Queries at positions `first..` of a sequence, `q [t, heads, D]`, over its keys up to themselves,
/// `k [kv_heads, D, positions]`, `v [kv_heads, positions, D]` -> `[t, heads, D]`.
fn attend(q: Tensor<3>, k: Tensor<3>, v: Tensor<3>, first: usize) -> Tensor<3> {
    let [t, heads, dim] = q.dims();
    let kv_heads = k.dims()[0];
    let group = heads / kv_heads;
    let seen = first + t;
    let device = q.device();
    // [kv_heads, group * t, D]: the queries that share a kv head sit in one matrix.
    let q = q
        .reshape([t, kv_heads, group, dim])
        .permute([1, 2, 0, 3])
        .reshape([kv_heads, group * t, dim]);
    let k = k.slice([0..kv_heads, 0..dim, 0..seen]);
    let v = v.slice([0..kv_heads, 0..seen, 0..dim]);
    let scale = 1.0 / (dim as f64).sqrt();
    let scores = (q.matmul(k) * scale).reshape([kv_heads, group, t, seen]);
    let scores = scores + causal_mask(first, t, &device);
    let weights = softmax(scores, 3).reshape([kv_heads, group * t, seen]);
    weights
        .matmul(v)
        .reshape([kv_heads, group, t, dim])
        .permute([2, 0, 1, 3])
        .reshape([t, heads, dim])
}

/// `[1, 1, t, first + t]`: 0 where query `first + i` may look, minus infinity beyond it.
fn causal_mask(first: usize, t: usize, device: &burn::tensor::Device) -> Tensor<4> {
    let seen = first + t;
    let mut mask = vec![0.0f32; t * seen];
    for (i, row) in mask.chunks_mut(seen).enumerate() {
        row[first + i + 1..].fill(f32::NEG_INFINITY);
    }
    Tensor::from_data(TensorData::new(mask, [1, 1, t, seen]), device)
}
