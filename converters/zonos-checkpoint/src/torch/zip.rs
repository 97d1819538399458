//! The zip container: `NAME/data.pkl` and `NAME/data/KEY` for every storage, stored uncompressed
//! (64-byte aligned since PyTorch 1.13), with zip64 records once the archive passes 4 GiB.

use std::collections::HashMap;
use std::io::Cursor;
use std::ops::Range;
use std::sync::Arc;

use super::{Container, MAX_PICKLE, Pickle};
use crate::CheckpointError;
use crate::mapped::MappedFile;

pub(super) fn read(map: &Arc<MappedFile>) -> Result<Container, CheckpointError> {
    let path = map.path();
    let have = map.len();
    let mut archive = ::zip::ZipArchive::new(Cursor::new(map.bytes())).map_err(|e| {
        CheckpointError::malformed(
            path,
            format!(
                "the archive's directory, the last part of a .pth file, is missing or wrong ({e}); have {have} bytes, the download or copy probably stopped early, fetch it again"
            ),
        )
    })?;

    let mut entries: HashMap<String, Slot> = HashMap::with_capacity(archive.len().min(1 << 16));
    for index in 0..archive.len() {
        let entry = archive
            .by_index_raw(index)
            .map_err(|e| CheckpointError::malformed(path, format!("archive entry {index}: {e}")))?;
        let Ok(name) = entry.name().map(|n| n.into_owned()) else {
            continue;
        };
        let stored = entry.compression() == ::zip::CompressionMethod::Stored && !entry.encrypted();
        let range = entry
            .data_start()
            .and_then(|s| usize::try_from(s).ok())
            .and_then(|start| {
                let end = start.checked_add(usize::try_from(entry.compressed_size()).ok()?)?;
                Some(start..end)
            });
        let Some(range) = range else {
            return Err(CheckpointError::malformed(
                path,
                format!("archive entry '{name}' has no place"),
            ));
        };
        if range.end > have {
            return Err(CheckpointError::Truncated {
                path: path.into(),
                expected: range.end as u64,
                have: have as u64,
            });
        }
        entries.insert(name, Slot { range, stored });
    }

    let Some(prefix) = entries
        .keys()
        .filter_map(|name| name.strip_suffix("data.pkl"))
        .filter(|prefix| prefix.is_empty() || prefix.ends_with('/'))
        .min_by_key(|prefix| prefix.len())
        .map(str::to_string)
    else {
        return Err(CheckpointError::unsupported(
            path,
            "a zip archive without data.pkl, so not written by torch.save; unpack it if it holds the checkpoint",
        ));
    };
    if entries.contains_key(&format!("{prefix}constants.pkl")) {
        return Err(CheckpointError::unsupported(
            path,
            "a TorchScript archive; load it in Python and save its state_dict with torch.save",
        ));
    }
    if let Some(order) = entries.get(&format!("{prefix}byteorder"))
        && map.bytes()[order.range.clone()].starts_with(b"big")
    {
        return Err(CheckpointError::unsupported(
            path,
            "written on a big-endian machine; save it again on a little-endian one",
        ));
    }

    let body = entries[&format!("{prefix}data.pkl")].bytes(map, "data.pkl")?;
    if body.len() > MAX_PICKLE {
        return Err(CheckpointError::unsupported(
            path,
            format!(
                "data.pkl has {} bytes, at most {MAX_PICKLE} are read",
                body.len()
            ),
        ));
    }
    let pickle = Pickle::parse(body)
        .map_err(|e| CheckpointError::malformed(path, format!("data.pkl: {e}")))?;

    let data = format!("{prefix}data/");
    let mut storages = HashMap::new();
    for (name, slot) in &entries {
        if let Some(key) = name.strip_prefix(&data) {
            slot.bytes(map, name)?;
            storages.insert(key.to_string(), slot.range.clone());
        }
    }
    Ok(Container {
        pickle,
        storages,
        tensors: HashMap::new(),
    })
}

struct Slot {
    range: Range<usize>,
    stored: bool,
}

impl Slot {
    fn bytes<'a>(&self, map: &'a MappedFile, name: &str) -> Result<&'a [u8], CheckpointError> {
        if self.stored {
            return Ok(&map.bytes()[self.range.clone()]);
        }
        Err(CheckpointError::unsupported(
            map.path(),
            format!(
                "archive entry '{name}' is compressed or encrypted, which torch.save never does, so it cannot be memory-mapped; unpack the archive and zip it again with `zip -0`, or save it again from Python"
            ),
        ))
    }
}
