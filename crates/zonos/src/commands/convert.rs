//! `zonos convert`: a checkpoint in another format.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde_json::json;
use zonos_checkpoint::convert;

use crate::args::GlobalArgs;
use crate::failure::{Failure, Outcome};
use crate::{output, weights};

/// Arguments of `zonos convert`.
#[derive(Debug, Args)]
#[command(after_help = "\
The output's ending chooses the format. Names, dtypes and metadata are kept; a params.json or
config.json beside the input is what the models read their sizes from, so copy it along.

Examples:
  zonos convert model.pth model.safetensors
  zonos convert weights_44khz_8kbps.pth dac.bpk")]
pub struct ConvertArgs {
    /// Checkpoint to read: a file, a folder or hub:owner/name.
    #[arg(value_name = "IN")]
    input: String,
    /// File to write: .bpk (burnpack) or .safetensors.
    #[arg(value_name = "OUT.bpk|OUT.safetensors")]
    output: PathBuf,
}

/// Runs the command.
pub fn run(args: &ConvertArgs, global: &GlobalArgs) -> Outcome {
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
    convert(&input, &args.output)?;
    let tensors = input.names().count();
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
