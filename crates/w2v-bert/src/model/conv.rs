//! The convolution of a layer.

use burn::module::{Module, Param};
use burn::tensor::activation::{sigmoid, silu};
use burn::tensor::{DType, Tensor};
use zonos_kernels::ops;
use zonos_nn::{Dense, LayerNorm};

use super::Clip;

/// Layer normalisation, a gated dense layer, a causal depthwise convolution, layer normalisation,
/// SiLU, a dense layer.
#[derive(Module, Debug)]
pub struct ConvModule {
    /// Of the input.
    pub layer_norm: LayerNorm,
    /// `[2 hidden, hidden]`, values before gates.
    pub pointwise_conv1: Dense,
    /// Sees the past only, though the attention sees everything.
    pub depthwise_conv: DepthwiseConv,
    /// Behind it.
    pub depthwise_layer_norm: LayerNorm,
    /// `[hidden, hidden]`.
    pub pointwise_conv2: Dense,
}

/// A convolution of each channel by itself, without bias.
#[derive(Module, Debug)]
pub struct DepthwiseConv {
    /// `[hidden, 1, taps]`, f32.
    pub weight: Param<Tensor<3>>,
}

impl ConvModule {
    /// `x [tokens, hidden] -> x + block(x)`.
    pub(crate) fn forward(&self, x: Tensor<2>, clip: &Clip) -> Tensor<2> {
        let h = clip.keep(self.layer_norm.forward(x.clone()));
        let h = self
            .depthwise_conv
            .forward(gated(self.pointwise_conv1.forward(h)));
        let h = silu(self.depthwise_layer_norm.forward(h));
        self.pointwise_conv2.added(h, None, x)
    }
}

/// `h [tokens, 2 width] -> [tokens, width]`: the first half times the sigmoid of the second.
///
/// Source: Dauphin et al. 2016, arXiv:1612.08083.
fn gated(h: Tensor<2>) -> Tensor<2> {
    let width = h.dims()[1] / 2;
    h.clone().narrow(1, 0, width) * sigmoid(h.narrow(1, width, width))
}

impl DepthwiseConv {
    /// `x [tokens, hidden]`, the shape of the result too; zeros come before the signal.
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let [_, width] = x.dims();
        let weight = self.weight.val();
        let past = weight.dims()[2] - 1;
        let past = Tensor::zeros([past, width], (&x.device(), DType::F32));
        let x = Tensor::cat(vec![past, x], 0).unsqueeze_dim(0);
        ops::depthwise_conv1d(x, weight, None).squeeze_dim(0)
    }
}
