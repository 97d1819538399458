//! The comparison must be able to fail: one wrong number anywhere is found and named.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use golden_diff::{Component, Counts, GoldenError, Override, Request, html_page, run};
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use tempfile::TempDir;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../fixtures")
        .join(name)
}

/// A copy of the golden and one container of `dac/odd`, the smallest folder.
fn small_folder() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for file in ["golden.safetensors", "folded.safetensors"] {
        std::fs::copy(fixture("dac/odd").join(file), dir.path().join(file)).unwrap();
    }
    dir
}

type Raw = (Dtype, Vec<usize>, Vec<u8>);

/// Rewrites a safetensors file after `change`.
fn edit(path: &Path, change: impl FnOnce(&mut BTreeMap<String, Raw>)) {
    let bytes = std::fs::read(path).unwrap();
    let mut tensors: BTreeMap<String, Raw> = SafeTensors::deserialize(&bytes)
        .unwrap()
        .tensors()
        .into_iter()
        .map(|(name, t)| (name, (t.dtype(), t.shape().to_vec(), t.data().to_vec())))
        .collect();
    change(&mut tensors);
    let views: Vec<_> = tensors
        .iter()
        .map(|(name, (dtype, shape, data))| {
            let view = TensorView::new(*dtype, shape.clone(), data).unwrap();
            (name.as_str(), view)
        })
        .collect();
    safetensors::serialize_to_file(views, None, path).unwrap();
}

fn set_f32(tensor: &mut Raw, index: usize, value: f32) {
    assert_eq!(tensor.0, Dtype::F32);
    tensor.2[4 * index..4 * index + 4].copy_from_slice(&value.to_le_bytes());
}

fn get_f32(tensor: &Raw, index: usize) -> f32 {
    f32::from_le_bytes(tensor.2[4 * index..4 * index + 4].try_into().unwrap())
}

fn request(dir: &TempDir) -> Request {
    Request::new(dir.path(), "cpu").unwrap()
}

#[test]
fn an_untouched_copy_passes() {
    let dir = small_folder();
    let report = run(&request(&dir)).unwrap();
    assert!(report.passed(), "{report}");
    assert!(report.first_divergence().is_none());
    assert!(report.counts().compared >= 18);
}

#[test]
fn one_golden_value_is_found() {
    let dir = small_folder();
    edit(&dir.path().join("golden.safetensors"), |t| {
        let stage = t.get_mut("dec.2").unwrap();
        let old = get_f32(stage, 7);
        set_f32(stage, 7, old + 3e-4);
    });
    let report = run(&request(&dir)).unwrap();
    assert!(!report.passed());
    assert_eq!(report.counts().failed, 1, "{report}");
    let row = report.first_divergence().unwrap();
    assert_eq!((row.key.as_str(), row.metrics.worst), ("dec.2", Some(7)));
    assert!(report.to_string().contains("FAIL"));
    assert!(html_page(&[report]).contains("class=fail"));
}

#[test]
fn a_nan_in_the_golden_is_found() {
    let dir = small_folder();
    edit(&dir.path().join("golden.safetensors"), |t| {
        set_f32(t.get_mut("wav").unwrap(), 3, f32::NAN);
    });
    let report = run(&request(&dir)).unwrap();
    assert_eq!(report.first_divergence().unwrap().metrics.not_finite, 1);
}

#[test]
fn one_weight_is_found_where_it_first_matters() {
    let dir = small_folder();
    edit(&dir.path().join("folded.safetensors"), |t| {
        let weight = t.get_mut("decoder.model.2.block.1.weight").unwrap();
        let old = get_f32(weight, 5);
        set_f32(weight, 5, old + 0.01);
    });
    let report = run(&request(&dir)).unwrap();
    assert_eq!(
        report.first_divergence().unwrap().key,
        "dec.2.up",
        "{report}"
    );
}

/// Where the best two rows of a codebook are as good as equal, either is right, and whatever depends
/// on the choice is not compared; elsewhere a code is right or wrong.
#[test]
fn another_code_is_wrong_where_the_choice_is_sure() {
    let dir = small_folder();
    let golden = dir.path().join("golden.safetensors");
    let frame = 5;
    edit(&golden, |t| {
        // The first of 64 rows, int64; another row.
        let codes = &mut t.get_mut("enc.codes").unwrap().2;
        codes[8 * frame] ^= 1;
    });
    let report = run(&request(&dir)).unwrap();
    assert_eq!(
        report.first_divergence().unwrap().key,
        "enc.codes",
        "{report}"
    );

    edit(&golden, |t| {
        set_f32(t.get_mut("enc.margin").unwrap(), frame, 5e-5)
    });
    let report = run(&request(&dir)).unwrap();
    let failed: Vec<_> = report.rows.iter().filter(|r| r.miss.is_some()).collect();
    // The recorded lead is no longer the true one.
    assert!(failed.iter().all(|r| r.key == "enc.margin"), "{report}");
    assert!(
        report.skipped.iter().any(|s| s.key == "enc.recon"),
        "{report}"
    );
}

#[test]
fn one_weight_of_the_encoder_is_found() {
    let dir = small_folder();
    edit(&dir.path().join("folded.safetensors"), |t| {
        let weight = t.get_mut("encoder.block.2.block.4.weight").unwrap();
        let old = get_f32(weight, 5);
        set_f32(weight, 5, old + 0.01);
    });
    let report = run(&request(&dir)).unwrap();
    assert_eq!(report.first_divergence().unwrap().key, "enc.2", "{report}");
}

#[test]
fn one_weight_of_the_backbone_is_found() {
    let dir = tempfile::tempdir().unwrap();
    for file in ["golden.safetensors", "model.safetensors", "params.json"] {
        std::fs::copy(fixture("zonos2/tiny").join(file), dir.path().join(file)).unwrap();
    }
    edit(&dir.path().join("model.safetensors"), |t| {
        // The exponent of one bf16 weight: three times or a third of what it was, or so.
        let weight = t.get_mut("layers.1.attention.wo.weight").unwrap();
        weight.2[1] ^= 0x01;
    });
    let report = run(&request(&dir)).unwrap();
    assert!(!report.passed());
    let first = &report.first_divergence().unwrap().key;
    assert_eq!(first, "plain.layer.1.out", "{report}");
}

#[test]
fn an_empty_golden_is_a_failure() {
    let dir = small_folder();
    edit(&dir.path().join("golden.safetensors"), BTreeMap::clear);
    let error = run(&request(&dir)).unwrap_err();
    assert!(matches!(error, GoldenError::Empty { .. }), "{error}");
}

#[test]
fn a_key_that_nobody_knows_is_a_failure() {
    let dir = small_folder();
    edit(&dir.path().join("golden.safetensors"), |t| {
        let copy = t["wav"].clone();
        t.insert("surprise".to_owned(), copy);
    });
    let report = run(&request(&dir)).unwrap();
    assert!(!report.passed());
    assert_eq!(report.unknown().collect::<Vec<_>>(), ["surprise"]);
    assert!(report.verdict().contains("surprise"));
}

#[test]
fn a_golden_of_other_sizes_is_a_failure() {
    let dir = small_folder();
    edit(&dir.path().join("golden.safetensors"), |t| {
        let stage = t.get_mut("dec.1").unwrap();
        stage.1.reverse();
    });
    let report = run(&request(&dir)).unwrap();
    let row = report.first_divergence().unwrap();
    assert_eq!(row.key, "dec.1");
    assert!(row.miss.as_deref().unwrap().starts_with("shape"));
}

#[test]
fn keys_may_be_few_but_not_none() {
    let dir = small_folder();
    edit(&dir.path().join("golden.safetensors"), |t| {
        t.retain(|key, _| key == "codes" || key == "wav");
    });
    assert!(run(&request(&dir)).unwrap().passed());
    edit(&dir.path().join("golden.safetensors"), |t| {
        t.retain(|key, _| key == "codes");
    });
    let error = run(&request(&dir)).unwrap_err();
    assert!(matches!(error, GoldenError::Unrecognised { .. }), "{error}");
}

#[test]
fn overrides_and_the_wrong_component() {
    let dir = small_folder();
    edit(&dir.path().join("golden.safetensors"), |t| {
        let stage = t.get_mut("dec.2").unwrap();
        let old = get_f32(stage, 7);
        set_f32(stage, 7, old + 3e-4);
    });
    let mut request = request(&dir);
    request.overrides = vec![Override::parse("dec.*=1e-3").unwrap()];
    let report = run(&request).unwrap();
    assert!(report.passed(), "{report}");
    assert_ne!(report.counts(), Counts::default());
    request.component = Some(Component::Zonos2);
    assert!(matches!(
        run(&request),
        Err(GoldenError::WrongComponent { .. })
    ));
}

#[test]
fn a_folder_without_a_checkpoint_says_so() {
    let dir = small_folder();
    std::fs::remove_file(dir.path().join("folded.safetensors")).unwrap();
    let error = run(&request(&dir)).unwrap_err();
    assert!(error.to_string().contains("--checkpoint"), "{error}");
}
