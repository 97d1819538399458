//! Single operations at the shapes of the models.
//!
//! Weights that come from memory, as when a stream or a decode step reads each once: what counts is the
//! share of the plain-read bandwidth. Many rows at a time: the share of the f32 matmul rate.

use std::hint::black_box;
use std::time::Instant;

use burn::tensor::{DType, Device, Distribution, Tensor};
use zonos_kernels::{Activation, PackedTensor, ops};

use super::{Bench, Measurement, median};

/// Width and feed-forward rows of the released backbone.
const IN: usize = 2048;
const OUT: usize = 6144;
/// Weights in rotation: more than any cache holds.
const ROTATION: usize = 1_300_000_000;
/// Size of a head of the attentions.
const HEAD: usize = 64;

/// Rows, inputs, outputs and whether GELU follows: ZAC-1's widest and longest stages, and its teacher.
const DENSE: [(usize, usize, usize, bool); 6] = [
    (900, 1280, 3840, false),
    (900, 1280, 5120, true),
    (900, 5120, 1280, false),
    (2400, 768, 3072, true),
    (2400, 768, 768, false),
    (1500, 1024, 4096, false),
];
/// Rows, inputs, outputs and dtype of a stream's dense layers.
const STREAM: [(usize, usize, usize, DType); 4] = [
    (1, 1280, 5120, DType::F32),
    (1, 1280, 5120, DType::BF16),
    (15, 1280, 5120, DType::F32),
    (15, 1280, 5120, DType::BF16),
];
/// Queries, heads and context.
const WINDOW: [(usize, usize, usize); 2] = [(900, 20, 150), (2400, 12, 480)];
/// Positions, heads, distances to the left and right.
const RELATIVE: (usize, usize, usize, usize) = (1500, 16, 64, 8);
/// Positions, channels and taps.
const DEPTHWISE: [(usize, usize, usize); 2] = [(900, 1024, 7), (1500, 1024, 31)];
/// Rows and width.
const NORM: (usize, usize) = (900, 1280);

const READ: &str = "weight bytes at the read bandwidth";
const ARITHMETIC: &str = "FLOPs at the f32 matmul rate";
const ONCE: &str = "input and output once through memory";

pub(super) fn run(bench: &Bench) -> anyhow::Result<Vec<Measurement>> {
    let mut torch = bench.torch("bench_kernels.py", &[])?;
    let mut lines = Vec::new();
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let weights = rotation(OUT, IN, dtype, &bench.device);
        let x = uniform([1, IN], &bench.device);
        lines.push(Measurement {
            name: format!("linear {}, 1 x {IN} -> {OUT}", name(dtype)),
            ours: streamed(bench, &weights, |w| w.linear(x.clone())),
            torch: None,
            floor: Some((IN * OUT * dtype.size()) as f64 / bench.machine.read_bandwidth),
            floor_basis: Some(READ),
            audio: None,
        });
    }
    for (rows, inner, out, dtype) in STREAM {
        let weights = rotation(out, inner, dtype, &bench.device);
        let x = uniform([rows, inner], &bench.device);
        let dense = |w: &PackedTensor<2>| {
            ops::dense(x.clone(), w.value(), None, Activation::None, None, None)
        };
        let ours = streamed(bench, &weights, dense);
        let count = weights.len();
        drop(weights);
        let torch = match (&mut torch, dtype) {
            (Some(torch), DType::F32) => {
                let command = format!("stream {rows} {inner} {out} {count}");
                let times = (0..=bench.repeat.max(1)).map(|_| torch.time(&command));
                let mut times = times.collect::<anyhow::Result<Vec<f64>>>()?;
                Some(median(&mut times[1..]))
            }
            _ => None,
        };
        let read = (inner * out * dtype.size()) as f64 / bench.machine.read_bandwidth;
        let multiplied = flops(rows, inner, out) / bench.machine.matmul_flops;
        lines.push(Measurement {
            name: format!("dense {}, {rows} x {inner} -> {out}", name(dtype)),
            ours,
            torch,
            floor: Some(read.max(multiplied)),
            floor_basis: Some(if read > multiplied { READ } else { ARITHMETIC }),
            audio: None,
        });
    }
    let mut race = |name: String, command: String, floor: f64, basis, ours: &dyn Fn()| {
        let ours = || {
            ours();
            Ok(())
        };
        let (ours, torch) = bench.race_torch(ours, &mut torch, &command)?;
        lines.push(Measurement {
            name,
            ours,
            torch,
            floor: Some(floor),
            floor_basis: Some(basis),
            audio: None,
        });
        anyhow::Ok(())
    };
    many_rows(bench, &mut race)?;
    attentions(bench, &mut race)?;
    memory_bound(bench, &mut race)?;
    Ok(lines)
}

/// Measures an operation: its name, the other side's command, floor, what that rests on, and ours.
type Race<'a> = dyn FnMut(String, String, f64, &'static str, &dyn Fn()) -> anyhow::Result<()> + 'a;

fn many_rows(bench: &Bench, race: &mut Race<'_>) -> anyhow::Result<()> {
    for (rows, inner, out, gelu) in DENSE {
        let x = uniform([rows, inner], &bench.device);
        let w = uniform([out, inner], &bench.device);
        let (activation, then) = if gelu {
            (Activation::Gelu, ", GELU")
        } else {
            (Activation::None, "")
        };
        race(
            format!("dense f32, {rows} x {inner} -> {out}{then}"),
            format!("dense {rows} {inner} {out} {}", u8::from(gelu)),
            flops(rows, inner, out) / bench.machine.matmul_flops,
            ARITHMETIC,
            &|| {
                black_box(ops::dense(
                    x.clone(),
                    w.clone(),
                    None,
                    activation,
                    None,
                    None,
                ));
            },
        )?;
    }
    Ok(())
}

fn attentions(bench: &Bench, race: &mut Race<'_>) -> anyhow::Result<()> {
    let heads_of = |time: usize, heads: usize| {
        let x = uniform([time, heads * HEAD], &bench.device);
        x.reshape([1, time, heads, HEAD])
    };
    // Scores and weighted values, a multiply-add for each value of a head.
    let arithmetic =
        |pairs: usize, heads: usize| (4 * pairs * heads * HEAD) as f64 / bench.machine.matmul_flops;
    for (queries, heads, context) in WINDOW {
        let [q, k, v] = [(); 3].map(|()| heads_of(queries, heads));
        let pairs = (1..=queries).map(|seen| seen.min(context)).sum();
        race(
            format!("window attention, {queries} x {heads} heads, {context} back"),
            format!("window {queries} {heads} {context}"),
            arithmetic(pairs, heads),
            ARITHMETIC,
            &|| {
                let (q, k, v) = (q.clone(), k.clone(), v.clone());
                black_box(ops::window_attention(q, k, v, context));
            },
        )?;
    }
    let (time, heads, left, right) = RELATIVE;
    let [q, k, v] = [(); 3].map(|()| heads_of(time, heads));
    let table = uniform([left + right + 1, HEAD], &bench.device);
    race(
        format!("relative attention, {time} x {heads} heads"),
        format!("relative {time} {heads} {left} {right}"),
        arithmetic(time * time, heads),
        ARITHMETIC,
        &|| {
            let (q, k, v, table) = (q.clone(), k.clone(), v.clone(), table.clone());
            black_box(ops::relative_attention(q, k, v, table, left, right, None));
        },
    )
}

fn memory_bound(bench: &Bench, race: &mut Race<'_>) -> anyhow::Result<()> {
    let once = |values: usize| (8 * values) as f64 / bench.machine.read_bandwidth;
    let (rows, width) = NORM;
    let x = uniform([rows, width], &bench.device);
    let [weight, bias] = [(); 2].map(|()| uniform([1, width], &bench.device).reshape([width]));
    race(
        format!("layer norm, {rows} x {width}"),
        format!("norm {rows} {width}"),
        once(rows * width),
        ONCE,
        &|| {
            black_box(ops::layer_norm(
                x.clone(),
                weight.clone(),
                bias.clone(),
                1e-5,
            ));
        },
    )?;
    for (time, channels, taps) in DEPTHWISE {
        let padded = time + taps - 1;
        let x = uniform([padded, channels], &bench.device).reshape([1, padded, channels]);
        let weight = uniform([channels, taps], &bench.device).reshape([channels, 1, taps]);
        let bias = uniform([1, channels], &bench.device).reshape([channels]);
        race(
            format!("depthwise convolution, {time} x {channels}, {taps} taps"),
            format!("depthwise {time} {channels} {taps}"),
            once(time * channels),
            ONCE,
            &|| {
                let bias = Some(bias.clone());
                black_box(ops::depthwise_conv1d(x.clone(), weight.clone(), bias));
            },
        )?;
    }
    Ok(())
}

fn flops(rows: usize, inner: usize, out: usize) -> f64 {
    2.0 * (rows * inner * out) as f64
}

fn name(dtype: DType) -> &'static str {
    match dtype {
        DType::F16 => "f16",
        DType::BF16 => "bf16",
        _ => "f32",
    }
}

fn uniform(shape: [usize; 2], device: &Device) -> Tensor<2> {
    Tensor::random(shape, Distribution::Uniform(-1.0, 1.0), device)
}

/// As many weights `[out, inner]` as no cache holds.
fn rotation(out: usize, inner: usize, dtype: DType, device: &Device) -> Vec<PackedTensor<2>> {
    let count = ROTATION / (inner * out * dtype.size());
    let weight = || PackedTensor::new(uniform([out, inner], device).cast(dtype));
    (0..count).map(|_| weight()).collect()
}

/// Median seconds of `product` with one of the weights, all of them taken in turn.
fn streamed(
    bench: &Bench,
    weights: &[PackedTensor<2>],
    product: impl Fn(&PackedTensor<2>) -> Tensor<2>,
) -> f64 {
    let mut times = Vec::new();
    for _ in 0..=bench.repeat.max(1) {
        let start = Instant::now();
        for weight in weights {
            black_box(product(weight).into_data());
        }
        times.push(start.elapsed().as_secs_f64() / weights.len() as f64);
    }
    median(&mut times[1..])
}
