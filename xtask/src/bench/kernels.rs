//! Products of one row with weights that come from memory, as a decode step of the backbone does
//! them: what counts is the share of the plain-read bandwidth.

use burn::tensor::{DType, Distribution, Tensor};
use zonos_kernels::PackedTensor;

use super::{Bench, Measurement, median};
use std::time::Instant;

/// Width and feed-forward rows of the released backbone.
const IN: usize = 2048;
const OUT: usize = 6144;
/// Weights in rotation: more than any cache holds.
const ROTATION: usize = 1_300_000_000;

pub(super) fn run(bench: &Bench) -> anyhow::Result<Vec<Measurement>> {
    [
        ("f32", DType::F32, 4),
        ("f16", DType::F16, 2),
        ("bf16", DType::BF16, 2),
    ]
    .into_iter()
    .map(|(name, dtype, bytes)| matvec(bench, name, dtype, bytes))
    .collect()
}

fn matvec(
    bench: &Bench,
    name: &str,
    dtype: DType,
    entry_bytes: usize,
) -> anyhow::Result<Measurement> {
    let bytes = IN * OUT * entry_bytes;
    let count = ROTATION / bytes;
    let uniform = Distribution::Uniform(-1.0, 1.0);
    let weights: Vec<_> = (0..count)
        .map(|_| {
            let w = Tensor::<2>::random([OUT, IN], uniform, &bench.device);
            PackedTensor::new(w.cast(dtype))
        })
        .collect();
    let x = Tensor::<2>::random([1, IN], uniform, &bench.device);
    let mut times = Vec::new();
    for _ in 0..=bench.repeat.max(1) {
        let start = Instant::now();
        for w in &weights {
            std::hint::black_box(w.linear(x.clone()).into_data());
        }
        times.push(start.elapsed().as_secs_f64() / count as f64);
    }
    Ok(Measurement {
        name: format!("linear {name}, 1 x {IN} -> {OUT}"),
        ours: median(&mut times[1..]),
        torch: None,
        floor: Some(bytes as f64 / bench.machine.read_bandwidth),
        floor_basis: Some("weight bytes at the read bandwidth"),
        audio: None,
    })
}
