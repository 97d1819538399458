//! Ctrl-C: stop at the next safe point, and leave no half-written file.
//!
//! Commands that work in steps (frames, blocks) ask [`requested`] between steps and return
//! [`Failure::Interrupted`]. Elsewhere, as while weights load, the signal handler removes unfinished
//! files and ends the process.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::failure::Failure;

static REQUESTED: AtomicBool = AtomicBool::new(false);
static STEPPING: AtomicBool = AtomicBool::new(false);
static ENDING: AtomicBool = AtomicBool::new(false);

/// Installs the handler for Ctrl-C, SIGTERM and SIGHUP.
pub(crate) fn install() {
    // Only fails when a handler is already there; then that one decides.
    let _ = ctrlc::set_handler(|| {
        let again = REQUESTED.swap(true, Ordering::SeqCst);
        if again || !STEPPING.load(Ordering::SeqCst) {
            ENDING.store(true, Ordering::SeqCst);
            let code = Failure::Interrupted.announce();
            zonos_audio::exit_discarding_unfinished(i32::from(code));
        }
    });
}

/// Waits for the end when the signal handler is ending the process. What the command met in the
/// meantime, such as a temporary file that is gone, is neither news nor the exit code.
pub(crate) fn give_way() {
    while ENDING.load(Ordering::SeqCst) {
        std::thread::park();
    }
}

/// Whether the user asked to stop.
pub(crate) fn requested() -> bool {
    REQUESTED.load(Ordering::SeqCst)
}

/// The same as an answer to libraries that ask before each step.
pub(crate) fn go_on() -> ControlFlow<()> {
    if requested() {
        ControlFlow::Break(())
    } else {
        ControlFlow::Continue(())
    }
}

/// Stops here if the user asked to.
pub(crate) fn check() -> Result<(), Failure> {
    if requested() {
        Err(Failure::Interrupted)
    } else {
        Ok(())
    }
}

/// While this lives, the command asks [`requested`] by itself and the first Ctrl-C only sets it.
/// The second one still ends the process at once.
pub(crate) struct Stepping(());

impl Stepping {
    /// Begins a stretch of work that polls.
    pub(crate) fn begin() -> Self {
        STEPPING.store(true, Ordering::SeqCst);
        Self(())
    }
}

impl Drop for Stepping {
    fn drop(&mut self) {
        STEPPING.store(false, Ordering::SeqCst);
    }
}
