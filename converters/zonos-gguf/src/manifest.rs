//! The list of an evaluation corpus, as TOML and as text lines.
//!
//! TOML, one table a sequence:
//!
//! ```toml
//! [[sequence]]
//! ids = "trace-000.npy"
//! speaker = "voice-00.npy"   # optional
//! position = 0               # the row that the voice takes; 0 when left out
//! ```
//!
//! Lines, as zonos2.cpp reads them (`zonos2.md` 10.2): `ids.npy [speaker.npy [position]]`.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::shown::told;

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

/// A manifest that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{file}: {place}: {}; expected {expected}", told(problem))]
pub struct ManifestError {
    file: String,
    place: String,
    problem: String,
    expected: &'static str,
}

const LINE: &str = "`ids.npy [speaker.npy [position]]`";
const TABLE: &str = "[[sequence]] tables with ids = \"F.npy\" and, for a voice, speaker = \"F.npy\" and position = ROW";

/// Reads a manifest: TOML where the name ends in `.toml`, lines otherwise. Relative names are
/// relative to the folder of `file`.
///
/// # Errors
/// As [`parse_toml`] and [`parse_lines`].
pub fn parse(file: &Path, text: &str) -> Result<Vec<ManifestEntry>, ManifestError> {
    let name = file.display().to_string();
    let folder = file.parent().unwrap_or(Path::new(""));
    let toml = file.extension().and_then(|e| e.to_str());
    if toml.is_some_and(|e| e.eq_ignore_ascii_case("toml")) {
        parse_toml(&name, text, folder)
    } else {
        parse_lines(&name, text, folder)
    }
}

/// Reads lines. Names are separated by blanks, so they hold none; `#` at the start of a word begins a
/// comment. Relative names are relative to `folder`.
///
/// # Errors
/// With the line, if it has more than three words, or the third is no row number.
pub fn parse_lines(
    file: &str,
    text: &str,
    folder: &Path,
) -> Result<Vec<ManifestEntry>, ManifestError> {
    let mut out = Vec::new();
    for (i, line) in text.lines().enumerate() {
        let wrong = |problem: String| ManifestError {
            file: file.into(),
            place: format!("line {}", i + 1),
            problem,
            expected: LINE,
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

/// The tables of a TOML manifest.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Tables {
    #[serde(default)]
    sequence: Vec<Table>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    ids: PathBuf,
    speaker: Option<PathBuf>,
    position: Option<u32>,
}

/// Reads the TOML form. Relative names are relative to `folder`.
///
/// # Errors
/// With the line, if it is no TOML or holds other keys or types; with the number of the sequence, if it
/// gives a position but no voice, or an empty name.
pub fn parse_toml(
    file: &str,
    text: &str,
    folder: &Path,
) -> Result<Vec<ManifestEntry>, ManifestError> {
    let wrong = |place: String, problem: String| ManifestError {
        file: file.into(),
        place,
        problem,
        expected: TABLE,
    };
    let tables: Tables = toml::from_str(text).map_err(|e| {
        let before = e.span().and_then(|span| text.get(..span.start));
        let line = before.map_or(1, |before| before.matches('\n').count() + 1);
        wrong(format!("line {line}"), e.message().to_owned())
    })?;
    let entry = |(i, table): (usize, Table)| {
        if table.speaker.is_none() && table.position.is_some() {
            let problem = "a position, but no speaker to stand there".to_owned();
            return Err(wrong(format!("sequence {i}"), problem));
        }
        // Joined to the folder, no name would be the folder.
        for (key, path) in [
            ("ids", Some(&table.ids)),
            ("speaker", table.speaker.as_ref()),
        ] {
            if path.is_some_and(|path| path.as_os_str().is_empty()) {
                return Err(wrong(format!("sequence {i}"), format!("{key} is empty")));
            }
        }
        Ok(ManifestEntry {
            ids: folder.join(table.ids),
            speaker: table.speaker.map(|s| folder.join(s)),
            position: table.position.unwrap_or(0),
        })
    };
    tables.sequence.into_iter().enumerate().map(entry).collect()
}

/// The lines of `entries`, as [`parse_lines`] reads them.
pub fn render_lines(entries: &[ManifestEntry]) -> String {
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

/// The tables of `entries`, as [`parse_toml`] reads them, each under the comment of the same index.
pub fn render_toml(entries: &[ManifestEntry], comments: &[String]) -> String {
    let quoted = |path: &Path| toml::Value::from(path.to_string_lossy().into_owned()).to_string();
    let mut out = String::new();
    for (i, e) in entries.iter().enumerate() {
        if i > 0 {
            out.push('\n');
        }
        if let Some(comment) = comments.get(i) {
            // Control characters, line breaks among them, may not stand in a comment.
            let comment: String = comment.chars().filter(|c| !c.is_control()).collect();
            out += &format!("# {comment}\n");
        }
        out += &format!("[[sequence]]\nids = {}\n", quoted(&e.ids));
        if let Some(speaker) = &e.speaker {
            out += &format!("speaker = {}\nposition = {}\n", quoted(speaker), e.position);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(ids: &str, speaker: Option<&str>, position: u32) -> ManifestEntry {
        ManifestEntry {
            ids: ids.into(),
            speaker: speaker.map(Into::into),
            position,
        }
    }

    #[test]
    fn lines_comments_and_mistakes() {
        let text = "# corpus\n\na.npy\n  b.npy\tv.npy # voice\nc#1.npy /v.npy 3\n";
        let entries = parse(Path::new("d/m"), text).unwrap();
        assert_eq!(
            entries,
            [
                entry("d/a.npy", None, 0),
                entry("d/b.npy", Some("d/v.npy"), 0),
                entry("d/c#1.npy", Some("/v.npy"), 3),
            ]
        );
        assert_eq!(
            parse_lines("m", &render_lines(&entries), Path::new("")).unwrap(),
            entries
        );
        for (text, says) in [
            ("a.npy\nb.npy v.npy -1", "m: line 2: '-1' is no row number"),
            ("a b 1 2", "m: line 1: 4 words"),
        ] {
            let e = parse(Path::new("m"), text).unwrap_err().to_string();
            assert!(e.starts_with(says), "{e}");
        }
    }

    #[test]
    fn tables_comments_and_mistakes() {
        let text = "[[sequence]]\nids = 'a b.npy'\n\n[[sequence]] # voice\nids = \"c.npy\"\nspeaker = \"/v.npy\"\nposition = 3\n";
        let entries = parse(Path::new("d/m.TOML"), text).unwrap();
        let expected = [
            entry("d/a b.npy", None, 0),
            entry("d/c.npy", Some("/v.npy"), 3),
        ];
        assert_eq!(entries, expected);
        let comments = ["two\nlines".to_owned()];
        let strange = [
            entry("a\"b\\c\n.npy", Some("ü '.npy"), 1),
            entry("x", None, 0),
        ];
        let text = render_toml(&strange, &comments);
        assert_eq!(parse_toml("m", &text, Path::new("")).unwrap(), strange);
        assert!(text.starts_with("# twolines\n"), "{text}");
        assert_eq!(parse_toml("m", "", Path::new("")).unwrap(), []);
        for (text, says) in [
            ("[[sequence]]\nids = 3", "m.toml: line 2: "),
            (
                "[[sequence]]\nids = 'a'\n\nspeakr = 'v'",
                "m.toml: line 4: ",
            ),
            ("\n[[sequence]]\nspeaker = 'v'", "m.toml: line 2: "),
            (
                "[[sequence]]\nids = 'a'\nspeaker = 'v'\nposition = -1",
                "m.toml: line 4: ",
            ),
            ("a.npy v.npy", "m.toml: line 1: "),
            (
                "[[sequence]]\nids = 'a'\nposition = 0",
                "m.toml: sequence 0: ",
            ),
            ("[[sequence]]\nids = ''", "m.toml: sequence 0: ids is empty"),
            (
                "[[sequence]]\nids = 'a'\nspeaker = ''",
                "m.toml: sequence 0: speaker is empty",
            ),
        ] {
            let e = parse(Path::new("m.toml"), text).unwrap_err().to_string();
            assert!(e.starts_with(says) && !e.contains('\n'), "{e}");
            assert!(e.contains("[[sequence]] tables"), "{e}");
        }
    }
}
