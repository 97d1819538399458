//! Normalisation by root mean square, and by mean and variance.

use burn::module::{Module, Param};
use burn::tensor::Tensor;
use zonos_kernels::ops;

/// `x / sqrt(mean(x^2) + eps)` over the last axis, without mean subtraction or weight.
///
/// Source: Zhang and Sennrich 2019, arXiv:1910.07467.
pub fn rms_norm<const D: usize>(x: Tensor<D>, eps: f64) -> Tensor<D> {
    by_rows(x, None, eps)
}

fn by_rows<const D: usize>(x: Tensor<D>, weight: Option<Tensor<1>>, eps: f64) -> Tensor<D> {
    let shape = x.dims();
    let width = shape[D - 1];
    let rows = shape[..D - 1].iter().product::<usize>();
    ops::rms_norm(x.reshape([rows, width]), weight, eps as f32).reshape(shape)
}

/// Root-mean-square normalisation over the last axis with a learned weight `[width]`.
#[derive(Module, Debug)]
pub struct RmsNorm {
    weight: Param<Tensor<1>>,
    #[module(skip)]
    eps: f64,
}

impl RmsNorm {
    /// Wraps an f32 weight `[width]`.
    pub fn new(weight: Tensor<1>, eps: f64) -> Self {
        Self {
            weight: Param::from_tensor(weight),
            eps,
        }
    }

    /// `[width]`, f32.
    pub fn weight(&self) -> Tensor<1> {
        self.weight.val()
    }

    /// The epsilon.
    pub fn eps(&self) -> f64 {
        self.eps
    }

    /// `x [.., width] -> weight * x / sqrt(mean(x^2) + eps)`.
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        by_rows(x, Some(self.weight.val()), self.eps)
    }
}

/// Layer normalisation over the last axis with a learned weight and bias `[width]`.
///
/// Source: Ba et al. 2016, arXiv:1607.06450.
#[derive(Module, Debug)]
pub struct LayerNorm {
    weight: Param<Tensor<1>>,
    bias: Param<Tensor<1>>,
    #[module(skip)]
    eps: f32,
}

impl LayerNorm {
    /// Wraps an f32 weight and bias, `[width]` each.
    pub fn new(weight: Tensor<1>, bias: Tensor<1>, eps: f32) -> Self {
        Self {
            weight: Param::from_tensor(weight),
            bias: Param::from_tensor(bias),
            eps,
        }
    }

    /// `x [.., width] -> weight (x - mean) / sqrt(variance + eps) + bias`, mean and population
    /// variance over the last axis.
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        let shape = x.dims();
        let width = shape[D - 1];
        let rows = shape[..D - 1].iter().product::<usize>();
        let x = x.reshape([rows, width]);
        ops::layer_norm(x, self.weight.val(), self.bias.val(), self.eps).reshape(shape)
    }
}
