use zonos_audio::stft::{Spectrum, Stft, StftConfig, StftError, hann_window};

use crate::golden::{Golden, distance, json};
use crate::settings::stft_config;

/// Of spectra, relative to the largest magnitude; of signals where the divisor is at least
/// [`WELL_CONDITIONED`], absolute.
const RELATIVE: f32 = 1e-6;
const SAMPLES: f32 = 1e-6;
const WELL_CONDITIONED: f64 = 0.05;

/// The divisor of each sample of the inverse.
fn divisors(config: &StftConfig, frames: usize, len: usize) -> Vec<f64> {
    let mut sums = config.window_sums(frames).split_off(config.kept(frames).0);
    sums.resize(len, 0.0);
    sums
}

fn largest(re: &[f32], im: &[f32]) -> f32 {
    let squares = re.iter().zip(im).map(|(a, b)| a * a + b * b);
    squares.fold(0.0, f32::max).sqrt()
}

#[test]
fn settings_forward_and_back() {
    let (golden, facts) = (Golden::open("stft"), json("stft"));
    let mut inverses = 0;
    for (name, facts) in facts.as_object().unwrap() {
        let stft = Stft::new(stft_config(facts)).unwrap();
        let (shape, re) = golden.tensor(&format!("{name}.re"));
        let im = golden.values(&format!("{name}.im"));
        let scale = largest(&re, &im);
        if golden.has(&format!("{name}.x")) {
            let spectrum = stft.forward(&golden.values(&format!("{name}.x"))).unwrap();
            assert_eq!([spectrum.bins, spectrum.frames], shape[..], "{name}");
            let planes = spectrum.planes();
            let gap = distance(&re, &planes.0).max(distance(&im, &planes.1));
            println!("{name}: {:.1e} of {scale}", gap / scale);
            assert!(gap <= RELATIVE * scale, "{name}: {gap:e} of {scale}");
        }
        let spectrum = Spectrum::from_planes(shape[0], shape[1], &re, &im).unwrap();
        for tag in ["istft", "istft_len", "istft_long"] {
            let key = format!("{name}.{tag}");
            let length = match tag {
                "istft" => None,
                "istft_len" => Some(3000),
                _ => Some(3000 + stft.config().n_fft),
            };
            if facts[tag].is_string() {
                let error = stft.inverse(&spectrum, length).unwrap_err();
                assert!(
                    matches!(error, StftError::Uncovered { .. }),
                    "{key}: {error}"
                );
                inverses += 1;
            } else if golden.has(&key) {
                let expected = golden.values(&key);
                let actual = stft.inverse(&spectrum, length).unwrap();
                assert_eq!(actual.len(), expected.len(), "{key}");
                let divisors = divisors(stft.config(), spectrum.frames, actual.len());
                let mut worst = 0.0f32;
                for (i, (e, a)) in expected.iter().zip(&actual).enumerate() {
                    let gap = (e - a).abs();
                    if divisors[i] >= WELL_CONDITIONED {
                        assert!(gap <= SAMPLES, "{key}: sample {i}: {gap:e}");
                        worst = worst.max(gap);
                    } else if divisors[i] == 0.0 {
                        assert_eq!(*a, 0.0, "{key}: sample {i}");
                    } else {
                        assert!(gap <= 2e-2, "{key}: sample {i}: {gap:e}");
                    }
                }
                println!("{key}: {worst:.1e}");
                inverses += 1;
            }
        }
    }
    assert_eq!(inverses, 9 * 3 + 2);
}

#[test]
fn windows() {
    let golden = Golden::open("stft");
    for n in [4, 5, 400, 1024] {
        for (name, periodic) in [("periodic", true), ("symmetric", false)] {
            let gap = distance(
                &golden.values(&format!("hann{n}.{name}")),
                &hann_window(n, periodic),
            );
            assert!(gap <= 6e-8, "{n} {name}: {gap:e}");
        }
    }
}
