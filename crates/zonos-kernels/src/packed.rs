//! Weight matrices kept as their file stores them.

use burn::module::{Module, Param, ParamId};
use burn::tensor::{DType, Tensor};

use crate::ops;

/// A weight matrix `[out, in]`, or a stack `[experts, out, in]`, in the dtype of its file: f32, f16
/// or bf16. Activations are f32; the product accumulates in f32, and the weights are never expanded
/// as a whole.
///
/// On a CPU device the tensor may be a view of a memory-mapped file. f32 weights train; half weights
/// are a frozen base through which gradients flow to the input.
#[derive(Module, Debug)]
pub struct PackedTensor<const D: usize> {
    weight: Param<Tensor<D>>,
}

impl<const D: usize> PackedTensor<D> {
    /// Wraps `weight` without copying it.
    pub fn new(weight: Tensor<D>) -> Self {
        let trains = weight.dtype() == DType::F32;
        let weight = Param::initialized(ParamId::new(), weight);
        Self {
            weight: if trains {
                weight.set_require_grad(true)
            } else {
                weight
            },
        }
    }

    /// The stored tensor, in its stored dtype.
    pub fn value(&self) -> Tensor<D> {
        self.weight.val()
    }

    /// Stored dtype.
    pub fn dtype(&self) -> DType {
        self.weight.val().dtype()
    }

    /// Stored shape.
    pub fn dims(&self) -> [usize; D] {
        self.weight.val().dims()
    }
}

impl PackedTensor<2> {
    /// `x [rows, in] -> x W^T [rows, out]`, f32.
    pub fn linear(&self, x: Tensor<2>) -> Tensor<2> {
        ops::linear(x, self.weight.val())
    }
}

impl PackedTensor<3> {
    /// `x [rows, in] -> x W^T [rows, a * out]` for a weight `[a, out, in]` that is one matrix cut
    /// in `a` parts, such as `wkv` and `w_in`.
    pub fn linear_flat(&self, x: Tensor<2>) -> Tensor<2> {
        let [a, out, inner] = self.dims();
        ops::linear(x, self.weight.val().reshape([a * out, inner]))
    }

    /// `y[i] = x[i] W[expert[i]]^T`: each row goes through the expert chosen for it.
    pub fn expert_linear(&self, x: Tensor<2>, expert: Tensor<1, burn::tensor::Int>) -> Tensor<2> {
        ops::expert_linear(x, self.weight.val(), expert)
    }
}
