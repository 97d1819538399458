//! `zonos completions`: the completion script of a shell.

use std::process::ExitCode;

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::args::Cli;
use crate::failure::{Outcome, stdout_failure};

/// Arguments of `zonos completions`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  zonos completions bash > ~/.local/share/bash-completion/completions/zonos
  zonos completions zsh  > ~/.zfunc/_zonos
  zonos completions fish > ~/.config/fish/completions/zonos.fish")]
pub(crate) struct CompletionsArgs {
    /// The shell.
    #[arg(value_enum)]
    shell: Shell,
}

/// Runs the command.
pub(crate) fn run(args: &CompletionsArgs) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "zonos", &mut script);
    std::io::Write::write_all(&mut std::io::stdout().lock(), &script).map_err(stdout_failure)?;
    Ok(ExitCode::SUCCESS)
}
