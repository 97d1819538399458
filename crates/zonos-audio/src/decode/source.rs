//! The bytes of a file, from disk or memory.

use std::fs::File;
use std::io::{self, BufReader, Cursor, Read, Seek, SeekFrom};
use std::path::Path;

use symphonia::core::io::MediaSource;

use super::error::Problem;

trait Media: Read + Seek + Send + Sync {}
impl<T: Read + Seek + Send + Sync> Media for T {}

/// A seekable file, without what [`Source::skip_to`] left out at its front.
pub(super) struct Source {
    inner: Box<dyn Media>,
    start: u64,
    len: u64,
    // Where `inner` stands, from `start` on.
    at: u64,
    // Bytes that are read otherwise than they are, and where they lie.
    patch: Option<(u64, [u8; 8])>,
}

impl Source {
    /// Opens a file on disk; what cannot seek, such as a pipe, is read into memory.
    pub(super) fn open(path: &Path, max_bytes: u64) -> Result<Self, Problem> {
        let file = File::open(path).map_err(Problem::Read)?;
        let meta = file.metadata().map_err(Problem::Read)?;
        if meta.is_dir() {
            return Err(Problem::Read(io::Error::other("is a directory")));
        }
        if !meta.is_file() {
            let mut bytes = Vec::new();
            file.take(max_bytes.saturating_add(1))
                .read_to_end(&mut bytes)
                .map_err(Problem::Read)?;
            return Self::memory(bytes, max_bytes);
        }
        Self::new(Box::new(BufReader::new(file)), meta.len(), max_bytes)
    }

    /// Takes a file that is in memory.
    pub(super) fn memory(bytes: Vec<u8>, max_bytes: u64) -> Result<Self, Problem> {
        let len = bytes.len() as u64;
        Self::new(Box::new(Cursor::new(bytes)), len, max_bytes)
    }

    fn new(inner: Box<dyn Media>, len: u64, max_bytes: u64) -> Result<Self, Problem> {
        if len == 0 {
            return Err(Problem::Empty);
        }
        if len > max_bytes {
            return Err(Problem::TooManyBytes { limit: max_bytes });
        }
        Ok(Self {
            inner,
            start: 0,
            len,
            at: 0,
            patch: None,
        })
    }

    /// Reads `bytes` at `position` from now on, whatever is there.
    pub(super) fn patch(&mut self, position: u64, bytes: [u8; 8]) {
        self.patch = Some((position, bytes));
    }

    /// Length in bytes.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Leaves out the first `bytes` bytes from now on, and stands behind them.
    pub(super) fn skip_to(&mut self, bytes: u64) -> Result<(), Problem> {
        let bytes = bytes.min(self.len);
        self.go_to(bytes)?;
        self.start += bytes;
        self.len -= bytes;
        self.at = 0;
        Ok(())
    }

    /// Leaves out everything from `len` on.
    pub(super) fn truncate(&mut self, len: u64) {
        self.len = self.len.min(len);
    }

    /// Moves to `position`, or the end.
    pub(super) fn go_to(&mut self, position: u64) -> Result<(), Problem> {
        self.seek(SeekFrom::Start(position.min(self.len)))
            .map(drop)
            .map_err(Problem::Read)
    }

    /// Reads up to `count` bytes from `position`; fewer at the end of the file.
    pub(super) fn peek(&mut self, position: u64, count: usize) -> Result<Vec<u8>, Problem> {
        self.go_to(position)?;
        let mut bytes = Vec::new();
        self.take(count as u64)
            .read_to_end(&mut bytes)
            .map_err(Problem::Read)?;
        Ok(bytes)
    }

    /// Reads into `buffer` as far as the file goes, and tells how far.
    pub(super) fn fill(&mut self, buffer: &mut [u8]) -> Result<usize, Problem> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.read(&mut buffer[filled..]) {
                Ok(0) => break,
                Ok(n) => filled += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(Problem::Read(e)),
            }
        }
        Ok(filled)
    }
}

impl Read for Source {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let room = self.len.saturating_sub(self.at);
        let want = buffer
            .len()
            .min(usize::try_from(room).unwrap_or(usize::MAX));
        let read = self.inner.read(&mut buffer[..want])?;
        if let Some((position, bytes)) = self.patch {
            for (byte, at) in bytes.into_iter().zip(position..) {
                let here = at.checked_sub(self.at).filter(|&i| i < read as u64);
                if let Some(i) = here {
                    buffer[i as usize] = byte;
                }
            }
        }
        self.at += read as u64;
        Ok(read)
    }
}

impl Seek for Source {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let to = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(by) => self.len.checked_add_signed(by),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
        };
        let to = to.ok_or(io::ErrorKind::InvalidInput)?;
        // A relative seek keeps what is buffered, where it can.
        match i64::try_from(i128::from(to) - i128::from(self.at)) {
            Ok(by) => self.inner.seek_relative(by)?,
            Err(_) => return Err(io::ErrorKind::InvalidInput.into()),
        }
        self.at = to;
        Ok(to)
    }
}

impl MediaSource for Source {
    fn is_seekable(&self) -> bool {
        true
    }

    fn byte_len(&self) -> Option<u64> {
        Some(self.len)
    }
}
