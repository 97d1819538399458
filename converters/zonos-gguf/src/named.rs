//! Tensors on their way into a file.

use crate::{GgmlType, NewTensor};

/// Values with a name, as f32.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedValues {
    /// The name in the file.
    pub name: String,
    /// Slowest axis first, as row-major libraries write it.
    pub shape: Vec<usize>,
    /// Row-major.
    pub values: Vec<f32>,
}

impl NamedValues {
    /// The entry of a file in which the values are stored as `ggml_type`.
    pub fn entry(&self, ggml_type: GgmlType) -> NewTensor {
        NewTensor {
            name: self.name.clone(),
            dims: self.shape.iter().rev().map(|&d| d as u64).collect(),
            ggml_type,
        }
    }
}
