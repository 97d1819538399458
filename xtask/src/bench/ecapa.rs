//! The speaker encoder at full size, with weights drawn by a recipe.

use burn::tensor::{DType, Tensor, TensorData};
use zonos_audio::Waveform;
use zonos_ecapa::{Ecapa, tensor_specs};

use super::{Bench, Measurement};
use crate::ecapa_recipe::{FULL_SEED, Recipe};

/// Seconds of audio.
const SECONDS: usize = 10;
/// Mel frames of it.
const FRAMES: usize = 937;
/// Rate of the recording whose voice is taken.
const RATE: usize = 44_100;

pub(super) fn run(bench: &Bench) -> anyhow::Result<Vec<Measurement>> {
    let folder = tempfile::tempdir()?;
    let recipe = Recipe::full(FULL_SEED);
    recipe.write(folder.path())?;
    let ecapa = Ecapa::load(folder.path(), &bench.device)?;
    let mut torch = bench.torch(
        "bench_ecapa.py",
        &[("--weights", folder.path().display().to_string())],
    )?;
    let bands = recipe.config.mel_dim;
    // Slow and fast movements around the usual level.
    let level = |i: usize| -7.0 + 3.0 * (i as f32 * 0.37).sin() * (i as f32 * 0.0013).cos();
    let values: Vec<f32> = (0..FRAMES * bands).map(level).collect();
    let mel = Tensor::<3>::from_data(
        TensorData::new(values, [1, FRAMES, bands]),
        (&bench.device, DType::F32),
    );
    let ours = || -> anyhow::Result<()> {
        std::hint::black_box(ecapa.embed_mel(mel.clone())?);
        Ok(())
    };
    let command = format!("embed {FRAMES}");
    let (ours, torch) = bench.race_torch(ours, &mut torch, &command)?;
    let model = Measurement {
        name: format!("ecapa, {FRAMES} mel frames ({SECONDS} s)"),
        ours,
        torch,
        floor: Some(flops(&recipe) / bench.machine.matmul_flops),
        floor_basis: Some("convolution FLOPs at the f32 matmul rate"),
        audio: Some(SECONDS as f64),
    };

    let tone = |i: usize| 0.3 * (i as f32 * 0.05).sin() * (i as f32 * 0.0011).cos();
    let samples: Vec<f32> = (0..SECONDS * RATE).map(tone).collect();
    let audio = Waveform::new(samples, RATE as u32);
    let voice = || -> anyhow::Result<()> {
        std::hint::black_box(ecapa.embed(&audio)?);
        Ok(())
    };
    let (ours, _) = bench.race(voice, None)?;
    let whole = Measurement {
        name: format!("ecapa, voice of {SECONDS} s at 44.1 kHz, front end included"),
        ours,
        torch: None,
        floor: None,
        floor_basis: None,
        audio: Some(SECONDS as f64),
    };
    Ok(vec![model, whole])
}

/// Floating-point operations (two a multiply-add) of all convolutions. What is the same in every frame,
/// squeeze and excitation, the context of the attention and the last layer, counts once.
fn flops(recipe: &Recipe) -> f64 {
    let frames = FRAMES as f64;
    let specs = tensor_specs(&recipe.config);
    let weights = specs.iter().filter(|spec| spec.shape.len() == 3);
    let macs = weights.map(|spec| {
        let entries = spec.shape.iter().product::<usize>() as f64;
        match spec.name.as_str() {
            "fc.weight" => entries,
            "asp.tdnn.conv.weight" => entries / 3.0 * (frames + 2.0),
            name if name.contains(".se_block.") => entries,
            _ => entries * frames,
        }
    });
    2.0 * macs.sum::<f64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_seconds_take_nine_gigaflop() {
        let gigaflop = flops(&Recipe::full(1)) / 1e9;
        assert!((gigaflop - 9.22).abs() < 0.01, "{gigaflop}");
    }
}
