//! GGUF files and their block formats, without tensors and without a backend.
//!
//! - [`GgufFile`] reads the header of a file that lies in memory (a memory map, usually) and hands
//!   out the bytes of each tensor where they lie; [`GgufWriter`] writes a file tensor by tensor.
//! - [`blocks`] holds one file a format: its layout, how its values are computed, and the
//!   quantiser, bit for bit as ggml's portable build does it.
//! - [`Policy`] says which type each tensor of a ZONOS2 file gets, [`quantize_file`] applies it.
//! - [`Imatrix`], [`kld`] and [`manifest`] are the files around a quantised model: importance,
//!   reference log-probabilities, the list of an evaluation corpus. [`Perplexity`] needs none.
//!
//! Facts are those of the GGUF specification of ggml (commit 3af5f57). Arithmetic is f32, one
//! rounding an operation, sums from left to right, so results are the same on every machine.

pub mod blocks;
mod container;
mod ggml_type;
mod imatrix;
pub mod kld;
pub mod manifest;
mod model_metadata;
mod named;
mod numeric;
mod overlay;
mod perplexity;
mod policy;
mod quantize;
mod search;
mod shown;

pub use blocks::BlockError;
pub use container::{
    ALIGNMENT_KEY, Array, DEFAULT_ALIGNMENT, FromValue, GgufError, GgufFile, GgufWriter, MAX_DIMS,
    MAX_KEY_BYTES, MAX_NAME_BYTES, Metadata, NewTensor, TensorInfo, Value, ValueType, Version,
};
pub use ggml_type::{GgmlType, UnknownType};
pub use imatrix::{Imatrix, ImatrixEntry, ImatrixError};
pub use model_metadata::ModelMetadata;
pub use named::NamedValues;
pub use overlay::overlay;
pub use perplexity::Perplexity;
pub use policy::Policy;
pub use quantize::{
    FromFile, InMemory, Pieces, Progress, QuantizeError, QuantizeReport, Sink, convert_rows,
    convert_tensor, quantize_file, quantize_pieces,
};
