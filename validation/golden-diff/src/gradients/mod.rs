//! Goldens of gradients: that the modules train.
//!
//! The same modules, loaded by the same loaders, run on an autodiff device. `report.json` beside
//! `grad.safetensors` lists every gradient with its sums and its tolerance; the file holds some of
//! them whole and some as samples.

mod audio;
mod dac;
mod ecapa;
mod parameters;
mod w2v_bert;
mod zac;
mod zonos2;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::checks::Checks;
use crate::compare::Tolerance;
use crate::error::{GoldenError, Result};
use crate::folder::{Component, containers};
use crate::golden::GoldenFile;
use crate::host::HostTensor;
use crate::report::SkipReason;
use crate::{Request, checkpoints};

pub(crate) use parameters::gradients_by_name;

/// Relative error of a loss.
const LOSS: f64 = 1e-5;
/// A documented tolerance above this means that the entries cancel: such a tensor says nothing.
const CANCELS: f64 = 1e-2;
/// GPUs add in other orders: the documented tolerances count tenfold there.
const OTHER_ORDER: f64 = 10.0;

/// Gradients by the names of the checkpoint; `None` for parameters that no gradient reached.
pub(crate) type Gradients = BTreeMap<String, Option<HostTensor>>;

/// One case of a gradient folder, as a component computed it.
pub(crate) struct Case {
    pub(crate) loss: f64,
    pub(crate) gradients: Gradients,
}

pub(crate) fn run(request: &Request, component: Component, checks: &mut Checks<'_>) -> Result<()> {
    let report = read_report(&request.dir)?;
    if component == Component::AudioGradients {
        return audio::run(request, &report, checks);
    }
    let (path, name) = model(request, &report, checks)?;
    checks.enter(&name);
    match component {
        Component::Zonos2Gradients => zonos2::run(request, &report, &path, checks),
        Component::EcapaGradients => ecapa::run(request, &report, &path, checks),
        Component::W2vBertGradients => w2v_bert::run(request, &report, &path, checks),
        Component::ZacGradients => zac::run(request, &report, &path, checks),
        _ => dac::run(request, &report, &path, checks),
    }
}

/// The checkpoint: the one named, or the first in the model folder that the report points to.
fn model(
    request: &Request,
    report: &Report,
    checks: &mut Checks<'_>,
) -> Result<(PathBuf, PathBuf)> {
    if request.checkpoint.is_none()
        && let Some(model) = report.model()
    {
        // The report writes the path as seen from the folder above the gradients.
        let above = request.dir.parent().unwrap_or(Path::new("."));
        for base in [above.join(model), request.dir.join(model)] {
            if base.is_dir()
                && let Some(first) = containers(&base)?.usable.into_iter().next()
            {
                return Ok((base.join(&first), Path::new(model).join(first)));
            }
        }
    }
    let mut found = checkpoints(request, checks)?;
    if found.is_empty() {
        return Err(GoldenError::NoCheckpoint {
            dir: request.dir.clone(),
        });
    }
    Ok(found.remove(0))
}

/// `report.json`.
pub(crate) struct Report {
    path: PathBuf,
    value: Value,
}

fn read_report(dir: &Path) -> Result<Report> {
    let path = dir.join("report.json");
    let text = std::fs::read(&path).map_err(|source| GoldenError::Io {
        path: path.clone(),
        source,
    })?;
    let value = serde_json::from_slice(&text).map_err(|e| GoldenError::Format {
        path: path.clone(),
        problem: format!("not JSON: {e}"),
    })?;
    Ok(Report { path, value })
}

impl Report {
    fn model(&self) -> Option<&str> {
        self.value["model"].as_str()
    }

    /// Names of the cases, as they stand in front of keys.
    pub(crate) fn cases(&self) -> Vec<String> {
        self.value["cases"]
            .as_object()
            .map(|m| m.keys().cloned().collect())
            .unwrap_or_default()
    }

    fn tensors(&self, case: &str) -> Result<&serde_json::Map<String, Value>> {
        self.value["cases"][case]["tensors"]
            .as_object()
            .ok_or_else(|| GoldenError::Format {
                path: self.path.clone(),
                problem: format!("case `{case}`: no `tensors`"),
            })
    }

    fn no_gradient(&self, case: &str) -> Vec<&str> {
        self.value["cases"][case]["no_gradient"]
            .as_array()
            .map(|list| list.iter().filter_map(Value::as_str).collect())
            .unwrap_or_default()
    }
}

/// The key `name` of a case; a folder's only case may have no name.
pub(crate) fn within(case: &str, name: &str) -> String {
    if case.is_empty() {
        name.to_owned()
    } else {
        format!("{case}.{name}")
    }
}

/// Lists a case that this build cannot run.
pub(crate) fn skip_case(case: &str, why: &str, checks: &mut Checks<'_>) {
    let keys: Vec<_> = checks.golden().keys().map(str::to_owned).collect();
    for key in keys.iter().filter(|k| k.starts_with(&format!("{case}."))) {
        checks.skip(key, SkipReason::NotApplicable(why.to_owned()));
    }
}

/// Compares a case. `runs` are its gradients from one or more runs of the same function (with
/// folded and with factored weights); a tensor is taken from the first run that has it.
pub(crate) fn compare_case(
    request: &Request,
    report: &Report,
    case: &str,
    runs: &[Case],
    checks: &mut Checks<'_>,
) -> Result<()> {
    for (i, run) in runs.iter().enumerate() {
        let loss = HostTensor::list(vec![run.loss]);
        let key = within(case, "loss");
        let tolerance = Tolerance::Relative { relative: LOSS };
        if i == 0 {
            checks.key(&key, &loss, tolerance)?;
        } else {
            checks.again("again", &key, &loss, tolerance)?;
        }
    }
    compare_gradients(request, report, case, runs, checks)
}

/// As [`compare_case`], without the loss.
fn compare_gradients(
    request: &Request,
    report: &Report,
    case: &str,
    runs: &[Case],
    checks: &mut Checks<'_>,
) -> Result<()> {
    for key in checks.golden().keys() {
        if key.starts_with(&within(case, "in.")) {
            checks.input(key, "input or target of the loss");
        }
    }
    let factor = if request.bit_exact() || request.device_name.eq_ignore_ascii_case("ndarray") {
        1.0
    } else {
        OTHER_ORDER
    };
    let find = |name: &str| runs.iter().find_map(|r| r.gradients.get(name));
    for (name, row) in report.tensors(case)? {
        compare_one(case, name, row, find(name), factor, checks)?;
    }
    for name in report.no_gradient(case) {
        if let Some(Some(found)) = find(name) {
            let zeros = HostTensor::floats(found.shape().to_vec(), vec![0.0; found.len()]);
            if let Some(zeros) = zeros {
                let key = within(case, &format!("no_gradient.{name}"));
                checks.part(&key, &zeros, found, Tolerance::Exact);
            }
        }
    }
    Ok(())
}

fn compare_one(
    case: &str,
    name: &str,
    row: &Value,
    found: Option<&Option<HostTensor>>,
    factor: f64,
    checks: &mut Checks<'_>,
) -> Result<()> {
    let golden = checks.golden();
    let key = within(case, &format!("grad.{name}"));
    let sample = format!("{key}.sample");
    let number = |field: &str| row[field].as_f64();
    let shape: Vec<usize> = row["shape"]
        .as_array()
        .map(|a| {
            a.iter()
                .filter_map(|d| d.as_u64().map(|d| d as usize))
                .collect()
        })
        .unwrap_or_default();
    let entries: usize = shape.iter().product();
    let label = if golden.has(&sample) {
        sample.clone()
    } else if golden.has(&key) {
        key.clone()
    } else {
        format!("{key} (sums)")
    };
    let stored = |golden: &GoldenFile| golden.has(&key) || golden.has(&sample);

    // Zero in exact arithmetic: only the size of what came out counts.
    if row["zero"].is_string() {
        let limit = Tolerance::Absolute {
            max_abs: number("abs_tol").unwrap_or(0.0) * factor,
        };
        let flat = match found.and_then(Option::as_ref) {
            Some(g) => g.to_f64(),
            None => vec![0.0; entries],
        };
        let zeros = HostTensor::list(vec![0.0; flat.len()]);
        checks.part(&label, &zeros, &HostTensor::list(flat), limit);
        touch_sample(&key, None, None, checks)?;
        return Ok(());
    }
    let (Some(tol), Some(norm), Some(max)) = (number("tol"), number("norm"), number("max")) else {
        return Err(golden.problem(format!(
            "report.json: case `{case}`, `{name}`: no tolerance"
        )));
    };
    if tol > CANCELS {
        let why = SkipReason::NotApplicable(format!("entries cancel (tolerance {tol:.0e})"));
        for leaf in ["", ".sample", ".index", ".sum", ".norm", ".cossum"] {
            checks.skip(&format!("{key}{leaf}"), why.clone());
        }
        return Ok(());
    }
    let tol = tol * factor;
    let rule = Tolerance::Gradient {
        relative: tol,
        norm,
        max,
    };
    let actual = match found {
        Some(Some(g)) => g,
        Some(None) => {
            checks.fail(
                &label,
                rule,
                "no gradient reached this parameter".to_owned(),
            );
            return touch_sample(&key, None, None, checks);
        }
        None => {
            if stored(golden) {
                checks.fail(
                    &label,
                    rule,
                    "the module has no parameter of this name".to_owned(),
                );
                touch_sample(&key, None, None, checks)?;
            } else {
                checks.own_failure(&label, rule, "the module has no parameter of this name");
            }
            return Ok(());
        }
    };
    if actual.len() != entries {
        checks.fail(
            &label,
            rule,
            format!("shape: expected {shape:?}, found {:?}", actual.shape()),
        );
        return touch_sample(&key, None, None, checks);
    }
    let Some(actual) = actual.clone().reshape(shape) else {
        return Ok(());
    };
    checks.key(&key, &actual, rule)?;
    let sums = three(&actual);
    let slack = tol * norm * (entries as f64).sqrt();
    if golden.has(&sample) {
        let picks: Vec<_> = golden
            .need_i32(&format!("{key}.index"))?
            .into_iter()
            .filter_map(|i| usize::try_from(i).ok())
            .collect();
        let flat = HostTensor::list(actual.to_f64());
        match flat.pick(&picks) {
            Some(picked) => checks.key(&sample, &picked, rule)?,
            None => checks.fail(&sample, rule, "index out of range".to_owned()),
        }
        touch_sample(&key, Some(&sums), Some((slack, tol)), checks)?;
    } else if !golden.has(&key) {
        let expected: Option<Vec<f64>> =
            ["sum", "norm", "cossum"].into_iter().map(number).collect();
        if let Some(expected) = expected {
            checks.part(
                &label,
                &HostTensor::list(expected),
                &HostTensor::list(sums.to_vec()),
                Tolerance::Absolute { max_abs: slack },
            );
        }
    }
    Ok(())
}

/// The sums stored beside a sampled gradient; with nothing to compare they are listed.
fn touch_sample(
    key: &str,
    sums: Option<&[f64; 3]>,
    limits: Option<(f64, f64)>,
    checks: &mut Checks<'_>,
) -> Result<()> {
    checks.input(&format!("{key}.index"), "which entries `.sample` holds");
    for (i, leaf) in ["sum", "norm", "cossum"].into_iter().enumerate() {
        let key = format!("{key}.{leaf}");
        match (sums, limits) {
            (Some(sums), Some((slack, tol))) => {
                let actual = HostTensor::list(vec![sums[i]]);
                let tolerance = if leaf == "norm" {
                    Tolerance::Relative { relative: tol }
                } else {
                    Tolerance::Absolute { max_abs: slack }
                };
                checks.key(&key, &actual, tolerance)?;
            }
            _ => checks.skip(
                &key,
                SkipReason::NotApplicable("the gradient itself failed".to_owned()),
            ),
        }
    }
    Ok(())
}

/// Sum, L2 norm and `sum g_i cos(0.1 i)`.
fn three(g: &HostTensor) -> [f64; 3] {
    let (mut sum, mut squares, mut turned) = (0.0, 0.0, 0.0);
    for (i, x) in g.to_f64().into_iter().enumerate() {
        sum += x;
        squares += x * x;
        turned += x * (0.1 * i as f64).cos();
    }
    [sum, squares.sqrt(), turned]
}
