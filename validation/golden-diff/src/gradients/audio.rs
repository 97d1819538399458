//! `sum(out * r)` of resampling, mel, spectra and their inverses, by the waveform or the spectrum.

use std::path::Path;

use burn::tensor::{DType, Tensor, TensorData};
use zonos_audio::mel::MelConfig;
use zonos_audio::resample::ResampleRecipe;
use zonos_nn::{Istft, MelSpectrogram, Resample, Stft};

use super::{Case, Gradients, LOSS, Report, compare_gradients};
use crate::Request;
use crate::audio::Settings;
use crate::checks::Checks;
use crate::compare::Tolerance;
use crate::error::{GoldenError, Result};
use crate::host::HostTensor;

/// Smallest level that the speaker front end takes the logarithm of.
const FLOOR: f32 = 1e-5;

pub(super) fn run(request: &Request, report: &Report, checks: &mut Checks<'_>) -> Result<()> {
    checks.enter(Path::new("modules"));
    let settings = folder(request, report)?;
    for case in report.cases() {
        let computed = match compute(request, &settings, &case, checks)? {
            Ok(computed) => computed,
            Err(why) => {
                checks.fail(&format!("{case}.loss"), Tolerance::Exact, why);
                continue;
            }
        };
        // Terms of either sign cancel in the sum, their rounding does not.
        let key = format!("{case}.loss");
        let expected = checks.golden().need(&key)?.to_f64();
        let scale = expected.first().map_or(0.0, |x| x.abs());
        let terms = checks.golden().need(&format!("{case}.in.r"))?.len() as f64;
        checks.key(
            &key,
            &HostTensor::list(vec![computed.loss]),
            Tolerance::Absolute {
                max_abs: LOSS * scale.max(terms.sqrt()),
            },
        )?;
        compare_gradients(request, report, &case, &[computed], checks)?;
    }
    Ok(())
}

/// `stft.json` and `mel.json` of the folder the inputs come from.
fn folder(request: &Request, report: &Report) -> Result<(Settings, Settings)> {
    let above = request.dir.parent().unwrap_or(Path::new("."));
    let model = report.model().unwrap_or("../audio");
    let dir = [above.join(model), request.dir.join(model)]
        .into_iter()
        .find(|dir| dir.is_dir())
        .ok_or_else(|| GoldenError::Io {
            path: above.join(model),
            source: std::io::Error::new(
                std::io::ErrorKind::NotFound,
                "no such folder, whose stft.json and mel.json are needed",
            ),
        })?;
    Ok((
        Settings::open(&dir, "stft.json")?,
        Settings::open(&dir, "mel.json")?,
    ))
}

/// Loss and gradients of a case, or why it cannot run.
fn compute(
    request: &Request,
    (stft, mel): &(Settings, Settings),
    case: &str,
    checks: &Checks<'_>,
) -> Result<Result<Case, String>> {
    let device = request.device.clone().autodiff();
    let input = |name: &str| -> Result<(Vec<usize>, Tensor<1>)> {
        let x = checks.golden().need(&format!("{case}.in.{name}"))?;
        let data = TensorData::new(x.to_f32(), [x.len()]);
        let tensor = Tensor::from_data(data, (&device, DType::F32));
        Ok((x.shape().to_vec(), tensor))
    };
    let Some((kind, setting)) = case.split_once('.') else {
        return Ok(Err("expected KIND.SETTING".to_owned()));
    };
    let r = input("r")?.1;
    let (leaves, out): (Vec<(&str, Tensor<1>)>, Result<Tensor<1>, String>) = if kind == "istft" {
        let (shape, re) = input("re")?;
        let &[bins, frames] = shape.as_slice() else {
            return Ok(Err(format!("spectrum of shape {shape:?}")));
        };
        let (re, im) = (re.require_grad(), input("im")?.1.require_grad());
        let plane = |x: &Tensor<1>| x.clone().reshape([1, bins, frames]);
        let name = setting.trim_end_matches("_len");
        let length = (name != setting).then(|| r.dims()[0]);
        let out = Istft::new(stft.stft(name)?)
            .and_then(|istft| istft.forward(plane(&re), plane(&im), length))
            .map(|out| out.flatten(0, 1));
        let leaves = vec![("re", re), ("im", im)];
        (leaves, out.map_err(|e| e.to_string()))
    } else {
        let x = input("x")?.1.require_grad();
        let rows: Tensor<2> = x.clone().unsqueeze();
        let out = match kind {
            "resample" => resample(rows, setting),
            "stft" => Stft::new(stft.stft(setting)?)
                .and_then(|stft| stft.forward(rows))
                .map(|(re, im)| Tensor::stack::<4>(vec![re, im], 3).flatten(0, 3))
                .map_err(|e| e.to_string()),
            "mel" if setting.starts_with("speaker.") => speaker(rows, &r, &input("r")?.0),
            "mel" => MelSpectrogram::new(mel.mel(setting)?)
                .and_then(|module| module.linear(rows))
                .map(|mel| mel.swap_dims(1, 2).flatten(0, 2))
                .map_err(|e| e.to_string()),
            other => Err(format!("`{other}` is no part of the audio front ends")),
        };
        (vec![("x", x)], out)
    };
    Ok(out.and_then(|out| {
        if out.dims() != r.dims() {
            return Err(format!("{:?} outputs, expected {:?}", out.dims(), r.dims()));
        }
        let loss = (out * r).sum();
        let found = loss.backward();
        let gradients: Gradients = leaves
            .into_iter()
            .map(|(name, x)| {
                let gradient = x
                    .grad(&found)
                    .map(|g| HostTensor::from_data(&g.into_data()));
                (name.to_owned(), gradient)
            })
            .collect();
        Ok(Case {
            loss: loss.into_data().iter::<f64>().next().unwrap_or(f64::NAN),
            gradients,
        })
    }))
}

fn resample(x: Tensor<2>, pair: &str) -> Result<Tensor<1>, String> {
    let rates = pair.split_once('-').and_then(|(from, to)| {
        let (from, to) = (from.parse().ok()?, to.parse().ok()?);
        Some((from, to))
    });
    let (from, to) = rates.ok_or_else(|| format!("`{pair}` are no two rates"))?;
    let module = Resample::new(from, to, ResampleRecipe::Transform).map_err(|e| e.to_string())?;
    Ok(module.forward(x).flatten(0, 1))
}

/// As many bands as `r [frames, bands]` has.
fn speaker(x: Tensor<2>, r: &Tensor<1>, shape: &[usize]) -> Result<Tensor<1>, String> {
    let bands = shape.last().copied().unwrap_or_else(|| r.dims()[0]);
    let config = MelConfig {
        bands,
        ..MelConfig::speaker()
    };
    let module = MelSpectrogram::new(config).map_err(|e| e.to_string())?;
    let mel = module.log(x, FLOOR).map_err(|e| e.to_string())?;
    Ok(mel.flatten(0, 2))
}
