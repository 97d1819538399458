//! `SpeechBackend` for Flex.

use burn::backend::Flex;
use burn_flex::FlexTensor;

use super::simd::Isa;
use super::{
    attention, block_linear, cache, conv_ops, dense, depthwise, layer_norm, linear, query_tiles,
    router, statistics, step, weights,
};
use crate::backend::{Optional, RouterWeights};
use zonos_gguf::GgmlType;

use crate::{Activation, Activations, GateOrder, RouterOptions, SpeechBackend};

impl SpeechBackend for Flex {
    fn packed_linear(x: FlexTensor, weight: FlexTensor) -> FlexTensor {
        linear::linear(Isa::best(), x, weight)
    }

    fn joint_linear(
        x: FlexTensor,
        first: FlexTensor,
        second: FlexTensor,
        third: FlexTensor,
    ) -> (FlexTensor, FlexTensor, FlexTensor) {
        linear::joint_linear(Isa::best(), x, [first, second, third]).into()
    }

    fn expert_linear(x: FlexTensor, weight: FlexTensor, expert: FlexTensor) -> FlexTensor {
        linear::expert_linear(Isa::best(), x, weight, expert)
    }

    fn block_linear(
        x: FlexTensor,
        blocks: FlexTensor,
        ggml_type: GgmlType,
        activations: Activations,
    ) -> FlexTensor {
        block_linear::block_linear(Isa::best(), x, blocks, ggml_type, activations)
    }

    fn block_expert_linear(
        x: FlexTensor,
        blocks: FlexTensor,
        expert: FlexTensor,
        ggml_type: GgmlType,
        activations: Activations,
    ) -> FlexTensor {
        block_linear::block_expert_linear(Isa::best(), x, blocks, expert, ggml_type, activations)
    }

    fn block_expert_gate_up(
        x: FlexTensor,
        gate: FlexTensor,
        up: FlexTensor,
        expert: FlexTensor,
        ggml_types: [GgmlType; 2],
        activations: Activations,
    ) -> FlexTensor {
        let isa = Isa::best();
        block_linear::block_expert_gate_up(isa, x, gate, up, expert, ggml_types, activations)
    }

    fn decode_attention(
        q: FlexTensor,
        k: FlexTensor,
        v: FlexTensor,
        lengths: FlexTensor,
        _longest: usize,
    ) -> FlexTensor {
        attention::decode_attention(Isa::best(), q, k, v, lengths)
    }

    fn cache_append(
        cache: FlexTensor,
        new: FlexTensor,
        counts: Vec<usize>,
        past: Vec<usize>,
    ) -> FlexTensor {
        cache::cache_append(cache, new, counts, past)
    }

    fn route(
        down: FlexTensor,
        below: Optional<Self>,
        scale: Optional<Self>,
        weights: RouterWeights<Self>,
        options: RouterOptions,
    ) -> (FlexTensor, FlexTensor, FlexTensor, FlexTensor) {
        let (below, scale) = (below.into_option(), scale.into_option());
        router::route(Isa::best(), down, below, scale, weights, options)
    }

    fn snake(x: FlexTensor, alpha: FlexTensor) -> FlexTensor {
        conv_ops::snake(x, alpha)
    }

    fn snake_conv1d(
        x: FlexTensor,
        alpha: Optional<Self>,
        weight: FlexTensor,
        bias: FlexTensor,
        residual: Optional<Self>,
        dilation: usize,
        padding: (usize, usize),
    ) -> FlexTensor {
        let (alpha, residual) = (alpha.into_option(), residual.into_option());
        conv_ops::snake_conv1d(x, alpha, weight, bias, residual, dilation, padding)
    }

    fn snake_strided_conv1d(
        x: FlexTensor,
        alpha: Optional<Self>,
        weight: FlexTensor,
        bias: FlexTensor,
        stride: usize,
        padding: (usize, usize),
    ) -> FlexTensor {
        conv_ops::snake_strided_conv1d(x, alpha.into_option(), weight, bias, stride, padding)
    }

    fn snake_conv_transpose1d(
        x: FlexTensor,
        alpha: Optional<Self>,
        weight: FlexTensor,
        bias: FlexTensor,
        stride: usize,
        trim: (usize, usize),
    ) -> FlexTensor {
        conv_ops::snake_conv_transpose1d(x, alpha.into_option(), weight, bias, stride, trim)
    }

    fn reflect_conv1d(
        x: FlexTensor,
        weight: FlexTensor,
        bias: FlexTensor,
        dilation: usize,
        relu: bool,
    ) -> FlexTensor {
        conv_ops::reflect_conv1d(x, weight, bias, dilation, relu)
    }

    fn statistics_pooling(x: FlexTensor, scores: Optional<Self>, floor: f32) -> FlexTensor {
        statistics::statistics_pooling(Isa::best(), x, scores.into_option(), floor)
    }

    fn dense(
        x: FlexTensor,
        weight: FlexTensor,
        bias: Optional<Self>,
        activation: Activation,
        scale: Optional<Self>,
        residual: Optional<Self>,
    ) -> FlexTensor {
        let (bias, scale) = (bias.into_option(), scale.into_option());
        let residual = residual.into_option();
        dense::dense(Isa::best(), x, weight, bias, activation, scale, residual)
    }

    fn layer_norm(x: FlexTensor, weight: FlexTensor, bias: FlexTensor, eps: f32) -> FlexTensor {
        layer_norm::layer_norm(Isa::best(), x, weight, bias, eps)
    }

    fn rms_norm(x: FlexTensor, weight: Optional<Self>, eps: f32) -> FlexTensor {
        step::rms_norm(Isa::best(), x, weight.into_option(), eps)
    }

    fn norm_rotate(
        x: FlexTensor,
        scale: Optional<Self>,
        cos: FlexTensor,
        sin: FlexTensor,
        eps: f32,
    ) -> FlexTensor {
        step::norm_rotate(Isa::best(), x, scale.into_option(), cos, sin, eps)
    }

    fn sigmoid_gate(x: FlexTensor, gate: FlexTensor) -> FlexTensor {
        step::sigmoid_gate(x, gate)
    }

    fn silu_gate(both: FlexTensor, order: GateOrder) -> FlexTensor {
        step::silu_gate(Isa::best(), both, order)
    }

    fn to_f32(x: FlexTensor) -> FlexTensor {
        weights::to_f32(x)
    }

    fn soft_cap(x: FlexTensor, cap: f32) -> FlexTensor {
        step::soft_cap(Isa::best(), x, cap)
    }

    fn window_attention(q: FlexTensor, k: FlexTensor, v: FlexTensor, context: usize) -> FlexTensor {
        query_tiles::window_attention(Isa::best(), q, k, v, context)
    }

    fn relative_attention(
        q: FlexTensor,
        k: FlexTensor,
        v: FlexTensor,
        table: FlexTensor,
        left: usize,
        right: usize,
        mask: Optional<Self>,
    ) -> FlexTensor {
        let mask = mask.into_option();
        query_tiles::relative_attention(Isa::best(), q, k, v, table, left, right, mask)
    }

    fn depthwise_conv1d(x: FlexTensor, weight: FlexTensor, bias: Optional<Self>) -> FlexTensor {
        depthwise::depthwise_conv1d(Isa::best(), x, weight, bias.into_option())
    }
}
