//! `zonos zac roundtrip`: audio into codes and back.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use serde_json::json;
use zonos_audio::{AtomicFile, Waveform, npy};
use zonos_zac::{SAMPLE_RATE, ZacDecoder};

use super::encode::{PrepareArgs, encode_audio};
use super::{
    BLOCK, FRAME_SECONDS, OpenDecoder, OpenEncoder, Recording, TeacherArgs, VariantArgs, read_map,
    sound_or_npy, streamed,
};
use crate::args::{DeviceArgs, GlobalArgs, between};
use crate::commands::compare::{Change, draw};
use crate::failure::Outcome;
use crate::interrupt::{self, Stepping};
use crate::progress::FrameBar;
use crate::{output, weights};

/// Arguments of `zonos zac roundtrip`.
#[derive(Debug, Args)]
#[command(after_help = "\
Prints the ratio of signal to noise, noise being the difference, and the levels before and after. A
low ratio does not mean a bad codec: it keeps what is heard, not the waveform. OUT is as long as the
audio and at the level that the decoder gives; --headroom-db 3 is what `zonos zac decode` writes.

Files that spell their tensors otherwise have a table each, --encoder-map and --decoder-map: one for both
would name tensors that the other does not have.

Example:
  zonos zac roundtrip speech.wav again.wav --encoder zac-1-encoder.safetensors --decoder zac-1-decoder-keep2_plain.safetensors --plot spectra.png")]
pub(super) struct RoundtripArgs {
    /// Audio to encode: any sound file, or a .npy file of samples at 44.1 kHz.
    #[arg(value_name = "AUDIO")]
    audio: PathBuf,
    /// File to write: .npy (float32 samples), .wav, .flac, .opus or .ogg (Opus), .mp3 (builds with
    /// --features mp3), .f32, .s16 or .raw.
    #[arg(value_name = "OUT.wav|OUT.npy")]
    output: PathBuf,
    /// Draw the spectrograms before and after.
    #[arg(long, value_name = "FILE.png")]
    plot: Option<PathBuf>,
    /// Also write the codes, [frames, 10] int32.
    #[arg(long, value_name = "CODES.npy")]
    codes: Option<PathBuf>,
    /// Decibels to take off the decoder's level in OUT.
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true, value_parser = between(-60.0, 120.0))]
    headroom_db: f64,
    #[command(flatten)]
    prepare: PrepareArgs,
    /// ZAC-1 encoder: a file, a folder or hub:owner/name[@revision].
    #[arg(long, value_name = "FILE|DIR|hub:ID", env = "ZONOS_ZAC_ENCODER", value_parser = NonEmptyStringValueParser::new(), help_heading = "Weights")]
    encoder: String,
    /// ZAC-1 decoder: a file, a folder or hub:owner/name[@revision].
    #[arg(long, value_name = "FILE|DIR|hub:ID", env = "ZONOS_ZAC_DECODER", value_parser = NonEmptyStringValueParser::new(), help_heading = "Weights")]
    decoder: String,
    #[command(flatten)]
    variant: VariantArgs,
    #[command(flatten)]
    teacher: TeacherArgs,
    /// Table of tensor names of the encoder's file and its teacher's, as --map of `zonos zac encode`.
    #[arg(long, value_name = "FILE", help_heading = "Weights")]
    encoder_map: Option<PathBuf>,
    /// Table of tensor names of the decoder's file, as --map of `zonos zac decode`.
    #[arg(long, value_name = "FILE", help_heading = "Weights")]
    decoder_map: Option<PathBuf>,
    #[command(flatten)]
    device: DeviceArgs,
}

pub(super) fn run(args: &RoundtripArgs, global: &GlobalArgs) -> Outcome {
    let format = sound_or_npy(&args.output)?;
    if let Some(plot) = &args.plot {
        output::check_ending(plot, "png")?;
    }
    if let Some(codes) = &args.codes {
        output::check_ending(codes, "npy")?;
    }
    let [encoder_map, decoder_map] = [&args.encoder_map, &args.decoder_map];
    let encoder_map = read_map(encoder_map.as_deref())?;
    let decoder_map = read_map(decoder_map.as_deref())?;
    let device = args.device.open()?;
    let mut outputs: Vec<(&str, &Path)> = vec![("OUT", &args.output)];
    outputs.extend(args.plot.as_deref().map(|plot| ("--plot", plot)));
    outputs.extend(args.codes.as_deref().map(|codes| ("--codes", codes)));
    let mut files: Vec<(&str, &Path)> = vec![("AUDIO", &args.audio)];
    files.extend(&outputs);
    output::distinct(&files)?;
    for (_, path) in &outputs {
        output::check_file(path)?;
    }
    let recording = Recording::read(&args.audio)?;
    let (before, warnings) = args.prepare.apply(&args.audio, recording)?;
    let encoder = OpenEncoder::open(&args.encoder, &args.teacher, encoder_map, global.quiet)?;
    output::spares(&encoder.checkpoint, &args.encoder, &outputs)?;
    let decoder = OpenDecoder::open(
        &args.decoder,
        args.variant.variant,
        decoder_map,
        global.quiet,
    )?;
    output::spares(&decoder.checkpoint, &args.decoder, &outputs)?;

    // One after the other, so that the larger half is gone before the other comes.
    let loaded = encoder.load(&device)?;
    let _stepping = Stepping::begin();
    let encoded = encode_audio(&loaded, &before, global.quiet, None)?;
    drop(loaded);
    let codes = encoded.codes;
    decoder.check_codes(&args.encoder_name(), &codes)?;
    let loaded = decoder.load(&device)?;
    let began = Instant::now();
    let frames = codes.frames();
    let bar = FrameBar::new(global.quiet, "decoding", frames as u64, FRAME_SECONDS);
    let mut samples = streamed(&loaded, &codes, BLOCK as usize, &mut |frames| {
        bar.at(frames as u64);
    })?;
    bar.done();
    interrupt::check()?;
    let decode_s = began.elapsed().as_secs_f64();
    weights::check_audio(&samples, &decoder.checkpoint)?;
    samples.truncate(before.len());
    let after = Waveform::new(samples, SAMPLE_RATE);

    let mut written = after.clone();
    let gain = ZacDecoder::gain(args.headroom_db);
    for x in written.samples_mut() {
        *x *= gain;
    }
    let mut staged = vec![match format {
        None => npy::stage_f32(&args.output, &[written.len()], written.samples())?,
        Some(format) => written.stage_as(&args.output, format)?,
    }];
    if let Some(path) = &args.codes {
        staged.push(codes.stage_npy(path)?);
    }
    if let Some(path) = &args.plot {
        staged.push(draw(path, &args.audio, &before, &after)?);
    }
    AtomicFile::commit_all(staged)?;
    report(
        args,
        global,
        &before,
        &after,
        &warnings,
        [encoded.elapsed.as_secs_f64(), decode_s],
    )
}

impl RoundtripArgs {
    /// What codes that do not fit the decoder are blamed on.
    fn encoder_name(&self) -> PathBuf {
        PathBuf::from(&self.encoder)
    }
}

fn report(
    args: &RoundtripArgs,
    global: &GlobalArgs,
    before: &Waveform,
    after: &Waveform,
    warnings: &[String],
    [encode_s, decode_s]: [f64; 2],
) -> Outcome {
    let change = Change::of(before, after);
    if global.json {
        output::print_json(&json!({
            "output": args.output.display().to_string(),
            "plot": args.plot.as_ref().map(|path| path.display().to_string()),
            "codes": args.codes.as_ref().map(|path| path.display().to_string()),
            "warnings": warnings,
            "samples": after.len(),
            "sample_rate": SAMPLE_RATE,
            "seconds": after.seconds(),
            "snr_db": change.snr_json(),
            "before": change.before_json(),
            "after": change.after_json(),
            "encode_s": encode_s,
            "decode_s": decode_s,
            "device": args.device.device,
        }))?;
    } else {
        change.print()?;
        output::note(
            global.quiet,
            format_args!(
                "{}: {:.2} s of audio, encoded in {encode_s:.2} s, decoded in {decode_s:.2} s",
                args.output.display(),
                after.seconds(),
            ),
        );
    }
    Ok(ExitCode::SUCCESS)
}
