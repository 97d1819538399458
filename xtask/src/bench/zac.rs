//! The ZAC-1 decoder at full size, pruned and whole, with weights drawn by a recipe.

use std::path::Path;

use zonos_audio::Codes;
use zonos_zac::{StageConfig, ZacConfig, ZacDecoder, tensor_specs};

use super::{Bench, Measurement};
use crate::dac_recipe::philox;
use crate::zac_recipe::{full_size, write};

/// One second and ten seconds of audio.
const FRAMES: [usize; 2] = [15, 150];
/// Frames of a push, in streams of [`STREAMED`].
const STEPS: [usize; 4] = [1, 2, 4, 8];
const STREAMED: usize = 32;
/// A minute of audio, for the memory line.
const MINUTE: usize = 900;

pub(super) fn run(bench: &Bench) -> anyhow::Result<Vec<Measurement>> {
    let mut lines = Vec::new();
    for (name, pruned) in [("keep2", true), ("full_mr", false)] {
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("decoder.safetensors");
        let config = full_size(pruned);
        write(&config, &file)?;
        let mut torch =
            bench.torch("bench_zac.py", &[("--weights", file.display().to_string())])?;
        let decoder = ZacDecoder::load(&file, &bench.device)?;
        let mut measure =
            |what: String, frames: usize, step: Option<usize>| -> anyhow::Result<()> {
                let codes = random_codes(frames)?;
                let pieces = pieces(&codes, step.unwrap_or(frames))?;
                let ours = || -> anyhow::Result<()> {
                    if step.is_none() {
                        std::hint::black_box(decoder.decode(&codes)?);
                        return Ok(());
                    }
                    let mut stream = decoder.stream();
                    for piece in &pieces {
                        std::hint::black_box(stream.decode(piece)?);
                    }
                    std::hint::black_box(stream.flush()?);
                    Ok(())
                };
                let command = match step {
                    Some(step) => format!("stream {frames} {step}"),
                    None => format!("decode {frames}"),
                };
                let (ours, torch) = bench.race_torch(ours, &mut torch, &command)?;
                // The whole takes minutes: each line shows when it is there.
                let name = format!("zac {name} {what}");
                eprintln!("{name}: {ours:.3} s, PyTorch {torch:.3?}");
                lines.push(Measurement {
                    name,
                    ours,
                    torch,
                    floor: Some(flops(&config, frames) / bench.machine.matmul_flops),
                    floor_basis: Some("products with the weights at the f32 matmul rate"),
                    audio: Some(frames as f64 / config.frame_rate()),
                });
                Ok(())
            };
        for frames in FRAMES {
            measure(format!("decode, {frames} frames"), frames, None)?;
        }
        for step in STEPS {
            let what = format!("stream of {STREAMED} frames, {step} a push");
            measure(what, STREAMED, Some(step))?;
        }
    }
    Ok(lines)
}

/// Floating-point operations (two a multiply-add) of all products with weights.
fn flops(config: &ZacConfig, frames: usize) -> f64 {
    let mut rates = vec![(0usize, 1usize)];
    let mut rate = 1;
    for (i, stage) in config.stages.iter().enumerate() {
        if let StageConfig::Patch(size) = stage {
            rate *= size;
        }
        rates.push((i, rate));
    }
    let per_frame = |name: &str| -> usize {
        let Some(rest) = name.strip_prefix("codec.decoder.") else {
            return if name.starts_with("codec.head.") {
                rate
            } else {
                1
            };
        };
        let stage = rest
            .split('.')
            .next()
            .and_then(|i| i.parse().ok())
            .unwrap_or(0);
        rates
            .iter()
            .rev()
            .find(|(i, _)| *i == stage)
            .map_or(1, |(_, rate)| *rate)
    };
    let matrices = tensor_specs(config).into_iter().filter(|spec| {
        spec.shape.len() > 1 && !spec.name.contains("codebook") && !spec.name.contains("resampler")
    });
    let products =
        matrices.map(|spec| per_frame(&spec.name) * spec.shape.iter().product::<usize>());
    2.0 * frames as f64 * products.sum::<usize>() as f64
}

fn random_codes(frames: usize) -> anyhow::Result<Codes> {
    let draw = |i: usize| (philox([i as u64, 0, 0, 0], [7, 7])[0] >> 52) as i32;
    Ok(Codes::new(
        frames,
        10,
        (0..10 * frames).map(draw).collect(),
    )?)
}

fn pieces(codes: &Codes, step: usize) -> anyhow::Result<Vec<Codes>> {
    let chunks = codes.values().chunks(10 * step);
    chunks
        .map(|values| Ok(Codes::new(values.len() / 10, 10, values.to_vec())?))
        .collect()
}

/// Decodes a minute of audio with the pruned decoder in a process of its own and says how much memory
/// it took at most, beside the size of the file. `None` where the system does not tell.
pub(super) fn peak_memory(bench: &Bench) -> anyhow::Result<Option<String>> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("decoder.safetensors");
    write(&full_size(true), &file)?;
    let size = std::fs::metadata(&file)?.len();
    let peak = bench.peak_memory(&file, MINUTE)?;
    Ok(peak.map(|peak| {
        format!(
            "zac keep2 decode of 60 s of audio: peak memory {peak}, the file {:.0} MB",
            size as f64 / 1e6
        )
    }))
}

/// The process that [`peak_memory`] starts: samples of so many frames.
pub(super) fn decode(weights: &Path, frames: usize) -> anyhow::Result<usize> {
    let decoder = ZacDecoder::load(weights, &zonos_kernels::parse_device("cpu")?)?;
    Ok(decoder.decode(&random_codes(frames)?)?.samples().len())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 28 and 109 GFLOP a second of audio, attention not counted.
    #[test]
    fn operations() {
        for (pruned, expected) in [(true, 27.0), (false, 108.5)] {
            let found = flops(&full_size(pruned), 15) / 1e9;
            assert!((found - expected).abs() < 2.0, "{found}");
        }
    }
}
