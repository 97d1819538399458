//! `zonos zac` and `zonos convert --zac`.

mod common;

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use common::{Work, edit_header, f32s, fixtures, i32s, run, run_json, tensor, wav, zonos};
use serde_json::{Value, json};
use zonos_audio::wav::WavFormat;
use zonos_audio::{Codes, Waveform, npy};
use zonos_checkpoint::{Checkpoint, Part, compose};

const HOP: usize = 2940;

fn encoder_dir() -> PathBuf {
    fixtures().join("zac/mini-encoder")
}

fn encoder() -> String {
    encoder_dir()
        .join("model.safetensors")
        .display()
        .to_string()
}

fn decoder_dir() -> PathBuf {
    fixtures().join("zac/mini-keep2")
}

fn decoder() -> String {
    decoder_dir()
        .join("model.safetensors")
        .display()
        .to_string()
}

/// The golden's recording as a float WAV file of its rate.
fn recording(work: &Work) -> String {
    let golden = encoder_dir().join("golden.safetensors");
    let samples = f32s(&tensor(&golden, "wav_in").2);
    let rate = i32s(&tensor(&golden, "rate_in").2)[0] as u32;
    Waveform::new(samples, rate)
        .save_wav_as(work.path("speech.wav"), WavFormat::Float32)
        .unwrap();
    work.arg("speech.wav")
}

/// Rows `[frames, codebooks]` of a golden.
fn golden_codes(dir: &Path, key: &str) -> Codes {
    let (_, shape, bytes) = tensor(&dir.join("golden.safetensors"), key);
    Codes::new(shape[0], shape[1], i32s(&bytes)).unwrap()
}

fn golden_f32(dir: &Path, key: &str) -> Vec<f32> {
    f32s(&tensor(&dir.join("golden.safetensors"), key).2)
}

/// Copies those tensors of a file to which `rule` gives a name, and the metadata if asked.
fn rewrite(from: &Path, to: &Path, metadata: bool, rule: impl Fn(&str) -> Vec<String>) {
    let checkpoint = Checkpoint::open(from).unwrap();
    let mut parts = Vec::new();
    for name in checkpoint.names() {
        for new in rule(name) {
            parts.push(Part::copied(&checkpoint, name).unwrap().named(new));
        }
    }
    let notes: Vec<(String, String)> = checkpoint
        .metadata()
        .as_object()
        .into_iter()
        .flatten()
        .filter(|_| metadata)
        .map(|(key, value)| (key.clone(), value.as_str().unwrap().to_owned()))
        .collect();
    compose(&parts, &notes, to, &mut |_| ControlFlow::Continue(())).unwrap();
}

/// A second of a chirp at 44.1 kHz.
fn chirp(seconds: f64) -> Waveform {
    let sample = |i: usize| {
        let t = i as f32 / 44_100.0;
        0.3 * (t * (900.0 + 700.0 * t)).sin() + 0.05 * (t * 9000.0).sin()
    };
    let count = (seconds * 44_100.0) as usize;
    Waveform::new((0..count).map(sample).collect(), 44_100)
}

fn close(ours: &[f32], theirs: &[f32], gain: f32) {
    assert_eq!(ours.len(), theirs.len());
    let peak = theirs.iter().fold(0.0f32, |m, x| m.max(x.abs()));
    let worst = ours.iter().zip(theirs).map(|(a, b)| (a - b * gain).abs());
    let worst = worst.fold(0.0, f32::max);
    assert!(
        worst <= (2e-5 * peak).max(1e-5),
        "{worst:e} at a peak of {peak}"
    );
}

#[test]
fn encoding_gives_the_codes_of_the_golden() {
    let work = Work::new();
    let (audio, out, dump) = (recording(&work), work.arg("codes.npy"), work.arg("taps"));
    let args = [
        "zac",
        "encode",
        &audio,
        &out,
        "--model",
        &encoder(),
        "--dump",
        &dump,
    ];
    let report = run_json(0, &args);
    let expected = golden_codes(&encoder_dir(), "codes");
    assert_eq!(Codes::load_npy(&out).unwrap(), expected);
    assert_eq!(report["frames"], expected.frames());
    assert_eq!(
        (&report["codebooks"], &report["sample_rate"]),
        (&10.into(), &44_100.into())
    );
    let header = String::from_utf8_lossy(&fs::read(&out).unwrap()[..64]).into_owned();
    assert!(header.contains("<i4"), "{header}");

    // Every tensor of every lane, under the names of the goldens.
    for (name, shape) in [
        ("lane1.encoder.5", vec![6, 24]),
        ("lane1.teacher.hidden2", vec![19, 32]),
        ("lane1.rvq.residual8", vec![6, 24]),
        ("lane0.codes", vec![6, 10]),
    ] {
        let array = npy::read(work.path("taps").join(format!("{name}.npy"))).unwrap();
        assert_eq!(array.shape(), shape, "{name}");
    }
    let lane = npy::read(work.path("taps/lane1.codes.npy")).unwrap();
    let golden = golden_codes(&encoder_dir(), "lane1.codes");
    assert_eq!(lane.to_i32().unwrap(), golden.values());
    let count = fs::read_dir(work.path("taps")).unwrap().count();
    assert_eq!(report["dumped_tensors"], count);

    // The teacher may come from another file.
    let args = [
        "zac",
        "encode",
        &audio,
        &out,
        "--model",
        &encoder(),
        "--teacher",
        &encoder(),
    ];
    run(0, &args);
    assert_eq!(Codes::load_npy(&out).unwrap(), expected);
}

#[test]
fn samples_in_numpy_files_and_cuts() {
    let work = Work::new();
    let sound = chirp(1.52);
    npy::write_f32(work.path("pcm.npy"), &[sound.len()], sound.samples()).unwrap();
    sound
        .save_wav_as(work.path("pcm.wav"), WavFormat::Float32)
        .unwrap();
    let (out, model) = (work.arg("codes.npy"), encoder());
    let codes = |input: &str, more: &[&str]| {
        let input = work.arg(input);
        let mut args = vec!["zac", "encode", &input, &out, "--model", &model];
        args.extend(more);
        let output = run(0, &args);
        (
            Codes::load_npy(&out).unwrap(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    };
    let (whole, note) = codes("pcm.npy", &[]);
    assert_eq!(whole.frames(), 23);
    assert!(!note.contains("warning"), "{note}");
    assert_eq!(codes("pcm.wav", &[]).0, whole);
    // What is cut off is cut off on a whole frame, and said.
    let (cut, note) = codes("pcm.npy", &["--max-seconds", "0.99"]);
    assert_eq!(cut.frames(), 14);
    assert!(
        note.contains("warning") && note.contains("--max-seconds"),
        "{note}"
    );
    // Frames of whole lanes; the teacher hears the rest of its lane in both directions.
    assert_eq!(cut.values()[..120], whole.values()[..120]);

    // Peaks above full scale are divided by, unless told otherwise.
    let loud: Vec<f32> = sound.samples().iter().map(|x| 4.0 * x).collect();
    npy::write_f32(work.path("loud.npy"), &[loud.len()], &loud).unwrap();
    let normalized = codes("loud.npy", &[]).0;
    let raw = codes("loud.npy", &["--no-peak-normalize"]).0;
    assert_ne!(normalized, raw);
}

#[test]
fn recordings_that_are_refused() {
    let work = Work::new();
    let (out, model) = (work.arg("codes.npy"), encoder());
    let write = |name: &str, samples: &[f32]| {
        npy::write_f32(work.path(name), &[samples.len()], samples).unwrap();
        work.arg(name)
    };
    let short = write("short.npy", &chirp(0.49).into_samples());
    let silent = write("silent.npy", &[0.0; 44_100]);
    let mut bad = chirp(1.0).into_samples();
    bad[30_000] = f32::NAN;
    let bad = write("nan.npy", &bad);
    let good = write("good.npy", &chirp(1.0).into_samples());
    let encode = |file: &str| ["zac", "encode", file, &out, "--model", &model].map(str::to_owned);
    let tone = chirp(1.0).into_samples();
    let both: Vec<f32> = tone
        .iter()
        .copied()
        .chain(tone.iter().map(|x| -x))
        .collect();
    npy::write_f32(work.path("anti.npy"), &[2, tone.len()], &both).unwrap();
    let anti = work.arg("anti.npy");
    for (file, needles) in [
        (&short, &["short.npy", "0.49", "0.5 s"][..]),
        (&silent, &["silent.npy", "silent"]),
        (&bad, &["nan.npy", "30000", "NaN"]),
        (&anti, &["anti.npy", "2 channels", "cancel"]),
    ] {
        let args = encode(file);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        work.refuses(1, needles, &args);
    }
    // Where it is in the file, not where it is on the way.
    let folder = work.arg("features");
    work.refuses(
        1,
        &["nan.npy", "30000", "NaN"],
        &["zac", "features", &bad, &folder, "--model", &model],
    );
    for seconds in ["600.5", "0.49", "0", "-1", "nan"] {
        let output = zonos()
            .args(encode(&good))
            .arg(format!("--max-seconds={seconds}"))
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2), "{seconds}");
    }
    fs::write(work.path("notes.wav"), "Dear diary").unwrap();
    let notes = work.arg("notes.wav");
    work.refuses(
        1,
        &["notes.wav", "not an audio file"],
        &["zac", "encode", &notes, &out, "--model", &model],
    );
}

#[test]
fn files_that_are_another_half_or_another_model() {
    let work = Work::new();
    let out = work.arg("codes.npy");
    npy::write_f32(work.path("a.npy"), &[44_100], chirp(1.0).samples()).unwrap();
    npy::write_i32(work.path("c.npy"), &[2, 10], &[1; 20]).unwrap();
    let (audio, codes, sound) = (work.arg("a.npy"), work.arg("c.npy"), work.arg("o.wav"));
    work.refuses(
        1,
        &[
            "model.safetensors",
            "kind",
            "decoder",
            "zac-1-encoder.safetensors",
        ],
        &["zac", "encode", &audio, &out, "--model", &decoder()],
    );
    work.refuses(
        1,
        &["model.safetensors", "kind", "encoder", "keep2_plain"],
        &["zac", "decode", &codes, &sound, "--model", &encoder()],
    );
    work.refuses(
        1,
        &["weights.pth", "not a ZAC-1 file", "DAC"],
        &["zac", "encode", &audio, &out, "--model", &work.codec()],
    );
    work.refuses(
        1,
        &["weights.pth"],
        &[
            "zac",
            "encode",
            &audio,
            &out,
            "--model",
            &encoder(),
            "--teacher",
            &work.codec(),
        ],
    );

    let copy = work.path("enc.safetensors");
    let model = work.arg("enc.safetensors");
    let encode = ["zac", "encode", &audio, &out, "--model", &model];
    fs::copy(encoder(), &copy).unwrap();
    edit_header(&copy, |h| h["__metadata__"]["format"] = "zac-1/2".into());
    work.refuses(1, &["enc.safetensors", "zac-1/2", "zac-1/1"], &encode);
    // A tensor that is missing, and one that nobody asked for.
    fs::copy(encoder(), &copy).unwrap();
    edit_header(&copy, |h| {
        let tensor = h
            .as_object_mut()
            .unwrap()
            .remove("codec.semantic_encoder.blocks.0.norm.bias");
        h["codec.semantic_encoder.blocks.0.shift"] = tensor.unwrap();
    });
    work.refuses(1, &["codec.semantic_encoder.blocks.0.norm.bias"], &encode);
    // Named in a map file, it is what was missing.
    let map = json!({"codec.semantic_encoder.blocks.0.norm.bias": "codec.semantic_encoder.blocks.0.shift"});
    fs::write(work.path("map.json"), map.to_string()).unwrap();
    let map = work.arg("map.json");
    run(
        0,
        &[
            "zac", "encode", &audio, &out, "--model", &model, "--map", &map,
        ],
    );
    fs::copy(encoder(), &copy).unwrap();
    edit_header(&copy, |h| {
        let mut config: Value =
            serde_json::from_str(h["__metadata__"]["model_config"].as_str().unwrap()).unwrap();
        config["semantic_align"] = "magic".into();
        h["__metadata__"]["model_config"] = config.to_string().into();
    });
    work.refuses(1, &["semantic_align", "magic"], &encode);
    // Without a teacher.
    rewrite(Path::new(&encoder()), &copy, true, |name| {
        let kept = !name.starts_with("teacher.");
        kept.then(|| name.to_owned()).into_iter().collect()
    });
    work.refuses(1, &["teacher", "Wav2Vec2-BERT"], &encode);
}

#[test]
fn decoding_gives_the_audio_of_the_golden() {
    let work = Work::new();
    let dir = decoder_dir();
    let codes = golden_codes(&dir, "codes");
    let audio = golden_f32(&dir, "audio");
    let gain = 10f32.powf(-0.15);
    let (q, values) = (codes.codebooks(), codes.values());
    npy::write_i32(work.path("i4.npy"), &[codes.frames(), q], values).unwrap();
    // Floats nearer than 0.001 to an integer are rounded.
    let floats: Vec<f32> = values.iter().map(|&v| v as f32 + 0.0004).collect();
    npy::write_f32(work.path("f4.npy"), &[codes.frames(), q], &floats).unwrap();
    let (model, out) = (decoder(), work.arg("out.npy"));
    for (name, more, gain) in [
        ("i4.npy", &[][..], gain),
        ("f4.npy", &["--headroom-db", "0"], 1.0),
        ("i4.npy", &["--headroom-db=0", "--block", "1"], 1.0),
        (
            "i4.npy",
            &["--headroom-db", "-6.0205999", "--variant", "keep2_plain"],
            2.0,
        ),
    ] {
        let codes = work.arg(name);
        let mut args = vec!["zac", "decode", &codes, &out, "--model", &model];
        args.extend(more);
        run(0, &args);
        close(&npy::read(&out).unwrap().to_f32(), &audio, gain);
    }
    let (codes, sound) = (work.arg("i4.npy"), work.arg("out.wav"));
    let report = run_json(0, &["zac", "decode", &codes, &sound, "--model", &model]);
    assert_eq!(report["samples"], audio.len());
    let (samples, rate) = wav(&fs::read(&sound).unwrap());
    assert_eq!(rate, 44_100);
    for (s, x) in samples.iter().zip(&audio) {
        let step = (x * gain).clamp(-1.0, 1.0) * 32_767.0;
        assert!((f32::from(*s) - step).abs() <= 1.0, "{s} is not {step}");
    }

    let seam = run_json(
        0,
        &["zac", "seam", &codes, "--model", &model, "--block", "1"],
    );
    assert_eq!(seam["passed"], true);
    assert_eq!(seam["samples"], audio.len());
}

/// Codes in delayed rows, the end of speech from three places.
#[test]
fn delayed_rows() {
    let work = Work::new();
    let dir = decoder_dir();
    let codes = golden_codes(&dir, "codes").truncate(6);
    let (frames, q) = (codes.frames(), codes.codebooks());
    let model = decoder();
    let reference = |name: &str, codes: &Codes| -> Vec<f32> {
        codes.save_npy(work.path(name)).unwrap();
        let (file, out) = (work.arg(name), work.arg("reference.npy"));
        run(0, &["zac", "decode", &file, &out, "--model", &model]);
        npy::read(&out).unwrap().to_f32()
    };
    let expected = reference("plain.npy", &codes);

    // Three rows past the end, filled with what is no code.
    let rows = frames + q - 1 + 3;
    let mut sheared = vec![4097.0f32; rows * q];
    for t in 0..frames {
        for c in 0..q {
            sheared[(t + c) * q + c] = codes.row(t)[c] as f32;
        }
    }
    let write = |rows: usize, values: &[f32]| {
        npy::write_f32(work.path("rows.npy"), &[rows, q], values).unwrap();
    };
    write(rows, &sheared);
    let (file, out) = (work.arg("rows.npy"), work.arg("out.npy"));
    let decode = |more: &[&str]| {
        let mut args = vec!["zac", "decode", &file, &out, "--model", &model, "--sheared"];
        args.extend(more);
        run(0, &args);
        npy::read(&out).unwrap().to_f32()
    };
    assert_eq!(decode(&[]), expected);
    assert_eq!(decode(&["--eos", "6"]), expected);
    assert_eq!(decode(&["--eos", "-1"]), expected);
    assert_eq!(decode(&["--skip-frames", "2"]), expected[2 * HOP..]);
    npy::write_f32(work.path("rows.npy.eos.npy"), &[1], &[4.0]).unwrap();
    let four = reference("four.npy", &codes.clone().truncate(4));
    assert_eq!(decode(&[]), four);
    assert_eq!(decode(&["--eos", "6"]), expected);
    // A negative number means none.
    npy::write_f32(work.path("rows.npy.eos.npy"), &[1], &[-3.0]).unwrap();
    assert_eq!(decode(&[]), expected);
    fs::remove_file(work.path("rows.npy.eos.npy")).unwrap();

    // Cells that are not there are missing codes: the last frame's, in rows that end early.
    write(frames + 4, &sheared[..(frames + 4) * q]);
    let mut missing = codes.values().to_vec();
    for t in 0..frames {
        for c in 0..q {
            if t + c >= frames + 4 {
                missing[t * q + c] = -1;
            }
        }
    }
    let missing = Codes::new(frames, q, missing).unwrap();
    assert_eq!(decode(&[]), reference("missing.npy", &missing));

    // Ends that the rows do not have.
    write(rows, &sheared);
    let args = |more: &'static str| {
        let mut args: Vec<String> = ["zac", "decode", &file, &out, "--model", &model, "--sheared"]
            .map(str::to_owned)
            .to_vec();
        args.extend(more.split(' ').map(str::to_owned));
        args
    };
    for (more, needles) in [
        ("--eos 7", &["rows.npy", "row 6", "4097"][..]),
        ("--eos 0", &["rows.npy", "frame 0"]),
        ("--skip-frames 6", &["--skip-frames 6", "6 frames"]),
    ] {
        let args = args(more);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let _ = fs::remove_file(work.path("out.npy"));
        work.refuses(1, needles, &args);
    }
    let output = zonos()
        .args([
            "zac", "decode", &file, &out, "--model", &model, "--eos", "3",
        ])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2), "--eos needs --sheared");
    // Seams are compared over all of it.
    let output = zonos()
        .args(["zac", "seam", &file, "--model", &model, "--sheared"])
        .args(["--skip-frames", "1"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn codes_that_are_refused() {
    let work = Work::new();
    let (file, out, model) = (work.arg("c.npy"), work.arg("out.wav"), decoder());
    let decode = ["zac", "decode", &file, &out, "--model", &model];
    let write = |shape: &[usize], values: &[i32]| npy::write_i32(&file, shape, values).unwrap();
    write(&[2, 9], &[1; 18]);
    work.refuses(1, &["c.npy", "9 columns", "10"], &decode);
    write(&[2, 11], &[1; 22]);
    work.refuses(1, &["c.npy", "11 columns", "10"], &decode);
    write(&[10, 2], &[1; 20]);
    work.refuses(1, &["c.npy", "2 columns"], &decode);
    write(&[0, 10], &[]);
    work.refuses(1, &["c.npy", "no frames"], &decode);
    let size = golden_size();
    let mut values = [1; 20];
    values[13] = size;
    write(&[2, 10], &values);
    let found = size.to_string();
    work.refuses(1, &["c.npy", &found, "frame 1", "codebook 3"], &decode);
    values[13] = -1;
    write(&[2, 10], &values);
    run(0, &decode);
    fs::remove_file(&out).unwrap();
    values[10] = -1;
    write(&[2, 10], &values);
    work.refuses(1, &["c.npy", "codebook 0", "frame 1"], &decode);
    let mut floats = [1.0f32; 20];
    floats[7] = 3.002;
    npy::write_f32(&file, &[2, 10], &floats).unwrap();
    work.refuses(1, &["c.npy", "[0, 7]", "3.002"], &decode);
    work.refuses(1, &["c.npy"], &["zac", "seam", &file, "--model", &model]);
    let output = zonos()
        .args(decode)
        .args(["--variant", "keep3"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    // A folder of released names is asked for the variant that is meant.
    fs::create_dir(work.path("zac-1")).unwrap();
    fs::copy(
        &model,
        work.path("zac-1/zac-1-decoder-keep2_plain.safetensors"),
    )
    .unwrap();
    npy::write_i32(&file, &[2, 10], &[1; 20]).unwrap();
    let folder = work.arg("zac-1");
    run(0, &["zac", "decode", &file, &out, "--model", &folder]);
    fs::remove_file(&out).unwrap();
    // In another format as well.
    let gguf = work.arg("ggufs/zac-1-decoder-keep2_plain.gguf");
    fs::create_dir(work.path("ggufs")).unwrap();
    run(0, &["convert", &model, &gguf, "--type", "f32"]);
    fs::copy(&gguf, work.path("ggufs/zac-1-decoder-full_mr.gguf")).unwrap();
    let ggufs = work.arg("ggufs");
    run(0, &["zac", "decode", &file, &out, "--model", &ggufs]);
    fs::remove_file(&out).unwrap();
    work.refuses(
        1,
        &["zac-1-decoder-full_mr.safetensors"],
        &[
            "zac",
            "decode",
            &file,
            &out,
            "--model",
            &folder,
            "--variant",
            "full_mr",
        ],
    );
    npy::write_f32(work.path("a.npy"), &[44_100], chirp(1.0).samples()).unwrap();
    let (sound, coded) = (work.arg("a.npy"), work.arg("coded.npy"));
    work.refuses(
        1,
        &["zac-1-encoder.safetensors"],
        &["zac", "encode", &sound, &coded, "--model", &folder],
    );
    // An empty one is told which names were looked for.
    fs::create_dir(work.path("none")).unwrap();
    let none = work.arg("none");
    work.refuses(
        1,
        &["none", "looked for zac-1-encoder.safetensors, "],
        &["zac", "encode", &sound, &coded, "--model", &none],
    );
    work.refuses(
        1,
        &["looked for zac-1-decoder-full_mr.safetensors, "],
        &[
            "zac",
            "decode",
            &file,
            &out,
            "--model",
            &none,
            "--variant",
            "full_mr",
        ],
    );
}

/// A `.npy` file of the given type, `[2, 10]`.
fn npy_of(path: &Path, descr: &str, bytes: &[u8]) {
    let mut header =
        format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': (2, 10), }}").into_bytes();
    header.resize((header.len() + 11).next_multiple_of(64) - 11, b' ');
    header.push(b'\n');
    let mut file = b"\x93NUMPY\x01\x00".to_vec();
    file.extend((header.len() as u16).to_le_bytes());
    file.extend(header);
    file.extend(bytes);
    fs::write(path, file).unwrap();
}

/// Types that cannot hold every code are refused where they may have lost one.
#[test]
fn codes_of_types_that_lose_some() {
    let work = Work::new();
    let (path, file, out) = (work.path("c.npy"), work.arg("c.npy"), work.arg("o.npy"));
    let model = decoder();
    let decode = ["zac", "decode", &file, &out, "--model", &model];
    npy_of(&path, "|b1", &[1; 20]);
    work.refuses(1, &["c.npy", "bool"], &decode);
    // 4.0 in half precision, then 2048: it may have been 2049.
    let mut halves = [0x00, 0x44].repeat(20);
    npy_of(&path, "<f2", &halves);
    run(0, &decode);
    let from_halves = fs::read(&out).unwrap();
    npy::write_i32(&path, &[2, 10], &[4; 20]).unwrap();
    run(0, &decode);
    assert_eq!(fs::read(&out).unwrap(), from_halves);
    fs::remove_file(&out).unwrap();
    halves[26..28].copy_from_slice(&[0x00, 0x68]);
    npy_of(&path, "<f2", &halves);
    work.refuses(1, &["c.npy", "[1, 3]", "half floats", "<i4"], &decode);
    let mut floats = [1.0f32; 20];
    floats[7] = 7.4;
    npy::write_f32(&path, &[2, 10], &floats).unwrap();
    work.refuses(1, &["[0, 7] is 7.4", "whole number"], &decode);
}

/// A file is asked for no other variant than it holds, whatever it is called.
#[test]
fn variants_of_single_files() {
    let work = Work::new();
    npy::write_i32(work.path("c.npy"), &[2, 10], &[1; 20]).unwrap();
    let (codes, out) = (work.arg("c.npy"), work.arg("o.npy"));
    // Of all layers, made of the fixture's two: its name says something else.
    let full = work.path("zac-1-decoder-keep2_plain.safetensors");
    let source = fixtures().join("zac/mini-full/model.safetensors");
    let stage = "codec.decoder.2.transformer.layers.";
    rewrite(&source, &full, true, |name| {
        let mut names = vec![name.to_owned()];
        if let Some(leaf) = name.strip_prefix(&format!("{stage}1.")) {
            names.push(format!("{stage}2.{leaf}"));
        }
        names
    });
    edit_header(&full, |h| {
        let config = &mut h["__metadata__"]["model_config"];
        let mut json: Value = serde_json::from_str(config.as_str().unwrap()).unwrap();
        json["decoder_kwargs"][2]["num_layers"] = 3.into();
        *config = json.to_string().into();
    });
    for (model, holds, other) in [
        (decoder(), "keep2_plain", "full_mr"),
        (full.display().to_string(), "full_mr", "keep2_plain"),
    ] {
        let mut args = vec!["zac", "decode", &codes, &out, "--model", &model];
        run(0, &args);
        args.extend(["--variant", holds]);
        run(0, &args);
        fs::remove_file(&out).unwrap();
        *args.last_mut().unwrap() = other;
        let asked = format!("--variant {other}");
        let found = format!("holds {holds}");
        work.refuses(1, &[".safetensors", &asked, &found], &args);
    }
    let seam = [
        "zac",
        "seam",
        &codes,
        "--model",
        &decoder(),
        "--variant",
        "full_mr",
    ];
    work.refuses(1, &["--variant full_mr", "holds keep2_plain"], &seam);
}

/// Each output's ending is that of what is written, in any case.
#[test]
fn endings_of_outputs() {
    let work = Work::new();
    npy::write_f32(work.path("a.npy"), &[44_100], chirp(1.0).samples()).unwrap();
    npy::write_i32(work.path("c.npy"), &[2, 10], &[1; 20]).unwrap();
    let (audio, codes) = (work.arg("a.npy"), work.arg("c.npy"));
    let (encoder, decoder) = (encoder(), decoder());
    for bad in ["out.wav", "out.txt", "out"] {
        let bad = work.arg(bad);
        work.refuses(
            2,
            &[&bad, "the ending must be .npy"],
            &["zac", "encode", &audio, &bad, "--model", &encoder],
        );
    }
    let upper = work.arg("codes.NPY");
    run(0, &["zac", "encode", &audio, &upper, "--model", &encoder]);
    assert_eq!(Codes::load_npy(&upper).unwrap().frames(), 15);
    let sound = work.arg("sound.NPY");
    run(0, &["zac", "decode", &codes, &sound, "--model", &decoder]);
    assert!(fs::read(&sound).unwrap().starts_with(b"\x93NUMPY"));
    let (out, plot) = (work.arg("o.wav"), work.arg("p.PNG"));
    let there = [
        "zac",
        "roundtrip",
        &audio,
        &out,
        "--encoder",
        &encoder,
        "--decoder",
        &decoder,
    ];
    let with = |more: [&str; 2]| {
        let mut args = there.to_vec();
        args.extend(more);
        args.into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    for (more, must) in [
        (["--plot", &*work.arg("p.jpg")], "must be .png"),
        (["--codes", &*work.arg("c.wav")], "must be .npy"),
    ] {
        let args = with(more);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        work.refuses(2, &[more[1], must], &args);
    }
    let args = with(["--plot", &plot]);
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    run(0, &args);
    assert!(fs::read(&plot).unwrap().starts_with(b"\x89PNG"));
}

/// What nothing uses is said once, by name, and does no harm; `zonos inspect` agrees.
#[test]
fn tensors_that_nothing_uses() {
    let work = Work::new();
    npy::write_f32(work.path("a.npy"), &[44_100], chirp(1.0).samples()).unwrap();
    let (audio, codes, model) = (
        work.arg("a.npy"),
        work.arg("c.npy"),
        work.arg("e.safetensors"),
    );
    rewrite(
        Path::new(&encoder()),
        &work.path("e.safetensors"),
        true,
        |name| {
            let mut names = vec![name.to_owned()];
            if name == "codec.semantic_mean" {
                for stray in ["zz.extra", "teacher.extra", "codec.extra"] {
                    names.push(stray.to_owned());
                }
            }
            names
        },
    );
    let said = |output: std::process::Output, strays: &[&str]| {
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        for stray in strays {
            let told = format!("tensor '{stray}' [32] is not used");
            assert_eq!(text.matches(&told).count(), 1, "{stray}: {text}");
        }
        assert_eq!(text.matches("is not used").count(), strays.len(), "{text}");
    };
    let all = ["zz.extra", "teacher.extra", "codec.extra"];
    said(
        run(0, &["zac", "encode", &audio, &codes, "--model", &model]),
        &all,
    );
    let strays = Codes::load_npy(&codes).unwrap();
    run(0, &["zac", "encode", &audio, &codes, "--model", &encoder()]);
    assert_eq!(Codes::load_npy(&codes).unwrap(), strays);
    let folder = work.arg("features");
    said(
        run(0, &["zac", "features", &audio, &folder, "--model", &model]),
        &all[..2],
    );
    let inspected = run_json(0, &["inspect", &model]);
    assert_eq!(inspected["loads"], true);
    let output = run(0, &["inspect", &model]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    for stray in all {
        assert_eq!(text.matches(&format!("'{stray}'")).count(), 1, "{text}");
    }
    // Neither loads without a tensor that is needed.
    rewrite(
        Path::new(&encoder()),
        &work.path("e.safetensors"),
        true,
        |name| {
            let kept = name != "teacher.encoder.layers.0.ffn1.output_dense.bias";
            kept.then(|| name.to_owned()).into_iter().collect()
        },
    );
    fs::remove_file(&codes).unwrap();
    let gone = "teacher.encoder.layers.0.ffn1.output_dense.bias";
    work.refuses(
        1,
        &["e.safetensors", gone],
        &["zac", "encode", &audio, &codes, "--model", &model],
    );
    run(1, &["inspect", &model]);
    // And a teacher by itself.
    let teacher = Parts::of(&work);
    drop(teacher);
    let folder = work.arg("teacher");
    let lone = work.path("teacher/model.safetensors");
    let copy = work.path("copy.safetensors");
    fs::rename(&lone, &copy).unwrap();
    rewrite(&copy, &lone, false, |name| {
        let mut names = vec![name.to_owned()];
        if name == "masked_spec_embed" {
            names.push("quantizer.extra".to_owned());
        }
        names
    });
    assert_eq!(run_json(0, &["inspect", &folder])["loads"], true);
    let args = [
        "zac",
        "encode",
        &audio,
        &codes,
        "--model",
        &encoder(),
        "--teacher",
        &folder,
    ];
    said(run(0, &args), &["quantizer.extra"]);
    assert_eq!(Codes::load_npy(&codes).unwrap(), strays);
}

/// A table for each of the two files, and one for a teacher wherever it is.
#[test]
fn tables_of_names() {
    let work = Work::new();
    npy::write_f32(work.path("a.npy"), &[44_100], chirp(1.0).samples()).unwrap();
    let (audio, out) = (work.arg("a.npy"), work.arg("o.npy"));
    let (mean, odd) = (
        "codec.semantic_mean",
        "teacher.encoder.layers.0.ffn1.output_dense.bias",
    );
    let renamed = |name: &str| match name {
        "codec.semantic_mean" => "centre".to_owned(),
        "teacher.encoder.layers.0.ffn1.output_dense.bias" => "odd".to_owned(),
        "codec.head.norm.bias" => "shift".to_owned(),
        other => other.replace("teacher.", "ssl."),
    };
    for (from, to) in [(encoder(), "e.safetensors"), (decoder(), "d.safetensors")] {
        rewrite(Path::new(&from), &work.path(to), true, |name| {
            vec![renamed(name)]
        });
    }
    let table = |name: &str, table: Value| {
        fs::write(work.path(name), table.to_string()).unwrap();
        work.arg(name)
    };
    let first = table("e.json", json!({ mean: "centre", odd: "odd" }));
    let second = table("d.json", json!({ "codec.head.norm.bias": "shift" }));
    let (encoder_file, decoder_file) = (work.arg("e.safetensors"), work.arg("d.safetensors"));
    let there = |encoder: &str, decoder: &str, more: &[&str]| {
        let mut args = vec![
            "zac",
            "roundtrip",
            &audio,
            &out,
            "--encoder",
            encoder,
            "--decoder",
            decoder,
        ];
        args.extend(more);
        args.into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    let go = |args: &[String]| {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let output = run(0, &args);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!text.contains("warning"), "{text}");
        npy::read(&out).unwrap().to_f32()
    };
    let expected = go(&there(&encoder(), &decoder(), &[]));
    let maps = ["--encoder-map", &first, "--decoder-map", &second];
    assert_eq!(go(&there(&encoder_file, &decoder_file, &maps)), expected);
    fs::remove_file(&out).unwrap();
    // Without a table, and with the other file's.
    for (more, needles) in [
        (&maps[..2], &["d.safetensors", "codec.head.norm.bias"][..]),
        (&maps[2..], &["e.safetensors", odd]),
        (
            &["--encoder-map", &second, "--decoder-map", &second],
            &["e.safetensors", "'shift'", "map file"],
        ),
    ] {
        let args = there(&encoder_file, &decoder_file, more);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        work.refuses(1, needles, &args);
    }
    let broken = table("broken.json", json!([1]));
    let args = there(&encoder_file, &decoder_file, &["--encoder-map", &broken]);
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    work.refuses(1, &["map file", "broken.json"], &args);

    // The table names the teacher's tensors where that is.
    let (codes, folder) = (work.arg("c.npy"), work.arg("features"));
    let only = table("t.json", json!({ odd: "odd" }));
    let args = [
        "zac",
        "encode",
        &audio,
        &codes,
        "--model",
        &encoder(),
        "--teacher",
        &encoder_file,
        "--map",
        &only,
    ];
    run(0, &args);
    let args = [
        "zac",
        "features",
        &audio,
        &folder,
        "--model",
        &encoder_file,
        "--map",
        &first,
    ];
    run(0, &args);
    assert!(work.path("features/hidden2.npy").is_file());
}

/// Entries of a codebook of the decoder.
fn golden_size() -> i32 {
    let name = "codec.quantizer.quantizers.0.codebook.weight";
    tensor(Path::new(&decoder()), name).1[0] as i32
}

#[test]
fn there_and_back() {
    let work = Work::new();
    let audio = recording(&work);
    let (out, codes, plot) = (work.arg("again.wav"), work.arg("c.npy"), work.arg("p.png"));
    let report = run_json(
        0,
        &[
            "zac",
            "roundtrip",
            &audio,
            &out,
            "--encoder",
            &encoder(),
            "--decoder",
            &decoder(),
            "--plot",
            &plot,
            "--codes",
            &codes,
        ],
    );
    let (samples, rate) = wav(&fs::read(&out).unwrap());
    // As long as the recording, though the last frame was filled up.
    assert_eq!((samples.len(), rate), (24_000, 44_100));
    assert_eq!(report["samples"], 24_000);
    assert!(report["snr_db"].is_f64());
    assert_eq!(
        Codes::load_npy(&codes).unwrap(),
        golden_codes(&encoder_dir(), "codes")
    );
    let png = fs::read(&plot).unwrap();
    assert!(png.starts_with(b"\x89PNG\r\n\x1a\n") && png.len() > 1000);
    let same = [
        "zac",
        "roundtrip",
        &audio,
        &audio,
        "--encoder",
        &encoder(),
        "--decoder",
        &decoder(),
    ];
    work.refuses(2, &["same file"], &same);
}

#[test]
fn features_of_the_teacher() {
    let work = Work::new();
    npy::write_f32(work.path("a.npy"), &[44_100], chirp(1.0).samples()).unwrap();
    let (audio, out) = (work.arg("a.npy"), work.arg("features"));
    let report = run_json(0, &["zac", "features", &audio, &out, "--model", &encoder()]);
    assert_eq!(
        (&report["layers"], &report["tokens"]),
        (&2.into(), &49.into())
    );
    for (name, shape) in [
        ("audio_16000", vec![16_000]),
        ("fbank", vec![98, 80]),
        ("input_features", vec![49, 160]),
        ("attention_mask", vec![49]),
        ("hidden0", vec![49, 32]),
        ("hidden2", vec![49, 32]),
    ] {
        let array = npy::read(work.path("features").join(format!("{name}.npy"))).unwrap();
        assert_eq!(array.shape(), shape, "{name}");
    }
    let few = run_json(
        0,
        &[
            "zac",
            "features",
            &audio,
            &out,
            "--model",
            &encoder(),
            "--layers",
            "1",
            "--max-seconds",
            "0.5",
        ],
    );
    assert_eq!((&few["layers"], &few["tokens"]), (&1.into(), &24.into()));
    // What is left of the longer run is told from this one's.
    assert_eq!(few["left_over"], json!(["hidden2.npy"]));
    assert_eq!(report["left_over"], json!([]));
    work.refuses(
        1,
        &["model.safetensors", "3 layers", "has 2"],
        &[
            "zac",
            "features",
            &audio,
            &work.arg("f"),
            "--model",
            &encoder(),
            "--layers",
            "3",
        ],
    );
}

/// The parts of a release, in names of its own, become files that load.
#[test]
fn a_release_becomes_the_files_of_the_codec() {
    let work = Work::new();
    let parts = Parts::of(&work);
    let (generator, heads, teacher) = (
        work.arg("generator.safetensors"),
        work.arg("heads"),
        work.arg("teacher"),
    );
    let out = work.arg("zac-1");
    let convert = [
        "convert",
        "--zac",
        &generator,
        "--heads",
        &heads,
        "--teacher",
        &teacher,
        "-o",
        &out,
    ];
    let mut one = convert.to_vec();
    one.extend(["--variant", "keep2_plain"]);
    let report = run_json(0, &one);
    assert_eq!(report["files"].as_array().unwrap().len(), 2);
    let unused = report["unused"].to_string();
    assert!(unused.contains("discriminator.weight"), "{unused}");
    assert_eq!(report["superseded_tensors"], 1);

    // What they encode and decode is what the originals do.
    let audio = recording(&work);
    let (codes, sound) = (work.arg("c.npy"), work.arg("s.npy"));
    run(0, &["zac", "encode", &audio, &codes, "--model", &out]);
    assert_eq!(
        Codes::load_npy(&codes).unwrap(),
        golden_codes(&encoder_dir(), "codes")
    );
    let golden = golden_codes(&decoder_dir(), "codes");
    golden.save_npy(work.path("g.npy")).unwrap();
    let file = work.arg("g.npy");
    run(
        0,
        &[
            "zac",
            "decode",
            &file,
            &sound,
            "--model",
            &out,
            "--headroom-db",
            "0",
        ],
    );
    close(
        &npy::read(&sound).unwrap().to_f32(),
        &golden_f32(&decoder_dir(), "audio"),
        1.0,
    );
    let file = work.path("zac-1/zac-1-encoder.safetensors");
    let name = "teacher.encoder.layers.0.ffn1.output_dense.weight";
    assert_eq!(tensor(&file, name).0, "BF16");
    assert_eq!(tensor(&file, "codec.semantic_mean").0, "F32");
    let inspected = run_json(0, &["inspect", &file.display().to_string()]);
    assert_eq!(
        (&inspected["model"], &inspected["loads"]),
        (&"zac-encoder".into(), &true.into())
    );

    // Without its other head, and without a part: named, and nothing written.
    fs::remove_dir_all(&out).unwrap();
    work.refuses(1, &["full_mr", "--variant"], &convert);
    parts.without("semantic_encoder.proj_in.bias");
    work.refuses(1, &["semantic_encoder.proj_in.bias", "--map"], &one);
    let output = zonos()
        .args(["convert", "--zac", &generator])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
}

/// A release made of the fixtures: the generator with a training wrapper's names, a head, a teacher.
struct Parts {
    generator: PathBuf,
}

impl Parts {
    fn of(work: &Work) -> Self {
        let generator = work.path("generator.safetensors");
        rewrite(Path::new(&encoder()), &generator, false, |name| {
            let name = match name.strip_prefix("codec.") {
                None => return Vec::new(),
                Some("resampler.kernel") => "encoder_resampler.kernel",
                Some(rest) => rest,
            };
            let mut names = vec![format!("module.generator.{name}")];
            if name == "semantic_mean" {
                // What a generator has besides.
                names.push("module.generator.discriminator.weight".to_owned());
                names.push("module.generator.decoder.old.weight".to_owned());
            }
            names
        });
        let config = Checkpoint::open(encoder()).unwrap().metadata()["model_config"].clone();
        let config = json!({ "model_config": serde_json::from_str::<Value>(config.as_str().unwrap()).unwrap() });
        fs::write(work.path("config.json"), config.to_string()).unwrap();
        fs::create_dir(work.path("heads")).unwrap();
        let head = work.path("heads/keep2_plain.safetensors");
        fs::copy(decoder(), &head).unwrap();
        fs::create_dir(work.path("teacher")).unwrap();
        let teacher = work.path("teacher/model.safetensors");
        rewrite(Path::new(&encoder()), &teacher, false, |name| {
            let name = name.strip_prefix("teacher.").map(str::to_owned);
            name.into_iter().collect()
        });
        let config = Checkpoint::open(encoder()).unwrap().metadata()["teacher_config"].clone();
        fs::write(work.path("teacher/config.json"), config.as_str().unwrap()).unwrap();
        Self { generator }
    }

    fn without(&self, name: &str) {
        let (old, gone) = (
            self.generator.with_extension("old"),
            format!("module.generator.{name}"),
        );
        fs::rename(&self.generator, &old).unwrap();
        rewrite(&old, &self.generator, false, |name| {
            let kept = name != gone;
            kept.then(|| name.to_owned()).into_iter().collect()
        });
        fs::remove_file(old).unwrap();
    }
}

#[test]
fn help_teaches_by_example() {
    for command in ["encode", "decode", "seam", "roundtrip", "features"] {
        let output = run(0, &["zac", command, "--help"]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            text.contains("xample") && text.contains("zonos zac"),
            "{command}"
        );
    }
    let output = run(0, &["zac", "--help"]);
    assert!(String::from_utf8_lossy(&output.stdout).contains("1.8 kbit/s"));
}

/// What is missing or empty is called so, once.
#[test]
fn refusals_tell_what_the_file_holds() {
    let work = Work::new();
    npy::write_i32(work.path("c.npy"), &[2, 10], &[1; 20]).unwrap();
    let (codes, out) = (work.arg("c.npy"), work.arg("out.wav"));
    // A decoder of the right tensors that does not say how its attention is cut.
    fs::copy(decoder(), work.path("bare.safetensors")).unwrap();
    edit_header(&work.path("bare.safetensors"), |h| {
        h["__metadata__"]
            .as_object_mut()
            .unwrap()
            .remove("model_config");
    });
    let bare = work.arg("bare.safetensors");
    let said = work.refuses(
        1,
        &["bare.safetensors", "`model_config`", "num_heads is missing"],
        &["zac", "decode", &codes, &out, "--model", &bare],
    );
    assert!(!said.contains("0 heads"), "{said}");

    // Of a folder with a released file, another one's name is told once.
    fs::create_dir(work.path("zac-1")).unwrap();
    fs::copy(
        decoder(),
        work.path("zac-1/zac-1-decoder-keep2_plain.safetensors"),
    )
    .unwrap();
    let folder = work.arg("zac-1");
    let said = work.refuses(
        1,
        &["looked for zac-1-decoder-full_mr.safetensors"],
        &[
            "zac",
            "decode",
            &codes,
            &out,
            "--model",
            &folder,
            "--variant",
            "full_mr",
        ],
    );
    assert_eq!(said.matches("zac-1-decoder-full_mr").count(), 1, "{said}");

    npy::write_f32(work.path("empty.npy"), &[0], &[]).unwrap();
    let (empty, coded) = (work.arg("empty.npy"), work.arg("coded.npy"));
    let said = work.refuses(
        1,
        &["empty.npy", "holds no samples", "[0]"],
        &["zac", "encode", &empty, &coded, "--model", &encoder()],
    );
    assert!(!said.contains("channels"), "{said}");

    for name in ["map.json", "map.toml"] {
        fs::write(
            work.path(name),
            if name == "map.json" { "{}" } else { "# none\n" },
        )
        .unwrap();
        let (map, model) = (work.arg(name), decoder());
        work.refuses(
            1,
            &[name, "names nothing"],
            &[
                "zac", "decode", &codes, &out, "--model", &model, "--map", &map,
            ],
        );
    }
}

/// Silence has features; that it is silence is said.
#[test]
fn features_of_silence_are_told_to_be() {
    let work = Work::new();
    for (name, level, told) in [("silent", 0.0, true), ("quiet", 1e-4, false)] {
        let samples: Vec<f32> = chirp(1.0).samples().iter().map(|x| x * level).collect();
        npy::write_f32(work.path("a.npy"), &[samples.len()], &samples).unwrap();
        let (audio, out) = (work.arg("a.npy"), work.arg(name));
        let output = zonos()
            .args(["zac", "features", &audio, &out, "--model", &encoder()])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}");
        assert_eq!(said.contains("a.npy: silent"), told, "{said}");
    }
}

/// A folder that takes no files is told in the same words, whether a file or a folder of files is asked for.
#[test]
#[cfg(target_os = "linux")]
fn unwritable_folders_are_told_in_one_way() {
    let work = Work::new();
    npy::write_f32(work.path("a.npy"), &[44_100], chirp(1.0).samples()).unwrap();
    let (audio, model) = (work.arg("a.npy"), encoder());
    // The proc filesystem takes no files, not even from root.
    let needle = ["cannot create a file in /proc: "];
    work.refuses(
        1,
        &needle,
        &["zac", "encode", &audio, "/proc/c.npy", "--model", &model],
    );
    work.refuses(
        1,
        &needle,
        &["zac", "features", &audio, "/proc", "--model", &model],
    );
    work.refuses(
        1,
        &needle,
        &["zac", "features", &audio, "/proc/new", "--model", &model],
    );
}
