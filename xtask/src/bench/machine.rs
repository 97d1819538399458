//! What the machine can do, measured in the same run.

use std::fmt;
use std::time::Instant;

use burn::tensor::{Device, Distribution, Tensor};
use rayon::prelude::*;
use serde::Serialize;

use super::median;

/// Bytes read by the bandwidth probe: far more than any cache holds.
const PROBE_BYTES: usize = 1 << 30;
/// Side of the product that the arithmetic probe multiplies.
const PROBE_SIDE: usize = 1536;
const ROUNDS: usize = 5;

/// A machine and its measured limits.
#[derive(Debug, Serialize)]
pub(crate) struct Machine {
    /// Processor name as the system reports it.
    pub(crate) processor: String,
    /// Threads in use.
    pub(crate) threads: usize,
    /// Bytes a second that plain sequential reads reach.
    pub(crate) read_bandwidth: f64,
    /// Floating-point operations a second that a large f32 matrix product reaches.
    pub(crate) matmul_flops: f64,
}

impl Machine {
    pub(crate) fn measure(device: &Device, threads: usize) -> Self {
        Self {
            processor: processor(),
            threads,
            read_bandwidth: read_bandwidth(threads),
            matmul_flops: matmul_flops(device),
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}, {} threads: reads {:.1} GB/s, f32 matmul {:.0} GFLOP/s",
            self.processor,
            self.threads,
            self.read_bandwidth / 1e9,
            self.matmul_flops / 1e9
        )
    }
}

fn processor() -> String {
    std::fs::read_to_string("/proc/cpuinfo")
        .ok()
        .and_then(|text| {
            text.lines()
                .find_map(|line| line.strip_prefix("model name")?.split_once(':'))
                .map(|(_, name)| name.trim().to_owned())
        })
        .unwrap_or_else(|| std::env::consts::ARCH.to_owned())
}

/// Best of a few passes over a buffer, each thread summing its own part.
fn read_bandwidth(threads: usize) -> f64 {
    let words = vec![1u64; PROBE_BYTES / 8];
    let best = (0..ROUNDS).map(|_| read_once(&words, threads));
    PROBE_BYTES as f64 / best.fold(f64::INFINITY, f64::min)
}

/// Seconds of one pass over `words`, ones all of them.
pub(super) fn read_once(words: &[u64], threads: usize) -> f64 {
    let part = words.len().div_ceil(threads);
    let start = Instant::now();
    let sum: u64 = words
        .par_chunks(part)
        .map(|chunk| {
            // Independent sums, so that no chain of additions holds the reads back.
            let mut lanes = [0u64; 32];
            let (whole, rest) = chunk.as_chunks::<32>();
            for block in whole {
                for (lane, word) in lanes.iter_mut().zip(block) {
                    *lane = lane.wrapping_add(*word);
                }
            }
            lanes
                .iter()
                .chain(rest)
                .fold(0u64, |a, b| a.wrapping_add(*b))
        })
        .sum();
    let time = start.elapsed().as_secs_f64();
    assert_eq!(std::hint::black_box(sum), words.len() as u64);
    time
}

fn matmul_flops(device: &Device) -> f64 {
    let shape = [PROBE_SIDE, PROBE_SIDE];
    let a = Tensor::<2>::random(shape, Distribution::Uniform(-1.0, 1.0), device);
    let b = Tensor::<2>::random(shape, Distribution::Uniform(-1.0, 1.0), device);
    let mut times = Vec::new();
    for _ in 0..=ROUNDS {
        let start = Instant::now();
        let product = a.clone().matmul(b.clone()).into_data();
        times.push(start.elapsed().as_secs_f64());
        std::hint::black_box(product);
    }
    2.0 * (PROBE_SIDE as f64).powi(3) / median(&mut times[1..])
}
