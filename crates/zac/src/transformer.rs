//! Causal transformers with a window of the past.

use burn::module::{Module, Param};
use burn::tensor::{DType, Tensor};
use zonos_kernels::{Activation, ops};
use zonos_nn::{Dense, LayerNorm, Tap};

use crate::TransformerConfig;
use crate::rotary::Frequencies;

/// A matrix where the widths differ, layers, a matrix where the widths differ; no biases in any
/// matrix and no normalisation behind the last layer.
///
/// Source: Vaswani et al. 2017, arXiv:1706.03762, with the normalisation in front (Xiong et al. 2020,
/// arXiv:2002.04745) and a scale behind each part (Touvron et al. 2021, arXiv:2103.17239).
#[derive(Module, Debug)]
pub struct Transformer {
    /// `[d_model, input_dimension]`.
    pub input_proj: Option<Dense>,
    /// The layers.
    pub transformer: TransformerLayers,
    /// `[output_dimension, d_model]`.
    pub output_proj: Option<Dense>,
    #[module(skip)]
    heads: usize,
    #[module(skip)]
    context: usize,
    #[module(skip)]
    frequencies: Frequencies,
}

/// The layers of a [`Transformer`].
#[derive(Module, Debug)]
pub struct TransformerLayers {
    /// In order.
    pub layers: Vec<TransformerLayer>,
}

/// `x += s1 W_o attention(LN1(x))`, then `x += s2 W_2 gelu(W_1 LN2(x))`.
#[derive(Module, Debug)]
pub struct TransformerLayer {
    /// In front of the attention.
    pub norm1: LayerNorm,
    /// The attention's matrices.
    pub self_attn: SelfAttention,
    /// In front of the feed-forward part.
    pub norm2: LayerNorm,
    /// Its matrices.
    pub ffn: FeedForward,
    /// `s1`, where the file has it.
    pub layer_scale_1: Option<LayerScale>,
    /// `s2`, where the file has it.
    pub layer_scale_2: Option<LayerScale>,
}

/// The matrices of an attention.
#[derive(Module, Debug)]
pub struct SelfAttention {
    /// `[3 d, d]`: queries, keys, values; inside each, heads one after another.
    pub in_proj: Dense,
    /// `[d, d]`.
    pub out_proj: Dense,
}

/// The matrices of a feed-forward part, `ffn.0` and `ffn.2` in files.
#[derive(Module, Debug)]
pub struct FeedForward {
    /// `[dim_feedforward, d]`.
    pub linear1: Dense,
    /// `[d, dim_feedforward]`.
    pub linear2: Dense,
}

/// A factor for each channel.
#[derive(Module, Debug)]
pub struct LayerScale {
    /// `[d]`.
    pub scale: Param<Tensor<1>>,
}

/// Where a stream of a [`Transformer`] stands. Clones share memory until one of them goes on.
#[derive(Debug, Clone)]
pub struct TransformerState {
    /// Steps taken.
    position: usize,
    /// Of each layer.
    past: Vec<Past>,
}

/// The keys and values that later queries still see.
#[derive(Debug, Clone, Default)]
struct Past {
    /// Keys and values `[batch, capacity, heads, dim]`, those of steps `first..last` in use.
    buffers: Option<[Tensor<4>; 2]>,
    first: usize,
    last: usize,
}

impl Past {
    /// Puts new keys and values `[batch, rows, heads, dim]` behind at most `context - 1` past ones, and
    /// gives all that there are then.
    fn extend(&mut self, new: [Tensor<4>; 2], context: usize) -> [Tensor<4>; 2] {
        let [batch, rows, heads, dim] = new[0].dims();
        // A stream keeps values, not how they came about, which would never be let go of.
        let new = new.map(Tensor::detach);
        let kept = (self.last - self.first).min(context - 1);
        self.first = self.last - kept;
        let capacity = self.buffers.as_ref().map_or(0, |[k, _]| k.dims()[1]);
        let held = |buffer: &Tensor<4>, first: usize, last: usize| {
            buffer
                .clone()
                .slice([0..batch, first..last, 0..heads, 0..dim])
        };
        if self.last + rows <= capacity
            && let Some(buffers) = self.buffers.take()
        {
            // In place, unless a fork shares the memory.
            let place = [0..batch, self.last..self.last + rows, 0..heads, 0..dim];
            let [k, v] = buffers;
            let [new_k, new_v] = new;
            self.buffers = Some([
                k.slice_assign(place.clone(), new_k),
                v.slice_assign(place, new_v),
            ]);
        } else {
            // What is still seen moves to the front of a new buffer, with room for as much again, so
            // that a step is copied once on average however short the pieces are.
            let needed = kept + rows;
            let spare = (2 * context).min(2 * needed).saturating_sub(needed);
            let old = self.buffers.take();
            let moved = |i: usize, new: Tensor<4>| {
                let mut parts = Vec::with_capacity(3);
                if kept > 0
                    && let Some(buffers) = &old
                {
                    parts.push(held(&buffers[i], self.first, self.last));
                }
                let device = new.device();
                parts.push(new);
                if spare > 0 {
                    parts.push(Tensor::zeros(
                        [batch, spare, heads, dim],
                        (&device, DType::F32),
                    ));
                }
                if parts.len() == 1 {
                    parts.swap_remove(0)
                } else {
                    Tensor::cat(parts, 1)
                }
            };
            let [new_k, new_v] = new;
            self.buffers = Some([moved(0, new_k), moved(1, new_v)]);
            (self.first, self.last) = (0, kept);
        }
        self.last += rows;
        let buffers = self.buffers.as_ref().expect("just put there");
        [0, 1].map(|i| held(&buffers[i], self.first, self.last))
    }
}

impl TransformerLayer {
    /// `x [batch * rows, d]`.
    fn forward(
        &self,
        x: Tensor<2>,
        [batch, rows, heads]: [usize; 3],
        context: usize,
        frequencies: &Frequencies,
        position: usize,
        past: Option<&mut Past>,
    ) -> Tensor<2> {
        let width = x.dims()[1];
        let scale = |scale: &Option<LayerScale>| scale.as_ref().map(|s| s.scale.val());
        let qkv = self
            .self_attn
            .in_proj
            .forward(self.norm1.forward(x.clone()));
        let [q, k, v] = frequencies.split(qkv, [batch, rows, heads], position);
        let [k, v] = match past {
            Some(past) => past.extend([k, v], context),
            None => [k, v],
        };
        let seen = ops::window_attention(q, k, v, context).reshape([batch * rows, width]);
        let x = self
            .self_attn
            .out_proj
            .added(seen, scale(&self.layer_scale_1), x);
        let inner = self.norm2.forward(x.clone());
        let inner = self.ffn.linear1.activated(inner, Activation::Gelu);
        self.ffn.linear2.added(inner, scale(&self.layer_scale_2), x)
    }
}

impl Transformer {
    /// Puts the parts together; they must fit `config`.
    pub(crate) fn new(
        input_proj: Option<Dense>,
        layers: Vec<TransformerLayer>,
        output_proj: Option<Dense>,
        config: &TransformerConfig,
    ) -> Self {
        Self {
            input_proj,
            transformer: TransformerLayers { layers },
            output_proj,
            heads: config.num_heads,
            context: config.context,
            frequencies: Frequencies::new(config.d_model / config.num_heads, config.max_period),
        }
    }

    /// A stream at its start.
    pub fn begin(&self) -> TransformerState {
        TransformerState {
            position: 0,
            past: vec![Past::default(); self.transformer.layers.len()],
        }
    }

    /// `x [batch, time, input_dimension]` -> `[batch, time, output_dimension]`. With a state `x` goes on
    /// where the stream stands, and no gradient passes keys and values; without, it is a whole signal.
    /// `tap` sees `layerK` after layer K of
    /// those present, in front of the last matrix.
    pub fn forward(
        &self,
        x: Tensor<3>,
        state: Option<&mut TransformerState>,
        tap: &mut Tap,
    ) -> Tensor<3> {
        let [batch, rows, input] = x.dims();
        let mut x = x.reshape([batch * rows, input]);
        if let Some(matrix) = &self.input_proj {
            x = matrix.forward(x);
        }
        let width = x.dims()[1];
        let (position, mut past) = match state {
            Some(state) => {
                let position = state.position;
                state.position += rows;
                (position, Some(state.past.iter_mut()))
            }
            None => (0, None),
        };
        for (i, layer) in self.transformer.layers.iter().enumerate() {
            let past = past.as_mut().and_then(Iterator::next);
            x = layer.forward(
                x,
                [batch, rows, self.heads],
                self.context,
                &self.frequencies,
                position,
                past,
            );
            if tap.is_on() {
                tap.record(
                    format_args!("layer{i}"),
                    &x.clone().reshape([batch, rows, width]),
                );
            }
        }
        if let Some(matrix) = &self.output_proj {
            x = matrix.forward(x);
        }
        let width = x.dims()[1];
        x.reshape([batch, rows, width])
    }
}
