//! Stacks of ConvNeXt blocks over time.

use burn::module::{Module, Param};
use burn::tensor::{DType, Tensor};
use zonos_kernels::{Activation, ops};
use zonos_nn::{Dense, LayerNorm};

use crate::{ConvNextConfig, Pointwise};

/// Epsilon of the normalisation inside a block.
pub(crate) const BLOCK_EPS: f32 = 1e-6;

/// An optional projection, blocks, an optional projection.
///
/// Source: Liu et al. 2022, arXiv:2201.03545, over time and, where causal, with all zeros in front.
#[derive(Module, Debug)]
pub struct ConvNextStack {
    /// To the blocks' width.
    pub proj_in: Option<Pointwise>,
    /// In order.
    pub blocks: Vec<ConvNextBlock>,
    /// From the blocks' width.
    pub proj_out: Option<Pointwise>,
}

/// `x + gamma pwconv2(gelu(pwconv1(norm(dwconv(x)))))`.
#[derive(Module, Debug)]
pub struct ConvNextBlock {
    /// Each channel by itself.
    pub dwconv: Depthwise,
    /// Epsilon 1e-6.
    pub norm: LayerNorm,
    /// `[intermediate_dim, dim]`.
    pub pwconv1: Dense,
    /// `[dim, intermediate_dim]`.
    pub pwconv2: Dense,
    /// `[dim]`, where the file has it.
    pub gamma: Option<Param<Tensor<1>>>,
    #[module(skip)]
    causal: bool,
}

/// A depthwise convolution.
#[derive(Module, Debug)]
pub struct Depthwise {
    /// `[channels, 1, taps]`.
    pub weight: Param<Tensor<3>>,
    /// `[channels]`.
    pub bias: Param<Tensor<1>>,
}

/// What the blocks of a causal stack saw last, `[batch, taps - 1, dim]` each; zeros where nothing.
#[derive(Debug, Clone, Default)]
pub struct ConvNextState {
    past: Vec<Option<Tensor<3>>>,
}

impl ConvNextBlock {
    /// Puts the parts together.
    pub(crate) fn new(
        dwconv: Depthwise,
        norm: LayerNorm,
        pwconv: [Dense; 2],
        gamma: Option<Tensor<1>>,
        config: &ConvNextConfig,
    ) -> Self {
        let [pwconv1, pwconv2] = pwconv;
        Self {
            dwconv,
            norm,
            pwconv1,
            pwconv2,
            gamma: gamma.map(Param::from_tensor),
            causal: config.causal,
        }
    }

    /// `x [batch, time, dim]`; `past` is what stood before it, of a causal block.
    fn forward(&self, x: Tensor<3>, past: Option<&mut Option<Tensor<3>>>) -> Tensor<3> {
        let [batch, time, dim] = x.dims();
        let (weight, bias) = (self.dwconv.weight.val(), self.dwconv.bias.val());
        let border = weight.dims()[2] - 1;
        let device = x.device();
        let zeros = |rows| Tensor::zeros([batch, rows, dim], (&device, DType::F32));
        let mut parts = Vec::with_capacity(3);
        let before = if self.causal { border } else { border / 2 };
        match past.as_ref().and_then(|past| past.as_ref()) {
            Some(past) => parts.push(past.clone()),
            None if before > 0 => parts.push(zeros(before)),
            None => {}
        }
        parts.push(x.clone());
        if border > before {
            parts.push(zeros(border - before));
        }
        let full = if parts.len() == 1 {
            parts.swap_remove(0)
        } else {
            Tensor::cat(parts, 1)
        };
        if let Some(past) = past
            && border > 0
        {
            // A copy: a view would keep all of the input alive.
            let tail = full.clone().narrow(1, time, border);
            *past = Some(Tensor::cat(vec![tail.detach()], 1));
        }
        let inner = ops::depthwise_conv1d(full, weight, Some(bias));
        let inner = self.norm.forward(inner.reshape([batch * time, dim]));
        let inner = self.pwconv1.activated(inner, Activation::Gelu);
        let gamma = self.gamma.as_ref().map(Param::val);
        self.pwconv2
            .added(inner, gamma, x.reshape([batch * time, dim]))
            .reshape([batch, time, dim])
    }
}

impl ConvNextStack {
    /// A stream at its start.
    pub fn begin(&self) -> ConvNextState {
        ConvNextState {
            past: vec![None; self.blocks.len()],
        }
    }

    /// `x [batch, time, input_dim]` -> `[batch, time, output_dim]`. With a state, which causal stacks
    /// alone can have, `x` goes on where the stream stands; without, it is a whole signal.
    pub fn forward(&self, x: Tensor<3>, state: Option<&mut ConvNextState>) -> Tensor<3> {
        let mut x = match &self.proj_in {
            Some(projection) => projection.forward(x),
            None => x,
        };
        let mut past = state.map(|state| state.past.iter_mut());
        for block in &self.blocks {
            x = block.forward(x, past.as_mut().and_then(Iterator::next));
        }
        match &self.proj_out {
            Some(projection) => projection.forward(x),
            None => x,
        }
    }
}
