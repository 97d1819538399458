//! Fixtures and golden files.

#![allow(dead_code)] // each test binary uses its part

use std::path::{Path, PathBuf};

use safetensors::SafeTensors;

/// `validation/fixtures/gguf/...`.
pub(crate) fn fixture(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../validation/fixtures/gguf")
        .join(path)
}

/// `$ZONOS_GOLDENS/gguf/...`; says so when it is unset.
pub(crate) fn goldens(path: &str) -> Option<PathBuf> {
    let Ok(folder) = std::env::var("ZONOS_GOLDENS") else {
        println!("ZONOS_GOLDENS is unset: the full set of gguf/{path} is not compared");
        return None;
    };
    Some(Path::new(&folder).join("gguf").join(path))
}

pub(crate) fn bytes(path: impl AsRef<Path>) -> Vec<u8> {
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.as_ref().display()))
}

/// A golden file in memory.
pub(crate) struct Golden(Vec<u8>);

impl Golden {
    pub(crate) fn open(path: impl AsRef<Path>) -> Self {
        Self(bytes(path))
    }

    /// `[rows][columns]` of bytes; none if there is no such tensor.
    pub(crate) fn rows(&self, name: &str) -> Option<Vec<Vec<u8>>> {
        let file = SafeTensors::deserialize(&self.0).expect("golden file");
        let tensor = file.tensor(name).ok()?;
        let rows = tensor.shape()[0];
        let data = tensor.data();
        Some(data.chunks(data.len() / rows).map(<[u8]>::to_vec).collect())
    }

    /// `[rows][columns]` of f32.
    pub(crate) fn floats(&self, name: &str) -> Option<Vec<Vec<f32>>> {
        Some(self.rows(name)?.iter().map(|r| floats(r)).collect())
    }

    /// A vector of f32.
    pub(crate) fn vector(&self, name: &str) -> Vec<f32> {
        let file = SafeTensors::deserialize(&self.0).expect("golden file");
        floats(file.tensor(name).expect(name).data())
    }
}

fn floats(raw: &[u8]) -> Vec<f32> {
    raw.as_chunks::<4>()
        .0
        .iter()
        .map(|b| f32::from_le_bytes(*b))
        .collect()
}

/// Numbers without a pattern, the same every time: a linear congruence with mixed bits.
pub(crate) struct Numbers(pub(crate) u64);

impl Numbers {
    pub(crate) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Roughly normal, deviation `sigma`.
    pub(crate) fn normal(&mut self, sigma: f32) -> f32 {
        let sum: f32 = (0..6)
            .map(|_| (self.bits() >> 40) as f32 / (1u64 << 24) as f32)
            .sum();
        (sum - 3.0) * sigma * std::f32::consts::SQRT_2
    }

    pub(crate) fn normals(&mut self, n: usize, sigma: f32) -> Vec<f32> {
        (0..n).map(|_| self.normal(sigma)).collect()
    }
}
