//! One transformer layer.

use burn::module::Module;
use burn::tensor::Tensor;
use zonos_kernels::Activations;
use zonos_nn::{RmsNorm, RotaryRows, Tap};

use super::{Attention, FeedForward};
use crate::cache::LayerCache;
use crate::profile::timed;
use crate::segment::Packed;

/// `x += attention(norm(x)); x += feed_forward(norm(x))`.
#[derive(Module, Debug)]
pub struct Layer {
    pub(crate) attention: Attention,
    pub(crate) attention_norm: RmsNorm,
    pub(crate) ffn_norm: RmsNorm,
    pub(crate) feed_forward: FeedForward,
}

impl Layer {
    /// See [`super::Backbone::with_activations`].
    pub(crate) fn with_activations(mut self, activations: Activations) -> Self {
        self.attention = self.attention.with_activations(activations);
        self.feed_forward = self.feed_forward.with_activations(activations);
        self
    }

    /// `x [rows, dim]`; `router_state [rows, router_dim]` of the expert layer below, if any. Returns
    /// the new residual stream and the router state for the expert layer above.
    #[allow(clippy::too_many_arguments)] // one call site; a struct would only rename the arguments
    pub(crate) fn forward(
        &self,
        x: Tensor<2>,
        router_state: Option<Tensor<2>>,
        packed: &Packed,
        rotary: &RotaryRows,
        cache: Option<LayerCache<'_>>,
        n: usize,
        tap: &mut Tap,
    ) -> (Tensor<2>, Option<Tensor<2>>) {
        let h = timed!("norms", self.attention_norm.forward(x.clone()));
        let attended = self.attention.forward(h, packed, rotary, cache);
        tap.record(format_args!("layer.{n}.attn"), &attended);
        let x = timed!("residual", x + attended);

        let h = timed!("norms", self.ffn_norm.forward(x.clone()));
        let (fed, router_state) = self.feed_forward.forward(h, router_state, n, tap);
        tap.record(format_args!("layer.{n}.ffn"), &fed);
        (timed!("residual", x + fed), router_state)
    }
}
