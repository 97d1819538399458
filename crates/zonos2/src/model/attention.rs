//! Causal self-attention with grouped heads, normalised queries and keys, and a gate a head.

use burn::module::{Module, Param};
use burn::tensor::activation::{sigmoid, softmax};
use burn::tensor::{Tensor, TensorData};
use zonos_kernels::{PackedTensor, ops};
use zonos_nn::{RotaryRows, rms_norm};

use crate::cache::LayerCache;
use crate::segment::Packed;

/// Epsilon of the query and key norm; every other norm uses the configured one.
const QK_EPS: f64 = 1e-6;

/// Source: Zyphra/ZONOS2 `models/zonos2.py`, attention block.
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
        let gate = sigmoid(self.gater.linear(h.clone()));
        let q = self.wq.linear(h.clone());
        let kv = self.wkv.linear_flat(h);
        let heads = q.dims()[1] / dim;
        let kv_heads = kv.dims()[1] / (2 * dim);

        let q = q.reshape([rows, heads, dim]);
        let kv = kv.reshape([rows, 2 * kv_heads, dim]);
        let k = kv.clone().slice([0..rows, 0..kv_heads]);
        let v = kv.slice([0..rows, kv_heads..2 * kv_heads]);
        let q = rotary.apply(rms_norm(q, QK_EPS) * self.temp.val().abs());
        let k = rotary.apply(rms_norm(k, QK_EPS));

        let mixed = match cache {
            None => prefill(q, k, v, packed),
            Some(mut cache) => {
                cache.append(k.clone(), v.clone(), packed);
                if cache.is_decode() {
                    let (k, v) = cache.keys_values();
                    let (lengths, longest) = packed.cached_lengths();
                    ops::decode_attention(q, k, v, lengths, longest)
                } else {
                    prefill(q, k, v, packed)
                }
            }
        };
        let gated = mixed * gate.unsqueeze_dim::<3>(2);
        self.wo.linear(gated.reshape([rows, heads * dim]))
    }
}

/// Attention of whole sequences over themselves: `q [rows, heads, D]`, `k`, `v [rows, kv_heads, D]`
/// -> `[rows, heads, D]`. Query head j reads kv head `j * kv_heads / heads`.
fn prefill(q: Tensor<3>, k: Tensor<3>, v: Tensor<3>, packed: &Packed) -> Tensor<3> {
    let [_, heads, dim] = q.dims();
    let kv_heads = k.dims()[1];
    let group = heads / kv_heads;
    let scale = 1.0 / (dim as f64).sqrt();
    let device = q.device();
    let parts = packed
        .segments
        .iter()
        .map(|segment| {
            let rows = segment.clone();
            let t = rows.len();
            // [kv_heads, group * t, D]: the queries that share a kv head sit in one matrix.
            let q = q
                .clone()
                .slice([rows.clone()])
                .reshape([t, kv_heads, group, dim])
                .permute([1, 2, 0, 3])
                .reshape([kv_heads, group * t, dim]);
            let k = k.clone().slice([rows.clone()]).permute([1, 2, 0]);
            let v = v.clone().slice([rows]).permute([1, 0, 2]);
            let scores = (q.matmul(k) * scale).reshape([kv_heads, group, t, t]);
            let scores = scores + causal_mask(t, &device);
            let weights = softmax(scores, 3).reshape([kv_heads, group * t, t]);
            weights
                .matmul(v)
                .reshape([kv_heads, group, t, dim])
                .permute([2, 0, 1, 3])
                .reshape([t, heads, dim])
        })
        .collect::<Vec<_>>();
    Tensor::cat(parts, 0)
}

/// `[1, 1, t, t]`: 0 where a row may look, minus infinity above the diagonal.
fn causal_mask(t: usize, device: &burn::tensor::Device) -> Tensor<4> {
    let mut mask = vec![0.0f32; t * t];
    for (i, row) in mask.chunks_mut(t).enumerate() {
        row[i + 1..].fill(f32::NEG_INFINITY);
    }
    Tensor::from_data(TensorData::new(mask, [1, 1, t, t]), device)
}
