use std::f64::consts::TAU;

use proptest::prelude::*;

use super::*;

fn noise(n: usize) -> Vec<f32> {
    let mut state = 7u32;
    (0..n)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        })
        .collect()
}

fn config(n_fft: usize, hop: usize, window: Vec<f32>, framing: Framing) -> StftConfig {
    StftConfig {
        n_fft,
        hop,
        window,
        framing,
        normalized: false,
    }
}

#[test]
fn follows_the_definition_for_any_size() {
    for n_fft in [1, 2, 3, 7, 12, 25, 64, 97] {
        let stft = Stft::new(config(n_fft, 3, ones_window(n_fft), Framing::Bare)).unwrap();
        let x = noise(n_fft + 40);
        let spectrum = stft.forward(&x).unwrap();
        assert_eq!(spectrum.frames, 40 / 3 + 1);
        for t in 0..spectrum.frames {
            for (k, z) in spectrum.frame(t).iter().enumerate() {
                let (mut re, mut im) = (0.0, 0.0);
                for (i, &x) in x[3 * t..][..n_fft].iter().enumerate() {
                    let angle = TAU * (k * i % n_fft) as f64 / n_fft as f64;
                    re += f64::from(x) * angle.cos();
                    im -= f64::from(x) * angle.sin();
                }
                let gap = (f64::from(z.re) - re)
                    .abs()
                    .max((f64::from(z.im) - im).abs());
                assert!(gap < 1e-5, "n_fft {n_fft}, frame {t}, bin {k}: {gap:e}");
            }
        }
    }
}

#[test]
fn vocoder_framing_has_a_frame_a_hop_and_inverts() {
    for (n_fft, hop) in [(512, 184), (2048, 184), (64, 16), (25, 4)] {
        let window = hann_window(n_fft, true);
        let stft = Stft::new(config(n_fft, hop, window, Framing::Same(PadMode::Zeros))).unwrap();
        let x = noise(hop * 40);
        let spectrum = stft.forward(&x).unwrap();
        // An odd difference loses a sample at the end, and with it the last frame.
        assert_eq!(spectrum.frames, 40 - (n_fft - hop) % 2);
        let back = stft.inverse(&spectrum, None).unwrap();
        assert_eq!(back.len(), spectrum.frames * hop);
        // The ends were padded with silence, which the inverse does not know.
        let inner = n_fft..back.len().saturating_sub(n_fft);
        for i in inner {
            assert!((x[i] - back[i]).abs() < 1e-5, "{n_fft}, {hop}: sample {i}");
        }
    }
}

#[test]
fn signals_that_are_too_short_are_refused() {
    for (framing, least) in [
        (Framing::Bare, 16),
        (Framing::Centred(PadMode::Reflect), 9),
        (Framing::Centred(PadMode::Zeros), 0),
        (Framing::Centred(PadMode::Edge), 1),
        (Framing::Same(PadMode::Reflect), 7),
        (Framing::Same(PadMode::Zeros), 4),
    ] {
        let stft = Stft::new(config(16, 4, hann_window(16, true), framing)).unwrap();
        assert_eq!(stft.config().least(), least, "{framing:?}");
        assert!(stft.forward(&noise(least)).is_ok(), "{framing:?}");
        if least > 0 {
            let error = stft.forward(&noise(least - 1)).unwrap_err();
            assert_eq!(
                error,
                StftError::TooShort {
                    samples: least - 1,
                    needed: least
                },
                "{framing:?}"
            );
        }
    }
}

#[test]
fn sizes_that_do_not_fit_are_refused() {
    let good = StftConfig::hann(16, 4);
    for (bad, says) in [
        (
            StftConfig {
                n_fft: 0,
                ..good.clone()
            },
            "n_fft is 0",
        ),
        (
            StftConfig {
                n_fft: usize::MAX,
                ..good.clone()
            },
            "n_fft is",
        ),
        (
            StftConfig {
                hop: 0,
                ..good.clone()
            },
            "hop is 0",
        ),
        (
            StftConfig {
                window: vec![],
                ..good.clone()
            },
            "0 values",
        ),
        (
            StftConfig {
                window: vec![1.0; 17],
                ..good.clone()
            },
            "17 values",
        ),
        (
            StftConfig {
                window: vec![1.0, f32::NAN],
                ..good.clone()
            },
            "window value 1",
        ),
    ] {
        let error = Stft::new(bad).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
    let stft = Stft::new(good).unwrap();
    let empty = Spectrum {
        frames: 0,
        bins: 9,
        values: vec![],
    };
    assert!(matches!(
        stft.inverse(&empty, None),
        Err(StftError::Spectrum { .. })
    ));
    let wrong = Spectrum {
        frames: 1,
        bins: 8,
        values: vec![Complex32::default(); 8],
    };
    assert!(matches!(
        stft.inverse(&wrong, None),
        Err(StftError::Spectrum { .. })
    ));
    assert!(Spectrum::from_planes(2, 3, &[0.0; 6], &[0.0; 5]).is_err());
}

#[test]
fn samples_that_no_window_covers_are_named() {
    // A Hann window begins with zero, and nothing overlaps the first sample.
    let stft = Stft::new(config(16, 4, hann_window(16, true), Framing::Bare)).unwrap();
    let spectrum = stft.forward(&noise(64)).unwrap();
    match stft.inverse(&spectrum, None) {
        Err(StftError::Uncovered { sample: 0, sum }) => assert_eq!(sum, 0.0),
        other => panic!("{other:?}"),
    }
    // A hop longer than the window leaves gaps.
    let stft = Stft::new(config(4, 6, ones_window(4), Framing::Bare)).unwrap();
    let spectrum = stft.forward(&noise(64)).unwrap();
    assert!(matches!(
        stft.inverse(&spectrum, None),
        Err(StftError::Uncovered { sample: 4, .. })
    ));
    // More samples than frames reach: silence.
    let stft = Stft::new(config(4, 2, ones_window(4), Framing::Bare)).unwrap();
    let spectrum = stft.forward(&noise(10)).unwrap();
    let back = stft.inverse(&spectrum, Some(14)).unwrap();
    assert_eq!(back[10..], [0.0; 4]);
    assert_eq!(stft.inverse(&spectrum, Some(0)).unwrap(), []);
}

#[test]
fn windows_of_one() {
    assert_eq!(hann_window(0, true), []);
    assert_eq!(hann_window(1, true), [1.0]);
    assert_eq!(hann_window(1, false), [1.0]);
    assert_eq!(hann_window(3, false), [0.0, 1.0, 0.0]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn inverts(n_fft in 2usize..70, part in 2usize..6, len in 1usize..900, normalized: bool) {
        let hop = (n_fft / part).max(1);
        let stft = Stft::new(StftConfig { normalized, ..StftConfig::hann(n_fft, hop) }).unwrap();
        let x = noise(len + n_fft);
        let spectrum = stft.forward(&x).unwrap();
        let planes = spectrum.planes();
        let again = Spectrum::from_planes(spectrum.bins, spectrum.frames, &planes.0, &planes.1).unwrap();
        prop_assert_eq!(&again, &spectrum);
        let back = stft.inverse(&spectrum, None).unwrap();
        // With two frames a sample of which one is near zero, rounding is magnified.
        for (i, (a, b)) in x.iter().zip(&back).enumerate().skip(1) {
            prop_assert!((a - b).abs() < 2e-3, "{i}: {a} {b}");
        }
    }
}
