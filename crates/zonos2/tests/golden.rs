//! The network against the tiny golden set, every layer (tolerances: `validation/fixtures/zonos2/tiny/README.md`).

mod common;

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::PathBuf;

use burn::tensor::{Device, TensorData};
use common::Golden;
use zonos_nn::Tap;
use zonos2::{CacheDType, GenerateOptions, SamplerOptions, Sequence, Zonos2};

/// Residual stream, hidden states and logits of a correct f32 implementation.
const HIDDEN: f32 = 2e-4;

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../validation/fixtures/zonos2/tiny")
        .join(name)
}

fn model() -> Zonos2 {
    Zonos2::load(fixture("model.safetensors"), &Device::flex()).expect("fixture loads")
}

fn largest_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter()
        .zip(b)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, f32::max)
}

fn floats(data: &TensorData) -> Vec<f32> {
    data.iter::<f32>().collect()
}

#[test]
fn every_layer_matches_with_and_without_a_voice() {
    let (golden, model) = (Golden::open(&fixture("")), model());
    for (prefix, speaker) in [
        ("plain", None),
        ("speaker", Some((golden.f32("speaker.vector"), 0))),
    ] {
        let rows = golden.i32(&format!("{prefix}.input_ids"));
        let mut tap = Tap::on();
        let out = model
            .forward(&[Sequence { rows, speaker }], &mut tap)
            .expect("runs");
        let records: HashMap<_, _> = tap.into_records().into_iter().collect();
        for key in ["embedding", "emb_norm", "final_hidden"]
            .map(str::to_owned)
            .into_iter()
            .chain((0..6).map(|n| format!("layer.{n}.out")))
        {
            let expected = golden.f32(&format!("{prefix}.{key}"));
            let difference = largest_difference(&floats(&records[&key]), &expected);
            println!("{prefix}.{key}: {difference:e}");
            assert!(difference <= HIDDEN, "{prefix}.{key}: {difference:e}");
        }
        for n in 2..5 {
            let expected = golden.i32(&format!("{prefix}.layer.{n}.expert"));
            let found: Vec<i32> = records[&format!("layer.{n}.expert")]
                .iter::<i32>()
                .collect();
            assert_eq!(found, expected, "{prefix}.layer.{n}.expert");
        }
        let best: Vec<i32> = out.logits.argmax(2).into_data().iter::<i32>().collect();
        assert_eq!(best, golden.i32(&format!("{prefix}.logits_argmax")));
    }
}

fn greedy(penalty: f32, max_frames: usize, ignore_eos: bool) -> GenerateOptions {
    GenerateOptions {
        sampler: SamplerOptions {
            repetition_penalty: penalty,
            ..SamplerOptions::greedy()
        },
        max_frames: Some(max_frames),
        ignore_eos,
        ..GenerateOptions::default()
    }
}

#[test]
fn greedy_codes_and_eos_frames_match_cached_and_recomputed() {
    let (golden, model) = (Golden::open(&fixture("")), model());
    let plain = Sequence::new(golden.i32("plain.input_ids"));
    let speaker = Sequence {
        rows: golden.i32("speaker.input_ids"),
        speaker: Some((golden.f32("speaker.vector"), 0)),
    };
    for (name, sequence, options) in [
        ("greedy", &plain, greedy(1.0, 40, true)),
        ("penalty", &plain, greedy(1.2, 100, false)),
        ("speaker", &speaker, greedy(1.2, 24, true)),
    ] {
        for recompute in [false, true] {
            let options = GenerateOptions {
                recompute,
                ..options.clone()
            };
            let done = model
                .generate(std::slice::from_ref(sequence), &[options], &mut |_| {
                    ControlFlow::Continue(())
                })
                .expect("generates");
            assert_eq!(
                done[0].frames.values(),
                golden.i32(&format!("gen.{name}.codes")),
                "{name}"
            );
            let eos = done[0].eos_frame.map_or(-1, |f| f as i32);
            assert_eq!(
                [eos],
                golden.i32(&format!("gen.{name}.eos_frame"))[..],
                "{name}"
            );
            let codec = done[0].codec_codes(model.config());
            assert_eq!(
                codec.values(),
                golden.i32(&format!("gen.{name}.codec_codes")),
                "{name}"
            );
        }
    }
}

#[test]
fn a_batch_of_unequal_prompts_generates_what_each_does_alone() {
    let (golden, model) = (Golden::open(&fixture("")), model());
    let width = model.config().row_width();
    let lengths = golden.i32("batch.lengths");
    let padded = golden.i32("batch.input_ids");
    let longest = padded.len() / width / lengths.len();
    let vector = golden.f32("batch.speaker_vector");
    let sequences: Vec<Sequence> = lengths
        .iter()
        .zip(golden.i32("batch.has_speaker"))
        .enumerate()
        .map(|(i, (&length, voice))| Sequence {
            rows: padded[i * longest * width..][..length as usize * width].to_vec(),
            speaker: (voice != 0).then(|| (vector.clone(), 0)),
        })
        .collect();
    // Unequal limits, so that sequences leave the batch one by one.
    let options: Vec<_> = [16, 5, 16].map(|n| greedy(1.2, n, true)).into();
    let batch = model
        .generate(&sequences, &options, &mut |_| ControlFlow::Continue(()))
        .expect("generates");
    let expected = golden.i32("batch.codes");
    for (i, generation) in batch.iter().enumerate() {
        let frames = generation.frames.values();
        assert_eq!(
            frames,
            &expected[i * 16 * 9..][..frames.len()],
            "sequence {i}"
        );
        assert_eq!(
            generation.frames.frames(),
            options[i].max_frames.expect("set")
        );
    }
}

#[test]
fn a_long_sequence_matches_whether_cached_or_whole() {
    // Longer than the rows that attend at a time, so that several tiles of queries are in play.
    let (golden, model) = (Golden::open(&fixture("")), model());
    let prompt = golden.i32("plain.input_ids");
    let rows = prompt.repeat(7);
    let t = rows.len() / 10;
    let whole = model
        .forward(&[Sequence::new(rows.clone())], &mut Tap::off())
        .expect("runs");
    let short = model
        .forward(&[Sequence::new(rows[..300 * 10].to_vec())], &mut Tap::off())
        .expect("runs");
    let row =
        |out: &zonos2::Forward, i: usize| floats(&out.logits.clone().narrow(0, i, 1).into_data());
    for i in [0, 255, 256, 299] {
        assert!(
            largest_difference(&row(&whole, i), &row(&short, i)) <= HIDDEN,
            "row {i}"
        );
    }
    // The cached decode of the same prompt starts from the last row's logits.
    let options = greedy(1.0, 1, true);
    let done = model
        .generate(&[Sequence::new(rows)], &[options], &mut |_| {
            ControlFlow::Continue(())
        })
        .expect("generates");
    let best: Vec<i32> = whole
        .logits
        .narrow(0, t - 1, 1)
        .argmax(2)
        .into_data()
        .iter::<i32>()
        .collect();
    assert_eq!(done[0].frames.values(), best);
}

#[test]
fn the_same_seed_draws_the_same_codes_and_another_does_not() {
    let (golden, model) = (Golden::open(&fixture("")), model());
    let prompt = Sequence::new(golden.i32("plain.input_ids"));
    let draw = |seed, cache_dtype| {
        let options = GenerateOptions {
            seed,
            cache_dtype,
            max_frames: Some(12),
            ..GenerateOptions::default()
        };
        model
            .generate(std::slice::from_ref(&prompt), &[options], &mut |_| {
                ControlFlow::Continue(())
            })
            .expect("generates")
            .remove(0)
            .frames
    };
    assert_eq!(draw(7, CacheDType::F32), draw(7, CacheDType::F32));
    assert_ne!(draw(7, CacheDType::F32), draw(8, CacheDType::F32));
    assert_eq!(draw(7, CacheDType::F16), draw(7, CacheDType::F16));
}

#[test]
fn bad_sequences_are_refused_by_name() {
    let model = model();
    let refuse = |sequence: Sequence, part: &str| {
        let error = model
            .forward(&[sequence], &mut Tap::off())
            .expect_err("refused")
            .to_string();
        assert!(error.contains(part), "{error:?} should say {part:?}");
    };
    let row = [vec![1025; 9], vec![519]].concat();
    refuse(Sequence::new(vec![]), "whole rows of 10");
    refuse(Sequence::new(vec![0; 11]), "whole rows of 10");
    refuse(
        Sequence::new([vec![1026; 9], vec![0]].concat()),
        "column 0: id 1026, expected 0 to 1025",
    );
    refuse(
        Sequence::new([vec![0; 9], vec![520]].concat()),
        "column 9: id 520, expected 0 to 519",
    );
    refuse(Sequence::new([vec![-1; 9], vec![0]].concat()), "id -1");
    refuse(Sequence::new(row.repeat(6145)), "6145 rows");
    let voice = |vector, position| Sequence {
        rows: row.clone(),
        speaker: Some((vector, position)),
    };
    refuse(voice(vec![0.0; 7], 0), "7 numbers, this model takes 2048");
    refuse(voice(vec![0.0; 2048], 1), "position 1 is beyond the 1 rows");
    let mut nan = vec![0.0; 2048];
    nan[3] = f32::NAN;
    refuse(voice(nan, 0), "number 3 is not finite");
    let error = model
        .generate(
            &[Sequence::new(row.repeat(6144))],
            &[GenerateOptions::default()],
            &mut |_| ControlFlow::Continue(()),
        )
        .expect_err("no room");
    assert!(error.to_string().contains("6144"), "{error}");
}
