//! Weight rows in their stored dtype, as the kernels read them.

use burn::backend::TensorMetadata;
use burn::tensor::DType;
use burn_flex::FlexTensor;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use super::simd::Simd;

/// An element type that weights are stored in.
///
/// # Safety
///
/// `load` has the contract of [`Simd`].
pub(super) unsafe trait Element:
    Copy + Send + Sync + bytemuck::Pod + 'static
{
    /// Whether elements are f32 already.
    const IS_F32: bool = false;
    /// Whether elements are bfloat16.
    const IS_BF16: bool = false;
    /// Loads [`Simd::LANES`] elements, widened to f32.
    unsafe fn load<S: Simd>(p: *const Self) -> S::V;
    /// One element, widened to f32.
    fn widen(self) -> f32;
}

// SAFETY: forwards to the matching load of `Simd`.
unsafe impl Element for f32 {
    const IS_F32: bool = true;
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const Self) -> S::V {
        // SAFETY: the caller's contract.
        unsafe { S::load(p) }
    }
    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }
}

// SAFETY: forwards to the matching load of `Simd`; f16 has the layout of its u16 bits.
unsafe impl Element for f16 {
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const Self) -> S::V {
        // SAFETY: the caller's contract.
        unsafe { S::load_f16(p.cast()) }
    }
    #[inline(always)]
    fn widen(self) -> f32 {
        self.to_f32()
    }
}

// SAFETY: forwards to the matching load of `Simd`; bf16 has the layout of its u16 bits.
unsafe impl Element for bf16 {
    const IS_BF16: bool = true;
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const Self) -> S::V {
        // SAFETY: the caller's contract.
        unsafe { S::load_bf16(p.cast()) }
    }
    #[inline(always)]
    fn widen(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }
}

/// A contiguous view of a tensor's elements. Copies only a tensor that is not contiguous.
pub(super) fn contiguous(tensor: FlexTensor) -> FlexTensor {
    if tensor.is_contiguous() {
        tensor
    } else {
        tensor.to_contiguous()
    }
}

/// The elements of a contiguous tensor, in row-major order.
pub(super) fn elements<E: Element + burn::tensor::Element>(tensor: &FlexTensor) -> &[E] {
    let start = tensor.layout().start_offset();
    let len = tensor.layout().num_elements();
    &tensor.storage::<E>()[start..start + len]
}

/// Calls `$body` with `$w` bound to the elements of `$tensor` in its stored float dtype.
macro_rules! with_elements {
    ($tensor:expr, |$w:ident| $body:expr) => {
        match burn::backend::TensorMetadata::dtype(&$tensor) {
            burn::tensor::DType::F32 => {
                let $w = $crate::flex::weights::elements::<f32>(&$tensor);
                $body
            }
            burn::tensor::DType::F16 => {
                let $w = $crate::flex::weights::elements::<half::f16>(&$tensor);
                $body
            }
            burn::tensor::DType::BF16 => {
                let $w = $crate::flex::weights::elements::<half::bf16>(&$tensor);
                $body
            }
            other => panic!("weights are f32, f16 or bf16, not {other:?}"),
        }
    };
}
pub(super) use with_elements;

/// An f32 tensor of `values` with `shape`.
pub(super) fn f32_tensor<const D: usize>(values: Vec<f32>, shape: [usize; D]) -> FlexTensor {
    let data = burn::tensor::TensorData::new(values, shape);
    debug_assert_eq!(data.dtype(), DType::F32);
    FlexTensor::from_data(data)
}

/// See [`SpeechBackend::to_f32`](crate::SpeechBackend::to_f32).
pub(super) fn to_f32(x: FlexTensor) -> FlexTensor {
    let shape = x.shape();
    let widened = match x.dtype() {
        DType::F16 => elements::<f16>(&contiguous(x)).to_f32_vec(),
        DType::BF16 => elements::<bf16>(&contiguous(x)).to_f32_vec(),
        _ => return crate::portable::to_f32::<burn::backend::Flex>(x),
    };
    FlexTensor::from_data(burn::tensor::TensorData::new(widened, shape))
}

/// Whether all operands are f32, which is what the kernels compute in.
pub(super) fn all_f32<'a>(operands: impl IntoIterator<Item = &'a FlexTensor>) -> bool {
    operands
        .into_iter()
        .all(|operand| operand.dtype() == DType::F32)
}
