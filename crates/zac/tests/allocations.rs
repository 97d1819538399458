//! A push allocates for its own frames, however long the stream has been.
#![allow(unsafe_code)] // an allocator cannot be counted otherwise

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use common::{codes, decoder, rows};

struct Counting;

static ALLOCATED: AtomicUsize = AtomicUsize::new(0);
static LIVE: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on to the system's allocator with the arguments as they came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.fetch_add(layout.size(), Ordering::Relaxed);
        LIVE.fetch_add(layout.size(), Ordering::Relaxed);
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
static COUNTING: Counting = Counting;

/// One count at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// Frames of a stretch of the stream: a common multiple of the periods in which buffers move.
const STRETCH: usize = 120;

#[test]
fn pushes_cost_the_same_however_late() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let decoder = decoder("mini-full");
    for step in [1, 2, 4] {
        let codes = codes(8 * STRETCH, 3, true);
        let mut stream = decoder.stream();
        let mut stretches = Vec::new();
        for stretch in 0..8 {
            let before = ALLOCATED.load(Ordering::Relaxed);
            for t in (0..STRETCH).step_by(step) {
                let at = stretch * STRETCH + t;
                stream.decode(&rows(&codes, at..at + step)).unwrap();
            }
            let allocated = ALLOCATED.load(Ordering::Relaxed) - before;
            stretches.push((allocated, LIVE.load(Ordering::Relaxed)));
        }
        // The first stretch fills the windows.
        let (early, late) = (stretches[1], stretches[7]);
        assert!(
            late.0 as f64 <= early.0 as f64 * 1.02,
            "{step} frames a push: {} bytes allocated in frames 120 to 240, {} in frames 840 to 960",
            early.0,
            late.0
        );
        assert!(
            late.1 <= early.1 + (64 << 10),
            "{step} frames a push: {} bytes alive after 240 frames, {} after 960",
            early.1,
            late.1
        );
    }
}

/// A fork shares what it has until one of the two goes on.
#[test]
fn a_fork_is_cheap() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let decoder = decoder("mini-full");
    let codes = codes(60, 3, true);
    let mut stream = decoder.stream();
    stream.decode(&codes).unwrap();
    let before = LIVE.load(Ordering::Relaxed);
    let forks: Vec<_> = (0..100).map(|_| stream.fork()).collect();
    let each = (LIVE.load(Ordering::Relaxed).saturating_sub(before)) / forks.len();
    // Copied, the keys and values of ten layers alone would take more than 40 kB.
    assert!(each < 16 << 10, "{each} bytes a fork");
}
