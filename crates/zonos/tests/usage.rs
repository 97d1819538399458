//! Wrong command lines and texts: exit code 2, one line, nothing loaded, nothing left behind.

mod common;

use common::{Work, zonos};

#[test]
fn flags_out_of_range() {
    let work = Work::new();
    let out = work.arg("a.wav");
    for (flag, value) in [
        ("--temperature", "-1"),
        ("--temperature", "nan"),
        ("--top-k", "-3"),
        ("--top-p", "1.5"),
        ("--min-p", "2"),
        ("--repetition-window", "-1"),
        ("--repetition-penalty", "0.5"),
        ("--repetition-codebooks", "-2"),
        ("--max-frames", "0"),
        ("--seed", "-1"),
        ("--seed", "x"),
        ("--fade-out-ms", "-1"),
        ("--fade-out-ms", "1e9"),
        ("--threads", "0"),
        ("--loop-breaker", "-1"),
        ("--frame-floor", "0"),
        ("--speaking-rate", "-1"),
        ("--quality", "lufs"),
        ("--quality", "lufs=x"),
        ("--quality-values", "lufs=nan"),
    ] {
        // A model that does not exist shows that nothing was opened.
        let output = zonos()
            .args([
                "tts",
                "Hi",
                "-o",
                &out,
                "--model",
                "/nonexistent",
                "--codec",
                "/nonexistent",
            ])
            .arg(format!("{flag}={value}"))
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{flag} {value}\n{stderr}");
        assert!(stderr.contains(flag), "{flag} {value}\n{stderr}");
    }
    assert!(!work.path("a.wav").exists());
}

#[test]
fn buckets_that_the_model_does_not_have() {
    let work = Work::new();
    let (out, model) = (work.arg("a.wav"), work.model());
    let base = ["tts", "Hi", "-o", &out, "--model", &model];
    for (flag, value, needles) in [
        ("--speaking-rate", "8", &["8"][..]),
        ("--speaking-rate", "fast", &["fast"]),
        ("--quality", "lufs=12", &["lufs", "12"]),
        ("--quality", "loudness=1", &["loudness", "lufs"]),
        ("--quality-values", "loudness=1", &["loudness", "lufs"]),
    ] {
        let mut args = base.to_vec();
        args.extend([flag, value]);
        work.refuses(2, needles, &args);
    }
}

#[test]
fn flags_that_exclude_or_need_each_other() {
    let work = Work::new();
    let out = work.arg("a.wav");
    for args in [
        &["tts", "Hi", "-o", &out, "--accurate", "--expressive"][..],
        &[
            "tts",
            "Hi",
            "-o",
            &out,
            "--quality",
            "lufs=1",
            "--quality-values",
            "lufs=-18",
        ],
        &["tts", "Hi", "-o", &out, "--speaker-pos", "1"],
        &["tts", "Hi"],
        &["tts", "-o", &out],
        &["generate", "a.npy", "b.npy"],
        &["dac"],
        &["frobnicate"],
    ] {
        let output = zonos().args(args).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}");
    }
    let (model, codec) = (work.arg("model/model.safetensors"), work.codec());
    work.refuses(
        2,
        &["--codec", "--model"],
        &["tts", "Hi", "-o", &out, "--codec", &codec],
    );
    let alone = work.path("alone");
    std::fs::create_dir(&alone).unwrap();
    let alone = work.arg("alone");
    work.refuses(
        2,
        &["--codec"],
        &["tts", "Hi", "-o", &out, "--model", &alone],
    );
    work.refuses(
        2,
        &["same file"],
        &["tts", "Hi", "-o", &out, "--codes", &out],
    );
    work.refuses(
        2,
        &["device", "tpu"],
        &["tts", "Hi", "-o", &out, "--device", "tpu"],
    );
    work.refuses(
        2,
        &["cuda", "build"],
        &[
            "tts", "Hi", "-o", &out, "--model", &model, "--codec", &codec, "--device", "cuda:0",
        ],
    );
}

#[test]
fn texts_that_cannot_be_spoken() {
    let work = Work::new();
    let out = work.arg("a.wav");
    for text in ["", "   ", "\n", "\u{200b}", "\t\u{feff}\u{2060}"] {
        work.refuses(2, &["blank"], &["tts", text, "-o", &out]);
    }
    // A NUL cannot be an argument, but it can come through a pipe.
    for text in ["\0", "\n\n", ""] {
        work.refuses_with(
            zonos().args(["tts", "-", "-o", &out]).write_stdin(text),
            2,
            &["blank"],
        );
    }
    let long = "All work and no play. ".repeat(400);
    let stderr = work.refuses(
        2,
        &["too long", "6144", "8800 bytes"],
        &["tts", &long, "-o", &out],
    );
    assert!(stderr.len() < 600, "the text itself is not repeated");
    work.refuses_with(
        zonos()
            .args(["tts", "-", "-o", &out])
            .write_stdin(&b"caf\xe9 noir"[..]),
        2,
        &["UTF-8", "byte 3", "0xe9"],
    );
}

#[cfg(unix)]
#[test]
fn arguments_that_are_not_text() {
    use std::os::unix::ffi::OsStrExt;
    let work = Work::new();
    let out = work.arg("a.wav");
    let bad = std::ffi::OsStr::from_bytes(b"ab\xff");
    work.refuses_with(
        zonos().arg("tts").arg(bad).args(["-o", &out]),
        2,
        &["UTF-8", "byte 2"],
    );
}

#[test]
fn help_teaches_by_example() {
    for args in [
        &["--help"][..],
        &["tts", "--help"],
        &["prompt", "--help"],
        &["generate", "--help"],
        &["validate", "--help"],
        &["voices", "--help"],
        &["voices", "add", "--help"],
        &["voices", "blend", "--help"],
        &["dac", "decode", "--help"],
        &["dac", "seam", "--help"],
        &["zac", "--help"],
        &["zac", "encode", "--help"],
        &["inspect", "--help"],
        &["convert", "--help"],
        &["demo-checkpoint", "--help"],
        &["doctor", "--help"],
        &["completions", "--help"],
        &["man", "--help"],
    ] {
        let output = zonos().args(args).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{args:?}");
        assert!(
            text.contains("zonos ") && text.contains("xample") || text.contains("Start here"),
            "{args:?}\n{text}"
        );
    }
    assert!(zonos().arg("--version").output().unwrap().status.success());
}

/// `--help` lists the exit codes one a line; the README names the same ones, for the same ends.
#[test]
fn the_exit_codes_of_the_readme_are_those_of_the_help() {
    let help = zonos().arg("--help").output().unwrap().stdout;
    let help = String::from_utf8_lossy(&help);
    let listed: Vec<&str> = help
        .split_once("Exit codes:")
        .expect("a list of exit codes")
        .1
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .filter(|word| word.bytes().all(|b| b.is_ascii_digit()))
        .collect();
    assert_eq!(listed, ["0", "1", "2", "3", "130"]);

    let readme = std::fs::read_to_string(common::fixtures().join("../../README.md")).unwrap();
    let sentence = readme
        .split_once("exit codes that scripts can use (")
        .and_then(|(_, rest)| rest.split_once(')'))
        .expect("the exit codes of the README")
        .0
        .replace('\n', " ");
    let named: Vec<&str> = sentence
        .split("; ")
        .filter_map(|part| part.split_whitespace().next())
        .collect();
    assert_eq!(named, listed, "{sentence}");
    let flat = help.split_whitespace().collect::<Vec<_>>().join(" ");
    for (readme, help) in [
        ("0 done", "0 done"),
        (
            "1 a file, a device or the run failed",
            "1 a file, a device or the run failed",
        ),
        (
            "2 wrong command line or text",
            "2 the command line or the text is wrong",
        ),
        (
            "3 the length bound, the loop breaker or a full context ended the speech",
            "3 the length bound, the loop breaker or a full context ended the speech",
        ),
        ("130 interrupted", "130 interrupted"),
    ] {
        assert!(sentence.contains(readme), "{readme}: {sentence}");
        assert!(flat.contains(help), "{help}");
    }
}
