//! How a command ends: its exit code and the one line it leaves on stderr.

use std::io;
use std::process::ExitCode;

use crate::output;

/// The speech was ended by the length bound, the loop breaker or a full context, not by the model.
/// Files are kept.
pub(crate) const CUT_SHORT: u8 = 3;

/// The convention for "ended by an interrupt": 128 + SIGINT.
const INTERRUPTED: u8 = 130;

/// Why a command did not do its job.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The command line or the text is wrong; nothing was loaded or run. Exit code 2.
    Usage(String),
    /// A file, a device or the run failed. Exit code 1.
    Failed(anyhow::Error),
    /// Ctrl-C, or a request to terminate. Exit code 130.
    Interrupted,
    /// The reader of stdout went away (`zonos inspect F | head`). Exit code 0, nothing to say.
    ReaderLeft,
}

/// What every command returns: the exit code of a run that kept its output.
pub(crate) type Outcome = Result<ExitCode, Failure>;

impl Failure {
    /// A wrong command line.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::Usage(message.into())
    }

    /// A failed run without a deeper cause.
    pub(crate) fn failed(message: impl Into<String>) -> Self {
        Self::Failed(anyhow::Error::msg(message.into()))
    }

    /// Says on stderr what happened, in one line, and gives the exit code.
    pub(crate) fn announce(self) -> u8 {
        match self {
            Self::Usage(message) => {
                say(&message);
                2
            }
            Self::Failed(error) => {
                say(&one_line(&error));
                1
            }
            Self::Interrupted => {
                say("interrupted; no file was written");
                INTERRUPTED
            }
            Self::ReaderLeft => 0,
        }
    }
}

impl<E> From<E> for Failure
where
    E: Into<anyhow::Error>,
{
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

/// Turns a write error of stdout into the right failure.
pub(crate) fn stdout_failure(error: io::Error) -> Failure {
    if error.kind() == io::ErrorKind::BrokenPipe {
        Failure::ReaderLeft
    } else {
        Failure::Failed(anyhow::Error::new(error).context("cannot write to stdout"))
    }
}

fn say(message: &str) {
    // `eprintln!` panics when stderr is closed, and there is nobody left to tell.
    let _ = io::Write::write_fmt(
        &mut io::stderr().lock(),
        format_args!("error: {}\n", output::visible(&flatten(message))),
    );
}

/// The error and its causes on one line. A cause that its parent already quotes is left out.
pub(crate) fn one_line(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain() {
        let text = cause.to_string();
        if line.contains(&text) {
            continue;
        }
        if !line.is_empty() {
            line.push_str(": ");
        }
        line.push_str(&text);
    }
    line
}

/// Load reports are tables; an error is a line.
fn flatten(message: &str) -> String {
    let lines: Vec<&str> = message
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    lines.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[test]
    fn causes_join_without_repeating_themselves() {
        let base: Result<(), _> = Err(io::Error::other("disk on fire"));
        let error = base
            .context("cannot write a.wav")
            .context("tts: cannot write a.wav")
            .unwrap_err();
        assert_eq!(one_line(&error), "tts: cannot write a.wav: disk on fire");
        assert_eq!(flatten("a\n  b\n\n"), "a; b");
    }
}
