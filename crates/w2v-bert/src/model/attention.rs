//! Attention with embeddings of distances.

use burn::module::{Module, Param};
use burn::tensor::Tensor;
use zonos_kernels::ops;
use zonos_nn::Dense;

use super::Clip;
use crate::TeacherConfig;

/// Attention of every token to every other; a table of distances, the same for all heads, adds to the
/// keys. See [`ops::relative_attention`].
#[derive(Module, Debug)]
pub struct SelfAttention {
    /// `[hidden, hidden]`.
    pub linear_q: Dense,
    /// `[hidden, hidden]`.
    pub linear_k: Dense,
    /// `[hidden, hidden]`.
    pub linear_v: Dense,
    /// `[hidden, hidden]`.
    pub linear_out: Dense,
    /// Distances from the farthest to the left to the farthest to the right.
    pub distance_embedding: DistanceEmbedding,
}

/// A vector for each distance between a query and a key.
#[derive(Module, Debug)]
pub struct DistanceEmbedding {
    /// `[left + right + 1, hidden / heads]`, f32.
    pub weight: Param<Tensor<2>>,
}

impl SelfAttention {
    /// `h`, `x [tokens, hidden] -> x + attention(h)`.
    pub(crate) fn forward(
        &self,
        h: Tensor<2>,
        x: Tensor<2>,
        clip: &Clip,
        config: &TeacherConfig,
    ) -> Tensor<2> {
        let [tokens, hidden] = h.dims();
        let heads =
            |x: Tensor<2>| x.reshape([1, tokens, config.num_attention_heads, config.head()]);
        let attended = ops::relative_attention(
            heads(self.linear_q.forward(h.clone())),
            heads(self.linear_k.forward(h.clone())),
            heads(self.linear_v.forward(h)),
            self.distance_embedding.weight.val(),
            config.left_max_position_embeddings,
            config.right_max_position_embeddings,
            clip.seen.clone(),
        );
        self.linear_out
            .added(attended.reshape([tokens, hidden]), None, x)
    }
}
