//! MP3, by LAME.

use std::borrow::Cow;
use std::io::{Seek, SeekFrom, Write};

use mp3lame_encoder::{
    Bitrate, Builder, DualPcm, FlushGap, Mode, MonoPcm, Quality, max_required_buffer_size,
};

use super::{EncodeError, Sound};
use crate::atomic::AtomicFile;
use crate::resample::{ResampleRecipe, Resampler};

/// Frames handed over at a time.
const CHUNK: usize = 1 << 15;

pub(super) fn write(sound: &Sound<'_>, file: &mut AtomicFile) -> Result<(), EncodeError> {
    let rate = sound.format.written_rate(sound.sample_rate);
    let resampler = Resampler::new(sound.sample_rate, rate, ResampleRecipe::Transform)
        .map_err(|error| sound.failed(error))?;
    let channels: Vec<Cow<'_, [f32]>> = if sound.sample_rate == rate {
        sound.channels.iter().map(|&c| Cow::from(c)).collect()
    } else {
        let resampled = sound.channels.iter().map(|c| resampler.resample(c));
        resampled.map(Cow::from).collect()
    };
    let mut encoder = builder(channels.len(), rate).map_err(|problem| sound.failed(problem))?;

    let frames = channels.first().map_or(0, |c| c.len());
    let mut bytes = Vec::new();
    for start in (0..frames).step_by(CHUNK) {
        let end = (start + CHUNK).min(frames);
        bytes.clear();
        bytes.reserve(max_required_buffer_size(end - start));
        let encoded = match channels.as_slice() {
            [only] => encoder.encode_to_vec(MonoPcm(&only[start..end]), &mut bytes),
            [left, right, ..] => encoder.encode_to_vec(
                DualPcm {
                    left: &left[start..end],
                    right: &right[start..end],
                },
                &mut bytes,
            ),
            [] => Ok(0),
        };
        encoded.map_err(|error| sound.failed(error))?;
        file.write_all(&bytes).map_err(|error| file.error(error))?;
    }
    bytes.clear();
    bytes.reserve(max_required_buffer_size(0));
    encoder
        .flush_to_vec::<FlushGap>(&mut bytes)
        .map_err(|error| sound.failed(error))?;
    file.write_all(&bytes).map_err(|error| file.error(error))?;

    // The first frame is a placeholder for the tag that tells delay, padding and length.
    bytes.clear();
    bytes.reserve(encoder.lame_tag_size());
    if encoder.lame_tag_encode_to_vec(&mut bytes).is_some() {
        file.seek(SeekFrom::Start(0))
            .and_then(|_| file.write_all(&bytes))
            .and_then(|()| file.seek(SeekFrom::End(0)))
            .map_err(|error| file.error(error))?;
    }
    Ok(())
}

fn builder(channels: usize, rate: u32) -> Result<mp3lame_encoder::Encoder, String> {
    // The lower rates have lower limits.
    let bitrate = match (channels, rate) {
        (_, ..=12_000) => Bitrate::Kbps64,
        (1, _) => Bitrate::Kbps96,
        _ => Bitrate::Kbps128,
    };
    let mut builder = Builder::new().ok_or("out of memory")?;
    let set = (|| {
        builder.set_num_channels(channels as u8)?;
        builder.set_sample_rate(rate)?;
        builder.set_output_sample_rate(std::num::NonZeroU32::new(rate))?;
        builder.set_brate(bitrate)?;
        builder.set_quality(Quality::SecondBest)?;
        builder.set_mode(if channels == 1 {
            Mode::Mono
        } else {
            Mode::JointStereo
        })?;
        builder.set_to_write_vbr_tag(true)
    })();
    set.map_err(|error| error.to_string())?;
    builder.build().map_err(|error| error.to_string())
}
