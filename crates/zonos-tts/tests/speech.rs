//! The pipeline on the demo model: whole and streamed speech, its ends, and what it refuses.

use std::collections::BTreeMap;
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::LazyLock;

use burn::tensor::Device;
use zonos_nn::Tap;
use zonos_tts::demo::write_demo_checkpoint;
use zonos_tts::{
    EndReason, Limits, Quality, STREAM_BLOCK, SamplerOptions, Speaker, SpeakingRate, SpeechRequest,
    Tts, TtsError,
};
use zonos2::Sequence;

static TTS: LazyLock<Tts> =
    LazyLock::new(|| Tts::demo(&Device::flex()).expect("the demo model loads"));

fn request(text: &str, frames: usize) -> SpeechRequest {
    SpeechRequest {
        seed: Some(11),
        max_frames: Some(frames),
        ..SpeechRequest::new(text)
    }
}

#[test]
fn streamed_speech_is_the_whole_speech_and_comes_early() {
    for (frames, fade_out_ms) in [(130, 0.0), (130, 30.0), (20, 500.0)] {
        let request = SpeechRequest {
            fade_out_ms,
            // Never ends by itself, so that the frame count is known.
            sampler: SamplerOptions::default(),
            ..request("One, two, three.", frames)
        };
        let whole = TTS.speak(&request).unwrap();
        let mut joined = Vec::new();
        let mut first = None;
        let mut calls = 0;
        let streamed = TTS
            .speak_streaming(&request, &mut |chunk| {
                calls += 1;
                if !chunk.samples.is_empty() {
                    first.get_or_insert(chunk.frames);
                }
                joined.extend_from_slice(chunk.samples);
                ControlFlow::Continue(())
            })
            .unwrap();
        assert_eq!(
            joined,
            whole.waveform.samples(),
            "{frames} frames, {fade_out_ms} ms"
        );
        assert_eq!(streamed.waveform, whole.waveform);
        assert_eq!(streamed.codes, whole.codes);
        assert_eq!(streamed.end, whole.end);
        assert_eq!(calls, whole.frames + 1);
        assert_eq!(joined.len(), 512 * whole.codes.frames());
        if fade_out_ms == 0.0 && whole.codes.frames() > STREAM_BLOCK + 18 {
            // Eight rows of delay and ten frames of context behind a block.
            assert_eq!(first, Some(STREAM_BLOCK + 18));
        }
    }
}

#[test]
fn a_caller_can_stop() {
    let request = request("Stop me.", 200);
    let stopped = TTS.speak_streaming(&request, &mut |chunk| match chunk.frames {
        5 => ControlFlow::Break(()),
        _ => ControlFlow::Continue(()),
    });
    assert!(
        matches!(stopped, Err(TtsError::Stopped { frames: 5 })),
        "{stopped:?}"
    );
    let plan = TTS.plan(&request).unwrap();
    let stopped = TTS.run(&plan, &mut |frames| match frames {
        7 => ControlFlow::Break(()),
        _ => ControlFlow::Continue(()),
    });
    assert!(
        matches!(stopped, Err(TtsError::Stopped { frames: 7 })),
        "{stopped:?}"
    );
}

#[test]
fn the_end_is_told() {
    let limited = TTS.speak(&request("Hello.", 12)).unwrap();
    assert_eq!(
        (limited.end, limited.was_cut_short()),
        (EndReason::FrameLimit, false)
    );
    assert_eq!((limited.frames, limited.ended_by()), (12, "max_frames"));
    let bounded = TTS
        .speak(&SpeechRequest {
            seed: Some(11),
            limits: Limits {
                frames_per_byte: Some(1),
                frame_floor: 10,
                ..Limits::default()
            },
            ..SpeechRequest::new("Hello, world.")
        })
        .unwrap();
    assert_eq!(
        (bounded.end, bounded.was_cut_short()),
        (EndReason::TextBound, true)
    );
    assert_eq!((bounded.frames, bounded.ended_by()), (13, "frame_cap"));
    // The two together: the caller's own limit is named.
    let plan = TTS.plan(&request("Hello.", 12)).unwrap();
    assert_eq!(plan.frame_bound(), 12);
    let plan = TTS.plan(&SpeechRequest::new("Hello.")).unwrap();
    assert_eq!(plan.frame_bound(), 260);
}

#[test]
fn seeds_reproduce_and_fresh_ones_differ() {
    let speak = |seed| {
        let request = SpeechRequest {
            seed,
            max_frames: Some(16),
            ..SpeechRequest::new("Again.")
        };
        TTS.speak(&request).unwrap()
    };
    let (a, b, c) = (speak(Some(0)), speak(Some(0)), speak(Some(1)));
    assert_eq!(a.codes, b.codes);
    assert_ne!(a.codes, c.codes);
    let fresh = speak(None);
    assert_eq!(speak(Some(fresh.seed)).codes, fresh.codes);
    assert_ne!(speak(None).seed, fresh.seed);
}

#[test]
fn requests_that_are_wrong_are_refused_before_anything_runs() {
    let base = || request("Hello.", 8);
    let refused = |request: SpeechRequest, needle: &str| {
        let error = TTS.plan(&request).unwrap_err();
        assert!(error.is_request_error(), "{error}");
        let text = error.to_string();
        assert!(
            text.contains(needle) && !text.contains('\n'),
            "{needle}: {text}"
        );
    };
    for text in ["", " ", "\u{a0}\u{3000}", "\0", "\u{200b}\u{fe0f}"] {
        refused(request(text, 8), "blank");
    }
    refused(
        SpeechRequest {
            fade_out_ms: -1.0,
            ..base()
        },
        "fade_out_ms",
    );
    refused(
        SpeechRequest {
            fade_out_ms: f64::NAN,
            ..base()
        },
        "fade_out_ms",
    );
    refused(
        SpeechRequest {
            max_frames: Some(0),
            ..base()
        },
        "max_frames",
    );
    let sampler = SamplerOptions {
        temperature: f32::NAN,
        ..SamplerOptions::default()
    };
    refused(SpeechRequest { sampler, ..base() }, "sampler");
    let rate = |rate| SpeechRequest {
        speaking_rate: Some(rate),
        ..base()
    };
    refused(rate(SpeakingRate::Bucket(8)), "8");
    refused(rate(SpeakingRate::Label("brisk".to_owned())), "brisk");
    refused(rate(SpeakingRate::BytesPerSecond(0.0)), "rate");
    let quality = |name: &str, bucket| SpeechRequest {
        quality: Quality::Buckets(BTreeMap::from([(name.to_owned(), Some(bucket))])),
        ..base()
    };
    refused(quality("lufs", 12), "lufs");
    refused(quality("loudness", 0), "loudness");
    let voice = |length, position| SpeechRequest {
        voice: Some(Speaker {
            vector: vec![0.1; length],
            position,
        }),
        ..base()
    };
    refused(voice(192, 0), "2048");
    refused(voice(2048, 9999), "9999");
    assert!(TTS.plan(&voice(2048, 0)).is_ok());
}

#[test]
fn texts_that_do_not_fit_name_the_limit() {
    let length = |bytes: usize| SpeechRequest::new("a".repeat(bytes));
    let Err(TtsError::TextTooLong {
        context: 6144,
        fits,
        ..
    }) = TTS.plan(&length(9000))
    else {
        unreachable!("9000 bytes cannot fit 6144 positions");
    };
    // The limit it names is the limit.
    assert!(TTS.plan(&length(fits)).is_ok());
    assert!(matches!(
        TTS.plan(&length(fits + 1)),
        Err(TtsError::TextTooLong { fits: same, .. }) if same == fits
    ));
    // Who asks for few frames may give a longer text.
    let short = SpeechRequest {
        max_frames: Some(4),
        ..length(fits + 1)
    };
    assert!(TTS.plan(&short).is_ok());
}

#[test]
fn speakable_text_without_letters_is_not_refused() {
    for text in [
        "...",
        "😀",
        "👩\u{200d}👩\u{200d}👧",
        "1",
        "Hi",
        "—",
        "\u{200b}x",
    ] {
        assert!(SpeechRequest::new(text).check().is_ok(), "{text:?}");
    }
}

/// A model that ends every speech in its first frame: in the head, the end-of-audio row of codebook
/// 0 points along the hidden state behind the prompt, and all other rows are zero.
fn model_that_ends_at_once(dir: &Path, request: &SpeechRequest) -> Tts {
    let prompt = request.prompt(TTS.backbone().config()).unwrap();
    let rows = prompt.len();
    let sequence = Sequence::from_prompt(&prompt, None).unwrap();
    let forward = TTS
        .backbone()
        .forward(&[sequence], &mut Tap::off())
        .unwrap();
    let hidden = forward.final_hidden.narrow(0, rows - 1, 1).into_data();

    let paths = write_demo_checkpoint(dir).unwrap();
    let file = paths.model.join("model.safetensors");
    let mut bytes = fs::read(&file).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let tensors: serde_json::Value = serde_json::from_slice(&bytes[8..8 + header]).unwrap();
    let offsets = &tensors["multi_output.weight"]["data_offsets"];
    let at = |i: usize| offsets[i].as_u64().unwrap() as usize + 8 + header;
    let head = &mut bytes[at(0)..at(1)];
    head.fill(0);
    let width = head.len() / (9 * 1026);
    let end = &mut head[1024 * width..1025 * width];
    for (slot, value) in end
        .as_chunks_mut::<2>()
        .0
        .iter_mut()
        .zip(hidden.iter::<f32>())
    {
        // The upper half of an f32 is a bf16.
        *slot = ((value.to_bits() >> 16) as u16).to_le_bytes();
    }
    fs::write(&file, bytes).unwrap();
    Tts::load(&paths.model, &paths.codec, &Device::flex()).unwrap()
}

#[test]
fn an_open_seed_is_drawn_again_when_there_is_no_audio() {
    let dir = tempfile::tempdir().unwrap();
    let request = |seed| SpeechRequest {
        seed,
        max_frames: Some(4),
        ..SpeechRequest::new("Hello.")
    };
    let tts = model_that_ends_at_once(dir.path(), &request(None));
    let attempts = |seed| {
        let mut attempts = 0;
        let result = tts.speak_streaming(&request(seed), &mut |chunk| {
            attempts += usize::from(chunk.frames == 1);
            ControlFlow::Continue(())
        });
        assert!(
            matches!(result, Err(TtsError::NoAudio { .. })),
            "{result:?}"
        );
        attempts
    };
    // A seed that was asked for is used once, as it is; an open one is drawn eight times more.
    assert_eq!(attempts(Some(1)), 1);
    assert_eq!(attempts(None), 9);
}
