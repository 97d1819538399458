//! Rotary position embedding over adjacent pairs.

use burn::module::Module;
use burn::tensor::{Device, Int, Tensor, TensorData};
use zonos_kernels::ops;

/// Cosines and sines of every position and pair.
///
/// Pair `i` of a head of width `D` turns by `position * base^(-2i/D)`; pairs are adjacent elements
/// `(2i, 2i+1)`. Angles are f32 products, as the model was trained.
///
/// Source: Su et al. 2021, arXiv:2104.09864.
#[derive(Module, Debug)]
pub struct Rotary {
    /// `[positions, D]`: the cosine of pair i at columns 2i and 2i+1.
    cos: Tensor<2>,
    /// `[positions, D]`: the sine of pair i, negative at column 2i, positive at 2i+1.
    sin: Tensor<2>,
}

impl Rotary {
    /// Tables for positions `0..positions` of heads of even width `head_dim`.
    pub fn new(positions: usize, head_dim: usize, base: f64, device: &Device) -> Self {
        let inverse: Vec<f32> = (0..head_dim / 2)
            .map(|i| {
                let exponent = (2 * i) as f32 / head_dim as f32;
                1.0 / (base.powf(f64::from(exponent)) as f32)
            })
            .collect();
        let mut cos = Vec::with_capacity(positions * head_dim);
        let mut sin = Vec::with_capacity(positions * head_dim);
        for position in 0..positions {
            for frequency in &inverse {
                let angle = f64::from(position as f32 * frequency);
                let (s, c) = angle.sin_cos();
                cos.extend([c as f32; 2]);
                sin.extend([-s as f32, s as f32]);
            }
        }
        let table = |values: Vec<f32>| {
            Tensor::from_data(TensorData::new(values, [positions, head_dim]), device)
        };
        Self {
            cos: table(cos),
            sin: table(sin),
        }
    }

    /// Number of positions in the tables.
    pub fn positions(&self) -> usize {
        self.cos.dims()[0]
    }

    /// The table rows of `positions [rows]`, to be applied to queries and keys of every layer.
    pub fn at(&self, positions: Tensor<1, Int>) -> RotaryRows {
        let rows = |table: &Tensor<2>| table.clone().select(0, positions.clone());
        RotaryRows {
            cos: rows(&self.cos),
            sin: rows(&self.sin),
        }
    }
}

/// Rotary factors of some rows, `[rows, D]`.
#[derive(Debug, Clone)]
pub struct RotaryRows {
    cos: Tensor<2>,
    sin: Tensor<2>,
}

impl RotaryRows {
    /// Turns `x [rows, heads, D]`.
    pub fn apply(&self, x: Tensor<3>) -> Tensor<3> {
        let [rows, heads, dim] = x.dims();
        let swapped = x
            .clone()
            .reshape([rows, heads, dim / 2, 2])
            .flip([3])
            .reshape([rows, heads, dim]);
        x * self.cos.clone().unsqueeze_dim::<3>(1)
            + swapped * self.sin.clone().unsqueeze_dim::<3>(1)
    }

    /// Turns the heads of `x [rows, heads, D]` after a root-mean-square norm of each, times `scale
    /// [heads]` where it is given.
    pub fn apply_normed(&self, x: Tensor<3>, scale: Option<Tensor<1>>, eps: f64) -> Tensor<3> {
        ops::norm_rotate(x, scale, self.cos.clone(), self.sin.clone(), eps as f32)
    }
}
