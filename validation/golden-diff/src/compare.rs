//! Compares two tensors: metrics, tolerances, verdict.

use std::fmt;

use serde::Serialize;

use crate::host::{HostTensor, Values, argmax};

/// How far a tensor may be from its golden.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "rule")]
pub enum Tolerance {
    /// Every entry within `max_abs`.
    Absolute {
        /// Largest allowed `|actual - golden|`.
        max_abs: f64,
    },
    /// Every entry within `relative` of the golden's magnitude; for single numbers such as a loss.
    Relative {
        /// Largest allowed `|actual - golden| / |golden|`.
        relative: f64,
    },
    /// Every entry equal: ids, codes, lengths.
    Exact,
    /// The last axis holds the same numbers in any order: experts a row visits.
    SameSet,
    /// At least this share of entries (or of sets, for experts) is equal; for half precision.
    Share {
        /// Smallest allowed share, 0 to 1.
        at_least: f64,
        /// Whether the last axis is a set.
        sets: bool,
    },
    /// The angle between the flattened tensors; for half precision.
    Cosine {
        /// Smallest allowed cosine.
        at_least: f64,
    },
    /// `[sum, sum of squares, cosine-weighted sum]`: each within `relative` of the sum of squares.
    Sums {
        /// Largest allowed `|actual - golden| / golden[1]`.
        relative: f64,
    },
    /// A gradient: `norm(actual - golden) <= relative * norm` and
    /// `max|actual - golden| <= relative * max`.
    Gradient {
        /// The factor on both scales.
        relative: f64,
        /// L2 norm of the whole golden gradient.
        norm: f64,
        /// Largest entry of the whole golden gradient.
        max: f64,
    },
}

impl fmt::Display for Tolerance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absolute { max_abs } => write!(f, "|d| <= {max_abs:.0e}"),
            Self::Relative { relative } => write!(f, "|d|/|g| <= {relative:.0e}"),
            Self::Exact => f.write_str("equal"),
            Self::SameSet => f.write_str("same sets"),
            Self::Share { at_least, .. } => write!(f, "{:.0} % equal", at_least * 100.0),
            Self::Cosine { at_least } => write!(f, "cos >= {at_least}"),
            Self::Sums { relative } => write!(f, "|d|/sum sq <= {relative:.0e}"),
            Self::Gradient { relative, .. } => write!(f, "L2, max <= {relative:.0e}"),
        }
    }
}

/// What was measured. Absent values make no sense for the tensor (cosines of ids).
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Metrics {
    /// Cosine of the angle between the flattened tensors; 1 when both are zero.
    pub cosine: Option<f64>,
    /// Largest `|actual - golden|`.
    pub max_abs: Option<f64>,
    /// `norm(actual - golden) / norm(golden)`.
    pub relative_l2: Option<f64>,
    /// Share of rows of the last axis whose largest entry is at the same place; for logits.
    pub argmax: Option<f64>,
    /// Share of equal entries, or of equal sets.
    pub equal: Option<f64>,
    /// Entries that are NaN or infinite in one tensor and not equal to the other's.
    pub not_finite: usize,
    /// Flat row-major position of the worst entry.
    pub worst: Option<usize>,
}

/// Metrics and, when the tolerance is missed, why.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    /// What was measured.
    pub metrics: Metrics,
    /// `None` when the tolerance is met.
    pub miss: Option<String>,
}

impl Comparison {
    /// Whether the tolerance is met.
    pub fn passed(&self) -> bool {
        self.miss.is_none()
    }

    fn missed(reason: impl Into<String>) -> Self {
        Self {
            metrics: Metrics::default(),
            miss: Some(reason.into()),
        }
    }
}

/// Compares `actual` with `golden`. With `logits` the share of equal arg-maxes along the last axis
/// is measured too.
///
/// A NaN is equal to a NaN at the same place and infinities of one sign are equal; any other pair
/// with a value that is not finite misses every tolerance.
pub fn compare(
    golden: &HostTensor,
    actual: &HostTensor,
    tolerance: &Tolerance,
    logits: bool,
) -> Comparison {
    if golden.shape() != actual.shape() {
        return Comparison::missed(format!(
            "shape: expected {:?}, found {:?}",
            golden.shape(),
            actual.shape()
        ));
    }
    match (golden.values(), actual.values()) {
        (Values::Int(g), Values::Int(a)) => integers(golden, g, a, tolerance),
        (Values::Float(g), Values::Float(a)) => floats(golden, g, a, tolerance, logits),
        (Values::Int(_), Values::Float(_)) => {
            Comparison::missed("values: expected integers, found real numbers")
        }
        (Values::Float(_), Values::Int(_)) => {
            Comparison::missed("values: expected real numbers, found integers")
        }
    }
}

fn integers(golden: &HostTensor, g: &[i64], a: &[i64], tolerance: &Tolerance) -> Comparison {
    let sets = matches!(
        tolerance,
        Tolerance::SameSet | Tolerance::Share { sets: true, .. }
    );
    let width = match golden.shape().last() {
        Some(&w) if sets && w > 0 => w,
        _ => 1,
    };
    let mut equal = 0;
    let mut worst = None;
    for (i, (x, y)) in g.chunks(width).zip(a.chunks(width)).enumerate() {
        if sorted(x) == sorted(y) {
            equal += 1;
        } else {
            worst.get_or_insert(i * width);
        }
    }
    let groups = g.len().div_ceil(width);
    let share = if groups == 0 {
        1.0
    } else {
        f64::from(equal) / groups as f64
    };
    let needed = match tolerance {
        Tolerance::Share { at_least, .. } => *at_least,
        _ => 1.0,
    };
    let miss = (share < needed).then(|| match worst {
        Some(at) => format!(
            "{} of {groups} differ, first at {}: expected {:?}, found {:?}",
            groups - equal as usize,
            place(golden.shape(), at),
            &g[at..at + width],
            &a[at..at + width]
        ),
        None => "differ".to_owned(),
    });
    Comparison {
        metrics: Metrics {
            equal: Some(share),
            worst,
            ..Metrics::default()
        },
        miss,
    }
}

fn sorted(values: &[i64]) -> Vec<i64> {
    let mut v = values.to_vec();
    v.sort_unstable();
    v
}

fn floats(
    golden: &HostTensor,
    g: &[f64],
    a: &[f64],
    tolerance: &Tolerance,
    logits: bool,
) -> Comparison {
    let (mut dot, mut gg, mut aa, mut dd) = (0.0, 0.0, 0.0, 0.0);
    let (mut max_abs, mut worst, mut bad) = (0.0f64, None, None);
    let mut not_finite = 0;
    for (i, (&x, &y)) in g.iter().zip(a).enumerate() {
        if !x.is_finite() || !y.is_finite() {
            if !(x == y || (x.is_nan() && y.is_nan())) {
                not_finite += 1;
                bad.get_or_insert(i);
            }
            continue;
        }
        let d = (y - x).abs();
        dot += x * y;
        gg += x * x;
        aa += y * y;
        dd += d * d;
        if d > max_abs {
            (max_abs, worst) = (d, Some(i));
        }
    }
    let cosine = if gg == 0.0 && aa == 0.0 {
        1.0
    } else if gg == 0.0 || aa == 0.0 {
        0.0
    } else {
        (dot / (gg.sqrt() * aa.sqrt())).clamp(-1.0, 1.0)
    };
    let relative_l2 = match (dd == 0.0, gg == 0.0) {
        (true, _) => 0.0,
        (false, true) => f64::INFINITY,
        (false, false) => (dd / gg).sqrt(),
    };
    let metrics = Metrics {
        cosine: Some(cosine),
        max_abs: Some(max_abs),
        relative_l2: Some(relative_l2),
        argmax: logits.then(|| argmax_share(golden, g, a)),
        equal: None,
        not_finite,
        worst: bad.or(worst),
    };
    let at = |i: usize| {
        format!(
            "at {}: expected {:e}, found {:e}",
            place(golden.shape(), i),
            g[i],
            a[i]
        )
    };
    let beyond = |what: String| worst.map_or(what.clone(), |i| format!("{what}, worst {}", at(i)));
    let miss = if let Some(i) = bad {
        Some(format!("{not_finite} not finite, first {}", at(i)))
    } else {
        match *tolerance {
            Tolerance::Absolute { max_abs: limit } => {
                (max_abs > limit).then(|| beyond(format!("max |d| {max_abs:.3e} > {limit:.1e}")))
            }
            Tolerance::Exact | Tolerance::SameSet | Tolerance::Share { .. } => (max_abs > 0.0)
                .then(|| beyond(format!("max |d| {max_abs:.3e}, expected equal values"))),
            Tolerance::Relative { relative } => {
                let worst_ratio = g
                    .iter()
                    .zip(a)
                    .filter(|(x, y)| x != y)
                    .map(|(x, y)| (y - x).abs() / x.abs())
                    .fold(0.0, f64::max);
                (worst_ratio > relative).then(|| {
                    beyond(format!(
                        "relative difference {worst_ratio:.3e} > {relative:.1e}"
                    ))
                })
            }
            Tolerance::Cosine { at_least } => {
                (cosine < at_least).then(|| format!("cosine {cosine:.6} < {at_least}"))
            }
            Tolerance::Sums { relative } => match g.get(1) {
                Some(&scale) if g.len() == 3 => (max_abs > relative * scale.abs()).then(|| {
                    beyond(format!(
                        "max |d| is {:.3e} of the sum of squares > {relative:.1e}",
                        max_abs / scale.abs()
                    ))
                }),
                _ => Some("expected three sums".to_owned()),
            },
            Tolerance::Gradient {
                relative,
                norm,
                max,
            } => {
                let l2 = dd.sqrt();
                if l2 > relative * norm {
                    Some(beyond(format!(
                        "norm of the difference is {:.3e} of the gradient's > {relative:.1e}",
                        l2 / norm
                    )))
                } else if max_abs > relative * max {
                    Some(beyond(format!(
                        "max |d| is {:.3e} of the largest entry > {relative:.1e}",
                        max_abs / max
                    )))
                } else {
                    None
                }
            }
        }
    };
    Comparison { metrics, miss }
}

fn argmax_share(golden: &HostTensor, g: &[f64], a: &[f64]) -> f64 {
    let width = golden.shape().last().copied().unwrap_or(1).max(1);
    let rows = g.len() / width;
    if rows == 0 {
        return 1.0;
    }
    let same = g
        .chunks(width)
        .zip(a.chunks(width))
        .filter(|(x, y)| argmax(x) == argmax(y))
        .count();
    same as f64 / rows as f64
}

/// `[2, 0, 17]` for a flat position.
fn place(shape: &[usize], mut flat: usize) -> String {
    let mut index = vec![0; shape.len()];
    for (slot, &d) in index.iter_mut().zip(shape).rev() {
        *slot = flat % d.max(1);
        flat /= d.max(1);
    }
    format!("{index:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLOSE: Tolerance = Tolerance::Absolute { max_abs: 1e-3 };

    fn f(values: &[f64]) -> HostTensor {
        HostTensor::list(values.to_vec())
    }

    #[test]
    fn metrics_of_real_numbers() {
        let c = compare(&f(&[3.0, 4.0]), &f(&[3.0, 4.5]), &CLOSE, false);
        assert_eq!(c.metrics.max_abs, Some(0.5));
        assert_eq!(c.metrics.relative_l2, Some(0.1));
        assert_eq!(c.metrics.worst, Some(1));
        assert!(!c.passed());
        assert!(c.miss.unwrap().contains("at [1]"));
        assert!(compare(&f(&[3.0, 4.0]), &f(&[3.0, 4.0009]), &CLOSE, false).passed());
    }

    #[test]
    fn a_nan_is_only_equal_to_a_nan() {
        let nan = f64::NAN;
        let c = compare(&f(&[1.0, 2.0]), &f(&[1.0, nan]), &CLOSE, false);
        assert_eq!(c.metrics.not_finite, 1);
        assert!(!c.passed());
        assert!(!compare(&f(&[nan]), &f(&[0.0]), &CLOSE, false).passed());
        assert!(compare(&f(&[nan, 1.0]), &f(&[nan, 1.0]), &CLOSE, false).passed());
        let inf = f64::INFINITY;
        assert!(compare(&f(&[inf]), &f(&[inf]), &CLOSE, false).passed());
        assert!(!compare(&f(&[inf]), &f(&[-inf]), &CLOSE, false).passed());
        // A cosine alone would not see it.
        let by_angle = Tolerance::Cosine { at_least: 0.9 };
        assert!(!compare(&f(&[1.0, 2.0]), &f(&[1.0, nan]), &by_angle, false).passed());
    }

    #[test]
    fn shapes_and_kinds_must_agree() {
        assert!(!compare(&f(&[1.0]), &f(&[1.0, 1.0]), &CLOSE, false).passed());
        assert!(!compare(&f(&[1.0]), &HostTensor::int(1), &CLOSE, false).passed());
        assert!(!compare(&HostTensor::int(1), &f(&[1.0]), &Tolerance::Exact, false).passed());
    }

    #[test]
    fn experts_are_sets_and_codes_are_not() {
        let g = HostTensor::ints([2, 2], vec![1, 4, 0, 3]).unwrap();
        let swapped = HostTensor::ints([2, 2], vec![4, 1, 0, 3]).unwrap();
        let other = HostTensor::ints([2, 2], vec![4, 1, 0, 2]).unwrap();
        assert!(compare(&g, &swapped, &Tolerance::SameSet, false).passed());
        assert!(!compare(&g, &swapped, &Tolerance::Exact, false).passed());
        let c = compare(&g, &other, &Tolerance::SameSet, false);
        assert_eq!(c.metrics.equal, Some(0.5));
        assert!(!c.passed());
        let half = Tolerance::Share {
            at_least: 0.5,
            sets: true,
        };
        assert!(compare(&g, &other, &half, false).passed());
    }

    #[test]
    fn logits_report_their_argmax() {
        let g = HostTensor::floats([2, 2], vec![1.0, 2.0, 5.0, 4.0]).unwrap();
        let a = HostTensor::floats([2, 2], vec![1.0, 2.0, 4.0, 5.0]).unwrap();
        assert_eq!(compare(&g, &a, &CLOSE, true).metrics.argmax, Some(0.5));
    }

    #[test]
    fn gradients_are_judged_by_norm_and_by_largest_entry() {
        let rule = Tolerance::Gradient {
            relative: 1e-2,
            norm: 10.0,
            max: 1.0,
        };
        let g = f(&[1.0, 0.0]);
        assert!(compare(&g, &f(&[1.005, 0.0]), &rule, false).passed());
        assert!(!compare(&g, &f(&[1.05, 0.0]), &rule, false).passed());
        let wide = Tolerance::Gradient {
            relative: 1e-2,
            norm: 0.1,
            max: 100.0,
        };
        assert!(!compare(&g, &f(&[1.005, 0.0]), &wide, false).passed());
    }

    #[test]
    fn sums_are_measured_against_the_middle_one() {
        let rule = Tolerance::Sums { relative: 1e-6 };
        let g = f(&[0.001, 1000.0, -0.5]);
        assert!(compare(&g, &f(&[0.0015, 1000.0, -0.5]), &rule, false).passed());
        assert!(!compare(&g, &f(&[0.003, 1000.0, -0.5]), &rule, false).passed());
        assert!(!compare(&f(&[1.0]), &f(&[1.0]), &rule, false).passed());
    }
}
