//! The same tensors out of every container.

mod common;

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use burn::tensor::{AllocationProperty, TensorData};
use common::*;
use zonos_checkpoint::{
    Checkpoint, CheckpointError, Format, LoadOptions, Loader, ModelKind, NameMap, OpenOptions,
    TensorSpec, convert, convert_until, convert_with, inspect,
};

fn all(checkpoint: &Checkpoint) -> BTreeMap<String, TensorData> {
    checkpoint
        .names()
        .map(|n| (n.to_string(), checkpoint.tensor_data(n).unwrap()))
        .collect()
}

fn assert_all_same(a: &Checkpoint, b: &Checkpoint) {
    let (left, right) = (all(a), all(b));
    assert!(left.keys().eq(right.keys()), "names differ");
    assert!(!left.is_empty());
    for (name, data) in &left {
        assert_same(name, data, &right[name]);
    }
}

#[test]
fn zonos2_is_the_same_in_pth_safetensors_and_shards() {
    let pth = open(fixture("zonos2/tiny"));
    let single = open(fixture("zonos2/tiny/model.safetensors"));
    let sharded = open(fixture("zonos2/tiny/sharded"));
    assert_eq!(pth.format(), Format::TorchZip);
    assert_eq!(single.format(), Format::Safetensors);
    assert_eq!(sharded.format(), Format::SafetensorsSharded);
    assert_eq!((pth.len(), single.len()), (101, 99));
    assert_all_same(&single, &sharded);
    for checkpoint in [&pth, &single, &sharded] {
        assert_eq!(checkpoint.model_kind(), ModelKind::Zonos2);
        assert_eq!(
            checkpoint.sidecar("params.json").unwrap().unwrap()["n_layers"],
            6
        );
    }

    let map = NameMap::new()
        .rename("*.parametrizations.*.original", "*.*")
        .ignore("*.router.ent_denom*")
        .ignore("*.router.normalized_entropy*");
    let specs: Vec<TensorSpec> = single
        .names()
        .map(|n| TensorSpec::plain(n, single.info(n).unwrap().shape.clone()))
        .collect();
    let loader = Loader::new(&pth, &map, &specs, &LoadOptions::default(), &device()).unwrap();
    assert_eq!(loader.report().matched.len(), 99);
    assert_eq!(loader.report().ignored.len(), 2);
    for spec in &specs {
        let name = &spec.name;
        assert_same(
            name,
            &loader.data(name).unwrap(),
            &single.tensor_data(name).unwrap(),
        );
    }
}

#[test]
fn names_keep_the_order_of_the_file() {
    let pth = open(made("h07.gaps.pth"));
    let names: Vec<&str> = pth.names().collect();
    assert_eq!(names, ["seq.0.weight", "seq.2.weight", "seq.5.weight"]);
    let kinds = open(made("kinds.pth"));
    assert_eq!(kinds.names().next(), Some("f64"));
    assert_eq!(kinds.names().last(), Some("parameter"));
}

#[test]
fn every_dtype_and_view_equals_what_python_saw() {
    let expected = open(made("kinds.safetensors"));
    for name in ["kinds.pth", "kinds.protocol4.pth", "kinds.legacy.pth"] {
        assert_all_same(&open(made(name)), &expected);
    }
    let tar = open(made("kinds.tar.pth"));
    assert_eq!(tar.format(), Format::TorchTar);
    assert_eq!(tar.len(), 17);
    for name in tar.names() {
        let data = tar.tensor_data(name).unwrap();
        assert_same(name, &data, &expected.tensor_data(name).unwrap());
    }
    assert_eq!(open(made("kinds.legacy.pth")).format(), Format::TorchLegacy);
    let pth = open(made("kinds.pth"));
    assert!(!pth.info("transposed").unwrap().contiguous);
    assert!(
        pth.info("rows").unwrap().contiguous,
        "a block of rows is a view"
    );
    assert!(pth.info("scalar").unwrap().shape.is_empty());
}

#[test]
fn a_whole_module_reads_as_its_state_dict() {
    assert_all_same(&open(made("module.pth")), &open(made("module.safetensors")));
}

#[test]
fn aligned_tensors_are_views_of_the_file() {
    for path in [
        "zonos2/tiny/model.pth",
        "zonos2/tiny/model.safetensors",
        "dac/tiny/weights.pth",
    ] {
        let checkpoint = open(fixture(path));
        for name in checkpoint.names() {
            let data = checkpoint.tensor_data(name).unwrap();
            let width = data.dtype().size() as u64;
            let aligned = checkpoint.info(name).unwrap().offset.is_multiple_of(width);
            let mapped = matches!(data.bytes().property(), AllocationProperty::File);
            assert_eq!(mapped, aligned, "{path}: {name}");
        }
    }
    // torch aligns storages, so nothing in a .pth of contiguous tensors is copied
    let pth = open(fixture("dac/tiny/weights.pth"));
    let info = pth.info("decoder.model.0.weight_v").unwrap();
    assert!(info.offset.is_multiple_of(64), "{}", info.offset);
}

#[test]
fn dac_is_the_same_in_all_its_torch_containers() {
    for name in ["weights.cuda.pth", "weights.legacy.pth"] {
        let base = open(fixture("dac/odd/weights.pth"));
        let other = open(fixture("dac/odd").join(name));
        assert_all_same(&base, &other);
        assert_eq!(base.metadata(), other.metadata());
        assert_eq!(other.model_kind(), ModelKind::Dac);
    }
    let checkpoint = open(fixture("dac/odd/weights.pth"));
    let kwargs = &checkpoint.metadata()["metadata"]["kwargs"];
    assert_eq!(kwargs["codebook_dim"], serde_json::json!([4, 8, 4]));
}

/// The rules of dac.md section 3 for the transformers layout, decoder side.
fn transformers() -> NameMap {
    NameMap::new()
        .rename("decoder.conv1.*", "decoder.model.0.*")
        .rename(
            "decoder.block.{i}.snake1.*",
            "decoder.model.{i+1}.block.0.*",
        )
        .rename(
            "decoder.block.{i}.conv_t1.*",
            "decoder.model.{i+1}.block.1.*",
        )
        .rename(
            "decoder.block.{i}.res_unit{r}.snake1.*",
            "decoder.model.{i+1}.block.{r+1}.block.0.*",
        )
        .rename(
            "decoder.block.{i}.res_unit{r}.conv1.*",
            "decoder.model.{i+1}.block.{r+1}.block.1.*",
        )
        .rename(
            "decoder.block.{i}.res_unit{r}.snake2.*",
            "decoder.model.{i+1}.block.{r+1}.block.2.*",
        )
        .rename(
            "decoder.block.{i}.res_unit{r}.conv2.*",
            "decoder.model.{i+1}.block.{r+1}.block.3.*",
        )
        .rename("decoder.snake1.*", "decoder.model.5.*")
        .rename("decoder.conv2.*", "decoder.model.6.*")
        .ignore("encoder.*")
}

#[test]
fn dac_layouts_fold_to_the_same_weights() {
    let dir = fixture("dac").join("tiny");
    let folded = open(dir.join("folded.safetensors"));
    let specs: Vec<TensorSpec> = folded
        .names()
        .filter(|n| !n.starts_with("encoder."))
        .map(|n| {
            let shape = folded.info(n).unwrap().shape.clone();
            if n.ends_with(".weight") {
                TensorSpec::weight_norm(n, shape)
            } else {
                TensorSpec::plain(n, shape)
            }
        })
        .collect();
    assert!(specs.len() > 90);
    for file in [
        "weights.pth",
        "weights.parametrized.pth",
        "hf/model.safetensors",
    ] {
        let checkpoint = open(dir.join(file));
        let loader = Loader::new(
            &checkpoint,
            &transformers(),
            &specs,
            &LoadOptions::default(),
            &device(),
        )
        .unwrap_or_else(|e| panic!("{file}: {e}"));
        for spec in &specs {
            let ours = floats(loader.data(&spec.name).unwrap());
            let theirs = floats(folded.tensor_data(&spec.name).unwrap());
            for (a, b) in ours.iter().zip(&theirs) {
                assert!(
                    (a - b).abs() <= 1e-6 * b.abs().max(1e-3),
                    "{file}: {}: {a} {b}",
                    spec.name
                );
            }
        }
    }
}

#[test]
fn conversions_keep_names_values_metadata_and_sidecars() {
    let dir = tempfile::tempdir().unwrap();
    let inputs = [
        fixture("zonos2/tiny/model.pth"),
        fixture("zonos2/tiny/sharded"),
        fixture("dac/odd/weights.legacy.pth"),
        made("kinds.pth"),
        made("h06.state_dict.pth"),
    ];
    for input in inputs {
        let source = open(&input);
        for ending in ["safetensors", "bpk"] {
            let out = dir.path().join("out").with_extension(ending);
            let mut told = Vec::new();
            convert_with(&source, &out, &mut |p| {
                told.push((p.tensors_done, p.bytes_done))
            })
            .unwrap();
            assert_eq!(told.len(), source.len());
            assert_eq!(told[0], (0, 0));
            assert!(told.last().unwrap().1 <= source.total_bytes());
            let copy = open(&out);
            assert_all_same(&source, &copy);
            assert_eq!(
                source.sidecar("params.json").unwrap(),
                copy.sidecar("params.json").unwrap()
            );
            let mut metadata = copy.metadata().clone();
            if source.metadata().get("format").is_none()
                && let Some(map) = metadata.as_object_mut()
            {
                map.remove("format");
            }
            assert_eq!(source.metadata(), &metadata, "{}", input.display());
            // and once more, from the copy
            let again = dir.path().join("again.safetensors");
            convert(&copy, &again).unwrap();
            assert_all_same(&source, &open(&again));
        }
        let names: Vec<_> = std::fs::read_dir(&dir)
            .unwrap()
            .map(|e| e.unwrap().file_name())
            .collect();
        assert_eq!(names.len(), 3, "temporary files were left: {names:?}");
    }
}

#[test]
fn converted_files_are_mapped_without_copies() {
    let dir = tempfile::tempdir().unwrap();
    for ending in ["safetensors", "bpk"] {
        let out = dir.path().join("out").with_extension(ending);
        convert(&open(made("kinds.pth")), &out).unwrap();
        let copy = open(&out);
        for name in copy.names().filter(|n| copy.info(n).unwrap().bytes > 0) {
            let data = copy.tensor_data(name).unwrap();
            assert!(
                matches!(data.bytes().property(), AllocationProperty::File),
                "{ending}: {name} was copied"
            );
        }
    }
}

#[test]
fn conversions_that_make_no_sense_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let input = dir.path().join("in.safetensors");
    write_safetensors(&input, &[("w", &[2], 1.0)]);
    let before = std::fs::read(&input).unwrap();
    let checkpoint = open(&input);
    let refused = |out: &std::path::Path| convert(&checkpoint, out).unwrap_err().to_string();
    assert!(refused(&input).contains("input itself"));
    assert!(refused(&dir.path().join("x.pth")).contains(".safetensors or .bpk"));
    assert!(refused(&dir.path().join("none/x.bpk")).contains("none"));
    assert!(refused(&dir.path().join("none/x.safetensors")).contains("none"));
    assert!(refused(dir.path()).contains("folder"));
    assert_eq!(std::fs::read(&input).unwrap(), before);
}

#[test]
fn a_conversion_that_is_stopped_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let checkpoint = open(fixture("zonos2/tiny/model.safetensors"));
    for name in ["x.safetensors", "x.bpk"] {
        let out = dir.path().join(name);
        std::fs::write(&out, "old").unwrap();
        let mut asked = 0;
        let stopped = convert_until(&checkpoint, &out, &mut |now| {
            asked += 1;
            match now.tensors_done {
                0..5 => ControlFlow::Continue(()),
                _ => ControlFlow::Break(()),
            }
        });
        let error = stopped.unwrap_err();
        assert!(matches!(error, CheckpointError::Stopped { .. }), "{error}");
        assert!(error.to_string().contains(name), "{error}");
        assert_eq!(asked, 6, "{name}: asked again after it was told to stop");
        assert_eq!(std::fs::read(&out).unwrap(), b"old");
        std::fs::remove_file(&out).unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "{name}");
        // A callback that unwinds is as good.
        let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            convert_with(&checkpoint, &out, &mut |_| {
                std::panic::resume_unwind(Box::new(()))
            })
        }));
        assert!(unwound.is_err());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "{name}");
    }
}

#[test]
fn large_tensors_are_written_in_pieces() {
    let dir = tempfile::tempdir().unwrap();
    let input = dir.path().join("in.safetensors");
    write_safetensors(&input, &[("w", &[10 << 20], 1.0)]);
    let checkpoint = open(&input);
    let mut seen = Vec::new();
    let out = dir.path().join("out.safetensors");
    convert_with(&checkpoint, &out, &mut |now| seen.push(now.bytes_done)).unwrap();
    assert_eq!(seen, [0, 16 << 20, 32 << 20]);
    assert_all_same(&checkpoint, &open(&out));
}

#[cfg(unix)]
#[test]
fn write_errors_name_the_target_alone() {
    let checkpoint = open(made("kinds.safetensors"));
    for name in ["x.safetensors", "x.bpk"] {
        // Nobody may create files there, not even the superuser.
        let out = std::path::Path::new("/proc/self").join(name);
        let text = convert(&checkpoint, &out).unwrap_err().to_string();
        assert!(
            text.contains(name) && text.contains("cannot be written"),
            "{text}"
        );
        assert!(!text.contains(".tmp"), "{text}");
    }
}

#[test]
fn inspection_counts_and_prints() {
    let checkpoint = open(fixture("zonos2/tiny/sharded"));
    let found = inspect(&checkpoint, true).unwrap();
    assert_eq!(found.model, ModelKind::Zonos2);
    assert_eq!(found.files.len(), 3);
    assert_eq!(found.tensor_count, 99);
    assert_eq!(found.bytes, 2 * found.values);
    assert_eq!(found.dtypes["BF16"].tensors, 99);
    assert!(found.non_finite.as_ref().unwrap().is_empty());
    let json = serde_json::to_value(&found).unwrap();
    assert_eq!(json["format"], "safetensors-sharded");
    assert_eq!(json["model"], "zonos2");
    let text = found.to_string();
    assert!(text.contains("layers.0.attention.wq.weight") && text.contains("all finite"));
    assert!(inspect(&checkpoint, false).unwrap().non_finite.is_none());
}

#[test]
fn a_key_chooses_the_dictionary() {
    let at = |key: &str| {
        Checkpoint::open_with(
            made("h06.key.pth"),
            &OpenOptions {
                key: Some(key.into()),
                ..OpenOptions::default()
            },
        )
    };
    let shadow = at("ema.shadow").unwrap();
    assert_eq!(floats(shadow.tensor_data("b").unwrap()), [1.0, -1.0]);
    let model = open(made("h06.key.pth"));
    assert_eq!(floats(model.tensor_data("b").unwrap()), [0.0, 0.0]);
    let error = at("teacher").unwrap_err().to_string();
    assert!(
        error.contains("'teacher'") && error.contains("ema, model"),
        "{error}"
    );
    let options = OpenOptions {
        key: Some("x".into()),
        ..OpenOptions::default()
    };
    let error = Checkpoint::open_with(made("kinds.safetensors"), &options).unwrap_err();
    assert!(error.to_string().contains("no dictionaries"), "{error}");
}
