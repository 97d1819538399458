//! Sound files: from a file's bytes to 24 kHz mono, what a voice is cloned from.

use anyhow::Context;
use zonos_audio::decode::{DecodeLimits, decode_bytes};
use zonos_audio::resample::{ResampleRecipe, Resampler};

use super::{Bench, Measurement};
use crate::workspace;

/// Clips of a second, repeated to a minute: readers of MPEG audio take files that follow each other.
const FILES: [(&str, &str, usize); 3] = [
    (
        "60 s of MP3, 44.1 kHz mono, to 24 kHz",
        "mp3_notag_mono_44100.mp3",
        58,
    ),
    (
        "60 s of MP3, 48 kHz stereo, to 24 kHz",
        "mp3_vbr_stereo_48000.mp3",
        60,
    ),
    ("60 s of AAC, 24 kHz mono", "aac_adts_mono_24000.aac", 57),
];

pub(super) fn run(bench: &Bench) -> anyhow::Result<Vec<Measurement>> {
    let folder = workspace::root().join("validation/fixtures/audio/decode");
    let mut lines = Vec::new();
    for (name, file, times) in FILES {
        let path = folder.join(file);
        let clip = std::fs::read(&path).with_context(|| path.display().to_string())?;
        let bytes = clip.repeat(times);
        let mut seconds = 0.0;
        let (ours, _) = bench.race(
            || {
                let decoded = decode_bytes(file, bytes.clone(), &DecodeLimits::default())?;
                let mono = decoded.into_mono();
                seconds = mono.seconds();
                let recipe = ResampleRecipe::Transform;
                let resampler = Resampler::new(mono.sample_rate(), 24_000, recipe)?;
                std::hint::black_box(resampler.resample(mono.samples()));
                Ok(())
            },
            None,
        )?;
        lines.push(Measurement {
            name: name.to_owned(),
            ours,
            torch: None,
            floor: None,
            floor_basis: None,
            audio: Some(seconds),
        });
    }
    Ok(lines)
}
