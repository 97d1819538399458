//! Progress on stderr: frames, frames a second and the real-time factor.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Seconds of audio in a frame of the 44.1 kHz codec, where no codec is loaded that would tell.
pub(crate) const DAC_FRAME_SECONDS: f64 = 512.0 / 44_100.0;

/// A bar for work counted in codec frames. Draws nothing with `--quiet` or without a terminal.
pub(crate) struct FrameBar {
    bar: ProgressBar,
    began: Instant,
    frame_seconds: f64,
}

impl FrameBar {
    /// A bar that ends at `bound` frames at the latest; a frame lasts `frame_seconds` of audio.
    pub(crate) fn new(quiet: bool, label: &'static str, bound: u64, frame_seconds: f64) -> Self {
        let bar = bar(quiet, bound);
        bar.set_style(
            ProgressStyle::with_template("{prefix} [{bar:24}] {msg}")
                .unwrap_or_else(|_| ProgressStyle::default_bar())
                .progress_chars("=> "),
        );
        bar.set_prefix(label);
        Self {
            bar,
            began: Instant::now(),
            frame_seconds,
        }
    }

    /// Shows that `frames` are done.
    pub(crate) fn at(&self, frames: u64) {
        if self.bar.is_hidden() {
            return;
        }
        let rate = Rate::of(frames, self.began.elapsed(), self.frame_seconds);
        self.bar.set_position(frames);
        self.bar.set_message(format!(
            "{frames} frames, {:.1} frames/s, real-time factor {:.2}",
            rate.frames_per_s, rate.real_time_factor
        ));
    }

    /// Takes the bar away.
    pub(crate) fn done(&self) {
        self.bar.finish_and_clear();
    }
}

/// A bar for rows that a model runs over.
pub(crate) struct RowBar(ProgressBar);

impl RowBar {
    /// A bar that ends at `rows`.
    pub(crate) fn new(quiet: bool, label: &'static str, rows: u64) -> Self {
        let bar = bar(quiet, rows);
        bar.set_style(
            ProgressStyle::with_template("{prefix} [{bar:24}] {pos} of {len} rows, {eta} left")
                .unwrap_or_else(|_| ProgressStyle::default_bar())
                .progress_chars("=> "),
        );
        bar.set_prefix(label);
        bar.tick();
        Self(bar)
    }

    /// Shows that `rows` are done.
    pub(crate) fn at(&self, rows: u64) {
        self.0.set_position(rows);
    }

    /// Takes the bar away.
    pub(crate) fn done(&self) {
        self.0.finish_and_clear();
    }
}

/// A bar for bytes, as when a checkpoint is downloaded.
pub(crate) struct ByteBar(ProgressBar);

impl ByteBar {
    /// A bar of unknown length until [`at`](Self::at) tells it.
    pub(crate) fn new(quiet: bool) -> Self {
        let bar = bar(quiet, 0);
        bar.set_style(
            ProgressStyle::with_template(
                "{msg} [{bar:24}] {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left",
            )
            .unwrap_or_else(|_| ProgressStyle::default_bar())
            .progress_chars("=> "),
        );
        Self(bar)
    }

    /// Shows `done` of `total` bytes of `file`.
    pub(crate) fn at(&self, file: &str, done: u64, total: Option<u64>) {
        if self.0.message() != file {
            self.0.set_message(file.to_owned());
        }
        self.0.set_length(total.unwrap_or(done));
        self.0.set_position(done);
    }

    /// Takes the bar away.
    pub(crate) fn done(&self) {
        self.0.finish_and_clear();
    }
}

fn bar(quiet: bool, length: u64) -> ProgressBar {
    let target = if quiet {
        ProgressDrawTarget::hidden()
    } else {
        // Hides itself where stderr is no terminal.
        ProgressDrawTarget::stderr_with_hz(8)
    };
    ProgressBar::with_draw_target(Some(length), target)
}

/// Speed of generation, for the bar and for `--json`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Rate {
    /// Codec frames made in a second of computing.
    pub frames_per_s: f64,
    /// Seconds of computing for a second of audio; below 1 is faster than playing it.
    pub real_time_factor: f64,
}

impl Rate {
    /// The speed of making `frames` in `elapsed`.
    pub(crate) fn of(frames: u64, elapsed: Duration, frame_seconds: f64) -> Self {
        // A clock that did not move yet must not divide by zero.
        let seconds = elapsed.as_secs_f64().max(1e-9);
        let frames = frames as f64;
        Self {
            frames_per_s: frames / seconds,
            real_time_factor: if frames == 0.0 {
                0.0
            } else {
                seconds / (frames * frame_seconds)
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_what_they_say() {
        let rate = Rate::of(200, Duration::from_secs(4), 0.01);
        assert!((rate.frames_per_s - 50.0).abs() < 1e-9);
        assert!((rate.real_time_factor - 2.0).abs() < 1e-9);
        assert_eq!(Rate::of(0, Duration::ZERO, 0.01).real_time_factor, 0.0);
    }
}
