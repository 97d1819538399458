//! Everything a person or a script wants to know about a checkpoint, as one value.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use serde::Serialize;
use serde_json::Value;

use crate::abridged::abridged;
use crate::report::NonFinite;
use crate::shown::{grouped, shown};
use crate::{Checkpoint, CheckpointError, Format, ModelKind, Skipped};

/// A checkpoint's contents, for JSON, which has all of it, or for reading (`Display`), where metadata are
/// cut short.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Inspection {
    /// The file that was opened (the index, for shards).
    pub path: PathBuf,
    /// Its format.
    pub format: Format,
    /// Which model it seems to be.
    pub model: ModelKind,
    /// Every file it reads from, with its size in bytes.
    pub files: Vec<FileSize>,
    /// How many tensors.
    pub tensor_count: usize,
    /// How many values in all of them.
    pub values: u64,
    /// Bytes of all of them.
    pub bytes: u64,
    /// Tensors and bytes by dtype.
    pub dtypes: BTreeMap<String, DtypeTotal>,
    /// Every tensor, in file order.
    pub tensors: Vec<TensorRow>,
    /// Plain values beside the tensors.
    pub metadata: Value,
    /// Names under which something else stands.
    pub skipped: Vec<Skipped>,
    /// What was left out and why.
    pub notices: Vec<String>,
    /// Tensors that hold NaN or infinity; `None` when the values were not read.
    pub non_finite: Option<Vec<NonFinite>>,
}

/// A file and its size.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct FileSize {
    /// The file.
    pub path: PathBuf,
    /// Its size in bytes.
    pub bytes: u64,
}

/// What one dtype accounts for.
#[derive(Debug, Clone, Default, Serialize)]
#[non_exhaustive]
pub struct DtypeTotal {
    /// Tensors.
    pub tensors: usize,
    /// Values.
    pub values: u64,
    /// Bytes.
    pub bytes: u64,
}

impl DtypeTotal {
    /// Storage per value, scales of quantised blocks included.
    pub fn bits_per_value(&self) -> f64 {
        self.bytes as f64 * 8.0 / self.values.max(1) as f64
    }
}

/// One tensor.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct TensorRow {
    /// Its name in the file.
    pub name: String,
    /// Its dtype.
    pub dtype: String,
    /// Its shape, outermost first.
    pub shape: Vec<usize>,
    /// Bytes of its values.
    pub bytes: u64,
}

/// Names up to this many characters stand in a column.
const MOST_PADDING: usize = 100;

/// Describes `checkpoint`; with `check_values` every value is read and searched for NaN and infinity.
///
/// # Errors
///
/// Only while reading values.
pub fn inspect(checkpoint: &Checkpoint, check_values: bool) -> Result<Inspection, CheckpointError> {
    let mut dtypes: BTreeMap<String, DtypeTotal> = BTreeMap::new();
    let mut tensors = Vec::with_capacity(checkpoint.len());
    let mut values = 0u64;
    let mut bad = Vec::new();
    for entry in checkpoint.entries() {
        let info = &entry.info;
        let dtype = info.type_name();
        let total = dtypes.entry(dtype.clone()).or_default();
        total.tensors += 1;
        total.bytes += info.bytes;
        let count = info.shape.iter().map(|&d| d as u64).product();
        total.values = total.values.saturating_add(count);
        values = values.saturating_add(count);
        tensors.push(TensorRow {
            name: entry.name.clone(),
            dtype,
            shape: info.shape.clone(),
            bytes: info.bytes,
        });
        if check_values {
            let (nan, infinite) = entry.non_finite()?;
            if nan + infinite > 0 {
                bad.push(NonFinite {
                    name: entry.name.clone(),
                    nan,
                    infinite,
                });
            }
        }
    }
    let files = checkpoint
        .files()
        .into_iter()
        .map(|path| FileSize {
            bytes: std::fs::metadata(&path).map_or(0, |m| m.len()),
            path,
        })
        .collect();
    Ok(Inspection {
        path: checkpoint.path().into(),
        format: checkpoint.format(),
        model: checkpoint.model_kind(),
        files,
        tensor_count: checkpoint.len(),
        values,
        bytes: checkpoint.total_bytes(),
        dtypes,
        tensors,
        metadata: checkpoint.metadata().clone(),
        skipped: checkpoint.skipped().to_vec(),
        notices: checkpoint.notices().to_vec(),
        non_finite: check_values.then_some(bad),
    })
}

impl fmt::Display for Inspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "file      {}", self.path.display())?;
        writeln!(f, "format    {}", self.format)?;
        writeln!(f, "model     {}", self.model)?;
        if self.files.len() > 1 {
            for file in &self.files {
                writeln!(
                    f,
                    "part      {}  {} bytes",
                    file.path.display(),
                    grouped(file.bytes)
                )?;
            }
        }
        writeln!(
            f,
            "tensors   {}, {} values, {} bytes",
            self.tensor_count,
            grouped(self.values),
            grouped(self.bytes)
        )?;
        for (dtype, total) in &self.dtypes {
            writeln!(
                f,
                "  {dtype:<6}  {} tensors, {} bytes, {:.4} bits per value",
                total.tensors,
                grouped(total.bytes),
                total.bits_per_value()
            )?;
        }
        writeln!(f)?;
        let names: Vec<_> = self.tensors.iter().map(|t| shown(&t.name)).collect();
        let width = names.iter().map(|n| n.chars().count()).max().unwrap_or(0);
        // One endless name is no reason to pad all others.
        let width = width.min(MOST_PADDING);
        for (name, t) in names.iter().zip(&self.tensors) {
            writeln!(
                f,
                "{name:<width$}  {:<5}  {:>15}  {:?}",
                t.dtype,
                grouped(t.bytes),
                t.shape
            )?;
        }
        if self.metadata.as_object().is_some_and(|m| !m.is_empty()) {
            writeln!(f, "\nmetadata  {}", abridged(&self.metadata))?;
        }
        for notice in &self.notices {
            writeln!(f, "note      {}", shown(notice))?;
        }
        match self.non_finite.as_deref() {
            None => {}
            Some([]) => writeln!(f, "values    all finite")?,
            Some(bad) => {
                for b in bad {
                    writeln!(
                        f,
                        "values    {}: {} NaN, {} infinite",
                        shown(&b.name),
                        b.nan,
                        b.infinite
                    )?;
                }
            }
        }
        Ok(())
    }
}
