//! The speaker encoder: `loss = sum of emb_i r_i` of mel frames.

use std::path::Path;

use burn::tensor::{DType, Tensor, TensorData};
use zonos_checkpoint::{Checkpoint, DTypePolicy, LoadOptions};
use zonos_ecapa::Ecapa;
use zonos_nn::Tap;

use super::{Case, Report, compare_case, gradients_by_name, skip_case};
use crate::Request;
use crate::checks::Checks;
use crate::error::{GoldenError, Result};
use crate::host::HostTensor;

pub(crate) fn run(
    request: &Request,
    report: &Report,
    path: &Path,
    checks: &mut Checks<'_>,
) -> Result<()> {
    for case in report.cases() {
        if !checks.golden().has(&format!("{case}.in.mel")) {
            skip_case(&case, "no mel frames to begin with", checks);
            continue;
        }
        let run = compute(request, path, &case, checks)?;
        compare_case(request, report, &case, &[run], checks)?;
    }
    Ok(())
}

fn compute(request: &Request, path: &Path, case: &str, checks: &Checks<'_>) -> Result<Case> {
    let failed = |problem: String| GoldenError::Model {
        container: path.display().to_string(),
        problem,
    };
    let golden = checks.golden();
    let key = format!("{case}.in.mel");
    let frames = golden.need(&key)?;
    let &[count, bands] = frames.shape() else {
        return Err(golden.problem(format!("tensor `{key}`: expected [frames, bands]")));
    };
    let r = golden.need(&format!("{case}.in.r"))?.to_f32();

    let device = request.device.clone().autodiff();
    let checkpoint = Checkpoint::open(path).map_err(|e| failed(e.to_string()))?;
    let options = LoadOptions {
        dtype: DTypePolicy::F32,
        ..LoadOptions::training()
    };
    let (ecapa, _) =
        Ecapa::load_with(&checkpoint, &options, &device).map_err(|e| failed(e.to_string()))?;
    let place = (&device, DType::F32);
    let mel = Tensor::<3>::from_data(TensorData::new(frames.to_f32(), [1, count, bands]), place);
    let mel = mel.require_grad();
    let voice = ecapa
        .forward(mel.clone(), &mut Tap::off())
        .map_err(|e| failed(e.to_string()))?;
    let width = voice.dims()[1];
    if r.len() != width {
        return Err(golden.problem(format!(
            "tensor `{case}.in.r`: {} entries, the voice vector has {width}",
            r.len()
        )));
    }
    let r = Tensor::<2>::from_data(TensorData::new(r, [1, width]), place);
    let loss = (voice * r).sum();
    let gradients = loss.backward();
    let mut found = gradients_by_name(&ecapa, &gradients, Ecapa::checkpoint_name);
    let of_mel = mel.grad(&gradients);
    found.insert(
        "mel".to_owned(),
        of_mel.map(|g| HostTensor::from_data(&g.into_data())),
    );
    Ok(Case {
        loss: loss.into_data().iter::<f64>().next().unwrap_or(f64::NAN),
        gradients: found,
    })
}
