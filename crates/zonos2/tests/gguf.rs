//! GGUF backbones against the block-aligned golden set, in all its storage forms (tolerances:
//! `golden/gguf/zonos2-k/README.md`). The files are large, so they are read from `$ZONOS_GOLDENS`.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use burn::tensor::{Device, Tensor};
use safetensors::SafeTensors;
use zonos_checkpoint::{Checkpoint, LoadOptions};
use zonos_gguf::{GgufFile, GgufWriter, NewTensor};
use zonos_kernels::Activations;
use zonos_nn::Tap;
use zonos2::{GenerateOptions, SamplerOptions, Sequence, Zonos2};

const FORMS: [&str; 7] = [
    "f16", "q8_0-full", "q8_0", "q6_k", "q5_k", "q4_k", "q4_k-im",
];

/// The folder of goldens, or nothing, aloud.
fn goldens() -> Option<PathBuf> {
    match std::env::var_os("ZONOS_GOLDENS").filter(|folder| !folder.is_empty()) {
        Some(folder) => Some(PathBuf::from(folder).join("gguf/zonos2-k")),
        None => {
            println!("ZONOS_GOLDENS is unset: the GGUF backbones are not compared");
            None
        }
    }
}

/// The file of one form: the F16 file with the tensors and the metadata of its overlay.
fn assemble(folder: &Path, form: &str, out: &Path) {
    let base = std::fs::read(folder.join("f16.gguf")).unwrap();
    if form == "f16" {
        std::fs::write(out, base).unwrap();
        return;
    }
    let base = GgufFile::read("f16.gguf", base).unwrap();
    let overlay = std::fs::read(folder.join(format!("{form}.overlay.gguf"))).unwrap();
    let overlay = GgufFile::read(form, overlay).unwrap();
    let tensors: Vec<NewTensor> = base
        .tensors()
        .iter()
        .map(|t| {
            let of = overlay.tensor(t.name()).unwrap_or(t);
            NewTensor {
                name: t.name().into(),
                dims: of.dims().to_vec(),
                ggml_type: of.ggml_type(),
            }
        })
        .collect();
    let file = std::io::BufWriter::new(std::fs::File::create(out).unwrap());
    let mut writer = GgufWriter::new(file, "assembled", overlay.metadata(), &tensors).unwrap();
    for t in base.tensors() {
        let bytes = match overlay.tensor(t.name()) {
            Some(of) => overlay.tensor_bytes(of).unwrap(),
            None => base.tensor_bytes(t).unwrap(),
        };
        writer.write(t.name(), bytes).unwrap();
    }
    writer.finish().unwrap();
}

struct Golden(Vec<u8>);

impl Golden {
    fn open(folder: &Path) -> Self {
        Self(std::fs::read(folder.join("golden.safetensors")).unwrap())
    }

    fn words(&self, key: &str) -> Vec<[u8; 4]> {
        let file = SafeTensors::deserialize(&self.0).unwrap();
        let tensor = file.tensor(key).unwrap_or_else(|e| panic!("{key}: {e}"));
        tensor.data().as_chunks().0.to_vec()
    }

    fn f32(&self, key: &str) -> Vec<f32> {
        self.words(key).into_iter().map(f32::from_le_bytes).collect()
    }

    fn i32(&self, key: &str) -> Vec<i32> {
        self.words(key).into_iter().map(i32::from_le_bytes).collect()
    }

    fn sequence(&self, prompt: &str) -> Sequence {
        Sequence {
            rows: self.i32(&format!("{prompt}.input_ids")),
            speaker: (prompt == "speaker").then(|| (self.f32("speaker.vector"), 0)),
        }
    }
}

fn load(file: &Path, activations: Activations) -> Zonos2 {
    let checkpoint = Checkpoint::open(file).unwrap();
    let config = Zonos2::config_of(&checkpoint).unwrap();
    let options = LoadOptions::default();
    let (model, report) =
        Zonos2::load_with(&checkpoint, config, &options, &Device::flex()).unwrap();
    assert!(report.is_clean() && report.ignored.is_empty(), "{report}");
    model.with_activations(activations)
}

fn largest_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let pairs = a.iter().zip(b);
    pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().iter::<f32>().collect()
}

fn sorted_rows(experts: &[i32], rows: usize) -> Vec<Vec<i32>> {
    let chosen = experts.len() / rows;
    let mut sets: Vec<Vec<i32>> = experts.chunks(chosen).map(<[i32]>::to_vec).collect();
    sets.iter_mut().for_each(|set| set.sort_unstable());
    sets
}

/// f32 activations: layers within 3e-4, final hidden 1e-4, logits 5e-4, the same experts, and the same
/// best code wherever it leads by more than 2e-3.
#[test]
fn every_form_matches_with_exact_activations() {
    let Some(folder) = goldens() else { return };
    let golden = Golden::open(&folder);
    let place = tempfile::tempdir().unwrap();
    for form in FORMS {
        let file = place.path().join(format!("{form}.gguf"));
        assemble(&folder, form, &file);
        let model = load(&file, Activations::Exact);
        for prompt in ["plain", "speaker"] {
            let sequence = golden.sequence(prompt);
            let rows = sequence.rows.len() / 10;
            let mut tap = Tap::on();
            let out = model.forward(&[sequence], &mut tap).unwrap();
            let records: HashMap<_, _> = tap.into_records().into_iter().collect();
            let compare = |key: &str, found: &[f32], most: f32| {
                let expected = golden.f32(key);
                let difference = largest_difference(found, &expected);
                println!("{key}: {difference:e}");
                assert!(difference <= most, "{key}: {difference:e}");
            };
            for n in 0..5 {
                let found: Vec<f32> = records[&format!("layer.{n}.out")].iter().collect();
                compare(&format!("{form}.{prompt}.layer.{n}.out"), &found, 3e-4);
            }
            for n in [2, 3] {
                let found: Vec<i32> = records[&format!("layer.{n}.expert")].iter().collect();
                let expected = golden.i32(&format!("{form}.{prompt}.layer.{n}.expert"));
                assert_eq!(sorted_rows(&found, rows), sorted_rows(&expected, rows));
            }
            let hidden = values(out.final_hidden);
            compare(&format!("{form}.{prompt}.final_hidden"), &hidden, 1e-4);
            let logits = values(out.logits);
            let last = &logits[(rows - 1) * 9 * 1026..];
            compare(&format!("{form}.{prompt}.logits_last"), last, 5e-4);
            let best = golden.i32(&format!("{form}.{prompt}.logits_argmax"));
            for (event, (scores, best)) in logits.chunks(1026).zip(best).enumerate() {
                let lead = |i: usize| scores[best as usize] - scores[i];
                let beaten = (0..1026).filter(|&i| i != best as usize).map(lead);
                assert!(beaten.fold(f32::MAX, f32::min) > -2e-3, "{form} {event}");
            }
        }
        std::fs::remove_file(&file).unwrap();
    }
}

/// Activations of 8 bits: logits within 0.12 in root mean square, at most one other expert a prompt.
#[test]
fn eight_bit_activations_stay_near() {
    let Some(folder) = goldens() else { return };
    let golden = Golden::open(&folder);
    let place = tempfile::tempdir().unwrap();
    for form in ["q8_0", "q6_k", "q4_k"] {
        let file = place.path().join(format!("{form}.gguf"));
        assemble(&folder, form, &file);
        let model = load(&file, Activations::EightBit);
        for prompt in ["plain", "speaker"] {
            let sequence = golden.sequence(prompt);
            let rows = sequence.rows.len() / 10;
            let mut tap = Tap::on();
            let out = model.forward(&[sequence], &mut tap).unwrap();
            let records: HashMap<_, _> = tap.into_records().into_iter().collect();
            let logits = values(out.logits);
            let expected = golden.f32(&format!("{form}.{prompt}.logits_last"));
            let last = &logits[(rows - 1) * 9 * 1026..];
            let square: f32 = last
                .iter()
                .zip(&expected)
                .map(|(a, b)| (a - b) * (a - b))
                .sum();
            let rms = (square / expected.len() as f32).sqrt();
            println!("{form}.{prompt}: logits off by {rms:e} rms");
            assert!(rms > 0.0 && rms <= 0.12, "{form}.{prompt}: {rms}");
            let other: usize = [2, 3]
                .map(|n| {
                    let found: Vec<i32> = records[&format!("layer.{n}.expert")].iter().collect();
                    let expected = golden.i32(&format!("{form}.{prompt}.layer.{n}.expert"));
                    let pairs = sorted_rows(&found, rows).into_iter();
                    let pairs = pairs.zip(sorted_rows(&expected, rows));
                    pairs.filter(|(a, b)| a != b).count()
                })
                .iter()
                .sum();
            assert!(other <= 1, "{form}.{prompt}: {other} rows met other experts");
        }
    }
}

/// 24 frames of the F16 file, greedy, with and without the repetition penalty.
#[test]
fn generated_codes_match() {
    let Some(folder) = goldens() else { return };
    let golden = Golden::open(&folder);
    let model = load(&folder.join("f16.gguf"), Activations::Exact);
    for (name, penalty) in [("greedy", 1.0), ("penalty", 1.2)] {
        let options = GenerateOptions {
            sampler: SamplerOptions {
                repetition_penalty: penalty,
                repetition_window: 50,
                repetition_codebooks: 8,
                ..SamplerOptions::greedy()
            },
            max_frames: Some(24),
            ignore_eos: true,
            ..GenerateOptions::default()
        };
        let done = model
            .generate(&[golden.sequence("plain")], &[options], &mut |_| {
                ControlFlow::Continue(())
            })
            .unwrap();
        assert_eq!(
            done[0].frames.values(),
            golden.i32(&format!("f16.gen.{name}.codes"))
        );
    }
}
