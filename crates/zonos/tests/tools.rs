//! inspect, convert, demo-checkpoint, doctor, completions, man, and how the command dies.

mod common;

use std::fs;

use common::{Work, fixtures, run, run_json};

#[test]
fn inspect_lists_what_is_there_and_what_it_is() {
    let work = Work::new();
    let model = work.model();
    let report = run_json(0, &["inspect", &model, "--check"]);
    assert_eq!(report["loads"], true);
    assert_eq!(report["tensors"].as_array().unwrap().len(), 99);
    let head = report["tensors"]
        .as_array()
        .unwrap()
        .iter()
        .find(|t| t["name"] == "multi_output.weight")
        .unwrap();
    assert_eq!(head["shape"], serde_json::json!([9234, 64]));
    assert_eq!(head["dtype"], "BF16");
    assert_eq!(report["non_finite"], serde_json::json!([]));

    let text = run(0, &["inspect", &model]).stdout;
    let text = String::from_utf8_lossy(&text);
    for needle in ["ZONOS2", "multi_output.weight", "[9234, 64]", "BF16"] {
        assert!(text.contains(needle), "{needle}\n{text}");
    }
    for file in [
        "zonos2/tiny/model.pth",
        "zonos2/tiny/sharded",
        "dac/tiny/weights.pth",
        "dac/tiny/weights.parametrized.pth",
        "dac/tiny/folded.safetensors",
        "dac/tiny/hf",
        "dac/odd/weights.legacy.pth",
        "dac/odd/weights.cuda.pth",
    ] {
        let path = fixtures().join(file).display().to_string();
        assert_eq!(run_json(0, &["inspect", &path])["loads"], true, "{file}");
    }
}

/// A model is told by a tensor or two; with those under another name it is still that model, and would
/// not load.
#[test]
fn inspect_names_the_model_that_a_file_is_closest_to() {
    let work = Work::new();
    let source = fixtures().join("ecapa/tiny/hf-f32");
    for with_config in [true, false] {
        let dir = work.path(if with_config { "with" } else { "without" });
        fs::create_dir(&dir).unwrap();
        let file = dir.join("model.safetensors");
        fs::copy(source.join("model.safetensors"), &file).unwrap();
        if with_config {
            fs::copy(source.join("config.json"), dir.join("config.json")).unwrap();
        }
        common::edit_header(&file, |header| {
            let header = header.as_object_mut().unwrap();
            let tensor = header.remove("asp.tdnn.conv.weight").unwrap();
            header.insert("asp.tdnn.renamed.weight".to_owned(), tensor);
        });
        let output = run(1, &["inspect", &file.display().to_string()]);
        let (out, err) = (
            String::from_utf8_lossy(&output.stdout).into_owned(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        );
        assert!(out.contains("closest: "), "{out}");
        assert!(out.contains("of 76 names match"), "{out}");
        assert!(err.contains("asp.tdnn.conv"), "{err}");
        let report = run_json(1, &["inspect", &file.display().to_string()]);
        assert_eq!(report["model"], "ecapa");
        assert_eq!(report["loads"], false);
    }
    // Strangers stay strangers.
    let voice = fixtures().join("ecapa/tiny/golden.safetensors");
    let report = run_json(0, &["inspect", &voice.display().to_string()]);
    assert_eq!(report["model"], "unknown");
}

#[test]
fn converted_checkpoints_speak_alike() {
    let work = Work::new();
    let (model, codec) = (work.model(), work.codec());
    let speak = |model: &str, codec: &str| {
        let out = work.arg("a.wav");
        let args = [
            "tts",
            "Hi",
            "-o",
            &out,
            "--seed",
            "1",
            "--max-frames",
            "20",
            "--quiet",
        ];
        let mut args = args.to_vec();
        args.extend(["--model", model, "--codec", codec]);
        run(0, &args);
        fs::read(out).unwrap()
    };
    let original = speak(&model, &codec);
    for ending in ["bpk", "safetensors"] {
        let dir = work.path(ending);
        fs::create_dir(&dir).unwrap();
        let backbone = dir.join(format!("model.{ending}")).display().to_string();
        let decoder = dir.join(format!("dac.{ending}")).display().to_string();
        run(0, &["convert", &model, &backbone]);
        run(0, &["convert", &codec, &decoder]);
        assert_eq!(speak(&backbone, &decoder), original, "{ending}");
        let report = run_json(0, &["inspect", &backbone]);
        assert_eq!(report["tensors"].as_array().unwrap().len(), 99);
    }
    // A .pth with training-only tensors and a renamed one.
    let pth = fixtures()
        .join("zonos2/tiny/model.pth")
        .display()
        .to_string();
    assert_eq!(speak(&pth, &codec), original);
}

#[test]
fn the_demo_checkpoint_finds_its_own_codec() {
    let work = Work::new();
    let dir = work.arg("demo");
    let paths = run_json(0, &["demo-checkpoint", &dir]);
    assert!(
        fs::metadata(paths["codec"].as_str().unwrap())
            .unwrap()
            .is_file()
    );
    let out = work.arg("a.wav");
    let args = ["tts", "Hi", "-o", &out, "--seed", "1", "--max-frames", "20"];
    run(0, &args);
    let builtin = fs::read(&out).unwrap();
    let mut with_model = args.to_vec();
    with_model.extend(["--model", &dir]);
    let output = run(0, &with_model);
    assert_eq!(fs::read(&out).unwrap(), builtin);
    assert!(!String::from_utf8_lossy(&output.stderr).contains("demo model"));
    // Writing it again is no error.
    run(0, &["demo-checkpoint", &dir]);
}

#[test]
fn a_stray_shard_is_ignored_with_a_line() {
    let work = Work::new();
    let dir = work.path("sharded");
    fs::create_dir(&dir).unwrap();
    for entry in fs::read_dir(fixtures().join("zonos2/tiny/sharded")).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, dir.join(path.file_name().unwrap())).unwrap();
    }
    // Stale weights under the same names, which the index does not list.
    let stray = dir.join("model.safetensors");
    fs::copy(work.path("model/model.safetensors"), &stray).unwrap();
    common::edit_tensor(&stray, "multi_output.weight", |bytes| bytes.fill(0));
    let (out, model, codec) = (work.arg("a.wav"), work.arg("sharded"), work.codec());
    let mut args = vec!["tts", "Hi", "-o", &out, "--seed", "1", "--max-frames", "20"];
    args.extend(["--model", &model, "--codec", &codec]);
    let output = run(0, &args);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("model.safetensors"), "{stderr}");
    let sharded = fs::read(&out).unwrap();
    run(0, &args[..8]);
    assert_eq!(fs::read(&out).unwrap(), sharded, "the index wins");
}

#[test]
fn the_doctor_finds_this_build_healthy() {
    let report = run_json(0, &["doctor"]);
    assert_eq!(report["passed"], true, "{report:#}");
    assert_eq!(report["checks"].as_array().unwrap().len(), 9);
    let text = run(0, &["doctor", "--device", "flex"]).stdout;
    let text = String::from_utf8_lossy(&text);
    assert_eq!(
        text.lines().filter(|l| l.starts_with("ok")).count(),
        9,
        "{text}"
    );
}

#[test]
fn the_doctor_tells_which_instructions_run() {
    let doctor = |isa: &str| {
        let output = common::zonos()
            .args(["doctor", "--json"])
            .env("ZONOS_ISA", isa)
            .output()
            .unwrap();
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        (report, String::from_utf8(output.stderr).unwrap())
    };
    let (plain, stderr) = doctor("plain");
    assert_eq!(
        (&plain["isa"], &plain["passed"]),
        (&"plain".into(), &true.into())
    );
    assert_eq!(stderr, "");
    let (best, stderr) = doctor("neon9");
    assert_ne!(best["isa"], "neon9");
    assert!(
        stderr.contains("neon9") && stderr.contains("plain"),
        "{stderr}"
    );
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
}

/// Not the doctor alone tells of an instruction set that cannot be had.
#[test]
fn an_unknown_instruction_set_is_told_by_every_command() {
    let codec = fixtures().join("dac/tiny/weights.pth");
    let inspect = |isa: &str| {
        let mut command = common::zonos();
        command.args(["inspect", "--quiet"]).arg(&codec);
        let output = command.env("ZONOS_ISA", isa).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    for isa in ["", "plain"] {
        assert_eq!(inspect(isa), "", "{isa}");
    }
    for isa in ["neon9", "AVX2", "avx2 "] {
        let said = inspect(isa);
        assert_eq!(said.lines().count(), 1, "{said}");
        let parts = [
            "warning: ",
            &format!("'{isa}'"),
            "is used instead",
            "available are plain",
        ];
        for part in parts {
            assert!(said.contains(part), "{part}: {said}");
        }
    }
    // A report on stderr is alone there, and tells it.
    let output = common::zonos()
        .args(["tts", "Hi", "-o", "-", "--max-frames", "12", "--json"])
        .env("ZONOS_ISA", "neon9")
        .output()
        .unwrap();
    let report: serde_json::Value = serde_json::from_slice(&output.stderr).unwrap();
    assert!(report["warnings"][0].as_str().unwrap().contains("neon9"));
}

#[test]
fn completions_and_manual_pages() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = run(0, &["completions", shell]).stdout;
        assert!(
            String::from_utf8_lossy(&script).contains("demo-checkpoint"),
            "{shell}"
        );
    }
    let work = Work::new();
    let dir = work.arg("man");
    run(0, &["man", &dir]);
    let page = fs::read_to_string(work.path("man/zonos-tts.1")).unwrap();
    assert!(page.contains("repetition"), "{page}");
    for name in ["zonos.1", "zonos-dac-decode.1", "zonos-doctor.1"] {
        assert!(work.path("man").join(name).is_file(), "{name}");
    }
}

#[cfg(unix)]
#[test]
fn ctrl_c_leaves_no_file() {
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    let work = Work::new();
    common::never_end(&work.path("model"));
    let before = work.entries();
    let mut child = Command::new(assert_cmd::cargo::cargo_bin("zonos"))
        .args([
            "tts",
            "Hello.",
            "-o",
            &work.arg("a.wav"),
            "--model",
            &work.model(),
        ])
        // Without limits this runs for minutes.
        .args(["--frames-per-byte", "0", "--loop-breaker", "0"])
        .env_remove("ZONOS_SEED")
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_millis(700));
    let kill = Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status()
        .unwrap();
    assert!(kill.success());
    let asked = Instant::now();
    let status = child.wait().unwrap();
    assert!(asked.elapsed() < Duration::from_secs(5), "it stops at once");
    assert_eq!(status.code(), Some(130));
    assert_eq!(work.entries(), before);
}

#[cfg(unix)]
#[test]
fn a_reader_that_leaves_is_no_crash() {
    use std::process::{Command, Stdio};

    let work = Work::new();
    common::never_end(&work.path("model"));
    let binary = assert_cmd::cargo::cargo_bin("zonos");
    for args in [
        vec!["inspect".to_owned(), work.model()],
        ["tts", "Hi", "-o", "-", "--quiet", "--model", &work.model()]
            .map(str::to_owned)
            .to_vec(),
    ] {
        let mut child = Command::new(&binary)
            .args(&args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{args:?}\n{stderr}");
        assert!(
            !stderr.contains("panicked") && !stderr.contains("error"),
            "{stderr}"
        );
    }
}
