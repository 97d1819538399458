//! `zonos tts`: a text, spoken.

use std::ffi::OsString;
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::{Value, json};
use zonos_audio::encode::AudioFormat;
use zonos_audio::{AtomicFile, WavError, WavStream};
use zonos_checkpoint::Checkpoint;
use zonos_kernels::Activations;
use zonos_tts::demo::DemoCheckpoint;
use zonos_tts::{EndReason, Plan, Speaker, Speech, Tts, TtsBuilder, TtsError, Voice};
use zonos2::Zonos2Config;

use crate::args::{
    ActivationArgs, CloneArgs, CodecDeviceArgs, ConditioningArgs, DeviceArgs, GlobalArgs,
    LimitArgs, SamplingArgs, VoiceArgs, VoiceFile, fade_ms, read_text, request, takes_voices,
};
use crate::cloning;
use crate::failure::{CUT_SHORT, Failure, Outcome, stdout_failure};
use crate::interrupt::{self, Stepping};
use crate::output::{self, Target};
use crate::progress::{FrameBar, Rate};
use crate::weights::{self, Source};
use crate::{isa, rows};

/// Arguments of `zonos tts`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  zonos tts \"Hello, world.\" -o hello.wav
      the built-in demo model: noise, but the whole way
  zonos tts \"Hello, world.\" -o hello.wav --model hub:Zyphra/ZONOS2 --codec hub:descript/dac_44khz
  zonos tts - -o talk.wav --model zonos2 --voice anna --clean-background < talk.txt
  zonos tts \"Hello.\" -o hello.wav --model zonos2 --clone anna.mp3 \\
      --speaker-encoder hub:marksverdhei/Qwen3-Voice-Embedding-12Hz-1.7B
      the voice of a recording; --save-speaker or `zonos voices add` keeps it
  zonos tts \"Live.\" -o - --model zonos2 | aplay
      WAV on stdout while it is generated; the header gives no length
  zonos tts \"Again.\" -o a.wav --seed 7 --json
      the same seed, build and device give the same file

Without --codec, the codec is taken from the model's folder: codec/, dac/, dac.gguf, dac.safetensors,
dac.pth, dac.bpk, weights_44khz_8kbps.pth or weights_44khz_8kbps_0.0.1.pth. A folder given as --codec
may also be a model's that holds one of these. Without both, the demo model runs.

The text is spoken as it is: numbers and abbreviations are not written out. A text without letters
and digits (\"...\", an emoji) is spoken too, within the length bound; one of white space, control
and invisible characters alone is refused.

When the model does not end the speech, the length bound or the loop breaker does: the file is kept,
stderr and \"ended_by\" in --json say so, and the exit code is 3; so it is when the model's context is
full. --max-frames is the caller's own choice: a speech that it ends exits with 0.")]
pub(crate) struct TtsArgs {
    /// The text to speak; - reads it from stdin.
    text: OsString,
    /// File to write, mono; its ending chooses the format: .wav or none (16-bit WAV), .flac, .opus or .ogg
    /// (Opus), .mp3 (builds with --features mp3), .f32, .s16 or .raw. - streams WAV to stdout.
    #[arg(long, short, value_name = "OUT.wav|-")]
    output: PathBuf,
    /// Also write the codec's codes as .npy, [frames, 9] <i4.
    #[arg(long, value_name = "CODES.npy")]
    codes: Option<PathBuf>,
    /// Also write the prompt rows and the rows generated, [rows, 10] <f4, for `zonos perplexity`.
    #[arg(long, value_name = "IDS.npy")]
    dump_ids: Option<PathBuf>,
    /// ZONOS2 checkpoint: a folder, a file (.gguf, .pth, .safetensors, .bpk) or hub:owner/name[@revision]
    /// [default: the built-in demo model].
    #[arg(
        long,
        value_name = "DIR|FILE|hub:ID",
        env = "ZONOS_MODEL",
        help_heading = "Weights"
    )]
    model: Option<String>,
    /// DAC 44.1 kHz checkpoint, in the same forms [default: looked for in the model's folder].
    #[arg(
        long,
        value_name = "DIR|FILE|hub:ID",
        env = "ZONOS_CODEC",
        help_heading = "Weights"
    )]
    codec: Option<String>,
    #[command(flatten)]
    voice: VoiceArgs,
    #[command(flatten)]
    clone: CloneArgs,
    #[command(flatten)]
    conditioning: ConditioningArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    limits: LimitArgs,
    #[command(flatten)]
    activations: ActivationArgs,
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    codec_device: CodecDeviceArgs,
    /// Fade the last MS milliseconds out.
    #[arg(long, value_name = "MS", default_value = "0", allow_negative_numbers = true, value_parser = fade_ms(), help_heading = "Output")]
    fade_out_ms: f64,
}

impl TtsArgs {
    /// Whether stderr carries the report and nothing else: stdout carries the audio.
    pub(crate) fn reports_on_stderr(&self, global: &GlobalArgs) -> bool {
        global.json && self.output == Path::new("-")
    }
}

/// Runs the command.
pub(crate) fn run(args: &TtsArgs, global: &GlobalArgs) -> Outcome {
    let began = Instant::now();
    // Everything that needs no weights is checked first, the cheapest first.
    let source = Source::find(args.model.as_deref(), args.codec.as_deref())?;
    let (device, codec_device) = (args.device.open()?, args.codec_device.open(&args.device)?);
    let mut outputs = Vec::new();
    if args.output != Path::new("-") {
        outputs.push(("--output", args.output.as_path()));
    }
    outputs.extend(args.codes.as_deref().map(|codes| ("--codes", codes)));
    outputs.extend(args.dump_ids.as_deref().map(|ids| ("--dump-ids", ids)));
    let saved = args.clone.save_speaker.as_deref();
    outputs.extend(saved.map(|path| ("--save-speaker", path)));
    let mut files = outputs.clone();
    args.clone.check()?;
    let voice = args.voice.resolve()?;
    files.extend(voice.as_ref().map(VoiceFile::input));
    files.extend(args.clone.clone.as_deref().map(|path| ("--clone", path)));
    output::distinct(&files)?;
    for path in [&args.codes, &args.dump_ids].into_iter().flatten() {
        output::check_file(path)?;
    }
    if let Some(path) = &args.clone.save_speaker {
        Voice::check_ending(path).map_err(|error| Failure::usage(error.to_string()))?;
        output::check_file(path)?;
    }
    let target = Target::open(&args.output)?;
    let format = match &target {
        Target::Stdout => AudioFormat::WavPcm16,
        Target::File(path) if path.extension().is_none() => AudioFormat::WavPcm16,
        Target::File(path) => output::sound_only(path)?,
    };
    let reported = args.reports_on_stderr(global);
    let quiet = global.quiet || reported;
    let mut request = request(&args.conditioning, &args.sampling, &args.limits);
    request.text = read_text(&args.text)?;
    request.fade_out_ms = args.fade_out_ms;
    request.check().map_err(refused)?;

    // Held until the end: the demo's weights may be mapped from it.
    let demo = match source {
        Source::Demo => Some(DemoCheckpoint::create()?),
        Source::Given { .. } => None,
    };
    let (model, codec) = match (&source, &demo) {
        (Source::Given { model, codec }, _) => (model.clone(), codec.clone()),
        (Source::Demo, Some(files)) => (path(files.model()), path(files.codec())),
        (Source::Demo, None) => return Err(Failure::failed("the demo model was not written")),
    };
    if demo.is_some() {
        output::note(
            quiet,
            "note: no weights given, so the built-in demo model speaks: random weights, noise. \
             For a voice give --model (ZONOS2) and --codec (DAC 44.1 kHz).",
        );
    }
    // The parameter file alone tells whether the request fits; weights come after.
    let reference = model;
    let (model, config) = weights::open_backbone(&reference, quiet)?;
    output::spares(&model, &reference, &outputs)?;
    let codec_reference = codec;
    let codec = weights::find_codec(&codec_reference, quiet)?;
    output::spares(&codec, &codec_reference, &outputs)?;
    request.voice = voice.map(|voice| voice.load(&config)).transpose()?;
    let cloned = match &args.clone.clone {
        Some(recording) => {
            let wanted = Wanted {
                model: &reference,
                config: &config,
                outputs: &outputs,
            };
            Some(clone_voice(args, recording, &wanted, quiet, reported)?)
        }
        None => None,
    };
    if let Some((voice, _)) = &cloned {
        request.voice = Some(Speaker {
            position: args.voice.speaker_pos as usize,
            ..voice.speaker()
        });
    }
    let plan = request.plan(&config).map_err(refused)?;
    let mut builder = TtsBuilder::new(&device).codec_device(&codec_device);
    if args.activations.exact {
        builder = builder.activations(Activations::Exact);
    }
    let (tts, reports) = builder.open(&model, &codec)?;
    for report in &reports {
        weights::warn(report, reported);
    }
    let loaded = began.elapsed();

    let stepping = Stepping::begin();
    let speech = speak(&tts, &plan, &target, &codec, quiet).map_err(|failure| {
        // Audio alone may be cut by its reader; what else was asked for must not go missing unsaid.
        match (failure, &args.codes) {
            (Failure::ReaderLeft, Some(codes)) => Failure::failed(format!(
                "the reader of stdout left before the end; {} was not written",
                codes.display()
            )),
            (Failure::ReaderLeft, None) if global.json => Failure::failed(
                "the reader of stdout left before the end, so there is nothing to report",
            ),
            (failure, _) => failure,
        }
    })?;
    interrupt::check()?;
    weights::check_audio(speech.waveform.samples(), &codec)?;
    let mut written = Vec::new();
    if let Target::File(path) = &target {
        written.push(speech.waveform.stage_as(path, format)?);
    }
    if let Some(path) = &args.codes {
        written.push(speech.codes.stage_npy(path)?);
    }
    if let Some(path) = &args.dump_ids {
        written.push(rows::stage_rows(path, &speech.ids, &config)?);
    }
    if let (Some((voice, _)), Some(path)) = (&cloned, saved) {
        written.push(voice.stage(path)?);
    }
    interrupt::check()?;
    AtomicFile::commit_all(written)?;
    drop(stepping);

    let mut warnings = cloned.map(|(_, warnings)| warnings).unwrap_or_default();
    warnings.extend(isa::warning());
    let run = Run {
        tts: &tts,
        plan: &plan,
        speech: &speech,
        target: &target,
        loaded,
        warnings: &warnings,
    };
    report(args, global, &run)?;
    Ok(if speech.was_cut_short() {
        ExitCode::from(CUT_SHORT)
    } else {
        ExitCode::SUCCESS
    })
}

/// What a voice is cloned for.
struct Wanted<'a> {
    /// The backbone, as it was named.
    model: &'a str,
    config: &'a Zonos2Config,
    /// Files that will be written.
    outputs: &'a [(&'a str, &'a Path)],
}

/// The voice of `--clone`, made before the backbone's weights are read, and warnings about the file.
/// Refused are, in this order, a model that takes no voice, an encoder that an output would overwrite,
/// one of another width, and a recording that makes none.
fn clone_voice(
    args: &TtsArgs,
    recording: &Path,
    wanted: &Wanted<'_>,
    quiet: bool,
    reported: bool,
) -> Result<(Voice, Vec<String>), Failure> {
    takes_voices(wanted.config)?;
    let given = args.clone.speaker_encoder.as_deref();
    let encoder = cloning::find_encoder(given, Some(wanted.model), recording)?;
    let device = args.device.open()?;
    let encoder = cloning::open_encoder(&encoder, wanted.outputs, &device, quiet)?;
    encoder.check(wanted.config.speaker_embedding_dim)?;
    cloning::clone_file(&encoder, recording, reported)
}

fn path(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// Runs the plan, with a bar; to stdout the audio goes at once.
fn speak(
    tts: &Tts,
    plan: &Plan,
    target: &Target,
    codec: &Checkpoint,
    quiet: bool,
) -> Result<Speech, Failure> {
    let bar = FrameBar::new(
        quiet,
        "speaking",
        plan.frame_bound() as u64,
        tts.frame_seconds(),
    );
    let result = match target {
        Target::File(_) => tts
            .run(plan, &mut |frames| {
                bar.at(frames as u64);
                interrupt::go_on()
            })
            .map_err(Failure::from),
        Target::Stdout => stream(tts, plan, codec, &bar),
    };
    bar.done();
    match result {
        // The caller that stopped it was us.
        Err(_) if interrupt::requested() => Err(Failure::Interrupted),
        other => other,
    }
}

fn stream(tts: &Tts, plan: &Plan, codec: &Checkpoint, bar: &FrameBar) -> Result<Speech, Failure> {
    let mut wav = WavStream::new(io::stdout(), tts.sample_rate())?;
    let mut broken = None;
    let result = tts.run_streaming(plan, &mut |chunk| {
        bar.at(chunk.frames as u64);
        if let Err(error) = wav.push(chunk.samples) {
            broken = Some(error);
            return ControlFlow::Break(());
        }
        interrupt::go_on()
    });
    if let Some(error) = broken {
        return Err(stream_failure(error, codec));
    }
    let speech = result?;
    wav.finish().map_err(|error| stream_failure(error, codec))?;
    Ok(speech)
}

fn stream_failure(error: WavError, codec: &Checkpoint) -> Failure {
    match error {
        WavError::NonFinite { index, value, .. } => weights::bad_audio(index, value, codec),
        WavError::Stream(error) => stdout_failure(error),
        other => other.into(),
    }
}

/// A wrong request is the command line's fault; a wrong voice is its file's, and anything else is a
/// failed run.
pub(crate) fn refused(error: TtsError) -> Failure {
    if error.is_request_error() && !matches!(error, TtsError::Voice(_)) {
        Failure::usage(error.to_string())
    } else {
        error.into()
    }
}

/// What ran, for the report.
struct Run<'a> {
    tts: &'a Tts,
    plan: &'a Plan,
    speech: &'a Speech,
    target: &'a Target,
    /// Time until the models were there.
    loaded: Duration,
    /// What was odd about the recording.
    warnings: &'a [String],
}

fn report(args: &TtsArgs, global: &GlobalArgs, run: &Run<'_>) -> Result<(), Failure> {
    let Run {
        tts,
        plan,
        speech,
        target,
        loaded,
        warnings,
    } = *run;
    let seconds = speech.waveform.samples().len() as f64 / f64::from(tts.sample_rate());
    // The report on stderr stands alone there; it has "ended_by".
    if let Some(line) = ending(speech, plan)
        && !(global.json && *target == Target::Stdout)
    {
        // A warning is said even with --quiet: the exit code alone does not tell what it was.
        output::note(global.quiet && !speech.was_cut_short(), line);
    }
    let rate = Rate::of(
        speech.frames as u64,
        speech.timings.total,
        tts.frame_seconds(),
    );
    if global.json {
        let model = args.model.as_deref().filter(|model| !model.is_empty());
        let value = json!({
            "output": target.name(),
            "codes": args.codes.as_ref().map(|path| path.display().to_string()),
            "dump_ids": args.dump_ids.as_ref().map(|path| path.display().to_string()),
            "voice": args.voice.shown().or_else(|| args.clone.shown()),
            "save_speaker": args.clone.save_speaker.as_ref().map(|path| path.display().to_string()),
            "demo": model.is_none(),
            "model": model,
            "seed": speech.seed,
            "greedy": args.sampling.greedy,
            "ended_by": speech.ended_by(),
            "cut_short": speech.was_cut_short(),
            "warnings": warnings,
            "text_bytes": plan.text_bytes(),
            "prompt_rows": speech.prompt_rows,
            "generated_rows": speech.frames,
            "frames": speech.codes.frames(),
            "samples": speech.waveform.samples().len(),
            "sample_rate": tts.sample_rate(),
            "seconds": round(seconds),
            "frames_per_s": round(rate.frames_per_s),
            "real_time_factor": round(rate.real_time_factor),
            "timings_s": {
                "load": round(loaded.as_secs_f64()),
                "first_audio": round(speech.timings.first_audio.as_secs_f64()),
                "generate": round(speech.timings.generate.as_secs_f64()),
                "total": round(speech.timings.total.as_secs_f64()),
            },
            "device": args.device.device,
            "codec_device": args.codec_device.name(&args.device),
        });
        return match target {
            // Stdout carries the audio.
            Target::Stdout => {
                output::note_json(&value);
                Ok(())
            }
            Target::File(_) => output::print_json(&value),
        };
    }
    output::note(
        global.quiet,
        format_args!(
            "{}: {seconds:.2} s of audio in {:.2} s ({:.1} frames/s, real-time factor {:.2}), seed {}{}",
            target.name(),
            speech.timings.total.as_secs_f64(),
            rate.frames_per_s,
            rate.real_time_factor,
            speech.seed,
            if args.sampling.seed.is_none() && !args.sampling.greedy {
                " (drawn; --seed makes the same audio again)"
            } else {
                ""
            }
        ),
    );
    Ok(())
}

/// What to say about an end that the model did not choose.
fn ending(speech: &Speech, plan: &Plan) -> Option<String> {
    let frames = speech.frames;
    match speech.end {
        EndReason::EndOfAudio | EndReason::Stopped => None,
        EndReason::FrameLimit => Some(format!("note: stopped at --max-frames, {frames} frames")),
        EndReason::TextBound => Some(format!(
            "warning: the model did not end the speech; it was cut at the length bound of {frames} frames for {} bytes of text (--frames-per-byte, --frame-floor)",
            plan.text_bytes()
        )),
        EndReason::Loop => Some(format!(
            "warning: the model repeated one frame without end; the speech was cut after {frames} frames (--loop-breaker)"
        )),
        EndReason::Context => Some(format!(
            "warning: the model's context was full; the speech was cut after {frames} frames, so its end may be missing"
        )),
    }
}

/// Milliseconds, and enough digits of anything else, without a float's tail in the JSON.
fn round(value: f64) -> Value {
    json!((value * 1e4).round() / 1e4)
}
