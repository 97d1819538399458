//! Convolutions over `[batch, channels, frames]` that keep the number of frames.

use burn::module::{Module, Param};
use burn::tensor::Tensor;
use zonos_kernels::ops;

/// A convolution with bias, mirrored at both ends.
#[derive(Module, Debug)]
pub struct Conv {
    /// `[out, in, taps]`.
    pub weight: Param<Tensor<3>>,
    /// `[out]`.
    pub bias: Param<Tensor<1>>,
    #[module(skip)]
    dilation: usize,
}

impl Conv {
    /// `weight [out, in, taps]`, `bias [out]`, f32.
    pub fn new(weight: Tensor<3>, bias: Tensor<1>, dilation: usize) -> Self {
        Self {
            weight: Param::from_tensor(weight),
            bias: Param::from_tensor(bias),
            dilation,
        }
    }

    /// `x [batch, in, frames] -> [batch, out, frames]`.
    pub fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        self.convolve(x, false)
    }

    fn convolve(&self, x: Tensor<3>, relu: bool) -> Tensor<3> {
        ops::reflect_conv1d(x, self.weight.val(), self.bias.val(), self.dilation, relu)
    }

    /// A convolution of one tap on a single frame: `x [batch, in] -> [batch, out]`.
    pub fn affine(&self, x: Tensor<2>) -> Tensor<2> {
        let weight = self.weight.val();
        let [out, inner, _] = weight.dims();
        ops::linear(x, weight.reshape([out, inner])) + self.bias.val().unsqueeze()
    }
}

/// A convolution with ReLU behind it.
#[derive(Module, Debug)]
pub struct Tdnn {
    /// The convolution.
    pub conv: Conv,
}

impl Tdnn {
    /// `x [batch, in, frames] -> [batch, out, frames]`.
    pub fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        self.conv.convolve(x, true)
    }
}
