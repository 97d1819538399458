//! Convolutions around Snake in terms of Burn's operations, and their gradients.

use burn::backend::ops::{ConvOptions, ConvTransposeOptions};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, TensorMetadata};
use burn::tensor::{FloatDType, Shape, Slice};

use super::{snake, snake_backward};

/// Options of a convolution.
pub(crate) fn conv_options(
    stride: usize,
    dilation: usize,
    padding: (usize, usize),
) -> ConvOptions<1> {
    ConvOptions::new_with_padding([stride], [padding], [dilation], 1)
}

/// Options of the full transposed convolution, nothing trimmed.
fn transposed_options(stride: usize) -> ConvTransposeOptions<1> {
    ConvTransposeOptions::new([stride], [0], [0], [1], 1)
}

fn activated<B: Backend>(x: FloatTensor<B>, alpha: Option<FloatTensor<B>>) -> FloatTensor<B> {
    match alpha {
        Some(alpha) => snake::<B>(x, alpha),
        None => x,
    }
}

/// See [`SpeechBackend::snake_conv1d`](crate::SpeechBackend::snake_conv1d).
pub fn snake_conv1d<B: Backend>(
    x: FloatTensor<B>,
    alpha: Option<FloatTensor<B>>,
    weight: FloatTensor<B>,
    bias: FloatTensor<B>,
    residual: Option<FloatTensor<B>>,
    dilation: usize,
    padding: (usize, usize),
) -> FloatTensor<B> {
    let x = activated::<B>(x, alpha);
    let y = B::conv1d(x, weight, Some(bias), conv_options(1, dilation, padding));
    match residual {
        Some(residual) => B::float_add(y, residual),
        None => y,
    }
}

/// See [`SpeechBackend::snake_strided_conv1d`](crate::SpeechBackend::snake_strided_conv1d).
pub fn snake_strided_conv1d<B: Backend>(
    x: FloatTensor<B>,
    alpha: Option<FloatTensor<B>>,
    weight: FloatTensor<B>,
    bias: FloatTensor<B>,
    stride: usize,
    padding: (usize, usize),
) -> FloatTensor<B> {
    let x = activated::<B>(x, alpha);
    B::conv1d(x, weight, Some(bias), conv_options(stride, 1, padding))
}

/// See [`SpeechBackend::snake_conv_transpose1d`](crate::SpeechBackend::snake_conv_transpose1d).
pub fn snake_conv_transpose1d<B: Backend>(
    x: FloatTensor<B>,
    alpha: Option<FloatTensor<B>>,
    weight: FloatTensor<B>,
    bias: FloatTensor<B>,
    stride: usize,
    trim: (usize, usize),
) -> FloatTensor<B> {
    let x = activated::<B>(x, alpha);
    let y = B::conv_transpose1d(x, weight, Some(bias), transposed_options(stride));
    let [batch, channels, full] = y.shape().dims::<3>();
    let kept = Slice::from(trim.0..full - trim.1);
    B::float_slice(y, &[Slice::from(0..batch), Slice::from(0..channels), kept])
}

/// Positions that keep a stride-1 convolution's length: the smaller half first.
pub(crate) fn same_padding(taps: usize, dilation: usize) -> (usize, usize) {
    let added = dilation * (taps - 1);
    (added / 2, added - added / 2)
}

/// See [`SpeechBackend::reflect_conv1d`](crate::SpeechBackend::reflect_conv1d).
pub fn reflect_conv1d<B: Backend>(
    x: FloatTensor<B>,
    weight: FloatTensor<B>,
    bias: FloatTensor<B>,
    dilation: usize,
    relu: bool,
) -> FloatTensor<B> {
    let [batch, channels, time] = x.shape().dims::<3>();
    let taps = weight.shape()[2];
    let (before, after) = same_padding(taps, dilation);
    let mirrored = |range: std::ops::Range<usize>| {
        let all = [
            Slice::from(0..batch),
            Slice::from(0..channels),
            Slice::from(range),
        ];
        B::float_flip(B::float_slice(x.clone(), &all), &[2])
    };
    let mut parts = Vec::with_capacity(3);
    if before > 0 {
        parts.push(mirrored(1..before + 1));
    }
    parts.push(x.clone());
    if after > 0 {
        parts.push(mirrored(time - 1 - after..time - 1));
    }
    let x = match parts.len() {
        1 => x,
        _ => B::float_cat(parts, 2),
    };
    let y = B::conv1d(x, weight, Some(bias), conv_options(1, dilation, (0, 0)));
    if relu { B::relu(y) } else { y }
}

/// Gradients of a convolution around Snake; those not asked for are `None`.
pub(crate) struct ConvGradients<B: Backend> {
    pub(crate) x: Option<FloatTensor<B>>,
    pub(crate) alpha: Option<FloatTensor<B>>,
    pub(crate) weight: Option<FloatTensor<B>>,
    pub(crate) bias: Option<FloatTensor<B>>,
}

/// Inputs of the forward pass and the gradients wanted, `[x, alpha, weight, bias]`.
pub(crate) struct ConvInputs<B: Backend> {
    pub(crate) x: FloatTensor<B>,
    pub(crate) alpha: Option<FloatTensor<B>>,
    pub(crate) weight: FloatTensor<B>,
    pub(crate) bias: FloatTensor<B>,
    pub(crate) wanted: [bool; 4],
}

/// Snake's part of the chain: from the gradient of the activated input to those of `x` and `alpha`.
fn through_snake<B: Backend>(
    d_activated: Option<FloatTensor<B>>,
    x: FloatTensor<B>,
    alpha: Option<FloatTensor<B>>,
) -> (Option<FloatTensor<B>>, Option<FloatTensor<B>>) {
    match (d_activated, alpha) {
        (Some(d), Some(alpha)) => {
            let (dx, dalpha) = snake_backward::<B>(d, x, alpha);
            (Some(dx), Some(dalpha))
        }
        (d, _) => (d, None),
    }
}

/// Gradients of [`snake_conv1d`] without its residual, or of [`snake_strided_conv1d`]; `dy` has the
/// shape of its result.
pub(crate) fn conv_gradients<B: Backend>(
    dy: FloatTensor<B>,
    inputs: ConvInputs<B>,
    options: ConvOptions<1>,
) -> ConvGradients<B> {
    let ConvInputs {
        x,
        alpha,
        weight,
        bias,
        wanted,
    } = inputs;
    let [want_x, want_alpha, want_weight, want_bias] = wanted;
    // Activations are recomputed rather than kept from the forward pass.
    let input = activated::<B>(x.clone(), alpha.clone());
    let d_bias = want_bias.then(|| B::conv1d_bias_backward(input.clone(), bias, dy.clone()));
    let d_weight = want_weight.then(|| {
        B::conv1d_weight_backward(input.clone(), weight.clone(), dy.clone(), options.clone())
    });
    let d_input = (want_x || want_alpha).then(|| B::conv1d_x_backward(input, weight, dy, options));
    let (d_x, d_alpha) = through_snake::<B>(d_input, x, alpha);
    ConvGradients {
        x: d_x,
        alpha: d_alpha,
        weight: d_weight,
        bias: d_bias,
    }
}

/// Gradients of [`snake_conv_transpose1d`]; `dy` has the shape of its result.
pub(crate) fn conv_transpose_gradients<B: Backend>(
    dy: FloatTensor<B>,
    inputs: ConvInputs<B>,
    stride: usize,
    trim: (usize, usize),
) -> ConvGradients<B> {
    let options = transposed_options(stride);
    let ConvInputs {
        x,
        alpha,
        weight,
        bias,
        wanted,
    } = inputs;
    let [want_x, want_alpha, want_weight, want_bias] = wanted;
    let [batch, channels, kept] = dy.shape().dims::<3>();
    // What the trim cut off has gradient zero.
    let full = Shape::new([batch, channels, trim.0 + kept + trim.1]);
    let zeros = B::float_zeros(full, &dy.device(), FloatDType::F32);
    let place = Slice::from(trim.0..trim.0 + kept);
    let dy = B::float_slice_assign(
        zeros,
        &[Slice::from(0..batch), Slice::from(0..channels), place],
        dy,
    );
    let input = activated::<B>(x.clone(), alpha.clone());
    let d_bias =
        want_bias.then(|| B::conv_transpose1d_bias_backward(input.clone(), bias, dy.clone()));
    let d_weight = want_weight.then(|| {
        B::conv_transpose1d_weight_backward(input, weight.clone(), dy.clone(), options.clone())
    });
    let d_input =
        (want_x || want_alpha).then(|| B::conv_transpose1d_x_backward(weight, dy, options));
    let (d_x, d_alpha) = through_snake::<B>(d_input, x, alpha);
    ConvGradients {
        x: d_x,
        alpha: d_alpha,
        weight: d_weight,
        bias: d_bias,
    }
}
