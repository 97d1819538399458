//! [`Loader`]: a checkpoint's tensors under a model's names, checked before any is read.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;

use burn::tensor::{Bytes, DType, Device, Int, Tensor, TensorData};
use zonos_gguf::GgmlType;

use crate::expr::{self, Expr};
use crate::namemap::{Item, NameMap};
use crate::report::{
    Ignored, LoadReport, Matched, Missing, NonFinite, Unexpected, WrongDtype, WrongShape,
};
use crate::shown::shown;
use crate::values::{floats, fold, is_float, to_f32};
use crate::{Checkpoint, CheckpointError, ModelKind};

/// Checkpoints up to this size are searched for NaN and infinity while they are loaded.
const SCAN_LIMIT: u64 = 1 << 30;

/// A tensor that a model needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSpec {
    /// The model's name for it, which follows the original checkpoint.
    pub name: String,
    /// Its shape. For [`SpecKind::WeightNorm`] the shape of the effective weight.
    pub shape: Vec<usize>,
    /// How a file may store it.
    pub kind: SpecKind,
    /// Whether the model can do without it.
    pub optional: bool,
    /// Whether axes of length 1 may be missing or added in the file (a 1x1 convolution
    /// `[out, in, 1]` stored as a matrix `[out, in]`).
    pub loose_ones: bool,
}

/// How a file may store a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SpecKind {
    /// As it is.
    #[default]
    Plain,
    /// As it is, or factored by weight normalisation over axis 0: `N_g` and `N_v`, or
    /// `parametrizations.*.original0` (g) and `original1` (v).
    WeightNorm,
}

impl TensorSpec {
    /// A required tensor stored as it is.
    pub fn plain(name: impl Into<String>, shape: impl Into<Vec<usize>>) -> Self {
        Self {
            name: name.into(),
            shape: shape.into(),
            kind: SpecKind::Plain,
            optional: false,
            loose_ones: false,
        }
    }

    /// A required weight that may be factored by weight normalisation.
    pub fn weight_norm(name: impl Into<String>, shape: impl Into<Vec<usize>>) -> Self {
        Self {
            kind: SpecKind::WeightNorm,
            ..Self::plain(name, shape)
        }
    }

    /// The same, not required.
    #[must_use]
    pub fn optional(mut self) -> Self {
        self.optional = true;
        self
    }

    /// The same, with axes of length 1 free to be there or not.
    #[must_use]
    pub fn loose_ones(mut self) -> Self {
        self.loose_ones = true;
        self
    }
}

/// In which dtype weights reach the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DTypePolicy {
    /// The file's dtype (F32, F16, BF16) where the device computes with it, else F32.
    /// F64 becomes F32.
    #[default]
    Keep,
    /// F32 always, for training.
    F32,
}

/// What becomes of weights that a file stores factored by weight normalisation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WeightNormPolicy {
    /// One effective weight, computed once while loading.
    #[default]
    Fold,
    /// Both factors, for training.
    Keep,
}

/// How to load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadOptions {
    /// Dtype of the weights on the device.
    pub dtype: DTypePolicy,
    /// Weight normalisation.
    pub weight_norm: WeightNormPolicy,
    /// Load what matches even if the report is not clean.
    pub partial: bool,
    /// Look for NaN and infinity in checkpoints of up to 1 GiB.
    pub check_values: bool,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self {
            dtype: DTypePolicy::Keep,
            weight_norm: WeightNormPolicy::Fold,
            partial: false,
            check_values: true,
        }
    }
}

impl LoadOptions {
    /// F32 weights with weight normalisation kept apart, as training wants them.
    pub fn training() -> Self {
        Self {
            dtype: DTypePolicy::F32,
            weight_norm: WeightNormPolicy::Keep,
            ..Self::default()
        }
    }
}

/// Why weights could not be loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The checkpoint does not fit the model.
    #[error(
        "{}: does not fit the model: {}{}; see `zonos inspect {}`",
        shown(&report.checkpoint), report.summary(), hint(report, *kind), shown(&report.checkpoint)
    )]
    NotClean {
        /// Everything that is wrong.
        report: Box<LoadReport>,
        /// The model that the file seems to hold instead.
        kind: ModelKind,
    },
    /// A rule of the name map is malformed.
    #[error("name map: {}", shown(.0))]
    NameMap(String),
    /// Reading failed.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A tensor was asked for that the plan does not hold.
    #[error(
        "{}: tensor '{}' was not loaded; it is missing, optional or not in the model's list",
        shown(checkpoint),
        shown(name)
    )]
    Absent {
        /// The checkpoint's file.
        checkpoint: String,
        /// The model's name.
        name: String,
    },
    /// A tensor was asked for with the wrong number of axes, or a part beyond its end.
    #[error(
        "{}: tensor '{}' has shape {shape:?}, asked for {asked}",
        shown(checkpoint),
        shown(name)
    )]
    Rank {
        /// The checkpoint's file.
        checkpoint: String,
        /// The model's name.
        name: String,
        /// Its shape.
        shape: Vec<usize>,
        /// What the caller asked for.
        asked: String,
    },
}

impl LoadError {
    /// The full report, when the checkpoint does not fit.
    pub fn report(&self) -> Option<&LoadReport> {
        match self {
            Self::NotClean { report, .. } => Some(report),
            _ => None,
        }
    }
}

/// When little of the file fits, it is probably another model's.
fn hint(report: &LoadReport, kind: ModelKind) -> String {
    match kind {
        ModelKind::Unknown => String::new(),
        _ if report.matched.len() > report.missing.len() => String::new(),
        known => format!("; the file looks like: {known}"),
    }
}

/// A weight as the file and [`WeightNormPolicy`] have it.
#[derive(Debug, Clone)]
// Made once a layer while loading, so its size does not matter.
#[allow(clippy::large_enum_variant)]
pub enum WeightNormed<const D: usize> {
    /// The effective weight.
    Folded(Tensor<D>),
    /// The factors of `w[i] = g[i] * v[i] / |v[i]|`: `g` is `[n, 1, ..]`, `v` has the weight's shape.
    Factored {
        /// Lengths.
        g: Tensor<D>,
        /// Directions.
        v: Tensor<D>,
    },
}

impl<const D: usize> WeightNormed<D> {
    /// The effective weight, whatever the form; differentiable in `g` and `v`.
    pub fn weight(&self) -> Tensor<D> {
        match self {
            Self::Folded(w) => w.clone(),
            Self::Factored { g, v } => {
                let mut square = v.clone() * v.clone();
                for axis in 1..D {
                    square = square.sum_dim(axis);
                }
                v.clone() * (g.clone() / square.sqrt())
            }
        }
    }
}

/// A weight matrix as [`Loader::stored_weight`] found it.
#[derive(Debug, Clone)]
pub enum StoredWeight<const D: usize> {
    /// Numbers: F32, F16 or BF16.
    Dense(Tensor<D>),
    /// Quantised rows.
    Blocks {
        /// U8, `[.., bytes of a row]`.
        rows: Tensor<D, Int>,
        /// Their format.
        blocks: GgmlType,
    },
}

/// A matched model tensor.
#[derive(Debug, Clone)]
struct Slot {
    shape: Vec<usize>,
    source: Source,
}

#[derive(Debug, Clone)]
enum Source {
    Plain(Expr),
    Factored { g: Expr, v: Expr },
}

impl Source {
    fn files(&self) -> Vec<usize> {
        let mut files = Vec::new();
        match self {
            Self::Plain(e) => e.sources(&mut files),
            Self::Factored { g, v } => {
                g.sources(&mut files);
                v.sources(&mut files);
            }
        }
        files
    }
}

/// Matches a checkpoint against a model without reading a single value.
///
/// # Errors
///
/// Only when the map itself is malformed; everything else is in the report.
pub fn plan(
    checkpoint: &Checkpoint,
    map: &NameMap,
    specs: &[TensorSpec],
) -> Result<LoadReport, LoadError> {
    Ok(Plan::make(checkpoint, map, specs)?.report)
}

struct Plan {
    slots: HashMap<String, Slot>,
    report: LoadReport,
}

impl Plan {
    fn make(
        checkpoint: &Checkpoint,
        map: &NameMap,
        specs: &[TensorSpec],
    ) -> Result<Self, LoadError> {
        map.check().map_err(LoadError::NameMap)?;
        let entries = checkpoint.entries();
        let mapped = map.apply(entries);
        let mut report = LoadReport {
            checkpoint: checkpoint.path().display().to_string(),
            problems: mapped.problems,
            notes: checkpoint.notices().to_vec(),
            ..LoadReport::default()
        };
        for (sources, rule) in mapped.ignored {
            report.ignored.extend(sources.into_iter().map(|i| Ignored {
                name: entries[i].name.clone(),
                rule: rule.clone(),
            }));
        }

        let mut items: BTreeMap<String, Vec<Item>> = BTreeMap::new();
        for item in mapped.items {
            items.entry(item.name.clone()).or_default().push(item);
        }
        for (name, several) in items.iter_mut().filter(|(_, s)| s.len() > 1) {
            let from: Vec<String> = several
                .iter()
                .map(|item| file_names(checkpoint, &item.expr).join(" + "))
                .collect();
            report
                .problems
                .push(format!("'{name}' comes from {}", from.join(" and from ")));
            several.truncate(1);
        }

        let mut slots = HashMap::new();
        let mut seen = HashSet::new();
        for spec in specs {
            if !seen.insert(&spec.name) {
                continue;
            }
            let mut take = |name: &str| items.remove(name).and_then(|mut v| v.pop());
            let plain = take(&spec.name);
            let (g, v) = match spec.kind {
                SpecKind::Plain => (None, None),
                SpecKind::WeightNorm => {
                    let [g, v] = factor_names(&spec.name);
                    (
                        g.iter().find_map(|n| take(n)),
                        v.iter().find_map(|n| take(n)),
                    )
                }
            };
            let source = match (plain, g, v) {
                (Some(w), None, None) => Source::Plain(w.expr),
                (None, Some(g), Some(v)) => Source::Factored {
                    g: g.expr,
                    v: v.expr,
                },
                (None, None, None) => {
                    if spec.optional {
                        report.absent.push(spec.name.clone());
                    } else {
                        report.missing.push(missing(checkpoint, spec));
                    }
                    continue;
                }
                (Some(w), g, v) => {
                    let twice = g.or(v).map(|i| i.name).unwrap_or_default();
                    report.problems.push(format!(
                        "'{}' is given twice: folded and as '{twice}'",
                        w.name
                    ));
                    continue;
                }
                (None, g, v) => {
                    let (half, other) = if g.is_some() { ("g", "v") } else { ("v", "g") };
                    let name = g.or(v).map(|i| i.name).unwrap_or_default();
                    report.problems.push(format!(
                        "'{}' has only the {half} half of its weight norm ('{name}'), the {other} half is missing",
                        spec.name
                    ));
                    continue;
                }
            };
            if let Some(slot) = fit(checkpoint, spec, source, &mut report) {
                slots.insert(spec.name.clone(), slot);
            }
        }

        for (name, left) in items {
            for item in left {
                let from = file_names(checkpoint, &item.expr);
                let shape = item
                    .expr
                    .signature(entries)
                    .map(|s| s.shape)
                    .unwrap_or_default();
                report.unexpected.push(Unexpected {
                    mapped_to: (from != [name.clone()]).then(|| name.clone()),
                    name: from.join(" + "),
                    shape,
                });
            }
        }
        Ok(Self { slots, report })
    }
}

/// Both spellings of the two factors of weight `name`: `[g, v]`.
fn factor_names(name: &str) -> [[String; 2]; 2] {
    let (base, leaf) = name.rsplit_once('.').unwrap_or(("", name));
    let dot = if base.is_empty() { "" } else { "." };
    let parametrized = |n: u8| format!("{base}{dot}parametrizations.{leaf}.original{n}");
    [
        [format!("{name}_g"), parametrized(0)],
        [format!("{name}_v"), parametrized(1)],
    ]
}

fn file_names(checkpoint: &Checkpoint, expr: &Expr) -> Vec<String> {
    let mut sources = Vec::new();
    expr.sources(&mut sources);
    sources.dedup();
    sources
        .into_iter()
        .map(|i| checkpoint.entries()[i].name.clone())
        .collect()
}

fn missing(checkpoint: &Checkpoint, spec: &TensorSpec) -> Missing {
    let found = checkpoint.skipped().iter().find(|s| s.name == spec.name);
    Missing {
        name: spec.name.clone(),
        shape: spec.shape.clone(),
        found: found.map(|s| s.what.clone()),
    }
}

/// Checks shape and dtype; what does not fit goes into the report.
fn fit(
    checkpoint: &Checkpoint,
    spec: &TensorSpec,
    source: Source,
    report: &mut LoadReport,
) -> Option<Slot> {
    let entries = checkpoint.entries();
    let mut ok = true;
    let mut check = |expr: &Expr, name: &str, expected: &[usize], loose: bool| {
        let from = file_names(checkpoint, expr);
        // Building the expression checked that it has a signature.
        let signature = expr.signature(entries).ok()?;
        if !is_float(signature.dtype) {
            ok = false;
            report.wrong_dtype.push(WrongDtype {
                name: name.into(),
                from: from.clone(),
                found: format!("{:?}", signature.dtype),
            });
        }
        let same = signature.shape == expected
            || loose && without_ones(&signature.shape) == without_ones(expected);
        if !same {
            ok = false;
            report.wrong_shape.push(WrongShape {
                name: name.into(),
                from: from.clone(),
                expected: expected.to_vec(),
                found: signature.shape,
            });
        }
        Some((from, format!("{:?}", signature.dtype)))
    };
    let (from, mut dtype) = match &source {
        Source::Plain(e) => check(e, &spec.name, &spec.shape, spec.loose_ones)?,
        Source::Factored { g, v } => {
            let (mut from, dtype) = check(
                v,
                &format!("{} (v)", spec.name),
                &spec.shape,
                spec.loose_ones,
            )?;
            let mut lengths = vec![1; spec.shape.len().max(1)];
            lengths[0] = spec.shape.first().copied().unwrap_or(1);
            // `g` may come as `[n]` as well as `[n, 1, ..]`.
            from.extend(check(g, &format!("{} (g)", spec.name), &lengths, true)?.0);
            (from, dtype)
        }
    };
    if !ok {
        return None;
    }
    if let Source::Plain(e) = &source
        && let Some(blocks) = e.blocks(entries)
    {
        dtype = blocks.name().to_uppercase();
    }
    report.matched.push(Matched {
        name: spec.name.clone(),
        from,
        shape: spec.shape.clone(),
        dtype,
    });
    Some(Slot {
        shape: spec.shape.clone(),
        source,
    })
}

fn without_ones(shape: &[usize]) -> Vec<usize> {
    shape.iter().copied().filter(|&d| d != 1).collect()
}

/// A checkpoint's tensors under a model's names, ready to be put on a device.
///
/// [`Loader::new`] matches everything first and refuses, with all problems listed, a checkpoint
/// that does not fit; reading happens tensor by tensor afterwards.
#[derive(Debug)]
pub struct Loader<'a> {
    checkpoint: &'a Checkpoint,
    slots: HashMap<String, Slot>,
    report: LoadReport,
    options: LoadOptions,
    device: Device,
    keeps_f16: bool,
    keeps_bf16: bool,
}

impl<'a> Loader<'a> {
    /// Plans the load of `specs` from `checkpoint` onto `device`.
    ///
    /// # Errors
    ///
    /// [`LoadError::NotClean`] with the report unless it is clean or `options.partial` is set.
    pub fn new(
        checkpoint: &'a Checkpoint,
        map: &NameMap,
        specs: &[TensorSpec],
        options: &LoadOptions,
        device: &Device,
    ) -> Result<Self, LoadError> {
        let Plan { slots, mut report } = Plan::make(checkpoint, map, specs)?;
        if !report.is_clean() && !options.partial {
            return Err(LoadError::NotClean {
                report: Box::new(report),
                kind: checkpoint.model_kind(),
            });
        }
        if options.check_values {
            scan(checkpoint, &slots, &mut report)?;
        }
        // Dtype support is a property of the backend below an autodiff device.
        let inner = device.clone().inner();
        Ok(Self {
            checkpoint,
            slots,
            report,
            options: options.clone(),
            device: device.clone(),
            keeps_f16: inner.supports_dtype(DType::F16),
            keeps_bf16: inner.supports_dtype(DType::BF16),
        })
    }

    /// What matched and what did not.
    pub fn report(&self) -> &LoadReport {
        &self.report
    }

    /// The checkpoint behind it.
    pub fn checkpoint(&self) -> &'a Checkpoint {
        self.checkpoint
    }

    /// The device that tensors are made on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Whether tensor `name` is there.
    pub fn has(&self, name: &str) -> bool {
        self.slots.contains_key(name)
    }

    /// The shape of tensor `name`, when it is there.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.slots.get(name).map(|s| s.shape.as_slice())
    }

    /// The values of `name` by the dtype policy, in host memory: a view of the mapped file when it
    /// is stored as it is and its dtype is kept. Weight norm is folded (in f32).
    ///
    /// # Errors
    ///
    /// When the tensor was not matched or cannot be read.
    pub fn data(&self, name: &str) -> Result<TensorData, LoadError> {
        let data = self.stored(name)?;
        if self.keeps(data.dtype()) {
            Ok(data)
        } else {
            self.as_f32(name, data)
        }
    }

    /// Tensor `name` by the dtype policy. On the flex device the values stay in the mapped file.
    ///
    /// # Errors
    ///
    /// When the tensor was not matched, cannot be read, or does not have `D` axes.
    pub fn tensor<const D: usize>(&self, name: &str) -> Result<Tensor<D>, LoadError> {
        let data = self.data(name)?;
        self.upload(name, data)
    }

    /// Tensor `name` in f32 whatever the policy (norms, biases).
    ///
    /// # Errors
    ///
    /// As [`Loader::tensor`].
    pub fn tensor_f32<const D: usize>(&self, name: &str) -> Result<Tensor<D>, LoadError> {
        let data = self.stored(name)?;
        let data = self.as_f32(name, data)?;
        self.upload(name, data)
    }

    /// Entries `rows` of tensor `name` along its first axis, by the dtype policy: how a stack of
    /// experts is put on a device one by one. A view of the mapped file where [`Loader::data`] is.
    ///
    /// # Errors
    ///
    /// As [`Loader::data`]; also when `rows` ends beyond the axis.
    pub fn data_rows(&self, name: &str, rows: Range<usize>) -> Result<TensorData, LoadError> {
        let slot = self.slot(name)?;
        let fits = slot
            .shape
            .first()
            .is_some_and(|&n| rows.start <= rows.end && rows.end <= n);
        if !fits {
            let asked = format!("{} rows from {} on", rows.len(), rows.start);
            return Err(self.rank(name, &slot.shape, asked));
        }
        let mut shape = slot.shape.clone();
        shape[0] = rows.len();
        let part = match &slot.source {
            // Only what these rows are made of is read.
            Source::Plain(expr) if expr.rank(self.checkpoint.entries()) == slot.shape.len() => {
                reshape(expr.rows(rows).eval(self.checkpoint)?, &shape)
            }
            _ => {
                let whole = self.stored(name)?;
                expr::slice(whole, &slot.shape, 0, rows.start, rows.len())
                    .map_err(|reason| CheckpointError::malformed(self.checkpoint.path(), reason))?
            }
        };
        if self.keeps(part.dtype()) {
            Ok(part)
        } else {
            self.as_f32(name, part)
        }
    }

    /// A weight matrix as the device will read it: quantised rows as the file has them where `packed`
    /// says that the device multiplies by them and the policy is [`DTypePolicy::Keep`], a tensor by the
    /// dtype policy otherwise. Decoded values become F16 on other devices that compute with it (half
    /// the memory; far finer than the blocks they come from), F32 elsewhere.
    ///
    /// # Errors
    ///
    /// As [`Loader::tensor`].
    pub fn stored_weight<const D: usize>(
        &self,
        name: &str,
        packed: bool,
    ) -> Result<StoredWeight<D>, LoadError> {
        let slot = self.slot(name)?;
        let entries = self.checkpoint.entries();
        let blocks = match &slot.source {
            Source::Plain(expr) => expr.blocks(entries).map(|blocks| (expr, blocks)),
            Source::Factored { .. } => None,
        };
        let Some((expr, blocks)) = blocks.filter(|_| self.options.dtype == DTypePolicy::Keep)
        else {
            return Ok(StoredWeight::Dense(self.tensor(name)?));
        };
        if packed {
            let rows = expr.eval_blocks(self.checkpoint)?;
            if rows.shape().len() != D {
                return Err(self.rank(name, &slot.shape, format!("{D} axes")));
            }
            return Ok(StoredWeight::Blocks {
                rows: Tensor::from_data(rows, (&self.device, DType::U8)),
                blocks,
            });
        }
        let mut data = self.stored(name)?;
        if self.keeps_f16 {
            data = data.convert_dtype(DType::F16);
        }
        Ok(StoredWeight::Dense(self.upload(name, data)?))
    }

    /// Weight `name` by the weight-norm policy: folded, or in its factors when the file has them
    /// and the policy keeps them. Factors are f32.
    ///
    /// # Errors
    ///
    /// As [`Loader::tensor`].
    pub fn weight_norm<const D: usize>(&self, name: &str) -> Result<WeightNormed<D>, LoadError> {
        let slot = self.slot(name)?;
        match (&slot.source, self.options.weight_norm) {
            (Source::Factored { g, v }, WeightNormPolicy::Keep) => {
                let mut lengths = vec![1; slot.shape.len().max(1)];
                lengths[0] = slot.shape.first().copied().unwrap_or(1);
                let g = self.as_f32(name, reshape(g.eval(self.checkpoint)?, &lengths))?;
                let v = self.as_f32(name, reshape(v.eval(self.checkpoint)?, &slot.shape))?;
                Ok(WeightNormed::Factored {
                    g: self.upload(name, g)?,
                    v: self.upload(name, v)?,
                })
            }
            _ => Ok(WeightNormed::Folded(self.tensor(name)?)),
        }
    }

    /// The values as stored, in the model's shape; weight norm folded.
    fn stored(&self, name: &str) -> Result<TensorData, LoadError> {
        let slot = self.slot(name)?;
        match &slot.source {
            Source::Plain(expr) => Ok(reshape(expr.eval(self.checkpoint)?, &slot.shape)),
            Source::Factored { g, v } => {
                let g = g.eval(self.checkpoint)?;
                let v = v.eval(self.checkpoint)?;
                let folded = floats(g.bytes(), g.dtype())
                    .zip(floats(v.bytes(), v.dtype()))
                    .map(|(g, v)| Bytes::from_elems(fold(&g, &v)))
                    .and_then(|b| {
                        TensorData::try_from_bytes(b, slot.shape.clone(), DType::F32).ok()
                    });
                folded.ok_or_else(|| self.unreadable(name))
            }
        }
    }

    fn keeps(&self, dtype: DType) -> bool {
        match dtype {
            DType::F32 => true,
            DType::F16 => self.keeps_f16 && self.options.dtype == DTypePolicy::Keep,
            DType::BF16 => self.keeps_bf16 && self.options.dtype == DTypePolicy::Keep,
            _ => false,
        }
    }

    fn as_f32(&self, name: &str, data: TensorData) -> Result<TensorData, LoadError> {
        to_f32(data).ok_or_else(|| self.unreadable(name))
    }

    fn upload<const D: usize>(&self, name: &str, data: TensorData) -> Result<Tensor<D>, LoadError> {
        let rank = data.shape().len();
        let data = match (rank, D) {
            (0, 1) => reshape(data, &[1]),
            (rank, d) if rank == d => data,
            _ => return Err(self.rank(name, data.shape(), format!("{D} axes"))),
        };
        let dtype = data.dtype();
        Ok(Tensor::from_data(data, (&self.device, dtype)))
    }

    fn slot(&self, name: &str) -> Result<&Slot, LoadError> {
        self.slots.get(name).ok_or_else(|| LoadError::Absent {
            checkpoint: self.report.checkpoint.clone(),
            name: name.into(),
        })
    }

    fn rank(&self, name: &str, shape: &[usize], asked: String) -> LoadError {
        LoadError::Rank {
            checkpoint: self.report.checkpoint.clone(),
            name: name.into(),
            shape: shape.to_vec(),
            asked,
        }
    }

    fn unreadable(&self, name: &str) -> LoadError {
        LoadError::Checkpoint(CheckpointError::Tensor {
            path: self.checkpoint.path().into(),
            name: name.into(),
            reason: "its values cannot be read as floating-point numbers".into(),
        })
    }
}

/// The same values under a shape of as many elements.
fn reshape(data: TensorData, shape: &[usize]) -> TensorData {
    if data.shape().as_slice() == shape {
        return data;
    }
    let (bytes, _, dtype) = data.into_parts();
    TensorData::from_bytes(bytes, shape.to_vec(), dtype)
}

fn scan(
    checkpoint: &Checkpoint,
    slots: &HashMap<String, Slot>,
    report: &mut LoadReport,
) -> Result<(), LoadError> {
    if checkpoint.total_bytes() > SCAN_LIMIT {
        report.notes.push(format!(
            "values were not searched for NaN: the checkpoint has {} bytes, only those of up to {SCAN_LIMIT} are",
            checkpoint.total_bytes()
        ));
        return Ok(());
    }
    let used: std::collections::BTreeSet<usize> =
        slots.values().flat_map(|s| s.source.files()).collect();
    for i in used {
        let entry = &checkpoint.entries()[i];
        let (nan, infinite) = entry.non_finite()?;
        if nan + infinite > 0 {
            tracing::warn!(
                "{}: '{}' holds {nan} NaN and {infinite} infinite values",
                report.checkpoint,
                entry.name
            );
            report.non_finite.push(NonFinite {
                name: entry.name.clone(),
                nan,
                infinite,
            });
        }
    }
    Ok(())
}
