//! Open .pth, .safetensors, burnpack and hub checkpoints lazily, map their names, report, convert.

mod burnpack;
mod checkpoint;
mod error;
mod expr;
mod format;
pub mod hub;
mod kind;
mod load;
mod mapped;
mod namemap;
mod opened;
mod pattern;
mod report;
mod safetensors;
mod sidecar;
mod tensor;
mod torch;
mod values;

pub use checkpoint::{Checkpoint, OpenOptions};
pub use error::CheckpointError;
pub use format::Format;
pub use kind::ModelKind;
pub use load::{
    DTypePolicy, LoadError, LoadOptions, Loader, SpecKind, TensorSpec, WeightNormPolicy,
    WeightNormed, plan,
};
pub use namemap::NameMap;
pub use opened::Skipped;
pub use report::{
    Ignored, LoadReport, Matched, Missing, NonFinite, Unexpected, WrongDtype, WrongShape,
};
pub use tensor::TensorInfo;
