//! The time of day, as files carry it.

use std::time::{SystemTime, UNIX_EPOCH};

/// Now, to the second, RFC 3339 in UTC. A clock before 1970 shows 1970.
pub(super) fn now() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    format(since.map_or(0, |d| d.as_secs()))
}

/// Whether a text has the form that [`now`] writes, and numbers that a date may have.
pub(super) fn is_date(text: &str) -> bool {
    const FORM: &[u8] = b"0000-00-00T00:00:00Z";
    let shaped = text.len() == FORM.len()
        && text.bytes().zip(FORM).all(|(found, &form)| match form {
            b'0' => found.is_ascii_digit(),
            form => found == form,
        });
    let within = |at: usize, range: std::ops::RangeInclusive<u32>| {
        text[at..at + 2].parse().is_ok_and(|n| range.contains(&n))
    };
    shaped
        && within(5, 1..=12)
        && within(8, 1..=31)
        && within(11, 0..=23)
        && within(14, 0..=59)
        && within(17, 0..=60)
}

/// Seconds since 1970 in the proleptic Gregorian calendar.
fn format(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    // Years that begin in March put the leap day last, so that every month's first day is a formula.
    // Counted from 0000-03-01, in cycles of 400 years (146 097 days).
    let days = days + 719_468;
    let (cycle, day) = (days / 146_097, days % 146_097);
    let year_of_cycle = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year_of_cycle + year_of_cycle / 4 - year_of_cycle / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day_of_month = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 {
        march_month + 3
    } else {
        march_month - 9
    };
    let year = 400 * cycle + year_of_cycle + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day_of_month:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_moments() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_000_000_000, "2001-09-09T01:46:40Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(format(seconds), text);
        }
        assert!(is_date(&now()));
        for (text, date) in [
            ("2026-11-29T21:47:29Z", true),
            ("2026-11-29T21:47:60Z", true),
            ("2026-00-29T21:47:29Z", false),
            ("2026-11-32T21:47:29Z", false),
            ("2026-11-29T24:00:00Z", false),
            ("2026-11-29 21:47:29Z", false),
            ("2026-11-29T21:47:29", false),
            ("\u{e9}026-11-29T21:47:2Z", false),
        ] {
            assert_eq!(is_date(text), date, "{text}");
        }
    }
}
