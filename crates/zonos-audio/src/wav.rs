//! WAV output: complete files and endless streams.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::atomic::{AtomicFile, FileError};

/// Why sound could not be written.
#[derive(Debug, thiserror::Error)]
pub enum WavError {
    /// The file could not be created or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// The stream could not be written, for example because the reader has gone.
    #[error("cannot write the audio stream: {0}")]
    Stream(#[source] io::Error),
    /// The samples are NaN or infinite.
    #[error("{name}: sample {index} is {value}; expected finite numbers, so nothing was written")]
    NonFinite {
        /// The output.
        name: String,
        /// Position of the first such sample.
        index: usize,
        /// Its value.
        value: f32,
    },
    /// The sample rate is zero, or so large that the header cannot hold the bytes a second.
    #[error("{name}: a sample rate of {sample_rate} Hz cannot be written")]
    Rate {
        /// The output.
        name: String,
        /// The rate.
        sample_rate: u32,
    },
    /// WAV sizes have 32 bits.
    #[error("{}: {samples} samples do not fit a WAV file of 4 GiB; write shorter pieces", path.display())]
    TooLong {
        /// The output.
        path: PathBuf,
        /// Samples that were to be written.
        samples: usize,
    },
}

/// A sample as 16-bit PCM: `round_half_even(clamp(x, -1, 1) * 32767)`; NaN becomes 0.
pub fn pcm16(x: f32) -> i16 {
    // The cast is exact for the clamped range and maps NaN to 0.
    (x.clamp(-1.0, 1.0) * 32767.0).round_ties_even() as i16
}

/// Sample format of a WAV file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WavFormat {
    /// 16-bit integers, by [`pcm16`].
    #[default]
    Pcm16,
    /// 32-bit floats, unclipped.
    Float32,
}

impl WavFormat {
    fn spec(self, sample_rate: u32) -> hound::WavSpec {
        let (bits_per_sample, sample_format) = match self {
            Self::Pcm16 => (16, hound::SampleFormat::Int),
            Self::Float32 => (32, hound::SampleFormat::Float),
        };
        hound::WavSpec {
            channels: 1,
            sample_rate,
            bits_per_sample,
            sample_format,
        }
    }
}

fn check_finite(name: &str, first: usize, samples: &[f32]) -> Result<(), WavError> {
    match samples.iter().position(|x| !x.is_finite()) {
        None => Ok(()),
        Some(at) => Err(WavError::NonFinite {
            name: name.to_string(),
            index: first + at,
            value: samples[at],
        }),
    }
}

fn check_rate(name: &str, sample_rate: u32) -> Result<(), WavError> {
    if (1..=u32::MAX / 4).contains(&sample_rate) {
        return Ok(());
    }
    Err(WavError::Rate {
        name: name.to_string(),
        sample_rate,
    })
}

/// Writes a mono WAV file, complete or not at all.
///
/// # Errors
/// Samples that are not finite, an impossible rate, more than 4 GiB, or a file that cannot be written.
pub fn write_wav(
    path: impl AsRef<Path>,
    samples: &[f32],
    sample_rate: u32,
    format: WavFormat,
) -> Result<(), WavError> {
    Ok(stage_wav(path, samples, sample_rate, format)?.commit()?)
}

/// As [`write_wav`], but leaves the commit to the caller, for files that belong together; see
/// [`AtomicFile::commit_all`].
///
/// # Errors
/// As [`write_wav`].
pub fn stage_wav(
    path: impl AsRef<Path>,
    samples: &[f32],
    sample_rate: u32,
    format: WavFormat,
) -> Result<AtomicFile, WavError> {
    let path = path.as_ref();
    let name = path.display().to_string();
    check_rate(&name, sample_rate)?;
    check_finite(&name, 0, samples)?;
    let width = match format {
        WavFormat::Pcm16 => 2,
        WavFormat::Float32 => 4,
    };
    // 1 KiB is more than any header.
    if samples.len() as u64 * width > u64::from(u32::MAX) - 1024 {
        return Err(WavError::TooLong {
            path: path.to_path_buf(),
            samples: samples.len(),
        });
    }
    let mut file = AtomicFile::create(path)?;
    let written = (|| {
        let mut writer = hound::WavWriter::new(&mut file, format.spec(sample_rate))?;
        for &x in samples {
            match format {
                WavFormat::Pcm16 => writer.write_sample(pcm16(x))?,
                WavFormat::Float32 => writer.write_sample(x)?,
            }
        }
        writer.finalize()
    })();
    match written {
        Ok(()) => Ok(file),
        Err(hound::Error::IoError(e)) => Err(file.error(e).into()),
        Err(other) => Err(file.error(io::Error::other(other)).into()),
    }
}

/// A mono 16-bit WAV on a pipe, where the length is not known when the header goes out.
///
/// Both size fields are `0xFFFFFFFF`, the usual sign for "until the end". The header goes out once,
/// with the first samples (or at [`finish`](Self::finish)), so a run that fails before it has sound
/// writes nothing. Every chunk is flushed.
///
/// ```
/// let mut stream = zonos_audio::WavStream::new(Vec::new(), 44_100)?;
/// stream.push(&[0.0, 1.0])?;
/// stream.push(&[-2.0])?;
/// let bytes = stream.finish()?;
/// assert_eq!(bytes.len(), 44 + 6);
/// assert_eq!(&bytes[..4], b"RIFF");
/// assert_eq!(&bytes[44..], &[0, 0, 0xff, 0x7f, 0x01, 0x80]);
/// # Ok::<(), zonos_audio::WavError>(())
/// ```
#[derive(Debug)]
pub struct WavStream<W: Write> {
    writer: W,
    sample_rate: u32,
    started: bool,
    samples: usize,
    bytes: Vec<u8>,
}

impl<W: Write> WavStream<W> {
    /// A stream of `sample_rate` Hz into `writer`; nothing is written yet.
    ///
    /// # Errors
    /// The rate is zero or absurd.
    pub fn new(writer: W, sample_rate: u32) -> Result<Self, WavError> {
        check_rate("audio stream", sample_rate)?;
        Ok(Self {
            writer,
            sample_rate,
            started: false,
            samples: 0,
            bytes: Vec::new(),
        })
    }

    /// Writes samples, preceded by the header the first time. An empty chunk writes nothing.
    ///
    /// # Errors
    /// Samples that are not finite (none of the chunk is written), or a writer that fails.
    pub fn push(&mut self, samples: &[f32]) -> Result<(), WavError> {
        if samples.is_empty() {
            return Ok(());
        }
        check_finite("audio stream", self.samples, samples)?;
        self.start()?;
        self.bytes.clear();
        self.bytes
            .extend(samples.iter().flat_map(|&x| pcm16(x).to_le_bytes()));
        self.writer
            .write_all(&self.bytes)
            .and_then(|()| self.writer.flush())
            .map_err(WavError::Stream)?;
        self.samples += samples.len();
        Ok(())
    }

    /// Samples written so far.
    pub fn samples(&self) -> usize {
        self.samples
    }

    /// Ends the stream, with a header and no sound if nothing was pushed, and returns the writer.
    ///
    /// # Errors
    /// A writer that fails.
    pub fn finish(mut self) -> Result<W, WavError> {
        self.start()?;
        self.writer.flush().map_err(WavError::Stream)?;
        Ok(self.writer)
    }

    fn start(&mut self) -> Result<(), WavError> {
        if self.started {
            return Ok(());
        }
        self.started = true;
        let header = WavFormat::Pcm16
            .spec(self.sample_rate)
            .into_header_for_infinite_file();
        self.writer.write_all(&header).map_err(WavError::Stream)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_is_to_the_even_neighbour() {
        for (x, want) in [
            (0.0, 0),
            (1.0, 32767),
            (-1.0, -32767),
            (7.5, 32767),
            (f32::NEG_INFINITY, -32767),
            (f32::NAN, 0),
            (0.5, 16384),   // 16383.5
            (-0.5, -16384), // -16383.5
            (1.0 / 32767.0, 1),
        ] {
            assert_eq!(pcm16(x), want, "{x}");
        }
    }

    #[test]
    fn file_reads_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.wav");
        let samples = [0.0, 0.25, -0.75, 1.5];
        write_wav(&path, &samples, 44_100, WavFormat::Pcm16).unwrap();
        let mut wav = hound::WavReader::open(&path).unwrap();
        assert_eq!(wav.spec(), WavFormat::Pcm16.spec(44_100));
        let read: Vec<i16> = wav.samples().map(Result::unwrap).collect();
        assert_eq!(read, samples.map(pcm16));
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 44 + 8);

        write_wav(&path, &samples, 16_000, WavFormat::Float32).unwrap();
        let mut wav = hound::WavReader::open(&path).unwrap();
        assert_eq!(wav.spec().sample_rate, 16_000);
        let read: Vec<f32> = wav.samples().map(Result::unwrap).collect();
        assert_eq!(read, samples);

        write_wav(&path, &[], 44_100, WavFormat::Pcm16).unwrap();
        assert_eq!(hound::WavReader::open(&path).unwrap().len(), 0);
    }

    #[test]
    fn bad_samples_leave_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.wav");
        let e = write_wav(&path, &[0.0, f32::NAN], 44_100, WavFormat::Pcm16).unwrap_err();
        assert!(matches!(e, WavError::NonFinite { index: 1, .. }));
        assert!(e.to_string().contains("a.wav"));
        let e = write_wav(&path, &[0.0], 0, WavFormat::Pcm16).unwrap_err();
        assert!(matches!(e, WavError::Rate { .. }));
        assert!(WavStream::new(Vec::new(), u32::MAX).is_err());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        let e = write_wav(dir.path(), &[0.0], 8000, WavFormat::Pcm16).unwrap_err();
        assert!(matches!(e, WavError::File(FileError::IsDirectory(_))));
    }

    #[test]
    fn stream_header_once_with_unknown_sizes() {
        let mut stream = WavStream::new(Vec::new(), 44_100).unwrap();
        stream.push(&[]).unwrap();
        assert!(stream.writer.is_empty());
        for _ in 0..3 {
            stream.push(&[0.5; 10]).unwrap();
        }
        assert_eq!(stream.samples(), 30);
        let bytes = stream.finish().unwrap();
        assert_eq!(bytes.len(), 44 + 60);
        assert_eq!(&bytes[4..8], &[0xff; 4]);
        assert_eq!(&bytes[8..16], b"WAVEfmt ");
        assert_eq!(&bytes[36..44], b"data\xff\xff\xff\xff");
        assert_eq!(bytes.windows(4).filter(|w| w == b"RIFF").count(), 1);
    }

    #[test]
    fn empty_stream_is_a_header() {
        let bytes = WavStream::new(Vec::new(), 8000).unwrap().finish().unwrap();
        assert_eq!(bytes.len(), 44);
    }

    #[test]
    fn stream_failures() {
        struct Gone;
        impl Write for Gone {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut stream = WavStream::new(Gone, 8000).unwrap();
        assert!(matches!(stream.push(&[0.0]), Err(WavError::Stream(_))));
        let mut stream = WavStream::new(Vec::new(), 8000).unwrap();
        stream.push(&[0.0]).unwrap();
        let e = stream.push(&[0.0, f32::INFINITY]).unwrap_err();
        assert!(matches!(e, WavError::NonFinite { index: 2, .. }));
    }
}
