//! Files that appear whole or not at all.

use std::io::{BufWriter, Write};
use std::path::Path;

use crate::CheckpointError;

/// Writes `path` through a temporary file beside it, which is renamed over it only when `fill`
/// succeeded and everything reached the disk.
pub(crate) fn write_atomically(
    path: &Path,
    fill: impl FnOnce(&mut dyn Write) -> Result<(), CheckpointError>,
) -> Result<(), CheckpointError> {
    let error = |source: std::io::Error| CheckpointError::Output {
        path: path.into(),
        reason: format!("cannot be written: {source}"),
    };
    let folder = match path.parent() {
        Some(p) if !p.as_os_str().is_empty() => p,
        _ => Path::new("."),
    };
    let mut builder = tempfile::Builder::new();
    builder.prefix(".zonos-").suffix(".tmp");
    // Temporary files are private by default; the result is an ordinary file.
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        builder.permissions(std::fs::Permissions::from_mode(0o666));
    }
    let temporary = builder.tempfile_in(folder).map_err(error)?;
    let mut out = BufWriter::with_capacity(1 << 20, temporary);
    fill(&mut out)?;
    let temporary = out.into_inner().map_err(|e| error(e.into_error()))?;
    temporary.as_file().sync_all().map_err(error)?;
    temporary.persist(path).map_err(|e| error(e.error))?;
    Ok(())
}
