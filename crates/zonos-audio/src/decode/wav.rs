//! WAV files: RIFF, and RF64 or BW64 above 4 GiB.

use super::adpcm::{self, Adpcm, MS_COEFFICIENTS};
use super::pcm::{self, Sample};
use super::sink::Sink;
use super::source::Source;
use super::{AudioInfo, Problem, Reader, check_format};

/// The last 14 bytes of a sub-format that is a format tag (`KSDATAFORMAT_SUBTYPE_*`).
const TAG_GUID: [u8; 14] = [0, 0, 0, 0, 0x10, 0, 0x80, 0, 0, 0xaa, 0, 0x38, 0x9b, 0x71];

/// A format chunk longer than this has nothing more of interest.
const MAX_FORMAT: usize = 2048;

enum Coding {
    Pcm(Sample),
    Adpcm { coding: Adpcm, block: usize },
}

pub(super) struct Wav {
    source: Source,
    info: AudioInfo,
    coding: Coding,
    /// Where the samples lie.
    start: u64,
    /// Bytes of them that are there.
    present: u64,
    /// Frames that the header promises, where it does.
    promised: Option<u64>,
}

struct Format {
    coding: Coding,
    channels: usize,
    sample_rate: u32,
    bits: Option<u32>,
}

impl Wav {
    /// Reads the chunks up to the samples.
    pub(super) fn open(mut source: Source) -> Result<Self, Problem> {
        const HEADER_CUT: Problem = Problem::CutShort("the header is incomplete");
        let riff = source.peek(0, 12)?;
        if riff.len() < 12 {
            return Err(HEADER_CUT);
        }
        let riff_size = u32_at(&riff, 4);
        let mut at = 12;
        let mut format = None;
        let mut long_data = None;
        let mut fact = None;
        loop {
            let chunk = source.peek(at, 8)?;
            if chunk.len() < 8 {
                return Err(if format.is_some() {
                    Problem::damaged("no data chunk")
                } else {
                    HEADER_CUT
                });
            }
            let size = u32_at(&chunk, 4);
            let body = at + 8;
            match &chunk[..4] {
                b"fmt " => {
                    let want = (size as usize).min(MAX_FORMAT);
                    let bytes = source.peek(body, want)?;
                    if bytes.len() < want {
                        return Err(HEADER_CUT);
                    }
                    format = Some(Format::parse(&bytes)?);
                }
                b"ds64" => {
                    let bytes = source.peek(body, 16)?;
                    if let Some(size) = bytes.get(8..16).and_then(|b| b.first_chunk()) {
                        long_data = Some(u64::from_le_bytes(*size));
                    }
                }
                b"fact" => {
                    let bytes = source.peek(body, 4)?;
                    fact = bytes.first_chunk().map(|b| u32::from_le_bytes(*b));
                }
                b"data" => {
                    let Some(format) = format else {
                        return Err(Problem::damaged("no format chunk before the samples"));
                    };
                    let rest = source.len() - body;
                    let claim = match (size, long_data) {
                        (u32::MAX, Some(long)) => Some(long),
                        (u32::MAX, None) => None,
                        // A pipe's writer cannot return to fill the field in.
                        (0, _) if riff_size != u32::MAX && !followed(&mut source, body)? => None,
                        (0, _) if riff_size == u32::MAX => None,
                        (size, _) => Some(u64::from(size)),
                    };
                    return Ok(Self::new(source, format, body, rest, claim, fact));
                }
                _ => {}
            }
            // Chunks are padded to even sizes.
            at = body + u64::from(size) + u64::from(size & 1);
        }
    }

    fn new(
        source: Source,
        format: Format,
        start: u64,
        rest: u64,
        claim: Option<u64>,
        fact: Option<u32>,
    ) -> Self {
        let present = claim.map_or(rest, |claim| claim.min(rest));
        let channels = format.channels;
        let frames = |bytes: u64| match &format.coding {
            Coding::Pcm(sample) => bytes / (sample.bytes() * channels) as u64,
            Coding::Adpcm { coding, block } => {
                let last = coding.frames((bytes % *block as u64) as usize, channels) as u64;
                (bytes / *block as u64) * coding.frames(*block, channels) as u64 + last
            }
        };
        let mut promised = claim.map(frames);
        if let (Coding::Adpcm { .. }, Some(fact)) = (&format.coding, fact)
            && fact > 0
        {
            // Blocks are of one size; this field tells where the sound ends in the last one.
            promised = Some(promised.map_or(u64::from(fact), |p| p.min(u64::from(fact))));
        }
        let there = frames(present);
        let info = AudioInfo {
            container: "WAV",
            codec: match &format.coding {
                Coding::Pcm(sample) => sample.codec(),
                Coding::Adpcm {
                    coding: Adpcm::Ima, ..
                } => "IMA ADPCM",
                Coding::Adpcm { .. } => "Microsoft ADPCM",
            },
            sample_rate: format.sample_rate,
            channels,
            bits_per_sample: format.bits,
            frames: Some(promised.map_or(there, |p| p.min(there))),
        };
        Self {
            source,
            info,
            coding: format.coding,
            start,
            present,
            promised,
        }
    }
}

/// Whether a chunk that claims to be empty is, so that another one or the end follows.
fn followed(source: &mut Source, at: u64) -> Result<bool, Problem> {
    let next = source.peek(at, 8)?;
    if next.is_empty() {
        return Ok(true);
    }
    let room = source.len() - at;
    Ok(next.len() == 8
        && next[..4].iter().all(|b| b.is_ascii_graphic() || *b == b' ')
        && u64::from(u32_at(&next, 4)) + 8 <= room)
}

impl Format {
    fn parse(bytes: &[u8]) -> Result<Self, Problem> {
        if bytes.len() < 16 {
            return Err(Problem::header(format!(
                "a format chunk of {} bytes; expected at least 16",
                bytes.len()
            )));
        }
        let mut tag = u16_at(bytes, 0);
        let channels = u16_at(bytes, 2);
        let sample_rate = u32_at(bytes, 4);
        let block = usize::from(u16_at(bytes, 12));
        let bits = u16_at(bytes, 14);
        check_format(u64::from(sample_rate), u64::from(channels))?;
        if tag == 0xfffe {
            let Some(guid) = bytes.get(24..40) else {
                return Err(Problem::header("an extensible format without sub-format"));
            };
            if guid[2..] != TAG_GUID {
                return Err(Problem::unsupported("a codec of its own sub-format", "WAV"));
            }
            tag = u16_at(guid, 0);
        }
        let channels = usize::from(channels);
        let depth = || {
            Problem::header(format!(
                "unsupported bit depth {bits}; expected 8, 16, 24 or 32, or 32 or 64 for floats"
            ))
        };
        let coding = match tag {
            1 => Coding::Pcm(match bits {
                8 => Sample::U8,
                16 | 24 | 32 => Sample::Int {
                    bytes: usize::from(bits / 8),
                    big: false,
                },
                // Left-justified in the bytes that the block size tells.
                17..=23 if block == 3 * channels => Sample::Int {
                    bytes: 3,
                    big: false,
                },
                9..=15 if block == 2 * channels => Sample::Int {
                    bytes: 2,
                    big: false,
                },
                _ => return Err(depth()),
            }),
            3 => Coding::Pcm(match bits {
                32 => Sample::F32 { big: false },
                64 => Sample::F64 { big: false },
                _ => return Err(depth()),
            }),
            6 => Coding::Pcm(Sample::ALaw),
            7 => Coding::Pcm(Sample::MuLaw),
            0x02 | 0x11 => {
                let coding = if tag == 0x11 {
                    Adpcm::Ima
                } else {
                    Adpcm::Microsoft {
                        coefficients: ms_coefficients(bytes),
                    }
                };
                if bits != 4 || block < coding.header(channels) {
                    return Err(Problem::header(format!(
                        "ADPCM of {bits} bits in blocks of {block} bytes; expected 4 bits and at least {} bytes",
                        coding.header(channels)
                    )));
                }
                Coding::Adpcm { coding, block }
            }
            _ => return Err(Problem::unsupported(tag_name(tag), "WAV")),
        };
        let bits = match &coding {
            Coding::Pcm(sample) => Some(sample.bits()),
            Coding::Adpcm { .. } => None,
        };
        Ok(Self {
            coding,
            channels,
            sample_rate,
            bits,
        })
    }
}

fn ms_coefficients(format: &[u8]) -> Vec<(i32, i32)> {
    let pairs = format.get(22..).unwrap_or_default().chunks_exact(4);
    let count = format.get(20..22).map_or(0, |_| u16_at(format, 20));
    let listed: Vec<_> = pairs
        .take(usize::from(count))
        .map(|p| {
            let at = |i| i32::from(i16::from_le_bytes([p[i], p[i + 1]]));
            (at(0), at(2))
        })
        .collect();
    if listed.len() < MS_COEFFICIENTS.len() {
        MS_COEFFICIENTS.to_vec()
    } else {
        listed
    }
}

/// What a format tag stands for, for those met in the wild.
fn tag_name(tag: u16) -> String {
    let name = match tag {
        0x31 => "GSM 6.10",
        0x14 | 0x40 | 0x45 | 0x64 => "G.726 ADPCM",
        0x50 => "MPEG layer II",
        0x55 => "MP3",
        0x65 | 0x28f => "G.722",
        0xff | 0x1600 | 0x1610 => "AAC",
        0x160..=0x163 => "Windows Media Audio",
        0x2000 => "AC-3",
        0x2001 => "DTS",
        0x674f..=0x6751 | 0x676f..=0x6771 => "Vorbis",
        0x704f => "Opus",
        0xa109 => "Speex",
        0xf1ac => "FLAC",
        _ => return format!("codec tag {tag:#06x}"),
    };
    format!("{name} (codec tag {tag:#06x})")
}

impl Reader for Wav {
    fn info(&self) -> &AudioInfo {
        &self.info
    }

    fn decode(&mut self, sink: &mut Sink) -> Result<(), Problem> {
        self.source.go_to(self.start)?;
        let channels = self.info.channels;
        match &self.coding {
            Coding::Pcm(sample) => {
                pcm::read(&mut self.source, *sample, channels, self.present, sink)?;
                let frame = (sample.bytes() * channels) as u64;
                let promised = self.promised.unwrap_or(0);
                if sink.frames() < promised {
                    sink.warn(cut_short(sink.frames(), promised));
                } else if !self.present.is_multiple_of(frame) {
                    sink.warn("the file is cut short: the incomplete last frame is dropped");
                }
            }
            Coding::Adpcm { coding, block } => {
                sink.trim(0, self.promised);
                let bytes = self.present;
                adpcm::read(&mut self.source, coding, channels, *block, bytes, sink)?;
                if let Some(promised) = self.promised.filter(|&p| p > sink.frames()) {
                    sink.warn(cut_short(sink.frames(), promised));
                }
            }
        }
        Ok(())
    }
}

/// The warning for a file with fewer samples than it promises.
pub(super) fn cut_short(found: u64, promised: u64) -> String {
    format!("the file is cut short: {found} of {promised} samples are present")
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}
