//! Reading what is right, refusing what is not, writing what others write.

mod common;

use common::{bytes, fixture, goldens};
use proptest::prelude::*;
use zonos_gguf::{
    Array, GgmlType, GgufFile, GgufWriter, Metadata, NewTensor, TensorInfo, Value, ValueType,
};

fn read(raw: &[u8]) -> Result<GgufFile<&[u8]>, String> {
    GgufFile::read("x.gguf", raw).map_err(|e| e.to_string())
}

/// Every part that can be read, read.
fn walk(file: &GgufFile<&[u8]>) {
    for (key, value) in file.metadata().iter() {
        assert!(!key.is_empty());
        let _ = value.to_string();
        if let Some(a) = value.as_array() {
            assert_eq!(a.iter().count(), a.len());
        }
    }
    for t in file.tensors() {
        assert_eq!(file.tensor_bytes(t).unwrap().len() as u64, t.byte_len());
        assert!(t.byte_len() <= file.bytes().len() as u64);
        let values = file.dequantize(t.name());
        assert_eq!(values.is_ok(), t.ggml_type().is_readable());
    }
}

/// Writes again what was read.
fn rewritten(file: &GgufFile<&[u8]>) -> Vec<u8> {
    let new = |t: &TensorInfo| NewTensor {
        name: t.name().into(),
        dims: t.dims().to_vec(),
        ggml_type: t.ggml_type(),
    };
    let tensors: Vec<_> = file.tensors().iter().map(new).collect();
    let mut w = GgufWriter::new(Vec::new(), "out", file.metadata(), &tensors).unwrap();
    for t in file.tensors() {
        assert_eq!(w.next_tensor(), Some(t.name()));
        // In uneven parts, as a stream comes.
        for part in file.tensor_bytes(t).unwrap().chunks(1009) {
            w.write(t.name(), part).unwrap();
        }
    }
    w.finish().unwrap()
}

fn check_message(name: &str, message: &str, mention: &serde_json::Value) {
    assert!(message.starts_with("x.gguf: "), "{name}: {message}");
    assert!(
        !message.contains('\n') && message.len() < 400,
        "{name}: {message}"
    );
    let lower = message.to_lowercase();
    for m in mention.as_array().unwrap() {
        let m = m.as_str().unwrap();
        assert!(
            m.split('|').any(|m| lower.contains(&m.to_lowercase())),
            "{name}: '{m}' is not in: {message}"
        );
    }
}

/// Bytes behind the last tensor and its padding are counted; a file without the padding has none.
#[test]
fn bytes_that_belong_to_nothing() {
    let hostile = |name: &str| bytes(fixture("hostile").join(name));
    for name in [
        "ok_base.gguf",
        "ok_short_tail.gguf",
        "ok_alignment_64.gguf",
        "ok_zero_tensors.gguf",
        "ok_nothing_at_all.gguf",
    ] {
        let mut raw = hostile(name);
        assert_eq!(read(&raw).unwrap().trailing_bytes(), 0, "{name}");
        let whole = raw
            .len()
            .next_multiple_of(if name.contains("64") { 64 } else { 32 });
        for behind in [1, 32, 1000] {
            raw.resize(whole + behind, 0);
            assert_eq!(
                read(&raw).unwrap().trailing_bytes(),
                behind as u64,
                "{name}"
            );
        }
    }
}

#[test]
fn hostile_files() {
    let expected: serde_json::Value =
        serde_json::from_slice(&bytes(fixture("hostile/expected.json"))).unwrap();
    let files = expected["files"].as_object().unwrap();
    assert_eq!(files.len(), 85);
    for (name, file) in files {
        let raw = bytes(fixture("hostile").join(name));
        let result = read(&raw);
        match (file["expect"].as_str().unwrap(), &result) {
            ("ok" | "any", Ok(file)) => walk(file),
            ("refuse" | "any", Err(message)) => check_message(name, message, &file["mention"]),
            (expect, _) => panic!("{name}: expected {expect}, found {:?}", result.err()),
        }
    }
}

fn put_string(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

/// A header of counts, then whatever `entries` holds.
fn header(tensors: u64, entries: u64, rest: &[u8]) -> Vec<u8> {
    let mut out = b"GGUF".to_vec();
    out.extend(3u32.to_le_bytes());
    out.extend(tensors.to_le_bytes());
    out.extend(entries.to_le_bytes());
    out.extend(rest);
    out
}

#[test]
fn long_names_and_keys() {
    let mut tensor = Vec::new();
    put_string(&mut tensor, &"n".repeat(1 << 20));
    tensor.extend([0; 24]);
    let e = read(&header(1, 0, &tensor)).unwrap_err();
    assert!(e.contains("name has 1048576 bytes, at most 63"), "{e}");
    let mut entry = Vec::new();
    put_string(&mut entry, &"k".repeat(1 << 20));
    entry.extend([0; 24]);
    let e = read(&header(0, 1, &entry)).unwrap_err();
    assert!(e.contains("key 0") && e.contains("at most 65535"), "{e}");
}

/// H01: dimensions whose product wraps, in every form that was reported.
#[test]
fn sizes_that_wrap_round() {
    for dims in [
        [(1u64 << 42) + 1, 1 << 22],
        [1 << 63, 2],
        [0, 5],
        [u64::MAX, u64::MAX],
    ] {
        let mut t = Vec::new();
        put_string(&mut t, "blk.0.w");
        t.extend(2u32.to_le_bytes());
        t.extend(dims.iter().flat_map(|d| d.to_le_bytes()));
        t.extend([0; 4 + 8 + 64]);
        let e = read(&header(1, 0, &t)).unwrap_err();
        assert!(
            e.contains("blk.0.w") && e.contains(&dims[0].to_string()),
            "{e}"
        );
    }
}

#[test]
fn every_prefix_and_every_flipped_byte() {
    let whole = bytes(fixture("hostile/ok_base.gguf"));
    for n in 0..whole.len() {
        assert!(read(&whole[..n]).is_err(), "the first {n} bytes were read");
    }
    for at in 0..whole.len() {
        for flip in [0x01, 0x80, 0xff] {
            let mut raw = whole.clone();
            raw[at] ^= flip;
            if let Ok(file) = read(&raw) {
                walk(&file);
            }
        }
    }
}

#[test]
fn other_files_under_this_name() {
    for (raw, says) in [
        (
            &b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n"[..],
            "git lfs pull",
        ),
        (b"<!DOCTYPE html><html></html>", "web page"),
        (b"PK\x03\x04aaaaaaaaaaaaaaaaaaaa", "zip"),
        (b"\x10\0\0\0\0\0\0\0{\"a\":1}       ", "safetensors"),
    ] {
        let e = read(raw).unwrap_err();
        assert!(e.contains("not a GGUF file") && e.contains(says), "{e}");
    }
}

#[test]
fn values_of_every_type() {
    let raw = bytes(fixture("hostile/ok_every_scalar_type.gguf"));
    let file = read(&raw).unwrap();
    assert_eq!(file.required::<u8>("x.t0").unwrap(), 255);
    assert_eq!(file.required::<i8>("x.t1").unwrap(), -128);
    assert_eq!(file.required::<u16>("x.t2").unwrap(), 65_535);
    assert_eq!(file.required::<i16>("x.t3").unwrap(), -32_768);
    assert_eq!(file.required::<u32>("x.t4").unwrap(), u32::MAX);
    assert_eq!(file.required::<i32>("x.t5").unwrap(), i32::MIN);
    assert_eq!(file.required::<f32>("x.t6").unwrap(), -0.5);
    assert!(file.required::<bool>("x.t7").unwrap());
    assert_eq!(file.required::<u64>("x.t10").unwrap(), u64::MAX);
    assert_eq!(file.required::<i64>("x.t11").unwrap(), i64::MIN);
    assert_eq!(file.required::<f64>("x.t12").unwrap(), 1e300);
    assert_eq!(file.optional::<u32>("x.t99").unwrap(), None);
    for (e, says) in [
        (
            file.required::<u32>("x.t99").unwrap_err(),
            "'x.t99': missing; expected u32",
        ),
        (
            file.required::<u32>("x.t5").unwrap_err(),
            "expected u32, found i32 -2147483648",
        ),
        (
            file.required::<String>("x.t7").unwrap_err(),
            "expected string, found bool true",
        ),
    ] {
        assert!(e.to_string().contains(says), "{e}");
    }
    let raw = bytes(fixture("hostile/ok_utf8_text.gguf"));
    assert_eq!(
        read(&raw).unwrap().required::<String>("x.text").unwrap(),
        "größe ☃ 語"
    );
    let raw = bytes(fixture("hostile/ok_one_element.gguf"));
    let file = read(&raw).unwrap();
    let last = file.tensors().last().unwrap();
    assert_eq!((last.dims(), last.shape()), (&[1, 1, 1, 1][..], vec![1; 4]));
    assert_eq!(file.dequantize(last.name()).unwrap(), [2.5]);
    let raw = bytes(fixture("hostile/ok_empty_array.gguf"));
    let file = read(&raw).unwrap();
    assert!(file.required::<Vec<i32>>("x.empty").unwrap().is_empty());
    assert_eq!(
        file.required::<Vec<String>>("x.none").unwrap(),
        Vec::<String>::new()
    );
    assert_eq!(file.required::<String>("x.blank").unwrap(), "");
}

#[test]
fn files_are_written_as_they_were() {
    for name in [
        "ok_base",
        "ok_alignment_64",
        "ok_empty_array",
        "ok_utf8_text",
        "ok_one_element",
        "ok_every_scalar_type",
        "ok_zero_tensors",
    ] {
        let raw = bytes(fixture(&format!("hostile/{name}.gguf")));
        assert!(rewritten(&read(&raw).unwrap()) == raw, "{name}");
    }
    let Some(folder) = goldens("zonos2-k") else {
        return;
    };
    let mut files = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "gguf") {
            let raw = bytes(&path);
            assert!(rewritten(&read(&raw).unwrap()) == raw, "{}", path.display());
            files += 1;
        }
    }
    assert_eq!(files, 7);
}

fn tensor(name: &str, dims: &[u64], ggml_type: GgmlType) -> NewTensor {
    NewTensor {
        name: name.into(),
        dims: dims.to_vec(),
        ggml_type,
    }
}

#[test]
fn the_writer_refuses_what_the_reader_would() {
    use GgmlType::{F32, Q4K};
    let none = Metadata::new();
    let one: Metadata = [("general.alignment", Value::U32(48))]
        .into_iter()
        .collect();
    let empty: Metadata = [("", Value::U8(0))].into_iter().collect();
    for (metadata, tensors, says) in [
        (&one, vec![], "power of two"),
        (&empty, vec![], "key of 0 bytes"),
        (
            &none,
            vec![tensor("a", &[1], F32), tensor("a", &[1], F32)],
            "twice",
        ),
        (&none, vec![tensor(&"a".repeat(64), &[1], F32)], "63 bytes"),
        (&none, vec![tensor("a\0b", &[1], F32)], "NUL"),
        (&none, vec![tensor("a", &[], F32)], "dimensions"),
        (&none, vec![tensor("a", &[1; 5], F32)], "dimensions"),
        (&none, vec![tensor("a", &[0], F32)], "whole blocks"),
        (&none, vec![tensor("a", &[128, 2], Q4K)], "whole blocks"),
        (
            &none,
            vec![tensor("a", &[1 << 40, 1 << 40], F32)],
            "overflow",
        ),
    ] {
        let mut out = Vec::new();
        let e = GgufWriter::new(&mut out, "o", metadata, &tensors).unwrap_err();
        assert!(e.to_string().contains(says), "{e}");
        assert!(out.is_empty());
    }
    let tensors = [tensor("a", &[2], F32), tensor("b", &[1], F32)];
    let start = || GgufWriter::new(Vec::new(), "o", &none, &tensors).unwrap();
    assert!(start().write("b", &[0; 4]).is_err());
    assert!(start().write("a", &[0; 9]).is_err());
    let mut w = start();
    w.write("a", &[0; 4]).unwrap();
    assert!(w.write("a", &[0; 5]).is_err());
    assert!(
        w.finish()
            .unwrap_err()
            .to_string()
            .contains("4 of its 8 bytes")
    );
}

/// Types that are listed only are found, sized and refused by name.
#[test]
fn types_that_are_listed_only() {
    let list = [tensor("t", &[256, 2], GgmlType::Iq2Xxs)];
    let mut w = GgufWriter::new(Vec::new(), "o", &Metadata::new(), &list).unwrap();
    w.write("t", &[0; 132]).unwrap();
    let raw = w.finish().unwrap();
    let file = read(&raw).unwrap();
    assert_eq!(file.tensor("t").unwrap().byte_len(), 132);
    let e = file.dequantize("t").unwrap_err().to_string();
    assert!(e.contains("'t'") && e.contains("iq2_xxs"), "{e}");
    assert!(
        file.dequantize("u")
            .unwrap_err()
            .to_string()
            .contains("'u'")
    );
}

fn any_value() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<u8>().prop_map(Value::U8),
        any::<i8>().prop_map(Value::I8),
        any::<u16>().prop_map(Value::U16),
        any::<i16>().prop_map(Value::I16),
        any::<u32>().prop_map(Value::U32),
        any::<i32>().prop_map(Value::I32),
        (-1e9f32..1e9).prop_map(Value::F32),
        any::<bool>().prop_map(Value::Bool),
        ".{0,20}".prop_map(Value::String),
        proptest::collection::vec(any::<i32>(), 0..9).prop_map(|v| Value::Array(Array::of_i32(&v))),
        proptest::collection::vec(".{0,9}", 0..5).prop_map(|v| Value::Array(Array::of_strings(&v))),
        any::<u64>().prop_map(Value::U64),
        any::<i64>().prop_map(Value::I64),
        (-1e300f64..1e300).prop_map(Value::F64),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_written_is_read(
        entries in proptest::collection::vec(("[a-z.]{1,12}", any_value()), 0..8),
        shapes in proptest::collection::vec((1u64..4, 1u64..5, proptest::sample::select(GgmlType::ALL.to_vec())), 0..6),
        alignment in 0u32..9,
    ) {
        let mut metadata: Metadata = entries.into_iter().collect();
        if alignment > 0 {
            metadata.set("general.alignment", Value::U32(1 << (alignment - 1)));
        }
        let tensors: Vec<NewTensor> = shapes
            .iter()
            .enumerate()
            .map(|(i, (blocks, rows, t))| {
                tensor(&format!("t{i}"), &[blocks * t.block_values() as u64, *rows], *t)
            })
            .collect();
        let mut w = GgufWriter::new(Vec::new(), "o", &metadata, &tensors).unwrap();
        let mut data = Vec::new();
        for (i, t) in tensors.iter().enumerate() {
            let size = t.ggml_type.bytes_for(t.dims.iter().product()).unwrap();
            data.push(vec![i as u8 + 1; size as usize]);
            w.write(&t.name, &data[i]).unwrap();
        }
        let raw = w.finish().unwrap();
        let file = read(&raw).unwrap();
        prop_assert_eq!(file.metadata(), &metadata);
        prop_assert_eq!(file.tensors().len(), tensors.len());
        for ((read, t), data) in file.tensors().iter().zip(&tensors).zip(&data) {
            prop_assert_eq!((read.name(), read.dims()), (&t.name[..], &t.dims[..]));
            prop_assert_eq!(read.ggml_type(), t.ggml_type);
            prop_assert_eq!(file.tensor_bytes(read).unwrap(), &data[..]);
        }
        prop_assert!(rewritten(&file) == raw);
    }

    #[test]
    fn no_bytes_make_reading_panic(
        at in proptest::collection::vec((0usize..512, any::<u8>()), 1..8),
        tail in proptest::collection::vec(any::<u8>(), 0..64),
    ) {
        let mut raw = bytes(fixture("hostile/ok_base.gguf"));
        for (at, v) in at {
            raw[at] = v;
        }
        raw.extend(tail);
        if let Ok(file) = read(&raw) {
            walk(&file);
        }
    }

    #[test]
    fn no_garbage_after_the_counts_makes_reading_panic(
        tensors in 0u64..3,
        entries in 0u64..3,
        rest in proptest::collection::vec(prop_oneof![Just(0u8), Just(1), Just(9), any::<u8>()], 0..200),
    ) {
        if let Ok(file) = read(&header(tensors, entries, &rest)) {
            walk(&file);
        }
    }
}

#[test]
fn arrays_know_their_elements() {
    let a = Array::of_f32(&[0.5, -1.0]);
    assert_eq!(
        (a.len(), a.element_type(), a.is_empty()),
        (2, ValueType::F32, false)
    );
    assert_eq!(Value::Array(a).to_string(), "[0.5, -1]");
    let long = Value::Array(Array::of_u32(&[7; 40])).to_string();
    assert!(long.ends_with(", ... 40 in all]"), "{long}");
}
