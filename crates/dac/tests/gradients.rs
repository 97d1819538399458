//! Training gradients against the reference, through the modules as users load them.

mod common;

use std::collections::HashMap;

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Device, Gradients, Tensor, TensorData};
use common::{Golden, fixture, on_device};
use serde_json::Value;
use zonos_checkpoint::{Checkpoint, DTypePolicy, LoadOptions, WeightNormPolicy};
use zonos_dac::{Dac, DacParts};
use zonos_nn::{Edges, Tap};

/// Gradients by the checkpoint's names.
struct Collector<'a> {
    dac: &'a Dac,
    gradients: &'a Gradients,
    path: Vec<String>,
    found: HashMap<String, Vec<f32>>,
}

impl ModuleVisitor for Collector<'_> {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let path = self.path.join(".");
        let name = self
            .dac
            .checkpoint_name(&path)
            .unwrap_or_else(|| panic!("no name for {path}"));
        let gradient = param
            .val()
            .grad(self.gradients)
            .unwrap_or_else(|| panic!("no gradient: {name}"));
        self.found
            .insert(name, gradient.into_data().try_to_vec().unwrap());
    }
}

fn norm(values: impl IntoIterator<Item = f64>) -> f64 {
    values.into_iter().map(|v| v * v).sum::<f64>().sqrt()
}

/// Compares one gradient by the rules of the gradients' README. Returns how much of the tolerance
/// it uses.
fn compare(case: &str, name: &str, ours: &[f32], golden: &Golden, facts: &Value) -> f64 {
    assert!(ours.iter().all(|v| v.is_finite()), "{name}");
    if facts.get("zero").is_some_and(|zero| !zero.is_null()) {
        let bound = facts["abs_tol"].as_f64().unwrap();
        assert!(ours.iter().all(|v| f64::from(v.abs()) <= bound), "{name}");
        return 0.0;
    }
    let tol = facts["tol"].as_f64().unwrap();
    if tol > 1e-2 {
        return 0.0;
    }
    let (full, max) = (
        facts["norm"].as_f64().unwrap(),
        facts["max"].as_f64().unwrap(),
    );
    let key = format!("{case}.grad.{name}");
    let pairs: Vec<(f64, f64)> = if golden.has(&key) {
        let theirs = golden.f32(&key);
        assert_eq!(ours.len(), theirs.len(), "{name}");
        ours.iter()
            .zip(theirs)
            .map(|(&a, b)| (f64::from(a), f64::from(b)))
            .collect()
    } else if golden.has(&format!("{key}.sample")) {
        let index = golden.integers(&format!("{key}.index"));
        let theirs = golden.f32(&format!("{key}.sample"));
        index
            .iter()
            .zip(theirs)
            .map(|(&i, b)| (f64::from(ours[i as usize]), f64::from(b)))
            .collect()
    } else {
        Vec::new()
    };
    let mut used = 0.0f64;
    let mut within = |what: &str, value: f64, bound: f64| {
        assert!(
            value <= bound,
            "{name}: {what} {value:e}, allowed {bound:e}"
        );
        used = used.max(value / bound);
    };
    within(
        "error norm",
        norm(pairs.iter().map(|(a, b)| a - b)),
        tol * full,
    );
    let worst = pairs.iter().map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    within("largest error", worst, tol * max);
    // All gradients, stored or not, have their sums in the report.
    let root = (ours.len() as f64).sqrt();
    let sum: f64 = ours.iter().map(|&v| f64::from(v)).sum();
    within(
        "sum",
        (sum - facts["sum"].as_f64().unwrap()).abs(),
        tol * full * root,
    );
    let weighted = ours
        .iter()
        .enumerate()
        .map(|(i, &v)| f64::from(v) * (0.1 * i as f64).cos());
    let weighted: f64 = weighted.sum();
    within(
        "cossum",
        (weighted - facts["cossum"].as_f64().unwrap()).abs(),
        tol * full * root,
    );
    within(
        "norm",
        (norm(ours.iter().map(|&v| f64::from(v))) - full).abs(),
        tol * full,
    );
    used
}

/// A case of the goldens on an autodiff device.
struct Case {
    name: &'static str,
    golden: Golden,
    report: Value,
    device: Device,
    dac: Dac,
}

impl Case {
    fn open(name: &'static str, parts: DacParts, weight_norm: WeightNormPolicy) -> Self {
        let report = std::fs::read(fixture("gradients/dac/report.json")).unwrap();
        let device = Device::flex().autodiff();
        let checkpoint = Checkpoint::open(fixture("dac/tiny/weights.pth")).unwrap();
        let mut options = LoadOptions::training();
        options.dtype = DTypePolicy::F32;
        options.weight_norm = weight_norm;
        let (dac, _) = Dac::load_parts(&checkpoint, parts, &options, &device).unwrap();
        Self {
            name,
            golden: Golden::open(fixture("gradients/dac/grad.safetensors")),
            report: serde_json::from_slice(&report).unwrap(),
            device,
            dac,
        }
    }

    fn signal(&self, samples: &[f32]) -> Tensor<3> {
        let data = TensorData::new(samples.to_vec(), [1, 1, samples.len()]);
        Tensor::from_data(data, &self.device)
    }

    fn check_number(&self, key: &str, ours: &Tensor<1>) {
        let ours = f64::from(ours.clone().into_data().try_to_vec::<f32>().unwrap()[0]);
        let theirs = self.golden.f64(&format!("{}.{key}", self.name))[0];
        let close = (ours - theirs).abs() <= 1e-5 * theirs;
        assert!(close, "{key} {ours}, expected {theirs}");
    }

    /// Compares all gradients of the model and those given. Returns them.
    fn check(
        &self,
        gradients: &Gradients,
        more: Vec<(&str, Tensor<3>)>,
    ) -> HashMap<String, Vec<f32>> {
        let mut collector = Collector {
            dac: &self.dac,
            gradients,
            path: Vec::new(),
            found: HashMap::new(),
        };
        self.dac.visit(&mut collector);
        for (name, gradient) in more {
            let values = gradient.into_data().try_to_vec().unwrap();
            collector.found.insert(name.to_owned(), values);
        }
        let facts = &self.report["cases"][self.name]["tensors"];
        let mut worst = (0.0, String::new());
        for (name, ours) in &collector.found {
            let facts = &facts[name];
            assert!(facts.is_object(), "{name} has no facts");
            let used = compare(self.name, name, ours, &self.golden, facts);
            if used > worst.0 {
                worst = (used, name.clone());
            }
        }
        println!(
            "{} gradients, worst uses {:.2} of its tolerance: {}",
            collector.found.len(),
            worst.0,
            worst.1
        );
        collector.found
    }
}

/// Tensors of a convolution.
fn factors(weight_norm: WeightNormPolicy) -> usize {
    match weight_norm {
        WeightNormPolicy::Keep => 3,
        WeightNormPolicy::Fold => 2,
    }
}

fn check_decode(weight_norm: WeightNormPolicy) {
    let case = Case::open("decode", DacParts::Decoder, weight_norm);
    let codes = on_device(&case.golden.codes("decode.in.codes"), &case.device);
    let target = case.signal(&case.golden.f32("decode.in.target"));
    let wave = case.dac.decode_tensor(codes, &mut Tap::off());
    let loss = (wave - target).powi_scalar(2).mean();
    case.check_number("loss", &loss);
    let found = case.check(&loss.backward(), Vec::new());
    // 9 codebooks, 9 projections and 30 convolutions in two or three tensors, 29 alphas.
    assert_eq!(found.len(), 9 + 39 * factors(weight_norm) + 29);

    // Channels whose alpha is exactly 0 never learn it.
    let alpha = case.dac.decoder.blocks[0]
        .snake
        .alpha
        .val()
        .into_data()
        .try_to_vec::<f32>()
        .unwrap();
    assert_eq!(alpha[0], 0.0);
    assert_eq!(found["decoder.model.1.block.0.alpha"][0], 0.0);
}

/// Encodes, decodes, and pulls encoder and codebooks towards each other; one backward pass.
fn check_encode(weight_norm: WeightNormPolicy) {
    let case = Case::open("encode", DacParts::Whole, weight_norm);
    let samples = case.golden.f32("encode.in.wav");
    let wave = case.signal(&samples).require_grad();
    let encoded = case
        .dac
        .encode_tensor(wave.clone(), None, &mut Tap::off())
        .unwrap();
    let decoded = case
        .dac
        .decoder
        .forward(encoded.z.clone(), Edges::WHOLE, &mut Tap::off())
        .narrow(2, 0, samples.len());
    let reconstruction = (decoded - case.signal(&samples)).powi_scalar(2).mean();
    let (commitment, codebook) = (encoded.commitment_loss(), encoded.codebook_loss());
    case.check_number("term.reconstruction", &reconstruction);
    case.check_number("term.commitment", &commitment);
    case.check_number("term.codebook", &codebook);
    let loss = reconstruction + commitment * 0.25 + codebook;
    case.check_number("loss", &loss);
    let gradients = loss.backward();
    let of_wave = wave.grad(&gradients).unwrap();
    let found = case.check(&gradients, vec![("wav", of_wave)]);
    // 9 codebooks, 18 projections and 60 convolutions, 58 alphas, the input.
    assert_eq!(found.len(), 9 + 78 * factors(weight_norm) + 58 + 1);
}

#[test]
fn decoding_with_factored_weights() {
    check_decode(WeightNormPolicy::Keep);
}

#[test]
fn decoding_with_folded_weights() {
    check_decode(WeightNormPolicy::Fold);
}

#[test]
fn encoding_with_factored_weights() {
    check_encode(WeightNormPolicy::Keep);
}

#[test]
fn encoding_with_folded_weights() {
    check_encode(WeightNormPolicy::Fold);
}
