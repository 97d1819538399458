//! Linear layers with a bias.

use burn::module::{Module, Param};
use burn::tensor::{Int, Tensor};
use zonos_kernels::{PackedTensor, ops};

/// `y = x W^T + b`, the weight kept in its file's dtype, the bias f32.
#[derive(Module, Debug)]
pub struct BiasedLinear {
    weight: PackedTensor<2>,
    bias: Param<Tensor<1>>,
}

impl BiasedLinear {
    /// `weight [out, in]` in any float dtype, `bias [out]` f32.
    pub fn new(weight: Tensor<2>, bias: Tensor<1>) -> Self {
        Self {
            weight: PackedTensor::new(weight),
            bias: Param::from_tensor(bias),
        }
    }

    /// `x [rows, in] -> [rows, out]`.
    pub fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.product(x) + self.bias.val().unsqueeze()
    }

    /// `x [rows, in] -> x W^T [rows, out]`, for an operation that adds the bias itself.
    pub fn product(&self, x: Tensor<2>) -> Tensor<2> {
        self.weight.linear(x)
    }

    /// `[out, in]`, in its file's dtype.
    pub fn weight(&self) -> Tensor<2> {
        self.weight.value()
    }

    /// `[out]`, f32.
    pub fn bias(&self) -> Tensor<1> {
        self.bias.val()
    }
}

/// A table of vectors `[entries, width]`, kept in its file's dtype; what it gives is f32.
#[derive(Module, Debug)]
pub struct Embedding {
    weight: PackedTensor<2>,
}

impl Embedding {
    /// `weight [entries, width]` in any float dtype.
    pub fn new(weight: Tensor<2>) -> Self {
        Self {
            weight: PackedTensor::new(weight),
        }
    }

    /// `ids [rows] -> [rows, width]`, f32. Ids must be below the number of entries.
    pub fn forward(&self, ids: Tensor<1, Int>) -> Tensor<2> {
        ops::to_f32(self.weight.value().select(0, ids))
    }
}
