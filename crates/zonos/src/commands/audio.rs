//! `zonos audio`: sound files alone.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::json;
use zonos_audio::Levels;
use zonos_audio::decode::{AudioInfo, DecodeLimits, Decoded, decode_file};
use zonos_audio::encode::{AudioFormat, PcmScale, encode_file};
use zonos_audio::resample::{ResampleRecipe, Resampler};

use crate::args::GlobalArgs;
use crate::failure::{Failure, Outcome};
use crate::output;

/// Arguments of `zonos audio`.
#[derive(Debug, Args)]
#[command(after_help = "\
Read, by content and whatever the file is called: PCM, float, A-law, mu-law and ADPCM in WAV; PCM and
float in AIFF; FLAC; ALAC; MP3; AAC-LC; Vorbis; Opus, in Ogg, WebM, Matroska, MP4, CAF and ADTS.
Written, by ending: .wav, .flac, .opus or .ogg (Opus), .f32, .s16 or .raw; .mp3 in builds with
--features mp3.

Examples:
  zonos audio info voice.m4a
  zonos audio resample voice.mp3 voice.wav --rate 24000 --mono
  zonos audio convert speech.wav speech.opus")]
pub(crate) struct AudioArgs {
    #[command(subcommand)]
    command: AudioCommand,
}

#[derive(Debug, Subcommand)]
enum AudioCommand {
    /// Decode a file and tell what it holds: container, codec, length, level of each channel.
    Info(InfoArgs),
    /// Convert a file to another sample rate, as torchaudio's Resample does.
    Resample(ResampleArgs),
    /// Convert a file to another format.
    Convert(ConvertArgs),
}

/// Arguments of `zonos audio info`.
#[derive(Debug, Args)]
struct InfoArgs {
    /// Audio file.
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

/// Arguments of `zonos audio resample`.
#[derive(Debug, Args)]
struct ResampleArgs {
    /// Audio file.
    #[arg(value_name = "IN")]
    input: PathBuf,
    /// File to write; its ending chooses the format.
    #[arg(value_name = "OUT")]
    output: PathBuf,
    /// Sample rate to convert to, in Hz.
    #[arg(long, value_name = "HZ", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1000..=384_000))]
    rate: u32,
    #[command(flatten)]
    written: WrittenArgs,
}

/// Arguments of `zonos audio convert`.
#[derive(Debug, Args)]
struct ConvertArgs {
    /// Audio file.
    #[arg(value_name = "IN")]
    input: PathBuf,
    /// File to write; its ending chooses the format.
    #[arg(value_name = "OUT")]
    output: PathBuf,
    #[command(flatten)]
    written: WrittenArgs,
}

/// What to write.
#[derive(Debug, Args)]
struct WrittenArgs {
    /// Average the channels into one.
    #[arg(long)]
    mono: bool,
    /// Write .wav with 32-bit floats, unclipped, not with 16-bit integers.
    #[arg(long)]
    float: bool,
}

/// Runs the command.
pub(crate) fn run(args: &AudioArgs, global: &GlobalArgs) -> Outcome {
    match &args.command {
        AudioCommand::Info(args) => info(args, global),
        AudioCommand::Resample(args) => rewrite(
            &args.input,
            &args.output,
            Some(args.rate),
            &args.written,
            global,
        ),
        AudioCommand::Convert(args) => {
            rewrite(&args.input, &args.output, None, &args.written, global)
        }
    }
}

fn info(args: &InfoArgs, global: &GlobalArgs) -> Outcome {
    let decoded = decode_file(&args.file, &DecodeLimits::default())?;
    let levels: Vec<Levels> = decoded.channels.iter().map(|c| Levels::of(c)).collect();
    let info = &decoded.info;
    if global.json {
        let mut value = described(&args.file, info);
        value["levels"] = levels
            .iter()
            .map(|l| {
                json!({
                    "peak": l.peak,
                    "peak_dbfs": finite(l.peak_dbfs()),
                    "rms": l.rms,
                    "rms_dbfs": finite(l.rms_dbfs()),
                    "clipped": l.clipped,
                })
            })
            .collect();
        value["warnings"] = json!(decoded.warnings);
        output::print_json(&value)?;
        return Ok(ExitCode::SUCCESS);
    }
    output::print(format_args!("{}: {}", args.file.display(), summary(info)))?;
    for (c, l) in levels.iter().enumerate() {
        let clipped = match l.clipped {
            0 => String::new(),
            n => format!(", {n} samples at or above full scale"),
        };
        output::print(format_args!(
            "  channel {}: peak {:.1} dBFS, rms {:.1} dBFS{clipped}",
            c + 1,
            l.peak_dbfs(),
            l.rms_dbfs()
        ))?;
    }
    for warning in &decoded.warnings {
        output::print(format_args!("  warning: {warning}"))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn summary(info: &AudioInfo) -> String {
    let codec = match info.bits_per_sample {
        Some(bits) => format!("{bits}-bit {}", info.codec),
        None => info.codec.to_owned(),
    };
    let channels = match info.channels {
        1 => "1 channel".to_owned(),
        n => format!("{n} channels"),
    };
    format!(
        "{}, {codec}, {} Hz, {channels}, {:.3} s ({} frames)",
        info.container,
        info.sample_rate,
        info.seconds().unwrap_or(0.0),
        info.frames.unwrap_or(0)
    )
}

fn described(file: &Path, info: &AudioInfo) -> serde_json::Value {
    json!({
        "file": file.display().to_string(),
        "container": info.container,
        "codec": info.codec,
        "sample_rate": info.sample_rate,
        "channels": info.channels,
        "bits_per_sample": info.bits_per_sample,
        "frames": info.frames,
        "seconds": info.seconds(),
    })
}

/// JSON has no infinity, which is the level of silence.
fn finite(x: f32) -> Option<f32> {
    x.is_finite().then_some(x)
}

fn rewrite(
    input: &Path,
    path: &Path,
    rate: Option<u32>,
    written: &WrittenArgs,
    global: &GlobalArgs,
) -> Outcome {
    let Some(mut format) = output::sound_format(path)? else {
        return Err(Failure::usage(format!(
            "{}: the ending must be {}; it chooses the format",
            path.display(),
            AudioFormat::ENDINGS
        )));
    };
    if written.float {
        if format != AudioFormat::WavPcm16 {
            return Err(Failure::usage(
                "--float goes with an output that ends in .wav",
            ));
        }
        format = AudioFormat::WavF32;
    }
    output::distinct(&[("IN", input), ("OUT", path)])?;
    output::check_file(path)?;
    let mut decoded = decode_file(input, &DecodeLimits::default())?;
    for warning in &decoded.warnings {
        output::note(
            false,
            format_args!("warning: {}: {warning}", input.display()),
        );
    }
    if written.mono && decoded.channels.len() > 1 {
        decoded.channels = vec![decoded.to_mono().into_samples()];
    }
    let from = decoded.info.sample_rate;
    let rate = rate.unwrap_or(from);
    let resampler = Resampler::new(from, rate, ResampleRecipe::Transform)?;
    if rate != from {
        for channel in &mut decoded.channels {
            *channel = resampler.resample(channel);
        }
    }
    warn_clipped(&decoded, path, format);
    encode_file(path, &decoded.channels, rate, format, PcmScale::Full)?;
    report(path, &decoded, rate, format, global)
}

/// Integers cannot hold what is above full scale.
fn warn_clipped(decoded: &Decoded, path: &Path, format: AudioFormat) {
    if matches!(format, AudioFormat::WavF32 | AudioFormat::RawF32) {
        return;
    }
    let above = |x: &&f32| x.abs() > 1.0;
    let count = decoded.channels.iter().flatten().filter(above).count();
    if count > 0 {
        output::note(
            false,
            format_args!(
                "warning: {}: {count} samples are above full scale and clip in {format}",
                path.display()
            ),
        );
    }
}

fn report(
    path: &Path,
    decoded: &Decoded,
    rate: u32,
    format: AudioFormat,
    global: &GlobalArgs,
) -> Outcome {
    let frames = decoded.channels.first().map_or(0, Vec::len);
    let seconds = frames as f64 / f64::from(rate);
    if global.json {
        output::print_json(&json!({
            "output": path.display().to_string(),
            "format": format.to_string(),
            "sample_rate": rate,
            "channels": decoded.channels.len(),
            "frames": frames,
            "seconds": seconds,
            "input": decoded.info,
            "warnings": decoded.warnings,
        }))?;
    } else {
        output::note(
            global.quiet,
            format_args!("{}: {format}, {rate} Hz, {seconds:.3} s", path.display()),
        );
    }
    Ok(ExitCode::SUCCESS)
}
