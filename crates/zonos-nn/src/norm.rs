//! Root-mean-square normalisation.

use burn::module::{Module, Param};
use burn::tensor::Tensor;

/// `x / sqrt(mean(x^2) + eps)` over the last axis, without mean subtraction or weight.
///
/// Source: Zhang and Sennrich 2019, arXiv:1910.07467.
pub fn rms_norm<const D: usize>(x: Tensor<D>, eps: f64) -> Tensor<D> {
    let mean_square = x.clone().powi_scalar(2).mean_dim(D - 1);
    x / (mean_square + eps).sqrt()
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

    /// `x [.., width] -> weight * x / sqrt(mean(x^2) + eps)`.
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        rms_norm(x, self.eps) * self.weight.val().unsqueeze()
    }
}
