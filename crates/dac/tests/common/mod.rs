//! Golden files and fixtures.

#![allow(dead_code)] // each test binary uses its part

use std::path::{Path, PathBuf};

use burn::tensor::{Device, Int, Tensor, TensorData};
use safetensors::SafeTensors;
use zonos_audio::Codes;

/// `validation/fixtures/...`.
pub(crate) fn fixture(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../validation/fixtures")
        .join(path)
}

/// A golden file in memory.
pub(crate) struct Golden(Vec<u8>);

impl Golden {
    pub(crate) fn open(path: impl AsRef<Path>) -> Self {
        Self(std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.as_ref().display())))
    }

    fn file(&self) -> SafeTensors<'_> {
        SafeTensors::deserialize(&self.0).expect("golden file")
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.file().names().into_iter().map(str::to_owned).collect()
    }

    pub(crate) fn has(&self, key: &str) -> bool {
        self.file().tensor(key).is_ok()
    }

    pub(crate) fn shape(&self, key: &str) -> Vec<usize> {
        self.file().tensor(key).expect(key).shape().to_vec()
    }

    pub(crate) fn f32(&self, key: &str) -> Vec<f32> {
        let file = self.file();
        let data = file.tensor(key).expect(key);
        assert_eq!(data.dtype(), safetensors::Dtype::F32, "{key}");
        data.data()
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
            .collect()
    }

    pub(crate) fn f64(&self, key: &str) -> Vec<f64> {
        let file = self.file();
        let data = file.tensor(key).expect(key);
        assert_eq!(data.dtype(), safetensors::Dtype::F64, "{key}");
        data.data()
            .chunks_exact(8)
            .map(|b| f64::from_le_bytes(b.try_into().unwrap()))
            .collect()
    }

    pub(crate) fn integers(&self, key: &str) -> Vec<i64> {
        let file = self.file();
        let data = file.tensor(key).expect(key);
        match data.dtype() {
            safetensors::Dtype::I64 => data
                .data()
                .chunks_exact(8)
                .map(|b| i64::from_le_bytes(b.try_into().unwrap()))
                .collect(),
            safetensors::Dtype::I32 => data
                .data()
                .chunks_exact(4)
                .map(|b| i64::from(i32::from_le_bytes(b.try_into().unwrap())))
                .collect(),
            other => panic!("{key}: {other:?}"),
        }
    }

    /// Codes stored `[codebooks, frames]`, as rows.
    pub(crate) fn codes(&self, key: &str) -> Codes {
        let (shape, values) = (self.shape(key), self.integers(key));
        let (q, frames) = (shape[0], shape[1]);
        let rows = (0..frames * q)
            .map(|i| values[(i % q) * frames + i / q] as i32)
            .collect();
        Codes::new(frames, q, rows).unwrap()
    }
}

/// `[1, codebooks, frames]` on a device.
pub(crate) fn on_device(codes: &Codes, device: &Device) -> Tensor<3, Int> {
    let (frames, q) = (codes.frames(), codes.codebooks());
    let values: Vec<i32> = (0..q * frames)
        .map(|i| codes.values()[(i % frames) * q + i / frames])
        .collect();
    Tensor::from_data(TensorData::new(values, [1, q, frames]), device)
}

/// Part of a table of codes.
pub(crate) fn rows(codes: &Codes, range: std::ops::Range<usize>) -> Codes {
    let q = codes.codebooks();
    Codes::new(
        range.len(),
        q,
        codes.values()[range.start * q..range.end * q].to_vec(),
    )
    .unwrap()
}

/// Largest difference; panics on lengths that differ or on NaN.
pub(crate) fn max_delta(ours: &[f32], golden: &[f32]) -> f32 {
    assert_eq!(ours.len(), golden.len());
    let worst = ours.iter().zip(golden).map(|(a, b)| (a - b).abs());
    worst.fold(0.0, |m, d| {
        assert!(!d.is_nan());
        m.max(d)
    })
}

/// Sum, sum of squares, and sum weighted by `cos(0.1 i)` over the flattened values.
pub(crate) fn three_sums(values: &[f32]) -> [f64; 3] {
    let mut sums = [0.0; 3];
    for (i, &value) in values.iter().enumerate() {
        let value = f64::from(value);
        sums[0] += value;
        sums[1] += value * value;
        sums[2] += value * (0.1 * i as f64 % (2.0 * std::f64::consts::PI)).cos();
    }
    sums
}
