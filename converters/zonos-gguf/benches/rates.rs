//! How fast one core quantises: `cargo bench -p zonos-gguf [-- TYPE...]`.

#[path = "../tests/common/mod.rs"]
mod common;

use std::time::Instant;

use common::Numbers;
use zonos_gguf::{GgmlType, convert_rows};

const ROW: usize = 2048;
/// So few that a run ends before the scheduler takes the core away.
const ROWS: usize = 32;
const RUNS: usize = 200;

/// Megabytes of F16 input a second on one core, best of many short runs, and what is asked for.
fn main() {
    let x = Numbers(9).normals(ROW * ROWS, 0.03);
    let half: Vec<u8> = x
        .iter()
        .flat_map(|v| half::f16::from_f32(*v).to_le_bytes())
        .collect();
    let w: Vec<f32> = Numbers(10)
        .normals(ROW, 1.0)
        .iter()
        .map(|v| v * v)
        .collect();
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(1)
        .build()
        .unwrap();
    let asked: Vec<String> = std::env::args()
        .skip(1)
        .filter(|a| !a.starts_with('-'))
        .collect();
    let mut slow = Vec::new();
    println!("type      MB/s   with importance   decoded (values, M/s)");
    for t in GgmlType::READABLE {
        if !asked.is_empty() && !asked.contains(&t.to_string()) {
            continue;
        }
        let mut out = vec![0; t.bytes_for((ROW * ROWS) as u64).unwrap() as usize];
        let mut rate = |weights: Option<&[f32]>| {
            // Inside the pool: waking its thread takes as long as a fast type.
            let best = pool.install(|| {
                let mut best = f64::INFINITY;
                for _ in 0..RUNS {
                    let start = Instant::now();
                    convert_rows(GgmlType::F16, &half, ROW, t, weights, &mut out).unwrap();
                    best = best.min(start.elapsed().as_secs_f64());
                }
                best
            });
            half.len() as f64 / 1e6 / best
        };
        let (plain, weighted) = (rate(None), rate(Some(&w)));
        let mut y = vec![0.0f32; ROW * ROWS];
        let mut best = f64::INFINITY;
        for _ in 0..RUNS {
            let start = Instant::now();
            zonos_gguf::blocks::dequantize_row(t, &out, &mut y).unwrap();
            best = best.min(start.elapsed().as_secs_f64());
        }
        let decoded = (ROW * ROWS) as f64 / 1e6 / best;
        println!("{t:<8} {plain:>6.0} {weighted:>17.0} {decoded:>23.0}");
        let asked = match t {
            GgmlType::Q8_0 | GgmlType::Q4_0 => 200.0,
            t if t.is_quantized() => 45.0,
            _ => 0.0,
        };
        if plain < asked {
            slow.push(format!("{t}: {plain:.0} MB/s, {asked} asked for"));
        }
    }
    assert!(slow.is_empty(), "{}", slow.join("; "));
}
