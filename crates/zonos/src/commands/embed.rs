//! `zonos embed`: the voice vector of a recording.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, ensure};
use burn::tensor::{DType, Device, Tensor, TensorData};
use clap::builder::NonEmptyStringValueParser;
use clap::{ArgGroup, Args};
use serde_json::json;
use zonos_audio::decode::decode_file;
use zonos_audio::npy::NpyData;
use zonos_audio::reference::{MIN_SECONDS, check_reference, reference_of};
use zonos_audio::{Waveform, npy};
use zonos_checkpoint::LoadOptions;
use zonos_ecapa::Ecapa;
use zonos_tts::CLONE_LIMITS;

use crate::args::{DeviceArgs, GlobalArgs, whole};
use crate::failure::{Failure, Outcome};
use crate::reading::cannot_read;
use crate::{interrupt, output, weights};

/// Samples between two mel frames.
const HOP: f64 = 256.0;

/// Logarithm of the level below which a mel band counts as silent, and room for rounding.
const SILENT_BAND: f32 = -11.512_925 + 1e-3;

/// Arguments of `zonos embed`.
#[derive(Debug, Args)]
#[command(
    allow_missing_positional = true,
    group(ArgGroup::new("input").required(true).args(["audio", "mel", "wav24k", "raw"])),
    after_help = "\
AUDIO is any sound file (WAV, MP3, FLAC, Ogg, M4A and others, told by content), up to ten minutes.
Its channels are averaged and resampled to the encoder's rate. EMB.npy gets the vector as <f4 of
shape [D], D being 2048 for the released encoder, for --speaker of `zonos tts` and others.

What makes no voice is refused: less than 0.3 s, silence, NaN, samples 60 dB above full scale. Quiet
speech is fine.

Best are recordings of 24 kHz or more. Others are resampled as torchaudio does it, which leaves mirror
images above the old half rate: the vector of a clip at 16 kHz differs in what its top bands say.

Examples:
  zonos embed voice.mp3 emb.npy --model hub:marksverdhei/Qwen3-Voice-Embedding-12Hz-1.7B
  zonos tts \"Hello.\" -o hello.wav --model zonos2 --codec dac.pth --speaker emb.npy
  zonos embed emb.npy --model speaker-encoder --raw voice.f32 --rate 16000"
)]
pub(crate) struct EmbedArgs {
    /// Recording of one speaker.
    #[arg(value_name = "AUDIO")]
    audio: Option<PathBuf>,
    /// File to write.
    #[arg(value_name = "EMB.npy")]
    embedding: PathBuf,
    /// Instead of AUDIO: log-mel frames, [frames, bands].
    #[arg(long, value_name = "MEL.npy")]
    mel: Option<PathBuf>,
    /// Instead of AUDIO: mono samples at the encoder's rate, 24 kHz, floats of [samples] between -1 and 1.
    #[arg(long, value_name = "PCM.npy")]
    wav24k: Option<PathBuf>,
    /// Instead of AUDIO: mono samples as little-endian 32-bit floats without a header.
    #[arg(long, value_name = "PCM.f32")]
    raw: Option<PathBuf>,
    /// Sample rate of --raw, in Hz [default: the encoder's].
    #[arg(long, value_name = "HZ", requires = "raw", allow_negative_numbers = true, value_parser = whole::<u32>(1000, 384_000))]
    rate: Option<u32>,
    /// Speaker encoder: a folder, a file (.safetensors, .pth, .gguf) or hub:owner/name[@revision].
    #[arg(long, value_name = "DIR|FILE|hub:ID", env = "ZONOS_SPEAKER_ENCODER", value_parser = NonEmptyStringValueParser::new(), help_heading = "Weights")]
    model: String,
    #[command(flatten)]
    device: DeviceArgs,
}

/// Where the vector comes from.
#[derive(Clone, Copy)]
enum Input<'a> {
    Audio(&'a Path),
    Mel(&'a Path),
    Samples(&'a Path),
    Raw(&'a Path),
}

impl<'a> Input<'a> {
    fn of(args: &'a EmbedArgs) -> Option<Self> {
        let audio = args.audio.as_deref().map(Self::Audio);
        let mel = args.mel.as_deref().map(Self::Mel);
        let samples = args.wav24k.as_deref().map(Self::Samples);
        let raw = args.raw.as_deref().map(Self::Raw);
        audio.or(mel).or(samples).or(raw)
    }

    fn name(self) -> (&'static str, &'a Path) {
        match self {
            Self::Audio(path) => ("AUDIO", path),
            Self::Mel(path) => ("--mel", path),
            Self::Samples(path) => ("--wav24k", path),
            Self::Raw(path) => ("--raw", path),
        }
    }
}

/// What was read.
enum Source {
    Sound(Waveform),
    /// `[frames, bands]`.
    Mel {
        values: Vec<f32>,
        bands: usize,
    },
}

/// Runs the command.
pub(crate) fn run(args: &EmbedArgs, global: &GlobalArgs) -> Outcome {
    let input =
        Input::of(args).ok_or_else(|| Failure::usage("give AUDIO, --mel, --wav24k or --raw"))?;
    output::check_ending(&args.embedding, "npy")?;
    // The parser lets it pass beside another input, which excludes the one that it requires.
    if args.rate.is_some() && args.raw.is_none() {
        return Err(Failure::usage(
            "--rate goes with --raw; other inputs tell their rate, or have the encoder's",
        ));
    }
    let device = args.device.open()?;
    let (flag, path) = input.name();
    output::distinct(&[(flag, path), ("EMB.npy", &args.embedding)])?;
    output::check_file(&args.embedding)?;
    // Recordings are read first: a wrong one is found before the weights are. Samples without a rate
    // of their own wait for the encoder's.
    let (mut channels, mut warnings) = (1, Vec::new());
    let early = match input {
        Input::Audio(path) => {
            let decoded = decode_file(path, &CLONE_LIMITS)?;
            channels = decoded.info.channels;
            warnings.clone_from(&decoded.warnings);
            Some(reference_of(decoded).with_context(|| path.display().to_string())?)
        }
        _ => None,
    };
    for warning in &warnings {
        output::note(
            false,
            format_args!("warning: {}: {warning}", path.display()),
        );
    }

    let checkpoint = weights::open_speaker_encoder(&args.model, global.quiet)?;
    output::spares(&checkpoint, &args.model, &[("EMB.npy", &args.embedding)])?;
    let (ecapa, report) = Ecapa::load_with(&checkpoint, &LoadOptions::default(), &device)?;
    weights::warn(&report, false);
    let rate = ecapa.config().sample_rate as u32;
    let source = match (early, input) {
        (Some(sound), _) => Source::Sound(sound),
        (None, Input::Mel(path)) => read_mel(path, &ecapa)?,
        (None, Input::Raw(path)) => {
            let sound = Waveform::new(read_raw(path)?, args.rate.unwrap_or(rate));
            checked(path, &sound)?;
            Source::Sound(sound)
        }
        (None, Input::Samples(path) | Input::Audio(path)) => {
            let sound = Waveform::new(read_samples(path)?, rate);
            checked(path, &sound)?;
            Source::Sound(sound)
        }
    };
    interrupt::check()?;

    let began = Instant::now();
    let (mel, seconds) = match source {
        Source::Sound(sound) => (ecapa.log_mel(&sound)?, sound.seconds()),
        Source::Mel { values, bands } => {
            let frames = values.len() / bands;
            let seconds = frames as f64 * HOP / f64::from(rate);
            (on_device(values, frames, bands, &device), seconds)
        }
    };
    let frames = mel.dims()[1];
    let voice = ecapa
        .embed_mel(mel)
        .with_context(|| format!("{} through {}", path.display(), checkpoint.path().display()))?;
    let elapsed = began.elapsed();
    interrupt::check()?;
    npy::write_f32(&args.embedding, &[voice.len()], &voice)?;
    if global.json {
        let norm = voice.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>();
        output::print_json(&json!({
            "output": args.embedding.display().to_string(),
            "input": path.display().to_string(),
            "dim": voice.len(),
            "norm": norm.sqrt(),
            "seconds": seconds,
            "channels": channels,
            "frames": frames,
            "warnings": warnings,
            "embed_s": elapsed.as_secs_f64(),
            "device": args.device.device,
        }))?;
    } else {
        output::note(
            global.quiet,
            format_args!(
                "{}: {} numbers from {seconds:.2} s of audio in {:.2} s",
                args.embedding.display(),
                voice.len(),
                elapsed.as_secs_f64()
            ),
        );
    }
    Ok(ExitCode::SUCCESS)
}

fn checked(path: &Path, sound: &Waveform) -> anyhow::Result<()> {
    check_reference(sound).with_context(|| path.display().to_string())
}

fn on_device(values: Vec<f32>, frames: usize, bands: usize, device: &Device) -> Tensor<3> {
    let data = TensorData::new(values, [1, frames, bands]);
    Tensor::from_data(data, (device, DType::F32))
}

/// Log-mel frames `[frames, bands]`, with the same refusals as recordings.
fn read_mel(path: &Path, ecapa: &Ecapa) -> anyhow::Result<Source> {
    let array = npy::read(path)?;
    let bands = ecapa.config().mel_dim;
    let frames = match array.shape() {
        &[frames, width] | &[1, frames, width] if width == bands => frames,
        _ => return Err(array.shape_error(format_args!("[frames, {bands}]")).into()),
    };
    let name = path.display();
    let seconds = frames as f64 * HOP / ecapa.config().sample_rate as f64;
    // Of 0.3 s the last part of a frame is no frame.
    let least = (MIN_SECONDS * ecapa.config().sample_rate as f64 / HOP).floor();
    ensure!(
        frames as f64 >= least,
        "{name}: {frames} mel frames are {seconds:.2} s; at least {MIN_SECONDS} s are needed, {least} frames"
    );
    let values = array.to_f32();
    // No f32 has a logarithm beyond 89.
    if let Some(at) = values.iter().position(|x| x.is_nan() || x.abs() > 104.0) {
        return Err(array
            .element_error(at, values[at], "the finite logarithm of a level")
            .into());
    }
    ensure!(
        values.iter().any(|&x| x > SILENT_BAND),
        "{name}: the mel frames are silent, no band is above {SILENT_BAND}; record speech, however quiet"
    );
    Ok(Source::Mel { values, bands })
}

/// Mono samples `[samples]`.
fn read_samples(path: &Path) -> anyhow::Result<Vec<f32>> {
    let shape = npy::read_shape(path)?;
    let most = CLONE_LIMITS.max_decoded_bytes / 4;
    let count = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
    ensure!(
        count.is_some_and(|count| count as u64 <= most),
        "{}: more than {most} samples",
        path.display()
    );
    let array = npy::read(path)?;
    // How integers stand for levels is not said in the file.
    ensure!(
        matches!(
            array.data(),
            NpyData::F16(_) | NpyData::F32(_) | NpyData::F64(_)
        ),
        "{}: the samples are integers; expected float32 samples between -1 and 1, such as x / 32768 of 16-bit ones",
        path.display()
    );
    match array.shape() {
        &[_] | &[1, _] => Ok(array.to_f32()),
        _ => Err(array.shape_error("[samples], one channel").into()),
    }
}

/// Headerless little-endian f32.
fn read_raw(path: &Path) -> anyhow::Result<Vec<f32>> {
    let name = path.display();
    let failed = |error| cannot_read(path, &error);
    let file = File::open(path).map_err(failed)?;
    ensure!(
        file.metadata().map_err(failed)?.is_file(),
        "{name}: not a regular file; give one"
    );
    let mut bytes = Vec::new();
    file.take(CLONE_LIMITS.max_encoded_bytes + 1)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    ensure!(
        bytes.len() as u64 <= CLONE_LIMITS.max_encoded_bytes,
        "{name}: more than {} MiB",
        CLONE_LIMITS.max_encoded_bytes >> 20
    );
    let (values, rest) = bytes.as_chunks::<4>();
    ensure!(
        rest.is_empty(),
        "{name}: {} bytes are no whole number of 32-bit floats",
        bytes.len()
    );
    Ok(values.iter().map(|b| f32::from_le_bytes(*b)).collect())
}
