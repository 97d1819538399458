//! Whole files: quantised by the policy, and the files around a quantised model.

mod common;

use std::ops::ControlFlow;

use common::{Golden, Numbers, bytes, goldens};
use sha2::{Digest, Sha256};
use zonos_gguf::blocks::quantize_row;
use zonos_gguf::kld::{KldBase, KldWriter};
use zonos_gguf::{
    FromFile, GgmlType, GgufFile, GgufWriter, Imatrix, ImatrixEntry, Metadata, NewTensor, Policy,
    QuantizeError, Value, convert_rows, quantize_file, quantize_pieces,
};

const TENSORS: [(&str, &[u64]); 5] = [
    ("output.weight", &[256, 6]),
    ("blk.0.attn_norm.weight", &[256]),
    ("blk.0.attn_q.weight", &[256, 4]),
    ("blk.0.ffn_up_exps.weight", &[256, 70, 2]),
    ("blk.0.ffn_down_exps.weight", &[96, 3, 2]),
];

fn encoded(t: GgmlType, x: &[f32], row: usize, w: Option<&[f32]>) -> Vec<u8> {
    let mut out = Vec::new();
    for x in x.chunks(row) {
        let mut bytes = vec![0; t.bytes_for(row as u64).unwrap() as usize];
        quantize_row(t, x, w, &mut bytes).unwrap();
        out.extend(bytes);
    }
    out
}

/// A small model, matrices F16.
fn model() -> Vec<u8> {
    let metadata: Metadata = [
        ("general.architecture", Value::String("zonos2".into())),
        ("general.file_type", Value::U32(1)),
        ("zonos2.block_count", Value::U32(1)),
    ]
    .into_iter()
    .collect();
    let tensors = TENSORS.map(|(name, dims)| NewTensor {
        name: name.into(),
        dims: dims.into(),
        ggml_type: if dims.len() == 1 {
            GgmlType::F32
        } else {
            GgmlType::F16
        },
    });
    let mut w = GgufWriter::new(Vec::new(), "m", &metadata, &tensors).unwrap();
    let mut numbers = Numbers(5);
    for t in &tensors {
        let x = numbers.normals(t.dims.iter().product::<u64>() as usize, 0.05);
        w.write(&t.name, &encoded(t.ggml_type, &x, x.len(), None))
            .unwrap();
    }
    w.finish().unwrap()
}

fn go(_: zonos_gguf::Progress<'_>) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

#[test]
fn a_file_by_the_policy() {
    let raw = model();
    let file = GgufFile::read("m", &raw[..]).unwrap();
    let mut imatrix = Imatrix::default();
    let mut importances: Vec<f32> = Numbers(6).normals(512, 1.0).iter().map(|v| v * v).collect();
    importances[256..].fill(0.0);
    let mut add = |name: &str, experts, inputs, values| {
        let entry = ImatrixEntry::new(experts, inputs, values).unwrap();
        imatrix.entries.insert(name.into(), entry);
    };
    add("blk.0.ffn_up_exps.weight", 2, 256, importances.clone());
    add("blk.0.ffn_down_exps.weight", 2, 32, vec![1.0; 64]);
    add("blk.9.ffn_down_exps.weight", 1, 1, vec![1.0]);
    let mut seen = Vec::new();
    let (out, report) = quantize_file(
        &file,
        Vec::new(),
        "o",
        &Policy::recommended(GgmlType::Q4K),
        Some(&imatrix),
        &mut |p| {
            seen.push((p.tensor.to_owned(), p.done));
            assert!(p.done <= p.total);
            ControlFlow::Continue(())
        },
    )
    .unwrap();
    let quantized = GgufFile::read("o", &out[..]).unwrap();
    let keys: Vec<_> = quantized.metadata().iter().map(|(k, _)| k).collect();
    assert_eq!(
        keys,
        [
            "general.architecture",
            "zonos2.block_count",
            "general.file_type"
        ]
    );
    assert_eq!(quantized.required::<u32>("general.file_type").unwrap(), 15);
    for (name, _) in TENSORS {
        let (old, new) = (file.tensor(name).unwrap(), quantized.tensor(name).unwrap());
        assert_eq!(old.dims(), new.dims());
        let got = quantized.tensor_bytes(new).unwrap();
        if name == "blk.0.ffn_up_exps.weight" {
            assert_eq!(new.ggml_type(), GgmlType::Q4K);
            let x = file.dequantize(name).unwrap();
            let (first, second) = x.split_at(x.len() / 2);
            let mut expected = encoded(GgmlType::Q4K, first, 256, Some(&importances[..256]));
            // The second expert was never met.
            expected.extend(encoded(GgmlType::Q4K, second, 256, None));
            assert!(got == expected);
        } else {
            assert_eq!(old.ggml_type(), new.ggml_type(), "{name}");
            assert!(got == file.tensor_bytes(old).unwrap(), "{name}");
        }
    }
    assert_eq!(report.types[&GgmlType::Q4K], (1, 2 * 70 * 144));
    assert_eq!(report.types[&GgmlType::F16].0, 3);
    assert_eq!(
        report.importance_unused,
        ["blk.9.ffn_down_exps.weight", "blk.0.ffn_down_exps.weight"]
    );
    assert!(report.not_finite.is_empty() && report.requantized.is_empty());
    // Read piece by piece, the file is the same.
    let mut pieces = FromFile::new(std::io::Cursor::new(&raw));
    let policy = Policy::recommended(GgmlType::Q4K);
    let (read, same) = quantize_pieces(
        &file,
        &mut pieces,
        Vec::new(),
        "o",
        &policy,
        Some(&imatrix),
        &mut go,
    )
    .unwrap();
    assert!(read == out && same == report);
    // What is not there any more is an error.
    let mut pieces = FromFile::new(std::io::Cursor::new(&raw[..raw.len() - 1]));
    let cut = quantize_pieces(&file, &mut pieces, Vec::new(), "o", &policy, None, &mut go);
    assert!(cut.unwrap_err().to_string().starts_with("m: "));
    assert_eq!(seen.last().unwrap().1, report.bytes_before);
    assert!(seen.is_sorted_by_key(|s| s.1));
}

#[test]
fn stopped_halfway() {
    let raw = model();
    let file = GgufFile::read("m", &raw[..]).unwrap();
    let policy = Policy::everything(GgmlType::Q8_0);
    for most in 0..4 {
        let mut calls = 0;
        let result = quantize_file(&file, Vec::new(), "o", &policy, None, &mut |_| {
            calls += 1;
            if calls > most {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        });
        assert!(matches!(result, Err(QuantizeError::Stopped)));
    }
}

#[test]
fn values_too_large_and_types_already_lossy_are_reported() {
    let list = ["a", "b"].map(|name| NewTensor {
        name: name.into(),
        dims: vec![256, 4],
        ggml_type: GgmlType::F32,
    });
    let mut w = GgufWriter::new(Vec::new(), "m", &Metadata::new(), &list).unwrap();
    let mut x = Numbers(8).normals(1024, 1.0);
    w.write("a", &encoded(GgmlType::F32, &x, 1024, None))
        .unwrap();
    (x[300], x[800], x[801]) = (f32::NAN, 1e30, 7e4);
    w.write("b", &encoded(GgmlType::F32, &x, 1024, None))
        .unwrap();
    let raw = w.finish().unwrap();
    let file = GgufFile::read("m", &raw[..]).unwrap();
    let policy = Policy::everything(GgmlType::F16);
    let (_, report) = quantize_file(&file, Vec::new(), "o", &policy, None, &mut go).unwrap();
    assert_eq!(report.not_finite, [("b".to_owned(), 2)]);

    let policy = Policy::everything(GgmlType::Q5_0);
    let (five, report) = quantize_file(&file, Vec::new(), "o", &policy, None, &mut go).unwrap();
    assert!(report.requantized.is_empty());
    let five = GgufFile::read("five", five).unwrap();
    let policy = Policy::everything(GgmlType::Q4_0);
    let (_, report) = quantize_file(&five, Vec::new(), "o", &policy, None, &mut go).unwrap();
    assert_eq!(report.requantized, ["a", "b"]);
}

/// Quantisers make numbers of NaN and infinity; that they were there is told all the same.
#[test]
fn values_that_are_no_numbers_are_reported_whatever_they_become() {
    for from in [GgmlType::F32, GgmlType::F16] {
        for to in GgmlType::READABLE {
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut x = Numbers(8).normals(1024, 1.0);
                x[300] = bad;
                let list = [NewTensor {
                    name: "a".into(),
                    dims: vec![256, 4],
                    ggml_type: from,
                }];
                let mut w = GgufWriter::new(Vec::new(), "m", &Metadata::new(), &list).unwrap();
                w.write("a", &encoded(from, &x, 1024, None)).unwrap();
                let raw = w.finish().unwrap();
                let file = GgufFile::read("m", &raw[..]).unwrap();
                let policy = Policy::everything(to);
                let (_, report) =
                    quantize_file(&file, Vec::new(), "o", &policy, None, &mut go).unwrap();
                assert_eq!(
                    report.not_finite,
                    [("a".to_owned(), 1)],
                    "{from} {to} {bad}"
                );
            }
        }
    }
}

/// Finite values whose squares are not: the search for a scale finds none, and some types become zeros.
#[test]
fn values_that_quantisers_cannot_square_are_reported() {
    for to in GgmlType::READABLE.into_iter().filter(|t| t.is_quantized()) {
        let mut x = Numbers(8).normals(1024, 1.0);
        x[256..512].iter_mut().for_each(|x| *x *= 1e25);
        let source: Vec<u8> = x.iter().flat_map(|x| x.to_le_bytes()).collect();
        let mut out = vec![0; to.bytes_for(1024).unwrap() as usize];
        let bad = convert_rows(GgmlType::F32, &source, 256, to, None, &mut out).unwrap();
        assert_eq!(bad, 1, "{to}");
    }
}

#[test]
fn quantised_models_have_the_sums_of_ggml() {
    let Some(folder) = goldens("zonos2-k") else {
        return;
    };
    let manifest: serde_json::Value =
        serde_json::from_slice(&bytes(folder.join("manifest.json"))).unwrap();
    let raw = bytes(folder.join("f16.gguf"));
    let file = GgufFile::read("f16.gguf", &raw[..]).unwrap();
    let imatrix = Imatrix::read("imatrix.bin", &bytes(folder.join("imatrix.bin"))).unwrap();
    let mut compared = 0;
    for (name, golden) in manifest["files"].as_object().unwrap() {
        let Some(bulk) = golden["bulk"].as_str() else {
            continue;
        };
        let flag = |key: &str| golden[key].as_bool().unwrap_or(false);
        let policy = Policy {
            bulk: bulk.parse().unwrap(),
            experts_only: flag("experts_only"),
            spine_f16: flag("spine_f16"),
            down_tier_up: flag("down_tier_up"),
        };
        let importance = name.ends_with("-im").then_some(&imatrix);
        let (out, report) =
            quantize_file(&file, Vec::new(), name, &policy, importance, &mut go).unwrap();
        assert_eq!(
            out.len() as u64,
            golden["bytes"].as_u64().unwrap(),
            "{name}"
        );
        let sum: String = Sha256::digest(&out)
            .iter()
            .map(|b| format!("{b:02x}"))
            .collect();
        assert_eq!(sum, golden["sha256"].as_str().unwrap(), "{name}");
        for (t, (count, _)) in &report.types {
            assert_eq!(
                *count as u64,
                golden["types"][t.name()].as_u64().unwrap(),
                "{name}"
            );
        }
        assert!(report.importance_unused.is_empty() && report.not_finite.is_empty());
        compared += 1;
    }
    assert_eq!(compared, 6);
}

#[test]
fn the_files_around_a_model() {
    let Some(folder) = goldens("zonos2-k") else {
        return;
    };
    let raw = bytes(folder.join("imatrix.bin"));
    let imatrix = Imatrix::read("imatrix.bin", &raw).unwrap();
    let mut again = Vec::new();
    imatrix.write(&mut again).unwrap();
    assert!(again == raw);
    let entry = &imatrix.entries["blk.3.ffn_gate_exps.weight"];
    assert!(entry.expert(2).is_some() && entry.expert(3).is_none());

    let raw = bytes(folder.join("kld_base.bin"));
    let base = KldBase::read("kld_base.bin", &raw).unwrap();
    assert_eq!((base.events().len(), base.sequences().len()), (81, 2));
    let golden = Golden::open(folder.join("golden.safetensors"));
    for (i, s) in base.sequences().iter().enumerate() {
        let rows = golden.rows(&format!("kld.seq.{i}")).unwrap();
        let ids: Vec<i32> = rows
            .concat()
            .as_chunks::<4>()
            .0
            .iter()
            .map(|b| i32::from_le_bytes(*b))
            .collect();
        assert_eq!(s.ids, ids);
    }
    let (voice, position) = base.sequences()[1].voice.as_ref().unwrap();
    assert_eq!((voice, *position), (&golden.vector("speaker.vector"), 0));
    // Log-probabilities are logits too: their log-softmax is themselves, but for the last bits.
    let mut w = KldWriter::new(Vec::new(), "o", base.shape(), base.sequences()).unwrap();
    for i in 0..base.events().len() {
        let row = base.log_probabilities(i).unwrap();
        let sum: f64 = row.iter().map(|&v| f64::from(v).exp()).sum();
        assert!((sum - 1.0).abs() < 1e-5, "event {i}: {sum}");
        w.write(&row).unwrap();
    }
    let again = w.finish().unwrap();
    let values = 81 * base.shape().vocabulary as usize * 4;
    let header = raw.len() - values;
    assert!(again[..header] == raw[..header] && again.len() == raw.len());
}
