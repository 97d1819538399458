//! The `zonos` command. Each command is a file in `commands`, each group of flags one in `args`.

mod args;
mod cloning;
mod commands;
mod failure;
mod interrupt;
mod output;
mod progress;
mod rows;
mod reading;
mod sequences;
mod weights;

use std::process::ExitCode;

fn main() -> ExitCode {
    commands::main()
}
