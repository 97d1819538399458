//! `zonos voices`: a folder of voices by name.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use zonos_tts::{Provenance, Voice, VoiceFormat, VoiceName};

use crate::args::{DeviceArgs, GlobalArgs, StoreArgs, between, stored, voice_name};
use crate::failure::{Failure, Outcome};
use crate::{cloning, output};

/// Arguments of `zonos voices`.
#[derive(Debug, Args)]
#[command(after_help = "\
A voice is a file NAME.safetensors in the folder: the speaker vector, and where it came from. A name is
ASCII: a letter or digit, then letters, digits, '-', '_' and '.', at most 64 characters.

Examples:
  zonos voices add anna anna.mp3 \\
      --speaker-encoder hub:marksverdhei/Qwen3-Voice-Embedding-12Hz-1.7B
  zonos voices add ben emb.npy
  zonos voices list
  zonos voices blend anna ben --t 0.3 -o between
  zonos tts \"Hello, world.\" -o hello.wav --model zonos2 --voice between")]
pub(crate) struct VoicesArgs {
    #[command(subcommand)]
    command: VoicesCommand,
    #[command(flatten)]
    store: StoreArgs,
}

#[derive(Debug, Subcommand)]
enum VoicesCommand {
    /// Keep the voice of a recording, or a speaker vector, under a name.
    Add(AddArgs),
    /// List the voices and where they came from.
    #[command(after_help = "\
Examples:
  zonos voices list
  zonos voices list --json | jq '.voices[].name'")]
    List,
    /// Remove a voice.
    Remove(RemoveArgs),
    /// Keep a voice between two others under a name.
    Blend(BlendArgs),
}

/// Arguments of `zonos voices add`.
#[derive(Debug, Args)]
#[command(after_help = "\
A recording needs a speaker encoder; a few seconds of one speaker do, and less than 0.3 s, silence or
damaged sound is refused with the reason. A speaker vector is taken as it is: a voice file or other
.safetensors, .npy or .npz, [D], or [N, D] to average.

Examples:
  zonos voices add anna anna.mp3 \\
      --speaker-encoder hub:marksverdhei/Qwen3-Voice-Embedding-12Hz-1.7B
  zonos voices add ben emb.npy --force")]
struct AddArgs {
    /// Name to keep it under.
    name: String,
    /// Recording (WAV, MP3, FLAC, Ogg, M4A, ..) or speaker vector (.safetensors, .npy, .npz), told by
    /// content.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// For a recording: the speaker encoder, a folder, a file or hub:owner/name[@revision] [env:
    /// ZONOS_SPEAKER_ENCODER].
    #[arg(long, value_name = "DIR|FILE|hub:ID")]
    speaker_encoder: Option<String>,
    /// Replace a voice of that name.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    device: DeviceArgs,
}

/// Arguments of `zonos voices remove`.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  zonos voices remove anna")]
struct RemoveArgs {
    /// Name of the voice.
    name: String,
}

/// Arguments of `zonos voices blend`.
#[derive(Debug, Args)]
#[command(after_help = "\
The vectors are turned into each other (spherical interpolation). Two that point the same way are
blended in a straight line; two that point in opposite directions are refused, since no way between
them is shorter than the others.

Example:
  zonos voices blend anna ben --t 0.3 -o between")]
struct BlendArgs {
    /// The voice at 0.
    #[arg(value_name = "A")]
    from: String,
    /// The voice at 1.
    #[arg(value_name = "B")]
    to: String,
    /// Where between the two, from 0 (all A) to 1 (all B).
    #[arg(long, value_name = "T", default_value = "0.5", allow_negative_numbers = true, value_parser = between(0.0, 1.0))]
    t: f64,
    /// Name to keep it under.
    #[arg(long, short, value_name = "NAME")]
    output: String,
    /// Replace a voice of that name.
    #[arg(long)]
    force: bool,
}

/// Runs the command.
pub(crate) fn run(args: &VoicesArgs, global: &GlobalArgs) -> Outcome {
    match &args.command {
        VoicesCommand::Add(add) => self::add(args, add, global),
        VoicesCommand::List => list(args, global),
        VoicesCommand::Remove(remove) => self::remove(args, remove, global),
        VoicesCommand::Blend(blend) => self::blend(args, blend, global),
    }
}

fn add(args: &VoicesArgs, add: &AddArgs, global: &GlobalArgs) -> Outcome {
    let name = voice_name(&add.name)?;
    let store = args.store.open()?;
    // Before any work is done for a name that is taken.
    store.free(&name, add.force).map_err(stored)?;
    let vector = VoiceFormat::of(&add.file)?.is_some();
    let mut warnings = Vec::new();
    let voice = match (vector, &add.speaker_encoder) {
        (true, None) => Voice::import(&add.file)?,
        (true, Some(_)) => {
            return Err(Failure::usage(format!(
                "{}: is a speaker vector already, which needs no encoder; leave --speaker-encoder out",
                add.file.display()
            )));
        }
        (false, given) => {
            let device = add.device.open()?;
            let encoder = cloning::find_encoder(given.as_deref(), None, &add.file)?;
            let kept = store.path(&name);
            let outputs = [("the file of the voice", kept.as_path())];
            let encoder = cloning::open_encoder(&encoder, &outputs, &device, global.quiet)?;
            let (voice, odd) = cloning::clone_file(&encoder, &add.file, false)?;
            warnings = odd;
            voice
        }
    };
    let path = store.add(&name, &voice, add.force).map_err(stored)?;
    say(&name, &path, &voice, &warnings, global)
}

fn blend(args: &VoicesArgs, blend: &BlendArgs, global: &GlobalArgs) -> Outcome {
    let (from, to) = (voice_name(&blend.from)?, voice_name(&blend.to)?);
    let name = voice_name(&blend.output)?;
    let store = args.store.open()?;
    store.free(&name, blend.force).map_err(stored)?;
    let voice = store.blend(&from, &to, blend.t).map_err(stored)?;
    let encoder = |name: &VoiceName| -> Result<Option<String>, Failure> {
        let voice = store.get(name).map_err(stored)?;
        Ok(voice.provenance().model.clone())
    };
    let mut warnings = Vec::new();
    if let (Some(a), Some(b)) = (encoder(&from)?, encoder(&to)?)
        && a != b
    {
        let warning = format!(
            "{from} was made by the encoder {a}, {to} by {b}; a blend of two encoders' vectors means little"
        );
        output::note(false, format_args!("warning: {warning}"));
        warnings.push(warning);
    }
    let path = store.add(&name, &voice, blend.force).map_err(stored)?;
    say(&name, &path, &voice, &warnings, global)
}

/// Tells what was kept.
fn say(
    name: &VoiceName,
    path: &Path,
    voice: &Voice,
    warnings: &[String],
    global: &GlobalArgs,
) -> Outcome {
    if global.json {
        let mut value = described(name, path, Ok(voice));
        value["warnings"] = json!(warnings);
        output::print_json(&value)?;
    } else {
        output::note(
            global.quiet,
            format_args!("{name}: {} numbers, {}", voice.dim(), path.display()),
        );
    }
    Ok(ExitCode::SUCCESS)
}

fn remove(args: &VoicesArgs, remove: &RemoveArgs, global: &GlobalArgs) -> Outcome {
    let name = voice_name(&remove.name)?;
    let path = args.store.open()?.remove(&name).map_err(stored)?;
    if global.json {
        output::print_json(&json!({
            "name": name.as_str(),
            "removed": path.display().to_string(),
        }))?;
    } else {
        output::note(global.quiet, format_args!("removed {}", path.display()));
    }
    Ok(ExitCode::SUCCESS)
}

fn list(args: &VoicesArgs, global: &GlobalArgs) -> Outcome {
    let store = args.store.open()?;
    let voices = store.list().map_err(stored)?;
    let folder = store.folder().display();
    if global.json {
        let voices: Vec<Value> = voices
            .iter()
            .map(|found| {
                let voice = found.voice.as_ref().map_err(ToString::to_string);
                described(&found.name, &found.path, voice)
            })
            .collect();
        output::print_json(&json!({ "folder": folder.to_string(), "voices": voices }))?;
        return Ok(ExitCode::SUCCESS);
    }
    if voices.is_empty() {
        output::note(
            global.quiet,
            format_args!("no voices in {folder}; `zonos voices add NAME FILE` keeps one"),
        );
    }
    let width = voices.iter().map(|v| v.name.as_str().len()).max();
    let width = width.unwrap_or(0);
    for found in &voices {
        let what = match &found.voice {
            Ok(voice) => line(voice),
            Err(error) => format!("cannot be read: {error}"),
        };
        // A name from a file must not begin a line of its own.
        output::print(output::visible(&format!("{:width$}  {what}", found.name)))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// One line about a voice.
fn line(voice: &Voice) -> String {
    let Provenance {
        model,
        source,
        date,
        seconds,
        ..
    } = voice.provenance();
    let mut line = format!("{} numbers", voice.dim());
    if let Some(source) = source {
        line += &format!(", {source}");
    }
    if let Some(seconds) = seconds {
        line += &format!(" ({seconds:.1} s)");
    }
    if let Some(model) = model {
        line += &format!(", by {model}");
    }
    if let Some(date) = date {
        line += &format!(", {date}");
    }
    line
}

fn described(name: &VoiceName, path: &Path, voice: Result<&Voice, String>) -> Value {
    let mut value = json!({
        "name": name.as_str(),
        "file": path.display().to_string(),
    });
    match voice {
        Ok(voice) => {
            let from = voice.provenance();
            value["dimension"] = voice.dim().into();
            value["model"] = json!(from.model);
            value["source"] = json!(from.source);
            value["source_sha256"] = json!(from.source_sha256);
            value["date"] = json!(from.date);
            value["library"] = json!(from.library);
            value["seconds"] = json!(from.seconds);
        }
        Err(problem) => value["problem"] = problem.into(),
    }
    value
}
