//! Files that appear whole or not at all.

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use crate::CheckpointError;
use crate::error::remedy;

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

/// What symbolic links from `path` lead to, whether it exists or not: a rename would put the file in the
/// link's place. No more links are followed than Linux follows.
fn behind_links(path: &Path) -> Result<PathBuf, CheckpointError> {
    let mut end = path.to_path_buf();
    for _ in 0..=40 {
        match std::fs::read_link(&end) {
            Ok(to) => end = end.parent().unwrap_or(Path::new("")).join(to),
            Err(_) => return Ok(end),
        }
    }
    Err(CheckpointError::Output {
        path: path.into(),
        reason: "a link that leads back to itself; remove it, or give another name".into(),
    })
}

/// An empty file beside `path`, or beside what links from there lead to, gone when dropped.
pub(crate) fn temporary_beside(path: &Path) -> Result<NamedTempFile, CheckpointError> {
    let end = behind_links(path)?;
    let folder = match end.parent() {
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
        .persist(behind_links(path)?)
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
        reason: format!("cannot be written: {reason}{}", remedy(error)),
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn links_stay_and_lead_to_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let write = |path: &Path| {
            write_atomically(path, |out| {
                out.write_all(b"new").map_err(|e| cannot_write(path, &e))
            })
        };
        std::fs::create_dir(at("there")).unwrap();
        symlink("there/real", at("link")).unwrap();
        for _ in 0..2 {
            write(&at("link")).unwrap();
            assert_eq!(std::fs::read(at("there/real")).unwrap(), b"new");
            assert!(at("link").is_symlink());
        }
        symlink("loop", at("loop")).unwrap();
        let error = write(&at("loop")).unwrap_err().to_string();
        assert!(error.contains("loop: a link that leads back to itself"));
        symlink("gone/real", at("lost")).unwrap();
        let error = write(&at("lost")).unwrap_err().to_string();
        assert!(
            error.contains("lost: cannot be written: no folder"),
            "{error}"
        );
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 4);
        assert_eq!(std::fs::read_dir(at("there")).unwrap().count(), 1);
    }
}
