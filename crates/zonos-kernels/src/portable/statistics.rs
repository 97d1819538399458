//! Means and deviations over time in terms of Burn's operations.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, TensorMetadata};
use burn::tensor::Shape;

/// See [`SpeechBackend::statistics_pooling`](crate::SpeechBackend::statistics_pooling).
pub fn statistics_pooling<B: Backend>(
    x: FloatTensor<B>,
    scores: Option<FloatTensor<B>>,
    floor: f32,
) -> FloatTensor<B> {
    let [batch, channels, _] = x.shape().dims::<3>();
    let weights = scores.map(|scores| B::softmax(scores, 2));
    let mean_of = |values: FloatTensor<B>| match &weights {
        Some(weights) => B::float_sum_dim(B::float_mul(weights.clone(), values), 2),
        None => B::float_mean_dim(values, 2),
    };
    let mean = mean_of(x.clone());
    // Around the mean in a second pass: E[x^2] - E[x]^2 cancels.
    let away = B::float_sub(x, mean.clone());
    let variance = mean_of(B::float_mul(away.clone(), away));
    // The clamp comes before the root, whose slope at zero is infinite.
    let deviation = B::float_sqrt(B::float_clamp_min(variance, floor.into()));
    let pooled = B::float_cat(vec![mean, deviation], 1);
    B::float_reshape(pooled, Shape::new([batch, 2 * channels]))
}
