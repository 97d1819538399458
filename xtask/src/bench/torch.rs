//! The PyTorch side: a Python process that runs one repetition on demand.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, bail};

use crate::workspace;

/// A Python that can import torch and safetensors: the one given, or `python3` or `python`.
pub(crate) fn find(given: Option<&Path>) -> anyhow::Result<PathBuf> {
    let candidates: Vec<PathBuf> = match given {
        Some(path) => vec![path.to_path_buf()],
        None => vec!["python3".into(), "python".into()],
    };
    for python in &candidates {
        let works = Command::new(python)
            .args(["-c", "import torch, safetensors.torch"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success());
        if works {
            return Ok(python.clone());
        }
    }
    let names: Vec<_> = candidates.iter().map(|p| p.display().to_string()).collect();
    bail!(
        "{} cannot import torch and safetensors; name one that can with --python",
        names.join(", ")
    )
}

/// A running script of `validation/python`.
pub(crate) struct Torch {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Torch {
    /// Starts `script` and waits until it has loaded its weights.
    pub(crate) fn start(python: &Path, script: &str, args: &[String]) -> anyhow::Result<Self> {
        let path = workspace::root().join("validation/python").join(script);
        let mut child = Command::new(python)
            .arg(&path)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot run {} {}", python.display(), path.display()))?;
        let to = child.stdin.take().context("no pipe to the script")?;
        let from = child.stdout.take().context("no pipe from the script")?;
        let mut torch = Self {
            child,
            to,
            from: BufReader::new(from),
        };
        let ready = torch.line()?;
        match ready.strip_prefix("ready ") {
            Some(versions) => println!("PyTorch side: {versions}"),
            None => bail!("{script} said {ready:?}, expected ready"),
        }
        Ok(torch)
    }

    /// One repetition; its seconds as the script measured them.
    pub(crate) fn time(&mut self, command: &str) -> anyhow::Result<f64> {
        writeln!(self.to, "{command}")?;
        self.to.flush()?;
        let answer = self.line()?;
        answer.parse().with_context(|| {
            format!("'{command}': the script answered {answer:?}, expected seconds")
        })
    }

    fn line(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        if self.from.read_line(&mut line)? == 0 {
            bail!("the script ended early ({})", self.child.wait()?);
        }
        Ok(line.trim().to_owned())
    }
}

impl Drop for Torch {
    fn drop(&mut self) {
        // It may have ended by itself; either way it must not outlive the bench.
        let _ = writeln!(self.to, "quit");
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
