//! Memory-mapped files: the one place of this crate with an `unsafe` block.

use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::CheckpointError;

/// A read-only mapping of a whole, non-empty, regular file.
///
/// Slices of [`MappedFile::bytes`] share ownership of the mapping, so a tensor made from one keeps
/// the file mapped for as long as it lives.
#[derive(Debug)]
pub(crate) struct MappedFile {
    path: Arc<Path>,
    bytes: bytes::Bytes,
}

impl MappedFile {
    /// Maps `path`. Nothing is read until a page is touched.
    pub(crate) fn open(path: &Path) -> Result<Arc<Self>, CheckpointError> {
        let file = open_regular(path)?;
        let meta = file.metadata().map_err(|e| CheckpointError::io(path, e))?;
        if meta.len() == 0 {
            return Err(CheckpointError::Empty { path: path.into() });
        }
        let map = map_file(&file).map_err(|e| CheckpointError::io(path, e))?;
        // A decode step passes over gigabytes: with pages of 2 MB instead of 4 kB the processor looks up far
        // fewer addresses. A hint: systems that have none for files go on as before.
        #[cfg(target_os = "linux")]
        let _ = map.advise(memmap2::Advice::HugePage);
        Ok(Arc::new(Self {
            path: PathBuf::from(path).into(),
            bytes: bytes::Bytes::from_owner(map),
        }))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn shared_path(&self) -> Arc<Path> {
        self.path.clone()
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// A view of `range` that keeps the mapping alive; `None` when it lies outside the file.
    pub(crate) fn slice(&self, range: Range<usize>) -> Option<bytes::Bytes> {
        (range.start <= range.end && range.end <= self.bytes.len()).then(|| self.bytes.slice(range))
    }

    /// The whole file, sharing the mapping.
    pub(crate) fn shared(&self) -> bytes::Bytes {
        self.bytes.clone()
    }
}

/// A whole file in memory without being read: a mapping, for readers of other formats than checkpoints.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("a.bin");
/// std::fs::write(&path, b"abc")?;
/// let file = zonos_checkpoint::FileBytes::open(&path)?;
/// assert_eq!(file.as_ref(), b"abc");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct FileBytes(bytes::Bytes);

impl FileBytes {
    /// Maps `path`.
    ///
    /// # Errors
    ///
    /// The file is empty, no regular one, or cannot be opened.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, CheckpointError> {
        Ok(Self(MappedFile::open(path.as_ref())?.shared()))
    }
}

impl AsRef<[u8]> for FileBytes {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// Opens `path` for reading if it is a regular file. The question comes first: opening a pipe waits
/// for a writer.
pub(crate) fn open_regular(path: &Path) -> Result<File, CheckpointError> {
    let meta = std::fs::metadata(path).map_err(|e| CheckpointError::io(path, e))?;
    if !meta.is_file() {
        return Err(CheckpointError::unsupported(
            path,
            "not a regular file; folders, pipes and devices cannot be read here, copy the data into a file",
        ));
    }
    File::open(path).map_err(|e| CheckpointError::io(path, e))
}

#[allow(unsafe_code)]
fn map_file(file: &File) -> std::io::Result<memmap2::Mmap> {
    // SAFETY: the mapping is private to this process and read-only, and lives inside `Bytes`, which
    // unmaps it only after the last slice is gone. What remains is that another process may change
    // or shorten the file meanwhile: then values change, or the system ends this process with a
    // bus error. Every loader that maps weights accepts this; checkpoints are replaced by renaming
    // a new file over the old one (as this crate's own writer does), which leaves the mapping intact.
    unsafe { memmap2::Mmap::map(file) }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    /// The flags that the system keeps of the mapping of `path`, or nothing if it is not mapped.
    fn flags(path: &Path) -> Option<String> {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut lines = maps.lines();
        lines.find(|line| line.ends_with(path.to_str().unwrap()))?;
        lines
            .find_map(|line| line.strip_prefix("VmFlags:"))
            .map(String::from)
    }

    #[test]
    fn large_pages_are_asked_for() {
        if !Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
            eprintln!("not tested: this kernel has no transparent huge pages");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().canonicalize().unwrap().join("a.bin");
        std::fs::write(&path, [7; 5000]).unwrap();
        let file = MappedFile::open(&path).unwrap();
        let flags_of_it = flags(&path).expect("mapped");
        assert!(
            flags_of_it.split_whitespace().any(|flag| flag == "hg"),
            "{flags_of_it}"
        );
        assert_eq!(file.bytes(), [7; 5000]);
    }
}
