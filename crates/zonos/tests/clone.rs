//! Speaking in the voice of a recording, on tiny models.

mod common;

use std::fs;

use common::{Work, fixtures, run, run_json};
use zonos_tts::Voice;

fn fixture(name: &str) -> String {
    fixtures()
        .join("ecapa/tiny")
        .join(name)
        .display()
        .to_string()
}

#[test]
fn a_recording_speaks_as_its_saved_vector_does() {
    let work = Work::new();
    common::wide_encoder(&work.path("ecapa"));
    let (out, model, encoder) = (work.arg("a.wav"), work.model(), work.arg("ecapa"));
    let (talk, saved, voices) = (
        fixture("speech16k.wav"),
        work.arg("emb.npy"),
        work.arg("voices"),
    );
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
    let cloned = [
        "--clone",
        &talk,
        "--speaker-encoder",
        &encoder,
        "--save-speaker",
        &saved,
    ];
    let (audio, report) = speak(&cloned);
    assert_eq!(report["voice"], talk);
    assert_eq!(report["save_speaker"], saved);
    // A cloned voice has its slot, a noisy background and accurate mode.
    assert_eq!(report["prompt_rows"], 25);
    assert_eq!(Voice::load(&saved).unwrap().dim(), 2048);
    assert_eq!(speak(&["--speaker", &saved]).0, audio);
    assert_ne!(speak(&[]).0, audio);
    let (clean, _) = speak(&[
        "--clone",
        &talk,
        "--speaker-encoder",
        &encoder,
        "--clean-background",
    ]);
    assert_ne!(clean, audio);

    let added = run_json(
        0,
        &[
            "voices",
            "add",
            "anna",
            &talk,
            "--speaker-encoder",
            &encoder,
            "--voices",
            &voices,
        ],
    );
    assert_eq!(added["source"], "speech16k.wav");
    assert_eq!(added["model"], "ecapa");
    assert!(added["seconds"].as_f64().unwrap() > 0.3);
    assert_eq!(speak(&["--voice", "anna", "--voices", &voices]).0, audio);

    // The encoder may lie in the model's folder, where nobody needs to name it.
    fs::rename(work.path("ecapa"), work.path("model/speaker-encoder")).unwrap();
    assert_eq!(speak(&["--clone", &talk]).0, audio);
}

/// The encoder's own files are as safe as the other models'.
#[test]
fn the_encoder_is_not_overwritten() {
    let work = Work::new();
    common::wide_encoder(&work.path("ecapa"));
    fs::copy(
        work.path("ecapa/model.safetensors"),
        work.path("ecapa/old.pth"),
    )
    .unwrap();
    let (out, model, encoder) = (work.arg("a.wav"), work.model(), work.arg("ecapa"));
    let (talk, weights) = (
        fixture("speech16k.wav"),
        work.arg("ecapa/model.safetensors"),
    );
    let before = fs::read(&weights).unwrap();
    let base = [
        "tts",
        "Hi",
        "-o",
        &out,
        "--model",
        &model,
        "--clone",
        &talk,
        "--speaker-encoder",
    ];
    for (encoder, flag, target) in [
        (&encoder, "--save-speaker", &weights),
        (&weights, "--save-speaker", &weights),
        (&encoder, "--codes", &weights),
        (&encoder, "--codes", &work.arg("ecapa/config.json")),
        (&encoder, "--codes", &work.arg("ecapa/old.pth")),
    ] {
        let mut args = base.to_vec();
        args.extend([encoder.as_str(), flag, target.as_str()]);
        work.refuses(2, &[flag, "same file"], &args);
    }
    let mut sound = base.to_vec();
    sound[3] = &weights;
    sound.push(&encoder);
    work.refuses(2, &["model.safetensors"], &sound);
    // A voice of that name in that folder would be the encoder.
    for encoder in [&encoder, &weights] {
        let add = [
            "voices",
            "add",
            "model",
            &talk,
            "--speaker-encoder",
            encoder,
            "--voices",
            &work.arg("ecapa"),
            "--force",
        ];
        work.refuses(2, &["same file", "model.safetensors"], &add);
    }
    assert_eq!(fs::read(&weights).unwrap(), before);
    // Voices may lie there, and be replaced: they are no weights.
    let voices = work.arg("ecapa");
    let add = [
        "voices",
        "add",
        "anna",
        &talk,
        "--speaker-encoder",
        &encoder,
        "--voices",
        &voices,
        "--force",
    ];
    fs::remove_file(work.path("ecapa/old.pth")).unwrap();
    run(0, &add);
    run(0, &add);
    let mut again = add.to_vec();
    again[5] = &weights;
    run(0, &again);
}

/// What was odd about a recording is said with --quiet too, and stands in a report that is alone.
#[test]
fn warnings_about_a_recording_are_never_lost() {
    let work = Work::new();
    common::wide_encoder(&work.path("ecapa"));
    let (model, encoder) = (work.model(), work.arg("ecapa"));
    let (odd, out, voices) = (work.arg("odd.wav"), work.arg("a.wav"), work.arg("voices"));
    let whole = fs::read(fixture("speech16k.wav")).unwrap();
    fs::write(&odd, &whole[..whole.len() - 1000]).unwrap();
    let clone = |output: &str, more: &[&str]| {
        let mut args = vec![
            "tts", "Hi", "-o", output, "--model", &model, "--clone", &odd,
        ];
        args.extend([
            "--speaker-encoder",
            &encoder,
            "--max-frames",
            "12",
            "--seed",
            "1",
        ]);
        args.extend(more);
        let output = run(0, &args);
        String::from_utf8(output.stderr).unwrap()
    };
    let text = clone(&out, &["-q"]);
    assert!(
        text.contains("warning: ") && text.contains("odd.wav: the file is cut short"),
        "{text}"
    );
    assert_eq!(text.lines().count(), 1, "{text}");
    let report: serde_json::Value = serde_json::from_str(&clone("-", &["--json"])).unwrap();
    let warning = report["warnings"][0].as_str().unwrap();
    assert!(warning.contains("cut short"), "{warning}");
    let add = ["voices", "add", "odd", &odd, "--voices", &voices, "-q"];
    let mut add = add.to_vec();
    add.extend(["--speaker-encoder", &encoder]);
    let text = String::from_utf8(run(0, &add).stderr).unwrap();
    assert!(text.contains("cut short"), "{text}");
}

#[test]
fn an_encoder_that_is_missing_is_looked_for_by_name() {
    let work = Work::new();
    let (out, model, talk) = (work.arg("a.wav"), work.model(), fixture("speech16k.wav"));
    let tts = ["tts", "Hi", "-o", &out, "--model", &model, "--clone", &talk];
    let names = [
        "speaker-encoder.safetensors",
        "hub:",
        "ZONOS_SPEAKER_ENCODER",
    ];
    work.refuses(2, &names, &tts);
    let help = String::from_utf8(run(0, &["tts", "--help"]).stdout).unwrap();
    assert!(help.contains("speaker-encoder.safetensors"), "{help}");
}

#[test]
fn recordings_and_encoders_that_do_not_do() {
    let work = Work::new();
    common::wide_encoder(&work.path("ecapa"));
    let (out, model, encoder) = (work.arg("a.wav"), work.model(), work.arg("ecapa"));
    let (talk, narrow, voices) = (
        fixture("speech16k.wav"),
        fixture("hf-f32"),
        work.arg("voices"),
    );
    let tts = |recording: &str, encoder: &str, code, needles: &[&str]| {
        work.refuses(
            code,
            needles,
            &[
                "tts",
                "Hi",
                "-o",
                &out,
                "--model",
                &model,
                "--clone",
                recording,
                "--speaker-encoder",
                encoder,
                "--save-speaker",
                &work.arg("emb.npy"),
            ],
        );
    };
    let add = |recording: &str, code, needles: &[&str]| {
        work.refuses(
            code,
            needles,
            &[
                "voices",
                "add",
                "x",
                recording,
                "--speaker-encoder",
                &encoder,
                "--voices",
                &voices,
            ],
        );
    };
    tts(&talk, &narrow, 1, &["hf-f32", "64 numbers", "2048"]);
    tts(&talk, &work.codec(), 1, &["weights.pth", "another model"]);
    tts(&talk, &work.arg("gone"), 1, &["gone"]);
    let silence = fixture("silence24k.wav");
    fs::write(work.path("text.wav"), "Dear diary").unwrap();
    fs::write(work.path("empty.wav"), "").unwrap();
    let (text, empty, gone) = (
        work.arg("text.wav"),
        work.arg("empty.wav"),
        work.arg("gone.wav"),
    );
    for (recording, needles) in [
        (silence.as_str(), &["silence24k.wav", "silen"][..]),
        (&text, &["text.wav", "not an audio file"]),
        (&empty, &["empty.wav"]),
        (&gone, &["gone.wav"]),
        (&model, &["regular"]),
    ] {
        tts(recording, &encoder, 1, needles);
        add(recording, 1, needles);
    }
    // No input is overwritten.
    let copy = work.arg("talk.wav");
    fs::copy(&talk, &copy).unwrap();
    work.refuses(
        2,
        &["same file"],
        &[
            "tts",
            "Hi",
            "-o",
            &copy,
            "--model",
            &model,
            "--clone",
            &copy,
            "--speaker-encoder",
            &encoder,
        ],
    );
    run(0, &["inspect", &encoder]);
}
