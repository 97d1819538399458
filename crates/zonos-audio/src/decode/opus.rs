//! Opus packets (RFC 6716) of a container (RFC 7845), by the `ropus` crate.

use ropus::{Channels, DecodeMode, Decoder, OpusMSDecoder};

use super::Problem;

/// The rate that everything is decoded at, in Hz.
pub(super) const RATE: u32 = 48_000;

/// Frames in the longest packet: 120 ms.
const MAX_FRAMES: usize = 5_760;

/// The identification header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) channels: usize,
    /// Frames at 48 kHz to drop at the start.
    pub(super) pre_skip: u64,
    /// In 1/256 dB.
    gain: i16,
    /// Streams, stereo streams among them, and which of their channels each output has.
    layout: Option<(u8, u8, Vec<u8>)>,
}

impl Head {
    /// Reads `OpusHead`; in MP4 its numbers are big-endian.
    pub(super) fn parse(bytes: &[u8], big: bool) -> Result<Self, Problem> {
        let cut = Problem::CutShort("its Opus header is incomplete");
        let Some(body) = bytes.strip_prefix(b"OpusHead") else {
            return Err(Problem::damaged("no Opus header"));
        };
        let [
            _version,
            channels,
            s0,
            s1,
            _,
            _,
            _,
            _,
            g0,
            g1,
            family,
            rest @ ..,
        ] = body
        else {
            return Err(cut);
        };
        let word = |a, b| {
            if big {
                u16::from_be_bytes([a, b])
            } else {
                u16::from_le_bytes([a, b])
            }
        };
        let count = usize::from(*channels);
        if count == 0 {
            return Err(Problem::header("0 channels"));
        }
        let layout = if *family == 0 {
            if count > 2 {
                return Err(Problem::header(format!(
                    "{count} channels in an Opus stream of one or two"
                )));
            }
            None
        } else {
            let [streams, coupled, mapping @ ..] = rest else {
                return Err(cut);
            };
            let mapping = mapping.get(..count).ok_or(cut)?;
            let sources = usize::from(*streams) + usize::from(*coupled);
            if *streams == 0
                || usize::from(*streams) > count
                || coupled > streams
                || mapping
                    .iter()
                    .any(|&m| m != 255 && usize::from(m) >= sources)
            {
                return Err(Problem::header("an impossible layout of Opus streams"));
            }
            Some((*streams, *coupled, mapping.to_vec()))
        };
        Ok(Self {
            channels: count,
            pre_skip: u64::from(word(*s0, *s1)),
            gain: word(*g0, *g1).cast_signed(),
            layout,
        })
    }
}

enum Inner {
    Single(Box<Decoder>),
    Multi(Box<OpusMSDecoder>),
}

pub(super) struct Opus {
    inner: Inner,
    channels: usize,
    gain: f32,
    single: Vec<f32>,
    multi: Vec<i16>,
}

impl Opus {
    pub(super) fn new(head: &Head) -> Result<Self, Problem> {
        let refused = || Problem::header("an impossible layout of Opus streams");
        let inner = match &head.layout {
            None => {
                let channels = if head.channels == 1 {
                    Channels::Mono
                } else {
                    Channels::Stereo
                };
                Inner::Single(Box::new(
                    Decoder::new(RATE, channels).map_err(|_| refused())?,
                ))
            }
            Some((streams, coupled, mapping)) => Inner::Multi(Box::new(
                OpusMSDecoder::new(
                    RATE.cast_signed(),
                    head.channels as i32,
                    i32::from(*streams),
                    i32::from(*coupled),
                    mapping,
                )
                .map_err(|_| refused())?,
            )),
        };
        Ok(Self {
            inner,
            channels: head.channels,
            gain: 10_f32.powf(f32::from(head.gain) / (20.0 * 256.0)),
            single: vec![0.0; MAX_FRAMES * head.channels],
            multi: Vec::new(),
        })
    }

    /// Decodes a packet into one buffer a channel. `None` for one that cannot be.
    pub(super) fn decode(&mut self, packet: &[u8], planes: &mut Vec<Vec<f32>>) -> Option<()> {
        // To the decoder, an empty packet is a lost one, to be filled by a guess.
        if packet.is_empty() {
            return None;
        }
        let channels = self.channels;
        let frames = match &mut self.inner {
            Inner::Single(decoder) => decoder
                .decode_float(packet, &mut self.single, DecodeMode::Normal)
                .ok()?,
            Inner::Multi(decoder) => {
                self.multi.resize(MAX_FRAMES * channels, 0);
                let len = i32::try_from(packet.len()).ok()?;
                let frames = decoder
                    .decode(Some(packet), len, &mut self.multi, MAX_FRAMES as i32, false)
                    .ok()?;
                let frames = usize::try_from(frames).ok()?;
                for (to, from) in self.single.iter_mut().zip(&self.multi) {
                    *to = f32::from(*from) / 32_768.0;
                }
                frames
            }
        };
        let samples = self.single.get(..frames * channels)?;
        planes.resize(channels, Vec::new());
        for (c, plane) in planes.iter_mut().enumerate() {
            plane.clear();
            plane.extend(
                samples
                    .iter()
                    .skip(c)
                    .step_by(channels)
                    .map(|x| x * self.gain),
            );
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers() {
        let mut head = b"OpusHead\x01\x02\x38\x01\x80\xbb\0\0\0\0\0".to_vec();
        let read = Head::parse(&head, false).unwrap();
        assert_eq!((read.channels, read.pre_skip, read.gain), (2, 312, 0));
        assert_eq!(Head::parse(&head, true).unwrap().pre_skip, 0x3801);
        head[9] = 3;
        assert!(Head::parse(&head, false).is_err());
        head[18] = 1;
        assert!(Head::parse(&head, false).is_err());
        head.extend([2, 1, 0, 2, 1]);
        let read = Head::parse(&head, false).unwrap();
        assert!(Opus::new(&read).is_ok());
        // An output of a stream that is not there.
        head[23] = 3;
        assert!(Head::parse(&head, false).is_err());
        assert!(Head::parse(&head[..12], false).is_err());
    }
}
