//! `.pth` and `.pt` files: the three containers `torch.save` has written.
//!
//! Burn's `pytorch-reader` reads the same containers, and its source is a good description of them.
//! It is not used here because four things a model loader needs are not in its interface (version
//! 0.22.1): the file offset of a tensor (it hands out copies, so nothing can be memory-mapped), the
//! order of the names (a hash map), a list of what was skipped, and tensors beside plain values
//! in one pass over the file.

mod legacy;
mod pickle;
mod tar;
mod tree;
mod zip;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use burn::tensor::{BoolStore, DType};

use crate::CheckpointError;
use crate::format::Format;
use crate::mapped::MappedFile;
use crate::opened::{Opened, Skipped};
use crate::tensor::{Entry, Location};
use pickle::{Pickle, Storage, Value};
use tree::{Leaf, Tree};

/// Longest list of skipped objects that is printed one by one.
const MAX_LISTED: usize = 12;
/// Largest pickle read.
const MAX_PICKLE: usize = 256 << 20;

/// The parsed pickle of a container and where its data is.
struct Container {
    pickle: Pickle,
    /// Byte range of each storage in the file.
    storages: HashMap<String, Range<usize>>,
    /// Tensors named by persistent ids (tar).
    tensors: HashMap<String, TarTensor>,
}

struct TarTensor {
    storage: Range<usize>,
    class: String,
    first: usize,
    shape: Vec<usize>,
    strides: Vec<usize>,
}

/// Reads the names, shapes and places of all tensors of a torch file.
pub(crate) fn open(
    map: &Arc<MappedFile>,
    format: Format,
    key: Option<&str>,
) -> Result<Opened, CheckpointError> {
    let path = map.path();
    let container = match format {
        Format::TorchZip => zip::read(map)?,
        Format::TorchLegacy => legacy::read(map)?,
        _ => tar::read(map)?,
    };
    let tree = Tree::new(&container.pickle);
    let (weights, prefix) = tree.select(key).map_err(|available| CheckpointError::Key {
        path: path.into(),
        key: key.unwrap_or_default().into(),
        available,
    })?;
    let damaged = |reason: String| CheckpointError::malformed(path, reason);
    let mut opened = Opened::new(format);
    for (name, leaf) in tree.leaves(weights).map_err(damaged)? {
        let name = if name.is_empty() {
            "tensor".to_string()
        } else {
            name
        };
        let located = match leaf {
            Leaf::Tensor(t) => container.locate(t, map),
            Leaf::Reference(key) => container.locate_reference(key, map),
            Leaf::Foreign(what) => Found::Foreign(what),
        };
        match located {
            Found::At(location) => opened.entries.push(
                Entry::new(name.clone(), location)
                    .map_err(|reason| damaged(format!("tensor '{name}': {reason}")))?,
            ),
            Found::Foreign(what) => opened.skipped.push(Skipped { name, what }),
            Found::Damaged(reason) => return Err(damaged(format!("tensor '{name}': {reason}"))),
        }
    }

    let mut outside = Vec::new();
    opened.metadata = tree.json(weights, &mut outside);
    let all: Vec<String> = opened
        .skipped
        .iter()
        .map(|s| {
            let dot = if prefix.is_empty() { "" } else { "." };
            format!("'{prefix}{dot}{}' ({})", s.name, s.what)
        })
        .chain(
            outside
                .iter()
                .map(|(name, what)| format!("'{name}' ({what})")),
        )
        .collect();
    for line in all.iter().take(MAX_LISTED) {
        opened
            .notices
            .push(format!("skipped {line}: a Python object, not executed"));
    }
    if all.len() > MAX_LISTED {
        opened.notices.push(format!(
            "skipped {} further Python objects",
            all.len() - MAX_LISTED
        ));
    }
    if opened.entries.is_empty() {
        let what = match all.first() {
            Some(first) => format!("it holds no tensors, only Python objects such as {first}"),
            None => "it holds no tensors".to_string(),
        };
        return Err(CheckpointError::unsupported(
            path,
            format!("{what}; save a state_dict with torch.save(model.state_dict(), path)"),
        ));
    }
    Ok(opened)
}

enum Found {
    At(Location),
    Foreign(String),
    Damaged(String),
}

impl Container {
    fn locate(&self, tensor: &pickle::Tensor, map: &Arc<MappedFile>) -> Found {
        let Value::Storage(storage) = self.pickle.get(tensor.storage) else {
            return Found::Foreign("torch storage".into());
        };
        let Some(dtype) = dtype_of(storage, tensor.dtype.as_deref()) else {
            let name = tensor.dtype.as_deref().unwrap_or(&storage.class);
            return Found::Foreign(format!("a tensor of torch.{name}"));
        };
        let Some(range) = self.storages.get(&*storage.key) else {
            return Found::Damaged(format!("its storage '{}' is not in the file", storage.key));
        };
        let declared = storage_width(&storage.class).and_then(|w| storage.count.checked_mul(w));
        if declared.is_none_or(|bytes| bytes > range.len()) {
            return Found::Damaged(format!(
                "its storage '{}' should have {} elements of {}, the file has {} bytes of it",
                storage.key,
                storage.count,
                storage.class,
                range.len()
            ));
        }
        match storage.view_offset.checked_add(tensor.offset) {
            Some(first) => Found::At(Location {
                map: map.clone(),
                storage: range.clone(),
                dtype,
                first,
                shape: tensor.shape.clone(),
                strides: Some(tensor.strides.clone()),
            }),
            None => Found::Damaged("its offset overflows".into()),
        }
    }

    fn locate_reference(&self, key: &str, map: &Arc<MappedFile>) -> Found {
        let Some(tensor) = self.tensors.get(key) else {
            return Found::Foreign("a persistent object".into());
        };
        match storage_dtype(&tensor.class) {
            Some(dtype) => Found::At(Location {
                map: map.clone(),
                storage: tensor.storage.clone(),
                dtype,
                first: tensor.first,
                shape: tensor.shape.clone(),
                strides: Some(tensor.strides.clone()),
            }),
            None => Found::Foreign(format!("a tensor of torch.{}", tensor.class)),
        }
    }
}

/// The dtype of a tensor over `storage`: given explicitly, or by the storage's class.
fn dtype_of(storage: &Storage, explicit: Option<&str>) -> Option<DType> {
    match explicit {
        None => storage_dtype(&storage.class),
        Some(name) => Some(match name {
            "float64" | "double" => DType::F64,
            "float32" | "float" => DType::F32,
            "float16" | "half" => DType::F16,
            "bfloat16" => DType::BF16,
            "int64" | "long" => DType::I64,
            "int32" | "int" => DType::I32,
            "int16" | "short" => DType::I16,
            "int8" => DType::I8,
            "uint64" => DType::U64,
            "uint32" => DType::U32,
            "uint16" => DType::U16,
            "uint8" => DType::U8,
            "bool" => DType::Bool(BoolStore::Native),
            _ => return None,
        }),
    }
}

fn storage_dtype(class: &str) -> Option<DType> {
    Some(match class {
        "DoubleStorage" => DType::F64,
        "FloatStorage" => DType::F32,
        "HalfStorage" => DType::F16,
        "BFloat16Storage" => DType::BF16,
        "LongStorage" => DType::I64,
        "IntStorage" => DType::I32,
        "ShortStorage" => DType::I16,
        "CharStorage" => DType::I8,
        "ByteStorage" => DType::U8,
        "BoolStorage" => DType::Bool(BoolStore::Native),
        _ => return None,
    })
}

/// Bytes per element of a storage class, also for classes whose tensors are not read.
fn storage_width(class: &str) -> Option<usize> {
    if let Some(dtype) = storage_dtype(class) {
        return Some(dtype.size());
    }
    Some(match class {
        "UntypedStorage" | "QInt8Storage" | "QUInt8Storage" => 1,
        "QInt32Storage" => 4,
        "ComplexFloatStorage" => 8,
        "ComplexDoubleStorage" => 16,
        _ => return None,
    })
}
