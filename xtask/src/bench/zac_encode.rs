//! The ZAC-1 encoder at full size with its teacher, weights drawn by a recipe.

use std::io::Write;
use std::ops::ControlFlow;
use std::path::Path;

use anyhow::Context;
use serde_json::{Map, Value, json};
use zonos_audio::resample::{ResampleRecipe, Resampler};
use zonos_audio::{AtomicFile, Waveform};
use zonos_w2v_bert::TeacherConfig;
use zonos_zac::{SAMPLE_RATE, StageConfig, ZacConfig, ZacEncoder, tensor_specs};

use super::{Bench, Measurement};
use crate::teacher_recipe;
use crate::zac_recipe::{drawn, encoder_size};

/// Seconds of audio: one lane.
const SECONDS: usize = 10;
/// Seconds of audio for the line about memory: three lanes.
const MINUTE: usize = 60;
/// Seconds that each transformer sees, the fastest first.
const CONTEXTS: [f64; 5] = [2.0, 4.0, 8.0, 10.0, 10.0];

pub(super) fn run(bench: &Bench) -> anyhow::Result<(Vec<Measurement>, Option<String>)> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("encoder.safetensors");
    let (config, teacher) = (encoder_size(CONTEXTS), TeacherConfig::released());
    write(&config, &teacher, &file)?;
    let mut torch = bench.torch(
        "bench_zac_encode.py",
        &[("--weights", file.display().to_string())],
    )?;
    let encoder = ZacEncoder::load(&file, &bench.device)?;
    let audio = sound(SECONDS);
    let ours = || -> anyhow::Result<()> {
        let codes = encoder.encode_prepared(&audio, &mut |_| ControlFlow::Continue(()))?;
        std::hint::black_box(codes);
        Ok(())
    };
    let command = format!("encode {}", audio.len());
    let (ours, theirs) = bench.race_torch(ours, &mut torch, &command)?;
    let line = Measurement {
        name: format!("zac encode with its teacher, {SECONDS} s"),
        ours,
        torch: theirs,
        floor: Some(flops(&config, &teacher, SECONDS) / bench.machine.matmul_flops),
        floor_basis: Some("products with the weights at the f32 matmul rate"),
        audio: Some(SECONDS as f64),
    };
    // The other side's copy of the weights would crowd out the mapped file.
    drop(torch);
    drop(encoder);
    let memory = peak_memory(bench, &file)?;
    Ok((vec![line], memory))
}

/// Encodes a minute of audio in a process of its own and says how long it took and how much memory.
fn peak_memory(bench: &Bench, file: &Path) -> anyhow::Result<Option<String>> {
    let peak = bench.peak_memory(file, MINUTE)?;
    let size = std::fs::metadata(file)?.len() as f64 / 1e6;
    Ok(peak.map(|peak| {
        format!("zac encode of {MINUTE} s of audio: peak memory {peak}, of which the file mapped {size:.0} MB")
    }))
}

/// The work of the process that measures memory: encodes so many seconds. How many samples that is.
pub(super) fn encode(weights: &Path, seconds: usize) -> anyhow::Result<usize> {
    let device = zonos_kernels::parse_device("cpu")?;
    let encoder = ZacEncoder::load(weights, &device)?;
    let audio = sound(seconds);
    let codes = encoder.encode_prepared(&audio, &mut |_| ControlFlow::Continue(()))?;
    anyhow::ensure!(codes.frames() == 15 * seconds, "{} frames", codes.frames());
    Ok(audio.len())
}

fn sound(seconds: usize) -> Waveform {
    let sample = |i: usize| 0.3 * (i as f32 * 0.05).sin() * (i as f32 * 0.0011).cos();
    let samples = (0..seconds * SAMPLE_RATE as usize).map(sample);
    Waveform::new(samples.collect(), SAMPLE_RATE)
}

/// Floating-point operations (two a multiply-add) of all products with weights, for one lane.
fn flops(config: &ZacConfig, teacher: &TeacherConfig, seconds: usize) -> f64 {
    let mut steps = (config.codec_sample_rate * seconds) as f64;
    let mut macs = 0.0;
    for stage in &config.stages {
        match stage {
            StageConfig::Patch(size) => steps /= *size as f64,
            StageConfig::Transformer(t) => {
                let d = t.d_model as f64;
                let layer = 4.0 * d * d + 2.0 * d * t.dim_feedforward as f64;
                let edges = [
                    (t.input_proj, t.input_dimension),
                    (t.output_proj, t.output_dimension),
                ];
                let edges = edges.iter().filter(|(there, _)| *there);
                let edges = edges.map(|(_, width)| *width as f64 * d).sum::<f64>();
                macs += steps * (t.layers.len() as f64 * layer + edges);
            }
        }
    }
    let (d, inner) = (teacher.hidden_size as f64, teacher.intermediate_size as f64);
    let tokens = 50.0 * seconds as f64;
    macs += tokens * teacher.feature_layer as f64 * (4.0 * d * inner + 7.0 * d * d);
    2.0 * macs
}

/// Writes an encoder file: the codec in f32, the teacher in bf16.
fn write(config: &ZacConfig, teacher: &TeacherConfig, path: &Path) -> anyhow::Result<()> {
    let codec = tensor_specs(config);
    let inner = zonos_w2v_bert::tensor_specs(teacher, teacher.num_hidden_layers);
    let mut header = Map::new();
    header.insert("__metadata__".to_owned(), metadata(config, teacher)?);
    let mut offset = 0usize;
    let mut place = |name: String, shape: &[usize], dtype: &str, width: usize| {
        let end = offset + width * shape.iter().product::<usize>();
        let entry = json!({ "dtype": dtype, "shape": shape, "data_offsets": [offset, end] });
        header.insert(name, entry);
        offset = end;
    };
    for spec in &codec {
        place(spec.name.clone(), &spec.shape, "F32", 4);
    }
    for spec in &inner {
        place(format!("teacher.{}", spec.name), &spec.shape, "BF16", 2);
    }
    let mut text = serde_json::to_vec(&Value::Object(header))?;
    text.resize((8 + text.len()).next_multiple_of(64) - 8, b' ');
    let mut weights = AtomicFile::create(path)?;
    weights.write_all(&(text.len() as u64).to_le_bytes())?;
    weights.write_all(&text)?;
    for spec in &codec {
        let bytes = if spec.name == "codec.resampler.kernel" {
            let (from, to) = (config.sample_rate as u32, config.codec_sample_rate as u32);
            let resampler = Resampler::new(from, to, ResampleRecipe::Transform)?;
            let taps = resampler.kernel().and_then(|kernel| kernel.dense());
            let taps = taps.context("no filter between the rates")?;
            taps.iter().flat_map(|tap| tap.to_le_bytes()).collect()
        } else {
            drawn(&spec.name, &spec.shape)
        };
        weights.write_all(&bytes)?;
    }
    for spec in &inner {
        weights.write_all(&teacher_recipe::values(&spec.name, &spec.shape))?;
    }
    weights.commit()?;
    Ok(())
}

fn metadata(config: &ZacConfig, teacher: &TeacherConfig) -> anyhow::Result<Value> {
    let kwargs: Vec<Value> = config
        .stages
        .iter()
        .enumerate()
        .map(|(i, stage)| match stage {
            StageConfig::Patch(size) => json!({"module_type": "PatchedPretransform", "patch_size": size}),
            StageConfig::Transformer(t) => json!({
                "module_type": "Transformer", "input_dimension": t.input_dimension,
                "output_dimension": t.output_dimension, "d_model": t.d_model, "num_heads": t.num_heads,
                "num_layers": t.layers.len(), "dim_feedforward": t.dim_feedforward,
                "max_period": t.max_period, "context_duration": CONTEXTS[i / 2],
            }),
        })
        .collect();
    let stack = |s: &zonos_zac::ConvNextConfig| {
        json!({
            "num_layers": s.blocks.len(), "kernel_size": s.kernel_size, "causal": s.causal,
            "proj_in": s.proj_in, "proj_out": s.proj_out,
        })
    };
    let encoder = config.encoder.as_ref().context("an encoder's sizes")?;
    let model = json!({
        "codec_sample_rate": config.codec_sample_rate,
        "encoder_kwargs": kwargs,
        "quantizer_kwargs": {"n_codebooks": config.quantizer.codebook_dim.len()},
        "semantic_encoder_kwargs": stack(&encoder.semantic_encoder),
        "semantic_head_kwargs": stack(&config.semantic_head),
    });
    Ok(json!({
        "format": "zac-1/1", "kind": "encoder",
        "model_config": model.to_string(),
        "teacher_config": serde_json::to_value(teacher)?.to_string(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers of values that the published file sizes leave room for.
    #[test]
    fn sizes_of_the_released_file() {
        let count = |specs: Vec<zonos_checkpoint::TensorSpec>| -> usize {
            let sizes = specs
                .iter()
                .map(|spec| spec.shape.iter().product::<usize>());
            sizes.sum()
        };
        let codec = count(tensor_specs(&encoder_size(CONTEXTS)));
        let teacher = count(zonos_w2v_bert::tensor_specs(&TeacherConfig::released(), 16));
        let found = (4.0 * codec as f64 + 2.0 * teacher as f64) / 1e9;
        assert!((found - 4.81).abs() < 0.006, "{found} GB");
    }

    #[test]
    fn a_second_takes_a_hundred_and_forty_gigaflop() {
        let second = flops(&encoder_size(CONTEXTS), &TeacherConfig::released(), 1) / 1e9;
        assert!((130.0..150.0).contains(&second), "{second}");
    }
}
