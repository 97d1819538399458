//! corpus, perplexity, imatrix and quantize: what they write, and what they refuse.

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::{Work, f32s, run, run_json, zonos};
use serde_json::Value;
use sha2::{Digest, Sha256};
use zonos_audio::npy;
use zonos_gguf::kld::{KldBase, KldSequence, KldShape, KldWriter};
use zonos_gguf::{GgmlType, GgufFile, GgufWriter, Imatrix, Metadata, NewTensor};

/// `$ZONOS_GOLDENS/gguf/zonos2-k`; says so when it is unset.
fn goldens(what: &str) -> Option<PathBuf> {
    let folder = common::goldens(&format!("{what} of gguf/zonos2-k"))?;
    Some(folder.join("gguf/zonos2-k"))
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

/// A corpus of the demo model in `corpus`, short and with one voice.
fn corpus(work: &Work) -> Value {
    fs::create_dir(work.path("voices")).unwrap();
    let voice: Vec<f32> = (0..2048).map(|i| ((i % 7) as f32 - 3.0) * 0.1).collect();
    npy::write_f32(work.path("voices/anna.npy"), &[2048], &voice).unwrap();
    let (model, out, voices) = (work.model(), work.arg("corpus"), work.arg("voices"));
    run_json(
        0,
        &[
            "corpus", &model, "-o", &out, "--voices", &voices, "--frames", "5",
        ],
    )
}

/// The model's own voices: spoken, decoded, and heard by the speaker encoder.
#[test]
fn a_corpus_makes_its_own_voices_where_codec_and_encoder_are() {
    let work = Work::new();
    common::wide_encoder(&work.path("ecapa"));
    let (model, out, encoder) = (work.model(), work.arg("corpus"), work.arg("ecapa"));
    let mut arguments = vec!["corpus", &model, "-o", &out, "--frames", "5"];

    // The demo's codec lies in its folder, an encoder does not: that is said, and no voice made.
    let output = zonos().args(&arguments).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    assert!(said.contains("no traces with voices"), "{said}");
    assert!(
        said.contains("--speaker-encoder") && !said.contains("--codec"),
        "{said}"
    );
    assert!(!work.path("corpus/voice-00.npy").exists());
    // Who names one of them wants voices.
    let codec = work.codec();
    let other = work.arg("other");
    work.refuses(
        2,
        &["speaker encoder", "spk-encoder.gguf", "--voices"],
        &["corpus", &model, "-o", &other, "--codec", &codec],
    );

    arguments.extend(["--force", "--speaker-encoder", &encoder]);
    let made = run_json(0, &arguments);
    let traces = made["traces"].as_array().unwrap();
    assert_eq!((traces.len(), &made["voices"]), (24, &Value::from(4)));
    let named = |i: usize| traces[i]["voice"].as_str();
    assert_eq!(
        (named(7), named(8), named(23)),
        (None, Some("seed-7"), Some("seed-37"))
    );
    let voices: Vec<Vec<u8>> = (0..4)
        .map(|i| fs::read(work.path(&format!("corpus/voice-0{i}.npy"))).unwrap())
        .collect();
    for (i, voice) in voices.iter().enumerate() {
        assert!(!voices[..i].contains(voice), "voice {i} is another one's");
    }
    assert_eq!(
        npy::read(work.path("corpus/voice-03.npy")).unwrap().shape(),
        [2048]
    );

    // Beside the model nobody needs to name it, and the same seed makes the same voices.
    fs::rename(work.path("ecapa"), work.path("model/speaker-encoder")).unwrap();
    run(0, &["corpus", &model, "-o", &other, "--frames", "5"]);
    for (i, voice) in voices.iter().enumerate() {
        assert!(fs::read(work.path(&format!("other/voice-0{i}.npy"))).unwrap() == *voice);
    }
}

#[test]
fn a_corpus_is_made_measured_and_compared_with_itself() {
    let work = Work::new();
    let made = corpus(&work);
    let traces = made["traces"].as_array().unwrap();
    assert_eq!(traces.len(), 12);
    assert_eq!(traces[0]["seed"], 1000);
    assert_eq!(traces[8]["voice"], "anna");
    assert_eq!(traces[8]["seed"], 2000);
    for trace in traces {
        let file = work.path("corpus").join(trace["ids"].as_str().unwrap());
        let ids = npy::read(&file).unwrap();
        assert_eq!(ids.shape(), [trace["rows"].as_u64().unwrap() as usize, 10]);
        assert!(matches!(ids.data(), npy::NpyData::F32(_)));
    }
    let voice = npy::read(work.path("corpus/voice-00.npy")).unwrap();
    assert_eq!(voice.shape(), [2048]);

    // The same seed makes the same corpus, another one another.
    let (model, again) = (work.model(), work.arg("again"));
    let bytes = |folder: &str, file: &str| fs::read(work.path(folder).join(file)).unwrap();
    run(0, &["corpus", &model, "-o", &again, "--frames", "5"]);
    assert_eq!(
        bytes("corpus", "trace-000.npy"),
        bytes("again", "trace-000.npy")
    );
    run(
        0,
        &[
            "corpus", &model, "-o", &again, "--frames", "5", "--force", "--seed", "9",
        ],
    );
    assert_ne!(
        bytes("corpus", "trace-000.npy"),
        bytes("again", "trace-000.npy")
    );

    let (manifest, base) = (work.arg("corpus/manifest.toml"), work.arg("ref.kld"));
    let measured = run_json(
        0,
        &[
            "perplexity",
            &model,
            "--manifest",
            &manifest,
            "--save-base",
            &base,
        ],
    );
    let raw = fs::read(&base).unwrap();
    let read = KldBase::read("ref.kld", &raw[..]).unwrap();
    assert_eq!(measured["events"], read.events().len());
    assert_eq!(read.sequences().len(), 12);
    assert_eq!(
        read.sequences()
            .iter()
            .filter(|s| s.voice.is_some())
            .count(),
        4
    );
    let events = measured["events"].as_u64().unwrap();
    let codebooks = measured["codebooks"].as_array().unwrap();
    let sum: u64 = codebooks
        .iter()
        .map(|c| c["events"].as_u64().unwrap())
        .sum();
    assert_eq!((codebooks.len(), sum), (9, events));
    // The mean over all events lies between those of the codebooks.
    let ppl: Vec<f64> = codebooks
        .iter()
        .map(|c| c["ppl"].as_f64().unwrap())
        .collect();
    let all = measured["ppl"].as_f64().unwrap();
    assert!(ppl.iter().any(|p| *p <= all) && ppl.iter().any(|p| *p >= all));

    let plot = work.arg("kld.png");
    let same = run_json(0, &["perplexity", &model, "--base", &base, "--plot", &plot]);
    for key in ["kld_mean", "kld_max", "kld_p99", "dlogp_rms", "dlogp_mean"] {
        assert_eq!(same[key].as_f64(), Some(0.0), "{key}");
    }
    assert_eq!(same["top1_agreement"].as_f64(), Some(1.0));
    assert_eq!(same["ppl_ref"], same["ppl_test"]);
    assert_eq!(same["ppl_test"], measured["ppl"]);
    assert!(fs::read(plot).unwrap().starts_with(b"\x89PNG"));

    // Lines are read as well, and plain files are sequences without a voice.
    let lines = "# by hand\ntrace-000.npy\ntrace-008.npy voice-00.npy 0\n";
    fs::write(work.path("corpus/list.txt"), lines).unwrap();
    let (list, file) = (
        work.arg("corpus/list.txt"),
        work.arg("corpus/trace-000.npy"),
    );
    let listed = run_json(0, &["perplexity", &model, "--manifest", &list]);
    assert_eq!(listed["sequences"], 2);
    let plain = run_json(0, &["perplexity", &model, &file]);
    assert_eq!(plain["sequences"], 1);
    let shown = run(0, &["perplexity", &model, &file]).stdout;
    let shown = String::from_utf8_lossy(&shown).into_owned();
    let number = format!("perplexity  {:.4}", plain["ppl"].as_f64().unwrap());
    assert!(shown.contains(&number), "{shown}");
    let shown = run(0, &["perplexity", &model, "--base", &base]).stdout;
    let shown = String::from_utf8_lossy(&shown).into_owned();
    assert!(shown.contains("same likeliest  100.00 %"), "{shown}");
}

#[test]
fn what_was_spoken_can_be_measured() {
    let work = Work::new();
    let (model, codec, ids) = (work.model(), work.codec(), work.arg("ids.npy"));
    let out = work.arg("a.wav");
    let spoken = run_json(
        0,
        &[
            "tts",
            "Hello.",
            "-o",
            &out,
            "--model",
            &model,
            "--codec",
            &codec,
            "--seed",
            "3",
            "--max-frames",
            "12",
            "--dump-ids",
            &ids,
        ],
    );
    let rows = spoken["prompt_rows"].as_u64().unwrap() + spoken["generated_rows"].as_u64().unwrap();
    let all = npy::read(&ids).unwrap();
    assert_eq!(all.shape(), [rows as usize, 10]);
    assert!(matches!(all.data(), npy::NpyData::F32(_)));

    // The prompt alone, spoken by the other command, gives the same rows.
    let (prompt, codes, again) = (work.arg("p.npy"), work.arg("c.npy"), work.arg("again.npy"));
    run(0, &["prompt", "Hello.", &prompt, "--model", &model]);
    run(
        0,
        &[
            "generate",
            &prompt,
            &codes,
            "--model",
            &model,
            "--seed",
            "3",
            "--max-frames",
            "12",
            "--dump-ids",
            &again,
        ],
    );
    assert_eq!(fs::read(&ids).unwrap(), fs::read(&again).unwrap());
    let measured = run_json(0, &["perplexity", &model, &ids]);
    assert_eq!(measured["rows"].as_u64(), Some(rows));
    work.refuses(
        2,
        &["--dump-ids", "same file"],
        &[
            "generate",
            &prompt,
            &codes,
            "--model",
            &model,
            "--dump-ids",
            &prompt,
        ],
    );
}

#[test]
fn importances_of_the_demo_model() {
    let work = Work::new();
    corpus(&work);
    let (model, manifest) = (work.model(), work.arg("corpus/manifest.toml"));
    let out = work.arg("imatrix.bin");
    let report = run_json(
        0,
        &[
            "imatrix",
            &model,
            "--manifest",
            &manifest,
            "-o",
            &out,
            "--min-hits",
            "20",
        ],
    );
    let imatrix = Imatrix::read("imatrix.bin", &fs::read(&out).unwrap()).unwrap();
    let layers = report["layers"].as_array().unwrap();
    assert_eq!(imatrix.entries.len(), 3 * layers.len());
    for layer in layers {
        let n = &layer["layer"];
        let entry = &imatrix.entries[&format!("blk.{n}.ffn_down_exps.weight")];
        for (e, hits) in layer["hits"].as_array().unwrap().iter().enumerate() {
            let met = hits.as_u64().unwrap() >= 20;
            assert_eq!(entry.expert(e).is_some(), met, "layer {n}, expert {e}");
            let without = layer["without"].as_array().unwrap();
            assert_eq!(without.contains(&e.into()), !met);
        }
    }
}

#[test]
fn what_is_no_corpus_is_refused_by_name() {
    let work = Work::new();
    corpus(&work);
    let model = work.model();
    let write = |name: &str, content: &str| {
        fs::write(work.path("corpus").join(name), content).unwrap();
        work.arg(&format!("corpus/{name}"))
    };
    let perplexity = |code: i32, needles: &[&str], arguments: &[&str]| {
        work.refuses(
            code,
            needles,
            &[&["perplexity", &model], arguments].concat(),
        )
    };
    // Command lines.
    let ids = work.arg("corpus/trace-000.npy");
    perplexity(2, &["required"], &[]);
    for lines in [
        vec![ids.as_str(), "--manifest", "m.toml"],
        vec!["--base", "a.kld", "--manifest", "m.toml"],
        vec![ids.as_str(), "--plot", "a.png"],
        vec![ids.as_str(), "--save-base", ids.as_str()],
    ] {
        let output = zonos().args(["perplexity", &model]).args(&lines).output();
        assert_eq!(output.unwrap().status.code(), Some(2), "{lines:?}");
    }
    // Manifests.
    let empty = write("empty.toml", "");
    perplexity(
        1,
        &["empty.toml", "lists no sequence"],
        &["--manifest", &empty],
    );
    let nobody = write("nobody.toml", "[[sequence]]\nids = ''");
    perplexity(
        1,
        &["nobody.toml", "ids is empty"],
        &["--manifest", &nobody],
    );
    let words = write("words.txt", "trace 000.npy");
    perplexity(
        1,
        &["words.txt: lists", "blanks", ".toml"],
        &["--manifest", &words],
    );
    for name in ["marked.toml", "marked.txt"] {
        let text = if name.ends_with("toml") {
            "\u{feff}[[sequence]]\nids = 'trace-000.npy'"
        } else {
            "\u{feff}trace-000.npy\n"
        };
        run(0, &["perplexity", &model, "--manifest", &write(name, text)]);
    }
    let typo = write("typo.toml", "[[sequence]]\nid = 'a'");
    perplexity(1, &["typo.toml", "line 2"], &["--manifest", &typo]);
    let gone = write("gone.txt", "gone.npy");
    perplexity(
        1,
        &["gone.txt: lists", "corpus/gone.npy", "relative to"],
        &["--manifest", &gone],
    );
    let beyond = write("beyond.txt", "trace-000.npy voice-00.npy 100000");
    perplexity(
        1,
        &["trace-000.npy", "voice position 100000"],
        &["--manifest", &beyond],
    );
    // Voices.
    npy::write_f32(work.path("corpus/short.npy"), &[3], &[0.1, 0.2, 0.3]).unwrap();
    let short = write("short.txt", "trace-000.npy short.npy");
    perplexity(1, &["short.npy", "2048"], &["--manifest", &short]);
    // Ids.
    let row = |bad: i32| {
        let mut ids = vec![0; 30];
        ids[19] = 519;
        ids[24] = bad;
        let path = work.path("corpus/bad.npy");
        npy::write_i32(&path, &[3, 10], &ids).unwrap();
        text(&path)
    };
    let bad = row(1026);
    perplexity(1, &["bad.npy", "row 2", "column 4", "1026"], &[&bad]);
    let pads: Vec<i32> = [[1025; 9].as_slice(), &[2]].concat().repeat(3);
    npy::write_i32(work.path("corpus/pads.npy"), &[3, 10], &pads).unwrap();
    let pads = work.arg("corpus/pads.npy");
    perplexity(1, &["no event"], &[&pads]);
    perplexity(
        1,
        &["no event"],
        &[&pads, "--save-base", &work.arg("no.kld")],
    );
    // Ids that are none: truth values, halves that may have been rounded, fractions.
    let array = |name: &str, descr: &str, element: &[u8]| {
        let text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': (2, 10), }}\n");
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend((text.len() as u16).to_le_bytes());
        bytes.extend(text.as_bytes());
        bytes.extend(element.repeat(20));
        fs::write(work.path(name), bytes).unwrap();
        work.arg(name)
    };
    let truth = array("truth.npy", "|b1", &[1]);
    perplexity(
        1,
        &[
            "truth.npy",
            "bool",
            "int8 to int64",
            "uint8 to uint64",
            "int32",
        ],
        &[&truth],
    );
    let halves = array("halves.npy", "<f2", &0x6800u16.to_le_bytes());
    perplexity(1, &["halves.npy", "2048", "<i4"], &[&halves]);
    let fractions = array("fractions.npy", "<f4", &0.5f32.to_le_bytes());
    perplexity(
        1,
        &["fractions.npy", "[0, 0] is 0.5", "whole number"],
        &[&fractions],
    );
    run(0, &["perplexity", &model, &array("bytes.npy", "|u1", &[1])]);
    // Base files.
    let base = work.arg("ref.kld");
    run(
        0,
        &["perplexity", &model, &ids, "--save-base", &base, "--quiet"],
    );
    let good = fs::read(&base).unwrap();
    let spoilt = |name: &str, spoil: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = good.clone();
        spoil(&mut bytes);
        fs::write(work.path(name), bytes).unwrap();
        work.arg(name)
    };
    let cut = spoilt("cut.kld", &|b| b.truncate(b.len() - 4));
    perplexity(1, &["cut.kld"], &["--base", &cut]);
    let old = spoilt("old.kld", &|b| b[7] = b'1');
    perplexity(1, &["old.kld", "another version"], &["--base", &old]);
    let nan = spoilt("nan.kld", &|b| {
        let at = b.len() - 4;
        b[at..].copy_from_slice(&f32::NAN.to_le_bytes());
    });
    perplexity(
        1,
        &["nan.kld", "holds no log-probabilities"],
        &["--base", &nan],
    );
    // A divergence is not below 0, so such a base would make any model look equal.
    let less = spoilt("less.kld", &|b| {
        let at = b.len() - 4 * 1026;
        for x in b[at..].as_chunks_mut::<4>().0 {
            *x = (f32::from_le_bytes(*x) - 3.0).to_le_bytes();
        }
    });
    perplexity(
        1,
        &["less.kld", "holds no log-probabilities", "add up to 1"],
        &["--base", &less],
    );
    let shape = KldShape {
        codebooks: 9,
        vocabulary: 1024,
        pad: 1023,
    };
    let sequence = KldSequence {
        ids: vec![1; 20],
        voice: None,
    };
    let file = fs::File::create(work.path("other.kld")).unwrap();
    let mut other = KldWriter::new(file, "other", shape, &[sequence]).unwrap();
    while other.next_event().is_some() {
        other.write(&[0.0; 1024]).unwrap();
    }
    other.finish().unwrap();
    let other = work.arg("other.kld");
    let both = ["other.kld", "1024 ids, pad 1023", "1026 ids, pad 1025"];
    perplexity(1, &both, &["--base", &other]);
    // The text column of the first row; the header is 40 bytes.
    let beyond = spoilt("text.kld", &|b| {
        b[76..80].copy_from_slice(&600f32.to_le_bytes())
    });
    perplexity(
        1,
        &["text.kld", "row 0, column 9", "600"],
        &["--base", &beyond],
    );
    // A path that is none.
    for line in [&["inspect", ""][..], &["convert", "", "a.gguf"]] {
        let output = zonos().args(line).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
    }
    // Weights that are no numbers.
    common::edit_tensor(
        &work.path("model/model.safetensors"),
        "layers.3.ffn_norm.weight",
        |bytes| bytes[..2].copy_from_slice(&[0xff, 0x7f]),
    );
    let named = format!("error: {model}: ");
    perplexity(1, &[&named, "sequence 0, row", "layer 3"], &[&ids]);
    let gguf = work.arg("nan.gguf");
    let needles = [
        "model.safetensors: tensor 'blk.3.ffn_norm.weight'",
        "NaN",
        "--check",
    ];
    work.refuses(1, &needles, &["convert", &model, &gguf]);
    let manifest = work.arg("corpus/manifest.toml");
    let out = work.arg("i.bin");
    work.refuses(
        1,
        &[&named, "sequence 0", "layer 3"],
        &["imatrix", &model, "--manifest", &manifest, "-o", &out],
    );
    let out = work.arg("another");
    work.refuses(
        1,
        &[&named, "layer 3"],
        &["corpus", &model, "-o", &out, "--frames", "2"],
    );
}

#[test]
fn a_corpus_is_refused_where_it_would_mix_or_say_nothing() {
    let work = Work::new();
    let model = work.model();
    fs::create_dir(work.path("full")).unwrap();
    fs::write(work.path("full/a"), "").unwrap();
    fs::create_dir(work.path("none")).unwrap();
    fs::write(work.path("blank.txt"), "\n  \n").unwrap();
    fs::write(work.path("silent.txt"), "Hello.\n\u{200b}\n").unwrap();
    let (full, out, none) = (work.arg("full"), work.arg("out"), work.arg("none"));
    work.refuses(2, &["full", "not empty"], &["corpus", &model, "-o", &full]);
    work.refuses(
        1,
        &["none", "holds no voice"],
        &["corpus", &model, "-o", &out, "--voices", &none],
    );
    let blank = work.arg("blank.txt");
    work.refuses(
        1,
        &["blank.txt", "holds no text"],
        &["corpus", &model, "-o", &out, "--texts", &blank],
    );
    let silent = work.arg("silent.txt");
    work.refuses(
        2,
        &["--texts"],
        &["corpus", &model, "-o", &out, "--texts", &silent],
    );
}

/// What cannot be read or written is told by its path, with what to do.
#[test]
fn paths_that_lead_nowhere_are_told() {
    let work = Work::new();
    let model = work.model();
    let (gone, out, small) = (work.arg("gone"), work.arg("out"), work.arg("small.gguf"));
    fs::write(work.path("file"), b"a\xff").unwrap();
    let file = work.arg("file");
    let (beyond, bin) = (work.arg("gone/out.gguf"), work.arg("i.bin"));
    for (needles, line) in [
        (
            ["gone: no such file", "check"],
            vec!["quantize", &gone, &small, "q4_k"],
        ),
        (
            ["gone: no such file", "give"],
            vec!["corpus", &gone, "-o", &out],
        ),
        (
            ["gone: no such file", "check"],
            vec!["corpus", &model, "-o", &out, "--texts", &gone],
        ),
        (
            ["gone: no such file", "check"],
            vec!["corpus", &model, "-o", &out, "--voices", &gone],
        ),
        (
            ["file: a file", "folder"],
            vec!["corpus", &model, "-o", &out, "--voices", &file],
        ),
        (
            ["file: byte 1", "UTF-8"],
            vec!["corpus", &model, "-o", &out, "--texts", &file],
        ),
        (
            ["file is not a folder", "give"],
            vec!["corpus", &model, "-o", &file],
        ),
        (
            ["gone does not exist", "create"],
            vec!["corpus", &model, "-o", &beyond],
        ),
        (
            ["gone: cannot read", "check"],
            vec!["perplexity", &model, &gone],
        ),
        (
            ["model: cannot read", "give"],
            vec!["perplexity", &model, &model],
        ),
        (
            ["gone: no such file", "check"],
            vec!["perplexity", &model, "--base", &gone],
        ),
        (
            ["gone: no such file", "check"],
            vec!["perplexity", &model, "--manifest", &gone],
        ),
        (
            ["file: byte 1", "no manifest"],
            vec!["imatrix", &model, "--manifest", &file, "-o", &bin],
        ),
        (
            ["gone does not exist", "create"],
            vec!["convert", &model, &beyond],
        ),
    ] {
        work.refuses(1, &needles, &line);
    }
}

/// A corpus, importances and a base are an original's.
#[test]
fn a_model_that_lost_precision_is_told_where_an_original_is_meant() {
    let work = Work::new();
    corpus(&work);
    let (manifest, bin) = (work.arg("corpus/manifest.toml"), work.arg("i.bin"));
    let (corpus, base) = (work.arg("again"), work.arg("warned.kld"));
    for (t, warned) in [("q8_0", true), ("f16", false)] {
        let model = work.arg(&format!("{t}.gguf"));
        run(0, &["convert", &work.model(), &model, "--type", t]);
        for (i, line) in [
            vec!["corpus", &model, "-o", &corpus, "--frames", "2", "--force"],
            vec!["imatrix", &model, "--manifest", &manifest, "-o", &bin],
            vec![
                "perplexity",
                &model,
                "--manifest",
                &manifest,
                "--save-base",
                &base,
            ],
        ]
        .into_iter()
        .enumerate()
        {
            let quiet = [line.clone(), vec!["--quiet"]].concat();
            let said = String::from_utf8(run(0, &quiet).stderr).unwrap();
            let told = ["q8_0.gguf: ", "(Q8_0; blk.", "take the unquantised file"];
            for part in told {
                assert_eq!(said.contains(part), warned, "{part}: {said}");
            }
            let warnings = &run_json(0, &line)["warnings"];
            assert_eq!(
                warnings.as_array().unwrap().len(),
                usize::from(warned),
                "{i}"
            );
        }
    }
}

/// Flags tell their ranges in words.
#[test]
fn numbers_out_of_range_are_refused_in_words() {
    for (flag, bad, told) in [
        ("--frames", "0", "from 1 to 4294967295"),
        ("--frames", "99999999999", "from 1 to 4294967295"),
        ("--seed", "-1", "from 0 to 18446744073709551615"),
        ("--threads", "0", "from 1 to 1024"),
    ] {
        let output = zonos().args(["corpus", "m", "-o", "c", flag, bad]).output();
        let output = output.unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(told) && !said.contains(".."), "{said}");
    }
}

/// A GGUF file with one expert stack and a spine; `architecture` none leaves the key out.
fn small_gguf(path: &Path, architecture: Option<&str>) {
    let mut metadata = Metadata::new();
    if let Some(architecture) = architecture {
        metadata.set(
            "general.architecture",
            zonos_gguf::Value::String(architecture.into()),
        );
    }
    let tensors: Vec<NewTensor> = [
        ("blk.0.attn_q.weight", vec![256, 4]),
        ("blk.0.ffn_up_exps.weight", vec![256, 3, 2]),
    ]
    .map(|(name, dims): (&str, Vec<u64>)| NewTensor {
        name: name.into(),
        dims,
        ggml_type: GgmlType::F32,
    })
    .into();
    let mut writer = GgufWriter::new(Vec::new(), "small", &metadata, &tensors).unwrap();
    for tensor in &tensors {
        let values = tensor.dims.iter().product::<u64>();
        let bytes: Vec<u8> = (0..values)
            .flat_map(|i| ((i as f32) * 0.7).sin().to_le_bytes())
            .collect();
        writer.write(&tensor.name, &bytes).unwrap();
    }
    fs::write(path, writer.finish().unwrap()).unwrap();
}

fn types(path: &Path) -> Vec<GgmlType> {
    let bytes = fs::read(path).unwrap();
    let file = GgufFile::read("f", &bytes[..]).unwrap();
    file.tensors()
        .iter()
        .map(zonos_gguf::TensorInfo::ggml_type)
        .collect()
}

/// What was asked for in vain, and values that are no numbers, are told.
#[test]
fn quantising_says_what_it_did_not_do() {
    let work = Work::new();
    small_gguf(&work.path("in.gguf"), Some("zonos2"));
    let (from, to) = (work.arg("in.gguf"), work.arg("out.gguf"));
    let said = |arguments: &[&str]| {
        let line = [&["quantize", from.as_str(), to.as_str()], arguments].concat();
        String::from_utf8(run(0, &line).stderr).unwrap()
    };
    let up = said(&["q4_k", "--down-tier-up"]);
    assert!(up.contains("--down-tier-up changes nothing"), "{up}");
    assert!(
        !up.contains("one tier up") && up.contains("experts q4_k"),
        "{up}"
    );
    assert!(!said(&["q4_k"]).contains("warning"));
    // Rows of the demo model are shorter than a block of 256.
    let short = work.arg("short.gguf");
    run(0, &["convert", &work.model(), &short, "--type", "f16"]);
    let none = run(0, &["quantize", &short, &to, "q4_k"]).stderr;
    let none = String::from_utf8(none).unwrap();
    assert!(none.contains("no tensor becomes q4_k"), "{none}");
    assert!(!none.contains("experts q4_k"), "{none}");

    // The last value of the last expert.
    let mut bytes = fs::read(work.path("in.gguf")).unwrap();
    let end = bytes.len() - 4;
    bytes[end..].copy_from_slice(&f32::NAN.to_le_bytes());
    fs::write(work.path("in.gguf"), bytes).unwrap();
    for t in ["q8_0", "q4_k", "iq4_xs", "f16", "f32"] {
        let nan = said(&[t]);
        assert!(
            nan.contains("NaN") && nan.contains("blk.0.ffn_up_exps.weight"),
            "{t}: {nan}"
        );
    }
    work.refuses(
        1,
        &["none.bin: no such file"],
        &["quantize", &from, &to, "q4_k", "--imatrix", "none.bin"],
    );
}

#[test]
fn the_spine_keeps_its_bits_unless_one_insists() {
    let work = Work::new();
    let input = work.path("in.gguf");
    small_gguf(&input, Some("zonos2"));
    let before = fs::read(&input).unwrap();
    let (from, to) = (work.arg("in.gguf"), work.arg("out.gguf"));
    use GgmlType::{Bf16, F16, Q4K, Q8_0};
    for (arguments, expected) in [
        (vec!["q4_k"], [F16, Q4K]),
        (vec!["Q4_K", "--experts-only", "--spine-f16"], [F16, Q4K]),
        (vec!["q4_k", "--experts-only"], [Q8_0, Q4K]),
        (vec!["q8_0", "--everything"], [Q8_0, Q8_0]),
        (vec!["q4_k", "--everything", "--force"], [Q4K, Q4K]),
        (vec!["bf16"], [Bf16, Bf16]),
    ] {
        let line = [vec!["quantize", &from, &to], arguments].concat();
        let report = run_json(0, &line);
        assert_eq!(types(&work.path("out.gguf")), expected, "{line:?}");
        let counted = &report["types"][expected[1].name()]["tensors"];
        assert!(counted.as_u64() >= Some(1), "{report}");
        let size = fs::metadata(work.path("out.gguf")).unwrap().len();
        assert!(report["bytes_after"].as_u64().unwrap() < size);
    }
    let report = run_json(0, &["quantize", &from, &to, "q4_k"]);
    // 1024 values of 16 bits and 1536 of 4.5.
    let bits = report["bits_per_weight"].as_f64().unwrap();
    assert!(
        (bits - (1024.0 * 16.0 + 1536.0 * 4.5) / 2560.0).abs() < 1e-9,
        "{bits}"
    );
    let shown = run(0, &["quantize", &from, &to, "q4_k"]).stdout;
    assert!(
        String::from_utf8_lossy(&shown).contains("q4_k          1"),
        "{shown:?}"
    );

    work.refuses(
        2,
        &["--force"],
        &["quantize", &from, &to, "q4_k", "--everything"],
    );
    work.refuses(2, &["same file"], &["quantize", &from, &from, "q4_k"]);
    let output = zonos()
        .args(["quantize", &from, &to, "iq3_s"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    // Quantised twice: done, and said.
    let again = work.arg("again.gguf");
    let output = run(0, &["quantize", &to, &again, "q8_0"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        said.contains("warning: 1 tensor") && said.contains("ffn_up_exps"),
        "{said}"
    );
    assert!(said.contains("already and lost more"), "{said}");
    let report = run_json(0, &["quantize", &to, &again, "q8_0"]);
    assert_eq!(report["requantized"][0], "blk.0.ffn_up_exps.weight");
    let output = run(0, &["quantize", &to, &again, "f16"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        said.contains("already, which no type brings back"),
        "{said}"
    );
    // Importances that fit nothing.
    let mut imatrix = Imatrix::default();
    let entry = zonos_gguf::ImatrixEntry::new(1, 2, vec![1.0; 2]).unwrap();
    imatrix
        .entries
        .insert("blk.7.ffn_up_exps.weight".into(), entry);
    let mut bytes = Vec::new();
    imatrix.write(&mut bytes).unwrap();
    fs::write(work.path("i.bin"), &bytes).unwrap();
    let i = work.arg("i.bin");
    let output = run(0, &["quantize", &from, &to, "q4_k", "--imatrix", &i]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("blk.7.ffn_up_exps.weight"), "{said}");
    // Importances of nothing: no expert was given rows enough.
    let entry = zonos_gguf::ImatrixEntry::new(2, 256, vec![0.0; 512]).unwrap();
    let none = [("blk.0.ffn_up_exps.weight".to_owned(), entry)];
    let none = Imatrix {
        entries: none.into(),
    };
    for (none, t) in [
        (&none, "q4_k"),
        (&Imatrix::default(), "q4_k"),
        (&none, "q8_0"),
    ] {
        let mut bytes = Vec::new();
        none.write(&mut bytes).unwrap();
        fs::write(work.path("i.bin"), bytes).unwrap();
        let output = run(0, &["quantize", &from, &to, t, "--imatrix", &i]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(said.matches("changes nothing").count(), 1, "{said}");
        assert_eq!(said.contains("of no expert"), t == "q4_k", "{said}");
    }
    fs::write(work.path("cut.bin"), &bytes[..20]).unwrap();
    let cut = work.arg("cut.bin");
    fs::remove_file(work.path("out.gguf")).unwrap();
    work.refuses(
        1,
        &["cut.bin"],
        &["quantize", &from, &to, "q4_k", "--imatrix", &cut],
    );
    // Files of others, damaged files.
    let long = "x".repeat(1 << 20);
    for architecture in [Some("llama"), Some(&long), None] {
        small_gguf(&work.path("other.gguf"), architecture);
        let other = work.arg("other.gguf");
        let refused = ["quantize", &other, &to, "q4_k"];
        let said = work.refuses(1, &["other.gguf", "general.architecture"], &refused);
        assert!(said.len() < 600, "{} bytes", said.len());
    }
    fs::write(work.path("cut.gguf"), &before[..before.len() - 100]).unwrap();
    let cut = work.arg("cut.gguf");
    work.refuses(1, &["cut.gguf"], &["quantize", &cut, &to, "q4_k"]);
    work.refuses(
        1,
        &["gone.gguf"],
        &["quantize", &work.arg("gone.gguf"), &to, "q4_k"],
    );
    assert_eq!(fs::read(&input).unwrap(), before);
}

fn golden_manifest(folder: &Path) -> Value {
    serde_json::from_slice(&fs::read(folder.join("manifest.json")).unwrap()).unwrap()
}

/// The flags that make golden file `name`.
fn flags<'a>(name: &str, golden: &'a Value, imatrix: &'a str) -> Vec<&'a str> {
    let mut flags = vec![golden["bulk"].as_str().unwrap()];
    if golden["experts_only"].as_bool() != Some(true) {
        flags.push("--everything");
    }
    if name.ends_with("-im") {
        flags.extend(["--imatrix", imatrix]);
    }
    flags
}

#[test]
fn golden_quantised_files_and_their_distances() {
    let Some(folder) = goldens("quantising, and the distance of quantised models,") else {
        return;
    };
    let work = Work::new();
    let manifest = golden_manifest(&folder);
    let (f16, imatrix) = (
        text(&folder.join("f16.gguf")),
        text(&folder.join("imatrix.bin")),
    );
    let base = text(&folder.join("kld_base.bin"));
    let mut compared = 0;
    for (name, golden) in manifest["files"].as_object().unwrap() {
        if golden["bulk"].is_null() {
            continue;
        }
        let out = work.arg(&format!("{name}.gguf"));
        let flags = flags(name, golden, &imatrix);
        run(
            0,
            &[vec!["quantize", &f16, &out, "--quiet"], flags].concat(),
        );
        let sum: String = Sha256::digest(fs::read(&out).unwrap())
            .iter()
            .map(|b| format!("{b:02x}"))
            .collect();
        assert_eq!(sum, golden["sha256"].as_str().unwrap(), "{name}");

        let report = run_json(0, &["perplexity", &out, "--base", &base]);
        let expected = &manifest["kld"][name];
        let number = |of: &Value, key: &str| of[key].as_f64().unwrap();
        println!("{name}: {} {}", report["kld_mean"], expected["kld_mean"]);
        assert_eq!(report["events"], expected["events"]);
        for key in ["ppl_ref", "ppl_test", "kld_mean"] {
            let (found, expected) = (number(&report, key), number(expected, key));
            assert!(
                (found / expected - 1.0).abs() < 1e-3,
                "{name} {key}: {found} {expected}"
            );
        }
        let top1 = number(&report, "top1_agreement") - number(expected, "top1_agreement");
        assert!((top1 * 81.0).abs() < 1.5, "{name}: {top1}");
        for key in [
            "kld_median",
            "kld_p90",
            "kld_p95",
            "kld_p99",
            "kld_max",
            "dlogp_rms",
        ] {
            let (found, expected) = (number(&report, key), number(expected, key));
            assert!(
                (found / expected - 1.0).abs() < 5e-3,
                "{name} {key}: {found} {expected}"
            );
        }
        compared += 1;
    }
    assert_eq!(compared, 6);
}

#[test]
fn golden_base_file_and_importances() {
    let Some(folder) = goldens("the base file and the importance file") else {
        return;
    };
    let work = Work::new();
    let manifest = golden_manifest(&folder);
    let golden = folder.join("golden.safetensors");
    let ids = |name: &str, file: &str| {
        let (_, shape, bytes) = common::tensor(&golden, name);
        npy::write_i32(work.path(file), &shape, &common::i32s(&bytes)).unwrap();
    };
    let (_, _, voice) = common::tensor(&golden, "speaker.vector");
    npy::write_f32(work.path("v.npy"), &[2048], &f32s(&voice)).unwrap();
    let f16 = text(&folder.join("f16.gguf"));
    for (name, i) in [("kld", "k"), ("importance", "i")] {
        ids(&format!("{name}.seq.0"), &format!("{i}0.npy"));
        ids(&format!("{name}.seq.1"), &format!("{i}1.npy"));
        let toml = format!(
            "[[sequence]]\nids = '{i}0.npy'\n[[sequence]]\nids = '{i}1.npy'\nspeaker = 'v.npy'\n"
        );
        fs::write(work.path(&format!("{i}.toml")), toml).unwrap();
    }

    let (k, base) = (work.arg("k.toml"), work.arg("ref.kld"));
    let report = run_json(
        0,
        &["perplexity", &f16, "--manifest", &k, "--save-base", &base],
    );
    let expected = manifest["kld"]["q8_0"]["ppl_ref"].as_f64().unwrap();
    let ppl = report["ppl"].as_f64().unwrap();
    assert!((ppl / expected - 1.0).abs() < 1e-4, "{ppl} {expected}");
    let (made, golden_base) = (fs::read(&base).unwrap(), folder.join("kld_base.bin"));
    let golden_base = fs::read(golden_base).unwrap();
    assert_eq!(made.len(), golden_base.len());
    let numbers = 81 * 1026 * 4;
    let head = made.len() - numbers;
    assert!(made[..head] == golden_base[..head]);
    let largest = f32s(&made[head..])
        .iter()
        .zip(f32s(&golden_base[head..]))
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, f32::max);
    println!("log-probabilities: {largest:e}");
    assert!(largest <= 2e-4, "{largest}");

    let (i, out) = (work.arg("i.toml"), work.arg("imatrix.bin"));
    let line = [
        "imatrix",
        &f16,
        "--manifest",
        &i,
        "-o",
        &out,
        "--min-hits",
        "12",
    ];
    let report = run_json(0, &line);
    for layer in report["layers"].as_array().unwrap() {
        let name = format!("blk.{}.ffn_gate_exps.weight", layer["layer"]);
        assert_eq!(layer["hits"], manifest["importance"]["hits"][&name]);
    }
    let read = |path: &Path| Imatrix::read("i", &fs::read(path).unwrap()).unwrap();
    let (made, expected) = (read(Path::new(&out)), read(&folder.join("imatrix.bin")));
    assert!(made.entries.keys().eq(expected.entries.keys()));
    let mut largest = 0.0f32;
    for (name, entry) in &expected.entries {
        let found = &made.entries[name];
        assert_eq!(found.experts(), entry.experts());
        for e in 0..entry.experts() {
            assert_eq!(found.expert(e).is_some(), entry.expert(e).is_some());
            let (Some(found), Some(row)) = (found.expert(e), entry.expert(e)) else {
                continue;
            };
            let mean = row.iter().sum::<f32>() / row.len() as f32;
            for (a, b) in found.iter().zip(row) {
                largest = largest.max((a - b).abs() / mean);
            }
        }
    }
    // Measured: 1.7e-5.
    println!("importances, of the expert's mean: {largest:e}");
    assert!(largest <= 1e-4, "{largest}");
}
