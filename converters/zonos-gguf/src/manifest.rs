//! The list of an evaluation corpus as text: a line `ids.npy [speaker.npy [position]]` a sequence
//! (`zonos2.md` 10.2).

use std::path::{Path, PathBuf};

use crate::shown::shown;

/// One sequence of the corpus.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManifestEntry {
    /// The ids, `[rows, codebooks + 1]` stored as floats.
    pub ids: PathBuf,
    /// The voice vector, where there is one.
    pub speaker: Option<PathBuf>,
    /// The row that the voice takes.
    pub position: u32,
}

/// A line that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error(
    "{file}: line {line}: {}; expected `ids.npy [speaker.npy [position]]`",
    shown(problem)
)]
pub struct ManifestError {
    file: String,
    line: usize,
    problem: String,
}

/// Reads the lines. Names are separated by blanks, so they hold none; `#` at the start of a word
/// begins a comment. Relative names are relative to `folder`.
///
/// # Errors
/// With the line, if it has more than three words, or the third is no row number.
pub fn parse(file: &str, text: &str, folder: &Path) -> Result<Vec<ManifestEntry>, ManifestError> {
    let mut out = Vec::new();
    for (i, line) in text.lines().enumerate() {
        let wrong = |problem: String| ManifestError {
            file: file.into(),
            line: i + 1,
            problem,
        };
        let words: Vec<&str> = line
            .split_whitespace()
            .take_while(|w| !w.starts_with('#'))
            .collect();
        let (ids, speaker, position) = match words[..] {
            [] => continue,
            [ids] => (ids, None, 0),
            [ids, speaker] => (ids, Some(speaker), 0),
            [ids, speaker, position] => {
                let row = position
                    .parse()
                    .map_err(|_| wrong(format!("'{position}' is no row number")))?;
                (ids, Some(speaker), row)
            }
            _ => return Err(wrong(format!("{} words", words.len()))),
        };
        out.push(ManifestEntry {
            ids: folder.join(ids),
            speaker: speaker.map(|s| folder.join(s)),
            position,
        });
    }
    Ok(out)
}

/// The lines of `entries`, as [`parse`] reads them.
pub fn render(entries: &[ManifestEntry]) -> String {
    let mut out = String::new();
    for e in entries {
        out += &e.ids.to_string_lossy();
        if let Some(speaker) = &e.speaker {
            out += &format!(" {} {}", speaker.to_string_lossy(), e.position);
        }
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_comments_and_mistakes() {
        let text = "# corpus\n\na.npy\n  b.npy\tv.npy # voice\nc#1.npy /v.npy 3\n";
        let entries = parse("m", text, Path::new("d")).unwrap();
        let entry = |ids: &str, speaker: Option<&str>, position| ManifestEntry {
            ids: ids.into(),
            speaker: speaker.map(Into::into),
            position,
        };
        assert_eq!(
            entries,
            [
                entry("d/a.npy", None, 0),
                entry("d/b.npy", Some("d/v.npy"), 0),
                entry("d/c#1.npy", Some("/v.npy"), 3),
            ]
        );
        assert_eq!(
            parse("m", &render(&entries), Path::new("")).unwrap(),
            entries
        );
        for (text, says) in [
            ("a.npy\nb.npy v.npy -1", "m: line 2: '-1' is no row number"),
            ("a b 1 2", "m: line 1: 4 words"),
        ] {
            let e = parse("m", text, Path::new("")).unwrap_err().to_string();
            assert!(e.starts_with(says), "{e}");
        }
    }
}
