//! Shared by the tests: where fixtures are, and how two tensors are compared.
#![allow(dead_code)] // each test binary uses its part

use std::path::{Path, PathBuf};

use burn::tensor::{Device, TensorData};
use zonos_checkpoint::Checkpoint;

pub(crate) fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../validation/fixtures")
}

pub(crate) fn fixture(name: &str) -> PathBuf {
    fixtures().join(name)
}

/// A `.pth` or `.safetensors` made by `validation/fixtures/checkpoint/make.py`.
pub(crate) fn made(name: &str) -> PathBuf {
    fixtures().join("checkpoint").join(name)
}

pub(crate) fn open(path: impl AsRef<Path>) -> Checkpoint {
    let path = path.as_ref();
    Checkpoint::open(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

pub(crate) fn device() -> Device {
    Device::flex()
}

/// Equal dtype, shape and bits.
pub(crate) fn assert_same(name: &str, a: &TensorData, b: &TensorData) {
    assert_eq!(a.dtype(), b.dtype(), "{name}");
    assert_eq!(a.shape(), b.shape(), "{name}");
    assert!(a.bytes()[..] == b.bytes()[..], "{name}: values differ");
}

pub(crate) fn floats(data: TensorData) -> Vec<f32> {
    data.try_cast(burn::tensor::DType::F32)
        .and_then(|d| d.try_into_vec::<f32>())
        .unwrap()
}

/// The error's text, checked to be one line.
pub(crate) fn error(path: impl AsRef<Path>) -> String {
    let path = path.as_ref();
    let text = match Checkpoint::open(path) {
        Ok(_) => panic!("{} opened", path.display()),
        Err(e) => e.to_string(),
    };
    assert!(!text.contains('\n'), "more than one line: {text}");
    text
}

/// A safetensors file of f32 tensors, each filled with one value.
pub(crate) fn write_safetensors(path: &Path, tensors: &[(&str, &[usize], f32)]) {
    let mut header = serde_json::Map::new();
    let mut data = Vec::new();
    for (name, shape, value) in tensors {
        let start = data.len();
        for _ in 0..shape.iter().product::<usize>() {
            data.extend(value.to_le_bytes());
        }
        header.insert(
            (*name).into(),
            serde_json::json!({"dtype": "F32", "shape": shape, "data_offsets": [start, data.len()]}),
        );
    }
    let mut text = serde_json::Value::Object(header).to_string().into_bytes();
    text.resize(text.len().next_multiple_of(8), b' ');
    let mut file = (text.len() as u64).to_le_bytes().to_vec();
    file.extend(text);
    file.extend(data);
    std::fs::write(path, file).unwrap();
}
