//! Attentive statistics pooling.

use burn::module::Module;
use burn::tensor::Tensor;
use burn::tensor::activation::relu;
use zonos_kernels::ops;

use super::{Conv, Tdnn};

/// Smallest variance: taken before the root, so that deviations are 1e-6 at least.
const FLOOR: f32 = 1e-12;

/// Frames to one vector: mean and deviation of every channel, with weights that an attention over
/// `[x, mean, deviation]` gives each frame of each channel.
///
/// Source: Okabe et al. 2018, arXiv:1803.10963, with the global context of Desplanques et al. 2020,
/// arXiv:2005.07143.
#[derive(Module, Debug)]
pub struct AttentiveStatisticsPooling {
    /// `[attention, 3 channels, 1]`.
    pub tdnn: Tdnn,
    /// `[channels, attention, 1]`.
    pub conv: Conv,
}

impl AttentiveStatisticsPooling {
    /// `x [batch, channels, frames] -> [batch, 2 channels]`, means first.
    pub fn forward(&self, x: Tensor<3>) -> Tensor<2> {
        let hidden = relu(self.attention_input(x.clone())).tanh();
        let scores = self.conv.forward(hidden);
        ops::statistics_pooling(x, Some(scores), FLOOR)
    }

    /// What `tdnn`'s convolution gives for `[x, mean repeated, deviation repeated]`: mean and
    /// deviation are the same in every frame, so their two thirds of the product are made once.
    fn attention_input(&self, x: Tensor<3>) -> Tensor<3> {
        let channels = x.dims()[1];
        let conv = &self.tdnn.conv;
        let weight = conv.weight.val();
        let attention = weight.dims()[0];
        let own = weight.clone().narrow(1, 0, channels);
        let context = weight
            .narrow(1, channels, 2 * channels)
            .reshape([attention, 2 * channels]);
        let statistics = ops::statistics_pooling(x.clone(), None, FLOOR);
        let context = ops::linear(statistics, context);
        let own = ops::reflect_conv1d(x, own, conv.bias.val(), 1, false);
        own + context.unsqueeze_dim(2)
    }
}
