//! The encoder against the reference implementation, from every container.

mod common;

use burn::tensor::Device;
use common::{Golden, fixture, max_delta, norm, wav};
use zonos_checkpoint::{Checkpoint, LoadOptions};
use zonos_ecapa::{Ecapa, EcapaConfig};
use zonos_nn::Tap;

/// Largest error of a voice vector made from the golden's mel frames, relative to its norm.
const VECTOR: f32 = 1e-6;
/// The same from the WAV file.
const VECTOR_FROM_WAV: f32 = 5e-6;
/// Largest error of a stage from the golden's mel frames, relative to its own largest value: three times
/// what is seen at full size.
const STAGE: f32 = 1e-5;
/// Largest error of a stage from the WAV file.
const STAGE_FROM_WAV: f32 = 1e-3;
/// Silence lies on the floor of the mel bands, and all its variances on theirs.
const STAGE_OF_SILENCE: f32 = 5e-3;

const CONTAINERS: [&str; 7] = [
    "tiny/spk-encoder.gguf",
    "tiny/hf",
    "tiny/hf-f32",
    "tiny/qwen",
    "alt/hf",
    "alt/hf-f32",
    "alt/qwen",
];

fn golden_of(container: &str) -> Golden {
    let model = container.split('/').next().unwrap();
    Golden::open(fixture(&format!("ecapa/{model}/golden.safetensors")))
}

fn load(container: &str) -> Ecapa {
    Ecapa::load(fixture(&format!("ecapa/{container}")), &Device::flex()).unwrap()
}

/// Every stage of every input from its mel frames, and the untapped vector.
fn check_from_mel(ecapa: &Ecapa, golden: &Golden, name: &str) {
    let mut worst = 0.0f32;
    for input in golden.inputs() {
        let mel = golden.mel(&format!("{input}.mel"), &ecapa.device());
        let mut tap = Tap::on();
        let tapped = common::host(ecapa.forward(mel.clone(), &mut tap).unwrap());
        let mut seen = Vec::new();
        for (stage, data) in tap.into_records() {
            let key = format!("{input}.{stage}");
            let ours = data.try_to_vec::<f32>().unwrap();
            if golden.has(&key) {
                let theirs = golden.f32(&key);
                let bound = match stage.as_str() {
                    "mel" => 0.0,
                    "emb" => VECTOR * norm(&theirs),
                    _ => STAGE * theirs.iter().fold(0.0f32, |m, x| m.max(x.abs())),
                };
                let delta = max_delta(&ours, &theirs);
                assert!(delta <= bound, "{name}: {key}: {delta:e} > {bound:e}");
                if stage == "emb" {
                    worst = worst.max(delta / norm(&theirs));
                }
            }
            let sums = format!("{input}.sum.{stage}");
            if golden.has(&sums) {
                check_sums(&ours, &golden.f64(&sums), &sums);
            }
            seen.push(key);
        }
        let prefix = format!("{input}.");
        for key in golden.names() {
            let ours = key.starts_with(&prefix) && !key.contains(".sum.");
            if ours && !key.ends_with(".wav24k") {
                assert!(seen.contains(&key), "{name}: {key} was not compared");
            }
        }
        assert_eq!(ecapa.embed_mel(mel).unwrap(), tapped, "{name}: {input}");
    }
    println!("{name}: vectors from mel frames within {worst:.1e} of their norm");
}

/// Sum, sum of squares, largest magnitude.
fn check_sums(ours: &[f32], theirs: &[f64], key: &str) {
    let wide = || ours.iter().map(|&x| f64::from(x));
    let sums = [
        wide().sum::<f64>(),
        wide().map(|x| x * x).sum(),
        wide().fold(0.0, |m: f64, x| m.max(x.abs())),
    ];
    let scale = [theirs[1].max(1.0), theirs[1].max(1.0), theirs[2].max(1.0)];
    for ((a, b), scale) in sums.iter().zip(theirs).zip(scale) {
        assert!(
            (a - b).abs() <= 2e-6 * scale,
            "{key}: {sums:?}, not {theirs:?}"
        );
    }
}

#[test]
fn every_container_gives_the_golden_vectors() {
    for container in CONTAINERS {
        check_from_mel(&load(container), &golden_of(container), container);
    }
}

/// From WAV files: resampling, mel frames, stages, vectors.
fn check_from_wav(ecapa: &Ecapa, golden: &Golden, model: &str) {
    let mut worst = 0.0f32;
    for input in golden.inputs() {
        let audio = wav(&fixture(&format!("ecapa/{model}/{input}.wav")));
        let resampled = ecapa.resample(&audio).unwrap();
        let delta = max_delta(resampled.samples(), &golden.f32(&format!("{input}.wav24k")));
        assert!(delta <= 1e-6, "{model}: {input}.wav24k: {delta:e}");
        let mel = ecapa.log_mel(&audio).unwrap();
        let mut tap = Tap::on();
        ecapa.forward(mel, &mut tap).unwrap();
        for (stage, data) in tap.into_records() {
            let key = format!("{input}.{stage}");
            if !golden.has(&key) {
                continue;
            }
            let (ours, theirs) = (data.try_to_vec::<f32>().unwrap(), golden.f32(&key));
            if stage == "mel" {
                for (a, b) in ours.iter().zip(&theirs) {
                    let bound = if *b > 1e-2f32.ln() { 5e-4 } else { 3e-3 };
                    assert!((a - b).abs() <= bound, "{model}: {key}: {a}, not {b}");
                }
                continue;
            }
            let bound = match stage.as_str() {
                "emb" => VECTOR_FROM_WAV * norm(&theirs),
                _ if input.starts_with("silence") => STAGE_OF_SILENCE,
                _ => STAGE_FROM_WAV,
            };
            let delta = max_delta(&ours, &theirs);
            assert!(delta <= bound, "{model}: {key}: {delta:e} > {bound:e}");
            if stage == "emb" {
                worst = worst.max(delta / norm(&theirs));
            }
        }
        let voice = ecapa.embed(&audio).unwrap();
        let theirs = golden.f32(&format!("{input}.emb"));
        assert!(max_delta(&voice, &theirs) <= VECTOR_FROM_WAV * norm(&theirs));
    }
    println!("{model}: vectors from WAV files within {worst:.1e} of their norm");
}

#[test]
fn wav_files_give_the_golden_vectors() {
    for model in ["tiny", "alt"] {
        check_from_wav(&load(&format!("{model}/hf")), &golden_of(model), model);
    }
}

#[test]
fn reports_are_clean_and_configurations_are_the_files() {
    for container in CONTAINERS {
        let checkpoint = Checkpoint::open(fixture(&format!("ecapa/{container}"))).unwrap();
        let planned = Ecapa::check(&checkpoint).unwrap();
        let options = LoadOptions::default();
        let (ecapa, report) = Ecapa::load_with(&checkpoint, &options, &Device::flex()).unwrap();
        for report in [planned, report] {
            // A GGUF file also holds the mel filters and the window, which are computed here.
            let ignored = if container.ends_with(".gguf") { 2 } else { 0 };
            assert!(report.is_clean() && report.ignored.len() == ignored, "{report}");
            let blocks = ecapa.config().blocks();
            let scale = ecapa.config().enc_res2net_scale;
            assert_eq!(report.matched.len(), 10 + blocks * 2 * (scale + 3));
        }
        let least = if container.starts_with("tiny") { 5 } else { 4 };
        assert_eq!(ecapa.config().min_frames(), least);
    }
}

/// The real sizes. The weights are 24 MB, made by `cargo xtask fixtures --make ecapa-full --out DIR`.
#[test]
fn full_size_goldens() {
    let Ok(weights) = std::env::var("ZONOS_ECAPA_FULL") else {
        println!(
            "ZONOS_ECAPA_FULL is unset: the full-size goldens are not compared; `cargo xtask fixtures --make ecapa-full --out DIR` writes the folder to name"
        );
        return;
    };
    let golden = golden_of("full");
    let ecapa = Ecapa::load(weights, &Device::flex()).unwrap();
    assert_eq!(ecapa.config(), &EcapaConfig::released());
    check_from_mel(&ecapa, &golden, "full");
    check_from_wav(&ecapa, &golden, "full");
}
