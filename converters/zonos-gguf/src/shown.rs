//! Names from files, fit for a terminal and for one line.

/// Characters of a name that are shown before it is cut.
const MOST: usize = 80;

/// `text` with control characters and those that turn the direction of writing as escapes, cut
/// after [`MOST`] characters: names come from files, and a terminal obeys what it prints.
pub(crate) fn shown(text: &str) -> String {
    cut(text, MOST)
}

/// What is wrong, in words that may have a name in them, as [`shown`]; there is room for the words.
pub(crate) fn told(text: &str) -> String {
    cut(text, 5 * MOST)
}

fn cut(text: &str, most: usize) -> String {
    let mut out = String::with_capacity(text.len().min(2 * most));
    for (i, c) in text.chars().enumerate() {
        if i == most {
            out.push_str("...");
            break;
        }
        if c.is_control()
            || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
        {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_short_line_whatever_the_name() {
        assert_eq!(shown("blk.0.größe"), "blk.0.größe");
        assert_eq!(shown("a\n\u{1b}[2Jb\u{202e}"), "a\\n\\u{1b}[2Jb\\u{202e}");
        assert_eq!(shown(&"n".repeat(1000)).len(), MOST + 3);
    }
}
