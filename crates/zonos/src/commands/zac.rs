//! `zonos zac`: the ZAC-1 codec.

mod decode;
mod encode;
mod features;
mod roundtrip;

pub(crate) use decode::seam_tolerance;

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::Context;
use burn::tensor::Device;
use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Subcommand, ValueEnum};
use zonos_audio::decode::{DecodeLimits, decode_file};
use zonos_audio::encode::AudioFormat;
use zonos_audio::{Codes, npy};
use zonos_checkpoint::{Checkpoint, LoadOptions, LoadReport};
use zonos_zac::{HOP, NameOverrides, PrepareError, SAMPLE_RATE, ZacConfig, ZacDecoder, ZacEncoder};

use crate::args::GlobalArgs;
use crate::failure::{Failure, Outcome};
use crate::interrupt;
use crate::{output, weights};

/// Seconds of a frame.
const FRAME_SECONDS: f64 = HOP as f64 / SAMPLE_RATE as f64;

/// Frames decoded at a time unless --block says otherwise: five seconds, so that memory does not grow
/// with the length of the audio.
const BLOCK: u32 = 75;

/// Name of the encoder's file in a folder or repository.
pub(crate) const ENCODER_FILE: &str = "zac-1-encoder.safetensors";

/// Arguments of `zonos zac`.
#[derive(Debug, Args)]
#[command(after_help = "\
ZAC-1 turns 44.1 kHz speech into ten codes a frame at 15 frames a second (1.8 kbit/s) and back. Its
files are zac-1-encoder.safetensors, zac-1-decoder-keep2_plain.safetensors (small and fast) and
zac-1-decoder-full_mr.safetensors; --model takes a file, a folder with these names or
hub:Zyphra/ZAC-1, of which only the file that is needed is downloaded.

Examples:
  zonos zac encode speech.mp3 codes.npy --model zac-1-encoder.safetensors
  zonos zac decode codes.npy again.wav --model hub:Zyphra/ZAC-1
  zonos zac decode rows.npy speech.wav --model zac-1 --variant full_mr --sheared
  zonos zac roundtrip speech.wav again.wav --encoder zac-1 --decoder zac-1 --plot spectra.png")]
pub(crate) struct ZacArgs {
    #[command(subcommand)]
    command: ZacCommand,
}

#[derive(Debug, Subcommand)]
enum ZacCommand {
    /// Encode audio into codes.
    Encode(encode::EncodeArgs),
    /// Decode codes into audio.
    Decode(decode::DecodeArgs),
    /// Encode audio, decode it again, and tell how much became of it.
    Roundtrip(roundtrip::RoundtripArgs),
    /// Compare streamed with whole decoding and print the largest difference of a sample.
    Seam(decode::SeamArgs),
    /// Write what the encoder's teacher, Wav2Vec2-BERT, makes of a recording, layer by layer.
    Features(features::FeaturesArgs),
}

/// Runs the command.
pub(crate) fn run(args: &ZacArgs, global: &GlobalArgs) -> Outcome {
    match &args.command {
        ZacCommand::Encode(args) => encode::run(args, global),
        ZacCommand::Decode(args) => decode::run(args, global),
        ZacCommand::Roundtrip(args) => roundtrip::run(args, global),
        ZacCommand::Seam(args) => decode::seam(args, global),
        ZacCommand::Features(args) => features::run(args, global),
    }
}

/// The decoder's weights.
#[derive(Debug, Args)]
#[command(next_help_heading = "Weights")]
struct DecoderArgs {
    /// ZAC-1 decoder: a file, a folder or hub:owner/name[@revision].
    #[arg(long, value_name = "FILE|DIR|hub:ID", env = "ZONOS_ZAC_DECODER", value_parser = NonEmptyStringValueParser::new())]
    model: String,
    #[command(flatten)]
    variant: VariantArgs,
    #[command(flatten)]
    map: MapArgs,
}

/// Which of the two decoders.
#[derive(Debug, Args)]
#[command(next_help_heading = "Weights")]
struct VariantArgs {
    /// The decoder to take from a folder or repository; a file is taken as it is.
    #[arg(long, value_name = "V", value_enum, default_value_t)]
    variant: Variant,
}

/// The decoders that were released.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum Variant {
    /// Two layers a stage: 0.58 GB, about three times as fast.
    #[default]
    #[value(name = "keep2_plain")]
    Keep2Plain,
    /// All layers: 4.07 GB.
    #[value(name = "full_mr")]
    FullMr,
}

impl Variant {
    /// Its name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Keep2Plain => "keep2_plain",
            Self::FullMr => "full_mr",
        }
    }

    /// The decoder's file in a folder or repository.
    pub(crate) fn file(self) -> &'static str {
        match self {
            Self::Keep2Plain => "zac-1-decoder-keep2_plain.safetensors",
            Self::FullMr => "zac-1-decoder-full_mr.safetensors",
        }
    }
}

/// Names of tensors that are not the usual ones.
#[derive(Debug, Args)]
#[command(next_help_heading = "Weights")]
struct MapArgs {
    /// Table of tensor names, for files that spell them otherwise: JSON or TOML, our name = file's name.
    #[arg(long, value_name = "FILE")]
    map: Option<PathBuf>,
}

impl MapArgs {
    fn read(&self) -> Result<NameOverrides, Failure> {
        match &self.map {
            None => Ok(NameOverrides::default()),
            Some(path) => Ok(NameOverrides::from_file(path)?),
        }
    }
}

/// The weights of an encoder's parts.
#[derive(Debug, Args)]
#[command(next_help_heading = "Weights")]
struct TeacherArgs {
    /// Take the teacher from here, not from the encoder's file: a Wav2Vec2-BERT 2.0 folder, file or
    /// hub id, or another encoder's file.
    #[arg(long, value_name = "FILE|DIR|hub:ID", value_parser = NonEmptyStringValueParser::new())]
    teacher: Option<String>,
}

/// Opens a ZAC-1 file; its weights stay untouched. Of a folder or repository it is the one called
/// `name`.
fn open(reference: &str, name: &str, quiet: bool) -> Result<Checkpoint, Failure> {
    let named = reference.starts_with("hub:") || holds_released(Path::new(reference));
    let checkpoint = weights::open_file(reference, named.then_some(name), quiet)?;
    for notice in checkpoint.notices() {
        output::note(
            quiet,
            format_args!("note: {}: {notice}", checkpoint.path().display()),
        );
    }
    Ok(checkpoint)
}

/// Whether a folder holds files under the released names. Others may hold a single file of any name.
fn holds_released(folder: &Path) -> bool {
    let names = [
        ENCODER_FILE,
        Variant::Keep2Plain.file(),
        Variant::FullMr.file(),
    ];
    names.iter().any(|name| folder.join(name).is_file())
}

/// A decoder's file and its configuration, before its weights are read.
struct OpenDecoder {
    checkpoint: Checkpoint,
    map: NameOverrides,
    config: ZacConfig,
}

impl OpenDecoder {
    fn open(
        reference: &str,
        variant: Variant,
        map: &MapArgs,
        quiet: bool,
    ) -> Result<Self, Failure> {
        let map = map.read()?;
        let checkpoint = open(reference, variant.file(), quiet)?;
        // What is wrong is said before a weight is read.
        let report = ZacDecoder::check_mapped(&checkpoint, &map)?;
        let config = ZacConfig::from_mapped(&checkpoint, &map)?;
        warn(&report, &config);
        Ok(Self {
            checkpoint,
            map,
            config,
        })
    }

    fn of(args: &DecoderArgs, quiet: bool) -> Result<Self, Failure> {
        Self::open(&args.model, args.variant.variant, &args.map, quiet)
    }

    fn load(&self, device: &Device) -> Result<ZacDecoder, Failure> {
        let options = LoadOptions::default();
        let (decoder, report) =
            ZacDecoder::load_mapped(&self.checkpoint, &self.map, &options, device)?;
        weights::warn(&report, false);
        Ok(decoder)
    }

    fn check_codes(&self, path: &Path, codes: &Codes) -> anyhow::Result<()> {
        self.config
            .check_codes(codes)
            .with_context(|| path.display().to_string())
    }
}

/// An encoder's file, its teacher's where that is another, and its configuration.
struct OpenEncoder {
    checkpoint: Checkpoint,
    teacher: Option<Checkpoint>,
    map: NameOverrides,
}

impl OpenEncoder {
    fn open(
        reference: &str,
        teacher: &TeacherArgs,
        map: &MapArgs,
        quiet: bool,
    ) -> Result<Self, Failure> {
        let map = map.read()?;
        let checkpoint = open(reference, ENCODER_FILE, quiet)?;
        let teacher = teacher
            .teacher
            .as_deref()
            .map(|reference| open_teacher(reference, quiet))
            .transpose()?;
        let report = ZacEncoder::check_mapped(&checkpoint, teacher.as_ref(), &map)?;
        warn(&report, &ZacConfig::from_mapped(&checkpoint, &map)?);
        Ok(Self {
            checkpoint,
            teacher,
            map,
        })
    }

    fn load(&self, device: &Device) -> Result<ZacEncoder, Failure> {
        let options = LoadOptions::default();
        let (encoder, report) = ZacEncoder::load_mapped(
            &self.checkpoint,
            self.teacher.as_ref(),
            &self.map,
            &options,
            device,
        )?;
        weights::warn(&report, false);
        Ok(encoder)
    }
}

/// Opens a teacher: Wav2Vec2-BERT by itself, or inside an encoder's file.
fn open_teacher(reference: &str, quiet: bool) -> Result<Checkpoint, Failure> {
    if holds_released(Path::new(reference)) {
        return open(reference, ENCODER_FILE, quiet);
    }
    let checkpoint = weights::open(reference, quiet)?;
    for notice in checkpoint.notices() {
        output::note(
            quiet,
            format_args!("note: {}: {notice}", checkpoint.path().display()),
        );
    }
    Ok(checkpoint)
}

/// Says what is odd about a file without making it unusable.
fn warn(report: &LoadReport, config: &ZacConfig) {
    let file = &report.checkpoint;
    for key in &config.warnings {
        output::note(
            false,
            format_args!("warning: {file}: {key} is not known to this build, and not used"),
        );
    }
    for tensor in &report.unexpected {
        output::note(
            false,
            format_args!(
                "warning: {file}: tensor '{}' {:?} is not used: the model knows no such tensor",
                tensor.name, tensor.shape
            ),
        );
    }
}

/// The format that a path's ending asks for; `None` for `.npy`.
fn sound_or_npy(path: &Path) -> Result<Option<AudioFormat>, Failure> {
    let format = output::sound_format(path)?;
    if format.is_none() && path.extension().and_then(OsStr::to_str) != Some("npy") {
        return Err(Failure::usage(format!(
            "{}: the ending must be .npy, {}; it chooses the format",
            path.display(),
            AudioFormat::ENDINGS
        )));
    }
    Ok(format)
}

/// A recording: samples `[channels][samples]` and their rate.
struct Recording {
    channels: Vec<Vec<f32>>,
    rate: u32,
    /// What was odd about the file.
    warnings: Vec<String>,
}

impl Recording {
    /// Reads a sound file, or the samples of a `.npy` file (`[samples]` or `[channels, samples]` at 44.1
    /// kHz), told by content.
    fn read(path: &Path) -> Result<Self, Failure> {
        if is_npy(path) {
            return Ok(Self::read_npy(path)?);
        }
        let decoded = decode_file(path, &DecodeLimits::default())?;
        for warning in &decoded.warnings {
            let name = path.display();
            output::note(false, format_args!("warning: {name}: {warning}"));
        }
        Ok(Self {
            rate: decoded.info.sample_rate,
            channels: decoded.channels,
            warnings: decoded.warnings,
        })
    }

    fn read_npy(path: &Path) -> anyhow::Result<Self> {
        let most = DecodeLimits::default().max_decoded_bytes / 4;
        let shape = npy::read_shape(path)?;
        let count = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
        anyhow::ensure!(
            count.is_some_and(|count| count as u64 <= most),
            "{}: more than {most} samples",
            path.display()
        );
        let array = npy::read(path)?;
        let samples = match *array.shape() {
            [samples] => samples,
            [channels, samples] if channels <= 64 => samples,
            _ => {
                return Err(array
                    .shape_error("[samples], or [channels, samples] with up to 64 channels")
                    .into());
            }
        };
        let values = array.to_f32();
        let channels = values.chunks(samples.max(1)).map(<[f32]>::to_vec).collect();
        Ok(Self {
            channels,
            rate: SAMPLE_RATE,
            warnings: Vec::new(),
        })
    }

    fn seconds(&self) -> f64 {
        self.channels.first().map_or(0, Vec::len) as f64 / f64::from(self.rate)
    }
}

fn is_npy(path: &Path) -> bool {
    let mut magic = [0; 6];
    // A pipe would wait for its writer, and what was read of it would be gone.
    let regular = std::fs::metadata(path).is_ok_and(|meta| meta.is_file());
    regular
        && File::open(path).is_ok_and(|mut file| file.read_exact(&mut magic).is_ok())
        && magic == *b"\x93NUMPY"
}

/// The failure of preparing the recording at `path`.
fn not_prepared(path: &Path, error: PrepareError) -> Failure {
    anyhow::Error::from(error)
        .context(path.display().to_string())
        .into()
}

/// Decodes in blocks. `step` hears how many frames have gone in.
fn streamed(
    decoder: &ZacDecoder,
    codes: &Codes,
    block: usize,
    step: &mut dyn FnMut(usize),
) -> Result<Vec<f32>, Failure> {
    let mut stream = decoder.stream();
    let (frames, q) = (codes.frames(), codes.codebooks());
    let mut samples = Vec::with_capacity(frames * HOP);
    let mut at = 0;
    while at < frames {
        let next = frames.min(at + block);
        let part = Codes::new(next - at, q, codes.values()[at * q..next * q].to_vec())?;
        samples.extend(stream.decode(&part)?);
        at = next;
        step(at);
        interrupt::check()?;
    }
    samples.extend(stream.flush()?);
    Ok(samples)
}
