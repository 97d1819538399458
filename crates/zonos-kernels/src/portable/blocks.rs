//! Products with weights in quantised blocks: decoded on the host, then multiplied as usual.

use burn::backend::Backend;
use burn::backend::TensorMetadata;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::tensor::{DType, Shape, Slice, TensorData};
use rayon::prelude::*;
use zonos_gguf::GgmlType;
use zonos_gguf::blocks::dequantize_row;

use super::{linear, linear_grad_input, products_by_expert};
use crate::Activations;
use crate::activations::rounded;

/// Bytes that a thread decodes at a time.
const PIECE: usize = 1 << 16;

/// Values in a row of `bytes` bytes.
pub(crate) fn row_values(ggml_type: GgmlType, bytes: usize) -> usize {
    assert!(
        bytes.is_multiple_of(ggml_type.block_bytes()),
        "a row of {bytes} bytes is not whole blocks of {ggml_type}"
    );
    bytes / ggml_type.block_bytes() * ggml_type.block_values()
}

/// Decodes whole blocks, exactly.
pub(crate) fn decode(ggml_type: GgmlType, bytes: &[u8]) -> Vec<f32> {
    let mut values = vec![0.0; row_values(ggml_type, bytes.len())];
    let blocks = PIECE.div_ceil(ggml_type.block_bytes());
    let (from, to) = (
        blocks * ggml_type.block_bytes(),
        blocks * ggml_type.block_values(),
    );
    bytes
        .par_chunks(from)
        .zip(values.par_chunks_mut(to))
        .for_each(|(bytes, values)| {
            dequantize_row(ggml_type, bytes, values).expect("whole blocks of a decodable type");
        });
    values
}

/// The bytes of a tensor that holds one in each element.
fn bytes_of(data: TensorData) -> Vec<u8> {
    let data = if data.dtype() == DType::U8 {
        data
    } else {
        data.convert::<u8>()
    };
    data.try_into_vec().expect("converted to u8")
}

/// [`decode`] of a tensor's data `[.., row]`.
pub(crate) fn decode_data(ggml_type: GgmlType, data: TensorData) -> TensorData {
    let mut shape = data.shape().to_vec();
    let row = shape.last_mut().expect("at least one axis");
    *row = row_values(ggml_type, *row);
    let values = if shape.iter().product::<usize>() == 0 {
        Vec::new()
    } else {
        decode(ggml_type, &bytes_of(data))
    };
    TensorData::new(values, shape)
}

/// Decodes `blocks [.., row bytes]` to f32 `[.., values]`.
pub fn dequantize<B: Backend>(blocks: IntTensor<B>, ggml_type: GgmlType) -> FloatTensor<B> {
    let device = blocks.device();
    let data = burn::tensor::read_sync(B::int_into_data(blocks)).expect("reading blocks back");
    B::float_from_data(decode_data(ggml_type, data), &device)
}

/// The activations as the product sees them.
fn activated<B: Backend>(x: FloatTensor<B>, activations: Activations) -> FloatTensor<B> {
    match activations {
        Activations::Exact => x,
        Activations::EightBit => {
            let (device, shape) = (x.device(), x.shape());
            let data = burn::tensor::read_sync(B::float_into_data(x)).expect("reading rows back");
            let mut values: Vec<f32> = data
                .convert::<f32>()
                .try_into_vec()
                .expect("converted to f32");
            let width = shape[1];
            if width > 0 {
                values.chunks_exact_mut(width).for_each(rounded);
            }
            B::float_from_data(TensorData::new(values, shape), &device)
        }
    }
}

/// See [`SpeechBackend::block_linear`](crate::SpeechBackend::block_linear).
pub fn block_linear<B: Backend>(
    x: FloatTensor<B>,
    blocks: IntTensor<B>,
    ggml_type: GgmlType,
    activations: Activations,
) -> FloatTensor<B> {
    let x = activated::<B>(x, activations);
    linear::<B>(x, dequantize::<B>(blocks, ggml_type))
}

/// See [`SpeechBackend::block_linear_grad_input`](crate::SpeechBackend::block_linear_grad_input).
pub fn block_linear_grad_input<B: Backend>(
    dy: FloatTensor<B>,
    blocks: IntTensor<B>,
    ggml_type: GgmlType,
) -> FloatTensor<B> {
    linear_grad_input::<B>(dy, dequantize::<B>(blocks, ggml_type))
}

/// One expert's matrix, decoded.
fn matrix<B: Backend>(blocks: &IntTensor<B>, e: usize, ggml_type: GgmlType) -> FloatTensor<B> {
    let [_, out, row] = blocks.shape().dims::<3>();
    let all = |n: usize| Slice::from(0..n);
    let one = B::int_slice(blocks.clone(), &[Slice::from(e..e + 1), all(out), all(row)]);
    dequantize::<B>(B::int_reshape(one, Shape::new([out, row])), ggml_type)
}

/// See [`SpeechBackend::block_expert_linear`](crate::SpeechBackend::block_expert_linear).
pub fn block_expert_linear<B: Backend>(
    x: FloatTensor<B>,
    blocks: IntTensor<B>,
    expert: IntTensor<B>,
    ggml_type: GgmlType,
    activations: Activations,
) -> FloatTensor<B> {
    let x = activated::<B>(x, activations);
    let (experts, out) = (blocks.shape()[0], blocks.shape()[1]);
    products_by_expert::<B>(x, experts, out, expert, |x, e| {
        linear::<B>(x, matrix::<B>(&blocks, e, ggml_type))
    })
}

/// See
/// [`SpeechBackend::block_expert_linear_grad_input`](crate::SpeechBackend::block_expert_linear_grad_input).
pub fn block_expert_linear_grad_input<B: Backend>(
    dy: FloatTensor<B>,
    blocks: IntTensor<B>,
    expert: IntTensor<B>,
    ggml_type: GgmlType,
) -> FloatTensor<B> {
    let [experts, _, row] = blocks.shape().dims::<3>();
    products_by_expert::<B>(dy, experts, row_values(ggml_type, row), expert, |dy, e| {
        linear_grad_input::<B>(dy, matrix::<B>(&blocks, e, ggml_type))
    })
}
