//! Numbers with a range, for clap.

use std::fmt::Display;
use std::str::FromStr;

/// A parser of finite numbers within `low..=high`.
pub(crate) fn between(
    low: f64,
    high: f64,
) -> impl Fn(&str) -> Result<f64, String> + Clone + Send + Sync + 'static {
    move |text| {
        let value: f64 = text
            .trim()
            .parse()
            .map_err(|_| format!("expected a number from {low} to {high}"))?;
        // NaN is in no range.
        if (low..=high).contains(&value) {
            Ok(value)
        } else {
            Err(format!("expected a number from {low} to {high}"))
        }
    }
}

/// A parser of whole numbers within `low..=high`. Clap's own tells a range in Rust's notation.
pub(crate) fn whole<T>(
    low: T,
    high: T,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static
where
    T: FromStr + PartialOrd + Display + Clone + Send + Sync + 'static,
{
    move |text| {
        let value = text.trim().parse().ok();
        value
            .filter(|value| (&low..=&high).contains(&value))
            .ok_or_else(|| format!("expected a whole number from {low} to {high}"))
    }
}

/// A parser of fade-out lengths in milliseconds.
pub(crate) fn fade_ms() -> impl Fn(&str) -> Result<f64, String> + Clone + Send + Sync + 'static {
    between(0.0, zonos_tts::MAX_FADE_MS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_numbers_in_range_pass() {
        let parse = between(0.0, 1.0);
        assert_eq!(parse("0.5"), Ok(0.5));
        for bad in ["-0.1", "1.1", "nan", "inf", "", "x"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        let parse = whole::<i32>(-1, 64);
        assert_eq!((parse("-1"), parse(" 64")), (Ok(-1), Ok(64)));
        for bad in ["-2", "65", "99999999999", "1.5", "", "x"] {
            let told = parse(bad).unwrap_err();
            assert_eq!(told, "expected a whole number from -1 to 64", "{bad}");
        }
    }
}
