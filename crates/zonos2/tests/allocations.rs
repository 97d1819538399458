//! What a decode step asks of the allocator: as much at every position, and nothing that it keeps.
//!
//! One test, in a binary of its own: the counts are those of the whole process.

use std::ops::ControlFlow;

use burn::tensor::Device;
use dhat::HeapStats;
use zonos2::{CacheDType, GenerateOptions, Prompt, SamplerOptions, Sequence, Zonos2};

#[global_allocator]
static COUNTING: dhat::Alloc = dhat::Alloc;

/// Frames that may make buffers which later ones use again.
const WARM_UP: usize = 4;
/// Frames that are compared.
const FRAMES: usize = 100;

/// Allocator counts between one frame of the first sequence and the next.
#[derive(Debug, PartialEq, Eq)]
struct Step {
    blocks: u64,
    bytes: u64,
    /// Bytes alive at the end that were not at the beginning.
    kept: i64,
}

#[test]
fn a_step_allocates_the_same_wherever_it_is() {
    // Where allocations come from is not asked; short traces save time.
    let _counting = dhat::Profiler::builder()
        .testing()
        .trim_backtraces(Some(4))
        .build();
    let fixture = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../validation/fixtures/zonos2/tiny/model.safetensors"
    );
    let model = Zonos2::load(fixture, &Device::flex()).expect("fixture loads");
    // Handing work to other threads allocates now and then; one that works itself does not.
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build();
    pool.expect("a thread").install(|| {
        for dtype in [CacheDType::F16, CacheDType::F32] {
            let alone = steps(&model, 1, dtype, FRAMES);
            constant(&alone);
            // A longer cache is not copied.
            assert_eq!(alone[0], steps(&model, 1, dtype, 8 * FRAMES)[0]);
            constant(&steps(&model, 3, dtype, FRAMES));
        }
    });
}

/// The steps after the first few of a batch whose caches have room for `room` frames.
fn steps(model: &Zonos2, batch: usize, cache_dtype: CacheDType, room: usize) -> Vec<Step> {
    let prompt = Prompt::builder(model.config()).text("Count.").build();
    let prompt = prompt.expect("a prompt");
    let sequence = Sequence::from_prompt(&prompt, None).expect("no voice, no slot");
    // All sequences of a batch are alike: what a step allocates depends on how many experts they draw.
    let options = GenerateOptions {
        sampler: SamplerOptions::default(),
        seed: 1,
        max_frames: Some(room),
        ignore_eos: true,
        cache_dtype,
        ..GenerateOptions::default()
    };
    let options = vec![options; batch];
    let mut counts: Vec<HeapStats> = Vec::with_capacity(FRAMES);
    let sequences = vec![sequence; batch];
    model
        .generate(&sequences, &options, &mut |frame| {
            if frame.sequence > 0 {
                return ControlFlow::Continue(());
            }
            counts.push(HeapStats::get());
            if counts.len() == FRAMES {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        })
        .expect("generates");
    let steps = counts.windows(2).map(|pair| Step {
        blocks: pair[1].total_blocks - pair[0].total_blocks,
        bytes: pair[1].total_bytes - pair[0].total_bytes,
        kept: pair[1].curr_bytes as i64 - pair[0].curr_bytes as i64,
    });
    steps.skip(WARM_UP).collect()
}

/// All steps are as the first, which keeps nothing.
fn constant(steps: &[Step]) {
    assert_eq!(steps.len(), FRAMES - 1 - WARM_UP);
    println!("{:?}", steps[0]);
    assert_eq!(steps[0].kept, 0);
    for (i, step) in steps.iter().enumerate() {
        assert_eq!(*step, steps[0], "step {i} of {}", steps.len());
    }
}
