//! Gradients of the operations: the forward pass runs the backend's own kernel, the backward pass is
//! written out.

use burn::backend::autodiff::{
    Autodiff,
    checkpoint::{base::Checkpointer, strategy::CheckpointStrategy},
    grads::Gradients,
    ops::{Backward, Ops, OpsKind},
};
use burn::backend::ops::FloatTensorOps;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, TensorMetadata};
use burn::tensor::{DType, Shape};

use crate::backend::Optional;
use zonos_gguf::GgmlType;

use crate::{Activations, SpeechBackend, portable};

mod conv;

impl<B: SpeechBackend, C: CheckpointStrategy> SpeechBackend for Autodiff<B, C> {
    fn packed_linear(x: FloatTensor<Self>, weight: FloatTensor<Self>) -> FloatTensor<Self> {
        #[derive(Debug)]
        struct Linear;
        impl<B: SpeechBackend> Backward<B, 2> for Linear {
            /// `(x, weight)`; `x` only where the weight wants a gradient.
            type State = (Option<FloatTensor<B>>, FloatTensor<B>);

            fn backward(
                self,
                ops: Ops<Self::State, 2>,
                grads: &mut Gradients,
                _checkpointer: &mut Checkpointer,
            ) {
                let [x_node, weight_node] = ops.parents;
                let dy = grads.consume::<B>(&ops.node);
                let (x, weight) = ops.state;
                if let (Some(node), Some(x)) = (weight_node, x) {
                    let dw = B::float_matmul(B::float_swap_dims(dy.clone(), 0, 1), x);
                    grads.register::<B>(node.id, dw);
                }
                if let Some(node) = x_node {
                    grads.register::<B>(node.id, B::packed_linear_grad_input(dy, weight));
                }
            }
        }
        let wants_x = trains::<B, C>(&weight);
        match Linear
            .prepare::<C>([x.node(), weight.node()])
            .compute_bound()
            .stateful()
        {
            OpsKind::Tracked(prep) => {
                let (x, weight) = (x.primitive().clone(), weight.primitive().clone());
                let y = B::packed_linear(x.clone(), weight.clone());
                prep.finish((wants_x.then_some(x), weight), y)
            }
            OpsKind::UnTracked(prep) => prep.finish(B::packed_linear(
                x.into_primitive(),
                weight.into_primitive(),
            )),
        }
    }

    fn expert_linear(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        expert: IntTensor<Self>,
    ) -> FloatTensor<Self> {
        #[derive(Debug)]
        struct ExpertLinear;
        impl<B: SpeechBackend> Backward<B, 2> for ExpertLinear {
            type State = (Option<FloatTensor<B>>, FloatTensor<B>, IntTensor<B>);

            fn backward(
                self,
                ops: Ops<Self::State, 2>,
                grads: &mut Gradients,
                _checkpointer: &mut Checkpointer,
            ) {
                let [x_node, weight_node] = ops.parents;
                let dy = grads.consume::<B>(&ops.node);
                let (x, weight, expert) = ops.state;
                if let (Some(node), Some(x)) = (weight_node, x) {
                    let experts = weight.shape()[0];
                    let dw = B::expert_linear_grad_weight(dy.clone(), x, expert.clone(), experts);
                    grads.register::<B>(node.id, dw);
                }
                if let Some(node) = x_node {
                    grads.register::<B>(node.id, B::expert_linear_grad_input(dy, weight, expert));
                }
            }
        }
        let wants_x = trains::<B, C>(&weight);
        match ExpertLinear
            .prepare::<C>([x.node(), weight.node()])
            .compute_bound()
            .stateful()
        {
            OpsKind::Tracked(prep) => {
                let (x, weight) = (x.primitive().clone(), weight.primitive().clone());
                let y = B::expert_linear(x.clone(), weight.clone(), expert.clone());
                prep.finish((wants_x.then_some(x), weight, expert), y)
            }
            OpsKind::UnTracked(prep) => prep.finish(B::expert_linear(
                x.into_primitive(),
                weight.into_primitive(),
                expert,
            )),
        }
    }

    fn block_linear(
        x: FloatTensor<Self>,
        blocks: IntTensor<Self>,
        ggml_type: GgmlType,
        activations: Activations,
    ) -> FloatTensor<Self> {
        #[derive(Debug)]
        struct BlockLinear;
        impl<B: SpeechBackend> Backward<B, 1> for BlockLinear {
            type State = (IntTensor<B>, GgmlType);

            fn backward(
                self,
                ops: Ops<Self::State, 1>,
                grads: &mut Gradients,
                _checkpointer: &mut Checkpointer,
            ) {
                let [x_node] = ops.parents;
                let dy = grads.consume::<B>(&ops.node);
                let (blocks, ggml_type) = ops.state;
                if let Some(node) = x_node {
                    let dx = B::block_linear_grad_input(dy, blocks, ggml_type);
                    grads.register::<B>(node.id, dx);
                }
            }
        }
        let y = B::block_linear(
            x.primitive().clone(),
            blocks.clone(),
            ggml_type,
            activations,
        );
        match BlockLinear
            .prepare::<C>([x.node()])
            .compute_bound()
            .stateful()
        {
            OpsKind::Tracked(prep) => prep.finish((blocks, ggml_type), y),
            OpsKind::UnTracked(prep) => prep.finish(y),
        }
    }

    fn block_expert_linear(
        x: FloatTensor<Self>,
        blocks: IntTensor<Self>,
        expert: IntTensor<Self>,
        ggml_type: GgmlType,
        activations: Activations,
    ) -> FloatTensor<Self> {
        #[derive(Debug)]
        struct BlockExpertLinear;
        impl<B: SpeechBackend> Backward<B, 1> for BlockExpertLinear {
            type State = (IntTensor<B>, IntTensor<B>, GgmlType);

            fn backward(
                self,
                ops: Ops<Self::State, 1>,
                grads: &mut Gradients,
                _checkpointer: &mut Checkpointer,
            ) {
                let [x_node] = ops.parents;
                let dy = grads.consume::<B>(&ops.node);
                let (blocks, expert, ggml_type) = ops.state;
                if let Some(node) = x_node {
                    let dx = B::block_expert_linear_grad_input(dy, blocks, expert, ggml_type);
                    grads.register::<B>(node.id, dx);
                }
            }
        }
        let y = B::block_expert_linear(
            x.primitive().clone(),
            blocks.clone(),
            expert.clone(),
            ggml_type,
            activations,
        );
        match BlockExpertLinear
            .prepare::<C>([x.node()])
            .compute_bound()
            .stateful()
        {
            OpsKind::Tracked(prep) => prep.finish((blocks, expert, ggml_type), y),
            OpsKind::UnTracked(prep) => prep.finish(y),
        }
    }

    fn snake(x: FloatTensor<Self>, alpha: FloatTensor<Self>) -> FloatTensor<Self> {
        #[derive(Debug)]
        struct Snake;
        impl<B: SpeechBackend> Backward<B, 2> for Snake {
            type State = (FloatTensor<B>, FloatTensor<B>);

            fn backward(
                self,
                ops: Ops<Self::State, 2>,
                grads: &mut Gradients,
                _checkpointer: &mut Checkpointer,
            ) {
                let [x_node, alpha_node] = ops.parents;
                let dy = grads.consume::<B>(&ops.node);
                let (x, alpha) = ops.state;
                let (dx, dalpha) = portable::snake_backward::<B>(dy, x, alpha);
                if let Some(node) = x_node {
                    grads.register::<B>(node.id, dx);
                }
                if let Some(node) = alpha_node {
                    grads.register::<B>(node.id, dalpha);
                }
            }
        }
        match Snake
            .prepare::<C>([x.node(), alpha.node()])
            .compute_bound()
            .stateful()
        {
            OpsKind::Tracked(prep) => {
                let (x, alpha) = (x.primitive().clone(), alpha.primitive().clone());
                let y = B::snake(x.clone(), alpha.clone());
                prep.finish((x, alpha), y)
            }
            OpsKind::UnTracked(prep) => {
                prep.finish(B::snake(x.into_primitive(), alpha.into_primitive()))
            }
        }
    }

    fn snake_conv1d(
        x: FloatTensor<Self>,
        alpha: Optional<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        residual: Optional<Self>,
        dilation: usize,
        padding: (usize, usize),
    ) -> FloatTensor<Self> {
        let shape = conv::Kind::Conv { dilation, padding };
        let (alpha, residual) = (alpha.into_option(), residual.into_option());
        conv::snake_conv::<B, C>(x, alpha, weight, bias, residual, shape)
    }

    fn snake_strided_conv1d(
        x: FloatTensor<Self>,
        alpha: Optional<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        stride: usize,
        padding: (usize, usize),
    ) -> FloatTensor<Self> {
        let shape = conv::Kind::Strided { stride, padding };
        conv::snake_conv::<B, C>(x, alpha.into_option(), weight, bias, None, shape)
    }

    fn snake_conv_transpose1d(
        x: FloatTensor<Self>,
        alpha: Optional<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        stride: usize,
        trim: (usize, usize),
    ) -> FloatTensor<Self> {
        let shape = conv::Kind::Transposed { stride, trim };
        conv::snake_conv::<B, C>(x, alpha.into_option(), weight, bias, None, shape)
    }

    fn depthwise_conv1d(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: Optional<Self>,
    ) -> FloatTensor<Self> {
        #[derive(Debug)]
        struct Depthwise;
        impl<B: SpeechBackend> Backward<B, 2> for Depthwise {
            type State = (FloatTensor<B>, FloatTensor<B>);

            fn backward(
                self,
                ops: Ops<Self::State, 2>,
                grads: &mut Gradients,
                _checkpointer: &mut Checkpointer,
            ) {
                let [x_node, weight_node] = ops.parents;
                let dy = grads.consume::<B>(&ops.node);
                let (x, weight) = ops.state;
                if let Some(node) = weight_node {
                    let dw = portable::depthwise_grad_weight::<B>(dy.clone(), x);
                    grads.register::<B>(node.id, dw);
                }
                if let Some(node) = x_node {
                    let (dy, turned) = portable::depthwise_transposed::<B>(dy, weight);
                    let dx = B::depthwise_conv1d(dy, turned, Optional::Absent);
                    grads.register::<B>(node.id, dx);
                }
            }
        }
        let (inner_x, inner_weight) = (x.primitive().clone(), weight.primitive().clone());
        let y = B::depthwise_conv1d(inner_x.clone(), inner_weight.clone(), Optional::Absent);
        let y = match Depthwise
            .prepare::<C>([x.node(), weight.node()])
            .compute_bound()
            .stateful()
        {
            OpsKind::Tracked(prep) => prep.finish((inner_x, inner_weight), y),
            OpsKind::UnTracked(prep) => prep.finish(y),
        };
        match bias.into_option() {
            Some(bias) => {
                let channels = bias.shape()[0];
                let bias = Self::float_reshape(bias, Shape::new([1, 1, channels]));
                Self::float_add(y, bias)
            }
            None => y,
        }
    }
}

/// Whether a weight's own gradient is wanted: half-precision weights are a frozen base.
fn trains<B: Backend, C: CheckpointStrategy>(weight: &FloatTensor<Autodiff<B, C>>) -> bool {
    weight.dtype() == DType::F32
}
