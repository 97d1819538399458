//! Where decoded samples go: trimmed, checked and counted against the limits.

use super::error::Problem;
use super::{AudioInfo, DecodeLimits};

pub(super) struct Sink {
    channels: Vec<Vec<f32>>,
    sample_rate: u32,
    limits: DecodeLimits,
    // Frames of priming still to drop.
    skip: u64,
    // Frames after which the rest is padding.
    keep: u64,
    warnings: Vec<String>,
}

impl Sink {
    /// A sink for a file.
    pub(super) fn new(info: &AudioInfo, limits: DecodeLimits) -> Self {
        Self {
            channels: vec![Vec::new(); info.channels],
            sample_rate: info.sample_rate,
            limits,
            skip: 0,
            keep: u64::MAX,
            warnings: Vec::new(),
        }
    }

    /// Drops the first `skip` frames that come, and keeps at most `keep` after them.
    pub(super) fn trim(&mut self, skip: u64, keep: Option<u64>) {
        self.skip = skip;
        self.keep = keep.unwrap_or(u64::MAX);
    }

    /// Frames kept so far.
    pub(super) fn frames(&self) -> u64 {
        self.channels.first().map_or(0, |c| c.len() as u64)
    }

    /// Length so far.
    pub(super) fn seconds(&self) -> f64 {
        self.frames() as f64 / f64::from(self.sample_rate)
    }

    /// Notes what is wrong and does not stop the decoder.
    pub(super) fn warn(&mut self, warning: impl Into<String>) {
        self.warnings.push(warning.into());
    }

    /// Takes frames of interleaved samples.
    pub(super) fn push_interleaved(&mut self, samples: &[f32]) -> Result<(), Problem> {
        let channels = self.channels.len();
        let frames = samples.len() / channels;
        let Some((from, to)) = self.accept(frames)? else {
            return Ok(());
        };
        for (c, channel) in self.channels.iter_mut().enumerate() {
            let first = channel.len();
            channel.extend((from..to).map(|f| samples[f * channels + c]));
            finite(&channel[first..], first, c, self.sample_rate)?;
        }
        Ok(())
    }

    /// Takes frames of one slice a channel, all of one length. A single one goes to every channel.
    pub(super) fn push_planar(&mut self, planes: &[Vec<f32>]) -> Result<(), Problem> {
        let frames = planes.first().map_or(0, Vec::len);
        let Some((from, to)) = self.accept(frames)? else {
            return Ok(());
        };
        for (c, channel) in self.channels.iter_mut().enumerate() {
            let first = channel.len();
            let plane = planes.get(c).unwrap_or(&planes[0]);
            channel.extend_from_slice(&plane[from..to]);
            finite(&channel[first..], first, c, self.sample_rate)?;
        }
        Ok(())
    }

    /// Which of `frames` frames to keep, if any; counts them against the limits.
    fn accept(&mut self, frames: usize) -> Result<Option<(usize, usize)>, Problem> {
        // Fits: it is no more than `frames`.
        let from = self.skip.min(frames as u64) as usize;
        self.skip -= from as u64;
        let room = self.keep.saturating_sub(self.frames());
        let count = room.min((frames - from) as u64);
        if count == 0 {
            return Ok(None);
        }
        self.check(self.frames() + count)?;
        Ok(Some((from, from + count as usize)))
    }

    /// Drops the last `frames` frames, which turned out to be padding.
    pub(super) fn drop_last(&mut self, frames: u64) {
        for channel in &mut self.channels {
            let keep = (channel.len() as u64).saturating_sub(frames);
            channel.truncate(keep as usize);
        }
    }

    /// Whether `frames` frames in all would be within the limits.
    pub(super) fn check(&self, frames: u64) -> Result<(), Problem> {
        if frames as f64 > self.limits.max_seconds * f64::from(self.sample_rate) {
            return Err(Problem::TooLong {
                limit: self.limits.max_seconds,
            });
        }
        let bytes = frames.saturating_mul(4 * self.channels.len() as u64);
        if bytes > self.limits.max_decoded_bytes {
            return Err(Problem::TooLarge {
                limit: self.limits.max_decoded_bytes,
            });
        }
        Ok(())
    }

    /// The channels and the warnings.
    pub(super) fn finish(self) -> (Vec<Vec<f32>>, Vec<String>) {
        (self.channels, self.warnings)
    }
}

fn finite(samples: &[f32], first: usize, channel: usize, rate: u32) -> Result<(), Problem> {
    match samples.iter().position(|x| !x.is_finite()) {
        None => Ok(()),
        Some(at) => Err(Problem::NonFinite {
            seconds: (first + at) as f64 / f64::from(rate),
            channel: channel + 1,
        }),
    }
}
