//! JSON files beside the weights.

use std::io::Read;
use std::path::Path;

use serde_json::Value;

use crate::CheckpointError;
use crate::format::refuse_stand_in;
use crate::mapped::open_regular;

/// Largest JSON file read.
const MAX_JSON: u64 = 256 << 20;

/// Reads a JSON file of bounded size.
pub(crate) fn read_json(path: &Path) -> Result<Value, CheckpointError> {
    let file = open_regular(path)?;
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
    if bytes.is_empty() {
        return Err(CheckpointError::Empty { path: path.into() });
    }
    refuse_stand_in(path, &bytes[..bytes.len().min(1024)], bytes.len() as u64)?;
    // Some editors write a byte order mark, which is no part of JSON.
    let text = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&bytes);
    serde_json::from_slice(text).map_err(|e| wrong(format!("not valid JSON: {e}")))
}
