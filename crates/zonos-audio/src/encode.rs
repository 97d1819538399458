//! Sound files out: WAV, FLAC, Ogg Opus, MP3, bare samples. Complete or not at all.
//!
//! | format | samples | length when read back |
//! |---|---|---|
//! | WAV, raw | 16-bit or f32 | exact |
//! | FLAC | 16-bit | exact |
//! | Ogg Opus | lossy, 48 kHz | exact at 48 kHz |
//! | MP3 (feature `mp3`) | lossy | exact for readers of the LAME tag; else up to 2,257 frames of delay and padding more |
//!
//! MP3 is written by LAME, a C library under the LGPL, and therefore only in builds that ask for it.

mod flac;
#[cfg(feature = "mp3")]
mod mp3;
mod opus;

use std::fmt;
use std::io::{self, Write};
use std::path::Path;

use crate::atomic::{AtomicFile, FileError};
use crate::wav::pcm16;
use crate::waveform::Waveform;

/// Why sound could not be encoded.
#[derive(Debug, thiserror::Error)]
pub enum EncodeError {
    /// The file could not be created or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// The samples are NaN or infinite.
    #[error(
        "{name}: sample {index} of channel {channel} is {value}; expected finite numbers, so nothing was written"
    )]
    NonFinite {
        /// The output.
        name: String,
        /// The channel, counted from 1.
        channel: usize,
        /// Position of the first such sample.
        index: usize,
        /// Its value.
        value: f32,
    },
    /// The format cannot hold this sound.
    #[error("{name}: {format} cannot hold {problem}")]
    Shape {
        /// The output.
        name: String,
        /// The format.
        format: AudioFormat,
        /// What it cannot hold.
        problem: String,
    },
    /// This build has no MP3 encoder.
    #[error(
        "{name}: this build cannot write MP3; build with `--features mp3`, which takes in LAME (LGPL), or write WAV, FLAC or Opus"
    )]
    NoMp3 {
        /// The output.
        name: String,
    },
    /// The encoder failed.
    #[error("{name}: the {format} encoder failed: {problem}")]
    Encoder {
        /// The output.
        name: String,
        /// The format.
        format: AudioFormat,
        /// What it said.
        problem: String,
    },
}

/// How to write sound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AudioFormat {
    /// WAV of 16-bit integers.
    #[default]
    WavPcm16,
    /// WAV of 32-bit floats, unclipped.
    WavF32,
    /// FLAC of 16-bit integers.
    Flac,
    /// MP3, 128 kb/s for two channels.
    Mp3,
    /// Opus in Ogg, 64 kb/s for one channel, 96 for two.
    OggOpus,
    /// 32-bit floats alone, little-endian, channels interleaved.
    RawF32,
    /// 16-bit integers alone, little-endian, channels interleaved.
    RawS16,
}

impl AudioFormat {
    /// File endings and what they stand for.
    pub const ENDINGS: &'static str = ".wav, .flac, .opus, .ogg, .mp3, .f32, .s16 or .raw";

    /// The format that a file's ending stands for, in any case; `None` for other endings.
    pub fn from_path(path: impl AsRef<Path>) -> Option<Self> {
        let ending = path.as_ref().extension()?.to_str()?.to_ascii_lowercase();
        Some(match ending.as_str() {
            "wav" | "wave" => Self::WavPcm16,
            "flac" => Self::Flac,
            "mp3" => Self::Mp3,
            "opus" | "ogg" | "oga" => Self::OggOpus,
            "f32" => Self::RawF32,
            "s16" | "raw" => Self::RawS16,
            _ => return None,
        })
    }

    /// Whether this build can write it.
    pub fn is_available(self) -> bool {
        self != Self::Mp3 || cfg!(feature = "mp3")
    }

    /// Highest sample rate that can be written, in Hz. For FLAC that is what the encoder takes.
    pub fn max_rate(self) -> u32 {
        match self {
            Self::Flac => flac::MAX_RATE,
            _ => MAX_RATE,
        }
    }

    /// Most channels that can be written.
    pub fn max_channels(self) -> usize {
        match self {
            Self::WavPcm16 | Self::WavF32 | Self::RawS16 | Self::RawF32 => 64,
            Self::Flac => 8,
            Self::Mp3 | Self::OggOpus => 2,
        }
    }

    /// The sample rate that a file gets for sound of `rate` Hz: Opus has one of its own, MP3 the next of
    /// its nine that holds everything, or the highest.
    pub fn written_rate(self, rate: u32) -> u32 {
        const MP3: [u32; 9] = [
            8_000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000,
        ];
        match self {
            Self::OggOpus => 48_000,
            Self::Mp3 => MP3.into_iter().find(|&held| held >= rate).unwrap_or(48_000),
            _ => rate,
        }
    }

    /// Whether samples are stored as 16-bit integers.
    fn is_pcm16(self) -> bool {
        matches!(self, Self::WavPcm16 | Self::Flac | Self::RawS16)
    }
}

impl fmt::Display for AudioFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::WavPcm16 => "16-bit WAV",
            Self::WavF32 => "float WAV",
            Self::Flac => "FLAC",
            Self::Mp3 => "MP3",
            Self::OggOpus => "Ogg Opus",
            Self::RawF32 => "raw f32",
            Self::RawS16 => "raw s16",
        })
    }
}

/// What full scale becomes in 16-bit integers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PcmScale {
    /// 32767, by [`pcm16`]: for sound that was computed.
    #[default]
    Symmetric,
    /// 32768, the inverse of reading a file: for sound that came from one, so that 16-bit samples
    /// pass unchanged.
    Full,
}

impl PcmScale {
    /// A sample as 16 bits.
    pub fn pcm16(self, x: f32) -> i16 {
        match self {
            Self::Symmetric => pcm16(x),
            // The cast saturates, and maps NaN to 0.
            Self::Full => (x * 32_768.0).round_ties_even() as i16,
        }
    }
}

/// Channels to be written, all of one length.
struct Sound<'a> {
    name: &'a str,
    format: AudioFormat,
    channels: Vec<&'a [f32]>,
    sample_rate: u32,
    scale: PcmScale,
}

/// Writes `channels`, all of one length, at `sample_rate` Hz into a file that appears complete or not
/// at all.
///
/// # Errors
/// Samples that are not finite, a shape that the format cannot hold (each says which), a build without
/// the encoder, or a file that cannot be written.
pub fn encode_file<C: AsRef<[f32]>>(
    path: impl AsRef<Path>,
    channels: &[C],
    sample_rate: u32,
    format: AudioFormat,
    scale: PcmScale,
) -> Result<(), EncodeError> {
    Ok(stage_file(path, channels, sample_rate, format, scale)?.commit()?)
}

/// As [`encode_file`], but leaves the commit to the caller, for files that belong together; see
/// [`AtomicFile::commit_all`].
///
/// # Errors
/// As [`encode_file`].
pub fn stage_file<C: AsRef<[f32]>>(
    path: impl AsRef<Path>,
    channels: &[C],
    sample_rate: u32,
    format: AudioFormat,
    scale: PcmScale,
) -> Result<AtomicFile, EncodeError> {
    let path = path.as_ref();
    let name = path.display().to_string();
    let sound = Sound {
        name: &name,
        format,
        channels: channels.iter().map(AsRef::as_ref).collect(),
        sample_rate,
        scale,
    };
    sound.check()?;
    let mut file = AtomicFile::create(path)?;
    match format {
        AudioFormat::WavPcm16 | AudioFormat::WavF32 => wav(&sound, &mut file)?,
        AudioFormat::RawF32 | AudioFormat::RawS16 => raw(&sound, &mut file)?,
        AudioFormat::Flac => flac::write(&sound, &mut file)?,
        AudioFormat::OggOpus => opus::write(&sound, &mut file)?,
        #[cfg(feature = "mp3")]
        AudioFormat::Mp3 => mp3::write(&sound, &mut file)?,
        #[cfg(not(feature = "mp3"))]
        AudioFormat::Mp3 => return Err(EncodeError::NoMp3 { name }),
    }
    Ok(file)
}

impl Waveform {
    /// Writes a file of the given format, complete or not at all.
    ///
    /// # Errors
    /// See [`encode_file`].
    pub fn save_as(&self, path: impl AsRef<Path>, format: AudioFormat) -> Result<(), EncodeError> {
        Ok(self.stage_as(path, format)?.commit()?)
    }

    /// As [`save_as`](Self::save_as), but leaves the commit to the caller, for files that belong
    /// together; see [`AtomicFile::commit_all`].
    ///
    /// # Errors
    /// See [`encode_file`].
    pub fn stage_as(
        &self,
        path: impl AsRef<Path>,
        format: AudioFormat,
    ) -> Result<AtomicFile, EncodeError> {
        let scale = PcmScale::default();
        stage_file(path, &[self.samples()], self.sample_rate(), format, scale)
    }
}

/// Highest sample rate that is written, in Hz.
const MAX_RATE: u32 = 384_000;

impl Sound<'_> {
    fn frames(&self) -> usize {
        self.channels.first().map_or(0, |c| c.len())
    }

    /// Interleaved 16-bit samples of the frames in `range`.
    fn pcm16(&self, range: std::ops::Range<usize>) -> impl Iterator<Item = i16> + '_ {
        range.flat_map(move |i| self.channels.iter().map(move |c| self.scale.pcm16(c[i])))
    }

    fn cannot(&self, problem: impl Into<String>) -> EncodeError {
        EncodeError::Shape {
            name: self.name.to_owned(),
            format: self.format,
            problem: problem.into(),
        }
    }

    fn failed(&self, problem: impl fmt::Display) -> EncodeError {
        EncodeError::Encoder {
            name: self.name.to_owned(),
            format: self.format,
            problem: problem.to_string(),
        }
    }

    fn check(&self) -> Result<(), EncodeError> {
        let count = self.channels.len();
        let bytes = match self.format {
            AudioFormat::WavPcm16 | AudioFormat::RawS16 | AudioFormat::Flac => 2,
            AudioFormat::WavF32 | AudioFormat::RawF32 => 4,
            AudioFormat::Mp3 | AudioFormat::OggOpus => 0,
        };
        let (most, fastest) = (self.format.max_channels(), self.format.max_rate());
        if !(1..=most).contains(&count) {
            return Err(self.cannot(format!("{count} channels; expected 1 to {most}")));
        }
        if !(1..=fastest).contains(&self.sample_rate) {
            return Err(self.cannot(format!(
                "a sample rate of {} Hz; expected 1 to {fastest} Hz",
                self.sample_rate
            )));
        }
        let frames = self.frames();
        if self.channels.iter().any(|c| c.len() != frames) {
            return Err(self.cannot("channels of different lengths"));
        }
        let is_wav = matches!(self.format, AudioFormat::WavPcm16 | AudioFormat::WavF32);
        // 1 KiB is more than any header.
        let size = frames as u64 * count as u64 * bytes;
        if is_wav && size > u64::from(u32::MAX) - 1024 {
            return Err(self.cannot(format!("{size} bytes of samples; write shorter pieces")));
        }
        for (c, samples) in self.channels.iter().enumerate() {
            if let Some(index) = samples.iter().position(|x| !x.is_finite()) {
                return Err(EncodeError::NonFinite {
                    name: self.name.to_owned(),
                    channel: c + 1,
                    index,
                    value: samples[index],
                });
            }
        }
        if frames == 0
            && (!self.format.is_pcm16() && bytes == 0 || self.format == AudioFormat::Flac)
        {
            return Err(self.cannot("no samples at all"));
        }
        Ok(())
    }
}

fn wav(sound: &Sound<'_>, file: &mut AtomicFile) -> Result<(), EncodeError> {
    let float = sound.format == AudioFormat::WavF32;
    let spec = hound::WavSpec {
        // Checked to be few.
        channels: sound.channels.len() as u16,
        sample_rate: sound.sample_rate,
        bits_per_sample: if float { 32 } else { 16 },
        sample_format: if float {
            hound::SampleFormat::Float
        } else {
            hound::SampleFormat::Int
        },
    };
    let written = (|| {
        let mut writer = hound::WavWriter::new(&mut *file, spec)?;
        if float {
            for i in 0..sound.frames() {
                for channel in &sound.channels {
                    writer.write_sample(channel[i])?;
                }
            }
        } else {
            for sample in sound.pcm16(0..sound.frames()) {
                writer.write_sample(sample)?;
            }
        }
        writer.finalize()
    })();
    written.map_err(|error| match error {
        hound::Error::IoError(e) => file.error(e).into(),
        other => file.error(io::Error::other(other)).into(),
    })
}

fn raw(sound: &Sound<'_>, file: &mut AtomicFile) -> Result<(), EncodeError> {
    let written = if sound.format == AudioFormat::RawF32 {
        (0..sound.frames()).try_for_each(|i| {
            let mut channels = sound.channels.iter();
            channels.try_for_each(|c| file.write_all(&c[i].to_le_bytes()))
        })
    } else {
        let mut samples = sound.pcm16(0..sound.frames());
        samples.try_for_each(|x| file.write_all(&x.to_le_bytes()))
    };
    written.map_err(|error| file.error(error).into())
}
