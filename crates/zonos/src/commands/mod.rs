//! One file per command, and what surrounds all of them.

pub(crate) mod audio;
pub(crate) mod compare;
pub(crate) mod completions;
pub(crate) mod convert;
pub(crate) mod corpus;
pub(crate) mod dac;
pub(crate) mod demo_checkpoint;
pub(crate) mod doctor;
pub(crate) mod embed;
pub(crate) mod generate;
pub(crate) mod imatrix;
pub(crate) mod inspect;
pub(crate) mod man;
pub(crate) mod perplexity;
pub(crate) mod prompt;
pub(crate) mod quantize;
pub(crate) mod tts;
pub(crate) mod validate;
pub(crate) mod voices;
pub(crate) mod zac;

use std::panic::{self, AssertUnwindSafe};
use std::process::ExitCode;
use std::sync::Mutex;

use crate::args::{Cli, Command, GlobalArgs};
use crate::failure::{Failure, Outcome};
use crate::{interrupt, isa, output};

/// Parses the command line, runs the command and turns its outcome into an exit code.
pub(crate) fn main() -> ExitCode {
    // clap prints its own message and exits with 2; `--help` and `--version` exit with 0.
    let cli = Cli::read();
    interrupt::install();
    let outcome = guarded(|| {
        start_threads(&cli.global)?;
        if let Some(warning) = isa::warning() {
            output::note(reports_on_stderr(&cli), format_args!("warning: {warning}"));
        }
        dispatch(&cli)
    });
    interrupt::give_way();
    match outcome {
        Ok(code) => code,
        Err(failure) => ExitCode::from(failure.announce()),
    }
}

/// Whether stderr carries a report, which tells warnings itself, and nothing else.
fn reports_on_stderr(cli: &Cli) -> bool {
    matches!(&cli.command, Command::Tts(args) if args.reports_on_stderr(&cli.global))
}

fn dispatch(cli: &Cli) -> Outcome {
    let global = &cli.global;
    match &cli.command {
        Command::Tts(args) => tts::run(args, global),
        Command::Prompt(args) => prompt::run(args, global),
        Command::Generate(args) => generate::run(args, global),
        Command::Validate(args) => validate::run(args, global),
        Command::Voices(args) => voices::run(args, global),
        Command::Dac(args) => dac::run(args, global),
        Command::Zac(args) => zac::run(args, global),
        Command::Audio(args) => audio::run(args, global),
        Command::Embed(args) => embed::run(args, global),
        Command::Inspect(args) => inspect::run(args, global),
        Command::Convert(args) => convert::run(args, global),
        Command::Quantize(args) => quantize::run(args, global),
        Command::Imatrix(args) => imatrix::run(args, global),
        Command::Perplexity(args) => perplexity::run(args, global),
        Command::Corpus(args) => corpus::run(args, global),
        Command::DemoCheckpoint(args) => demo_checkpoint::run(args, global),
        Command::Doctor(args) => doctor::run(args, global),
        Command::Completions(args) => completions::run(args),
        Command::Man(args) => man::run(args, global),
    }
}

/// Sizes the pool that the CPU backends, the kernels and their matrix products share: all of them
/// use rayon's global pool, which takes its size once, before its first use.
fn start_threads(global: &GlobalArgs) -> Result<(), Failure> {
    if let Some(threads) = global.threads {
        rayon::ThreadPoolBuilder::new()
            .num_threads(usize::from(threads))
            .build_global()?;
    }
    Ok(())
}

/// Runs a command and turns a panic, which tensor operations use for what they consider a
/// programming error, into a failure of one line.
fn guarded(command: impl FnOnce() -> Outcome) -> Outcome {
    static PANIC: Mutex<Option<String>> = Mutex::new(None);
    panic::set_hook(Box::new(|info| {
        let place = info
            .location()
            .map_or_else(String::new, |at| format!(" at {}:{}", at.file(), at.line()));
        let mut slot = PANIC
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        // A panic inside a worker thread is raised again in this one; the first place counts.
        slot.get_or_insert(format!("{}{place}", payload(info.payload())));
    }));
    panic::catch_unwind(AssertUnwindSafe(command)).unwrap_or_else(|caught| {
        let what = PANIC
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
            .take()
            .unwrap_or_else(|| payload(&*caught));
        Err(Failure::failed(format!(
            "internal error, please report it as a bug of zonos {}: {what}",
            env!("CARGO_PKG_VERSION")
        )))
    })
}

fn payload(payload: &dyn std::any::Any) -> String {
    payload
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "panic without a message".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_a_failure_that_names_it() {
        let outcome = guarded(|| panic!("shapes differ: {}", 3));
        let _ = panic::take_hook();
        let Err(Failure::Failed(error)) = outcome else {
            unreachable!("a panic must fail the command");
        };
        let text = error.to_string();
        assert!(
            text.contains("shapes differ: 3") && text.contains("report it"),
            "{text}"
        );
    }
}
