//! Goldens of the audio front ends: resampling, mel, spectra, and audio files.
//!
//! The folder holds no checkpoint and several golden files, whose keys are told apart here by the
//! file's name in front: `resample.44100-24000.transform`. Settings come from the JSON files beside
//! them. What runs are the modules of `zonos-nn`: on a CPU first as they are, which is the host's own
//! code, then on an autodiff device, which makes them of Burn's operations (rows `tracked.KEY`).

mod files;
mod mel;
mod resample;
pub(crate) mod settings;
mod stft;

use std::path::Path;

use burn::tensor::{DType, Device, Tensor, TensorData};
use zonos_kernels::device::is_cpu;

use crate::Request;
use crate::checks::Checks;
use crate::compare::Tolerance;
use crate::error::{GoldenError, Result};
use crate::host::HostTensor;
use crate::report::SkipReason;

pub(crate) use settings::Settings;

/// Golden files of a folder, without their extension; `decode/source` holds what audio files were made
/// from.
pub(crate) const FILES: [(&str, &str); 4] = [
    ("resample", "resample.safetensors"),
    ("mel", "mel.safetensors"),
    ("stft", "stft.safetensors"),
    ("decode", "decode/source.safetensors"),
];

/// Largest error of a sample, absolute: sums of the same products in another order.
const SAMPLES: f64 = 1e-6;

pub(crate) fn run(request: &Request, checks: &mut Checks<'_>) -> Result<()> {
    let device = &request.device;
    // On a CPU what nothing tracks is the host's code; a GPU has one path.
    let runs = if is_cpu(device) {
        vec![
            ("", device.clone()),
            ("tracked.", device.clone().autodiff()),
        ]
    } else {
        vec![("", device.clone())]
    };
    for (name, device) in runs {
        let run = Run { name, device };
        checks.enter(Path::new(match (run.name, is_cpu(&run.device)) {
            ("", true) => "on the host",
            ("", false) => "modules",
            _ => "modules, tracked by autodiff",
        }));
        resample::run(&run, &request.dir, checks)?;
        mel::run(&run, &request.dir, checks)?;
        stft::run(&run, &request.dir, checks)?;
    }
    checks.enter(Path::new("audio files"));
    files::run(&request.dir, checks)?;
    mark_inputs(checks);
    Ok(())
}

/// One way of running everything.
struct Run {
    /// What stands in front of keys.
    name: &'static str,
    device: Device,
}

impl Run {
    /// A signal, or several of one length, as rows.
    fn rows(&self, golden: &HostTensor) -> Tensor<2> {
        let (shape, values) = (golden.shape(), golden.to_f32());
        let samples = shape.last().copied().unwrap_or(0);
        let rows = values.len().checked_div(samples).unwrap_or(0);
        self.track(Tensor::from_data(
            TensorData::new(values, [rows, samples]),
            (&self.device, DType::F32),
        ))
    }

    /// `[bins, frames]` as one plane.
    fn plane(&self, golden: &HostTensor) -> Option<Tensor<3>> {
        let &[bins, frames] = golden.shape() else {
            return None;
        };
        let data = TensorData::new(golden.to_f32(), [1, bins, frames]);
        Some(self.track(Tensor::from_data(data, (&self.device, DType::F32))))
    }

    fn track<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        if self.device.is_autodiff() {
            x.require_grad()
        } else {
            x
        }
    }

    /// The first run covers the golden's keys; others say so in front of them.
    fn compare(
        &self,
        key: &str,
        expected: &HostTensor,
        actual: &HostTensor,
        tolerance: Tolerance,
        checks: &mut Checks<'_>,
    ) {
        checks.part(&format!("{}{key}", self.name), expected, actual, tolerance);
    }

    fn fail(&self, key: &str, why: impl ToString, checks: &mut Checks<'_>) {
        checks.fail(
            &format!("{}{key}", self.name),
            Tolerance::Exact,
            why.to_string(),
        );
    }

    /// Whether this is the run that settles what does not depend on tensors.
    fn first(&self) -> bool {
        self.name.is_empty()
    }
}

/// What a tensor holds, without the batch axis that modules add.
fn host<const D: usize>(x: Tensor<D>, rank: usize) -> HostTensor {
    HostTensor::from_data(&x.into_data()).squeeze_to(rank)
}

/// The entries of a signal at `picks`.
fn at(x: &HostTensor, picks: &[usize]) -> Option<HostTensor> {
    HostTensor::list(x.to_f64()).pick(picks)
}

fn largest(x: &HostTensor) -> f64 {
    x.to_f64().into_iter().fold(0.0, |m, x| m.max(x.abs()))
}

/// Inputs are the keys that other keys are made from.
fn mark_inputs(checks: &mut Checks<'_>) {
    let keys: Vec<_> = checks.golden().keys().map(str::to_owned).collect();
    for key in keys {
        if key.ends_with(".x") {
            checks.input(&key, "signal");
        } else if key.starts_with("decode.speech.") {
            checks.skip(
                &key,
                SkipReason::Input("what audio files were made from".to_owned()),
            );
        }
    }
}

/// A setting or an input that this build does not take.
fn refused(dir: &Path, problem: impl ToString) -> GoldenError {
    GoldenError::Format {
        path: dir.to_path_buf(),
        problem: problem.to_string(),
    }
}
