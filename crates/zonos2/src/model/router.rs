//! Which experts a row uses.

use burn::module::{Module, Param};
use burn::tensor::Tensor;
use zonos_kernels::{PackedTensor, RouterOptions, RouterTensors, Routing, route};
use zonos_nn::{BiasedLinear, RmsNorm, Tap};

use crate::profile::timed;

/// Routes each row to its best `top_k` experts.
///
/// A state vector `s` a row is carried through depth, from one expert layer to the next, never
/// through time:
///
/// ```text
/// s_n    = W_down h + b_down + scale_n * s_(n-1)              (no last term in the first expert layer)
/// z      = gelu(W_2 gelu(W_0 rmsnorm(s_n) + b_0) + b_2)
/// p      = softmax(W_4 z)
/// chosen = top_k(p + sign * balancing_bias)                   (the bias shifts the choice alone)
/// weight = p[chosen]                                          (not renormalised)
/// ```
///
/// Gradients reach the router through `weight`; the choice and the balancing biases have none, the
/// biases being moved by the load of the experts in training. Source: Zyphra/ZONOS2
/// `models/zonos2.py`, router.
#[derive(Module, Debug)]
pub struct Router {
    pub(crate) down_proj: BiasedLinear,
    /// `[router_dim]`; absent in the first expert layer, which has no state below it
    pub(crate) router_states_scale: Option<Param<Tensor<1>>>,
    pub(crate) rmsnorm_eda: RmsNorm,
    /// The hidden layers `router_mlp.0` and `router_mlp.2`
    pub(crate) router_mlp: [BiasedLinear; 2],
    /// `router_mlp.4`, `[experts, router_dim]`
    pub(crate) router_mlp_out: PackedTensor<2>,
    /// `[experts]`; shifts the choice, never the weight of an expert
    pub(crate) balancing_biases: Param<Tensor<1>>,
    /// +1 for the legacy balancing strategy, -1 for the quantile one
    #[module(skip)]
    pub(crate) balancing_sign: f64,
    #[module(skip)]
    pub(crate) top_k: usize,
}

impl Router {
    /// `h [rows, dim]`, normalised; `state_below [rows, router_dim]`.
    pub(crate) fn forward(
        &self,
        h: Tensor<2>,
        state_below: Option<Tensor<2>>,
        n: usize,
        tap: &mut Tap,
    ) -> Routing {
        let down = timed!("router down", self.down_proj.product(h));
        let routing = timed!("router", {
            let [first, second] = &self.router_mlp;
            let hidden = |layer: &BiasedLinear| (layer.weight(), layer.bias());
            let weights = RouterTensors {
                bias: self.down_proj.bias(),
                scale: self.router_states_scale.as_ref().map(Param::val),
                norm: self.rmsnorm_eda.weight(),
                first: hidden(first),
                second: hidden(second),
                last: self.router_mlp_out.value(),
                balancing: self.balancing_biases.val(),
            };
            let options = RouterOptions {
                eps: self.rmsnorm_eda.eps() as f32,
                sign: self.balancing_sign as f32,
                top_k: self.top_k,
            };
            route(down, state_below, weights, options)
        });
        tap.record(format_args!("layer.{n}.router_state"), &routing.state);
        tap.record(format_args!("layer.{n}.router_prob"), &routing.probability);
        tap.record(format_args!("layer.{n}.expert"), &routing.expert);
        routing
    }
}
