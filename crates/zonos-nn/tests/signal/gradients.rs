use burn::tensor::Tensor;
use serde_json::Value;
use zonos_audio::ResampleRecipe;
use zonos_audio::mel::MelConfig;
use zonos_nn::{Istft, MelSpectrogram, Resample, Stft};

use crate::golden::{Golden, fixtures, json};
use crate::settings::{mel_config, stft_config};
use crate::{noise, tracked, values};

/// Of a loss, relative to it or to the root of its number of terms.
const LOSS: f64 = 1e-5;

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter()
        .zip(b)
        .map(|(a, b)| f64::from(*a) * f64::from(*b))
        .sum()
}

fn norm(a: &[f32]) -> f64 {
    dot(a, a).sqrt()
}

/// The output of a case, and its inputs by name.
fn run(case: &str, golden: &Golden) -> (Vec<f32>, Vec<(&'static str, Vec<f32>)>) {
    let input = |name: &str| golden.tensor(&format!("{case}.in.{name}"));
    let r = input("r").1;
    // sum(out * r), whose derivative by `out` is r.
    let finish = |out: Tensor<1>, inputs: Vec<(&'static str, Tensor<1>)>| {
        let out_values = values(out.clone());
        let device = out.device();
        let r = Tensor::<1>::from_floats(r.as_slice(), &device);
        let gradients = (out * r).sum().backward();
        let found = inputs
            .into_iter()
            .map(|(name, x)| (name, values(x.grad(&gradients).unwrap())))
            .collect();
        (out_values, found)
    };
    let flat = |name: &str| {
        let (_, values) = input(name);
        let n = values.len();
        tracked(values, [n])
    };
    let (kind, rest) = case.split_once('.').unwrap();
    if kind == "istft" {
        let (re, im) = (flat("re"), flat("im"));
        let shape = input("re").0;
        let shape = [1, shape[0], shape[1]];
        let name = rest.trim_end_matches("_len");
        let istft = Istft::new(stft_config(&json("stft")[name])).unwrap();
        let length = rest.ends_with("_len").then_some(r.len());
        let out = istft
            .forward(re.clone().reshape(shape), im.clone().reshape(shape), length)
            .unwrap();
        return finish(out.flatten(0, 1), vec![("re", re), ("im", im)]);
    }
    let x = flat("x");
    let rows: Tensor<2> = x.clone().unsqueeze();
    let out = match kind {
        "resample" => {
            let (from, to) = rest.split_once('-').unwrap();
            let (from, to) = (from.parse().unwrap(), to.parse().unwrap());
            let module = Resample::new(from, to, ResampleRecipe::Transform).unwrap();
            module.forward(rows).flatten(0, 1)
        }
        "stft" => {
            let stft = Stft::new(stft_config(&json("stft")[rest])).unwrap();
            let (re, im) = stft.forward(rows).unwrap();
            Tensor::stack::<4>(vec![re, im], 3).flatten(0, 3)
        }
        "mel" if rest.starts_with("speaker.") => {
            let module = MelSpectrogram::new(MelConfig::speaker()).unwrap();
            module.log(rows, 1e-5).unwrap().flatten(0, 2)
        }
        "mel" => {
            let module = MelSpectrogram::new(mel_config(&json("mel")[rest])).unwrap();
            module.linear(rows).unwrap().swap_dims(1, 2).flatten(0, 2)
        }
        other => panic!("{other}"),
    };
    finish(out, vec![("x", x)])
}

#[test]
fn every_case() {
    let folder = fixtures().join("gradients/audio");
    let golden = Golden::open_file(&folder.join("grad.safetensors"));
    let report: Value =
        serde_json::from_slice(&std::fs::read(folder.join("report.json")).unwrap()).unwrap();
    let mut compared = 0;
    for (case, facts) in report["cases"].as_object().unwrap() {
        let (out, gradients) = run(case, &golden);
        let r = golden.values(&format!("{case}.in.r"));
        assert_eq!(out.len(), r.len(), "{case}");
        let loss = dot(&out, &r);
        let expected = facts["loss_f64"].as_f64().unwrap();
        let gap = (loss - expected).abs();
        assert!(
            gap <= LOSS * (r.len() as f64).sqrt().max(expected.abs()),
            "{case}: loss {loss}, {expected}"
        );
        for (name, gradient) in gradients {
            let expected = golden.values(&format!("{case}.grad.{name}"));
            let facts = &facts["tensors"][name];
            assert_eq!(gradient.len(), expected.len(), "{case}.{name}");
            let gaps: Vec<f32> = expected.iter().zip(&gradient).map(|(e, g)| g - e).collect();
            let worst = gaps.iter().fold(0.0f64, |m, g| {
                assert!(!g.is_nan(), "{case}.{name}");
                m.max(f64::from(g.abs()))
            });
            if facts["zero"].is_string() {
                assert_eq!(worst, 0.0, "{case}.{name}");
            } else {
                let tol = facts["tol"].as_f64().unwrap();
                let scale = facts["max"].as_f64().unwrap();
                let l2 = norm(&gaps) / norm(&expected);
                println!("{case}.{name}: L2 {l2:.1e}, max {:.1e}", worst / scale);
                assert!(
                    l2 <= tol && worst <= tol * scale,
                    "{case}.{name}: {l2:e}, {worst:e}"
                );
            }
            compared += 1;
        }
    }
    assert_eq!(compared, facts_count(&report));
    assert!(compared > 40);
}

fn facts_count(report: &Value) -> usize {
    let cases = report["cases"].as_object().unwrap().values();
    cases.map(|c| c["tensors"].as_object().unwrap().len()).sum()
}

#[test]
fn resampling_without_a_common_divisor() {
    // The module is linear, so its output along any r is its gradient along the input.
    let module = Resample::new(44_101, 44_100, ResampleRecipe::Transform).unwrap();
    let x = tracked(noise(500), [1, 500]);
    let y = module.forward(x.clone());
    let n = y.dims()[1];
    let r = noise(n + 7)[7..].to_vec();
    let device = y.device();
    let weights = Tensor::<1>::from_floats(r.as_slice(), &device).unsqueeze::<2>();
    let gradients = (y.clone() * weights).sum().backward();
    let gradient = values(x.grad(&gradients).unwrap());
    let (along_out, along_in) = (dot(&values(y), &r), dot(&noise(500), &gradient));
    assert!(
        (along_out - along_in).abs() < 1e-4,
        "{along_out}, {along_in}"
    );
}
