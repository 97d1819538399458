//! Weight matrices kept as their file stores them.

use burn::module::{Module, Param, ParamId};
use burn::tensor::activation::silu;
use burn::tensor::{DType, Int, Tensor};
use zonos_gguf::GgmlType;

use crate::{Activations, ops};

/// A weight matrix `[out, in]`, or a stack `[experts, out, in]`, as its file stores it: plain numbers
/// in f32, f16 or bf16, or quantised blocks. Activations are f32; the product accumulates in f32, and
/// the weights are never expanded as a whole.
///
/// On a CPU device the tensor may be a view of a memory-mapped file. f32 weights train; all others are
/// a frozen base through which gradients flow to the input.
#[derive(Module, Debug)]
pub struct PackedTensor<const D: usize> {
    weight: Stored<D>,
}

/// The two forms of a weight.
#[derive(Module, Debug)]
enum Stored<const D: usize> {
    /// Numbers.
    Dense(Param<Tensor<D>>),
    /// Blocks.
    Blocks(BlockTensor<D>),
}

/// Rows of quantised blocks.
#[derive(Module, Debug)]
struct BlockTensor<const D: usize> {
    /// `[.., out, bytes of a row]`, u8
    bytes: Param<Tensor<D, Int>>,
    #[module(skip)]
    ggml_type: GgmlType,
    #[module(skip)]
    activations: Activations,
}

impl<const D: usize> PackedTensor<D> {
    /// Wraps `weight` (f32, f16 or bf16) without copying it.
    pub fn new(weight: Tensor<D>) -> Self {
        let trains = weight.dtype() == DType::F32;
        let weight = Param::initialized(ParamId::new(), weight);
        Self {
            weight: Stored::Dense(if trains {
                weight.set_require_grad(true)
            } else {
                weight
            }),
        }
    }

    /// Wraps the blocks of a weight without copying them: `bytes [.., out, bytes of a row]`, u8, has the
    /// leading axes of the weight.
    ///
    /// # Panics
    ///
    /// If `ggml_type` is no type of quantised blocks that can be decoded, `bytes` is not u8, or a row is
    /// not whole blocks. Whoever reads a file checks these first and says which tensor is meant.
    pub fn from_blocks(
        bytes: Tensor<D, Int>,
        ggml_type: GgmlType,
        activations: Activations,
    ) -> Self {
        assert!(
            ggml_type.is_quantized() && ggml_type.is_readable(),
            "from_blocks: {ggml_type} is no block type that can be decoded"
        );
        assert_eq!(bytes.dtype(), DType::U8, "from_blocks: dtype of the bytes");
        let row = bytes.dims()[D - 1];
        assert!(
            row.is_multiple_of(ggml_type.block_bytes()),
            "from_blocks: a row of {row} bytes is not whole blocks of {ggml_type}"
        );
        Self {
            weight: Stored::Blocks(BlockTensor {
                bytes: Param::initialized(ParamId::new(), bytes),
                ggml_type,
                activations,
            }),
        }
    }

    /// The weight as numbers: in its stored dtype, or f32 where it is stored in blocks, which decodes
    /// all of it.
    pub fn value(&self) -> Tensor<D> {
        match &self.weight {
            Stored::Dense(weight) => weight.val(),
            Stored::Blocks(blocks) => ops::dequantize(blocks.bytes.val(), blocks.ggml_type),
        }
    }

    /// Dtype of the stored tensor: u8 for blocks.
    pub fn dtype(&self) -> DType {
        match &self.weight {
            Stored::Dense(weight) => weight.val().dtype(),
            Stored::Blocks(_) => DType::U8,
        }
    }

    /// How values are stored, as GGUF names it.
    pub fn storage(&self) -> GgmlType {
        match &self.weight {
            Stored::Blocks(blocks) => blocks.ggml_type,
            Stored::Dense(weight) => match weight.val().dtype() {
                DType::F16 => GgmlType::F16,
                DType::BF16 => GgmlType::Bf16,
                _ => GgmlType::F32,
            },
        }
    }

    /// What becomes of the activations; always [`Activations::Exact`] for weights that are numbers.
    pub fn activations(&self) -> Activations {
        match &self.weight {
            Stored::Dense(_) => Activations::Exact,
            Stored::Blocks(blocks) => blocks.activations,
        }
    }

    /// The same weight, used with `activations` if it is stored in blocks.
    pub fn with_activations(mut self, activations: Activations) -> Self {
        if let Stored::Blocks(blocks) = &mut self.weight {
            blocks.activations = activations;
        }
        self
    }

    /// Bytes that the stored weight takes.
    pub fn stored_bytes(&self) -> usize {
        match &self.weight {
            Stored::Dense(weight) => {
                let weight = weight.val();
                weight.dims().iter().product::<usize>() * weight.dtype().size()
            }
            Stored::Blocks(blocks) => blocks.bytes.val().dims().iter().product(),
        }
    }

    /// Shape of the weight, in values.
    pub fn dims(&self) -> [usize; D] {
        match &self.weight {
            Stored::Dense(weight) => weight.val().dims(),
            Stored::Blocks(blocks) => {
                let mut dims = blocks.bytes.val().dims();
                let t = blocks.ggml_type;
                dims[D - 1] = dims[D - 1] / t.block_bytes() * t.block_values();
                dims
            }
        }
    }
}

impl PackedTensor<2> {
    /// `x [rows, in] -> x W^T [rows, out]`, f32.
    pub fn linear(&self, x: Tensor<2>) -> Tensor<2> {
        match &self.weight {
            Stored::Dense(weight) => ops::linear(x, weight.val()),
            Stored::Blocks(b) => ops::block_linear(x, b.bytes.val(), b.ggml_type, b.activations),
        }
    }
}

impl PackedTensor<3> {
    /// `x [rows, in] -> x W^T [rows, a * out]` for a weight `[a, out, in]` that is one matrix cut
    /// in `a` parts, such as `wkv` and `w_in`.
    pub fn linear_flat(&self, x: Tensor<2>) -> Tensor<2> {
        match &self.weight {
            Stored::Dense(weight) => {
                let weight = weight.val();
                let [a, out, inner] = weight.dims();
                ops::linear(x, weight.reshape([a * out, inner]))
            }
            Stored::Blocks(b) => {
                let bytes = b.bytes.val();
                let [a, out, row] = bytes.dims();
                let bytes = bytes.reshape([a * out, row]);
                ops::block_linear(x, bytes, b.ggml_type, b.activations)
            }
        }
    }

    /// `y[i] = x[i] W[expert[i]]^T`: each row goes through the expert chosen for it.
    pub fn expert_linear(&self, x: Tensor<2>, expert: Tensor<1, Int>) -> Tensor<2> {
        match &self.weight {
            Stored::Dense(weight) => ops::expert_linear(x, weight.val(), expert),
            Stored::Blocks(b) => {
                ops::block_expert_linear(x, b.bytes.val(), expert, b.ggml_type, b.activations)
            }
        }
    }
}

/// What attention makes of its input `x [rows, in]`: [`PackedTensor::linear`] with the weights of queries and gates,
/// [`PackedTensor::linear_flat`] with that of keys and values, in this order: queries, keys with values, gates.
pub fn joint_linear(
    x: Tensor<2>,
    queries: &PackedTensor<2>,
    keys_values: &PackedTensor<3>,
    gates: &PackedTensor<2>,
) -> [Tensor<2>; 3] {
    match (&queries.weight, &keys_values.weight, &gates.weight) {
        (Stored::Dense(q), Stored::Dense(kv), Stored::Dense(g)) => {
            let kv = kv.val();
            let [a, out, inner] = kv.dims();
            ops::joint_linear(x, [q.val(), kv.reshape([a * out, inner]), g.val()])
        }
        _ => [
            queries.linear(x.clone()),
            keys_values.linear_flat(x.clone()),
            gates.linear(x),
        ],
    }
}

/// `y[i] = silu(x[i] G[e]^T) * (x[i] U[e]^T)` with `e = expert[i]`: the first half of a gated
/// feed-forward block whose two stacks `[experts, ffn, in]` are stored apart. `x [rows, in] ->
/// [rows, ffn]`, f32.
///
/// Where both stacks are blocks, activations are rounded, if at all, once for both.
pub fn expert_gate_up(
    gate: &PackedTensor<3>,
    up: &PackedTensor<3>,
    x: Tensor<2>,
    expert: Tensor<1, Int>,
) -> Tensor<2> {
    match (&gate.weight, &up.weight) {
        (Stored::Blocks(g), Stored::Blocks(u)) if g.activations == u.activations => {
            ops::block_expert_gate_up(
                x,
                g.bytes.val(),
                u.bytes.val(),
                expert,
                [g.ggml_type, u.ggml_type],
                g.activations,
            )
        }
        _ => silu(gate.expert_linear(x.clone(), expert.clone())) * up.expert_linear(x, expert),
    }
}
