//! Output files that appear complete or not at all.

use std::fs;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tempfile::NamedTempFile;

/// Why an output file could not be written.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The path ends in no file name.
    #[error("{}: not a file name; give the output a name", .0.display())]
    NoName(PathBuf),
    /// The path is a directory.
    #[error("{}: is a directory; give a file name inside it", .0.display())]
    IsDirectory(PathBuf),
    /// The path is a device, pipe or socket, which a rename would destroy.
    #[error("{}: is not a regular file; give the name of one", .0.display())]
    NotRegular(PathBuf),
    /// The folder of the output does not exist.
    #[error("{}: the folder {} does not exist; create it first", target.display(), parent.display())]
    NoParent {
        /// The output.
        target: PathBuf,
        /// Its missing folder.
        parent: PathBuf,
    },
    /// The path is a link that leads nowhere a file could be made.
    #[error("{}: a link to {}, and the folder of that does not exist; create it, or remove the link", link.display(), target.display())]
    LinkToNowhere {
        /// The output, as it was given.
        link: PathBuf,
        /// Where the link leads.
        target: PathBuf,
    },
    /// The path is a link that leads back to itself.
    #[error("{}: a link that leads back to itself; remove it, or give another name", .0.display())]
    LinkLoop(PathBuf),
    /// The folder of the output is not a folder.
    #[error("{}: {} is not a folder; give a path in one", target.display(), parent.display())]
    ParentNotFolder {
        /// The output.
        target: PathBuf,
        /// What stands where its folder should be.
        parent: PathBuf,
    },
    /// The temporary file could not be made, usually for lack of permission.
    #[error("{}: cannot create a file in {}: {source}; give a folder that can be written to", target.display(), parent.display())]
    Create {
        /// The output.
        target: PathBuf,
        /// Its folder.
        parent: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Writing or renaming failed, for example because the disk is full.
    #[error("{}: cannot write: {source}{}", target.display(), if is_full(source) { "; make room, or write elsewhere" } else { "" })]
    Write {
        /// The output.
        target: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// What the system said, without the name of the temporary file, which nobody asked for and `tempfile`
/// puts behind it.
fn bare(error: io::Error) -> io::Error {
    let text = error.to_string();
    match text.split_once(" at path ") {
        Some((said, _)) if error.get_ref().is_some() => io::Error::new(error.kind(), said),
        _ => error,
    }
}

/// Whether there was no room, on the disk or by a limit.
fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
    )
}

/// Links that are followed one after the other, as many as Linux follows.
const MOST_LINKS: usize = 40;

/// The file that a write to `path` is a write to: what symbolic links lead to, whether it exists or not.
///
/// A shell that writes into a link does the same. A rename alone would put the file in the link's place.
///
/// # Errors
/// [`FileError::LinkLoop`] where links lead to no end.
pub fn behind_links(path: impl AsRef<Path>) -> Result<PathBuf, FileError> {
    let mut end = path.as_ref().to_path_buf();
    for _ in 0..=MOST_LINKS {
        match fs::read_link(&end) {
            // A relative link counts from its own folder; an absolute one replaces all.
            Ok(to) => end = end.parent().unwrap_or(Path::new("")).join(to),
            Err(_) => return Ok(end),
        }
    }
    Err(FileError::LinkLoop(path.as_ref().to_path_buf()))
}

/// Temporary files and folders that exist now, so that an interrupt handler can remove them: a process that
/// exits from a handler runs no destructors.
static UNFINISHED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

pub(crate) fn unfinished() -> MutexGuard<'static, Vec<PathBuf>> {
    // A list of paths cannot be left half-changed by a panic.
    UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A path that [`discard_unfinished`] removes while this value lives.
///
/// For what a program makes by itself and means to remove, such as a folder that it fills: listed
/// here, it also goes when an interrupt ends the process. Dropping the value leaves the path alone.
#[derive(Debug)]
pub struct Unfinished(PathBuf);

impl Unfinished {
    /// Lists `path`, a file or a folder with everything in it.
    pub fn new(path: impl AsRef<Path>) -> Self {
        Self::listed(&mut unfinished(), path.as_ref())
    }

    pub(crate) fn listed(list: &mut Vec<PathBuf>, path: &Path) -> Self {
        list.push(path.to_path_buf());
        Self(path.to_path_buf())
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        let mut list = unfinished();
        if let Some(at) = list.iter().position(|path| *path == self.0) {
            list.swap_remove(at);
        }
    }
}

/// Removes the temporary file of every [`AtomicFile`] that is neither committed nor dropped, every
/// [`ScratchFolder`](crate::ScratchFolder), and what is listed by [`Unfinished`].
///
/// For interrupt handlers, just before the process exits. A later [`AtomicFile::commit`] of one of
/// these files fails.
pub fn discard_unfinished() {
    discard(&mut unfinished());
}

/// As [`discard_unfinished`], and ends the process. No other thread can begin a temporary file or
/// folder in between: one that tries waits, and ends with the process.
pub fn exit_discarding_unfinished(code: i32) -> ! {
    let mut list = unfinished();
    discard(&mut list);
    std::process::exit(code)
}

fn discard(list: &mut Vec<PathBuf>) {
    for path in list.drain(..) {
        // Nothing useful can be done about a failure on the way out. Another thread may still be
        // writing into a folder or removing it, either of which makes an attempt fail.
        for _ in 0..100 {
            let removed = if path.is_dir() {
                fs::remove_dir_all(&path)
            } else {
                fs::remove_file(&path)
            };
            if removed.is_ok() || !path.exists() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }
}

/// A file written under a temporary name beside its target and renamed by [`commit`](Self::commit).
///
/// Dropped without a commit, it leaves nothing behind, and an existing target keeps its old
/// content. A symbolic link stays, and the file it leads to is replaced, or made where there is none
/// yet. Writes are buffered. The data are not forced to the disk: this guards against failed runs, not against
/// power cuts.
///
/// ```
/// use std::io::Write;
/// # let dir = tempfile::tempdir()?;
/// let target = dir.path().join("out.bin");
/// let mut file = zonos_audio::AtomicFile::create(&target)?;
/// file.write_all(b"complete")?;
/// assert!(!target.exists());
/// file.commit()?;
/// assert_eq!(std::fs::read(&target)?, b"complete");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct AtomicFile {
    target: PathBuf,
    // `None` only while `commit` takes it out.
    file: Option<BufWriter<NamedTempFile>>,
    _entry: Unfinished,
}

impl AtomicFile {
    /// Creates the temporary file beside `target`.
    ///
    /// # Errors
    /// `target` has no file name, is a directory, a device or a link without an end, or its folder is
    /// missing or not writable.
    pub fn create(target: impl AsRef<Path>) -> Result<Self, FileError> {
        let given = target.as_ref();
        match fs::metadata(given) {
            Ok(meta) if meta.is_dir() => return Err(FileError::IsDirectory(given.into())),
            Ok(meta) if !meta.is_file() => return Err(FileError::NotRegular(given.into())),
            _ => {}
        }
        let target = behind_links(given)?;
        // `file_name` ignores a trailing slash, which says that a folder is meant.
        let slash = target
            .as_os_str()
            .as_encoded_bytes()
            .last()
            .is_some_and(|&b| std::path::is_separator(char::from(b)));
        if target.file_name().is_none() || slash {
            return Err(FileError::NoName(target));
        }
        let parent = match target.parent() {
            Some(p) if !p.as_os_str().is_empty() => p.to_path_buf(),
            _ => PathBuf::from("."),
        };
        match fs::metadata(&parent) {
            Ok(meta) if meta.is_dir() => {}
            Ok(_) => return Err(FileError::ParentNotFolder { target, parent }),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                return Err(if target == given {
                    FileError::NoParent { target, parent }
                } else {
                    let link = given.into();
                    FileError::LinkToNowhere { link, target }
                });
            }
            Err(source) => {
                return Err(FileError::Create {
                    target,
                    parent,
                    source,
                });
            }
        }

        let mut builder = tempfile::Builder::new();
        builder.prefix(".").suffix(".part");
        // Temporary files are private by default; an output has ordinary permissions (less the umask).
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
        // Made and listed under one lock, so that an interrupt handler never misses one.
        let mut list = unfinished();
        let file = match builder.tempfile_in(&parent) {
            Ok(file) => file,
            Err(source) => {
                return Err(FileError::Create {
                    target,
                    parent,
                    source: bare(source),
                });
            }
        };
        let entry = Unfinished::listed(&mut list, file.path());
        Ok(Self {
            target,
            file: Some(BufWriter::new(file)),
            _entry: entry,
        })
    }

    /// The file that [`commit`](Self::commit) will put in place.
    pub fn target(&self) -> &Path {
        &self.target
    }

    /// Flushes and renames the file onto its target.
    ///
    /// # Errors
    /// The last bytes could not be written or the rename failed; the temporary file is removed and
    /// the target untouched.
    pub fn commit(mut self) -> Result<(), FileError> {
        let failed = |source| FileError::Write {
            target: self.target.clone(),
            source: bare(source),
        };
        let buffered = self
            .file
            .take()
            .ok_or_else(|| failed(io::Error::other("already committed")))?;
        let file = buffered.into_inner().map_err(|e| failed(e.into_error()))?;
        file.persist(&self.target).map_err(|e| failed(e.error))?;
        Ok(())
    }

    /// Commits several files that belong together: every byte is written out before the first file is
    /// renamed, so that a full disk leaves all targets as they were.
    ///
    /// # Errors
    /// As [`commit`](Self::commit).
    pub fn commit_all(mut files: Vec<Self>) -> Result<(), FileError> {
        for file in &mut files {
            file.flush().map_err(|source| file.error(source))?;
        }
        files.into_iter().try_for_each(Self::commit)
    }

    /// An error of a write to this file, with its name.
    pub fn error(&self, source: io::Error) -> FileError {
        FileError::Write {
            target: self.target.clone(),
            source: bare(source),
        }
    }

    fn inner(&mut self) -> io::Result<&mut BufWriter<NamedTempFile>> {
        self.file
            .as_mut()
            .ok_or_else(|| io::Error::other("already committed"))
    }
}

impl Drop for AtomicFile {
    fn drop(&mut self) {
        if let Some(buffered) = self.file.take() {
            // Taken apart so that the abandoned bytes are not flushed first.
            drop(buffered.into_parts().0);
        }
    }
}

impl Write for AtomicFile {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.inner()?.write(buf).map_err(bare)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner()?.flush().map_err(bare)
    }
}

impl Seek for AtomicFile {
    fn seek(&mut self, pos: SeekFrom) -> io::Result<u64> {
        self.inner()?.seek(pos)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(dir: &Path) -> usize {
        fs::read_dir(dir).unwrap().count()
    }

    #[test]
    fn drop_leaves_nothing_and_keeps_the_old_file() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("a");
        fs::write(&target, "old").unwrap();
        let mut file = AtomicFile::create(&target).unwrap();
        file.write_all(b"new").unwrap();
        assert_eq!(entries(dir.path()), 2);
        drop(file);
        assert_eq!(entries(dir.path()), 1);
        assert_eq!(fs::read(&target).unwrap(), b"old");
    }

    #[test]
    fn commit_replaces() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("a");
        fs::write(&target, "old").unwrap();
        let mut file = AtomicFile::create(&target).unwrap();
        file.write_all(b"xxw").unwrap();
        file.seek(SeekFrom::Start(0)).unwrap();
        file.write_all(b"ne").unwrap();
        assert_eq!(file.target(), target);
        file.commit().unwrap();
        assert_eq!(fs::read(&target).unwrap(), b"new");
        assert_eq!(entries(dir.path()), 1);
    }

    #[test]
    fn files_that_belong_together_appear_together() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        let files = [&a, &b].map(|path| {
            let mut file = AtomicFile::create(path).unwrap();
            file.write_all(b"x").unwrap();
            file
        });
        assert!(!a.exists() && !b.exists());
        AtomicFile::commit_all(files.into()).unwrap();
        assert!(a.exists() && b.exists());
        assert_eq!(entries(dir.path()), 2);
    }

    #[test]
    fn refusals() {
        let dir = tempfile::tempdir().unwrap();
        let d = dir.path();
        fs::write(d.join("file"), "").unwrap();
        let is = |p: &Path| AtomicFile::create(p).unwrap_err();
        assert!(matches!(is(d), FileError::IsDirectory(_)));
        assert!(matches!(
            is(&d.join("no/x.wav")),
            FileError::NoParent { .. }
        ));
        assert!(matches!(is(&d.join("new/")), FileError::NoName(_)));
        assert!(matches!(is(Path::new("")), FileError::NoName(_)));
        // "file/x" is refused by the system as "not a directory" before or after our own check.
        assert!(matches!(
            is(&d.join("file/x")),
            FileError::ParentNotFolder { .. } | FileError::Create { .. }
        ));
        assert_eq!(entries(d), 1);
        let text = is(&d.join("no/x.wav")).to_string();
        assert!(text.contains("x.wav") && text.contains("does not exist") && !text.contains('\n'));
    }

    /// The proc filesystem takes no files, not even from root.
    #[cfg(target_os = "linux")]
    #[test]
    fn errors_do_not_name_the_temporary_file() {
        let error = AtomicFile::create("/proc/a.wav").unwrap_err();
        assert!(matches!(error, FileError::Create { .. }));
        let text = error.to_string();
        assert!(
            text.starts_with("/proc/a.wav: cannot create a file in /proc: "),
            "{text}"
        );
        assert!(!text.contains(".part"), "{text}");
    }

    #[cfg(unix)]
    #[test]
    fn devices_are_refused_and_links_followed() {
        let device = AtomicFile::create("/dev/null").unwrap_err();
        assert!(matches!(device, FileError::NotRegular(_)));

        let dir = tempfile::tempdir().unwrap();
        let (real, link) = (dir.path().join("real"), dir.path().join("link"));
        fs::write(&real, "old").unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        let mut file = AtomicFile::create(&link).unwrap();
        file.write_all(b"new").unwrap();
        file.commit().unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read(&real).unwrap(), b"new");
    }

    #[cfg(unix)]
    #[test]
    fn links_that_lead_to_no_file_yet() {
        use std::os::unix::fs::symlink;
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir(at("there")).unwrap();
        // A relative link to another one, which counts from its own folder.
        symlink("there/next", at("link")).unwrap();
        symlink("real", at("there/next")).unwrap();
        let mut file = AtomicFile::create(at("link")).unwrap();
        file.write_all(b"new").unwrap();
        drop(file);
        assert_eq!((entries(dir.path()), entries(&at("there"))), (2, 1));
        let mut file = AtomicFile::create(at("link")).unwrap();
        file.write_all(b"new").unwrap();
        file.commit().unwrap();
        assert!(fs::symlink_metadata(at("link")).unwrap().is_symlink());
        assert_eq!(fs::read(at("there/real")).unwrap(), b"new");
        assert_eq!((entries(dir.path()), entries(&at("there"))), (2, 2));

        symlink("gone/real", at("lost")).unwrap();
        let error = AtomicFile::create(at("lost")).unwrap_err();
        assert!(matches!(error, FileError::LinkToNowhere { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains("lost: a link to ") && text.contains("gone/real"));
        symlink("round", at("about")).unwrap();
        symlink("about", at("round")).unwrap();
        let error = AtomicFile::create(at("round")).unwrap_err();
        assert!(matches!(error, FileError::LinkLoop(_)), "{error}");
        assert_eq!((entries(dir.path()), entries(&at("there"))), (5, 2));
    }

    #[cfg(unix)]
    #[test]
    fn ordinary_permissions() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let (ours, plain) = (dir.path().join("ours"), dir.path().join("plain"));
        AtomicFile::create(&ours).unwrap().commit().unwrap();
        fs::write(&plain, "").unwrap();
        let mode = |p: &Path| fs::metadata(p).unwrap().permissions().mode();
        assert_eq!(mode(&ours), mode(&plain));
    }
}
