//! `zonos convert`: a checkpoint in another format.

mod gguf;
mod zac;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use serde_json::json;
use zonos_audio::{ScratchFolder, behind_links};
use zonos_checkpoint::{Checkpoint, CheckpointError, ConvertProgress, convert_until};
use zonos_gguf::GgmlType;

use crate::args::GlobalArgs;
use crate::failure::{Failure, Outcome};
use crate::interrupt::{self, Stepping};
use crate::progress::ByteBar;
use crate::{output, weights};

/// Arguments of `zonos convert`.
#[derive(Debug, Args)]
#[command(after_help = "\
The output's ending chooses the format. To .safetensors and .bpk names, dtypes, values and metadata are
kept, and the params.json or config.json beside the input goes into the file, which is then complete by
itself. Objects that are no tensors are left out with a note; a tensor that cannot be read is an error.
Quantised values of a GGUF file become F32.

A .gguf gets the names, order and metadata of Zyphra's C++ programs, which read it: the backbone (matrices
of --type, f16 if not said; q8_0 keeps embeddings, head and router f16), the decoder of a DAC codec (f32; its
encoder has no place there and is left out with a warning) and the speaker encoder (f16 or f32). ZAC-1 and
Wav2Vec2-BERT keep their own names, as no other program has any for them; those too long for the format are
shortened (teacher. becomes ssl.). For fewer bits than q8_0 see `zonos quantize`.

With --zac the parts of the codec in a ZONOS3-Mini release, autoencoder/generator.pt, autoencoder/heads
and autoencoder/teacher, become the three files of ZAC-1: one encoder with its teacher (as bf16) and two
decoders. How the release names its tensors and configurations is not documented, so this is inferred:
wrappers (module., generator., ..) are taken off and codec. put in front; heads holds keep2_plain and
full_mr as files or folders; model_config, head_config and config.json are looked for in and beside the
weights; a resampling filter that is not stored is computed; layers of the teacher after the 16th are
left out. Every file must load before any is written, and every tensor that nothing used is named. Where
the guess is wrong, --map gives names and --config the JSON.

Examples:
  zonos convert model.pth model.safetensors
  zonos convert weights_44khz_8kbps.pth dac.bpk
  zonos convert model.pth zonos2-f16.gguf --type f16
  zonos convert zonos2-q8_0.gguf model.safetensors
  zonos convert --zac generator.pt --heads heads --teacher teacher -o zac-1")]
pub(crate) struct ConvertArgs {
    /// Checkpoint to read: a file, a folder or hub:owner/name.
    #[arg(
        value_name = "IN",
        value_parser = NonEmptyStringValueParser::new(),
        required_unless_present = "zac",
        conflicts_with = "zac"
    )]
    input: Option<String>,
    /// File to write: .gguf, .bpk (burnpack) or .safetensors.
    #[arg(
        value_name = "OUT",
        required_unless_present = "zac",
        conflicts_with = "zac"
    )]
    output: Option<PathBuf>,
    /// How a .gguf stores matrices: f32, f16, bf16 or q8_0.
    #[arg(long = "type", value_name = "TYPE", value_parser = matrix_type, conflicts_with = "zac")]
    matrices: Option<GgmlType>,
    #[command(flatten)]
    release: ZacReleaseArgs,
}

/// The parts of a ZAC-1 training release.
#[derive(Debug, Args)]
#[command(next_help_heading = "ZAC-1 release")]
pub(super) struct ZacReleaseArgs {
    /// The generator's checkpoint: encoder, quantizers and semantic parts.
    #[arg(long, value_name = "generator.pt", requires_all = ["heads", "teacher", "output_dir"])]
    zac: Option<String>,
    /// Folder with the decoders: keep2_plain and full_mr, each a file or a folder.
    #[arg(long, value_name = "DIR", requires = "zac")]
    heads: Option<PathBuf>,
    /// The teacher: a Wav2Vec2-BERT 2.0 folder or file.
    #[arg(long, value_name = "DIR", requires = "zac")]
    teacher: Option<String>,
    /// Folder to write the three files into.
    #[arg(long, short, value_name = "OUTDIR", requires = "zac")]
    output_dir: Option<PathBuf>,
    /// Only this decoder.
    #[arg(long, value_name = "V", value_enum, requires = "zac")]
    variant: Option<super::zac::Variant>,
    /// Table of tensor names, our name = the release's name: JSON or TOML.
    #[arg(long, value_name = "FILE", requires = "zac")]
    map: Option<PathBuf>,
    /// Configurations over those found: JSON with model_config, head_config (one for both decoders, or
    /// {"keep2_plain": .., "full_mr": ..}) and teacher_config, each optional.
    #[arg(long, value_name = "FILE.json", requires = "zac")]
    config: Option<PathBuf>,
}

/// Runs the command.
pub(crate) fn run(args: &ConvertArgs, global: &GlobalArgs) -> Outcome {
    match (&args.input, &args.output) {
        (Some(input), Some(output)) => convert(input, output, args.matrices, global),
        _ => zac::run(&args.release, global),
    }
}

fn matrix_type(text: &str) -> Result<GgmlType, String> {
    match text.parse() {
        Ok(t @ (GgmlType::F32 | GgmlType::F16 | GgmlType::Bf16 | GgmlType::Q8_0)) => Ok(t),
        _ => Err("expected f32, f16, bf16 or q8_0; `zonos quantize` makes the others".into()),
    }
}

fn convert(
    reference: &str,
    target: &Path,
    matrices: Option<GgmlType>,
    global: &GlobalArgs,
) -> Outcome {
    let ending = target.extension().and_then(|ending| ending.to_str());
    let ending = ending.map(str::to_ascii_lowercase);
    let to_gguf = ending.as_deref() == Some("gguf");
    if !to_gguf && !matches!(ending.as_deref(), Some("bpk" | "safetensors")) {
        return Err(Failure::usage(format!(
            "{}: the ending must be .gguf, .bpk or .safetensors; it chooses the format",
            target.display()
        )));
    }
    if matrices.is_some() && !to_gguf {
        return Err(Failure::usage(
            "--type is for .gguf; other formats keep what the input has",
        ));
    }
    output::check_file(target)?;
    let input = weights::open(reference, global.quiet)?;
    output::spares(&input, reference, &[("OUT", target)])?;
    let lost = input.skipped().iter().filter(|s| is_tensor(&s.what));
    if let Some((names, count)) = weights::first_names(lost.map(|s| s.name.as_str())) {
        return Err(Failure::failed(format!(
            "{}: {count} tensors of types that cannot be read would be lost ({names}); `zonos inspect {}` lists them",
            input.path().display(),
            reference
        )));
    }
    for notice in input.notices() {
        output::note(
            global.quiet,
            format_args!("note: {}: {notice}", input.path().display()),
        );
    }
    if let Some(quantised) = weights::quantised(&input) {
        output::note(
            global.quiet,
            format_args!(
                "note: {quantised}: they are decoded, which makes a larger file and none that is more exact"
            ),
        );
    }
    let written = if to_gguf {
        gguf::write(&input, target, matrices, global.quiet)?
    } else {
        write(&input, target, global.quiet)?;
        gguf::Written {
            tensors: input.len(),
            left_out: Vec::new(),
        }
    };
    let tensors = written.tensors;
    if global.json {
        output::print_json(&json!({
            "output": target.display().to_string(),
            "tensors": tensors,
            "skipped": input.skipped(),
            "left_out": written.left_out,
        }))?;
    } else {
        output::note(
            global.quiet,
            format_args!("{}: {tensors} tensors", target.display()),
        );
    }
    written.tell(&input, target, global.quiet);
    Ok(ExitCode::SUCCESS)
}

/// Whether something that was skipped is a tensor, by its type or class.
fn is_tensor(what: &str) -> bool {
    what.starts_with("a tensor")
        || what.contains("_rebuild_")
        || what.to_lowercase().ends_with("storage")
}

/// Shows how far the writer of a checkpoint is, and stops it after an interrupt.
fn follow(bar: &ByteBar, progress: &ConvertProgress) -> ControlFlow<()> {
    bar.at(&progress.name, progress.bytes_done, Some(progress.bytes));
    interrupt::go_on()
}

/// Converts with a bar, in a folder beside the target that an interrupt removes. The writer asks
/// before every tensor, and within large ones where the format allows it, whether to go on.
fn write(input: &Checkpoint, output: &Path, quiet: bool) -> Result<(), Failure> {
    let _stepping = Stepping::begin();
    // A link is followed, as for every other output.
    let target = behind_links(output)?;
    let scratch = ScratchFolder::create_in(output::folder_of(&target), ".zonos-")
        .with_context(|| format!("{}: cannot write", output.display()))?;
    // By the name that was given: its ending chooses the format, whatever a link leads to.
    let name = output.file_name().unwrap_or_default();
    let temporary = scratch.path().join(name);
    let bar = ByteBar::new(quiet);
    let done = convert_until(input, &temporary, &mut |progress| follow(&bar, progress));
    bar.done();
    done.map_err(|error| match error {
        CheckpointError::Stopped { .. } => Failure::Interrupted,
        error => output::of_target(error, &temporary, output),
    })?;
    interrupt::check()?;
    std::fs::rename(&temporary, &target)
        .with_context(|| format!("{}: cannot write", output.display()))?;
    Ok(())
}
