//! What a comparison of a golden folder found.

use std::fmt;
use std::path::PathBuf;

use serde::Serialize;

use crate::compare::{Metrics, Tolerance};
use crate::folder::Component;

/// One compared tensor.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// Checkpoint that ran, as a path inside the folder.
    pub container: String,
    /// Key of the golden file; rows that compare two of our own runs say so in front:
    /// `untapped.KEY`, `streamed.KEY`, `recompute.KEY`, `alone.KEY`.
    pub key: String,
    /// Whether the expected values come from the golden file or from another run of ours.
    pub from_golden: bool,
    /// Shape of the expected tensor.
    pub shape: Vec<usize>,
    /// What was measured.
    pub metrics: Metrics,
    /// What was allowed.
    pub tolerance: Tolerance,
    /// `None` when the tolerance is met, otherwise why not.
    pub miss: Option<String>,
}

impl Row {
    /// Whether the tolerance is met.
    pub fn passed(&self) -> bool {
        self.miss.is_none()
    }
}

/// Why a key was not compared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "why", content = "detail")]
pub enum SkipReason {
    /// It is an input of the run.
    Input(String),
    /// The part of the project that makes it does not exist yet, or the comparison makes no sense
    /// under the rules in force.
    NotApplicable(String),
    /// Nobody knows the key: counts as a failure.
    Unknown,
}

impl fmt::Display for SkipReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Input(what) => write!(f, "input: {what}"),
            Self::NotApplicable(why) => f.write_str(why),
            Self::Unknown => f.write_str("unknown key"),
        }
    }
}

/// A key that was not compared.
#[derive(Debug, Clone, Serialize)]
pub struct Skipped {
    /// Key of the golden file.
    pub key: String,
    /// Why.
    pub reason: SkipReason,
}

/// The result of one golden folder.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The folder.
    pub dir: PathBuf,
    /// What it is a golden of.
    pub component: Component,
    /// The device as the user named it.
    pub device: String,
    /// Compared tensors, in the order of the forward pass, container after container.
    pub rows: Vec<Row>,
    /// Keys that were not compared, each once.
    pub skipped: Vec<Skipped>,
    /// Other things worth saying: checkpoints that were not loaded, the rules in force.
    pub notes: Vec<String>,
    /// Wall-clock time, loading included.
    pub seconds: f64,
}

/// Counts over one report or several.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Comparisons made.
    pub compared: usize,
    /// Comparisons that missed their tolerance, and keys that nobody knows.
    pub failed: usize,
    /// Keys not compared.
    pub not_compared: usize,
}

impl std::ops::Add for Counts {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self {
            compared: self.compared + other.compared,
            failed: self.failed + other.failed,
            not_compared: self.not_compared + other.not_compared,
        }
    }
}

impl Report {
    /// How many comparisons were made, missed and skipped.
    pub fn counts(&self) -> Counts {
        let unknown = self.unknown().count();
        Counts {
            compared: self.rows.len(),
            failed: self.rows.iter().filter(|r| !r.passed()).count() + unknown,
            not_compared: self.skipped.len(),
        }
    }

    /// Whether golden values were compared and everything is within its tolerance.
    pub fn passed(&self) -> bool {
        self.rows.iter().any(|r| r.from_golden) && self.counts().failed == 0
    }

    /// The first row, in the order of the forward pass, that missed its tolerance.
    pub fn first_divergence(&self) -> Option<&Row> {
        self.rows.iter().find(|r| !r.passed())
    }

    /// Keys that nobody knows.
    pub fn unknown(&self) -> impl Iterator<Item = &str> {
        self.skipped
            .iter()
            .filter(|s| s.reason == SkipReason::Unknown)
            .map(|s| s.key.as_str())
    }

    /// One line that says how it went.
    pub fn verdict(&self) -> String {
        let counts = self.counts();
        if !self.rows.iter().any(|r| r.from_golden) {
            return "FAILED: no golden tensor was compared".to_owned();
        }
        if counts.failed == 0 {
            return format!("passed: {} compared", counts.compared);
        }
        match self.first_divergence() {
            Some(row) => format!(
                "FAILED: first divergence `{}` ({}): {}",
                row.key,
                row.container,
                row.miss.as_deref().unwrap_or_default()
            ),
            None => format!(
                "FAILED: unknown keys: {}",
                self.unknown().collect::<Vec<_>>().join(", ")
            ),
        }
    }
}

/// The table for terminals: one line a tensor.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} [{}] on {}",
            self.dir.display(),
            self.component,
            self.device
        )?;
        for note in &self.notes {
            writeln!(f, "  note: {note}")?;
        }
        let width = self
            .rows
            .iter()
            .map(|r| r.key.len())
            .max()
            .unwrap_or(3)
            .max(3);
        let mut container = None;
        for row in &self.rows {
            if container != Some(&row.container) {
                container = Some(&row.container);
                writeln!(f, "  {}", row.container)?;
                writeln!(
                    f,
                    "    {:<width$}  {:<16} {:>10} {:>9} {:>9} {:>7} {:>7}  {:<16} verdict",
                    "key", "shape", "cosine", "max |d|", "rel L2", "argmax", "equal", "tolerance"
                )?;
            }
            let m = &row.metrics;
            writeln!(
                f,
                "    {:<width$}  {:<16} {:>10} {:>9} {:>9} {:>7} {:>7}  {:<16} {}",
                row.key,
                shape(&row.shape),
                number(m.cosine, |x| format!("{x:.8}")),
                number(m.max_abs, scientific),
                number(m.relative_l2, scientific),
                number(m.argmax, percent),
                number(m.equal, percent),
                row.tolerance.to_string(),
                match &row.miss {
                    None => "ok".to_owned(),
                    Some(why) => format!("FAIL {why}"),
                }
            )?;
        }
        if !self.skipped.is_empty() {
            writeln!(f, "  not compared")?;
            let width = self.skipped.iter().map(|s| s.key.len()).max().unwrap_or(0);
            for skipped in &self.skipped {
                writeln!(f, "    {:<width$}  {}", skipped.key, skipped.reason)?;
            }
        }
        let counts = self.counts();
        writeln!(
            f,
            "  {} ({} not compared, {:.1} s)",
            self.verdict(),
            counts.not_compared,
            self.seconds
        )
    }
}

pub(crate) fn shape(dims: &[usize]) -> String {
    let dims: Vec<_> = dims.iter().map(usize::to_string).collect();
    format!("[{}]", dims.join(", "))
}

pub(crate) fn number(value: Option<f64>, show: impl Fn(f64) -> String) -> String {
    value.map_or_else(|| "-".to_owned(), show)
}

pub(crate) fn scientific(x: f64) -> String {
    if x == 0.0 {
        "0".to_owned()
    } else {
        format!("{x:.2e}")
    }
}

pub(crate) fn percent(x: f64) -> String {
    let percent = x * 100.0;
    if percent == percent.trunc() {
        format!("{percent:.0}%")
    } else {
        format!("{percent:.1}%")
    }
}
