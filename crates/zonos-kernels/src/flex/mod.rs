//! CPU kernels for Burn's Flex backend.

mod backend;
pub(crate) mod simd;
