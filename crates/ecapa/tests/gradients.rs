//! Training gradients against the reference, through the modules as users load them.

mod common;

use std::collections::HashMap;

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Device, Gradients, Tensor, TensorData};
use common::{Golden, fixture};
use serde_json::Value;
use zonos_checkpoint::{Checkpoint, LoadOptions};
use zonos_ecapa::Ecapa;
use zonos_nn::Tap;

/// Gradients by the checkpoint's names.
struct Collector<'a> {
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
        let name = Ecapa::checkpoint_name(&self.path.join("."));
        let gradient = param.val().grad(self.gradients);
        let gradient = gradient.unwrap_or_else(|| panic!("no gradient: {name}"));
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
    assert!(ours.iter().all(|v| v.is_finite()), "{case}: {name}");
    let number = |field: &str| facts[field].as_f64().unwrap();
    if facts["zero"].is_string() {
        let worst = ours.iter().fold(0.0f64, |m, v| m.max(f64::from(v.abs())));
        assert!(worst <= number("abs_tol"), "{case}: {name}: {worst:e}");
        return worst / number("abs_tol");
    }
    let tol = number("tol");
    if tol > 1e-2 {
        return 0.0;
    }
    let (full, max) = (number("norm"), number("max"));
    let key = format!("{case}.grad.{name}");
    let pairs: Vec<(f64, f64)> = if golden.has(&key) {
        let theirs = golden.f32(&key);
        assert_eq!(ours.len(), theirs.len(), "{name}");
        let pairs = ours.iter().zip(theirs);
        pairs.map(|(&a, b)| (f64::from(a), f64::from(b))).collect()
    } else if golden.has(&format!("{key}.sample")) {
        let index = golden.i32(&format!("{key}.index"));
        let theirs = golden.f32(&format!("{key}.sample"));
        let pairs = index.iter().zip(theirs);
        pairs
            .map(|(&i, b)| (f64::from(ours[i as usize]), f64::from(b)))
            .collect()
    } else {
        Vec::new()
    };
    let mut used = 0.0f64;
    let mut within = |what: &str, value: f64, bound: f64| {
        assert!(
            value <= bound,
            "{case}: {name}: {what} {value:e}, allowed {bound:e}"
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
    let wide = || ours.iter().map(|&v| f64::from(v));
    let slack = tol * full * (ours.len() as f64).sqrt();
    within("sum", (wide().sum::<f64>() - number("sum")).abs(), slack);
    let turned = wide().enumerate().map(|(i, v)| v * (0.1 * i as f64).cos());
    within(
        "cossum",
        (turned.sum::<f64>() - number("cossum")).abs(),
        slack,
    );
    within("norm", (norm(wide()) - full).abs(), tol * full);
    used
}

fn check(case: &str) {
    let golden = Golden::open(fixture("gradients/ecapa/grad.safetensors"));
    let report = std::fs::read(fixture("gradients/ecapa/report.json")).unwrap();
    let report: Value = serde_json::from_slice(&report).unwrap();
    let facts = &report["cases"][case]["tensors"];

    let device = Device::flex().autodiff();
    let checkpoint = Checkpoint::open(fixture("ecapa/tiny/hf-f32")).unwrap();
    let (ecapa, _) = Ecapa::load_with(&checkpoint, &LoadOptions::training(), &device).unwrap();
    let mel = golden
        .mel(&format!("{case}.in.mel"), &device)
        .require_grad();
    let r = golden.f32(&format!("{case}.in.r"));
    let r = Tensor::<2>::from_data(TensorData::new(r.clone(), [1, r.len()]), &device);
    let loss = (ecapa.forward(mel.clone(), &mut Tap::off()).unwrap() * r).sum();
    let value = f64::from(common::host(loss.clone())[0]);
    let expected = golden.f64(&format!("{case}.loss"))[0];
    assert!(
        (value - expected).abs() <= 1e-5 * expected.abs(),
        "{case}: loss {value}, expected {expected}"
    );

    let gradients = loss.backward();
    let mut collector = Collector {
        gradients: &gradients,
        path: Vec::new(),
        found: HashMap::new(),
    };
    ecapa.visit(&mut collector);
    let mut found = collector.found;
    let of_mel = mel.grad(&gradients).expect("a gradient of the input");
    found.insert("mel".to_owned(), common::host(of_mel));
    // 76 parameters and the input.
    assert_eq!(found.len(), 77);
    let mut worst = (0.0, "");
    for (name, ours) in &found {
        assert!(facts[name].is_object(), "{name} has no facts");
        let used = compare(case, name, ours, &golden, &facts[name]);
        if used > worst.0 {
            worst = (used, name);
        }
    }
    println!(
        "{case}: worst uses {:.2} of its tolerance: {}",
        worst.0, worst.1
    );
}

#[test]
fn gradients_on_speech() {
    check("speech");
}

/// Every variance lies on its floor here.
#[test]
fn gradients_on_silence() {
    check("silence");
}
