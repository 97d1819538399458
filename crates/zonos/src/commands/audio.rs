//! `zonos audio`: sound files alone.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::json;
use zonos_audio::Levels;
use zonos_audio::decode::{AudioInfo, DecodeLimits, Decoded, decode_file, probe_file};
use zonos_audio::encode::{AudioFormat, PcmScale, encode_file};
use zonos_audio::resample::{ResampleRecipe, Resampler};

use crate::args::{GlobalArgs, whole};
use crate::failure::{Failure, Outcome};
use crate::output;

/// Arguments of `zonos audio`.
#[derive(Debug, Args)]
#[command(after_help = "\
Read, by content and whatever the file is called: PCM, float, A-law and mu-law in WAV, AIFF, CAF, MP4
and Matroska; ADPCM in WAV; FLAC; ALAC; MP3 and the other MPEG layers; AAC-LC; Vorbis; Opus, in Ogg,
WebM, Matroska, MP4, CAF and ADTS.
Written, by ending: .wav, .flac (up to 96000 Hz), .opus or .ogg (Opus, 48000 Hz), .f32, .s16 or .raw;
.mp3 in builds with --features mp3.

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
#[command(after_help = "\
Examples:
  zonos audio info voice.m4a
  zonos audio info voice.m4a --json | jq .seconds")]
struct InfoArgs {
    /// Audio file.
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

/// Arguments of `zonos audio resample`.
#[derive(Debug, Args)]
#[command(after_help = "\
The filter is torchaudio's, bit for bit: short, so that little of what lies above the lower of the two
half rates is cut off. Raising a rate leaves mirror images above the old half rate, 16 kHz to 24 kHz
some above 8 kHz; a recording made at the higher rate is better than a resampled one.

Example:
  zonos audio resample voice.mp3 voice.wav --rate 24000 --mono")]
struct ResampleArgs {
    /// Audio file.
    #[arg(value_name = "IN")]
    input: PathBuf,
    /// File to write; its ending chooses the format.
    #[arg(value_name = "OUT")]
    output: PathBuf,
    /// Sample rate to convert to, in Hz.
    #[arg(long, value_name = "HZ", allow_negative_numbers = true, value_parser = whole::<u32>(1000, 384_000))]
    rate: u32,
    #[command(flatten)]
    written: WrittenArgs,
}

/// Arguments of `zonos audio convert`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  zonos audio convert speech.wav speech.opus
  zonos audio convert loud.m4a loud.wav --float")]
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
            unsigned_zero(l.peak_dbfs()),
            unsigned_zero(l.rms_dbfs())
        ))?;
    }
    for warning in &decoded.warnings {
        output::print(format_args!("  warning: {warning}"))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What rounds to zero without its sign.
fn unsigned_zero(decibels: f32) -> f32 {
    if decibels.abs() < 0.05 { 0.0 } else { decibels }
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
    let mut format = output::sound_only(path)?;
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
    check_format(input, path, format, rate, written.mono)?;
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
    let (frames, channels) = (decoded.channels[0].len(), decoded.channels.len());
    let bytes = 4 * channels as u64 * resampler.output_len(frames) as u64;
    let most = DecodeLimits::default().max_decoded_bytes;
    if bytes > most {
        return Err(Failure::failed(format!(
            "{}: its {:.0} s at {rate} Hz would be {bytes} bytes of samples, and {most} are allowed; choose a lower --rate, or cut it into pieces",
            input.display(),
            frames as f64 / f64::from(from)
        )));
    }
    if rate != from {
        for channel in &mut decoded.channels {
            *channel = resampler.resample(channel);
        }
    }
    warn_clipped(&decoded, path, format);
    encode_file(path, &decoded.channels, rate, format, PcmScale::Full)?;
    report(path, &decoded, rate, format, global)
}

/// Refuses what the format cannot hold before anything is decoded, as far as the header tells it.
fn check_format(
    input: &Path,
    path: &Path,
    format: AudioFormat,
    rate: Option<u32>,
    mono: bool,
) -> Result<(), Failure> {
    let name = path.display();
    let fits = |rate: u32| {
        let most = format.max_rate();
        if rate <= most {
            return Ok(());
        }
        Err(Failure::usage(format!(
            "{name}: {format} takes sample rates up to {most} Hz, and this is {rate} Hz; resample to at most that, or write .wav"
        )))
    };
    rate.map_or(Ok(()), fits)?;
    // A pipe can be read only once, and what is wrong with a file its decoder says.
    if !input.is_file() || format.max_channels() > 8 {
        return Ok(());
    }
    let Ok(info) = probe_file(input) else {
        return Ok(());
    };
    if rate.is_none() {
        fits(info.sample_rate)?;
    }
    if !mono && info.channels > format.max_channels() {
        return Err(Failure::usage(format!(
            "{name}: {format} takes at most {} channels, and {} has {}; give --mono, or write .wav",
            format.max_channels(),
            input.display(),
            info.channels
        )));
    }
    Ok(())
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
    let seconds = decoded.channels.first().map_or(0, Vec::len) as f64 / f64::from(rate);
    let rate = format.written_rate(rate);
    let frames = (seconds * f64::from(rate)).round() as u64;
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
