//! Cross-entropy of teacher-forced rows through the backbone.

use std::path::Path;

use burn::tensor::activation::log_softmax;
use burn::tensor::{DType, Int, Tensor, TensorData};
use zonos_checkpoint::{Checkpoint, LoadOptions};
use zonos_nn::Tap;
use zonos2::{Sequence, Zonos2};

use super::{Case, Report, compare_case, gradients_by_name};
use crate::Request;
use crate::checks::Checks;
use crate::error::{GoldenError, Result};
use crate::host::HostTensor;
use crate::zonos2::config;

const VOICE_ROW: usize = 0;

pub(crate) fn run(
    request: &Request,
    report: &Report,
    path: &Path,
    checks: &mut Checks<'_>,
) -> Result<()> {
    for case in report.cases() {
        let computed = compute(request, path, &case, checks)?;
        compare_case(request, report, &case, &[computed], checks)?;
    }
    Ok(())
}

/// `loss = mean over rows and codebooks of (logsumexp L - L[target])`, over the rows from
/// `in.first_row` on.
fn compute(request: &Request, path: &Path, case: &str, checks: &Checks<'_>) -> Result<Case> {
    let failed = |problem: String| GoldenError::Model {
        container: path.display().to_string(),
        problem,
    };
    let golden = checks.golden();
    let key = |leaf: &str| format!("{case}.in.{leaf}");
    let voice = golden.get(&key("speaker"))?;
    let sequence = Sequence {
        rows: golden.need_i32(&key("input_ids"))?,
        speaker: voice.as_ref().map(|v| (v.to_f32(), VOICE_ROW)),
    };
    let first = golden
        .need_i32(&key("first_row"))?
        .first()
        .and_then(|&r| usize::try_from(r).ok())
        .ok_or_else(|| golden.problem(format!("tensor `{}`: no row number", key("first_row"))))?;
    let target = golden.need_i32(&key("target"))?;

    let device = request.device.clone().autodiff();
    let checkpoint = Checkpoint::open(path).map_err(|e| failed(e.to_string()))?;
    let config = config(&checkpoint, path, &request.dir)?;
    let (model, _) = Zonos2::load_with(&checkpoint, config, &LoadOptions::training(), &device)
        .map_err(|e| failed(e.to_string()))?;
    let out = model
        .forward(&[sequence], &mut Tap::off())
        .map_err(|e| failed(e.to_string()))?;
    let [rows, codebooks, entries] = out.logits.dims();
    let scored = target.len() / codebooks;
    if first + scored > rows || scored * codebooks != target.len() {
        return Err(golden.problem(format!(
            "tensor `{}`: {} targets from row {first} on do not fit {rows} rows of {codebooks}",
            key("target"),
            target.len()
        )));
    }
    let cells = scored * codebooks;
    let logits = out
        .logits
        .slice([first..first + scored, 0..codebooks, 0..entries])
        .reshape([cells, entries]);
    let target =
        Tensor::<2, Int>::from_data(TensorData::new(target, [cells, 1]), (&device, DType::I32));
    let loss = log_softmax(logits, 1).gather(1, target).mean().neg();
    let gradients = loss.backward();
    let mut found = gradients_by_name(model.backbone(), &gradients, checkpoint_name);
    // The voice is an array to the model, not a tensor. Its gradient is that of the first
    // projection's output, which equals the gradient of that projection's bias, times its weights.
    if voice.is_some()
        && let Some(vector) = voice_gradient(&checkpoint, &found)
    {
        found.insert("speaker.vector".to_owned(), Some(vector));
    }
    Ok(Case {
        loss: loss.into_data().iter::<f64>().next().unwrap_or(f64::NAN),
        gradients: found,
    })
}

fn voice_gradient(checkpoint: &Checkpoint, found: &super::Gradients) -> Option<HostTensor> {
    let layer = ["speaker_lda_projection", "speaker_projection"]
        .into_iter()
        .find(|l| found.contains_key(&format!("{l}.bias")))?;
    let out = found.get(&format!("{layer}.bias"))?.as_ref()?.to_f64();
    let weight = checkpoint.tensor_data(&format!("{layer}.weight")).ok()?;
    let weight = HostTensor::from_data(&weight);
    let &[rows, columns] = weight.shape() else {
        return None;
    };
    let weight = weight.to_f64();
    let mut vector = vec![0.0; columns];
    for (row, g) in out.iter().enumerate().take(rows) {
        for (v, w) in vector.iter_mut().zip(&weight[row * columns..]) {
            *v += g * w;
        }
    }
    Some(HostTensor::list(vector))
}

/// Field paths follow the checkpoint but for wrappers: a packed weight is a field of its own, the
/// two voice projections sit in one optional struct, and the router's layers are numbered without
/// the activations between them.
fn checkpoint_name(path: &str) -> String {
    path.trim_start_matches("speaker.")
        .replace(".weight.weight", ".weight")
        .replace("experts.w13.weight", "experts.w13")
        .replace("experts.w2.weight", "experts.w2")
        .replace("router_mlp.1.", "router_mlp.2.")
        .replace("router_mlp_out.", "router_mlp.4.")
}

#[cfg(test)]
mod tests {
    use super::checkpoint_name;

    #[test]
    fn names_are_those_of_the_checkpoint() {
        for (path, name) in [
            ("multi_output.weight", "multi_output.weight"),
            (
                "multi_embedder.embedders.9.weight.weight",
                "multi_embedder.embedders.9.weight",
            ),
            (
                "speaker.speaker_projection.weight.weight",
                "speaker_projection.weight",
            ),
            (
                "layers.2.feed_forward.experts.w13.weight",
                "layers.2.feed_forward.experts.w13",
            ),
            (
                "layers.2.feed_forward.router.router_mlp.1.bias",
                "layers.2.feed_forward.router.router_mlp.2.bias",
            ),
            (
                "layers.2.feed_forward.router.router_mlp_out.weight",
                "layers.2.feed_forward.router.router_mlp.4.weight",
            ),
        ] {
            assert_eq!(checkpoint_name(path), name);
        }
    }
}
