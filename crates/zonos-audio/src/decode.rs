//! Audio files of strangers, decoded in process.
//!
//! What a file is, is found from its bytes; its name is only used in messages. Read are
//!
//! * PCM of 8, 16, 24 and 32 bits, 32- and 64-bit floats, A-law and mu-law, in WAV (`RF64` and
//!   `WAVE_FORMAT_EXTENSIBLE` included) and AIFF; IMA and Microsoft ADPCM in WAV;
//! * FLAC, bare and in Ogg; Apple Lossless in MP4 and CAF;
//! * MPEG layers I to III; AAC-LC in ADTS and MP4;
//! * Vorbis in Ogg and WebM; Opus in Ogg, WebM (Matroska) and MP4.
//!
//! Priming and padding of the encoder are cut where the file tells them: LAME tag, Ogg granules,
//! Opus pre-skip, MP4 edit lists, Matroska delays. Integer PCM of `b` bits maps to `v / 2^(b-1)`,
//! 8-bit WAV to `(v - 128) / 128`; floats are taken as they are, above 1 too.
//!
//! Nothing is reserved on the word of a header. [`DecodeLimits`] bound what is read and what comes
//! out of it, the latter while decoding, so that an hour of silence in a kilobyte stops early. A file
//! that is cut short, or whose header promises more than it holds, gives what is there, with a warning.
//!
//! ```
//! use zonos_audio::decode::{DecodeLimits, decode_bytes};
//!
//! let mut wav = zonos_audio::WavStream::new(Vec::new(), 16_000)?;
//! wav.push(&[0.5; 8000])?;
//! let decoded = decode_bytes("half.wav", wav.finish()?, &DecodeLimits::default())?;
//! assert_eq!((decoded.info.codec, decoded.info.sample_rate), ("PCM", 16_000));
//! assert_eq!(decoded.to_mono().len(), 8000);
//!
//! let error = decode_bytes("notes.wav", *b"Dear diary, today", &DecodeLimits::default());
//! assert!(error.unwrap_err().to_string().starts_with("notes.wav: not an audio file"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod adpcm;
mod aiff;
mod caf;
mod error;
mod g711;
mod matroska;
mod mp4;
mod opus;
mod packets;
mod pcm;
mod sink;
mod sniff;
mod source;
mod wav;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use serde::Serialize;

pub use error::{DecodeError, Problem};

use crate::waveform::Waveform;
use sink::Sink;
use sniff::Kind;
use source::Source;

/// Codecs that are read, and the containers they are read in, for messages and documents.
pub const SUPPORTED: &str = "PCM, float, A-law, mu-law (WAV, AIFF, CAF, MP4, Matroska), ADPCM (WAV), \
FLAC (FLAC, Ogg, MP4, Matroska), ALAC (MP4, CAF), MP3 and MPEG layers I and II (MPEG audio, MP4), \
AAC-LC (ADTS, MP4, Matroska), Vorbis (Ogg, WebM), Opus (Ogg, WebM, MP4)";

/// Bytes for a second of sound that a file may well have: no codec of speech takes fewer. A length
/// that goes with that is believed before anything is decoded; a longer one is only a claim.
const LEAST_BYTES_A_SECOND: f64 = 500.0;

/// Sample rates that are believed, in Hz.
const RATES: std::ops::RangeInclusive<u32> = 1_000..=384_000;

/// Channels that are believed.
const MAX_CHANNELS: usize = 64;

/// Bounds on what one file may cost.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DecodeLimits {
    /// Size of the file, in bytes.
    pub max_encoded_bytes: u64,
    /// Length of the sound, in seconds.
    pub max_seconds: f64,
    /// Size of all channels as f32, in bytes.
    pub max_decoded_bytes: u64,
}

impl Default for DecodeLimits {
    /// For files of one's own: 1 GiB, 2 hours, 2 GiB decoded.
    fn default() -> Self {
        Self {
            max_encoded_bytes: 1 << 30,
            max_seconds: 7_200.0,
            max_decoded_bytes: 2 << 30,
        }
    }
}

/// What a file says it holds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AudioInfo {
    /// The container: `WAV`, `MP4`, `Ogg`, ...
    pub container: &'static str,
    /// The codec: `PCM`, `AAC`, `Opus`, ...
    pub codec: &'static str,
    /// Samples a second and channel.
    pub sample_rate: u32,
    /// Number of channels.
    pub channels: usize,
    /// Bits of a sample, for codecs that have such a number.
    pub bits_per_sample: Option<u32>,
    /// Samples a channel. From [`probe_file`], as the file claims it, and `None` where it does not;
    /// after decoding, as counted.
    pub frames: Option<u64>,
}

impl AudioInfo {
    /// Length in seconds.
    pub fn seconds(&self) -> Option<f64> {
        Some(self.frames? as f64 / f64::from(self.sample_rate))
    }
}

/// A decoded file.
#[derive(Debug, Clone, PartialEq)]
pub struct Decoded {
    /// What it was.
    pub info: AudioInfo,
    /// Samples `[channels][frames]`, nominally -1..1, all finite, at least one frame.
    pub channels: Vec<Vec<f32>>,
    /// What was wrong with the file and did not prevent reading it, a sentence each.
    pub warnings: Vec<String>,
}

impl Decoded {
    /// The mean of the channels, each with the same weight.
    pub fn to_mono(&self) -> Waveform {
        let rate = self.info.sample_rate;
        if let [only] = self.channels.as_slice() {
            return Waveform::new(only.clone(), rate);
        }
        let weight = 1.0 / self.channels.len() as f64;
        let frames = self.channels.first().map_or(0, Vec::len);
        let mean = |i: usize| {
            let sum: f64 = self.channels.iter().map(|c| f64::from(c[i])).sum();
            (sum * weight) as f32
        };
        Waveform::new((0..frames).map(mean).collect(), rate)
    }

    /// As [`to_mono`](Self::to_mono), without a copy where there is one channel.
    pub fn into_mono(mut self) -> Waveform {
        if self.channels.len() == 1
            && let Some(only) = self.channels.pop()
        {
            return Waveform::new(only, self.info.sample_rate);
        }
        self.to_mono()
    }
}

/// Decodes a file.
///
/// # Errors
/// The file cannot be read, is no audio, has a codec that is not supported, is damaged beyond use,
/// holds no samples, or NaN or infinite ones, or exceeds the limits; see [`Problem`].
pub fn decode_file(path: impl AsRef<Path>, limits: &DecodeLimits) -> Result<Decoded, DecodeError> {
    let path = path.as_ref();
    named(&path.display().to_string(), || {
        decode(Source::open(path, limits.max_encoded_bytes)?, limits)
    })
}

/// Decodes a file that is in memory. `name` is for messages.
///
/// # Errors
/// As [`decode_file`].
pub fn decode_bytes(
    name: &str,
    bytes: impl Into<Vec<u8>>,
    limits: &DecodeLimits,
) -> Result<Decoded, DecodeError> {
    named(name, || {
        decode(
            Source::memory(bytes.into(), limits.max_encoded_bytes)?,
            limits,
        )
    })
}

/// Reads the headers of a file alone.
///
/// # Errors
/// As [`decode_file`], for what headers tell.
pub fn probe_file(path: impl AsRef<Path>) -> Result<AudioInfo, DecodeError> {
    let path = path.as_ref();
    named(&path.display().to_string(), || {
        probe(Source::open(
            path,
            DecodeLimits::default().max_encoded_bytes,
        )?)
    })
}

/// Reads the headers of a file that is in memory.
///
/// # Errors
/// As [`probe_file`].
pub fn probe_bytes(name: &str, bytes: impl Into<Vec<u8>>) -> Result<AudioInfo, DecodeError> {
    named(name, || probe(Source::memory(bytes.into(), u64::MAX)?))
}

/// Runs `work` and puts the file's name to its problem. The decoders come from several libraries; a
/// bug that makes one of them panic on some file is that file's problem, not the program's.
fn named<T>(name: &str, work: impl FnOnce() -> Result<T, Problem>) -> Result<T, DecodeError> {
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|_| Err(Problem::damaged("the decoder failed on it")))
        .map_err(|problem| DecodeError::new(name, problem))
}

/// A file whose headers were read.
trait Reader {
    /// What the headers say.
    fn info(&self) -> &AudioInfo;
    /// Decodes everything into `sink`. An error after the first samples is for the sink to judge.
    fn decode(&mut self, sink: &mut Sink) -> Result<(), Problem>;
}

fn open(mut source: Source) -> Result<Box<dyn Reader>, Problem> {
    let kind = sniff::sniff(&mut source)?;
    let reader: Box<dyn Reader> = match kind {
        Kind::Wav => Box::new(wav::Wav::open(source)?),
        Kind::Aiff => Box::new(aiff::Aiff::open(source)?),
        Kind::Packets(container) => Box::new(packets::Packets::open(source, container)?),
    };
    check(reader.info())?;
    Ok(reader)
}

/// Refuses what no recording has.
fn check(info: &AudioInfo) -> Result<(), Problem> {
    check_format(u64::from(info.sample_rate), info.channels as u64)
}

fn check_format(sample_rate: u64, channels: u64) -> Result<(), Problem> {
    if channels == 0 {
        return Err(Problem::header("0 channels"));
    }
    if channels > MAX_CHANNELS as u64 {
        return Err(Problem::header(format!(
            "implausible channel count {channels}; expected 1 to {MAX_CHANNELS}"
        )));
    }
    if sample_rate == 0 {
        return Err(Problem::header("sample rate 0"));
    }
    if !u32::try_from(sample_rate).is_ok_and(|rate| RATES.contains(&rate)) {
        return Err(Problem::header(format!(
            "implausible sample rate {sample_rate} Hz; expected {} to {} Hz",
            RATES.start(),
            RATES.end()
        )));
    }
    Ok(())
}

fn probe(source: Source) -> Result<AudioInfo, Problem> {
    Ok(open(source)?.info().clone())
}

fn decode(source: Source, limits: &DecodeLimits) -> Result<Decoded, Problem> {
    let bytes = source.len() as f64;
    let mut reader = open(source)?;
    let info = reader.info();
    let mut sink = Sink::new(info, *limits);
    if let (Some(frames), Some(seconds)) = (info.frames, info.seconds())
        && seconds * LEAST_BYTES_A_SECOND <= bytes
    {
        sink.check(frames)?;
    }
    let ended = reader.decode(&mut sink);
    if sink.frames() == 0 {
        ended?;
        return Err(Problem::NoSamples);
    }
    match ended {
        Ok(()) => {}
        // Real damage in the middle: what came before it is still sound.
        Err(problem @ (Problem::Damaged(_) | Problem::CutShort(_) | Problem::Read(_))) => {
            let at = sink.seconds();
            sink.warn(format!("{problem}; read up to {at:.2} s"));
        }
        Err(other) => return Err(other),
    }
    let (channels, warnings) = sink.finish();
    let mut info = reader.info().clone();
    info.frames = channels.first().map(|c| c.len() as u64);
    Ok(Decoded {
        info,
        channels,
        warnings,
    })
}
