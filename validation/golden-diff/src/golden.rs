//! Reads `golden.safetensors` and `grad.safetensors`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use safetensors::tensor::{Dtype, TensorInfo};

use crate::error::{GoldenError, Result};
use crate::host::HostTensor;

/// An opened golden file. Tensors are converted one at a time, when asked for.
pub struct GoldenFile {
    path: PathBuf,
    files: Vec<Opened>,
    /// The file of each tensor, by its place in `files`.
    tensors: BTreeMap<String, (usize, TensorInfo)>,
    metadata: BTreeMap<String, String>,
}

struct Opened {
    path: PathBuf,
    bytes: Vec<u8>,
    data_start: usize,
}

impl GoldenFile {
    /// Opens `path`.
    ///
    /// # Errors
    /// The file cannot be read, is no safetensors file, or holds no tensors.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let mut golden = Self::none(path);
        golden.add(path, "")?;
        Ok(golden)
    }

    /// Opens those `parts` of `dir` that are there, names and files, as one: the tensors of a part have
    /// its name in front.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub(crate) fn open_parts(dir: &Path, parts: &[(&str, &str)]) -> Result<Self> {
        let mut golden = Self::none(dir);
        for (name, file) in parts {
            let path = dir.join(file);
            if path.is_file() {
                golden.add(&path, &format!("{name}."))?;
            }
        }
        Ok(golden)
    }

    fn none(path: &Path) -> Self {
        Self {
            path: path.to_path_buf(),
            files: Vec::new(),
            tensors: BTreeMap::new(),
            metadata: BTreeMap::new(),
        }
    }

    fn add(&mut self, path: &Path, prefix: &str) -> Result<()> {
        let path = path.to_path_buf();
        let bytes = std::fs::read(&path).map_err(|source| GoldenError::Io {
            path: path.clone(),
            source,
        })?;
        let (header, metadata) =
            safetensors::SafeTensors::read_metadata(&bytes).map_err(|e| GoldenError::Format {
                path: path.clone(),
                problem: format!("not a safetensors file: {e}"),
            })?;
        let tensors = metadata.tensors();
        if tensors.is_empty() {
            return Err(GoldenError::Empty { path });
        }
        let file = self.files.len();
        for (name, info) in tensors {
            let entry = (file, info.clone());
            self.tensors.insert(format!("{prefix}{name}"), entry);
        }
        self.metadata
            .extend(metadata.metadata().clone().unwrap_or_default());
        self.files.push(Opened {
            path,
            bytes,
            data_start: header + 8,
        });
        Ok(())
    }

    /// The file, or the folder of a golden in several files.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Names of all tensors, sorted.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// Whether the file has `key`.
    pub fn has(&self, key: &str) -> bool {
        self.tensors.contains_key(key)
    }

    /// Shape of `key`.
    pub fn shape(&self, key: &str) -> Option<&[usize]> {
        self.tensors.get(key).map(|(_, info)| info.shape.as_slice())
    }

    /// A note of the file's `__metadata__`.
    pub fn note(&self, name: &str) -> Option<&str> {
        self.metadata.get(name).map(String::as_str)
    }

    /// The tensor `key`, or `None` when the file has no such tensor.
    ///
    /// # Errors
    /// The tensor's dtype is not one that goldens use.
    pub fn get(&self, key: &str) -> Result<Option<HostTensor>> {
        self.tensors
            .get(key)
            .map(|(file, info)| self.read(key, &self.files[*file], info))
            .transpose()
    }

    /// The tensor `key`, which must be there.
    ///
    /// # Errors
    /// The file has no such tensor or its dtype is unusual.
    pub fn need(&self, key: &str) -> Result<HostTensor> {
        self.get(key)?
            .ok_or_else(|| self.problem(format!("tensor `{key}` is missing")))
    }

    /// Like [`need`](Self::need), as integers of shape `[rows, columns]` flattened.
    pub(crate) fn need_i32(&self, key: &str) -> Result<Vec<i32>> {
        self.need(key)?.to_i32().ok_or_else(|| {
            self.problem(format!(
                "tensor `{key}`: expected 32-bit integers, found other values"
            ))
        })
    }

    pub(crate) fn problem(&self, problem: impl Into<String>) -> GoldenError {
        GoldenError::Format {
            path: self.path.clone(),
            problem: problem.into(),
        }
    }

    fn read(&self, key: &str, file: &Opened, info: &TensorInfo) -> Result<HostTensor> {
        // `read_metadata` has checked that offsets are in order, inside the file, and fit the shape.
        let (start, end) = info.data_offsets;
        let raw = &file.bytes[file.data_start + start..file.data_start + end];
        fn each<const N: usize, T>(raw: &[u8], convert: fn([u8; N]) -> T) -> Vec<T> {
            raw.as_chunks::<N>().0.iter().map(|b| convert(*b)).collect()
        }
        let floats = |v| HostTensor::floats(info.shape.clone(), v);
        let ints = |v| HostTensor::ints(info.shape.clone(), v);
        let tensor = match info.dtype {
            Dtype::F64 => floats(each(raw, f64::from_le_bytes)),
            Dtype::F32 => floats(each(raw, |b| f64::from(f32::from_le_bytes(b)))),
            Dtype::F16 => floats(each(raw, |b| f64::from(f16::from_le_bytes(b)))),
            Dtype::BF16 => floats(each(raw, |b| f64::from(bf16::from_le_bytes(b)))),
            Dtype::I64 => ints(each(raw, i64::from_le_bytes)),
            Dtype::I32 => ints(each(raw, |b| i64::from(i32::from_le_bytes(b)))),
            Dtype::I16 => ints(each(raw, |b| i64::from(i16::from_le_bytes(b)))),
            Dtype::I8 => ints(each(raw, |b| i64::from(i8::from_le_bytes(b)))),
            Dtype::U8 | Dtype::BOOL => ints(each(raw, |[b]: [u8; 1]| i64::from(b))),
            Dtype::U16 => ints(each(raw, |b| i64::from(u16::from_le_bytes(b)))),
            Dtype::U32 => ints(each(raw, |b| i64::from(u32::from_le_bytes(b)))),
            _ => None,
        };
        tensor.ok_or_else(|| GoldenError::Format {
            path: file.path.clone(),
            problem: format!(
                "tensor `{key}`: dtype {:?} is not used by goldens; expected F64, F32, F16, BF16 or an integer",
                info.dtype
            ),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use safetensors::tensor::TensorView;

    fn write(dir: &Path, views: Vec<(&str, TensorView<'_>)>) -> PathBuf {
        let path = dir.join("golden.safetensors");
        safetensors::serialize_to_file(views, None, &path).unwrap();
        path
    }

    #[test]
    fn reads_every_dtype_that_goldens_use() {
        let dir = tempfile::tempdir().unwrap();
        let f = 1.5f32.to_le_bytes();
        let d = (-2.25f64).to_le_bytes();
        let i = (-7i64).to_le_bytes();
        let h = f16::from_f32(0.5).to_le_bytes();
        let path = write(
            dir.path(),
            vec![
                ("f", TensorView::new(Dtype::F32, vec![1], &f).unwrap()),
                ("d", TensorView::new(Dtype::F64, vec![1], &d).unwrap()),
                ("i", TensorView::new(Dtype::I64, vec![1, 1], &i).unwrap()),
                ("h", TensorView::new(Dtype::F16, vec![1], &h).unwrap()),
            ],
        );
        let golden = GoldenFile::open(path).unwrap();
        assert_eq!(golden.need("f").unwrap(), HostTensor::list(vec![1.5]));
        assert_eq!(golden.need("d").unwrap(), HostTensor::list(vec![-2.25]));
        assert_eq!(golden.need("h").unwrap(), HostTensor::list(vec![0.5]));
        assert_eq!(golden.need_i32("i").unwrap(), vec![-7]);
        assert_eq!(golden.get("absent").unwrap(), None);
        assert!(golden.need("absent").is_err());
    }

    #[test]
    fn an_empty_or_broken_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = write(dir.path(), vec![]);
        assert!(matches!(
            GoldenFile::open(&path),
            Err(GoldenError::Empty { .. })
        ));
        std::fs::write(&path, b"<!DOCTYPE html>").unwrap();
        assert!(matches!(
            GoldenFile::open(&path),
            Err(GoldenError::Format { .. })
        ));
    }
}
