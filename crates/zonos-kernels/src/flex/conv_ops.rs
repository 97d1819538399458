//! The Snake and convolution kernels on Flex tensors.

use burn::backend::{Flex, TensorMetadata};
use burn::tensor::TensorData;
use burn_flex::FlexTensor;
use rayon::prelude::*;

use super::conv::{Conv, PARALLEL_FROM, fill_row};
use super::conv_transposed::ConvTransposed;
use super::rows::{Rows, SharedOutput, contiguous_time, dense};
use super::simd::{Isa, Kernel, Simd, dispatch};
use super::weights::all_f32;
use crate::portable;

fn tensor(values: Vec<f32>, shape: [usize; 3]) -> FlexTensor {
    FlexTensor::from_data(TensorData::new(values, shape))
}

/// See [`SpeechBackend::snake`](crate::SpeechBackend::snake).
pub(super) fn snake(x: FlexTensor, alpha: FlexTensor) -> FlexTensor {
    struct Channel<'a>(&'a mut [f32], &'a [f32], f32);
    impl Kernel for Channel<'_> {
        type Output = ();
        #[inline(always)]
        unsafe fn run<S: Simd>(self) {
            // SAFETY: the instruction set is `S`'s.
            unsafe { fill_row::<S>(self.0, self.1, 0, Some(self.2)) };
        }
    }
    if !all_f32([&x, &alpha]) {
        return portable::snake::<Flex>(x, alpha);
    }
    let x = contiguous_time(x);
    let rows = Rows::of(&x);
    let mut kept = None;
    let alpha = dense(&alpha, &mut kept);
    assert_eq!(alpha.len(), rows.channels, "one alpha a channel");
    let mut y = SharedOutput::new(rows.batch, rows.channels, rows.time);
    let channel = |index: usize| {
        let (batch, c) = (index / rows.channels, index % rows.channels);
        // SAFETY: each index has its own row, within the output's sizes.
        let out = unsafe { std::slice::from_raw_parts_mut(y.at(batch, c, 0), rows.time) };
        dispatch(Channel(out, rows.row(batch, c), alpha[c]));
    };
    let channels = rows.batch * rows.channels;
    if channels * rows.time < PARALLEL_FROM {
        (0..channels).for_each(channel);
    } else {
        (0..channels).into_par_iter().for_each(channel);
    }
    // SAFETY: every row was written.
    let y = unsafe { y.take() };
    tensor(y, [rows.batch, rows.channels, rows.time])
}

/// See [`SpeechBackend::snake_conv1d`](crate::SpeechBackend::snake_conv1d).
pub(super) fn snake_conv1d(
    x: FlexTensor,
    alpha: Option<FlexTensor>,
    weight: FlexTensor,
    bias: FlexTensor,
    residual: Option<FlexTensor>,
    dilation: usize,
    padding: (usize, usize),
) -> FlexTensor {
    if !all_f32(
        [&x, &weight, &bias]
            .into_iter()
            .chain(&alpha)
            .chain(&residual),
    ) {
        return portable::snake_conv1d::<Flex>(x, alpha, weight, bias, residual, dilation, padding);
    }
    let [out, _, taps] = weight.shape().dims::<3>();
    let (x, residual) = (contiguous_time(x), residual.map(contiguous_time));
    let (mut kept_alpha, mut kept_weight, mut kept_bias) = (None, None, None);
    let conv = Conv {
        x: Rows::of(&x),
        alpha: alpha.as_ref().map(|alpha| dense(alpha, &mut kept_alpha)),
        weight: dense(&weight, &mut kept_weight),
        bias: dense(&bias, &mut kept_bias),
        residual: residual.as_ref().map(Rows::of),
        taps,
        stride: 1,
        dilation,
        padding,
        reflect: false,
        relu: false,
    };
    let shape = [conv.x.batch, out, conv.out_time()];
    tensor(conv.run(Isa::best()), shape)
}

/// See [`SpeechBackend::reflect_conv1d`](crate::SpeechBackend::reflect_conv1d).
pub(super) fn reflect_conv1d(
    x: FlexTensor,
    weight: FlexTensor,
    bias: FlexTensor,
    dilation: usize,
    relu: bool,
) -> FlexTensor {
    if !all_f32([&x, &weight, &bias]) {
        return portable::reflect_conv1d::<Flex>(x, weight, bias, dilation, relu);
    }
    let [out, _, taps] = weight.shape().dims::<3>();
    let x = contiguous_time(x);
    let (mut kept_weight, mut kept_bias) = (None, None);
    let conv = Conv {
        x: Rows::of(&x),
        alpha: None,
        weight: dense(&weight, &mut kept_weight),
        bias: dense(&bias, &mut kept_bias),
        residual: None,
        taps,
        stride: 1,
        dilation,
        padding: portable::same_padding(taps, dilation),
        reflect: true,
        relu,
    };
    let shape = [conv.x.batch, out, conv.out_time()];
    tensor(conv.run(Isa::best()), shape)
}

/// See [`SpeechBackend::snake_strided_conv1d`](crate::SpeechBackend::snake_strided_conv1d).
pub(super) fn snake_strided_conv1d(
    x: FlexTensor,
    alpha: Option<FlexTensor>,
    weight: FlexTensor,
    bias: FlexTensor,
    stride: usize,
    padding: (usize, usize),
) -> FlexTensor {
    let [out, _, taps] = weight.shape().dims::<3>();
    let whole = taps.is_multiple_of(stride);
    if !whole || !all_f32([&x, &weight, &bias].into_iter().chain(&alpha)) {
        return portable::snake_strided_conv1d::<Flex>(x, alpha, weight, bias, stride, padding);
    }
    let x = contiguous_time(x);
    let (mut kept_alpha, mut kept_weight, mut kept_bias) = (None, None, None);
    let conv = Conv {
        x: Rows::of(&x),
        alpha: alpha.as_ref().map(|alpha| dense(alpha, &mut kept_alpha)),
        weight: dense(&weight, &mut kept_weight),
        bias: dense(&bias, &mut kept_bias),
        residual: None,
        taps,
        stride,
        dilation: 1,
        padding,
        reflect: false,
        relu: false,
    };
    let shape = [conv.x.batch, out, conv.out_time()];
    tensor(conv.run(Isa::best()), shape)
}

/// See [`SpeechBackend::snake_conv_transpose1d`](crate::SpeechBackend::snake_conv_transpose1d).
pub(super) fn snake_conv_transpose1d(
    x: FlexTensor,
    alpha: Option<FlexTensor>,
    weight: FlexTensor,
    bias: FlexTensor,
    stride: usize,
    trim: (usize, usize),
) -> FlexTensor {
    let [_, out, taps] = weight.shape().dims::<3>();
    if taps != 2 * stride || !all_f32([&x, &weight, &bias].into_iter().chain(&alpha)) {
        return portable::snake_conv_transpose1d::<Flex>(x, alpha, weight, bias, stride, trim);
    }
    let x = contiguous_time(x);
    let (mut kept_alpha, mut kept_weight, mut kept_bias) = (None, None, None);
    let conv = ConvTransposed {
        x: Rows::of(&x),
        alpha: alpha.as_ref().map(|alpha| dense(alpha, &mut kept_alpha)),
        weight: dense(&weight, &mut kept_weight),
        bias: dense(&bias, &mut kept_bias),
        stride,
        trim,
    };
    let shape = [conv.x.batch, out, conv.out_time()];
    tensor(conv.run(Isa::best()), shape)
}
