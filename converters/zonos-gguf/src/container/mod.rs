//! The container: header, metadata, tensor list, data.

mod error;
mod metadata;
mod read;
mod value;
mod write;

pub use error::GgufError;
pub(crate) use error::remedy;
pub use metadata::{FromValue, Metadata};
pub use read::{GgufFile, TensorInfo, Version};
pub use value::{Array, Value, ValueType};
pub use write::{GgufWriter, NewTensor};

/// The key of the alignment of tensors.
pub const ALIGNMENT_KEY: &str = "general.alignment";
/// The alignment of a file that does not state one.
pub const DEFAULT_ALIGNMENT: u32 = 32;
/// Longest metadata key.
pub const MAX_KEY_BYTES: usize = 65_535;
/// Longest tensor name: ggml keeps 64 bytes with the terminator.
pub const MAX_NAME_BYTES: usize = 63;
/// Most dimensions of a tensor.
pub const MAX_DIMS: usize = 4;

const MAGIC: [u8; 4] = *b"GGUF";
/// Least bytes of a metadata entry (empty key aside) and of a tensor entry.
const LEAST_ENTRY: u64 = 13;
const LEAST_TENSOR: u64 = 32;
