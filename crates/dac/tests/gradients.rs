//! Training gradients of the decoder against the reference, through the modules as users load them.

mod common;

use std::collections::HashMap;

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Device, Gradients, Tensor, TensorData};
use common::{Golden, fixture, on_device};
use serde_json::Value;
use zonos_checkpoint::{Checkpoint, DTypePolicy, LoadOptions, WeightNormPolicy};
use zonos_dac::Dac;
use zonos_nn::Tap;

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
fn compare(name: &str, ours: &[f32], golden: &Golden, facts: &Value) -> f64 {
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
    let key = format!("decode.grad.{name}");
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

fn check(weight_norm: WeightNormPolicy) {
    let golden = Golden::open(fixture("gradients/dac/grad.safetensors"));
    let report: Value =
        serde_json::from_slice(&std::fs::read(fixture("gradients/dac/report.json")).unwrap())
            .unwrap();
    let facts = &report["cases"]["decode"]["tensors"];

    let device = Device::flex().autodiff();
    let checkpoint = Checkpoint::open(fixture("dac/tiny/weights.pth")).unwrap();
    let mut options = LoadOptions::training();
    options.dtype = DTypePolicy::F32;
    options.weight_norm = weight_norm;
    let (dac, _) = Dac::load_with(&checkpoint, &options, &device).unwrap();
    let codes = on_device(&golden.codes("decode.in.codes"), &device);
    let target = golden.f32("decode.in.target");
    let samples = target.len();
    let target = Tensor::<3>::from_data(TensorData::new(target, [1, 1, samples]), &device);
    let wave = dac.decode_tensor(codes, &mut Tap::off());
    let loss = (wave - target).powi_scalar(2).mean();
    let value = f64::from(loss.clone().into_data().try_to_vec::<f32>().unwrap()[0]);
    let expected = golden.f64("decode.loss")[0];
    assert!(
        (value - expected).abs() <= 1e-5 * expected,
        "loss {value}, expected {expected}"
    );

    let gradients = loss.backward();
    let mut collector = Collector {
        dac: &dac,
        gradients: &gradients,
        path: Vec::new(),
        found: HashMap::new(),
    };
    dac.visit(&mut collector);
    let (mut compared, mut worst) = (0, (0.0, String::new()));
    for (name, ours) in &collector.found {
        let facts = &facts[name];
        assert!(facts.is_object(), "{name} has no facts");
        let used = compare(name, ours, &golden, facts);
        compared += 1;
        if used > worst.0 {
            worst = (used, name.clone());
        }
    }
    println!(
        "{compared} gradients, worst uses {:.2} of its tolerance: {}",
        worst.0, worst.1
    );
    // 9 codebooks, 9 projections and 30 convolutions in two or three tensors, 29 alphas.
    let factors = if weight_norm == WeightNormPolicy::Keep {
        3
    } else {
        2
    };
    assert_eq!(compared, 9 + 39 * factors + 29);

    // Channels whose alpha is exactly 0 never learn it.
    let alpha = dac.decoder.blocks[0]
        .snake
        .alpha
        .val()
        .into_data()
        .try_to_vec::<f32>()
        .unwrap();
    assert_eq!(alpha[0], 0.0);
    assert_eq!(collector.found["decoder.model.1.block.0.alpha"][0], 0.0);
}

#[test]
fn gradients_of_the_factors() {
    check(WeightNormPolicy::Keep);
}

#[test]
fn gradients_of_folded_weights() {
    check(WeightNormPolicy::Fold);
}
