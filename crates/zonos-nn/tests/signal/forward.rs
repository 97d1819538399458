use burn::tensor::Tensor;
use zonos_audio::ResampleRecipe;
use zonos_audio::mel::MelConfig;
use zonos_audio::stft::{Framing, PadMode, StftConfig, StftError};
use zonos_nn::signal::{frames, overlap_add};
use zonos_nn::{Istft, MelSpectrogram, Resample, Stft};

use crate::golden::{Golden, distance, json};
use crate::settings::{mel_config, stft_config};
use crate::{noise, plain, tracked, values};

/// Samples; spectra relative to their largest magnitude; mel levels; their logarithms above and below
/// a level of [`QUIET`].
const SAMPLES: f32 = 1e-6;
const SPECTRUM: f32 = 1e-6;
const LINEAR: f32 = 5e-6;
const LOG: f32 = 5e-4;
const LOG_QUIET: f32 = 3e-3;
const QUIET: f32 = 1e-2;
const WELL_CONDITIONED: f64 = 0.05;

/// Both paths of a module, with names for messages.
type Make = fn(Vec<f32>, [usize; 2]) -> Tensor<2>;
const PATHS: [(&str, Make); 2] = [("host", plain), ("burn", tracked)];

#[test]
fn resampling() {
    let golden = Golden::open("resample");
    for (name, _) in json("resample")["pairs"].as_object().unwrap() {
        let (from, to) = name.split_once('-').unwrap();
        let x = golden.values(&format!("{name}.x"));
        for (what, recipe) in [
            ("transform", ResampleRecipe::Transform),
            ("functional", ResampleRecipe::Functional),
        ] {
            let module = Resample::new(from.parse().unwrap(), to.parse().unwrap(), recipe).unwrap();
            let key = format!("{name}.{what}");
            for (path, make) in PATHS {
                let y = values(module.forward(make(x.clone(), [1, x.len()])));
                let gap = distance(&golden.values(&key), &y);
                assert!(gap <= SAMPLES, "{key}, {path}: {gap:e}");
            }
        }
        let module = Resample::new(
            from.parse().unwrap(),
            to.parse().unwrap(),
            ResampleRecipe::Transform,
        )
        .unwrap();
        for n in [1, 2, 7] {
            let y = values(module.forward(tracked(x[..n].to_vec(), [1, n])));
            let gap = distance(&golden.values(&format!("{name}.short{n}")), &y);
            assert!(gap <= SAMPLES, "{name}.short{n}: {gap:e}");
        }
    }
    let (shape, x) = golden.tensor("stereo.x");
    let module = Resample::new(44_100, 24_000, ResampleRecipe::Transform).unwrap();
    for (path, make) in PATHS {
        let y = values(module.forward(make(x.clone(), [2, shape[1]])));
        let gap = distance(&golden.values("stereo.44100-24000"), &y);
        assert!(gap <= SAMPLES, "{path}: {gap:e}");
    }
}

#[test]
fn resampling_of_nothing_and_between_equal_rates() {
    let module = Resample::new(44_100, 24_000, ResampleRecipe::Transform).unwrap();
    for (_, make) in PATHS {
        assert_eq!(module.forward(make(vec![], [1, 0])).dims(), [1, 0]);
        assert_eq!(module.forward(make(vec![], [0, 5])).dims(), [0, 3]);
    }
    let module = Resample::new(8000, 8000, ResampleRecipe::Transform).unwrap();
    assert_eq!(
        values(module.forward(plain(vec![1.0, 2.0], [1, 2]))),
        [1.0, 2.0]
    );
}

#[test]
fn resampling_without_a_common_divisor() {
    for (from, to) in [(44_101, 44_100), (9973, 24_001)] {
        let module = Resample::new(from, to, ResampleRecipe::Transform).unwrap();
        let x = noise(3000);
        let expected = module.resampler().resample(&x);
        let both = [x.as_slice(), &x].concat();
        let y = values(module.forward(tracked(both, [2, 3000])));
        let gap = distance(&[expected.as_slice(), &expected].concat(), &y);
        assert!(gap <= SAMPLES, "{from} to {to}: {gap:e}");
    }
}

#[test]
fn signals_longer_than_one_product() {
    // 2.3 million samples are more rows of 256 than are multiplied at once.
    let x = noise(2_300_000);
    let module = Resample::new(48_000, 16_000, ResampleRecipe::Transform).unwrap();
    let expected = module.resampler().resample(&x);
    let n = x.len();
    let y = values(module.forward(tracked(x, [1, n])));
    assert!(distance(&expected, &y) <= SAMPLES);

    let x = noise(40_000);
    for (n_fft, hop, framing) in [
        (16, 4, Framing::Centred(PadMode::Reflect)),
        (6, 4, Framing::Same(PadMode::Edge)),
        (4, 4, Framing::Bare),
    ] {
        let config = StftConfig {
            framing,
            window: zonos_audio::stft::hann_window(n_fft + 2, true)[1..=n_fft].to_vec(),
            ..StftConfig::hann(n_fft, hop)
        };
        let stft = Stft::new(config.clone()).unwrap();
        let (re, im) = stft.forward(tracked(x.clone(), [1, x.len()])).unwrap();
        assert!(re.dims()[2] > 9000);
        let (host_re, host_im) = stft.forward(plain(x.clone(), [1, x.len()])).unwrap();
        let gap = distance(&values(host_re), &values(re.clone()))
            .max(distance(&values(host_im), &values(im.clone())));
        assert!(gap < 1e-5, "{n_fft}: {gap:e}");
        let istft = Istft::new(config).unwrap();
        let back = values(istft.forward(re, im, Some(39_996)).unwrap());
        assert!(distance(&x[..39_996], &back) < 1e-4, "{n_fft}");
    }
}

#[test]
fn spectra_and_back() {
    let (golden, facts) = (Golden::open("stft"), json("stft"));
    for (name, facts) in facts.as_object().unwrap() {
        let config = stft_config(facts);
        let (shape, re) = golden.tensor(&format!("{name}.re"));
        let im = golden.values(&format!("{name}.im"));
        let scale = re
            .iter()
            .zip(&im)
            .fold(0.0f32, |m, (a, b)| m.max(a.hypot(*b)));
        let key = format!("{name}.x");
        if golden.has(&key) {
            let x = golden.values(&key);
            let stft = Stft::new(config.clone()).unwrap();
            for (path, make) in PATHS {
                let (a, b) = stft.forward(make(x.clone(), [1, x.len()])).unwrap();
                assert_eq!(a.dims(), [1, shape[0], shape[1]], "{name}");
                let gap = distance(&re, &values(a)).max(distance(&im, &values(b)));
                println!("{name}, {path}: {:.1e} of {scale}", gap / scale);
                assert!(
                    gap <= SPECTRUM * scale,
                    "{name}, {path}: {gap:e} of {scale}"
                );
            }
        }
        let istft = Istft::new(config).unwrap();
        let shape = [1, shape[0], shape[1]];
        for tag in ["istft", "istft_len", "istft_long"] {
            let key = format!("{name}.{tag}");
            let length = match tag {
                "istft" => None,
                "istft_len" => Some(3000),
                _ => Some(3000 + istft.config().n_fft),
            };
            for path in ["host", "burn"] {
                let part = |values: &Vec<f32>| match path {
                    "host" => plain(values.clone(), shape),
                    _ => tracked(values.clone(), shape),
                };
                if facts[tag].is_string() {
                    let error = istft.forward(part(&re), part(&im), length).unwrap_err();
                    assert!(
                        matches!(error, StftError::Uncovered { .. }),
                        "{key}: {error}"
                    );
                } else if golden.has(&key) {
                    let expected = golden.values(&key);
                    let actual = values(istft.forward(part(&re), part(&im), length).unwrap());
                    assert_eq!(actual.len(), expected.len(), "{key}");
                    let start = istft.config().kept(shape[2]).0;
                    let mut sums = istft.window_sums(shape[2]).split_off(start);
                    sums.resize(actual.len(), 0.0);
                    for (i, (e, a)) in expected.iter().zip(&actual).enumerate() {
                        if sums[i] >= WELL_CONDITIONED || sums[i] == 0.0 {
                            let gap = (e - a).abs();
                            assert!(gap <= SAMPLES, "{key}, {path}: sample {i}: {gap:e}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn mel() {
    let (golden, facts) = (Golden::open("mel"), json("mel"));
    let speaker = MelSpectrogram::new(MelConfig::speaker()).unwrap();
    for name in ["loud", "quiet", "min385", "n1280", "n1535", "zeros"] {
        let x = golden.values(&format!("speaker.{name}.x"));
        let (shape, expected) = golden.tensor(&format!("speaker.{name}.linear"));
        let expected_log = golden.values(&format!("speaker.{name}.mel"));
        for (path, make) in PATHS {
            let linear = speaker.linear(make(x.clone(), [1, x.len()])).unwrap();
            assert_eq!(linear.dims(), [1, shape[0], shape[1]], "{name}");
            let gap = distance(&expected, &values(linear));
            assert!(gap <= LINEAR, "{name}, {path}: {gap:e}");
            let log = values(speaker.log(make(x.clone(), [1, x.len()]), 1e-5).unwrap());
            for ((e, a), level) in expected_log.iter().zip(&log).zip(&expected) {
                let limit = if *level <= QUIET { LOG_QUIET } else { LOG };
                assert!(
                    (e - a).abs() <= limit,
                    "{name}, {path}: level {level:e}: {e}, {a}"
                );
            }
        }
    }
    for name in ["default16k", "slaney22k", "htk_norm"] {
        let module = MelSpectrogram::new(mel_config(&facts[name])).unwrap();
        let x = golden.values(&format!("{name}.x"));
        let expected = golden.values(&format!("{name}.mel"));
        let largest = expected.iter().fold(0.0f32, |m, x| m.max(*x));
        for (path, make) in PATHS {
            let mel = module.linear(make(x.clone(), [1, x.len()])).unwrap();
            let gap = distance(&expected, &values(mel.swap_dims(1, 2)));
            assert!(gap <= LINEAR.max(1e-6 * largest), "{name}, {path}: {gap:e}");
        }
    }
}

#[test]
fn what_cannot_be_done_is_refused() {
    let front_end = MelSpectrogram::new(MelConfig::speaker()).unwrap();
    for (_, make) in PATHS {
        let error = front_end
            .log(make(vec![0.0; 384], [1, 384]), 1e-5)
            .unwrap_err();
        assert!(error.to_string().contains("at least 385"), "{error}");
    }
    let error = Stft::new(StftConfig::hann(65_537, 256))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("n_fft is 65537, whose tables would be too large"),
        "{error}"
    );
    let istft = Istft::new(StftConfig::hann(16, 4)).unwrap();
    let part = |shape: [usize; 3]| plain(vec![0.0; shape.iter().product()], shape);
    for (re, im) in [
        ([1, 9, 3], [1, 9, 4]),
        ([1, 8, 3], [1, 8, 3]),
        ([1, 9, 0], [1, 9, 0]),
    ] {
        let error = istft.forward(part(re), part(im), None).unwrap_err();
        assert!(matches!(error, StftError::Spectrum { .. }), "{error}");
    }
}

#[test]
fn frames_and_their_sum() {
    for (size, hop, count) in [(5, 2, 4), (4, 4, 3), (3, 5, 3), (7, 3, 1), (1, 1, 2)] {
        let length = (count - 1) * hop + size;
        let x = noise(2 * length);
        let cut = frames(plain(x.clone(), [2, length]), size, hop, count);
        assert_eq!(cut.dims(), [2, count, size]);
        let expected: Vec<f32> = x
            .chunks(length)
            .flat_map(|row| (0..count).flat_map(move |t| row[t * hop..t * hop + size].to_vec()))
            .collect();
        assert_eq!(values(cut.clone()), expected);
        let mut sum = vec![0.0; 2 * length];
        for (i, v) in expected.iter().enumerate() {
            let (row, t, k) = (i / (count * size), i / size % count, i % size);
            sum[row * length + t * hop + k] += v;
        }
        let added = overlap_add(cut, hop);
        assert_eq!(added.dims(), [2, length]);
        assert!(distance(&sum, &values(added)) < 1e-6);
    }
}

#[test]
fn a_vocoder_streams_with_the_parts() {
    // What a streaming head does: frames of one half, added up and divided where they are final.
    let config = StftConfig {
        framing: Framing::Same(PadMode::Zeros),
        ..StftConfig::hann(64, 16)
    };
    let istft = Istft::new(config).unwrap();
    let (re, im) = (noise(33 * 20), noise(33 * 20));
    let whole = values(
        istft
            .forward(
                plain(re.clone(), [1, 33, 20]),
                plain(im.clone(), [1, 33, 20]),
                None,
            )
            .unwrap(),
    );
    assert_eq!(whole.len(), 20 * 16);
    let half = |x: Vec<f32>| plain(x, [1, 33, 20]).slice([0..1, 0..33, 0..10]);
    let added = values(overlap_add(istft.frames(half(re), half(im)).unwrap(), 16));
    let sums = istft.window_sums(10);
    assert_eq!(added.len(), sums.len());
    // Final is what no later frame reaches, from the first sample kept on.
    let (start, final_end) = (24, 10 * 16);
    let stream: Vec<f32> = (start..final_end)
        .map(|i| added[i] / sums[i] as f32)
        .collect();
    assert!(distance(&whole[..final_end - start], &stream) < 1e-6);
}
