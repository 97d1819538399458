//! Golden files, fixtures and WAV files.

#![allow(dead_code)] // each test binary uses its part

use std::path::{Path, PathBuf};

use burn::tensor::{DType, Device, Tensor, TensorData};
use safetensors::SafeTensors;
use zonos_audio::Waveform;

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
        let bytes = data.data().as_chunks::<4>().0;
        bytes.iter().map(|b| f32::from_le_bytes(*b)).collect()
    }

    pub(crate) fn f64(&self, key: &str) -> Vec<f64> {
        let file = self.file();
        let data = file.tensor(key).expect(key);
        assert_eq!(data.dtype(), safetensors::Dtype::F64, "{key}");
        let bytes = data.data().as_chunks::<8>().0;
        bytes.iter().map(|b| f64::from_le_bytes(*b)).collect()
    }

    pub(crate) fn i32(&self, key: &str) -> Vec<i32> {
        let file = self.file();
        let data = file.tensor(key).expect(key);
        assert_eq!(data.dtype(), safetensors::Dtype::I32, "{key}");
        let bytes = data.data().as_chunks::<4>().0;
        bytes.iter().map(|b| i32::from_le_bytes(*b)).collect()
    }

    /// Inputs, by the names in front of their keys.
    pub(crate) fn inputs(&self) -> Vec<String> {
        let names = self.names();
        let mut inputs: Vec<_> = names
            .iter()
            .filter_map(|name| name.strip_suffix(".emb"))
            .map(str::to_owned)
            .collect();
        inputs.sort();
        inputs
    }

    /// `[frames, bands]` of the golden as `[1, frames, bands]`.
    pub(crate) fn mel(&self, key: &str, device: &Device) -> Tensor<3> {
        let shape = self.shape(key);
        mel(self.f32(key), shape[1], device)
    }
}

/// Rows of mel bands as `[1, frames, bands]`.
pub(crate) fn mel(values: Vec<f32>, bands: usize, device: &Device) -> Tensor<3> {
    let frames = values.len() / bands;
    Tensor::from_data(
        TensorData::new(values, [1, frames, bands]),
        (device, DType::F32),
    )
}

pub(crate) fn host<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().try_into_vec().expect("f32 tensor")
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

pub(crate) fn norm(values: &[f32]) -> f32 {
    let squares = values.iter().map(|&v| f64::from(v).powi(2));
    squares.sum::<f64>().sqrt() as f32
}

/// Euclidean distance.
pub(crate) fn distance(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let away: Vec<f32> = a.iter().zip(b).map(|(a, b)| a - b).collect();
    norm(&away)
}

/// A 16-bit WAV file of a fixture, channels averaged.
pub(crate) fn wav(path: &Path) -> Waveform {
    let bytes = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let number = |at: usize, len: usize| {
        bytes[at..at + len]
            .iter()
            .rev()
            .fold(0u32, |n, b| n << 8 | u32::from(*b))
    };
    assert_eq!((&bytes[..4], &bytes[36..40]), (&b"RIFF"[..], &b"data"[..]));
    let (channels, rate) = (number(22, 2) as usize, number(24, 4));
    let samples = bytes[44..].as_chunks::<2>().0;
    let samples: Vec<f32> = samples
        .iter()
        .map(|b| f32::from(i16::from_le_bytes(*b)) / 32768.0)
        .collect();
    let mono = samples.chunks_exact(channels);
    let mono = mono.map(|frame| frame.iter().sum::<f32>() / channels as f32);
    Waveform::new(mono.collect(), rate)
}
