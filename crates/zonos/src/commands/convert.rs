//! `zonos convert`: a checkpoint in another format.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use serde_json::json;
use zonos_audio::ScratchFolder;
use zonos_checkpoint::{Checkpoint, CheckpointError, convert_until};

use crate::args::GlobalArgs;
use crate::failure::{Failure, Outcome};
use crate::interrupt::{self, Stepping};
use crate::progress::ByteBar;
use crate::{output, weights};

/// Arguments of `zonos convert`.
#[derive(Debug, Args)]
#[command(after_help = "\
The output's ending chooses the format. Names, dtypes, values and metadata are kept, and the
params.json or config.json beside the input goes into the file, which is then complete by itself.
Objects that are no tensors are left out with a note; a tensor that cannot be read is an error.

Examples:
  zonos convert model.pth model.safetensors
  zonos convert weights_44khz_8kbps.pth dac.bpk")]
pub(crate) struct ConvertArgs {
    /// Checkpoint to read: a file, a folder or hub:owner/name.
    #[arg(value_name = "IN")]
    input: String,
    /// File to write: .bpk (burnpack) or .safetensors.
    #[arg(value_name = "OUT.bpk|OUT.safetensors")]
    output: PathBuf,
}

/// Runs the command.
pub(crate) fn run(args: &ConvertArgs, global: &GlobalArgs) -> Outcome {
    let known = args
        .output
        .extension()
        .is_some_and(|ending| ending == "bpk" || ending == "safetensors");
    if !known {
        return Err(Failure::usage(format!(
            "{}: the ending must be .bpk or .safetensors; it chooses the format",
            args.output.display()
        )));
    }
    output::check_file(&args.output)?;
    let input = weights::open(&args.input, global.quiet)?;
    output::spares(&input, &args.input, &[("OUT", &args.output)])?;
    let lost = input.skipped().iter().filter(|s| is_tensor(&s.what));
    if let Some((names, count)) = weights::first_names(lost.map(|s| s.name.as_str())) {
        return Err(Failure::failed(format!(
            "{}: {count} tensors of types that cannot be read would be lost ({names}); `zonos inspect {}` lists them",
            input.path().display(),
            args.input
        )));
    }
    for notice in input.notices() {
        output::note(
            global.quiet,
            format_args!("note: {}: {notice}", input.path().display()),
        );
    }
    write(&input, &args.output, global.quiet)?;
    let tensors = input.len();
    if global.json {
        output::print_json(&json!({
            "output": args.output.display().to_string(),
            "tensors": tensors,
            "skipped": input.skipped(),
        }))?;
    } else {
        output::note(
            global.quiet,
            format_args!("{}: {tensors} tensors", args.output.display()),
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// Whether something that was skipped is a tensor, by its type or class.
fn is_tensor(what: &str) -> bool {
    what.starts_with("a tensor")
        || what.contains("_rebuild_")
        || what.to_lowercase().ends_with("storage")
}

/// Converts with a bar, in a folder beside the target that an interrupt removes. The writer asks
/// before every tensor, and within large ones where the format allows it, whether to go on.
fn write(input: &Checkpoint, output: &Path, quiet: bool) -> Result<(), Failure> {
    let _stepping = Stepping::begin();
    // A link is followed, as for every other output.
    let target = output
        .canonicalize()
        .unwrap_or_else(|_| output.to_path_buf());
    let scratch = ScratchFolder::create_in(output::folder_of(&target), ".zonos-")
        .with_context(|| format!("{}: cannot write", output.display()))?;
    let name = target.file_name().unwrap_or_default();
    let temporary = scratch.path().join(name);
    let bar = ByteBar::new(quiet);
    let done = convert_until(input, &temporary, &mut |progress| {
        bar.at(&progress.name, progress.bytes_done, Some(progress.bytes));
        if interrupt::requested() {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    });
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
