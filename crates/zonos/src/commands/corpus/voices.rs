//! Voices of the model's own: it speaks without one, and the speaker encoder listens.

use burn::tensor::Device;
use zonos_checkpoint::LoadOptions;
use zonos_dac::{Dac, DacParts};
use zonos_tts::{SpeakerEncoder, SpeechRequest, Tts, TtsError};
use zonos2::{GenerateOptions, Sequence, Zonos2, Zonos2Config};

use super::traces::text_of;
use super::{CorpusArgs, Named, speak};
use crate::args::takes_voices;
use crate::cloning::{self, ENCODER_HUB, ENCODER_NAMES};
use crate::commands::tts::refused;
use crate::failure::Failure;
use crate::output;
use crate::weights::{self, CODEC_HUB, CODEC_NAMES};

/// Seeds of the voices.
const SEEDS: [u64; 4] = [7, 17, 27, 37];

/// Frames that a voice is made of, 2.3 s.
const FRAMES: usize = 200;

/// The two models that make voices.
pub(super) struct Maker {
    codec: Dac,
    encoder: SpeakerEncoder,
}

impl Maker {
    /// Opens the codec and the encoder that were given, or that lie in the model's folder. Without one of
    /// them there is none, which is said on stderr, and refused where the other one was asked for.
    pub(super) fn find(
        args: &CorpusArgs,
        config: &Zonos2Config,
        device: &Device,
        quiet: bool,
    ) -> Result<Option<Self>, Failure> {
        let (of_codec, of_encoder) = (args.codec.as_deref(), args.speaker_encoder.as_deref());
        if of_codec.or(of_encoder).is_some() {
            takes_voices(config)?;
        } else if !config.speaker_enabled {
            return Ok(None);
        }
        let codec = look_for_codec(of_codec, &args.model);
        let encoder = cloning::look_for_encoder(of_encoder, Some(&args.model));
        let (codec, encoder) = match (codec, encoder) {
            (Some(codec), Some(encoder)) => (codec, encoder),
            (codec, encoder) => {
                let missing = missing(&args.model, codec.is_none(), encoder.is_none());
                if of_codec.or(of_encoder).is_some() {
                    return Err(Failure::usage(format!(
                        "{missing}; or use voices with --voices DIR"
                    )));
                }
                output::note(
                    quiet,
                    format_args!(
                        "note: the corpus has no traces with voices: {missing}; or use voices with --voices DIR"
                    ),
                );
                return Ok(None);
            }
        };
        let outputs = [("--output", args.output.as_path())];
        let encoder = cloning::open_encoder(&encoder, &outputs, device, quiet)?;
        encoder.check(config.speaker_embedding_dim)?;
        let checkpoint = weights::find_codec(&codec, quiet)?;
        output::spares(&checkpoint, &codec, &outputs)?;
        let parts = DacParts::Decoder;
        let (codec, report) = Dac::load_parts(&checkpoint, parts, &LoadOptions::default(), device)?;
        weights::warn(&report, false);
        Ok(Some(Self { codec, encoder }))
    }

    /// Lets `model` speak once for each voice, and makes the vectors of what is heard.
    pub(super) fn make(
        self,
        model: Zonos2,
        args: &CorpusArgs,
        texts: Option<&[String]>,
        quiet: bool,
    ) -> Result<(Zonos2, Vec<Named>), Failure> {
        // Refuses a codec that does not play what the model makes.
        let tts = Tts::new(model, self.codec)?;
        let config = tts.backbone().config();
        let seeds = SEEDS.map(|seed| args.seed.wrapping_add(seed));
        let mut sequences = Vec::new();
        for i in 0..SEEDS.len() {
            let request = SpeechRequest::new(text_of(texts, i));
            request.check().map_err(refused)?;
            let prompt = request.prompt(config).map_err(refused)?;
            sequences.push(Sequence::from_prompt(&prompt, None)?);
        }
        let options = GenerateOptions {
            max_frames: Some(FRAMES),
            ignore_eos: true,
            ..GenerateOptions::default()
        };
        let spoken = speak(
            tts.backbone(),
            &sequences,
            &seeds,
            &options,
            "speaking voices",
            quiet,
        )
        .map_err(|failure| weights::of_model(failure, &args.model))?;
        let mut voices = Vec::new();
        for (seed, generation) in seeds.into_iter().zip(&spoken) {
            let failed = |error: TtsError| {
                Failure::failed(format!(
                    "the speech of seed {seed} makes no voice: {error}; try another --seed, or give voices with --voices DIR"
                ))
            };
            let codes = generation.codec_codes(config);
            if codes.frames() == 0 {
                return Err(failed(TtsError::NoAudio { seed }));
            }
            let heard = tts.codec().decode(&codes)?;
            voices.push(Named {
                name: format!("seed-{seed}"),
                voice: self.encoder.clone_voice(&heard).map_err(failed)?,
            });
            crate::interrupt::check()?;
        }
        Ok((tts.into_backbone(), voices))
    }
}

/// The codec: the flag's, the environment's, or one in the folder of the model.
fn look_for_codec(flag: Option<&str>, model: &str) -> Option<String> {
    let set = std::env::var("ZONOS_CODEC").ok();
    let given = flag.or(set.as_deref()).filter(|name| !name.is_empty());
    given.map(str::to_owned).or_else(|| {
        let beside = weights::beside(model, &CODEC_NAMES);
        beside.map(|path| path.to_string_lossy().into_owned())
    })
}

/// What is missing, and how to give it.
fn missing(model: &str, codec: bool, encoder: bool) -> String {
    let part = |what: &str, flag: &str, hub: &str, names: &[&str]| {
        // Beside a hub id nothing is looked for.
        let beside = if model.starts_with("hub:") {
            String::new()
        } else {
            format!(", or one of {} in the folder of {model}", names.join(", "))
        };
        format!("a {what} ({flag}, such as {hub}{beside})")
    };
    let mut parts = Vec::new();
    if codec {
        parts.push(part("codec", "--codec", CODEC_HUB, &CODEC_NAMES));
    }
    if encoder {
        let flag = "--speaker-encoder";
        parts.push(part("speaker encoder", flag, ENCODER_HUB, &ENCODER_NAMES));
    }
    format!("making them also takes {}", parts.join(" and "))
}
