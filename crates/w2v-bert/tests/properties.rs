//! Masks, dtypes, configurations, refusals.

mod common;

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{DType, Device, Tensor, TensorData};
use common::{Remade, fixture, host, max_delta, noise, to_f32};
use serde_json::json;
use zonos_checkpoint::{Checkpoint, LoadOptions, NameMap};
use zonos_nn::Tap;
use zonos_w2v_bert::{Features, Teacher, TeacherError, TeacherSource};

fn small() -> Teacher {
    Teacher::load(fixture("w2v-bert/small"), &Device::flex()).unwrap()
}

fn hidden(teacher: &Teacher, samples: &[f32]) -> Vec<f32> {
    let features = teacher.features(samples).unwrap();
    host(
        teacher
            .forward(&features, teacher.layers(), &mut Tap::off())
            .unwrap(),
    )
}

fn refusal(remade: &Remade) -> String {
    let folder = remade.write();
    let error = Teacher::load(folder.path(), &Device::flex()).unwrap_err();
    let error = error.to_string();
    assert!(
        error.contains(&folder.path().display().to_string()),
        "{error}"
    );
    error
}

/// What a masked token holds does not reach the others, nor does its length.
#[test]
fn masked_tokens_are_not_seen() {
    let teacher = small();
    let device = teacher.device();
    let rows = |values: Vec<f32>| {
        let tokens = values.len() / 160;
        Tensor::<2>::from_data(
            TensorData::new(values, [tokens, 160]),
            (&device, DType::F32),
        )
    };
    let values = noise(20 * 160);
    let run = |values: Vec<f32>, mask: Vec<bool>| {
        let features = Features::new(rows(values), mask).unwrap();
        host(teacher.forward(&features, 3, &mut Tap::off()).unwrap())
    };
    let seen = |i: usize| i < 17;
    let mask: Vec<bool> = (0..20).map(seen).collect();
    let first = run(values.clone(), mask.clone());
    let mut other = values.clone();
    other[17 * 160..].iter_mut().for_each(|x| *x = 100.0 - *x);
    assert_eq!(run(other, mask), first);
    let alone = run(values[..17 * 160].to_vec(), vec![true; 17]);
    assert!(max_delta(&alone, &first[..17 * 16]) < 1e-5);
    // Unmasked they are seen.
    let all = run(values, vec![true; 20]);
    assert!(max_delta(&all[..17 * 16], &alone) > 1e-3);
}

/// Attention goes both ways, though the convolution only looks back.
#[test]
fn the_future_is_seen() {
    let teacher = small();
    let run = |values: Vec<f32>| {
        let data = TensorData::new(values, [30, 160]);
        let values = Tensor::<2>::from_data(data, (&teacher.device(), DType::F32));
        let features = Features::new(values, vec![true; 30]).unwrap();
        host(teacher.forward(&features, 3, &mut Tap::off()).unwrap())
    };
    let mut values = noise(30 * 160);
    let before = run(values.clone());
    values[29 * 160..]
        .iter_mut()
        .step_by(3)
        .for_each(|x| *x += 2.0);
    let after = run(values);
    assert!(max_delta(&before[..16], &after[..16]) > 1e-4);
}

/// bf16 matrices stay so and give what their values give in f32.
#[test]
fn bf16_weights_are_kept_and_computed_in_f32() {
    struct Dtypes(Vec<DType>);
    impl ModuleVisitor for Dtypes {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if D == 2 && param.val().dims()[0] > 12 {
                self.0.push(param.val().dtype());
            }
        }
    }
    let zac = Remade::zac();
    let folder = zac.write();
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let options = LoadOptions::default();
    let (teacher, report) = Teacher::load_with(&checkpoint, &options, &Device::flex()).unwrap();
    assert!(report.is_clean() && report.notes.is_empty(), "{report}");
    let names: Vec<&str> = report.ignored.iter().map(|i| i.name.as_str()).collect();
    assert_eq!(
        names,
        ["codec.semantic_quantizer.x", "teacher.masked_spec_embed"]
    );
    let mut dtypes = Dtypes(Vec::new());
    teacher.visit(&mut dtypes);
    assert_eq!(dtypes.0.len(), 1 + 3 * 10);
    assert!(dtypes.0.iter().all(|&dtype| dtype == DType::BF16));

    let mut wide = Remade::zac();
    for raw in wide.tensors.values_mut() {
        if raw.0 == safetensors::Dtype::BF16 {
            *raw = to_f32(raw);
        }
    }
    let folder = wide.write();
    let wide = Teacher::load(folder.path(), &Device::flex()).unwrap();
    let samples = noise(9000);
    let (narrow, wide) = (hidden(&teacher, &samples), hidden(&wide, &samples));
    assert!(max_delta(&narrow, &wide) < 1e-5);
    // Rounding the weights does matter.
    assert!(max_delta(&narrow, &hidden(&small(), &samples)) > 1e-3);
}

#[test]
fn layers_past_the_one_used_are_listed_and_not_loaded() {
    let mut remade = Remade::small();
    remade.set("feature_layer", json!(2));
    let folder = remade.write();
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let options = LoadOptions::default();
    for report in [
        Teacher::check(&checkpoint).unwrap(),
        Teacher::load_with(&checkpoint, &options, &Device::flex())
            .unwrap()
            .1,
    ] {
        assert!(report.is_clean(), "{report}");
        assert_eq!(report.matched.len(), 4 + 2 * 32);
        assert_eq!(report.ignored.len(), 1 + 32, "{report}");
        assert!(report.to_string().contains("encoder.layers.2."), "{report}");
    }
    let (teacher, _) = Teacher::load_with(&checkpoint, &options, &Device::flex()).unwrap();
    assert_eq!(
        (teacher.layers(), teacher.config().num_hidden_layers),
        (2, 3)
    );
    let features = teacher.features(&noise(4000)).unwrap();
    let error = teacher.forward(&features, 3, &mut Tap::off()).unwrap_err();
    assert!(
        matches!(
            error,
            TeacherError::Layers {
                asked: 3,
                loaded: 2
            }
        ),
        "{error}"
    );
    // What is left is the same.
    let ours = host(teacher.forward(&features, 2, &mut Tap::off()).unwrap());
    let whole = small().forward(&features, 2, &mut Tap::off()).unwrap();
    assert_eq!(ours, host(whole));

    let (none, _) = Teacher::load_layers(&checkpoint, 0, &options, &Device::flex()).unwrap();
    let zero = none.forward(&features, 0, &mut Tap::off()).unwrap();
    assert_eq!(zero.dims(), [features.tokens(), 16]);
    let error = Teacher::load_layers(&checkpoint, 4, &options, &Device::flex()).unwrap_err();
    assert!(
        matches!(
            error,
            TeacherError::FewLayers {
                asked: 4,
                there: 3,
                ..
            }
        ),
        "{error}"
    );
    let file = checkpoint.path().display().to_string();
    assert!(error.to_string().contains(&file), "{error}");
}

/// A file cut behind the layer that it is used for may keep the configuration of the whole.
#[test]
fn a_cut_file_loads_when_the_layer_used_is_in_it() {
    let mut remade = Remade::zac();
    remade.set("num_hidden_layers", json!(24));
    let error = refusal(&remade);
    assert!(
        error.contains("num_hidden_layers") && error.contains("24"),
        "{error}"
    );
    remade.set("feature_layer", json!(3));
    let folder = remade.write();
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let report = Teacher::check(&checkpoint).unwrap();
    assert!(report.is_clean() && report.notes.len() == 1, "{report}");
}

#[test]
fn configurations_that_disagree_with_shapes_name_both() {
    for (field, value, needles) in [
        (
            "hidden_size",
            json!(32),
            ["32", "16", "feature_projection.projection.weight"],
        ),
        (
            "num_attention_heads",
            json!(4),
            ["4", "2", "distance_embedding"],
        ),
        (
            "intermediate_size",
            json!(64),
            ["64", "24", "ffn1.intermediate_dense.weight"],
        ),
        (
            "feature_projection_input_dim",
            json!(80),
            ["80", "160", "feature_projection"],
        ),
        (
            "conv_depthwise_kernel_size",
            json!(31),
            ["31", "5", "depthwise_conv.weight"],
        ),
        (
            "left_max_position_embeddings",
            json!(64),
            ["64", "12", "distance_embedding"],
        ),
        ("num_hidden_layers", json!(24), ["24", "3", "layers"]),
        ("feature_layer", json!(4), ["4", "3", "feature_layer"]),
        (
            "hidden_size",
            json!("16"),
            ["\"16\"", "whole number", "config.json"],
        ),
        (
            "layer_norm_eps",
            json!(-1e-5),
            ["-0.00001", "0 to 1", "layer_norm_eps"],
        ),
        ("hidden_act", json!("gelu"), ["gelu", "swish", "hidden_act"]),
        (
            "position_embeddings_type",
            json!("rotary"),
            ["rotary", "relative_key", "position"],
        ),
    ] {
        let mut remade = Remade::small();
        remade.set(field, value.clone());
        let error = refusal(&remade);
        assert!(error.contains(field), "{field} = {value}: {error}");
        for needle in needles {
            assert!(
                error.contains(needle),
                "{field} = {value}: {needle}: {error}"
            );
        }
    }
}

#[test]
fn unknown_fields_and_no_configuration_are_remarked_on() {
    let mut remade = Remade::small();
    remade.set("something_new", json!([1]));
    let folder = remade.write();
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let report = Teacher::check(&checkpoint).unwrap();
    assert!(report.is_clean(), "{report}");
    assert_eq!(report.notes.len(), 1, "{report}");
    assert!(report.notes[0].contains("something_new"), "{report}");

    // Twelve distances are not the released 73: nothing says where they begin.
    let mut remade = Remade::small();
    remade.config = None;
    let error = refusal(&remade);
    assert!(error.contains("left_max_position_embeddings"), "{error}");
    remade.config = Some(json!({"hidden_size": 16, "right_max_position_embeddings": 3}));
    let folder = remade.write();
    let teacher = Teacher::load(folder.path(), &Device::flex()).unwrap();
    assert_eq!(teacher.config(), small().config());
}

#[test]
fn missing_and_foreign_tensors_are_named() {
    let mut remade = Remade::small();
    let name = "encoder.layers.1.conv_module.pointwise_conv2.weight";
    let raw = remade.tensors.remove(name).unwrap();
    let error = refusal(&remade);
    assert!(error.contains(name) && error.contains("missing"), "{error}");

    // In a file of ZAC-1 under the file's name.
    let mut zac = Remade::zac();
    let full = format!("teacher.{name}");
    assert!(zac.tensors.remove(&full).is_some());
    let error = refusal(&zac);
    assert!(error.contains(&format!("'{full}'")), "{error}");

    // What nothing uses is reported, and no error.
    remade.tensors.insert(name.to_owned(), raw.clone());
    let stray = "encoder.layers.1.extra";
    remade.tensors.insert(stray.to_owned(), raw);
    let folder = remade.write();
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let options = LoadOptions::default();
    let (teacher, report) = Teacher::load_with(&checkpoint, &options, &Device::flex()).unwrap();
    assert_eq!(report.unexpected.len(), 1, "{report}");
    assert_eq!(report.unexpected[0].name, stray);
    let samples = noise(4000);
    assert_eq!(hidden(&teacher, &samples), hidden(&small(), &samples));
    let report = Teacher::check(&checkpoint).unwrap();
    assert_eq!(report.unexpected[0].name, stray);

    // Whole layers missing below the last.
    let mut remade = Remade::small();
    remade
        .tensors
        .retain(|name, _| !name.starts_with("encoder.layers.1."));
    let error = refusal(&remade);
    assert!(
        error.contains("32 missing") && error.contains("encoder.layers.1."),
        "{error}"
    );

    let mut remade = Remade::small();
    let tensor = remade
        .tensors
        .get_mut("encoder.layers.2.ffn2.output_dense.weight")
        .unwrap();
    tensor.1.reverse();
    let error = refusal(&remade);
    assert!(error.contains("ffn2.output_dense.weight"), "{error}");

    let mut remade = Remade::small();
    let name = "encoder.layers.0.self_attn.distance_embedding.weight";
    remade.tensors.get_mut(name).unwrap().1 = vec![96];
    let error = refusal(&remade);
    assert!(error.contains(name), "{error}");
}

/// Names that are not the published ones, by rules: one tensor under a name of its own, the others
/// below a prefix that nobody told.
#[test]
fn names_of_another_file() {
    let mut remade = Remade::small();
    let odd = "encoder.layers.1.ffn1.output_dense.bias";
    let tensors = std::mem::take(&mut remade.tensors);
    let renamed = tensors.into_iter().map(|(name, raw)| {
        let name = if name == odd {
            "ssl.odd".to_owned()
        } else {
            format!("ssl.{name}")
        };
        (name, raw)
    });
    remade.tensors = renamed.collect();
    let folder = remade.write();
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let (options, device) = (LoadOptions::default(), Device::flex());
    let error = Teacher::load_with(&checkpoint, &options, &device).unwrap_err();
    let error = error.to_string();
    assert!(error.contains(&format!("'ssl.{odd}'")), "{error}");
    for to in [odd.to_owned(), format!("ssl.{odd}")] {
        let source = TeacherSource {
            layers: Some(2),
            names: NameMap::new().rename("ssl.odd", &to),
        };
        let report = Teacher::check_from(&checkpoint, &source).unwrap();
        assert!(report.is_clean(), "{report}");
        let (teacher, _) = Teacher::load_from(&checkpoint, &source, &options, &device).unwrap();
        let features = teacher.features(&noise(4000)).unwrap();
        let forward = |teacher: &Teacher| {
            let hidden = teacher.forward(&features, 2, &mut Tap::off());
            host(hidden.unwrap())
        };
        assert_eq!(forward(&teacher), forward(&small()));
    }
}

#[test]
fn other_models_are_refused() {
    for (path, says) in [("ecapa/tiny/hf", "ECAPA"), ("dac/tiny/hf", "DAC")] {
        let error = Teacher::load(fixture(path), &Device::flex()).unwrap_err();
        let error = error.to_string();
        assert!(
            error.contains("no Wav2Vec2-BERT") && error.contains(says),
            "{error}"
        );
    }
    let mut zac = Remade::zac();
    zac.metadata.insert("kind".to_owned(), "decoder".to_owned());
    let error = refusal(&zac);
    assert!(
        error.contains("kind: expected encoder, found decoder"),
        "{error}"
    );
    zac.metadata
        .insert("format".to_owned(), "zac-1/2".to_owned());
    let error = refusal(&zac);
    assert!(error.contains("expected zac-1/1, found zac-1/2"), "{error}");
    let mut zac = Remade::zac();
    zac.metadata
        .insert("teacher_config".to_owned(), "{".to_owned());
    assert!(refusal(&zac).contains("teacher_config"));
}

#[test]
fn features_that_do_not_fit_are_refused() {
    let teacher = small();
    let device = teacher.device();
    let values =
        |tokens: usize, width: usize| Tensor::<2>::zeros([tokens, width], (&device, DType::F32));
    assert!(Features::new(values(4, 160), vec![true; 3]).is_err());
    assert!(Features::new(values(4, 160), vec![false; 4]).is_err());
    assert!(Features::new(values(0, 160), vec![]).is_err());
    let narrow = Features::new(values(4, 80), vec![true; 4]).unwrap();
    let error = teacher.forward(&narrow, 1, &mut Tap::off()).unwrap_err();
    assert!(error.to_string().contains("80"), "{error}");
    let error = teacher
        .encode(values(4, 15), &[true; 4], 1, &mut Tap::off())
        .unwrap_err();
    assert!(error.to_string().contains("[4, 15]"), "{error}");
}

#[test]
fn audio_that_makes_no_features_is_refused() {
    let teacher = small();
    assert_eq!(teacher.min_samples(), 560);
    let shortest = teacher.features(&noise(560)).unwrap();
    assert_eq!((shortest.tokens(), shortest.mask()), (1, &[true][..]));
    let out = teacher.forward(&shortest, 3, &mut Tap::off()).unwrap();
    assert!(host(out).iter().all(|x| x.is_finite()));
    for samples in [0, 1, 400, 559] {
        let error = teacher.features(&noise(samples)).unwrap_err();
        assert!(
            matches!(error, TeacherError::TooFewSamples { least: 560, .. }),
            "{error}"
        );
    }
    let mut samples = noise(2000);
    samples[1999] = f32::NAN;
    let error = teacher.features(&samples).unwrap_err();
    assert!(
        matches!(error, TeacherError::BadSample { index: 1999, .. }),
        "{error}"
    );
    // Silence and full scale beyond any file's are numbers.
    for level in [0.0, 3e38] {
        let features = teacher.features(&[level; 1000]).unwrap();
        let out = teacher.forward(&features, 3, &mut Tap::off()).unwrap();
        assert!(host(out).iter().all(|x| x.is_finite()), "{level}");
    }
}
