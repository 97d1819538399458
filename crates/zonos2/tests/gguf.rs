//! Quantised backbones with activations of 8 bits against the block-aligned golden set (tolerances:
//! `golden/gguf/zonos2-k/README.md`); those with exact activations are golden-diff's. The files are
//! large, so they are read from `$ZONOS_GOLDENS`.

mod common;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use burn::tensor::{Device, Tensor};
use common::Golden;
use zonos_checkpoint::{Checkpoint, LoadOptions};
use zonos_gguf::{GgufFile, overlay};
use zonos_kernels::Activations;
use zonos_nn::Tap;
use zonos2::{Sequence, Zonos2};

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
    let base = GgufFile::read("f16.gguf", base).unwrap();
    let overlay_of = std::fs::read(folder.join(format!("{form}.overlay.gguf"))).unwrap();
    let overlay_of = GgufFile::read(form, overlay_of).unwrap();
    let file = std::io::BufWriter::new(std::fs::File::create(out).unwrap());
    overlay(&base, &overlay_of, file, form).unwrap();
}

fn sequence(golden: &Golden, prompt: &str) -> Sequence {
    Sequence {
        rows: golden.i32(&format!("{prompt}.input_ids")),
        speaker: (prompt == "speaker").then(|| (golden.f32("speaker.vector"), 0)),
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

fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().iter::<f32>().collect()
}

fn sorted_rows(experts: &[i32], rows: usize) -> Vec<Vec<i32>> {
    let chosen = experts.len() / rows;
    let mut sets: Vec<Vec<i32>> = experts.chunks(chosen).map(<[i32]>::to_vec).collect();
    sets.iter_mut().for_each(|set| set.sort_unstable());
    sets
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
            let sequence = sequence(&golden, prompt);
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
            assert!(
                other <= 1,
                "{form}.{prompt}: {other} rows met other experts"
            );
        }
    }
}
