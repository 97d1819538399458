//! The SE-Res2Net block.

use burn::module::Module;
use burn::tensor::Tensor;
use burn::tensor::activation::{relu, sigmoid};

use super::{Conv, Tdnn};

/// `x + se_block(tdnn2(res2net_block(tdnn1(x))))`.
#[derive(Module, Debug)]
pub struct SeRes2Net {
    /// One tap.
    pub tdnn1: Tdnn,
    /// Dilated, group by group.
    pub res2net_block: Res2Net,
    /// One tap.
    pub tdnn2: Tdnn,
    /// Channel gates.
    pub se_block: SqueezeExcitation,
}

impl SeRes2Net {
    /// `x [batch, channels, frames]`, the shape of the result too.
    pub fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let h = self.tdnn1.forward(x.clone());
        let h = self.tdnn2.forward(self.res2net_block.forward(h));
        x + self.se_block.forward(h)
    }
}

/// Channels in equal groups: the first passes, the second goes through a convolution of its own, and
/// each further one through its own after the result before it was added.
///
/// Source: Gao et al. 2019, arXiv:1904.01169.
#[derive(Module, Debug)]
pub struct Res2Net {
    /// One a group but the first.
    pub blocks: Vec<Tdnn>,
}

impl Res2Net {
    /// `x [batch, channels, frames]`, the shape of the result too.
    pub fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let mut groups = x.chunk(self.blocks.len() + 1, 1);
        for (i, tdnn) in self.blocks.iter().enumerate() {
            let mut group = groups[i + 1].clone();
            if i > 0 {
                group = group + groups[i].clone();
            }
            groups[i + 1] = tdnn.forward(group);
        }
        Tensor::cat(groups, 1)
    }
}

/// Gates each channel by what all channels are on average: `h * sigmoid(conv2(relu(conv1(mean h))))`.
///
/// Source: Hu et al. 2018, arXiv:1709.01507.
#[derive(Module, Debug)]
pub struct SqueezeExcitation {
    /// One tap.
    pub conv1: Conv,
    /// One tap.
    pub conv2: Conv,
}

impl SqueezeExcitation {
    /// `h [batch, channels, frames]`, the shape of the result too.
    pub fn forward(&self, h: Tensor<3>) -> Tensor<3> {
        let [batch, channels, _] = h.dims();
        let mean = h.clone().mean_dim(2).reshape([batch, channels]);
        let gates = sigmoid(self.conv2.affine(relu(self.conv1.affine(mean))));
        h * gates.reshape([batch, channels, 1])
    }
}
