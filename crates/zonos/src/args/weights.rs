//! Which weights.

use clap::Args;

/// The backbone checkpoint of a command that needs one.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Weights")]
pub(crate) struct ModelArgs {
    /// ZONOS2 checkpoint: a folder, a file (.pth, .safetensors, .bpk) or hub:owner/name[@revision].
    #[arg(long, value_name = "DIR|FILE|hub:ID", env = "ZONOS_MODEL")]
    pub model: String,
}

/// The codec checkpoint of a command that needs one.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Weights")]
pub(crate) struct CodecArgs {
    /// DAC checkpoint: a folder, a file (.pth, .safetensors, .bpk) or hub:owner/name[@revision].
    #[arg(long, value_name = "DIR|FILE|hub:ID", env = "ZONOS_CODEC")]
    pub model: String,
}
