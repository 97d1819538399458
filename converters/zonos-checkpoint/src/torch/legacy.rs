//! The legacy stream: pickles of the magic number, the protocol (1001), system facts, the object
//! and the list of storage keys; then for each key a little-endian `i64` element count and the
//! elements.

use std::collections::HashMap;
use std::sync::Arc;

use super::pickle::Value;
use super::{Container, MAX_PICKLE, Pickle, storage_width};
use crate::CheckpointError;
use crate::mapped::MappedFile;

pub(super) fn read(map: &Arc<MappedFile>) -> Result<Container, CheckpointError> {
    let path = map.path();
    let bytes = map.bytes();
    let mut at = 0;
    let mut next = |what: &str| -> Result<Pickle, CheckpointError> {
        let rest = &bytes[at..];
        let pickle = Pickle::parse(&rest[..rest.len().min(MAX_PICKLE)])
            .map_err(|e| CheckpointError::malformed(path, format!("{what}: {e}")))?;
        at += pickle.consumed;
        Ok(pickle)
    };
    next("magic number")?;
    next("protocol")?;
    let system = next("system facts")?;
    if let Value::Dict(items) = system.get(system.root) {
        for &(key, value) in items {
            if system.text(key).as_deref() == Some("little_endian")
                && matches!(system.get(value), Value::Bool(false))
            {
                return Err(CheckpointError::unsupported(
                    path,
                    "written on a big-endian machine; save it again on a little-endian one",
                ));
            }
        }
    }
    let pickle = next("object")?;
    let keys = next("storage keys")?;

    let mut widths: HashMap<&str, usize> = HashMap::new();
    for value in &pickle.values {
        if let Value::Storage(storage) = value
            && let Some(width) = storage_width(&storage.class)
        {
            let known = widths.entry(&storage.key).or_insert(width);
            // An untyped view of a typed storage counts bytes; the typed one knows the width.
            *known = (*known).max(width);
        }
    }
    let Value::List(list) = keys.get(keys.root) else {
        return Err(CheckpointError::malformed(
            path,
            "the storage keys are not a list",
        ));
    };
    let mut storages = HashMap::new();
    for &key in list {
        let Some(key) = keys.text(key) else {
            return Err(CheckpointError::malformed(
                path,
                "a storage key is not a string",
            ));
        };
        let Some(&width) = widths.get(&*key) else {
            return Err(CheckpointError::malformed(
                path,
                format!("storage '{key}' is stored but no tensor uses it, so its size is unknown"),
            ));
        };
        let truncated = |expected: Option<usize>| CheckpointError::Truncated {
            path: path.into(),
            expected: expected.unwrap_or(usize::MAX) as u64,
            have: bytes.len() as u64,
        };
        let start = at.checked_add(8).filter(|&s| s <= bytes.len());
        let start = start.ok_or_else(|| truncated(at.checked_add(8)))?;
        let count = bytes[at..start]
            .first_chunk::<8>()
            .and_then(|c| usize::try_from(i64::from_le_bytes(*c)).ok())
            .ok_or_else(|| {
                CheckpointError::malformed(path, format!("storage '{key}' has a negative size"))
            })?;
        let end = count.checked_mul(width).and_then(|n| start.checked_add(n));
        let end = end
            .filter(|&e| e <= bytes.len())
            .ok_or_else(|| truncated(end))?;
        storages.insert(key.to_string(), start..end);
        at = end;
    }
    Ok(Container {
        pickle,
        storages,
        tensors: HashMap::new(),
    })
}
