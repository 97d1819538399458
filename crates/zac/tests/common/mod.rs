//! Fixtures, and files made of them with something changed.
#![allow(dead_code)] // each test binary uses its share

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use burn::tensor::Device;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde_json::Value;
use zonos_audio::Codes;
use zonos_zac::ZacDecoder;

pub(crate) fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../validation/fixtures/zac")
        .join(name)
}

pub(crate) fn decoder(name: &str) -> ZacDecoder {
    ZacDecoder::load(fixture(name).join("model.safetensors"), &Device::flex()).unwrap()
}

/// Codes that a small generator draws, every seventh cell of the residual codebooks missing if asked.
pub(crate) fn codes(frames: usize, seed: u64, missing: bool) -> Codes {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 33) as i32
    };
    let values = (0..frames * 10)
        .map(|i| {
            let code = next() % 64;
            if missing && i % 10 > 0 && next() % 7 == 0 {
                -1
            } else {
                code
            }
        })
        .collect();
    Codes::new(frames, 10, values).unwrap()
}

pub(crate) fn rows(codes: &Codes, range: std::ops::Range<usize>) -> Codes {
    let values = codes.values()[range.start * 10..range.end * 10].to_vec();
    Codes::new(range.len(), 10, values).unwrap()
}

pub(crate) fn bits(samples: &[f32]) -> Vec<u32> {
    samples.iter().map(|x| x.to_bits()).collect()
}

pub(crate) fn worst(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter()
        .zip(b)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, f32::max)
}

/// A tensor of a file.
#[derive(Clone)]
pub(crate) struct Stored {
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<usize>,
    pub(crate) bytes: Vec<u8>,
}

impl Stored {
    pub(crate) fn f32(shape: &[usize], values: &[f32]) -> Self {
        Self {
            dtype: Dtype::F32,
            shape: shape.to_vec(),
            bytes: values.iter().flat_map(|x| x.to_le_bytes()).collect(),
        }
    }

    pub(crate) fn values(&self) -> Vec<f32> {
        let words = self.bytes.as_chunks::<4>().0;
        words.iter().map(|b| f32::from_le_bytes(*b)).collect()
    }
}

/// A safetensors file in memory, to be changed and written.
pub(crate) struct Edited {
    pub(crate) tensors: BTreeMap<String, Stored>,
    pub(crate) metadata: HashMap<String, String>,
    folder: tempfile::TempDir,
}

impl Edited {
    pub(crate) fn of(name: &str) -> Self {
        let bytes = std::fs::read(fixture(name).join("model.safetensors")).unwrap();
        let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let stored = |view: TensorView<'_>| Stored {
            dtype: view.dtype(),
            shape: view.shape().to_vec(),
            bytes: view.data().to_vec(),
        };
        Self {
            tensors: file
                .tensors()
                .into_iter()
                .map(|(n, v)| (n, stored(v)))
                .collect(),
            metadata: header.metadata().clone().unwrap(),
            folder: tempfile::tempdir().unwrap(),
        }
    }

    pub(crate) fn json(&self, section: &str) -> Value {
        serde_json::from_str(&self.metadata[section]).unwrap()
    }

    pub(crate) fn edit(&mut self, section: &str, change: impl FnOnce(&mut Value)) -> &mut Self {
        let mut json = self.json(section);
        change(&mut json);
        self.metadata.insert(section.to_owned(), json.to_string());
        self
    }

    pub(crate) fn rename(&mut self, rule: impl Fn(&str) -> String) -> &mut Self {
        let tensors = std::mem::take(&mut self.tensors);
        self.tensors = tensors.into_iter().map(|(n, t)| (rule(&n), t)).collect();
        self
    }

    pub(crate) fn write(&self) -> PathBuf {
        let path = self.folder.path().join("model.safetensors");
        let views = self.tensors.iter().map(|(name, t)| {
            let view = TensorView::new(t.dtype, t.shape.clone(), &t.bytes).unwrap();
            (name.clone(), view)
        });
        safetensors::serialize_to_file(views, Some(self.metadata.clone()), &path).unwrap();
        path
    }

    pub(crate) fn load(&self) -> Result<ZacDecoder, zonos_zac::ZacError> {
        ZacDecoder::load(self.write(), &Device::flex())
    }

    /// The error of loading, on one line.
    pub(crate) fn refused(&self) -> String {
        let error = self
            .load()
            .expect_err("a file that must be refused")
            .to_string();
        assert!(!error.contains('\n'), "{error}");
        assert!(error.contains("model.safetensors"), "{error}");
        error
    }
}
