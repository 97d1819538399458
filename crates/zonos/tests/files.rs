//! Bad files for every reader, and targets that cannot be written: exit code 1, one line that names
//! the file and the cause, nothing left behind.

mod common;

use std::fs;

use common::{Work, edit_header, edit_tensor, zonos};
use zonos_audio::npy;

const LFS: &str = "version https://git-lfs.github.com/spec/v1\n\
    oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\n\
    size 15336236416\n";

#[test]
fn weights_that_are_not_weights() {
    let work = Work::new();
    let (out, codec) = (work.arg("a.wav"), work.codec());
    let real = fs::read(work.path("model/model.safetensors")).unwrap();
    for (name, bytes, needle) in [
        ("empty.safetensors", &b""[..], "empty"),
        ("cut.safetensors", &real[..real.len() * 6 / 10], "truncated"),
        ("lfs.safetensors", LFS.as_bytes(), "LFS"),
        (
            "page.safetensors",
            b"<!DOCTYPE html><html><body>404</body></html>",
            "HTML",
        ),
        ("lfs.pth", LFS.as_bytes(), "LFS"),
        (
            "page.pth",
            b"<!DOCTYPE html><html><body>404</body></html>",
            "HTML",
        ),
        ("noise.pth", &[0xa5; 4096], "checkpoint"),
    ] {
        fs::write(work.path(name), bytes).unwrap();
        let file = work.arg(name);
        let tts = ["tts", "Hi", "-o", &out, "--model", &file, "--codec", &codec];
        work.refuses(1, &[name, needle], &tts);
        let swapped = [
            "tts",
            "Hi",
            "-o",
            &out,
            "--model",
            &work.model(),
            "--codec",
            &file,
        ];
        work.refuses(1, &[name, needle], &swapped);
        work.refuses(1, &[name, needle], &["inspect", &file]);
        let converted = work.arg("converted.bpk");
        work.refuses(1, &[name, needle], &["convert", &file, &converted]);
    }
    let missing = work.arg("missing.pth");
    work.refuses(
        1,
        &["missing.pth"],
        &[
            "tts", "Hi", "-o", &out, "--model", &missing, "--codec", &codec,
        ],
    );
    work.refuses(1, &["missing.pth"], &["inspect", &missing]);
    fs::create_dir(work.path("nothing")).unwrap();
    let nothing = work.arg("nothing");
    work.refuses(1, &["nothing"], &["inspect", &nothing]);
}

#[test]
fn another_model_in_the_file() {
    let work = Work::new();
    let (out, model, codec) = (work.arg("a.wav"), work.model(), work.codec());
    work.refuses(
        1,
        &["weights.pth"],
        &[
            "tts", "Hi", "-o", &out, "--model", &codec, "--codec", &codec,
        ],
    );
    work.refuses(
        1,
        &["model.safetensors"],
        &[
            "tts",
            "Hi",
            "-o",
            &out,
            "--model",
            &model,
            "--codec",
            &work.arg("model/model.safetensors"),
        ],
    );
    let codes = work.path("codes.npy");
    npy::write_i32(&codes, &[2, 9], &[1; 18]).unwrap();
    let codes = work.arg("codes.npy");
    work.refuses(
        1,
        &["model.safetensors"],
        &[
            "dac",
            "decode",
            &codes,
            &out,
            "--model",
            &work.arg("model/model.safetensors"),
        ],
    );
}

#[test]
fn tensors_that_are_wrong_missing_or_too_many() {
    let work = Work::new();
    let (out, model) = (work.arg("a.wav"), work.model());
    let weights = work.path("model/model.safetensors");
    let original = fs::read(&weights).unwrap();
    let tts = ["tts", "Hi", "-o", &out, "--model", &model];

    edit_header(&weights, |header| {
        let shape = header["out_norm.weight"]["shape"].clone();
        assert_eq!(shape, serde_json::json!([64]));
        header["out_norm.weight"]["shape"] = serde_json::json!([8, 8]);
    });
    work.refuses(1, &["out_norm.weight", "[8, 8]", "64"], &tts);

    fs::write(&weights, &original).unwrap();
    edit_header(&weights, |header| {
        let tensor = header
            .as_object_mut()
            .unwrap()
            .remove("out_norm.weight")
            .unwrap();
        header["norm_out.weight"] = tensor;
    });
    // The one that is missing and the one that nobody asked for are both named.
    work.refuses(1, &["out_norm.weight", "norm_out.weight"], &tts);
    work.refuses(1, &["out_norm.weight"], &["inspect", &model]);

    fs::write(&weights, &original).unwrap();
    edit_header(&weights, |header| {
        // Two bytes an element either way, so that only the dtype is wrong.
        header["out_norm.weight"]["dtype"] = "I16".into();
    });
    work.refuses(1, &["out_norm.weight"], &tts);
}

#[test]
fn values_that_are_no_numbers() {
    let work = Work::new();
    let (out, model) = (work.arg("a.wav"), work.model());
    edit_tensor(
        &work.path("model/model.safetensors"),
        "out_norm.weight",
        |bytes| {
            bytes[..2].copy_from_slice(&0x7fc0u16.to_le_bytes());
        },
    );
    work.refuses(1, &["NaN"], &["tts", "Hi", "-o", &out, "--model", &model]);
    work.refuses(1, &["out_norm.weight"], &["inspect", &model, "--check"]);
}

#[test]
fn parameters_that_are_missing_or_wrong() {
    let work = Work::new();
    let (out, model) = (work.arg("a.wav"), work.model());
    let params = work.path("model/params.json");
    let tts = ["tts", "Hi", "-o", &out, "--model", &model];
    fs::write(&params, "{").unwrap();
    work.refuses(1, &["params.json"], &tts);
    fs::write(&params, r#"{"model_type": "llama", "text_vocab": 519}"#).unwrap();
    work.refuses(1, &["model_type", "zonos2"], &tts);
    fs::remove_file(&params).unwrap();
    work.refuses(1, &["params.json"], &tts);
}

#[test]
fn a_shard_index_that_lies() {
    let work = Work::new();
    let out = work.arg("a.wav");
    let source = common::fixtures().join("zonos2/tiny/sharded");
    let dir = work.path("sharded");
    fs::create_dir(&dir).unwrap();
    for entry in fs::read_dir(source).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, dir.join(path.file_name().unwrap())).unwrap();
    }
    let (model, codec) = (work.arg("sharded"), work.codec());
    let tts = [
        "tts", "Hi", "-o", &out, "--model", &model, "--codec", &codec,
    ];
    let index = dir.join("model.safetensors.index.json");
    let text = fs::read_to_string(&index).unwrap();
    fs::write(&index, text.replace("model-00002", "model-00009")).unwrap();
    work.refuses(1, &["model-00009"], &tts);
    fs::write(&index, text.replace("model-00002", "../model-00002")).unwrap();
    work.refuses(1, &["../model-00002"], &tts);
}

#[test]
fn codes_that_the_codec_does_not_have() {
    let work = Work::new();
    let (out, codec, file) = (work.arg("a.wav"), work.codec(), work.arg("codes.npy"));
    let write = |shape: &[usize], values: &[i32]| npy::write_i32(&file, shape, values).unwrap();
    let decode = ["dac", "decode", &file, &out, "--model", &codec];
    let mut sheared = decode.to_vec();
    sheared.push("--sheared");
    let seam = ["dac", "seam", &file, "--model", &codec];

    let mut values = [5; 18];
    values[10] = 1024;
    write(&[2, 9], &values);
    work.refuses(1, &["codes.npy", "1024", "--sheared"], &decode);
    work.refuses(1, &["codes.npy", "1024"], &seam);
    // A marker is legal in delayed rows.
    assert_eq!(
        zonos().args(&sheared).output().unwrap().status.code(),
        Some(0)
    );
    fs::remove_file(work.path("a.wav")).unwrap();
    for bad in [-1, 1026, i32::MAX, i32::MIN] {
        values[10] = bad;
        write(&[2, 9], &values);
        work.refuses(1, &["codes.npy", &bad.to_string()], &decode);
        work.refuses(1, &["codes.npy", &bad.to_string()], &sheared);
    }
    write(&[2, 10], &[1; 20]);
    work.refuses(1, &["codes.npy", "10", "9"], &decode);
    write(&[0, 9], &[]);
    work.refuses(1, &["codes.npy"], &decode);
    write(&[9], &[1; 9]);
    work.refuses(1, &["codes.npy", "[9]"], &decode);
    npy::write_f32(&file, &[1, 2], &[1.5, 2.0]).unwrap();
    work.refuses(1, &["codes.npy", "1.5"], &decode);

    write(&[2, 9], &[5; 18]);
    npy::write_i32(work.path("codes.npy.eos.npy"), &[1], &[0]).unwrap();
    work.refuses(1, &["codes.npy", "frame 0"], &sheared);
    npy::write_i32(work.path("codes.npy.eos.npy"), &[2], &[0, 1]).unwrap();
    work.refuses(1, &["eos.npy"], &sheared);
}

#[test]
fn arrays_that_are_no_arrays() {
    let work = Work::new();
    let (out, model, codec) = (work.arg("a.wav"), work.model(), work.codec());
    let good = work.path("good.npy");
    npy::write_i32(&good, &[2, 9], &[1; 18]).unwrap();
    let good = fs::read(good).unwrap();
    let target = work.arg("out.npy");
    let dir = work.arg("out");
    for (name, bytes) in [
        ("empty.npy", &b""[..]),
        ("cut.npy", &good[..good.len() - 4]),
        ("text.npy", b"1 2 3 4 5 6 7 8 9\n"),
        ("page.npy", b"<!DOCTYPE html><html></html>"),
    ] {
        fs::write(work.path(name), bytes).unwrap();
        let file = work.arg(name);
        work.refuses(
            1,
            &[name],
            &["dac", "decode", &file, &out, "--model", &codec],
        );
        work.refuses(1, &[name], &["dac", "seam", &file, "--model", &codec]);
        work.refuses(1, &[name], &["generate", &file, &target, "--model", &model]);
        work.refuses(1, &[name], &["validate", &file, &dir, "--model", &model]);
        work.refuses(
            1,
            &[name],
            &[
                "tts",
                "Hi",
                "-o",
                &out,
                "--model",
                &model,
                "--speaker",
                &file,
            ],
        );
    }
    let missing = work.arg("missing.npy");
    work.refuses(
        1,
        &["missing.npy"],
        &["dac", "decode", &missing, &out, "--model", &codec],
    );
    work.refuses(
        1,
        &["missing.npy"],
        &[
            "tts",
            "Hi",
            "-o",
            &out,
            "--model",
            &model,
            "--speaker",
            &missing,
        ],
    );
}

#[test]
fn rows_and_voices_that_do_not_fit_the_model() {
    let work = Work::new();
    let (out, model, file) = (work.arg("out.npy"), work.model(), work.arg("in.npy"));
    let generate = ["generate", &file, &out, "--model", &model];
    let row = [1025, 1025, 1025, 1025, 1025, 1025, 1025, 1025, 1025, 2];
    npy::write_i32(&file, &[1, 9], &row[..9]).unwrap();
    work.refuses(1, &["in.npy", "10"], &generate);
    npy::write_i32(&file, &[0, 10], &[]).unwrap();
    work.refuses(1, &["in.npy"], &generate);
    for (column, id) in [(0, 1026), (3, -1), (9, 520), (9, -1)] {
        let mut bad = row;
        bad[column] = id;
        npy::write_i32(&file, &[1, 10], &bad).unwrap();
        work.refuses(1, &["in.npy", &id.to_string()], &generate);
        let dir = work.arg("dir");
        work.refuses(
            1,
            &["in.npy", &id.to_string()],
            &["validate", &file, &dir, "--model", &model],
        );
    }
    let rows = 6145;
    npy::write_i32(&file, &[rows, 10], &row.repeat(rows)).unwrap();
    work.refuses(1, &["in.npy", "6144"], &generate);
    let rows = 6144;
    npy::write_i32(&file, &[rows, 10], &row.repeat(rows)).unwrap();
    work.refuses(1, &["in.npy", "6144"], &generate);

    let (wav, voice) = (work.arg("a.wav"), work.arg("voice.npy"));
    let tts = [
        "tts",
        "Hi",
        "-o",
        &wav,
        "--model",
        &model,
        "--speaker",
        &voice,
    ];
    npy::write_f32(&voice, &[192], &[0.5; 192]).unwrap();
    work.refuses(1, &["192", "2048"], &tts);
    npy::write_f32(&voice, &[2, 1024], &[0.5; 2048]).unwrap();
    work.refuses(1, &["voice.npy"], &tts);
    let mut values = [0.5; 2048];
    values[7] = f32::NAN;
    npy::write_f32(&voice, &[2048], &values).unwrap();
    work.refuses(1, &["voice.npy", "NaN"], &tts);
    npy::write_f32(&voice, &[2048], &[0.5; 2048]).unwrap();
    let mut far = tts.to_vec();
    far.extend(["--speaker-pos", "100000"]);
    work.refuses(2, &["100000"], &far);
}

#[test]
fn targets_that_cannot_be_written() {
    let work = Work::new();
    let (model, codec) = (work.model(), work.codec());
    let (ids, codes) = (work.arg("ids.npy"), work.arg("codes.npy"));
    npy::write_i32(
        &ids,
        &[1, 10],
        &[1025, 1025, 1025, 1025, 1025, 1025, 1025, 1025, 1025, 2],
    )
    .unwrap();
    npy::write_i32(&codes, &[2, 9], &[1; 18]).unwrap();
    fs::create_dir(work.path("folder.wav")).unwrap();
    fs::create_dir(work.path("folder.npy")).unwrap();
    fs::create_dir(work.path("folder.bpk")).unwrap();
    fs::write(work.path("file"), "x").unwrap();
    // The proc filesystem takes no files, not even from root.
    let unwritable = if cfg!(target_os = "linux") {
        "/proc"
    } else {
        "/nonexistent"
    };
    for (kind, needle) in [
        ("gone/out", "does not exist"),
        ("folder", "director"),
        ("file/out", "file"),
        ("unwritable", unwritable),
    ] {
        let target = |ending: &str| match kind {
            "unwritable" => format!("{unwritable}/out.{ending}"),
            _ => format!("{}.{ending}", work.arg(kind)),
        };
        // A model that does not exist shows that the target is checked before it is opened.
        let tts = [
            "tts",
            "Hi",
            "-o",
            &target("wav"),
            "--model",
            "/gone",
            "--codec",
            "/gone",
        ];
        work.refuses(1, &[needle], &tts);
        let out = work.arg("a.wav");
        work.refuses(
            1,
            &[needle],
            &[
                "tts",
                "Hi",
                "-o",
                &out,
                "--codes",
                &target("npy"),
                "--model",
                "/gone",
                "--codec",
                "/gone",
            ],
        );
        work.refuses(
            1,
            &[needle],
            &["prompt", "Hi", &target("npy"), "--model", "/gone"],
        );
        work.refuses(
            1,
            &[needle],
            &["generate", &ids, &target("npy"), "--model", "/gone"],
        );
        work.refuses(
            1,
            &[needle],
            &["dac", "decode", &codes, &target("wav"), "--model", "/gone"],
        );
        work.refuses(1, &[needle], &["convert", &codec, &target("bpk")]);
    }
    let under = format!("{}/x", work.arg("file"));
    work.refuses(
        1,
        &["file"],
        &["validate", &ids, &under, "--model", "/gone"],
    );
    let file = work.arg("file");
    work.refuses(1, &["file"], &["validate", &ids, &file, "--model", "/gone"]);
    work.refuses(1, &["file"], &["demo-checkpoint", &file]);
    work.refuses(1, &["file"], &["man", &file]);
    work.refuses(
        2,
        &[".wav", ".npy"],
        &["dac", "decode", &codes, "out.xyz", "--model", &codec],
    );
    work.refuses(
        2,
        &[".bpk", ".safetensors"],
        &["convert", &model, "out.onnx"],
    );
    work.refuses(
        2,
        &["same file"],
        &["generate", &ids, &ids, "--model", &model],
    );
    // The old content of a target survives a failed run.
    let old = work.path("old.wav");
    fs::write(&old, "old").unwrap();
    let old_arg = work.arg("old.wav");
    work.refuses(
        1,
        &["/gone"],
        &[
            "tts", "Hi", "-o", &old_arg, "--model", "/gone", "--codec", "/gone",
        ],
    );
    assert_eq!(fs::read(&old).unwrap(), b"old");
}

#[test]
fn a_hub_model_that_is_not_cached_and_no_network() {
    let work = Work::new();
    let (out, codec, cache) = (work.arg("a.wav"), work.codec(), work.arg("cache"));
    work.refuses_with(
        zonos()
            .args([
                "tts",
                "Hi",
                "-o",
                &out,
                "--model",
                "hub:nobody/nothing",
                "--codec",
                &codec,
            ])
            .env("HF_HUB_CACHE", &cache)
            .env("HF_HUB_OFFLINE", "1"),
        1,
        &["nobody/nothing"],
    );
}
