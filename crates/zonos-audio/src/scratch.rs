//! Temporary folders that an interrupt handler can remove.

use std::io;
use std::path::Path;

use tempfile::TempDir;

use crate::atomic::{Unfinished, unfinished};

/// A temporary folder that goes away with this value, or with
/// [`discard_unfinished`](crate::discard_unfinished) when the process ends without running
/// destructors.
///
/// ```
/// let folder = zonos_audio::ScratchFolder::create("zonos-example-")?;
/// let path = folder.path().to_path_buf();
/// std::fs::write(path.join("a"), "b")?;
/// drop(folder);
/// assert!(!path.exists());
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct ScratchFolder {
    // Dropped in this order: the entry goes only once the folder is gone.
    folder: TempDir,
    _entry: Unfinished,
}

impl ScratchFolder {
    /// Makes a folder in the system's place for temporary files; its name begins with `prefix`.
    ///
    /// # Errors
    /// The folder cannot be made.
    pub fn create(prefix: &str) -> io::Result<Self> {
        Self::create_in(std::env::temp_dir(), prefix)
    }

    /// Makes a folder in `parent`; its name begins with `prefix`.
    ///
    /// # Errors
    /// The folder cannot be made.
    pub fn create_in(parent: impl AsRef<Path>, prefix: &str) -> io::Result<Self> {
        // Made and listed under one lock, so that the handler never misses one.
        let mut list = unfinished();
        let folder = tempfile::Builder::new().prefix(prefix).tempdir_in(parent)?;
        let entry = Unfinished::listed(&mut list, folder.path());
        Ok(Self {
            folder,
            _entry: entry,
        })
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}
