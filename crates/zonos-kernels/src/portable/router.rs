//! A router behind its projection down.

use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, TensorMetadata};
use burn::tensor::{IntDType, Shape};

use super::{dense, rms_norm};
use crate::backend::RouterWeights;
use crate::{Activation, RouterOptions};

/// See [`SpeechBackend::route`](crate::SpeechBackend::route).
#[allow(clippy::type_complexity)] // one tuple, named where it is declared
pub fn route<B: Backend>(
    down: FloatTensor<B>,
    below: Option<FloatTensor<B>>,
    scale: Option<FloatTensor<B>>,
    weights: RouterWeights<B>,
    options: RouterOptions,
) -> (FloatTensor<B>, FloatTensor<B>, IntTensor<B>, FloatTensor<B>) {
    let width = down.shape()[1];
    let a_row = |x: FloatTensor<B>, n: usize| B::float_reshape(x, Shape::new([1, n]));
    let mut state = B::float_add(down, a_row(weights.bias, width));
    if let (Some(below), Some(scale)) = (below, scale) {
        state = B::float_add(state, B::float_mul(below, a_row(scale, width)));
    }
    let mut z = rms_norm::<B>(state.clone(), Some(weights.norm), options.eps);
    for (weight, bias) in [
        (weights.first, weights.first_bias),
        (weights.second, weights.second_bias),
    ] {
        z = dense::<B>(z, weight, Some(bias), Activation::Gelu, None, None);
    }
    let probability = softmax::<B>(dense::<B>(
        z,
        weights.last,
        None,
        Activation::None,
        None,
        None,
    ));
    let experts = probability.shape()[1];
    let shift = B::float_mul_scalar(B::float_detach(weights.balancing), options.sign.into());
    let score = B::float_add(B::float_detach(probability.clone()), a_row(shift, experts));
    let expert = best::<B>(score, options.top_k);
    let weight = B::float_gather(1, probability.clone(), expert.clone());
    (state, probability, expert, weight)
}

/// Over the last of two axes.
fn softmax<B: Backend>(x: FloatTensor<B>) -> FloatTensor<B> {
    let largest = B::float_max_dim(B::float_detach(x.clone()), 1);
    let x = B::float_exp(B::float_sub(x, largest));
    B::float_div(x.clone(), B::float_sum_dim(x, 1))
}

/// Indices of the `k` largest of each row, best first, `[rows, k]`; the lowest index wins a tie.
fn best<B: Backend>(score: FloatTensor<B>, k: usize) -> IntTensor<B> {
    let first = |score| B::float_argmax(score, 1, IntDType::I32);
    if k == 1 {
        return first(score);
    }
    let [rows, experts] = score.shape().dims::<2>();
    let device = score.device();
    let all = Shape::new([rows, experts]);
    let ids = B::int_arange(0..experts as i64, &device, IntDType::I32);
    let ids = B::int_reshape(ids, Shape::new([1, experts]));
    let ids = B::int_expand(ids, all.clone());
    let bool_dtype = burn::backend::get_device_settings::<B>(&device).bool_dtype;
    let mut rest = score;
    let mut chosen = Vec::with_capacity(k);
    for _ in 0..k {
        let index = first(rest.clone());
        let taken = B::int_expand(index.clone(), all.clone());
        let taken = B::int_equal(ids.clone(), taken, bool_dtype);
        rest = B::float_mask_fill(rest, taken, f32::NEG_INFINITY.into());
        chosen.push(index);
    }
    B::int_cat(chosen, 1)
}
