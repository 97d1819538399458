//! FLAC, by `flacenc`.

use std::io::Write;

use flacenc::bitsink::ByteSink;
use flacenc::component::BitRepr;
use flacenc::config;
use flacenc::error::{SourceError, Verify};
use flacenc::source::{Fill, Source};

use super::{EncodeError, Sound};
use crate::atomic::AtomicFile;

/// Highest sample rate that the encoder takes, in Hz.
pub(super) const MAX_RATE: u32 = 96_000;

/// Frames in a block.
const BLOCK: usize = 4096;

struct Samples<'a, 'b> {
    sound: &'a Sound<'b>,
    at: usize,
    block: Vec<i32>,
}

impl Source for Samples<'_, '_> {
    fn channels(&self) -> usize {
        self.sound.channels.len()
    }

    fn bits_per_sample(&self) -> usize {
        16
    }

    fn sample_rate(&self) -> usize {
        self.sound.sample_rate as usize
    }

    fn read_samples<F: Fill>(&mut self, size: usize, to: &mut F) -> Result<usize, SourceError> {
        let end = (self.at + size).min(self.sound.frames());
        let count = end - self.at;
        self.block.clear();
        self.block
            .extend(self.sound.pcm16(self.at..end).map(i32::from));
        self.at = end;
        to.fill_interleaved(&self.block)?;
        Ok(count)
    }

    fn len_hint(&self) -> Option<usize> {
        Some(self.sound.frames())
    }
}

pub(super) fn write(sound: &Sound<'_>, file: &mut AtomicFile) -> Result<(), EncodeError> {
    let config = config::Encoder::default()
        .into_verified()
        .map_err(|(_, error)| sound.failed(error))?;
    let samples = Samples {
        sound,
        at: 0,
        block: Vec::new(),
    };
    let mut stream = flacenc::encode_with_fixed_block_size(&config, samples, BLOCK)
        .map_err(|error| sound.failed(error))?;
    // All blocks but the last have this size. The crate counts the last one too, and readers refuse
    // less than 16.
    stream
        .stream_info_mut()
        .set_block_sizes(BLOCK, BLOCK)
        .map_err(|error| sound.failed(error))?;
    let mut bytes = ByteSink::new();
    stream
        .write(&mut bytes)
        .map_err(|error| sound.failed(error))?;
    file.write_all(bytes.as_slice())
        .map_err(|error| file.error(error).into())
}
