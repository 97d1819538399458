//! Burn's `.bpk` container, parsed by `burn-pack` over our mapping.

use std::sync::Arc;

use burn::tensor::{AllocationProperty, Bytes, DType};
use burn_pack::{Reader, Scalar};
use serde_json::{Map, Value};

use crate::CheckpointError;
use crate::format::Format;
use crate::mapped::MappedFile;
use crate::opened::Opened;
use crate::tensor::{Entry, Location};

/// Reads names, shapes and places; names come in alphabetical order, as the container stores them.
pub(crate) fn open(map: &Arc<MappedFile>) -> Result<Opened, CheckpointError> {
    let path = map.path();
    let damaged = |e: String| CheckpointError::malformed(path, format!("burnpack: {e}"));
    let source = Bytes::from_shared(map.shared(), AllocationProperty::File);
    let reader = Reader::from_bytes(source).map_err(|e| damaged(e.to_string()))?;

    let mut opened = Opened::new(Format::Burnpack);
    let mut flat: Map<String, Value> = reader
        .metadata()
        .iter()
        .map(|(k, v)| (k.clone(), Value::String(v.clone())))
        .collect();
    for (key, scalar) in reader.scalars() {
        let value = match *scalar {
            Scalar::Int(v) => v.into(),
            Scalar::UInt(v) => v.into(),
            Scalar::Float(v) => v.into(),
            Scalar::Bool(v) => v.into(),
        };
        flat.entry(key.clone()).or_insert(value);
    }
    opened.set_flat_metadata(flat);

    let base = map.bytes().as_ptr() as usize;
    for tensor in reader.into_tensors().map_err(|e| damaged(e.to_string()))? {
        let name = tensor.name.clone();
        let shape = tensor.shape.to_vec();
        let dtype = tensor.dtype;
        let bytes = tensor.to_bytes().map_err(|e| damaged(e.to_string()))?;
        // The bytes are a window into the mapping, so their address says where they are.
        let start = (bytes.as_ptr() as usize).wrapping_sub(base);
        let range = start..start.wrapping_add(bytes.len());
        if range.end > map.len() || range.start > range.end {
            return Err(damaged(format!("tensor '{name}' lies outside the file")));
        }
        opened.entries.push(if matches!(dtype, DType::QFloat(_)) {
            Entry::opaque(name, map.clone(), range, dtype, shape)
        } else {
            let location = Location {
                map: map.clone(),
                storage: range,
                dtype,
                first: 0,
                shape,
                strides: None,
            };
            Entry::new(name.clone(), location)
                .map_err(|reason| damaged(format!("tensor '{name}': {reason}")))?
        });
    }
    Ok(opened)
}
