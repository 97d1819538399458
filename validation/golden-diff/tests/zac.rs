//! The ZAC-1 decoder: goldens, streams, gradients, and that a change is noticed.

use std::path::{Path, PathBuf};

use golden_diff::{Component, Report, Request, SkipReason, run};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../fixtures/zac")
        .join(name)
}

fn compare(dir: &Path) -> Report {
    let report = run(&Request::new(dir, "cpu").unwrap()).unwrap();
    assert!(report.passed(), "{report}");
    report
}

fn inputs_only(report: &Report) {
    let inputs = |reason: &SkipReason| matches!(reason, SkipReason::Input(_));
    assert!(report.skipped.iter().all(|s| inputs(&s.reason)), "{report}");
}

#[test]
fn decoders() {
    for (name, streams) in [("mini-keep2", 5), ("mini-full", 4)] {
        let report = compare(&fixture(name));
        assert_eq!(report.component, Component::Zac);
        inputs_only(&report);
        let has = |key: &str| report.rows.iter().any(|r| r.key == key);
        for key in [
            "latent",
            "decoder.0.layer1",
            "decoder.8",
            "head.features",
            "head.spec0.im",
            "audio",
            "audio_missing",
            "audio_batch",
            "audio_fork",
            "decode.audio",
            "cli.sheared_f4.npy",
            "cli.codes_f4.npy.playback",
            "cli.decoded_playback.wav",
        ] {
            assert!(has(key), "{name}: {key}\n{report}");
        }
        for i in 0..streams {
            for row in ["lengths", "audio", "whole"] {
                assert!(has(&format!("stream{i}.{row}")), "{name}: stream{i}.{row}");
            }
        }
    }
}

#[test]
fn gradients() {
    for name in ["mini-keep2-gradients", "mini-full-gradients"] {
        let report = compare(&fixture(name));
        assert_eq!(report.component, Component::ZacGradients);
        inputs_only(&report);
        for key in ["loss", "tables.loss", "grad.latent", "grad.head.features"] {
            assert!(report.rows.iter().any(|r| r.key == key), "{name}: {key}");
        }
    }
}

/// A rotary base that is off, as a wrong default would be, shows in the first stage.
#[test]
fn a_changed_constant_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    for file in ["golden.safetensors", "model.safetensors"] {
        let bytes = std::fs::read(fixture("mini-full").join(file)).unwrap();
        // The same length, so that the file stays whole.
        let (from, to) = (&b"max_period\\\": 10000"[..], &b"max_period\\\": 10500"[..]);
        let mut changed = bytes.clone();
        let mut at = 0;
        while let Some(found) = changed[at..].windows(from.len()).position(|w| w == from) {
            changed[at + found..at + found + to.len()].copy_from_slice(to);
            at += found + to.len();
        }
        assert_eq!(at > 0, file == "model.safetensors");
        std::fs::write(folder.path().join(file), changed).unwrap();
    }
    let report = run(&Request::new(folder.path(), "cpu").unwrap()).unwrap();
    assert!(!report.passed());
    let first = report.first_divergence().unwrap();
    assert!(first.key.starts_with("decoder.0"), "{report}");
}

/// The full set, where it is at hand.
#[test]
fn the_larger_goldens() {
    let Some(root) = std::env::var_os("ZONOS_GOLDENS").map(PathBuf::from) else {
        eprintln!("ZONOS_GOLDENS is not set: the larger ZAC-1 goldens are not compared");
        return;
    };
    for name in [
        "zac/tiny-decoder-keep2",
        "zac/tiny-decoder-full",
        "gradients/zac-keep2",
        "gradients/zac-full",
    ] {
        println!("{}", compare(&root.join(name)));
    }
}
