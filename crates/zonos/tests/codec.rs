//! `zonos dac encode` and `zonos dac roundtrip`.

mod common;

use std::fs;

use common::{Work, edit_header, f32s, fixtures, i32s, run, run_json, tensor, wav};
use zonos_audio::wav::WavFormat;
use zonos_audio::{Codes, Waveform, npy};

/// The golden's input as a float WAV file.
fn golden_audio(work: &Work) -> String {
    let golden = fixtures().join("dac/tiny/golden.safetensors");
    let samples = f32s(&tensor(&golden, "enc.wav").2);
    let path = work.path("speech.wav");
    Waveform::new(samples, 44_100)
        .save_wav_as(&path, WavFormat::Float32)
        .unwrap();
    work.arg("speech.wav")
}

/// `[codebooks, frames]` int64 of the golden as rows.
fn golden_codes(key: &str) -> Codes {
    let golden = fixtures().join("dac/tiny/golden.safetensors");
    let (_, shape, bytes) = tensor(&golden, key);
    // The upper halves are zero.
    let values = i32s(&bytes);
    let (q, frames) = (shape[0], shape[1]);
    let turned = (0..frames * q).map(|i| values[2 * ((i % q) * frames + i / q)]);
    Codes::new(frames, q, turned.collect()).unwrap()
}

#[test]
fn encoding_gives_the_codes_of_the_original() {
    let work = Work::new();
    let (audio, out, codec) = (golden_audio(&work), work.arg("codes.npy"), work.codec());
    let all = run_json(0, &["dac", "encode", &audio, &out, "--model", &codec]);
    assert_eq!(Codes::load_npy(&out).unwrap(), golden_codes("enc.codes"));
    assert_eq!((&all["frames"], &all["codebooks"]), (&18.into(), &9.into()));
    assert_eq!(
        (&all["samples"], &all["sample_rate"]),
        (&8999.into(), &44_100.into())
    );
    // The file as numpy sees it: little-endian int32.
    let array = npy::read(&out).unwrap();
    assert_eq!(array.shape(), [18, 9]);
    let header = String::from_utf8_lossy(&fs::read(&out).unwrap()[..64]).into_owned();
    assert!(header.contains("<i4"), "{header}");

    let few = [
        "dac",
        "encode",
        &audio,
        &out,
        "--model",
        &codec,
        "--codebooks",
        "4",
    ];
    run(0, &few);
    assert_eq!(Codes::load_npy(&out).unwrap(), golden_codes("enc.n4.codes"));
    // The folder of a model that holds its codec will do.
    run(
        0,
        &["dac", "encode", &audio, &out, "--model", &work.model()],
    );
    assert_eq!(Codes::load_npy(&out).unwrap(), golden_codes("enc.codes"));
}

#[test]
fn there_and_back() {
    let work = Work::new();
    let (audio, out, codec) = (golden_audio(&work), work.arg("again.npy"), work.codec());
    let golden = fixtures().join("dac/tiny/golden.safetensors");
    let expected = f32s(&tensor(&golden, "enc.recon").2);
    let plot = work.arg("spectra.png");
    let args = [
        "dac",
        "roundtrip",
        &audio,
        &out,
        "--model",
        &codec,
        "--plot",
        &plot,
    ];
    let report = run_json(0, &args);
    let ours = npy::read(&out).unwrap().to_f32();
    assert_eq!(ours.len(), expected.len());
    let worst = ours.iter().zip(&expected).map(|(a, b)| (a - b).abs());
    let worst = worst.fold(0.0, f32::max);
    assert!(worst <= 2e-5, "{worst:e}");
    let original = f32s(&tensor(&golden, "enc.wav").2);
    let snr = zonos_dac::snr_db(&original, &expected).unwrap();
    let told = report["snr_db"].as_f64().unwrap();
    assert!((told - snr).abs() < 1e-2, "{told} is not {snr}");
    let peak = original.iter().fold(0.0f32, |m, x| m.max(x.abs()));
    assert_eq!(report["before"]["peak"].as_f64().unwrap() as f32, peak);
    let png = fs::read(&plot).unwrap();
    assert!(png.starts_with(b"\x89PNG\r\n\x1a\n") && png.len() > 1000);

    let sound = work.arg("again.wav");
    let output = run(0, &["dac", "roundtrip", &audio, &sound, "--model", &codec]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("dB") && text.contains("dBFS"), "{text}");
    let (samples, rate) = wav(&fs::read(&sound).unwrap());
    assert_eq!((samples.len(), rate), (8999, 44_100));
}

/// A 16-bit WAV file of two channels.
fn stereo(rate: u32, data: &[u8]) -> Vec<u8> {
    let length = u32::try_from(data.len()).unwrap();
    let mut file = b"RIFF".to_vec();
    file.extend((36 + length).to_le_bytes());
    file.extend(b"WAVEfmt \x10\0\0\0\x01\0\x02\0");
    file.extend(rate.to_le_bytes());
    file.extend((4 * rate).to_le_bytes());
    file.extend(b"\x04\0\x10\0data");
    file.extend(length.to_le_bytes());
    file.extend(data);
    file
}

/// Audio of another rate and with two channels.
#[test]
fn other_rates_and_channels() {
    let work = Work::new();
    let frames = (0..16_000).flat_map(|i| {
        let left = (f64::from(i) * 0.1).sin() * 9000.0;
        [left as i16, 0]
    });
    let data: Vec<u8> = frames.flat_map(i16::to_le_bytes).collect();
    fs::write(work.path("a.wav"), stereo(16_000, &data)).unwrap();
    let (audio, out, codec) = (work.arg("a.wav"), work.arg("codes.npy"), work.codec());
    let report = run_json(0, &["dac", "encode", &audio, &out, "--model", &codec]);
    assert_eq!(report["samples"], 44_100);
    assert_eq!(report["input_sample_rate"], 16_000);
    assert_eq!(Codes::load_npy(&out).unwrap().frames(), 87);
    // Silence has codes too.
    let silence = work.path("silence.wav");
    Waveform::new(vec![0.0; 700], 44_100)
        .save_wav(&silence)
        .unwrap();
    let silence = work.arg("silence.wav");
    run(0, &["dac", "encode", &silence, &out, "--model", &codec]);
    assert_eq!(Codes::load_npy(&out).unwrap().frames(), 2);
    let again = work.arg("again.wav");
    let report = run_json(
        0,
        &["dac", "roundtrip", &silence, &again, "--model", &codec],
    );
    assert!(report["snr_db"].is_null() && report["before"]["rms_dbfs"].is_null());
}

#[test]
fn what_cannot_be_encoded_is_refused() {
    let work = Work::new();
    let (audio, out, codec) = (golden_audio(&work), work.arg("codes.npy"), work.codec());
    let encode = |audio: &str, code: i32, needles: &[&str]| {
        work.refuses(
            code,
            needles,
            &["dac", "encode", audio, &out, "--model", &codec],
        );
        let sound = work.arg("out.wav");
        work.refuses(
            code,
            needles,
            &["dac", "roundtrip", audio, &sound, "--model", &codec],
        );
    };
    encode(&work.arg("missing.wav"), 1, &["missing.wav"]);
    fs::write(
        work.path("text.wav"),
        "not audio at all, whatever it is called",
    )
    .unwrap();
    encode(&work.arg("text.wav"), 1, &["text.wav"]);
    fs::write(work.path("nothing.wav"), "").unwrap();
    encode(&work.arg("nothing.wav"), 1, &["nothing.wav"]);
    let save = |name: &str, samples: Vec<f32>| {
        let wave = Waveform::new(samples, 44_100);
        wave.save_wav_as(work.path(name), WavFormat::Float32)
            .unwrap();
        work.arg(name)
    };
    let empty = save("empty.wav", Vec::new());
    encode(&empty, 1, &["empty.wav"]);
    for (name, value) in [("nan.wav", f32::NAN), ("inf.wav", f32::INFINITY)] {
        // What no writer of ours would: the samples lie at the end of the file.
        let path = save(name, vec![0.1; 600]);
        let mut bytes = fs::read(&path).unwrap();
        let at = bytes.len() - 4 * 100;
        bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        fs::write(&path, bytes).unwrap();
        encode(&path, 1, &[name]);
    }
    // Too loud for any codec: the weights are not to blame.
    for (name, level) in [("loud.wav", f32::MAX), ("loud19.wav", 1e19)] {
        let loud = save(name, vec![level; 600]);
        encode(&loud, 1, &[name, "dB above full scale"]);
    }

    for (asked, needle) in [
        ("0", "from 1 to 64"),
        ("-1", "from 1 to 64"),
        ("65", "from 1 to 64"),
        ("ten", "ten"),
    ] {
        let args = [
            "dac",
            "encode",
            &audio,
            &out,
            "--model",
            &codec,
            "--codebooks",
            asked,
        ];
        work.refuses(2, &["--codebooks", needle], &args);
    }
    let args = [
        "dac",
        "encode",
        &audio,
        &out,
        "--model",
        &codec,
        "--codebooks",
        "10",
    ];
    work.refuses(2, &["--codebooks 10", "9 codebooks"], &args);

    // A backbone is no codec, and no output may be an input.
    let backbone = work.arg("model/model.safetensors");
    work.refuses(
        1,
        &["model.safetensors"],
        &["dac", "encode", &audio, &out, "--model", &backbone],
    );
    work.refuses(
        2,
        &["same file"],
        &["dac", "encode", &audio, &audio, "--model", &codec],
    );
    work.refuses(
        2,
        &["the ending must be .npy"],
        &["dac", "encode", &audio, &codec, "--model", &codec],
    );
    #[cfg(unix)]
    {
        let beside = work.arg("model/codec/codes.npy");
        // Under another name it is the codec's file all the same.
        std::os::unix::fs::symlink(&codec, &beside).unwrap();
        work.refuses(
            2,
            &["same file"],
            &["dac", "encode", &audio, &beside, "--model", &codec],
        );
    }
    work.refuses(
        2,
        &["same file"],
        &[
            "dac",
            "roundtrip",
            &audio,
            "a.wav",
            "--plot",
            "a.wav",
            "--model",
            &codec,
        ],
    );
    work.refuses(
        2,
        &[".wav", ".npy"],
        &["dac", "roundtrip", &audio, "out.xyz", "--model", &codec],
    );
    let lost = work.arg("missing/out.wav");
    work.refuses(
        1,
        &["missing"],
        &["dac", "roundtrip", &audio, &lost, "--model", &codec],
    );
}

/// A file with the decoder alone decodes; encoding names what is missing before it reads a weight.
#[test]
fn a_decoder_alone_cannot_encode() {
    let work = Work::new();
    let (audio, out) = (golden_audio(&work), work.arg("codes.npy"));
    fs::copy(
        fixtures().join("dac/tiny/folded.safetensors"),
        work.path("decoder.safetensors"),
    )
    .unwrap();
    edit_header(&work.path("decoder.safetensors"), |header| {
        // The values stay behind as padding between tensors, so rename instead of removing.
        let names: Vec<String> = header.as_object().unwrap().keys().cloned().collect();
        for name in names.iter().filter(|n| n.starts_with("encoder.")) {
            let tensor = header.as_object_mut().unwrap().remove(name).unwrap();
            header[format!("quantizer.quantizers.0.in_proj.{name}")] = tensor;
        }
    });
    let codec = work.arg("decoder.safetensors");
    work.refuses(
        1,
        &["decoder.safetensors", "no encoder"],
        &["dac", "encode", &audio, &out, "--model", &codec],
    );
    npy::write_i32(work.path("codes.npy"), &[3, 9], &[9; 27]).unwrap();
    let sound = work.arg("out.wav");
    run(0, &["dac", "decode", &out, &sound, "--model", &codec]);
}
