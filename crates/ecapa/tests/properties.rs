//! What must hold for any input: batches, lengths, refusals.

mod common;

use std::path::Path;
use std::sync::OnceLock;

use burn::tensor::{Device, Tensor};
use common::{fixture, host, max_delta, mel, norm};
use proptest::prelude::*;
use serde_json::json;
use zonos_audio::Waveform;
use zonos_checkpoint::{Checkpoint, LoadOptions};
use zonos_ecapa::{Ecapa, EcapaError};
use zonos_nn::Tap;

fn tiny() -> &'static Ecapa {
    static TINY: OnceLock<Ecapa> = OnceLock::new();
    TINY.get_or_init(|| Ecapa::load(fixture("ecapa/tiny/hf"), &Device::flex()).unwrap())
}

/// Rows of log-mel bands in their usual range.
fn frames(seed: u64, count: usize, bands: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    (0..count * bands)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as f32 / (1u64 << 24) as f32 * 12.0 - 11.0
        })
        .collect()
}

fn embed(x: Tensor<3>) -> Vec<f32> {
    host(tiny().forward(x, &mut Tap::off()).unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// A clip has the same bits alone and in a batch.
    #[test]
    fn a_batch_gives_what_its_clips_give_alone(
        clips in 2usize..5,
        count in 5usize..80,
        seed in any::<u64>(),
    ) {
        let device = Device::flex();
        let values: Vec<Vec<f32>> =
            (0..clips as u64).map(|i| frames(seed ^ i, count, 128)).collect();
        let batch: Vec<_> = values.iter().map(|v| mel(v.clone(), 128, &device)).collect();
        let together = embed(Tensor::cat(batch.clone(), 0));
        for (alone, together) in batch.into_iter().zip(together.chunks(64)) {
            prop_assert_eq!(embed(alone), together);
        }
    }

    /// Mirroring in time changes the vector: convolutions are not symmetric. Repeating does not lose
    /// the scale: everything stays finite.
    #[test]
    fn vectors_are_finite_whatever_the_length(count in 5usize..400, seed in any::<u64>()) {
        let voice = embed(mel(frames(seed, count, 128), 128, &Device::flex()));
        prop_assert!(voice.iter().all(|x| x.is_finite()));
        prop_assert!(norm(&voice) > 1.0);
    }
}

#[test]
fn the_shortest_clip_and_what_is_shorter() {
    let ecapa = tiny();
    let clip = |samples: usize| Waveform::new(frames(7, samples, 1), 24_000);
    assert_eq!(ecapa.config().min_samples(), 1280);
    assert_eq!(ecapa.embed(&clip(1280)).unwrap().len(), 64);
    for samples in [0, 1, 384, 385, 1279] {
        let error = ecapa.embed(&clip(samples)).unwrap_err();
        assert!(
            matches!(error, EcapaError::TooFewSamples { found, least: 1280, .. } if found == samples),
            "{error}"
        );
        assert!(error.to_string().contains("53 ms"), "{error}");
    }
    let device = ecapa.device();
    for count in 0..5 {
        let error = ecapa
            .forward(mel(frames(1, count, 128), 128, &device), &mut Tap::off())
            .unwrap_err();
        assert!(
            matches!(error, EcapaError::TooFewFrames { least: 5, .. }),
            "{error}"
        );
    }
    let narrow = mel(frames(1, 20, 80), 80, &device);
    let error = ecapa.forward(narrow, &mut Tap::off()).unwrap_err();
    assert!(matches!(
        error,
        EcapaError::Bands {
            expected: 128,
            found: 80
        }
    ));
}

#[test]
fn no_rate_and_no_numbers_are_refused() {
    let ecapa = tiny();
    let error = ecapa.embed(&Waveform::new(vec![0.5; 9000], 0)).unwrap_err();
    assert!(matches!(error, EcapaError::Rate { from: 0, .. }), "{error}");
    let mut samples = frames(3, 24_000, 1);
    samples[12_000] = f32::NAN;
    let error = ecapa.embed(&Waveform::new(samples, 24_000)).unwrap_err();
    assert!(
        matches!(error, EcapaError::BadSample { index: 12_000, .. }),
        "{error}"
    );
    // Not silence, though squares of it are infinite and the floor would hide what comes of them.
    for rate in [24_000, 16_000] {
        for loud in [1e16, 3e38] {
            let mut samples = self::frames(3, 24_000, 1);
            samples[12_000] = loud;
            let error = ecapa.embed(&Waveform::new(samples, rate)).unwrap_err();
            assert!(matches!(error, EcapaError::TooLoud { .. }), "{error}");
        }
    }
    let mut frames = frames(3, 40, 128);
    frames[777] = f32::INFINITY;
    let error = ecapa
        .embed_mel(mel(frames, 128, &ecapa.device()))
        .unwrap_err();
    assert!(matches!(error, EcapaError::NotFinite { .. }), "{error}");
}

/// A copy of `tiny/hf` whose `config.json` was changed.
fn with_config(change: impl FnOnce(&mut serde_json::Value)) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let from = fixture("ecapa/tiny/hf");
    copy(&from, folder.path(), "model.safetensors");
    let text = std::fs::read(from.join("config.json")).unwrap();
    let mut json: serde_json::Value = serde_json::from_slice(&text).unwrap();
    change(&mut json);
    std::fs::write(folder.path().join("config.json"), json.to_string()).unwrap();
    folder
}

fn copy(from: &Path, to: &Path, name: &str) {
    std::fs::copy(from.join(name), to.join(name)).unwrap();
}

#[test]
fn configurations_that_do_not_fit_are_refused_by_name() {
    let device = Device::flex();
    let unknown = with_config(|json| json["something_new"] = json!([1, "a"]));
    assert!(Ecapa::load(unknown.path(), &device).is_ok());
    for (field, value, needle) in [
        ("enc_dim", json!(63), "fc"),
        ("mel_dim", json!(80), "blocks.0.conv.weight"),
        ("enc_channels", json!([32, 32, 32, 64]), "enc_kernel_sizes"),
        ("enc_channels", json!([32, 32, 32, 32, 97]), "enc_channels"),
        ("enc_res2net_scale", json!(5), "enc_res2net_scale"),
        ("enc_dilations", json!("1"), "enc_dilations"),
    ] {
        let folder = with_config(|json| json[field] = value.clone());
        let error = Ecapa::load(folder.path(), &device).unwrap_err().to_string();
        assert!(error.contains(needle), "{field} = {value}: {error}");
        assert!(
            error.contains(&folder.path().display().to_string()),
            "{error}"
        );
    }
}

#[test]
fn sizes_are_inferred_where_there_is_no_configuration() {
    let device = Device::flex();
    for container in ["tiny/hf", "tiny/qwen"] {
        let folder = tempfile::tempdir().unwrap();
        copy(
            &fixture(&format!("ecapa/{container}")),
            folder.path(),
            "model.safetensors",
        );
        let inferred = Ecapa::load(folder.path(), &device).unwrap();
        assert_eq!(inferred.config(), tiny().config(), "{container}");
    }
    // Two blocks: their dilations are anybody's guess.
    let folder = tempfile::tempdir().unwrap();
    copy(&fixture("ecapa/alt/hf"), folder.path(), "model.safetensors");
    let error = Ecapa::load(folder.path(), &device).unwrap_err().to_string();
    assert!(
        error.contains("dilations") && error.contains("config.json"),
        "{error}"
    );
    let error = Ecapa::load(fixture("dac/tiny/hf"), &device)
        .unwrap_err()
        .to_string();
    assert!(error.contains("blocks.0.conv.weight"), "{error}");
}

/// The encoder inside a text-to-speech checkpoint, with its section of the configuration.
#[test]
fn the_encoder_of_a_whole_model_loads_from_its_section() {
    let folder = tempfile::tempdir().unwrap();
    let from = fixture("ecapa/tiny/qwen");
    let bytes = std::fs::read(from.join("model.safetensors")).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let other = [0u8; 16];
    let other =
        safetensors::tensor::TensorView::new(safetensors::Dtype::F32, vec![2, 2], &other).unwrap();
    let mut all: Vec<_> = tensors.tensors();
    all.push(("talker.model.norm.weight".to_owned(), other));
    let path = folder.path().join("model.safetensors");
    safetensors::serialize_to_file(all, None, &path).unwrap();
    let section = json!({
        "enc_dim": 64, "enc_channels": [32, 32, 32, 32, 96], "enc_attention_channels": 16,
        "enc_se_channels": 16, "sample_rate": 24000
    });
    let config = json!({"architectures": ["X"], "speaker_encoder_config": section});
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let options = LoadOptions::default();
    let (ecapa, report) = Ecapa::load_with(&checkpoint, &options, &Device::flex()).unwrap();
    assert_eq!(report.ignored.len(), 1, "{report}");
    assert_eq!(ecapa.config(), tiny().config());
    let x = || mel(frames(5, 30, 128), 128, &Device::flex());
    let ours = host(ecapa.forward(x(), &mut Tap::off()).unwrap());
    assert_eq!(max_delta(&ours, &embed(x())), 0.0);
}
