//! Voices out of files, told apart by content.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

use serde_json::Value;
use sha2::{Digest, Sha256};
use zip::ZipArchive;
use zonos_audio::npy;
use zonos_checkpoint::{Checkpoint, Format};
use zonos2::voice::{Rows, VoiceError, layout, mean};

use super::{Provenance, Voice, VoiceFileError, date};

/// What the metadata of a voice file call it.
pub(super) const FORMAT: &str = "zonos-voice";

/// The tensor of a voice file.
pub(super) const SPEAKER: &str = "speaker";

/// The name that vectors have in the files of the original tools.
const EMB: &str = "emb";

/// Most bytes that an array in an archive is inflated to: 8192 vectors of 2048 f32 numbers.
const MAX_INFLATED: u64 = 64 << 20;

/// Most files in an archive of arrays.
const MAX_ENTRIES: usize = 4096;

/// Longest text of a provenance that is read.
const MAX_TEXT: usize = 1024;

/// Longest recording that is believed, in seconds: ten days.
const MAX_SECONDS: f64 = 864_000.0;

/// The forms in which speaker vectors are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VoiceFormat {
    /// One NumPy array.
    Npy,
    /// A zip archive of NumPy arrays.
    Npz,
    /// Named tensors with metadata; the form that voices are saved in.
    Safetensors,
}

impl VoiceFormat {
    /// Which of them a file is: by its first bytes, and where those are none of them, by its ending,
    /// so that a damaged vector is not taken for something else. `None` for other files, such as
    /// recordings.
    ///
    /// # Errors
    /// The file cannot be read or is no regular file.
    pub fn of(path: impl AsRef<Path>) -> Result<Option<Self>, VoiceFileError> {
        let path = path.as_ref();
        let mut head = Vec::with_capacity(9);
        open(path)
            .and_then(|file| file.take(9).read_to_end(&mut head))
            .map_err(|source| VoiceFileError::Io {
                path: path.to_path_buf(),
                source,
            })?;
        Ok(Self::by_content(&head).or_else(|| {
            let ending = path.extension()?.to_str()?.to_ascii_lowercase();
            match ending.as_str() {
                "npy" => Some(Self::Npy),
                "npz" => Some(Self::Npz),
                "safetensors" => Some(Self::Safetensors),
                _ => None,
            }
        }))
    }

    fn by_content(head: &[u8]) -> Option<Self> {
        match head {
            [0x93, b'N', b'U', b'M', b'P', b'Y', ..] => Some(Self::Npy),
            [b'P', b'K', 3, 4, ..] | [b'P', b'K', 5, 6, ..] => Some(Self::Npz),
            // The length of the header, far below 2^32, and its first character.
            [_, _, _, _, 0, 0, 0, 0, b'{'] => Some(Self::Safetensors),
            _ => None,
        }
    }
}

/// Opens a file that is one: opening a pipe would wait for its writer.
fn open(path: &Path) -> io::Result<File> {
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    File::open(path)
}

pub(super) fn load(path: &Path) -> Result<Voice, VoiceFileError> {
    match VoiceFormat::of(path)? {
        Some(VoiceFormat::Npy) => load_npy(path),
        Some(VoiceFormat::Npz) => load_npz(path),
        Some(VoiceFormat::Safetensors) => load_safetensors(path),
        None => Err(format_error(
            path,
            "not a speaker vector; expected .npy, .npz or .safetensors (a recording is cloned with a speaker encoder)",
        )),
    }
}

pub(super) fn import(path: &Path) -> Result<Voice, VoiceFileError> {
    let voice = load(path)?;
    let from = voice.provenance();
    if from.source.is_some() {
        return Ok(voice);
    }
    let hash = open(path)
        .and_then(|mut file| {
            let mut hash = Sha256::new();
            let mut piece = vec![0; 1 << 16];
            loop {
                match file.read(&mut piece)? {
                    0 => return Ok(hexadecimal(&hash.finalize())),
                    n => hash.update(&piece[..n]),
                }
            }
        })
        .map_err(|source| VoiceFileError::Io {
            path: path.to_path_buf(),
            source,
        })?;
    let now = Provenance::now();
    let provenance = Provenance {
        source: path.file_name().map(|n| n.to_string_lossy().into_owned()),
        source_sha256: Some(hash),
        date: from.date.clone().or(now.date),
        library: from.library.clone().or(now.library),
        ..from.clone()
    };
    Ok(voice.with_provenance(provenance))
}

/// SHA-256 in hexadecimal.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    hexadecimal(&Sha256::digest(bytes))
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn format_error(path: &Path, problem: impl Into<String>) -> VoiceFileError {
    VoiceFileError::Format {
        path: path.to_path_buf(),
        problem: problem.into(),
    }
}

/// Where the vectors lie in an array of this shape.
fn rows(name: &str, shape: &[usize]) -> Result<Rows, VoiceError> {
    layout(shape).ok_or_else(|| VoiceError::Shape {
        name: name.to_owned(),
        shape: shape.to_vec(),
    })
}

/// The voice of an array: one vector, or several averaged.
fn voice(
    name: &str,
    shape: &[usize],
    values: &[f32],
    provenance: Provenance,
) -> Result<Voice, VoiceFileError> {
    let Rows { dim, .. } = rows(name, shape)?;
    Ok(Voice::named(name, mean(values, dim), provenance)?)
}

fn load_npy(path: &Path) -> Result<Voice, VoiceFileError> {
    let name = path.display().to_string();
    // The header tells of an array that is no vector, however large it is.
    rows(&name, &npy::read_field_shape(path, EMB)?)?;
    let array = npy::read_field(path, EMB)?;
    voice(&name, array.shape(), &array.to_f32(), Provenance::default())
}

fn load_npz(path: &Path) -> Result<Voice, VoiceFileError> {
    let bad = |problem: String| format_error(path, problem);
    let file = open(path).map_err(|source| VoiceFileError::Io {
        path: path.to_path_buf(),
        source,
    })?;
    let mut archive = ZipArchive::new(BufReader::new(file))
        .map_err(|e| bad(format!("damaged archive: {e}; fetch or save it again")))?;
    if archive.len() > MAX_ENTRIES {
        return Err(bad(format!(
            "{} files in the archive; expected one array, or one named {EMB}",
            archive.len()
        )));
    }
    let arrays: Vec<String> = archive
        .file_names()
        .filter_map(|name| name.ok()?.strip_suffix(".npy").map(str::to_owned))
        .collect();
    let chosen = match &arrays[..] {
        [only] => only.clone(),
        all if all.iter().any(|name| name == EMB) => EMB.to_owned(),
        [] => {
            return Err(bad(
                "no .npy array in this archive; expected one, or one named emb (a PyTorch checkpoint holds no voice)".to_owned(),
            ));
        }
        [first, second, ..] => {
            return Err(bad(format!(
                "{} arrays ({first}, {second}, ..) and none named {EMB}; save the one that is the voice",
                arrays.len()
            )));
        }
    };
    let entry = archive
        .by_name(&format!("{chosen}.npy"))
        .map_err(|e| bad(format!("array {chosen}: {e}")))?;
    let too_large = |bytes| {
        bad(format!(
            "array {chosen}: {bytes} bytes, and no speaker vectors have more than {MAX_INFLATED}"
        ))
    };
    if entry.size() > MAX_INFLATED {
        return Err(too_large(entry.size().to_string()));
    }
    // The directory's word is not taken for the size: what comes out is counted.
    let mut bytes = Vec::new();
    entry
        .take(MAX_INFLATED + 1)
        .read_to_end(&mut bytes)
        .map_err(|e| bad(format!("array {chosen}: cannot be unpacked: {e}")))?;
    if bytes.len() as u64 > MAX_INFLATED {
        return Err(too_large(format!("more than {MAX_INFLATED}")));
    }
    let name = format!("{} ({chosen}.npy)", path.display());
    let array = npy::field_from_bytes(&name, &bytes, EMB)?;
    rows(&name, array.shape())?;
    voice(&name, array.shape(), &array.to_f32(), Provenance::default())
}

fn load_safetensors(path: &Path) -> Result<Voice, VoiceFileError> {
    let checkpoint = Checkpoint::open(path)?;
    if checkpoint.format() != Format::Safetensors {
        return Err(format_error(
            path,
            format!(
                "expected a .safetensors file, found {}",
                checkpoint.format()
            ),
        ));
    }
    let named = [SPEAKER, EMB]
        .into_iter()
        .find(|name| checkpoint.info(name).is_some());
    let (chosen, info) = match named.or_else(|| only(&checkpoint)) {
        Some(name) => match checkpoint.info(name) {
            Some(info) => (name, info),
            None => return Err(format_error(path, format!("no tensor '{name}'"))),
        },
        None => {
            return Err(format_error(
                path,
                format!(
                    "{} tensors, none of them named {SPEAKER} or {EMB}; this is no voice{}",
                    checkpoint.len(),
                    match checkpoint.model_kind() {
                        zonos_checkpoint::ModelKind::Unknown => String::new(),
                        kind => format!(" (it looks like: {kind})"),
                    }
                ),
            ));
        }
    };
    let name = format!("{} ({chosen})", path.display());
    let shape = info.shape.clone();
    rows(&name, &shape)?;
    let data = checkpoint.tensor_data(chosen)?;
    let values = data
        .convert::<f32>()
        .try_to_vec::<f32>()
        .map_err(|e| format_error(path, format!("tensor '{chosen}': {e:?}")))?;
    voice(&name, &shape, &values, provenance(checkpoint.metadata()))
}

fn only(checkpoint: &Checkpoint) -> Option<&str> {
    let mut names = checkpoint.names();
    names.next().filter(|_| names.next().is_none())
}

/// What the metadata of a voice file say; nothing where the file is another's, and nothing for a field
/// that cannot be what it should.
fn provenance(metadata: &Value) -> Provenance {
    if metadata["format"] != FORMAT {
        return Provenance::default();
    }
    let text = |key: &str| {
        metadata[key]
            .as_str()
            .filter(|text| text.len() <= MAX_TEXT)
            .map(str::to_owned)
    };
    Provenance {
        name: text("name"),
        model: text("model"),
        source: text("source"),
        source_sha256: text("source_sha256")
            .filter(|hash| hash.len() == 64 && hash.bytes().all(|b| b.is_ascii_hexdigit())),
        date: text("date").filter(|date| date::is_date(date)),
        library: text("library"),
        seconds: text("seconds")
            .and_then(|s| s.parse().ok())
            .filter(|s| (0.0..=MAX_SECONDS).contains(s)),
    }
}
