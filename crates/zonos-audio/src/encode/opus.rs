//! Ogg Opus (RFC 7845), by `ropus` and `ogg`.

use std::borrow::Cow;
use std::io;

use ogg::{PacketWriteEndInfo, PacketWriter};
use ropus::{Application, Bitrate, Channels, Encoder};

use super::{EncodeError, Sound};
use crate::atomic::AtomicFile;
use crate::resample::{ResampleRecipe, Resampler};

/// The rate of Opus, in Hz.
const RATE: u32 = 48_000;

/// Frames in a packet: 20 ms.
const PACKET: usize = 960;

/// Packets in a page: a second.
const PAGE: u64 = 50;

/// The longest packet that an encoder makes, in bytes.
const MAX_PACKET: usize = 4000;

/// Any number tells a stream from another in one file; here there is one.
const SERIAL: u32 = 0x7a6f_6e6f;

pub(super) fn write(sound: &Sound<'_>, file: &mut AtomicFile) -> Result<(), EncodeError> {
    let resampler = Resampler::new(sound.sample_rate, RATE, ResampleRecipe::Transform)
        .map_err(|error| sound.failed(error))?;
    let channels: Vec<Cow<'_, [f32]>> = if sound.sample_rate == RATE {
        sound.channels.iter().map(|&c| Cow::from(c)).collect()
    } else {
        let resampled = sound.channels.iter().map(|c| resampler.resample(c));
        resampled.map(Cow::from).collect()
    };
    let (layout, bitrate) = match channels.len() {
        1 => (Channels::Mono, 64_000),
        _ => (Channels::Stereo, 96_000),
    };
    let mut encoder = Encoder::builder(RATE, layout, Application::Audio)
        .bitrate(Bitrate::Bits(bitrate))
        .build()
        .map_err(|error| sound.failed(error))?;
    let pre_skip = encoder.lookahead() as usize;
    let mut stream = Stream {
        writer: PacketWriter::new(&mut *file),
    };
    let headers = stream.headers(channels.len(), pre_skip, sound.sample_rate);
    headers.map_err(|error| file_error(&stream, error))?;

    // The encoder is `pre_skip` frames behind, so that as many more have to go through it.
    let frames = channels.first().map_or(0, |c| c.len());
    let total = pre_skip + frames;
    let packets = total.div_ceil(PACKET);
    let mut interleaved = Vec::with_capacity(PACKET * channels.len());
    let mut packet = [0; MAX_PACKET];
    for i in 0..packets {
        interleaved.clear();
        for at in i * PACKET..(i + 1) * PACKET {
            let samples = channels.iter().map(|c| c.get(at).copied().unwrap_or(0.0));
            interleaved.extend(samples);
        }
        let len = encoder
            .encode_float(&interleaved, &mut packet)
            .map_err(|error| sound.failed(error))?;
        // The last granule tells where the sound ends within the last packet.
        let granule = ((i + 1) * PACKET).min(total) as u64;
        let end = if i + 1 == packets {
            PacketWriteEndInfo::EndStream
        } else if (i as u64 + 1).is_multiple_of(PAGE) {
            PacketWriteEndInfo::EndPage
        } else {
            PacketWriteEndInfo::NormalPacket
        };
        let bytes = packet[..len].to_vec();
        let written = stream.writer.write_packet(bytes, SERIAL, end, granule);
        written.map_err(|error| file_error(&stream, error))?;
    }
    Ok(())
}

struct Stream<'a> {
    writer: PacketWriter<'static, &'a mut AtomicFile>,
}

fn file_error(stream: &Stream<'_>, error: io::Error) -> EncodeError {
    stream.writer.inner().error(error).into()
}

impl Stream<'_> {
    /// The identification and the comment header, each on a page of its own.
    fn headers(&mut self, channels: usize, pre_skip: usize, sample_rate: u32) -> io::Result<()> {
        let mut head = b"OpusHead\x01".to_vec();
        // One or two, and a few hundred.
        head.push(channels as u8);
        head.extend((pre_skip as u16).to_le_bytes());
        head.extend(sample_rate.to_le_bytes());
        // No gain, the plain layout.
        head.extend([0, 0, 0]);
        let vendor = b"zonos";
        let mut tags = b"OpusTags".to_vec();
        tags.extend((vendor.len() as u32).to_le_bytes());
        tags.extend(vendor);
        tags.extend([0; 4]);
        for header in [head, tags] {
            let end = PacketWriteEndInfo::EndPage;
            self.writer.write_packet(header, SERIAL, end, 0)?;
        }
        Ok(())
    }
}
