//! Project tasks: `cargo xtask golden-diff | bench | fixtures | ci`.

mod bench;
mod ci;
mod dac_recipe;
mod ecapa_recipe;
mod fixtures;
mod golden_diff;
mod random_backbone;
mod teacher_recipe;
mod workspace;
mod zac_recipe;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(
    name = "cargo xtask",
    about = "Project tasks",
    disable_help_subcommand = true
)]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Compare the models with goldens made by other implementations, tensor by tensor
    GoldenDiff(golden_diff::Args),
    /// Measure speed beside PyTorch and beside what the machine allows
    Bench(bench::Args),
    /// Compare the fixtures with the goldens they were copied from, copy them again, or make
    /// full-size checkpoints of random numbers
    Fixtures(fixtures::Args),
    /// Run every check that continuous integration runs
    Ci,
}

fn main() -> ExitCode {
    let done = match Cli::parse().task {
        Task::GoldenDiff(args) => golden_diff::run(&args),
        Task::Bench(args) => bench::run(&args),
        Task::Fixtures(args) => fixtures::run(&args),
        Task::Ci => ci::run(),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
