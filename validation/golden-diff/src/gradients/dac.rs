//! Decoding: mean squared error of the samples. Encoding: reconstruction, commitment and codebook
//! terms, gradients passing straight through the codes.

use std::path::Path;

use burn::tensor::{DType, Device, Tensor, TensorData};
use zonos_checkpoint::{Checkpoint, DTypePolicy, LoadOptions, WeightNormPolicy};
use zonos_dac::Dac;
use zonos_nn::{Edges, Tap};

use super::{Case, Gradients, LOSS, Report, compare_case, gradients_by_name, skip_case};
use crate::Request;
use crate::checks::Checks;
use crate::compare::Tolerance;
use crate::dac::{codes, on_device};
use crate::error::{GoldenError, Result};
use crate::golden::GoldenFile;
use crate::host::HostTensor;

/// Weight of the commitment term in the loss; the codebook term counts once.
const COMMITMENT: f32 = 0.25;

pub(crate) fn run(
    request: &Request,
    report: &Report,
    path: &Path,
    checks: &mut Checks<'_>,
) -> Result<()> {
    for case in report.cases() {
        let golden = checks.golden();
        let compute = if golden.has(&format!("{case}.in.codes")) {
            decode
        } else if golden.has(&format!("{case}.in.wav")) {
            encode
        } else {
            skip_case(&case, "neither codes nor samples to begin with", checks);
            continue;
        };
        // `X.weight_g` and `X.weight_v` are parameters of a model that keeps the factors, `X.weight`
        // of one that folds them. Both are the same function.
        let mut runs = Vec::new();
        for policy in [WeightNormPolicy::Keep, WeightNormPolicy::Fold] {
            let model = Model::load(request, path, policy)?;
            let Computed { case: run, terms } = compute(&model, golden, &case)?;
            for (name, value) in terms {
                let (key, value) = (format!("{case}.term.{name}"), HostTensor::list(vec![value]));
                let tolerance = Tolerance::Relative { relative: LOSS };
                if runs.is_empty() {
                    checks.key(&key, &value, tolerance)?;
                } else {
                    checks.again("again", &key, &value, tolerance)?;
                }
            }
            runs.push(run);
        }
        compare_case(request, report, &case, &runs, checks)?;
    }
    Ok(())
}

/// Loss and gradients, and the terms of the loss before they are weighed.
struct Computed {
    case: Case,
    terms: Vec<(&'static str, f64)>,
}

struct Model<'a> {
    path: &'a Path,
    dac: Dac,
    device: Device,
}

impl<'a> Model<'a> {
    fn load(request: &Request, path: &'a Path, weight_norm: WeightNormPolicy) -> Result<Self> {
        let failed = |problem: String| GoldenError::Model {
            container: path.display().to_string(),
            problem,
        };
        let device = request.device.clone().autodiff();
        let checkpoint = Checkpoint::open(path).map_err(|e| failed(e.to_string()))?;
        let options = LoadOptions {
            dtype: DTypePolicy::F32,
            weight_norm,
            ..LoadOptions::training()
        };
        let (dac, _) =
            Dac::load_with(&checkpoint, &options, &device).map_err(|e| failed(e.to_string()))?;
        Ok(Self { path, dac, device })
    }

    /// `[1, 1, samples]`.
    fn signal(&self, samples: Vec<f32>) -> Tensor<3> {
        let count = samples.len();
        let data = TensorData::new(samples, [1, 1, count]);
        Tensor::from_data(data, (&self.device, DType::F32))
    }

    /// A gradient as a constant of the next stage of the chain: d loss / d parameter = sum of
    /// (d loss / d z) (d z / d parameter).
    fn constant(&self, gradient: &Tensor<3>) -> Tensor<3> {
        Tensor::from_data(gradient.clone().into_data(), (&self.device, DType::F32))
    }

    fn name(&self, part: &str, field: &str) -> String {
        let field = format!("{part}.{field}");
        self.dac.checkpoint_name(&field).unwrap_or(field)
    }
}

fn host(gradient: &Tensor<3>) -> HostTensor {
    HostTensor::from_data(&gradient.clone().into_data())
}

fn number(term: &Tensor<1>) -> f64 {
    let data = term.clone().into_data();
    data.iter::<f64>().next().unwrap_or(f64::NAN)
}

/// `loss = mean((wav - target)^2)`.
fn decode(model: &Model<'_>, golden: &GoldenFile, case: &str) -> Result<Computed> {
    let codes = codes(golden, &format!("{case}.in.codes"))?;
    let target = golden.need(&format!("{case}.in.target"))?.to_f32();
    let dac = &model.dac;
    // In two steps, to see the gradient of what passes between them.
    let z = dac.quantizer.from_codes(on_device(&codes, &model.device));
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
    let loss = (wav - model.signal(target)).square().mean();
    let decoder = loss.backward();
    let mut found = gradients_by_name(&dac.decoder, &decoder, |f| model.name("decoder", f));
    let of_z = seen.grad(&decoder);
    if let Some(g) = &of_z {
        let quantizer = (z * model.constant(g)).sum().backward();
        found.extend(gradients_by_name(&dac.quantizer, &quantizer, |f| {
            model.name("quantizer", f)
        }));
    }
    found.insert("z_q".to_owned(), of_z.as_ref().map(host));
    Ok(Computed {
        case: Case {
            loss: number(&loss),
            gradients: found,
        },
        terms: Vec::new(),
    })
}

/// `loss = mean((decoded - wav)^2) + 0.25 commitment + codebook`, the target being held fixed.
fn encode(model: &Model<'_>, golden: &GoldenFile, case: &str) -> Result<Computed> {
    let dac = &model.dac;
    let (Some(encoder), Some(sizes)) = (&dac.encoder, &dac.config().encoder) else {
        return Err(GoldenError::Model {
            container: model.path.display().to_string(),
            problem: "holds no encoder".to_owned(),
        });
    };
    let samples = golden.need(&format!("{case}.in.wav"))?.to_f32();
    let wav = model.signal(samples.clone()).require_grad();
    let fill = sizes.padded_len(samples.len()) - samples.len();
    let padded = match fill {
        0 => wav.clone(),
        fill => Tensor::cat(vec![wav.clone(), model.signal(vec![0.0; fill])], 2),
    };
    // In three steps, to see the gradients of what passes between them.
    let mut off = Tap::off();
    let z = encoder.forward(padded, Edges::WHOLE, &mut off);
    let z_seen = z.clone().detach().require_grad();
    let coded = dac
        .quantizer
        .encode(z_seen.clone(), dac.config().n_codebooks, &mut off);
    let sum_seen = coded.z.clone().detach().require_grad();
    let decoded = dac
        .decoder
        .forward(sum_seen.clone(), Edges::WHOLE, &mut off);
    let kept = samples.len().min(decoded.dims()[2]);
    let target = model.signal(samples[..kept].to_vec());
    let reconstruction = (decoded.narrow(2, 0, kept) - target).square().mean();
    let (commitment, codebook) = (coded.commitment_loss(), coded.codebook_loss());
    let terms = vec![
        ("reconstruction", number(&reconstruction)),
        ("commitment", number(&commitment)),
        ("codebook", number(&codebook)),
    ];
    let weights = [1.0, f64::from(COMMITMENT), 1.0];
    let loss = terms.iter().zip(weights).map(|((_, x), w)| x * w).sum();

    let decoder = reconstruction.backward();
    let mut found: Gradients =
        gradients_by_name(&dac.decoder, &decoder, |f| model.name("decoder", f));
    let of_sum = sum_seen.grad(&decoder);
    if let Some(g) = &of_sum {
        let through = (coded.z * model.constant(g)).sum();
        let quantizer = (through + commitment * COMMITMENT + codebook).backward();
        found.extend(gradients_by_name(&dac.quantizer, &quantizer, |f| {
            model.name("quantizer", f)
        }));
        let of_z = z_seen.grad(&quantizer);
        if let Some(g) = &of_z {
            let gradients = (z * model.constant(g)).sum().backward();
            found.extend(gradients_by_name(encoder, &gradients, |f| {
                model.name("encoder", f)
            }));
            found.insert("wav".to_owned(), wav.grad(&gradients).as_ref().map(host));
        }
        found.insert("encoder_out".to_owned(), of_z.as_ref().map(host));
    }
    found.insert("z_q".to_owned(), of_sum.as_ref().map(host));
    Ok(Computed {
        case: Case {
            loss,
            gradients: found,
        },
        terms,
    })
}
