//! [`Checkpoint`]: an opened checkpoint of any format.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use burn::tensor::TensorData;
use serde_json::{Map, Value};

use crate::error::CheckpointError;
use crate::format::{self, Format};
use crate::mapped::MappedFile;
use crate::opened::{Opened, Skipped};
use crate::shown::shown;
use crate::sidecar::read_json;
use crate::tensor::{Entry, TensorInfo};
use crate::{ModelKind, burnpack, gguf, hub, safetensors, torch};

/// How to open a checkpoint.
#[derive(Debug, Clone, Default)]
pub struct OpenOptions {
    /// The dictionary of a `.pth` file that holds the weights, as a dotted path (`ema.model`).
    /// Without it `model`, `state_dict` and `model_state_dict` are tried, then the root.
    pub key: Option<String>,
    /// The file to take where a folder or a repository holds several, by its name alone; a path that is
    /// a file itself is not looked into.
    pub file: Option<String>,
    /// How `hub:` references are resolved; from the environment when `None`.
    pub hub: Option<hub::Hub>,
}

/// An opened checkpoint: names, shapes and places of its tensors, with the files memory-mapped.
///
/// Opening reads headers only, so it is quick and small however large the file is.
/// [`Checkpoint::tensor_data`] then hands out views of the mapping.
///
/// ```
/// use zonos_checkpoint::{Checkpoint, Format};
///
/// # fn main() -> Result<(), zonos_checkpoint::CheckpointError> {
/// let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../validation/fixtures/zonos2/tiny");
/// let checkpoint = Checkpoint::open(folder)?; // finds model.pth
/// assert_eq!(checkpoint.format(), Format::TorchZip);
///
/// let info = checkpoint.info("layers.0.attention.wq.weight").expect("in every ZONOS2 checkpoint");
/// assert_eq!(info.shape, [128, 64]); // [out, in]
///
/// let weights = checkpoint.tensor_data("layers.0.attention.wq.weight")?; // bf16, no copy
/// assert_eq!(weights.num_elements(), 128 * 64);
///
/// let params = checkpoint.sidecar("params.json")?.expect("beside the weights");
/// assert_eq!(params["dim"], 64);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Checkpoint {
    path: PathBuf,
    /// Folders in which [`Checkpoint::sidecar`] looks, nearest first.
    folders: Vec<PathBuf>,
    opened: Opened,
    index: HashMap<String, usize>,
}

impl Checkpoint {
    /// Opens a file, a folder, or `hub:owner/name[@revision]`.
    ///
    /// In a folder the first of these is taken: `model.pth`, `model.pt`,
    /// `consolidated/consolidated.pth`, `model.safetensors.index.json`, `model.safetensors`,
    /// `weights.pth`, then a file that is the only one of its kind among `*.safetensors.index.json`,
    /// `*.safetensors`, `*.pth`, `*.pt`, `*.bpk`, `*.gguf`.
    ///
    /// # Errors
    ///
    /// Names the file, says what it seems to be (an LFS pointer, a web page, cut short, another
    /// format) and what to do.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, CheckpointError> {
        Self::open_with(path, &OpenOptions::default())
    }

    /// [`Checkpoint::open`] with options.
    ///
    /// # Errors
    ///
    /// As [`Checkpoint::open`]; also when [`OpenOptions::key`] names nothing.
    pub fn open_with(
        path: impl AsRef<Path>,
        options: &OpenOptions,
    ) -> Result<Self, CheckpointError> {
        let path = path.as_ref();
        if let Some(reference) = path.to_str().and_then(|p| p.strip_prefix("hub:")) {
            let hub = options.hub.clone().unwrap_or_else(hub::Hub::from_env);
            return hub.open(reference, options.file.as_deref(), options.key.as_deref());
        }
        Self::open_local(path, options.file.as_deref(), options.key.as_deref())
    }

    pub(crate) fn open_local(
        path: &Path,
        named: Option<&str>,
        key: Option<&str>,
    ) -> Result<Self, CheckpointError> {
        let meta = std::fs::metadata(path).map_err(|e| CheckpointError::io(path, e))?;
        let file = match named {
            _ if !meta.is_dir() => path.to_path_buf(),
            None => find_in_folder(path)?,
            Some(name) => named_in_folder(path, name)?,
        };
        let is_index = file
            .file_name()
            .is_some_and(|n| n.to_string_lossy().ends_with(".safetensors.index.json"));
        let mut opened = if is_index {
            safetensors::open_index(&file)?
        } else {
            open_file(&file, key)?
        };
        if key.is_some()
            && !matches!(
                opened.format,
                Format::TorchZip | Format::TorchLegacy | Format::TorchTar
            )
        {
            return Err(CheckpointError::Key {
                path: file,
                key: key.unwrap_or_default().into(),
                available: format!("a {} file has no dictionaries inside", opened.format),
            });
        }
        // Notices are for people and quote names from the file.
        for notice in &mut opened.notices {
            *notice = shown(notice).into_owned();
        }
        let mut folders: Vec<PathBuf> = file.parent().map(Path::to_path_buf).into_iter().collect();
        if meta.is_dir() && !folders.iter().any(|f| f == path) {
            folders.push(path.to_path_buf());
        }
        let index = opened
            .entries
            .iter()
            .enumerate()
            .map(|(i, e)| (e.name.clone(), i))
            .collect();
        Ok(Self {
            path: file,
            folders,
            opened,
            index,
        })
    }

    /// The file that was opened: the weights, or the index of sharded weights.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its format.
    pub fn format(&self) -> Format {
        self.opened.format
    }

    /// Names of all tensors in file order, exactly as stored (gaps in numbers are kept).
    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.opened.entries.iter().map(|e| e.name.as_str())
    }

    /// How many tensors there are.
    pub fn len(&self) -> usize {
        self.opened.entries.len()
    }

    /// Whether there is no tensor at all.
    pub fn is_empty(&self) -> bool {
        self.opened.entries.is_empty()
    }

    /// What the file says about one tensor.
    pub fn info(&self, name: &str) -> Option<&TensorInfo> {
        self.entry(name).map(|e| &e.info)
    }

    /// Bytes of all tensors together, without gaps or headers.
    pub fn total_bytes(&self) -> u64 {
        let bytes = self.opened.entries.iter().map(|e| e.info.bytes);
        bytes.fold(0, u64::saturating_add)
    }

    /// Plain values stored beside the tensors, as a JSON object: for `.pth` every dictionary, list,
    /// string and number (`metadata()["metadata"]["kwargs"]` for DAC), for safetensors the
    /// `__metadata__` strings, for burnpack its metadata and scalars.
    pub fn metadata(&self) -> &Value {
        &self.opened.metadata
    }

    /// A JSON file beside the weights (`params.json`, `config.json`), or the copy of it that
    /// [`crate::convert`] packed into the checkpoint; `None` when there is neither.
    ///
    /// # Errors
    ///
    /// When the file exists but is not valid JSON, or `file` is not a plain file name.
    pub fn sidecar(&self, file: &str) -> Result<Option<Value>, CheckpointError> {
        if !safetensors::is_plain_file_name(file) {
            return Err(CheckpointError::Sidecar {
                path: file.into(),
                reason: "a sidecar is named by its file name alone".into(),
            });
        }
        // What a GGUF file says of itself counts more than what happens to lie beside it: such files are
        // moved about alone.
        if let (Format::Gguf, Some(own)) = (self.opened.format, self.opened.sidecars.get(file)) {
            return Ok(Some(own.clone()));
        }
        for folder in &self.folders {
            match read_json(&folder.join(file)) {
                Err(CheckpointError::NotFound { .. }) => {}
                other => return other.map(Some),
            }
        }
        Ok(self.opened.sidecars.get(file).cloned())
    }

    /// What was left out and why, one line each: foreign Python objects, stray shards, dtypes that
    /// are not read, a guessed hub revision.
    pub fn notices(&self) -> &[String] {
        &self.opened.notices
    }

    /// Names that are there but are not tensors this crate reads.
    pub fn skipped(&self) -> &[Skipped] {
        &self.opened.skipped
    }

    /// Which model this seems to be, from its names and metadata.
    pub fn model_kind(&self) -> ModelKind {
        ModelKind::guess(self)
    }

    /// The values of one tensor in the file's dtype: a view of the mapped file where it is
    /// row-major and aligned, a copy otherwise.
    ///
    /// # Errors
    ///
    /// When there is no such tensor, naming what stands there instead.
    pub fn tensor_data(&self, name: &str) -> Result<TensorData, CheckpointError> {
        match self.entry(name) {
            Some(entry) => entry.data(),
            None => Err(CheckpointError::NoSuchTensor {
                path: self.path.clone(),
                name: name.into(),
                detail: self
                    .opened
                    .skipped
                    .iter()
                    .find(|s| s.name == name)
                    .map(|s| format!("; {} stands there", s.what))
                    .unwrap_or_default(),
            }),
        }
    }

    pub(crate) fn entry(&self, name: &str) -> Option<&Entry> {
        self.index.get(name).map(|&i| &self.opened.entries[i])
    }

    pub(crate) fn entries(&self) -> &[Entry] {
        &self.opened.entries
    }

    pub(crate) fn add_notice(&mut self, notice: String) {
        self.opened.notices.insert(0, notice);
    }

    /// The sidecars a conversion should carry along.
    pub(crate) fn sidecars(&self) -> Result<Map<String, Value>, CheckpointError> {
        let mut all = self.opened.sidecars.clone();
        for file in ["params.json", "config.json"] {
            if let Some(value) = self.sidecar(file)? {
                all.insert(file.into(), value);
            }
        }
        Ok(all)
    }

    /// Every file the checkpoint reads from.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        let mut files: Vec<PathBuf> = vec![self.path.clone()];
        for entry in &self.opened.entries {
            if !files.iter().any(|f| **f == *entry.info.file) {
                files.push(entry.info.file.to_path_buf());
            }
        }
        files
    }
}

fn open_file(path: &Path, key: Option<&str>) -> Result<Opened, CheckpointError> {
    let map = MappedFile::open(path)?;
    match format::detect(&map)? {
        Format::Safetensors | Format::SafetensorsSharded => safetensors::open(&map),
        Format::Burnpack => burnpack::open(&map),
        Format::Gguf => gguf::open(&map),
        torch => torch::open(&map, torch, key),
    }
}

/// File names tried first in a folder, in this order.
pub(crate) const NAMED: [&str; 6] = [
    "model.pth",
    "model.pt",
    "consolidated/consolidated.pth",
    "model.safetensors.index.json",
    "model.safetensors",
    "weights.pth",
];

/// Endings tried next; a file is taken when it is the only one.
pub(crate) const ENDINGS: [&str; 6] = [
    ".safetensors.index.json",
    ".safetensors",
    ".pth",
    ".pt",
    ".bpk",
    ".gguf",
];

/// Files that stand beside a model, by their names without ending: its codec and its speaker encoder.
const COMPANIONS: [&str; 4] = ["dac", "spk-encoder", "speaker-encoder", "speaker_encoder"];

/// The file `name` of a folder.
fn named_in_folder(dir: &Path, name: &str) -> Result<PathBuf, CheckpointError> {
    let file = dir.join(name);
    if safetensors::is_plain_file_name(name) && file.is_file() {
        return Ok(file);
    }
    Err(CheckpointError::NoWeights {
        dir: dir.into(),
        looked_for: name.into(),
    })
}

fn find_in_folder(dir: &Path) -> Result<PathBuf, CheckpointError> {
    for name in NAMED {
        let file = dir.join(name);
        if file.is_file() {
            return Ok(file);
        }
    }
    let mut names: Vec<String> = std::fs::read_dir(dir)
        .map_err(|e| CheckpointError::io(dir, e))?
        .filter_map(|e| e.ok()?.file_name().into_string().ok())
        .filter(|n| dir.join(n).is_file())
        .collect();
    names.sort();
    let mut several = Vec::new();
    for ending in ENDINGS {
        let all = names
            .iter()
            .filter_map(|n| Some((n, n.strip_suffix(ending)?)));
        let found: Vec<&String> = all.clone().map(|(name, _)| name).collect();
        let models: Vec<&String> = all
            .filter(|(_, stem)| !COMPANIONS.contains(stem))
            .map(|(name, _)| name)
            .collect();
        match (found.as_slice(), models.as_slice()) {
            ([only], _) | (_, [only]) => return Ok(dir.join(only)),
            // Companions are not what the user has to choose from.
            (_, [first, second, ..]) | ([first, second, ..], _) => {
                several.push(format!("several *{ending} ({first}, {second}, ..)"));
            }
            _ => {}
        }
    }
    let mut looked_for = format!("{} and a single *{}", NAMED.join(", "), ENDINGS.join(", *"));
    if !several.is_empty() {
        looked_for.push_str(&format!(
            "; there are {}: name the file to open",
            several.join(" and ")
        ));
    }
    Err(CheckpointError::NoWeights {
        dir: dir.into(),
        looked_for,
    })
}
