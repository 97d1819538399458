//! CPU kernels for Burn's Flex backend.

// Kernels are the one place with `unsafe`: SIMD intrinsics and unchecked pointers, each block with
// its argument and each kernel with a property test against `portable`.
#![allow(unsafe_code)]
// Indices name registers and lanes; iterators would hide that.
#![allow(clippy::needless_range_loop)]

mod attention;
mod backend;
mod block_linear;
#[cfg(test)]
mod block_tests;
mod blocks;
mod cache;
mod conv;
mod conv_ops;
#[cfg(test)]
mod conv_tests;
mod conv_transposed;
#[cfg(test)]
mod decode_tests;
mod dense;
#[cfg(target_arch = "x86_64")]
mod dense_bf16;
#[cfg(test)]
mod dense_tests;
mod depthwise;
mod few_rows;
mod layer_norm;
mod linear;
#[cfg(test)]
mod linear_tests;
mod math;
mod panel;
mod query_tiles;
mod router;
mod rows;
mod several_rows;
pub(crate) mod simd;
mod snake;
mod statistics;
mod step;
#[cfg(test)]
mod step_tests;
mod weights;
