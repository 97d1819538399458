//! Golden files, fixtures and checkpoints made from them.

#![allow(dead_code)] // each test binary uses its part

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use burn::tensor::Tensor;
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use tempfile::TempDir;

/// `validation/fixtures/...`.
pub(crate) fn fixture(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../validation/fixtures")
        .join(path)
}

/// A folder of the larger goldens, or a remark that they are not there.
pub(crate) fn goldens(path: &str) -> Option<PathBuf> {
    match std::env::var_os("ZONOS_GOLDENS").filter(|folder| !folder.is_empty()) {
        Some(folder) => Some(Path::new(&folder).join(path)),
        None => {
            println!("ZONOS_GOLDENS is unset: the goldens of {path} are not compared");
            None
        }
    }
}

/// Dtype, shape and bytes of a tensor.
pub(crate) type Raw = (Dtype, Vec<usize>, Vec<u8>);

/// A safetensors file in memory.
pub(crate) struct Golden(BTreeMap<String, Raw>);

impl Golden {
    pub(crate) fn open(path: impl AsRef<Path>) -> Self {
        let bytes =
            std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.as_ref().display()));
        let file = SafeTensors::deserialize(&bytes).expect("safetensors");
        let tensors = file.tensors().into_iter();
        Self(
            tensors
                .map(|(name, t)| (name, (t.dtype(), t.shape().to_vec(), t.data().to_vec())))
                .collect(),
        )
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    pub(crate) fn has(&self, key: &str) -> bool {
        self.0.contains_key(key)
    }

    fn get(&self, key: &str, dtype: Dtype) -> &Raw {
        let raw = self.0.get(key).unwrap_or_else(|| panic!("no {key}"));
        assert_eq!(raw.0, dtype, "{key}");
        raw
    }

    pub(crate) fn shape(&self, key: &str) -> &[usize] {
        &self.0[key].1
    }

    pub(crate) fn f32(&self, key: &str) -> Vec<f32> {
        let bytes = self.get(key, Dtype::F32).2.as_chunks::<4>().0;
        bytes.iter().map(|b| f32::from_le_bytes(*b)).collect()
    }

    pub(crate) fn i32(&self, key: &str) -> Vec<i32> {
        let bytes = self.get(key, Dtype::I32).2.as_chunks::<4>().0;
        bytes.iter().map(|b| i32::from_le_bytes(*b)).collect()
    }

    pub(crate) fn f64(&self, key: &str) -> Vec<f64> {
        let bytes = self.get(key, Dtype::F64).2.as_chunks::<8>().0;
        bytes.iter().map(|b| f64::from_le_bytes(*b)).collect()
    }

    /// Clips, by the names in front of their keys.
    pub(crate) fn clips(&self) -> Vec<String> {
        let found = self
            .names()
            .filter_map(|name| name.strip_suffix(".hidden0"));
        found.map(str::to_owned).collect()
    }
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

/// White noise.
pub(crate) fn noise(samples: usize) -> Vec<f32> {
    let mut state = 0x9E37_79B9u32;
    (0..samples)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            (state >> 8) as f32 / (1u32 << 24) as f32 - 0.5
        })
        .collect()
}

/// The fixture's checkpoint, changed.
pub(crate) struct Remade {
    pub(crate) tensors: BTreeMap<String, Raw>,
    pub(crate) metadata: HashMap<String, String>,
    pub(crate) config: Option<serde_json::Value>,
}

impl Remade {
    pub(crate) fn small() -> Self {
        let folder = fixture("w2v-bert/small");
        let text = std::fs::read(folder.join("config.json")).unwrap();
        Self {
            tensors: Golden::open(folder.join("model.safetensors")).0,
            metadata: HashMap::new(),
            config: Some(serde_json::from_slice(&text).unwrap()),
        }
    }

    /// As the encoder of ZAC-1 stores it: bf16 under `teacher.`, beside tensors of the codec, the
    /// configuration in the metadata.
    pub(crate) fn zac() -> Self {
        let mut small = Self::small();
        let tensors = std::mem::take(&mut small.tensors);
        small.tensors = tensors
            .into_iter()
            .map(|(name, raw)| (format!("teacher.{name}"), to_bf16(&raw)))
            .collect();
        let other = (Dtype::F32, vec![2, 2], vec![0u8; 16]);
        small
            .tensors
            .insert("codec.semantic_quantizer.x".to_owned(), other);
        let config = small.config.take().unwrap();
        small.metadata = HashMap::from([
            ("format".to_owned(), "zac-1/1".to_owned()),
            ("kind".to_owned(), "encoder".to_owned()),
            ("teacher_config".to_owned(), config.to_string()),
        ]);
        small
    }

    pub(crate) fn set(&mut self, field: &str, value: serde_json::Value) {
        match &mut self.config {
            Some(config) => config[field] = value,
            None => {
                let text = &self.metadata["teacher_config"];
                let mut config: serde_json::Value = serde_json::from_str(text).unwrap();
                config[field] = value;
                let text = config.to_string();
                self.metadata.insert("teacher_config".to_owned(), text);
            }
        }
    }

    pub(crate) fn write(&self) -> TempDir {
        let folder = tempfile::tempdir().unwrap();
        let views: Vec<_> = self
            .tensors
            .iter()
            .map(|(name, (dtype, shape, data))| {
                let view = TensorView::new(*dtype, shape.clone(), data).unwrap();
                (name.as_str(), view)
            })
            .collect();
        let metadata = (!self.metadata.is_empty()).then(|| self.metadata.clone());
        let path = folder.path().join("model.safetensors");
        safetensors::serialize_to_file(views, metadata, &path).unwrap();
        if let Some(config) = &self.config {
            std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
        }
        folder
    }
}

/// Rounded to the nearest, ties to even.
pub(crate) fn to_bf16((dtype, shape, data): &Raw) -> Raw {
    assert_eq!(*dtype, Dtype::F32);
    let bytes = data.as_chunks::<4>().0.iter().flat_map(|b| {
        let bits = u32::from_le_bytes(*b);
        let rounded = bits.wrapping_add(0x7FFF + ((bits >> 16) & 1));
        ((rounded >> 16) as u16).to_le_bytes()
    });
    (Dtype::BF16, shape.clone(), bytes.collect())
}

/// The same numbers, widened.
pub(crate) fn to_f32((dtype, shape, data): &Raw) -> Raw {
    assert_eq!(*dtype, Dtype::BF16);
    let bytes = data.as_chunks::<2>().0.iter();
    let bytes = bytes.flat_map(|b| (u32::from(u16::from_le_bytes(*b)) << 16).to_le_bytes());
    (Dtype::F32, shape.clone(), bytes.collect())
}
