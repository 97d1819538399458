//! Long audio in lanes, and the teacher's frames under the codec's.

use std::ops::Range;

use burn::tensor::{DType, Int, Tensor, TensorData};
use serde::{Deserialize, Serialize};

/// A stretch of frames that is encoded by itself, with what came before it as context.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lane {
    /// Frames that are computed: those of the context and those that are kept.
    pub frames: Range<usize>,
    /// Frames of them that are context, whose codes are dropped.
    pub context: usize,
}

/// How audio is cut into lanes: `lane` new frames each, with up to `context` frames before them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LanePlan {
    /// New frames of a lane, at least 1.
    pub lane: usize,
    /// Frames of context before them; less where the audio begins.
    pub context: usize,
}

impl LanePlan {
    /// The lanes of `frames` frames, in order.
    ///
    /// ```
    /// use zonos_zac::LanePlan;
    ///
    /// let plan = LanePlan { lane: 300, context: 150 };
    /// let lanes: Vec<_> = plan.lanes(700).map(|l| (l.frames, l.context)).collect();
    /// assert_eq!(lanes, [(0..300, 0), (150..600, 150), (450..700, 150)]);
    /// ```
    pub fn lanes(self, frames: usize) -> impl ExactSizeIterator<Item = Lane> {
        let lane = self.lane.max(1);
        (0..frames.div_ceil(lane)).map(move |k| {
            let start = k * lane;
            let context = self.context.min(start);
            Lane {
                frames: start - context..frames.min(start + lane),
                context,
            }
        })
    }
}

/// How the teacher's frames, 50 a second, become the codec's, 15 a second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Align {
    /// Frame `i` of `F` is the mean of the teacher's `floor(i T / F) .. ceil((i + 1) T / F)`.
    #[default]
    AdaptiveAvgPool,
    /// Linear interpolation at the frames' centres.
    Linear,
    /// The teacher's frame `floor(i T / F)`.
    Nearest,
}

impl Align {
    /// `x [tokens, width]` -> `[frames, width]`. Differentiable. Both counts are above 0.
    ///
    /// Every frame is a weighted sum of at most `ceil(tokens / frames) + 1` neighbours. Positions are
    /// rounded as PyTorch rounds them, in f32 where they are not whole.
    ///
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// use zonos_zac::Align;
    ///
    /// let x = Tensor::<2>::from_data([[0.0f32], [3.0], [6.0]], &Device::flex());
    /// let y = Align::AdaptiveAvgPool.apply(x, 2);
    /// assert_eq!(y.into_data().try_to_vec::<f32>().unwrap(), [1.5, 4.5]);
    /// ```
    pub fn apply(self, x: Tensor<2>, frames: usize) -> Tensor<2> {
        let [tokens, _] = x.dims();
        let device = x.device();
        let columns = self.columns(tokens, frames);
        let mut sum: Option<Tensor<2>> = None;
        for (places, weights) in columns {
            let places = Tensor::<1, Int>::from_data(
                TensorData::new(places, [frames]),
                (&device, DType::I32),
            );
            let mut part = x.clone().select(0, places);
            if weights.iter().any(|&w| w != 1.0) {
                let weights = TensorData::new(weights, [frames, 1]);
                part = part * Tensor::<2>::from_data(weights, (&device, DType::F32));
            }
            sum = Some(match sum {
                Some(sum) => sum + part,
                None => part,
            });
        }
        sum.expect("every frame has a neighbour")
    }

    /// Neighbours of every frame, a column each: their places and weights, 0 where a frame has fewer.
    fn columns(self, tokens: usize, frames: usize) -> Vec<(Vec<i32>, Vec<f32>)> {
        let neighbours: Vec<Vec<(usize, f32)>> = match self {
            Self::AdaptiveAvgPool => (0..frames)
                .map(|i| {
                    let bin = i * tokens / frames..((i + 1) * tokens).div_ceil(frames);
                    let weight = 1.0 / bin.len() as f32;
                    bin.map(|at| (at, weight)).collect()
                })
                .collect(),
            Self::Linear => (0..frames)
                .map(|i| {
                    let scale = tokens as f32 / frames as f32;
                    let at = (scale * (i as f32 + 0.5) - 0.5).max(0.0);
                    let first = (at as usize).min(tokens - 1);
                    let second = (first + 1).min(tokens - 1);
                    let share = (at - first as f32).clamp(0.0, 1.0);
                    vec![(first, 1.0 - share), (second, share)]
                })
                .collect(),
            Self::Nearest => (0..frames)
                .map(|i| {
                    let scale = tokens as f32 / frames as f32;
                    vec![(((i as f32 * scale) as usize).min(tokens - 1), 1.0)]
                })
                .collect(),
        };
        let width = neighbours.iter().map(Vec::len).max().unwrap_or(0);
        let column = |c: usize| {
            let of = |n: &Vec<(usize, f32)>| n.get(c).copied().unwrap_or((n[0].0, 0.0));
            let (places, weights): (Vec<_>, Vec<_>) = neighbours
                .iter()
                .map(of)
                .map(|(at, weight)| (at as i32, weight))
                .unzip();
            (places, weights)
        };
        (0..width).map(column).collect()
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;
    use proptest::prelude::*;

    use super::*;

    fn aligned(align: Align, values: &[f32], frames: usize) -> Vec<f32> {
        let x = TensorData::new(values.to_vec(), [values.len(), 1]);
        let x = Tensor::<2>::from_data(x, &Device::flex());
        align.apply(x, frames).into_data().try_to_vec().unwrap()
    }

    proptest! {
        /// Every frame comes out once, in order, and context never reaches before the start.
        #[test]
        fn lanes_cover_every_frame_once(
            frames in 0usize..2000,
            lane in 1usize..400,
            context in 0usize..400,
        ) {
            let plan = LanePlan { lane, context };
            let mut next = 0;
            for Lane { frames: range, context: dropped } in plan.lanes(frames) {
                prop_assert_eq!(range.start + dropped, next);
                prop_assert_eq!(dropped, context.min(next));
                next = range.end;
                prop_assert!(range.len() <= lane + context);
            }
            prop_assert_eq!(next, frames);
        }

        /// A ramp is a ramp whatever the rule, and a constant stays what it is.
        #[test]
        fn weights_sum_to_one(tokens in 1usize..200, frames in 1usize..100) {
            for align in [Align::AdaptiveAvgPool, Align::Linear, Align::Nearest] {
                let y = aligned(align, &vec![2.0; tokens], frames);
                prop_assert_eq!(y.len(), frames);
                for v in y {
                    prop_assert!((v - 2.0).abs() < 1e-5);
                }
                let ramp: Vec<f32> = (0..tokens).map(|t| t as f32).collect();
                let y = aligned(align, &ramp, frames);
                prop_assert!(y.windows(2).all(|w| w[0] <= w[1] + 1e-4));
            }
        }
    }

    /// Numbers of `torch.nn.functional.adaptive_avg_pool1d` and `interpolate` on 0, 1, .., 9.
    #[test]
    fn rules_are_those_of_torch() {
        let x: Vec<f32> = (0..10).map(|t| t as f32).collect();
        assert_eq!(aligned(Align::AdaptiveAvgPool, &x, 3), [1.5, 4.5, 7.5]);
        assert_eq!(aligned(Align::Nearest, &x, 3), [0.0, 3.0, 6.0]);
        let linear = aligned(Align::Linear, &x, 3);
        for (y, expected) in linear.iter().zip([1.166_666_7, 4.5, 7.833_333_5]) {
            assert!((y - expected).abs() < 1e-6, "{linear:?}");
        }
        // More frames than tokens.
        assert_eq!(aligned(Align::Nearest, &x[..2], 4), [0.0, 0.0, 1.0, 1.0]);
        assert_eq!(
            aligned(Align::AdaptiveAvgPool, &x[..2], 4),
            [0.0, 0.0, 1.0, 1.0]
        );
        assert_eq!(aligned(Align::Linear, &x[..2], 4), [0.0, 0.25, 0.75, 1.0]);
    }
}
