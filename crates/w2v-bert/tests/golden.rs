//! The model against Hugging Face transformers.

mod common;

use std::path::Path;

use burn::tensor::{DType, Device, Tensor, TensorData};
use common::{Golden, fixture, goldens, host, max_delta};
use zonos_checkpoint::{Checkpoint, LoadOptions};
use zonos_nn::Tap;
use zonos_w2v_bert::{Features, Teacher, TeacherConfig};

/// Largest errors that the goldens allow.
const FBANK: f32 = 1e-4;
const FEATURES: f32 = 3e-4;
const HIDDEN: f32 = 5e-5;

/// All layers, those past the one used too.
fn load(path: &Path) -> Teacher {
    let checkpoint = Checkpoint::open(path).unwrap();
    let (config, notes) = TeacherConfig::from_checkpoint(&checkpoint).unwrap();
    assert!(notes.is_empty(), "{notes:?}");
    let options = LoadOptions::default();
    let layers = config.num_hidden_layers;
    let (teacher, report) =
        Teacher::load_layers(&checkpoint, layers, &options, &Device::flex()).unwrap();
    assert!(report.is_clean(), "{report}");
    assert_eq!(report.matched.len(), 4 + 32 * layers);
    // `masked_spec_embed`.
    assert_eq!(report.ignored.len(), 1, "{report}");
    teacher
}

fn features(golden: &Golden, clip: &str, device: &Device) -> Features {
    let key = format!("{clip}.input_features");
    let shape = golden.shape(&key);
    let data = TensorData::new(golden.f32(&key), [shape[0], shape[1]]);
    let values = Tensor::from_data(data, (device, DType::F32));
    let mask = golden.i32(&format!("{clip}.attention_mask"));
    Features::new(values, mask.iter().map(|&seen| seen == 1).collect()).unwrap()
}

fn check(folder: &Path) {
    let golden = Golden::open(folder.join("golden.safetensors"));
    let teacher = load(&folder.join("model.safetensors"));
    let layers = teacher.layers();
    let mut worst = [0.0f32; 3];
    let clips = golden.clips();
    assert!(!clips.is_empty());
    for clip in clips {
        let mut tap = Tap::on();
        let samples = golden.f32(&format!("{clip}.wav"));
        let ours = teacher.features_with(&samples, &mut tap).unwrap();
        let theirs = golden.i32(&format!("{clip}.attention_mask"));
        let mask = ours.mask().iter().map(|&seen| i32::from(seen));
        assert!(mask.eq(theirs), "{clip}");
        for (stage, data) in tap.into_records() {
            let (limit, slot) = match stage.as_str() {
                "attention_mask" => continue,
                "fbank" => (FBANK, 0),
                _ => (FEATURES, 1),
            };
            let key = format!("{clip}.{stage}");
            let delta = max_delta(&data.try_to_vec::<f32>().unwrap(), &golden.f32(&key));
            assert!(delta <= limit, "{key}: {delta:e} > {limit:e}");
            worst[slot] = worst[slot].max(delta);
        }
        // From the golden's input features, and the whole way from samples.
        for features in [features(&golden, &clip, &teacher.device()), ours] {
            let mut tap = Tap::on();
            let last = host(teacher.forward(&features, layers, &mut tap).unwrap());
            let records = tap.into_records();
            assert_eq!(records.len(), layers + 1);
            for (i, (stage, data)) in records.iter().enumerate() {
                assert_eq!(*stage, format!("hidden{i}"));
                let key = format!("{clip}.{stage}");
                let state = data.try_to_vec::<f32>().unwrap();
                let delta = max_delta(&state, &golden.f32(&key));
                assert!(delta <= HIDDEN, "{key}: {delta:e} > {HIDDEN:e}");
                worst[2] = worst[2].max(delta);
                // Stopping early gives the same bits.
                let early = teacher.forward(&features, i, &mut Tap::off()).unwrap();
                assert_eq!(host(early), state, "{key}");
            }
            assert_eq!(last, records[layers].1.try_to_vec::<f32>().unwrap());
        }
    }
    let [fbank, features, hidden] = worst;
    println!(
        "{}: fbank within {fbank:.1e}, features {features:.1e}, hidden states {hidden:.1e}",
        folder.display()
    );
}

#[test]
fn every_layer_of_every_clip() {
    check(&fixture("w2v-bert/small"));
}

#[test]
fn every_layer_of_the_larger_golden() {
    if let Some(folder) = goldens("w2v-bert/tiny") {
        check(&folder);
    }
}

/// The teacher inside a ZAC-1 encoder file, its weights in bf16.
#[test]
fn the_teacher_of_a_zac_encoder() {
    let Some(folder) = goldens("zac/tiny-encoder") else {
        return;
    };
    let golden = Golden::open(folder.join("golden.safetensors"));
    let teacher = Teacher::load(folder.join("model.safetensors"), &Device::flex()).unwrap();
    let lane = |stage: &str| format!("lane0.{stage}");
    let samples = golden.f32(&lane("audio_16000"));
    let mut tap = Tap::on();
    let features = teacher.features_with(&samples, &mut tap).unwrap();
    let layers = teacher.config().feature_layer;
    teacher.forward(&features, layers, &mut tap).unwrap();
    let mut compared = 0;
    for (stage, data) in tap.into_records() {
        let (key, limit) = match stage.as_str() {
            "fbank" => (lane("fbank"), FBANK),
            "input_features" => (lane("input_features"), FEATURES),
            _ if stage.starts_with("hidden") => (lane(&format!("teacher.{stage}")), HIDDEN),
            _ => continue,
        };
        let delta = max_delta(&data.try_to_vec::<f32>().unwrap(), &golden.f32(&key));
        assert!(delta <= limit, "{key}: {delta:e} > {limit:e}");
        compared += 1;
    }
    assert_eq!(compared, layers + 3);
}
