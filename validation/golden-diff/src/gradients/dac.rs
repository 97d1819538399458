//! Mean squared error of the decoded samples.

use std::path::Path;

use burn::tensor::{DType, Tensor, TensorData};
use zonos_checkpoint::{Checkpoint, DTypePolicy, LoadOptions, WeightNormPolicy};
use zonos_dac::Dac;
use zonos_nn::{Edges, Tap};

use super::{Case, Report, compare_case, gradients_by_name, skip_case};
use crate::Request;
use crate::checks::Checks;
use crate::dac::{codes, on_device};
use crate::error::{GoldenError, Result};
use crate::host::HostTensor;

const ENCODER: &str = "encoder: not implemented until the encoder stage";

pub(crate) fn run(
    request: &Request,
    report: &Report,
    path: &Path,
    checks: &mut Checks<'_>,
) -> Result<()> {
    for case in report.cases() {
        let golden = checks.golden();
        if !golden.has(&format!("{case}.in.codes")) {
            skip_case(&case, ENCODER, checks);
            continue;
        }
        // `X.weight_g` and `X.weight_v` are parameters of a model that keeps the factors, `X.weight`
        // of one that folds them. Both are the same function.
        let runs = [WeightNormPolicy::Keep, WeightNormPolicy::Fold]
            .map(|policy| compute(request, path, &case, policy, checks));
        let [keep, fold] = runs;
        compare_case(request, report, &case, &[keep?, fold?], checks)?;
    }
    Ok(())
}

/// `loss = mean((wav - target)^2)`.
fn compute(
    request: &Request,
    path: &Path,
    case: &str,
    weight_norm: WeightNormPolicy,
    checks: &Checks<'_>,
) -> Result<Case> {
    let failed = |problem: String| GoldenError::Model {
        container: path.display().to_string(),
        problem,
    };
    let golden = checks.golden();
    let codes = codes(golden, &format!("{case}.in.codes"))?;
    let target = golden.need(&format!("{case}.in.target"))?.to_f32();

    let device = request.device.clone().autodiff();
    let checkpoint = Checkpoint::open(path).map_err(|e| failed(e.to_string()))?;
    let options = LoadOptions {
        dtype: DTypePolicy::F32,
        weight_norm,
        ..LoadOptions::training()
    };
    let (dac, _) =
        Dac::load_with(&checkpoint, &options, &device).map_err(|e| failed(e.to_string()))?;
    // In two steps, to see the gradient of what passes between them.
    let codes = on_device(&codes, &device);
    let z = dac.quantizer.from_codes(codes);
    let seen = z.clone().detach().require_grad();
    let wav = dac
        .decoder
        .forward(seen.clone(), Edges::WHOLE, &mut Tap::off());
    let [_, _, samples] = wav.dims();
    if samples != target.len() {
        return Err(golden.problem(format!(
            "tensor `{case}.in.target`: {} samples, the decoder makes {samples}",
            target.len()
        )));
    }
    let target = Tensor::<3>::from_data(
        TensorData::new(target, [1, 1, samples]),
        (&device, DType::F32),
    );
    let loss = (wav - target).square().mean();
    let decoder = loss.backward();
    let rename = |field: &str| {
        dac.checkpoint_name(field)
            .unwrap_or_else(|| field.to_owned())
    };
    let mut found = gradients_by_name(&dac.decoder, &decoder, |field: &str| {
        rename(&format!("decoder.{field}"))
    });
    let z_gradient = seen.grad(&decoder);
    if let Some(g) = &z_gradient {
        // The rest of the chain: d loss / d parameter = sum of (d loss / d z) (d z / d parameter).
        let g = Tensor::<3>::from_data(g.clone().into_data(), (&device, DType::F32));
        let quantizer = (z * g).sum().backward();
        found.extend(gradients_by_name(
            &dac.quantizer,
            &quantizer,
            |field: &str| rename(&format!("quantizer.{field}")),
        ));
    }
    found.insert(
        "z_q".to_owned(),
        z_gradient.map(|g| HostTensor::from_data(&g.into_data())),
    );
    Ok(Case {
        loss: loss.into_data().iter::<f64>().next().unwrap_or(f64::NAN),
        gradients: found,
    })
}
