//! Gradients of the convolutions around Snake.

use burn::backend::Backend;
use burn::backend::autodiff::{
    Autodiff, NodeId,
    checkpoint::{base::Checkpointer, strategy::CheckpointStrategy},
    grads::Gradients,
    ops::{Backward, Ops, OpsKind},
};
use burn::backend::ops::FloatTensorOps;
use burn::backend::tensor::FloatTensor;

use crate::SpeechBackend;
use crate::backend::Optional;
use crate::portable::{
    ConvGradients, ConvInputs, conv_gradients, conv_options, conv_transpose_gradients,
};

/// Which convolution, with what is not a tensor.
#[derive(Debug, Clone, Copy)]
pub(super) enum Kind {
    /// Stride 1, zeros before and after.
    Conv {
        dilation: usize,
        padding: (usize, usize),
    },
    /// Shortening, zeros before and after.
    Strided {
        stride: usize,
        padding: (usize, usize),
    },
    /// Transposed, with the positions cut from the two ends.
    Transposed { stride: usize, trim: (usize, usize) },
}

impl Kind {
    fn forward<B: SpeechBackend>(
        self,
        x: FloatTensor<B>,
        alpha: Option<FloatTensor<B>>,
        weight: FloatTensor<B>,
        bias: FloatTensor<B>,
    ) -> FloatTensor<B> {
        let alpha = Optional::from_option(alpha);
        match self {
            Kind::Conv { dilation, padding } => {
                B::snake_conv1d(x, alpha, weight, bias, Optional::Absent, dilation, padding)
            }
            Kind::Strided { stride, padding } => {
                B::snake_strided_conv1d(x, alpha, weight, bias, stride, padding)
            }
            Kind::Transposed { stride, trim } => {
                B::snake_conv_transpose1d(x, alpha, weight, bias, stride, trim)
            }
        }
    }

    fn gradients<B: Backend>(self, dy: FloatTensor<B>, inputs: ConvInputs<B>) -> ConvGradients<B> {
        match self {
            Kind::Conv { dilation, padding } => {
                conv_gradients(dy, inputs, conv_options(1, dilation, padding))
            }
            Kind::Strided { stride, padding } => {
                conv_gradients(dy, inputs, conv_options(stride, 1, padding))
            }
            Kind::Transposed { stride, trim } => conv_transpose_gradients(dy, inputs, stride, trim),
        }
    }
}

/// Forward inputs that the backward pass needs, beside Snake's alpha.
#[derive(Debug, Clone)]
struct Kept<B: Backend> {
    x: FloatTensor<B>,
    weight: FloatTensor<B>,
    bias: FloatTensor<B>,
    kind: Kind,
}

fn register<B: Backend>(grads: &mut Gradients, node: Option<NodeId>, grad: Option<FloatTensor<B>>) {
    if let (Some(node), Some(grad)) = (node, grad) {
        grads.register::<B>(node, grad);
    }
}

#[derive(Debug)]
struct Conv;

/// Parents `[x, weight, bias]`.
impl<B: SpeechBackend> Backward<B, 3> for Conv {
    type State = Kept<B>;

    fn backward(
        self,
        ops: Ops<Self::State, 3>,
        grads: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let [x, weight, bias] = ops.parents.map(|parent| parent.map(|node| node.id));
        let dy = grads.consume::<B>(&ops.node);
        let kept = ops.state;
        let inputs = ConvInputs {
            x: kept.x,
            alpha: None,
            weight: kept.weight,
            bias: kept.bias,
            wanted: [x.is_some(), false, weight.is_some(), bias.is_some()],
        };
        let found = kept.kind.gradients::<B>(dy, inputs);
        register::<B>(grads, x, found.x);
        register::<B>(grads, weight, found.weight);
        register::<B>(grads, bias, found.bias);
    }
}

#[derive(Debug)]
struct SnakeConv;

/// Parents `[x, alpha, weight, bias]`.
impl<B: SpeechBackend> Backward<B, 4> for SnakeConv {
    type State = (Kept<B>, FloatTensor<B>);

    fn backward(
        self,
        ops: Ops<Self::State, 4>,
        grads: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let [x, alpha, weight, bias] = ops.parents.map(|parent| parent.map(|node| node.id));
        let dy = grads.consume::<B>(&ops.node);
        let (kept, kept_alpha) = ops.state;
        let inputs = ConvInputs {
            x: kept.x,
            alpha: Some(kept_alpha),
            weight: kept.weight,
            bias: kept.bias,
            wanted: [
                x.is_some(),
                alpha.is_some(),
                weight.is_some(),
                bias.is_some(),
            ],
        };
        let found = kept.kind.gradients::<B>(dy, inputs);
        register::<B>(grads, x, found.x);
        register::<B>(grads, alpha, found.alpha);
        register::<B>(grads, weight, found.weight);
        register::<B>(grads, bias, found.bias);
    }
}

type Tracked<B, C> = FloatTensor<Autodiff<B, C>>;

/// Runs the backend's own kernel forward and keeps its inputs for the backward pass. The residual is
/// added by Burn, which rounds as the fused kernel does.
pub(super) fn snake_conv<B: SpeechBackend, C: CheckpointStrategy>(
    x: Tracked<B, C>,
    alpha: Option<Tracked<B, C>>,
    weight: Tracked<B, C>,
    bias: Tracked<B, C>,
    residual: Option<Tracked<B, C>>,
    kind: Kind,
) -> Tracked<B, C> {
    let kept = Kept::<B> {
        x: x.primitive().clone(),
        weight: weight.primitive().clone(),
        bias: bias.primitive().clone(),
        kind,
    };
    let inner_alpha = alpha.as_ref().map(|alpha| alpha.primitive().clone());
    let output = kind.forward::<B>(
        kept.x.clone(),
        inner_alpha.clone(),
        kept.weight.clone(),
        kept.bias.clone(),
    );
    let y = match (alpha, inner_alpha) {
        (Some(alpha), Some(inner_alpha)) => {
            let parents = [x.node(), alpha.node(), weight.node(), bias.node()];
            match SnakeConv.prepare::<C>(parents).compute_bound().stateful() {
                OpsKind::Tracked(prep) => prep.finish((kept, inner_alpha), output),
                OpsKind::UnTracked(prep) => prep.finish(output),
            }
        }
        _ => {
            let parents = [x.node(), weight.node(), bias.node()];
            match Conv.prepare::<C>(parents).compute_bound().stateful() {
                OpsKind::Tracked(prep) => prep.finish(kept, output),
                OpsKind::UnTracked(prep) => prep.finish(output),
            }
        }
    };
    match residual {
        Some(residual) => Autodiff::<B, C>::float_add(y, residual),
        None => y,
    }
}
