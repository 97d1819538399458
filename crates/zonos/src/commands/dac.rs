//! `zonos dac`: the codec alone.

mod encode;

use std::ffi::OsStr;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, bail, ensure};
use burn::tensor::Device;
use clap::{Args, Subcommand};
use serde_json::json;
use zonos_audio::encode::AudioFormat;
use zonos_audio::{CodeLimits, Codes, CodesError, Waveform, npy};
use zonos_checkpoint::{Checkpoint, LoadOptions};
use zonos_dac::{Dac, DacParts};

use super::compare;
use super::generate::eos_path;
use crate::args::{CodecArgs, DeviceArgs, GlobalArgs, whole};
use crate::failure::{Failure, Outcome};
use crate::interrupt::{self, Stepping};
use crate::progress::{FrameBar, Rate};
use crate::{output, weights};

/// Frames decoded at a time unless --block says otherwise: about a second, so that activations stay
/// in the cache and memory does not grow with the length of the audio.
const BLOCK: u32 = 86;

/// Marker ids of delayed rows: end of audio, and a cell without audio.
const MARKERS: [i32; 2] = [1024, 1025];

/// Arguments of `zonos dac`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  zonos dac encode speech.flac codes.npy --model hub:descript/dac_44khz
  zonos dac decode codes.npy hello.wav --model hub:descript/dac_44khz
  zonos dac roundtrip speech.wav again.wav --model hub:descript/dac_44khz --plot spectra.png
  zonos dac seam codes.npy --model hub:descript/dac_44khz")]
pub(crate) struct DacArgs {
    #[command(subcommand)]
    command: DacCommand,
}

#[derive(Debug, Subcommand)]
enum DacCommand {
    /// Encode audio into codes.
    Encode(encode::EncodeArgs),
    /// Decode codes into audio.
    Decode(DecodeArgs),
    /// Encode audio, decode it again, and tell how much became of it.
    Roundtrip(encode::RoundtripArgs),
    /// Compare streamed with whole decoding and print the largest difference of a sample.
    Seam(SeamArgs),
}

/// Arguments of `zonos dac decode`.
#[derive(Debug, Args)]
#[command(after_help = "\
CODES.npy is [frames, codebooks] whole numbers below the checkpoint's codebook size; fewer columns
than it has codebooks are decoded from those alone. With --sheared the rows are as a backbone samples
them: codebook c delayed by c rows, ids 1024 (end) and 1025 (none) allowed; CODES.npy.eos.npy, when
it is there, or --eos tells where speech ends.

Examples:
  zonos dac decode codes.npy hello.wav --model hub:descript/dac_44khz
  zonos dac decode codes.npy hello.npy --model dac.safetensors
      raw float32 samples, [samples]
  zonos dac decode rows.npy hello.wav --model dac.safetensors --sheared")]
struct DecodeArgs {
    /// Codes to decode.
    #[arg(value_name = "CODES.npy")]
    codes: PathBuf,
    /// File to write: .npy (float32 samples), .wav, .flac, .opus or .ogg (Opus), .mp3 (builds with
    /// --features mp3), .f32, .s16 or .raw.
    #[arg(value_name = "OUT.wav|OUT.npy")]
    output: PathBuf,
    /// Frames to decode at a time; the result is the same.
    #[arg(long, value_name = "N", default_value_t = BLOCK, value_parser = whole::<u32>(1, 1_000_000), allow_negative_numbers = true)]
    block: u32,
    /// The codes are delayed rows, as `zonos generate --sheared` writes them.
    #[arg(long)]
    sheared: bool,
    /// With --sheared: frame at which speech ends, -1 for none [default: from CODES.npy.eos.npy].
    #[arg(long, value_name = "N", requires = "sheared", allow_negative_numbers = true, value_parser = whole::<i32>(-1, i32::MAX))]
    eos: Option<i32>,
    #[command(flatten)]
    model: CodecArgs,
    #[command(flatten)]
    device: DeviceArgs,
}

/// Arguments of `zonos dac seam`.
#[derive(Debug, Args)]
#[command(after_help = "\
Streaming decodes blocks with the exact context they need, so nothing may differ on the CPU; other
devices sum in another order for another length, and 1e-6 is allowed. Above that the exit code is 1.

Example:
  zonos dac seam codes.npy --model dac.safetensors --block 40")]
struct SeamArgs {
    /// Codes to decode, [frames, codebooks].
    #[arg(value_name = "CODES.npy")]
    codes: PathBuf,
    /// Frames in a block.
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = whole::<u32>(1, 1_000_000), allow_negative_numbers = true)]
    block: u32,
    #[command(flatten)]
    model: CodecArgs,
    #[command(flatten)]
    device: DeviceArgs,
}

/// Runs the command.
pub(crate) fn run(args: &DacArgs, global: &GlobalArgs) -> Outcome {
    match &args.command {
        DacCommand::Encode(args) => encode::encode(args, global),
        DacCommand::Decode(args) => decode(args, global),
        DacCommand::Roundtrip(args) => encode::roundtrip(args, global),
        DacCommand::Seam(args) => seam(args, global),
    }
}

fn decode(args: &DecodeArgs, global: &GlobalArgs) -> Outcome {
    let format = sound_or_npy(&args.output)?;
    let device = args.device.open()?;
    output::distinct(&[("CODES.npy", &args.codes), ("OUT", &args.output)])?;
    if args.sheared {
        let eos = eos_path(&args.codes);
        output::distinct(&[("CODES.npy.eos.npy", &eos), ("OUT", &args.output)])?;
    }
    output::check_file(&args.output)?;
    // Codes are read first: a wrong file is found before the weights are.
    let codes = load_codes(&args.codes)?;
    let checkpoint = weights::find_codec(&args.model.model, global.quiet)?;
    output::spares(&checkpoint, &args.model.model, &[("OUT", &args.output)])?;
    let codec = load_decoder(&checkpoint, &device)?;
    let codes = if args.sheared {
        let eos = match args.eos {
            Some(eos) => Some(eos),
            None => read_eos(&eos_path(&args.codes))?,
        };
        plain(&args.codes, &codes, eos, &codec)?
    } else {
        codes
    };
    check_codes(&args.codes, &codes, &codec)?;

    let _stepping = Stepping::begin();
    let (rate, hop) = (sample_rate(&codec), codec.config().hop());
    let frame_seconds = hop as f64 / f64::from(rate);
    let began = Instant::now();
    let bar = FrameBar::new(
        global.quiet,
        "decoding",
        codes.frames() as u64,
        frame_seconds,
    );
    let samples = streamed(&codec, &codes, args.block as usize, &mut |frames| {
        bar.at(frames as u64);
        interrupt::check()
    })?;
    bar.done();
    interrupt::check()?;
    let elapsed = began.elapsed();
    weights::check_audio(&samples, &checkpoint)?;
    let count = samples.len();
    match format {
        None => npy::write_f32(&args.output, &[count], &samples)?,
        Some(format) => Waveform::new(samples, rate).save_as(&args.output, format)?,
    }
    let speed = Rate::of(codes.frames() as u64, elapsed, frame_seconds);
    let seconds = count as f64 / f64::from(rate);
    if global.json {
        output::print_json(&json!({
            "output": args.output.display().to_string(),
            "frames": codes.frames(),
            "codebooks": codes.codebooks(),
            "samples": count,
            "sample_rate": rate,
            "seconds": seconds,
            "decode_s": elapsed.as_secs_f64(),
            "frames_per_s": speed.frames_per_s,
            "real_time_factor": speed.real_time_factor,
            "device": args.device.device,
        }))?;
    } else {
        output::note(
            global.quiet,
            format_args!(
                "{}: {seconds:.2} s of audio in {:.2} s",
                args.output.display(),
                elapsed.as_secs_f64()
            ),
        );
    }
    Ok(ExitCode::SUCCESS)
}

fn seam(args: &SeamArgs, global: &GlobalArgs) -> Outcome {
    let device = args.device.open()?;
    let codes = load_codes(&args.codes)?;
    let checkpoint = weights::find_codec(&args.model.model, global.quiet)?;
    let codec = load_decoder(&checkpoint, &device)?;
    check_codes(&args.codes, &codes, &codec)?;
    let whole = codec.decode(&codes)?;
    weights::check_audio(whole.samples(), &checkpoint)?;
    let pieces = streamed(&codec, &codes, args.block as usize, &mut |_| Ok(()))?;
    let worst = compare::seam(&whole, &pieces)?;
    let allowed = seam_tolerance(&args.device.device);
    // Written so that a NaN fails.
    let passed = worst <= allowed;
    if global.json {
        output::print_json(&json!({
            "frames": codes.frames(),
            "block": args.block,
            "max_difference": worst,
            "allowed": allowed,
            "passed": passed,
            "device": args.device.device,
        }))?;
    } else {
        output::print(format_args!(
            "max |d| = {worst:e} over {} samples, block {}",
            pieces.len(),
            args.block
        ))?;
    }
    if passed {
        Ok(ExitCode::SUCCESS)
    } else {
        Err(Failure::failed(format!(
            "streamed and whole decoding differ by {worst:e}; allowed is {allowed:e} on device {}",
            args.device.device
        )))
    }
}

/// The format that a path's ending asks for; `None` for `.npy`.
fn sound_or_npy(path: &Path) -> Result<Option<AudioFormat>, Failure> {
    let format = output::sound_format(path)?;
    let ending = path.extension().and_then(OsStr::to_str);
    if format.is_none() && !ending.is_some_and(|ending| ending.eq_ignore_ascii_case("npy")) {
        return Err(Failure::usage(format!(
            "{}: the ending must be .npy, {}; it chooses the format",
            path.display(),
            AudioFormat::ENDINGS
        )));
    }
    Ok(format)
}

/// Reads codes. A file of sound in their place is told what is expected, and not what its bytes lack.
fn load_codes(path: &Path) -> Result<Codes, Failure> {
    const MAGIC: &[u8] = b"\x93NUMPY";
    let mut head = Vec::new();
    if path.is_file() {
        let file = std::fs::File::open(path);
        // What cannot be read is refused below.
        let _ = file.and_then(|file| file.take(MAGIC.len() as u64).read_to_end(&mut head));
    }
    if !head.is_empty() && head != MAGIC {
        return Err(Failure::failed(format!(
            "{}: is no .npy file; expected codes, [frames, codebooks], as `zonos dac encode` writes them",
            path.display()
        )));
    }
    Ok(Codes::load_npy(path)?)
}

fn load_decoder(checkpoint: &Checkpoint, device: &Device) -> Result<Dac, Failure> {
    let options = LoadOptions::default();
    let (codec, report) = Dac::load_parts(checkpoint, DacParts::Decoder, &options, device)?;
    weights::warn(&report, false);
    Ok(codec)
}

/// The largest difference between streamed and whole samples that a device may show.
pub(crate) fn seam_tolerance(device: &str) -> f32 {
    match device.to_ascii_lowercase().as_str() {
        "cpu" | "flex" => 0.0,
        _ => 1e-6,
    }
}

/// Decodes in blocks. `step` hears how many frames have gone in, and can stop.
pub(crate) fn streamed(
    codec: &Dac,
    codes: &Codes,
    block: usize,
    step: &mut dyn FnMut(usize) -> Result<(), Failure>,
) -> Result<Vec<f32>, Failure> {
    let mut stream = codec.stream(block);
    let mut samples = Vec::new();
    let (frames, q) = (codes.frames(), codes.codebooks());
    let mut at = 0;
    while at < frames {
        let next = frames.min(at + block);
        let part = Codes::new(next - at, q, codes.values()[at * q..next * q].to_vec())?;
        samples.extend(stream.push(&part)?);
        at = next;
        step(at)?;
    }
    samples.extend(stream.flush()?);
    Ok(samples)
}

/// The codes of delayed rows: unsheared, cut at the end of speech, markers clamped to the last code.
fn plain(path: &Path, rows: &Codes, eos: Option<i32>, codec: &Dac) -> anyhow::Result<Codes> {
    let limits = limits(codec).with_markers(MARKERS);
    rows.check(&limits)
        .with_context(|| path.display().to_string())?;
    let keep = match eos {
        Some(eos) if eos >= 0 => rows.frames().min(eos as usize),
        _ => rows.frames(),
    };
    ensure!(
        keep > 0,
        "{}: speech ends at frame 0, so there is nothing to decode",
        path.display()
    );
    let last = codec.config().codebook_size as i32 - 1;
    Ok(rows.unshear(MARKERS[1]).truncate(keep).clamp_above(last))
}

fn limits(codec: &Dac) -> CodeLimits {
    let config = codec.config();
    CodeLimits::uniform(config.n_codebooks, config.codebook_size)
}

fn check_codes(path: &Path, codes: &Codes, codec: &Dac) -> anyhow::Result<()> {
    ensure!(!codes.is_empty(), "{}: no frames to decode", path.display());
    let Err(error) = codes.check(&limits(codec)) else {
        return Ok(());
    };
    let name = path.display();
    match error {
        CodesError::Value { value, .. } if MARKERS.contains(&value) => bail!(
            "{name}: {error}; {value} marks the end or a gap in rows as sampled: decode those with --sheared"
        ),
        error => bail!("{name}: {error}"),
    }
}

/// The end of speech from the file beside delayed rows; `None` when there is no such file.
fn read_eos(path: &Path) -> anyhow::Result<Option<i32>> {
    if !path.exists() {
        return Ok(None);
    }
    let array = npy::read(path)?;
    match array.to_i32()?.as_slice() {
        [eos] => Ok(Some(*eos)),
        _ => Err(array
            .shape_error("[1], the frame at which speech ends")
            .into()),
    }
}

fn sample_rate(codec: &Dac) -> u32 {
    codec.config().sample_rate as u32
}
