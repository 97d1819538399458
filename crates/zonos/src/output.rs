//! Where results go, checked before anything is loaded.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fmt::{Display, Write as _};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use zonos_audio::encode::AudioFormat;
use zonos_audio::{AtomicFile, ScratchFolder, Unfinished, behind_links};
use zonos_checkpoint::Checkpoint;

use crate::failure::{Failure, one_line, stdout_failure};

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
    no_dash(path)?;
    Ok(AtomicFile::create(path).map(drop)?)
}

/// The format that a sound file's ending asks for; `None` for endings that ask for none. Endings of
/// formats that cannot be written are refused.
pub(crate) fn sound_format(path: &Path) -> Result<Option<AudioFormat>, Failure> {
    let format = AudioFormat::from_path(path);
    if let Some(format) = format
        && !format.is_available()
    {
        return Err(Failure::usage(format!(
            "{}: this build cannot write {format}; build with --features mp3, which takes in LAME (LGPL), or write .wav, .flac or .opus",
            path.display()
        )));
    }
    let ending = path.extension().and_then(OsStr::to_str).unwrap_or("");
    let foreign = [
        "aac", "ac3", "aif", "aiff", "amr", "caf", "m4a", "mka", "mp4", "webm", "wma",
    ];
    if foreign
        .iter()
        .any(|known| ending.eq_ignore_ascii_case(known))
    {
        return Err(Failure::usage(format!(
            "{}: .{ending} files cannot be written; expected {}",
            path.display(),
            AudioFormat::ENDINGS
        )));
    }
    Ok(format)
}

/// As [`sound_format`], for outputs that can be nothing else.
pub(crate) fn sound_only(path: &Path) -> Result<AudioFormat, Failure> {
    sound_format(path)?.ok_or_else(|| {
        Failure::usage(format!(
            "{}: the ending must be {}; it chooses the format",
            path.display(),
            AudioFormat::ENDINGS
        ))
    })
}

/// Refuses a path with another ending than `ending`, in any case.
pub(crate) fn check_ending(path: &Path, ending: &str) -> Result<(), Failure> {
    let found = path.extension().and_then(OsStr::to_str);
    if found.is_some_and(|found| found.eq_ignore_ascii_case(ending)) {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "{}: the ending must be .{ending}",
        path.display()
    )))
}

/// Only `zonos tts --output` can write to stdout. Anywhere else `-` would become a file of that name.
fn no_dash(path: &Path) -> Result<(), Failure> {
    if path == Path::new("-") {
        return Err(Failure::usage(
            "- is no file name here: this output cannot go to stdout; for a file of that name give ./-",
        ));
    }
    Ok(())
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
        return Err(anyhow!(
            "{} is not a folder; give the name of one",
            folder.display()
        ));
    }
    tempfile::Builder::new()
        .prefix(".zonos-probe-")
        .tempfile_in(folder)
        .map(drop)
        .map_err(|error| {
            anyhow!(
                // As for a file whose folder is not writable.
                "cannot create a file in {}: {}; give a folder that can be written to",
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
    no_dash(folder)?;
    if folder.exists() {
        check_folder(folder)?;
    } else if let Ok(to) = folder.read_link() {
        // No folder can be made in the place of a link.
        return Err(Failure::failed(format!(
            "{}: a link to {}, which does not exist; create that folder, or remove the link",
            folder.display(),
            to.display()
        )));
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

/// Files for a folder that appear in it together, once all of them are written.
pub(crate) struct Staging {
    // Dropped in this order: what was written goes before the folder that it lies in.
    scratch: ScratchFolder,
    created: Option<Created>,
    folder: PathBuf,
}

/// A folder that is taken away again unless its files arrive.
struct Created {
    folder: PathBuf,
    _entry: Unfinished,
}

impl Drop for Created {
    fn drop(&mut self) {
        // Fails, as it should, when something lies in it.
        let _ = std::fs::remove_dir(&self.folder);
    }
}

impl Staging {
    /// Begins to fill `folder`, creating it where it does not exist.
    pub(crate) fn begin(folder: &Path) -> Result<Self, Failure> {
        check_folder_or_parent(folder)?;
        let mut created = None;
        if !folder.exists() {
            make_folder(folder)?;
            created = Some(Created {
                folder: folder.to_path_buf(),
                _entry: Unfinished::new(folder),
            });
        }
        // Inside the folder, so that the files only need to be renamed.
        let scratch = ScratchFolder::create_in(folder, ".zonos-")
            .with_context(|| format!("cannot create a folder in {}", folder.display()))?;
        Ok(Self {
            scratch,
            created,
            folder: folder.to_path_buf(),
        })
    }

    /// Where to write the files.
    pub(crate) fn path(&self) -> &Path {
        self.scratch.path()
    }

    /// Moves all files into the folder. A link among those of the same names is replaced, not followed:
    /// what it leads to lies in a folder that nobody gave.
    pub(crate) fn commit(self) -> Result<(), Failure> {
        let failed = || format!("cannot write into {}", self.folder.display());
        let mut files = Vec::new();
        for entry in std::fs::read_dir(self.path()).with_context(failed)? {
            let entry = entry.with_context(failed)?;
            let target = self.folder.join(entry.file_name());
            if target.is_dir() {
                return Err(Failure::failed(format!(
                    "{}: is a directory; give another folder",
                    target.display()
                )));
            }
            files.push((entry.path(), target));
        }
        for (from, to) in files {
            std::fs::rename(from, &to)
                .with_context(|| format!("{}: cannot write", to.display()))?;
        }
        drop(self.created);
        Ok(())
    }
}

/// The failure of a write to `temporary`, told of `target`: the user knows the file that was asked
/// for, not the one that would have become it.
pub(crate) fn of_target(
    error: impl Into<anyhow::Error>,
    temporary: &Path,
    target: &Path,
) -> Failure {
    let (from, to) = (
        temporary.display().to_string(),
        target.display().to_string(),
    );
    Failure::failed(one_line(&error.into()).replace(&from, &to))
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

/// Refuses an output that is one of a checkpoint's files or the parameters beside them, or, where the
/// checkpoint was named by its folder, any other weights in that.
pub(crate) fn spares(
    checkpoint: &Checkpoint,
    reference: &str,
    outputs: &[(&str, &Path)],
) -> Result<(), Failure> {
    let mut files: HashSet<&Path> = checkpoint
        .names()
        .filter_map(|name| checkpoint.info(name))
        .map(|info| &*info.file)
        .collect();
    files.insert(checkpoint.path());
    let mut folders: HashSet<&Path> = files.iter().map(|file| folder_of(file)).collect();
    folders.insert(Path::new(reference));
    let whole = reference.starts_with("hub:") || Path::new(reference).is_dir();
    let others = folders
        .iter()
        .filter(|_| whole)
        .flat_map(|folder| weights_in(folder));
    let places: HashSet<PathBuf> = files
        .iter()
        .map(|file| place(file))
        .chain(folders.iter().flat_map(|folder| {
            ["params.json", "config.json"].map(|name| place(&folder.join(name)))
        }))
        .chain(others.map(|file| place(&file)))
        .collect();
    for (name, path) in outputs {
        if places.contains(&place(path)) {
            return Err(Failure::usage(format!(
                "{name} and a file of the checkpoint are the same file: {}",
                path.display()
            )));
        }
    }
    Ok(())
}

/// Files of weights in a folder, by their endings. Voices have such an ending too and are none.
fn weights_in(folder: &Path) -> Vec<PathBuf> {
    const ENDINGS: [&str; 7] = ["safetensors", "pth", "pt", "bin", "bpk", "gguf", "json"];
    let is_weights = |path: &PathBuf| {
        let ending = path.extension().and_then(OsStr::to_str).unwrap_or("");
        ENDINGS
            .iter()
            .any(|known| ending.eq_ignore_ascii_case(known))
            && !is_voice(path)
    };
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.path())
        .filter(is_weights)
        .collect()
}

fn is_voice(path: &Path) -> bool {
    path.extension() == Some(OsStr::new("safetensors"))
        && Checkpoint::open(path).is_ok_and(|file| file.metadata()["format"] == "zonos-voice")
}

/// The file behind a path, whatever links lead to it.
fn place(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| {
        // Nothing is there yet, but a link may lead there.
        let end = behind_links(path).unwrap_or_else(|_| path.to_path_buf());
        let folder = folder_of(&end);
        let folder = folder
            .canonicalize()
            .unwrap_or_else(|_| folder.to_path_buf());
        folder.join(end.file_name().unwrap_or(OsStr::new("")))
    })
}

/// Whether a character does something instead of showing: controls, line separators, and marks that turn
/// the direction of writing or take no room.
fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{61c}' | '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{2069}' | '\u{feff}'
        )
}

/// The text with its hidden characters spelled out, line breaks too. Names in a file are a
/// stranger's, and a terminal obeys what it is sent.
pub(crate) fn visible(text: &str) -> String {
    escape(text, is_hidden)
}

/// As [`visible`], for text whose lines are ours.
fn visible_lines(text: &str) -> String {
    escape(text, |c| is_hidden(c) && c != '\n')
}

fn escape(text: &str, hidden: impl Fn(char) -> bool) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if hidden(c) && c.is_control() {
            shown.extend(c.escape_debug());
        } else if hidden(c) {
            shown.extend(c.escape_unicode());
        } else {
            shown.push(c);
        }
    }
    shown
}

/// Indented JSON. JSON itself escapes only some of the hidden characters, all of which have 16 bits.
fn json_text(value: &serde_json::Value) -> String {
    let mut shown = String::new();
    for c in format!("{value:#}").chars() {
        if is_hidden(c) && c != '\n' {
            // Writing to a string does not fail.
            let _ = write!(shown, "\\u{:04x}", u32::from(c));
        } else {
            shown.push(c);
        }
    }
    shown
}

/// Writes a line to stdout.
pub(crate) fn print(line: impl Display) -> Result<(), Failure> {
    print_raw(&visible_lines(&line.to_string()))
}

fn print_raw(line: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")
        .and_then(|()| out.flush())
        .map_err(stdout_failure)
}

/// Writes a value to stdout as indented JSON.
pub(crate) fn print_json(value: &serde_json::Value) -> Result<(), Failure> {
    print_raw(&json_text(value))
}

/// Writes a value to stderr as indented JSON.
pub(crate) fn note_json(value: &serde_json::Value) {
    let _ = writeln!(io::stderr().lock(), "{}", json_text(value));
}

/// Writes a line to stderr; a closed stderr is not an error.
pub(crate) fn note(quiet: bool, line: impl Display) {
    if !quiet {
        let line = visible(&line.to_string());
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
        #[cfg(unix)]
        {
            std::fs::write(&a, "").unwrap();
            let link = dir.path().join("link");
            std::os::unix::fs::symlink(&a, &link).unwrap();
            assert!(distinct(&[("-o", &a), ("--codes", &link)]).is_err());
            std::fs::remove_file(&a).unwrap();
            assert!(distinct(&[("-o", &a), ("--codes", &link)]).is_err());
        }
    }

    #[test]
    fn control_characters_are_spelled_out() {
        assert_eq!(visible("a\u{1b}[2J\nb é"), "a\\u{1b}[2J\\nb é");
        assert_eq!(visible_lines("a\nb\r"), "a\nb\\r");
        // Text that would read backwards, and a line that is none of ours.
        assert_eq!(visible("a\u{202e}b\u{2028}c"), "a\\u{202e}b\\u{2028}c");
        let value = serde_json::json!({ "a\u{9b}": "\u{7f}\n\u{202e}\u{2028}" });
        let text = json_text(&value);
        for escaped in ["\\u009b", "\\u007f", "\\u202e", "\\u2028"] {
            assert!(text.contains(escaped), "{text}");
        }
        assert_eq!(
            serde_json::from_str::<serde_json::Value>(&text).unwrap(),
            value
        );
    }

    #[test]
    fn a_folder_is_filled_at_once_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("out");
        let staging = Staging::begin(&out).unwrap();
        std::fs::write(staging.path().join("a"), "a").unwrap();
        drop(staging);
        assert!(!out.exists());
        let staging = Staging::begin(&out).unwrap();
        std::fs::write(staging.path().join("a"), "a").unwrap();
        staging.commit().unwrap();
        let names: Vec<_> = std::fs::read_dir(&out)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(names, ["a"]);
    }
}
