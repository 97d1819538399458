//! zonos embed: recordings to voice vectors.

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::{Work, f32s, fixtures, run, run_json};
use zonos_audio::encode::{AudioFormat, PcmScale, encode_file};
use zonos_audio::npy;

fn encoder() -> String {
    fixtures().join("ecapa/tiny/hf").display().to_string()
}

fn recording(name: &str) -> String {
    let file = fixtures().join("ecapa/tiny").join(name);
    file.display().to_string()
}

/// The samples of a `.npy` file with a header of whole 64-byte blocks.
fn vector(path: &Path) -> Vec<f32> {
    let bytes = fs::read(path).unwrap();
    let header = 10 + usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
    let text = String::from_utf8_lossy(&bytes[10..header]).replace(", )", ",)");
    assert!(text.contains("'<f4'") && text.contains("(64,)"), "{text}");
    f32s(&bytes[header..])
}

fn golden(key: &str) -> Vec<f32> {
    let file = fixtures().join("ecapa/tiny/golden.safetensors");
    f32s(&common::tensor(&file, key).2)
}

/// Within 5e-6 of the golden's norm.
fn assert_is_golden(found: &[f32], key: &str) {
    let expected = golden(key);
    assert_eq!(found.len(), expected.len());
    let norm = expected.iter().map(|x| x * x).sum::<f32>().sqrt();
    for (a, b) in found.iter().zip(&expected) {
        assert!((a - b).abs() <= 5e-6 * norm, "{key}: {a}, not {b}");
    }
}

fn write_npy(path: &Path, shape: &[usize], values: &[f32]) {
    let shape: Vec<_> = shape.iter().map(|n| format!("{n},")).collect();
    let mut header = format!(
        "{{'descr': '<f4', 'fortran_order': False, 'shape': ({}), }}",
        shape.join(" ")
    );
    while (10 + header.len() + 1) % 64 != 0 {
        header.push(' ');
    }
    header.push('\n');
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.as_bytes());
    bytes.extend(values.iter().flat_map(|x| x.to_le_bytes()));
    fs::write(path, bytes).unwrap();
}

fn write_raw(path: &Path, values: &[f32]) {
    let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
    fs::write(path, bytes).unwrap();
}

#[test]
fn recordings_become_the_golden_vectors() {
    let work = Work::new();
    let out = work.arg("emb.npy");
    for input in ["speech16k", "speech22k", "stereo48k", "short44k"] {
        let wav = recording(&format!("{input}.wav"));
        let report = run_json(0, &["embed", &wav, &out, "--model", &encoder()]);
        assert_eq!(report["dim"], 64);
        let channels = if input.starts_with("stereo") { 2 } else { 1 };
        assert_eq!(report["channels"], channels, "{input}");
        let key = format!("{input}.emb");
        assert_is_golden(&vector(&work.path("emb.npy")), &key);
    }
}

#[test]
fn other_inputs_give_the_same() {
    let work = Work::new();
    let (out, made) = (work.arg("emb.npy"), work.path("emb.npy"));
    let (mel, pcm, raw) = (
        work.path("mel.npy"),
        work.path("pcm.npy"),
        work.path("pcm.f32"),
    );
    let frames = golden("speech22k.mel");
    write_npy(&mel, &[frames.len() / 128, 128], &frames);
    let samples = golden("speech22k.wav24k");
    write_npy(&pcm, &[samples.len()], &samples);
    write_raw(&raw, &samples);
    for (flag, path) in [("--mel", &mel), ("--wav24k", &pcm), ("--raw", &raw)] {
        let path = path.display().to_string();
        run(0, &["embed", &out, "--model", &encoder(), flag, &path]);
        assert_is_golden(&vector(&made), "speech22k.emb");
        fs::remove_file(&made).unwrap();
    }
    let rate = ["--rate", "24000"];
    let raw = raw.display().to_string();
    let mut args = vec!["embed", &out, "--raw", &raw];
    args.extend(rate);
    let model = encoder();
    args.extend(["--model", &model]);
    run(0, &args);
    assert_is_golden(&vector(&made), "speech22k.emb");
}

#[test]
fn quiet_speech_is_a_voice() {
    let work = Work::new();
    let samples = golden("speech16k.wav24k");
    let rms = (samples.iter().map(|x| x * x).sum::<f32>() / samples.len() as f32).sqrt();
    let scale = 10f32.powf(-55.0 / 20.0) / rms;
    let quiet: Vec<f32> = samples.iter().map(|x| x * scale).collect();
    let raw = work.path("quiet.f32");
    write_raw(&raw, &quiet);
    let (raw, out) = (raw.display().to_string(), work.arg("emb.npy"));
    run(0, &["embed", &out, "--raw", &raw, "--model", &encoder()]);
}

#[test]
fn what_makes_no_voice_is_refused_with_the_reason() {
    let work = Work::new();
    let (out, model) = (work.arg("emb.npy"), encoder());
    let raw = |name: &str, values: &[f32]| -> PathBuf {
        let path = work.path(name);
        write_raw(&path, values);
        path
    };
    let speech = golden("speech16k.wav24k");
    let mut broken = speech.clone();
    broken[100] = f32::NAN;
    for (path, needle) in [
        (raw("silent.f32", &vec![0.0; 120_000]), "silent"),
        (raw("short.f32", &speech[..7_000]), "0.3 s"),
        (raw("one.f32", &speech[..1]), "0.3 s"),
        (raw("none.f32", &[]), "0.3 s"),
        (raw("nan.f32", &broken), "not numbers"),
    ] {
        let path = path.display().to_string();
        let args = ["embed", &out, "--raw", &path, "--model", &model];
        work.refuses(1, &[needle, &path], &args);
    }
    let silence = recording("silence24k.wav");
    work.refuses(
        1,
        &["silent", &silence],
        &["embed", &silence, &out, "--model", &model],
    );

    let odd = work.path("odd.f32");
    fs::write(&odd, [0u8; 7]).unwrap();
    let odd = odd.display().to_string();
    work.refuses(
        1,
        &["7 bytes"],
        &["embed", &out, "--raw", &odd, "--model", &model],
    );
    let mel = work.path("mel.npy");
    let shown = mel.display().to_string();
    let with_mel = ["embed", &out, "--mel", &shown, "--model", &model];
    let frames = golden("speech16k.mel");
    for (shape, values, needle) in [
        (vec![20, 128], frames[..20 * 128].to_vec(), "0.3 s"),
        (vec![93, 128], vec![-11.512_925; 93 * 128], "silent"),
        (vec![93 * 128], frames.clone(), "[frames, 128]"),
        (vec![186, 64], frames.clone(), "[frames, 128]"),
    ] {
        write_npy(&mel, &shape, &values);
        work.refuses(1, &[needle, &shown], &with_mel);
    }
    let mut broken = frames;
    broken[130] = f32::INFINITY;
    write_npy(&mel, &[93, 128], &broken);
    work.refuses(1, &["finite", &shown], &with_mel);
}

fn write_float_wav(path: &Path, channels: &[Vec<f32>], rate: u32) {
    encode_file(path, channels, rate, AudioFormat::WavF32, PcmScale::Full).unwrap();
}

/// Once silence, once the weights were blamed.
#[test]
fn extremely_loud_sound_is_refused_by_file_and_level() {
    let work = Work::new();
    let (out, model, wav) = (work.arg("emb.npy"), encoder(), work.arg("loud.wav"));
    let speech = golden("speech16k.wav24k");
    let peak = speech.iter().fold(0f32, |m, x| m.max(x.abs()));
    let scaled = |to: f32| -> Vec<f32> { speech.iter().map(|x| x / peak * to).collect() };
    for (channels, level) in [
        (vec![scaled(2e3)], "66 dB"),
        (vec![scaled(1e19)], "380 dB"),
        (vec![scaled(1e38)], "760 dB"),
        (vec![scaled(3e38)], "770 dB"),
        (vec![scaled(3e38), scaled(3e38)], "770 dB"),
    ] {
        for rate in [24_000, 16_000] {
            write_float_wav(Path::new(&wav), &channels, rate);
            let needles = ["loud.wav", level, "above full scale"];
            work.refuses(1, &needles, &["embed", &wav, &out, "--model", &model]);
        }
    }
    // Floats above full scale are nothing special.
    write_float_wav(Path::new(&wav), &[scaled(20.0)], 24_000);
    run(0, &["embed", &wav, &out, "--model", &model]);
}

#[test]
fn channels_that_cancel_are_not_silence() {
    let work = Work::new();
    let (out, model, wav) = (work.arg("emb.npy"), encoder(), work.arg("opposite.wav"));
    let left = golden("speech16k.wav24k");
    let right = left.iter().map(|x| -x).collect();
    write_float_wav(Path::new(&wav), &[left, right], 24_000);
    let needles = ["opposite.wav", "cancel", "one of them"];
    work.refuses(1, &needles, &["embed", &wav, &out, "--model", &model]);
}

#[test]
fn integers_are_no_samples_at_a_known_scale() {
    let work = Work::new();
    let (out, model, pcm) = (work.arg("emb.npy"), encoder(), work.arg("pcm.npy"));
    let samples = golden("speech16k.wav24k");
    let integers: Vec<i32> = samples.iter().map(|x| (x * 32_768.0) as i32).collect();
    npy::write_i32(&pcm, &[integers.len()], &integers).unwrap();
    let args = ["embed", &out, "--wav24k", &pcm, "--model", &model];
    work.refuses(
        1,
        &["pcm.npy", "integers", "float32 samples between -1 and 1"],
        &args,
    );
    // As floats of the same size they are too loud.
    let unscaled: Vec<f32> = integers.iter().map(|&x| x as f32).collect();
    npy::write_f32(&pcm, &[unscaled.len()], &unscaled).unwrap();
    work.refuses(1, &["pcm.npy", "above full scale"], &args);
    // Bands are logarithms.
    let mel = work.arg("mel.npy");
    let mut frames = golden("speech16k.mel");
    frames[7] = 1e20;
    npy::write_f32(&mel, &[93, 128], &frames).unwrap();
    let args = ["embed", &out, "--mel", &mel, "--model", &model];
    work.refuses(1, &["mel.npy", "logarithm"], &args);
}

#[test]
fn warnings_are_said_with_quiet_too() {
    let work = Work::new();
    let (out, model, wav) = (work.arg("EMB.NPY"), encoder(), work.arg("cut.wav"));
    let whole = fs::read(recording("speech16k.wav")).unwrap();
    fs::write(&wav, &whole[..whole.len() - 1000]).unwrap();
    let output = run(0, &["embed", &wav, &out, "--model", &model, "-q"]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(
        stderr.contains("warning: ") && stderr.contains("cut short"),
        "{stderr}"
    );
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
}

#[test]
fn wrong_command_lines_and_models_are_told_apart() {
    let work = Work::new();
    let (out, model, wav) = (work.arg("emb.npy"), encoder(), recording("speech16k.wav"));
    // No input, two inputs, a rate without samples, an ending that is not written.
    work.refuses(2, &["required"], &["embed", &out, "--model", &model]);
    let two = ["embed", &wav, &out, "--model", &model, "--mel", &wav];
    work.refuses(2, &["--mel"], &two);
    let rate = ["embed", &wav, &out, "--model", &model, "--rate", "16000"];
    work.refuses(2, &["--raw"], &rate);
    let wrong = work.arg("emb.bin");
    work.refuses(2, &[".npy"], &["embed", &wav, &wrong, "--model", &model]);
    let codec = work.codec();
    work.refuses(1, &["DAC"], &["embed", &wav, &out, "--model", &codec]);
    let text = work.path("text.wav");
    fs::write(&text, "Dear diary").unwrap();
    let text = text.display().to_string();
    work.refuses(1, &[&text], &["embed", &text, &out, "--model", &model]);
}

#[test]
fn inspect_knows_the_encoder() {
    for folder in ["tiny/hf", "tiny/hf-f32", "tiny/qwen", "alt/hf"] {
        let path = fixtures().join("ecapa").join(folder).display().to_string();
        let report = run_json(0, &["inspect", &path]);
        assert_eq!(report["loads"], true, "{folder}");
        assert_eq!(report["model"], "ecapa", "{folder}");
    }
}
