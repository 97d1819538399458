//! Which weights.

use clap::Args;
use clap::builder::NonEmptyStringValueParser;

/// The backbone checkpoint of a command that needs one.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Weights")]
pub(crate) struct ModelArgs {
    /// ZONOS2 checkpoint: a folder, a file (.gguf, .pth, .safetensors, .bpk) or hub:owner/name[@revision].
    #[arg(long, value_name = "DIR|FILE|hub:ID", env = "ZONOS_MODEL", value_parser = NonEmptyStringValueParser::new())]
    pub model: String,
}

/// The codec checkpoint of a command that needs one.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Weights")]
pub(crate) struct CodecArgs {
    /// DAC checkpoint: a folder (also a model's that holds codec/), a file (.gguf, .pth, .safetensors, .bpk)
    /// or hub:owner/name[@revision], such as hub:descript/dac_44khz.
    #[arg(long, value_name = "DIR|FILE|hub:ID", env = "ZONOS_CODEC", value_parser = NonEmptyStringValueParser::new())]
    pub model: String,
}
