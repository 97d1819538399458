//! The `zonos` command. Each command is a file in `commands`, each group of flags one in `args`.

mod args;
mod cloning;
mod commands;
mod failure;
mod interrupt;
mod isa;
mod output;
mod progress;
mod reading;
mod rows;
mod sequences;
mod weights;

use std::process::ExitCode;

fn main() -> ExitCode {
    commands::main()
}
