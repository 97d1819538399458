//! Small files that a command reads, and what is said when one cannot be read.

use std::fs;
use std::io;
use std::path::Path;

use anyhow::anyhow;

/// Why `path` cannot be read, in words, with what to do about it.
pub(crate) fn cannot_read(path: &Path, error: &io::Error) -> anyhow::Error {
    let name = path.display();
    match error.kind() {
        io::ErrorKind::NotFound => anyhow!("{name}: no such file or folder; check its name"),
        io::ErrorKind::PermissionDenied => {
            anyhow!("{name}: cannot read: permission denied; give it read permission")
        }
        io::ErrorKind::IsADirectory => anyhow!("{name}: is a folder; give a file"),
        io::ErrorKind::InvalidData => anyhow!("{name}: not UTF-8 text; save it as UTF-8"),
        _ => anyhow!("{name}: cannot read: {error}"),
    }
}

/// A text of at most `most` bytes. `what` is what a file of another kind cannot be.
pub(crate) fn text_file(path: &Path, most: u64, what: &str) -> anyhow::Result<String> {
    let failed = |error: io::Error| cannot_read(path, &error);
    // The question comes first: opening a pipe waits for its writer.
    let meta = fs::metadata(path).map_err(failed)?;
    if !meta.is_file() || meta.len() > most {
        return Err(anyhow!(
            "{}: not a regular file of at most {} MiB, so no {what}",
            path.display(),
            most >> 20
        ));
    }
    String::from_utf8(fs::read(path).map_err(failed)?).map_err(|error| {
        anyhow!(
            "{}: byte {} begins no UTF-8 character, so this is no {what}; save it as UTF-8",
            path.display(),
            error.utf8_error().valid_up_to()
        )
    })
}
