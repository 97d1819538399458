//! Layer normalisation, each row visited while it is in cache.

use burn::backend::{Flex, TensorMetadata};
use burn_flex::FlexTensor;
use rayon::prelude::*;

use super::conv::PARALLEL_FROM;
use super::rows::SharedOutput;
use super::simd::{Isa, Kernel, Simd, dispatch_on};
use super::weights::{all_f32, contiguous, elements, f32_tensor};
use crate::portable;

/// Independent sums along a row, to hide the latency of the addition.
const SUMS: usize = 4;
/// Values a work item.
const VALUES: usize = 32 * 1024;

/// See [`SpeechBackend::layer_norm`](crate::SpeechBackend::layer_norm).
pub(super) fn layer_norm(
    isa: Isa,
    x: FlexTensor,
    weight: FlexTensor,
    bias: FlexTensor,
    eps: f32,
) -> FlexTensor {
    let [rows, width] = x.shape().dims::<2>();
    if !all_f32([&x, &weight, &bias]) || rows * width == 0 {
        return portable::layer_norm::<Flex>(x, weight, bias, eps);
    }
    let [x, weight, bias] = [x, weight, bias].map(contiguous);
    let y = normalised(isa, elements(&x), elements(&weight), elements(&bias), eps);
    f32_tensor(y, [rows, width])
}

/// `x [rows, width]`, `weight`, `bias [width]` -> `[rows, width]`.
pub(super) fn normalised(isa: Isa, x: &[f32], weight: &[f32], bias: &[f32], eps: f32) -> Vec<f32> {
    let width = weight.len();
    assert!(width > 0 && bias.len() == width && x.len().is_multiple_of(width));
    let rows = x.len() / width;
    let mut y = SharedOutput::new(1, rows, width);
    let group = (VALUES / width).max(1);
    let item = |index: usize| {
        let rows = index * group..rows.min((index + 1) * group);
        // SAFETY: items have rows of their own, within the output's sizes.
        let out = unsafe { y.at(0, rows.start, 0) };
        let x = &x[rows.start * width..rows.end * width];
        dispatch_on(
            isa,
            Rows {
                x,
                weight,
                bias,
                eps,
                out,
            },
        );
    };
    let items = rows.div_ceil(group);
    if x.len() < PARALLEL_FROM {
        (0..items).for_each(item);
    } else {
        (0..items).into_par_iter().for_each(item);
    }
    // SAFETY: the items cover all rows.
    unsafe { y.take() }
}

/// Some rows.
struct Rows<'a> {
    x: &'a [f32],
    weight: &'a [f32],
    bias: &'a [f32],
    eps: f32,
    /// As many values as `x` has.
    out: *mut f32,
}

impl Kernel for Rows<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let width = self.weight.len();
        let whole = width - width % S::LANES;
        for (i, x) in self.x.chunks_exact(width).enumerate() {
            // SAFETY: vectors end at `whole`, below the width of the row, of the weights and of the
            // output row, which is inside the item's part of the output.
            unsafe {
                let out = self.out.add(i * width);
                let mean = sum::<S, false>(x, 0.0) / width as f32;
                let variance = sum::<S, true>(x, mean) / width as f32;
                let inverse = 1.0 / (variance + self.eps).sqrt();
                let (centre, factor) = (S::splat(mean), S::splat(inverse));
                for at in (0..whole).step_by(S::LANES) {
                    let away = S::sub(S::load(x.as_ptr().add(at)), centre);
                    let weight = S::load(self.weight.as_ptr().add(at));
                    let bias = S::load(self.bias.as_ptr().add(at));
                    S::store(out.add(at), S::fma(S::mul(away, factor), weight, bias));
                }
                for at in whole..width {
                    let value = (x[at] - mean) * inverse;
                    *out.add(at) = S::fma1(value, self.weight[at], self.bias[at]);
                }
            }
        }
    }
}

/// `sum x`, or `sum (x - mean)^2` with `SQUARES`.
///
/// # Safety
///
/// The instruction set is `S`'s.
#[inline(always)]
pub(super) unsafe fn sum<S: Simd, const SQUARES: bool>(x: &[f32], mean: f32) -> f32 {
    // SAFETY: all loads are below the length.
    unsafe {
        let centre = S::splat(mean);
        let mut sums = [S::zero(); SUMS];
        let mut at = 0;
        while at + SUMS * S::LANES <= x.len() {
            for (s, sum) in sums.iter_mut().enumerate() {
                let v = S::load(x.as_ptr().add(at + s * S::LANES));
                *sum = if SQUARES {
                    let away = S::sub(v, centre);
                    S::fma(away, away, *sum)
                } else {
                    S::add(v, *sum)
                };
            }
            at += SUMS * S::LANES;
        }
        let [a, b, c, d] = sums;
        let mut total = S::sum(S::add(S::add(a, b), S::add(c, d)));
        for &value in &x[at..] {
            let away = value - mean;
            total = if SQUARES {
                S::fma1(away, away, total)
            } else {
                total + value
            };
        }
        total
    }
}
