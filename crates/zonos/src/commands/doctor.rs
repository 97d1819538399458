//! `zonos doctor`: does this build, on this device, compute what it should?

mod zac;

use std::fs;
use std::ops::ControlFlow;
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, bail, ensure};
use burn::tensor::Device;
use clap::Args;
use golden_diff::Request;
use serde_json::json;
use zonos_audio::{Codes, ScratchFolder};
use zonos_dac::Dac;
use zonos_nn::Tap;
use zonos_tts::demo::DemoCheckpoint;
use zonos_tts::{SamplerOptions, SpeechRequest, Tts, TtsBuilder};
use zonos2::{GenerateOptions, Sequence, Zonos2};

use super::dac::{seam_tolerance, streamed};
use crate::args::{DeviceArgs, GlobalArgs};
use crate::failure::{Failure, Outcome};
use crate::output;

const ZONOS2_GOLDEN: &[u8] = include_bytes!("../../assets/doctor/zonos2.safetensors");
const DAC_GOLDEN: &[u8] = include_bytes!("../../assets/doctor/dac.safetensors");

/// Arguments of `zonos doctor`.
#[derive(Debug, Args)]
#[command(after_help = "\
Runs the built-in demo model and compares it with results of the PyTorch originals that this program
carries, and with itself: decoding with a cache against recomputing, streamed against whole audio,
watched against unwatched. Needs no files. A device or driver that computes something else shows
here. Exit code 1 when a check fails.

The first line tells the instruction set of the CPU kernels. $ZONOS_ISA names another than the best: plain,
avx2, avx512 or vnni; bf16, which is never used unless named, also rounds sixteen rows and more to BF16 where
they meet BF16 weights. Every command warns of a name that cannot be had.

Examples:
  zonos doctor
  zonos doctor --device vulkan:0 --json")]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    device: DeviceArgs,
}

struct Check {
    name: &'static str,
    result: anyhow::Result<String>,
    seconds: f64,
}

/// Runs the command.
pub(crate) fn run(args: &DoctorArgs, global: &GlobalArgs) -> Outcome {
    let device = args.device.open()?;
    let name = args.device.device.as_str();
    let demo = DemoCheckpoint::create()?;
    let mut checks = Vec::new();
    let mut check = |name: &'static str, run: &mut dyn FnMut() -> anyhow::Result<String>| {
        let began = Instant::now();
        // A driver that fails panics inside a tensor operation; the other checks still run.
        let result = panic::catch_unwind(AssertUnwindSafe(&mut *run))
            .unwrap_or_else(|caught| Err(anyhow::Error::msg(super::payload(&*caught))));
        let check = Check {
            name,
            result,
            seconds: began.elapsed().as_secs_f64(),
        };
        if !global.json {
            let _ = output::print(line(&check));
        }
        checks.push(check);
    };

    let (_, isa) = zonos_kernels::instruction_sets();
    if !global.json {
        output::print(format_args!(
            "zonos {}, device {name}, {} threads, CPU kernels: {isa}",
            env!("CARGO_PKG_VERSION"),
            rayon::current_num_threads()
        ))?;
    }
    let mut tts = None;
    check("the demo model loads", &mut || {
        let loaded = TtsBuilder::new(&device).load(demo.model(), demo.codec())?;
        let summary = format!(
            "{} layers, {} codebooks",
            loaded.backbone().config().n_layers,
            loaded.codec().config().n_codebooks
        );
        tts = Some(loaded);
        Ok(summary)
    });
    if let Some(tts) = &tts {
        check("cached = recomputed decoding", &mut || {
            cached(tts.backbone())
        });
        check("batch = one by one", &mut || batched(tts.backbone()));
        check("watched = unwatched backbone", &mut || {
            watched(tts.backbone())
        });
        check("streamed = whole decoding", &mut || {
            seams(tts.codec(), seam_tolerance(name))
        });
        check("same seed, same audio", &mut || seeded(tts));
    }
    check("backbone against PyTorch", &mut || {
        golden("zonos2", ZONOS2_GOLDEN, demo.model(), &device, name)
    });
    check("codec against PyTorch", &mut || {
        golden("dac", DAC_GOLDEN, demo.codec(), &device, name)
    });

    check("ZAC-1: streamed = whole decoding", &mut || {
        zac::seams(&device)
    });

    let failed = checks.iter().filter(|c| c.result.is_err()).count();
    if global.json {
        output::print_json(&json!({
            "version": env!("CARGO_PKG_VERSION"),
            "device": name,
            "threads": rayon::current_num_threads(),
            "isa": isa,
            "passed": failed == 0,
            "checks": checks.iter().map(|c| json!({
                "name": c.name,
                "passed": c.result.is_ok(),
                "detail": detail(c),
                "seconds": c.seconds,
            })).collect::<Vec<_>>(),
        }))?;
    }
    if failed > 0 {
        return Err(Failure::failed(format!(
            "{failed} of {} checks failed on device {name}; please report the table above",
            checks.len()
        )));
    }
    Ok(ExitCode::SUCCESS)
}

fn detail(check: &Check) -> String {
    match &check.result {
        Ok(detail) => detail.clone(),
        Err(error) => format!("{error:#}"),
    }
}

fn line(check: &Check) -> String {
    format!(
        "{:<6} {:<30} {:>7.2} s  {}",
        if check.result.is_ok() { "ok" } else { "FAILED" },
        check.name,
        check.seconds,
        detail(check)
    )
}

/// Two prompts of different length.
fn prompts(backbone: &Zonos2) -> anyhow::Result<[Sequence; 2]> {
    let one = |text| -> anyhow::Result<Sequence> {
        let prompt = SpeechRequest::new(text).prompt(backbone.config())?;
        Ok(Sequence::from_prompt(&prompt, None)?)
    };
    Ok([one("Is anything wrong?")?, one("No.")?])
}

fn greedy(
    backbone: &Zonos2,
    sequences: &[Sequence],
    recompute: bool,
) -> anyhow::Result<Vec<Codes>> {
    let options = GenerateOptions {
        sampler: SamplerOptions::greedy(),
        max_frames: Some(12),
        ignore_eos: true,
        limits: None,
        recompute,
        ..GenerateOptions::default()
    };
    let options = vec![options; sequences.len()];
    let done = backbone.generate(sequences, &options, &mut |_| ControlFlow::Continue(()))?;
    Ok(done.into_iter().map(|g| g.frames).collect())
}

fn cached(backbone: &Zonos2) -> anyhow::Result<String> {
    let prompts = prompts(backbone)?;
    let with = greedy(backbone, &prompts[..1], false)?;
    let without = greedy(backbone, &prompts[..1], true)?;
    same_codes(&with, &without)
}

fn batched(backbone: &Zonos2) -> anyhow::Result<String> {
    let prompts = prompts(backbone)?;
    let together = greedy(backbone, &prompts, false)?;
    let mut single = Vec::new();
    for prompt in &prompts {
        single.extend(greedy(backbone, std::slice::from_ref(prompt), false)?);
    }
    same_codes(&together, &single)
}

fn same_codes(a: &[Codes], b: &[Codes]) -> anyhow::Result<String> {
    ensure!(a.len() == b.len(), "{} and {} sequences", a.len(), b.len());
    for (a, b) in a.iter().zip(b) {
        let differ = a.values().iter().zip(b.values()).position(|(x, y)| x != y);
        if let Some(at) = differ {
            bail!("codes differ from frame {} on", at / a.codebooks().max(1));
        }
        ensure!(
            a.frames() == b.frames(),
            "{} and {} frames",
            a.frames(),
            b.frames()
        );
    }
    let frames: usize = a.iter().map(Codes::frames).sum();
    Ok(format!("{frames} frames equal"))
}

fn watched(backbone: &Zonos2) -> anyhow::Result<String> {
    let prompts = prompts(backbone)?;
    let mut tap = Tap::on();
    let seen = backbone.forward(&prompts, &mut tap)?;
    let plain = backbone.forward(&prompts, &mut Tap::off())?;
    let values =
        |x: burn::tensor::Tensor<3>| x.into_data().convert::<f32>().try_to_vec::<f32>().ok();
    let (Some(a), Some(b)) = (values(seen.logits), values(plain.logits)) else {
        bail!("the device returned no logits");
    };
    let worst = largest_difference(&a, &b)?;
    // The two runs may take different kernels; this is the tolerance of the goldens themselves.
    ensure!(worst <= 2e-4, "logits differ by {worst:e}");
    Ok(format!(
        "{} tensors, largest difference of logits {worst:e}",
        tap.into_records().len()
    ))
}

fn seams(codec: &Dac, tolerance: f32) -> anyhow::Result<String> {
    let (frames, q) = (67, codec.config().n_codebooks);
    let size = codec.config().codebook_size;
    let values = (0..frames * q)
        .map(|i| ((i * 7919 + 13) % size) as i32)
        .collect();
    let codes = Codes::new(frames, q, values)?;
    let whole = codec.decode(&codes)?;
    let mut worst = 0.0f32;
    for block in [1, 7, 40] {
        let pieces = streamed(codec, &codes, block, &mut |_| Ok(()))
            .map_err(|_| anyhow::anyhow!("the stream of block {block} failed"))?;
        worst = worst.max(largest_difference(whole.samples(), &pieces)?);
    }
    ensure!(
        worst <= tolerance,
        "samples differ by {worst:e}, allowed {tolerance:e}"
    );
    Ok(format!("largest difference {worst:e}"))
}

fn seeded(tts: &Tts) -> anyhow::Result<String> {
    let speak = |seed| -> anyhow::Result<Vec<f32>> {
        let request = SpeechRequest {
            seed: Some(seed),
            max_frames: Some(24),
            ..SpeechRequest::new("Again.")
        };
        Ok(tts.speak(&request)?.waveform.into_samples())
    };
    let (first, again, other) = (speak(7)?, speak(7)?, speak(8)?);
    ensure!(first == again, "two runs with seed 7 differ");
    ensure!(first != other, "seeds 7 and 8 give the same audio");
    Ok(format!("{} samples equal", first.len()))
}

fn golden(
    component: &str,
    bytes: &[u8],
    checkpoint: &Path,
    device: &Device,
    device_name: &str,
) -> anyhow::Result<String> {
    let dir = ScratchFolder::create("zonos-doctor-")?;
    let file = dir.path().join("golden.safetensors");
    fs::write(&file, bytes).with_context(|| format!("cannot write {}", file.display()))?;
    let report = golden_diff::run(&Request {
        dir: dir.path().to_path_buf(),
        component: Some(component.parse().map_err(anyhow::Error::msg)?),
        checkpoint: Some(checkpoint.to_path_buf()),
        device: device.clone(),
        device_name: device_name.to_owned(),
        overrides: Vec::new(),
        half: false,
    })?;
    if report.passed() {
        Ok(report.verdict())
    } else {
        bail!("{}", report.verdict())
    }
}

fn largest_difference(a: &[f32], b: &[f32]) -> anyhow::Result<f32> {
    ensure!(a.len() == b.len(), "{} and {} values", a.len(), b.len());
    let mut worst = 0.0f32;
    for (x, y) in a.iter().zip(b) {
        let d = (x - y).abs();
        ensure!(!d.is_nan(), "values that are not numbers");
        worst = worst.max(d);
    }
    Ok(worst)
}
