//! From measurements and wishes to conditioning buckets.
//!
//! A prompt may say how fast to speak and what the recording should sound like. The model knows
//! both as buckets; this module finds the bucket of a value and puts requests, by name or in
//! order, into the model's order. Bucket labels come from `params.json`.

use std::collections::BTreeMap;

use crate::config::Zonos2Config;

/// The quality feature that prompts carry unless the request says otherwise.
pub const DEFAULT_QUALITY_FEATURE: &str = "trailing_silence_s";

/// Its bucket: a quarter to half a second of silence at the end.
pub const DEFAULT_QUALITY_BUCKET: usize = 3;

/// Centre assumed for a middle rate bucket without an upper end, in bytes a second.
const OPEN_NEUTRAL_RATE: f64 = 15.0;

/// Fastest rate of a model that has rate buckets but no labels: one byte a frame, at the frame rate
/// the original assumes for its training data.
const UNLABELLED_TOP_RATE: f64 = 86.0 * 44_070.0 / 44_000.0;

/// Why a conditioning request was refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ConditioningError {
    /// The model has no speaking-rate buckets.
    #[error("speaking rate: this model has no speaking-rate buckets; leave the rate out")]
    NoRates,
    /// The model has rate buckets without labels, so their centre is unknown.
    #[error(
        "speed: this model does not label its speaking-rate buckets; give a rate or a bucket instead"
    )]
    NoRateLabels,
    /// A rate or speed that is not a positive number.
    #[error("{name}: expected a positive number, found {value}")]
    NotPositive {
        /// `speaking rate` or `speed`.
        name: &'static str,
        /// The value.
        value: f64,
    },
    /// A label in `params.json` that is neither a number nor a range.
    #[error(
        "bucket label {label:?} of {feature}: expected a number, a range such as \"0-8\" or an open range such as \"40+\""
    )]
    Label {
        /// Feature the label belongs to.
        feature: String,
        /// The label.
        label: String,
    },
    /// A rate bucket that does not exist.
    #[error("speaking-rate bucket {bucket}: this model has {count} buckets, numbered from 0")]
    RateBucket {
        /// The bucket asked for.
        bucket: usize,
        /// Buckets of the model.
        count: usize,
    },
    /// A quality bucket that does not exist.
    #[error(
        "quality bucket {bucket} of {feature}: this model has {count} buckets for it, numbered from 0"
    )]
    QualityBucket {
        /// Name of the feature.
        feature: String,
        /// The bucket asked for.
        bucket: usize,
        /// Buckets of the feature.
        count: usize,
    },
    /// More quality entries than the model has features.
    #[error("quality: {found} entries, but this model has {count} quality features")]
    QualityCount {
        /// Entries given.
        found: usize,
        /// Features of the model.
        count: usize,
    },
}

/// The values a bucket stands for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BucketRange {
    /// Lower end, part of the bucket.
    pub low: f64,
    /// Upper end, not part of the bucket; `None` when it is open, equal to `low` for an exact value.
    pub high: Option<f64>,
}

impl BucketRange {
    /// Reads `"3"`, `"3-4.5"`, `"-1000--50"` or `"40+"`.
    pub fn parse(label: &str) -> Option<Self> {
        let (low, rest) = number(label.trim())?;
        let rest = rest.trim_start();
        match rest.chars().next() {
            None => Some(Self {
                low,
                high: Some(low),
            }),
            Some('+') if rest == "+" => Some(Self { low, high: None }),
            Some('-') => {
                let (high, rest) = number(rest[1..].trim_start())?;
                rest.is_empty().then_some(Self {
                    low,
                    high: Some(high),
                })
            }
            Some(_) => None,
        }
    }
}

/// A decimal number at the start of `text`, and what follows it.
fn number(text: &str) -> Option<(f64, &str)> {
    let bytes = text.as_bytes();
    let mut end = usize::from(matches!(bytes.first(), Some(b'+' | b'-')));
    let digits = |from: usize| {
        bytes[from..]
            .iter()
            .take_while(|b| b.is_ascii_digit())
            .count()
    };
    let whole = digits(end);
    end += whole;
    if bytes.get(end) == Some(&b'.') {
        let fraction = digits(end + 1);
        if whole + fraction == 0 {
            return None;
        }
        end += 1 + fraction;
    } else if whole == 0 {
        return None;
    }
    let value = text[..end].parse().ok()?;
    Some((value, &text[end..]))
}

fn ranges(feature: &str, labels: &[String]) -> Result<Vec<BucketRange>, ConditioningError> {
    labels
        .iter()
        .map(|label| {
            BucketRange::parse(label).ok_or_else(|| ConditioningError::Label {
                feature: feature.to_string(),
                label: label.clone(),
            })
        })
        .collect()
}

/// Equal up to rounding: a relative 1e-12 or an absolute 1e-9.
fn close(a: f64, b: f64) -> bool {
    a == b || (a - b).abs() <= (1e-12 * a.abs().max(b.abs())).max(1e-9)
}

/// Bucket of a speaking rate in UTF-8 bytes of text a second: the first whose upper end is above
/// the rate, so that a rate on a boundary goes up.
///
/// # Errors
/// The model has no rate buckets, or the rate is not positive.
///
/// ```
/// let config = zonos2::Zonos2Config::released();
/// assert_eq!(zonos2::conditioning::rate_bucket(&config, 16.5)?, 3); // "14-17"
/// assert_eq!(zonos2::conditioning::rate_bucket(&config, 17.0)?, 4); // "17-21"
/// # Ok::<(), zonos2::conditioning::ConditioningError>(())
/// ```
pub fn rate_bucket(config: &Zonos2Config, rate: f64) -> Result<usize, ConditioningError> {
    let count = config.speaking_rate_num_buckets;
    if count == 0 {
        return Err(ConditioningError::NoRates);
    }
    positive("speaking rate", rate)?;
    let labels = &config.speaking_rate_buckets;
    if labels.is_empty() {
        // The cast truncates and saturates.
        let bucket = (rate / UNLABELLED_TOP_RATE * count as f64) as usize;
        return Ok(bucket.min(count - 1));
    }
    let found = ranges("speaking rate", labels)?
        .iter()
        .position(|r| r.high.is_none_or(|high| rate < high && !close(rate, high)));
    Ok(found.unwrap_or(labels.len() - 1))
}

/// Bucket of a speed factor: 1 is the centre of the middle bucket.
///
/// # Errors
/// The model has no labelled rate buckets, or the speed is not positive.
pub fn rate_bucket_for_speed(
    config: &Zonos2Config,
    speed: f64,
) -> Result<usize, ConditioningError> {
    if config.speaking_rate_num_buckets == 0 {
        return Err(ConditioningError::NoRates);
    }
    positive("speed", speed)?;
    let labels = &config.speaking_rate_buckets;
    let middle = ranges("speaking rate", labels)?
        .get(labels.len() / 2)
        .copied()
        .ok_or(ConditioningError::NoRateLabels)?;
    let neutral = match middle.high {
        Some(high) => (middle.low + high) / 2.0,
        None => middle.low.max(OPEN_NEUTRAL_RATE),
    };
    rate_bucket(config, neutral * speed)
}

fn positive(name: &'static str, value: f64) -> Result<(), ConditioningError> {
    if value > 0.0 {
        return Ok(());
    }
    Err(ConditioningError::NotPositive { name, value })
}

/// Bucket of a measured value of a quality feature; `None` when the model does not know the
/// feature or the value is not finite.
///
/// Exact labels come first, then ranges `low <= value < high` (the last closed range includes its
/// end). Values below everything go to the first range, values above to the last.
///
/// # Errors
/// A label of the feature is no range.
pub fn quality_bucket(
    config: &Zonos2Config,
    feature: &str,
    value: f64,
) -> Result<Option<usize>, ConditioningError> {
    let Some(known) = config.quality_features.iter().find(|f| f.name == feature) else {
        return Ok(None);
    };
    if !value.is_finite() {
        return Ok(None);
    }
    let ranges = ranges(feature, &known.labels)?;
    let exact = ranges
        .iter()
        .position(|r| r.high == Some(r.low) && close(value, r.low));
    if exact.is_some() {
        return Ok(exact);
    }
    let spans: Vec<usize> = (0..ranges.len())
        .filter(|&i| ranges[i].high.is_none_or(|high| high > ranges[i].low))
        .collect();
    let (Some(&first), Some(&last)) = (spans.first(), spans.last()) else {
        return Ok(None);
    };
    let inside = spans.iter().copied().find(|&i| {
        value >= ranges[i].low
            && ranges[i]
                .high
                .is_none_or(|high| value < high || (i == last && value <= high))
    });
    Ok(Some(inside.unwrap_or(if value < ranges[first].low {
        first
    } else {
        last
    })))
}

/// A wish for the recording's quality.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum Quality {
    /// What the original uses when nothing is said: half a second of trailing silence
    /// ([`DEFAULT_QUALITY_FEATURE`] in [`DEFAULT_QUALITY_BUCKET`]).
    #[default]
    Default,
    /// No quality rows.
    Off,
    /// Buckets by feature name; names the model does not have are ignored, see
    /// [`unknown_features`](Self::unknown_features).
    Buckets(BTreeMap<String, Option<usize>>),
    /// Buckets in the order of the features; missing ones have no row, extra ones are ignored.
    BucketList(Vec<Option<usize>>),
    /// Measured values by feature name, turned into buckets by [`quality_bucket`].
    Values(BTreeMap<String, f64>),
    /// Measured values in the order of the features.
    ValueList(Vec<Option<f64>>),
}

impl Quality {
    /// The bucket of every feature in the model's order, `None` where there is to be no row.
    /// Empty for a model without quality features.
    ///
    /// # Errors
    /// A bucket that does not exist, or an unusable label in `params.json`.
    ///
    /// ```
    /// use zonos2::conditioning::Quality;
    /// let config = zonos2::Zonos2Config::released();
    /// assert_eq!(Quality::Default.resolve(&config)?, [None, None, None, None, None, Some(3)]);
    /// let loud = Quality::Values([("lufs".to_string(), -18.0)].into());
    /// assert_eq!(loud.resolve(&config)?[0], Some(8));
    /// # Ok::<(), zonos2::conditioning::ConditioningError>(())
    /// ```
    pub fn resolve(&self, config: &Zonos2Config) -> Result<Vec<Option<usize>>, ConditioningError> {
        let features = &config.quality_features;
        let mut out = vec![None; features.len()];
        for (i, (slot, feature)) in out.iter_mut().zip(features).enumerate() {
            let measured = |v| quality_bucket(config, &feature.name, v);
            *slot = match self {
                Self::Default => {
                    (feature.name == DEFAULT_QUALITY_FEATURE).then_some(DEFAULT_QUALITY_BUCKET)
                }
                Self::Off => None,
                Self::Buckets(map) => map.get(&feature.name).copied().flatten(),
                Self::BucketList(list) => list.get(i).copied().flatten(),
                Self::Values(map) => match map.get(&feature.name) {
                    Some(&value) => measured(value)?,
                    None => None,
                },
                Self::ValueList(list) => match list.get(i).copied().flatten() {
                    Some(value) => measured(value)?,
                    None => None,
                },
            };
        }
        if *self == Self::Default {
            // A model with fewer buckets simply gets no default row.
            for (slot, feature) in out.iter_mut().zip(features) {
                *slot = slot.filter(|&b| b < feature.labels.len());
            }
        }
        check_quality(config, &out)?;
        Ok(out)
    }

    /// Names in the request that the model does not have, for callers that refuse typing errors.
    pub fn unknown_features<'a>(&'a self, config: &'a Zonos2Config) -> Vec<&'a str> {
        let unknown = |name: &&str| !config.quality_features.iter().any(|f| f.name == *name);
        match self {
            Self::Buckets(map) => map.keys().map(String::as_str).filter(unknown).collect(),
            Self::Values(map) => map.keys().map(String::as_str).filter(unknown).collect(),
            _ => Vec::new(),
        }
    }
}

/// Checks resolved buckets against the model.
pub(crate) fn check_quality(
    config: &Zonos2Config,
    buckets: &[Option<usize>],
) -> Result<(), ConditioningError> {
    let features = &config.quality_features;
    if buckets.len() > features.len() {
        return Err(ConditioningError::QualityCount {
            found: buckets.len(),
            count: features.len(),
        });
    }
    for (feature, bucket) in features.iter().zip(buckets) {
        if let Some(bucket) = *bucket
            && bucket >= feature.labels.len()
        {
            return Err(ConditioningError::QualityBucket {
                feature: feature.name.clone(),
                bucket,
                count: feature.labels.len(),
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn labels() {
        let parse = |s| BucketRange::parse(s).map(|r| (r.low, r.high));
        assert_eq!(parse("3-4.5"), Some((3.0, Some(4.5))));
        assert_eq!(parse(" -1000 - -50 "), Some((-1000.0, Some(-50.0))));
        assert_eq!(parse("-45.5--41"), Some((-45.5, Some(-41.0))));
        assert_eq!(parse("-5+"), Some((-5.0, None)));
        assert_eq!(parse("40 +"), Some((40.0, None)));
        assert_eq!(parse("+.5"), Some((0.5, Some(0.5))));
        assert_eq!(parse("7."), Some((7.0, Some(7.0))));
        for bad in [
            "", "-", "+", ".", "a", "1-", "1-2-3", "1+2", "1e3", "5+x", "é", "1-é", "3 é",
        ] {
            assert_eq!(parse(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn exact_labels_win_and_open_centres() {
        let mut config = Zonos2Config::released();
        config.quality_features[0].labels = ["0", "0-1", "1-2"].map(String::from).to_vec();
        let bucket = |v| quality_bucket(&config, "lufs", v).unwrap();
        assert_eq!(bucket(0.0), Some(0));
        assert_eq!(bucket(0.5), Some(1));
        assert_eq!(bucket(2.0), Some(2));
        assert_eq!(bucket(9.0), Some(2));
        assert_eq!(bucket(-9.0), Some(1));
        assert_eq!(bucket(f64::NAN), None);
        assert_eq!(quality_bucket(&config, "unknown", 1.0).unwrap(), None);

        config.speaking_rate_buckets = ["0-8", "4+"].map(String::from).to_vec();
        config.speaking_rate_num_buckets = 2;
        assert_eq!(rate_bucket_for_speed(&config, 0.5).unwrap(), 0); // 15 * 0.5
        assert_eq!(rate_bucket_for_speed(&config, 0.6).unwrap(), 1);
    }

    #[test]
    fn unlabelled_rates() {
        let mut config = Zonos2Config::released();
        config.speaking_rate_buckets.clear();
        assert_eq!(rate_bucket(&config, 1.0).unwrap(), 0);
        assert_eq!(rate_bucket(&config, 50.0).unwrap(), 4); // 50 / 86.137 * 8 = 4.64
        assert_eq!(rate_bucket(&config, 1e30).unwrap(), 7);
        assert_eq!(
            rate_bucket_for_speed(&config, 1.0),
            Err(ConditioningError::NoRateLabels)
        );
        config.speaking_rate_num_buckets = 0;
        assert_eq!(rate_bucket(&config, 1.0), Err(ConditioningError::NoRates));
    }

    #[test]
    fn refusals() {
        let mut config = Zonos2Config::released();
        for bad in [0.0, -1.0, f64::NAN] {
            assert!(rate_bucket(&config, bad).is_err());
            assert!(rate_bucket_for_speed(&config, bad).is_err());
        }
        let too_high = Quality::BucketList(vec![Some(12)])
            .resolve(&config)
            .unwrap_err();
        assert!(too_high.to_string().contains("lufs"), "{too_high}");
        let typo = Quality::Buckets([("luffs".to_string(), Some(1))].into());
        assert_eq!(typo.unknown_features(&config), ["luffs"]);
        config.quality_features[0].labels[0] = "quiet".into();
        assert!(matches!(
            quality_bucket(&config, "lufs", 0.0),
            Err(ConditioningError::Label { .. })
        ));
        config.quality_features[5].labels.truncate(2);
        assert_eq!(Quality::Default.resolve(&config).unwrap(), [None; 6]);
        config.quality_features.clear();
        assert!(Quality::Default.resolve(&config).unwrap().is_empty());
    }

    proptest! {
        #[test]
        fn parsing_never_panics(label in "\\PC{0,12}") {
            let _ = BucketRange::parse(&label);
        }

        #[test]
        fn values_always_find_a_bucket(v in any::<f64>()) {
            let config = Zonos2Config::released();
            let bucket = quality_bucket(&config, "lufs", v).unwrap();
            prop_assert_eq!(bucket.is_some(), v.is_finite());
            prop_assert!(bucket.is_none_or(|b| b < 12));
            prop_assert_eq!(rate_bucket(&config, v).is_ok(), v > 0.0);
        }
    }
}
