//! Products with weights as their files store them: each type, few rows, weights from memory.
//!
//! What counts is how many bytes of weights pass a second, as a share of what a plain read of as many
//! bytes reaches. Reads and products alternate, ggml's too where there is a build of it, so that a machine
//! that slows down slows all.

use std::hint::black_box;
use std::time::Instant;

use burn::tensor::{DType, Device, Distribution, Int, Tensor, TensorData};
use zonos_gguf::GgmlType;
use zonos_kernels::{Activations, PackedTensor, on_worker};

use super::ggml::{Compared, Ggml, Times};
use super::machine::read_once;
use super::{Bench, Measurement, median};

/// Width and feed-forward rows of the released backbone.
const IN: usize = 2048;
const OUT: usize = 6144;
/// Bytes of weights in rotation: many times what caches hold.
const ROTATION: usize = 256 << 20;
const ROWS: [usize; 4] = [1, 4, 8, 32];
const READ: &str = "weight bytes at the rate of a plain read";

pub(super) fn run(
    bench: &Bench,
    types: &[GgmlType],
) -> anyhow::Result<(Vec<Measurement>, Vec<Compared>)> {
    let mut ggml = match &bench.ggml {
        Some(build) => Some(Ggml::start(build, bench.threads)?),
        None => None,
    };
    let words = vec![1u64; ROTATION / 8];
    let (mut lines, mut compared) = (Vec::new(), Vec::new());
    println!("weights [{OUT}, {IN}] from memory, GB/s (share of a plain read)");
    println!(
        "{:<8} {:>5} {:>16} {:>16}",
        "type", "rows", "exact", "eight bits"
    );
    let wanted = |t: &GgmlType| types.is_empty() || types.contains(t);
    for t in GgmlType::READABLE.into_iter().filter(wanted) {
        let weights = rotation(t, &bench.device);
        let bytes: usize = weights.iter().map(PackedTensor::stored_bytes).sum();
        if let Some(ggml) = &mut ggml {
            ggml.load(t, [OUT, IN], bytes)?;
        }
        let kinds: &[Activations] = match t.is_quantized() {
            true => &[Activations::Exact, Activations::EightBit],
            false => &[Activations::Exact],
        };
        for rows in ROWS {
            let range = Distribution::Uniform(-1.0, 1.0);
            let x = Tensor::<2>::random([rows, IN], range, &bench.device);
            let mut times = vec![Vec::new(); kinds.len()];
            let (mut reads, mut theirs) = (Vec::new(), Times::default());
            for _ in 0..=bench.repeat.max(1) {
                let read = read_once(&words, bench.threads);
                reads.push(read * bytes as f64 / ROTATION as f64);
                for (&kind, times) in kinds.iter().zip(&mut times) {
                    let weights: Vec<_> = weights
                        .iter()
                        .map(|w| w.clone().with_activations(kind))
                        .collect();
                    // From where models call them.
                    times.push(on_worker(&bench.device, || {
                        let start = Instant::now();
                        for weight in &weights {
                            black_box(weight.linear(x.clone()).into_data());
                        }
                        start.elapsed().as_secs_f64()
                    }));
                }
                if let Some(ggml) = &mut ggml {
                    ggml.time(rows, &mut theirs)?;
                }
            }
            let floor = median(&mut reads[1..]);
            let ours: Vec<f64> = times.iter_mut().map(|t| median(&mut t[1..])).collect();
            let told: Vec<String> = ours
                .iter()
                .map(|ours| {
                    let (rate, share) = (bytes as f64 / ours / 1e9, 100.0 * floor / ours);
                    format!("{rate:6.2} ({share:3.0} %)")
                })
                .collect();
            println!(
                "{:<8} {:>5} {:>16} {:>16}",
                t.name(),
                rows,
                told[0],
                told.get(1).map_or("-", String::as_str)
            );
            let each = 1.0 / weights.len() as f64;
            for (kind, ours) in kinds.iter().zip(&ours) {
                let how = match kind {
                    Activations::Exact => "exact",
                    Activations::EightBit => "eight bits",
                };
                lines.push(Measurement {
                    name: format!("{t}, {rows} x {IN} -> {OUT}, {how}"),
                    ours: ours * each,
                    torch: None,
                    floor: Some(floor * each),
                    floor_basis: Some(READ),
                    audio: None,
                });
            }
            if ggml.is_some() {
                let eight_bit = ours.get(1).copied();
                compared.push(Compared::new(
                    (t, rows, bytes),
                    (ours[0], eight_bit),
                    floor,
                    &theirs,
                ));
            }
        }
    }
    Ok((lines, compared))
}

/// As many weights as fill the rotation. Their blocks are random, with scales that are finite.
fn rotation(t: GgmlType, device: &Device) -> Vec<PackedTensor<2>> {
    let row = IN / t.block_values() * t.block_bytes();
    let count = ROTATION / (row * OUT);
    let weights = (0..count).map(|i| {
        let dtype = match t {
            GgmlType::F32 => DType::F32,
            GgmlType::F16 => DType::F16,
            GgmlType::Bf16 => DType::BF16,
            _ => {
                let bytes = TensorData::new(random_blocks(t, i as u64, row * OUT), [OUT, row]);
                let bytes = Tensor::<2, Int>::from_data(bytes, (device, DType::U8));
                return PackedTensor::from_blocks(bytes, t, Activations::Exact);
            }
        };
        let x = Tensor::<2>::random([OUT, IN], Distribution::Uniform(-1.0, 1.0), device);
        PackedTensor::new(x.cast(dtype))
    });
    weights.collect()
}

fn random_blocks(t: GgmlType, seed: u64, n: usize) -> Vec<u8> {
    let mut state = (seed + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mut bytes = Vec::with_capacity(n + 8);
    while bytes.len() < n {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_le_bytes());
    }
    bytes.truncate(n);
    // Halves of about 0.01 where a block holds them; it does no harm where it holds codes.
    let halves: &[usize] = match t {
        GgmlType::Q2K => &[80, 82],
        GgmlType::Q3K => &[108],
        GgmlType::Q6K => &[208],
        _ => &[0, 2],
    };
    for block in bytes.chunks_exact_mut(t.block_bytes()) {
        for &at in halves {
            block[at..at + 2].copy_from_slice(&0x211F_u16.to_le_bytes());
        }
    }
    bytes
}
