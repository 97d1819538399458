//! A decode step of the backbone at the released widths, with a few random layers.

use std::ops::ControlFlow;
use std::time::Instant;

use zonos_gguf::GgmlType;
use zonos2::{CacheDType, GenerateOptions, Prompt, Sequence, Zonos2};

use super::machine::read_once;
use super::step_profile::{self, Profile};
use super::{Bench, Measurement, median};
use crate::random_backbone::{self, LAYERS, RandomBackbone};

/// Frames whose times are taken, after as many for warming up.
const FRAMES: usize = 24;
/// Batches measured.
const BATCHES: [usize; 2] = [1, 8];
/// Bytes of a plain read between two steps: the rate of memory wanders, on a machine shared with others by half
/// within a minute, so the floor is taken where the steps are.
const READ: usize = 128 << 20;

/// Times, and where they go.
pub(super) struct Steps {
    pub(super) lines: Vec<Measurement>,
    pub(super) profiles: Vec<(String, Profile)>,
}

pub(super) fn run(bench: &Bench, types: &[GgmlType]) -> anyhow::Result<Steps> {
    let config = random_backbone::wide();
    step_profile::install();
    let mut steps = Steps {
        lines: Vec::new(),
        profiles: Vec::new(),
    };
    let words = vec![1u64; READ / 8];
    for &experts in types {
        let folder = tempfile::tempdir()?;
        let file = random_backbone::write(folder.path(), &config, experts)?;
        forget(&file)?;
        let model = Zonos2::load(&file.path, &bench.device)?;
        for batch in BATCHES {
            measure(bench, &model, &file, experts, (batch, &words), &mut steps)?;
        }
    }
    Ok(steps)
}

/// Has the system forget the weights, so that they are read in as those of a model are after a restart, and not
/// used in the pieces that they were written in.
#[cfg(target_os = "linux")]
fn forget(file: &RandomBackbone) -> anyhow::Result<()> {
    let weights = std::fs::File::open(file.weights())?;
    weights.sync_all()?;
    rustix::fs::fadvise(&weights, 0, None, rustix::fs::Advice::DontNeed)?;
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn forget(_: &RandomBackbone) -> anyhow::Result<()> {
    Ok(())
}

fn measure(
    bench: &Bench,
    model: &Zonos2,
    file: &RandomBackbone,
    experts: GgmlType,
    (batch, words): (usize, &[u64]),
    steps: &mut Steps,
) -> anyhow::Result<()> {
    let what = if experts.is_quantized() {
        format!("experts {experts}, spine f16")
    } else {
        experts.to_string()
    };
    let name = format!("zonos2 decode step, {LAYERS} layers, {what}, batch {batch}");
    let (step, read, profile) = timed_steps(model, batch, bench, words)?;
    // A batch shares all but the experts: each that is drawn is read once.
    let bytes = file.spine + file.expert * profile.experts;
    steps.lines.push(Measurement {
        name: name.clone(),
        ours: step,
        torch: None,
        floor: Some(bytes * read),
        floor_basis: Some("spine and experts drawn, at the rate of plain reads between steps"),
        audio: None,
    });
    steps.profiles.push((name, profile));
    Ok(())
}

/// Median seconds between frames and of reading a byte, and what the steps between frames were made of.
fn timed_steps(
    model: &Zonos2,
    batch: usize,
    bench: &Bench,
    words: &[u64],
) -> anyhow::Result<(f64, f64, Profile)> {
    let prompt = Prompt::builder(model.config()).text("Bench.").build()?;
    let sequences = vec![Sequence::from_prompt(&prompt, None)?; batch];
    let (mut times, mut reads, mut profiles) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..bench.repeat.max(1) {
        let options: Vec<_> = (0..batch)
            .map(|i| GenerateOptions {
                seed: (round * batch + i) as u64,
                max_frames: Some(2 * FRAMES),
                ignore_eos: true,
                cache_dtype: CacheDType::F16,
                ..GenerateOptions::default()
            })
            .collect();
        let mut last = Instant::now();
        let mut total = 0.0;
        model.generate(&sequences, &options, &mut |frame| {
            if frame.sequence == 0 {
                let step = last.elapsed().as_secs_f64();
                if frame.index >= FRAMES {
                    times.push(step);
                    total += step;
                }
                if frame.index + 1 == 2 * FRAMES {
                    profiles.push(step_profile::end(FRAMES, total));
                }
                reads.push(read_once(words, bench.threads) / READ as f64);
                if frame.index + 1 == FRAMES {
                    step_profile::begin();
                }
                last = Instant::now();
            }
            ControlFlow::Continue(())
        })?;
    }
    let profile = Profile::merged(profiles);
    Ok((
        median(&mut times),
        median(&mut reads),
        profile.ok_or_else(|| anyhow::anyhow!("no step was measured"))?,
    ))
}
