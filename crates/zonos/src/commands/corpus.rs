//! `zonos corpus`: sequences to measure models on, as a model speaks them.

mod traces;
mod voices;

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Context;
use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use serde_json::{Value, json};
use zonos_audio::npy;
use zonos_gguf::manifest::{ManifestEntry, render_toml};
use zonos_tts::{Voice, end_name};
use zonos2::{GenerateOptions, Generation, Sequence, Zonos2, Zonos2Config};

use crate::args::{DeviceArgs, GlobalArgs, takes_voices, whole};
use crate::commands::tts::refused;
use crate::failure::{Failure, Outcome};
use crate::interrupt::{self, Stepping};
use crate::output::Staging;
use crate::progress::{DAC_FRAME_SECONDS, FrameBar, Rate};
use crate::reading::{cannot_read, text_file};
use crate::{output, rows, weights};

use traces::{Trace, plan};
use voices::Maker;

/// Traces that are generated together: the weights are read once for all of them.
const BATCH: usize = 8;

/// A file of texts beyond this is something else.
const MOST_TEXT: u64 = 1 << 20;

/// Arguments of `zonos corpus`.
#[derive(Debug, Args)]
#[command(after_help = "\
The model speaks fixed texts, and each trace, prompt rows and the rows it generated, becomes
DIR/trace-NNN.npy, <f4 of shape [rows, 10]; DIR/manifest.toml lists them with their voices for
`zonos perplexity` and `zonos imatrix`. Eight traces have no voice: two texts each with default
conditioning, speaking rate 1, speaking rate 6, and the first quality feature in bucket 0, as far as the
model has these. There are four more a voice: default, expressive, noisy background, and speaking rate 6.
Seeds are 1000 and up, 2000 and up with a voice, plus --seed.

The four voices are the model's own: it speaks 200 frames without a voice, also past the end of the
text, seeds 7, 17, 27 and 37 plus --seed; the codec decodes them, and the speaker encoder makes vectors
of what it hears. Codec and encoder are looked for in the model's folder as by `zonos tts`; without them
there are no traces with voices, and stderr says so. With --voices the vectors of a folder speak
instead. All are copied to DIR/voice-NN.npy.

A trace ends where the model ends the speech, or after --frames. Use the unquantised model; the same
seed, build and device make the same corpus.

Examples:
  zonos corpus zonos2-f16.gguf -o corpus
      with dac.gguf and spk-encoder.gguf beside the model: 24 traces
  zonos corpus zonos2-f16.gguf -o corpus --voices ~/.local/share/zonos/voices --frames 200
  zonos perplexity zonos2-f16.gguf --manifest corpus/manifest.toml --save-base ref.kld")]
pub(crate) struct CorpusArgs {
    /// ZONOS2 checkpoint: a folder, a file (.gguf, .pth, .safetensors, .bpk) or hub:owner/name[@revision].
    #[arg(value_name = "MODEL", value_parser = NonEmptyStringValueParser::new())]
    model: String,
    /// Folder to write into; created when it does not exist.
    #[arg(long, short, value_name = "DIR")]
    output: PathBuf,
    /// Folder of voices, all of which speak: .safetensors, .npy or .npz, as for --speaker of `zonos tts`.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["codec", "speaker_encoder"])]
    voices: Option<PathBuf>,
    /// DAC 44.1 kHz checkpoint, for voices of the model's own [env: ZONOS_CODEC] [default: looked for in
    /// the model's folder].
    #[arg(long, value_name = "DIR|FILE|hub:ID")]
    codec: Option<String>,
    /// Speaker encoder, likewise [env: ZONOS_SPEAKER_ENCODER] [default: looked for in the model's folder].
    #[arg(long, value_name = "DIR|FILE|hub:ID")]
    speaker_encoder: Option<String>,
    /// Texts to speak instead of our own eight: UTF-8, one a line.
    #[arg(long, value_name = "FILE")]
    texts: Option<PathBuf>,
    /// Most frames a trace (86.13 are a second).
    #[arg(long, value_name = "N", default_value = "300", allow_negative_numbers = true, value_parser = whole::<u32>(1, u32::MAX))]
    frames: u32,
    /// Added to the seed of every trace; another number makes another corpus.
    #[arg(long, value_name = "N", default_value = "0", allow_negative_numbers = true, value_parser = whole::<u64>(0, u64::MAX))]
    seed: u64,
    /// Write into a folder that holds something already; files of the same names are replaced.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    device: DeviceArgs,
}

/// Runs the command.
pub(crate) fn run(args: &CorpusArgs, global: &GlobalArgs) -> Outcome {
    let device = args.device.open()?;
    output::check_folder_or_parent(&args.output)?;
    if !args.force && holds_something(&args.output)? {
        return Err(Failure::usage(format!(
            "{}: not empty; give another folder, or write into this one with --force",
            args.output.display()
        )));
    }
    let texts = args.texts.as_deref().map(read_texts).transpose()?;
    let (checkpoint, config) = weights::open_backbone(&args.model, global.quiet)?;
    output::spares(&checkpoint, &args.model, &[("--output", &args.output)])?;
    let texts = texts.as_deref();
    // A text that makes no prompt is found before any weights are read.
    plan(&config, texts, &[], args.seed)?;
    let (voices, maker) = match &args.voices {
        Some(folder) => (read_voices(folder, &config)?, None),
        None => (
            Vec::new(),
            Maker::find(args, &config, &device, global.quiet)?,
        ),
    };
    let warning = weights::warn_quantised(&checkpoint, "the traces");
    let model = weights::load_backbone(&checkpoint, config, &device)?;

    let _stepping = Stepping::begin();
    let began = Instant::now();
    let (model, voices) = match maker {
        Some(maker) => maker.make(model, args, texts, global.quiet)?,
        None => (model, voices),
    };
    let config = model.config();
    let traces = plan(config, texts, &voices, args.seed)?;
    let mut sequences = Vec::with_capacity(traces.len());
    for trace in &traces {
        let prompt = trace.request.prompt(config).map_err(refused)?;
        let vector = trace.request.voice.as_ref().map(|v| v.vector.clone());
        sequences.push(Sequence::from_prompt(&prompt, vector)?);
    }
    let seeds: Vec<u64> = traces.iter().map(|trace| trace.seed).collect();
    let options = GenerateOptions {
        max_frames: Some(args.frames as usize),
        ..GenerateOptions::default()
    };
    let spoken = speak(
        &model,
        &sequences,
        &seeds,
        &options,
        "speaking",
        global.quiet,
    )
    .map_err(|failure| weights::of_model(failure, &args.model))?;
    let sequences: Vec<Sequence> = sequences
        .into_iter()
        .zip(&spoken)
        .map(|(prompt, generation)| prompt.followed_by(generation.frames.values(), config))
        .collect();
    let frames: usize = spoken.iter().map(|g| g.frames.frames()).sum();
    let silent = spoken.iter().filter(|g| g.frames.frames() == 0).count();
    let staging = Staging::begin(&args.output)?;
    write(
        staging.path(),
        &model,
        &traces,
        &sequences,
        &voices,
        args.seed,
    )
    .map_err(|error| output::of_target(error, staging.path(), &args.output))?;
    interrupt::check()?;
    staging.commit()?;

    let elapsed = began.elapsed();
    if silent > 0 {
        output::note(
            false,
            format_args!(
                "warning: {silent} traces are their prompt alone: the model ended the speech before its first frame"
            ),
        );
    }
    if global.json {
        let width = model.config().row_width();
        let listed: Vec<Value> = traces
            .iter()
            .zip(&spoken)
            .zip(&sequences)
            .enumerate()
            .map(|(i, ((trace, generation), sequence))| {
                json!({
                    "ids": trace_file(i),
                    "setting": trace.setting,
                    "voice": trace.voice.map(|v| voices[v].name.clone()),
                    "seed": trace.seed,
                    "rows": sequence.len(width),
                    "frames": generation.frames.frames(),
                    "ended_by": end_name(generation.end),
                    "text": trace.request.text,
                })
            })
            .collect();
        output::print_json(&json!({
            "output": args.output.display().to_string(),
            "manifest": args.output.join(MANIFEST).display().to_string(),
            "model": args.model,
            "device": args.device.device,
            "voices": voices.len(),
            "traces": listed,
            "frames": frames,
            "frames_per_s": Rate::of(frames as u64, elapsed, DAC_FRAME_SECONDS).frames_per_s,
            "seconds": elapsed.as_secs_f64(),
            "warnings": warning.as_slice(),
        }))?;
    } else {
        output::note(
            global.quiet,
            format_args!(
                "{}: {} traces, {frames} frames in all, in {:.1} s",
                args.output.join(MANIFEST).display(),
                traces.len(),
                elapsed.as_secs_f64()
            ),
        );
    }
    Ok(ExitCode::SUCCESS)
}

const MANIFEST: &str = "manifest.toml";

fn trace_file(i: usize) -> String {
    format!("trace-{i:03}.npy")
}

fn voice_file(i: usize) -> String {
    format!("voice-{i:02}.npy")
}

fn holds_something(folder: &Path) -> Result<bool, Failure> {
    if !folder.exists() {
        return Ok(false);
    }
    let mut entries = fs::read_dir(folder).map_err(|error| cannot_read(folder, &error))?;
    Ok(entries.next().is_some())
}

/// The lines of a file that hold something.
fn read_texts(path: &Path) -> Result<Vec<String>, Failure> {
    let text = text_file(path, MOST_TEXT, "list of texts")?;
    let lines = text.trim_start_matches('\u{feff}').lines();
    let texts: Vec<String> = lines
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .map(str::to_owned)
        .collect();
    if texts.is_empty() {
        return Err(Failure::failed(format!(
            "{}: holds no text, one a line",
            path.display()
        )));
    }
    Ok(texts)
}

/// A voice and what it is called.
struct Named {
    name: String,
    voice: Voice,
}

/// All voices of a folder, by name.
fn read_voices(folder: &Path, config: &Zonos2Config) -> Result<Vec<Named>, Failure> {
    takes_voices(config)?;
    let name = folder.display();
    let failed = |error| cannot_read(folder, &error);
    if folder.is_file() {
        return Err(Failure::failed(format!(
            "{name}: a file; --voices takes the folder that holds the voices"
        )));
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let ending = path.extension().and_then(OsStr::to_str).unwrap_or("");
        let known = ["safetensors", "npy", "npz"];
        if known.iter().any(|known| ending.eq_ignore_ascii_case(known)) {
            files.push(path);
        }
    }
    files.sort();
    if files.is_empty() {
        return Err(Failure::failed(format!(
            "{name}: holds no voice (.safetensors, .npy, .npz)"
        )));
    }
    let read = |path: PathBuf| {
        let voice = Voice::load(&path)?;
        voice.check(&path.display().to_string(), config.speaker_embedding_dim)?;
        let stem = path.file_stem().unwrap_or_default();
        Ok(Named {
            name: stem.to_string_lossy().into_owned(),
            voice,
        })
    };
    files.into_iter().map(read).collect()
}

/// Lets the model go on from each of the prompts, some at a time.
fn speak(
    model: &Zonos2,
    prompts: &[Sequence],
    seeds: &[u64],
    options: &GenerateOptions,
    doing: &'static str,
    quiet: bool,
) -> Result<Vec<Generation>, Failure> {
    let most = options.max_frames.unwrap_or(0) as u64 * prompts.len() as u64;
    let bar = FrameBar::new(quiet, doing, most, DAC_FRAME_SECONDS);
    let mut made = 0;
    let mut spoken = Vec::with_capacity(prompts.len());
    for (prompts, seeds) in prompts.chunks(BATCH).zip(seeds.chunks(BATCH)) {
        let options: Vec<GenerateOptions> = seeds
            .iter()
            .map(|&seed| GenerateOptions {
                seed,
                ..options.clone()
            })
            .collect();
        let done = model.generate(prompts, &options, &mut |_| {
            made += 1;
            bar.at(made);
            interrupt::go_on()
        })?;
        interrupt::check()?;
        spoken.extend(done);
    }
    bar.done();
    Ok(spoken)
}

fn write(
    folder: &Path,
    model: &Zonos2,
    traces: &[Trace],
    sequences: &[Sequence],
    voices: &[Named],
    seed: u64,
) -> anyhow::Result<()> {
    for (i, voice) in voices.iter().enumerate() {
        let vector = voice.voice.vector();
        npy::write_f32(folder.join(voice_file(i)), &[vector.len()], vector)?;
    }
    let (mut entries, mut comments) = (Vec::new(), Vec::new());
    for (i, (trace, sequence)) in traces.iter().zip(sequences).enumerate() {
        rows::stage_rows(&folder.join(trace_file(i)), &sequence.rows, model.config())?.commit()?;
        entries.push(ManifestEntry {
            ids: trace_file(i).into(),
            speaker: trace.voice.map(|v| voice_file(v).into()),
            position: sequence.speaker.as_ref().map_or(0, |(_, row)| *row as u32),
        });
        let voice = trace
            .voice
            .map_or_else(String::new, |v| format!("{}, ", voices[v].name));
        comments.push(format!(
            "{voice}{}, seed {}: {}",
            trace.setting, trace.seed, trace.request.text
        ));
    }
    let head = format!("# Made by zonos corpus --seed {seed}.\n\n");
    let text = head + &render_toml(&entries, &comments);
    let path = folder.join(MANIFEST);
    fs::write(&path, text).with_context(|| format!("{}: cannot write", path.display()))?;
    Ok(())
}
