//! Cutting signals into overlapping frames, and adding such frames up.

use burn::tensor::Tensor;

use super::{fit, join, zeros};

/// Frames of `size` samples, `hop` apart: `x [batch, samples]` -> `[batch, count, size]`, zeros
/// beyond the end of `x`.
///
/// # Panics
/// If `size`, `hop` or `count` is 0.
pub fn frames(x: Tensor<2>, size: usize, hop: usize, count: usize) -> Tensor<3> {
    let [batch, _] = x.dims();
    // Whole hops side by side: hop k of frame t is hop t + k of the signal.
    let parts = size.div_ceil(hop);
    let hops = count + parts - 1;
    let hops = fit(x, 0, hops * hop).reshape([batch, hops, hop]);
    let columns = (0..parts).map(|k| {
        let width = hop.min(size - k * hop);
        hops.clone().slice([0..batch, k..k + count, 0..width])
    });
    join(columns.collect(), 2)
}

/// The sum of frames that stand `hop` samples apart: `x [batch, count, size]` -> `[batch, (count - 1)
/// hop + size]`. The transpose of [`frames`].
///
/// # Panics
/// If `hop` or an axis of `x` is 0.
pub fn overlap_add(x: Tensor<3>, hop: usize) -> Tensor<2> {
    let device = x.device();
    let [batch, count, size] = x.dims();
    let parts = size.div_ceil(hop);
    let length = (count + parts - 1) * hop;
    let mut sum: Option<Tensor<2>> = None;
    for k in 0..parts {
        let width = hop.min(size - k * hop);
        let mut part = x
            .clone()
            .slice([0..batch, 0..count, k * hop..k * hop + width]);
        if width < hop {
            part = Tensor::cat(vec![part, zeros([batch, count, hop - width], &device)], 2);
        }
        let part = fit(part.reshape([batch, count * hop]), k * hop, length);
        sum = Some(match sum {
            Some(sum) => sum + part,
            None => part,
        });
    }
    match sum {
        Some(sum) => sum.slice([0..batch, 0..(count - 1) * hop + size]),
        None => zeros([batch, 0], &device),
    }
}
