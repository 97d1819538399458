//! The encoder against the reference implementation, from every container, and what it refuses.

mod common;

use std::path::Path;

use burn::tensor::{DType, Device, Tensor, TensorData};
use common::{Golden, fixture, max_delta, three_sums};
use safetensors::SafeTensors;
use zonos_audio::resample::{ResampleRecipe, Resampler};
use zonos_audio::{Codes, Waveform};
use zonos_checkpoint::{Checkpoint, LoadOptions, LoadReport};
use zonos_dac::{Dac, DacError, DacParts};
use zonos_nn::Tap;

/// A fifth of what a correct f32 encoder is allowed inside, where values are large.
const STAGE: f32 = 2e-5;
/// Half of what is allowed for sums of embeddings.
const EMBEDDING: f32 = 1e-6;
/// A tenth of what is allowed for samples.
const WAVE: f32 = 2e-6;
/// The lead of the best codebook row below which another f32 program may choose the second best.
const MARGIN: f32 = 1e-4;

const CONTAINERS: [&str; 10] = [
    "tiny/weights.pth",
    "tiny/weights.parametrized.pth",
    "tiny/folded.safetensors",
    "tiny/hf",
    "alt/weights.pth",
    "odd/weights.pth",
    "odd/weights.cuda.pth",
    "odd/weights.legacy.pth",
    "odd/weights.parametrized.pth",
    "odd/folded.safetensors",
];

fn golden(model: &str) -> Golden {
    Golden::open(fixture(&format!("dac/{model}/golden.safetensors")))
}

fn load(container: &str) -> Dac {
    Dac::load(fixture(&format!("dac/{container}")), &Device::flex()).unwrap()
}

fn signal(samples: &[f32], device: &Device) -> Tensor<3> {
    let data = TensorData::new(samples.to_vec(), [1, 1, samples.len()]);
    Tensor::from_data(data, (device, DType::F32))
}

/// The golden's input at the codec's rate.
fn wave(dac: &Dac, golden: &Golden) -> Waveform {
    Waveform::new(golden.f32("enc.wav"), dac.config().sample_rate as u32)
}

/// Which codes another program must find too: `[codebook][frame]`, this and every earlier lead of
/// the frame being large enough.
fn certain(golden: &Golden) -> Vec<Vec<bool>> {
    let (shape, margin) = (golden.shape("enc.margin"), golden.f32("enc.margin"));
    let mut rows: Vec<Vec<bool>> = Vec::new();
    for q in 0..shape[0] {
        let row = (0..shape[1])
            .map(|t| margin[q * shape[1] + t] > MARGIN && rows.last().is_none_or(|above| above[t]));
        let row = row.collect();
        rows.push(row);
    }
    rows
}

/// Codes equal where they must; all of them in these fixtures, as the reference's f64 run found.
fn check_codes(ours: &Codes, golden: &Golden, key: &str, name: &str) {
    let theirs = golden.codes(key);
    assert_eq!(ours.frames(), theirs.frames(), "{name}: {key}");
    assert_eq!(ours.codebooks(), theirs.codebooks(), "{name}: {key}");
    for (q, certain) in certain(golden).iter().take(ours.codebooks()).enumerate() {
        for (t, &certain) in certain.iter().enumerate() {
            let (found, expected) = (ours.row(t)[q], theirs.row(t)[q]);
            assert!(
                found == expected || !certain,
                "{name}: {key}: frame {t}, codebook {q}: {found} is not {expected}"
            );
        }
    }
    assert!(ours == &theirs, "{name}: {key}: codes below the margin");
}

/// Every `enc.*` key.
fn check_encode(dac: &Dac, golden: &Golden, name: &str) {
    let audio = wave(dac, golden);
    let mut tap = Tap::on();
    let input = signal(audio.samples(), &Device::flex());
    dac.encode_tensor(input, None, &mut tap).unwrap();
    let mut seen = vec!["enc.wav".to_owned(), "enc.codes".to_owned()];
    for (key, data) in tap.into_records() {
        if key == "enc.codes" || !golden.has(&key) {
            continue;
        }
        let bound = match key.as_str() {
            "enc.padded" => 0.0,
            "enc.z_q" => EMBEDDING,
            _ => STAGE,
        };
        let delta = max_delta(&data.try_to_vec::<f32>().unwrap(), &golden.f32(&key));
        assert!(delta <= bound, "{name}: {key}: {delta:e}");
        seen.push(key);
    }
    check_codes(
        &dac.encode(&audio, None).unwrap(),
        golden,
        "enc.codes",
        name,
    );

    let there_and_back = dac.roundtrip(&audio, None).unwrap();
    let delta = max_delta(there_and_back.decoded.samples(), &golden.f32("enc.recon"));
    assert!(delta <= WAVE, "{name}: enc.recon: {delta:e}");
    assert_eq!(there_and_back.original, audio);
    seen.push("enc.recon".to_owned());

    if golden.has("enc.n4.codes") {
        let four = dac.encode(&audio, Some(4)).unwrap();
        check_codes(&four, golden, "enc.n4.codes", name);
        let input = signal(audio.samples(), &Device::flex());
        let z = dac
            .encode_tensor(input, Some(4), &mut Tap::off())
            .unwrap()
            .z;
        let z = z.into_data().try_to_vec::<f32>().unwrap();
        let delta = max_delta(&z, &golden.f32("enc.n4.z_q"));
        assert!(delta <= EMBEDDING, "{name}: enc.n4.z_q: {delta:e}");
        seen.extend(["enc.n4.codes".to_owned(), "enc.n4.z_q".to_owned()]);
    }
    for key in golden.names() {
        if key.starts_with("enc.") {
            assert!(seen.contains(&key), "{name}: {key} was not compared");
        }
    }
}

#[test]
fn every_container_encodes_to_the_goldens() {
    for container in CONTAINERS {
        let model = container.split('/').next().unwrap();
        check_encode(&load(container), &golden(model), container);
    }
}

/// Trained in its factors, the model computes the same.
#[test]
fn factored_weights_encode_alike() {
    let checkpoint = Checkpoint::open(fixture("dac/tiny/weights.pth")).unwrap();
    let (dac, _) = Dac::load_with(&checkpoint, &LoadOptions::training(), &Device::flex()).unwrap();
    check_encode(&dac, &golden("tiny"), "tiny, factors kept");
}

/// As a training loop saves it: prefixes before every name, other values beside, no sizes anywhere.
#[test]
fn a_wrapped_file_tells_its_sizes_by_its_shapes() {
    let path = fixture("checkpoint/dac.wrapped.pth");
    let checkpoint = Checkpoint::open(&path).unwrap();
    assert!(
        checkpoint
            .names()
            .all(|name| name.starts_with("module._orig_mod."))
    );
    assert!(Dac::check(&checkpoint).unwrap().is_clean());
    let dac = Dac::load(&path, &Device::flex()).unwrap();
    let mut sizes = load("odd/weights.pth").config().clone();
    sizes.sample_rate = dac.config().sample_rate;
    assert_eq!(dac.config(), &sizes);
    let golden = golden("odd");
    check_encode(&dac, &golden, "wrapped");
    let decoded = dac.decode(&golden.codes("codes")).unwrap();
    let delta = max_delta(decoded.samples(), &golden.f32("wav"));
    assert!(delta <= WAVE, "{delta:e}");
}

#[test]
fn windows_find_the_codes_of_one_whole_pass() {
    let dac = load("tiny/weights.pth");
    let rate = dac.config().sample_rate;
    // Five windows and a piece of a frame.
    let samples: Vec<f32> = (0..9 * rate + 77)
        .map(|i| 0.4 * (i as f32 * 0.031).sin() * (i as f32 * 0.00017).cos())
        .collect();
    let encoding_of = Waveform::new(samples.clone(), rate as u32);
    let encoding = dac.encoding(&encoding_of, None).unwrap();
    assert_eq!((encoding.len(), encoding.frames()), (5, 776));
    let windows = dac.encode(&encoding_of, None).unwrap();
    let whole = dac.encode_tensor(signal(&samples, &Device::flex()), None, &mut Tap::off());
    let whole = whole.unwrap().codes.swap_dims(1, 2).into_data();
    assert_eq!(
        windows.values(),
        whole.convert::<i32>().try_to_vec::<i32>().unwrap()
    );
}

/// A signal shorter than a frame, and of exactly one.
#[test]
fn short_signals() {
    for container in ["tiny/hf", "alt/weights.pth", "odd/folded.safetensors"] {
        let dac = load(container);
        let hop = dac.config().hop();
        for (samples, frames) in [(1, 1), (hop - 1, 1), (hop, 1), (hop + 1, 2)] {
            let audio = Waveform::new(vec![0.25; samples], dac.config().sample_rate as u32);
            let codes = dac.encode(&audio, Some(1)).unwrap();
            assert_eq!(
                (codes.frames(), codes.codebooks()),
                (frames, 1),
                "{container}"
            );
        }
    }
}

#[test]
fn another_rate_is_resampled() {
    let dac = load("tiny/weights.pth");
    let samples: Vec<f32> = (0..5000).map(|i| 0.5 * (i as f32 * 0.05).sin()).collect();
    let codes = dac
        .encode(&Waveform::new(samples.clone(), 22_050), None)
        .unwrap();
    let resampler = Resampler::new(22_050, 44_100, ResampleRecipe::Functional).unwrap();
    let resampled = resampler.resample(&samples);
    assert_eq!(codes.frames(), resampled.len().div_ceil(512));
    assert_eq!(
        codes,
        dac.encode(&Waveform::new(resampled, 44_100), None).unwrap()
    );
    let error = dac.encode(&Waveform::new(samples, 0), None).unwrap_err();
    assert!(matches!(error, DacError::Resample(_)), "{error}");
}

#[test]
fn reports_list_what_is_not_loaded() {
    for container in CONTAINERS {
        let checkpoint = Checkpoint::open(fixture(&format!("dac/{container}"))).unwrap();
        let clean = |report: &LoadReport| {
            assert!(report.is_clean(), "{container}: {report}");
            report.matched.len()
        };
        let planned = clean(&Dac::check(&checkpoint).unwrap());
        let options = LoadOptions::default();
        let load = |parts| Dac::load_parts(&checkpoint, parts, &options, &Device::flex()).unwrap();
        let (whole, all) = load(DacParts::Whole);
        assert_eq!(clean(&all), planned);
        assert!(whole.can_encode() && all.ignored.is_empty(), "{container}");
        let (decoder, some) = load(DacParts::Decoder);
        assert!(
            clean(&some) < planned && !decoder.can_encode(),
            "{container}"
        );
        for ignored in &some.ignored {
            let name = &ignored.name;
            assert!(
                name.starts_with("encoder.") || name.contains(".in_proj."),
                "{name}"
            );
        }
        let audio = Waveform::new(vec![0.0; 100], 44_100);
        let error = decoder.encode(&audio, None).unwrap_err();
        assert!(matches!(error, DacError::DecoderOnly { .. }), "{error}");
    }
}

/// A file with the decoder alone, as converters write them, decodes; encoding says what is missing.
#[test]
fn a_file_without_an_encoder_decodes() {
    let bytes = std::fs::read(fixture("dac/tiny/folded.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let save = |name: &str, keep: &dyn Fn(&str) -> bool| {
        let path = folder.path().join(name);
        let kept = tensors.tensors().into_iter().filter(|(name, _)| keep(name));
        safetensors::serialize_to_file(kept, None, &path).unwrap();
        path
    };
    let decodes = |path: &Path| {
        let dac = Dac::load(path, &Device::flex()).unwrap();
        let golden = golden("tiny");
        let delta = max_delta(
            dac.decode(&golden.codes("codes")).unwrap().samples(),
            &golden.f32("wav"),
        );
        assert!(delta <= WAVE, "{delta:e}");
        assert_eq!(dac.config().encoder, None);
        dac.encode(&Waveform::new(vec![0.0; 100], 44_100), None)
            .unwrap_err()
            .to_string()
    };
    let none = save("decoder.safetensors", &|name| {
        !name.starts_with("encoder.") && !name.contains(".in_proj.")
    });
    let projections = save("projections.safetensors", &|name| {
        !name.starts_with("encoder.")
    });
    for path in [none, projections] {
        let error = decodes(&path);
        let file = path.file_name().unwrap().to_str().unwrap();
        assert!(
            error.contains(file) && error.contains("no encoder"),
            "{error}"
        );
    }
    // Half an encoder is a damaged file, whose decoder loads all the same.
    let half = save("half.safetensors", &|name| {
        name != "encoder.block.2.block.4.bias"
    });
    let checkpoint = Checkpoint::open(&half).unwrap();
    let error = Dac::load(&half, &Device::flex()).unwrap_err().to_string();
    assert!(
        error.contains("half.safetensors") && error.contains("block.4.bias"),
        "{error}"
    );
    let options = LoadOptions::default();
    Dac::load_parts(&checkpoint, DacParts::Decoder, &options, &Device::flex()).unwrap();
}

#[test]
fn what_cannot_be_encoded_is_refused() {
    let dac = load("tiny/weights.pth");
    let audio = |samples| Waveform::new(samples, 44_100);
    let refuse = |audio: &Waveform, codebooks| dac.encode(audio, codebooks).unwrap_err();
    assert!(matches!(refuse(&audio(vec![]), None), DacError::NoSamples));
    let sound = audio(vec![0.1; 600]);
    for asked in [0, 10, usize::MAX] {
        let error = refuse(&sound, Some(asked));
        assert!(
            matches!(error, DacError::Codebooks { has: 9, .. }),
            "{error}"
        );
    }
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut samples = vec![0.1; 600];
        samples[599] = bad;
        let error = refuse(&audio(samples), None);
        assert!(
            matches!(error, DacError::NotFinite { sample: 599, .. }),
            "{error}"
        );
    }
    // Finite, but no sound: said, not coded.
    let error = refuse(&audio(vec![f32::MAX; 600]), None);
    assert!(
        matches!(error, DacError::TooLoud { sample: 0, .. }),
        "{error}"
    );
    let empty = Tensor::<3>::zeros([1, 1, 0], &Device::flex());
    let error = dac.encode_tensor(empty, None, &mut Tap::off()).unwrap_err();
    assert!(matches!(error, DacError::NoSamples), "{error}");
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
    let golden = Golden::open(Path::new(&goldens).join("dac/full/golden.safetensors"));
    let dac = Dac::load(weights, &Device::flex()).unwrap();
    let audio = wave(&dac, &golden);
    check_codes(
        &dac.encode(&audio, None).unwrap(),
        &golden,
        "enc.codes",
        "full",
    );
    let mut tap = Tap::on();
    let input = signal(audio.samples(), &Device::flex());
    dac.encode_tensor(input, None, &mut tap).unwrap();
    let mut compared = 0;
    for (key, data) in tap.into_records() {
        if data.dtype() != DType::F32 {
            continue;
        }
        let ours = data.try_to_vec::<f32>().unwrap();
        if golden.has(&key) {
            let delta = max_delta(&ours, &golden.f32(&key));
            println!("full size: {key} within {delta:e}");
            assert!(delta <= STAGE, "{key}: {delta:e}");
            compared += 1;
        }
        let sum_key = format!("sum.{key}");
        if golden.has(&sum_key) {
            let (ours, theirs) = (three_sums(&ours), golden.f64(&sum_key));
            for (a, b) in ours.iter().zip(&theirs) {
                let relative = (a - b).abs() / theirs[1];
                assert!(relative <= 3e-7, "{key}: {ours:?} against {theirs:?}");
            }
            compared += 1;
        }
    }
    // Latents and margins whole, seven tensors by their sums.
    assert_eq!(compared, 9);
}
