//! Names from files, fit for a terminal, and numbers fit for reading.

use std::borrow::Cow;

/// `text` with control characters, and those that turn the direction of writing or end a line,
/// written as escapes (`\\n`, `\\u{1b}`). Names come from files, and a terminal obeys what it prints.
pub(crate) fn shown(text: &str) -> Cow<'_, str> {
    if !text.contains(unprintable) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if unprintable(c) {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
    Cow::Owned(out)
}

fn unprintable(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// 1234567 as 1,234,567.
pub(crate) fn grouped(value: u64) -> String {
    let digits = value.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_terminal_obeys_is_escaped() {
        let plain = "décodeur.模型.0.weight";
        assert!(matches!(shown(plain), Cow::Borrowed(same) if same == plain));
        assert_eq!(shown("a\n\u{1b}[2Jb"), "a\\n\\u{1b}[2Jb");
        assert_eq!(shown("a\u{202e}b\u{9b}"), "a\\u{202e}b\\u{9b}");
    }
}
