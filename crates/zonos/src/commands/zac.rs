//! `zonos zac`: the ZAC-1 codec.

mod decode;
mod encode;
mod features;
mod roundtrip;

pub(crate) use decode::seam_tolerance;

use std::collections::BTreeSet;
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
use zonos_zac::{
    HOP, NameOverrides, PrepareError, SAMPLE_RATE, StageConfig, ZacConfig, ZacDecoder, ZacEncoder,
};

use crate::args::GlobalArgs;
use crate::failure::{Failure, Outcome, one_line};
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
zac-1-decoder-full_mr.safetensors, in a folder also with .bpk or .gguf instead, as `zonos convert` writes
them; --model takes a file, a folder with these names or hub:Zyphra/ZAC-1, of which only the file that is
needed is downloaded.

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
    /// The decoder to take from a folder or repository [default: keep2_plain]. A file that holds the
    /// other one is refused.
    #[arg(long, value_name = "V", value_enum)]
    variant: Option<Variant>,
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
    /// Which decoder a file holds, by its layers: what its name says, anyone can change.
    fn of(config: &ZacConfig) -> Self {
        let pruned = config.stages.iter().all(|stage| match stage {
            StageConfig::Transformer(stage) => stage.layers.len() <= 2,
            StageConfig::Patch(_) => true,
        });
        if pruned {
            Self::Keep2Plain
        } else {
            Self::FullMr
        }
    }

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
    /// Our names of a teacher's tensors begin with "teacher.", also where --teacher gives it.
    #[arg(long, value_name = "FILE")]
    map: Option<PathBuf>,
}

impl MapArgs {
    fn read(&self) -> Result<NameOverrides, Failure> {
        read_map(self.map.as_deref())
    }
}

/// A table of names; none when no file is given.
fn read_map(path: Option<&Path>) -> Result<NameOverrides, Failure> {
    match path {
        None => Ok(NameOverrides::default()),
        Some(path) => Ok(NameOverrides::from_file(path)?),
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
    let folder = Path::new(reference);
    let here = released(folder, name);
    let named = reference.starts_with("hub:") || holds_released(folder);
    let file = here.as_deref().or(named.then_some(name));
    let opened = weights::open_file(reference, file, quiet);
    let checkpoint = opened.map_err(|failure| also_looked_for(failure, reference, name))?;
    say_notices(&checkpoint, quiet);
    Ok(checkpoint)
}

/// The failure to find anything in a folder, with the name that was looked for first.
fn also_looked_for(failure: Failure, reference: &str, name: &str) -> Failure {
    match failure {
        Failure::Failed(error) if Path::new(reference).is_dir() => {
            let (text, first) = (one_line(&error), format!("; looked for {name}"));
            // Where it was the only one, it is told already.
            if text.contains(&first) {
                return Failure::failed(text);
            }
            Failure::failed(text.replacen("; looked for ", &format!("{first}, "), 1))
        }
        other => other,
    }
}

/// What a checkpoint leaves out.
fn say_notices(checkpoint: &Checkpoint, quiet: bool) {
    let name = checkpoint.path().display();
    for notice in checkpoint.notices() {
        output::note(quiet, format_args!("note: {name}: {notice}"));
    }
}

/// The file of a folder that has a released name, or that name in another format.
fn released(folder: &Path, name: &str) -> Option<String> {
    let stem = name.strip_suffix(".safetensors")?;
    let names = ["safetensors", "bpk", "gguf"].map(|ending| format!("{stem}.{ending}"));
    names.into_iter().find(|name| folder.join(name).is_file())
}

/// Whether a folder holds files under the released names. Others may hold a single file of any name.
fn holds_released(folder: &Path) -> bool {
    let names = [
        ENCODER_FILE,
        Variant::Keep2Plain.file(),
        Variant::FullMr.file(),
    ];
    names.iter().any(|name| released(folder, name).is_some())
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
        variant: Option<Variant>,
        map: NameOverrides,
        quiet: bool,
    ) -> Result<Self, Failure> {
        let checkpoint = open(reference, variant.unwrap_or_default().file(), quiet)?;
        // What is wrong is said before a weight is read.
        let report = ZacDecoder::check_mapped(&checkpoint, &map)?;
        let config = ZacConfig::from_mapped(&checkpoint, &map)?;
        let found = Variant::of(&config);
        if let Some(asked) = variant.filter(|asked| *asked != found) {
            return Err(Failure::failed(format!(
                "{}: --variant {} was asked for, but the file holds {} ({} layers a stage); leave --variant out, or \
                 give {}",
                checkpoint.path().display(),
                asked.name(),
                found.name(),
                match found {
                    Variant::Keep2Plain => "at most two",
                    Variant::FullMr => "more than two",
                },
                asked.file()
            )));
        }
        warn(&report, &config, &[&checkpoint]);
        Ok(Self {
            checkpoint,
            map,
            config,
        })
    }

    fn of(args: &DecoderArgs, quiet: bool) -> Result<Self, Failure> {
        Self::open(&args.model, args.variant.variant, args.map.read()?, quiet)
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
        map: NameOverrides,
        quiet: bool,
    ) -> Result<Self, Failure> {
        let checkpoint = open(reference, ENCODER_FILE, quiet)?;
        let teacher = teacher
            .teacher
            .as_deref()
            .map(|reference| open_teacher(reference, quiet))
            .transpose()?;
        let report = ZacEncoder::check_mapped(&checkpoint, teacher.as_ref(), &map)?;
        let opened: Vec<&Checkpoint> = [Some(&checkpoint), teacher.as_ref()]
            .into_iter()
            .flatten()
            .collect();
        warn(
            &report,
            &ZacConfig::from_mapped(&checkpoint, &map)?,
            &opened,
        );
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
    let opened = weights::open(reference, quiet);
    let checkpoint = opened.map_err(|failure| also_looked_for(failure, reference, ENCODER_FILE))?;
    say_notices(&checkpoint, quiet);
    Ok(checkpoint)
}

/// Says what is odd about a file without making it unusable. Notices of the files that were `opened`
/// have been said.
fn warn(report: &LoadReport, config: &ZacConfig, opened: &[&Checkpoint]) {
    for sentence in &config.warnings {
        output::note(
            false,
            format_args!("warning: {}: {sentence}", report.checkpoint),
        );
    }
    warn_report(report, opened);
}

/// What a report says besides what is wrong: tensors that nothing uses, remarks.
fn warn_report(report: &LoadReport, opened: &[&Checkpoint]) {
    let file = &report.checkpoint;
    for tensor in &report.unexpected {
        output::note(
            false,
            format_args!(
                "warning: {file}: tensor '{}' {:?} is not used: the model knows no such tensor",
                tensor.name, tensor.shape
            ),
        );
    }
    for note in &report.notes {
        // A note on another file begins with its name.
        let own = opened.iter().find_map(|checkpoint| {
            let rest = note.strip_prefix(&checkpoint.path().display().to_string())?;
            rest.strip_prefix(": ")
        });
        let mut said = opened.iter().flat_map(|checkpoint| checkpoint.notices());
        if said.any(|notice| notice == own.unwrap_or(note)) {
            continue;
        }
        match own {
            Some(_) => output::note(false, format_args!("warning: {note}")),
            None => output::note(false, format_args!("warning: {file}: {note}")),
        }
    }
}

/// Names of files in `folder` that an earlier run wrote and this one did not: they belong to another
/// recording, and are told from this one's by nothing else. They are said and left where they are.
fn left_over(
    folder: &Path,
    written: &BTreeSet<String>,
    is_ours: impl Fn(&str) -> bool,
) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut old: Vec<String> = names
        .filter(|name| !written.contains(name) && is_ours(name))
        .collect();
    old.sort();
    if let Some((first, count)) = weights::first_names(old.iter().map(String::as_str)) {
        output::note(
            false,
            format_args!(
                "warning: {}: {count} files are of an earlier run, not of this one ({first}); remove them, or give a new folder",
                folder.display()
            ),
        );
    }
    old
}

/// Whether `name` is `front`, a number, and `back`.
fn is_numbered(name: &str, front: &str, back: &str) -> bool {
    let number = name.strip_prefix(front).and_then(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_digit())?;
        Some(rest.split_at(end))
    });
    number.is_some_and(|(number, rest)| !number.is_empty() && rest.starts_with(back))
}

/// The format that a path's ending asks for; `None` for `.npy`.
fn sound_or_npy(path: &Path) -> Result<Option<AudioFormat>, Failure> {
    let format = output::sound_format(path)?;
    if format.is_none() && output::check_ending(path, "npy").is_err() {
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
        anyhow::ensure!(
            count != Some(0),
            "{}: holds no samples, its shape is {shape:?}",
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
        // Here, where its place in the file is known.
        if let Some(at) = values.iter().position(|x| !x.is_finite()) {
            return Err(array
                .element_error(at, values[at], "a finite sample")
                .into());
        }
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
