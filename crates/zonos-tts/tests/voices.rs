//! Speaker vectors in every form, as NumPy and this library write them, and what is none.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use zonos_tts::{Provenance, Voice, VoiceFileError, VoiceFormat};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../validation/fixtures/voices")
        .join(name)
}

/// 0.5, 1.0, .. 4.0: what every readable fixture holds.
fn vector() -> Vec<f32> {
    (1..=8).map(|i| i as f32 / 2.0).collect()
}

#[test]
fn every_form_that_numpy_writes() {
    for name in [
        "f4.npy",
        "f2.npy",
        "f8-big.npy",
        "unit.npy",
        "rows.npy",
        "rows-unit.npy",
        "record.npy",
        "record-single.npy",
        "emb.npz",
        "only.npz",
        "record.npz",
    ] {
        let voice = Voice::load(fixture(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(voice.vector(), vector(), "{name}");
        assert_eq!(*voice.provenance(), Provenance::default(), "{name}");
    }
    let doubled: Vec<f32> = vector().iter().map(|x| 2.0 * x).collect();
    for name in ["i8.npy", "u1.npy"] {
        assert_eq!(
            Voice::load(fixture(name)).unwrap().vector(),
            doubled,
            "{name}"
        );
    }
}

#[test]
fn what_holds_no_voice_says_why() {
    for (name, needle) in [
        ("object.npy", "floats"),
        ("object.npz", "floats"),
        ("two.npz", "none named emb"),
        ("complex.npy", "floats"),
        ("text.npy", "floats"),
        ("nan.npy", "NaN"),
        ("infinite.npy", "inf"),
        ("cube.npy", "[2, 2, 8]"),
        ("empty.npy", "[0, 8]"),
        ("bomb.npz", "67108864"),
        ("gone.npy", "cannot read"),
    ] {
        let error = Voice::load(fixture(name)).unwrap_err().to_string();
        assert!(
            error.contains(name) && error.contains(needle) && !error.contains('\n'),
            "{name}: {error}"
        );
    }
}

#[test]
fn voices_survive_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("voice.safetensors");
    let provenance = Provenance {
        name: Some("Änna \"quoted\"\n".to_owned()),
        model: Some("ecapa".to_owned()),
        source: Some("voice.mp3".to_owned()),
        source_sha256: Some("ab".repeat(32)),
        seconds: Some(3.25),
        ..Provenance::now()
    };
    let voice = Voice::new(vector(), provenance).unwrap();
    voice.save(&path).unwrap();
    assert_eq!(Voice::load(&path).unwrap(), voice);
    let first = fs::read(&path).unwrap();
    voice.save(&path).unwrap();
    assert_eq!(fs::read(&path).unwrap(), first, "equal voices, equal files");
    // The numbers are aligned for readers that map the file.
    let header = u64::from_le_bytes(first[..8].try_into().unwrap());
    assert_eq!(header % 8, 0);
    assert_eq!(first.len() as u64, 8 + header + 4 * 8);

    let path = dir.path().join("voice.npy");
    voice.save(&path).unwrap();
    let plain = Voice::load(&path).unwrap();
    assert_eq!(plain.vector(), voice.vector());
    assert_eq!(*plain.provenance(), Provenance::default());
    for bad in ["voice", "voice.npz", "voice.wav", "voice.npy.bin"] {
        let error = voice.save(dir.path().join(bad)).unwrap_err();
        assert!(matches!(error, VoiceFileError::Ending(_)), "{error}");
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    // Endings count in any case, as for every output.
    let path = dir.path().join("LOUD.NPY");
    voice.save(&path).unwrap();
    assert_eq!(Voice::load(&path).unwrap(), plain);
}

/// A safetensors file of F32 tensors.
fn tensors(path: &Path, metadata: &serde_json::Value, tensors: &[(&str, &[usize], &[f32])]) {
    let mut header = serde_json::Map::new();
    header.insert("__metadata__".to_owned(), metadata.clone());
    let mut at = 0;
    for (name, shape, values) in tensors {
        let end = at + 4 * values.len();
        let info = serde_json::json!({ "dtype": "F32", "shape": shape, "data_offsets": [at, end] });
        header.insert((*name).to_owned(), info);
        at = end;
    }
    let text = serde_json::Value::Object(header).to_string();
    let mut file = fs::File::create(path).unwrap();
    file.write_all(&(text.len() as u64).to_le_bytes()).unwrap();
    file.write_all(text.as_bytes()).unwrap();
    for (_, _, values) in tensors {
        for x in *values {
            file.write_all(&x.to_le_bytes()).unwrap();
        }
    }
}

#[test]
fn tensors_of_other_tools() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("v.safetensors");
    let load = || Voice::load(&path);
    let none = serde_json::json!({});
    tensors(&path, &none, &[("x", &[1, 2], &[1.0, 2.0])]);
    assert_eq!(load().unwrap().vector(), [1.0, 2.0]);
    tensors(
        &path,
        &none,
        &[("a", &[1], &[0.0]), ("emb", &[2, 2], &[1.0, 2.0, 3.0, 4.0])],
    );
    assert_eq!(load().unwrap().vector(), [2.0, 3.0]);
    tensors(&path, &none, &[("a", &[1], &[0.0]), ("b", &[1], &[0.0])]);
    let error = load().unwrap_err().to_string();
    assert!(
        error.contains("v.safetensors") && error.contains("2 tensors"),
        "{error}"
    );
    tensors(&path, &none, &[("speaker", &[2, 2, 2], &[0.0; 8])]);
    assert!(load().unwrap_err().to_string().contains("[2, 2, 2]"));
    tensors(&path, &none, &[("speaker", &[2], &[0.0, f32::NAN])]);
    assert!(load().unwrap_err().to_string().contains("NaN"));

    // Metadata are a stranger's: only a voice file's own keys count, and not at any length.
    let long = "x".repeat(2000);
    let metadata = serde_json::json!({ "name": "n", "date": "d" });
    tensors(&path, &metadata, &[("speaker", &[1], &[1.0])]);
    assert_eq!(*load().unwrap().provenance(), Provenance::default());
    let metadata = serde_json::json!({
        "format": "zonos-voice", "name": "n", "model": long, "seconds": "NaN", "other": "y",
    });
    tensors(&path, &metadata, &[("speaker", &[1], &[1.0])]);
    let expected = Provenance {
        name: Some("n".to_owned()),
        ..Provenance::default()
    };
    assert_eq!(*load().unwrap().provenance(), expected);
}

/// What no encoder makes is no voice, and the file is named.
#[test]
fn vectors_of_zeros_and_of_anything() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("v.safetensors");
    for (values, needle) in [
        ([0.0, 0.0], "zero"),
        ([1.0, 3e37], "3e37"),
        ([-2e6, 1.0], "-2e6"),
    ] {
        tensors(&path, &serde_json::json!({}), &[("speaker", &[2], &values)]);
        for error in [
            Voice::load(&path).unwrap_err(),
            Voice::import(&path).unwrap_err(),
        ] {
            let text = error.to_string();
            assert!(
                text.contains("v.safetensors") && text.contains(needle),
                "{text}"
            );
        }
    }
}

/// A provenance says what it can say, or nothing.
#[test]
fn fields_that_cannot_be_are_left_out() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("v.safetensors");
    let read = |key: &str, value: &str| {
        let metadata = serde_json::json!({ "format": "zonos-voice", key: value });
        tensors(&path, &metadata, &[("speaker", &[1], &[1.0])]);
        Voice::load(&path).unwrap().provenance().clone()
    };
    let hash = "0123456789abcdefABCDEF".repeat(3)[..64].to_owned();
    assert_eq!(
        read("source_sha256", &hash).source_sha256,
        Some(hash.clone())
    );
    for bad in ["", "abc", &hash[1..], &hash.replace('a', "g")] {
        assert_eq!(read("source_sha256", bad), Provenance::default(), "{bad}");
    }
    let date = "2026-11-29T21:47:29Z";
    assert_eq!(read("date", date).date.as_deref(), Some(date));
    for bad in [
        "yesterday",
        "2026-13-29T21:47:29Z",
        "2026-11-29T21:47:29+",
        "2026-11-29",
    ] {
        assert_eq!(read("date", bad), Provenance::default(), "{bad}");
    }
    assert_eq!(read("seconds", "3.5").seconds, Some(3.5));
    for bad in ["-1", "1e308", "inf", "NaN", "long"] {
        assert_eq!(read("seconds", bad), Provenance::default(), "{bad}");
    }
}

#[test]
fn files_are_told_apart_by_content() {
    let dir = tempfile::tempdir().unwrap();
    let (npy, npz) = (fixture("f4.npy"), fixture("only.npz"));
    let saved = dir.path().join("v.safetensors");
    Voice::new(vector(), Provenance::now())
        .unwrap()
        .save(&saved)
        .unwrap();
    // Wrong endings do not matter where the content is clear.
    for (from, to, format) in [
        (&npy, "a.npz", VoiceFormat::Npy),
        (&npz, "b.safetensors", VoiceFormat::Npz),
        (&saved, "c.npy", VoiceFormat::Safetensors),
        (&saved, "d", VoiceFormat::Safetensors),
    ] {
        let to = dir.path().join(to);
        fs::copy(from, &to).unwrap();
        assert_eq!(VoiceFormat::of(&to).unwrap(), Some(format));
        assert_eq!(Voice::load(&to).unwrap().vector(), vector());
    }
    let write = |name: &str, bytes: &[u8]| {
        let path = dir.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    };
    let lfs = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n";
    for (path, needles) in [
        (write("empty.npy", b""), &["empty.npy", "empty"][..]),
        (write("lfs.npy", lfs.as_bytes()), &["lfs.npy", "LFS"]),
        (
            write("lfs.safetensors", lfs.as_bytes()),
            &["lfs.safetensors", "LFS"],
        ),
        (
            write("page.safetensors", b"<!DOCTYPE html><html></html>"),
            &["page.safetensors", "HTML"],
        ),
        (write("text.npz", b"hello"), &["text.npz", "archive"]),
        (
            write("cut.npz", &fs::read(&npz).unwrap()[..200]),
            &["cut.npz", "archive"],
        ),
        (
            write("cut.safetensors", &fs::read(&saved).unwrap()[..100]),
            &["cut.safetensors"],
        ),
        (
            write("talk.wav", b"RIFF....WAVEfmt "),
            &["talk.wav", "not a speaker vector"],
        ),
        (dir.path().to_path_buf(), &["not a regular file"]),
    ] {
        let error = Voice::load(&path).unwrap_err().to_string();
        for needle in needles {
            assert!(error.contains(needle), "{needle}: {error}");
        }
    }
    let wav = dir.path().join("talk.wav");
    assert_eq!(VoiceFormat::of(wav).unwrap(), None);
    // A checkpoint is no voice, and a pickle in any wrapping is not opened as one.
    let checkpoints = fixture("../checkpoint");
    let error = Voice::load(checkpoints.join("kinds.pth"))
        .unwrap_err()
        .to_string();
    assert!(error.contains("no .npy array"), "{error}");
    let renamed = dir.path().join("legacy.safetensors");
    fs::copy(checkpoints.join("kinds.legacy.pth"), &renamed).unwrap();
    let error = Voice::load(&renamed).unwrap_err().to_string();
    assert!(error.contains("expected a .safetensors file"), "{error}");
}

/// An archive whose directory lies about sizes must not be believed.
#[test]
fn a_packed_array_is_counted_as_it_comes_out() {
    let dir = tempfile::tempdir().unwrap();
    let mut bytes = fs::read(fixture("bomb.npz")).unwrap();
    // The size in the central directory and in the local header (0 there: it follows the data, or
    // the zip64 field holds it): every place that holds 80 MiB and a header, little-endian.
    let size = ((20_u32 << 22) + 128).to_le_bytes();
    let places: Vec<usize> = bytes
        .windows(4)
        .enumerate()
        .filter_map(|(at, window)| (window == size).then_some(at))
        .collect();
    assert!(!places.is_empty(), "the fixture holds its size");
    for at in places {
        bytes[at..at + 4].copy_from_slice(&1000_u32.to_le_bytes());
    }
    let path = dir.path().join("liar.npz");
    fs::write(&path, bytes).unwrap();
    let error = Voice::load(&path).unwrap_err().to_string();
    assert!(error.contains("liar.npz"), "{error}");
}

#[test]
fn a_file_that_is_taken_over_becomes_the_source() {
    let dir = tempfile::tempdir().unwrap();
    let voice = Voice::import(fixture("f4.npy")).unwrap();
    let from = voice.provenance();
    assert_eq!(from.source.as_deref(), Some("f4.npy"));
    // As sha256sum computes it.
    assert_eq!(
        from.source_sha256.as_deref(),
        Some("4997b0d461d9302dfd5c587c94d5c7d6f8cabbb499e10d4ea4b11b914f8c576b")
    );
    assert!(from.date.is_some() && from.library.is_some());
    // A voice that knows where it came from keeps that.
    let path = dir.path().join("copy.safetensors");
    voice.save(&path).unwrap();
    assert_eq!(Voice::import(&path).unwrap(), voice);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Files are strangers': damaged anywhere, they are read or refused.
    #[test]
    fn damage_never_panics(
        which in 0..6_usize,
        at in any::<prop::sample::Index>(),
        byte: u8,
        cut in proptest::option::of(any::<prop::sample::Index>()),
    ) {
        let names = ["f4.npy", "record.npy", "emb.npz", "only.npz", "record.npz", "saved"];
        let mut bytes = match names[which] {
            "saved" => {
                let dir = tempfile::tempdir().unwrap();
                let path = dir.path().join("v.safetensors");
                let voice = Voice::new(vector(), Provenance::now()).unwrap();
                voice.save(&path).unwrap();
                fs::read(path).unwrap()
            }
            name => fs::read(fixture(name)).unwrap(),
        };
        let index = at.index(bytes.len());
        bytes[index] = byte;
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("v.npz");
        fs::write(&path, bytes).unwrap();
        match Voice::load(&path) {
            Ok(voice) => prop_assert!(voice.vector().iter().all(|x| x.is_finite())),
            Err(error) => prop_assert!(error.to_string().contains("v.npz")),
        }
    }
}
