//! Bounds on a speech whose end the model does not find.

use clap::Args;

use super::number::{between, whole};

/// When speech is ended for the model. Both endings exit with code 3 and keep the file.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Limits")]
pub(crate) struct LimitArgs {
    /// Bound the speech to this many frames a byte of text; 0 = no bound. Slow speech reaches 11.
    #[arg(long, value_name = "N", default_value = "24", allow_negative_numbers = true, value_parser = whole::<u32>(0, 10_000))]
    pub frames_per_byte: u32,
    /// The bound of short texts, in frames.
    #[arg(long, value_name = "N", default_value = "260", allow_negative_numbers = true, value_parser = whole::<u32>(1, 10_000_000))]
    pub frame_floor: u32,
    /// Stop after this many seconds of one identical frame; 0 = never.
    #[arg(long, value_name = "S", default_value = "8", allow_negative_numbers = true, value_parser = between(0.0, 3600.0))]
    pub loop_breaker: f64,
}
