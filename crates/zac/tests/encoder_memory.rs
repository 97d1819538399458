//! Memory of an encode is bounded by the lane in flight, however long the audio.
#![allow(unsafe_code)] // an allocator cannot be measured otherwise

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering};

use burn::tensor::Device;
use common::fixture;
use zonos_audio::Waveform;
use zonos_zac::{SAMPLE_RATE, ZacEncoder};

struct Measuring;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on to the system's allocator with the arguments as they came.
unsafe impl GlobalAlloc for Measuring {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let live = LIVE.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(live, Ordering::Relaxed);
        // SAFETY: the caller's promises are those that the system's allocator asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static MEASURING: Measuring = Measuring;

/// Most bytes that encoding takes beyond what was there before it, and the bytes of its codes.
fn peak(encoder: &ZacEncoder, seconds: usize) -> (usize, usize) {
    let sample = |i: usize| 0.4 * (i as f32 * 0.021).sin() + 0.1 * (i as f32 * 0.37).cos();
    let samples = (0..seconds * SAMPLE_RATE as usize).map(sample).collect();
    let audio = Waveform::new(samples, SAMPLE_RATE);
    let before = LIVE.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let codes = encoder
        .encode_prepared(&audio, &mut |_| ControlFlow::Continue(()))
        .unwrap();
    assert_eq!(codes.frames(), 15 * seconds);
    let bytes = 4 * codes.values().len();
    (PEAK.load(Ordering::Relaxed) - before, bytes)
}

/// The longest input, ten minutes, against one of half a minute: only the codes grow. (Threads that
/// pack matrices side by side at one time and not at another account for the rest.)
#[test]
fn ten_minutes_take_no_more_than_half_a_minute() {
    let path = fixture("mini-encoder").join("model.safetensors");
    let encoder = ZacEncoder::load(path, &Device::flex()).unwrap();
    peak(&encoder, 2); // what is made once
    let (short, _) = peak(&encoder, 30);
    let (long, codes) = peak(&encoder, 600);
    println!("30 s: {short} bytes, 600 s: {long} bytes, of which codes {codes}");
    assert!(
        long < short + codes + short / 4,
        "{short} for 30 s, {long} for 600 s"
    );
}
