//! Voices into files.

use std::io::Write;
use std::path::Path;

use serde_json::{Map, Value, json};
use zonos_audio::{AtomicFile, npy};

use super::read::{FORMAT, SPEAKER};
use super::{Voice, VoiceFileError};

/// Refuses an ending that names no format.
pub(super) fn check_ending(path: &Path) -> Result<(), VoiceFileError> {
    match ending(path).as_deref() {
        Some("npy" | "safetensors") => Ok(()),
        _ => Err(VoiceFileError::Ending(path.to_path_buf())),
    }
}

/// In small letters, as other outputs take theirs in any case.
fn ending(path: &Path) -> Option<String> {
    Some(path.extension()?.to_str()?.to_ascii_lowercase())
}

pub(super) fn stage(voice: &Voice, path: &Path) -> Result<AtomicFile, VoiceFileError> {
    match ending(path).as_deref() {
        Some("npy") => Ok(npy::stage_f32(path, &[voice.dim()], voice.vector())?),
        Some("safetensors") => {
            let mut file = AtomicFile::create(path)?;
            let written = file.write_all(&safetensors(voice));
            written.map_err(|e| file.error(e))?;
            Ok(file)
        }
        _ => Err(VoiceFileError::Ending(path.to_path_buf())),
    }
}

/// The voice file: the length of the header, the header in JSON, the numbers. Equal voices give equal
/// bytes.
fn safetensors(voice: &Voice) -> Vec<u8> {
    let from = &voice.provenance;
    let mut metadata = Map::new();
    metadata.insert("format".to_owned(), FORMAT.into());
    let seconds = from.seconds.map(|s| s.to_string());
    for (key, value) in [
        ("name", &from.name),
        ("model", &from.model),
        ("source", &from.source),
        ("source_sha256", &from.source_sha256),
        ("date", &from.date),
        ("library", &from.library),
        ("seconds", &seconds),
    ] {
        if let Some(text) = value {
            metadata.insert(key.to_owned(), text.as_str().into());
        }
    }
    let mut header = Map::new();
    header.insert("__metadata__".to_owned(), Value::Object(metadata));
    header.insert(
        SPEAKER.to_owned(),
        json!({
            "dtype": "F32",
            "shape": [voice.dim()],
            "data_offsets": [0, 4 * voice.dim()],
        }),
    );
    let mut text = Value::Object(header).to_string().into_bytes();
    // The numbers begin at a multiple of their size.
    text.resize(text.len().next_multiple_of(8), b' ');
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.extend(text);
    bytes.extend(voice.vector.iter().flat_map(|x| x.to_le_bytes()));
    bytes
}
