//! `zonos zac decode` and `zonos zac seam`: codes into audio.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{bail, ensure};
use burn::tensor::{DType, Int, Tensor, TensorData};
use clap::Args;
use serde_json::json;
use zonos_audio::{Codes, Waveform, npy};
use zonos_nn::Tap;
use zonos_zac::{HOP, SAMPLE_RATE, ZacConfig, ZacDecoder};

use super::{BLOCK, DecoderArgs, FRAME_SECONDS, OpenDecoder, sound_or_npy, streamed};
use crate::args::{DeviceArgs, GlobalArgs, between, whole};
use crate::commands::compare;
use crate::commands::generate::eos_path;
use crate::failure::{Failure, Outcome};
use crate::interrupt::{self, Stepping};
use crate::progress::{FrameBar, Rate};
use crate::{output, weights};

/// Headroom of playback level, in dB.
const HEADROOM_DB: f64 = 3.0;

/// Arguments of `zonos zac decode`.
#[derive(Debug, Args)]
#[command(after_help = "\
CODES.npy is [frames, 10], whole numbers from 0 to 4095 (floats within 0.001 of one are rounded); -1 in
columns 1 to 9 stands for a code that is missing. The audio is 44.1 kHz mono, 2940 samples a frame.

Decoded audio is 3 dB below the level that the decoder gives, which leaves room for peaks;
--headroom-db 0 gives that level itself, and .npy keeps what lies above full scale.

With --sheared the rows are as a language model samples them: codebook c of frame t in row t + c. Speech
ends at --eos, else at the first value of CODES.npy.eos.npy, if that file is there, else (and where that
value is negative, which means none) at the first row whose column 0 is no code; cells of columns 1 to 9
that hold no code are missing.

Examples:
  zonos zac decode codes.npy speech.wav --model zac-1-decoder-keep2_plain.safetensors
  zonos zac decode codes.npy speech.npy --model hub:Zyphra/ZAC-1 --variant full_mr --headroom-db 0
      raw float32 samples, [samples]
  zonos zac decode rows.npy speech.wav --model zac-1 --sheared --skip-frames 45
      without the three seconds that were the prompt")]
pub(super) struct DecodeArgs {
    /// Codes to decode.
    #[arg(value_name = "CODES.npy")]
    codes: PathBuf,
    /// File to write: .npy (float32 samples), .wav, .flac, .opus or .ogg (Opus), .mp3 (builds with
    /// --features mp3), .f32, .s16 or .raw.
    #[arg(value_name = "OUT.wav|OUT.npy")]
    output: PathBuf,
    /// Decibels to take off the decoder's level.
    #[arg(long, value_name = "X", default_value_t = HEADROOM_DB, allow_negative_numbers = true, value_parser = between(-60.0, 120.0))]
    headroom_db: f64,
    /// Frames to decode at a time; the result is the same but for rounding.
    #[arg(long, value_name = "N", default_value_t = BLOCK, value_parser = whole::<u32>(1, 1_000_000), allow_negative_numbers = true)]
    block: u32,
    #[command(flatten)]
    sheared: ShearedArgs,
    /// With --sheared: leave out the audio of the first N frames, which are decoded all the same.
    #[arg(long, value_name = "N", requires = "sheared", allow_negative_numbers = true, value_parser = whole::<u32>(0, u32::MAX))]
    skip_frames: Option<u32>,
    #[command(flatten)]
    model: DecoderArgs,
    #[command(flatten)]
    device: DeviceArgs,
}

impl DecodeArgs {
    fn skip(&self) -> usize {
        self.skip_frames.unwrap_or(0) as usize
    }
}

/// Codes as a language model samples them.
#[derive(Debug, Args)]
struct ShearedArgs {
    /// The codes are delayed rows: codebook c of frame t in row t + c.
    #[arg(long)]
    sheared: bool,
    /// With --sheared: frame at which speech ends, -1 for none [default: from CODES.npy.eos.npy].
    #[arg(long, value_name = "N", requires = "sheared", allow_negative_numbers = true, value_parser = whole::<i32>(-1, i32::MAX))]
    eos: Option<i32>,
}

/// Arguments of `zonos zac seam`.
#[derive(Debug, Args)]
#[command(after_help = "\
Decodes once whole and once as a stream, in blocks of --block frames, and compares. A stream has the
same sums to make in another order, so 1e-5, or 2e-5 of the peak, is allowed. Above that the exit code
is 1.

Example:
  zonos zac seam codes.npy --model zac-1-decoder-keep2_plain.safetensors --block 1")]
pub(super) struct SeamArgs {
    /// Codes to decode, [frames, 10].
    #[arg(value_name = "CODES.npy")]
    codes: PathBuf,
    /// Frames in a block.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = whole::<u32>(1, 1_000_000), allow_negative_numbers = true)]
    block: u32,
    #[command(flatten)]
    sheared: ShearedArgs,
    #[command(flatten)]
    model: DecoderArgs,
    #[command(flatten)]
    device: DeviceArgs,
}

impl ShearedArgs {
    /// Codes to decode, and the decoder they are checked for.
    fn codes(&self, path: &Path, codes: Codes, open: &OpenDecoder) -> Result<Codes, Failure> {
        let codes = if self.sheared {
            let eos = match self.eos {
                Some(eos) => Some(eos),
                None => read_eos(&eos_path(path))?,
            };
            unsheared(path, &codes, eos, &open.config)?
        } else {
            if codes.is_empty() {
                return Err(Failure::failed(format!(
                    "{}: no frames to decode",
                    path.display()
                )));
            }
            codes
        };
        open.check_codes(path, &codes)?;
        Ok(codes)
    }
}

pub(super) fn run(args: &DecodeArgs, global: &GlobalArgs) -> Outcome {
    let format = sound_or_npy(&args.output)?;
    let device = args.device.open()?;
    output::distinct(&[("CODES.npy", &args.codes), ("OUT", &args.output)])?;
    if args.sheared.sheared {
        let eos = eos_path(&args.codes);
        output::distinct(&[("CODES.npy.eos.npy", &eos), ("OUT", &args.output)])?;
    }
    output::check_file(&args.output)?;
    // Codes are read first: a wrong file is found before the weights are.
    let codes = Codes::load_npy(&args.codes)?;
    let open = OpenDecoder::of(&args.model, global.quiet)?;
    output::spares(
        &open.checkpoint,
        &args.model.model,
        &[("OUT", &args.output)],
    )?;
    let codes = args.sheared.codes(&args.codes, codes, &open)?;
    if args.skip() >= codes.frames() {
        return Err(Failure::failed(format!(
            "--skip-frames {}: {} has {} frames, so nothing would be left",
            args.skip(),
            args.codes.display(),
            codes.frames()
        )));
    }
    let decoder = open.load(&device)?;

    let _stepping = Stepping::begin();
    let began = Instant::now();
    let frames = codes.frames();
    let bar = FrameBar::new(global.quiet, "decoding", frames as u64, FRAME_SECONDS);
    let block = args.block as usize;
    let mut samples = streamed(&decoder, &codes, block, &mut |frames| bar.at(frames as u64))?;
    bar.done();
    let elapsed = began.elapsed();
    weights::check_audio(&samples, &open.checkpoint)?;
    samples.drain(..args.skip() * HOP);
    let gain = ZacDecoder::gain(args.headroom_db);
    for x in &mut samples {
        *x *= gain;
    }
    let count = samples.len();
    let peak = samples.iter().fold(0.0f32, |m, x| m.max(x.abs()));
    match format {
        None => npy::write_f32(&args.output, &[count], &samples)?,
        Some(format) => Waveform::new(samples, SAMPLE_RATE).save_as(&args.output, format)?,
    }
    let speed = Rate::of(frames as u64, elapsed, FRAME_SECONDS);
    let seconds = count as f64 / f64::from(SAMPLE_RATE);
    if global.json {
        output::print_json(&json!({
            "output": args.output.display().to_string(),
            "frames": frames,
            "skipped_frames": args.skip(),
            "samples": count,
            "sample_rate": SAMPLE_RATE,
            "seconds": seconds,
            "gain": gain,
            "peak": peak,
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

pub(super) fn seam(args: &SeamArgs, global: &GlobalArgs) -> Outcome {
    let device = args.device.open()?;
    let codes = Codes::load_npy(&args.codes)?;
    let open = OpenDecoder::of(&args.model, global.quiet)?;
    let codes = args.sheared.codes(&args.codes, codes, &open)?;
    let decoder = open.load(&device)?;
    let data = TensorData::new(
        codes.values().to_vec(),
        [1, codes.frames(), codes.codebooks()],
    );
    let data = Tensor::<3, Int>::from_data(data, (&device, DType::I32));
    let whole = decoder.decode_tensor(data, &mut Tap::off())?;
    let whole = whole.into_data().convert::<f32>().try_into_vec();
    let whole = whole.map_err(|_| anyhow::anyhow!("the device returned no samples"))?;
    let whole = Waveform::new(whole, SAMPLE_RATE);
    weights::check_audio(whole.samples(), &open.checkpoint)?;
    interrupt::check()?;
    let pieces = streamed(&decoder, &codes, args.block as usize, &mut |_| ())?;
    let worst = compare::seam(&whole, &pieces)?;
    let allowed = seam_tolerance(whole.peak());
    // Written so that a NaN fails.
    let passed = worst <= allowed;
    if global.json {
        output::print_json(&json!({
            "frames": codes.frames(),
            "block": args.block,
            "samples": pieces.len(),
            "peak": whole.peak(),
            "max_difference": worst,
            "allowed": allowed,
            "passed": passed,
            "device": args.device.device,
        }))?;
    } else {
        output::print(format_args!(
            "max |d| = {worst:e} over {} samples, peak {:.3}, block {}",
            pieces.len(),
            whole.peak(),
            args.block
        ))?;
    }
    if passed {
        Ok(ExitCode::SUCCESS)
    } else {
        Err(Failure::failed(format!(
            "streamed and whole decoding differ by {worst:e}; allowed is {allowed:e} at a peak of {:.3}",
            whole.peak()
        )))
    }
}

/// The largest difference between streamed and whole samples of this peak.
pub(crate) fn seam_tolerance(peak: f32) -> f32 {
    (2e-5 * peak).max(1e-5)
}

/// The codes of delayed rows, up to the end of speech. Without an end given (`None`, or a negative one)
/// it is the first row whose first column is no code.
fn unsheared(
    path: &Path,
    rows: &Codes,
    eos: Option<i32>,
    config: &ZacConfig,
) -> anyhow::Result<Codes> {
    let name = path.display();
    let (q, sizes) = (config.codebooks(), config.codebook_sizes());
    if rows.codebooks() != q {
        bail!(
            "{name}: codes have {} columns, expected {q}: one for each codebook",
            rows.codebooks()
        );
    }
    let coded = |value: i32, c: usize| usize::try_from(value).is_ok_and(|v| v < sizes[c]);
    let given = eos.and_then(|eos| usize::try_from(eos).ok());
    let end = match given {
        Some(end) => {
            let first = (0..end.min(rows.frames())).find(|&t| !coded(rows.row(t)[0], 0));
            if let Some(t) = first {
                bail!(
                    "{name}: row {t}, column 0 is {}, no code from 0 to {}, but speech is said to end at frame {end}",
                    rows.row(t)[0],
                    sizes[0] - 1
                );
            }
            ensure!(
                end <= rows.frames(),
                "{name}: speech is said to end at frame {end}, but there are only {} rows",
                rows.frames()
            );
            end
        }
        None => rows.rows().take_while(|row| coded(row[0], 0)).count(),
    };
    ensure!(
        end > 0,
        "{name}: speech ends at frame 0, so there is nothing to decode"
    );
    let cell = |t: usize, c: usize| {
        let value = rows.row(t + c).get(c).copied().unwrap_or(Codes::MISSING);
        if coded(value, c) {
            value
        } else {
            Codes::MISSING
        }
    };
    let values = (0..end).flat_map(|t| (0..q).map(move |c| (t, c)));
    let values = values.map(|(t, c)| cell(t, c)).collect();
    Ok(Codes::new(end, q, values)?)
}

/// The end of speech from the file beside delayed rows; `None` when there is no such file.
fn read_eos(path: &Path) -> anyhow::Result<Option<i32>> {
    if !path.exists() {
        return Ok(None);
    }
    let array = npy::read(path)?;
    match array.to_i32()?.first() {
        Some(eos) => Ok(Some(*eos)),
        None => Err(array
            .shape_error("[1], the frame at which speech ends")
            .into()),
    }
}
