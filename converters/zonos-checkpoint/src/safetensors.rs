//! `.safetensors`: one file, or shards under an index.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use burn::tensor::{BoolStore, DType};
use safetensors::tensor::{Metadata, SafeTensorError};
use safetensors::{Dtype, SafeTensors};
use serde_json::{Map, Value};

use crate::CheckpointError;
use crate::format::{self, Format};
use crate::mapped::MappedFile;
use crate::opened::{Opened, Skipped};
use crate::sidecar::read_json;
use crate::tensor::{Entry, Location};

/// Reads the header of a single file.
pub(crate) fn open(map: &Arc<MappedFile>) -> Result<Opened, CheckpointError> {
    let mut opened = Opened::new(Format::Safetensors);
    let header = read_header(map)?;
    opened.set_flat_metadata(flat(&header));
    for name in header.offset_keys() {
        add(&mut opened, map, &header, &name)?;
    }
    Ok(opened)
}

/// Reads the headers of the shards that `index` names. The index is an allow-list: a tensor is
/// taken only from the shard it is mapped to, whatever else the shards or the folder hold.
pub(crate) fn open_index(index: &Path) -> Result<Opened, CheckpointError> {
    let wrong = |reason: String| CheckpointError::ShardIndex {
        path: index.into(),
        reason,
    };
    let json = read_json(index)?;
    let Some(Value::Object(weight_map)) = json.get("weight_map") else {
        return Err(wrong(
            "no 'weight_map' object; a shard index maps tensor names to files".into(),
        ));
    };
    let mut shards: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (name, shard) in weight_map {
        let Value::String(shard) = shard else {
            return Err(wrong(format!(
                "tensor '{name}' is not mapped to a file name"
            )));
        };
        if !is_plain_file_name(shard) {
            return Err(wrong(format!(
                "tensor '{name}' is mapped to '{shard}'; only files beside the index are read, path parts are refused"
            )));
        }
        shards.entry(shard).or_default().insert(name);
    }

    let folder = index.parent().unwrap_or(Path::new("."));
    let mut opened = Opened::new(Format::SafetensorsSharded);
    let mut metadata = match json.get("metadata") {
        Some(Value::Object(map)) => map.clone(),
        _ => Map::new(),
    };
    let mut unlisted = 0usize;
    for (shard, names) in &shards {
        let path = folder.join(shard);
        let map = match MappedFile::open(&path) {
            Ok(map) => map,
            Err(CheckpointError::NotFound { .. }) => {
                return Err(wrong(format!(
                    "shard '{shard}' ({} tensors) is missing in {}; download it",
                    names.len(),
                    folder.display()
                )));
            }
            Err(other) => return Err(other),
        };
        if format::detect(&map)? != Format::Safetensors {
            return Err(wrong(format!("shard '{shard}' is not a safetensors file")));
        }
        let header = read_header(&map)?;
        for (key, value) in flat(&header) {
            metadata.entry(key).or_insert(value);
        }
        let mut missing: BTreeSet<&str> = names.clone();
        for name in header.offset_keys() {
            if missing.remove(name.as_str()) {
                add(&mut opened, &map, &header, &name)?;
            } else {
                unlisted += 1;
            }
        }
        if let Some(name) = missing.first() {
            return Err(wrong(format!(
                "tensor '{name}' is mapped to shard '{shard}', which does not hold it ({} such in this shard); index and shards belong to different downloads",
                missing.len()
            )));
        }
    }
    opened.set_flat_metadata(metadata);
    if unlisted > 0 {
        opened.notices.push(format!(
            "ignored {unlisted} tensors that shards hold but the index maps elsewhere or not at all"
        ));
    }
    let stray = stray_files(folder, &shards);
    if !stray.is_empty() {
        opened.notices.push(format!(
            "ignored files that the index does not name: {}",
            stray.join(", ")
        ));
    }
    Ok(opened)
}

/// A file name and nothing else: no separators, no parent, no drive.
pub(crate) fn is_plain_file_name(name: &str) -> bool {
    !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\\', ':', '\0'])
}

fn stray_files(folder: &Path, shards: &BTreeMap<&str, BTreeSet<&str>>) -> Vec<String> {
    let Ok(dir) = std::fs::read_dir(folder) else {
        return Vec::new();
    };
    let mut names: Vec<String> = dir
        .filter_map(|e| e.ok()?.file_name().into_string().ok())
        .filter(|n| n.ends_with(".safetensors") && !shards.contains_key(n.as_str()))
        .collect();
    names.sort();
    names
}

fn flat(header: &Metadata) -> Map<String, Value> {
    let pairs: BTreeMap<_, _> = header.metadata().iter().flatten().collect();
    pairs
        .into_iter()
        .map(|(k, v)| (k.clone(), Value::String(v.clone())))
        .collect()
}

/// The header; `header.data_start` is not kept because [`add`] computes offsets from the length.
fn read_header(map: &MappedFile) -> Result<Metadata, CheckpointError> {
    let bytes = map.bytes();
    let have = bytes.len() as u64;
    let path = PathBuf::from(map.path());
    match SafeTensors::read_metadata(bytes) {
        Ok((_, metadata)) => Ok(metadata),
        Err(SafeTensorError::InvalidHeaderLength) => Err(CheckpointError::Truncated {
            path,
            expected: header_length(bytes).saturating_add(8),
            have,
        }),
        Err(SafeTensorError::MetadataIncompleteBuffer) => match data_length(bytes) {
            Some(data) => {
                let expected = data.saturating_add(header_length(bytes)).saturating_add(8);
                if expected > have {
                    return Err(CheckpointError::Truncated {
                        path,
                        expected,
                        have,
                    });
                }
                Err(CheckpointError::malformed(
                    path,
                    format!("{} bytes follow the last tensor", have - expected),
                ))
            }
            None => Err(CheckpointError::malformed(
                path,
                "header and file size disagree",
            )),
        },
        Err(e) => Err(CheckpointError::malformed(
            path,
            first_fault(bytes).unwrap_or_else(|| format!("safetensors header: {e}")),
        )),
    }
}

/// The first thing wrong with a header that was refused, with the tensor and the byte counts, which
/// the refusal itself does not tell.
fn first_fault(bytes: &[u8]) -> Option<String> {
    let end = usize::try_from(header_length(bytes)).ok()?.checked_add(8)?;
    let header: Map<String, Value> = match serde_json::from_slice(bytes.get(8..end)?) {
        Ok(header) => header,
        Err(e) => return Some(format!("the safetensors header is not valid JSON: {e}")),
    };
    let mut tensors = Vec::new();
    for (name, info) in header.iter().filter(|(name, _)| *name != "__metadata__") {
        let place = |what: &str| Some(format!("tensor '{name}': {what}"));
        let pair = info["data_offsets"].as_array().and_then(|o| match &o[..] {
            [from, to] => Some((from.as_u64()?, to.as_u64()?)),
            _ => None,
        });
        let Some((from, to)) = pair else {
            return place("no valid 'data_offsets' in the safetensors header");
        };
        let Ok(dtype) = serde_json::from_value::<Dtype>(info["dtype"].clone()) else {
            return place(&format!("unknown dtype {}", info["dtype"]));
        };
        let Ok(shape) = serde_json::from_value::<Vec<u64>>(info["shape"].clone()) else {
            return place("no valid 'shape' in the safetensors header");
        };
        tensors.push((from, to, name, dtype, shape));
    }
    tensors.sort_by_key(|(from, to, ..)| (*from, *to));
    let mut at = 0;
    for (from, to, name, dtype, shape) in tensors {
        if from != at || to < from {
            return Some(format!(
                "tensor '{name}': expected its data to begin at byte {at}, where the tensor before it ends, found bytes {from} to {to}"
            ));
        }
        let bits = shape
            .iter()
            .try_fold(dtype.bitsize() as u64, |n, &d| n.checked_mul(d));
        let Some(bits) = bits else {
            return Some(format!("tensor '{name}': shape {shape:?} is too large"));
        };
        if bits.div_ceil(8) != to - from {
            return Some(format!(
                "tensor '{name}': expected {} bytes for {dtype:?} {shape:?}, found {}",
                bits.div_ceil(8),
                to - from
            ));
        }
        at = to;
    }
    None
}

fn header_length(bytes: &[u8]) -> u64 {
    bytes
        .first_chunk::<8>()
        .map_or(0, |c| u64::from_le_bytes(*c))
}

/// Where the last tensor ends, relative to the end of the header.
fn data_length(bytes: &[u8]) -> Option<u64> {
    #[derive(serde::Deserialize)]
    struct Info {
        data_offsets: Option<(u64, u64)>,
    }
    let end = usize::try_from(header_length(bytes)).ok()?.checked_add(8)?;
    let header: HashMap<String, Info> = serde_json::from_slice(bytes.get(8..end)?).ok()?;
    header
        .values()
        .filter_map(|i| Some(i.data_offsets?.1))
        .max()
}

fn add(
    opened: &mut Opened,
    map: &Arc<MappedFile>,
    header: &Metadata,
    name: &str,
) -> Result<(), CheckpointError> {
    let Some(info) = header.info(name) else {
        return Ok(());
    };
    let Some(dtype) = dtype(info.dtype) else {
        opened.notices.push(format!(
            "skipped '{name}': elements of type {:?} are not read",
            info.dtype
        ));
        opened.skipped.push(Skipped {
            name: name.into(),
            what: format!("a tensor of {:?}", info.dtype),
        });
        return Ok(());
    };
    let start = map.len() - header.data_len();
    let (from, to) = info.data_offsets;
    let entry = Entry::new(
        name.into(),
        Location {
            map: map.clone(),
            storage: start + from..start + to,
            dtype,
            first: 0,
            shape: info.shape.clone(),
            strides: None,
        },
    )
    .map_err(|reason| {
        CheckpointError::malformed(map.path(), format!("tensor '{name}': {reason}"))
    })?;
    opened.entries.push(entry);
    Ok(())
}

fn dtype(dtype: Dtype) -> Option<DType> {
    Some(match dtype {
        Dtype::F64 => DType::F64,
        Dtype::F32 => DType::F32,
        Dtype::F16 => DType::F16,
        Dtype::BF16 => DType::BF16,
        Dtype::I64 => DType::I64,
        Dtype::I32 => DType::I32,
        Dtype::I16 => DType::I16,
        Dtype::I8 => DType::I8,
        Dtype::U64 => DType::U64,
        Dtype::U32 => DType::U32,
        Dtype::U16 => DType::U16,
        Dtype::U8 => DType::U8,
        Dtype::BOOL => DType::Bool(BoolStore::Native),
        _ => return None,
    })
}

/// The safetensors spelling of a dtype; `None` for what that format cannot say.
pub(crate) fn dtype_name(dtype: DType) -> Option<&'static str> {
    Some(match dtype {
        DType::F64 => "F64",
        DType::F32 | DType::Flex32 => "F32",
        DType::F16 => "F16",
        DType::BF16 => "BF16",
        DType::I64 => "I64",
        DType::I32 => "I32",
        DType::I16 => "I16",
        DType::I8 => "I8",
        DType::U64 => "U64",
        DType::U32 => "U32",
        DType::U16 => "U16",
        DType::U8 => "U8",
        DType::Bool(BoolStore::Native | BoolStore::U8) => "BOOL",
        _ => return None,
    })
}
