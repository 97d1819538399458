//! What the prompt tells the model about the recording it should sound like.

use clap::{ArgGroup, Args};

/// Conditioning flags. Bucket numbers and names come from the model's params.json;
/// `zonos inspect MODEL` lists them.
#[derive(Debug, Clone, Args)]
#[command(
    next_help_heading = "Conditioning",
    group = ArgGroup::new("mode").args(["accurate", "expressive"])
)]
pub(crate) struct ConditioningArgs {
    /// Speaking-rate bucket, as a number (0 is the slowest) or a label such as 17-21, or none.
    #[arg(long, value_name = "BUCKET|none", default_value = "none", allow_negative_numbers = true, value_parser = rate)]
    pub speaking_rate: Rate,
    /// Quality buckets by feature, as in lufs=8,max_pause=1, or none. Replaces the default
    /// [default: trailing_silence_s=3].
    #[arg(long, value_name = "F=B,..|none", value_parser = quality)]
    pub quality: Option<Pairs<usize>>,
    /// Quality by measured values, as in lufs=-18,estimated_snr=40; each is mapped to its bucket.
    /// Replaces the default row.
    #[arg(
        long,
        value_name = "F=V,..",
        value_parser = quality_values,
        conflicts_with = "quality",
        allow_hyphen_values = true
    )]
    pub quality_values: Option<Pairs<f64>>,
    /// With a voice: keep to the text (the default).
    #[arg(long, requires = "whose")]
    pub accurate: bool,
    /// With a voice: allow more expression, less faithful to the text.
    #[arg(long, requires = "whose")]
    pub expressive: bool,
    /// With a voice: ask for a clean background; without it the model is told that the recording
    /// may be noisy.
    #[arg(long, requires = "whose")]
    pub clean_background: bool,
}

/// A speaking rate as typed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Rate {
    /// No row.
    None,
    /// Bucket number.
    Bucket(usize),
    /// Bucket label.
    Label(String),
}

/// `name=value` pairs in the order typed; empty for `none`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Pairs<T>(pub Vec<(String, T)>);

fn rate(text: &str) -> Result<Rate, String> {
    let text = text.trim();
    if text.eq_ignore_ascii_case("none") {
        Ok(Rate::None)
    } else if let Ok(bucket) = text.parse() {
        Ok(Rate::Bucket(bucket))
    } else if text.is_empty() || text.starts_with('-') {
        Err("expected a bucket number, a bucket label or none".to_owned())
    } else {
        Ok(Rate::Label(text.to_owned()))
    }
}

fn quality(text: &str) -> Result<Pairs<usize>, String> {
    if text.trim().eq_ignore_ascii_case("none") {
        return Ok(Pairs(Vec::new()));
    }
    pairs(text, |value| {
        value
            .parse()
            .map_err(|_| format!("expected a bucket number, found '{value}'"))
    })
}

fn quality_values(text: &str) -> Result<Pairs<f64>, String> {
    pairs(text, |value| {
        value
            .parse()
            .ok()
            .filter(|v: &f64| v.is_finite())
            .ok_or_else(|| format!("expected a number, found '{value}'"))
    })
}

fn pairs<T>(text: &str, read: impl Fn(&str) -> Result<T, String>) -> Result<Pairs<T>, String> {
    let mut found: Vec<(String, T)> = Vec::new();
    for item in text.split(',') {
        let (name, value) = item
            .split_once('=')
            .map(|(name, value)| (name.trim(), value.trim()))
            .filter(|(name, _)| !name.is_empty())
            .ok_or_else(|| format!("expected feature=value, found '{}'", item.trim()))?;
        if found.iter().any(|(other, _)| other == name) {
            return Err(format!("{name} is given twice"));
        }
        found.push((
            name.to_owned(),
            read(value).map_err(|e| format!("{name}: {e}"))?,
        ));
    }
    Ok(Pairs(found))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_and_pairs_are_read_as_typed() {
        assert_eq!(rate("none"), Ok(Rate::None));
        assert_eq!(rate("4"), Ok(Rate::Bucket(4)));
        assert_eq!(rate("17-21"), Ok(Rate::Label("17-21".to_owned())));
        assert!(rate("-1").is_err());
        assert_eq!(
            quality("lufs=8, max_pause=1"),
            Ok(Pairs(vec![
                ("lufs".to_owned(), 8),
                ("max_pause".to_owned(), 1)
            ]))
        );
        assert_eq!(quality("none"), Ok(Pairs(Vec::new())));
        for bad in ["", "lufs", "=3", "lufs=-1", "lufs=1,lufs=2", "lufs=x"] {
            assert!(quality(bad).is_err(), "{bad}");
        }
        assert_eq!(
            quality_values("lufs=-18"),
            Ok(Pairs(vec![("lufs".to_owned(), -18.0)]))
        );
        assert!(quality_values("lufs=nan").is_err());
    }
}
