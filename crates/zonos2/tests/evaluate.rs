//! Scores and importances of the tiny model against its own forward pass.

use std::path::PathBuf;

use burn::tensor::{Device, TensorData};
use zonos_gguf::kld::{Event, KldSequence, events, log_softmax};
use zonos_gguf::{Imatrix, Perplexity};
use zonos_nn::Tap;
use zonos2::{Importance, Prompt, Sequence, Zonos2, Zonos2Error, kld_shape};

fn model() -> Zonos2 {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../validation/fixtures/zonos2/tiny/model.safetensors");
    Zonos2::load(dir, &Device::flex()).expect("fixture loads")
}

/// A prompt and some rows of sound, so long that logits come in more than one part.
fn sequence(model: &Zonos2, voice: bool) -> Sequence {
    let config = model.config();
    let prompt = Prompt::builder(config).text("Numbers.").speaker(voice);
    let prompt = prompt.build().expect("a prompt");
    let vector = vec![0.1; config.speaker_embedding_dim];
    let mut sequence = Sequence::from_prompt(&prompt, voice.then_some(vector)).expect("a sequence");
    for t in 0..90 {
        sequence
            .rows
            .extend((0..9).map(|c| (t * 37 + c * 11) % 1026));
        sequence.rows.push(config.text_pad_id() as i32);
    }
    sequence
}

fn scores(model: &Zonos2, sequence: &Sequence) -> Vec<(Event, Vec<f32>)> {
    let mut found = Vec::new();
    model
        .score(3, sequence, |event, logits| {
            found.push((event, logits.to_vec()));
            Ok::<(), Zonos2Error>(())
        })
        .expect("scores");
    found
}

#[test]
fn every_event_comes_with_the_logits_of_its_row() {
    let model = model();
    for voice in [false, true] {
        let sequence = sequence(&model, voice);
        let out = model
            .forward(std::slice::from_ref(&sequence), &mut Tap::off())
            .expect("runs");
        let whole: Vec<f32> = out.logits.into_data().iter::<f32>().collect();
        let found = scores(&model, &sequence);
        let shape = kld_shape(model.config());
        let expected: Vec<Event> = events(shape, 3, &sequence.rows).collect();
        assert_eq!(found.iter().map(|f| f.0).collect::<Vec<_>>(), expected);
        assert!(expected.len() > 64 * 9, "{}", expected.len());
        let mut perplexity = Perplexity::new(9);
        let mut sum = 0.0;
        for (event, logits) in &found {
            let row = &whole[(event.row * 9 + event.codebook) * 1026..][..1026];
            // On the CPU sums do not depend on which rows are computed together.
            assert_eq!(logits, row, "{event:?}");
            perplexity.push(event, logits);
            let mut logs = vec![0.0; 1026];
            log_softmax(row, &mut logs);
            sum += f64::from(logs[event.label]);
        }
        let by_hand = (-sum / found.len() as f64).exp();
        let all = perplexity.all().expect("events");
        assert!((all / by_hand - 1.0).abs() < 1e-12, "{all} {by_hand}");
        let kld = KldSequence::from(&sequence);
        assert_eq!(Sequence::from(&kld), sequence);
    }
}

#[test]
fn an_error_of_the_caller_ends_the_run() {
    let model = model();
    let mut calls = 0;
    let stopped = model.score(0, &sequence(&model, false), |_, _| {
        calls += 1;
        Err(Zonos2Error::Empty)
    });
    assert!(matches!(stopped, Err(Zonos2Error::Empty)));
    assert_eq!(calls, 1);
    let mut bad = sequence(&model, false);
    bad.rows[25] = 1026;
    let refused = model.score(7, &bad, |_, _| Ok::<(), Zonos2Error>(()));
    let text = refused.expect_err("an id out of range").to_string();
    assert!(
        text.contains("sequence 7, row 2, column 5: id 1026"),
        "{text}"
    );
    // Nothing to predict, nothing to compute.
    let pads = Sequence::new(vec![
        1025, 1025, 1025, 1025, 1025, 1025, 1025, 1025, 1025, 2,
    ]);
    assert!(scores(&model, &pads).is_empty());
}

/// Mean squares by the plain definition, from the tensors that an expert layer shows.
fn by_hand(model: &Zonos2, sequences: &[Sequence], layer: usize, part: &str) -> Vec<Vec<f64>> {
    let experts = model.config().n_experts;
    let mut sums = vec![Vec::new(); experts];
    let mut hits = vec![0.0; experts];
    for sequence in sequences {
        let mut shown = std::collections::HashMap::new();
        let mut see = |name: &str, data: TensorData| {
            shown.insert(name.to_owned(), data);
        };
        model
            .forward(std::slice::from_ref(sequence), &mut Tap::watching(&mut see))
            .expect("runs");
        let floats = |part: &str| -> (Vec<f32>, usize) {
            let data = &shown[&format!("layer.{layer}.expert.{part}")];
            (data.iter::<f32>().collect(), data.shape()[1])
        };
        let chosen: Vec<i32> = shown[&format!("layer.{layer}.expert.chosen")]
            .iter::<i32>()
            .collect();
        let (values, width) = floats(part);
        let repeat = chosen.len() / (values.len() / width);
        for (i, &e) in chosen.iter().enumerate() {
            let e = e as usize;
            sums[e].resize(width, 0.0);
            hits[e] += 1.0;
            for (sum, &x) in sums[e].iter_mut().zip(&values[i / repeat * width..]) {
                *sum += f64::from(x) * f64::from(x);
            }
        }
    }
    for (sums, hits) in sums.iter_mut().zip(hits) {
        sums.iter_mut().for_each(|sum| *sum /= hits);
    }
    sums
}

#[test]
fn importances_are_the_mean_squares_of_what_experts_are_given() {
    let model = model();
    let sequences = [sequence(&model, false), sequence(&model, true)];
    let mut importance = Importance::new(model.config());
    for (i, sequence) in sequences.iter().enumerate() {
        importance.push(&model, i, sequence).expect("runs");
    }
    let rows: usize = sequences.iter().map(|s| s.len(10)).sum();
    for (n, hits) in importance.hits() {
        let top_k = model.config().experts_per_token(n);
        assert_eq!(hits.iter().sum::<u64>() as usize, rows * top_k);
    }
    let imatrix = importance.imatrix(5);
    assert_eq!(imatrix.entries.len(), 3 * importance.hits().len());
    let mut written = Vec::new();
    imatrix.write(&mut written).expect("writes");
    assert_eq!(Imatrix::read("i", &written).expect("reads"), imatrix);
    for (n, hits) in importance.hits() {
        let entry = |part: &str| &imatrix.entries[&format!("blk.{n}.ffn_{part}_exps.weight")];
        assert_eq!(entry("gate"), entry("up"));
        for (shown, part) in [("rows", "gate"), ("inner", "down")] {
            let expected = by_hand(&model, &sequences, n, shown);
            for (e, expected) in expected.iter().enumerate() {
                match entry(part).expert(e) {
                    None => assert!(hits[e] < 5),
                    Some(row) => {
                        let near = |(&a, &b): (&f32, &f64)| (f64::from(a) / b - 1.0).abs() < 1e-6;
                        assert!(hits[e] >= 5 && row.iter().zip(expected).all(near));
                    }
                }
            }
        }
    }
}

#[test]
fn numbers_that_are_none_are_named_by_row_and_layer() {
    use burn::module::Module;
    use burn::module::ModuleMapper;
    struct Spoil;
    impl ModuleMapper for Spoil {
        fn map_float<const D: usize>(
            &mut self,
            param: burn::module::Param<burn::tensor::Tensor<D>>,
        ) -> burn::module::Param<burn::tensor::Tensor<D>> {
            param.map(|x| x * f32::NAN)
        }
    }
    let mut model = model();
    let sequence = sequence(&model, false);
    *model.backbone_mut() = model.backbone().clone().map(&mut Spoil);
    let refused = model.score(0, &sequence, |_, _| Ok::<(), Zonos2Error>(()));
    let text = refused.expect_err("NaN").to_string();
    assert!(
        text.starts_with("sequence 0, row ")
            && text.contains("codebook 0")
            && text.contains("layer 0"),
        "{text}"
    );
    let refused = Importance::new(model.config()).push(&model, 4, &sequence);
    let text = refused.expect_err("NaN").to_string();
    assert!(
        text.starts_with("sequence 4: ") && text.contains("layer 2"),
        "{text}"
    );
}
