//! Time and memory of decoding and encoding with the full-size model.
//!
//! `ZONOS_DAC_FULL=weights.pth cargo bench -p zonos-dac -- 86 430` decodes that many frames and
//! encodes as much audio. CPU
//! time is printed beside wall time: it tells something on a busy machine too. `cargo xtask bench`
//! compares with PyTorch.

use std::time::Instant;

use burn::tensor::Device;
use zonos_audio::{Codes, Waveform};
use zonos_dac::Dac;

/// CPU seconds that this process's threads have used.
fn cpu_seconds() -> Option<f64> {
    let mut nanoseconds = 0;
    for task in std::fs::read_dir("/proc/self/task").ok()? {
        let text = std::fs::read_to_string(task.ok()?.path().join("schedstat")).ok()?;
        nanoseconds += text.split_whitespace().next()?.parse::<u64>().ok()?;
    }
    Some(nanoseconds as f64 * 1e-9)
}

/// Peak resident memory, in MB.
fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM"))?;
    line.split_whitespace()
        .nth(1)?
        .parse::<u64>()
        .ok()
        .map(|kb| kb / 1024)
}

fn codes(dac: &Dac, frames: usize) -> Codes {
    let (q, size) = (dac.config().n_codebooks, dac.config().codebook_size);
    let values = (0..frames * q).map(|i| (i * 7919 % size) as i32).collect();
    Codes::new(frames, q, values).expect("a table of this size")
}

fn sound(dac: &Dac, frames: usize) -> Waveform {
    let samples = (0..frames * dac.config().hop()).map(|i| 0.3 * (i as f32 * 0.05).sin());
    Waveform::new(samples.collect(), dac.config().sample_rate as u32)
}

/// Runs four times and prints the best.
fn measure(what: &str, mut run: impl FnMut()) {
    let (mut best_wall, mut best_cpu) = (f64::MAX, f64::MAX);
    for _ in 0..4 {
        let (wall, cpu) = (Instant::now(), cpu_seconds());
        run();
        best_wall = best_wall.min(wall.elapsed().as_secs_f64());
        if let (Some(before), Some(after)) = (cpu, cpu_seconds()) {
            best_cpu = best_cpu.min(after - before);
        }
    }
    println!(
        "{what}: best of 4 {best_wall:.3} s, CPU {best_cpu:.3} s, peak memory {} MB",
        peak_memory().unwrap_or_default()
    );
}

fn main() {
    let Ok(weights) = std::env::var("ZONOS_DAC_FULL") else {
        println!("ZONOS_DAC_FULL (a file of full-size weights) is unset: nothing is measured");
        return;
    };
    let mut lengths: Vec<usize> = std::env::args()
        .filter_map(|arg| arg.parse().ok())
        .collect();
    if lengths.is_empty() {
        lengths = vec![86, 430];
    }
    let dac = Dac::load(weights, &Device::flex()).expect("weights");
    for frames in lengths {
        let seconds = frames as f64 * dac.config().hop() as f64 / dac.config().sample_rate as f64;
        let (codes, sound) = (codes(&dac, frames), sound(&dac, frames));
        measure(&format!("decode {frames} frames ({seconds:.2} s)"), || {
            std::hint::black_box(dac.decode(&codes).expect("decode"));
        });
        measure(&format!("encode {frames} frames ({seconds:.2} s)"), || {
            std::hint::black_box(dac.encode(&sound, None).expect("encode"));
        });
    }
}
