use std::f32::consts::TAU;

use super::*;

#[test]
fn a_tone_is_loudest_in_its_band() {
    let front_end = MelSpectrogram::new(MelConfig::speaker()).unwrap();
    for hz in [300.0f32, 1000.0, 6000.0] {
        let x: Vec<f32> = (0..4800)
            .map(|i| (i as f32 * TAU * hz / 24_000.0).sin())
            .collect();
        let mel = front_end.linear(&x).unwrap();
        let row = &mel.values[8 * 128..9 * 128];
        let top = (0..128).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap();
        let (start, weights) = front_end.bank().band(top);
        let bin = hz * 1024.0 / 24_000.0;
        assert!(
            (start as f32 - 1.0..=(start + weights.len()) as f32).contains(&bin),
            "{hz} Hz: bin {bin}, band {top} begins at {start}"
        );
    }
}

#[test]
fn the_sparse_bank_is_the_dense_one() {
    let front_end = MelSpectrogram::new(MelConfig::torchaudio(16_000)).unwrap();
    let bank = front_end.bank();
    let levels: Vec<f32> = (0..bank.bins()).map(|i| (i as f32).sin().abs()).collect();
    let mut sparse = vec![0.0; bank.bands()];
    bank.apply(&levels, &mut sparse);
    let dense = bank.dense();
    for (m, y) in sparse.iter().enumerate() {
        let sum: f32 = levels
            .iter()
            .enumerate()
            .map(|(k, x)| x * dense[k * bank.bands() + m])
            .sum();
        assert!((sum - y).abs() < 1e-5, "band {m}");
    }
}

#[test]
fn more_bands_than_frequencies_leave_some_empty() {
    let config = MelConfig {
        n_fft: 64,
        win_length: 64,
        hop: 16,
        ..MelConfig::speaker()
    };
    let front_end = MelSpectrogram::new(config).unwrap();
    assert!((0..128).any(|m| front_end.bank().band(m).1.is_empty()));
    let mel = front_end.linear(&[0.5; 100]).unwrap();
    assert!(mel.values.iter().all(|x| x.is_finite()));
}

#[test]
fn what_does_not_fit_is_refused() {
    let good = MelConfig::speaker();
    for (bad, says) in [
        (
            MelConfig {
                bands: 0,
                ..good.clone()
            },
            "0 bands",
        ),
        (
            MelConfig {
                f_min: 5000.0,
                f_max: 4000.0,
                ..good.clone()
            },
            "from 5000 to 4000 Hz",
        ),
        (
            MelConfig {
                f_max: f64::NAN,
                ..good.clone()
            },
            "NaN Hz",
        ),
        (
            MelConfig {
                sample_rate: 0,
                ..good.clone()
            },
            "sample rate 0",
        ),
        (
            MelConfig {
                win_length: 1025,
                ..good.clone()
            },
            "1025 samples",
        ),
        (
            MelConfig {
                hop: 0,
                ..good.clone()
            },
            "hop is 0",
        ),
        (
            MelConfig {
                n_fft: 0,
                win_length: 0,
                ..good.clone()
            },
            "n_fft is 0",
        ),
    ] {
        let error = MelSpectrogram::new(bad).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
    let front_end = MelSpectrogram::new(good).unwrap();
    let error = front_end.log(&[0.1; 384], 1e-5).unwrap_err().to_string();
    assert!(
        error.contains("384 samples are too few: expected at least 385"),
        "{error}"
    );
    assert_eq!(front_end.log(&[0.1; 385], 1e-5).unwrap().frames, 1);
}
