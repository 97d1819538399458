//! What a checkpoint and a model have to say to each other, all at once.

use std::fmt;

use serde::Serialize;

use crate::shown::shown;

/// Most lines of one kind that [`LoadReport`] prints.
const MAX_LINES: usize = 40;

/// The result of matching a checkpoint against a model's tensors.
///
/// Printed, it is a table with everything that is wrong; [`LoadReport::is_clean`] says whether
/// anything is.
#[derive(Debug, Clone, Default, Serialize)]
#[non_exhaustive]
pub struct LoadReport {
    /// The checkpoint's file.
    pub checkpoint: String,
    /// Model tensors that the file provides.
    pub matched: Vec<Matched>,
    /// Model tensors that it does not provide.
    pub missing: Vec<Missing>,
    /// Optional model tensors that it does not provide; no error.
    pub absent: Vec<String>,
    /// File tensors that the model does not know.
    pub unexpected: Vec<Unexpected>,
    /// Tensors of another shape than the model's.
    pub wrong_shape: Vec<WrongShape>,
    /// Tensors that are not floating-point numbers.
    pub wrong_dtype: Vec<WrongDtype>,
    /// Two tensors for one name, halves of a pair, parts that cannot be put together.
    pub problems: Vec<String>,
    /// File tensors that the model's rules declare unneeded; no error.
    pub ignored: Vec<Ignored>,
    /// Tensors with NaN or infinite values; a warning, no error.
    pub non_finite: Vec<NonFinite>,
    /// Remarks: objects that were skipped, checks that were left out.
    pub notes: Vec<String>,
}

/// A model tensor and the file tensors it comes from.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Matched {
    /// The model's name.
    pub name: String,
    /// Names in the file.
    pub from: Vec<String>,
    /// The model's shape.
    pub shape: Vec<usize>,
    /// Dtype in the file.
    pub dtype: String,
}

/// A model tensor that is not in the file.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Missing {
    /// The model's name.
    pub name: String,
    /// The shape it should have.
    pub shape: Vec<usize>,
    /// What stands there instead, if anything does.
    pub found: Option<String>,
}

/// A file tensor that the model does not know.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Unexpected {
    /// Name in the file.
    pub name: String,
    /// The name the rules gave it, when another.
    pub mapped_to: Option<String>,
    /// Its shape.
    pub shape: Vec<usize>,
}

/// A tensor of the wrong shape.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct WrongShape {
    /// The model's name.
    pub name: String,
    /// Names in the file.
    pub from: Vec<String>,
    /// The model's shape.
    pub expected: Vec<usize>,
    /// The file's shape.
    pub found: Vec<usize>,
}

/// A tensor of the wrong dtype.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct WrongDtype {
    /// The model's name.
    pub name: String,
    /// Names in the file.
    pub from: Vec<String>,
    /// The file's dtype.
    pub found: String,
}

/// A file tensor that is not needed.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Ignored {
    /// Name in the file.
    pub name: String,
    /// The pattern that declares it so.
    pub rule: String,
}

/// A tensor with values that are no numbers.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct NonFinite {
    /// Name in the file.
    pub name: String,
    /// How many values are NaN.
    pub nan: u64,
    /// How many are infinite.
    pub infinite: u64,
}

impl LoadReport {
    /// Nothing missing, unexpected, of another shape or dtype, or contradictory. Ignored tensors,
    /// absent optional ones, NaN values and notes do not count.
    pub fn is_clean(&self) -> bool {
        self.missing.is_empty()
            && self.unexpected.is_empty()
            && self.wrong_shape.is_empty()
            && self.wrong_dtype.is_empty()
            && self.problems.is_empty()
    }

    /// One line for an error message: how many of each kind, and the first few by name.
    pub fn summary(&self) -> String {
        let mut parts = Vec::new();
        let mut add = |n: usize, what: &str, names: Vec<String>| {
            if n > 0 {
                let more = if n > names.len() { ", .." } else { "" };
                parts.push(format!("{n} {what} ({}{more})", names.join(", ")));
            }
        };
        add(
            self.wrong_shape.len(),
            "of the wrong shape",
            first(&self.wrong_shape, |w| {
                format!(
                    "'{}' expected {:?}, found {:?}",
                    w.name, w.expected, w.found
                )
            }),
        );
        add(
            self.wrong_dtype.len(),
            "of the wrong dtype",
            first(&self.wrong_dtype, |w| {
                format!("'{}' expected a float, found {}", w.name, w.found)
            }),
        );
        add(
            self.missing.len(),
            "missing",
            first(&self.missing, |m| match &m.found {
                Some(found) => format!("'{}': {found} stands there", m.name),
                None => format!("'{}'", m.name),
            }),
        );
        add(
            self.unexpected.len(),
            "unexpected",
            first(&self.unexpected, |u| format!("'{}'", u.name)),
        );
        add(
            self.problems.len(),
            "contradictory",
            first(&self.problems, Clone::clone),
        );
        if parts.is_empty() {
            format!("{} tensors match", self.matched.len())
        } else {
            format!("{}; {} match", shown(&parts.join("; ")), self.matched.len())
        }
    }
}

fn first<T>(list: &[T], show: impl Fn(&T) -> String) -> Vec<String> {
    list.iter().take(3).map(show).collect()
}

impl fmt::Display for LoadReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{}: {} tensors match",
            shown(&self.checkpoint),
            self.matched.len()
        )?;
        section(f, "missing", &self.missing, |m| match &m.found {
            Some(found) => format!("{}  {:?}  ({found} stands there)", m.name, m.shape),
            None => format!("{}  {:?}", m.name, m.shape),
        })?;
        section(f, "unexpected", &self.unexpected, |u| match &u.mapped_to {
            Some(name) => format!("{} -> {name}  {:?}", u.name, u.shape),
            None => format!("{}  {:?}", u.name, u.shape),
        })?;
        section(f, "wrong shape", &self.wrong_shape, |w| {
            format!(
                "{}  expected {:?}, found {:?} in {}",
                w.name,
                w.expected,
                w.found,
                w.from.join(" + ")
            )
        })?;
        section(f, "wrong dtype", &self.wrong_dtype, |w| {
            format!(
                "{}  expected a float, found {} in {}",
                w.name,
                w.found,
                w.from.join(" + ")
            )
        })?;
        section(f, "contradictory", &self.problems, Clone::clone)?;
        section(f, "not finite (warning)", &self.non_finite, |n| {
            format!("{}  {} NaN, {} infinite", n.name, n.nan, n.infinite)
        })?;
        section(f, "absent, optional", &self.absent, Clone::clone)?;
        section(f, "ignored", &self.ignored, |i| {
            format!("{}  (rule {})", i.name, i.rule)
        })?;
        section(f, "notes", &self.notes, Clone::clone)
    }
}

fn section<T>(
    f: &mut fmt::Formatter<'_>,
    title: &str,
    list: &[T],
    show: impl Fn(&T) -> String,
) -> fmt::Result {
    if list.is_empty() {
        return Ok(());
    }
    writeln!(f, "  {title}: {}", list.len())?;
    for item in list.iter().take(MAX_LINES) {
        writeln!(f, "    {}", shown(&show(item)))?;
    }
    if list.len() > MAX_LINES {
        writeln!(f, "    .. and {} more", list.len() - MAX_LINES)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whichever list a name from a file ends up in, a terminal must not obey it and a log line must
    /// stay a line.
    #[test]
    fn no_list_shows_a_name_raw() {
        let evil = || "a\u{1b}[2J\nb\u{202e}".to_string();
        let from = || vec![evil(), "b".into()];
        let report = LoadReport {
            checkpoint: evil(),
            missing: vec![Missing {
                name: evil(),
                shape: vec![1],
                found: Some(evil()),
            }],
            absent: vec![evil()],
            unexpected: vec![Unexpected {
                name: evil(),
                mapped_to: Some(evil()),
                shape: vec![1],
            }],
            wrong_shape: vec![WrongShape {
                name: evil(),
                from: from(),
                expected: vec![1],
                found: vec![2],
            }],
            wrong_dtype: vec![WrongDtype {
                name: evil(),
                from: from(),
                found: evil(),
            }],
            problems: vec![evil()],
            ignored: vec![Ignored {
                name: evil(),
                rule: evil(),
            }],
            non_finite: vec![NonFinite {
                name: evil(),
                nan: 1,
                infinite: 0,
            }],
            notes: vec![evil()],
            ..LoadReport::default()
        };
        let raw = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
        let table = report.to_string();
        assert!(!table.contains(raw), "{table:?}");
        // The first line, then a title and an item for each of nine lists.
        assert_eq!(table.lines().count(), 1 + 9 * 2, "{table}");
        assert_eq!(
            table.matches("a\\u{1b}[2J\\nb\\u{202e}").count(),
            16,
            "{table}"
        );
        let line = report.summary();
        assert!(!line.contains(raw) && !line.contains('\n'), "{line:?}");
    }
}
