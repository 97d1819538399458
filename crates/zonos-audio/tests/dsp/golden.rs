//! Reads the goldens.

use std::path::{Path, PathBuf};

use safetensors::{SafeTensors, tensor::Dtype};
use serde_json::Value;

/// The fixtures, seen from any crate.
pub(crate) fn fixtures() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../validation/fixtures")
}

fn folder() -> PathBuf {
    fixtures().join("audio")
}

/// The f32 tensors of one file.
pub(crate) struct Golden(Vec<u8>);

impl Golden {
    pub(crate) fn open(name: &str) -> Self {
        Self::open_file(&folder().join(format!("{name}.safetensors")))
    }

    pub(crate) fn open_file(path: &Path) -> Self {
        Self(std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display())))
    }

    pub(crate) fn names(&self) -> Vec<String> {
        let file = SafeTensors::deserialize(&self.0).unwrap();
        file.names().into_iter().map(str::to_owned).collect()
    }

    /// Shape and values.
    pub(crate) fn tensor(&self, name: &str) -> (Vec<usize>, Vec<f32>) {
        let file = SafeTensors::deserialize(&self.0).unwrap();
        let view = file.tensor(name).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(view.dtype(), Dtype::F32, "{name}");
        let values = view.data().as_chunks().0;
        let values = values.iter().map(|b| f32::from_le_bytes(*b)).collect();
        (view.shape().to_vec(), values)
    }

    pub(crate) fn values(&self, name: &str) -> Vec<f32> {
        self.tensor(name).1
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        SafeTensors::deserialize(&self.0)
            .unwrap()
            .tensor(name)
            .is_ok()
    }
}

pub(crate) fn json(name: &str) -> Value {
    let path = folder().join(format!("{name}.json"));
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// Largest distance; of different lengths infinite.
pub(crate) fn distance(a: &[f32], b: &[f32]) -> f32 {
    if a.len() != b.len() {
        return f32::INFINITY;
    }
    let gaps = a.iter().zip(b).map(|(a, b)| (a - b).abs());
    // A NaN must not hide behind `max`.
    gaps.fold(0.0, |worst, gap| if gap <= worst { worst } else { gap })
}
