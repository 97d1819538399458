//! Which experts a row uses.

use burn::module::{Module, Param};
use burn::tensor::activation::softmax;
use burn::tensor::{DType, Int, Tensor};
use zonos_kernels::PackedTensor;
use zonos_nn::{BiasedLinear, RmsNorm, Tap, gelu};

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
    pub(crate) router_mlp: Vec<BiasedLinear>,
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

/// A routing decision.
#[derive(Debug)]
pub(crate) struct Routing {
    /// `[rows, top_k]`, best first
    pub(crate) expert: Tensor<2, Int>,
    /// `[rows, top_k]`: unbiased probabilities of the chosen experts, not renormalised
    pub(crate) weight: Tensor<2>,
    /// `[rows, router_dim]`, for the next expert layer
    pub(crate) state: Tensor<2>,
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
        let mut state = self.down_proj.forward(h);
        if let (Some(below), Some(scale)) = (state_below, &self.router_states_scale) {
            state = state + below * scale.val().unsqueeze();
        }
        tap.record(format_args!("layer.{n}.router_state"), &state);
        let mut z = self.rmsnorm_eda.forward(state.clone());
        for layer in &self.router_mlp {
            z = gelu(layer.forward(z));
        }
        let probability = softmax(self.router_mlp_out.linear(z), 1);
        tap.record(format_args!("layer.{n}.router_prob"), &probability);

        let bias = self.balancing_biases.val().detach() * self.balancing_sign;
        let score = probability.clone().detach() + bias.unsqueeze();
        let expert = best(score, self.top_k);
        tap.record(format_args!("layer.{n}.expert"), &expert);
        let weight = probability.gather(1, expert.clone());
        Routing {
            expert,
            weight,
            state,
        }
    }
}

/// Indices of the `k` largest of each row, best first, `[rows, k]`; the lowest index wins a tie.
fn best(score: Tensor<2>, k: usize) -> Tensor<2, Int> {
    if k == 1 {
        return score.argmax(1);
    }
    let [rows, experts] = score.dims();
    let device = score.device();
    let ids = Tensor::<1, Int>::arange(0..experts as i64, (&device, DType::I32))
        .unsqueeze::<2>()
        .expand([rows, experts]);
    let mut rest = score;
    let mut chosen = Vec::with_capacity(k);
    for _ in 0..k {
        let index = rest.clone().argmax(1);
        let taken = ids
            .clone()
            .equal(index.clone().cast(DType::I32).expand([rows, experts]));
        rest = rest.mask_fill(taken, f32::NEG_INFINITY);
        chosen.push(index);
    }
    Tensor::cat(chosen, 1)
}
