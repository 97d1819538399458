//! GGUF files out of every model, back in, and spoken from.

mod common;

use std::fs;
use std::path::Path;

use burn::tensor::Device;
use common::{Work, goldens, run, run_json, zonos};
use zonos_gguf::GgufFile;
use zonos_nn::Tap;
use zonos2::{Prompt, Sequence, Zonos2};

fn fixture(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../validation/fixtures");
    folder.join(name).display().to_string()
}

fn logits(model: &str) -> Vec<f32> {
    let model = Zonos2::load(model, &Device::flex()).unwrap();
    let prompt = Prompt::builder(model.config())
        .text("Hello.")
        .build()
        .unwrap();
    let sequence = Sequence::from_prompt(&prompt, None).unwrap();
    let out = model.forward(&[sequence], &mut Tap::off()).unwrap();
    out.logits.into_data().iter::<f32>().collect()
}

/// The demo backbone computes the same from a GGUF file of f32, alone in its folder, and from what that
/// becomes.
#[test]
fn a_backbone_survives_the_way_to_gguf_and_back() {
    let work = Work::new();
    let (gguf, back) = (
        work.arg("there/model.gguf"),
        work.arg("back/model.safetensors"),
    );
    for file in [&gguf, &back] {
        fs::create_dir(Path::new(file).parent().unwrap()).unwrap();
    }
    run(0, &["convert", &work.model(), &gguf, "--type", "f32"]);
    run(0, &["convert", &gguf, &back]);
    let expected = logits(&work.model());
    let found = logits(&gguf);
    assert_eq!(logits(&back), found);
    // The experts' gate and up rows stand apart there, and are summed by another kernel.
    let largest = expected.iter().fold(0.0f32, |m, v| m.max(v.abs()));
    let pairs = found.iter().zip(&expected);
    let difference = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(difference <= 1e-5 * largest, "{difference:e} of {largest}");
}

/// The C++ converter's file, to a safetensors file, and back to the very same bytes.
#[test]
fn the_converters_bytes_come_back() {
    let Some(goldens) = goldens("gguf/zonos2-k/f16.gguf") else {
        return;
    };
    let work = Work::new();
    let original = goldens.join("gguf/zonos2-k/f16.gguf");
    let (middle, again) = (work.arg("m.safetensors"), work.arg("again.gguf"));
    run(0, &["convert", &original.display().to_string(), &middle]);
    run(0, &["convert", &middle, &again, "--type", "f16"]);
    assert!(fs::read(again).unwrap() == fs::read(original).unwrap());
}

/// Codec and speaker encoder: the entries of the C++ programs' files, and their values to rounding.
#[test]
fn codec_and_encoder_files_are_those_of_the_programs() {
    let Some(goldens) = goldens("dac.gguf and spk-encoder.gguf") else {
        return;
    };
    let work = Work::new();
    for (model, theirs) in [
        ("dac/tiny/weights.pth", "dac/tiny/dac.gguf"),
        ("ecapa/tiny/hf", "ecapa/tiny/spk-encoder.gguf"),
    ] {
        let ours = work.arg("ours.gguf");
        run(0, &["convert", &fixture(model), &ours]);
        let read = |path: &Path| {
            GgufFile::read(path.display().to_string(), fs::read(path).unwrap()).unwrap()
        };
        let (ours, theirs) = (read(Path::new(&ours)), read(&goldens.join(theirs)));
        assert_eq!(ours.metadata(), theirs.metadata());
        assert_eq!(ours.tensors().len(), theirs.tensors().len());
        for (a, b) in ours.tensors().iter().zip(theirs.tensors()) {
            assert_eq!(
                (a.name(), a.dims(), a.ggml_type(), a.offset()),
                (b.name(), b.dims(), b.ggml_type(), b.offset())
            );
            let (x, y) = (
                ours.dequantize(a.name()).unwrap(),
                theirs.dequantize(b.name()).unwrap(),
            );
            let largest = y.iter().fold(0.0f32, |m, v| m.max(v.abs()));
            let pairs = x.iter().zip(&y);
            let difference = pairs.map(|(x, y)| (x - y).abs()).fold(0.0, f32::max);
            // Band edges are kHz in f32, whose last bit, where exponentials differ, moves a weight by 1e-7.
            let edges = if a.name() == "mel_fb" { 2e-7 } else { 0.0 };
            assert!(
                difference <= edges + 1e-6 * largest,
                "{}: {difference:e}",
                a.name()
            );
        }
    }
}

/// A folder of GGUF files alone speaks; what it says of itself is right.
#[test]
fn a_folder_of_gguf_files_speaks() {
    let work = Work::new();
    let folder = work.path("gguf");
    fs::create_dir(&folder).unwrap();
    let at = |name: &str| folder.join(name).display().to_string();
    run(
        0,
        &[
            "convert",
            &work.model(),
            &at("zonos2-q8_0.gguf"),
            "--type",
            "q8_0",
        ],
    );
    let codec = work.arg("model/codec/weights.pth");
    run(0, &["convert", &codec, &at("dac.gguf")]);
    let (model, wav) = (at("zonos2-q8_0.gguf"), work.arg("out.wav"));
    for exact in [&["--exact"][..], &[]] {
        let mut args = vec!["tts", "Hello.", "-o", &wav, "--model", &model];
        args.extend(["--max-frames", "8", "--seed", "1"]);
        args.extend(exact);
        run(0, &args);
        assert!(fs::metadata(&wav).unwrap().len() > 1000);
        fs::remove_file(&wav).unwrap();
    }
    // The folder's model is the file that is no codec; a codec is no model.
    let (whole, dac) = (folder.display().to_string(), at("dac.gguf"));
    run(
        0,
        &[
            "tts",
            "Hello.",
            "-o",
            &wav,
            "--model",
            &whole,
            "--max-frames",
            "2",
        ],
    );
    work.refuses(
        2,
        &["has the name of a codec"],
        &["tts", "Hello.", "-o", &wav, "--model", &dac],
    );
    let told = run_json(0, &["inspect", &model]);
    assert_eq!(told["format"], "gguf");
    let q8 = &told["dtypes"]["Q8_0"];
    let bits = q8["bytes"].as_f64().unwrap() * 8.0 / q8["values"].as_f64().unwrap();
    assert_eq!(bits, 8.5);
}

/// ZAC-1 and its teacher under their own names, shortened where the format wants it: the same codes, the same
/// samples.
#[test]
fn zac_survives_the_way_to_gguf() {
    let work = Work::new();
    let recording = fixture("ecapa/tiny/speech22k.wav");
    let mut results = Vec::new();
    for form in ["safetensors", "gguf"] {
        let mut models = Vec::new();
        for model in ["mini-encoder", "mini-keep2"] {
            let source = fixture(&format!("zac/{model}/model.safetensors"));
            models.push(if form == "gguf" {
                let made = work.arg(&format!("{model}.gguf"));
                run(0, &["convert", &source, &made, "--type", "f32"]);
                made
            } else {
                source
            });
        }
        let (codes, wav) = (work.arg("codes.npy"), work.arg("out.wav"));
        run(
            0,
            &["zac", "encode", &recording, &codes, "--model", &models[0]],
        );
        run(0, &["zac", "decode", &codes, &wav, "--model", &models[1]]);
        results.push((fs::read(&codes).unwrap(), fs::read(&wav).unwrap()));
    }
    assert!(results[0].0 == results[1].0, "codes differ");
    assert!(results[0].1 == results[1].1, "samples differ");
}

#[test]
fn types_that_cannot_be_are_refused() {
    let work = Work::new();
    let codec = work.arg("model/codec/weights.pth");
    for (code, args) in [
        (
            2,
            [
                "convert",
                &work.model(),
                &work.arg("a.gguf"),
                "--type",
                "q4_k",
            ],
        ),
        (
            2,
            [
                "convert",
                &work.model(),
                &work.arg("a.bpk"),
                "--type",
                "f16",
            ],
        ),
        (
            2,
            ["convert", &codec, &work.arg("a.gguf"), "--type", "q8_0"],
        ),
    ] {
        run(code, &args);
        assert!(!work.path("a.gguf").exists() && !work.path("a.bpk").exists());
    }
}

/// Metadata that this model cannot have are refused by their own keys.
#[test]
fn metadata_are_refused_by_key() {
    use zonos_gguf::{GgufWriter, NewTensor, Value};
    let work = Work::new();
    let whole = work.arg("whole.gguf");
    run(0, &["convert", &work.model(), &whole, "--type", "f16"]);
    let bytes = fs::read(&whole).unwrap();
    let file = GgufFile::read("whole", &bytes[..]).unwrap();
    let cases = [
        (
            "general.architecture",
            Value::String("llama".into()),
            "llama",
        ),
        ("zonos2.attention.qk_norm_epsilon", Value::F32(1e30), "1e-6"),
        ("zonos2.audio_vocab", Value::U32(7), "codebook_size"),
        (
            "zonos2.rope.freq_base",
            Value::F32(-1.0),
            "zonos2.rope.freq_base",
        ),
        (
            "zonos2.feed_forward_length",
            Value::U32(0),
            "zonos2.feed_forward_length",
        ),
    ];
    for (key, value, needle) in cases {
        let mut metadata = file.metadata().clone();
        metadata.set(key, value);
        let tensors: Vec<NewTensor> = file
            .tensors()
            .iter()
            .map(|t| NewTensor {
                name: t.name().into(),
                dims: t.dims().to_vec(),
                ggml_type: t.ggml_type(),
            })
            .collect();
        let mut writer = GgufWriter::new(Vec::new(), "bad", &metadata, &tensors).unwrap();
        for t in file.tensors() {
            writer
                .write(t.name(), file.tensor_bytes(t).unwrap())
                .unwrap();
        }
        let bad = work.arg("bad.gguf");
        fs::write(&bad, writer.finish().unwrap()).unwrap();
        let out = work.arg("out.wav");
        let codec = work.codec();
        let arguments = [
            "tts", "Hello.", "-o", &out, "--model", &bad, "--codec", &codec,
        ];
        let output = zonos().args(arguments).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{key}: {said}");
        assert!(said.contains(key) && said.contains(needle), "{key}: {said}");
        assert!(!said.contains("params.json of"), "{key}: {said}");
    }
}

/// A file of one tensor, with `metadata` and bytes of nothing behind it.
fn tiny_gguf(path: &Path, metadata: &zonos_gguf::Metadata, behind: usize) {
    let tensor = zonos_gguf::NewTensor {
        name: "a".into(),
        dims: vec![8],
        ggml_type: zonos_gguf::GgmlType::F32,
    };
    let tensors = std::slice::from_ref(&tensor);
    let mut writer = zonos_gguf::GgufWriter::new(Vec::new(), "tiny", metadata, tensors).unwrap();
    writer.write("a", &[0; 32]).unwrap();
    let mut bytes = writer.finish().unwrap();
    bytes.resize(bytes.len() + behind, 7);
    fs::write(path, bytes).unwrap();
}

#[test]
fn endless_metadata_are_cut_for_people_and_whole_for_programs() {
    use zonos_gguf::{Array, Metadata, Value};
    let work = Work::new();
    let template = "{% for message in messages %}".repeat(100_000);
    let mut metadata = Metadata::new();
    metadata.set("tokenizer.chat_template", Value::String(template.clone()));
    metadata.set("tokenizer.scores", Value::Array(Array::of_i32(&[7; 4000])));
    metadata.set("general.name", Value::String("short".into()));
    tiny_gguf(&work.path("a.gguf"), &metadata, 0);
    let file = work.arg("a.gguf");
    let shown = String::from_utf8(run(0, &["inspect", &file]).stdout).unwrap();
    assert!(shown.len() < 2000, "{} bytes", shown.len());
    for part in ["… (2,900,000 characters)", "… (4,000 values)", "\"short\""] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let report = run_json(0, &["inspect", &file]);
    assert_eq!(report["metadata"]["tokenizer.chat_template"], template);
    let scores = report["metadata"]["tokenizer.scores"].as_array().unwrap();
    assert_eq!(scores.len(), 4000);
}

#[test]
fn bytes_that_belong_to_nothing_are_told() {
    let work = Work::new();
    let file = work.arg("a.gguf");
    for (behind, told) in [
        (0, None),
        (1, Some("1 byte after")),
        (100, Some("100 bytes after")),
    ] {
        tiny_gguf(&work.path("a.gguf"), &zonos_gguf::Metadata::new(), behind);
        let shown = String::from_utf8(run(0, &["inspect", &file]).stdout).unwrap();
        let report = run_json(0, &["inspect", &file]);
        let notices = report["notices"].as_array().unwrap();
        assert_eq!(notices.len(), usize::from(told.is_some()), "{report}");
        match told {
            Some(told) => {
                assert!(notices[0].as_str().unwrap().contains(told), "{report}");
                assert!(shown.contains(told), "{shown}");
            }
            None => assert!(!shown.contains("after the last tensor"), "{shown}"),
        }
    }
    // Loading and quantising say it, too.
    let model = work.arg("model.gguf");
    run(0, &["convert", &work.model(), &model]);
    let mut bytes = fs::read(&model).unwrap();
    bytes.extend(b"junk");
    fs::write(&model, bytes).unwrap();
    let (ids, small) = (work.arg("ids.npy"), work.arg("small.gguf"));
    for args in [
        ["prompt", "Hi", &ids, "--model", &model],
        ["quantize", &model, &small, "q8_0", "--force"],
    ] {
        let said = String::from_utf8(run(0, &args).stderr).unwrap();
        let told = "model.gguf: 4 bytes after the last tensor";
        assert!(said.contains(told), "{args:?}: {said}");
    }
    let report = run_json(0, &["quantize", &model, &small, "q8_0"]);
    let told = report["warnings"][0].as_str().unwrap();
    assert!(told.contains("4 bytes after the last tensor"), "{report}");
    let back = run_json(0, &["inspect", &small]);
    assert_eq!(back["notices"], serde_json::json!([]));
}

/// The layout of a codec has no place for its encoder, and of a backbone none for what training left.
#[test]
fn what_a_gguf_file_leaves_out_is_told() {
    let work = Work::new();
    let (codec, out) = (fixture("dac/tiny/weights.pth"), work.arg("dac.gguf"));
    let convert = |arguments: &[&str]| {
        let line = [&["convert"], arguments].concat();
        String::from_utf8(run(0, &line).stderr).unwrap()
    };
    // A warning is said with --quiet, too.
    let said = convert(&[&codec, &out, "--quiet"]);
    for part in [
        "warning: ",
        "dac.gguf: 146 tensors",
        "encoder.block.0.bias",
        "does not encode",
        ".safetensors and .bpk keep",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let report = run_json(0, &["convert", &codec, &out]);
    assert_eq!(report["left_out"].as_array().unwrap().len(), 146);
    // So is what was lost before, and cannot come back.
    let (half, back) = (work.arg("q8_0.gguf"), work.arg("back.gguf"));
    convert(&[&work.model(), &half, "--type", "q8_0"]);
    let said = convert(&[&half, &back]);
    assert!(
        said.contains("q8_0.gguf: ") && said.contains("(Q8_0; blk.") && said.contains("decoded"),
        "{said}"
    );
    assert!(!convert(&[&back, &half]).contains("quantised"));
    // Decoding alone was in it, and is.
    let again = work.arg("again.gguf");
    assert!(!convert(&[&out, &again]).contains("left out"));
    let kept = work.arg("dac.safetensors");
    assert!(!convert(&[&codec, &kept]).contains("left out"));

    let backbone = fixture("zonos2/tiny/model.pth");
    let said = convert(&[&backbone, &work.arg("model.gguf")]);
    assert!(
        said.contains("note: ") && said.contains("ent_denom"),
        "{said}"
    );
    let encoder = fixture("ecapa/tiny/hf");
    assert!(!convert(&[&encoder, &work.arg("e.gguf")]).contains("left out"));
}
