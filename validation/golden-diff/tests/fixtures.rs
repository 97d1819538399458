//! Every golden folder of the repository, on the default CPU device.

use std::path::{Path, PathBuf};

use golden_diff::{Component, GoldenError, Report, Request, SkipReason, run};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../fixtures")
        .join(name)
}

fn compare(name: &str) -> Report {
    let report = run(&Request::new(fixture(name), "cpu").unwrap()).unwrap();
    assert!(report.passed(), "{report}");
    report
}

/// Keys of the golden that were compared, whatever the container.
fn compared(report: &Report, key: &str) -> usize {
    report
        .rows
        .iter()
        .filter(|r| r.from_golden && r.key == key)
        .count()
}

#[test]
fn zonos2() {
    let report = compare("zonos2/tiny");
    assert_eq!(report.component, Component::Zonos2);
    // Three containers, and nothing skipped but inputs.
    for key in [
        "plain.layer.0.attn",
        "plain.logits_argmax",
        "speaker.projected",
        "quantile.layer.4.expert",
        "batch.codes",
        "gen.penalty.codes",
        "gen.penalty.eos_frame",
        "gen.speaker.logits",
    ] {
        assert_eq!(compared(&report, key), 3, "{key}\n{report}");
    }
    assert!(
        report
            .skipped
            .iter()
            .all(|s| matches!(s.reason, SkipReason::Input(_))),
        "{report}"
    );
    for own in [
        "untapped.plain.logits",
        "alone.batch.codes",
        "recompute.gen.greedy.codes",
    ] {
        assert_eq!(report.rows.iter().filter(|r| r.key == own).count(), 3);
    }
}

#[test]
fn dac_tiny() {
    let report = compare("dac/tiny");
    assert_eq!(report.component, Component::Dac);
    for key in [
        "z_q",
        "dec.1.res1.conv1",
        "dec.4",
        "wav",
        "untapped.wav",
        "seam.max_delta_by_context_f32",
        "stream.windows",
        "stream.crossfade_wav",
        "fade50.cpp",
        "pcm16",
        "enc.padded",
        "enc.4",
        "enc.z",
        "enc.latents",
        "enc.codes",
        "windowed.enc.codes",
        "enc.margin",
        "enc.recon",
        "enc.n4.codes",
        "enc.n4.z_q",
    ] {
        assert_eq!(compared(&report, key), 4, "{key}\n{report}");
    }
    assert!(
        report
            .skipped
            .iter()
            .all(|s| matches!(s.reason, SkipReason::Input(_))),
        "{report}"
    );
}

#[test]
fn dac_with_an_odd_rate() {
    for (folder, containers) in [("dac/alt", 1), ("dac/odd", 5)] {
        let report = compare(folder);
        for key in ["wav", "enc.z", "enc.codes", "enc.z_q"] {
            assert_eq!(compared(&report, key), containers, "{key}\n{report}");
        }
    }
}

#[test]
fn ecapa() {
    // hf, hf-f32 and qwen; tiny has a GGUF file, too.
    for (folder, inputs, containers) in [("ecapa/tiny", 5, 4), ("ecapa/alt", 5, 3)] {
        let report = compare(folder);
        assert_eq!(report.component, Component::Ecapa);
        // In all of them, and nothing left out.
        for key in ["block0", "block2", "mfa", "asp", "emb", "wav24k"] {
            let key = format!("short44k.{key}");
            assert_eq!(compared(&report, &key), containers, "{key}\n{report}");
            let from_wav = compared(&report, &format!("wav.{key}"));
            assert_eq!(
                from_wav,
                if key.ends_with("wav24k") {
                    0
                } else {
                    containers
                },
                "{key}"
            );
        }
        let vectors = report.rows.iter().filter(|r| r.key.ends_with(".emb"));
        // From mel frames, from the WAV file, untapped, in a batch.
        assert_eq!(vectors.count(), containers * inputs * 4, "{report}");
        assert!(report.skipped.is_empty(), "{report}");
    }
}

#[test]
fn ecapa_gradients() {
    let report = compare("gradients/ecapa");
    for key in [
        "speech.loss",
        "speech.grad.mel",
        "speech.grad.blocks.0.conv.weight.sample",
        "speech.grad.blocks.3.res2net_block.blocks.6.conv.weight",
        "silence.grad.asp.conv.weight",
        "silence.grad.fc.weight",
    ] {
        assert_eq!(compared(&report, key), 1, "{key}\n{report}");
    }
}

#[test]
fn w2v_bert() {
    let report = compare("w2v-bert/small");
    assert_eq!(report.component, Component::W2vBert);
    for clip in ["even", "odd"] {
        for key in [
            "fbank",
            "fbank_normalised",
            "input_features",
            "attention_mask",
            "hidden0",
            "hidden3",
            "layer2_normalised",
            "layer2_bf16_run",
        ] {
            let key = format!("{clip}.{key}");
            assert_eq!(compared(&report, &key), 1, "{key}\n{report}");
        }
        let from_samples = format!("samples.{clip}.hidden3");
        assert_eq!(compared(&report, &from_samples), 1, "{report}");
    }
    assert!(
        report
            .skipped
            .iter()
            .all(|s| matches!(s.reason, SkipReason::Input(_))),
        "{report}"
    );
    for own in ["untapped.odd.hidden3", "alone.odd.hidden1", "file.odd.wav"] {
        assert_eq!(report.rows.iter().filter(|r| r.key == own).count(), 1);
    }
}

#[test]
fn w2v_bert_gradients() {
    let report = compare("w2v-bert/small-gradients");
    assert_eq!(report.component, Component::W2vBertGradients);
    for key in [
        "loss",
        "grad.hidden0",
        "grad.input_features",
        "grad.feature_projection.projection.weight",
        "grad.encoder.layers.0.self_attn.distance_embedding.weight",
        "grad.encoder.layers.0.self_attn.linear_k.bias",
        "grad.encoder.layers.1.conv_module.pointwise_conv2.weight",
    ] {
        assert_eq!(compared(&report, key), 1, "{key}\n{report}");
    }
}

#[test]
fn audio() {
    let report = compare("audio");
    assert_eq!(report.component, Component::Audio);
    for key in [
        "resample.44100-24000.transform",
        "resample.44100-44160.functional",
        "resample.22050-24000.short7",
        "resample.22050-24000.kernel",
        "resample.stereo.44100-24000",
        "resample.json: lengths",
        "mel.speaker.bank",
        "mel.speaker.quiet.linear",
        "mel.speaker.loud.mel",
        "mel.htk_norm.mel",
        "stft.i.re",
        "stft.g.im",
        "stft.b.istft_long",
        "stft.e.istft (refused)",
        "stft.free.istft",
        "stft.hann5.symmetric",
        "tracked.resample.44100-24000.transform",
        "tracked.mel.speaker.loud.mel",
        "tracked.stft.i.re",
        "tracked.stft.free.istft",
    ] {
        assert_eq!(compared(&report, key), 1, "{key}\n{report}");
    }
    assert!(
        report
            .skipped
            .iter()
            .all(|s| matches!(s.reason, SkipReason::Input(_))),
        "{report}"
    );
}

#[test]
fn audio_gradients() {
    let report = compare("gradients/audio");
    assert_eq!(report.component, Component::AudioGradients);
    for key in [
        "mel.speaker.zeros.grad.x",
        "mel.speaker.n1280.loss",
        "resample.44160-44100.grad.x",
        "stft.e.grad.x",
        "istft.b_len.grad.re",
        "istft.g.grad.im",
    ] {
        assert_eq!(compared(&report, key), 1, "{key}\n{report}");
    }
}

#[test]
fn dac_full_needs_a_checkpoint() {
    let error = run(&Request::new(fixture("dac/full"), "cpu").unwrap()).unwrap_err();
    assert!(matches!(error, GoldenError::NoCheckpoint { .. }), "{error}");
}

#[test]
fn zonos2_gradients() {
    let report = compare("gradients/zonos2");
    for key in [
        "plain.loss",
        "plain.grad.layers.0.attention.temp",
        "plain.grad.layers.2.feed_forward.experts.w13.sample",
        "speaker.grad.speaker.vector",
        "speaker.grad.speaker_lda_projection.weight.cossum",
    ] {
        assert_eq!(compared(&report, key), 1, "{key}\n{report}");
    }
}

#[test]
fn dac_gradients() {
    let report = compare("gradients/dac");
    for key in [
        "decode.loss",
        "decode.grad.z_q",
        "decode.grad.decoder.model.1.block.1.weight",
        "decode.grad.decoder.model.1.block.1.weight_g",
        "decode.grad.quantizer.quantizers.0.codebook.weight",
    ] {
        assert_eq!(compared(&report, key), 1, "{key}\n{report}");
    }
    for key in [
        "encode.loss",
        "encode.term.commitment",
        "encode.grad.wav",
        "encode.grad.encoder_out",
        "encode.grad.encoder.block.1.block.4.weight_g",
        "encode.grad.encoder.block.4.block.4.weight.sample",
        "encode.grad.quantizer.quantizers.0.in_proj.weight_v",
    ] {
        assert_eq!(compared(&report, key), 1, "{key}\n{report}");
    }
    assert!(
        report
            .skipped
            .iter()
            .all(|s| matches!(s.reason, SkipReason::Input(_))),
        "{report}"
    );
}
