//! Streams against whole decodes and the seam goldens.

mod common;

use burn::tensor::Device;
use common::{Golden, fixture, max_delta, on_device, rows};
use proptest::prelude::*;
use zonos_audio::Codes;
use zonos_dac::{Dac, DacError, DacStream};
use zonos_nn::{Edges, Tap};

fn load(model: &str) -> (Dac, Golden) {
    let dac = Dac::load(
        fixture(&format!("dac/{model}/weights.pth")),
        &Device::flex(),
    )
    .unwrap();
    (
        dac,
        Golden::open(fixture(&format!("dac/{model}/golden.safetensors"))),
    )
}

fn whole(dac: &Dac, codes: &Codes) -> Vec<f32> {
    let y = dac.decode_tensor(on_device(codes, &Device::flex()), &mut Tap::off());
    y.into_data().try_to_vec().unwrap()
}

/// Pushes pieces of the given sizes, again and again, and flushes.
fn streamed(mut stream: DacStream<'_>, codes: &Codes, sizes: &[usize]) -> Vec<f32> {
    let mut samples = Vec::new();
    let (mut at, mut sizes) = (0, sizes.iter().cycle());
    while at < codes.frames() {
        let to = (at + sizes.next().unwrap()).min(codes.frames());
        samples.extend(stream.push(&rows(codes, at..to)).unwrap());
        at = to;
    }
    samples.extend(stream.flush().unwrap());
    samples
}

/// Codes that depend on a seed alone.
fn any_codes(dac: &Dac, frames: usize, seed: u64) -> Codes {
    let (q, size) = (dac.config().n_codebooks, dac.config().codebook_size as u64);
    let mut state = seed | 1;
    let mut next = || {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        ((state >> 33) % size) as i32
    };
    Codes::new(frames, q, (0..frames * q).map(|_| next()).collect()).unwrap()
}

#[test]
fn seam_goldens() {
    let (dac, golden) = load("tiny");
    let codes = golden.codes("long.codes");
    let wave = dac.decode(&codes).unwrap();
    let delta = max_delta(wave.samples(), &golden.f32("long.wav"));
    assert!(delta <= 2e-6, "{delta:e}");
    // Frames 24..32 with `context` frames a side, decoded as if they were all there is.
    let expected = golden.f64("seam.max_delta_by_context_f64");
    for (context, &expected) in expected.iter().enumerate() {
        let part = rows(&codes, 24 - context..32 + context);
        let window = whole(&dac, &part);
        let middle = &window[context * 512..(context + 8) * 512];
        let delta = f64::from(max_delta(middle, &wave.samples()[24 * 512..32 * 512]));
        if context >= 10 {
            assert_eq!(delta, 0.0, "context {context}");
        } else {
            let bound = 1e-6 + 1e-3 * expected;
            assert!(
                (delta - expected).abs() <= bound,
                "context {context}: {delta:e}"
            );
        }
    }
    let (left, right) = (24 * 512, 32 * 512);
    assert_eq!(dac.config().frames_needed(left..right), 14..42);
}

#[test]
fn delayed_rows_become_the_golden_waveform() {
    let (dac, golden) = load("tiny");
    let (shape, raw) = (golden.shape("stream.raw"), golden.integers("stream.raw"));
    let raw = raw.iter().map(|&v| v as i32).collect();
    let raw = Codes::new(shape[0], shape[1], raw).unwrap();
    let eos = golden.integers("stream.eos")[0] as usize;
    let plain = raw.unshear(1025);
    for (key, codes) in [
        ("stream.buffered", plain.clone().truncate(eos)),
        ("stream.buffered_no_eos", plain),
    ] {
        let codes = codes.clamp_above(1023);
        let wave = dac.decode(&codes).unwrap();
        let delta = max_delta(wave.samples(), &golden.f32(key));
        assert!(delta <= 2e-6, "{key}: {delta:e}");
        let live = streamed(dac.stream(7), &codes, &[1]);
        assert!(live == wave.samples(), "{key}: streamed");
    }
}

#[test]
fn streams_give_the_bits_of_the_whole_decode() {
    for model in ["tiny", "alt", "odd"] {
        let (dac, _) = load(model);
        for frames in [1, 2, 9, 75, 131] {
            let codes = any_codes(&dac, frames, frames as u64);
            let expected = whole(&dac, &codes);
            assert_eq!(expected.len(), dac.config().decoded_len(frames));
            assert!(
                dac.decode(&codes).unwrap().samples() == expected,
                "{model}: {frames}: decode"
            );
            for sizes in [&[1][..], &[2], &[3], &[7], &[40], &[1, 5, 2, 30]] {
                for block in [1, 4, 40] {
                    let samples = streamed(dac.stream(block), &codes, sizes);
                    assert!(
                        samples == expected,
                        "{model}: {frames} frames in {sizes:?}, {block}"
                    );
                }
            }
        }
    }
}

/// Samples come out no later than the context demands.
#[test]
fn latency_is_the_context() {
    let (dac, _) = load("tiny");
    let codes = any_codes(&dac, 40, 3);
    let mut stream = dac.stream(1);
    for t in 0..40 {
        stream.push(&rows(&codes, t..t + 1)).unwrap();
        let whole_frames = stream.samples() / 512;
        assert!(whole_frames >= (t + 1usize).saturating_sub(10), "frame {t}");
        let settled = dac.config().decoded_span(
            0..t + 1,
            Edges {
                start: true,
                end: false,
            },
        );
        assert!(stream.samples() <= settled.end);
    }
}

#[test]
fn forks_go_their_own_way() {
    let (dac, _) = load("odd");
    let (start, one, two) = (
        any_codes(&dac, 50, 1),
        any_codes(&dac, 20, 2),
        any_codes(&dac, 33, 3),
    );
    let mut stream = dac.stream(2);
    let mut first = stream.push(&start).unwrap();
    let mut fork = stream.fork();
    let mut second = first.clone();
    first.extend(stream.push(&one).unwrap());
    second.extend(fork.push(&two).unwrap());
    first.extend(stream.flush().unwrap());
    second.extend(fork.flush().unwrap());
    for (samples, tail) in [(first, &one), (second, &two)] {
        let mut values = start.values().to_vec();
        values.extend_from_slice(tail.values());
        let codes = Codes::new(50 + tail.frames(), 3, values).unwrap();
        assert!(samples == dac.decode(&codes).unwrap().samples());
    }
    // Flushed, a stream begins again.
    assert_eq!((stream.frames(), stream.samples()), (0, 0));
    assert!(streamed(stream, &one, &[6]) == dac.decode(&one).unwrap().samples());
}

#[test]
fn a_refused_push_changes_nothing() {
    let (dac, _) = load("odd");
    let codes = any_codes(&dac, 30, 9);
    let mut stream = dac.stream(1);
    let mut samples = stream.push(&rows(&codes, 0..10)).unwrap();
    assert!(
        stream
            .push(&Codes::new(1, 3, vec![0, 64, 0]).unwrap())
            .is_err()
    );
    let narrow = Codes::new(1, 2, vec![0, 0]).unwrap();
    assert!(matches!(
        stream.push(&narrow),
        Err(DacError::Columns {
            expected: 3,
            found: 2
        })
    ));
    samples.extend(stream.push(&rows(&codes, 10..30)).unwrap());
    samples.extend(stream.flush().unwrap());
    assert!(samples == dac.decode(&codes).unwrap().samples());
    assert!(stream.flush().unwrap().is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn any_chunking_gives_the_same_bits(
        frames in 1usize..120,
        sizes in prop::collection::vec(1usize..50, 1..6),
        block in 1usize..50,
        seed in any::<u64>(),
    ) {
        let (dac, _) = load("odd");
        let codes = any_codes(&dac, frames, seed);
        prop_assert!(streamed(dac.stream(block), &codes, &sizes) == whole(&dac, &codes));
    }
}
