//! Depthwise convolution over time-major signals in terms of Burn's operations.

use burn::backend::ops::ConvOptions;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, TensorMetadata};

/// See [`SpeechBackend::depthwise_conv1d`](crate::SpeechBackend::depthwise_conv1d).
pub fn depthwise_conv1d<B: Backend>(
    x: FloatTensor<B>,
    weight: FloatTensor<B>,
    bias: Option<FloatTensor<B>>,
) -> FloatTensor<B> {
    let channels = x.shape()[2];
    let options = ConvOptions::new_with_padding([1], [(0, 0)], [1], channels);
    let y = B::conv1d(B::float_swap_dims(x, 1, 2), weight, bias, options);
    B::float_swap_dims(y, 1, 2)
}
