//! `zonos tts`: what it writes, says and returns.

mod common;

use std::fs;

use common::{Work, edit_tensor, never_end, run, run_json, wav, zonos};

#[test]
fn the_demo_model_speaks_and_says_that_it_is_one() {
    let work = Work::new();
    let out = work.arg("hello.wav");
    let output = run(
        0,
        &[
            "tts",
            "Hello, world.",
            "-o",
            &out,
            "--seed",
            "1",
            "--max-frames",
            "40",
        ],
    );
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("demo model"), "{stderr}");
    assert!(
        stderr.contains("--model") && stderr.contains("--codec"),
        "{stderr}"
    );
    let (samples, rate) = wav(&fs::read(&out).unwrap());
    assert_eq!(rate, 44_100);
    assert!(!samples.is_empty() && samples.len() % 512 == 0);
    assert!(
        samples.iter().any(|s| s.unsigned_abs() > 100),
        "the demo is not silent"
    );
}

#[test]
fn a_seed_makes_the_same_file_and_another_seed_another() {
    let work = Work::new();
    let speak = |name: &str, seed: Option<&str>, env: Option<&str>| {
        let out = work.arg(name);
        let mut command = zonos();
        command.args(["tts", "Again.", "-o", &out, "--max-frames", "30", "--json"]);
        if let Some(seed) = seed {
            command.args(["--seed", seed]);
        }
        if let Some(env) = env {
            command.env("ZONOS_SEED", env);
        }
        let output = command.output().unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        (fs::read(&out).unwrap(), report["seed"].as_u64().unwrap())
    };
    let (seven, seed) = speak("a.wav", Some("7"), None);
    assert_eq!(seed, 7);
    assert_eq!(seven, speak("b.wav", Some("7"), None).0);
    assert_ne!(seven, speak("c.wav", Some("8"), None).0);
    // Flag before environment.
    assert_eq!(seven, speak("d.wav", Some("7"), Some("8")).0);
    assert_eq!(speak("e.wav", None, Some("7")), (seven, 7));
    // A drawn seed is told, differs, and reproduces.
    let (first, drawn) = speak("f.wav", None, None);
    let (second, other) = speak("g.wav", None, None);
    assert_ne!(drawn, other);
    assert_ne!(first, second);
    assert_eq!(speak("h.wav", Some(&drawn.to_string()), None).0, first);
}

#[test]
fn stdout_carries_the_samples_of_the_file() {
    let work = Work::new();
    let file = work.arg("file.wav");
    // Long enough for several blocks, and a fade that is held back while streaming.
    let common = ["--seed", "3", "--max-frames", "150", "--fade-out-ms", "40"];
    let mut to_file = vec!["tts", "Streams are seamless.", "-o", &file];
    to_file.extend(common);
    never_end(&work.path("model"));
    let model = work.model();
    to_file.extend(["--model", &model]);
    run(0, &to_file);

    let mut to_stdout = to_file.clone();
    to_stdout[3] = "-";
    to_stdout.push("--json");
    let output = run(0, &to_stdout);
    assert_eq!(
        &output.stdout[4..8],
        &[0xff; 4],
        "the length is not known in a stream"
    );
    let (streamed, rate) = wav(&output.stdout);
    assert_eq!(rate, 44_100);
    assert_eq!(streamed, wav(&fs::read(&file).unwrap()).0);
    assert_eq!(streamed.len(), 150 * 512);
    let stderr = String::from_utf8_lossy(&output.stderr);
    let json = &stderr[stderr.find('{').expect("the report on stderr")..];
    let report: serde_json::Value = serde_json::from_str(json).unwrap();
    assert_eq!(report["ended_by"], "max_frames");
}

#[test]
fn text_comes_from_stdin_and_codes_are_kept() {
    let work = Work::new();
    let (out, codes) = (work.arg("a.wav"), work.arg("codes.npy"));
    let output = zonos()
        .args([
            "tts", "-", "-o", &out, "--codes", &codes, "--json", "--seed", "5",
        ])
        .args(["--max-frames", "30", "--model", &work.model()])
        .write_stdin("Grüße, 世界 👋\n")
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["text_bytes"], "Grüße, 世界 👋".len());
    let frames = report["frames"].as_u64().unwrap() as usize;
    let kept = zonos_audio::Codes::load_npy(&codes).unwrap();
    assert_eq!((kept.frames(), kept.codebooks()), (frames, 9));
    assert!(kept.values().iter().all(|c| (0..1024).contains(c)));
    assert_eq!(wav(&fs::read(&out).unwrap()).0.len(), frames * 512);

    // The codes are the audio.
    let again = work.arg("again.wav");
    run(
        0,
        &["dac", "decode", &codes, &again, "--model", &work.codec()],
    );
    assert_eq!(fs::read(&again).unwrap(), fs::read(&out).unwrap());
}

#[test]
fn text_without_letters_is_spoken_within_the_bound() {
    let work = Work::new();
    for text in ["...", "😀", "👩‍👩‍👧", "1", "Hi"] {
        let out = work.arg("a.wav");
        let args = [
            "tts",
            text,
            "-o",
            &out,
            "--seed",
            "1",
            "--frame-floor",
            "20",
            "--frames-per-byte",
            "1",
            "--json",
        ];
        let output = zonos().args(args).output().unwrap();
        assert!(matches!(output.status.code(), Some(0 | 3)), "{text}");
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(report["generated_rows"].as_u64().unwrap() <= 20, "{report}");
    }
}

#[test]
fn a_speech_that_does_not_end_is_cut_at_the_length_bound() {
    let work = Work::new();
    never_end(&work.path("model"));
    let (out, model) = (work.arg("a.wav"), work.model());
    let report = run_json(
        3,
        &[
            "tts", "Hello.", "-o", &out, "--model", &model, "--seed", "1",
        ],
    );
    // 24 frames a byte of 6 bytes is 144; the floor is 260.
    assert_eq!(report["ended_by"], "frame_cap");
    assert_eq!(report["generated_rows"], 260);
    assert_eq!(wav(&fs::read(&out).unwrap()).0.len(), 260 * 512);

    // Said on stderr even when quiet, and the bound can be moved.
    let args = [
        "tts", "Hello.", "-o", &out, "--model", &model, "--seed", "1", "--quiet",
    ];
    let output = zonos()
        .args(args)
        .args(["--frames-per-byte", "10", "--frame-floor", "20"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(3));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("60 frames"), "{stderr}");

    // The user's own limit is no failure.
    let mut limited = args.to_vec();
    limited.extend(["--max-frames", "30"]);
    assert_eq!(run_json(0, &limited)["ended_by"], "max_frames");
}

#[test]
fn a_model_that_repeats_itself_is_stopped() {
    let work = Work::new();
    // A head of zeros makes all logits equal: greedy decoding takes code 0 for ever.
    let weights = work.path("model/model.safetensors");
    edit_tensor(&weights, "multi_output.weight", |bytes| bytes.fill(0));
    let (out, model) = (work.arg("a.wav"), work.model());
    let args = ["tts", "Hello.", "-o", &out, "--model", &model, "--greedy"];
    let mut short = args.to_vec();
    short.extend(["--loop-breaker", "1"]);
    let report = run_json(3, &short);
    assert_eq!(report["ended_by"], "loop_breaker");
    let rows = report["generated_rows"].as_u64().unwrap();
    // One second is 86.13 frames.
    assert!((86..=96).contains(&rows), "{rows}");
    assert!(wav(&fs::read(&out).unwrap()).0.len() > 60 * 512);

    let mut off = args.to_vec();
    off.extend(["--loop-breaker", "0", "--max-frames", "120"]);
    assert_eq!(run_json(0, &off)["ended_by"], "max_frames");
}

#[test]
fn a_voice_and_conditioning_change_the_prompt() {
    let work = Work::new();
    let voice = work.path("voice.npy");
    let vector: Vec<f32> = (0..2048).map(|i| (i as f32 * 0.37).sin()).collect();
    zonos_audio::npy::write_f32(&voice, &[1, 2048], &vector).unwrap();
    let (out, model, voice) = (work.arg("a.wav"), work.model(), work.arg("voice.npy"));
    let base = [
        "tts",
        "Hi",
        "-o",
        &out,
        "--model",
        &model,
        "--seed",
        "1",
        "--max-frames",
        "24",
    ];
    let rows = |more: &[&str]| {
        let mut args = base.to_vec();
        args.extend(more);
        run_json(0, &args)["prompt_rows"].as_u64().unwrap()
    };
    // Begin, two bytes, end, 17 rows of silence, and the default quality row.
    assert_eq!(rows(&[]), 22);
    assert_eq!(rows(&["--quality", "none"]), 21);
    assert_eq!(rows(&["--quality", "lufs=8,max_pause=1"]), 23);
    assert_eq!(rows(&["--quality-values", "lufs=-18"]), 22);
    assert_eq!(rows(&["--speaking-rate", "4"]), 23);
    assert_eq!(rows(&["--speaking-rate", "17-21"]), 23);
    // Voice slot, background marker, accurate marker.
    assert_eq!(rows(&["--speaker", &voice]), 25);
    assert_eq!(
        rows(&["--speaker", &voice, "--expressive", "--clean-background"]),
        24
    );
}

#[test]
fn quiet_is_quiet() {
    let work = Work::new();
    let out = work.arg("a.wav");
    let output = run(
        0,
        &[
            "tts",
            "Hi",
            "-o",
            &out,
            "--seed",
            "1",
            "--max-frames",
            "20",
            "--quiet",
        ],
    );
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(stderr, "");
    assert!(output.stdout.is_empty());
}

#[test]
fn threads_do_not_change_the_audio() {
    let work = Work::new();
    let speak = |threads: &str| {
        let out = work.arg("a.wav");
        run(
            0,
            &[
                "tts",
                "Hi",
                "-o",
                &out,
                "--seed",
                "1",
                "--max-frames",
                "30",
                "--threads",
                threads,
            ],
        );
        fs::read(out).unwrap()
    };
    assert_eq!(speak("1"), speak("2"));
}
