//! Where results go, checked before anything is loaded.

use std::ffi::OsStr;
use std::fmt::Display;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use zonos_audio::AtomicFile;

use crate::failure::{Failure, stdout_failure};

/// A file to write, or stdout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    /// `-`.
    Stdout,
    /// A path whose folder exists and can be written to.
    File(PathBuf),
}

impl Target {
    /// Reads `-` as stdout, anything else as a file, and checks it.
    ///
    /// Finds a missing or read-only folder, and a target that is a folder, while nothing has been
    /// computed yet.
    pub(crate) fn open(path: &Path) -> Result<Self, Failure> {
        if path == Path::new("-") {
            return Ok(Self::Stdout);
        }
        check_file(path)?;
        Ok(Self::File(path.to_path_buf()))
    }

    /// The path, for messages and JSON.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Stdout => "-".to_owned(),
            Self::File(path) => path.display().to_string(),
        }
    }
}

/// Checks that `path` can be created or replaced, by creating the temporary file that would become
/// it and removing that again.
pub(crate) fn check_file(path: &Path) -> Result<(), Failure> {
    Ok(AtomicFile::create(path).map(drop)?)
}

/// Checks that files can be created in `folder`, by creating and removing one.
pub(crate) fn check_folder(folder: &Path) -> anyhow::Result<()> {
    if !folder.exists() {
        return Err(anyhow!(
            "the folder {} does not exist; create it first",
            folder.display()
        ));
    }
    if !folder.is_dir() {
        return Err(anyhow!("{} is a file, not a folder", folder.display()));
    }
    tempfile::Builder::new()
        .prefix(".zonos-probe-")
        .tempfile_in(folder)
        .map(drop)
        .map_err(|error| {
            anyhow!(
                "the folder {} is not writable: {}",
                folder.display(),
                error
                    .get_ref()
                    .and_then(|inner| inner.source().map(ToString::to_string))
                    .unwrap_or_else(|| error.kind().to_string())
            )
        })
}

/// Checks that files can be created in `folder`, or that `folder` itself can be created.
pub(crate) fn check_folder_or_parent(folder: &Path) -> Result<(), Failure> {
    if folder.exists() {
        check_folder(folder)?;
    } else {
        check_folder(folder_of(folder))
            .with_context(|| format!("cannot create the folder {}", folder.display()))?;
    }
    Ok(())
}

/// Creates the folder that a command fills, or accepts one that is there.
pub(crate) fn make_folder(folder: &Path) -> Result<(), Failure> {
    check_folder_or_parent(folder)?;
    if folder.exists() {
        return Ok(());
    }
    std::fs::create_dir(folder)
        .with_context(|| format!("cannot create the folder {}", folder.display()))?;
    Ok(())
}

/// The folder that holds `path`; the current one for a bare name.
pub(crate) fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Refuses two outputs, or an input and an output, that are the same file.
pub(crate) fn distinct(paths: &[(&str, &Path)]) -> Result<(), Failure> {
    let place = |path: &Path| -> PathBuf {
        let folder = folder_of(path);
        let folder = folder
            .canonicalize()
            .unwrap_or_else(|_| folder.to_path_buf());
        folder.join(path.file_name().unwrap_or(OsStr::new("")))
    };
    for (i, (name, path)) in paths.iter().enumerate() {
        for (other_name, other) in &paths[..i] {
            if place(path) == place(other) {
                return Err(Failure::usage(format!(
                    "{other_name} and {name} are the same file: {}",
                    path.display()
                )));
            }
        }
    }
    Ok(())
}

/// Writes a line to stdout.
pub(crate) fn print(line: impl Display) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")
        .and_then(|()| out.flush())
        .map_err(stdout_failure)
}

/// Writes a value to stdout as indented JSON.
pub(crate) fn print_json(value: &serde_json::Value) -> Result<(), Failure> {
    print(format_args!("{value:#}"))
}

/// Writes a line to stderr; a closed stderr is not an error.
pub(crate) fn note(quiet: bool, line: impl Display) {
    if !quiet {
        let _ = writeln!(io::stderr().lock(), "{line}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dash_is_stdout_and_folders_are_refused() {
        assert_eq!(Target::open(Path::new("-")).ok(), Some(Target::Stdout));
        let dir = tempfile::tempdir().unwrap();
        assert!(Target::open(dir.path()).is_err());
        assert!(Target::open(&dir.path().join("a.wav")).is_ok());
        assert!(Target::open(&dir.path().join("missing/a.wav")).is_err());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn one_file_under_two_spellings_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a"), dir.path().join("./a"));
        assert!(distinct(&[("-o", &a), ("--codes", &b)]).is_err());
        assert!(distinct(&[("-o", &a), ("--codes", &dir.path().join("b"))]).is_ok());
    }
}
