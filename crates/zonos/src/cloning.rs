//! From a recording to a voice, for the commands that clone.

use std::path::{Path, PathBuf};

use burn::tensor::Device;
use zonos_checkpoint::LoadOptions;
use zonos_tts::{SpeakerEncoder, Voice};

use crate::failure::Failure;
use crate::{output, weights};

/// The variable that names the encoder where no flag does.
const VARIABLE: &str = "ZONOS_SPEAKER_ENCODER";

/// Where an encoder can be had.
pub(crate) const ENCODER_HUB: &str = "hub:marksverdhei/Qwen3-Voice-Embedding-12Hz-1.7B";

/// Names under which the encoder is looked for in the model's folder, in this order.
pub(crate) const ENCODER_NAMES: [&str; 4] = [
    "speaker-encoder",
    "speaker_encoder",
    "speaker-encoder.safetensors",
    // As the C++ programs call it.
    "spk-encoder.gguf",
];

/// The encoder to use: the flag's, the environment's, or one in the folder of `model`.
pub(crate) fn find_encoder(
    flag: Option<&str>,
    model: Option<&str>,
    recording: &Path,
) -> Result<String, Failure> {
    look_for_encoder(flag, model).ok_or_else(|| {
            let looked = match model {
                Some(model) if !model.starts_with("hub:") => {
                    format!(" or put {} into the model's folder", ENCODER_NAMES.join(", "))
                }
                _ => String::new(),
            };
            Failure::usage(format!(
                "{}: a recording becomes a voice through a speaker encoder; give one with --speaker-encoder, such as {ENCODER_HUB}, or {VARIABLE},{looked}",
                recording.display()
            ).trim_end_matches(',').to_owned())
        })
}

/// As [`find_encoder`], where none is no failure.
pub(crate) fn look_for_encoder(flag: Option<&str>, model: Option<&str>) -> Option<String> {
    let set = std::env::var(VARIABLE).ok();
    let given = flag.or(set.as_deref()).filter(|name| !name.is_empty());
    given.map(str::to_owned).or_else(|| {
        let beside = model.and_then(|model| weights::beside(model, &ENCODER_NAMES));
        beside.map(|path: PathBuf| path.to_string_lossy().into_owned())
    })
}

/// Opens and loads the encoder, none of whose files may be one of `outputs`.
pub(crate) fn open_encoder(
    reference: &str,
    outputs: &[(&str, &Path)],
    device: &Device,
    quiet: bool,
) -> Result<SpeakerEncoder, Failure> {
    let checkpoint = weights::open_speaker_encoder(reference, quiet)?;
    output::spares(&checkpoint, reference, outputs)?;
    let (encoder, report) = SpeakerEncoder::open(&checkpoint, &LoadOptions::default(), device)?;
    weights::warn(&report, false);
    // A hub id says more than the folder of its snapshot.
    Ok(match reference.strip_prefix("hub:") {
        Some(_) => encoder.named(reference),
        None => encoder,
    })
}

/// The voice of a recording, and what was odd about the file, which is also said on stderr unless
/// `silent`: a report goes there alone.
pub(crate) fn clone_file(
    encoder: &SpeakerEncoder,
    recording: &Path,
    silent: bool,
) -> Result<(Voice, Vec<String>), Failure> {
    let (voice, warnings) = encoder.clone_file(recording)?;
    for warning in &warnings {
        output::note(
            silent,
            format_args!("warning: {}: {warning}", recording.display()),
        );
    }
    Ok((voice, warnings))
}
