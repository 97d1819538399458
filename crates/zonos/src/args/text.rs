//! The text to speak.

use std::ffi::OsStr;
use std::io::Read;

use crate::failure::Failure;

/// Far more than any context takes; keeps a wrong file on stdin from filling memory.
const MOST: u64 = 64 << 20;

/// A byte order mark in UTF-8.
const BOM: &[u8] = b"\xef\xbb\xbf";

/// The argument itself, or all of stdin for `-`.
///
/// Both must be UTF-8. One final line break of stdin, which `echo` adds, is not part of the text.
pub(crate) fn read_text(argument: &OsStr) -> Result<String, Failure> {
    if argument != "-" {
        return utf8(argument.as_encoded_bytes().to_vec(), "the text").map_err(Failure::usage);
    }
    let mut bytes = Vec::new();
    std::io::stdin()
        .lock()
        .take(MOST + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| Failure::failed(format!("cannot read the text from stdin: {error}")))?;
    if bytes.len() as u64 > MOST {
        return Err(Failure::usage(format!(
            "the text on stdin is over {} MiB; is it a text?",
            MOST >> 20
        )));
    }
    // Editors on Windows put a byte order mark before a text; nobody says it.
    if bytes.starts_with(BOM) {
        bytes.drain(..BOM.len());
    }
    let mut text = utf8(bytes, "the text on stdin").map_err(Failure::usage)?;
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    Ok(text)
}

fn utf8(bytes: Vec<u8>, what: &str) -> Result<String, String> {
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        format!(
            "{what} is not UTF-8: byte {at} is 0x{:02x}; convert it first, for example with iconv -t UTF-8",
            error.as_bytes()[at]
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_bytes_are_placed() {
        assert_eq!(utf8(b"hi\n".to_vec(), "it").unwrap(), "hi\n");
        let message = utf8(b"caf\xe9 noir".to_vec(), "it").unwrap_err();
        assert!(message.contains("byte 3 is 0xe9"), "{message}");
        let cut = utf8(b"cut \xf0\x9f".to_vec(), "it").unwrap_err();
        assert!(cut.contains("byte 4"), "{cut}");
    }
}
