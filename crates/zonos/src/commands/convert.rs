//! `zonos convert`: a checkpoint in another format.

use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use serde_json::json;
use zonos_checkpoint::{Checkpoint, convert_with};

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
    output::distinct(&[("IN", input.path()), ("OUT", &args.output)])?;
    write(&input, &args.output, global.quiet)?;
    let tensors = input.len();
    if global.json {
        output::print_json(&json!({ "output": args.output, "tensors": tensors }))?;
    } else {
        output::note(
            global.quiet,
            format_args!("{}: {tensors} tensors", args.output.display()),
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// Converts with a bar. The writer asks nobody whether to go on, so an interrupt unwinds it, which
/// removes its temporary file.
fn write(input: &Checkpoint, output: &Path, quiet: bool) -> Result<(), Failure> {
    struct Interrupt;
    let _stepping = Stepping::begin();
    let bar = ByteBar::new(quiet);
    let done = panic::catch_unwind(AssertUnwindSafe(|| {
        convert_with(input, output, &mut |progress| {
            if interrupt::requested() {
                panic::resume_unwind(Box::new(Interrupt));
            }
            bar.at(&progress.name, progress.bytes_done, Some(progress.bytes));
        })
    }));
    bar.done();
    match done {
        Ok(result) => Ok(result?),
        Err(payload) if payload.is::<Interrupt>() => Err(Failure::Interrupted),
        Err(payload) => panic::resume_unwind(payload),
    }
}
