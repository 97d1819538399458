//! JSON files beside the weights.

use std::io::Read;
use std::path::Path;

use serde_json::Value;

use crate::CheckpointError;

/// Largest JSON file read.
const MAX_JSON: u64 = 256 << 20;

/// Reads a JSON file of bounded size.
pub(crate) fn read_json(path: &Path) -> Result<Value, CheckpointError> {
    let file = std::fs::File::open(path).map_err(|e| CheckpointError::io(path, e))?;
    let mut bytes = Vec::new();
    file.take(MAX_JSON + 1)
        .read_to_end(&mut bytes)
        .map_err(|e| CheckpointError::io(path, e))?;
    let wrong = |reason: String| CheckpointError::Sidecar {
        path: path.into(),
        reason,
    };
    if bytes.len() as u64 > MAX_JSON {
        return Err(wrong(format!(
            "more than {MAX_JSON} bytes, too large for a JSON file"
        )));
    }
    if bytes.starts_with(b"version https://git-lfs") {
        return Err(CheckpointError::LfsPointer {
            path: path.into(),
            size: bytes.len() as u64,
            real: String::new(),
        });
    }
    serde_json::from_slice(&bytes).map_err(|e| wrong(format!("not valid JSON: {e}")))
}
