//! Dense layers and layer normalisation in terms of Burn's operations.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, TensorMetadata};
use burn::tensor::Shape;

use super::linear;
use crate::Activation;

/// See [`SpeechBackend::dense`](crate::SpeechBackend::dense).
pub fn dense<B: Backend>(
    x: FloatTensor<B>,
    weight: FloatTensor<B>,
    bias: Option<FloatTensor<B>>,
    activation: Activation,
    scale: Option<FloatTensor<B>>,
    residual: Option<FloatTensor<B>>,
) -> FloatTensor<B> {
    dense_end::<B>(linear::<B>(x, weight), bias, activation, scale, residual)
}

/// What a dense layer does behind its product `y [rows, out]`.
pub(crate) fn dense_end<B: Backend>(
    y: FloatTensor<B>,
    bias: Option<FloatTensor<B>>,
    activation: Activation,
    scale: Option<FloatTensor<B>>,
    residual: Option<FloatTensor<B>>,
) -> FloatTensor<B> {
    let out = y.shape()[1];
    let a_row = |values: FloatTensor<B>| B::float_reshape(values, Shape::new([1, out]));
    let y = match bias {
        Some(bias) => B::float_add(y, a_row(bias)),
        None => y,
    };
    let y = match activation {
        Activation::None => y,
        Activation::Gelu => gelu::<B>(y),
        Activation::Silu => B::float_mul(y.clone(), B::sigmoid(y)),
    };
    let y = match scale {
        Some(scale) => B::float_mul(y, a_row(scale)),
        None => y,
    };
    match residual {
        Some(residual) => B::float_add(residual, y),
        None => y,
    }
}

/// Through `erf`, whose gradient is exact everywhere: Burn differentiates its own `gelu` as the tanh
/// form on backends without a kernel for it.
fn gelu<B: Backend>(x: FloatTensor<B>) -> FloatTensor<B> {
    let root = std::f64::consts::FRAC_1_SQRT_2;
    let erf = B::float_erf(B::float_mul_scalar(x.clone(), root.into()));
    let cdf = B::float_mul_scalar(B::float_add_scalar(erf, 1.0.into()), 0.5.into());
    B::float_mul(x, cdf)
}

/// See [`SpeechBackend::layer_norm`](crate::SpeechBackend::layer_norm).
pub fn layer_norm<B: Backend>(
    x: FloatTensor<B>,
    weight: FloatTensor<B>,
    bias: FloatTensor<B>,
    eps: f32,
) -> FloatTensor<B> {
    let width = x.shape()[1];
    let a_row = |values: FloatTensor<B>| B::float_reshape(values, Shape::new([1, width]));
    let away = B::float_sub(x.clone(), B::float_mean_dim(x, 1));
    let variance = B::float_mean_dim(B::float_mul(away.clone(), away.clone()), 1);
    let deviation = B::float_sqrt(B::float_add_scalar(variance, eps.into()));
    let y = B::float_mul(B::float_div(away, deviation), a_row(weight));
    B::float_add(y, a_row(bias))
}
