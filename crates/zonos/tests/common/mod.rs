//! What the tests of the command share: running it, folders, and checkpoints with a fault.
#![allow(dead_code)] // Each test file uses its part.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use assert_cmd::Command;
use serde_json::Value;
use tempfile::TempDir;

/// The command, without settings of the environment it runs in.
pub(crate) fn zonos() -> Command {
    let mut command = Command::cargo_bin("zonos").expect("the binary is built with the tests");
    for name in [
        "ZONOS_MODEL",
        "ZONOS_CODEC",
        "ZONOS_DEVICE",
        "ZONOS_CODEC_DEVICE",
        "ZONOS_SEED",
        "ZONOS_THREADS",
        "ZONOS_VOICES",
        "ZONOS_SPEAKER_ENCODER",
        "HF_HOME",
        "HF_HUB_CACHE",
        "HF_TOKEN",
        "HF_ENDPOINT",
    ] {
        command.env_remove(name);
    }
    command.env("HF_HUB_OFFLINE", "1");
    command.timeout(std::time::Duration::from_secs(120));
    command
}

/// The folder that `$ZONOS_GOLDENS` names; says what is not compared when it is unset.
pub(crate) fn goldens(what: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("ZONOS_GOLDENS").filter(|folder| !folder.is_empty());
    if folder.is_none() {
        println!("ZONOS_GOLDENS is unset: {what} is not compared");
    }
    folder.map(PathBuf::from)
}

/// A folder with a demo model in `model`, for one test.
pub(crate) struct Work {
    dir: TempDir,
}

impl Work {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        zonos_tts::demo::write_demo_checkpoint(dir.path().join("model")).expect("the demo model");
        Self { dir }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The path as an argument.
    pub(crate) fn arg(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    pub(crate) fn model(&self) -> String {
        self.arg("model")
    }

    pub(crate) fn codec(&self) -> String {
        self.arg("model/codec/weights.pth")
    }

    /// Everything in the folder, to see that a refused command leaves it as it was.
    pub(crate) fn entries(&self) -> BTreeSet<PathBuf> {
        fn walk(dir: &Path, found: &mut BTreeSet<PathBuf>) {
            for entry in fs::read_dir(dir).expect("a readable folder") {
                let path = entry.expect("an entry").path();
                if path.is_dir() {
                    walk(&path, found);
                }
                found.insert(path);
            }
        }
        let mut found = BTreeSet::new();
        walk(self.dir.path(), &mut found);
        found
    }

    /// Runs the command and checks that it refuses: the exit code, one line of error that holds
    /// every needle, and no file more than before.
    pub(crate) fn refuses(&self, code: i32, needles: &[&str], arguments: &[&str]) -> String {
        self.refuses_with(zonos().args(arguments), code, needles)
    }

    pub(crate) fn refuses_with(
        &self,
        command: &mut Command,
        code: i32,
        needles: &[&str],
    ) -> String {
        let before = self.entries();
        let output = command.output().expect("the command runs");
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{command:?}\n{stderr}");
        let errors: Vec<&str> = stderr.lines().filter(|l| l.starts_with("error:")).collect();
        assert_eq!(
            errors.len(),
            1,
            "one line of error expected: {command:?}\n{stderr}"
        );
        for needle in needles {
            assert!(
                stderr.contains(needle),
                "'{needle}' is missing: {command:?}\n{stderr}"
            );
        }
        for word in ["panicked", "internal error", "backtrace"] {
            assert!(!stderr.contains(word), "{command:?}\n{stderr}");
        }
        assert_eq!(
            self.entries(),
            before,
            "files were left behind: {command:?}"
        );
        stderr
    }
}

/// Runs the command and checks its exit code.
pub(crate) fn run(code: i32, arguments: &[&str]) -> Output {
    let output = zonos().args(arguments).output().expect("the command runs");
    assert_eq!(
        output.status.code(),
        Some(code),
        "{arguments:?}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

/// Runs the command with `--json` and reads what it prints.
pub(crate) fn run_json(code: i32, arguments: &[&str]) -> Value {
    let mut with_json = arguments.to_vec();
    with_json.push("--json");
    let output = run(code, &with_json);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
        panic!(
            "{error}: {arguments:?}\n{}",
            String::from_utf8_lossy(&output.stdout)
        )
    })
}

/// The samples of a 16-bit mono WAV file with a 44-byte header, and the sample rate.
pub(crate) fn wav(bytes: &[u8]) -> (Vec<i16>, u32) {
    assert_eq!(
        (&bytes[..4], &bytes[8..16]),
        (&b"RIFF"[..], &b"WAVEfmt "[..])
    );
    assert_eq!(&bytes[36..40], b"data");
    let rate = u32::from_le_bytes(bytes[24..28].try_into().expect("four bytes"));
    let samples = bytes[44..].as_chunks::<2>().0;
    (
        samples.iter().map(|b| i16::from_le_bytes(*b)).collect(),
        rate,
    )
}

/// A tensor of a safetensors file: dtype, shape, bytes.
pub(crate) fn tensor(path: &Path, name: &str) -> (String, Vec<usize>, Vec<u8>) {
    let bytes = fs::read(path).expect("a safetensors file");
    let (header, start) = header(&bytes);
    let info = &header[name];
    let at = |i: usize| info["data_offsets"][i].as_u64().expect("an offset") as usize + start;
    let shape = info["shape"].as_array().expect("a shape");
    (
        info["dtype"].as_str().expect("a dtype").to_owned(),
        shape
            .iter()
            .map(|d| d.as_u64().expect("a size") as usize)
            .collect(),
        bytes[at(0)..at(1)].to_vec(),
    )
}

/// Changes the bytes of a tensor in a safetensors file.
pub(crate) fn edit_tensor(path: &Path, name: &str, edit: impl FnOnce(&mut [u8])) {
    let mut bytes = fs::read(path).expect("a safetensors file");
    let (header, start) = header(&bytes);
    let offsets = header[name]["data_offsets"].clone();
    let at = |i: usize| offsets[i].as_u64().expect("an offset") as usize + start;
    edit(&mut bytes[at(0)..at(1)]);
    fs::write(path, bytes).expect("a writable file");
}

/// Changes the header of a safetensors file; offsets stay valid.
pub(crate) fn edit_header(path: &Path, edit: impl FnOnce(&mut Value)) {
    let bytes = fs::read(path).expect("a safetensors file");
    let (mut header, start) = header(&bytes);
    edit(&mut header);
    let mut text = header.to_string().into_bytes();
    text.resize(text.len().next_multiple_of(8), b' ');
    let mut out = (text.len() as u64).to_le_bytes().to_vec();
    out.extend(text);
    out.extend(&bytes[start..]);
    fs::write(path, out).expect("a writable file");
}

fn header(bytes: &[u8]) -> (Value, usize) {
    let size = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
    let header = serde_json::from_slice(&bytes[8..8 + size]).expect("a header");
    (header, 8 + size)
}

/// Makes the end of audio unreachable: its logit is always 0, far below the best one's.
pub(crate) fn never_end(model: &Path) {
    const CODEBOOKS: usize = 9;
    const VOCABULARY: usize = 1026;
    const END: usize = 1024;
    edit_tensor(
        &model.join("model.safetensors"),
        "multi_output.weight",
        |bytes| {
            let row = bytes.len() / (CODEBOOKS * VOCABULARY);
            for c in 0..CODEBOOKS {
                let at = (c * VOCABULARY + END) * row;
                bytes[at..at + row].fill(0);
            }
        },
    );
}

/// The repository's fixtures.
pub(crate) fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../validation/fixtures")
}

/// The tiny speaker encoder of the fixtures, widened to the 2048 numbers that the demo backbone takes:
/// the rows of its last layer are repeated, which repeats its vector.
pub(crate) fn wide_encoder(dir: &Path) {
    const WIDE: usize = 2048;
    let source = fixtures().join("ecapa/tiny/hf-f32");
    fs::create_dir(dir).expect("a new folder");
    let text = fs::read(source.join("config.json")).expect("a config");
    let mut config: Value = serde_json::from_slice(&text).expect("a config");
    let times = WIDE / config["enc_dim"].as_u64().expect("a width") as usize;
    config["enc_dim"] = WIDE.into();
    fs::write(dir.join("config.json"), config.to_string()).expect("a writable folder");

    let bytes = fs::read(source.join("model.safetensors")).expect("a safetensors file");
    let (header, start) = header(&bytes);
    let (mut wide, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, info) in header.as_object().expect("a header") {
        if name == "__metadata__" {
            continue;
        }
        let at = |i: usize| info["data_offsets"][i].as_u64().expect("an offset") as usize + start;
        let times = if name.starts_with("fc.") { times } else { 1 };
        let mut info = info.clone();
        let rows = info["shape"][0].as_u64().expect("a shape") as usize;
        let begin = data.len();
        data.extend(bytes[at(0)..at(1)].repeat(times));
        info["shape"][0] = (rows * times).into();
        info["data_offsets"] = serde_json::json!([begin, data.len()]);
        wide.insert(name.clone(), info);
    }
    let text = Value::Object(wide).to_string();
    let mut file = (text.len() as u64).to_le_bytes().to_vec();
    file.extend(text.into_bytes());
    file.extend(data);
    fs::write(dir.join("model.safetensors"), file).expect("a writable folder");
}

/// Little-endian 32-bit integers.
pub(crate) fn i32s(bytes: &[u8]) -> Vec<i32> {
    bytes
        .as_chunks::<4>()
        .0
        .iter()
        .map(|b| i32::from_le_bytes(*b))
        .collect()
}

/// Little-endian 32-bit floats.
pub(crate) fn f32s(bytes: &[u8]) -> Vec<f32> {
    bytes
        .as_chunks::<4>()
        .0
        .iter()
        .map(|b| f32::from_le_bytes(*b))
        .collect()
}
