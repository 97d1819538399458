//! Names of stored voices. They become file names, so they may be nothing that is more than a name.

use std::fmt;

/// Most characters of a name.
const MAX: usize = 64;

/// Names that Windows gives to devices, whatever ending follows.
const DEVICES: [&str; 4] = ["CON", "PRN", "AUX", "NUL"];

/// Characters of a refused name that its error repeats.
const SHOWN: usize = 32;

/// The name of a stored voice: ASCII, a letter or a digit, then letters, digits, `-`, `_` and `.`, at
/// most 64 in all, not ending in `.`, and none that Windows keeps for a device (`CON`, `nul.txt`).
///
/// The same rule holds wherever a name goes in: what cannot be saved cannot be asked for either, so
/// that a name tells nothing about files outside the folder.
///
/// ```
/// use zonos_tts::VoiceName;
/// assert!(VoiceName::new("anna-2.warm").is_ok());
/// assert!(VoiceName::new("../anna").is_err());
/// ```
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VoiceName(String);

/// Why a name was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "voice name '{shown}': {problem}; a name begins with a letter or digit, goes on with letters, digits, '-', '_' and '.', and has at most 64 characters, all ASCII"
)]
pub struct VoiceNameError {
    shown: String,
    problem: &'static str,
}

impl VoiceName {
    /// Takes a name that is one.
    ///
    /// # Errors
    /// [`VoiceNameError`] with the name, cut short and escaped.
    pub fn new(name: &str) -> Result<Self, VoiceNameError> {
        match problem(name) {
            None => Ok(Self(name.to_owned())),
            Some(problem) => Err(VoiceNameError {
                shown: shown(name),
                problem,
            }),
        }
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for VoiceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl std::str::FromStr for VoiceName {
    type Err = VoiceNameError;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::new(name)
    }
}

fn problem(name: &str) -> Option<&'static str> {
    let bytes = name.as_bytes();
    let Some(first) = bytes.first() else {
        return Some("is empty");
    };
    if bytes.len() > MAX {
        return Some("is too long");
    }
    if !first.is_ascii_alphanumeric() {
        return Some("begins with another character");
    }
    let allowed = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    if !bytes.iter().all(allowed) {
        return Some("holds another character");
    }
    if bytes.ends_with(b".") {
        return Some("ends in a dot");
    }
    is_device(name).then_some("is a device on Windows")
}

fn is_device(name: &str) -> bool {
    let stem = name.split('.').next().unwrap_or(name).to_ascii_uppercase();
    let numbered = stem
        .strip_prefix("COM")
        .or_else(|| stem.strip_prefix("LPT"))
        .is_some_and(|n| n.len() == 1 && n.as_bytes()[0].is_ascii_digit());
    numbered || DEVICES.contains(&stem.as_str())
}

fn shown(name: &str) -> String {
    let mut text: String = name
        .chars()
        .take(SHOWN)
        .flat_map(char::escape_debug)
        .collect();
    if name.chars().nth(SHOWN).is_some() {
        text.push_str("..");
    }
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_that_are_names() {
        let long = "a".repeat(MAX);
        for good in [
            "a",
            "9",
            "Anna",
            "anna-2.warm_x",
            "a..b",
            "console",
            "COM10",
            "com",
            "LPT",
            "nulls",
            "aux-2",
            &long,
        ] {
            assert_eq!(VoiceName::new(good).unwrap().as_str(), good);
        }
    }

    #[test]
    fn names_that_are_more_or_less() {
        let long = "a".repeat(MAX + 1);
        let endless = "x".repeat(10_000);
        for bad in [
            "",
            ".",
            "..",
            "../../etc/passwd",
            "..\\..\\x",
            "/etc/passwd",
            "a/../../b",
            "a/b",
            "a\\b",
            "%2e%2e%2f",
            "a%2fb",
            "C:\\x",
            "C:x",
            "CON",
            "con",
            "Nul.txt",
            "aux.a.b",
            "PRN",
            "COM1",
            "com0.wav",
            "LPT9.safetensors",
            "voice\0.wav",
            "voice\n",
            " a",
            "a ",
            "a.",
            "a..",
            "-a",
            "_a",
            ".a",
            "~a",
            "a*",
            "a?",
            "é",
            "аnna",
            "a\u{202e}b",
            "a:b",
            "a|b",
            &long,
            &endless,
        ] {
            let error = VoiceName::new(bad).unwrap_err().to_string();
            assert!(!error.contains(char::is_control), "{error:?}");
            assert!(error.len() < 500, "{error}");
        }
    }

    proptest! {
        /// Whatever passes is one part of a path, and the file's own name on every system.
        #[test]
        fn a_name_is_a_file_name(text in "\\PC{0,20}|[A-Za-z0-9._%/\\\\:-]{0,70}") {
            if let Ok(name) = VoiceName::new(&text) {
                let path = std::path::Path::new("folder").join(name.as_str());
                prop_assert_eq!(path.parent(), Some(std::path::Path::new("folder")));
                prop_assert_eq!(path.file_name().and_then(|n| n.to_str()), Some(text.as_str()));
                prop_assert!(!text.contains(['/', '\\', ':', '%', '\0']));
            }
        }
    }
}
