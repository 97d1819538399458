//! Named voices: adding, listing, blending, removing, speaking with them, and what no name is.

mod common;

use std::fs;

use common::{Work, fixtures, run, run_json, zonos};
use serde_json::json;
use zonos_audio::npy;
use zonos_tts::{Provenance, Voice};

/// A vector of the demo model's width.
fn vector(k: f32) -> Vec<f32> {
    (0..2048).map(|i| (i as f32 * k).sin()).collect()
}

#[test]
fn voices_are_kept_listed_blended_and_removed() {
    let work = Work::new();
    let voices = work.arg("voices");
    let at = |args: &[&str]| {
        let mut all = vec!["voices"];
        all.extend(args);
        all.extend(["--voices", &voices]);
        run_json(0, &all)
    };
    assert_eq!(at(&["list"])["voices"], json!([]));
    assert!(!work.path("voices").exists(), "listing makes no folder");
    npy::write_f32(work.path("a.npy"), &[2048], &vector(0.37)).unwrap();
    npy::write_f32(work.path("b.npy"), &[1, 2048], &vector(0.11)).unwrap();
    let added = at(&["add", "anna", &work.arg("a.npy")]);
    assert_eq!(added["name"], "anna");
    assert_eq!(added["dimension"], 2048);
    assert_eq!(added["source"], "a.npy");
    assert_eq!(added["source_sha256"].as_str().unwrap().len(), 64);
    let file = work.path("voices/anna.safetensors");
    assert_eq!(added["file"], file.display().to_string());
    at(&["add", "ben", &work.arg("b.npy")]);

    let blend = at(&["blend", "anna", "ben", "--t", "0.3", "-o", "between"]);
    assert_eq!(blend["source"], "blend of anna and ben, t = 0.3");
    let kept = Voice::load(work.path("voices/between.safetensors")).unwrap();
    let expected = zonos2::slerp(&vector(0.37), &vector(0.11), 0.3).unwrap();
    assert_eq!(kept.vector(), expected);

    let list = at(&["list"]);
    let names: Vec<_> = list["voices"]
        .as_array()
        .unwrap()
        .iter()
        .map(|v| &v["name"])
        .collect();
    assert_eq!(names, ["anna", "ben", "between"]);
    let text = run(0, &["voices", "list", "--voices", &voices]).stdout;
    let text = String::from_utf8(text).unwrap();
    assert_eq!(text.lines().count(), 3, "{text}");
    assert!(
        text.contains("2048 numbers, blend of anna and ben"),
        "{text}"
    );

    // The environment names the folder as well as the flag does.
    let output = zonos()
        .args(["voices", "remove", "ben", "--json"])
        .env("ZONOS_VOICES", &voices)
        .output()
        .unwrap();
    assert!(output.status.success());
    assert!(!work.path("voices/ben.safetensors").exists());
    work.refuses(
        1,
        &["'ben'", "voices list"],
        &["voices", "remove", "ben", "--voices", &voices],
    );
}

#[test]
fn nothing_is_replaced_unless_asked_for() {
    let work = Work::new();
    let (voices, emb) = (work.arg("voices"), work.arg("a.npy"));
    npy::write_f32(&emb, &[4], &[1.0, 2.0, 3.0, 4.0]).unwrap();
    let add = ["voices", "add", "anna", &emb, "--voices", &voices];
    run(0, &add);
    let before = fs::read(work.path("voices/anna.safetensors")).unwrap();
    work.refuses(1, &["anna", "--force"], &add);
    let blend = [
        "voices", "blend", "anna", "anna", "-o", "anna", "--voices", &voices,
    ];
    work.refuses(1, &["--force"], &blend);
    let alike = [
        "voices", "add", "Anna", &emb, "--force", "--voices", &voices,
    ];
    let text = work.refuses(1, &["'anna'", "'Anna'", "remove"], &alike);
    assert!(!text.contains("--force"), "{text}");
    assert_eq!(
        fs::read(work.path("voices/anna.safetensors")).unwrap(),
        before
    );
    npy::write_f32(&emb, &[4], &[9.0; 4]).unwrap();
    let mut force = add.to_vec();
    force.push("--force");
    run(0, &force);
    assert_ne!(
        fs::read(work.path("voices/anna.safetensors")).unwrap(),
        before
    );
    // Opposite vectors have no way between them, and one width does not turn into another.
    npy::write_f32(&emb, &[4], &[-9.0; 4]).unwrap();
    run(0, &["voices", "add", "anti", &emb, "--voices", &voices]);
    npy::write_f32(&emb, &[3], &[1.0; 3]).unwrap();
    run(0, &["voices", "add", "three", &emb, "--voices", &voices]);
    for (other, needles) in [("anti", &["opposite"][..]), ("three", &["three", "4", "3"])] {
        let blend = [
            "voices", "blend", "anna", other, "-o", "x", "--voices", &voices,
        ];
        work.refuses(1, needles, &blend);
    }
    let beyond = [
        "voices", "blend", "anna", "anti", "--t", "1.5", "-o", "x", "--voices", &voices,
    ];
    work.refuses(2, &["--t"], &beyond);
}

#[test]
fn warnings_are_said_with_quiet_too() {
    let work = Work::new();
    let voices = work.arg("voices");
    for (name, model) in [("a", "one"), ("b", "two")] {
        let provenance = Provenance {
            model: Some(model.to_owned()),
            ..Provenance::now()
        };
        let voice = Voice::new(vector(if name == "a" { 0.3 } else { 0.7 }), provenance).unwrap();
        let file = work.arg(&format!("{name}.safetensors"));
        voice.save(&file).unwrap();
        run(0, &["voices", "add", name, &file, "--voices", &voices]);
    }
    let blend = ["voices", "blend", "a", "b", "-o", "c", "--voices", &voices];
    let mut quiet = blend.to_vec();
    quiet.push("-q");
    let stderr = String::from_utf8(run(0, &quiet).stderr).unwrap();
    assert!(
        stderr.contains("warning: a was made by the encoder one, b by two"),
        "{stderr}"
    );
    let mut forced = blend.to_vec();
    forced.push("--force");
    let report = run_json(0, &forced);
    assert_eq!(report["warnings"].as_array().unwrap().len(), 1);
}

#[test]
fn vectors_that_are_nobodys_are_refused_by_file() {
    let work = Work::new();
    let (out, model, voices) = (work.arg("a.wav"), work.model(), work.arg("voices"));
    let file = work.arg("odd.npy");
    for (values, needle) in [
        (vec![0.0; 2048], "zero"),
        (vector(0.3).iter().map(|x| x * 3e37).collect(), "e3"),
    ] {
        npy::write_f32(&file, &[2048], &values).unwrap();
        let add = ["voices", "add", "odd", &file, "--voices", &voices];
        work.refuses(1, &["odd.npy", needle], &add);
        let speak = ["tts", "Hi", "-o", &out, "--model", &model];
        let mut speak = speak.to_vec();
        speak.extend(["--speaker", &file]);
        work.refuses(1, &["odd.npy", needle], &speak);
    }
}

#[test]
fn a_stored_voice_speaks_as_its_vector_does() {
    let work = Work::new();
    let (out, model, voices) = (work.arg("a.wav"), work.model(), work.arg("voices"));
    npy::write_f32(work.path("a.npy"), &[2048], &vector(0.37)).unwrap();
    run(
        0,
        &[
            "voices",
            "add",
            "anna",
            &work.arg("a.npy"),
            "--voices",
            &voices,
        ],
    );
    let stored = work.arg("voices/anna.safetensors");
    let base = [
        "tts",
        "Hi",
        "-o",
        &out,
        "--model",
        &model,
        "--seed",
        "1",
        "--max-frames",
        "24",
    ];
    let speak = |more: &[&str]| {
        let mut args = base.to_vec();
        args.extend(more);
        let report = run_json(0, &args);
        (fs::read(&out).unwrap(), report)
    };
    let (from_npy, report) = speak(&["--speaker", &work.arg("a.npy")]);
    assert_eq!(report["voice"], work.arg("a.npy"));
    // The slot, a noisy background and accurate mode, as the original has it for a cloned voice.
    assert_eq!(report["prompt_rows"], 25);
    let (by_name, report) = speak(&["--voice", "anna", "--voices", &voices]);
    assert_eq!(report["voice"], "anna");
    assert_eq!(by_name, from_npy);
    assert_eq!(speak(&["--speaker", &stored]).0, from_npy);
    let (free, report) = speak(&["--voice", "anna", "--voices", &voices, "--expressive"]);
    assert_eq!(report["prompt_rows"], 24);
    assert_ne!(free, from_npy);
    assert_ne!(speak(&[]).0, from_npy);
    assert_eq!(speak(&[]).1["voice"], json!(null));

    // The commands below `tts` take the same voices.
    let ids = work.arg("ids.npy");
    let named = ["--voice", "anna", "--voices", &voices, "--model", &model];
    let with = |args: &[&str]| {
        let mut all = args.to_vec();
        all.extend(named);
        run_json(0, &all)
    };
    let markers = |more: &[&str]| {
        let mut args = vec!["prompt", "Hi", ids.as_str()];
        args.extend(more);
        with(&args);
        let rows = npy::read(work.path("ids.npy")).unwrap().to_i32().unwrap();
        [rows[10 + 9], rows[20 + 9]]
    };
    // Clean, noisy and accurate follow each other in the table of text ids.
    let [clean, accurate] = markers(&["--clean-background"]);
    assert_eq!(accurate, clean + 2);
    assert_eq!(markers(&[]), [clean + 1, accurate]);
    assert_eq!(with(&["prompt", "Hi", &ids])["rows"], 25);
    let codes = work.arg("codes.npy");
    with(&[
        "generate",
        &ids,
        &codes,
        "--seed",
        "1",
        "--max-frames",
        "12",
    ]);
    let generated = fs::read(&codes).unwrap();
    run(
        0,
        &[
            "generate",
            &ids,
            &codes,
            "--seed",
            "1",
            "--max-frames",
            "12",
            "--model",
            &model,
            "--speaker",
            &stored,
        ],
    );
    assert_eq!(fs::read(&codes).unwrap(), generated);
    with(&["validate", &ids, &work.arg("tensors")]);
}

#[test]
fn voices_of_other_models_are_told_both_widths() {
    let work = Work::new();
    let (out, model, voices) = (work.arg("a.wav"), work.model(), work.arg("voices"));
    Voice::new(vec![0.5; 192], Provenance::now())
        .unwrap()
        .save(work.path("narrow.safetensors"))
        .unwrap();
    let narrow = work.arg("narrow.safetensors");
    let npz = fixtures().join("voices/emb.npz").display().to_string();
    run(
        0,
        &["voices", "add", "narrow", &narrow, "--voices", &voices],
    );
    let base = ["tts", "Hi", "-o", &out, "--model", &model];
    for (more, needles) in [
        (
            &["--speaker", narrow.as_str()][..],
            ["narrow", "192", "2048"],
        ),
        (&["--speaker", &npz], ["emb.npz", "of 2048", "found 8"]),
        (
            &["--voice", "narrow", "--voices", &voices],
            ["narrow", "192", "2048"],
        ),
    ] {
        let mut args = base.to_vec();
        args.extend(more);
        work.refuses(1, &needles, &args);
    }
    // A model without a speaker input says that, and not that some width is wrong.
    let params = work.path("model/params.json");
    let text = fs::read_to_string(&params).unwrap();
    let without = text.replace("\"speaker_enabled\": true", "\"speaker_enabled\": false");
    assert_ne!(text, without);
    fs::write(&params, without).unwrap();
    let mut args = base.to_vec();
    args.extend(["--speaker", &narrow]);
    work.refuses(2, &["takes no speaker vector"], &args);
}

#[test]
fn one_voice_at_a_time() {
    let work = Work::new();
    let out = work.arg("a.wav");
    let base = ["tts", "Hi", "-o", &out];
    for (more, needles) in [
        (
            &["--speaker", "a.npy", "--voice", "a"][..],
            &["--speaker", "--voice", "cannot be used"][..],
        ),
        (
            &["--clone", "a.wav", "--voice", "a"],
            &["--clone", "--voice", "cannot be used"],
        ),
        (
            &["--clone", "a.wav", "--speaker", "a.npy"],
            &["--clone", "--speaker", "cannot be used"],
        ),
        (&["--speaker-encoder", "m"], &["--clone"]),
        (&["--save-speaker", "e.npy"], &["--clone"]),
        (
            &["--voice", "a", "--save-speaker", "e.npy"],
            &["--clone", "--save-speaker"],
        ),
        (
            &["--speaker", "a.npy", "--speaker-encoder", "m"],
            &["--clone", "--speaker-encoder"],
        ),
        (
            &["--clone", "a.wav", "--save-speaker", "e.wav"],
            &["e.wav", ".safetensors"],
        ),
        (&["--clone", "b.wav"], &["b.wav", "--speaker-encoder"]),
        (&["--accurate"], &["--speaker", "--voice", "--clone"]),
        (&["--clean-background"], &["--clone"]),
    ] {
        let mut args = base.to_vec();
        args.extend(more);
        work.refuses(2, needles, &args);
    }
    // A recording cannot be added without an encoder, nor a vector with one.
    let (voices, wav) = (work.arg("voices"), work.arg("talk.wav"));
    fs::write(&wav, b"RIFF....WAVEfmt ").unwrap();
    let add = ["voices", "add", "a", &wav, "--voices", &voices];
    work.refuses(2, &["talk.wav", "--speaker-encoder"], &add);
    npy::write_f32(work.path("a.npy"), &[4], &[1.0; 4]).unwrap();
    let emb = work.arg("a.npy");
    let add = [
        "voices",
        "add",
        "a",
        &emb,
        "--speaker-encoder",
        "m",
        "--voices",
        &voices,
    ];
    work.refuses(2, &["a.npy", "already"], &add);
}

/// In every direction a name goes, the same rule and the same answer, whatever lies outside.
#[test]
fn a_name_is_never_a_path() {
    let work = Work::new();
    let (out, voices, emb) = (work.arg("a.wav"), work.arg("voices"), work.arg("a.npy"));
    npy::write_f32(&emb, &[2048], &vector(0.37)).unwrap();
    run(0, &["voices", "add", "anna", &emb, "--voices", &voices]);
    // A voice outside, one step up, and one that is not there.
    fs::copy(
        work.path("voices/anna.safetensors"),
        work.path("outside.safetensors"),
    )
    .unwrap();
    let long = "x".repeat(10_000);
    let absolute = work.arg("outside");
    for name in [
        "../outside",
        "../missing",
        "../../etc/passwd",
        "..\\..\\x",
        "/etc/passwd",
        &absolute,
        "a/../../b",
        "%2e%2e%2foutside",
        "C:\\x",
        "CON",
        "nul.txt",
        "voice\n",
        "anna.",
        ".anna",
        "-anna",
        "é",
        "",
        &long,
    ] {
        let flag = format!("--voice={name}");
        let output = format!("--output={name}");
        for args in [
            &["tts", "Hi", "-o", &out, &flag, "--voices", &voices][..],
            &["voices", "add", "--voices", &voices, "--", name, &emb],
            &["voices", "remove", "--voices", &voices, "--", name],
            &[
                "voices", "blend", "--voices", &voices, "-o", "x", "--", name, "anna",
            ],
            &[
                "voices", "blend", "--voices", &voices, "-o", "x", "--", "anna", name,
            ],
            &[
                "voices", "blend", "--voices", &voices, &output, "anna", "anna",
            ],
        ] {
            let stderr = work.refuses(2, &["voice name"], args);
            assert!(stderr.len() < 700, "{stderr}");
            assert!(!stderr.contains(&long[..100]));
        }
    }
}

/// Existing and missing files outside are one and the same.
#[cfg(unix)]
#[test]
fn links_lead_nowhere() {
    use std::os::unix::fs::symlink;
    let work = Work::new();
    let (out, voices, emb) = (work.arg("a.wav"), work.arg("voices"), work.arg("a.npy"));
    npy::write_f32(&emb, &[2048], &vector(0.37)).unwrap();
    run(0, &["voices", "add", "anna", &emb, "--voices", &voices]);
    let outside = work.path("outside.safetensors");
    fs::copy(work.path("voices/anna.safetensors"), &outside).unwrap();
    symlink(&outside, work.path("voices/linked.safetensors")).unwrap();
    symlink(
        work.path("gone.safetensors"),
        work.path("voices/gone.safetensors"),
    )
    .unwrap();
    fs::create_dir(work.path("voices/folder.safetensors")).unwrap();
    let before = fs::read(&outside).unwrap();
    let answer = |name: &str, args: &[&str]| {
        let mut all = args.to_vec();
        all.extend(["--voices", &voices]);
        work.refuses(1, &[], &all).replace(name, "NAME")
    };
    let model = work.model();
    let speak = ["tts", "Hi", "-o", &out, "--model", &model, "--voice"];
    for (before, after) in [
        (&speak[..], &[][..]),
        (&["voices", "remove"], &[]),
        (&["voices", "blend", "anna"], &["-o", "x"]),
    ] {
        let ask = |name: &str| {
            let mut args = before.to_vec();
            args.push(name);
            args.extend(after);
            answer(name, &args)
        };
        let absent = ask("absent");
        for name in ["linked", "gone", "folder"] {
            assert_eq!(ask(name), absent);
        }
    }
    for name in ["linked", "gone", "folder"] {
        answer(name, &["voices", "add", name, &emb, "--force"]);
    }
    assert_eq!(fs::read(&outside).unwrap(), before);
    assert!(!work.path("gone.safetensors").exists());
}
