//! The one backend trait of this project.

use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, ExtensionType, backend_extension};

use zonos_gguf::GgmlType;

use crate::{Activation, Activations, GateOrder, RouterOptions, portable};

/// A tensor that an operation can do without: `Option`, in the form that Burn's dispatch carries to
/// a backend.
#[derive(Debug, ExtensionType)]
pub enum Optional<B: Backend> {
    /// The tensor.
    Given(FloatTensor<B>),
    /// No tensor.
    Absent,
}

impl<B: Backend> Optional<B> {
    /// As Rust's `Option`.
    pub fn into_option(self) -> Option<FloatTensor<B>> {
        match self {
            Self::Given(tensor) => Some(tensor),
            Self::Absent => None,
        }
    }

    /// From Rust's `Option`.
    pub fn from_option(tensor: Option<FloatTensor<B>>) -> Self {
        tensor.map_or(Self::Absent, Self::Given)
    }
}

/// Weights of a [router](SpeechBackend::route) behind its projection down: vectors f32, matrices f32, f16
/// or bf16.
#[derive(Debug, ExtensionType)]
pub struct RouterWeights<B: Backend> {
    /// `[width]`, of the projection down
    pub bias: FloatTensor<B>,
    /// `[width]`, of the norm
    pub norm: FloatTensor<B>,
    /// `[hidden, width]`
    pub first: FloatTensor<B>,
    /// `[hidden]`
    pub first_bias: FloatTensor<B>,
    /// `[hidden, hidden]`
    pub second: FloatTensor<B>,
    /// `[hidden]`
    pub second_bias: FloatTensor<B>,
    /// `[experts, hidden]`
    pub last: FloatTensor<B>,
    /// `[experts]`; shifts the choice alone
    pub balancing: FloatTensor<B>,
}

/// Operations that speech models need beyond Burn's own.
///
/// Every method has a portable body made of Burn operations, so any Burn backend is a
/// `SpeechBackend` with an empty `impl`. A backend overrides what it can do better. Layouts are
/// row-major; activations are f32; weights are f32, f16 or bf16 where said.
///
/// Call these through [`crate::ops`], which takes [`Tensor`](burn::tensor::Tensor)s.
#[backend_extension(
    Flex: cfg(feature = "flex"),
    NdArray: cfg(feature = "ndarray"),
    Cube: cfg(feature = "cubecl"),
    Autodiff
)]
pub trait SpeechBackend: Backend {
    /// `x [rows, in]`, `weight [out, in]` (f32, f16 or bf16) -> `x weight^T [rows, out]`.
    fn packed_linear(x: FloatTensor<Self>, weight: FloatTensor<Self>) -> FloatTensor<Self> {
        portable::linear::<Self>(x, weight)
    }

    /// Three [`packed_linear`](SpeechBackend::packed_linear)s of one input, such as queries, keys with values, and
    /// gates.
    fn joint_linear(
        x: FloatTensor<Self>,
        first: FloatTensor<Self>,
        second: FloatTensor<Self>,
        third: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        (
            Self::packed_linear(x.clone(), first),
            Self::packed_linear(x.clone(), second),
            Self::packed_linear(x, third),
        )
    }

    /// Input gradient of [`packed_linear`](SpeechBackend::packed_linear):
    /// `dy [rows, out]`, `weight [out, in]` -> `dy weight [rows, in]`.
    fn packed_linear_grad_input(
        dy: FloatTensor<Self>,
        weight: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        portable::linear_grad_input::<Self>(dy, weight)
    }

    /// `x [rows, in]`, `weight [experts, out, in]`, `expert [rows]` ->
    /// `y[i] = x[i] weight[expert[i]]^T`, `[rows, out]`.
    fn expert_linear(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        expert: IntTensor<Self>,
    ) -> FloatTensor<Self> {
        portable::expert_linear::<Self>(x, weight, expert)
    }

    /// Input gradient of [`expert_linear`](SpeechBackend::expert_linear):
    /// `dx[i] = dy[i] weight[expert[i]]`, `[rows, in]`.
    fn expert_linear_grad_input(
        dy: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        expert: IntTensor<Self>,
    ) -> FloatTensor<Self> {
        portable::expert_linear_grad_input::<Self>(dy, weight, expert)
    }

    /// Weight gradient of [`expert_linear`](SpeechBackend::expert_linear):
    /// `dW[e] = sum over rows i with expert[i] = e of dy[i]^T x[i]`, `[experts, out, in]`.
    fn expert_linear_grad_weight(
        dy: FloatTensor<Self>,
        x: FloatTensor<Self>,
        expert: IntTensor<Self>,
        experts: usize,
    ) -> FloatTensor<Self> {
        portable::expert_linear_grad_weight::<Self>(dy, x, expert, experts)
    }

    /// `x [rows, in]`, `blocks [out, bytes of a row]` (u8) of type `ggml_type` -> `x W^T [rows, out]`
    /// for the weight `W` that they hold.
    fn block_linear(
        x: FloatTensor<Self>,
        blocks: IntTensor<Self>,
        ggml_type: GgmlType,
        activations: Activations,
    ) -> FloatTensor<Self> {
        portable::block_linear::<Self>(x, blocks, ggml_type, activations)
    }

    /// Input gradient of [`block_linear`](SpeechBackend::block_linear), as if activations were exact:
    /// `dy [rows, out]`, `blocks [out, bytes of a row]` -> `dy W [rows, in]`.
    fn block_linear_grad_input(
        dy: FloatTensor<Self>,
        blocks: IntTensor<Self>,
        ggml_type: GgmlType,
    ) -> FloatTensor<Self> {
        portable::block_linear_grad_input::<Self>(dy, blocks, ggml_type)
    }

    /// `x [rows, in]`, `blocks [experts, out, bytes of a row]` (u8), `expert [rows]` ->
    /// `y[i] = x[i] W[expert[i]]^T`, `[rows, out]`.
    fn block_expert_linear(
        x: FloatTensor<Self>,
        blocks: IntTensor<Self>,
        expert: IntTensor<Self>,
        ggml_type: GgmlType,
        activations: Activations,
    ) -> FloatTensor<Self> {
        portable::block_expert_linear::<Self>(x, blocks, expert, ggml_type, activations)
    }

    /// Input gradient of [`block_expert_linear`](SpeechBackend::block_expert_linear), as if activations
    /// were exact: `dx[i] = dy[i] W[expert[i]]`, `[rows, in]`.
    fn block_expert_linear_grad_input(
        dy: FloatTensor<Self>,
        blocks: IntTensor<Self>,
        expert: IntTensor<Self>,
        ggml_type: GgmlType,
    ) -> FloatTensor<Self> {
        portable::block_expert_linear_grad_input::<Self>(dy, blocks, expert, ggml_type)
    }

    /// `x [rows, in]`, `gate`, `up [experts, ffn, bytes of a row]` (u8) of `ggml_types`, `expert [rows]`
    /// -> `silu(x[i] G[expert[i]]^T) * (x[i] U[expert[i]]^T)`, `[rows, ffn]`.
    fn block_expert_gate_up(
        x: FloatTensor<Self>,
        gate: IntTensor<Self>,
        up: IntTensor<Self>,
        expert: IntTensor<Self>,
        ggml_types: [GgmlType; 2],
        activations: Activations,
    ) -> FloatTensor<Self> {
        let [g, u] = ggml_types;
        let gate = Self::block_expert_linear(x.clone(), gate, expert.clone(), g, activations);
        let up = Self::block_expert_linear(x, up, expert, u, activations);
        Self::float_mul(
            portable::dense_end::<Self>(gate, None, Activation::Silu, None, None),
            up,
        )
    }

    /// One new query a sequence against its cache, grouped heads.
    ///
    /// `q [batch, heads, dim]`; `k`, `v [batch, kv_heads, capacity, dim]` (f32 or f16); `lengths
    /// [batch]`: valid positions of each sequence, at most `longest`. Scale `1/sqrt(dim)`; query head
    /// `j` reads kv head `j * kv_heads / heads`. -> `[batch, heads, dim]`.
    fn decode_attention(
        q: FloatTensor<Self>,
        k: FloatTensor<Self>,
        v: FloatTensor<Self>,
        lengths: IntTensor<Self>,
        longest: usize,
    ) -> FloatTensor<Self> {
        portable::decode_attention::<Self>(q, k, v, lengths, longest)
    }

    /// Writes rows behind what a cache holds: `cache [batch, heads, capacity, dim]` (f32 or f16), `new
    /// [rows, heads, dim]`, rounded to the cache's type. Sequence `i` gets the next `counts[i]` rows, at
    /// its positions from `past[i]` on. -> the cache.
    fn cache_append(
        cache: FloatTensor<Self>,
        new: FloatTensor<Self>,
        counts: Vec<usize>,
        past: Vec<usize>,
    ) -> FloatTensor<Self> {
        portable::cache_append::<Self>(cache, new, counts, past)
    }

    /// Which experts rows go to, from the product `down [rows, width]` with a projection. `below [rows,
    /// width]` and its `scale [width]` are a state handed on by the router below, where there is one.
    ///
    /// ```text
    /// state       = down + bias + scale * below
    /// z           = gelu(second gelu(first rmsnorm(state) + first_bias) + second_bias)
    /// probability = softmax(last z)
    /// expert      = top_k(probability + sign * balancing)      (best first, the lowest of equal ones)
    /// weight      = probability[expert]
    /// ```
    ///
    /// -> `(state [rows, width], probability [rows, experts], expert, weight [rows, top_k])`. The choice
    /// has no gradient.
    #[allow(clippy::type_complexity)]
    fn route(
        down: FloatTensor<Self>,
        #[extension_type] below: Optional<Self>,
        #[extension_type] scale: Optional<Self>,
        #[extension_type] weights: RouterWeights<Self>,
        options: RouterOptions,
    ) -> (
        FloatTensor<Self>,
        FloatTensor<Self>,
        IntTensor<Self>,
        FloatTensor<Self>,
    ) {
        let (below, scale) = (below.into_option(), scale.into_option());
        portable::route::<Self>(down, below, scale, weights, options)
    }

    /// Snake activation, `x [batch, channels, time]`, `alpha [channels]`:
    /// `x + sin(alpha x)^2 / (alpha + 1e-9)`.
    ///
    /// Source: Ziyin et al. 2020, arXiv:2006.08195, as used by the Descript audio codec.
    fn snake(x: FloatTensor<Self>, alpha: FloatTensor<Self>) -> FloatTensor<Self> {
        portable::snake::<Self>(x, alpha)
    }

    /// Convolution at stride 1 with Snake before it and a residual after it, each of them optional.
    ///
    /// `x [batch, in, time]`, `alpha [in]`, `weight [out, in, taps]`, `bias [out]`; `padding` zeros
    /// before and after the activated input. `residual` has the shape of the result, `[batch, out,
    /// time + padding - dilation (taps - 1)]`:
    ///
    /// ```text
    /// y[o, t] = bias[o] + sum over c, k of weight[o, c, k] snake(x)[c, t + k dilation - padding.0]
    ///           + residual[o, t]
    /// ```
    fn snake_conv1d(
        x: FloatTensor<Self>,
        #[extension_type] alpha: Optional<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        #[extension_type] residual: Optional<Self>,
        dilation: usize,
        padding: (usize, usize),
    ) -> FloatTensor<Self> {
        let (alpha, residual) = (alpha.into_option(), residual.into_option());
        portable::snake_conv1d::<Self>(x, alpha, weight, bias, residual, dilation, padding)
    }

    /// Convolution that shortens the signal, with an optional Snake before it.
    ///
    /// `x [batch, in, time]`, `alpha [in]`, `weight [out, in, taps]`, `bias [out]`; `padding` zeros
    /// before and after the activated input. The result has `floor((time + padding - taps) / stride) +
    /// 1` positions:
    ///
    /// `y[o, n] = bias[o] + sum over c, k of weight[o, c, k] snake(x)[c, n stride + k - padding.0]`.
    fn snake_strided_conv1d(
        x: FloatTensor<Self>,
        #[extension_type] alpha: Optional<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        stride: usize,
        padding: (usize, usize),
    ) -> FloatTensor<Self> {
        let alpha = alpha.into_option();
        portable::snake_strided_conv1d::<Self>(x, alpha, weight, bias, stride, padding)
    }

    /// Transposed convolution with an optional Snake before it.
    ///
    /// `x [batch, in, time]`, `alpha [in]`, `weight [in, out, taps]`, `bias [out]`. The full result
    /// has `(time - 1) stride + taps` positions, of which `trim` are cut from the two ends:
    ///
    /// `y[o, n] = bias[o] + sum over c, i, k with i stride + k - trim.0 = n of weight[c, o, k]
    /// snake(x)[c, i]`.
    fn snake_conv_transpose1d(
        x: FloatTensor<Self>,
        #[extension_type] alpha: Optional<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        stride: usize,
        trim: (usize, usize),
    ) -> FloatTensor<Self> {
        let alpha = alpha.into_option();
        portable::snake_conv_transpose1d::<Self>(x, alpha, weight, bias, stride, trim)
    }

    /// Convolution at stride 1 that keeps the length by mirroring the signal at both ends, with an
    /// optional ReLU behind it.
    ///
    /// `x [batch, in, time]`, `weight [out, in, taps]`, `bias [out]` -> `[batch, out, time]`. Of the
    /// `dilation (taps - 1)` positions added, the smaller half comes first; the ends themselves are
    /// not repeated, so `time` must exceed the larger half.
    fn reflect_conv1d(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        dilation: usize,
        relu: bool,
    ) -> FloatTensor<Self> {
        portable::reflect_conv1d::<Self>(x, weight, bias, dilation, relu)
    }

    /// Mean and deviation over time, weighted by the softmax of `scores` over time where they are
    /// given and evenly otherwise.
    ///
    /// `x`, `scores [batch, channels, time]` -> `[batch, 2 channels]`, means first. With weights `a`:
    /// `mean = sum a x`, `deviation = sqrt(max(sum a (x - mean)^2, floor))`.
    ///
    /// Source: Okabe et al. 2018, arXiv:1803.10963.
    fn statistics_pooling(
        x: FloatTensor<Self>,
        #[extension_type] scores: Optional<Self>,
        floor: f32,
    ) -> FloatTensor<Self> {
        portable::statistics_pooling::<Self>(x, scores.into_option(), floor)
    }

    /// A dense layer with all that commonly stands behind it.
    ///
    /// `x [rows, in]`, `weight [out, in]` (f32, f16 or bf16), `bias`, `scale [out]`, `residual [rows,
    /// out]` -> `residual + scale * activation(x weight^T + bias)`, `[rows, out]`.
    fn dense(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        #[extension_type] bias: Optional<Self>,
        activation: Activation,
        #[extension_type] scale: Optional<Self>,
        #[extension_type] residual: Optional<Self>,
    ) -> FloatTensor<Self> {
        let (bias, scale) = (bias.into_option(), scale.into_option());
        let product = Self::packed_linear(x, weight);
        portable::dense_end::<Self>(product, bias, activation, scale, residual.into_option())
    }

    /// Layer normalisation, `x [rows, width]`, `weight`, `bias [width]`:
    /// `weight (x - mean) / sqrt(variance + eps) + bias`, mean and population variance of each row.
    ///
    /// Source: Ba et al. 2016, arXiv:1607.06450.
    fn layer_norm(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        eps: f32,
    ) -> FloatTensor<Self> {
        portable::layer_norm::<Self>(x, weight, bias, eps)
    }

    /// Normalisation by the root mean square, `x [rows, width]`, `weight [width]`:
    /// `weight x / sqrt(mean(x^2) + eps)`.
    ///
    /// Source: Zhang and Sennrich 2019, arXiv:1910.07467.
    fn rms_norm(
        x: FloatTensor<Self>,
        #[extension_type] weight: Optional<Self>,
        eps: f32,
    ) -> FloatTensor<Self> {
        portable::rms_norm::<Self>(x, weight.into_option(), eps)
    }

    /// Heads normalised by their root mean square, scaled, and turned: `x [rows, heads, dim]`, `scale
    /// [heads]`, `cos`, `sin [rows, dim]`. With `n = scale x / sqrt(mean(x^2) + eps)`, pairs of
    /// neighbours become `(n0 cos0 + n1 sin0, n1 cos1 + n0 sin1)`.
    ///
    /// Source: Su et al. 2021, arXiv:2104.09864, behind a norm of queries and keys.
    fn norm_rotate(
        x: FloatTensor<Self>,
        #[extension_type] scale: Optional<Self>,
        cos: FloatTensor<Self>,
        sin: FloatTensor<Self>,
        eps: f32,
    ) -> FloatTensor<Self> {
        portable::norm_rotate::<Self>(x, scale.into_option(), cos, sin, eps)
    }

    /// `x [rows, heads, dim]`, `gate [rows, heads]` -> `x / (1 + exp(-gate))`.
    fn sigmoid_gate(x: FloatTensor<Self>, gate: FloatTensor<Self>) -> FloatTensor<Self> {
        portable::sigmoid_gate::<Self>(x, gate)
    }

    /// `both [rows, 2 width]`, gates and what they gate as `order` says -> `silu(gate) * up`,
    /// `[rows, width]`.
    ///
    /// Source: Shazeer 2020, arXiv:2002.05202.
    fn silu_gate(both: FloatTensor<Self>, order: GateOrder) -> FloatTensor<Self> {
        portable::silu_gate::<Self>(both, order)
    }

    /// `x` of any shape in f32, whatever float it is stored as.
    fn to_f32(x: FloatTensor<Self>) -> FloatTensor<Self> {
        portable::to_f32::<Self>(x)
    }

    /// `x [rows, width]` -> `cap tanh(x / cap)`: near the identity for small values, never beyond `cap`.
    fn soft_cap(x: FloatTensor<Self>, cap: f32) -> FloatTensor<Self> {
        portable::soft_cap::<Self>(x, cap)
    }

    /// Causal attention over the last `context` positions.
    ///
    /// `q [batch, queries, heads, dim]`; `k`, `v [batch, keys, heads, dim]`, `keys >= queries`. The
    /// queries are the last of the keys' positions; a query at position `i` sees the keys `j` with
    /// `0 <= i - j < context` that are there. Scale `1/sqrt(dim)`. -> `[batch, queries, heads, dim]`.
    fn window_attention(
        q: FloatTensor<Self>,
        k: FloatTensor<Self>,
        v: FloatTensor<Self>,
        context: usize,
    ) -> FloatTensor<Self> {
        portable::window_attention::<Self>(q, k, v, context)
    }

    /// Attention to all positions, each query's product with an embedding of the key's distance
    /// added to the scores.
    ///
    /// `q`, `k`, `v [batch, time, heads, dim]`, `table [left + right + 1, dim]`, `mask [batch, time]`,
    /// 1 where a key may be seen and 0 where not. The score of query `i` with key `j` is
    /// `q[i] (k[j] + table[left + clamp(j - i, -left, right)]) / sqrt(dim)`, the lowest f32 where the
    /// key is masked. -> `[batch, time, heads, dim]`.
    ///
    /// Source: Shaw et al. 2018, arXiv:1803.02155, keys only, as Wav2Vec2-BERT uses it.
    #[allow(clippy::too_many_arguments)]
    fn relative_attention(
        q: FloatTensor<Self>,
        k: FloatTensor<Self>,
        v: FloatTensor<Self>,
        table: FloatTensor<Self>,
        left: usize,
        right: usize,
        #[extension_type] mask: Optional<Self>,
    ) -> FloatTensor<Self> {
        portable::relative_attention::<Self>(q, k, v, table, left, right, mask.into_option())
    }

    /// A convolution of each channel by itself, over time-major signals, without padding.
    ///
    /// `x [batch, time + taps - 1, channels]`, `weight [channels, 1, taps]`, `bias [channels]` ->
    /// `y[t, c] = bias[c] + sum over k of weight[c, k] x[t + k, c]`, `[batch, time, channels]`.
    fn depthwise_conv1d(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        #[extension_type] bias: Optional<Self>,
    ) -> FloatTensor<Self> {
        portable::depthwise_conv1d::<Self>(x, weight, bias.into_option())
    }
}

#[cfg(feature = "ndarray")]
impl SpeechBackend for burn::backend::NdArray {}

#[cfg(feature = "cubecl")]
impl SpeechBackend for burn::backend::Cube {}
