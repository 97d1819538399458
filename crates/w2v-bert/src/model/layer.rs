//! One conformer layer.

use burn::module::Module;
use burn::tensor::Tensor;
use zonos_nn::{Activation, Dense, LayerNorm};

use super::{Clip, ConvModule, SelfAttention};
use crate::TeacherConfig;

/// Half a feed-forward block, attention, convolution, half a feed-forward block, each added to its
/// input, and a layer normalisation behind them.
///
/// Source: Gulati et al. 2020, arXiv:2005.08100, as in Wav2Vec2-BERT (Barrault et al. 2023,
/// arXiv:2312.05187).
#[derive(Module, Debug)]
pub struct Layer {
    /// Before `ffn1`.
    pub ffn1_layer_norm: LayerNorm,
    /// The first half.
    pub ffn1: FeedForward,
    /// Before `self_attn`.
    pub self_attn_layer_norm: LayerNorm,
    /// Every token sees every other.
    pub self_attn: SelfAttention,
    /// With its own normalisations.
    pub conv_module: ConvModule,
    /// Before `ffn2`.
    pub ffn2_layer_norm: LayerNorm,
    /// The second half.
    pub ffn2: FeedForward,
    /// Of the result.
    pub final_layer_norm: LayerNorm,
}

impl Layer {
    /// `x [tokens, hidden]`, the shape of the result too.
    pub(crate) fn forward(&self, x: Tensor<2>, clip: &Clip, config: &TeacherConfig) -> Tensor<2> {
        let h = self.ffn1_layer_norm.forward(x.clone());
        let x = self.ffn1.half(h, x, clip);
        let h = self.self_attn_layer_norm.forward(x.clone());
        let x = self.self_attn.forward(h, x, clip, config);
        let x = self.conv_module.forward(x, clip);
        let h = self.ffn2_layer_norm.forward(x.clone());
        let x = self.ffn2.half(h, x, clip);
        self.final_layer_norm.forward(x)
    }
}

/// A dense layer to a larger width, SiLU, and one back.
#[derive(Module, Debug)]
pub struct FeedForward {
    /// `[intermediate, hidden]`.
    pub intermediate_dense: Dense,
    /// `[hidden, intermediate]`.
    pub output_dense: Dense,
}

impl FeedForward {
    /// `h`, `x [tokens, hidden] -> x + block(h) / 2`.
    fn half(&self, h: Tensor<2>, x: Tensor<2>, clip: &Clip) -> Tensor<2> {
        let h = self.intermediate_dense.activated(h, Activation::Silu);
        self.output_dense.added(h, Some(clip.half.clone()), x)
    }
}
