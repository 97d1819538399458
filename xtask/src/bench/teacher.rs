//! Wav2Vec2-BERT at the size that ZAC-1 uses: 16 layers of random weights, stored as bf16.

use burn::tensor::{DType, Tensor, TensorData};
use zonos_checkpoint::{Checkpoint, LoadOptions};
use zonos_nn::Tap;
use zonos_w2v_bert::{Features, Teacher, TeacherConfig, tensor_specs};

use super::{Bench, Measurement};
use crate::teacher_recipe;

/// Seconds of audio. ZAC-1 encodes pieces of up to 30 s.
const SECONDS: [usize; 2] = [10, 30];
const RATE: usize = 16_000;

pub(super) fn run(bench: &Bench) -> anyhow::Result<Vec<Measurement>> {
    let folder = tempfile::tempdir()?;
    let config = TeacherConfig::released();
    teacher_recipe::write(&config, folder.path())?;
    let mut torch = bench.torch(
        "bench_teacher.py",
        &[("--weights", folder.path().display().to_string())],
    )?;
    let checkpoint = Checkpoint::open(folder.path())?;
    let load = |options: &LoadOptions| Teacher::load_with(&checkpoint, options, &bench.device);
    let (teacher, _) = load(&LoadOptions::default())?;
    let layers = config.num_hidden_layers;
    let mut lines = Vec::new();
    for seconds in SECONDS {
        let tokens = tokens(seconds);
        let features = features(bench, tokens, config.feature_projection_input_dim)?;
        let ours = || hidden(&teacher, &features, layers);
        let command = format!("hidden {tokens}");
        let (ours, torch) = bench.race_torch(ours, &mut torch, &command)?;
        lines.push(Measurement {
            name: format!("teacher, {tokens} tokens ({seconds} s)"),
            ours,
            torch,
            floor: Some(flops(&config, tokens) / bench.machine.matmul_flops),
            floor_basis: Some("products of matrices and of attention at the f32 matmul rate"),
            audio: Some(seconds as f64),
        });
    }

    let seconds = SECONDS[0];
    let tone = |i: usize| 0.3 * (i as f32 * 0.05).sin() * (i as f32 * 0.0011).cos();
    let samples: Vec<f32> = (0..seconds * RATE).map(tone).collect();
    let (whole, _) = bench.race(
        || hidden(&teacher, &teacher.features(&samples)?, layers),
        None,
    )?;
    let mut alone = |name: String, ours: f64| {
        lines.push(Measurement {
            name,
            ours,
            torch: None,
            floor: None,
            floor_basis: None,
            audio: Some(seconds as f64),
        });
    };
    alone(format!("teacher, {seconds} s, front end included"), whole);
    drop(teacher);
    drop(torch);
    let (wide, _) = load(&LoadOptions::training())?;
    let features = features(bench, tokens(seconds), config.feature_projection_input_dim)?;
    let (wide, _) = bench.race(|| hidden(&wide, &features, layers), None)?;
    alone(format!("teacher, {seconds} s, weights in f32"), wide);
    Ok(lines)
}

fn hidden(teacher: &Teacher, features: &Features, layers: usize) -> anyhow::Result<()> {
    let hidden = teacher.forward(features, layers, &mut Tap::off())?;
    std::hint::black_box(hidden.into_data());
    Ok(())
}

/// Tokens of a clip.
fn tokens(seconds: usize) -> usize {
    (1 + (seconds * RATE - 400) / 160).div_ceil(2)
}

/// Movements of the size that normalised features have.
fn features(bench: &Bench, tokens: usize, width: usize) -> anyhow::Result<Features> {
    let level = |i: usize| 1.4 * (i as f32 * 0.37).sin() * (i as f32 * 0.0013).cos();
    let data = TensorData::new(
        (0..tokens * width).map(level).collect::<Vec<f32>>(),
        [tokens, width],
    );
    let values = Tensor::from_data(data, (&bench.device, DType::F32));
    Ok(Features::new(values, vec![true; tokens])?)
}

/// Floating-point operations (two a multiply-add) of all products: with the weights, of queries with
/// keys and with distances, and of weights with values.
fn flops(config: &TeacherConfig, tokens: usize) -> f64 {
    let n = tokens as f64;
    let specs = tensor_specs(config, config.num_hidden_layers);
    let matrices = specs
        .iter()
        .filter(|spec| spec.shape.len() > 1 && !spec.name.contains("distance_embedding"));
    let values: usize = matrices
        .map(|spec| spec.shape.iter().product::<usize>())
        .sum();
    let distances = config.left_max_position_embeddings + config.right_max_position_embeddings + 1;
    let attention = n * config.hidden_size as f64 * (2.0 * n + distances as f64);
    2.0 * (n * values as f64 + config.num_hidden_layers as f64 * attention)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_of_thirty_seconds_takes_forty_gigaflop_a_second() {
        let config = TeacherConfig::released();
        assert_eq!([tokens(10), tokens(30)], [499, 1499]);
        let gigaflop = flops(&config, tokens(30)) / 30.0 / 1e9;
        assert!((gigaflop - 43.8).abs() < 0.5, "{gigaflop}");
    }
}
