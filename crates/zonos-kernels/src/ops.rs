//! The operations as plain functions on [`Tensor`]s.

use burn::backend::Dispatch;
use burn::tensor::{DType, Int, Tensor};

use crate::backend::Optional;
use zonos_gguf::GgmlType;

use crate::{Activation, Activations, GateOrder, SpeechBackend, portable};

/// `x [rows, in]` f32, `weight [out, in]` f32, f16 or bf16 -> `x weight^T [rows, out]` f32.
///
/// The weight is read in its stored dtype; products accumulate in f32. Gradients flow to `x`, and to
/// `weight` when it is f32.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// let device = Device::flex();
/// let x = Tensor::<2>::from_data([[1.0f32, 2.0]], &device);
/// let w = Tensor::<2>::from_data([[3.0f32, 4.0], [5.0, 6.0]], &device);
/// let y = zonos_kernels::ops::linear(x, w);
/// assert_eq!(y.into_data().try_to_vec::<f32>().unwrap(), [11.0, 17.0]);
/// ```
pub fn linear(x: Tensor<2>, weight: Tensor<2>) -> Tensor<2> {
    Tensor::from_dispatch(<Dispatch as SpeechBackend>::packed_linear(
        x.into_dispatch(),
        weight.into_dispatch(),
    ))
}

/// Three [`linear`]s of one input, which a CPU reads as one: it is laid out once, and threads meet once.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// let device = Device::flex();
/// let x = Tensor::<2>::from_data([[1.0f32, 2.0]], &device);
/// let w = |a: f32| Tensor::<2>::from_data([[a, 1.0]], &device);
/// let [_, y, _] = zonos_kernels::ops::joint_linear(x, [w(3.0), w(4.0), w(5.0)]);
/// assert_eq!(y.into_data().try_to_vec::<f32>().unwrap(), [6.0]);
/// ```
pub fn joint_linear(x: Tensor<2>, weights: [Tensor<2>; 3]) -> [Tensor<2>; 3] {
    let [first, second, third] = weights.map(Tensor::into_dispatch);
    let (first, second, third) =
        <Dispatch as SpeechBackend>::joint_linear(x.into_dispatch(), first, second, third);
    [first, second, third].map(Tensor::from_dispatch)
}

/// `x [rows, in]` f32, `weight [experts, out, in]` f32, f16 or bf16, `expert [rows]` ->
/// `y[i] = x[i] weight[expert[i]]^T`, `[rows, out]` f32.
///
/// Matrices of experts that no row chose are not read.
pub fn expert_linear(x: Tensor<2>, weight: Tensor<3>, expert: Tensor<1, Int>) -> Tensor<2> {
    Tensor::from_dispatch(<Dispatch as SpeechBackend>::expert_linear(
        x.into_dispatch(),
        weight.into_dispatch(),
        expert.into_dispatch(),
    ))
}

/// The values of a weight in quantised blocks: `blocks [.., bytes of a row]`, u8, of type `ggml_type` ->
/// `[.., in]`, f32, exactly as the type defines them. Decodes on the host.
pub fn dequantize<const D: usize>(blocks: Tensor<D, Int>, ggml_type: GgmlType) -> Tensor<D> {
    let device = blocks.device();
    let data = portable::decode_data(ggml_type, blocks.into_data());
    Tensor::from_data(data, (&device, DType::F32))
}

/// `x [rows, in]` f32, `blocks [out, bytes of a row]` u8 of type `ggml_type` -> `x W^T [rows, out]` f32
/// for the weight `W [out, in]` that they hold.
///
/// Gradients flow to `x` alone, as if activations were exact. On Flex a row's result depends on that row
/// alone, whatever comes with it, up to 15 rows.
///
/// ```
/// use burn::tensor::{DType, Device, Int, Tensor, TensorData};
/// use zonos_gguf::{GgmlType, blocks};
/// use zonos_kernels::{Activations, ops};
/// let device = Device::flex();
/// let mut bytes = vec![0u8; 34];
/// blocks::quantize_row(GgmlType::Q8_0, &[2.0; 32], None, &mut bytes).unwrap();
/// let bytes = TensorData::new(bytes, [1, 34]);
/// let w = Tensor::<2, Int>::from_data(bytes, (&device, DType::U8));
/// let x = Tensor::<2>::ones([1, 32], &device);
/// let y = ops::block_linear(x, w, GgmlType::Q8_0, Activations::Exact).into_scalar::<f32>();
/// assert!((y - 64.0).abs() < 0.05); // the scale 2 / 127 is a half
/// ```
pub fn block_linear(
    x: Tensor<2>,
    blocks: Tensor<2, Int>,
    ggml_type: GgmlType,
    activations: Activations,
) -> Tensor<2> {
    Tensor::from_dispatch(<Dispatch as SpeechBackend>::block_linear(
        x.into_dispatch(),
        blocks.into_dispatch(),
        ggml_type,
        activations,
    ))
}

/// `x [rows, in]` f32, `blocks [experts, out, bytes of a row]` u8, `expert [rows]` ->
/// `y[i] = x[i] W[expert[i]]^T`, `[rows, out]` f32.
///
/// Blocks of experts that no row chose are not read. Gradients as in [`block_linear`].
pub fn block_expert_linear(
    x: Tensor<2>,
    blocks: Tensor<3, Int>,
    expert: Tensor<1, Int>,
    ggml_type: GgmlType,
    activations: Activations,
) -> Tensor<2> {
    Tensor::from_dispatch(<Dispatch as SpeechBackend>::block_expert_linear(
        x.into_dispatch(),
        blocks.into_dispatch(),
        expert.into_dispatch(),
        ggml_type,
        activations,
    ))
}

/// `x [rows, in]` f32, `gate`, `up [experts, ffn, bytes of a row]` u8 of the two `ggml_types`, `expert
/// [rows]` -> `silu(x[i] G[expert[i]]^T) * (x[i] U[expert[i]]^T)`, `[rows, ffn]` f32.
///
/// Gradients as in [`block_linear`].
pub fn block_expert_gate_up(
    x: Tensor<2>,
    gate: Tensor<3, Int>,
    up: Tensor<3, Int>,
    expert: Tensor<1, Int>,
    ggml_types: [GgmlType; 2],
    activations: Activations,
) -> Tensor<2> {
    Tensor::from_dispatch(<Dispatch as SpeechBackend>::block_expert_gate_up(
        x.into_dispatch(),
        gate.into_dispatch(),
        up.into_dispatch(),
        expert.into_dispatch(),
        ggml_types,
        activations,
    ))
}

/// Attention of one new query a sequence over that sequence's cache, with grouped heads.
///
/// `q [batch, heads, dim]` f32; `k`, `v [batch, kv_heads, capacity, dim]` f32 or f16; `lengths
/// [batch]` valid positions of each sequence, none above `longest`. Scale `1/sqrt(dim)`; query head
/// `j` reads kv head `j * kv_heads / heads`. Returns `[batch, heads, dim]` f32.
pub fn decode_attention(
    q: Tensor<3>,
    k: Tensor<4>,
    v: Tensor<4>,
    lengths: Tensor<1, Int>,
    longest: usize,
) -> Tensor<3> {
    Tensor::from_dispatch(<Dispatch as SpeechBackend>::decode_attention(
        q.into_dispatch(),
        k.into_dispatch(),
        v.into_dispatch(),
        lengths.into_dispatch(),
        longest,
    ))
}

/// Writes rows behind what a cache holds: `cache [batch, heads, capacity, dim]`, f32 or f16; `new [rows,
/// heads, dim]` f32, rounded to the cache's type. Sequence `i` gets the next `counts[i]` rows of `new`, at
/// its positions from `past[i]` on. Returns the cache.
///
/// On Flex a cache that nobody else holds is changed in place, and nothing else is allocated.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// let device = Device::flex();
/// let cache = Tensor::<4>::zeros([2, 1, 2, 1], &device);
/// let new = Tensor::<3>::from_data([[[5.0f32]], [[7.0]]], &device);
/// let cache = zonos_kernels::ops::cache_append(cache, new, vec![1, 1], vec![1, 0]);
/// assert_eq!(cache.into_data().try_to_vec::<f32>().unwrap(), [0.0, 5.0, 7.0, 0.0]);
/// ```
pub fn cache_append(
    cache: Tensor<4>,
    new: Tensor<3>,
    counts: Vec<usize>,
    past: Vec<usize>,
) -> Tensor<4> {
    Tensor::from_dispatch(<Dispatch as SpeechBackend>::cache_append(
        cache.into_dispatch(),
        new.into_dispatch(),
        counts,
        past,
    ))
}

/// Snake activation: `x [batch, channels, time]`, `alpha [channels]` ->
/// `x + sin(alpha x)^2 / (alpha + 1e-9)`.
///
/// Source: Ziyin et al. 2020, arXiv:2006.08195, with the epsilon of the Descript audio codec. A
/// channel whose alpha is exactly 0 passes unchanged.
pub fn snake(x: Tensor<3>, alpha: Tensor<1>) -> Tensor<3> {
    Tensor::from_dispatch(<Dispatch as SpeechBackend>::snake(
        x.into_dispatch(),
        alpha.into_dispatch(),
    ))
}

/// `x` as f32: a cast where it is stored in another float type, nothing where it is f32 already.
pub fn to_f32<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    if x.dtype() == DType::F32 {
        return x;
    }
    Tensor::from_dispatch(<Dispatch as SpeechBackend>::to_f32(x.into_dispatch()))
}

/// Convolution at stride 1 with Snake before it and a residual after it, each of them optional.
///
/// `x [batch, in, time]`, `alpha [in]`, `weight [out, in, taps]`, `bias [out]`; `padding` zeros
/// before and after the activated input. The result, and `residual` if given, is `[batch, out,
/// time + padding.0 + padding.1 - dilation (taps - 1)]`. All f32.
///
/// On Flex every output is summed in an order that depends on the shape of `weight` alone, so the
/// same input gives the same bits however a longer signal is cut.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// let device = Device::flex();
/// let x = Tensor::<3>::from_data([[[1.0f32, 2.0, 3.0]]], &device);
/// let w = Tensor::<3>::from_data([[[1.0f32, 10.0, 100.0]]], &device);
/// let b = Tensor::<1>::from_data([0.5f32], &device);
/// let y = zonos_kernels::ops::snake_conv1d(x, None, w, b, None, 1, (1, 1));
/// assert_eq!(y.into_data().try_to_vec::<f32>().unwrap(), [210.5, 321.5, 32.5]);
/// ```
pub fn snake_conv1d(
    x: Tensor<3>,
    alpha: Option<Tensor<1>>,
    weight: Tensor<3>,
    bias: Tensor<1>,
    residual: Option<Tensor<3>>,
    dilation: usize,
    padding: (usize, usize),
) -> Tensor<3> {
    Tensor::from_dispatch(<Dispatch as SpeechBackend>::snake_conv1d(
        x.into_dispatch(),
        Optional::from_option(alpha.map(Tensor::into_dispatch)),
        weight.into_dispatch(),
        bias.into_dispatch(),
        Optional::from_option(residual.map(Tensor::into_dispatch)),
        dilation,
        padding,
    ))
}

/// Convolution that shortens the signal, with an optional Snake before it.
///
/// `x [batch, in, time]`, `alpha [in]`, `weight [out, in, taps]`, `bias [out]`; `padding` zeros before
/// and after the activated input. The result is `[batch, out, floor((time + padding.0 + padding.1 -
/// taps) / stride) + 1]`. All f32.
///
/// On Flex every output is summed in an order that depends on the shape of `weight` alone.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// let device = Device::flex();
/// let x = Tensor::<3>::from_data([[[1.0f32, 2.0, 3.0, 4.0]]], &device);
/// let w = Tensor::<3>::from_data([[[1.0f32, 10.0, 100.0, 1000.0]]], &device);
/// let b = Tensor::<1>::from_data([0.5f32], &device);
/// let y = zonos_kernels::ops::snake_strided_conv1d(x, None, w, b, 2, (1, 1));
/// assert_eq!(y.into_data().try_to_vec::<f32>().unwrap(), [3210.5, 432.5]);
/// ```
pub fn snake_strided_conv1d(
    x: Tensor<3>,
    alpha: Option<Tensor<1>>,
    weight: Tensor<3>,
    bias: Tensor<1>,
    stride: usize,
    padding: (usize, usize),
) -> Tensor<3> {
    Tensor::from_dispatch(<Dispatch as SpeechBackend>::snake_strided_conv1d(
        x.into_dispatch(),
        Optional::from_option(alpha.map(Tensor::into_dispatch)),
        weight.into_dispatch(),
        bias.into_dispatch(),
        stride,
        padding,
    ))
}

/// Transposed convolution with an optional Snake before it.
///
/// `x [batch, in, time]`, `alpha [in]`, `weight [in, out, taps]`, `bias [out]`. The result is
/// `[batch, out, (time - 1) stride + taps - trim.0 - trim.1]`. All f32.
///
/// On Flex every output is summed in an order that depends on the shape of `weight` alone.
pub fn snake_conv_transpose1d(
    x: Tensor<3>,
    alpha: Option<Tensor<1>>,
    weight: Tensor<3>,
    bias: Tensor<1>,
    stride: usize,
    trim: (usize, usize),
) -> Tensor<3> {
    Tensor::from_dispatch(<Dispatch as SpeechBackend>::snake_conv_transpose1d(
        x.into_dispatch(),
        Optional::from_option(alpha.map(Tensor::into_dispatch)),
        weight.into_dispatch(),
        bias.into_dispatch(),
        stride,
        trim,
    ))
}

/// Convolution at stride 1 that keeps the length by mirroring the signal at both ends, with an
/// optional ReLU behind it.
///
/// `x [batch, in, time]`, `weight [out, in, taps]`, `bias [out]` -> `[batch, out, time]`, all f32. Of
/// the `dilation (taps - 1)` positions added, the smaller half comes first. The ends are not
/// repeated: `time` must exceed the larger half.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// let device = Device::flex();
/// let x = Tensor::<3>::from_data([[[1.0f32, 2.0, 4.0]]], &device);
/// let w = Tensor::<3>::from_data([[[1.0f32, -10.0, 100.0]]], &device);
/// let b = Tensor::<1>::from_data([0.5f32], &device);
/// let y = zonos_kernels::ops::reflect_conv1d(x, w, b, 1, true); // 2 1 2 4 2
/// assert_eq!(y.into_data().try_to_vec::<f32>().unwrap(), [192.5, 381.5, 162.5]);
/// ```
pub fn reflect_conv1d(
    x: Tensor<3>,
    weight: Tensor<3>,
    bias: Tensor<1>,
    dilation: usize,
    relu: bool,
) -> Tensor<3> {
    Tensor::from_dispatch(<Dispatch as SpeechBackend>::reflect_conv1d(
        x.into_dispatch(),
        weight.into_dispatch(),
        bias.into_dispatch(),
        dilation,
        relu,
    ))
}

/// Mean and deviation over time, weighted by the softmax of `scores` over time where they are given
/// and evenly otherwise: `x`, `scores [batch, channels, time]` -> `[batch, 2 channels]`, means first.
///
/// The deviation is `sqrt(max(variance, floor))`, the variance taken around the mean, over the whole
/// population; where the floor holds no gradient passes.
///
/// Source: Okabe et al. 2018, arXiv:1803.10963.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// let device = Device::flex();
/// let x = Tensor::<3>::from_data([[[1.0f32, 3.0]]], &device);
/// let even = zonos_kernels::ops::statistics_pooling(x.clone(), None, 1e-12);
/// assert_eq!(even.into_data().try_to_vec::<f32>().unwrap(), [2.0, 1.0]);
/// let last = Tensor::<3>::from_data([[[0.0f32, 200.0]]], &device);
/// let last = zonos_kernels::ops::statistics_pooling(x, Some(last), 1e-12);
/// assert_eq!(last.into_data().try_to_vec::<f32>().unwrap(), [3.0, 1e-6]);
/// ```
pub fn statistics_pooling(x: Tensor<3>, scores: Option<Tensor<3>>, floor: f32) -> Tensor<2> {
    Tensor::from_dispatch(<Dispatch as SpeechBackend>::statistics_pooling(
        x.into_dispatch(),
        Optional::from_option(scores.map(Tensor::into_dispatch)),
        floor,
    ))
}

fn optional<const D: usize>(tensor: Option<Tensor<D>>) -> Optional<Dispatch> {
    Optional::from_option(tensor.map(Tensor::into_dispatch))
}

/// A dense layer with what commonly stands behind it, each part optional: `x [rows, in]`, `weight [out,
/// in]`, `bias`, `scale [out]`, `residual [rows, out]` -> `residual + scale * activation(x weight^T +
/// bias)`, `[rows, out]`.
///
/// The weight is f32, f16 or bf16 and read as it is stored, all else f32. Gradients flow to
/// everything, to the weight when it is f32.
///
/// On Flex a row's result depends on that row alone, not on how many come with it: a stream in pieces
/// gives the bits of the whole.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use zonos_kernels::{Activation, ops};
/// let device = Device::flex();
/// let x = Tensor::<2>::from_data([[1.0f32, 2.0]], &device);
/// let w = Tensor::<2>::from_data([[3.0f32, 4.0], [5.0, 6.0]], &device);
/// let b = Tensor::<1>::from_data([0.5f32, 1.0], &device);
/// let s = Tensor::<1>::from_data([2.0f32, 10.0], &device);
/// let r = Tensor::<2>::from_data([[1.0f32, -1.0]], &device);
/// let y = ops::dense(x, w, Some(b), Activation::None, Some(s), Some(r));
/// assert_eq!(y.into_data().try_to_vec::<f32>().unwrap(), [24.0, 179.0]);
/// ```
pub fn dense(
    x: Tensor<2>,
    weight: Tensor<2>,
    bias: Option<Tensor<1>>,
    activation: Activation,
    scale: Option<Tensor<1>>,
    residual: Option<Tensor<2>>,
) -> Tensor<2> {
    Tensor::from_dispatch(<Dispatch as SpeechBackend>::dense(
        x.into_dispatch(),
        weight.into_dispatch(),
        optional(bias),
        activation,
        optional(scale),
        optional(residual),
    ))
}

/// Layer normalisation: `x [rows, width]`, `weight`, `bias [width]` ->
/// `weight (x - mean) / sqrt(variance + eps) + bias`, mean and population variance of each row. All
/// f32; a row's result depends on that row alone.
///
/// Source: Ba et al. 2016, arXiv:1607.06450.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// let device = Device::flex();
/// let x = Tensor::<2>::from_data([[1.0f32, 3.0]], &device);
/// let w = Tensor::<1>::from_data([1.0f32, 2.0], &device);
/// let b = Tensor::<1>::from_data([0.0f32, 0.5], &device);
/// let y = zonos_kernels::ops::layer_norm(x, w, b, 0.0);
/// assert_eq!(y.into_data().try_to_vec::<f32>().unwrap(), [-1.0, 2.5]);
/// ```
pub fn layer_norm(x: Tensor<2>, weight: Tensor<1>, bias: Tensor<1>, eps: f32) -> Tensor<2> {
    Tensor::from_dispatch(<Dispatch as SpeechBackend>::layer_norm(
        x.into_dispatch(),
        weight.into_dispatch(),
        bias.into_dispatch(),
        eps,
    ))
}

/// Normalisation by the root mean square: `x [rows, width]`, `weight [width]` ->
/// `weight x / sqrt(mean(x^2) + eps)`, without the weight where there is none. All f32; a row's result
/// depends on that row alone.
///
/// Source: Zhang and Sennrich 2019, arXiv:1910.07467.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// let device = Device::flex();
/// let x = Tensor::<2>::from_data([[3.0f32, 4.0]], &device);
/// let w = Tensor::<1>::from_data([1.0f32, 2.0], &device);
/// let y = zonos_kernels::ops::rms_norm(x, Some(w), 3.5); // 12.5 + 3.5 = 4 * 4
/// assert_eq!(y.into_data().try_to_vec::<f32>().unwrap(), [0.75, 2.0]);
/// ```
pub fn rms_norm(x: Tensor<2>, weight: Option<Tensor<1>>, eps: f32) -> Tensor<2> {
    Tensor::from_dispatch(<Dispatch as SpeechBackend>::rms_norm(
        x.into_dispatch(),
        optional(weight),
        eps,
    ))
}

/// Heads normalised by their root mean square, scaled, and turned by their position: `x [rows, heads,
/// dim]`, `scale [heads]`, `cos`, `sin [rows, dim]` -> `[rows, heads, dim]`, all f32, `dim` even.
///
/// With `n = scale x / sqrt(mean(x^2) + eps)`, each pair of neighbours becomes `(n0 cos0 + n1 sin0, n1
/// cos1 + n0 sin1)`: `sin` is negative at even places.
///
/// Source: Su et al. 2021, arXiv:2104.09864, behind a norm of queries and keys.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// let device = Device::flex();
/// let x = Tensor::<3>::from_data([[[2.0f32, 2.0]]], &device);
/// let cos = Tensor::<2>::from_data([[0.0f32, 0.0]], &device);
/// let sin = Tensor::<2>::from_data([[-1.0f32, 1.0]], &device); // a quarter turn
/// let y = zonos_kernels::ops::norm_rotate(x, None, cos, sin, 0.0);
/// assert_eq!(y.into_data().try_to_vec::<f32>().unwrap(), [-1.0, 1.0]);
/// ```
pub fn norm_rotate(
    x: Tensor<3>,
    scale: Option<Tensor<1>>,
    cos: Tensor<2>,
    sin: Tensor<2>,
    eps: f32,
) -> Tensor<3> {
    Tensor::from_dispatch(<Dispatch as SpeechBackend>::norm_rotate(
        x.into_dispatch(),
        optional(scale),
        cos.into_dispatch(),
        sin.into_dispatch(),
        eps,
    ))
}

/// Heads let through by a gate each: `x [rows, heads, dim]`, `gate [rows, heads]` ->
/// `x / (1 + exp(-gate))`, f32.
pub fn sigmoid_gate(x: Tensor<3>, gate: Tensor<2>) -> Tensor<3> {
    Tensor::from_dispatch(<Dispatch as SpeechBackend>::sigmoid_gate(
        x.into_dispatch(),
        gate.into_dispatch(),
    ))
}

/// The middle of a gated feed-forward block: `both [rows, 2 width]`, gates and what they gate as `order`
/// says -> `silu(gate) * up`, `[rows, width]`, f32.
///
/// Source: Shazeer 2020, arXiv:2002.05202.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use zonos_kernels::{GateOrder, ops};
/// let device = Device::flex();
/// let both = Tensor::<2>::from_data([[0.0f32, 100.0]], &device);
/// let y = ops::silu_gate(both.clone(), GateOrder::UpThenGate).into_scalar::<f32>();
/// assert_eq!(y, 0.0);
/// let both = Tensor::<2>::from_data([[7.0f32, 100.0]], &device);
/// let y = ops::silu_gate(both, GateOrder::Interleaved).into_scalar::<f32>();
/// assert!((y - 699.3623).abs() < 1e-2);
/// ```
pub fn silu_gate(both: Tensor<2>, order: GateOrder) -> Tensor<2> {
    Tensor::from_dispatch(<Dispatch as SpeechBackend>::silu_gate(
        both.into_dispatch(),
        order,
    ))
}

/// `x [rows, width]`, f32 -> `cap tanh(x / cap)`: near the identity for small values, never beyond `cap`.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// let x = Tensor::<2>::from_data([[0.01f32, -1e9]], &Device::flex());
/// let y: Vec<f32> = zonos_kernels::ops::soft_cap(x, 15.0).into_data().try_to_vec().unwrap();
/// assert!((y[0] - 0.01).abs() < 2e-6 && y[1] == -15.0);
/// ```
pub fn soft_cap(x: Tensor<2>, cap: f32) -> Tensor<2> {
    Tensor::from_dispatch(<Dispatch as SpeechBackend>::soft_cap(
        x.into_dispatch(),
        cap,
    ))
}

/// Causal attention over the last `context` positions: `q [batch, queries, heads, dim]`; `k`, `v
/// [batch, keys, heads, dim]` with `keys >= queries` and `context >= 1` -> `[batch, queries, heads,
/// dim]`, all f32.
///
/// The queries are the last of the keys' positions, so a stream puts past keys in front of its own. A
/// query at position `i` sees the keys `j` with `0 <= i - j < context`, itself among them; keys that
/// none of the queries sees are ignored. Scale `1/sqrt(dim)`. Memory grows with `queries + keys`, not
/// with their product.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// let device = Device::flex();
/// let q = Tensor::<4>::zeros([1, 2, 1, 1], &device);
/// let k = Tensor::<4>::zeros([1, 4, 1, 1], &device);
/// let v = Tensor::<1>::from_data([1.0f32, 3.0, 7.0, 9.0], &device).reshape([1, 4, 1, 1]);
/// let y = zonos_kernels::ops::window_attention(q, k, v, 2); // equal scores: means of two values
/// assert_eq!(y.into_data().try_to_vec::<f32>().unwrap(), [5.0, 8.0]);
/// ```
pub fn window_attention(q: Tensor<4>, k: Tensor<4>, v: Tensor<4>, context: usize) -> Tensor<4> {
    let ([_, queries, ..], [_, keys, ..]) = (q.dims(), k.dims());
    assert!(
        context > 0 && keys >= queries,
        "window_attention: a context of {context}, {keys} keys for {queries} queries"
    );
    Tensor::from_dispatch(<Dispatch as SpeechBackend>::window_attention(
        q.into_dispatch(),
        k.into_dispatch(),
        v.into_dispatch(),
        context,
    ))
}

/// Attention of every position to every other, with an embedding of their distance: `q`, `k`, `v
/// [batch, time, heads, dim]`, `table [left + right + 1, dim]` -> `[batch, time, heads, dim]`, all f32.
///
/// The score of query `i` with key `j` is `q[i] (k[j] + table[left + clamp(j - i, -left, right)]) /
/// sqrt(dim)`. `mask [batch, time]` holds 1 where a key may be seen and 0 where not; a masked key's
/// score is the lowest f32, so it weighs nothing unless all are masked.
///
/// Source: Shaw et al. 2018, arXiv:1803.02155, keys only, as Wav2Vec2-BERT uses it.
pub fn relative_attention(
    q: Tensor<4>,
    k: Tensor<4>,
    v: Tensor<4>,
    table: Tensor<2>,
    left: usize,
    right: usize,
    mask: Option<Tensor<2>>,
) -> Tensor<4> {
    assert_eq!(
        table.dims()[0],
        left + right + 1,
        "relative_attention: rows of the table"
    );
    Tensor::from_dispatch(<Dispatch as SpeechBackend>::relative_attention(
        q.into_dispatch(),
        k.into_dispatch(),
        v.into_dispatch(),
        table.into_dispatch(),
        left,
        right,
        optional(mask),
    ))
}

/// A convolution of each channel by itself over a time-major signal, without padding: `x [batch, time +
/// taps - 1, channels]`, `weight [channels, 1, taps]`, `bias [channels]` -> `[batch, time, channels]`,
/// all f32: `y[t, c] = bias[c] + sum over k of weight[c, k] x[t + k, c]`.
///
/// Causal layers put `taps - 1` zeros, or what a stream kept, in front. A result depends on its own
/// inputs alone, however the signal is cut.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// let device = Device::flex();
/// let x = Tensor::<3>::from_data([[[1.0f32, 10.0], [2.0, 20.0], [3.0, 30.0]]], &device);
/// let w = Tensor::<3>::from_data([[[1.0f32, 100.0]], [[0.5, 0.0]]], &device);
/// let y = zonos_kernels::ops::depthwise_conv1d(x, w, None);
/// assert_eq!(y.into_data().try_to_vec::<f32>().unwrap(), [201.0, 5.0, 302.0, 10.0]);
/// ```
pub fn depthwise_conv1d(x: Tensor<3>, weight: Tensor<3>, bias: Option<Tensor<1>>) -> Tensor<3> {
    Tensor::from_dispatch(<Dispatch as SpeechBackend>::depthwise_conv1d(
        x.into_dispatch(),
        weight.into_dispatch(),
        optional(bias),
    ))
}
