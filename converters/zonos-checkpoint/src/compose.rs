//! A `.safetensors` file put together from tensors of several checkpoints.

use std::ops::ControlFlow;
use std::path::Path;

use burn::tensor::{Bytes, DType, TensorData};
use half::{bf16, f16};
use serde_json::{Map, Value};

use crate::convert::{ConvertProgress, Counter, ask};
use crate::output::{cannot_write, write_atomically};
use crate::safetensors::dtype_name;
use crate::tensor::Entry;
use crate::values::{floats, is_float};
use crate::{Checkpoint, CheckpointError};

/// Bytes written between two questions whether to go on.
const PIECE: usize = 16 << 20;

/// A tensor on its way into a file: its name there, and where its values come from.
///
/// ```
/// use burn::tensor::{DType, TensorData};
/// use std::ops::ControlFlow;
/// use zonos_checkpoint::{Checkpoint, Part, compose};
///
/// # let dir = tempfile::tempdir()?;
/// # let file = dir.path().join("both.safetensors");
/// let weight = TensorData::new(vec![1.0f32, 0.5], [2]);
/// let parts = [Part::own("half.weight", weight).cast(DType::BF16)];
/// let note = [("kind".to_owned(), "example".to_owned())];
/// compose(&parts, &note, &file, &mut |_| ControlFlow::Continue(()))?;
/// assert_eq!(Checkpoint::open(&file)?.metadata()["kind"], "example");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct Part<'a> {
    name: String,
    dtype: DType,
    shape: Vec<usize>,
    source: Source<'a>,
}

#[derive(Debug, Clone)]
enum Source<'a> {
    /// Read when it is written.
    File(&'a Entry),
    Own(TensorData),
}

impl<'a> Part<'a> {
    /// Tensor `name` of `checkpoint` under its own name, in its own dtype.
    ///
    /// # Errors
    ///
    /// When there is no such tensor.
    pub fn copied(checkpoint: &'a Checkpoint, name: &str) -> Result<Self, CheckpointError> {
        let Some(entry) = checkpoint.entry(name) else {
            return Err(CheckpointError::NoSuchTensor {
                path: checkpoint.path().into(),
                name: name.into(),
                detail: String::new(),
            });
        };
        Ok(Self::of(entry))
    }

    pub(crate) fn of(entry: &'a Entry) -> Self {
        Self {
            name: entry.name.clone(),
            dtype: entry.info.dtype,
            shape: entry.info.shape.clone(),
            source: Source::File(entry),
        }
    }

    /// Values from elsewhere.
    pub fn own(name: impl Into<String>, data: TensorData) -> Self {
        Self {
            name: name.into(),
            dtype: data.dtype(),
            shape: data.shape().to_vec(),
            source: Source::Own(data),
        }
    }

    /// The same under another name.
    #[must_use]
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// The same, written as F32, F16 or BF16, rounded to nearest. Tensors of integers stay as they
    /// are, and so does everything for another `dtype`.
    #[must_use]
    pub fn cast(mut self, dtype: DType) -> Self {
        if is_float(self.dtype) && matches!(dtype, DType::F32 | DType::F16 | DType::BF16) {
            self.dtype = dtype;
        }
        self
    }

    /// Its name in the file to be written.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its shape.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn bytes(&self) -> u64 {
        let elements = self.shape.iter().map(|&d| d as u64);
        elements.product::<u64>() * self.dtype.size() as u64
    }

    fn data(&self) -> Result<TensorData, CheckpointError> {
        let data = match &self.source {
            Source::File(entry) => entry.data()?,
            Source::Own(data) => data.clone(),
        };
        if data.dtype() == self.dtype {
            return Ok(data);
        }
        let converted = floats(data.bytes(), data.dtype()).map(|values| match self.dtype {
            DType::F16 => Bytes::from_elems(values.into_iter().map(f16::from_f32).collect()),
            DType::BF16 => Bytes::from_elems(values.into_iter().map(bf16::from_f32).collect()),
            _ => Bytes::from_elems(values),
        });
        converted
            .and_then(|b| TensorData::try_from_bytes(b, self.shape.clone(), self.dtype).ok())
            .ok_or_else(|| CheckpointError::Output {
                path: self.name.clone().into(),
                reason: format!("its values cannot be read as {:?}", self.dtype),
            })
    }
}

/// Writes `parts` and the text notes `metadata` to `out`, a `.safetensors` file, in the order given
/// but for dtypes: wide ones come first, so that every tensor is aligned. Values are read one tensor
/// at a time. The file appears whole or not at all.
///
/// `progress` is asked before every tensor, and every 16 MiB, whether to go on.
///
/// # Errors
///
/// Two parts of one name, a dtype that the format lacks, values that cannot be read, a file that
/// cannot be written; [`CheckpointError::Stopped`] after [`ControlFlow::Break`].
pub fn compose(
    parts: &[Part<'_>],
    metadata: &[(String, String)],
    out: impl AsRef<Path>,
    progress: &mut dyn FnMut(&ConvertProgress) -> ControlFlow<()>,
) -> Result<(), CheckpointError> {
    let out = out.as_ref();
    let refuse = |reason: String| CheckpointError::Output {
        path: out.into(),
        reason,
    };
    let mut header = Map::new();
    let notes: Map<String, Value> = metadata
        .iter()
        .map(|(key, value)| (key.clone(), Value::String(value.clone())))
        .collect();
    header.insert("__metadata__".into(), Value::Object(notes));
    let mut ordered: Vec<&Part<'_>> = parts.iter().collect();
    ordered.sort_by_key(|part| std::cmp::Reverse(part.dtype.size()));
    let mut at = 0u64;
    for part in &ordered {
        let dtype = dtype_name(part.dtype).ok_or_else(|| {
            refuse(format!(
                "safetensors has no dtype for '{}' ({:?})",
                part.name, part.dtype
            ))
        })?;
        let end = at + part.bytes();
        let entry = serde_json::json!({
            "dtype": dtype,
            "shape": part.shape,
            "data_offsets": [at, end],
        });
        if header.insert(part.name.clone(), entry).is_some() {
            return Err(refuse(format!("two tensors are called '{}'", part.name)));
        }
        at = end;
    }
    let mut header = Value::Object(header).to_string().into_bytes();
    // Spaces after the JSON put the first tensor on a multiple of 64 bytes.
    let padded = (8 + header.len()).next_multiple_of(64) - 8;
    header.resize(padded, b' ');

    let mut counter = Counter::of(ordered.len(), at);
    write_atomically(out, |file| {
        let error = |e: std::io::Error| cannot_write(out, &e);
        file.write_all(&(header.len() as u64).to_le_bytes())
            .and_then(|()| file.write_all(&header))
            .map_err(error)?;
        for part in ordered {
            let mut now = counter.next(&part.name, part.bytes());
            ask(progress, &now, out)?;
            let data = part.data()?;
            for (i, piece) in data.bytes().chunks(PIECE).enumerate() {
                if i > 0 {
                    ask(progress, &now, out)?;
                }
                file.write_all(piece).map_err(error)?;
                now.bytes_done += piece.len() as u64;
            }
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn go(_: &ConvertProgress) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    #[test]
    fn tensors_of_two_files_meet_in_one() {
        let dir = tempfile::tempdir().unwrap();
        let (first, second) = (
            dir.path().join("a.safetensors"),
            dir.path().join("b.safetensors"),
        );
        let values = vec![
            1.0f32,
            -0.333_333_34,
            65_504.0,
            1e-8,
            f32::NAN,
            f32::INFINITY,
        ];
        let own = Part::own("w", TensorData::new(values.clone(), [2, 3]));
        let counts = Part::own("n", TensorData::new(vec![1i64, 2], [2]));
        compose(&[own, counts], &[], &first, &mut go).unwrap();
        let checkpoint = Checkpoint::open(&first).unwrap();
        let copied = |name| Part::copied(&checkpoint, name).unwrap();
        let parts = [
            copied("w").named("half").cast(DType::F16),
            copied("w").named("brain").cast(DType::BF16),
            copied("w"),
            // Integers are not rounded to anything.
            copied("n").cast(DType::BF16),
        ];
        let notes = [("kind".to_owned(), "test \u{2713}".to_owned())];
        compose(&parts, &notes, &second, &mut go).unwrap();

        let made = Checkpoint::open(&second).unwrap();
        assert_eq!(made.metadata()["kind"], "test \u{2713}");
        let data = |name: &str| made.tensor_data(name).unwrap();
        assert_eq!(data("n").try_to_vec::<i64>().unwrap(), [1, 2]);
        assert_eq!(data("w").dtype(), DType::F32);
        assert_eq!(
            (data("half").dtype(), data("brain").dtype()),
            (DType::F16, DType::BF16)
        );
        let half: Vec<f16> = data("half").try_to_vec().unwrap();
        let brain: Vec<bf16> = data("brain").try_to_vec().unwrap();
        for (i, &x) in values.iter().enumerate() {
            assert_eq!(half[i].to_bits(), f16::from_f32(x).to_bits());
            assert_eq!(brain[i].to_bits(), bf16::from_f32(x).to_bits());
        }
    }

    #[test]
    fn doubles_and_stops_leave_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("a.safetensors");
        let part = || Part::own("w", TensorData::new(vec![0.0f32], [1]));
        let error = compose(&[part(), part()], &[], &out, &mut go).unwrap_err();
        assert!(error.to_string().contains("'w'"), "{error}");
        let stopped = compose(&[part()], &[], &out, &mut |_| ControlFlow::Break(()));
        assert!(matches!(stopped, Err(CheckpointError::Stopped { .. })));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
