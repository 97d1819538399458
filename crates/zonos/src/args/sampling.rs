//! How the next frame is drawn.

use clap::Args;

use super::number::{between, whole};

/// Sampler flags. Defaults are those of the original library.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct SamplingArgs {
    /// Seed of the random draws; the same seed gives the same audio on the same build and device.
    /// Without one a fresh seed is drawn and reported.
    #[arg(long, value_name = "N", env = "ZONOS_SEED", allow_negative_numbers = true, value_parser = whole::<u64>(0, u64::MAX))]
    pub seed: Option<u64>,
    /// Always take the likeliest code (after the repetition penalty) instead of drawing.
    #[arg(long)]
    pub greedy: bool,
    /// Flatter (above 1) or sharper (below 1) distributions; 0 is the limit of --greedy.
    #[arg(long, value_name = "T", default_value = "1.15", allow_negative_numbers = true, value_parser = between(0.0, 100.0))]
    pub temperature: f64,
    /// Draw among the K likeliest codes; 0 = all.
    #[arg(long, value_name = "K", default_value = "106", allow_negative_numbers = true, value_parser = whole::<u32>(0, u32::MAX))]
    pub top_k: u32,
    /// Draw among the likeliest codes that hold this share of the probability; 0 = off.
    #[arg(long, value_name = "P", default_value = "0", allow_negative_numbers = true, value_parser = between(0.0, 1.0))]
    pub top_p: f64,
    /// Leave out codes less likely than this share of the likeliest; 0 = off.
    #[arg(long, value_name = "P", default_value = "0.18", allow_negative_numbers = true, value_parser = between(0.0, 1.0))]
    pub min_p: f64,
    /// Frames back in which a code counts as repeated; 0 = off.
    #[arg(long, value_name = "FRAMES", default_value = "50", allow_negative_numbers = true, value_parser = whole::<u32>(0, u32::MAX))]
    pub repetition_window: u32,
    /// How much a repeated code loses; 1 = nothing.
    #[arg(long, value_name = "R", default_value = "1.2", allow_negative_numbers = true, value_parser = between(1.0, 100.0))]
    pub repetition_penalty: f64,
    /// Codebooks the penalty covers, counted from the first; -1 = all.
    #[arg(long, value_name = "N", default_value = "8", allow_negative_numbers = true, value_parser = whole::<i32>(-1, 256))]
    pub repetition_codebooks: i32,
    /// Stop after N generated frames (86.13 frames are a second); the exit code is 0 then
    /// [default: what the context holds].
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = whole::<u32>(1, u32::MAX))]
    pub max_frames: Option<u32>,
}
