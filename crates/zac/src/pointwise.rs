//! Convolutions with one tap, whose weight a file may store in two factors.

use burn::module::{Module, Param};
use burn::tensor::Tensor;
use zonos_kernels::{Activation, ops};
use zonos_nn::ConvWeight;

/// `x W^T + b` with `W [out, in, 1]`, effective or weight-normed.
#[derive(Module, Debug)]
pub struct Pointwise {
    /// `[out, in, 1]`.
    pub weight: ConvWeight,
    /// `[out]`.
    pub bias: Param<Tensor<1>>,
}

impl Pointwise {
    /// Wraps `weight [out, in, 1]` and `bias [out]`, f32.
    pub fn new(weight: ConvWeight, bias: Tensor<1>) -> Self {
        Self {
            weight,
            bias: Param::from_tensor(bias),
        }
    }

    /// `x [.., in]` -> `[.., out]`.
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        let weight = self.weight.value();
        let [out, input, _] = weight.dims();
        let mut shape = x.dims();
        let rows = shape[..D - 1].iter().product::<usize>();
        shape[D - 1] = out;
        ops::dense(
            x.reshape([rows, input]),
            weight.reshape([out, input]),
            Some(self.bias.val()),
            Activation::None,
            None,
            None,
        )
        .reshape(shape)
    }
}
