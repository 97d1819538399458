//! The case tables of the tiny ZONOS2 set, which were also run through the original Python code.
//!
//! Every list of `cases.json` has a test here; a list that nothing reads fails the last one.

use std::path::PathBuf;

use serde_json::Value;
use zonos_audio::{Codes, fade};
use zonos2::conditioning::{self, Quality};
use zonos2::eos::codec_codes;
use zonos2::{EndOfAudio, Prompt, Sampler, SamplerOptions, StreamPlan, Zonos2Config, voice};

/// Samples of one frame of audio.
const HOP: usize = 512;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../validation/fixtures/zonos2/tiny")
}

fn tables() -> Value {
    let text = std::fs::read_to_string(folder().join("cases.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// The cases of one list; the count is stated so that a shortened file cannot pass.
fn cases(list: &str, count: usize) -> Vec<Value> {
    let found = tables()[list].as_array().unwrap().clone();
    assert_eq!(found.len(), count, "cases in {list}");
    found
}

fn config() -> Zonos2Config {
    Zonos2Config::load(folder()).unwrap()
}

fn ints(v: &Value) -> Vec<i32> {
    v.as_array()
        .unwrap()
        .iter()
        .map(|x| i32::try_from(x.as_i64().unwrap()).unwrap())
        .collect()
}

fn floats(v: &Value) -> Vec<f32> {
    v.as_array()
        .unwrap()
        .iter()
        .map(|x| x.as_f64().unwrap() as f32)
        .collect()
}

fn table(v: &Value) -> Vec<Vec<i32>> {
    v.as_array().unwrap().iter().map(ints).collect()
}

fn number(v: &Value) -> usize {
    usize::try_from(v.as_u64().unwrap()).unwrap()
}

/// `None` for null, an error for a negative bucket: the library's type already excludes those.
fn bucket(v: &Value) -> Result<Option<usize>, String> {
    match v.as_i64() {
        None => Ok(None),
        Some(b) => usize::try_from(b).map(Some).map_err(|e| e.to_string()),
    }
}

fn buckets(v: &Value) -> Result<Vec<Option<usize>>, String> {
    match v.as_array() {
        None => Ok(Vec::new()),
        Some(list) => list.iter().map(bucket).collect(),
    }
}

#[test]
fn configuration() {
    let c = config();
    assert_eq!(
        (c.n_layers, c.dim, c.head_dim, c.n_heads(), c.n_kv_heads()),
        (6, 64, 16, 8, 2)
    );
    assert_eq!((c.ffn_dim(), c.n_experts, c.router_dim), (48, 6, 16));
    let experts: Vec<usize> = (0..6).map(|n| c.experts_per_token(n)).collect();
    assert_eq!(experts, [0, 0, 1, 1, 2, 0]);
    assert_eq!(c.speaker_lda_dim, Some(32));
    assert_eq!(c.conditioning_base(), 448);
}

#[test]
fn prompt() {
    let config = config();
    for case in cases("prompt", 45) {
        let id = case["id"].as_str().unwrap();
        // The readme names the two cases without the silence tail.
        let silence = !matches!(id, "prompt-39" | "prompt-40");
        let built = (|| {
            Prompt::builder(&config)
                .text(case["text"].as_str().unwrap())
                .speaker(case["speaker"].as_bool().unwrap())
                .clean_background(case["clean_background"].as_bool().unwrap())
                .accurate(case["accurate"].as_bool().unwrap())
                .rate_bucket(bucket(&case["rate_bucket"])?)
                .quality(buckets(&case["quality"])?)
                .silence(silence)
                .build()
                .map_err(|e| e.to_string())
        })();
        if case["error"] == true {
            assert!(built.is_err(), "{id}");
            continue;
        }
        let built = built.unwrap();
        let rows: Vec<Vec<i32>> = built.rows().map(<[i32]>::to_vec).collect();
        assert_eq!(rows, table(&case["rows"]), "{id}");
        let position = case["speaker_position"].as_u64().map(|p| p as usize);
        assert_eq!(built.speaker_position(), position, "{id}");
        assert_eq!(
            built.text_bytes(),
            case["text"].as_str().unwrap().len(),
            "{id}"
        );
    }
}

#[test]
fn quality_resolution() {
    let config = config();
    for case in cases("quality_resolution", 10) {
        let input = &case["input"];
        let request = match input {
            Value::Null => Quality::Default,
            Value::Object(map) => Quality::Buckets(
                map.iter()
                    .map(|(k, v)| (k.clone(), bucket(v).unwrap()))
                    .collect(),
            ),
            list => Quality::BucketList(buckets(list).unwrap()),
        };
        let want = buckets(&case["resolved"]).unwrap();
        assert_eq!(request.resolve(&config).unwrap(), want, "{input}");
    }
}

#[test]
fn shear() {
    for case in cases("shear", 12) {
        let id = case["id"].as_str().unwrap();
        let pad = case["pad"].as_i64().unwrap() as i32;
        let input = table(&case["input"]);
        // An empty table has no column to count; any number will do.
        let codebooks = input.first().map_or(9, Vec::len);
        let codes = Codes::from_rows(codebooks, &input).unwrap();
        let rows = |c: Codes| c.rows().map(<[i32]>::to_vec).collect::<Vec<_>>();
        assert_eq!(rows(codes.shear(pad)), table(&case["sheared"]), "{id}");
        assert_eq!(rows(codes.unshear(pad)), table(&case["unsheared"]), "{id}");
        assert_eq!(
            rows(codes.shear(pad).unshear(pad)),
            table(&case["roundtrip"]),
            "{id}"
        );
    }
}

/// The logits a `hash_seed` stands for, see the readme of the set.
fn hashed(seed: u64, codebooks: usize, vocab: usize) -> Vec<f32> {
    let seed = u32::try_from(seed).unwrap();
    let mut out = Vec::with_capacity(codebooks * vocab);
    for c in 0..codebooks as u32 {
        for v in 0..vocab as u32 {
            let mut x = seed
                .wrapping_mul(0x9E37_79B1)
                .wrapping_add(c.wrapping_mul(0x85EB_CA77))
                .wrapping_add(v.wrapping_mul(0xC2B2_AE3D));
            x ^= x >> 15;
            x = x.wrapping_mul(0x2C1B_3C6D);
            x ^= x >> 12;
            x = x.wrapping_mul(0x297A_2D39);
            x ^= x >> 15;
            out.push((f64::from(x) / 4_294_967_296.0 * 24.0 - 12.0) as f32);
        }
    }
    out
}

#[test]
fn sampler() {
    for case in cases("sampler", 37) {
        let id = format!("{} ({})", case["id"], case["note"]);
        let codebooks = number(&case["n_codebooks"]);
        let vocab = number(&case["vocab"]);
        let logits: Vec<f32> = match case["hash_seed"].as_u64() {
            Some(seed) => hashed(seed, codebooks, vocab),
            None => case["logits"]
                .as_array()
                .unwrap()
                .iter()
                .flat_map(floats)
                .collect(),
        };
        assert_eq!(logits.len(), codebooks * vocab, "{id}");
        let o = &case["options"];
        let real = |name: &str| o[name].as_f64().unwrap() as f32;
        let whole = |name: &str| o[name].as_i64().unwrap();
        let options = SamplerOptions {
            temperature: real("temperature"),
            top_k: whole("top_k"),
            top_p: real("top_p"),
            min_p: real("min_p"),
            repetition_window: whole("repetition_window"),
            repetition_penalty: real("repetition_penalty"),
            repetition_codebooks: whole("repetition_codebooks"),
            greedy: false,
        };
        let size = number(&case["codebook_size"]);
        let mut sampler = Sampler::new(options, codebooks, vocab, size, 0).unwrap();
        for frame in table(&case["history"]) {
            assert_eq!(frame.len(), codebooks, "{id}");
            sampler.observe(&frame);
        }
        for c in 0..codebooks {
            let row = &logits[c * vocab..][..vocab];
            let got = sampler.distribution(c, row).unwrap().to_vec();
            let ids: Vec<i32> = got.iter().map(|&(i, _)| i as i32).collect();
            assert_eq!(ids, ints(&case["kept"][c]), "{id}, codebook {c}");
            for (&(i, p), want) in got.iter().zip(floats(&case["probs"][c])) {
                assert!(
                    (p - want).abs() <= 1e-5,
                    "{id}, codebook {c}, id {i}: {p} against {want}"
                );
            }
            let greedy = sampler.argmax(c, row).unwrap();
            assert_eq!(greedy, number(&case["greedy"][c]), "{id}, codebook {c}");
        }
    }
}

#[test]
fn eos() {
    let config = config();
    for case in cases("eos", 16) {
        let id = case["id"].as_str().unwrap();
        let events = table(&case["events"]);
        let ignore = case["ignore_eos"].as_bool().unwrap_or(false);
        let mut end =
            EndOfAudio::for_config(&config, number(&case["max_tokens"])).ignoring_eos(ignore);
        let mut frames = Codes::new(0, 9, Vec::new()).unwrap();
        loop {
            let t = frames.frames() as i32;
            let row: Vec<i32> = (0..9)
                .map(|c| {
                    let marked = events.iter().any(|e| e == &[t, c]);
                    if marked { 1024 } else { (9 * t + c) % 1000 }
                })
                .collect();
            frames.push(&row).unwrap();
            if end.push(&row) {
                break;
            }
        }
        assert_eq!(end.frames(), number(&case["frames"]), "{id}");
        let eos = case["eos_frame"].as_u64().map(|e| e as usize);
        assert_eq!(end.eos_frame(), eos, "{id}");
        let codec = codec_codes(&frames, end.eos_frame(), &config).unwrap();
        assert_eq!(codec.frames(), number(&case["codec_frames"]), "{id}");
        assert_eq!(codec.frames() * HOP, number(&case["samples"]), "{id}");
        let last = codec.rows().last().map(<[i32]>::to_vec);
        let want = case["last_codec_row"]
            .is_array()
            .then(|| ints(&case["last_codec_row"]));
        assert_eq!(last, want, "{id}");
    }
}

#[test]
fn stream() {
    for case in cases("stream", 12) {
        let id = case["id"].as_str().unwrap();
        let frames = number(&case["frames"]);
        let eos = case["eos_frame"].as_u64().map(|e| e as usize);
        let seen_at = case["eos_seen_at"]
            .as_u64()
            .map_or(usize::MAX, |e| e as usize);
        let mut plan = StreamPlan::new(9);
        let mut calls = case["calls"].as_array().unwrap().iter();
        let mut total = 0;
        for i in 0..frames {
            let Some(call) = plan.push(i + 1 == frames, eos.filter(|_| i >= seen_at)) else {
                continue;
            };
            let want = calls
                .next()
                .unwrap_or_else(|| panic!("{id}: extra call {call:?}"));
            assert_eq!(i, number(&want["at_frame"]), "{id}");
            let got = [
                call.start,
                call.stop,
                call.overlap,
                call.raw.0,
                call.raw.1,
                call.emit,
                call.held,
            ];
            let fields = ["start", "stop", "overlap"].map(|f| number(&want[f]));
            let raw = [number(&want["raw"][0]), number(&want["raw"][1])];
            let samples = ["emit", "held"].map(|f| number(&want[f]));
            let want: Vec<usize> = [&fields[..], &raw, &samples].concat();
            assert_eq!(got.to_vec(), want, "{id}");
            total += call.emit;
        }
        assert!(calls.next().is_none(), "{id}: a call is missing");
        assert_eq!(total, number(&case["total_samples"]), "{id}");
    }
}

#[test]
fn rate_bucket() {
    let config = config();
    for case in cases("rate_bucket", 20) {
        let got = match case["rate"].as_f64() {
            Some(rate) => conditioning::rate_bucket(&config, rate),
            None => conditioning::rate_bucket_for_speed(&config, case["speed"].as_f64().unwrap()),
        };
        assert_eq!(got.unwrap(), number(&case["bucket"]), "{case}");
    }
}

#[test]
fn quality_bucket() {
    let config = config();
    for case in cases("quality_bucket", 21) {
        let feature = case["feature"].as_str().unwrap();
        let value = case["value"].as_f64().unwrap();
        let got = conditioning::quality_bucket(&config, feature, value).unwrap();
        assert_eq!(got, bucket(&case["bucket"]).unwrap(), "{case}");
        // The same through a request.
        let request = Quality::Values([(feature.to_string(), value)].into());
        let resolved = request.resolve(&config).unwrap();
        assert_eq!(resolved.into_iter().flatten().next(), got, "{case}");
    }
}

#[test]
fn slerp() {
    for case in cases("slerp", 6) {
        let got = voice::slerp(
            &floats(&case["a"]),
            &floats(&case["b"]),
            case["t"].as_f64().unwrap(),
        )
        .unwrap();
        for (got, want) in got.iter().zip(floats(&case["result"])) {
            // The reference works in f32: a few units in the last place.
            assert!((got - want).abs() <= 1e-6, "{case}: {got} against {want}");
        }
    }
}

#[test]
fn fade_out() {
    for case in cases("fade", 6) {
        let n = number(&case["samples"]);
        let ms = case["fade_ms"].as_f64().unwrap();
        let faded = number(&case["faded"]);
        assert_eq!(fade::fade_length(ms, 44_100).min(n), faded, "{case}");
        let mut samples = vec![1.0_f32; n];
        fade::fade_out(&mut samples, ms, 44_100);
        let near = |got: Option<f32>, want: &Value| match (got, want.as_f64()) {
            (None, None) => {}
            (Some(got), Some(want)) => {
                assert!(
                    (f64::from(got) - want).abs() <= 6e-8,
                    "{case}: {got} against {want}"
                );
            }
            other => panic!("{case}: {other:?}"),
        };
        let at = |i: usize| (faded > 0).then(|| samples[n - faded + i]);
        near(at(0), &case["first_faded"]);
        near(at(faded / 2), &case["middle"]);
        near(samples.last().copied(), &case["last"]);
        assert!(samples[..n - faded].iter().all(|&x| x == 1.0), "{case}");
    }
}

#[test]
fn no_list_is_left_out() {
    let covered = [
        "prompt",
        "quality_resolution",
        "shear",
        "sampler",
        "eos",
        "stream",
        "rate_bucket",
        "quality_bucket",
        "slerp",
        "fade",
    ];
    let all = tables();
    for (name, list) in all.as_object().unwrap() {
        if list.is_array() {
            assert!(covered.contains(&name.as_str()), "no test reads {name}");
        }
    }
}
