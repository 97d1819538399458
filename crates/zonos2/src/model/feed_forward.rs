//! Feed-forward blocks: dense, or a mixture of experts.

use burn::module::Module;
use burn::tensor::{Int, Tensor};
use zonos_kernels::{Activations, GateOrder, PackedTensor, expert_gate_up, ops};
use zonos_nn::Tap;

use super::Router;
use crate::profile::{drawn, timed};

/// Dense at both ends of the stack, experts between.
#[derive(Module, Debug)]
#[allow(clippy::large_enum_variant)] // a handful of layers; boxing would buy nothing
pub enum FeedForward {
    /// Every row through the same matrices.
    Dense(DenseFeedForward),
    /// Every row through its own experts.
    Experts(ExpertFeedForward),
}

impl FeedForward {
    /// See [`super::Backbone::with_activations`].
    pub(crate) fn with_activations(self, activations: Activations) -> Self {
        match self {
            Self::Dense(dense) => Self::Dense(DenseFeedForward {
                w_in: dense.w_in.with_activations(activations),
                w_out: dense.w_out.with_activations(activations),
            }),
            Self::Experts(ExpertFeedForward { experts, router }) => {
                let w13 = match experts.w13 {
                    GateUp::Interleaved(both) => {
                        GateUp::Interleaved(both.with_activations(activations))
                    }
                    GateUp::Split(split) => GateUp::Split(SplitGateUp {
                        gate: split.gate.with_activations(activations),
                        up: split.up.with_activations(activations),
                    }),
                };
                let w2 = experts.w2.with_activations(activations);
                Self::Experts(ExpertFeedForward {
                    experts: Experts { w13, w2 },
                    router,
                })
            }
        }
    }

    /// `h [rows, dim]`, normalised -> what is added to the residual stream, and the router state.
    pub(crate) fn forward(
        &self,
        h: Tensor<2>,
        router_state: Option<Tensor<2>>,
        n: usize,
        tap: &mut Tap,
    ) -> (Tensor<2>, Option<Tensor<2>>) {
        match self {
            Self::Dense(dense) => (dense.forward(h), None),
            Self::Experts(experts) => {
                let (y, state) = experts.forward(h, router_state, n, tap);
                (y, Some(state))
            }
        }
    }
}

/// `w_out (up(h) * silu(gate(h)))`.
#[derive(Module, Debug)]
pub struct DenseFeedForward {
    /// `[2, ffn, dim]`: up, gate
    pub(crate) w_in: PackedTensor<3>,
    /// `[dim, ffn]`
    pub(crate) w_out: PackedTensor<2>,
}

impl DenseFeedForward {
    /// `h [rows, dim] -> [rows, dim]`.
    pub fn forward(&self, h: Tensor<2>) -> Tensor<2> {
        let inner = timed!("dense up", {
            ops::silu_gate(self.w_in.linear_flat(h), GateOrder::UpThenGate)
        });
        timed!("dense down", self.w_out.linear(inner))
    }
}

/// The experts' matrices, stacked.
#[derive(Module, Debug)]
pub struct Experts {
    pub(crate) w13: GateUp,
    /// `[experts, dim, ffn]`
    pub(crate) w2: PackedTensor<3>,
}

/// The first half of the experts, in the form that the file has.
#[derive(Module, Debug)]
pub enum GateUp {
    /// `[experts, 2 * ffn, dim]`: even rows gate, odd rows up
    Interleaved(PackedTensor<3>),
    /// A stack for the gates, one for the rest.
    Split(SplitGateUp),
}

/// Both `[experts, ffn, dim]`.
#[derive(Module, Debug)]
pub struct SplitGateUp {
    /// Rows that go through the activation.
    pub(crate) gate: PackedTensor<3>,
    /// Rows that are gated.
    pub(crate) up: PackedTensor<3>,
}

impl GateUp {
    /// `x [rows, dim]`, `expert [rows]` -> `silu(gate_e x) * up_e x`, `[rows, ffn]`.
    fn forward(&self, x: Tensor<2>, expert: Tensor<1, Int>) -> Tensor<2> {
        match self {
            Self::Interleaved(both) => {
                ops::silu_gate(both.expert_linear(x, expert), GateOrder::Interleaved)
            }
            Self::Split(split) => expert_gate_up(&split.gate, &split.up, x, expert),
        }
    }
}

/// `sum over chosen e of weight_e * w2[e] (silu(gate_e h) * up_e h)`.
#[derive(Module, Debug)]
pub struct ExpertFeedForward {
    pub(crate) experts: Experts,
    pub(crate) router: Router,
}

impl ExpertFeedForward {
    fn forward(
        &self,
        h: Tensor<2>,
        router_state: Option<Tensor<2>>,
        n: usize,
        tap: &mut Tap,
    ) -> (Tensor<2>, Tensor<2>) {
        let routing = self.router.forward(h.clone(), router_state, n, tap);
        let [rows, dim] = h.dims();
        let top_k = routing.expert.dims()[1];
        // Row i of the input meets its j-th expert at row i * top_k + j.
        let expert = routing.expert.reshape([rows * top_k]);
        drawn(&expert);
        tap.watch(format_args!("layer.{n}.expert.rows"), &h);
        tap.watch(format_args!("layer.{n}.expert.chosen"), &expert);
        let x = if top_k == 1 {
            h
        } else {
            h.unsqueeze_dim::<3>(1)
                .repeat_dim(1, top_k)
                .reshape([rows * top_k, dim])
        };
        let inner = timed!("experts up", self.experts.w13.forward(x, expert.clone()));
        tap.watch(format_args!("layer.{n}.expert.inner"), &inner);
        let y = timed!("experts down", self.experts.w2.expert_linear(inner, expert));
        let y = timed!("weighting", {
            let y = y.reshape([rows, top_k, dim]) * routing.weight.unsqueeze_dim::<3>(2);
            if top_k == 1 {
                y.reshape([rows, dim])
            } else {
                y.sum_dim(1).reshape([rows, dim])
            }
        });
        (y, routing.state)
    }
}
