//! AIFF and AIFF-C files.
//!
//! Source: "Audio Interchange File Format", Apple 1989, and the AIFF-C draft of 1991.

use super::pcm::{self, Sample};
use super::sink::Sink;
use super::source::Source;
use super::wav::cut_short;
use super::{AudioInfo, Problem, Reader, check_format};

pub(super) struct Aiff {
    source: Source,
    info: AudioInfo,
    sample: Sample,
    start: u64,
    present: u64,
    promised: u64,
}

struct Common {
    channels: u16,
    frames: u32,
    sample: Sample,
    sample_rate: u32,
}

impl Aiff {
    /// Reads the chunks.
    pub(super) fn open(mut source: Source) -> Result<Self, Problem> {
        let compressed = source.peek(8, 4)?.as_slice() == b"AIFC";
        let mut at = 12;
        let (mut common, mut sound) = (None, None);
        while common.is_none() || sound.is_none() {
            let chunk = source.peek(at, 8)?;
            if chunk.len() < 8 {
                break;
            }
            let size = u64::from(u32_at(&chunk, 4));
            let body = at + 8;
            match &chunk[..4] {
                b"COMM" => {
                    common = Some(Common::parse(&source.peek(body, 22)?, compressed)?);
                }
                b"SSND" => {
                    let head = source.peek(body, 8)?;
                    if head.len() < 8 {
                        break;
                    }
                    let offset = u64::from(u32_at(&head, 0)) + 8;
                    let end = (body + size).min(source.len());
                    let start = (body + offset).min(end);
                    sound = Some((start, end - start));
                }
                _ => {}
            }
            at = body + size + (size & 1);
        }
        let Some(common) = common else {
            return Err(Problem::CutShort("the header is incomplete"));
        };
        // A file of no samples needs no chunk for them.
        let (start, present) = sound.unwrap_or_default();
        let frame = common.sample.bytes() as u64 * u64::from(common.channels);
        let promised = u64::from(common.frames);
        Ok(Self {
            info: AudioInfo {
                container: "AIFF",
                codec: common.sample.codec(),
                sample_rate: common.sample_rate,
                channels: usize::from(common.channels),
                bits_per_sample: Some(common.sample.bits()),
                frames: Some(promised.min(present / frame)),
            },
            source,
            sample: common.sample,
            start,
            present: present.min(promised * frame),
            promised,
        })
    }
}

impl Common {
    fn parse(bytes: &[u8], compressed: bool) -> Result<Self, Problem> {
        if bytes.len() < 18 || compressed && bytes.len() < 22 {
            return Err(Problem::CutShort("the header is incomplete"));
        }
        let channels = u16_at(bytes, 0);
        let bits = u16_at(bytes, 6);
        let rate = extended(bytes[8..18].first_chunk().unwrap_or(&[0; 10]));
        check_format(rate, u64::from(channels))?;
        let kind: &[u8] = if compressed { &bytes[18..22] } else { b"NONE" };
        let integers = |big| match bits {
            1..=8 => Ok(Sample::I8),
            9..=32 => Ok(Sample::Int {
                bytes: usize::from(bits.div_ceil(8)),
                big,
            }),
            _ => Err(Problem::header(format!(
                "unsupported bit depth {bits}; expected 1 to 32"
            ))),
        };
        let sample = match kind {
            b"NONE" | b"twos" => integers(true)?,
            b"sowt" => integers(false)?,
            b"raw " => Sample::U8,
            b"in24" => Sample::Int {
                bytes: 3,
                big: true,
            },
            b"in32" => Sample::Int {
                bytes: 4,
                big: true,
            },
            b"fl32" | b"FL32" => Sample::F32 { big: true },
            b"fl64" | b"FL64" => Sample::F64 { big: true },
            b"alaw" | b"ALAW" => Sample::ALaw,
            b"ulaw" | b"ULAW" => Sample::MuLaw,
            other => {
                return Err(Problem::unsupported(
                    format!("compression {:?}", String::from_utf8_lossy(other)),
                    "AIFF",
                ));
            }
        };
        Ok(Self {
            channels,
            frames: u32_at(bytes, 2),
            sample,
            // Checked to be in range.
            sample_rate: u32::try_from(rate).unwrap_or(0),
        })
    }
}

/// The whole part of an 80-bit float; 0 for negative ones, saturating.
fn extended(bytes: &[u8; 10]) -> u64 {
    let head = u16::from_be_bytes([bytes[0], bytes[1]]);
    let mantissa = bytes[2..].iter().fold(0_u64, |m, &b| m << 8 | u64::from(b));
    let exponent = i32::from(head & 0x7fff) - 16_383;
    match exponent {
        _ if head & 0x8000 != 0 || exponent < 0 => 0,
        0..=63 => mantissa >> (63 - exponent),
        _ => u64::MAX,
    }
}

impl Reader for Aiff {
    fn info(&self) -> &AudioInfo {
        &self.info
    }

    fn decode(&mut self, sink: &mut Sink) -> Result<(), Problem> {
        self.source.go_to(self.start)?;
        let channels = self.info.channels;
        pcm::read(&mut self.source, self.sample, channels, self.present, sink)?;
        if sink.frames() < self.promised {
            sink.warn(cut_short(sink.frames(), self.promised));
        }
        Ok(())
    }
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) << 16 | u32::from(u16_at(bytes, at + 2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_of_80_bits() {
        let of = |head: u16, mantissa: u64| {
            let mut bytes = [0; 10];
            bytes[..2].copy_from_slice(&head.to_be_bytes());
            bytes[2..].copy_from_slice(&mantissa.to_be_bytes());
            extended(&bytes)
        };
        assert_eq!(of(0x400e, 0xac44 << 48), 44_100);
        assert_eq!(of(0x400b, 0xfa00 << 48), 8000);
        assert_eq!(of(0xc00e, 0xac44 << 48), 0);
        assert_eq!(of(0x7fff, 0), u64::MAX);
        assert_eq!(of(0, 0), 0);
    }
}
