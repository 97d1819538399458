//! Arguments, files and readers that nobody had in mind: each is answered, none is obeyed blindly.

mod common;

use std::fs;

use common::{Work, edit_tensor, run, run_json, zonos};
use zonos_audio::npy;

/// A safetensors file of f32 tensors, each one value; those in `foreign` have an element type that
/// no model here has.
fn checkpoint(path: &std::path::Path, names: &[&str], foreign: &[&str]) {
    let mut header = serde_json::Map::new();
    let mut at = 0;
    for (name, dtype) in names
        .iter()
        .map(|name| (name, "F32"))
        .chain(foreign.iter().map(|name| (name, "F8_E4M3")))
    {
        let size = if dtype == "F32" { 4 } else { 1 };
        let info = serde_json::json!({
            "dtype": dtype, "shape": [1], "data_offsets": [at, at + size],
        });
        header.insert((*name).to_owned(), info);
        at += size;
    }
    let mut text = serde_json::Value::Object(header).to_string().into_bytes();
    text.resize(text.len().next_multiple_of(8), b' ');
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.extend(text);
    bytes.resize(bytes.len() + at, 0);
    fs::write(path, bytes).unwrap();
}

#[cfg(target_os = "linux")]
#[test]
fn a_name_that_is_no_text_is_reported_all_the_same() {
    use std::os::unix::ffi::OsStringExt;
    let work = Work::new();
    let name = work
        .path("")
        .join(std::ffi::OsString::from_vec(b"\xff.npy".to_vec()));
    let output = zonos()
        .args(["prompt", "Hi", "--json", "--model", &work.model()])
        .arg(&name)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(name.exists());
}

#[test]
fn a_conversion_loses_no_tensor() {
    let work = Work::new();
    checkpoint(&work.path("a.safetensors"), &["kept"], &["lost.weight"]);
    let (from, to) = (work.arg("a.safetensors"), work.arg("b.bpk"));
    work.refuses(1, &["lost.weight"], &["convert", &from, &to]);
    // A GGUF file with a format that is not decoded: 256 values of IQ3_XXS are 98 bytes.
    let tensor = zonos_gguf::NewTensor {
        name: "lost.weight".into(),
        dims: vec![256],
        ggml_type: zonos_gguf::GgmlType::Iq3Xxs,
    };
    let tensors = std::slice::from_ref(&tensor);
    let metadata = zonos_gguf::Metadata::new();
    let mut writer = zonos_gguf::GgufWriter::new(Vec::new(), "a", &metadata, tensors).unwrap();
    writer.write("lost.weight", &[0; 98]).unwrap();
    let gguf = work.arg("a.gguf");
    fs::write(&gguf, writer.finish().unwrap()).unwrap();
    work.refuses(1, &["lost.weight", "lost"], &["convert", &gguf, &to]);
    checkpoint(&work.path("a.safetensors"), &["kept"], &[]);
    let report = run_json(0, &["convert", &from, &to]);
    assert_eq!(report["skipped"], serde_json::json!([]));
    let left: Vec<_> = work
        .entries()
        .into_iter()
        .filter(|path| {
            path.file_name()
                .is_some_and(|n| n.to_string_lossy().starts_with('.'))
        })
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn no_input_is_overwritten() {
    let work = Work::new();
    let (model, codec) = (work.model(), work.codec());
    let (ids, codes) = (work.arg("ids.npy"), work.arg("codes.npy"));
    run(0, &["prompt", "Hi", &ids, "--model", &model]);
    npy::write_i32(work.path("codes.npy"), &[2, 9], &[1; 18]).unwrap();
    let params = work.arg("model/params.json");
    let weights = work.arg("model/model.safetensors");
    for args in [
        &["prompt", "Hi", &params, "--model", &model][..],
        &["prompt", "Hi", &ids, "--model", &model, "--speaker", &ids],
        &["generate", &ids, &weights, "--model", &model],
        &[
            "generate",
            &ids,
            &codes,
            "--model",
            &model,
            "--speaker",
            &codes,
        ],
        &[
            "tts",
            "Hi",
            "-o",
            &work.arg("a.wav"),
            "--codes",
            &params,
            "--model",
            &model,
        ],
        &[
            "tts",
            "Hi",
            "-o",
            &work.arg("a.wav"),
            "--codes",
            &codec,
            "--model",
            &model,
        ],
        &["convert", &model, &weights],
    ] {
        work.refuses(2, &["same file"], args);
    }
    let eos = work.arg("codes.npy.eos.npy");
    fs::copy(&ids, &eos).unwrap();
    work.refuses(
        2,
        &["same file"],
        &["generate", &eos, &codes, "--sheared", "--model", &model],
    );
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink(&ids, work.path("link.npy")).unwrap();
        let link = work.arg("link.npy");
        work.refuses(
            2,
            &["same file"],
            &["generate", &ids, &link, "--model", &model],
        );
    }
    fs::write(&params, "{}").unwrap();
    work.refuses(
        1,
        &["params.json", "something else"],
        &["demo-checkpoint", &model],
    );
    assert_eq!(fs::read(&params).unwrap(), b"{}");
}

#[cfg(unix)]
#[test]
fn a_pipe_is_no_array() {
    let work = Work::new();
    let pipe = work.arg("pipe.npy");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.unwrap().success());
    let model = work.model();
    work.refuses(
        1,
        &["pipe.npy", "regular"],
        &["generate", &pipe, &work.arg("codes.npy"), "--model", &model],
    );
    work.refuses(
        1,
        &["pipe.npy", "regular"],
        &[
            "dac",
            "decode",
            &pipe,
            &work.arg("a.wav"),
            "--model",
            &model,
        ],
    );
}

#[test]
fn audio_that_is_no_audio_is_not_written() {
    let work = Work::new();
    let broken = work.path("dac.safetensors");
    run(0, &["convert", &work.codec(), &work.arg("dac.safetensors")]);
    // The bias of the last convolution reaches every sample.
    let listed = run_json(0, &["inspect", &work.arg("dac.safetensors")]);
    let name = listed["tensors"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|t| t["shape"] == serde_json::json!([1]))
        .filter_map(|t| t["name"].as_str())
        .find(|name| name.ends_with("bias"))
        .expect("the bias of the last convolution")
        .to_owned();
    edit_tensor(&broken, &name, |bytes| {
        let nan = f32::NAN.to_le_bytes();
        // An f32 or the upper half of one.
        bytes.copy_from_slice(&nan[4 - bytes.len()..]);
    });
    npy::write_i32(work.path("codes.npy"), &[2, 9], &[1; 18]).unwrap();
    let (codes, dac) = (work.arg("codes.npy"), work.arg("dac.safetensors"));
    for out in ["a.npy", "a.wav"] {
        let needles = ["dac.safetensors", "inspect", "--check", &name];
        let out = work.arg(out);
        let stderr = work.refuses(
            1,
            &needles,
            &["dac", "decode", &codes, &out, "--model", &dac],
        );
        assert_eq!(
            stderr.lines().filter(|l| l.starts_with("warning:")).count(),
            1
        );
    }
    let (model, out) = (work.model(), work.arg("a.wav"));
    let tts = [
        "tts",
        "Hi",
        "--max-frames",
        "20",
        "--model",
        &model,
        "--codec",
        &dac,
        "-o",
    ];
    for out in [&out, "-"] {
        let mut args = tts.to_vec();
        args.push(out);
        work.refuses(1, &["dac.safetensors", "inspect"], &args);
    }
}

#[test]
fn a_model_that_is_not_there_is_the_first_complaint() {
    let work = Work::new();
    let out = work.arg("a.wav");
    let gone = work.arg("gone");
    work.refuses(
        1,
        &["gone", "does not exist"],
        &["tts", "Hi", "-o", &out, "--model", &gone],
    );
}

#[test]
fn empty_settings_are_none() {
    let work = Work::new();
    let mut command = zonos();
    for name in [
        "ZONOS_MODEL",
        "ZONOS_CODEC",
        "ZONOS_DEVICE",
        "ZONOS_SEED",
        "ZONOS_THREADS",
    ] {
        command.env(name, "");
    }
    let output = command
        .args(["tts", "Hi", "--max-frames", "20", "--model", "", "--json"])
        .args(["-o", &work.arg("a.wav")])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["demo"], true);
}

#[test]
fn a_report_on_stderr_is_alone_there() {
    let work = Work::new();
    common::never_end(&work.path("model"));
    let model = work.model();
    for model in [
        &[][..],
        &[
            "--model",
            &model,
            "--frames-per-byte",
            "1",
            "--frame-floor",
            "20",
        ],
    ] {
        let output = zonos()
            .args(["tts", "Hi", "-o", "-", "--max-frames", "30", "--json"])
            .args(model)
            .output()
            .unwrap();
        serde_json::from_slice::<serde_json::Value>(&output.stderr)
            .unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&output.stderr)));
    }
}

#[cfg(unix)]
#[test]
fn a_reader_that_leaves_does_not_take_a_file_with_it_in_silence() {
    use std::process::{Command, Stdio};

    let work = Work::new();
    for more in [&["--codes", &work.arg("codes.npy")][..], &["--json"]] {
        let mut child = Command::new(assert_cmd::cargo::cargo_bin("zonos"))
            .args(["tts", "Hi", "-o", "-", "--quiet", "--model", &work.model()])
            .args(more)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{more:?}\n{stderr}");
        assert!(stderr.contains("reader"), "{stderr}");
        assert!(!work.path("codes.npy").exists());
    }
}

#[cfg(unix)]
#[test]
fn interrupts_take_temporary_folders_along() {
    use std::process::{Command, Stdio};
    use std::time::Duration;

    let work = Work::new();
    fs::create_dir(work.path("tmp")).unwrap();
    // Each round meets the command at another place.
    for signals in [1, 2].repeat(8) {
        let mut child = Command::new(assert_cmd::cargo::cargo_bin("zonos"))
            .args(["doctor"])
            .env("TMPDIR", work.path("tmp"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        while fs::read_dir(work.path("tmp")).unwrap().next().is_none() {
            assert!(
                child.try_wait().unwrap().is_none(),
                "it ended before it began"
            );
            std::thread::sleep(Duration::from_millis(2));
        }
        for _ in 0..signals {
            let id = child.id().to_string();
            // The process may be gone at the second.
            let _ = Command::new("kill")
                .args(["-INT", &id])
                .stderr(Stdio::null())
                .status();
        }
        assert_eq!(child.wait().unwrap().code(), Some(130));
        assert_eq!(fs::read_dir(work.path("tmp")).unwrap().count(), 0);
    }
}

#[test]
fn a_name_cannot_steer_the_terminal() {
    let work = Work::new();
    checkpoint(&work.path("a.safetensors"), &["a\u{1b}[2J\nfile  b"], &[]);
    let file = work.arg("a.safetensors");
    let output = run(0, &["inspect", &file]);
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(shown.contains("a\\u{1b}[2J\\nfile  b"), "{shown}");
    assert!(!shown.contains('\u{1b}'));
    let stderr = work.refuses(
        1,
        &[],
        &[
            "prompt",
            "Hi",
            &work.arg("ids.npy"),
            "--model",
            &format!("{file}\u{1b}"),
        ],
    );
    assert!(!stderr.contains('\u{1b}'), "{stderr}");
}

/// Every file of weights in the folder of a model is safe, whichever of them is the one that is read.
#[test]
fn weights_beside_the_weights_are_not_overwritten() {
    let work = Work::new();
    let (model, ids, out) = (work.model(), work.arg("ids.npy"), work.arg("a.wav"));
    run(0, &["prompt", "Hi", &ids, "--model", &model]);
    fs::write(work.path("model/other.pth"), "x").unwrap();
    fs::write(work.path("model/codes.npy"), "x").unwrap();
    let other = work.arg("model/other.pth");
    let tts = ["tts", "Hi", "-o", &out, "--codes", &other];
    for (reference, code) in [(model, 2), (work.arg("model/model.safetensors"), 0)] {
        let mut args = tts.to_vec();
        args.extend(["--model", &reference, "--max-frames", "12", "--seed", "1"]);
        if code == 2 {
            work.refuses(2, &["--codes", "same file", "other.pth"], &args);
            assert_eq!(fs::read(&other).unwrap(), b"x");
            // What is no weight may be replaced.
            let codes = work.arg("model/codes.npy");
            run(
                0,
                &[
                    "generate",
                    &ids,
                    &codes,
                    "--model",
                    &reference,
                    "--max-frames",
                    "4",
                    "--seed",
                    "1",
                ],
            );
        } else {
            // A file that is named alone lies where it lies, and its neighbours are not its own.
            run(0, &args);
        }
    }
}

#[test]
fn writing_that_runs_backwards_is_spelled_out() {
    let work = Work::new();
    let name = "a\u{202e}fdp.exe\u{2028}x";
    checkpoint(&work.path("a.safetensors"), &[name], &[]);
    let file = work.arg("a.safetensors");
    for args in [&["inspect", &file][..], &["inspect", &file, "--json"]] {
        let output = run(0, args);
        let shown = String::from_utf8_lossy(&output.stdout);
        assert!(shown.contains("202e") && shown.contains("2028"), "{shown}");
        assert!(!shown.contains(['\u{202e}', '\u{2028}']), "{shown}");
    }
}

#[test]
fn outputs_of_unknown_endings_are_refused() {
    let work = Work::new();
    for name in ["hi.npy", "hi.m4a", "hi.safetensors", "hi.", "hi.wav.tmp"] {
        let out = work.arg(name);
        work.refuses(2, &[name, ".wav"], &["tts", "Hi", "-o", &out]);
    }
    let (out, codec) = (work.arg("HI.WAV"), work.codec());
    run(0, &["tts", "Hi", "-o", &out, "--max-frames", "12"]);
    for (name, ending) in [("c.wav", ".npy"), ("c", ".npy")] {
        let codes = work.arg(name);
        work.refuses(
            2,
            &[name, ending],
            &["dac", "encode", &out, &codes, "--model", &codec],
        );
    }
    let (again, plot) = (work.arg("again.wav"), work.arg("p.jpg"));
    work.refuses(
        1,
        &["HI.WAV", "is no .npy file", "expected codes"],
        &["dac", "decode", &out, &again, "--model", &codec],
    );
    work.refuses(
        2,
        &["p.jpg", ".png"],
        &[
            "dac",
            "roundtrip",
            &out,
            &again,
            "--plot",
            &plot,
            "--model",
            &codec,
        ],
    );
    let codes = work.arg("C.NPY");
    run(0, &["dac", "encode", &out, &codes, "--model", &codec]);
}

#[test]
fn a_dash_is_stdout_or_nothing() {
    let work = Work::new();
    let (model, codec) = (work.model(), work.codec());
    for args in [
        &["prompt", "Hi", "-", "--model", &model][..],
        &["generate", "a.npy", "-", "--model", &model],
        &["validate", "a.npy", "-", "--model", &model],
        &["dac", "decode", "a.npy", "-", "--model", &codec],
        &["convert", &codec, "-"],
        &["tts", "Hi", "-o", &work.arg("a.wav"), "--codes", "-"],
        &["demo-checkpoint", "-"],
        &["man", "-"],
    ] {
        work.refuses(2, &["-"], args);
    }
}

#[test]
fn conditioning_of_a_voice_needs_one() {
    let work = Work::new();
    for flag in ["--accurate", "--expressive", "--clean-background"] {
        work.refuses(
            2,
            &["--speaker"],
            &["tts", "Hi", "-o", &work.arg("a.wav"), flag],
        );
    }
}

#[test]
fn a_negative_number_is_told_its_range() {
    let work = Work::new();
    for (flag, needle) in [
        ("--temperature", "from 0 to 100"),
        ("--max-frames", "a whole number from 1 to"),
        ("--fade-out-ms", "from 0 to"),
        ("--threads", "a whole number from 1 to"),
        ("--loop-breaker", "from 0 to"),
    ] {
        work.refuses(
            2,
            &[flag, needle],
            &["tts", "Hi", "-o", &work.arg("a.wav"), flag, "-1"],
        );
    }
}

#[test]
fn a_byte_order_mark_is_not_spoken() {
    let work = Work::new();
    let (ids, model) = (work.arg("ids.npy"), work.model());
    let rows = |text: &str| {
        let done = zonos()
            .args(["prompt", "-", &ids, "--model", &model])
            .write_stdin(text)
            .output()
            .unwrap();
        assert!(done.status.success(), "{done:?}");
        fs::read(work.path("ids.npy")).unwrap()
    };
    assert_eq!(rows("Hi\n"), rows("\u{feff}Hi\r\n"));
}

#[test]
fn the_codec_is_found_in_the_folder_of_a_model() {
    let work = Work::new();
    npy::write_i32(work.path("codes.npy"), &[2, 9], &[1; 18]).unwrap();
    let (codes, model) = (work.arg("codes.npy"), work.model());
    run(
        0,
        &[
            "dac",
            "decode",
            &codes,
            &work.arg("a.wav"),
            "--model",
            &model,
        ],
    );
    run(
        0,
        &["dac", "seam", &codes, "--model", &work.arg("model/codec")],
    );
    // For `tts --codec` as well, whatever the model.
    let (weights, out) = (work.arg("model/model.safetensors"), work.arg("b.wav"));
    for codec in [&model, &work.arg("model/codec"), &work.codec()] {
        run(
            0,
            &[
                "tts",
                "Hi",
                "-o",
                &out,
                "--max-frames",
                "12",
                "--model",
                &weights,
                "--codec",
                codec,
            ],
        );
    }
}

#[test]
fn a_codec_that_is_missing_or_alone_is_told_apart() {
    let work = Work::new();
    let (out, codec) = (work.arg("a.wav"), work.codec());
    let tts = ["tts", "Hi", "-o", &out];
    let mut hub = tts.to_vec();
    hub.extend(["--model", "hub:Zyphra/ZONOS2"]);
    let text = work.refuses(2, &["hub:Zyphra/ZONOS2", "hub:descript/dac_44khz"], &hub);
    assert!(!text.contains("folder"), "{text}");
    let mut alone = tts.to_vec();
    alone.extend(["--codec", &codec]);
    let text = work.refuses(2, &["--codec", "is given", "--model"], &alone);
    assert!(!text.contains("ZONOS_CODEC"), "{text}");
    work.refuses_with(
        zonos().args(tts).env("ZONOS_CODEC", &codec),
        2,
        &["ZONOS_CODEC is set to", "--model"],
    );
}

#[cfg(target_os = "linux")]
#[test]
fn a_folder_is_filled_at_once() {
    let work = Work::new();
    let (ids, model, out) = (work.arg("ids.npy"), work.model(), work.arg("out"));
    run(0, &["prompt", "Hi", &ids, "--model", &model]);
    fs::create_dir_all(work.path("out/logits.npy")).unwrap();
    work.refuses(
        1,
        &["logits.npy", "director"],
        &["validate", &ids, &out, "--model", &model],
    );
    fs::remove_dir(work.path("out/logits.npy")).unwrap();
    run(0, &["validate", &ids, &out, "--model", &model]);
    assert!(work.path("out/logits.npy").is_file());
}

/// The files are written in a folder of their own first, which is nobody's business but ours.
#[cfg(target_os = "linux")]
#[test]
fn a_write_that_fails_names_the_file_that_was_asked_for() {
    let work = Work::new();
    let (ids, model, out) = (work.arg("ids.npy"), work.model(), work.arg("out"));
    run(0, &["prompt", "Hi", &ids, "--model", &model]);
    let zonos = assert_cmd::cargo::cargo_bin("zonos");
    // A limit on the size of files, as a disk that is full; without its signal, a write just fails.
    let limited = |arguments: &str| {
        let line = format!(
            "trap '' XFSZ; ulimit -f 64; exec '{}' {arguments}",
            zonos.display()
        );
        let mut command = assert_cmd::Command::new("sh");
        command.args(["-c", &line]);
        command
    };
    let stderr = work.refuses_with(
        &mut limited(&format!("validate '{ids}' '{out}' --model '{model}'")),
        1,
        &[&format!("{out}/"), ".npy", "cannot write", "too large"],
    );
    assert!(!stderr.contains(".zonos-"), "{stderr}");
    let (codec, to) = (work.codec(), work.arg("b.safetensors"));
    let stderr = work.refuses_with(
        &mut limited(&format!("convert '{codec}' '{to}'")),
        1,
        &["b.safetensors", "too large", "make room"],
    );
    assert!(!stderr.contains(".zonos-"), "{stderr}");
    let (f16, base) = (work.arg("f16.gguf"), work.arg("a.kld"));
    let corpus = work.arg("corpus");
    run(0, &["convert", &model, &f16]);
    run(0, &["corpus", &model, "-o", &corpus, "--frames", "9"]);
    for (line, name) in [
        (
            format!("convert '{model}' '{to}.gguf'"),
            "b.safetensors.gguf",
        ),
        (
            format!("quantize '{f16}' '{to}.gguf' q8_0"),
            "b.safetensors.gguf",
        ),
        (
            format!("perplexity '{model}' '{corpus}/trace-000.npy' --save-base '{base}'"),
            "a.kld",
        ),
    ] {
        let needles = [name, "cannot write", "too large", "make room"];
        let stderr = work.refuses_with(&mut limited(&line), 1, &needles);
        assert!(!stderr.contains(".part"), "{stderr}");
    }
}

/// An output that is a link to a file that is not there yet makes that file, and the link stays.
#[cfg(unix)]
#[test]
fn outputs_go_through_links() {
    use std::os::unix::fs::symlink;
    let work = Work::new();
    let model = work.model();
    fs::create_dir(work.path("there")).unwrap();
    let (corpus, f16) = (work.arg("corpus"), work.arg("f16.gguf"));
    run(0, &["corpus", &model, "-o", &corpus, "--frames", "2"]);
    run(0, &["convert", &model, &f16]);
    let (manifest, ids) = (
        work.arg("corpus/manifest.toml"),
        work.arg("corpus/trace-000.npy"),
    );
    for (name, line) in [
        ("a.gguf", vec!["convert", &model, "OUT"]),
        ("a.safetensors", vec!["convert", &model, "OUT"]),
        ("a.bpk", vec!["convert", &model, "OUT"]),
        ("b.gguf", vec!["quantize", &f16, "OUT", "q8_0"]),
        (
            "i.bin",
            vec!["imatrix", &model, "--manifest", &manifest, "-o", "OUT"],
        ),
        (
            "r.kld",
            vec!["perplexity", &model, &ids, "--save-base", "OUT"],
        ),
    ] {
        let (link, real) = (work.path(name), work.path(&format!("there/{name}")));
        symlink(format!("there/{name}"), &link).unwrap();
        let out = link.display().to_string();
        let at = |to: &str| -> Vec<String> {
            let line = line
                .iter()
                .map(|word| if *word == "OUT" { to } else { word });
            line.map(str::to_owned).collect()
        };
        let go = |line: &[String]| {
            let line: Vec<&str> = line.iter().map(String::as_str).collect();
            run(0, &line)
        };
        go(&at(&out));
        let first = fs::read(&real).unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink(), "{name}");
        // What is there is replaced, and the link stays again.
        fs::write(&real, "old").unwrap();
        go(&at(&out));
        assert!(fs::read(&real).unwrap() == first, "{name}");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink(), "{name}");

        fs::remove_file(&link).unwrap();
        for (to, needle) in [
            ("gone/x".to_owned(), "a link to "),
            (out.clone(), "back to itself"),
        ] {
            symlink(to, &link).unwrap();
            let line = at(&out);
            let line: Vec<&str> = line.iter().map(String::as_str).collect();
            work.refuses(1, &[name, needle], &line);
            fs::remove_file(&link).unwrap();
        }
    }
    let hidden = |path: &std::path::PathBuf| {
        let name = path.file_name().unwrap_or_default();
        name.as_encoded_bytes().starts_with(b".")
    };
    assert!(!work.entries().iter().any(hidden), "{:?}", work.entries());
    // The ending that was given chooses the format, in any case, whatever the link leads to.
    for (name, format) in [
        ("c.SafeTensors", "safetensors"),
        ("c.Bpk", "burnpack"),
        ("c.GGUF", "gguf"),
    ] {
        symlink("there/data", work.path(name)).unwrap();
        run(0, &["convert", &model, &work.arg(name)]);
        let found = run_json(0, &["inspect", &work.arg("there/data")]);
        assert_eq!(found["format"], format, "{name}");
    }
    // Two names of one file that is not there yet.
    symlink("there/k.npy", work.path("k.npy")).unwrap();
    let (link, real) = (work.arg("k.npy"), work.arg("there/k.npy"));
    work.refuses(
        2,
        &["same file"],
        &[
            "generate",
            &ids,
            &link,
            "--model",
            &model,
            "--dump-ids",
            &real,
        ],
    );
    // No folder can be made in the place of a link.
    symlink("gone", work.path("folder")).unwrap();
    let folder = work.arg("folder");
    work.refuses(
        1,
        &["folder: a link to gone", "create that folder"],
        &["corpus", &model, "-o", &folder],
    );
}
