//! Collects rows while a component runs, and knows afterwards which keys nobody touched.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::compare::{Metrics, Tolerance, compare};
use crate::error::Result;
use crate::golden::GoldenFile;
use crate::host::HostTensor;
use crate::report::{Row, SkipReason, Skipped};

/// A tolerance for keys that match a pattern, in place of the documented one.
#[derive(Debug, Clone, PartialEq)]
pub struct Override {
    /// Key of the golden file; `*` stands for any characters.
    pub pattern: String,
    /// Largest allowed absolute difference; for gradients the relative one.
    pub limit: f64,
}

impl Override {
    /// Reads `PATTERN=LIMIT`.
    ///
    /// # Errors
    /// A sentence that says what is wrong with `text`.
    pub fn parse(text: &str) -> std::result::Result<Self, String> {
        let wrong = || format!("'{text}': expected KEY=LIMIT, as in layer.*.out=1e-3");
        let (pattern, limit) = text.split_once('=').ok_or_else(wrong)?;
        let limit = limit.trim().parse::<f64>().map_err(|_| wrong())?;
        if pattern.trim().is_empty() || !limit.is_finite() || limit < 0.0 {
            return Err(wrong());
        }
        Ok(Self {
            pattern: pattern.trim().to_owned(),
            limit,
        })
    }
}

/// Whether `text` is `pattern` with every `*` replaced by some characters.
fn matches(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((head, rest)) => text.strip_prefix(head).is_some_and(|tail| {
            tail.char_indices()
                .map(|(i, _)| i)
                .chain([tail.len()])
                .any(|i| matches(rest, &tail[i..]))
        }),
    }
}

pub(crate) struct Checks<'a> {
    golden: &'a GoldenFile,
    overrides: &'a [Override],
    container: String,
    rows: Vec<Row>,
    touched: BTreeSet<String>,
    skipped: BTreeMap<String, SkipReason>,
    pub(crate) notes: Vec<String>,
}

impl<'a> Checks<'a> {
    pub(crate) fn new(golden: &'a GoldenFile, overrides: &'a [Override]) -> Self {
        Self {
            golden,
            overrides,
            container: String::new(),
            rows: Vec::new(),
            touched: BTreeSet::new(),
            skipped: BTreeMap::new(),
            notes: Vec::new(),
        }
    }

    pub(crate) fn golden(&self) -> &'a GoldenFile {
        self.golden
    }

    /// Rows that follow belong to the checkpoint `name`.
    pub(crate) fn enter(&mut self, name: &Path) {
        self.container = name.display().to_string();
    }

    pub(crate) fn container(&self) -> &str {
        &self.container
    }

    /// Compares `actual` with the golden tensor `key`; does nothing if the file has no such key.
    pub(crate) fn key(
        &mut self,
        key: &str,
        actual: &HostTensor,
        tolerance: Tolerance,
    ) -> Result<()> {
        if let Some(expected) = self.golden.get(key)? {
            self.touched.insert(key.to_owned());
            self.push(key.to_owned(), &expected, actual, tolerance, true);
        }
        Ok(())
    }

    /// Compares a part of the golden tensor `key`, prepared by the caller.
    pub(crate) fn part(
        &mut self,
        key: &str,
        expected: &HostTensor,
        actual: &HostTensor,
        tolerance: Tolerance,
    ) {
        self.touched.insert(key.to_owned());
        self.push(key.to_owned(), expected, actual, tolerance, true);
    }

    /// Compares a second run of ours, named in front of the key, with the golden tensor `key`.
    pub(crate) fn again(
        &mut self,
        run: &str,
        key: &str,
        actual: &HostTensor,
        tolerance: Tolerance,
    ) -> Result<()> {
        if let Some(expected) = self.golden.get(key)? {
            self.push(format!("{run}.{key}"), &expected, actual, tolerance, true);
        }
        Ok(())
    }

    /// Compares two runs of ours.
    pub(crate) fn own(
        &mut self,
        key: String,
        expected: &HostTensor,
        actual: &HostTensor,
        tolerance: Tolerance,
    ) {
        self.push(key, expected, actual, tolerance, false);
    }

    /// The model refused to make `key`.
    pub(crate) fn fail(&mut self, key: &str, tolerance: Tolerance, why: String) {
        if self.golden.has(key) {
            self.touched.insert(key.to_owned());
        }
        self.rows.push(Row {
            container: self.container.clone(),
            key: key.to_owned(),
            from_golden: self.golden.has(key),
            shape: self.golden.shape(key).unwrap_or_default().to_vec(),
            metrics: Metrics::default(),
            tolerance,
            miss: Some(why),
        });
    }

    /// A comparison that is not with a key of the file could not be made.
    pub(crate) fn own_failure(&mut self, key: &str, tolerance: Tolerance, why: &str) {
        self.rows.push(Row {
            container: self.container.clone(),
            key: key.to_owned(),
            from_golden: false,
            shape: Vec::new(),
            metrics: Metrics::default(),
            tolerance,
            miss: Some(why.to_owned()),
        });
    }

    pub(crate) fn input(&mut self, key: &str, what: &str) {
        self.skip(key, SkipReason::Input(what.to_owned()));
    }

    pub(crate) fn skip(&mut self, key: &str, reason: SkipReason) {
        if self.golden.has(key) {
            self.skipped.entry(key.to_owned()).or_insert(reason);
        }
    }

    fn push(
        &mut self,
        key: String,
        expected: &HostTensor,
        actual: &HostTensor,
        tolerance: Tolerance,
        from_golden: bool,
    ) {
        let tolerance = self.adjusted(&key, tolerance);
        let logits = key.contains("logits")
            && expected.shape().len() > 1
            && !key.ends_with("argmax")
            && !key.ends_with("logsumexp");
        let outcome = compare(expected, actual, &tolerance, logits);
        self.rows.push(Row {
            container: self.container.clone(),
            key,
            from_golden,
            shape: expected.shape().to_vec(),
            metrics: outcome.metrics,
            tolerance,
            miss: outcome.miss,
        });
    }

    fn adjusted(&self, key: &str, tolerance: Tolerance) -> Tolerance {
        let Some(found) = self
            .overrides
            .iter()
            .rev()
            .find(|o| matches(&o.pattern, key))
        else {
            return tolerance;
        };
        match tolerance {
            Tolerance::Absolute { .. } => Tolerance::Absolute {
                max_abs: found.limit,
            },
            Tolerance::Relative { .. } => Tolerance::Relative {
                relative: found.limit,
            },
            Tolerance::Sums { .. } => Tolerance::Sums {
                relative: found.limit,
            },
            Tolerance::Gradient { norm, max, .. } => Tolerance::Gradient {
                relative: found.limit,
                norm,
                max,
            },
            exact => exact,
        }
    }

    /// Rows, keys not compared (unknown ones included), and notes.
    pub(crate) fn finish(self) -> (Vec<Row>, Vec<Skipped>, Vec<String>) {
        let skipped = self
            .golden
            .keys()
            .filter(|key| !self.touched.contains(*key))
            .map(|key| Skipped {
                key: key.to_owned(),
                reason: self
                    .skipped
                    .get(key)
                    .cloned()
                    .unwrap_or(SkipReason::Unknown),
            })
            .collect();
        (self.rows, skipped, self.notes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        assert!(matches("layer.*.out", "layer.12.out"));
        assert!(matches("*", ""));
        assert!(matches("*.logits*", "plain.logits_rows"));
        assert!(!matches("layer.*.out", "layer.12.attn"));
        assert!(!matches("layer", "layer.0"));
        assert_eq!(
            Override::parse("a.*=1e-3"),
            Ok(Override {
                pattern: "a.*".into(),
                limit: 1e-3
            })
        );
        for bad in ["a", "a=x", "=1", "a=-1", "a=nan"] {
            assert!(Override::parse(bad).is_err(), "{bad}");
        }
    }
}
