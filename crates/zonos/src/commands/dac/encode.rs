//! `zonos dac encode` and `zonos dac roundtrip`: audio into codes, and there and back.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use burn::tensor::Device;
use clap::Args;
use serde_json::json;
use zonos_audio::decode::{DecodeLimits, decode_file};
use zonos_audio::{AtomicFile, Codes, Waveform, npy};
use zonos_checkpoint::{Checkpoint, LoadOptions};
use zonos_dac::{Dac, DacConfig, DacError, DacParts};

use super::{BLOCK, sample_rate, sound_or_npy, streamed};
use crate::args::{CodecArgs, DeviceArgs, GlobalArgs, whole};
use crate::commands::compare::{Change, draw};
use crate::failure::{Failure, Outcome};
use crate::interrupt::{self, Stepping};
use crate::progress::{FrameBar, Rate};
use crate::{output, weights};

/// Arguments of `zonos dac encode`.
#[derive(Debug, Args)]
#[command(after_help = "\
AUDIO may be any sound file that `zonos audio --help` lists, of any rate; channels are averaged. Its end is
filled up with silence to a whole frame.

Examples:
  zonos dac encode speech.flac codes.npy --model hub:descript/dac_44khz
  zonos dac encode speech.mp3 codes.npy --model hub:descript/dac_44khz --codebooks 4
      fewer codes a frame: fewer bits, less quality")]
pub(super) struct EncodeArgs {
    /// Audio to encode.
    #[arg(value_name = "AUDIO")]
    audio: PathBuf,
    /// Codes to write, [frames, codebooks] int32.
    #[arg(value_name = "CODES.npy")]
    output: PathBuf,
    #[command(flatten)]
    codebooks: CodebookArgs,
    #[command(flatten)]
    model: CodecArgs,
    #[command(flatten)]
    device: DeviceArgs,
}

/// Arguments of `zonos dac roundtrip`.
#[derive(Debug, Args)]
#[command(after_help = "\
Prints the ratio of signal to noise, noise being the difference, and the levels before and after. A
low ratio does not mean a bad codec: it keeps what is heard, not the waveform.

Example:
  zonos dac roundtrip speech.wav again.wav --model hub:descript/dac_44khz --plot spectra.png")]
pub(super) struct RoundtripArgs {
    /// Audio to encode: any sound file that `zonos audio --help` lists.
    #[arg(value_name = "AUDIO")]
    audio: PathBuf,
    /// File to write: .npy (float32 samples), .wav, .flac, .opus or .ogg (Opus), .mp3 (builds with
    /// --features mp3), .f32, .s16 or .raw.
    #[arg(value_name = "OUT.wav|OUT.npy")]
    output: PathBuf,
    /// Draw the spectrograms before and after.
    #[arg(long, value_name = "FILE.png")]
    plot: Option<PathBuf>,
    #[command(flatten)]
    codebooks: CodebookArgs,
    #[command(flatten)]
    model: CodecArgs,
    #[command(flatten)]
    device: DeviceArgs,
}

/// How many codes a frame gets.
#[derive(Debug, Args)]
struct CodebookArgs {
    /// Use the first N codebooks only [default: all the checkpoint has].
    #[arg(long, value_name = "N", value_parser = whole::<u32>(1, 64), allow_negative_numbers = true)]
    codebooks: Option<u32>,
}

impl CodebookArgs {
    fn count(&self) -> Option<usize> {
        self.codebooks.map(|n| n as usize)
    }
}

/// Reads audio and mixes it down; what was odd about the file is said on stderr.
fn read(path: &Path) -> Result<Waveform, Failure> {
    let decoded = decode_file(path, &DecodeLimits::default())?;
    for warning in &decoded.warnings {
        let name = path.display();
        output::note(false, format_args!("warning: {name}: {warning}"));
    }
    Ok(decoded.to_mono())
}

/// Opens a codec for encoding. What it cannot do is found before its weights are read.
fn open(
    args: &CodecArgs,
    codebooks: Option<usize>,
    outputs: &[(&str, &Path)],
    quiet: bool,
) -> Result<Checkpoint, Failure> {
    let checkpoint = weights::find_codec(&args.model, quiet)?;
    output::spares(&checkpoint, &args.model, outputs)?;
    let config = DacConfig::from_checkpoint(&checkpoint)?;
    if config.encoder.is_none() {
        let file = checkpoint.path().display().to_string();
        return Err(DacError::NoEncoder { file }.into());
    }
    if let Some(asked) = codebooks.filter(|&asked| asked > config.n_codebooks) {
        return Err(Failure::usage(format!(
            "--codebooks {asked}: {} has {} codebooks",
            checkpoint.path().display(),
            config.n_codebooks
        )));
    }
    Ok(checkpoint)
}

fn load(checkpoint: &Checkpoint, device: &Device) -> Result<Dac, Failure> {
    let options = LoadOptions::default();
    let (codec, report) = Dac::load_parts(checkpoint, DacParts::Whole, &options, device)?;
    weights::warn(&report, false);
    Ok(codec)
}

/// Codes, and how they came about.
struct Encoded {
    codes: Codes,
    /// Samples at the codec's rate that they stand for.
    samples: usize,
    /// Seconds of computing.
    seconds: f64,
}

/// Encodes in windows, with a bar.
fn encode_audio(
    codec: &Dac,
    audio: &Waveform,
    path: &Path,
    codebooks: Option<usize>,
    quiet: bool,
) -> Result<Encoded, Failure> {
    let began = Instant::now();
    let named = |error| named(path, error);
    let encoding = codec.encoding(audio, codebooks).map_err(named)?;
    let samples = encoding.samples().len();
    let (frames, q) = (encoding.frames(), encoding.codebooks());
    let bar = FrameBar::new(quiet, "encoding", frames as u64, frame_seconds(codec));
    let mut values = Vec::with_capacity(frames * q);
    for codes in encoding {
        values.extend_from_slice(codes.map_err(named)?.values());
        bar.at((values.len() / q) as u64);
        interrupt::check()?;
    }
    bar.done();
    Ok(Encoded {
        codes: Codes::new(frames, q, values)?,
        samples,
        seconds: began.elapsed().as_secs_f64(),
    })
}

fn named(path: &Path, error: DacError) -> anyhow::Error {
    anyhow::Error::from(error).context(path.display().to_string())
}

fn frame_seconds(codec: &Dac) -> f64 {
    codec.config().hop() as f64 / f64::from(sample_rate(codec))
}

pub(super) fn encode(args: &EncodeArgs, global: &GlobalArgs) -> Outcome {
    let device = args.device.open()?;
    output::distinct(&[("AUDIO", &args.audio), ("CODES.npy", &args.output)])?;
    output::check_ending(&args.output, "npy")?;
    output::check_file(&args.output)?;
    // The audio is read first: a wrong file is found before the weights are.
    let audio = read(&args.audio)?;
    let codebooks = args.codebooks.count();
    let outputs: [(&str, &Path); 1] = [("CODES.npy", &args.output)];
    let checkpoint = open(&args.model, codebooks, &outputs, global.quiet)?;
    let codec = load(&checkpoint, &device)?;

    let _stepping = Stepping::begin();
    let done = encode_audio(&codec, &audio, &args.audio, codebooks, global.quiet)?;
    done.codes.save_npy(&args.output)?;
    let (frames, rate) = (done.codes.frames(), sample_rate(&codec));
    let elapsed = std::time::Duration::from_secs_f64(done.seconds);
    let speed = Rate::of(frames as u64, elapsed, frame_seconds(&codec));
    let seconds = done.samples as f64 / f64::from(rate);
    if global.json {
        output::print_json(&json!({
            "output": args.output.display().to_string(),
            "frames": frames,
            "codebooks": done.codes.codebooks(),
            "input_sample_rate": audio.sample_rate(),
            "samples": done.samples,
            "sample_rate": rate,
            "seconds": seconds,
            "encode_s": done.seconds,
            "frames_per_s": speed.frames_per_s,
            "real_time_factor": speed.real_time_factor,
            "device": args.device.device,
        }))?;
    } else {
        output::note(
            global.quiet,
            format_args!(
                "{}: {frames} frames of {} codes for {seconds:.2} s of audio in {:.2} s",
                args.output.display(),
                done.codes.codebooks(),
                done.seconds
            ),
        );
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) fn roundtrip(args: &RoundtripArgs, global: &GlobalArgs) -> Outcome {
    let format = sound_or_npy(&args.output)?;
    let device = args.device.open()?;
    let mut outputs: Vec<(&str, &Path)> = vec![("OUT", &args.output)];
    outputs.extend(args.plot.as_deref().map(|plot| ("--plot", plot)));
    let mut files: Vec<(&str, &Path)> = vec![("AUDIO", &args.audio)];
    files.extend(&outputs);
    output::distinct(&files)?;
    if let Some(plot) = &args.plot {
        output::check_ending(plot, "png")?;
    }
    for (_, path) in &outputs {
        output::check_file(path)?;
    }
    let audio = read(&args.audio)?;
    let codebooks = args.codebooks.count();
    let checkpoint = open(&args.model, codebooks, &outputs, global.quiet)?;
    let codec = load(&checkpoint, &device)?;

    let _stepping = Stepping::begin();
    let rate = sample_rate(&codec);
    // What is compared is what the encoder takes.
    let before = codec
        .prepared(&audio)
        .map_err(|error| named(&args.audio, error))?;
    let before = Waveform::new(before.into_owned(), rate);
    let encoded = encode_audio(&codec, &before, &args.audio, codebooks, global.quiet)?;
    let began = Instant::now();
    let frames = encoded.codes.frames();
    let bar = FrameBar::new(
        global.quiet,
        "decoding",
        frames as u64,
        frame_seconds(&codec),
    );
    let mut decoded = streamed(&codec, &encoded.codes, BLOCK as usize, &mut |frames| {
        bar.at(frames as u64);
        interrupt::check()
    })?;
    bar.done();
    interrupt::check()?;
    let decode_s = began.elapsed().as_secs_f64();
    weights::check_audio(&decoded, &checkpoint)?;
    decoded.truncate(before.len());
    let after = Waveform::new(decoded, rate);

    let mut staged = vec![match format {
        None => npy::stage_f32(&args.output, &[after.len()], after.samples())?,
        Some(format) => after.stage_as(&args.output, format)?,
    }];
    if let Some(path) = &args.plot {
        staged.push(draw(path, &args.audio, &before, &after)?);
    }
    AtomicFile::commit_all(staged)?;

    let change = Change::of(&before, &after);
    if global.json {
        output::print_json(&json!({
            "output": args.output.display().to_string(),
            "plot": args.plot.as_ref().map(|path| path.display().to_string()),
            "frames": frames,
            "codebooks": encoded.codes.codebooks(),
            "samples": after.len(),
            "sample_rate": rate,
            "seconds": after.seconds(),
            "snr_db": change.snr_json(),
            "before": change.before_json(),
            "after": change.after_json(),
            "encode_s": encoded.seconds,
            "decode_s": decode_s,
            "device": args.device.device,
        }))?;
    } else {
        change.print()?;
        output::note(
            global.quiet,
            format_args!(
                "{}: {:.2} s of audio, {} codes a frame, encoded in {:.2} s, decoded in {decode_s:.2} s",
                args.output.display(),
                after.seconds(),
                encoded.codes.codebooks(),
                encoded.seconds
            ),
        );
    }
    Ok(ExitCode::SUCCESS)
}
