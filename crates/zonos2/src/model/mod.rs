//! The network, field by field as the checkpoint names it.
//!
//! Rows of all sequences are packed one after another, `[rows, ..]`; only attention looks at
//! sequence boundaries. Equations: Zyphra/ZONOS2 `models/zonos2.py`.

mod attention;
mod embedder;
mod feed_forward;
mod layer;
mod router;

pub use attention::Attention;
pub(crate) use attention::QK_EPS;
pub use embedder::{MultiEmbedding, SpeakerProjection};
pub use feed_forward::{
    DenseFeedForward, ExpertFeedForward, Experts, FeedForward, GateUp, SplitGateUp,
};
pub use layer::Layer;
pub use router::Router;

use burn::module::Module;
use burn::tensor::Tensor;
use zonos_kernels::{Activations, PackedTensor, ops};
use zonos_nn::{RmsNorm, Rotary, Tap, rms_norm};

use crate::cache::KvCache;
use crate::profile::timed;
use crate::segment::Packed;

/// The ZONOS2 backbone: embeddings, voice projection, layers, output head.
#[derive(Module, Debug)]
pub struct Backbone {
    pub(crate) multi_embedder: MultiEmbedding,
    pub(crate) speaker: Option<SpeakerProjection>,
    pub(crate) layers: Vec<Layer>,
    pub(crate) out_norm: RmsNorm,
    pub(crate) multi_output: PackedTensor<2>,
    pub(crate) rotary: Rotary,
    #[module(skip)]
    pub(crate) norm_eps: f64,
    #[module(skip)]
    pub(crate) softcap: Option<f64>,
    #[module(skip)]
    pub(crate) n_codebooks: usize,
}

impl Backbone {
    /// The same network; its quantised weights meet activations as `activations` says.
    #[must_use]
    pub fn with_activations(mut self, activations: Activations) -> Self {
        self.multi_output = self.multi_output.with_activations(activations);
        let layers = self.layers.into_iter();
        self.layers = layers
            .map(|layer| layer.with_activations(activations))
            .collect();
        self
    }

    /// Hidden states after the output norm, `[rows, dim]`, of packed rows.
    ///
    /// With a cache, new keys and values are appended to it and, where it already holds positions,
    /// each sequence brings exactly one row.
    pub fn hidden(
        &self,
        packed: &Packed,
        mut cache: Option<&mut KvCache>,
        tap: &mut Tap,
    ) -> Tensor<2> {
        tap.record("input_ids", &packed.ids);
        let mut x = timed!("embedding", self.multi_embedder.forward(packed.ids.clone()));
        for (row, vector) in &packed.speakers {
            let speaker = self
                .speaker
                .as_ref()
                .expect("sequences with a voice are refused for models without one");
            let projected = speaker.forward(vector.clone());
            tap.record("speaker_projected", &projected);
            let width = projected.dims()[1];
            x = x.slice_assign([*row..*row + 1, 0..width], projected);
        }
        tap.record("embedding", &x);
        let mut x = timed!("norms", rms_norm(x, self.norm_eps));
        tap.record("emb_norm", &x);

        let rotary = timed!("rotation", self.rotary.at(packed.positions.clone()));
        let mut router_state = None;
        for (n, layer) in self.layers.iter().enumerate() {
            let cache = cache.as_deref_mut().map(|cache| cache.layer(n));
            (x, router_state) = layer.forward(x, router_state, packed, &rotary, cache, n, tap);
            tap.record(format_args!("layer.{n}.out"), &x);
        }
        if let Some(cache) = cache {
            cache.advance(packed);
        }
        let x = timed!("norms", self.out_norm.forward(x));
        tap.record("final_hidden", &x);
        x
    }

    /// `hidden [rows, dim] -> logits [rows, codebooks, entries]`, softly capped:
    /// `cap * tanh(raw / cap)`.
    pub fn logits(&self, hidden: Tensor<2>) -> Tensor<3> {
        let rows = hidden.dims()[0];
        let raw = timed!("head", self.multi_output.linear(hidden));
        let capped = match self.softcap {
            Some(cap) => timed!("soft cap", ops::soft_cap(raw, cap as f32)),
            None => raw,
        };
        let entries = capped.dims()[1] / self.n_codebooks;
        capped.reshape([rows, self.n_codebooks, entries])
    }
}
