//! The command line as data: every flag with its documentation, its default and its range.
//!
//! Ranges that depend on no file are checked here, by clap, so that a wrong flag is found before a
//! model is opened. What depends on the model (bucket names, voice length) is checked against its
//! parameter file before its weights are read.

mod conditioning;
mod device;
mod limits;
mod number;
mod request;
mod sampling;
mod text;
mod voice;
mod weights;

pub(crate) use conditioning::{ConditioningArgs, Rate};
pub(crate) use device::{ActivationArgs, CodecDeviceArgs, DeviceArgs};
pub(crate) use limits::LimitArgs;
pub(crate) use number::{between, fade_ms, whole};
pub(crate) use request::{prompt_request, request};
pub(crate) use sampling::SamplingArgs;
pub(crate) use text::read_text;
pub(crate) use voice::{
    CloneArgs, StoreArgs, VoiceArgs, VoiceFile, stored, takes_voices, voice_name,
};
pub(crate) use weights::{CodecArgs, ModelArgs};

use clap::{Args, Command as Definition, CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::commands;

/// Text to speech with ZONOS2 and DAC, and tools for their checkpoints.
#[derive(Debug, Parser)]
#[command(
    name = "zonos",
    version,
    about = "Text to speech with ZONOS2 and DAC, and tools for their checkpoints",
    propagate_version = true,
    subcommand_required = true,
    arg_required_else_help = true,
    after_help = "\
Start here (no weights needed, the built-in demo model speaks noise):
  zonos tts \"Hello, world.\" -o hello.wav
  zonos doctor

With weights:
  zonos tts \"Hello, world.\" -o hello.wav --model hub:Zyphra/ZONOS2 --codec hub:descript/dac_44khz

Exit codes:
  0    done
  1    a file, a device or the run failed
  2    the command line or the text is wrong; nothing was run
  3    the length bound, the loop breaker or a full context ended the speech; the file is kept
       (--max-frames is your own choice and exits with 0)
  130  interrupted (Ctrl-C); no file was written"
)]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// Flags of every command.
    #[command(flatten)]
    pub global: GlobalArgs,
}

impl Cli {
    /// Parses the command line; clap prints its own message and ends the process when it is wrong.
    pub(crate) fn read() -> Self {
        let matches = without_empty_variables(Self::command()).get_matches();
        Self::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
    }
}

/// An empty environment variable is how scripts spell "not set".
fn without_empty_variables(command: Definition) -> Definition {
    command
        .mut_args(|arg| {
            let empty = arg
                .get_env()
                .is_some_and(|name| std::env::var_os(name).is_some_and(|value| value.is_empty()));
            if empty { arg.env(None::<&str>) } else { arg }
        })
        .mut_subcommands(without_empty_variables)
}

/// Flags of every command.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Output")]
pub(crate) struct GlobalArgs {
    /// No progress bar and no notes on stderr; warnings and errors still show.
    #[arg(long, short, global = true)]
    pub quiet: bool,
    /// Print the result as one JSON object on stdout (on stderr when stdout carries audio).
    #[arg(long, global = true)]
    pub json: bool,
    /// CPU threads to compute with [default: all cores].
    #[arg(long, global = true, value_name = "N", env = "ZONOS_THREADS", allow_negative_numbers = true, value_parser = whole::<u16>(1, 1024))]
    pub threads: Option<u16>,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Speak a text into a sound file.
    Tts(Box<commands::tts::TtsArgs>),
    /// Write the prompt rows of a text, as the backbone sees them.
    Prompt(commands::prompt::PromptArgs),
    /// Generate codec codes from prompt rows.
    Generate(commands::generate::GenerateArgs),
    /// Run the backbone over given rows and write every intermediate tensor.
    Validate(commands::validate::ValidateArgs),
    /// Keep voices by name: add, list, remove, blend.
    Voices(commands::voices::VoicesArgs),
    /// Work with the codec alone.
    Dac(commands::dac::DacArgs),
    /// Work with the ZAC-1 codec: 44.1 kHz speech to ten codes a frame and back.
    Zac(Box<commands::zac::ZacArgs>),
    /// Compute the voice vector of a recording.
    Embed(commands::embed::EmbedArgs),
    /// Tell what a sound file holds, and convert it.
    Audio(commands::audio::AudioArgs),
    /// List a checkpoint: tensors, metadata, which model it is, what would not load and why.
    Inspect(commands::inspect::InspectArgs),
    /// Copy a checkpoint into another format.
    Convert(commands::convert::ConvertArgs),
    /// Write a GGUF file in fewer bits.
    Quantize(commands::quantize::QuantizeArgs),
    /// Collect which inputs of the experts matter, for quantize.
    Imatrix(commands::imatrix::ImatrixArgs),
    /// Measure a model on a corpus, and how far a quantised one is from the original.
    Perplexity(commands::perplexity::PerplexityArgs),
    /// Make a corpus to measure models on.
    Corpus(commands::corpus::CorpusArgs),
    /// Write the built-in demo model into a folder.
    DemoCheckpoint(commands::demo_checkpoint::DemoCheckpointArgs),
    /// Check on this machine and device that the engine computes what it should.
    Doctor(commands::doctor::DoctorArgs),
    /// Print the completion script of a shell.
    Completions(commands::completions::CompletionsArgs),
    /// Write the manual pages into a folder.
    Man(commands::man::ManArgs),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }
}
