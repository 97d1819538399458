//! One recording at several rates and channel layouts is one voice.
//!
//! Cosines prove nothing with random weights, where all vectors point almost the same way; distances are
//! measured against that between the voices of two recordings. Random weights also listen to the top
//! bands as much as to the others, where a low rate leaves nothing but the images that the reference's
//! resampling makes, 60 to 90 dB below the voice. So the recordings end at 6 kHz and are quiet: their
//! images lie below the floor of the mel bands, as they must for an equal voice to be possible at all.

mod common;

use burn::tensor::Device;
use common::{distance, fixture, wav};
use zonos_audio::Waveform;
use zonos_audio::resample::{ResampleRecipe, Resampler};
use zonos_ecapa::Ecapa;

/// Rates at which recordings come, in Hz; the last is the one they are made at.
const RATES: [u32; 6] = [16_000, 22_050, 24_000, 32_000, 44_100, 48_000];
const CUTOFF: f64 = 6_000.0;
const LEVEL: f64 = 0.01;

fn resampled(clip: &Waveform, rate: u32) -> Waveform {
    let recipe = ResampleRecipe::Functional;
    let resampler = Resampler::new(clip.sample_rate(), rate, recipe).unwrap();
    Waveform::new(resampler.resample(clip.samples()), rate)
}

/// `clip` at the highest rate, below [`CUTOFF`] and at [`LEVEL`].
fn recording(clip: &Waveform) -> Waveform {
    const REACH: isize = 400;
    let clip = resampled(clip, RATES[5]);
    let turn = 2.0 * std::f64::consts::PI * CUTOFF / f64::from(RATES[5]);
    let taps: Vec<f64> = (-REACH..=REACH)
        .map(|i| {
            let x = std::f64::consts::PI * i as f64 / REACH as f64;
            let window = 0.42 + 0.5 * x.cos() + 0.08 * (2.0 * x).cos();
            let sinc = if i == 0 {
                turn
            } else {
                (turn * i as f64).sin() / i as f64
            };
            LEVEL * window * sinc / std::f64::consts::PI
        })
        .collect();
    let x = clip.samples();
    let filtered = (0..x.len() as isize).map(|t| {
        let near = taps.iter().zip(t - REACH..);
        let sum = near.map(|(tap, i)| {
            let sample = usize::try_from(i).ok().and_then(|i| x.get(i));
            tap * sample.map_or(0.0, |&sample| f64::from(sample))
        });
        sum.sum::<f64>() as f32
    });
    Waveform::new(filtered.collect(), RATES[5])
}

/// Two channels that differ, and what averaging makes of them.
fn through_stereo(clip: &Waveform) -> Waveform {
    let channels = |x: &f32| 0.5 * (1.3 * x + 0.7 * x);
    let mono = clip.samples().iter().map(channels).collect();
    Waveform::new(mono, clip.sample_rate())
}

#[test]
fn rates_and_channels_do_not_change_the_voice() {
    let clips = ["speech16k", "speech22k", "stereo48k"]
        .map(|name| recording(&wav(&fixture(&format!("ecapa/tiny/{name}.wav")))));
    for model in ["tiny", "alt"] {
        let ecapa = Ecapa::load(fixture(&format!("ecapa/{model}/hf")), &Device::flex()).unwrap();
        let voice = |clip: &Waveform| ecapa.embed(clip).unwrap();
        let voices = clips.each_ref().map(voice);
        let apart = distance(&voices[0], &voices[1])
            .min(distance(&voices[0], &voices[2]))
            .min(distance(&voices[1], &voices[2]));
        let mut worst = (0.0f32, 0);
        for (clip, reference) in clips.iter().zip(&voices) {
            for rate in RATES {
                let mono = resampled(clip, rate);
                for layout in [through_stereo(&mono), mono] {
                    let moved = distance(&voice(&layout), reference);
                    if moved > worst.0 {
                        worst = (moved, rate);
                    }
                }
            }
        }
        println!(
            "{model}: voices {apart:.3} apart, moved by {:.3} at most ({} Hz)",
            worst.0, worst.1
        );
        // A tenth is what listeners of real voices ask for.
        assert!(worst.0 < apart / 100.0, "{model}: {worst:?} of {apart}");
    }
}
