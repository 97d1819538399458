//! The encoder: codes of the golden, lanes, progress, files that do not fit, gradients.

mod common;

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{DType, Device, Gradients, Tensor, TensorData};
use common::{Edited, fixture};
use serde_json::json;
use zonos_audio::{Codes, Waveform};
use zonos_checkpoint::{Checkpoint, LoadOptions};
use zonos_nn::Tap;
use zonos_zac::{
    EncodeProgress, HOP, NameOverrides, PrepareOptions, Quantized, SAMPLE_RATE, ZacEncoder,
    ZacError, prepare_audio,
};

fn load(device: &Device) -> ZacEncoder {
    ZacEncoder::load(fixture("mini-encoder").join("model.safetensors"), device).unwrap()
}

fn golden(key: &str) -> common::Stored {
    let bytes = std::fs::read(fixture("mini-encoder").join("golden.safetensors")).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let view = file.tensor(key).unwrap();
    common::Stored {
        dtype: view.dtype(),
        shape: view.shape().to_vec(),
        bytes: view.data().to_vec(),
    }
}

fn recording() -> Waveform {
    let rate = golden("rate_in").bytes;
    let rate = u32::from_le_bytes(rate.try_into().unwrap());
    Waveform::new(golden("wav_in").values(), rate)
}

fn golden_codes() -> Codes {
    let codes = golden("codes");
    let values = codes.bytes.as_chunks::<4>().0;
    let values = values.iter().map(|b| i32::from_le_bytes(*b)).collect();
    Codes::new(codes.shape[0], codes.shape[1], values).unwrap()
}

/// Noise and a tone, 44.1 kHz.
fn sound(samples: usize, seed: u32) -> Waveform {
    let mut state = seed | 1;
    let mut noise = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    let sample = |i: usize| 0.3 * (i as f32 * 0.031).sin() + 0.1 * noise();
    Waveform::new((0..samples).map(sample).collect(), SAMPLE_RATE)
}

fn go(_: &EncodeProgress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// The smallest lead of the golden is 3.6e-3, far above rounding.
#[test]
fn a_recording_gives_the_codes_of_the_golden() {
    let encoder = load(&Device::flex());
    assert_eq!(encoder.encode(&recording()).unwrap(), golden_codes());
    // A tap changes nothing.
    let options = PrepareOptions::default();
    let recording = recording();
    let audio = prepare_audio(&[recording.samples()], recording.sample_rate(), &options).unwrap();
    let lane = encoder.lanes(audio.len()).nth(1).unwrap();
    assert_eq!((lane.frames.clone(), lane.context), (3..9, 3));
    let plain = encoder
        .encode_lane(&audio, &lane, &mut Tap::off(), &mut go)
        .unwrap();
    let mut tap = Tap::on();
    let watched = encoder
        .encode_lane(&audio, &lane, &mut tap, &mut go)
        .unwrap();
    assert_eq!(plain, watched);
    assert!(tap.into_records().len() > 50);
}

#[test]
fn lanes_are_independent_and_join() {
    let encoder = load(&Device::flex());
    let audio = sound(40 * HOP - 700, 5);
    assert_eq!(encoder.frames(audio.len()), 40);
    let whole = encoder.encode_prepared(&audio, &mut go).unwrap();
    assert_eq!((whole.frames(), whole.codebooks()), (40, 10));
    // What lies before a lane's context does not matter to it.
    let mut other = audio.clone();
    for x in &mut other.samples_mut()[..8 * HOP] {
        *x = -*x;
    }
    let changed = encoder.encode_prepared(&other, &mut go).unwrap();
    assert_ne!(changed.row(0), whole.row(0));
    // Lane 2 begins at frame 12 and sees from frame 9 on.
    assert_eq!(changed.values()[120..], whole.values()[120..]);
    // A part of a frame is a frame with silence behind it.
    let mut filled = audio.clone();
    filled.samples_mut().resize(40 * HOP, 0.0);
    assert_eq!(encoder.encode_prepared(&filled, &mut go).unwrap(), whole);
}

#[test]
fn progress_rises_to_the_end_and_can_stop() {
    let encoder = load(&Device::flex());
    let audio = sound(20 * HOP, 9);
    let mut seen = Vec::new();
    encoder
        .encode_prepared(&audio, &mut |progress| {
            seen.push(progress.frames);
            assert_eq!(progress.of, 20);
            ControlFlow::Continue(())
        })
        .unwrap();
    assert!(seen.is_sorted(), "{seen:?}");
    assert_eq!(seen.last(), Some(&20));
    assert!(seen.iter().any(|frames| frames % 6 != 0), "{seen:?}");
    let mut calls = 0;
    let stopped = encoder.encode_prepared(&audio, &mut |progress| {
        calls += 1;
        if progress.frames > 6 {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    });
    assert!(matches!(stopped, Err(ZacError::Stopped)));
    assert!(calls < seen.len());
}

#[test]
fn audio_that_is_refused() {
    let encoder = load(&Device::flex());
    let slow = Waveform::new(vec![0.1; 16_000], 16_000);
    let error = encoder.encode_prepared(&slow, &mut go).unwrap_err();
    assert!(
        matches!(error, ZacError::Rate { found: 16_000, .. }),
        "{error}"
    );
    for audio in [
        Waveform::new(vec![0.0; 44_100], 44_100),
        Waveform::new(vec![0.1; 100], 44_100),
        Waveform::new(vec![f32::NAN; 44_100], 44_100),
    ] {
        assert!(matches!(encoder.encode(&audio), Err(ZacError::Prepare(_))));
    }
}

fn refused(file: &Edited) -> String {
    let error = ZacEncoder::load(file.write(), &Device::flex()).err();
    let error = error.expect("a file that must be refused").to_string();
    assert!(!error.contains('\n'), "{error}");
    assert!(error.contains("model.safetensors"), "{error}");
    error
}

#[test]
fn files_that_do_not_fit() {
    let decoder = fixture("mini-keep2").join("model.safetensors");
    let error = ZacEncoder::load(decoder, &Device::flex())
        .err()
        .unwrap()
        .to_string();
    for needle in [
        "mini-keep2",
        "\"decoder\"",
        "expected \"encoder\"",
        "zac-1-encoder.safetensors",
    ] {
        assert!(error.contains(needle), "{error}");
    }
    let mut file = Edited::of("mini-encoder");
    file.edit("model_config", |json| json["hop_length"] = 2944.into());
    file.edit("model_config", |json| {
        json["codec_hop_length"] = 1472.into()
    });
    assert!(refused(&file).contains("hop_length"), "{}", refused(&file));

    let mut file = Edited::of("mini-encoder");
    file.tensors.retain(|name, _| !name.starts_with("teacher."));
    assert!(refused(&file).contains("Wav2Vec2-BERT"));

    let mut file = Edited::of("mini-encoder");
    file.tensors
        .remove("codec.quantizer.quantizers.4.in_proj.bias");
    assert!(refused(&file).contains("'codec.quantizer.quantizers.4.in_proj.bias'"));

    let mut file = Edited::of("mini-encoder");
    file.tensors
        .remove("teacher.encoder.layers.1.ffn2.output_dense.bias");
    assert!(refused(&file).contains("'teacher.encoder.layers.1.ffn2.output_dense.bias'"));
    // The teacher is there, but not the tensor that tells its width.
    let mut file = Edited::of("mini-encoder");
    let whole = "teacher.feature_projection.projection.weight";
    assert!(file.tensors.remove(whole).is_some());
    let error = refused(&file);
    assert!(
        error.contains(whole) && error.contains("missing"),
        "{error}"
    );
    // A shape that nothing tells beforehand.
    let mut file = Edited::of("mini-encoder");
    let name = "teacher.encoder.layers.1.ffn2.output_dense.bias";
    *file.tensors.get_mut(name).unwrap() = common::Stored::f32(&[3], &[0.0; 3]);
    assert!(refused(&file).contains(name), "{}", refused(&file));

    let mut file = Edited::of("mini-encoder");
    file.edit("model_config", |json| json["lane_seconds"] = json!(1e9));
    let error = refused(&file);
    assert!(
        error.contains("lane_seconds: 1000000000 s are 15000000000 frames, expected 1 to 1048576"),
        "{error}"
    );
    file.edit("model_config", |json| {
        json["lane_seconds"] = json!(20);
        json["lane_context_seconds"] = json!(1e9);
    });
    let error = refused(&file);
    assert!(
        error.contains("lane_context_seconds: 1000000000 s"),
        "{error}"
    );
    file.metadata.remove("model_config");
    assert!(
        refused(&file).contains("`model_config`, the codec's configuration as JSON, is missing")
    );

    // A folded table decodes, but nothing can be searched in it.
    let mut file = Edited::of("mini-encoder");
    let prefix = "codec.quantizer.quantizers.2.";
    file.tensors.retain(|name, _| !name.starts_with(prefix));
    let table = common::Stored::f32(&[64, 24], &[0.5; 64 * 24]);
    file.tensors
        .insert(format!("{prefix}codebook.weight"), table);
    assert!(
        refused(&file).contains("folded table"),
        "{}",
        refused(&file)
    );
}

/// Weights that are no numbers end in an error that names the file and the frame, not in codes.
#[test]
fn weights_that_are_no_numbers() {
    let mut file = Edited::of("mini-encoder");
    let weight = file
        .tensors
        .get_mut("codec.encoder.1.input_proj.weight")
        .unwrap();
    weight.bytes[..4].copy_from_slice(&f32::NAN.to_le_bytes());
    let encoder = ZacEncoder::load(file.write(), &Device::flex()).unwrap();
    let error = encoder.encode(&recording()).unwrap_err();
    assert!(
        matches!(error, ZacError::Latents { frame: 0, .. }),
        "{error}"
    );
}

/// Tensors that nothing uses are reported and do no harm; statistics may be missing.
#[test]
fn strays_are_reported_and_statistics_are_optional() {
    let mut file = Edited::of("mini-encoder");
    // Of the codec, of the teacher, of neither; and what looks like a part that a teacher may have.
    let strays = [
        "adapter.scale",
        "codec.stray",
        "discriminator.weight",
        "teacher.encoder.stray",
    ];
    for stray in strays {
        let tensor = common::Stored::f32(&[1], &[1.0]);
        file.tensors.insert(stray.to_owned(), tensor);
    }
    let checkpoint = Checkpoint::open(file.write()).unwrap();
    let options = LoadOptions::default();
    let (encoder, report) = ZacEncoder::load_with(&checkpoint, &options, &Device::flex()).unwrap();
    let checked = ZacEncoder::check(&checkpoint).unwrap();
    for report in [&report, &checked] {
        // Each once.
        let mut names: Vec<&str> = report.unexpected.iter().map(|u| &*u.name).collect();
        names.sort_unstable();
        assert_eq!(names, strays, "{report}");
    }
    let names: Vec<&str> = report.matched.iter().map(|m| m.name.as_str()).collect();
    assert!(names.contains(&"teacher.encoder.layers.1.final_layer_norm.bias"));
    assert!(
        report
            .ignored
            .iter()
            .all(|i| i.name == "teacher.masked_spec_embed")
    );
    assert_eq!(encoder.encode(&recording()).unwrap(), golden_codes());

    let mut file = Edited::of("mini-encoder");
    file.tensors.remove("codec.semantic_mean");
    file.tensors.remove("codec.semantic_std");
    let encoder = ZacEncoder::load(file.write(), &Device::flex()).unwrap();
    let codes = encoder.encode(&recording()).unwrap();
    let column = |codes: &Codes, c: usize| codes.rows().map(|r| r[c]).collect::<Vec<_>>();
    assert_ne!(column(&codes, 0), column(&golden_codes(), 0));
}

/// The teacher may come from another file.
#[test]
fn a_teacher_from_elsewhere() {
    let mut file = Edited::of("mini-encoder");
    file.tensors.retain(|name, _| !name.starts_with("teacher."));
    let codec = Checkpoint::open(file.write()).unwrap();
    let other = Checkpoint::open(fixture("mini-encoder").join("model.safetensors")).unwrap();
    let (options, device) = (LoadOptions::default(), Device::flex());
    let names = NameOverrides::default();
    let (encoder, report) =
        ZacEncoder::load_mapped(&codec, Some(&other), &names, &options, &device).unwrap();
    assert!(report.is_clean());
    assert_eq!(encoder.encode(&recording()).unwrap(), golden_codes());
    assert!(
        ZacEncoder::check_mapped(&codec, Some(&other), &names)
            .unwrap()
            .is_clean()
    );
    assert!(ZacEncoder::check(&other).unwrap().is_clean());
}

/// A published teacher goes on after the layer that the encoder was made for: what is behind it is not
/// used, whatever it holds.
#[test]
fn a_teacher_with_more_layers() {
    let mut codec = Edited::of("mini-encoder");
    let teacher = take_teacher(&mut codec, "");
    let mut longer = Edited::of("mini-encoder");
    longer.metadata.clear();
    longer.tensors = teacher;
    let last = "encoder.layers.1.";
    let more: Vec<_> = longer
        .tensors
        .iter()
        .filter_map(|(name, tensor)| {
            let leaf = name.strip_prefix(last)?;
            let mut tensor = tensor.clone();
            tensor.bytes.fill(0x7f); // no number of either dtype
            Some((format!("encoder.layers.2.{leaf}"), tensor))
        })
        .collect();
    assert_eq!(more.len(), 32);
    longer.tensors.extend(more);
    let path = longer.write();
    let mut config = codec.json("teacher_config");
    config["num_hidden_layers"] = json!(3);
    config["model_type"] = json!("wav2vec2-bert");
    std::fs::write(path.with_file_name("config.json"), config.to_string()).unwrap();
    let longer = Checkpoint::open(&path).unwrap();

    let (options, device) = (LoadOptions::default(), Device::flex());
    let names = NameOverrides::default();
    // The encoder says which layer it was made for, in either of two ways.
    for key in ["feature_layer", "num_hidden_layers"] {
        codec.edit("teacher_config", |json| {
            for key in ["feature_layer", "num_hidden_layers"] {
                json.as_object_mut().unwrap().remove(key);
            }
            json[key] = json!(2);
        });
        let codec = Checkpoint::open(codec.write()).unwrap();
        let (encoder, report) =
            ZacEncoder::load_mapped(&codec, Some(&longer), &names, &options, &device).unwrap();
        assert_eq!(encoder.teacher.layers(), 2);
        assert_eq!(encoder.encode(&recording()).unwrap(), golden_codes());
        let checked = ZacEncoder::check_mapped(&codec, Some(&longer), &names).unwrap();
        for report in [report, checked] {
            assert!(report.is_clean(), "{report}");
            let unused = report.ignored.iter();
            let unused = unused.filter(|i| i.name.starts_with("encoder.layers.2."));
            assert_eq!(unused.count(), 32, "{report}");
        }
    }
    // One with too few is refused by file.
    codec.edit("teacher_config", |json| {
        json["num_hidden_layers"] = json!(4);
    });
    let codec = Checkpoint::open(codec.write()).unwrap();
    let error = ZacEncoder::load_mapped(&codec, Some(&longer), &names, &options, &device);
    let error = error.err().unwrap().to_string();
    assert!(
        error.contains(&path.display().to_string()) && error.contains("has 3"),
        "{error}"
    );
}

/// The teacher's tensors, moved out of a file; `front` takes the place of `teacher.`.
fn take_teacher(file: &mut Edited, front: &str) -> BTreeMap<String, common::Stored> {
    let (teacher, codec) = std::mem::take(&mut file.tensors)
        .into_iter()
        .partition(|(name, _)| name.starts_with("teacher."));
    file.tensors = codec;
    let teacher: BTreeMap<_, _> = teacher;
    teacher
        .into_iter()
        .map(|(name, tensor)| (name.replacen("teacher.", front, 1), tensor))
        .collect()
}

/// A teacher below another prefix is found; names that no rule knows come from a table, wherever the
/// teacher is.
#[test]
fn a_teacher_under_other_names() {
    let odd = "encoder.layers.1.ffn2.output_dense.bias";
    let mut file = Edited::of("mini-encoder");
    let mut teacher = take_teacher(&mut file, "ssl.model.");
    let moved = teacher.remove(&format!("ssl.model.{odd}")).unwrap();
    teacher.insert("ssl.odd".to_owned(), moved);
    file.tensors.extend(teacher.clone());
    file.rename(|name| name.replace("codec.semantic_mean", "centre"));
    let checkpoint = Checkpoint::open(file.write()).unwrap();
    let (options, device) = (LoadOptions::default(), Device::flex());
    let load = |checkpoint, teacher, table: &[(&str, &str)]| {
        let pairs = table.iter().map(|(a, b)| (a.to_string(), b.to_string()));
        let names = NameOverrides::from_pairs(pairs).unwrap();
        let checked = ZacEncoder::check_mapped(checkpoint, teacher, &names);
        let loaded = ZacEncoder::load_mapped(checkpoint, teacher, &names, &options, &device);
        loaded.map(|(encoder, report)| (encoder, report, checked.unwrap()))
    };
    // Without a table it is missing, and told by both names that were looked for.
    let error = load(&checkpoint, None, &[]).err().unwrap().to_string();
    for name in [format!("'teacher.{odd}'"), format!("'ssl.model.{odd}'")] {
        assert!(error.contains(&name), "{error}");
    }
    let ours = format!("teacher.{odd}");
    let table = [("codec.semantic_mean", "centre"), (&ours, "ssl.odd")];
    let (encoder, report, checked) = load(&checkpoint, None, &table).unwrap();
    assert_eq!(encoder.encode(&recording()).unwrap(), golden_codes());
    for report in [report, checked] {
        assert!(report.is_clean(), "{report}");
        let ignored: Vec<&str> = report.ignored.iter().map(|i| &*i.name).collect();
        assert_eq!(ignored, ["ssl.model.masked_spec_embed"]);
    }
    let error = load(&checkpoint, None, &[(&ours, "gone")]).err().unwrap();
    let error = error.to_string();
    assert!(
        error.contains("'gone'") && error.contains("map file"),
        "{error}"
    );

    // The same teacher in a file of its own, with something that nobody needs.
    teacher.insert("ssl.extra".to_owned(), common::Stored::f32(&[1], &[1.0]));
    let mut alone = Edited::of("mini-encoder");
    let config = alone.json("teacher_config");
    alone.metadata.clear();
    alone.tensors = teacher;
    let alone = alone.write();
    std::fs::write(alone.with_file_name("config.json"), config.to_string()).unwrap();
    let alone = Checkpoint::open(alone).unwrap();
    let (encoder, report, checked) = load(&checkpoint, Some(&alone), &table).unwrap();
    assert_eq!(encoder.encode(&recording()).unwrap(), golden_codes());
    for report in [report, checked] {
        let stray = report.notes.iter().find(|note| note.contains("ssl.extra"));
        let stray = stray.unwrap_or_else(|| panic!("{report}"));
        assert!(
            stray.starts_with(&alone.path().display().to_string()),
            "{stray}"
        );
    }
}

/// A fixed direction for parameters and inputs: `sin` of the place.
fn direction<const D: usize>(x: &Tensor<D>, number: usize) -> Tensor<D> {
    let count = x.dims().iter().product::<usize>();
    let value = |i: usize| (i as f32 * 0.7 + number as f32 * 1.3).sin();
    let data = TensorData::new((0..count).map(value).collect::<Vec<_>>(), x.dims());
    Tensor::from_data(data, (&x.device(), DType::F32))
}

/// Moves every parameter of f32 along its direction.
struct Move {
    by: f32,
    number: usize,
}

impl ModuleMapper for Move {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        self.number += 1;
        param.map(|x| {
            if x.dtype() != DType::F32 {
                return x;
            }
            let step = direction(&x, self.number) * self.by;
            (x + step).detach()
        })
    }
}

/// Adds up gradient times direction over the parameters.
struct Slope<'a> {
    gradients: &'a Gradients,
    number: usize,
    sum: f64,
}

impl ModuleVisitor for Slope<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.number += 1;
        if let Some(gradient) = param.val().grad(self.gradients) {
            let device = gradient.device();
            let along = direction(&gradient, self.number).to_device(&device);
            self.sum += f64::from(number((gradient * along).sum()));
        }
    }
}

fn number(x: Tensor<1>) -> f32 {
    x.into_data().convert::<f32>().try_to_vec().unwrap()[0]
}

fn weighted<const D: usize>(x: Tensor<D>) -> Tensor<1> {
    let weights = direction(&x, 77);
    (x * weights).sum()
}

/// Slopes by central differences and by gradients agree for all parameters at once.
fn check_slopes(name: &str, loss: impl Fn(&ZacEncoder) -> Tensor<1>) {
    let trained = load(&Device::flex().autodiff());
    let gradients = loss(&trained).backward();
    let mut slope = Slope {
        gradients: &gradients,
        number: 0,
        sum: 0.0,
    };
    trained.visit(&mut slope);
    let step = 2e-4;
    let at = |by: f32| {
        f64::from(number(loss(
            &load(&Device::flex()).map(&mut Move { by, number: 0 }),
        )))
    };
    let measured = (at(step) - at(-step)) / (2.0 * f64::from(step));
    let error = (measured - slope.sum).abs() / slope.sum.abs().max(1e-3);
    assert!(
        slope.sum.abs() > 1e-2,
        "{name}: a slope of {} proves nothing",
        slope.sum
    );
    assert!(
        error < 2e-2,
        "{name}: measured {measured}, by gradients {}",
        slope.sum
    );
}

/// Differences in f32 of sums of hundreds of values are good to a percent or two.
#[test]
fn gradients_are_slopes() {
    let audio = sound(3 * HOP, 4);
    let samples = |encoder: &ZacEncoder| {
        let data = TensorData::new(audio.samples().to_vec(), [1, audio.len()]);
        Tensor::<2>::from_data(data, (&encoder.device(), DType::F32))
    };
    check_slopes("acoustic", |encoder| {
        weighted(encoder.acoustic(samples(encoder), &mut Tap::off()))
    });
    check_slopes("semantic", |encoder| {
        let hidden = golden("lane1.teacher.hidden2");
        let [tokens, width] = [hidden.shape[0], hidden.shape[1]];
        let data = TensorData::new(hidden.values(), [tokens, width]);
        let hidden = Tensor::<2>::from_data(data, (&encoder.device(), DType::F32));
        weighted(encoder.semantic(hidden, 6, &mut Tap::off()))
    });
    // Projection and entries of a quantizer, in a sum without squares: a larger step would change choices.
    check_slopes("codebooks", |encoder| {
        let residual = golden("lane1.rvq.residual0");
        let data = TensorData::new(residual.values(), [residual.shape[0], residual.shape[1]]);
        let z = Tensor::<2>::from_data(data, (&encoder.device(), DType::F32));
        let found: Quantized = encoder.quantizer.encode(z, &mut Tap::off());
        weighted(found.latents[0].clone()) + weighted(found.entries[0].clone())
    });
}

/// Everything trains: a gradient reaches the samples through both halves and every choice.
#[test]
fn gradients_reach_every_parameter() {
    let encoder = load(&Device::flex().autodiff());
    let audio = sound(6 * HOP, 8);
    let data = TensorData::new(audio.samples().to_vec(), [1, audio.len()]);
    let x = Tensor::<2>::from_data(data, (&encoder.device(), DType::F32)).require_grad();
    let z = encoder
        .acoustic(x.clone(), &mut Tap::off())
        .squeeze_dim::<2>(0);
    let hidden = encoder.teacher_features(audio.samples()).unwrap();
    let e = encoder.semantic(hidden, 6, &mut Tap::off());
    let found = encoder.quantize(z, e, &mut Tap::off());
    let losses = [&found.semantic, &found.acoustic]
        .map(|q| q.commitment_loss() + q.codebook_loss())
        .into_iter()
        .reduce(|a, b| a + b)
        .unwrap();
    let gradients = (losses + weighted(found.acoustic.z)).backward();
    let g = x
        .grad(&gradients)
        .unwrap()
        .into_data()
        .try_to_vec::<f32>()
        .unwrap();
    assert!(g.iter().all(|x| x.is_finite()) && g.iter().any(|x| *x != 0.0));

    struct Missing<'a>(&'a Gradients, Vec<String>, Vec<String>);
    impl ModuleVisitor for Missing<'_> {
        fn enter_module(&mut self, name: &str, _: &str) {
            self.1.push(name.to_owned());
        }
        fn exit_module(&mut self, _: &str, _: &str) {
            self.1.pop();
        }
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let name = self.1.join(".");
            // Half weights of the teacher are a frozen base.
            let frozen = param.val().dtype() != DType::F32;
            if !frozen && param.val().grad(self.0).is_none() {
                self.2.push(name);
            }
        }
    }
    let mut missing = Missing(&gradients, Vec::new(), Vec::new());
    encoder.visit(&mut missing);
    assert!(missing.2.is_empty(), "{:?}", missing.2);
}
