//! Training gradients against the reference, through the modules as users load them.

mod common;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{DType, Device, Gradients, Tensor, TensorData};
use common::{Golden, fixture, goldens, host};
use serde_json::Value;
use zonos_checkpoint::{Checkpoint, LoadOptions};
use zonos_nn::Tap;
use zonos_w2v_bert::{Features, Teacher};

/// Gradients by the checkpoint's names; `None` where none came.
struct Collector<'a> {
    gradients: &'a Gradients,
    path: Vec<String>,
    found: HashMap<String, Option<Vec<f32>>>,
}

impl ModuleVisitor for Collector<'_> {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let name = Teacher::checkpoint_name(&self.path.join("."));
        let gradient = param.val().grad(self.gradients);
        self.found.insert(name, gradient.map(host));
    }
}

fn norm(values: impl IntoIterator<Item = f64>) -> f64 {
    values.into_iter().map(|v| v * v).sum::<f64>().sqrt()
}

/// Compares one gradient by the rules of the gradients' README. Returns how much of the tolerance
/// it uses.
fn compare(name: &str, ours: &[f32], golden: &Golden, facts: &Value) -> f64 {
    assert!(ours.iter().all(|v| v.is_finite()), "{name}");
    let number = |field: &str| facts[field].as_f64().unwrap();
    if facts["zero"].is_string() {
        let worst = ours.iter().fold(0.0f64, |m, v| m.max(f64::from(v.abs())));
        assert!(worst <= number("abs_tol"), "{name}: {worst:e}");
        return worst / number("abs_tol");
    }
    let (tol, full, max) = (number("tol"), number("norm"), number("max"));
    assert!(tol <= 1e-2, "{name}");
    let mut used = 0.0f64;
    let mut within = |what: &str, is: f64, limit: f64| {
        assert!(is <= limit, "{name}: {what} {is:e} > {limit:e}");
        used = used.max(is / limit);
    };
    let key = format!("grad.{name}");
    let pairs: Vec<(f64, f64)> = if golden.has(&key) {
        let theirs = golden.f32(&key);
        assert_eq!(theirs.len(), ours.len(), "{name}");
        let pairs = ours.iter().zip(&theirs);
        pairs.map(|(&a, &b)| (a.into(), b.into())).collect()
    } else if golden.has(&format!("{key}.sample")) {
        let picks = golden.i32(&format!("{key}.index"));
        let theirs = golden.f32(&format!("{key}.sample"));
        let pairs = picks.iter().zip(&theirs);
        pairs
            .map(|(&i, &b)| (ours[i as usize].into(), b.into()))
            .collect()
    } else {
        Vec::new()
    };
    within(
        "L2 error",
        norm(pairs.iter().map(|(a, b)| a - b)),
        tol * full,
    );
    let worst = pairs.iter().map(|(a, b)| (a - b).abs());
    within("largest error", worst.fold(0.0, f64::max), tol * max);
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

fn check(gradients: &Path, model: PathBuf) {
    let golden = Golden::open(gradients.join("grad.safetensors"));
    let report = std::fs::read(gradients.join("report.json")).unwrap();
    let report: Value = serde_json::from_slice(&report).unwrap();
    let facts = &report["cases"][""];
    let device = Device::flex().autodiff();
    let checkpoint = Checkpoint::open(model).unwrap();
    let (teacher, _) = Teacher::load_with(&checkpoint, &LoadOptions::training(), &device).unwrap();
    let place = (&device, DType::F32);
    let matrix = |key: &str| {
        let shape = [golden.shape(key)[0], golden.shape(key)[1]];
        Tensor::<2>::from_data(TensorData::new(golden.f32(key), shape), place)
    };
    let input = matrix("in.input_features").require_grad();
    let mask = golden.i32("in.attention_mask");
    let mask = mask.iter().map(|&seen| seen == 1).collect();
    let features = Features::new(input.clone(), mask).unwrap();
    let layer = golden.i32("in.hidden_index")[0] as usize;
    let hidden = teacher.forward(&features, layer, &mut Tap::off()).unwrap();
    let loss = (hidden * matrix("in.r")).mean();
    let value = f64::from(host(loss.clone())[0]);
    let expected = golden.f64("loss")[0];
    assert!(
        (value - expected).abs() <= 1e-5 * expected.abs(),
        "loss {value}, expected {expected}"
    );
    let gradients = loss.backward();
    let mut collector = Collector {
        gradients: &gradients,
        path: Vec::new(),
        found: HashMap::new(),
    };
    teacher.visit(&mut collector);
    let mut found = collector.found;
    found.insert(
        "input_features".to_owned(),
        input.grad(&gradients).map(host),
    );
    assert_eq!(found.len(), 4 + 32 * teacher.layers() + 1);
    let mut worst = (0.0, "");
    let mut compared = 0;
    for (name, ours) in &found {
        let row = &facts["tensors"][name];
        match ours {
            Some(ours) => {
                assert!(row.is_object(), "{name} has no facts");
                let used = compare(name, ours, &golden, row);
                compared += 1;
                if used > worst.0 {
                    worst = (used, name);
                }
            }
            // Layers after the one used.
            None => assert!(row.is_null(), "{name}: no gradient"),
        }
    }
    assert_eq!(compared, 4 + 32 * layer + 1);
    println!("worst uses {:.2} of its tolerance: {}", worst.0, worst.1);
}

#[test]
fn gradients_of_a_middle_layer() {
    check(
        &fixture("w2v-bert/small-gradients"),
        fixture("w2v-bert/small"),
    );
}

#[test]
fn gradients_of_the_larger_golden() {
    if let (Some(gradients), Some(model)) =
        (goldens("gradients/w2v-bert"), goldens("w2v-bert/tiny"))
    {
        check(&gradients, model);
    }
}
