//! `zonos zac encode`: audio into codes.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use serde_json::json;
use zonos_audio::{Codes, Waveform};
use zonos_nn::Tap;
use zonos_zac::{
    EncodeProgress, MAX_SECONDS, MIN_SECONDS, PrepareOptions, SAMPLE_RATE, ZacEncoder, ZacError,
    prepare_audio,
};

use super::{
    FRAME_SECONDS, MapArgs, OpenEncoder, Recording, TeacherArgs, is_numbered, left_over,
    not_prepared,
};
use crate::args::{DeviceArgs, GlobalArgs, between};
use crate::commands::validate;
use crate::failure::{Failure, Outcome};
use crate::interrupt::{self, Stepping};
use crate::output::{self, Staging};
use crate::progress::{FrameBar, Rate};

/// Arguments of `zonos zac encode`.
#[derive(Debug, Args)]
#[command(after_help = "\
AUDIO is any sound file (WAV, MP3, FLAC, Ogg, M4A and others, told by content), or a .npy file of
samples at 44.1 kHz. Channels are averaged, the sound is resampled to 44.1 kHz and, if it exceeds full
scale, divided by its peak; what lies beyond --max-seconds is cut off on a whole frame. CODES.npy gets
[frames, 10] int32, a frame for every 2940 samples or part of them.

Long recordings are encoded in lanes of 20 seconds that see 10 seconds before them, so memory does not
grow with the length. Ctrl-C stops between two steps of a lane, a second one at once.

--dump writes every tensor on the way as DIR/laneK.NAME.npy, under the names of the golden files:
audio_44160, encoder.N, audio_16000, fbank, teacher.hiddenN, semantic_aligned, rvq.residualN and so on.

Less than 0.5 s, silence and NaN are refused.

Examples:
  zonos zac encode speech.mp3 codes.npy --model zac-1-encoder.safetensors
  zonos zac encode talk.flac codes.npy --model hub:Zyphra/ZAC-1 --max-seconds 60
  zonos zac encode speech.wav codes.npy --model codec.safetensors --teacher w2v-bert-2.0 --dump taps")]
pub(super) struct EncodeArgs {
    /// Audio to encode.
    #[arg(value_name = "AUDIO")]
    audio: PathBuf,
    /// Codes to write, [frames, 10] int32.
    #[arg(value_name = "CODES.npy")]
    output: PathBuf,
    #[command(flatten)]
    prepare: PrepareArgs,
    /// Also write every intermediate tensor into this folder.
    #[arg(long, value_name = "DIR")]
    dump: Option<PathBuf>,
    /// ZAC-1 encoder: a file, a folder or hub:owner/name[@revision].
    #[arg(long, value_name = "FILE|DIR|hub:ID", env = "ZONOS_ZAC_ENCODER", value_parser = NonEmptyStringValueParser::new(), help_heading = "Weights")]
    model: String,
    #[command(flatten)]
    teacher: TeacherArgs,
    #[command(flatten)]
    map: MapArgs,
    #[command(flatten)]
    device: DeviceArgs,
}

/// How recordings are prepared.
#[derive(Debug, Args)]
pub(super) struct PrepareArgs {
    /// Encode at most so many seconds.
    #[arg(long, value_name = "S", default_value_t = MAX_SECONDS, allow_negative_numbers = true, value_parser = between(MIN_SECONDS, MAX_SECONDS))]
    max_seconds: f64,
    /// Leave peaks above full scale as they are.
    #[arg(long)]
    no_peak_normalize: bool,
}

impl PrepareArgs {
    /// A recording as the encoder takes it, and what was odd about it. What is cut off is said on stderr.
    pub(super) fn apply(
        &self,
        path: &Path,
        recording: Recording,
    ) -> Result<(Waveform, Vec<String>), Failure> {
        let options = PrepareOptions {
            max_seconds: self.max_seconds,
            peak_normalize: !self.no_peak_normalize,
        };
        let seconds = recording.seconds();
        let prepared = prepare_audio(&recording.channels, recording.rate, &options)
            .map_err(|error| not_prepared(path, error))?;
        let mut warnings = recording.warnings;
        // Less than a sample is lost to resampling.
        let rounding = 1.0 / f64::from(SAMPLE_RATE) + 1.0 / f64::from(recording.rate);
        if seconds > prepared.seconds() + rounding {
            let why = if self.max_seconds < MAX_SECONDS {
                " (--max-seconds)"
            } else {
                ", the most that is encoded"
            };
            let warning = format!(
                "{seconds:.2} s long, cut to {:.2} s{why}",
                prepared.seconds()
            );
            output::note(
                false,
                format_args!("warning: {}: {warning}", path.display()),
            );
            warnings.push(warning);
        }
        Ok((prepared, warnings))
    }
}

/// Codes, and how they came about.
pub(super) struct Encoded {
    pub(super) codes: Codes,
    /// Time of computing.
    pub(super) elapsed: Duration,
}

/// Takes what a tap saw of a lane, by the lane's number.
type Shown<'a> = &'a mut dyn FnMut(usize, Tap<'_>) -> Result<(), Failure>;

/// Encodes lane by lane, with a bar. `shown` is handed what a tap saw of each lane, if there is one.
pub(super) fn encode_audio(
    encoder: &ZacEncoder,
    audio: &Waveform,
    quiet: bool,
    mut shown: Option<Shown<'_>>,
) -> Result<Encoded, Failure> {
    let began = Instant::now();
    let frames = encoder.frames(audio.len());
    let bar = FrameBar::new(quiet, "encoding", frames as u64, FRAME_SECONDS);
    let mut step = |progress: &EncodeProgress| {
        bar.at(progress.frames as u64);
        interrupt::go_on()
    };
    let mut values = Vec::new();
    for (k, lane) in encoder.lanes(audio.len()).enumerate() {
        let mut tap = match shown {
            Some(_) => Tap::on(),
            None => Tap::off(),
        };
        let codes = encoder
            .encode_lane(audio, &lane, &mut tap, &mut step)
            .map_err(|error| match error {
                ZacError::Stopped => Failure::Interrupted,
                error => error.into(),
            })?;
        let q = codes.codebooks();
        values.extend_from_slice(&codes.values()[lane.context * q..]);
        if let Some(shown) = &mut shown {
            shown(k, tap)?;
        }
    }
    bar.done();
    let codebooks = encoder.config().codebooks();
    Ok(Encoded {
        codes: Codes::new(values.len() / codebooks, codebooks, values)?,
        elapsed: began.elapsed(),
    })
}

pub(super) fn run(args: &EncodeArgs, global: &GlobalArgs) -> Outcome {
    output::check_ending(&args.output, "npy")?;
    let device = args.device.open()?;
    output::distinct(&[("AUDIO", &args.audio), ("CODES.npy", &args.output)])?;
    output::check_file(&args.output)?;
    if let Some(dump) = &args.dump {
        output::check_folder_or_parent(dump)?;
    }
    // The audio is read first: a wrong file is found before the weights are.
    let recording = Recording::read(&args.audio)?;
    let (rate, channels) = (recording.rate, recording.channels.len());
    let (audio, warnings) = args.prepare.apply(&args.audio, recording)?;
    let open = OpenEncoder::open(&args.model, &args.teacher, args.map.read()?, global.quiet)?;
    let outputs: [(&str, &Path); 1] = [("CODES.npy", &args.output)];
    output::spares(&open.checkpoint, &args.model, &outputs)?;
    let encoder = open.load(&device)?;

    let _stepping = Stepping::begin();
    let staging = args.dump.as_deref().map(Staging::begin).transpose()?;
    let mut dumped = BTreeSet::new();
    let mut dump = |k: usize, tap: Tap| -> Result<(), Failure> {
        let Some(staging) = &staging else {
            return Ok(());
        };
        for (name, data) in tap.into_records() {
            let shape: Vec<usize> = data.shape().iter().copied().collect();
            interrupt::check()?;
            let file = format!("lane{k}.{name}.npy");
            validate::write(&staging.path().join(&file), &shape, data).map_err(|error| {
                let target = args.dump.as_deref().unwrap_or(Path::new(""));
                output::of_target(error, staging.path(), target)
            })?;
            dumped.insert(file);
        }
        Ok(())
    };
    let done = encode_audio(
        &encoder,
        &audio,
        global.quiet,
        staging.is_some().then_some(&mut dump),
    )?;
    interrupt::check()?;
    let codes = done.codes.stage_npy(&args.output)?;
    if let Some(staging) = staging {
        staging.commit()?;
    }
    codes.commit()?;
    let old = args.dump.as_deref().map_or_else(Vec::new, |folder| {
        left_over(folder, &dumped, |name| {
            is_numbered(name, "lane", ".") && name.ends_with(".npy")
        })
    });
    let frames = done.codes.frames();
    let speed = Rate::of(frames as u64, done.elapsed, FRAME_SECONDS);
    let seconds = audio.seconds();
    if global.json {
        output::print_json(&json!({
            "output": args.output.display().to_string(),
            "dump": args.dump.as_ref().map(|path| path.display().to_string()),
            "dumped_tensors": dumped.len(),
            "left_over": old,
            "frames": frames,
            "codebooks": done.codes.codebooks(),
            "input_sample_rate": rate,
            "input_channels": channels,
            "warnings": warnings,
            "samples": audio.len(),
            "sample_rate": SAMPLE_RATE,
            "seconds": seconds,
            "encode_s": done.elapsed.as_secs_f64(),
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
                done.elapsed.as_secs_f64()
            ),
        );
    }
    Ok(ExitCode::SUCCESS)
}
