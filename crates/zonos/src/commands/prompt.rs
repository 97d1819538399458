//! `zonos prompt`: a text as the rows that the backbone sees.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use super::tts::refused;
use crate::args::{
    ConditioningArgs, GlobalArgs, ModelArgs, VoiceArgs, VoiceFile, prompt_request, read_text,
};
use crate::failure::Outcome;
use crate::{output, weights};

/// Arguments of `zonos prompt`.
#[derive(Debug, Args)]
#[command(after_help = "\
The file holds [rows, 10] <i4: nine audio ids and the text id of each row. Any UTF-8 text goes,
empty too. Only the model's params.json is read. With --speaker or --voice the rows begin with the voice's slot;
give the same vector to `zonos generate` or `zonos validate`.

Example:
  zonos prompt \"Hello, world.\" ids.npy --model zonos2 --speaking-rate 4
  zonos generate ids.npy codes.npy --model zonos2 --seed 7")]
pub(crate) struct PromptArgs {
    /// The text; - reads it from stdin.
    text: OsString,
    /// File to write.
    #[arg(value_name = "IDS.npy")]
    ids: PathBuf,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    voice: VoiceArgs,
    #[command(flatten)]
    conditioning: ConditioningArgs,
}

/// Runs the command.
pub(crate) fn run(args: &PromptArgs, global: &GlobalArgs) -> Outcome {
    output::check_file(&args.ids)?;
    let mut files = vec![("IDS.npy", args.ids.as_path())];
    let voice = args.voice.resolve()?;
    files.extend(voice.as_ref().map(VoiceFile::input));
    output::distinct(&files)?;
    let mut request = prompt_request(&args.conditioning);
    request.text = read_text(&args.text)?;
    let (checkpoint, config) = weights::open_backbone(&args.model.model, global.quiet)?;
    output::spares(&checkpoint, &args.model.model, &files[..1])?;
    request.voice = voice.map(|voice| voice.load(&config)).transpose()?;
    let prompt = request.prompt(&config).map_err(refused)?;
    prompt.save_npy(&args.ids)?;
    if global.json {
        output::print_json(&json!({
            "output": args.ids.display().to_string(),
            "rows": prompt.len(),
            "text_bytes": request.text.len(),
            "speaker_position": prompt.speaker_position(),
        }))?;
    } else {
        output::note(
            global.quiet,
            format_args!("{}: {} rows", args.ids.display(), prompt.len()),
        );
    }
    Ok(ExitCode::SUCCESS)
}
