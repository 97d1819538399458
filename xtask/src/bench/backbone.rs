//! A decode step of the backbone at the released widths, with a few random layers.

use std::ops::ControlFlow;
use std::time::Instant;

use zonos_gguf::GgmlType;
use zonos2::{CacheDType, GenerateOptions, Prompt, Sequence, Zonos2};

use super::step_profile::{self, Profile};
use super::{Bench, Measurement, median};
use crate::random_backbone::{self, LAYERS, RandomBackbone};

/// Frames whose times are taken, after as many for warming up.
const FRAMES: usize = 24;
/// Batches measured.
const BATCHES: [usize; 2] = [1, 8];

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
    for &experts in types {
        let folder = tempfile::tempdir()?;
        let file = random_backbone::write(folder.path(), &config, experts)?;
        let model = Zonos2::load(&file.path, &bench.device)?;
        for batch in BATCHES {
            measure(bench, &model, &file, experts, batch, &mut steps)?;
        }
    }
    Ok(steps)
}

fn measure(
    bench: &Bench,
    model: &Zonos2,
    file: &RandomBackbone,
    experts: GgmlType,
    batch: usize,
    steps: &mut Steps,
) -> anyhow::Result<()> {
    let what = if experts.is_quantized() {
        format!("experts {experts}, spine f16")
    } else {
        experts.to_string()
    };
    let name = format!("zonos2 decode step, {LAYERS} layers, {what}, batch {batch}");
    let (step, profile) = timed_steps(model, batch, bench.repeat)?;
    // A batch shares all but the experts: each that is drawn is read once.
    let bytes = file.spine + file.expert * profile.experts;
    steps.lines.push(Measurement {
        name: name.clone(),
        ours: step,
        torch: None,
        floor: Some(bytes / bench.machine.read_bandwidth),
        floor_basis: Some("spine and experts drawn, at the plain read rate"),
        audio: None,
    });
    steps.profiles.push((name, profile));
    Ok(())
}

/// Median seconds between frames, and what the steps between them were made of.
fn timed_steps(model: &Zonos2, batch: usize, repeat: usize) -> anyhow::Result<(f64, Profile)> {
    let prompt = Prompt::builder(model.config()).text("Bench.").build()?;
    let sequences = vec![Sequence::from_prompt(&prompt, None)?; batch];
    let (mut times, mut profiles) = (Vec::new(), Vec::new());
    for round in 0..repeat.max(1) {
        let options: Vec<_> = (0..batch)
            .map(|i| GenerateOptions {
                seed: (round * batch + i) as u64,
                max_frames: Some(2 * FRAMES),
                ignore_eos: true,
                cache_dtype: CacheDType::F16,
                ..GenerateOptions::default()
            })
            .collect();
        let mut first = Instant::now();
        let mut last = first;
        model.generate(&sequences, &options, &mut |frame| {
            if frame.sequence == 0 {
                let now = Instant::now();
                if frame.index >= FRAMES {
                    times.push((now - last).as_secs_f64());
                }
                last = now;
                if frame.index + 1 == FRAMES {
                    first = now;
                    step_profile::begin();
                } else if frame.index + 1 == 2 * FRAMES {
                    profiles.push(step_profile::end(FRAMES, (now - first).as_secs_f64()));
                }
            }
            ControlFlow::Continue(())
        })?;
    }
    let profile = Profile::merged(profiles);
    Ok((
        median(&mut times),
        profile.ok_or_else(|| anyhow::anyhow!("no step was measured"))?,
    ))
}
