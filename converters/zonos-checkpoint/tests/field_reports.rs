//! What went wrong for people with checkpoints, as tests: LFS pointers, stale shards, two spellings
//! of weight norm, foreign objects, renumbered layers, NaN weights.

mod common;

use std::fs;
use std::path::Path;

use burn::tensor::Tensor;
use common::*;
use zonos_checkpoint::{
    Checkpoint, LoadError, LoadOptions, Loader, NameMap, TensorSpec, WeightNormPolicy,
    WeightNormed, plan,
};

// Files that are not what their name says

#[test]
fn h03_files_that_are_something_else_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| {
        let path = dir.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    };
    let lfs = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 123456\n";
    let text = error(write("cut.gguf", b"GGU"));
    assert!(text.contains("cut.gguf: the file ends inside"), "{text}");
    for name in ["model.safetensors", "model.pth", "model.bpk"] {
        let text = error(write(name, lfs));
        assert!(
            text.contains("Git LFS pointer") && text.contains("git lfs pull"),
            "{text}"
        );
        assert!(text.contains(name) && text.contains("123456"), "{text}");
        let text = error(write(
            name,
            b"<!DOCTYPE html>\n<html><body>404</body></html>",
        ));
        assert!(
            text.contains("HTML page") && text.contains("download failed"),
            "{text}"
        );
        let text = error(write(name, b"\n  <HTML lang=en>"));
        assert!(text.contains("HTML"), "{text}");
        let text = error(write(name, b""));
        assert!(text.contains("empty"), "{text}");
        let text = error(write(name, b"{\"error\":\"Repository not found\"}"));
        assert!(text.contains("Repository not found"), "{text}");
        let text = error(write(name, &[0xde, 0xad, 0xbe, 0xef, 9, 9, 9, 9, 9, 9]));
        assert!(text.contains("de ad be ef"), "{text}");
        let text = error(write(name, b"GGUF\x03\0\0\0"));
        assert!(text.contains("the file ends inside"), "{text}");
        let text = error(write(name, b"\x1f\x8b\x08\0\0\0\0\0\0\0"));
        assert!(text.contains("gzip"), "{text}");
    }
    let text = error(dir.path().join("nowhere.pth"));
    assert!(
        text.contains("no such file") && text.contains("nowhere.pth"),
        "{text}"
    );
}

#[test]
fn h03_cut_files_say_how_much_is_missing() {
    let dir = tempfile::tempdir().unwrap();
    let cut = |source: &Path, keep: f64, name: &str| {
        let bytes = fs::read(source).unwrap();
        let keep = (bytes.len() as f64 * keep) as usize;
        let path = dir.path().join(name);
        fs::write(&path, &bytes[..keep]).unwrap();
        (error(&path), bytes.len(), keep)
    };
    let (text, whole, have) = cut(
        &fixture("zonos2/tiny/model.safetensors"),
        0.6,
        "a.safetensors",
    );
    assert!(
        text.contains(&format!("expected {whole} bytes, have {have}")),
        "{text}"
    );
    let (text, ..) = cut(
        &fixture("zonos2/tiny/model.safetensors"),
        0.001,
        "b.safetensors",
    );
    assert!(text.contains("truncated"), "inside the header: {text}");
    let (text, _, have) = cut(&fixture("dac/odd/weights.pth"), 0.6, "c.pth");
    assert!(text.contains(&format!("have {have} bytes")), "{text}");
    assert!(text.contains("stopped early"), "{text}");
    let (text, _, have) = cut(&fixture("dac/odd/weights.legacy.pth"), 0.6, "d.pth");
    assert!(
        text.contains("truncated") && text.contains(&format!("have {have}")),
        "{text}"
    );
    let (text, _, have) = cut(&made("kinds.tar.pth"), 0.5, "e.pth");
    assert!(
        text.contains(&have.to_string()) || text.contains("tar"),
        "{text}"
    );
}

#[test]
fn h03_a_folder_without_weights_lists_what_was_looked_for() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("readme.md"), "x").unwrap();
    let text = error(dir.path());
    for name in [
        "model.pth",
        "consolidated/consolidated.pth",
        "model.safetensors",
        "*.bpk",
    ] {
        assert!(text.contains(name), "{text}");
    }
    for name in ["a.safetensors", "b.safetensors"] {
        write_safetensors(&dir.path().join(name), &[("w", &[1], 0.0)]);
    }
    let text = error(dir.path());
    assert!(
        text.contains("several *.safetensors (a.safetensors, b.safetensors"),
        "{text}"
    );
    fs::create_dir(dir.path().join("consolidated")).unwrap();
    fs::copy(
        made("h07.gaps.pth"),
        dir.path().join("consolidated/consolidated.pth"),
    )
    .unwrap();
    fs::write(dir.path().join("params.json"), "{\"dim\": 3}").unwrap();
    let found = open(dir.path());
    assert_eq!(found.len(), 3);
    assert_eq!(found.sidecar("params.json").unwrap().unwrap()["dim"], 3);
    assert_eq!(found.sidecar("config.json").unwrap(), None);
    fs::write(dir.path().join("config.json"), "{").unwrap();
    assert!(
        found
            .sidecar("config.json")
            .unwrap_err()
            .to_string()
            .contains("config.json")
    );
    assert!(found.sidecar("../params.json").is_err());
}

#[test]
fn other_archives_are_told_apart() {
    let text = error(made("compressed.pth"));
    assert!(
        text.contains("compressed") && text.contains("zip -0"),
        "{text}"
    );
    let text = error(made("torchscript.pt"));
    assert!(text.contains("TorchScript"), "{text}");
}

// Shards

fn index(dir: &Path, map: &serde_json::Value) {
    let json = serde_json::json!({ "metadata": { "total_size": 8 }, "weight_map": map });
    fs::write(dir.join("model.safetensors.index.json"), json.to_string()).unwrap();
}

#[test]
fn h04_the_index_decides_which_shard_a_tensor_comes_from() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    write_safetensors(&dir.join("a.safetensors"), &[("w", &[2], 0.0)]);
    write_safetensors(
        &dir.join("b.safetensors"),
        &[("w", &[2], 1.0), ("x", &[2], 1.0)],
    );
    index(
        dir,
        &serde_json::json!({"w": "a.safetensors", "x": "b.safetensors"}),
    );
    let checkpoint = open(dir);
    assert_eq!(floats(checkpoint.tensor_data("w").unwrap()), [0.0, 0.0]);
    assert_eq!(floats(checkpoint.tensor_data("x").unwrap()), [1.0, 1.0]);
    assert_eq!(checkpoint.len(), 2);

    write_safetensors(&dir.join("model.safetensors"), &[("w", &[2], 2.0)]);
    let checkpoint = open(dir);
    assert_eq!(floats(checkpoint.tensor_data("w").unwrap()), [0.0, 0.0]);
    let about: Vec<_> = checkpoint
        .notices()
        .iter()
        .filter(|n| n.contains("model.safetensors"))
        .collect();
    assert_eq!(about.len(), 1, "{:?}", checkpoint.notices());

    index(
        dir,
        &serde_json::json!({"w": "a.safetensors", "x": "c.safetensors"}),
    );
    let text = error(dir);
    assert!(
        text.contains("'c.safetensors'") && text.contains("missing"),
        "{text}"
    );

    for bad in [
        "../a.safetensors",
        "/etc/passwd",
        "sub/a.safetensors",
        "..\\a",
        "C:a",
        "",
        "..",
    ] {
        index(dir, &serde_json::json!({ "w": bad }));
        let text = error(dir);
        assert!(text.contains("path parts are refused"), "{bad}: {text}");
    }
    index(
        dir,
        &serde_json::json!({"w": "a.safetensors", "y": "a.safetensors"}),
    );
    let text = error(dir);
    assert!(
        text.contains("'y'") && text.contains("does not hold it"),
        "{text}"
    );
    index(dir, &serde_json::json!({ "w": 5 }));
    assert!(error(dir).contains("'w'"));
    fs::write(dir.join("model.safetensors.index.json"), "{}").unwrap();
    assert!(error(dir).contains("weight_map"));
    fs::write(
        dir.join("model.safetensors.index.json"),
        "version https://git-lfs.github.com/spec/v1\n",
    )
    .unwrap();
    assert!(error(dir).contains("LFS"));
}

// Weight norm

fn h05_specs() -> Vec<TensorSpec> {
    vec![
        TensorSpec::weight_norm("conv.weight", [4, 4, 3]),
        TensorSpec::plain("conv.bias", [4]),
        TensorSpec::weight_norm("up.weight", [4, 6, 4]),
        TensorSpec::plain("up.bias", [6]),
    ]
}

#[test]
fn h05_both_spellings_give_the_same_weights() {
    let expected = open(made("h05.effective.safetensors"));
    let specs = h05_specs();
    for file in [
        "h05.weight_g.pth",
        "h05.parametrized.pth",
        "h05.mixed.pth",
        "h05.effective.safetensors",
    ] {
        let checkpoint = open(made(file));
        for policy in [WeightNormPolicy::Fold, WeightNormPolicy::Keep] {
            for device in [device(), device().autodiff()] {
                let options = LoadOptions {
                    weight_norm: policy,
                    ..LoadOptions::default()
                };
                let loader =
                    Loader::new(&checkpoint, &NameMap::new(), &specs, &options, &device).unwrap();
                for name in ["conv.weight", "up.weight"] {
                    let loaded = loader.weight_norm::<3>(name).unwrap();
                    let factored = matches!(loaded, WeightNormed::Factored { .. });
                    let kept = file != "h05.effective.safetensors"
                        && !(file == "h05.mixed.pth" && name == "up.weight");
                    assert_eq!(
                        factored,
                        kept && policy == WeightNormPolicy::Keep,
                        "{file} {name}"
                    );
                    if let WeightNormed::Factored { g, .. } = &loaded {
                        assert_eq!(g.dims(), [4, 1, 1]);
                    }
                    let ours = floats(loaded.weight().into_data());
                    let theirs = floats(expected.tensor_data(name).unwrap());
                    for (a, b) in ours.iter().zip(&theirs) {
                        assert!((a - b).abs() < 1e-6, "{file} {name}: {a} {b}");
                    }
                }
                let bias: Tensor<1> = loader.tensor("up.bias").unwrap();
                assert_eq!(
                    floats(bias.into_data()),
                    floats(expected.tensor_data("up.bias").unwrap())
                );
            }
        }
    }
}

#[test]
fn h05_half_a_pair_or_a_weight_given_twice_is_an_error() {
    let report = plan(&open(made("h05.half.pth")), &NameMap::new(), &h05_specs()).unwrap();
    assert!(!report.is_clean());
    assert!(
        report.problems[0].contains("'up.weight'")
            && report.problems[0].contains("v half is missing"),
        "{report}"
    );
    assert_eq!(report.matched.len(), 3);

    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("m.safetensors");
    write_safetensors(
        &file,
        &[
            ("c.weight", &[2, 2], 1.0),
            ("c.weight_g", &[2, 1], 1.0),
            ("c.weight_v", &[2, 2], 1.0),
        ],
    );
    let specs = [TensorSpec::weight_norm("c.weight", [2, 2])];
    let report = plan(&open(&file), &NameMap::new(), &specs).unwrap();
    assert!(report.problems[0].contains("given twice"), "{report}");

    // g of the wrong length, as when the two halves are swapped
    write_safetensors(
        &file,
        &[("c.weight_g", &[3, 1], 1.0), ("c.weight_v", &[2, 3], 1.0)],
    );
    let specs = [TensorSpec::weight_norm("c.weight", [2, 3])];
    let report = plan(&open(&file), &NameMap::new(), &specs).unwrap();
    assert_eq!(report.wrong_shape[0].expected, [2, 1]);
    assert_eq!(report.wrong_shape[0].found, [3, 1]);
}

// Foreign objects

#[test]
fn h06_foreign_objects_are_skipped_and_listed() {
    for file in ["h06.state_dict.pth", "h06.model.pth", "h06.module.pth"] {
        let checkpoint = open(made(file));
        let map = NameMap::new().strip_prefix("module.");
        let specs = [TensorSpec::plain("w", [2, 3]), TensorSpec::plain("b", [2])];
        let loader = Loader::new(
            &checkpoint,
            &map,
            &specs,
            &LoadOptions::default(),
            &device(),
        )
        .unwrap();
        assert_eq!(
            floats(loader.data("w").unwrap()),
            [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
        );
        assert_eq!(floats(loader.data("b").unwrap()), [1.0, -1.0]);
        let notices = checkpoint.notices().join("\n");
        for expected in [
            "lr'",
            "numpy",
            "cfg'",
            "omegaconf",
            "rng.1'",
            "path'",
            "big'",
        ] {
            assert!(
                notices.contains(expected),
                "{file}: {expected} in\n{notices}"
            );
        }
        assert!(
            notices.lines().all(|l| l.contains("not executed")),
            "{notices}"
        );
        // plain values are kept
        let root = checkpoint.metadata();
        let plain = if file == "h06.model.pth" {
            &root["model"]
        } else {
            root
        };
        assert_eq!(plain["epoch"], 7);
        assert_eq!(plain["args"]["steps"], serde_json::json!([1, 2, null]));
        assert_eq!(plain["args"]["decay"], 0.5);
        assert_eq!(plain["args"]["nan"], "NaN");
        assert!(plain.get("state_dict").is_none(), "{root}");
    }
}

#[test]
fn h06_an_object_in_place_of_a_needed_tensor_is_an_error() {
    let checkpoint = open(made("h06.object.pth"));
    let specs = [TensorSpec::plain("w", [2, 3]), TensorSpec::plain("b", [2])];
    let error = Loader::new(
        &checkpoint,
        &NameMap::new(),
        &specs,
        &LoadOptions::default(),
        &device(),
    )
    .unwrap_err()
    .to_string();
    assert!(error.contains("'w'") && error.contains("numpy"), "{error}");
    let error = checkpoint.tensor_data("w").unwrap_err().to_string();
    assert!(error.contains("numpy"), "{error}");
    assert!(checkpoint.notices()[0].contains("'model.w'"));

    let complex = open(made("h06.complex.pth"));
    assert_eq!(complex.names().collect::<Vec<_>>(), ["w"]);
    let skipped: Vec<_> = complex.skipped().iter().map(|s| s.name.as_str()).collect();
    assert_eq!(skipped, ["spectrum", "sparse"]);
}

#[test]
fn h06_nothing_is_executed() {
    let marker = Path::new("/tmp/zonos-pickle-was-executed");
    let _ = fs::remove_file(marker);
    let checkpoint = open(made("evil.pth"));
    assert_eq!(checkpoint.names().collect::<Vec<_>>(), ["w"]);
    assert!(
        checkpoint.notices()[0].contains("system"),
        "{:?}",
        checkpoint.notices()
    );
    assert!(!marker.exists());
}

// Names and shapes

#[test]
fn h07_gaps_are_kept_and_unknown_indices_refused() {
    let checkpoint = open(made("h07.gaps.pth"));
    for i in [0usize, 2, 5] {
        let data = checkpoint.tensor_data(&format!("seq.{i}.weight")).unwrap();
        assert_eq!(floats(data), [i as f32; 4]);
    }
    let specs: Vec<_> = [0, 2]
        .map(|i| TensorSpec::plain(format!("seq.{i}.weight"), [2, 2]))
        .into();
    let report = plan(&checkpoint, &NameMap::new(), &specs).unwrap();
    assert_eq!(report.unexpected[0].name, "seq.5.weight");
    assert!(!report.is_clean());
    let specs: Vec<_> = [0, 1, 2]
        .map(|i| TensorSpec::plain(format!("seq.{i}.weight"), [2, 2]))
        .into();
    let report = plan(&checkpoint, &NameMap::new(), &specs).unwrap();
    assert_eq!(report.missing[0].name, "seq.1.weight");
}

#[test]
fn everything_wrong_is_reported_at_once() {
    let checkpoint = open(made("kinds.pth"));
    let specs = [
        TensorSpec::plain("f32", [8, 6]),
        TensorSpec::plain("i64", [2]),
        TensorSpec::plain("nothing", [1]),
        TensorSpec::plain("maybe", [1]).optional(),
        TensorSpec::plain("f16", [5]),
        TensorSpec::plain("bf16", [2, 3, 1]).loose_ones(),
    ];
    let map = NameMap::new()
        .ignore("i*")
        .ignore("u8")
        .rename("f64", "f16");
    let map = map.with_overrides(NameMap::new().rename("i64", "i64"));
    let report = plan(&checkpoint, &map, &specs).unwrap();
    assert_eq!(report.wrong_shape[0].expected, [8, 6]);
    assert_eq!(report.wrong_shape[0].found, [6, 8]);
    let missing: Vec<_> = report.missing.iter().map(|m| m.name.as_str()).collect();
    assert_eq!(missing, ["i64", "nothing"]);
    assert_eq!(report.absent, ["maybe"]);
    assert!(
        report
            .problems
            .iter()
            .any(|p| p.contains("'f16' comes from f64 and from f16")),
        "{report}"
    );
    assert_eq!(report.ignored.len(), 5);
    assert_eq!(report.unexpected.len(), 10);
    let text = report.to_string();
    for expected in [
        "expected [8, 6], found [6, 8]",
        "nothing",
        "rule i*",
        "scalar",
    ] {
        assert!(text.contains(expected), "{text}");
    }

    let specs = [TensorSpec::plain("i32", [2, 2])];
    let options = LoadOptions::default();
    let error = Loader::new(&checkpoint, &NameMap::new(), &specs, &options, &device()).unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("'i32' expected a float, found I32") && !text.contains('\n'),
        "{text}"
    );
    assert!(matches!(error, LoadError::NotClean { .. }));

    let options = LoadOptions {
        partial: true,
        ..LoadOptions::default()
    };
    let specs = [
        TensorSpec::plain("f32", [6, 8]),
        TensorSpec::plain("nothing", [1]),
    ];
    let loader = Loader::new(&checkpoint, &NameMap::new(), &specs, &options, &device()).unwrap();
    assert!(loader.has("f32") && !loader.has("nothing"));
    assert!(matches!(
        loader.data("nothing"),
        Err(LoadError::Absent { .. })
    ));
    assert!(matches!(
        loader.tensor::<3>("f32"),
        Err(LoadError::Rank { .. })
    ));
}

#[test]
fn another_model_in_the_file_is_recognised() {
    let checkpoint = open(fixture("dac/odd/weights.pth"));
    let specs = [TensorSpec::plain("multi_output.weight", [9234, 2048])];
    let error = Loader::new(
        &checkpoint,
        &NameMap::new(),
        &specs,
        &LoadOptions::default(),
        &device(),
    )
    .unwrap_err()
    .to_string();
    assert!(error.contains("looks like: DAC"), "{error}");
    assert!(error.contains("'multi_output.weight'"), "{error}");
}

// Values

#[test]
fn h08_nan_weights_are_a_warning() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("nan.safetensors");
    write_safetensors(
        &file,
        &[
            ("good", &[4], 1.0),
            ("bad", &[3], f32::NAN),
            ("huge", &[2], f32::INFINITY),
        ],
    );
    let checkpoint = open(&file);
    let specs = [
        TensorSpec::plain("good", [4]),
        TensorSpec::plain("bad", [3]),
        TensorSpec::plain("huge", [2]),
    ];
    let loader = Loader::new(
        &checkpoint,
        &NameMap::new(),
        &specs,
        &LoadOptions::default(),
        &device(),
    )
    .unwrap();
    let report = loader.report();
    assert!(report.is_clean());
    assert_eq!(report.non_finite.len(), 2);
    assert_eq!(
        (report.non_finite[0].name.as_str(), report.non_finite[0].nan),
        ("bad", 3)
    );
    assert_eq!(
        (
            report.non_finite[1].name.as_str(),
            report.non_finite[1].infinite
        ),
        ("huge", 2)
    );
    let found = zonos_checkpoint::inspect(&checkpoint, true).unwrap();
    assert_eq!(found.non_finite.unwrap().len(), 2);
    let plan = plan(&checkpoint, &NameMap::new(), &specs).unwrap();
    assert!(plan.non_finite.is_empty(), "a plan reads no values");
}

#[test]
fn dtypes_follow_the_policy() {
    use burn::tensor::DType;
    use zonos_checkpoint::DTypePolicy;

    let checkpoint = open(made("kinds.pth"));
    let specs = [
        TensorSpec::plain("f64", [3]),
        TensorSpec::plain("f32", [6, 8]),
        TensorSpec::plain("f16", [5]),
        TensorSpec::plain("bf16", [2, 3]),
        TensorSpec::plain("scalar", []),
    ];
    for device in [device(), device().autodiff()] {
        for (policy, expected) in [
            (
                DTypePolicy::Keep,
                [DType::F32, DType::F32, DType::F16, DType::BF16],
            ),
            (DTypePolicy::F32, [DType::F32; 4]),
        ] {
            let options = LoadOptions {
                dtype: policy,
                partial: true,
                ..LoadOptions::default()
            };
            let loader =
                Loader::new(&checkpoint, &NameMap::new(), &specs, &options, &device).unwrap();
            for (name, expected) in ["f64", "f32", "f16", "bf16"].into_iter().zip(expected) {
                let data = loader.data(name).unwrap();
                assert_eq!(data.dtype(), expected, "{name}");
                assert_eq!(floats(data), floats(checkpoint.tensor_data(name).unwrap()));
            }
            let half: Tensor<1> = loader.tensor("f16").unwrap();
            assert_eq!(half.dtype(), expected[2]);
            assert_eq!(loader.tensor_f32::<1>("f16").unwrap().dtype(), DType::F32);
            let scalar: Tensor<1> = loader.tensor("scalar").unwrap();
            assert_eq!(floats(scalar.into_data()), [2.5]);
            let rows = loader.data_rows("f32", 2..4).unwrap();
            assert_eq!(
                floats(rows),
                floats(checkpoint.tensor_data("rows").unwrap())
            );
            assert!(loader.data_rows("f32", 5..7).is_err());
        }
    }
}

// Expert layouts

/// Two experts of width 2 with gate rows 10e + i and up rows 100 + 10e + i.
fn experts(layout: &str) -> (tempfile::TempDir, Checkpoint) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("m.safetensors");
    let gate = |e: usize, i: usize| (10 * e + i) as f32;
    let up = |e: usize, i: usize| 100.0 + gate(e, i);
    let mut tensors: Vec<(String, Vec<usize>, Vec<f32>)> = Vec::new();
    let rows = |f: &dyn Fn(usize, usize) -> f32, e: usize| -> Vec<f32> {
        (0..2).flat_map(|i| [f(e, i), -f(e, i), 0.5]).collect()
    };
    match layout {
        "per expert" => {
            for e in 0..2 {
                tensors.push((
                    format!("l.experts.{e}.w1.weight"),
                    vec![2, 3],
                    rows(&gate, e),
                ));
                tensors.push((format!("l.experts.{e}.w3.weight"), vec![2, 3], rows(&up, e)));
                tensors.push((
                    format!("l.experts.{e}.w2.weight"),
                    vec![3, 2],
                    vec![e as f32; 6],
                ));
            }
        }
        "stacked" => {
            let all = |f: &dyn Fn(usize, usize) -> f32| [rows(f, 0), rows(f, 1)].concat();
            tensors.push(("l.experts.w1.weight".into(), vec![2, 2, 3], all(&gate)));
            tensors.push(("l.experts.w3.weight".into(), vec![2, 2, 3], all(&up)));
            tensors.push((
                "l.experts.w2.weight".into(),
                vec![2, 3, 2],
                [vec![0.0; 6], vec![1.0; 6]].concat(),
            ));
        }
        _ => {
            let both = [rows(&gate, 0), rows(&up, 0), rows(&gate, 1), rows(&up, 1)].concat();
            tensors.push(("l.experts.gate_up_proj".into(), vec![2, 4, 3], both));
            tensors.push((
                "l.experts.down_proj".into(),
                vec![2, 3, 2],
                [vec![0.0; 6], vec![1.0; 6]].concat(),
            ));
        }
    }
    let mut header = serde_json::Map::new();
    let mut data: Vec<u8> = Vec::new();
    for (name, shape, values) in tensors {
        let start = data.len();
        data.extend(values.iter().flat_map(|v| v.to_le_bytes()));
        header.insert(
            name,
            serde_json::json!({"dtype": "F32", "shape": shape, "data_offsets": [start, data.len()]}),
        );
    }
    let mut text = serde_json::Value::Object(header).to_string().into_bytes();
    text.resize(text.len().next_multiple_of(8), b' ');
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.extend(text);
    bytes.extend(data);
    fs::write(&file, bytes).unwrap();
    let checkpoint = open(&file);
    (dir, checkpoint)
}

fn expert_map() -> NameMap {
    NameMap::new()
        .interleave(
            "*.experts.{e}.w1.weight",
            "*.experts.{e}.w3.weight",
            "*.experts.{e}.w13",
            0,
        )
        .stack("*.experts.{e}.w13", "e", "*.experts.w13")
        .stack("*.experts.{e}.w2.weight", "e", "*.experts.w2")
        .interleave(
            "*.experts.w1.weight",
            "*.experts.w3.weight",
            "*.experts.w13",
            -2,
        )
        .rename("*.experts.w2.weight", "*.experts.w2")
        .interleave_halves("*.experts.gate_up_proj", "*.experts.w13", -2)
        .rename("*.experts.down_proj", "*.experts.w2")
}

#[test]
fn expert_layouts_become_one() {
    let specs = [
        TensorSpec::plain("l.experts.w13", [2, 4, 3]),
        TensorSpec::plain("l.experts.w2", [2, 3, 2]),
    ];
    for layout in ["per expert", "stacked", "halves"] {
        let (_dir, checkpoint) = experts(layout);
        let loader = Loader::new(
            &checkpoint,
            &expert_map(),
            &specs,
            &LoadOptions::default(),
            &device(),
        )
        .unwrap();
        let w13 = floats(loader.data("l.experts.w13").unwrap());
        let first: Vec<f32> = w13.chunks(3).map(|row| row[0]).collect();
        // even rows gate, odd rows up
        assert_eq!(
            first,
            [0.0, 100.0, 1.0, 101.0, 10.0, 110.0, 11.0, 111.0],
            "{layout}"
        );
        assert!(w13.chunks(3).all(|row| row[1] == -row[0] && row[2] == 0.5));
        let w2 = floats(loader.data("l.experts.w2").unwrap());
        assert_eq!(w2, [vec![0.0; 6], vec![1.0; 6]].concat(), "{layout}");
        let second = floats(loader.data_rows("l.experts.w13", 1..2).unwrap());
        assert_eq!(second, w13[12..]);
    }
}

#[test]
fn incomplete_expert_stacks_are_named() {
    let (_dir, checkpoint) = experts("per expert");
    let map = NameMap::new()
        .ignore("*.experts.0.w1.weight")
        .with_overrides(NameMap::new());
    let map = map.ignore("*.experts.0.w2.weight");
    let mut rules = expert_map();
    rules = rules.with_overrides(map);
    let specs = [TensorSpec::plain("l.experts.w13", [2, 4, 3])];
    let report = plan(&checkpoint, &rules, &specs).unwrap();
    let problems = report.problems.join("\n");
    assert!(
        problems.contains("only l.experts.0.w3.weight"),
        "{problems}"
    );
    assert!(
        problems.contains("numbered 0, 1, .. but the file has 1"),
        "{problems}"
    );
}

#[test]
fn split_concat_and_transpose_move_values_where_they_belong() {
    let checkpoint = open(made("kinds.pth"));
    let map = NameMap::new()
        .transpose("transposed", "back", (0, 1))
        .split("f32", &["top", "bottom"], 0, Some(&[2, 4]))
        .split("permuted", &["left", "middle", "right", "last"], -1, None)
        .concat(&["left", "middle", "right", "last"], "joined", -1);
    let specs = [
        TensorSpec::plain("back", [6, 8]),
        TensorSpec::plain("top", [2, 8]),
        TensorSpec::plain("bottom", [4, 8]),
        TensorSpec::plain("joined", [5, 3, 4]),
    ];
    let options = LoadOptions {
        partial: true,
        ..LoadOptions::default()
    };
    let loader = Loader::new(&checkpoint, &map, &specs, &options, &device()).unwrap();
    let f32s = floats(checkpoint.tensor_data("f32").unwrap());
    assert_eq!(floats(loader.data("back").unwrap()), f32s);
    assert_eq!(floats(loader.data("top").unwrap()), f32s[..16]);
    assert_eq!(floats(loader.data("bottom").unwrap()), f32s[16..]);
    let permuted = floats(checkpoint.tensor_data("permuted").unwrap());
    assert_eq!(floats(loader.data("joined").unwrap()), permuted);

    let map = NameMap::new().split("f32", &["a", "b", "c", "d"], 0, None);
    let report = plan(&checkpoint, &map, &specs).unwrap();
    assert!(report.problems[0].contains("axis of 6"), "{report}");
    let map = NameMap::new().transpose("f16", "x", (0, 1));
    let report = plan(&checkpoint, &map, &specs).unwrap();
    assert!(report.problems[0].contains("no axis 1"), "{report}");
}

/// Files may keep keys in one type and values in another.
#[test]
fn parts_of_different_float_types_become_f32_together() {
    use zonos_gguf::{GgmlType, GgufWriter, Metadata, NewTensor};
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("mixed.gguf");
    let entry = |name: &str, ggml_type| NewTensor {
        name: name.into(),
        dims: vec![32, 2],
        ggml_type,
    };
    let entries = [
        entry("k", GgmlType::Q8_0),
        entry("v", GgmlType::F16),
        entry("w", GgmlType::I8),
    ];
    let file = fs::File::create(&path).unwrap();
    let mut writer = GgufWriter::new(file, "mixed.gguf", &Metadata::new(), &entries).unwrap();
    // Blocks of scale 0.5 and codes 3, halves of -2.
    let mut blocks = [3u8; 68];
    for block in blocks.chunks_exact_mut(34) {
        block[..2].copy_from_slice(&0x3800u16.to_le_bytes());
    }
    writer.write("k", &blocks).unwrap();
    writer.write("v", &[0x00, 0xC0].repeat(64)).unwrap();
    writer.write("w", &[1; 64]).unwrap();
    writer.finish().unwrap();

    let checkpoint = open(&path);
    let loaded = |map: &NameMap, shape: &[usize]| {
        let specs = [TensorSpec::plain("both", shape.to_vec())];
        let options = LoadOptions {
            partial: true,
            ..LoadOptions::default()
        };
        Loader::new(&checkpoint, map, &specs, &options, &device())
            .and_then(|loader| loader.data("both"))
    };
    let (k, v) = (vec![1.5; 64], vec![-2.0; 64]);
    let concat = NameMap::new().concat(&["k", "v"], "both", 0);
    let data = loaded(&concat, &[4, 32]).unwrap();
    assert_eq!(floats(data), [k, v].concat());
    // Integers are no values of weights.
    let concat = NameMap::new().concat(&["k", "w"], "both", 0);
    let error = loaded(&concat, &[4, 32]).unwrap_err().to_string();
    assert!(error.contains("both"), "{error}");
}

// Map files

#[test]
fn map_files_say_the_same_as_code() {
    let dir = tempfile::tempdir().unwrap();
    let toml = dir.path().join("map.toml");
    fs::write(
        &toml,
        "[[rules]]\ndo = \"strip_prefix\"\nprefix = \"seq.\"\n\n[[rules]]\ndo = \"rename\"\nfrom = \"{i}.weight\"\nto = \"layer{i+1}.w\"\n\n[[rules]]\ndo = \"ignore\"\nnames = \"layer{n>=5}.*\"\n",
    )
    .unwrap();
    let json = dir.path().join("map.json");
    fs::write(
        &json,
        r#"{"rules": [{"do": "rename", "from": "seq.{i}.weight", "to": "layer{i+1}.w"}, {"do": "ignore", "names": "layer{n>=5}.*"}]}"#,
    )
    .unwrap();
    let checkpoint = open(made("h07.gaps.pth"));
    let specs = [
        TensorSpec::plain("layer1.w", [2, 2]),
        TensorSpec::plain("layer3.w", [2, 2]),
    ];
    for file in [&toml, &json] {
        let map = NameMap::new().with_overrides(NameMap::from_file(file).unwrap());
        let report = plan(&checkpoint, &map, &specs).unwrap();
        assert!(report.is_clean(), "{report}");
        assert_eq!(report.ignored[0].name, "seq.5.weight");
    }
    let wrong = |name: &str, text: &str| {
        let file = dir.path().join(name);
        fs::write(&file, text).unwrap();
        NameMap::from_file(&file).unwrap_err().to_string()
    };
    assert!(wrong("a.toml", "[[rules]]\ndo = \"fly\"\n").contains("fly"));
    assert!(
        wrong(
            "b.json",
            r#"{"rules": [{"do": "rename", "from": "a.{i}", "to": "b.{j}"}]}"#
        )
        .contains("{j}")
    );
    assert!(wrong("c.json", r#"{"rules": [{"do": "ignore", "name": "a"}]}"#).contains("name"));
    assert!(wrong("d.txt", "").contains(".toml or .json"));
    let mistake = NameMap::new().rename("a.{", "b");
    assert!(matches!(
        plan(&checkpoint, &mistake, &specs),
        Err(LoadError::NameMap(_))
    ));
}

/// The text of an error about a checkpoint that opens, or does not.
fn sidecar_error(dir: &Path, file: &str) -> String {
    let checkpoint = open(dir.join("model.safetensors"));
    checkpoint.sidecar(file).unwrap_err().to_string()
}

#[cfg(unix)]
#[test]
fn pipes_are_refused_instead_of_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let pipe = |name: &str| {
        let path = dir.path().join(name);
        let made = std::process::Command::new("mkfifo").arg(&path).status();
        assert!(made.unwrap().success());
        path
    };
    let text = error(pipe("pipe.safetensors"));
    assert!(text.contains("not a regular file"), "{text}");
    write_safetensors(&dir.path().join("model.safetensors"), &[("w", &[2], 1.0)]);
    pipe("params.json");
    let text = sidecar_error(dir.path(), "params.json");
    assert!(
        text.contains("params.json") && text.contains("not a regular file"),
        "{text}"
    );
    index(dir.path(), &serde_json::json!({"w": "pipe.safetensors"}));
    let text = error(dir.path().join("model.safetensors.index.json"));
    assert!(
        text.contains("pipe.safetensors") && text.contains("not a regular file"),
        "{text}"
    );
    let text = NameMap::from_file(pipe("map.toml"))
        .unwrap_err()
        .to_string();
    assert!(text.contains("not a regular file"), "{text}");
}

#[test]
fn json_files_that_are_something_else_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
    write_safetensors(&dir.path().join("model.safetensors"), &[("w", &[2], 1.0)]);
    write("params.json", "<!doctype html><html>login</html>");
    let text = sidecar_error(dir.path(), "params.json");
    assert!(
        text.contains("params.json") && text.contains("HTML page"),
        "{text}"
    );
    write(
        "params.json",
        "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 99\n",
    );
    let text = sidecar_error(dir.path(), "params.json");
    assert!(
        text.contains("Git LFS pointer") && text.contains("99 bytes"),
        "{text}"
    );
    write("params.json", "");
    let text = sidecar_error(dir.path(), "params.json");
    assert!(text.contains("empty"), "{text}");
    write("params.json", "\u{feff}{\"dim\": 64}");
    let params = open(dir.path().join("model.safetensors")).sidecar("params.json");
    assert_eq!(params.unwrap().unwrap()["dim"], 64);
    write("model.safetensors.index.json", "<html></html>");
    let text = error(dir.path().join("model.safetensors.index.json"));
    assert!(text.contains("HTML page"), "{text}");
}

#[test]
fn faults_of_a_safetensors_header_name_the_tensor_and_the_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.safetensors");
    let text = |header: &str| {
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header.as_bytes());
        file.extend([0; 24]);
        fs::write(&path, file).unwrap();
        error(&path)
    };
    for (header, parts) in [
        (
            r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[5],"data_offsets":[8,24]}}"#,
            ["'b'", "expected 20 bytes for F32 [5]", "found 16"],
        ),
        (
            r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[3],"data_offsets":[12,24]}}"#,
            ["'b'", "begin at byte 8", "found bytes 12 to 24"],
        ),
        (
            r#"{"a":{"dtype":"F31","shape":[2],"data_offsets":[0,8]}}"#,
            ["'a'", "unknown dtype", "F31"],
        ),
        (
            r#"{"a":{"dtype":"F32","data_offsets":[0,24]}}"#,
            ["'a'", "no valid 'shape'", "x.safetensors"],
        ),
        (r#"{"a":"#, ["not valid JSON", "line 1", "x.safetensors"]),
    ] {
        let text = text(header);
        for part in parts.into_iter().chain(["download or copy it again"]) {
            assert!(text.contains(part), "{part} in {text}");
        }
    }
}

#[test]
fn names_are_escaped_where_people_read_them() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.safetensors");
    let name = "w\u{1b}[2J\nfile  /etc";
    write_safetensors(&path, &[(name, &[2], 1.0)]);
    let checkpoint = open(&path);
    assert_eq!(checkpoint.names().next(), Some(name));
    let specs = [TensorSpec::plain("v", [2])];
    let report = plan(&checkpoint, &NameMap::new(), &specs).unwrap();
    let options = LoadOptions::default();
    let refused = Loader::new(&checkpoint, &NameMap::new(), &specs, &options, &device())
        .unwrap_err()
        .to_string();
    assert!(
        refused.ends_with(&format!("see `zonos inspect {}`", path.display())),
        "{refused}"
    );
    for text in [
        report.to_string(),
        report.summary(),
        refused,
        zonos_checkpoint::inspect(&checkpoint, false)
            .unwrap()
            .to_string(),
        checkpoint
            .tensor_data("v\u{1b}[2J\nfile")
            .unwrap_err()
            .to_string(),
    ] {
        assert!(
            !text.contains('\u{1b}') && text.contains(r"\u{1b}[2J\nfile"),
            "{text}"
        );
    }
}

/// A copy of a safetensors file with its tensors under other names.
fn renamed(from: &Path, to: &Path, rename: impl Fn(&str) -> String) {
    let bytes = fs::read(from).unwrap();
    let end = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: serde_json::Map<String, serde_json::Value> =
        serde_json::from_slice(&bytes[8..end]).unwrap();
    let header: serde_json::Map<_, _> = header
        .into_iter()
        .map(|(name, info)| match name.as_str() {
            "__metadata__" => (name, info),
            _ => (rename(&name), info),
        })
        .collect();
    let mut text = serde_json::Value::Object(header).to_string().into_bytes();
    text.resize(text.len().next_multiple_of(8), b' ');
    let mut file = (text.len() as u64).to_le_bytes().to_vec();
    file.extend(text);
    file.extend(&bytes[end..]);
    fs::write(to, file).unwrap();
}

#[test]
fn h06_names_under_training_wrappers_are_the_models_own() {
    let dir = tempfile::tempdir().unwrap();
    for model in [
        "zonos2/tiny/model.safetensors",
        "dac/tiny/folded.safetensors",
    ] {
        let plain = open(fixture(model));
        let specs: Vec<_> = plain
            .names()
            .map(|n| TensorSpec::plain(n, plain.info(n).unwrap().shape.clone()))
            .collect();
        let map = NameMap::new().strip_wrappers();
        // Names without wrappers stay, `decoder.model.0` among them.
        let report = plan(&plain, &map, &specs).unwrap();
        assert!(report.is_clean(), "{report}");
        for wrapper in [
            "module.",
            "_orig_mod.",
            "model.",
            "module._orig_mod.",
            "_orig_mod.module.",
            "model._orig_mod.module.",
        ] {
            let path = dir.path().join("wrapped.safetensors");
            renamed(&fixture(model), &path, |name| format!("{wrapper}{name}"));
            let report = plan(&open(&path), &map, &specs).unwrap();
            assert!(report.is_clean(), "{model}: {wrapper}: {report}");
            fs::remove_file(&path).unwrap();
        }
        let path = dir.path().join("compiled.safetensors");
        renamed(&fixture(model), &path, |name| {
            name.replacen(".0.", ".0._orig_mod.", 1)
        });
        let report = plan(&open(&path), &map, &specs).unwrap();
        assert!(report.is_clean(), "{model}: {report}");
    }
}
