//! Dense layers with activation, scale and residual fused in.

use burn::module::{Module, Param};
use burn::tensor::Tensor;
use zonos_kernels::{Activation, PackedTensor, ops};

/// `x W^T + b`, the weight `[out, in]` kept in its file's dtype, the bias `[out]` f32 and optional.
#[derive(Module, Debug)]
pub struct Dense {
    weight: PackedTensor<2>,
    bias: Option<Param<Tensor<1>>>,
}

impl Dense {
    /// `weight [out, in]` in any float dtype, `bias [out]` f32.
    pub fn new(weight: Tensor<2>, bias: Option<Tensor<1>>) -> Self {
        Self {
            weight: PackedTensor::new(weight),
            bias: bias.map(Param::from_tensor),
        }
    }

    /// `[out, in]`.
    pub fn dims(&self) -> [usize; 2] {
        self.weight.dims()
    }

    /// The weight `[out, in]` in its stored dtype.
    pub fn weight(&self) -> Tensor<2> {
        self.weight.value()
    }

    /// `x [rows, in] -> x W^T + b`, `[rows, out]`.
    pub fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.fused(x, Activation::None, None, None)
    }

    /// `x [rows, in] -> activation(x W^T + b)`, `[rows, out]`.
    pub fn activated(&self, x: Tensor<2>, activation: Activation) -> Tensor<2> {
        self.fused(x, activation, None, None)
    }

    /// `x [rows, in]`, `scale [out]`, `residual [rows, out]` -> `residual + scale (x W^T + b)`,
    /// `[rows, out]`.
    pub fn added(&self, x: Tensor<2>, scale: Option<Tensor<1>>, residual: Tensor<2>) -> Tensor<2> {
        self.fused(x, Activation::None, scale, Some(residual))
    }

    /// `x [rows, in]`, `scale [out]`, `residual [rows, out]` -> `residual + scale activation(x W^T +
    /// b)`, `[rows, out]`; see [`ops::dense`].
    pub fn fused(
        &self,
        x: Tensor<2>,
        activation: Activation,
        scale: Option<Tensor<1>>,
        residual: Option<Tensor<2>>,
    ) -> Tensor<2> {
        let bias = self.bias.as_ref().map(Param::val);
        ops::dense(x, self.weight.value(), bias, activation, scale, residual)
    }
}
