//! [`SpeechBackend`](crate::SpeechBackend) in terms of Burn's own operations.
//!
//! Runs on every backend and is what the fast kernels are tested against.

use burn::backend::tensor::{BoolTensor, FloatTensor, IntTensor};
use burn::backend::{Backend, TensorMetadata};
use burn::tensor::{DType, FloatDType, IntDType, Shape, Slice, TensorData};

mod attention;
mod blocks;
mod cache;
mod conv;
mod dense;
mod depthwise;
mod router;
mod statistics;
mod step;

pub use attention::{relative_attention, window_attention};
pub(crate) use blocks::decode_data;
pub use blocks::{
    block_expert_linear, block_expert_linear_grad_input, block_linear, block_linear_grad_input,
    dequantize,
};

pub use cache::cache_append;
pub(crate) use conv::{
    ConvGradients, ConvInputs, conv_gradients, conv_options, conv_transpose_gradients, same_padding,
};
pub use conv::{reflect_conv1d, snake_conv_transpose1d, snake_conv1d, snake_strided_conv1d};
pub(crate) use dense::dense_end;
pub use dense::{dense, layer_norm};
pub use depthwise::depthwise_conv1d;
pub(crate) use depthwise::{depthwise_grad_weight, depthwise_transposed};
pub use router::route;
pub use statistics::statistics_pooling;
pub use step::{norm_rotate, rms_norm, sigmoid_gate, silu_gate, soft_cap};

/// Rows up to which chosen expert matrices are gathered on the device, without reading the choice
/// back: a decode step stays asynchronous there, at the price of one copy of each chosen matrix.
const GATHER_ROWS: usize = 2;

/// Added to Snake's alpha before dividing, as the codec was trained.
pub(crate) const SNAKE_EPSILON: f64 = 1e-9;

/// See [`SpeechBackend::to_f32`](crate::SpeechBackend::to_f32).
pub fn to_f32<B: Backend>(x: FloatTensor<B>) -> FloatTensor<B> {
    if x.dtype() == DType::F32 {
        x
    } else {
        B::float_cast(x, FloatDType::F32)
    }
}

/// See [`SpeechBackend::packed_linear`](crate::SpeechBackend::packed_linear).
pub fn linear<B: Backend>(x: FloatTensor<B>, weight: FloatTensor<B>) -> FloatTensor<B> {
    B::float_matmul(x, B::float_swap_dims(to_f32::<B>(weight), 0, 1))
}

/// See [`SpeechBackend::packed_linear_grad_input`](crate::SpeechBackend::packed_linear_grad_input).
pub fn linear_grad_input<B: Backend>(dy: FloatTensor<B>, weight: FloatTensor<B>) -> FloatTensor<B> {
    B::float_matmul(dy, to_f32::<B>(weight))
}

/// See [`SpeechBackend::expert_linear`](crate::SpeechBackend::expert_linear).
pub fn expert_linear<B: Backend>(
    x: FloatTensor<B>,
    weight: FloatTensor<B>,
    expert: IntTensor<B>,
) -> FloatTensor<B> {
    by_expert::<B>(x, weight, expert, |x, w| linear::<B>(x, w), true)
}

/// See [`SpeechBackend::expert_linear_grad_input`](crate::SpeechBackend::expert_linear_grad_input).
pub fn expert_linear_grad_input<B: Backend>(
    dy: FloatTensor<B>,
    weight: FloatTensor<B>,
    expert: IntTensor<B>,
) -> FloatTensor<B> {
    by_expert::<B>(
        dy,
        weight,
        expert,
        |dy, w| linear_grad_input::<B>(dy, w),
        false,
    )
}

/// Rows grouped by the expert they chose: `(expert, its rows in order)`, for experts in use.
pub(crate) fn group_by_expert(expert: &[i64], experts: usize) -> Vec<(usize, Vec<i64>)> {
    let mut groups: Vec<(usize, Vec<i64>)> = (0..experts).map(|e| (e, Vec::new())).collect();
    for (row, &e) in expert.iter().enumerate() {
        let e = usize::try_from(e).ok().filter(|&e| e < experts);
        let e = e.expect("expert index out of range");
        groups[e].1.push(row as i64);
    }
    groups.retain(|(_, rows)| !rows.is_empty());
    groups
}

fn read_expert<B: Backend>(expert: IntTensor<B>) -> Vec<i64> {
    let data =
        burn::tensor::read_sync(B::int_into_data(expert)).expect("reading expert choices back");
    data.convert::<i64>()
        .try_into_vec()
        .expect("converted to i64")
}

fn rows_tensor<B: Backend>(
    rows: Vec<i64>,
    device: &burn::backend::tensor::Device<B>,
) -> IntTensor<B> {
    let rows: Vec<i32> = rows.into_iter().map(|r| r as i32).collect();
    let n = rows.len();
    B::int_from_data(TensorData::new(rows, [n]), device)
}

fn by_expert<B: Backend>(
    x: FloatTensor<B>,
    weight: FloatTensor<B>,
    expert: IntTensor<B>,
    product: impl Fn(FloatTensor<B>, FloatTensor<B>) -> FloatTensor<B>,
    transposed: bool,
) -> FloatTensor<B> {
    let [experts, out, inner] = weight.shape().dims::<3>();
    let rows = x.shape()[0];
    if rows <= GATHER_ROWS {
        let chosen = to_f32::<B>(B::float_select(weight, 0, expert));
        let chosen = if transposed {
            B::float_swap_dims(chosen, 1, 2)
        } else {
            chosen
        };
        let (from, to) = if transposed {
            (inner, out)
        } else {
            (out, inner)
        };
        let x = B::float_reshape(x, Shape::new([rows, 1, from]));
        return B::float_reshape(B::float_matmul(x, chosen), Shape::new([rows, to]));
    }
    let to = if transposed { out } else { inner };
    products_by_expert::<B>(x, experts, to, expert, |members, e| {
        let matrix = B::float_slice(weight.clone(), &[Slice::from(e..e + 1)]);
        product(members, B::float_reshape(matrix, Shape::new([out, inner])))
    })
}

/// Each row of `x [rows, from]` by the product `(rows of an expert, expert)` of the expert chosen for it,
/// `[rows, to]`.
fn products_by_expert<B: Backend>(
    x: FloatTensor<B>,
    experts: usize,
    to: usize,
    expert: IntTensor<B>,
    product: impl Fn(FloatTensor<B>, usize) -> FloatTensor<B>,
) -> FloatTensor<B> {
    let (device, rows) = (x.device(), x.shape()[0]);
    if rows == 0 {
        return B::float_zeros(Shape::new([0, to]), &device, FloatDType::F32);
    }
    let groups = group_by_expert(&read_expert::<B>(expert), experts);
    let mut position = vec![0i64; rows];
    let mut next = 0;
    let mut parts = Vec::with_capacity(groups.len());
    for (e, members) in groups {
        for &row in &members {
            position[row as usize] = next;
            next += 1;
        }
        let members = B::float_select(x.clone(), 0, rows_tensor::<B>(members, &device));
        parts.push(product(members, e));
    }
    B::float_select(
        B::float_cat(parts, 0),
        0,
        rows_tensor::<B>(position, &device),
    )
}

/// See [`SpeechBackend::expert_linear_grad_weight`](crate::SpeechBackend::expert_linear_grad_weight).
pub fn expert_linear_grad_weight<B: Backend>(
    dy: FloatTensor<B>,
    x: FloatTensor<B>,
    expert: IntTensor<B>,
    experts: usize,
) -> FloatTensor<B> {
    let device = x.device();
    let (out, inner) = (dy.shape()[1], x.shape()[1]);
    let mut grad = B::float_zeros(Shape::new([experts, out, inner]), &device, FloatDType::F32);
    for (e, members) in group_by_expert(&read_expert::<B>(expert), experts) {
        let members = rows_tensor::<B>(members, &device);
        let dy = B::float_select(dy.clone(), 0, members.clone());
        let x = B::float_select(x.clone(), 0, members);
        let part = B::float_matmul(B::float_swap_dims(dy, 0, 1), x);
        let part = B::float_reshape(part, Shape::new([1, out, inner]));
        grad = B::float_slice_assign(grad, &[Slice::from(e..e + 1)], part);
    }
    grad
}

/// See [`SpeechBackend::decode_attention`](crate::SpeechBackend::decode_attention).
pub fn decode_attention<B: Backend>(
    q: FloatTensor<B>,
    k: FloatTensor<B>,
    v: FloatTensor<B>,
    lengths: IntTensor<B>,
    longest: usize,
) -> FloatTensor<B> {
    let [batch, heads, dim] = q.shape().dims::<3>();
    let kv_heads = k.shape()[1];
    let group = heads / kv_heads;
    let device = q.device();
    let valid = |x: FloatTensor<B>| {
        let all = |n: usize| Slice::from(0..n);
        let x = B::float_slice(x, &[all(batch), all(kv_heads), all(longest), all(dim)]);
        to_f32::<B>(x)
    };
    let (k, v) = (valid(k), valid(v));
    let q = B::float_reshape(q, Shape::new([batch, kv_heads, group, dim]));
    let scores = B::float_matmul(q, B::float_swap_dims(k, 2, 3));
    let scores = B::float_mul_scalar(scores, (1.0 / (dim as f64).sqrt()).into());

    let shape = Shape::new([batch, kv_heads, group, longest]);
    let position = B::int_arange(0..longest as i64, &device, IntDType::I32);
    let position = B::int_reshape(position, Shape::new([1, 1, 1, longest]));
    let position = B::int_expand(position, shape.clone());
    let lengths = B::int_cast(lengths, IntDType::I32);
    let lengths = B::int_reshape(lengths, Shape::new([batch, 1, 1, 1]));
    let lengths = B::int_expand(lengths, shape);
    let bool_dtype = burn::backend::get_device_settings::<B>(&device).bool_dtype;
    let beyond: BoolTensor<B> = B::int_greater_equal(position, lengths, bool_dtype);
    let scores = B::float_mask_fill(scores, beyond, f32::NEG_INFINITY.into());

    let scores = B::float_sub(scores.clone(), B::float_max_dim(scores, 3));
    let weights = B::float_exp(scores);
    let weights = B::float_div(weights.clone(), B::float_sum_dim(weights, 3));
    B::float_reshape(B::float_matmul(weights, v), Shape::new([batch, heads, dim]))
}

/// See [`SpeechBackend::snake`](crate::SpeechBackend::snake).
pub fn snake<B: Backend>(x: FloatTensor<B>, alpha: FloatTensor<B>) -> FloatTensor<B> {
    let channels = x.shape()[1];
    let alpha = B::float_reshape(alpha, Shape::new([1, channels, 1]));
    let sine = B::float_sin(B::float_mul(x.clone(), alpha.clone()));
    let square = B::float_mul(sine.clone(), sine);
    let divisor = B::float_add_scalar(alpha, SNAKE_EPSILON.into());
    B::float_add(x, B::float_div(square, divisor))
}

/// Gradients of [`snake`]: `dy`, `x [batch, channels, time]`, `alpha [channels]` -> `(dx, dalpha)`.
///
/// With `s = sin(a x)` and `d = a + 1e-9`: `dy/dx = 1 + a sin(2 a x) / d` and
/// `dy/da = (x sin(2 a x) - s^2 / d) / d`, which is exactly 0 at `a = 0`, as in the reference.
pub fn snake_backward<B: Backend>(
    dy: FloatTensor<B>,
    x: FloatTensor<B>,
    alpha: FloatTensor<B>,
) -> (FloatTensor<B>, FloatTensor<B>) {
    let channels = x.shape()[1];
    let alpha = B::float_reshape(alpha, Shape::new([1, channels, 1]));
    let divisor = B::float_add_scalar(alpha.clone(), SNAKE_EPSILON.into());
    let angle = B::float_mul(x.clone(), alpha.clone());
    let double = B::float_sin(B::float_mul_scalar(angle.clone(), 2.0.into()));
    let sine = B::float_sin(angle);
    let square = B::float_div(B::float_mul(sine.clone(), sine), divisor.clone());
    let dalpha = B::float_sub(B::float_mul(x, double.clone()), square);
    let dalpha = B::float_mul(B::float_div(dalpha, divisor.clone()), dy.clone());
    let dalpha = B::float_sum_dim(B::float_sum_dim(dalpha, 2), 0);
    let slope = B::float_div(B::float_mul(double, alpha), divisor);
    let dx = B::float_add(dy.clone(), B::float_mul(dy, slope));
    (dx, B::float_reshape(dalpha, Shape::new([channels])))
}
