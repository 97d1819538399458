//! Compare a model's tensors with goldens made by another implementation, key by key.
//!
//! A golden folder holds `golden.safetensors` (inputs, intermediate tensors, outputs) or
//! `grad.safetensors` (gradients), and the checkpoint they were made with. [`run`] recognises the
//! folder by its keys, loads every checkpoint in it through the public loaders, runs the model with
//! a tap, and compares every key: each is a [`Row`] of the [`Report`] or is listed with the reason
//! why it was not compared. Nothing about sizes, seeds or prompt lengths is built in, so the same
//! call checks a real checkpoint against a folder written by `validation/python`.
//!
//! A report fails when a row misses its tolerance, when the file has a key that nobody knows, and
//! when no golden tensor was compared at all.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use golden_diff::{Request, run};
//!
//! let report = run(&Request::new("validation/fixtures/dac/tiny", "cpu")?)?;
//! print!("{report}");
//! assert!(report.passed());
//! # Ok(())
//! # }
//! ```

mod audio;
mod checks;
mod compare;
mod dac;
mod ecapa;
mod error;
mod folder;
mod gguf;
mod golden;
mod gradients;
mod host;
mod html;
mod report;
mod w2v_bert;
mod zac;
mod zonos2;

use std::path::PathBuf;
use std::time::Instant;

use burn::tensor::Device;
use zonos_kernels::DeviceError;

pub use checks::Override;
pub use compare::{Comparison, Metrics, Tolerance, compare};
pub use error::{GoldenError, Result};
pub use folder::{Component, is_golden_folder};
pub use golden::GoldenFile;
pub use host::{HostTensor, Values};
pub use html::page as html_page;
pub use report::{Counts, Report, Row, SkipReason, Skipped};

use checks::Checks;

/// What to compare.
#[derive(Debug, Clone)]
pub struct Request {
    /// The golden folder.
    pub dir: PathBuf,
    /// The component the folder must be of; `None` takes it from the folder.
    pub component: Option<Component>,
    /// The checkpoint to run; `None` runs every checkpoint in the folder.
    pub checkpoint: Option<PathBuf>,
    /// Where to run.
    pub device: Device,
    /// The device as the user named it, for the report.
    pub device_name: String,
    /// Tolerances in place of the documented ones; the last that matches wins.
    pub overrides: Vec<Override>,
    /// The rules for goldens or devices of half precision: cosines and shares of equal arg-maxes
    /// and experts, no free-running codes. Also in force when the golden file's `precision` note
    /// says `bfloat16` or `float16`.
    pub half: bool,
}

impl Request {
    /// Compares the folder `dir` on the device that `device` names (see
    /// [`zonos_kernels::parse_device`]) with every checkpoint in it.
    ///
    /// # Errors
    /// The device name is unknown or its backend is not in this build.
    pub fn new(dir: impl Into<PathBuf>, device: &str) -> std::result::Result<Self, DeviceError> {
        Ok(Self {
            dir: dir.into(),
            component: None,
            checkpoint: None,
            device: zonos_kernels::parse_device(device)?,
            device_name: device.to_owned(),
            overrides: Vec::new(),
            half: false,
        })
    }

    /// Whether results must be equal bit for bit where the project promises it: on the CPU backend
    /// whose summation order does not depend on lengths.
    pub(crate) fn bit_exact(&self) -> bool {
        matches!(
            self.device_name.to_ascii_lowercase().as_str(),
            "cpu" | "flex"
        )
    }
}

/// Compares one golden folder.
///
/// # Errors
/// The folder has no readable golden file or no checkpoint, belongs to another component, or its
/// checkpoint does not load. Differences are no errors: they are in the report.
pub fn run(request: &Request) -> Result<Report> {
    let started = Instant::now();
    let (component, golden) = folder::recognise(&request.dir)?;
    if let Some(asked) = request.component
        && !asked.includes(component)
    {
        return Err(GoldenError::WrongComponent {
            dir: request.dir.clone(),
            found: component,
            asked,
        });
    }
    let mut checks = Checks::new(&golden, &request.overrides);
    let half = request.half || matches!(golden.note("precision"), Some("bfloat16" | "float16"));
    if half {
        checks.notes.push(
            "half-precision rules: cosines and shares of equal choices, free-running codes not compared"
                .to_owned(),
        );
    }
    match component {
        Component::Zonos2 => zonos2::run(request, half, &mut checks)?,
        Component::Gguf => gguf::run(request, &mut checks)?,
        Component::Dac => dac::run(request, &mut checks)?,
        Component::Ecapa => ecapa::run(request, &mut checks)?,
        Component::W2vBert => w2v_bert::run(request, half, &mut checks)?,
        Component::Zac => zac::run(request, half, &mut checks)?,
        Component::Audio => audio::run(request, &mut checks)?,
        Component::Zonos2Gradients
        | Component::DacGradients
        | Component::EcapaGradients
        | Component::W2vBertGradients
        | Component::ZacGradients
        | Component::AudioGradients => {
            gradients::run(request, component, &mut checks)?;
        }
    }
    let (rows, skipped, notes) = checks.finish();
    Ok(Report {
        dir: request.dir.clone(),
        component,
        device: request.device_name.clone(),
        rows,
        skipped,
        notes,
        seconds: started.elapsed().as_secs_f64(),
    })
}

/// The checkpoints that `request` runs: the one it names, or all of the folder's. Paths for
/// opening, and names for the report.
pub(crate) fn checkpoints(
    request: &Request,
    checks: &mut Checks<'_>,
) -> Result<Vec<(PathBuf, PathBuf)>> {
    if let Some(path) = &request.checkpoint {
        return Ok(vec![(path.clone(), path.clone())]);
    }
    let found = folder::containers(&request.dir)?;
    for (name, why) in found.ignored {
        checks
            .notes
            .push(format!("{}: not loaded: {why}", name.display()));
    }
    if found.usable.is_empty() {
        return Err(GoldenError::NoCheckpoint {
            dir: request.dir.clone(),
        });
    }
    Ok(found
        .usable
        .into_iter()
        .map(|name| (request.dir.join(&name), name))
        .collect())
}
