//! `zonos man`: the manual pages.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, CommandFactory};
use serde_json::json;

use crate::args::{Cli, GlobalArgs};
use crate::failure::Outcome;
use crate::output;

/// Arguments of `zonos man`.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  zonos man ~/.local/share/man/man1 && man zonos-tts")]
pub(crate) struct ManArgs {
    /// Folder to write into; created when it does not exist.
    dir: PathBuf,
}

/// Runs the command.
pub(crate) fn run(args: &ManArgs, global: &GlobalArgs) -> Outcome {
    let staging = output::Staging::begin(&args.dir)?;
    clap_mangen::generate_to(Cli::command(), staging.path())
        .with_context(|| format!("cannot write manual pages into {}", args.dir.display()))?;
    staging.commit()?;
    if global.json {
        output::print_json(&json!({ "folder": args.dir.display().to_string() }))?;
    } else {
        output::note(
            global.quiet,
            format_args!("manual pages written to {}", args.dir.display()),
        );
    }
    Ok(ExitCode::SUCCESS)
}
