//! Patterns over dotted tensor names.
//!
//! `{n}` matches a decimal number and remembers it, `{n>=18}` only numbers that satisfy the
//! comparison (`<`, `<=`, `=`, `>=`, `>`), `*` any text. In the new name `{n}`, `{n+1}` and `{n-1}`
//! write the number, and the first, second, .. `*` what the first, second, .. `*` matched.

use std::fmt;

#[derive(Debug, Clone, PartialEq)]
enum Part {
    Text(String),
    Number(String, Option<(Comparison, u64)>),
    Any,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Comparison {
    Less,
    LessEqual,
    Equal,
    GreaterEqual,
    Greater,
}

impl Comparison {
    fn holds(self, left: u64, right: u64) -> bool {
        match self {
            Self::Less => left < right,
            Self::LessEqual => left <= right,
            Self::Equal => left == right,
            Self::GreaterEqual => left >= right,
            Self::Greater => left > right,
        }
    }
}

/// What a pattern remembered while it matched.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Captures {
    numbers: Vec<(String, u64)>,
    texts: Vec<String>,
}

impl Captures {
    pub(crate) fn number(&self, name: &str) -> Option<u64> {
        self.numbers
            .iter()
            .find(|(n, _)| n == name)
            .map(|&(_, v)| v)
    }
}

/// A pattern for file names.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Pattern {
    source: String,
    parts: Vec<Part>,
}

impl Pattern {
    pub(crate) fn parse(source: &str) -> Result<Self, String> {
        let parts = split(source, |inside| {
            let at = inside.find(['<', '>', '=']).unwrap_or(inside.len());
            let name = variable(&inside[..at])?;
            if at == inside.len() {
                return Ok(Part::Number(name, None));
            }
            let rest = &inside[at..];
            let (operator, comparison) = [
                ("<=", Comparison::LessEqual),
                (">=", Comparison::GreaterEqual),
                ("<", Comparison::Less),
                (">", Comparison::Greater),
                ("=", Comparison::Equal),
            ]
            .into_iter()
            .find(|(op, _)| rest.starts_with(op))
            .ok_or("an unknown comparison")?;
            let bound = rest[operator.len()..]
                .trim()
                .parse()
                .map_err(|_| "a comparison without a number")?;
            Ok(Part::Number(name, Some((comparison, bound))))
        })
        .map_err(|e| format!("pattern '{source}': {e}"))?;
        Ok(Self {
            source: source.into(),
            parts,
        })
    }

    /// Matches the whole of `name`.
    pub(crate) fn matches(&self, name: &str) -> Option<Captures> {
        // Names come from files: bound the work that several `*` over a long name could cause.
        let mut steps = 20_000;
        let mut captures = Captures::default();
        matches(&self.parts, name, &mut captures, &mut steps).then_some(captures)
    }

    pub(crate) fn has_number(&self, name: &str) -> bool {
        self.parts
            .iter()
            .any(|p| matches!(p, Part::Number(n, _) if n == name))
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.source)
    }
}

fn matches(parts: &[Part], name: &str, captures: &mut Captures, steps: &mut usize) -> bool {
    if *steps == 0 {
        return false;
    }
    *steps -= 1;
    let Some((first, rest)) = parts.split_first() else {
        return name.is_empty();
    };
    match first {
        Part::Text(text) => name
            .strip_prefix(text.as_str())
            .is_some_and(|name| matches(rest, name, captures, steps)),
        Part::Number(variable, bound) => {
            let digits = name.bytes().take_while(u8::is_ascii_digit).count();
            let text = &name[..digits];
            let Ok(value) = text.parse::<u64>() else {
                return false;
            };
            // `07` is not how a layer is numbered, and would be renamed to `7`.
            let canonical = digits == 1 || !text.starts_with('0');
            let fits = bound.is_none_or(|(c, b)| c.holds(value, b))
                && captures.number(variable).is_none_or(|known| known == value);
            if !canonical || !fits {
                return false;
            }
            captures.numbers.push((variable.clone(), value));
            let done = matches(rest, &name[digits..], captures, steps);
            if !done {
                captures.numbers.pop();
            }
            done
        }
        Part::Any => {
            let ends = name.char_indices().map(|(i, _)| i).chain([name.len()]);
            for end in ends {
                captures.texts.push(name[..end].to_string());
                // The texts that later stars remember come after this one.
                let place = captures.texts.len() - 1;
                if matches(rest, &name[end..], captures, steps) {
                    return true;
                }
                captures.texts.truncate(place);
            }
            false
        }
    }
}

/// A new name with places for what a [`Pattern`] remembered.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Template {
    source: String,
    parts: Vec<TemplatePart>,
}

#[derive(Debug, Clone, PartialEq)]
enum TemplatePart {
    Text(String),
    Number(String, i64),
    Any,
}

impl Template {
    pub(crate) fn parse(source: &str) -> Result<Self, String> {
        let parts = split(source, |inside| {
            let at = inside.find(['+', '-']).unwrap_or(inside.len());
            let name = variable(&inside[..at])?;
            let shift = match &inside[at..] {
                "" => 0,
                text => text
                    .strip_prefix('+')
                    .unwrap_or(text)
                    .parse()
                    .map_err(|_| "a shift that is not a number")?,
            };
            Ok(TemplatePart::Number(name, shift))
        })
        .map_err(|e| format!("name '{source}': {e}"))?;
        Ok(Self {
            source: source.into(),
            parts,
        })
    }

    /// Whether every place can be filled from what `pattern` remembers.
    pub(crate) fn check(&self, pattern: &Pattern) -> Result<(), String> {
        let stars = |n: usize, what: &str| match n {
            0 => format!("no '*' in {what}"),
            n => format!("{n} '*' in {what}"),
        };
        let wanted = self
            .parts
            .iter()
            .filter(|p| **p == TemplatePart::Any)
            .count();
        let given = pattern.parts.iter().filter(|p| **p == Part::Any).count();
        if wanted > given {
            return Err(format!(
                "{} but {}",
                stars(wanted, &format!("'{self}'")),
                stars(given, &format!("'{pattern}'"))
            ));
        }
        for part in &self.parts {
            if let TemplatePart::Number(name, _) = part
                && !pattern.has_number(name)
            {
                return Err(format!("'{{{name}}}' of '{self}' is not in '{pattern}'"));
            }
        }
        Ok(())
    }

    /// The name, or `None` when a shifted number would be negative.
    pub(crate) fn render(&self, captures: &Captures) -> Option<String> {
        let mut out = String::new();
        let mut texts = captures.texts.iter();
        for part in &self.parts {
            match part {
                TemplatePart::Text(text) => out.push_str(text),
                TemplatePart::Number(name, shift) => {
                    let value = captures.number(name)?.checked_add_signed(*shift)?;
                    out.push_str(&value.to_string());
                }
                TemplatePart::Any => out.push_str(texts.next()?),
            }
        }
        Some(out)
    }
}

impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.source)
    }
}

/// The three kinds of parts both grammars share.
trait FromPart {
    fn text(text: String) -> Self;
    fn any() -> Self;
}

impl FromPart for Part {
    fn text(text: String) -> Self {
        Self::Text(text)
    }
    fn any() -> Self {
        Self::Any
    }
}

impl FromPart for TemplatePart {
    fn text(text: String) -> Self {
        Self::Text(text)
    }
    fn any() -> Self {
        Self::Any
    }
}

fn split<P: FromPart>(
    source: &str,
    number: impl Fn(&str) -> Result<P, String>,
) -> Result<Vec<P>, String> {
    if source.is_empty() {
        return Err("it is empty".into());
    }
    let mut parts = Vec::new();
    let mut text = String::new();
    let mut rest = source;
    while let Some(c) = rest.chars().next() {
        rest = &rest[c.len_utf8()..];
        if !matches!(c, '{' | '*') {
            text.push(c);
            continue;
        }
        if !text.is_empty() {
            parts.push(P::text(std::mem::take(&mut text)));
        }
        if c == '*' {
            parts.push(P::any());
            continue;
        }
        let end = rest.find('}').ok_or("a '{' without '}'")?;
        parts.push(number(&rest[..end])?);
        rest = &rest[end + 1..];
    }
    if !text.is_empty() {
        parts.push(P::text(text));
    }
    Ok(parts)
}

fn variable(name: &str) -> Result<String, String> {
    let name = name.trim();
    if name.is_empty() || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
        return Err(format!("'{{{name}}}' is not a variable name"));
    }
    Ok(name.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rename(from: &str, to: &str, name: &str) -> Option<String> {
        let from = Pattern::parse(from).unwrap();
        let to = Template::parse(to).unwrap();
        to.check(&from).unwrap();
        to.render(&from.matches(name)?)
    }

    #[test]
    fn numbers_are_remembered_shifted_and_compared() {
        let from = "decoder.block.{i}.res_unit{r}.snake1.*";
        let to = "decoder.model.{i+1}.block.{r+1}.block.0.*";
        let renamed = rename(from, to, "decoder.block.3.res_unit1.snake1.alpha");
        assert_eq!(
            renamed.as_deref(),
            Some("decoder.model.4.block.2.block.0.alpha")
        );
        assert_eq!(rename("a.{i}", "b.{i-1}", "a.0"), None);
        assert_eq!(rename("a.{i}", "b.{i-1}", "a.10").as_deref(), Some("b.9"));
        assert_eq!(
            rename("a.{i}", "b.{i}", "a.01"),
            None,
            "leading zeros are text"
        );
        let late = Pattern::parse("layers.{n>=18}.*").unwrap();
        assert!(late.matches("layers.18.w").is_some());
        assert!(late.matches("layers.17.w").is_none());
        let same = Pattern::parse("{n}.{n}").unwrap();
        assert!(same.matches("4.4").is_some() && same.matches("4.5").is_none());
    }

    #[test]
    fn stars_backtrack_and_keep_their_order() {
        let from = "*.parametrizations.*.original";
        assert_eq!(
            rename(
                from,
                "*.*",
                "layers.1.attention.parametrizations.temp.original"
            )
            .as_deref(),
            Some("layers.1.attention.temp")
        );
        assert_eq!(
            rename(from, "*.*", "conv.parametrizations.weight.original0"),
            None
        );
    }

    #[test]
    fn mistakes_are_named() {
        assert!(Pattern::parse("a.{n").unwrap_err().contains("without '}'"));
        assert!(Pattern::parse("").is_err());
        assert!(Pattern::parse("a.{n>=x}").unwrap_err().contains("number"));
        let from = Pattern::parse("a.{n}").unwrap();
        let error = Template::parse("b.{m}").unwrap().check(&from).unwrap_err();
        assert!(error.contains("{m}"), "{error}");
        assert!(Template::parse("b.*").unwrap().check(&from).is_err());
    }

    #[test]
    fn many_stars_over_a_long_name_end() {
        let pattern = Pattern::parse("*a*a*a*a*a*a*b").unwrap();
        assert_eq!(pattern.matches(&"a".repeat(5000)), None);
    }
}
