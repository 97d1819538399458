//! Depthwise convolution over time-major signals in terms of Burn's operations, and its gradients.

use burn::backend::ops::ConvOptions;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, TensorMetadata};
use burn::tensor::{FloatDType, Shape, Slice};

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

/// What the input gradient is the depthwise convolution of: `dy [batch, time, channels]` with `taps - 1`
/// zeros at either end, and the taps in reverse.
pub(crate) fn depthwise_transposed<B: Backend>(
    dy: FloatTensor<B>,
    weight: FloatTensor<B>,
) -> (FloatTensor<B>, FloatTensor<B>) {
    let [batch, time, channels] = dy.shape().dims::<3>();
    let around = weight.shape()[2] - 1;
    let shape = Shape::new([batch, time + 2 * around, channels]);
    let zeros = B::float_zeros(shape, &dy.device(), FloatDType::F32);
    let place = [0..batch, around..around + time, 0..channels].map(Slice::from);
    let padded = B::float_slice_assign(zeros, &place, dy);
    (padded, B::float_flip(weight, &[2]))
}

/// Weight gradient of [`depthwise_conv1d`], `[channels, 1, taps]`: a sum over time for each tap.
pub(crate) fn depthwise_grad_weight<B: Backend>(
    dy: FloatTensor<B>,
    x: FloatTensor<B>,
) -> FloatTensor<B> {
    let [batch, time, channels] = dy.shape().dims::<3>();
    let taps = x.shape()[1] + 1 - time;
    let tap = |k: usize| {
        let seen = [0..batch, k..k + time, 0..channels].map(Slice::from);
        let products = B::float_mul(B::float_slice(x.clone(), &seen), dy.clone());
        let sums = B::float_sum_dim(B::float_sum_dim(products, 1), 0);
        B::float_reshape(sums, Shape::new([channels, 1, 1]))
    };
    B::float_cat((0..taps).map(tap).collect(), 2)
}
