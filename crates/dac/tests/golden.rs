//! The decoder against the reference implementation, from every container.

mod common;

use burn::tensor::{DType, Device};
use common::{Golden, fixture, max_delta, on_device, three_sums};
use zonos_audio::Codes;
use zonos_checkpoint::{Checkpoint, LoadOptions};
use zonos_dac::{Dac, DacError};
use zonos_nn::Tap;

/// A tenth and a fifth of what a correct f32 decoder is allowed (2e-5 for samples, 1e-4 for stages,
/// whose values are larger), and half of it for the sum of embeddings.
const WAVE: f32 = 2e-6;
const STAGE: f32 = 2e-5;
const EMBEDDING: f32 = 1e-6;

const CONTAINERS: [&str; 9] = [
    "tiny/weights.pth",
    "tiny/weights.parametrized.pth",
    "tiny/folded.safetensors",
    "tiny/hf",
    "alt/weights.pth",
    "odd/weights.pth",
    "odd/weights.cuda.pth",
    "odd/weights.legacy.pth",
    "odd/weights.parametrized.pth",
];

fn golden_of(container: &str) -> Golden {
    let model = container.split('/').next().unwrap();
    Golden::open(fixture(&format!("dac/{model}/golden.safetensors")))
}

fn load(container: &str) -> Dac {
    Dac::load(fixture(&format!("dac/{container}")), &Device::flex()).unwrap()
}

/// Every `dec.*` key, `z_q`, `wav`, and the untapped decode.
fn check_decode(dac: &Dac, golden: &Golden, name: &str) {
    let codes = golden.codes("codes");
    let mut tap = Tap::on();
    let device = Device::flex();
    dac.decode_tensor(on_device(&codes, &device), &mut tap);
    let mut seen = Vec::new();
    for (key, data) in tap.into_records() {
        if key == "codes" {
            continue;
        }
        let shape = golden.shape(&key);
        let elements: usize = shape.iter().product();
        assert_eq!(data.num_elements(), elements, "{name}: {key}");
        let bound = match key.as_str() {
            "z_q" => EMBEDDING,
            "wav" | "dec.pre_tanh" => WAVE,
            _ => STAGE,
        };
        let delta = max_delta(&data.try_to_vec::<f32>().unwrap(), &golden.f32(&key));
        assert!(delta <= bound, "{name}: {key}: {delta:e}");
        seen.push(key);
    }
    for key in golden.names() {
        if key.starts_with("dec.") || key == "z_q" || key == "wav" {
            assert!(seen.contains(&key), "{name}: {key} was not compared");
        }
    }
    let wave = dac.decode(&codes).unwrap();
    let delta = max_delta(wave.samples(), &golden.f32("wav"));
    assert!(delta <= WAVE, "{name}: decode: {delta:e}");
}

#[test]
fn every_container_decodes_to_the_goldens() {
    for container in CONTAINERS {
        check_decode(&load(container), &golden_of(container), container);
    }
    let folded = fixture("dac/odd/folded.safetensors");
    let dac = Dac::load(folded, &Device::flex()).unwrap();
    check_decode(&dac, &golden_of("odd/"), "odd/folded.safetensors");
}

/// The C++ programs' file: tables of projected codes, whose sum rounds differently. It is larger than
/// the other fixtures together, so it is read from the goldens.
#[test]
fn gguf_decodes_to_the_goldens() {
    let Ok(goldens) = std::env::var("ZONOS_GOLDENS") else {
        println!("ZONOS_GOLDENS is unset: dac.gguf is not compared");
        return;
    };
    let file = std::path::Path::new(&goldens).join("dac/tiny/dac.gguf");
    let checkpoint = Checkpoint::open(&file).unwrap();
    let report = Dac::check(&checkpoint).unwrap();
    assert!(report.is_clean(), "{report}");
    let dac = Dac::load(&file, &Device::flex()).unwrap();
    assert!(dac.config().encoder.is_none());
    check_decode(&dac, &golden_of("tiny/"), "tiny/dac.gguf");
}

#[test]
fn sizes_are_inferred_without_metadata() {
    // The folded files have none; the original ones tell the same numbers in words.
    for model in ["tiny", "odd"] {
        let told = load(&format!("{model}/weights.pth"));
        let inferred = load(&format!("{model}/folded.safetensors"));
        let mut told = told.config().clone();
        told.sample_rate = inferred.config().sample_rate;
        assert_eq!(inferred.config(), &told);
    }
}

/// Trained in its factors, the model computes the same.
#[test]
fn factored_weights_decode_alike() {
    let checkpoint = Checkpoint::open(fixture("dac/tiny/weights.pth")).unwrap();
    let (dac, _) = Dac::load_with(&checkpoint, &LoadOptions::training(), &Device::flex()).unwrap();
    check_decode(&dac, &golden_of("tiny/"), "tiny, factors kept");
}

#[test]
fn fewer_codebooks_sum_those_given() {
    let dac = load("tiny/weights.pth");
    let golden = golden_of("tiny/");
    let all = golden.codes("enc.codes");
    let four = golden.codes("enc.n4.codes");
    assert_eq!((all.codebooks(), four.codebooks()), (9, 4));
    let z = dac.quantizer.from_codes(on_device(&four, &Device::flex()));
    let delta = max_delta(
        &z.into_data().try_to_vec::<f32>().unwrap(),
        &golden.f32("enc.n4.z_q"),
    );
    assert!(delta <= EMBEDDING, "{delta:e}");
    assert_eq!(
        dac.decode(&four).unwrap().len(),
        dac.config().decoded_len(four.frames())
    );
}

#[test]
fn bad_codes_are_refused_by_place() {
    let dac = load("tiny/weights.pth");
    let mut values = vec![5; 27];
    values[2 * 9 + 3] = 1024;
    let error = dac
        .decode(&Codes::new(3, 9, values.clone()).unwrap())
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("frame 2") && error.contains("codebook 3"),
        "{error}"
    );
    values[2 * 9 + 3] = Codes::MISSING;
    assert!(dac.decode(&Codes::new(3, 9, values).unwrap()).is_err());
    assert!(
        dac.decode(&Codes::new(2, 10, vec![1; 20]).unwrap())
            .is_err()
    );
    let empty = Codes::new(0, 9, Vec::new()).unwrap();
    assert!(matches!(dac.decode(&empty), Err(DacError::Empty)));
}

/// The real sizes. The weights are 306 MB, made by a script; see the fixture's README.
#[test]
fn full_size_goldens() {
    let (Ok(goldens), Ok(weights)) = (
        std::env::var("ZONOS_GOLDENS"),
        std::env::var("ZONOS_DAC_FULL"),
    ) else {
        println!(
            "ZONOS_GOLDENS or ZONOS_DAC_FULL is unset: the full-size goldens are not compared"
        );
        return;
    };
    let golden = Golden::open(std::path::Path::new(&goldens).join("dac/full/golden.safetensors"));
    let dac = Dac::load(weights, &Device::flex()).unwrap();
    let codes = golden.codes("codes");
    let wave = dac.decode(&codes).unwrap();
    let delta = max_delta(wave.samples(), &golden.f32("wav"));
    println!("full size: waveform within {delta:e}");
    assert!(delta <= 4e-6, "{delta:e}");
    let mut tap = Tap::on();
    dac.decode_tensor(on_device(&codes, &Device::flex()), &mut tap);
    let mut compared = 0;
    for (key, data) in tap.into_records() {
        let sum_key = format!("sum.{key}");
        if data.dtype() != DType::F32 || !golden.has(&sum_key) {
            continue;
        }
        let ours = three_sums(&data.try_to_vec::<f32>().unwrap());
        let theirs = golden.f64(&sum_key);
        for (a, b) in ours.iter().zip(&theirs) {
            let relative = (a - b).abs() / theirs[1];
            assert!(relative <= 3e-7, "{key}: {ours:?} against {theirs:?}");
        }
        compared += 1;
    }
    assert_eq!(compared, 12);
}
