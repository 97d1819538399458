//! Wav2Vec2-BERT: `loss = mean of hidden_i r_i`, hidden the output of a layer, of input features whose
//! last token may be masked.

use std::path::Path;

use burn::tensor::{DType, Tensor, TensorData};
use zonos_checkpoint::{Checkpoint, LoadOptions};
use zonos_nn::Tap;
use zonos_w2v_bert::{Features, Teacher, TeacherConfig};

use super::{Case, Report, compare_case, gradients_by_name, skip_case, within};
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
        if !checks.golden().has(&within(&case, "in.input_features")) {
            skip_case(&case, "no input features to begin with", checks);
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
    let key = within(case, "in.input_features");
    let input = golden.need(&key)?;
    let &[tokens, width] = input.shape() else {
        return Err(golden.problem(format!("tensor `{key}`: expected [tokens, width]")));
    };
    let mask = golden.need_i32(&within(case, "in.attention_mask"))?;
    let key = within(case, "in.hidden_index");
    let layer = golden.need_i32(&key)?;
    let layer = layer.first().and_then(|&i| usize::try_from(i).ok());
    let layer = layer.ok_or_else(|| golden.problem(format!("tensor `{key}`: expected a layer")))?;
    let r = golden.need(&within(case, "in.r"))?;

    let device = request.device.clone().autodiff();
    let checkpoint = Checkpoint::open(path).map_err(|e| failed(e.to_string()))?;
    // All layers: those after the one used must get no gradient.
    let (config, _) =
        TeacherConfig::from_checkpoint(&checkpoint).map_err(|e| failed(e.to_string()))?;
    let options = LoadOptions::training();
    let layers = config.num_hidden_layers;
    let (teacher, _) = Teacher::load_layers(&checkpoint, layers, &options, &device)
        .map_err(|e| failed(e.to_string()))?;
    let place = (&device, DType::F32);
    let input = Tensor::<2>::from_data(TensorData::new(input.to_f32(), [tokens, width]), place);
    let input = input.require_grad();
    let mask: Vec<bool> = mask.iter().map(|&seen| seen != 0).collect();
    let features = Features::new(input.clone(), mask).map_err(|e| failed(e.to_string()))?;
    if r.shape() != [tokens, config.hidden_size] {
        return Err(golden.problem(format!(
            "tensor `{}`: expected [{tokens}, {}], found {:?}",
            within(case, "in.r"),
            config.hidden_size,
            r.shape()
        )));
    }
    let r = TensorData::new(r.to_f32(), [tokens, config.hidden_size]);
    let r = Tensor::<2>::from_data(r, place);

    let hidden = teacher
        .forward(&features, layer, &mut Tap::off())
        .map_err(|e| failed(e.to_string()))?;
    let loss = (hidden * r.clone()).mean();
    let gradients = loss.backward();
    let mut found = gradients_by_name(&teacher, &gradients, Teacher::checkpoint_name);
    let host = |g: Tensor<2>| HostTensor::from_data(&g.into_data());
    found.insert(
        "input_features".to_owned(),
        input.grad(&gradients).map(host),
    );

    // The gradient in between, from a run that begins there.
    let hidden0 = teacher
        .project(&features)
        .map_err(|e| failed(e.to_string()))?;
    let hidden0 = hidden0.detach().require_grad();
    let hidden = teacher
        .encode(hidden0.clone(), features.mask(), layer, &mut Tap::off())
        .map_err(|e| failed(e.to_string()))?;
    let gradients = (hidden * r).mean().backward();
    found.insert("hidden0".to_owned(), hidden0.grad(&gradients).map(host));

    Ok(Case {
        loss: loss.into_data().iter::<f64>().next().unwrap_or(f64::NAN),
        gradients: found,
    })
}
