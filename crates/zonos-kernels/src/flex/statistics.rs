//! Weighted mean and deviation of every channel, each row of values visited while it is in cache.

use burn::backend::Flex;
use burn::tensor::DType;
use burn_flex::FlexTensor;
use rayon::prelude::*;

use super::conv::{PARALLEL_FROM, return_scratch, take_scratch};
use super::math::exp1;
use super::rows::{Rows, contiguous_time};
use super::simd::{Isa, Kernel, Simd, dispatch_on};
use super::weights::f32_tensor;
use crate::portable;

/// Independent sums along a row, to hide the latency of the multiply-add.
const SUMS: usize = 4;
/// Channels a work item.
const CHANNELS: usize = 16;

/// See [`SpeechBackend::statistics_pooling`](crate::SpeechBackend::statistics_pooling).
pub(super) fn statistics_pooling(
    isa: Isa,
    x: FlexTensor,
    scores: Option<FlexTensor>,
    floor: f32,
) -> FlexTensor {
    let f32s = |tensor: &FlexTensor| tensor.dtype() == DType::F32;
    if !f32s(&x) || !scores.as_ref().is_none_or(f32s) {
        return portable::statistics_pooling::<Flex>(x, scores, floor);
    }
    let (x, scores) = (contiguous_time(x), scores.map(contiguous_time));
    let (rows, scores) = (Rows::of(&x), scores.as_ref().map(Rows::of));
    let (batch, channels) = (rows.batch, rows.channels);
    let values = pool(isa, rows, scores, floor);
    f32_tensor(values, [batch, 2 * channels])
}

/// `[batch, 2 channels]`.
pub(super) fn pool(isa: Isa, x: Rows<'_>, scores: Option<Rows<'_>>, floor: f32) -> Vec<f32> {
    let (batch, channels) = (x.batch, x.channels);
    assert!(scores.is_none_or(|s| (s.batch, s.channels, s.time) == (batch, channels, x.time)));
    let pooled = |index: usize| {
        let (b, c) = (index / channels, index % channels);
        let scores = scores.map(|scores| scores.row(b, c));
        dispatch_on(
            isa,
            Row {
                x: x.row(b, c),
                scores,
                floor,
            },
        )
    };
    let rows = batch * channels;
    let found: Vec<(f32, f32)> = if rows * x.time < PARALLEL_FROM {
        (0..rows).map(pooled).collect()
    } else {
        let rows = (0..rows).into_par_iter().with_min_len(CHANNELS);
        rows.map(pooled).collect()
    };
    let mut values = Vec::with_capacity(2 * rows);
    for channels in found.chunks(channels.max(1)) {
        values.extend(channels.iter().map(|(mean, _)| mean));
        values.extend(channels.iter().map(|(_, deviation)| deviation));
    }
    values
}

/// One channel: mean and deviation.
struct Row<'a> {
    x: &'a [f32],
    scores: Option<&'a [f32]>,
    floor: f32,
}

impl Kernel for Row<'_> {
    type Output = (f32, f32);

    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> (f32, f32) {
        let len = self.x.len();
        let mut scratch = take_scratch(len);
        let weights = &mut scratch[..len];
        match self.scores {
            // SAFETY: the instruction set is `S`'s.
            Some(scores) => unsafe { exponentials::<S>(scores, weights) },
            None => weights.fill(1.0),
        }
        // SAFETY: as above; both rows hold `len` values.
        let (mean, variance) = unsafe {
            let total = weighted_sum::<S, false>(weights, weights);
            let mean = weighted_sum::<S, true>(weights, self.x) / total;
            let spread = weighted_squares::<S>(weights, self.x, mean);
            (mean, spread / total)
        };
        return_scratch(scratch);
        // Written so that a NaN stays one.
        let variance = if variance < self.floor {
            self.floor
        } else {
            variance
        };
        (mean, variance.sqrt())
    }
}

/// `weights = exp(scores - max(scores))`. A NaN among the scores makes some weight NaN.
///
/// # Safety
///
/// The instruction set is `S`'s.
#[inline(always)]
unsafe fn exponentials<S: Simd>(scores: &[f32], weights: &mut [f32]) {
    let mut largest = f32::NEG_INFINITY;
    for &score in scores {
        largest = if score > largest { score } else { largest };
    }
    for (weight, &score) in weights.iter_mut().zip(scores) {
        // SAFETY: the instruction set is `S`'s.
        *weight = unsafe { exp1::<S>(score - largest) };
    }
}

/// `sum w x`, or `sum w` without `PRODUCT`.
///
/// # Safety
///
/// The instruction set is `S`'s, and the rows are equally long.
#[inline(always)]
unsafe fn weighted_sum<S: Simd, const PRODUCT: bool>(w: &[f32], x: &[f32]) -> f32 {
    let len = w.len();
    // SAFETY: all loads are below `len`.
    unsafe {
        let one = S::splat(1.0);
        let mut sums = [S::zero(); SUMS];
        let mut at = 0;
        while at + SUMS * S::LANES <= len {
            for (s, sum) in sums.iter_mut().enumerate() {
                let i = at + s * S::LANES;
                let factor = if PRODUCT {
                    S::load(x.as_ptr().add(i))
                } else {
                    one
                };
                *sum = S::fma(S::load(w.as_ptr().add(i)), factor, *sum);
            }
            at += SUMS * S::LANES;
        }
        let [a, b, c, d] = sums;
        let mut sum = S::sum(S::add(S::add(a, b), S::add(c, d)));
        for i in at..len {
            sum = S::fma1(w[i], if PRODUCT { x[i] } else { 1.0 }, sum);
        }
        sum
    }
}

/// `sum w (x - mean)^2`.
///
/// # Safety
///
/// The instruction set is `S`'s, and the rows are equally long.
#[inline(always)]
unsafe fn weighted_squares<S: Simd>(w: &[f32], x: &[f32], mean: f32) -> f32 {
    let len = w.len();
    // SAFETY: all loads are below `len`.
    unsafe {
        let centre = S::splat(mean);
        let mut sums = [S::zero(); SUMS];
        let mut at = 0;
        while at + SUMS * S::LANES <= len {
            for (s, sum) in sums.iter_mut().enumerate() {
                let i = at + s * S::LANES;
                let away = S::sub(S::load(x.as_ptr().add(i)), centre);
                let part = S::mul(S::load(w.as_ptr().add(i)), away);
                *sum = S::fma(part, away, *sum);
            }
            at += SUMS * S::LANES;
        }
        let [a, b, c, d] = sums;
        let mut sum = S::sum(S::add(S::add(a, b), S::add(c, d)));
        for i in at..len {
            let away = x[i] - mean;
            sum = S::fma1(w[i] * away, away, sum);
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::TensorData;
    use proptest::prelude::*;

    use super::super::conv_tests::values;
    use super::*;

    fn portable(x: &[f32], scores: Option<&[f32]>, shape: [usize; 3], floor: f32) -> Vec<f32> {
        let tensor = |v: &[f32]| FlexTensor::from_data(TensorData::new(v.to_vec(), shape));
        let pooled = portable::statistics_pooling::<Flex>(tensor(x), scores.map(tensor), floor);
        pooled.into_data().try_to_vec().expect("f32 tensor")
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn pooling_equals_the_portable_one(
            batch in 1usize..3,
            channels in 1usize..40,
            time in 1usize..200,
            weighted in any::<bool>(),
            reach in 0.1f32..60.0,
            seed in any::<u64>(),
        ) {
            let x = values(seed, batch * channels * time);
            let scores: Vec<f32> = values(seed ^ 1, x.len()).iter().map(|s| s * reach).collect();
            let scores = weighted.then_some(&scores[..]);
            let shape = [batch, channels, time];
            let expected = portable(&x, scores, shape, 1e-12);
            for isa in Isa::available() {
                let rows = Rows::dense(&x, batch, channels, time);
                let scores = scores.map(|s| Rows::dense(s, batch, channels, time));
                for (ours, portable) in pool(isa, rows, scores, 1e-12).iter().zip(&expected) {
                    // A deviation is the root of a small sum where few frames count.
                    let bound = 2e-6 + 2e-6 * portable.abs();
                    prop_assert!(
                        (ours - portable).abs() <= bound,
                        "{isa:?}: {ours} against {portable}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_constant_channel_has_the_smallest_deviation_and_a_nan_stays() {
        let x = [
            vec![0.7f32; 50],
            vec![0.0; 50],
            [vec![f32::NAN], vec![1.0; 49]].concat(),
        ]
        .concat();
        for isa in Isa::available() {
            let pooled = pool(isa, Rows::dense(&x, 1, 3, 50), None, 1e-12);
            assert!(
                (pooled[0] - 0.7).abs() < 1e-6 && pooled[1] == 0.0,
                "{isa:?}"
            );
            assert_eq!(pooled[3..5], [1e-6; 2], "{isa:?}");
            assert!(pooled[2].is_nan() && pooled[5].is_nan(), "{isa:?}");
            let scores = Rows::dense(&x, 1, 3, 50);
            let pooled = pool(isa, Rows::dense(&[1.0; 150], 1, 3, 50), Some(scores), 1e-12);
            assert!(pooled[2].is_nan() && !pooled[1].is_nan(), "{isa:?}");
        }
    }
}
