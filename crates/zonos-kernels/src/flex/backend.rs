//! `SpeechBackend` for Flex.

use burn::backend::Flex;
use burn_flex::FlexTensor;

use super::simd::Isa;
use super::{attention, conv_ops, linear, statistics};
use crate::SpeechBackend;
use crate::backend::Optional;

impl SpeechBackend for Flex {
    fn packed_linear(x: FlexTensor, weight: FlexTensor) -> FlexTensor {
        linear::linear(Isa::best(), x, weight)
    }

    fn expert_linear(x: FlexTensor, weight: FlexTensor, expert: FlexTensor) -> FlexTensor {
        linear::expert_linear(Isa::best(), x, weight, expert)
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
}
