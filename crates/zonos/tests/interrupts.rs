//! Ctrl-C in the middle of long work: the first one stops at the next step, the second one at once,
//! and neither leaves a file.
#![cfg(unix)]

mod common;

use std::fs;
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::Work;
use zonos_audio::npy;

fn start(args: &[&str]) -> Child {
    Command::new(assert_cmd::cargo::cargo_bin("zonos"))
        .args(args)
        .env_remove("ZONOS_SEED")
        .env_remove("ZONOS_DEVICE")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn interrupt(child: &Child) {
    let kill = Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status()
        .unwrap();
    assert!(kill.success());
}

/// Waits for the end and checks that it was an interrupt that said so in one line.
fn interrupted(mut child: Child, within: Duration) {
    let asked = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if asked.elapsed() > within {
            child.kill().unwrap();
            panic!("still running {within:?} after the interrupt");
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let mut stderr = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut stderr)
        .unwrap();
    assert_eq!(status.code(), Some(130), "{stderr}");
    let errors: Vec<_> = stderr.lines().filter(|l| l.starts_with("error")).collect();
    assert_eq!(
        errors,
        ["error: interrupted; no file was written"],
        "{stderr}"
    );
}

/// A safetensors file of one tensor of `bytes` zeros, which take no room on the disk.
fn sparse(path: &std::path::Path, bytes: u64) {
    let mut header = serde_json::json!({
        "w": { "dtype": "F32", "shape": [bytes / 4], "data_offsets": [0, bytes] },
    })
    .to_string();
    while !header.len().is_multiple_of(8) {
        header.push(' ');
    }
    let mut head = (header.len() as u64).to_le_bytes().to_vec();
    head.extend(header.into_bytes());
    fs::write(path, &head).unwrap();
    let file = fs::File::options().write(true).open(path).unwrap();
    file.set_len(head.len() as u64 + bytes).unwrap();
}

#[test]
fn a_conversion_stops_inside_a_tensor() {
    let work = Work::new();
    // Writing all of it takes longer than the test waits.
    sparse(&work.path("a.safetensors"), 24 << 30);
    let before = work.entries();
    let (from, to) = (work.arg("a.safetensors"), work.arg("b.safetensors"));
    let child = start(&["convert", &from, &to]);
    let began = Instant::now();
    let written = || -> u64 {
        work.entries()
            .difference(&before)
            .filter_map(|path| fs::metadata(path).ok())
            .filter(fs::Metadata::is_file)
            .map(|meta| meta.len())
            .sum()
    };
    while written() < 32 << 20 {
        assert!(began.elapsed() < Duration::from_secs(60), "it never began");
        std::thread::sleep(Duration::from_millis(2));
    }
    interrupt(&child);
    interrupted(child, Duration::from_secs(3));
    assert_eq!(work.entries(), before);
}

/// A GGUF file of one expert stack of `rows` rows of zeros, which take no room on the disk.
fn sparse_gguf(path: &std::path::Path, rows: u64) {
    use zonos_gguf::{GgmlType, GgufWriter, Metadata, NewTensor, Value};
    let mut metadata = Metadata::new();
    metadata.set("general.architecture", Value::String("zonos2".into()));
    let tensor = NewTensor {
        name: "blk.0.ffn_up_exps.weight".into(),
        dims: vec![2048, rows, 1],
        ggml_type: GgmlType::F16,
    };
    let mut head = Vec::new();
    GgufWriter::new(&mut head, "sparse", &metadata, &[tensor]).unwrap();
    // The header takes far less, and the data begin at a multiple of 32.
    let start = (head.len() as u64).next_multiple_of(32);
    fs::write(path, &head).unwrap();
    let file = fs::File::options().write(true).open(path).unwrap();
    file.set_len(start + 2048 * 2 * rows).unwrap();
}

#[test]
fn quantising_stops_inside_a_tensor() {
    let work = Work::new();
    sparse_gguf(&work.path("a.gguf"), 8 << 20);
    let before = work.entries();
    let (from, to) = (work.arg("a.gguf"), work.arg("b.gguf"));
    let child = start(&["quantize", &from, &to, "q6_k"]);
    let began = Instant::now();
    while work.entries() == before {
        assert!(began.elapsed() < Duration::from_secs(60), "it never began");
        std::thread::sleep(Duration::from_millis(2));
    }
    std::thread::sleep(Duration::from_millis(200));
    interrupt(&child);
    interrupted(child, Duration::from_secs(5));
    assert_eq!(work.entries(), before);
}

/// Nobody reads the pipe, so no step comes at which the first interrupt would be seen.
#[test]
fn a_second_interrupt_ends_a_speech_that_waits_for_its_reader() {
    let work = Work::new();
    common::never_end(&work.path("model"));
    let before = work.entries();
    let mut child = start(&[
        "tts",
        "Hello.",
        "-o",
        "-",
        "--codes",
        &work.arg("codes.npy"),
        "--model",
        &work.model(),
        "--frames-per-byte",
        "0",
        "--loop-breaker",
        "0",
    ]);
    // Sound has begun, so the command is at its steps; the pipe is full soon after.
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut [0; 4096]).unwrap();
    std::thread::sleep(Duration::from_secs(2));
    interrupt(&child);
    std::thread::sleep(Duration::from_millis(500));
    assert!(
        child.try_wait().unwrap().is_none(),
        "the first interrupt waits for the next step"
    );
    interrupt(&child);
    interrupted(child, Duration::from_secs(2));
    assert_eq!(work.entries(), before);
}

/// One block is one step: the second interrupt need not wait for its end.
#[test]
fn a_second_interrupt_ends_a_long_block_of_the_codec() {
    let work = Work::new();
    // Many times as long as the test waits.
    let frames = 120_000;
    let codes = work.path("codes.npy");
    npy::write_i32(&codes, &[frames, 9], &vec![17; frames * 9]).unwrap();
    let before = work.entries();
    let child = start(&[
        "dac",
        "decode",
        &work.arg("codes.npy"),
        &work.arg("a.wav"),
        "--model",
        &work.codec(),
        "--block",
        "1000000",
        "--threads",
        "1",
    ]);
    std::thread::sleep(Duration::from_millis(400));
    interrupt(&child);
    std::thread::sleep(Duration::from_millis(100));
    interrupt(&child);
    interrupted(child, Duration::from_secs(2));
    assert_eq!(work.entries(), before);
}

/// And one interrupt alone, between two blocks.
#[test]
fn an_interrupt_stops_the_codec_between_blocks() {
    let work = Work::new();
    let frames = 200_000;
    let codes = work.path("codes.npy");
    npy::write_i32(&codes, &[frames, 9], &vec![17; frames * 9]).unwrap();
    let before = work.entries();
    let child = start(&[
        "dac",
        "decode",
        &work.arg("codes.npy"),
        &work.arg("a.npy"),
        "--model",
        &work.codec(),
    ]);
    std::thread::sleep(Duration::from_millis(700));
    interrupt(&child);
    interrupted(child, Duration::from_secs(3));
    assert_eq!(work.entries(), before);
}
