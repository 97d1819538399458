//! The audio front ends on a minute of sound: resampling, mel, spectra, on the host and as tensors.

use std::hint::black_box;

use burn::tensor::{DType, Tensor, TensorData};
use zonos_audio::mel::{MelConfig, MelSpectrogram};
use zonos_audio::resample::{ResampleRecipe, Resampler};
use zonos_audio::stft::{Stft, StftConfig};

use super::{Bench, Measurement};

const SECONDS: usize = 60;
/// Rates to resample between: recordings to the speaker encoder, and the codec's detour.
const PAIRS: [(u32, u32); 4] = [
    (44_100, 24_000),
    (48_000, 24_000),
    (16_000, 24_000),
    (44_100, 44_160),
];
/// Points and hop of the transform, at 24 kHz.
const STFT: (usize, usize) = (2048, 512);
const RATE: u32 = 24_000;

pub(super) fn run(bench: &Bench) -> anyhow::Result<Vec<Measurement>> {
    let mut torch = bench.torch("bench_dsp.py", &[])?;
    let mut lines = Vec::new();
    let mut race =
        |name: String, command: String, bytes: f64, ours: &dyn Fn() -> anyhow::Result<()>| {
            let (ours, torch) = bench.race_torch(ours, &mut torch, &command)?;
            lines.push(Measurement {
                name,
                ours,
                torch,
                floor: Some(bytes / bench.machine.read_bandwidth),
                floor_basis: Some("input and output once through memory"),
                audio: Some(SECONDS as f64),
            });
            anyhow::Ok(())
        };

    for (from, to) in PAIRS {
        let x = signal(from);
        let resampler = Resampler::new(from, to, ResampleRecipe::Transform)?;
        let bytes = 4.0 * (x.len() + resampler.output_len(x.len())) as f64;
        race(
            format!("resample {from} to {to} Hz, {SECONDS} s"),
            format!("resample {from} {to} {SECONDS}"),
            bytes,
            &|| {
                black_box(resampler.resample(&x));
                Ok(())
            },
        )?;
    }
    let x = signal(RATE);
    let front_end = MelSpectrogram::new(MelConfig::speaker())?;
    let mel = front_end.log(&x, 1e-5)?;
    race(
        format!("speaker log-mel, {SECONDS} s"),
        format!("logmel {SECONDS}"),
        4.0 * (x.len() + mel.values.len()) as f64,
        &|| {
            black_box(front_end.log(&x, 1e-5)?);
            Ok(())
        },
    )?;

    // What users of tensors call, the way from and to tensors included.
    let (n_fft, hop) = STFT;
    let config = StftConfig::hann(n_fft, hop);
    let spectrum = Stft::new(config.clone())?.forward(&x)?;
    let bytes = 4.0 * (x.len() + 2 * spectrum.values.len()) as f64;
    let rows = Tensor::<2>::from_data(
        TensorData::new(x.clone(), [1, x.len()]),
        (&bench.device, DType::F32),
    );
    let stft = zonos_nn::Stft::new(config.clone())?;
    race(
        format!("STFT {n_fft}/{hop} of a tensor, {SECONDS} s"),
        format!("stft {n_fft} {hop} {SECONDS}"),
        bytes,
        &|| {
            black_box(stft.forward(rows.clone())?);
            Ok(())
        },
    )?;
    let istft = zonos_nn::Istft::new(config)?;
    let (re, im) = stft.forward(rows)?;
    race(
        format!("inverse STFT {n_fft}/{hop} of a tensor, {SECONDS} s"),
        format!("istft {n_fft} {hop} {SECONDS}"),
        bytes,
        &|| {
            black_box(istft.forward(re.clone(), im.clone(), Some(x.len()))?);
            Ok(())
        },
    )?;
    Ok(lines)
}

/// A wandering tone.
fn signal(rate: u32) -> Vec<f32> {
    let tone = |i: usize| 0.3 * (i as f32 * 0.05).sin() * (i as f32 * 0.0011).cos();
    (0..SECONDS * rate as usize).map(tone).collect()
}
