//! Golden tensors.

use std::path::Path;

use safetensors::{Dtype, SafeTensors};

/// The golden file of a folder.
pub(crate) struct Golden(Vec<u8>);

impl Golden {
    pub(crate) fn open(folder: &Path) -> Self {
        Self(std::fs::read(folder.join("golden.safetensors")).expect("a golden file"))
    }

    pub(crate) fn f32(&self, key: &str) -> Vec<f32> {
        let words = self.words(key, Dtype::F32).into_iter();
        words.map(f32::from_le_bytes).collect()
    }

    pub(crate) fn i32(&self, key: &str) -> Vec<i32> {
        let words = self.words(key, Dtype::I32).into_iter();
        words.map(i32::from_le_bytes).collect()
    }

    fn words(&self, key: &str, dtype: Dtype) -> Vec<[u8; 4]> {
        let file = SafeTensors::deserialize(&self.0).expect("a golden file");
        let tensor = file
            .tensor(key)
            .unwrap_or_else(|_| panic!("no golden key {key}"));
        assert_eq!(tensor.dtype(), dtype, "{key}");
        tensor.data().as_chunks().0.to_vec()
    }
}
