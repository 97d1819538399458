//! `cargo xtask bench`: ours, PyTorch in the same run, and what the machine allows.
//!
//! Repetitions of both sides alternate, so that a machine that slows down slows both; medians are
//! reported. The floor of a component is the least time its arithmetic or its memory traffic can
//! take here, from the rates measured in the same run.

mod audio;
mod backbone;
mod dac;
mod dsp;
mod ecapa;
mod ggml;
mod kernels;
mod machine;
mod packed;
mod step_profile;
mod teacher;
mod torch;
mod zac;
mod zac_encode;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::Context;
use burn::tensor::Device;
use serde::Serialize;
use zonos_checkpoint::{Checkpoint, ModelKind};
use zonos_gguf::GgmlType;

use crate::workspace;
use machine::Machine;
use torch::Torch;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only this component: audio, backbone, dac, dsp, ecapa, kernels, memory, packed, teacher, zac or zac-encode
    #[arg(long, value_name = "C")]
    component: Option<Component>,
    /// Insist on these other sides: fail when one cannot run
    #[arg(long, value_name = "torch,ggml", value_delimiter = ',')]
    against: Vec<Against>,
    /// Threads of both sides; 0 means all cores
    #[arg(long, default_value_t = 0)]
    threads: usize,
    /// Python with torch and safetensors [default: python3, if it has them]
    #[arg(long, value_name = "PATH")]
    python: Option<PathBuf>,
    /// Repetitions of each measurement
    #[arg(long, default_value_t = 5)]
    repeat: usize,
    /// Storage types of packed products [default: all], and of the backbone's experts: bf16, as the rest, or
    /// quantised, with the rest F16 [default: bf16]
    #[arg(long = "type", value_name = "T", value_delimiter = ',')]
    types: Vec<GgmlType>,
    /// Write the measurements as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Measure this build even if it is not optimised, to try the bench itself
    #[arg(long, hide = true)]
    any_build: bool,
    /// Decode frames with the weights at this path and print this process's peak memory
    #[arg(long, hide = true, num_args = 2, value_names = ["WEIGHTS", "FRAMES"])]
    peak_memory: Option<Vec<String>>,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Component {
    /// A decode step of the backbone at the released widths, and what its time is spent on
    Backbone,
    /// The codec at full size, decoding and encoding
    Dac,
    /// Resampling, mel and spectra of a minute
    Dsp,
    /// The speaker encoder at full size, on ten seconds
    Ecapa,
    /// Decoding a minute of sound
    Audio,
    /// Wav2Vec2-BERT at the size that ZAC-1 uses, on ten and thirty seconds
    Teacher,
    /// The ZAC-1 decoder at full size, pruned and whole, in one piece and streamed
    Zac,
    /// The ZAC-1 encoder at full size with its teacher, on ten seconds and on a minute
    ZacEncode,
    /// Single operations at the models' shapes: products over weights that no cache holds, dense layers,
    /// attention, normalisation, depthwise convolution
    Kernels,
    /// Products with weights of every storage type from memory: 1, 4, 8 and 32 rows
    Packed,
    /// Peak memory of decoding a minute of audio
    Memory,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Against {
    /// PyTorch, of the Python that --python names
    Torch,
    /// ggml's CPU backend, built in the folder that $ZONOS_GGML names: packed weights
    Ggml,
}

/// One line of the table.
#[derive(Debug, Serialize)]
pub(crate) struct Measurement {
    /// What was measured.
    name: String,
    /// Median seconds of ours.
    ours: f64,
    /// Median seconds of PyTorch.
    torch: Option<f64>,
    /// Least possible seconds on this machine.
    floor: Option<f64>,
    /// What the floor rests on.
    floor_basis: Option<&'static str>,
    /// Seconds of audio that one repetition makes.
    audio: Option<f64>,
}

impl Measurement {
    /// How many times faster than PyTorch.
    fn ratio(&self) -> Option<f64> {
        self.torch.map(|t| t / self.ours)
    }

    /// Share of the possible speed, 0 to 1.
    fn of_floor(&self) -> Option<f64> {
        self.floor.map(|f| f / self.ours)
    }
}

/// What a component measures with.
pub(crate) struct Bench {
    device: Device,
    machine: Machine,
    python: Option<PathBuf>,
    ggml: Option<ggml::Build>,
    threads: usize,
    repeat: usize,
}

impl Bench {
    /// Medians of `repeat` alternating runs of ours and theirs, after one warm-up of each.
    fn race(
        &self,
        mut ours: impl FnMut() -> anyhow::Result<()>,
        mut theirs: Option<&mut dyn FnMut() -> anyhow::Result<f64>>,
    ) -> anyhow::Result<(f64, Option<f64>)> {
        ours()?;
        if let Some(theirs) = &mut theirs {
            theirs()?;
        }
        let (mut a, mut b) = (Vec::new(), Vec::new());
        for _ in 0..self.repeat.max(1) {
            let start = Instant::now();
            ours()?;
            a.push(start.elapsed().as_secs_f64());
            if let Some(theirs) = &mut theirs {
                b.push(theirs()?);
            }
        }
        Ok((median(&mut a), (!b.is_empty()).then(|| median(&mut b))))
    }

    /// The PyTorch side, where there is one: `script` with `args` and the number of threads.
    fn torch(&self, script: &str, args: &[(&str, String)]) -> anyhow::Result<Option<Torch>> {
        let Some(python) = &self.python else {
            return Ok(None);
        };
        let threads = ("--threads", self.threads.to_string());
        let args = args.iter().chain([&threads]);
        let args: Vec<String> = args
            .flat_map(|(name, value)| [(*name).to_owned(), value.clone()])
            .collect();
        Torch::start(python, script, &args).map(Some)
    }

    /// [`race`](Self::race) against `command` of the PyTorch side, where there is one.
    fn race_torch(
        &self,
        ours: impl FnMut() -> anyhow::Result<()>,
        torch: &mut Option<Torch>,
        command: &str,
    ) -> anyhow::Result<(f64, Option<f64>)> {
        match torch {
            Some(torch) => self.race(ours, Some(&mut || torch.time(command))),
            None => self.race(ours, None),
        }
    }

    /// What [`peak_memory_child`] says of `amount` frames or seconds in a process of its own: how much
    /// memory it took at most, and how long. `None` where the system does not tell.
    fn peak_memory(&self, weights: &Path, amount: usize) -> anyhow::Result<Option<String>> {
        let output = Command::new(std::env::current_exe()?)
            .args(["bench", "--peak-memory"])
            .arg(weights)
            .arg(amount.to_string())
            .env("RAYON_NUM_THREADS", self.threads.to_string())
            .output()
            .context("cannot start the process to measure")?;
        anyhow::ensure!(
            output.status.success(),
            "measuring memory failed: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
        let text = String::from_utf8_lossy(&output.stdout);
        let peak = text.lines().find_map(|l| l.strip_prefix("peak "));
        Ok(peak.map(str::to_owned))
    }
}

pub(crate) fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let n = values.len();
    match n {
        0 => f64::NAN,
        n if n % 2 == 1 => values[n / 2],
        n => (values[n / 2 - 1] + values[n / 2]) / 2.0,
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<bool> {
    if let Some([weights, frames]) = args.peak_memory.as_deref() {
        return peak_memory_child(weights.as_ref(), frames.parse()?);
    }
    if cfg!(debug_assertions) && !args.any_build {
        return again_in_release();
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = if args.threads == 0 {
        cores
    } else {
        args.threads
    };
    rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .build_global()
        .context("cannot set the number of threads")?;
    let python = match torch::find(args.python.as_deref()) {
        Ok(python) => Some(python),
        Err(error) if args.against.contains(&Against::Torch) || args.python.is_some() => {
            return Err(error);
        }
        Err(error) => {
            println!("without PyTorch: {error:#}");
            None
        }
    };
    let wants = |c| args.component.is_none_or(|only| only == c);
    let ggml = match ggml::Build::find() {
        Ok(build) => Some(build),
        Err(error) if args.against.contains(&Against::Ggml) => return Err(error),
        Err(error) => {
            if wants(Component::Packed) {
                println!("without ggml: {error:#}");
            }
            None
        }
    };
    let device = zonos_kernels::parse_device("cpu")?;
    let machine = Machine::measure(&device, threads);
    println!("{machine}");
    let bench = Bench {
        device,
        machine,
        python,
        ggml,
        threads,
        repeat: args.repeat,
    };
    let mut lines = Vec::new();
    if wants(Component::Kernels) {
        lines.extend(kernels::run(&bench)?);
    }
    let mut against_ggml = Vec::new();
    if wants(Component::Packed) {
        let (measured, compared) = packed::run(&bench, &args.types)?;
        lines.extend(measured);
        against_ggml = compared;
    }
    let mut profiles = Vec::new();
    if wants(Component::Backbone) {
        let types = match &args.types[..] {
            [] => &[GgmlType::Bf16],
            types => types,
        };
        let steps = backbone::run(&bench, types)?;
        lines.extend(steps.lines);
        profiles = steps.profiles;
    }
    if wants(Component::Dac) {
        lines.extend(dac::run(&bench)?);
    }
    if wants(Component::Dsp) {
        lines.extend(dsp::run(&bench)?);
    }
    if wants(Component::Ecapa) {
        lines.extend(ecapa::run(&bench)?);
    }
    if wants(Component::Teacher) {
        lines.extend(teacher::run(&bench)?);
    }
    if wants(Component::Zac) {
        lines.extend(zac::run(&bench)?);
    }
    let mut memory: Vec<String> = Vec::new();
    if wants(Component::ZacEncode) {
        let (measured, peak) = zac_encode::run(&bench)?;
        lines.extend(measured);
        memory.extend(peak);
    }
    if wants(Component::Audio) {
        lines.extend(audio::run(&bench)?);
    }
    if wants(Component::Memory) {
        let lines = [dac::peak_memory(&bench)?, zac::peak_memory(&bench)?];
        memory.extend(lines.into_iter().flatten());
    }

    print_table(&lines);
    for (name, profile) in &profiles {
        profile.print(name);
    }
    ggml::print_table(&against_ggml);
    for line in &memory {
        println!("{line}");
    }
    if let Some(path) = &args.json {
        let rows: Vec<_> = lines
            .iter()
            .map(|m| {
                let mut row = serde_json::json!(m);
                row["ratio"] = serde_json::json!(m.ratio());
                row["of_floor"] = serde_json::json!(m.of_floor());
                row
            })
            .collect();
        let value = serde_json::json!({
            "machine": bench.machine, "repeat": bench.repeat, "measurements": rows,
            "memory": memory, "ggml": against_ggml, "profiles": profiles,
        });
        workspace::write(path, &serde_json::to_string_pretty(&value)?)?;
    }
    Ok(true)
}

/// The process that measures memory: decodes so many frames with the codec whose weights these are, or
/// encodes so many seconds with an encoder.
fn peak_memory_child(weights: &Path, frames: usize) -> anyhow::Result<bool> {
    let kind = Checkpoint::open(weights)?.model_kind();
    let start = Instant::now();
    let samples = match kind {
        ModelKind::ZacDecoder => zac::decode(weights, frames)?,
        ModelKind::ZacEncoder => zac_encode::encode(weights, frames)?,
        _ => dac::decode(weights, frames)?,
    };
    let time = start.elapsed().as_secs_f64();
    if let Ok(status) = std::fs::read_to_string("/proc/self/status")
        && let Some(kb) = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))
        && let Some(kb) = kb
            .trim()
            .strip_suffix(" kB")
            .and_then(|n| n.parse::<f64>().ok())
    {
        println!("peak {:.0} MB ({samples} samples in {time:.1} s)", kb / 1e3);
    }
    Ok(true)
}

/// Numbers of an unoptimised build mean nothing: start over in release.
fn again_in_release() -> anyhow::Result<bool> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    println!("building in release");
    let status = Command::new(cargo)
        .args(["run", "--quiet", "--release", "--package", "xtask", "--"])
        .args(std::env::args_os().skip(1))
        .current_dir(workspace::root())
        .status()
        .context("cannot run cargo")?;
    Ok(status.success())
}

fn print_table(lines: &[Measurement]) {
    let width = lines.iter().map(|m| m.name.len()).max().unwrap_or(4).max(4);
    println!(
        "{:<width$}  {:>10} {:>10} {:>7} {:>10} {:>8} {:>8}  floor rests on",
        "what", "ours", "torch", "ratio", "floor", "of floor", "x real"
    );
    let show = |x: Option<f64>| x.map_or_else(|| "-".to_owned(), seconds);
    for m in lines {
        println!(
            "{:<width$}  {:>10} {:>10} {:>7} {:>10} {:>8} {:>8}  {}",
            m.name,
            seconds(m.ours),
            show(m.torch),
            m.ratio()
                .map_or_else(|| "-".to_owned(), |r| format!("{r:.2}x")),
            show(m.floor),
            m.of_floor()
                .map_or_else(|| "-".to_owned(), |f| format!("{:.0} %", f * 100.0)),
            m.audio
                .map_or_else(|| "-".to_owned(), |a| format!("{:.2}", a / m.ours)),
            m.floor_basis.unwrap_or("-"),
        );
    }
}

fn seconds(x: f64) -> String {
    if x < 1e-3 {
        format!("{:.1} us", x * 1e6)
    } else if x < 1.0 {
        format!("{:.2} ms", x * 1e3)
    } else {
        format!("{x:.3} s")
    }
}

#[cfg(test)]
mod tests {
    use super::median;

    #[test]
    fn medians() {
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&mut [4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&mut []).is_nan());
    }
}
