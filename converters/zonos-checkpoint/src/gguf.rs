//! GGUF files, parsed by `zonos-gguf` over our mapping.

use std::sync::Arc;

use burn::tensor::DType;
use serde_json::{Map, Value as Json};
use zonos_gguf::{GgmlType, GgufFile, TensorInfo, Value};

use crate::CheckpointError;
use crate::abridged::abridged;
use crate::format::Format;
use crate::mapped::MappedFile;
use crate::opened::{Opened, Skipped};
use crate::tensor::{Entry, Location};

/// An array with more elements than this (a vocabulary) is described, not copied into the metadata.
const MAX_LISTED: usize = 4096;

/// Metadata keys that begin so hold a file such as `params.json` as a text.
pub const SIDECAR_PREFIX: &str = "zonos.sidecar.";

/// Reads names, shapes, types and places, in file order. Types without a decoder are listed as
/// skipped.
pub(crate) fn open(map: &Arc<MappedFile>) -> Result<Opened, CheckpointError> {
    let path = map.path();
    let file = GgufFile::read(path.display().to_string(), map.shared())?;
    let mut opened = Opened::new(Format::Gguf);
    let mut fields = Map::new();
    for (key, value) in file.metadata().iter() {
        let sidecar = key.strip_prefix(SIDECAR_PREFIX);
        match (sidecar, value.as_str().map(serde_json::from_str)) {
            (Some(name), Some(Ok(parsed))) => {
                opened.sidecars.insert(name.into(), parsed);
            }
            _ => {
                fields.insert(key.into(), json(value));
            }
        }
    }
    opened.metadata = Json::Object(fields);
    let trailing = file.trailing_bytes();
    if trailing > 0 {
        opened.notices.push(trailing_notice(trailing));
    }
    let base = map.bytes().as_ptr() as usize;
    for tensor in file.tensors() {
        let name = tensor.name().to_owned();
        let bytes = file.tensor_bytes(tensor)?;
        // A window into the mapping, so its address says where it is.
        let start = bytes.as_ptr() as usize - base;
        let range = start..start + bytes.len();
        let entry = match dtype(tensor.ggml_type()) {
            Some(dtype) => Entry::new(
                name,
                Location {
                    map: map.clone(),
                    storage: range,
                    dtype,
                    first: 0,
                    shape: tensor.shape(),
                    strides: None,
                },
            )
            .map_err(|reason| {
                CheckpointError::malformed(path, format!("tensor '{}': {reason}", tensor.name()))
            })?,
            None if tensor.ggml_type().is_readable() => {
                Entry::blocks(name, map.clone(), range, tensor.ggml_type(), tensor.shape())
            }
            None => {
                skip(&mut opened, tensor);
                continue;
            }
        };
        opened.entries.push(entry);
    }
    Ok(opened)
}

/// What is said of bytes that a GGUF file has behind its last tensor.
fn trailing_notice(bytes: u64) -> String {
    let (noun, verb) = if bytes == 1 {
        ("byte", "belongs")
    } else {
        ("bytes", "belong")
    };
    format!(
        "{bytes} {noun} after the last tensor {verb} to nothing and are not read; if nobody put them there, fetch or convert the file again"
    )
}

fn skip(opened: &mut Opened, tensor: &TensorInfo) {
    let what = format!("a tensor of type {}", tensor.ggml_type());
    opened.notices.push(format!(
        "'{}' is of type {}, which is not decoded here; quantise the model to another type",
        tensor.name(),
        tensor.ggml_type()
    ));
    opened.skipped.push(Skipped {
        name: tensor.name().into(),
        what,
    });
}

/// The dtype of types that are plain numbers.
fn dtype(ggml_type: GgmlType) -> Option<DType> {
    Some(match ggml_type {
        GgmlType::F64 => DType::F64,
        GgmlType::F32 => DType::F32,
        GgmlType::F16 => DType::F16,
        GgmlType::Bf16 => DType::BF16,
        GgmlType::I64 => DType::I64,
        GgmlType::I32 => DType::I32,
        GgmlType::I16 => DType::I16,
        GgmlType::I8 => DType::I8,
        _ => return None,
    })
}

fn json(value: &Value) -> Json {
    if let Some(array) = value.as_array() {
        if array.len() > MAX_LISTED {
            return format!("{} values of {}", array.len(), array.element_type()).into();
        }
        return array.iter().map(|v| json(&v)).collect();
    }
    match value {
        // As it is written: 1e-5 is not 9.99999974e-6.
        Value::F32(v) => v.to_string().parse::<f64>().map_or(Json::Null, Json::from),
        Value::F64(v) => Json::from(*v),
        Value::Bool(v) => Json::from(*v),
        Value::String(v) => Json::from(v.as_str()),
        other => match other.as_integer() {
            Some(v) => i64::try_from(v)
                .map(Json::from)
                .or_else(|_| u64::try_from(v).map(Json::from))
                .unwrap_or(Json::Null),
            None => Json::Null,
        },
    }
}

/// The metadata of a checkpoint that was read from a GGUF file, as typed fields.
///
/// Keys stand flat, dots and all: `general.architecture`.
#[derive(Debug, Clone, Copy)]
pub struct GgufFields<'a>(&'a Map<String, Json>);

impl<'a> GgufFields<'a> {
    /// The fields of `checkpoint` when it is a GGUF file of architecture `architecture`, or one that was
    /// converted to another container and kept its metadata.
    pub fn of(checkpoint: &'a crate::Checkpoint, architecture: &str) -> Option<Self> {
        let fields = checkpoint.metadata().as_object()?;
        let found = fields.get("general.architecture")?.as_str()?;
        (found == architecture).then_some(Self(fields))
    }

    /// The value under `key`, when there is one.
    pub fn get(&self, key: &str) -> Option<&'a Json> {
        self.0.get(key)
    }

    /// A whole number.
    ///
    /// # Errors
    ///
    /// Names the key, and what stands there.
    pub fn count(&self, key: &str) -> Result<usize, String> {
        let value = self.required(key)?;
        let number = value.as_u64().and_then(|v| usize::try_from(v).ok());
        number.ok_or_else(|| {
            format!(
                "`{key}` should be a whole number, found {}",
                abridged(value)
            )
        })
    }

    /// A number.
    ///
    /// # Errors
    ///
    /// As [`GgufFields::count`].
    pub fn number(&self, key: &str) -> Result<f64, String> {
        let value = self.required(key)?;
        let number = value.as_f64();
        number.ok_or_else(|| {
            // What JSON has no number for.
            let found = match value {
                Json::Null => "NaN or infinity".to_owned(),
                other => abridged(other),
            };
            format!("`{key}` should be a number, found {found}")
        })
    }

    /// A list of whole numbers.
    ///
    /// # Errors
    ///
    /// As [`GgufFields::count`].
    pub fn counts(&self, key: &str) -> Result<Vec<usize>, String> {
        let value = self.required(key)?;
        let list = value.as_array().and_then(|list| {
            let whole = |v: &Json| v.as_u64().and_then(|v| usize::try_from(v).ok());
            list.iter().map(whole).collect()
        });
        list.ok_or_else(|| {
            format!(
                "`{key}` should be a list of whole numbers, found {}",
                abridged(value)
            )
        })
    }

    fn required(&self, key: &str) -> Result<&'a Json, String> {
        self.get(key)
            .ok_or_else(|| format!("the metadata has no `{key}`"))
    }
}
