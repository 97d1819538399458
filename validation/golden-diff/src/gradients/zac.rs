//! The ZAC-1 decoder: mean squared error of the samples, also as a function of the codebooks' tables.

use std::path::Path;

use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use zonos_checkpoint::{Checkpoint, LoadOptions, WeightNormPolicy};
use zonos_nn::Tap;
use zonos_zac::{ResidualVq, Stage, VectorQuantizer, ZacDecoder, patch_up};

use super::{Case, Gradients, Report, compare_case, gradients_by_name, within};
use crate::Request;
use crate::checks::Checks;
use crate::error::{GoldenError, Result};
use crate::golden::GoldenFile;
use crate::host::HostTensor;
use crate::zac::{codes, on_device};

pub(crate) fn run(
    request: &Request,
    report: &Report,
    path: &Path,
    checks: &mut Checks<'_>,
) -> Result<()> {
    for case in report.cases() {
        let golden = checks.golden();
        // A case of its own may stand on the inputs of the first.
        let inputs = if golden.has(&within(&case, "in.codes")) {
            case.as_str()
        } else {
            ""
        };
        let runs = if case == "tables" {
            vec![tables(
                &Model::load(request, path, WeightNormPolicy::Fold)?,
                golden,
                inputs,
            )?]
        } else {
            // The factors are parameters of a model that keeps them, `X.weight` of one that folds them.
            [WeightNormPolicy::Keep, WeightNormPolicy::Fold]
                .into_iter()
                .map(|policy| decode(&Model::load(request, path, policy)?, golden, inputs))
                .collect::<Result<Vec<_>>>()?
        };
        compare_case(request, report, &case, &runs, checks)?;
    }
    Ok(())
}

struct Model {
    decoder: ZacDecoder,
    device: Device,
    container: String,
}

impl Model {
    fn load(request: &Request, path: &Path, weight_norm: WeightNormPolicy) -> Result<Self> {
        let container = path.display().to_string();
        let failed = |problem: String| GoldenError::Model {
            container: container.clone(),
            problem,
        };
        let device = request.device.clone().autodiff();
        let checkpoint = Checkpoint::open(path).map_err(|e| failed(e.to_string()))?;
        let options = LoadOptions {
            weight_norm,
            ..LoadOptions::training()
        };
        let (decoder, _) = ZacDecoder::load_with(&checkpoint, &options, &device)
            .map_err(|e| failed(e.to_string()))?;
        Ok(Self {
            decoder,
            device,
            container,
        })
    }

    fn fail(&self, problem: impl ToString) -> GoldenError {
        GoldenError::Model {
            container: self.container.clone(),
            problem: problem.to_string(),
        }
    }

    /// `mean((audio - target)^2)`, its gradients at the activations in between, and behind them those of
    /// all modules from the latents on.
    fn behind(&self, latent: Tensor<3>, target: Vec<f32>) -> Result<Behind> {
        let count = target.len();
        let target = Tensor::<2>::from_data(
            TensorData::new(target, [1, count]),
            (&self.device, DType::F32),
        );
        let decoder = &self.decoder;
        // In steps, to see the gradients of what passes between them; each is the last of its chain.
        let mut x = latent;
        for stage in &decoder.decoder {
            x = match stage {
                Stage::Transformer(stage) => stage.forward(x, None, &mut Tap::off()),
                Stage::Patch(patch) => patch_up(x, patch.size),
            };
        }
        let last = x;
        let last_seen = last.clone().detach().require_grad();
        let features = decoder.head.features(last_seen.clone(), None);
        let features_seen = features.clone().detach().require_grad();
        let inner = decoder
            .head
            .waveform(features_seen.clone(), &mut Tap::off())
            .map_err(|e| self.fail(e))?;
        let inner_seen = inner.clone().detach().require_grad();
        let audio = decoder.resampler().forward(inner_seen.clone());
        if audio.dims()[1] != count {
            return Err(self.fail(format!(
                "{} samples, the target has {count}",
                audio.dims()[1]
            )));
        }
        let loss = (audio - target).square().mean();
        let mut found = Gradients::new();
        let gradients = loss.backward();
        let of_inner = inner_seen.grad(&gradients);
        let through = |y: Tensor<2>, g: &Tensor<2>| (y * self.constant(g)).sum().backward();
        let through3 = |y: Tensor<3>, g: &Tensor<3>| (y * self.constant(g)).sum().backward();
        let stopped = || self.fail("no gradient reaches what lies between two stages");
        let of_inner = of_inner.ok_or_else(stopped)?;
        found.insert("audio_44160".to_owned(), Some(host(&of_inner)));
        let gradients = through(inner, &of_inner);
        self.collect("head", &decoder.head, &gradients, &mut found);
        let of_features = features_seen.grad(&gradients).ok_or_else(stopped)?;
        found.insert("head.features".to_owned(), Some(host(&of_features)));
        let gradients = through3(features, &of_features);
        self.collect("head", &decoder.head, &gradients, &mut found);
        let of_last = last_seen.grad(&gradients).ok_or_else(stopped)?;
        let name = format!("decoder.{}", decoder.decoder.len() - 1);
        found.insert(name, Some(host(&of_last)));
        let gradients = through3(last, &of_last);
        self.collect("decoder", &decoder.decoder, &gradients, &mut found);
        let data = loss.into_data();
        Ok(Behind {
            loss: data.iter::<f64>().next().unwrap_or(f64::NAN),
            found,
            gradients,
        })
    }

    fn constant<const D: usize>(&self, gradient: &Tensor<D>) -> Tensor<D> {
        Tensor::from_data(gradient.clone().into_data(), (&self.device, DType::F32))
    }

    /// Adds the gradients of a module's parameters that one step of the chain reaches.
    fn collect<M: burn::module::Module>(
        &self,
        part: &str,
        module: &M,
        gradients: &burn::tensor::Gradients,
        found: &mut Gradients,
    ) {
        let named = |field: &str| {
            let field = format!("{part}.{field}");
            self.decoder.checkpoint_name(&field).unwrap_or(field)
        };
        for (name, gradient) in gradients_by_name(module, gradients, named) {
            // Files spell the factors in one of two ways.
            for (ours, theirs) in [
                (".weight_g", ".parametrizations.weight.original0"),
                (".weight_v", ".parametrizations.weight.original1"),
            ] {
                if let Some(stem) = name.strip_suffix(ours) {
                    found.insert(format!("{stem}{theirs}"), gradient.clone());
                }
            }
            if gradient.is_some() || !found.contains_key(&name) {
                found.insert(name, gradient);
            }
        }
    }
}

struct Behind {
    loss: f64,
    found: Gradients,
    gradients: burn::tensor::Gradients,
}

fn host<const D: usize>(gradient: &Tensor<D>) -> HostTensor {
    HostTensor::from_data(&gradient.clone().into_data())
}

fn inputs(model: &Model, golden: &GoldenFile, case: &str) -> Result<(Tensor<3, Int>, Vec<f32>)> {
    let codes = codes(golden, &within(case, "in.codes"))?;
    let target = golden.need(&within(case, "in.target"))?.to_f32();
    Ok((on_device(&codes, &model.device), target))
}

fn decode(model: &Model, golden: &GoldenFile, case: &str) -> Result<Case> {
    let (codes, target) = inputs(model, golden, case)?;
    let decoder = &model.decoder;
    let latent = decoder.latents(codes, None, &mut Tap::off());
    let seen = latent.clone().detach().require_grad();
    let behind = model.behind(seen.clone(), target)?;
    let mut found = behind.found;
    let of_latent = seen.grad(&behind.gradients);
    if let Some(g) = &of_latent {
        let gradients = (latent * model.constant(g)).sum().backward();
        model.collect(
            "semantic_quantizer",
            &decoder.semantic_quantizer,
            &gradients,
            &mut found,
        );
        model.collect("quantizer", &decoder.quantizer, &gradients, &mut found);
        model.collect(
            "semantic_head",
            &decoder.semantic_head,
            &gradients,
            &mut found,
        );
    }
    found.insert("latent".to_owned(), of_latent.as_ref().map(host));
    Ok(Case {
        loss: behind.loss,
        gradients: found,
    })
}

/// The same loss as a function of the tables that codebooks and projections make.
fn tables(model: &Model, golden: &GoldenFile, case: &str) -> Result<Case> {
    let (codes, target) = inputs(model, golden, case)?;
    let decoder = &model.decoder;
    let folded = |vq: &ResidualVq| -> ResidualVq {
        let quantizers = vq.quantizers.iter().map(|quantizer| VectorQuantizer {
            codebook: burn::module::Param::from_tensor(quantizer.table().detach()),
            in_proj: None,
            out_proj: None,
        });
        ResidualVq {
            quantizers: quantizers.collect(),
            search: vq.search,
        }
    };
    let (semantic, acoustic) = (
        folded(&decoder.semantic_quantizer),
        folded(&decoder.quantizer),
    );
    let [_, _, columns] = codes.dims();
    let vectors = semantic.decode(codes.clone().narrow(2, 0, 1));
    let latent = decoder.semantic_head.forward(vectors, None)
        + acoustic.decode(codes.narrow(2, 1, columns - 1));
    let seen = latent.clone().detach().require_grad();
    let behind = model.behind(seen.clone(), target)?;
    let mut found = Gradients::new();
    if let Some(g) = seen.grad(&behind.gradients) {
        let gradients = (latent * model.constant(&g)).sum().backward();
        let all = semantic.quantizers.iter().chain(&acoustic.quantizers);
        for (i, quantizer) in all.enumerate() {
            let gradient = quantizer.codebook.val().grad(&gradients);
            found.insert(format!("table.{i}"), gradient.as_ref().map(host));
        }
    }
    Ok(Case {
        loss: behind.loss,
        gradients: found,
    })
}
