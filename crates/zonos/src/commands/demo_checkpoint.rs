//! `zonos demo-checkpoint`: the built-in demo model as files.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde_json::json;
use zonos_tts::demo::write_demo_checkpoint;

use crate::args::GlobalArgs;
use crate::failure::Outcome;
use crate::output;

/// Arguments of `zonos demo-checkpoint`.
#[derive(Debug, Args)]
#[command(after_help = "\
The folder has the layout of a released checkpoint: the backbone as model.safetensors and
params.json, the codec as codec/weights.pth. The weights are random; they speak noise.

Example:
  zonos demo-checkpoint demo
  zonos inspect demo
  zonos tts \"Hello, world.\" -o hello.wav --model demo")]
pub(crate) struct DemoCheckpointArgs {
    /// Folder to write into; created when it does not exist. Files of others are not replaced.
    dir: PathBuf,
}

/// Runs the command.
pub(crate) fn run(args: &DemoCheckpointArgs, global: &GlobalArgs) -> Outcome {
    output::make_folder(&args.dir)?;
    let paths = write_demo_checkpoint(&args.dir)?;
    if global.json {
        output::print_json(&json!({
            "model": paths.model.display().to_string(),
            "codec": paths.codec.display().to_string(),
        }))?;
    } else {
        output::note(
            global.quiet,
            format_args!(
                "demo model written; run it with --model {}",
                args.dir.display()
            ),
        );
    }
    Ok(ExitCode::SUCCESS)
}
