//! Backend operations that speech models need and Burn lacks.
//!
//! Burn 0.22 picks the backend at run time: tensors and modules carry no backend parameter. What a
//! backend must provide beyond Burn's own operations is declared once, in [`SpeechBackend`], and
//! reached from modules through the plain functions of [`ops`], so no model crate names a backend.
//!
//! | operation | portable (any device, differentiable) | Flex (CPU SIMD) |
//! |---|---|---|
//! | [`ops::linear`] | cast, matmul | reads f32, f16 and bf16 weights where they lie |
//! | [`ops::expert_linear`] | one matmul per expert in use | touches only the chosen experts |
//! | [`ops::joint_linear`] | three products | one pass over all threads |
//! | [`ops::block_linear`], [`ops::block_expert_linear`], [`ops::block_expert_gate_up`] | decoded on the host, matmul | reads quantised blocks where they lie |
//! | [`ops::decode_attention`] | masked softmax | one pass over an f32 or f16 cache, running softmax |
//! | [`ops::cache_append`] | cast, slices | written in place, rounded on the way |
//! | [`route`] | products, norm, softmax, top-k | one pass a row, its matrices in cache |
//! | [`ops::dense`] | cast, matmul, bias, activation, scale, sum | blocked product, the rest fused into it; half weights read where they lie |
//! | [`ops::layer_norm`] | means, products | one pass a row, in cache |
//! | [`ops::rms_norm`], [`ops::norm_rotate`], [`ops::sigmoid_gate`], [`ops::silu_gate`], [`ops::soft_cap`] | Burn operations | one pass each |
//! | [`ops::window_attention`], [`ops::relative_attention`] | masked softmax, a tile of queries at a time | tiles of keys and values in cache, running softmax |
//! | [`ops::depthwise_conv1d`] | grouped convolution | one pass, vectors across channels |
//! | [`ops::snake`], [`ops::snake_conv1d`], [`ops::snake_strided_conv1d`], [`ops::snake_conv_transpose1d`] | Burn convolutions | Snake, bias and residual fused into the convolution |
//! | [`ops::reflect_conv1d`] | slices, flips, Burn convolutions | mirrored ends, bias and ReLU fused into the convolution |
//! | [`ops::statistics_pooling`] | softmax, sums | one pass a channel, in cache |
//!
//! Every Flex kernel has a property test against the portable implementation, and picks AVX-512,
//! AVX2 or plain code at run time: no build flag is needed. The environment variable `ZONOS_ISA` names another
//! than the best.

// burn-ndarray is deprecated upstream; kept as a second, independent CPU implementation for golden-diff.
#![cfg_attr(feature = "ndarray", allow(deprecated))]

mod activation;
mod activations;
mod autodiff;
pub mod backend;
pub mod device;
#[cfg(feature = "flex")]
mod flex;
pub mod ops;
mod packed;
pub mod portable;
mod router;

pub use activation::{Activation, GateOrder};
pub use activations::Activations;
pub use backend::SpeechBackend;
pub use device::{DeviceError, on_worker, parse_device, reads_blocks};
pub use packed::{PackedTensor, expert_gate_up, joint_linear};
pub use router::{RouterOptions, RouterTensors, Routing, route};

/// Instruction sets that the CPU kernels can run with here, worst first, and the one that they use: the best, or
/// what the environment variable `ZONOS_ISA` names. `plain` is any processor, `avx2` has FMA and F16C with it,
/// `avx512` is AVX-512 F, `vnni` is AVX-512 F, BW, VL and VNNI. `bf16` is never used unless named: AVX-512 BF16 as
/// well, with which sixteen rows and more that meet BF16 weights are rounded to BF16 and take half the time, off by
/// some tenths of a percent. Without the `flex` feature there are no kernels.
pub fn instruction_sets() -> (Vec<&'static str>, &'static str) {
    #[cfg(feature = "flex")]
    {
        use flex::simd::Isa;
        let here = Isa::available().into_iter().map(Isa::name).collect();
        (here, Isa::best().name())
    }
    #[cfg(not(feature = "flex"))]
    (Vec::new(), "none")
}
