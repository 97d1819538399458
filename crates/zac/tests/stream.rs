//! Streams give the samples of whole decodes however codes are cut, and refuse what is no code.

mod common;

use burn::tensor::Device;
use common::{bits, codes, decoder, rows};
use proptest::prelude::*;
use zonos_audio::Codes;
use zonos_checkpoint::{Checkpoint, LoadOptions};
use zonos_zac::{ZacDecoder, ZacError};

fn streamed(decoder: &ZacDecoder, codes: &Codes, cuts: &[usize]) -> Vec<f32> {
    let (hop, lag) = (decoder.config().hop_length, decoder.config().hop_length / 2);
    let mut stream = decoder.stream();
    let (mut samples, mut at) = (Vec::new(), 0);
    for &cut in cuts.iter().cycle() {
        let end = (at + cut).min(codes.frames());
        samples.extend(stream.decode(&rows(codes, at..end)).unwrap());
        at = end;
        assert_eq!(
            samples.len(),
            (at * hop).saturating_sub(lag),
            "after {at} frames"
        );
        if at == codes.frames() {
            break;
        }
    }
    let rest = stream.flush().unwrap();
    assert_eq!(rest.len(), if at > 0 { lag } else { 0 });
    samples.extend(rest);
    samples
}

/// The real rates: 2940 samples a frame, 1470 behind.
#[test]
fn the_promised_lengths_at_the_real_rates() {
    let decoder = decoder("mini-keep2");
    assert_eq!(decoder.config().hop_length, 2940);
    let codes = codes(5, 1, false);
    let whole = decoder.decode(&codes).unwrap();
    assert_eq!(whole.samples().len(), 5 * 2940);
    for cuts in [&[1][..], &[2, 0, 3], &[5], &[4, 1]] {
        let samples = streamed(&decoder, &codes, cuts);
        assert_eq!(bits(&samples), bits(whole.samples()), "{cuts:?}");
    }
}

/// More frames than go through the network at once.
#[test]
fn long_signals_are_cut_inside() {
    let decoder = decoder("mini-full");
    let codes = codes(250, 2, true);
    let whole = decoder.decode(&codes).unwrap();
    for cuts in [&[1][..], &[17], &[250], &[81, 169]] {
        let samples = streamed(&decoder, &codes, cuts);
        assert_eq!(bits(&samples), bits(whole.samples()), "{cuts:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(24) })]

    #[test]
    fn any_cuts_and_any_fork(
        frames in 1usize..40,
        cuts in prop::collection::vec(0usize..9, 1..6),
        fork_at in 0usize..40,
        seed in any::<u64>(),
    ) {
        prop_assume!(cuts.iter().sum::<usize>() > 0);
        let decoder = decoder("mini-full");
        let (main, other) = (codes(frames, seed, true), codes(frames, seed ^ 7, true));
        let whole = decoder.decode(&main).unwrap();
        prop_assert_eq!(bits(&streamed(&decoder, &main, &cuts)), bits(whole.samples()));

        let at = fork_at.min(frames);
        let mut stream = decoder.stream();
        let mut head = Vec::new();
        for t in 0..at {
            head.extend(stream.decode(&rows(&main, t..t + 1)).unwrap());
        }
        let mut fork = stream.fork();
        prop_assert_eq!((fork.frames(), fork.samples()), (at, head.len()));
        let mut branch = head.clone();
        for t in at..frames {
            branch.extend(fork.decode(&rows(&other, t..t + 1)).unwrap());
            head.extend(stream.decode(&rows(&main, t..t + 1)).unwrap());
        }
        branch.extend(fork.flush().unwrap());
        head.extend(stream.flush().unwrap());
        prop_assert_eq!(bits(&head), bits(whole.samples()));
        let joined: Vec<i32> = [rows(&main, 0..at), rows(&other, at..frames)]
            .iter()
            .flat_map(|part| part.values().to_vec())
            .collect();
        let joined = Codes::new(frames, 10, joined).unwrap();
        prop_assert_eq!(bits(&branch), bits(decoder.decode(&joined).unwrap().samples()));
    }
}

#[test]
fn a_missing_code_adds_nothing() {
    let decoder = decoder("mini-full");
    let (all, some) = (codes(6, 3, false), codes(6, 3, false));
    let mut values = some.into_values();
    values[3 * 10 + 4] = -1;
    let some = Codes::new(6, 10, values).unwrap();
    let (all, some) = (
        decoder.decode(&all).unwrap(),
        decoder.decode(&some).unwrap(),
    );
    let hop = decoder.config().hop_length;
    // What comes before the frame, but for the windows' overlap, is untouched.
    assert_eq!(all.samples()[..2 * hop], some.samples()[..2 * hop]);
    assert_ne!(all.samples(), some.samples());
}

#[test]
fn what_is_no_code_is_refused_by_name() {
    let decoder = decoder("mini-full");
    let with = |at: usize, value: i32| {
        let mut values = codes(3, 4, false).into_values();
        values[at] = value;
        Codes::new(3, 10, values).unwrap()
    };
    let columns = |n: usize| Codes::new(2, n, vec![0; 2 * n]).unwrap();
    for (bad, says) in [
        (columns(9), "9 columns, expected 10"),
        (columns(11), "11 columns, expected 10"),
        (with(15, 64), "code 64 at frame 1, codebook 5"),
        (with(20, -1), "frame 2, codebook 0"),
        (with(21, -2), "code -2 at frame 2, codebook 1"),
        (with(0, i32::MAX), "frame 0, codebook 0"),
    ] {
        let error = decoder.decode(&bad).unwrap_err().to_string();
        assert!(error.contains(says) && !error.contains('\n'), "{error}");
        // A stream refuses the same and stays where it was.
        let good = codes(4, 5, false);
        let mut stream = decoder.stream();
        let mut samples = stream.decode(&rows(&good, 0..2)).unwrap();
        assert_eq!(stream.decode(&bad).unwrap_err().to_string(), error);
        samples.extend(stream.decode(&rows(&good, 2..4)).unwrap());
        samples.extend(stream.flush().unwrap());
        assert_eq!(
            bits(&samples),
            bits(decoder.decode(&good).unwrap().samples())
        );
    }
    let none = Codes::new(0, 10, Vec::new()).unwrap();
    assert!(matches!(decoder.decode(&none), Err(ZacError::Empty)));
}

#[test]
fn a_stream_ends_once() {
    let decoder = decoder("mini-full");
    let codes = codes(2, 6, false);
    let none = Codes::new(0, 10, Vec::new()).unwrap();
    let mut stream = decoder.stream();
    assert!(stream.decode(&none).unwrap().is_empty());
    stream.decode(&codes).unwrap();
    let before = stream.fork();
    assert_eq!(
        stream.flush().unwrap().len(),
        decoder.config().hop_length / 2
    );
    assert!(stream.flush().unwrap().is_empty());
    for part in [&codes, &none] {
        assert!(matches!(stream.decode(part), Err(ZacError::Flushed)));
    }
    assert!(matches!(
        stream.fork().decode(&codes),
        Err(ZacError::Flushed)
    ));
    // A fork made before goes on.
    let mut before = before;
    assert!(before.decode(&codes).is_ok());
    let mut empty = decoder.stream();
    assert!(empty.flush().unwrap().is_empty());
    assert!(matches!(empty.decode(&codes), Err(ZacError::Flushed)));
    decoder.capture_stream_graphs(&[1, 2, 4, 8]);
}

/// A model in training decodes and streams too.
#[test]
fn on_a_device_that_tracks_gradients() {
    let path = common::fixture("mini-full").join("model.safetensors");
    let checkpoint = Checkpoint::open(path).unwrap();
    let device = Device::flex().autodiff();
    let options = LoadOptions::training();
    let (training, _) = ZacDecoder::load_with(&checkpoint, &options, &device).unwrap();
    let codes = codes(30, 8, true);
    let expected = decoder("mini-full").decode(&codes).unwrap();
    let found = streamed(&training, &codes, &[7, 1]);
    let peak = expected
        .samples()
        .iter()
        .fold(0.0f32, |m, x| m.max(x.abs()));
    assert!(common::worst(&found, expected.samples()) <= 2e-5 * peak);
}

#[test]
fn the_gain_leaves_three_decibels() {
    let gain = f64::from(ZacDecoder::output_gain());
    assert!((gain - 0.707_945_784_384_137_9).abs() < 3e-8);
    assert_eq!(ZacDecoder::gain(0.0), 1.0);
}
