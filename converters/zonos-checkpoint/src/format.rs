//! Which format a file is, told from its first bytes, never from its name.

use std::fmt;
use std::path::Path;

use crate::CheckpointError;
use crate::mapped::MappedFile;

/// The container a checkpoint was read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Format {
    /// `torch.save` since PyTorch 1.6: a zip archive with `data.pkl` and one entry per storage.
    TorchZip,
    /// `torch.save` of PyTorch 0.1.10 to 1.5: a stream of pickles followed by the storages.
    TorchLegacy,
    /// `torch.save` before PyTorch 0.1.10: a tar archive.
    TorchTar,
    /// One `.safetensors` file.
    Safetensors,
    /// Several `.safetensors` files under a `*.safetensors.index.json`.
    SafetensorsSharded,
    /// Burn's own `.bpk` container.
    Burnpack,
    /// GGUF, the container of ggml.
    Gguf,
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::TorchZip => "PyTorch (zip)",
            Self::TorchLegacy => "PyTorch (legacy stream)",
            Self::TorchTar => "PyTorch (tar)",
            Self::Safetensors => "safetensors",
            Self::SafetensorsSharded => "safetensors (sharded)",
            Self::Burnpack => "burnpack",
            Self::Gguf => "GGUF",
        })
    }
}

/// The magic number 0x1950a86a20f9469cfc6c as pickle protocols 2 and up write it.
const LEGACY_MAGIC: [u8; 10] = [0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19];
/// The same number as protocols 0 and 1 write it.
const LEGACY_MAGIC_TEXT: &[u8] = b"119547037146038801333356";
/// The largest JSON header that the safetensors format allows.
const SAFETENSORS_MAX_HEADER: u64 = 100_000_000;

/// Recognises `file`, or says what it seems to be instead.
pub(crate) fn detect(file: &MappedFile) -> Result<Format, CheckpointError> {
    let bytes = file.bytes();
    let path = file.path();
    let head = &bytes[..bytes.len().min(1024)];

    refuse_stand_in(path, head, file.len() as u64)?;
    if head.starts_with(b"PK\x03\x04") || head.starts_with(b"PK\x05\x06") {
        return Ok(Format::TorchZip);
    }
    if head.starts_with(b"NRUB") {
        return Ok(Format::Burnpack);
    }
    let cut_gguf = head.len() < 4 && path.extension().is_some_and(|e| e == "gguf");
    if head.starts_with(b"GGUF") || cut_gguf {
        return Ok(Format::Gguf);
    }
    if head.get(257..262) == Some(b"ustar") {
        return Ok(Format::TorchTar);
    }
    if starts_like_safetensors(head) {
        return Ok(Format::Safetensors);
    }
    let window = &head[..head.len().min(64)];
    if contains(window, &LEGACY_MAGIC) || contains(window, LEGACY_MAGIC_TEXT) {
        return Ok(Format::TorchLegacy);
    }
    if head.len() < 9 && path.extension().is_some_and(|e| e == "safetensors") {
        return Err(CheckpointError::Truncated {
            path: path.into(),
            expected: 9,
            have: file.len() as u64,
        });
    }
    Err(CheckpointError::Unrecognised {
        path: path.into(),
        found: describe(head),
    })
}

/// Refuses what failed downloads leave under the name of a file of `size` bytes that begins with
/// `head`: an LFS pointer or a web page. No format that is read here begins like either.
pub(crate) fn refuse_stand_in(path: &Path, head: &[u8], size: u64) -> Result<(), CheckpointError> {
    if head.starts_with(b"version https://git-lfs") {
        return Err(CheckpointError::LfsPointer {
            path: path.into(),
            size,
            real: lfs_size(head),
        });
    }
    if looks_like_html(head) {
        return Err(CheckpointError::Html { path: path.into() });
    }
    Ok(())
}

fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    haystack.windows(needle.len()).any(|w| w == needle)
}

/// A little-endian `u64` header length, then the `{` of the JSON header.
fn starts_like_safetensors(head: &[u8]) -> bool {
    let Some(length) = head.first_chunk::<8>() else {
        return false;
    };
    u64::from_le_bytes(*length) <= SAFETENSORS_MAX_HEADER && head.get(8) == Some(&b'{')
}

fn looks_like_html(head: &[u8]) -> bool {
    let text = String::from_utf8_lossy(head).trim_start().to_lowercase();
    ["<!doctype", "<html", "<head", "<?xml", "<body"]
        .iter()
        .any(|tag| text.trim_start_matches('\u{feff}').starts_with(tag))
}

fn lfs_size(head: &[u8]) -> String {
    String::from_utf8_lossy(head)
        .lines()
        .find_map(|line| line.strip_prefix("size ")?.trim().parse::<u64>().ok())
        .map(|size| format!(" of {size} bytes"))
        .unwrap_or_default()
}

fn describe(head: &[u8]) -> String {
    let known = [
        (&b"\x1f\x8b"[..], "a gzip file: unpack it first"),
        (b"BZh", "a bzip2 file: unpack it first"),
        (b"\xfd7zXZ", "an xz file: unpack it first"),
        (b"\x28\xb5\x2f\xfd", "a zstd file: unpack it first"),
        (b"\x89HDF", "an HDF5 file"),
        (b"\x93NUMPY", "a NumPy array"),
        (b"RIFF", "a RIFF file such as WAV"),
        (b"\x80", "a plain Python pickle without tensor data"),
    ];
    if let Some((_, name)) = known.iter().find(|(magic, _)| head.starts_with(magic)) {
        return (*name).to_string();
    }
    let text = &head[..head.len().min(40)];
    if text
        .iter()
        .all(|b| b.is_ascii_graphic() || b.is_ascii_whitespace())
    {
        let shown = String::from_utf8_lossy(text);
        return format!("a text that begins {:?}", shown.trim());
    }
    let hex: Vec<String> = head.iter().take(8).map(|b| format!("{b:02x}")).collect();
    format!("first bytes {}", hex.join(" "))
}
