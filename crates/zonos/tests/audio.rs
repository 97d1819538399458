//! `zonos audio`, and sound files of every format as outputs.

mod common;

use std::path::PathBuf;

use common::{Work, zonos};
use serde_json::Value;
use zonos_audio::decode::{DecodeLimits, Decoded, decode_file};
use zonos_audio::encode::{AudioFormat, PcmScale, encode_file};

fn fixture(name: &str) -> String {
    let fixtures = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../validation/fixtures/audio"
    );
    PathBuf::from(fixtures).join(name).display().to_string()
}

fn run(args: &[&str]) -> (Option<i32>, String, String) {
    let output = zonos().args(args).output().unwrap();
    (
        output.status.code(),
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8(output.stderr).unwrap(),
    )
}

fn read(work: &Work, name: &str) -> Decoded {
    decode_file(work.path(name), &DecodeLimits::default()).unwrap()
}

#[test]
fn info_tells_what_a_file_holds() {
    let file = fixture("decode/mp3_vbr_stereo_48000.mp3");
    let (code, out, err) = run(&["audio", "info", &file]);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    assert!(
        out.contains("MPEG audio, MP3, 48000 Hz, 2 channels, 1.000 s (48000 frames)"),
        "{out}"
    );
    assert!(out.contains("channel 2: peak "), "{out}");

    let (_, out, _) = run(&["audio", "info", &file, "--json"]);
    let value: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(value["codec"], "MP3");
    assert_eq!(value["frames"], 48_000);
    assert_eq!(value["levels"].as_array().unwrap().len(), 2);
    assert!(value["levels"][0]["rms_dbfs"].as_f64().unwrap() < -10.0);
    assert_eq!(value["warnings"].as_array().unwrap().len(), 0);
}

#[test]
fn info_on_broken_files() {
    let (code, out, _) = run(&["audio", "info", &fixture("broken/truncated.wav")]);
    assert_eq!(code, Some(0));
    assert!(
        out.contains("warning: the file is cut short: 3200 of 8000 samples"),
        "{out}"
    );
    // Silence has no level in dB; JSON has no infinity.
    let (_, out, _) = run(&["audio", "info", &fixture("broken/silence.wav"), "--json"]);
    let value: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(value["levels"][0]["peak_dbfs"], Value::Null);
    for (name, says) in [
        ("broken/text.wav", "plain text"),
        (
            "broken/unknown_codec.wav",
            "codec tag 0x1234 in WAV is not supported; supported: PCM",
        ),
        ("containers/ac3.mkv", "AC-3 in Matroska"),
        ("nothing", "cannot read"),
    ] {
        let (code, out, err) = run(&["audio", "info", &fixture(name)]);
        assert_eq!((code, out.as_str()), (Some(1), ""), "{name}");
        assert!(err.starts_with("error: ") && err.contains(says), "{err}");
        assert_eq!(err.lines().count(), 1, "{err}");
    }
}

#[test]
fn convert_keeps_sixteen_bits_and_lengths() {
    let work = Work::new();
    let source = fixture("decode/extensible16_stereo_32000.wav");
    let original = decode_file(&source, &DecodeLimits::default()).unwrap();
    for name in ["a.flac", "a.wav", "a.opus", "a.ogg"] {
        let (code, _, err) = run(&["audio", "convert", &source, &work.arg(name)]);
        assert_eq!(code, Some(0), "{err}");
        let written = read(&work, name);
        if name.starts_with("a.o") {
            assert_eq!(written.info.codec, "Opus");
            assert_eq!(written.info.frames, Some(48_000), "{name}");
        } else {
            assert!(written.channels == original.channels, "{name}");
        }
    }
    let (code, ..) = run(&[
        "audio",
        "convert",
        &source,
        &work.arg("m.wav"),
        "--mono",
        "--float",
    ]);
    assert_eq!(code, Some(0));
    assert_eq!(
        read(&work, "m.wav").channels,
        [original.to_mono().into_samples()]
    );
    let (code, ..) = run(&["audio", "convert", &source, &work.arg("a.s16")]);
    assert_eq!(code, Some(0));
    let bytes = std::fs::read(work.path("a.s16")).unwrap();
    assert_eq!(bytes.len(), 4 * original.channels[0].len());
}

#[test]
fn resample_follows_the_library() {
    let work = Work::new();
    let source = fixture("decode/pcm24_stereo_48000.wav");
    let args = [
        "audio",
        "resample",
        &source,
        &work.arg("a.wav"),
        "--rate",
        "24000",
        "--float",
        "--json",
    ];
    let (code, out, err) = run(&args);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    let value: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(
        (&value["sample_rate"], &value["frames"]),
        (&24_000.into(), &24_000.into())
    );
    let original = decode_file(&source, &DecodeLimits::default()).unwrap();
    let recipe = zonos_audio::ResampleRecipe::Transform;
    let resampler = zonos_audio::Resampler::new(48_000, 24_000, recipe).unwrap();
    let wanted: Vec<_> = original
        .channels
        .iter()
        .map(|c| resampler.resample(c))
        .collect();
    assert!(read(&work, "a.wav").channels == wanted);
}

#[test]
fn wrong_outputs_are_refused_first() {
    let work = Work::new();
    let source = fixture("decode/pcm16_mono_22050.wav");
    for (args, says) in [
        (
            vec!["convert", &source, &work.arg("a.m4a")],
            ".m4a files cannot be written",
        ),
        (
            vec!["convert", &source, &work.arg("a.xyz")],
            "the ending must be .wav",
        ),
        (
            vec!["convert", &source, &work.arg("a.flac"), "--float"],
            "--float goes with",
        ),
        (vec!["convert", &source, &source], "the same file"),
        (vec!["convert", &source, "-"], "the ending must be"),
        (
            vec!["resample", &source, &work.arg("a.wav"), "--rate", "655350"],
            "--rate",
        ),
        (vec!["resample", &source, &work.arg("a.wav")], "--rate"),
    ] {
        let args: Vec<&str> = std::iter::once("audio")
            .chain(args.iter().map(|a| &**a))
            .collect();
        let (code, _, err) = run(&args);
        assert_eq!(code, Some(2), "{args:?}: {err}");
        assert!(err.contains(says), "{args:?}: {err}");
    }
    if !cfg!(feature = "mp3") {
        let (code, _, err) = run(&["audio", "convert", &source, &work.arg("a.mp3")]);
        assert_eq!(code, Some(2));
        assert!(err.contains("--features mp3"), "{err}");
    }
    assert!(!work.path("a.wav").exists() && !work.path("a.flac").exists());
}

/// Hours at a low rate would be gigabytes at a high one: said before anything is allocated.
#[test]
fn what_would_not_fit_is_not_begun() {
    let work = Work::new();
    let (input, output) = (work.path("long.wav"), work.arg("a.wav"));
    // 7200 s at 1 kHz.
    let silence = vec![0.0; 7_200_000];
    encode_file(
        &input,
        &[silence],
        1_000,
        AudioFormat::WavPcm16,
        PcmScale::Full,
    )
    .unwrap();
    let input = input.display().to_string();
    let began = std::time::Instant::now();
    let (code, _, err) = run(&["audio", "resample", &input, &output, "--rate", "384000"]);
    assert_eq!(code, Some(1), "{err}");
    for needle in ["long.wav", "7200 s", "11059200000 bytes", "--rate"] {
        assert!(err.contains(needle), "{needle}: {err}");
    }
    assert_eq!(err.lines().count(), 1, "{err}");
    assert!(began.elapsed() < std::time::Duration::from_secs(20));
    assert!(!work.path("a.wav").exists());
}

#[test]
fn formats_tell_what_they_cannot_hold_before_anything_is_decoded() {
    let work = Work::new();
    let (fast, wide) = (work.path("fast.wav"), work.path("wide.wav"));
    let (format, scale) = (AudioFormat::WavPcm16, PcmScale::Full);
    encode_file(&fast, &[vec![0.1; 100]], 192_000, format, scale).unwrap();
    encode_file(&wide, &vec![vec![0.1; 100]; 9], 48_000, format, scale).unwrap();
    let (fast, wide) = (fast.display().to_string(), wide.display().to_string());
    let (flac, opus) = (work.arg("a.flac"), work.arg("a.opus"));
    for (args, says) in [
        (
            &["convert", &fast, &flac][..],
            "up to 96000 Hz, and this is 192000 Hz",
        ),
        (
            &["resample", &fast, &flac, "--rate", "96001"],
            "up to 96000 Hz",
        ),
        (&["convert", &wide, &flac], "at most 8 channels"),
        (&["convert", &wide, &opus], "at most 2 channels"),
    ] {
        let args: Vec<&str> = std::iter::once("audio")
            .chain(args.iter().copied())
            .collect();
        let (code, _, err) = run(&args);
        assert_eq!(code, Some(2), "{args:?}: {err}");
        assert!(err.contains(says), "{args:?}: {err}");
    }
    let (code, _, err) = run(&["audio", "resample", &fast, &flac, "--rate", "96000"]);
    assert_eq!(code, Some(0), "{err}");
    let (code, _, err) = run(&["audio", "convert", &wide, &opus, "--mono"]);
    assert_eq!(code, Some(0), "{err}");
    // Opus has a rate of its own, which the report tells.
    let (code, out, err) = run(&["audio", "convert", &fast, &opus, "--json"]);
    assert_eq!(code, Some(0), "{err}");
    let value: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(
        (&value["sample_rate"], &value["frames"]),
        (&48_000.into(), &25.into())
    );
}

#[test]
fn speech_in_the_format_of_its_ending() {
    let work = Work::new();
    let speak = |name: &str| {
        let model = work.model();
        let out = work.arg(name);
        let args = [
            "tts",
            "Hi",
            "-o",
            &out,
            "--model",
            &model,
            "--seed",
            "1",
            "--max-frames",
            "20",
        ];
        let (code, _, err) = run(&args);
        assert_eq!(code, Some(0), "{name}: {err}");
    };
    for name in ["a.wav", "a.flac", "a.opus", "a.s16", "a.f32", "plain"] {
        speak(name);
    }
    let wav = read(&work, "a.wav");
    assert_eq!(read(&work, "a.flac").channels, wav.channels);
    assert_eq!(read(&work, "plain").channels, wav.channels);
    let frames = wav.channels[0].len();
    let opus = read(&work, "a.opus");
    let wanted = (frames as f64 * 48_000.0 / 44_100.0).ceil() as usize;
    assert!(opus.channels[0].len().abs_diff(wanted) <= 1);
    assert_eq!(std::fs::read(work.path("a.s16")).unwrap().len(), 2 * frames);
    assert_eq!(std::fs::read(work.path("a.f32")).unwrap().len(), 4 * frames);
    let model = work.model();
    let (code, _, err) = run(&["tts", "Hi", "-o", &work.arg("a.m4a"), "--model", &model]);
    assert_eq!(code, Some(2), "{err}");
}
