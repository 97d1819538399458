use zonos_audio::mel::{MelConfig, MelSpectrogram};

use crate::golden::{Golden, distance, json};
use crate::settings::mel_config;

/// Of linear levels, absolute.
const LINEAR: f32 = 5e-6;
/// Of logarithms, where the level is above [`QUIET`] and near the floor, where the logarithm magnifies
/// the rounding of the transform.
const LOG: f32 = 5e-4;
const LOG_QUIET: f32 = 3e-3;
const QUIET: f32 = 1e-2;
/// The reference's vector exponential may be off by a bit.
const BANK: f32 = 2e-6;

#[test]
fn speaker_front_end() {
    let golden = Golden::open("mel");
    let front_end = MelSpectrogram::new(MelConfig::speaker()).unwrap();
    let bank = distance(&golden.values("speaker.bank"), &front_end.bank().dense());
    println!("bank: {bank:.1e}");
    assert!(bank <= BANK, "{bank:e}");
    let stored = (0..128).map(|m| front_end.bank().band(m).1.len());
    assert_eq!(stored.sum::<usize>(), 1008);
    let window = distance(
        &golden.values("speaker.window"),
        &front_end.config().stft().window,
    );
    assert!(window <= 6e-8, "{window:e}");

    for name in ["loud", "quiet", "min385", "n1280", "n1535", "zeros"] {
        let x = golden.values(&format!("speaker.{name}.x"));
        let (shape, expected) = golden.tensor(&format!("speaker.{name}.linear"));
        let linear = front_end.linear(&x).unwrap();
        assert_eq!([linear.frames, linear.bands], shape[..], "{name}");
        let gap = distance(&expected, &linear.values);
        assert!(gap <= LINEAR, "{name}: {gap:e}");

        let log = front_end.log(&x, 1e-5).unwrap();
        let expected_log = golden.values(&format!("speaker.{name}.mel"));
        let mut worst = [0.0f32; 2];
        for ((e, a), level) in expected_log.iter().zip(&log.values).zip(&expected) {
            let quiet = *level <= QUIET;
            let gap = (e - a).abs();
            assert!(
                gap <= if quiet { LOG_QUIET } else { LOG },
                "{name}: level {level:e}: {gap:e}"
            );
            let worst = &mut worst[usize::from(quiet)];
            *worst = worst.max(gap);
        }
        println!(
            "{name}: linear {gap:.1e}, log {:.1e}, near the floor {:.1e}",
            worst[0], worst[1]
        );
    }
}

#[test]
fn torchaudio_settings() {
    let (golden, facts) = (Golden::open("mel"), json("mel"));
    for name in ["default16k", "slaney22k", "htk_norm"] {
        let front_end = MelSpectrogram::new(mel_config(&facts[name])).unwrap();
        let bank = distance(
            &golden.values(&format!("{name}.bank")),
            &front_end.bank().dense(),
        );
        assert!(bank <= BANK, "{name}: {bank:e}");
        let mel = front_end
            .linear(&golden.values(&format!("{name}.x")))
            .unwrap();
        let (shape, expected) = golden.tensor(&format!("{name}.mel"));
        assert_eq!([mel.bands, mel.frames], shape[..], "{name}");
        let largest = expected.iter().fold(0.0f32, |m, x| m.max(*x));
        for (i, e) in expected.iter().enumerate() {
            let (band, frame) = (i / mel.frames, i % mel.frames);
            let gap = (e - mel.values[frame * mel.bands + band]).abs();
            // Energies reach thousands, and a bit of theirs is more than a bit of one.
            assert!(
                gap <= LINEAR.max(1e-6 * largest),
                "{name}: band {band}, frame {frame}: {gap:e}"
            );
        }
        println!("{name}: bank {bank:.1e}, largest {largest}");
    }
}
