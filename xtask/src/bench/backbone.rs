//! A decode step of the backbone at the released widths, with a few random layers.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Instant;

use rayon::prelude::*;
use zonos2::{
    GenerateOptions, Prompt, SamplerOptions, Sequence, Zonos2, Zonos2Config, tensor_specs,
};

use super::{Bench, Measurement, median};

/// Layers: one dense, the others with experts. About 2.6 GB, of which a step reads a fifth, other
/// experts every time, so that nothing comes from cache.
const LAYERS: usize = 5;
/// Frames whose times are taken, after as many for warming up.
const FRAMES: usize = 24;
/// Batches measured.
const BATCHES: [usize; 2] = [1, 8];

pub(super) fn run(bench: &Bench) -> anyhow::Result<Vec<Measurement>> {
    let config = Zonos2Config {
        n_layers: LAYERS,
        moe_start_from_layer: 1,
        moe_end_from_layer: 0,
        special_topk_layers: Default::default(),
        ..Zonos2Config::released()
    };
    let folder = tempfile::tempdir()?;
    write_random(folder.path(), &config)?;
    let model = Zonos2::load(folder.path(), &bench.device)?;
    let mut lines = Vec::new();
    for batch in BATCHES {
        let step = median_step(&model, batch, bench.repeat)?;
        // A batch shares everything but the experts, which it draws anew for each row.
        let bytes = spine_bytes(&config) + expert_bytes(&config) * distinct_experts(&config, batch);
        lines.push(Measurement {
            name: format!("zonos2 decode step, {LAYERS} layers, bf16, batch {batch}"),
            ours: step,
            torch: None,
            floor: Some(bytes / bench.machine.read_bandwidth),
            floor_basis: Some("active weight bytes at the plain read rate"),
            audio: None,
        });
    }
    Ok(lines)
}

/// Median seconds between frames.
fn median_step(model: &Zonos2, batch: usize, repeat: usize) -> anyhow::Result<f64> {
    let prompt = Prompt::builder(model.config()).text("Bench.").build()?;
    let sequences = vec![Sequence::from_prompt(&prompt, None)?; batch];
    let mut steps = Vec::new();
    for round in 0..repeat.max(1) {
        let options: Vec<_> = (0..batch)
            .map(|i| GenerateOptions {
                sampler: SamplerOptions::default(),
                seed: (round * batch + i) as u64,
                max_frames: Some(2 * FRAMES),
                ignore_eos: true,
                ..GenerateOptions::default()
            })
            .collect();
        let mut last = Instant::now();
        model.generate(&sequences, &options, &mut |frame| {
            if frame.sequence == 0 {
                if frame.index >= FRAMES {
                    steps.push(last.elapsed().as_secs_f64());
                }
                last = Instant::now();
            }
            ControlFlow::Continue(())
        })?;
    }
    Ok(median(&mut steps))
}

/// Bytes that every step reads once, whatever the batch: all but experts and embedding tables.
fn spine_bytes(config: &Zonos2Config) -> f64 {
    tensor_specs(config)
        .iter()
        .filter(|s| {
            !s.name.contains(".experts.")
                && !s.name.contains("embed")
                && !s.name.contains("speaker")
        })
        .map(|s| 2.0 * s.shape.iter().product::<usize>() as f64)
        .sum()
}

/// Bytes of one expert in every expert layer.
fn expert_bytes(config: &Zonos2Config) -> f64 {
    tensor_specs(config)
        .iter()
        .filter(|s| s.name.contains(".experts."))
        .map(|s| 2.0 * s.shape.iter().product::<usize>() as f64)
        .sum::<f64>()
        / config.n_experts as f64
}

/// Experts of a layer that `batch` rows draw, on average, if they draw evenly.
fn distinct_experts(config: &Zonos2Config, batch: usize) -> f64 {
    let n = config.n_experts as f64;
    n * (1.0 - (1.0 - 1.0 / n).powi(batch as i32))
}

/// A checkpoint of random bf16 numbers that keep activations in range.
fn write_random(dir: &Path, config: &Zonos2Config) -> anyhow::Result<()> {
    let specs = tensor_specs(config);
    let mut header = serde_json::Map::new();
    let mut offset = 0;
    for spec in &specs {
        let end = offset + 2 * spec.shape.iter().product::<usize>();
        let entry = serde_json::json!({"dtype": "BF16", "shape": spec.shape, "data_offsets": [offset, end]});
        header.insert(spec.name.clone(), entry);
        offset = end;
    }
    let mut header = serde_json::Value::Object(header).to_string();
    while !header.len().is_multiple_of(8) {
        header.push(' ');
    }
    let mut out = BufWriter::new(File::create(dir.join("model.safetensors"))?);
    out.write_all(&(header.len() as u64).to_le_bytes())?;
    out.write_all(header.as_bytes())?;
    for (i, spec) in specs.iter().enumerate() {
        let elements: usize = spec.shape.iter().product();
        let inner = *spec.shape.last().unwrap_or(&1) as f32;
        let scale = if spec.shape.len() == 1 {
            1.0
        } else {
            1.7 / inner.sqrt()
        };
        let bytes: Vec<u8> = (0..elements)
            .into_par_iter()
            .flat_map_iter(|e| {
                let value =
                    if spec.name.ends_with("norm.weight") || spec.name.ends_with("eda.weight") {
                        1.0
                    } else {
                        scale * noise(i as u64, e as u64)
                    };
                ((value.to_bits() >> 16) as u16).to_le_bytes()
            })
            .collect();
        out.write_all(&bytes)?;
    }
    out.flush()?;
    std::fs::write(dir.join("params.json"), config.to_json().to_string())?;
    Ok(())
}

/// A number in [-1, 1) from a tensor's and an element's index (SplitMix64's finaliser).
fn noise(tensor: u64, element: u64) -> f32 {
    let mut x = element
        .wrapping_add(tensor << 40)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((x ^ (x >> 31)) >> 40) as f32 / (1u64 << 23) as f32 - 1.0
}
