//! The codec at full size, with weights drawn by a recipe.

use std::path::Path;

use zonos_audio::{Codes, Waveform};
use zonos_dac::Dac;

use super::{Bench, Measurement};
use crate::dac_recipe::{Recipe, Sizes, draw_codes};

/// About one second and about five seconds of audio.
const FRAMES: [usize; 2] = [86, 430];
const SEED: u64 = 20440;
/// Seconds of audio to encode.
const SECONDS: usize = 10;
/// A minute of audio, for the memory line.
const MINUTE: usize = 5168;

pub(super) fn run(bench: &Bench) -> anyhow::Result<Vec<Measurement>> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("dac.safetensors");
    let recipe = Recipe::full(SEED);
    recipe.write(&file)?;
    let dac = Dac::load(&file, &bench.device)?;
    let sizes = &recipe.sizes;
    let list = |rates: &[usize]| {
        let rates: Vec<_> = rates.iter().map(usize::to_string).collect();
        rates.join(",")
    };
    let args = [
        ("--weights", file.display().to_string()),
        ("--rates", list(&sizes.decoder_rates)),
        ("--encoder-rates", list(&sizes.encoder_rates)),
    ];
    let mut torch = bench.torch("bench_dac.py", &args)?;
    let mut lines = Vec::new();
    for frames in FRAMES {
        let codes = random_codes(sizes, frames)?;
        let ours = || -> anyhow::Result<()> {
            std::hint::black_box(dac.decode(&codes)?);
            Ok(())
        };
        let command = format!("decode {frames}");
        let (ours, torch) = bench.race_torch(ours, &mut torch, &command)?;
        lines.push(Measurement {
            name: format!("dac decode, {frames} frames"),
            ours,
            torch,
            floor: Some(sizes.decode_flops(frames) / bench.machine.matmul_flops),
            floor_basis: Some("convolution FLOPs at the f32 matmul rate"),
            audio: Some((frames * sizes.hop()) as f64 / sizes.sample_rate as f64),
        });
    }
    let samples = SECONDS * sizes.sample_rate;
    let sound = (0..samples).map(|i| 0.3 * (i as f32 * 0.05).sin() * (i as f32 * 0.0011).cos());
    let audio = Waveform::new(sound.collect(), sizes.sample_rate as u32);
    let ours = || -> anyhow::Result<()> {
        std::hint::black_box(dac.encode(&audio, None)?);
        Ok(())
    };
    let command = format!("encode {samples}");
    let (ours, torch) = bench.race_torch(ours, &mut torch, &command)?;
    lines.push(Measurement {
        name: format!("dac encode, {SECONDS} s"),
        ours,
        torch,
        floor: Some(sizes.encode_flops(samples) / bench.machine.matmul_flops),
        floor_basis: Some("convolution FLOPs at the f32 matmul rate"),
        audio: Some(SECONDS as f64),
    });
    Ok(lines)
}

fn random_codes(sizes: &Sizes, frames: usize) -> anyhow::Result<Codes> {
    let values = draw_codes(sizes, frames, SEED)?;
    Ok(Codes::new(frames, sizes.codebook_dims.len(), values)?)
}

/// Decodes a minute of audio in a process of its own and says how much memory it took at most.
/// `None` where the system does not tell.
pub(super) fn peak_memory(bench: &Bench) -> anyhow::Result<Option<String>> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("dac.safetensors");
    Recipe::full(SEED).write(&file)?;
    let peak = bench.peak_memory(&file, MINUTE)?;
    Ok(peak.map(|peak| format!("dac decode of 60 s of audio: peak memory {peak}")))
}

/// The process that [`peak_memory`] starts: samples of so many frames.
pub(super) fn decode(weights: &Path, frames: usize) -> anyhow::Result<usize> {
    let dac = Dac::load(weights, &zonos_kernels::parse_device("cpu")?)?;
    let codes = random_codes(&Sizes::full(), frames)?;
    Ok(dac.decode(&codes)?.len())
}
