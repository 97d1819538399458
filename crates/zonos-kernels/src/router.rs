//! Routers of experts: what decides where a row goes.

use burn::backend::Dispatch;
use burn::tensor::{Int, Tensor};

use crate::SpeechBackend;
use crate::backend::{Optional, RouterWeights};

/// Numbers of a router.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RouterOptions {
    /// Epsilon of the norm.
    pub eps: f32,
    /// What the balancing shift is multiplied with.
    pub sign: f32,
    /// Experts a row.
    pub top_k: usize,
}

/// Weights of a router behind its projection down: vectors f32, matrices f32, f16 or bf16.
#[derive(Debug, Clone)]
pub struct RouterTensors {
    /// `[width]`, of the projection down
    pub bias: Tensor<1>,
    /// `[width]`, of the state from the router below
    pub scale: Option<Tensor<1>>,
    /// `[width]`, of the norm
    pub norm: Tensor<1>,
    /// `[hidden, width]` and `[hidden]`
    pub first: (Tensor<2>, Tensor<1>),
    /// `[hidden, hidden]` and `[hidden]`
    pub second: (Tensor<2>, Tensor<1>),
    /// `[experts, hidden]`
    pub last: Tensor<2>,
    /// `[experts]`; shifts the choice alone
    pub balancing: Tensor<1>,
}

/// A routing decision.
#[derive(Debug)]
pub struct Routing {
    /// `[rows, width]`, for the router above
    pub state: Tensor<2>,
    /// `[rows, experts]`
    pub probability: Tensor<2>,
    /// `[rows, top_k]`, best first
    pub expert: Tensor<2, Int>,
    /// `[rows, top_k]`: the chosen experts' probabilities, unshifted and not renormalised
    pub weight: Tensor<2>,
}

/// Where rows go: `down [rows, width]`, their product with the projection down, and `below [rows, width]`, the
/// state of the router below, which counts where there is a scale for it.
///
/// The equations stand at [`SpeechBackend::route`]. Gradients reach the weights through `probability` and
/// `weight`; the choice and the balancing have none.
///
/// # Panics
///
/// If `top_k` is 0 or more than there are experts, or sizes differ.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use zonos_kernels::{RouterOptions, RouterTensors, route};
/// let device = Device::flex();
/// let (vector, matrix) = (|| Tensor::<1>::ones([2], &device), || Tensor::<2>::eye(2, &device));
/// let weights = RouterTensors {
///     bias: vector(),
///     scale: None,
///     norm: vector(),
///     first: (matrix(), vector()),
///     second: (matrix(), vector()),
///     last: matrix(),
///     balancing: Tensor::from_data([0.0f32, -1.0], &device),
/// };
/// let options = RouterOptions { eps: 1e-5, sign: 1.0, top_k: 1 };
/// let down = Tensor::<2>::from_data([[0.0f32, 3.0]], &device);
/// let routing = route(down, None, weights, options);
/// // The second is the more probable one, and balanced away.
/// assert_eq!(routing.expert.into_scalar::<i32>(), 0);
/// assert!(routing.weight.into_scalar::<f32>() < 0.5);
/// ```
pub fn route(
    down: Tensor<2>,
    below: Option<Tensor<2>>,
    weights: RouterTensors,
    options: RouterOptions,
) -> Routing {
    let experts = weights.balancing.dims()[0];
    assert!(
        (1..=experts).contains(&options.top_k),
        "route: {} of {experts} experts",
        options.top_k
    );
    let RouterTensors {
        bias,
        scale,
        norm,
        first: (first, first_bias),
        second: (second, second_bias),
        last,
        balancing,
    } = weights;
    let weights = RouterWeights {
        bias: bias.into_dispatch(),
        norm: norm.into_dispatch(),
        first: first.into_dispatch(),
        first_bias: first_bias.into_dispatch(),
        second: second.into_dispatch(),
        second_bias: second_bias.into_dispatch(),
        last: last.into_dispatch(),
        balancing: balancing.into_dispatch(),
    };
    let (state, probability, expert, weight) = <Dispatch as SpeechBackend>::route(
        down.into_dispatch(),
        Optional::from_option(below.map(Tensor::into_dispatch)),
        Optional::from_option(scale.map(Tensor::into_dispatch)),
        weights,
        options,
    );
    Routing {
        state: Tensor::from_dispatch(state),
        probability: Tensor::from_dispatch(probability),
        expert: Tensor::from_dispatch(expert),
        weight: Tensor::from_dispatch(weight),
    }
}
