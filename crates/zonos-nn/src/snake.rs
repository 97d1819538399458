//! Snake activation.

use burn::module::{Module, Param};
use burn::tensor::Tensor;
use zonos_kernels::ops;

/// `x + sin(alpha x)^2 / (alpha + 1e-9)` with one learned `alpha` a channel.
///
/// Source: Ziyin et al. 2020, arXiv:2006.08195, with the epsilon of the Descript audio codec. Alpha
/// may be negative; where it is exactly 0 the channel passes unchanged.
#[derive(Module, Debug)]
pub struct Snake {
    /// `[1, channels, 1]`, as checkpoints store it.
    pub alpha: Param<Tensor<3>>,
}

impl Snake {
    /// Wraps `alpha [1, channels, 1]`, f32.
    pub fn new(alpha: Tensor<3>) -> Self {
        Self {
            alpha: Param::from_tensor(alpha),
        }
    }

    /// `[channels]`.
    pub fn alpha(&self) -> Tensor<1> {
        let alpha = self.alpha.val();
        let channels = alpha.dims()[1];
        alpha.reshape([channels])
    }

    /// `x [batch, channels, time]`, the shape of the result too.
    pub fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        ops::snake(x, self.alpha())
    }
}
