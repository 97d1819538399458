//! Files that appear whole or not at all.

use std::io::{BufWriter, Write};
use std::path::Path;

use tempfile::NamedTempFile;

use crate::CheckpointError;

/// Writes `path` through a temporary file beside it, which is renamed over it only when `fill`
/// succeeded and everything reached the disk.
pub(crate) fn write_atomically(
    path: &Path,
    fill: impl FnOnce(&mut dyn Write) -> Result<(), CheckpointError>,
) -> Result<(), CheckpointError> {
    let temporary = temporary_beside(path)?;
    let mut out = BufWriter::with_capacity(1 << 20, temporary);
    fill(&mut out)?;
    let temporary = out
        .into_inner()
        .map_err(|e| cannot_write(path, &e.into_error()))?;
    persist(temporary, path)
}

/// An empty file beside `path`, gone when dropped.
pub(crate) fn temporary_beside(path: &Path) -> Result<NamedTempFile, CheckpointError> {
    let folder = match path.parent() {
        Some(p) if !p.as_os_str().is_empty() => p,
        _ => Path::new("."),
    };
    if !folder.is_dir() {
        return Err(CheckpointError::Output {
            path: path.into(),
            reason: format!(
                "cannot be written: no folder {}; create it first",
                folder.display()
            ),
        });
    }
    let mut builder = tempfile::Builder::new();
    builder.prefix(".zonos-").suffix(".tmp");
    // Temporary files are private by default; the result is an ordinary file.
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        builder.permissions(std::fs::Permissions::from_mode(0o666));
    }
    builder
        .tempfile_in(folder)
        .map_err(|e| cannot_write(path, &e))
}

/// Gives `temporary` its name once everything reached the disk.
pub(crate) fn persist(temporary: NamedTempFile, path: &Path) -> Result<(), CheckpointError> {
    temporary
        .as_file()
        .sync_all()
        .map_err(|e| cannot_write(path, &e))?;
    temporary
        .persist(path)
        .map_err(|e| cannot_write(path, &e.error))?;
    Ok(())
}

/// The error about the file the user asked for: errors of temporary files end in a path that means
/// nothing to anybody, which is left out.
pub(crate) fn cannot_write(path: &Path, error: &std::io::Error) -> CheckpointError {
    let text = error.to_string();
    let reason = match text.rsplit_once(" at path ") {
        Some((system, _)) if error.get_ref().is_some() => system,
        _ => &text,
    };
    CheckpointError::Output {
        path: path.into(),
        reason: format!("cannot be written: {reason}"),
    }
}
