//! The small steps between the matrices of a transformer layer.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, TensorMetadata};
use burn::tensor::{Shape, Slice};

use crate::GateOrder;

/// `x / sqrt(mean(x^2) + eps)` over axis `axis`, the last.
fn normed<B: Backend>(x: FloatTensor<B>, axis: usize, eps: f32) -> FloatTensor<B> {
    let square = B::float_mean_dim(B::float_mul(x.clone(), x.clone()), axis);
    B::float_div(x, B::float_sqrt(B::float_add_scalar(square, eps.into())))
}

/// See [`SpeechBackend::rms_norm`](crate::SpeechBackend::rms_norm).
pub fn rms_norm<B: Backend>(
    x: FloatTensor<B>,
    weight: Option<FloatTensor<B>>,
    eps: f32,
) -> FloatTensor<B> {
    let width = x.shape()[1];
    let y = normed::<B>(x, 1, eps);
    match weight {
        Some(weight) => B::float_mul(y, B::float_reshape(weight, Shape::new([1, width]))),
        None => y,
    }
}

/// See [`SpeechBackend::norm_rotate`](crate::SpeechBackend::norm_rotate).
pub fn norm_rotate<B: Backend>(
    x: FloatTensor<B>,
    scale: Option<FloatTensor<B>>,
    cos: FloatTensor<B>,
    sin: FloatTensor<B>,
    eps: f32,
) -> FloatTensor<B> {
    let [rows, heads, dim] = x.shape().dims::<3>();
    let mut y = normed::<B>(x, 2, eps);
    if let Some(scale) = scale {
        y = B::float_mul(y, B::float_reshape(scale, Shape::new([1, heads, 1])));
    }
    let pairs = B::float_reshape(y.clone(), Shape::new([rows, heads, dim / 2, 2]));
    let swapped = B::float_flip(pairs, &[3]);
    let swapped = B::float_reshape(swapped, Shape::new([rows, heads, dim]));
    let a_row = |table: FloatTensor<B>| B::float_reshape(table, Shape::new([rows, 1, dim]));
    B::float_add(
        B::float_mul(y, a_row(cos)),
        B::float_mul(swapped, a_row(sin)),
    )
}

/// See [`SpeechBackend::sigmoid_gate`](crate::SpeechBackend::sigmoid_gate).
pub fn sigmoid_gate<B: Backend>(x: FloatTensor<B>, gate: FloatTensor<B>) -> FloatTensor<B> {
    let [rows, heads, _] = x.shape().dims::<3>();
    let gate = B::float_reshape(B::sigmoid(gate), Shape::new([rows, heads, 1]));
    B::float_mul(x, gate)
}

/// See [`SpeechBackend::soft_cap`](crate::SpeechBackend::soft_cap).
pub fn soft_cap<B: Backend>(x: FloatTensor<B>, cap: f32) -> FloatTensor<B> {
    B::float_mul_scalar(
        B::float_tanh(B::float_div_scalar(x, cap.into())),
        cap.into(),
    )
}

/// See [`SpeechBackend::silu_gate`](crate::SpeechBackend::silu_gate).
pub fn silu_gate<B: Backend>(both: FloatTensor<B>, order: GateOrder) -> FloatTensor<B> {
    let rows = both.shape()[0];
    let width = both.shape()[1] / 2;
    let all = |n: usize| Slice::from(0..n);
    let (gate, up) = match order {
        GateOrder::UpThenGate => {
            let part = |first: usize| {
                let slices = [all(rows), Slice::from(first..first + width)];
                B::float_slice(both.clone(), &slices)
            };
            (part(width), part(0))
        }
        GateOrder::Interleaved => {
            let pairs = B::float_reshape(both, Shape::new([rows, width, 2]));
            let part = |i: usize| {
                let slices = [all(rows), all(width), Slice::from(i..i + 1)];
                let part = B::float_slice(pairs.clone(), &slices);
                B::float_reshape(part, Shape::new([rows, width]))
            };
            (part(0), part(1))
        }
    };
    let silu = B::float_mul(gate.clone(), B::sigmoid(gate));
    B::float_mul(silu, up)
}
