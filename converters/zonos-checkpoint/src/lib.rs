//! Checkpoints: opened lazily, matched against a model by name, converted.
//!
//! A checkpoint is a set of named tensors with some plain values beside them. People have them as
//! `.pth` files in three containers, as `.safetensors` files alone or in shards, as `.gguf`, as Burn's
//! `.bpk`, and as a hub id; [`Checkpoint::open`] takes any of these and tells them apart by content, not by
//! ending. What follows is the same for all:
//!
//! 1. **Open.** Only headers are read: names, dtypes, shapes and file offsets. The files are mapped
//!    into memory, so a 15 GB checkpoint opens in a moment and takes no memory until its values are
//!    used. [`inspect`] describes what is there.
//! 2. **Match.** A model lists what it needs ([`TensorSpec`]); a [`NameMap`] says how names in files
//!    become names of the model. [`plan`] compares both without reading a value and gives a
//!    [`LoadReport`]: everything missing, unexpected, misshapen or ignored, at once.
//! 3. **Load.** A [`Loader`] refuses what does not fit, and then makes Burn tensors one by one. On
//!    the CPU backend they are views of the mapped file (no copy) wherever the file stores a tensor
//!    as the model wants it; dtypes stay as stored where the device computes with them.
//!
//! [`convert`] writes any checkpoint as `.safetensors` or `.bpk`; [`compose`] puts one together from
//! tensors of several.
//!
//! # How names are mapped
//!
//! The model crates follow the names of the original checkpoints, so most maps are short: prefixes
//! of training wrappers are cut off, training-only values ignored, other layouts renamed. Names are
//! never renumbered: `seq.0, seq.2, seq.5` stay what they are. Rules can also stack, interleave,
//! split, join and transpose (expert layers come in four layouts); such tensors are put together
//! when they are asked for. Weight normalisation is understood in both of PyTorch's spellings and
//! in its folded form, also mixed in one file, see [`SpecKind::WeightNorm`] and
//! [`WeightNormPolicy`].
//!
//! # Safety
//!
//! Checkpoints come from strangers. A pickle is parsed, never executed: a handful of torch's own
//! constructors is interpreted and every other object is skipped and named in
//! [`Checkpoint::notices`]. Sizes are checked against the file before anything is allocated, shard
//! names cannot leave their folder, and damaged input gives an error that names the file and the
//! cause. Mapping a file is the one `unsafe` call of this crate.
//!
//! # Where Burn's own readers are
//!
//! In Burn 0.22 `burn-import` converts ONNX graphs only; its `.pth` and `.safetensors` readers moved
//! to `burn-store`, which loads them into modules with the help of `pytorch-reader` and
//! `safetensors`. This crate uses the `safetensors` and `burn-pack` crates for those formats. For
//! `.pth` it has a reader of its own, because `pytorch-reader` 0.22.1 hands out copies of the values
//! without their place in the file (nothing could be mapped), in no particular order, and does not
//! say what it left out. Burn-store also renumbers list indices with gaps by default, and knows
//! neither shard indices nor several spellings of weight norm.

mod abridged;
mod burnpack;
mod checkpoint;
mod compose;
mod convert;
mod error;
mod expr;
mod format;
mod gguf;
pub mod hub;
mod inspect;
mod kind;
mod load;
mod mapped;
mod namemap;
mod opened;
mod output;
mod pattern;
mod report;
mod safetensors;
mod shown;
mod sidecar;
mod tensor;
mod torch;
mod values;

pub use checkpoint::{Checkpoint, OpenOptions};
pub use compose::{Part, compose};
pub use convert::{ConvertProgress, convert, convert_until, convert_with};
pub use error::CheckpointError;
pub use format::Format;
pub use gguf::{GgufFields, SIDECAR_PREFIX};
pub use inspect::{DtypeTotal, FileSize, Inspection, TensorRow, inspect};
pub use kind::ModelKind;
pub use load::{
    DTypePolicy, LoadError, LoadOptions, Loader, SpecKind, StoredWeight, TensorSpec,
    WeightNormPolicy, WeightNormed, plan,
};
pub use mapped::FileBytes;
pub use namemap::NameMap;
pub use opened::Skipped;
pub use report::{
    Ignored, LoadReport, Matched, Missing, NonFinite, Unexpected, WrongDtype, WrongShape,
};
pub use tensor::TensorInfo;
