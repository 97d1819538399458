//! What to speak and how: plain values, checked once into a [`Plan`] that cannot be wrong.

use zonos2::conditioning::{self, Quality};
use zonos2::{
    GenerateOptions, Limits, Prompt, PromptError, SamplerOptions, Sequence, SpeakerVector,
    Zonos2Config, random_seed,
};

use crate::TtsError;

/// The longest fade-out, in milliseconds.
pub const MAX_FADE_MS: f64 = 60_000.0;

/// Frames that a byte of text takes at the very least: 43 bytes a second, faster than the fastest
/// speaking-rate bucket of the released model. A text that does not fit even so is refused.
const FEWEST_FRAMES_PER_BYTE: usize = 2;

/// Further seeds that are tried when a request leaves the seed open and the model ends the speech
/// before its first frame.
const FRESH_DRAWS: u32 = 8;

/// A speaking rate to ask for.
#[derive(Debug, Clone, PartialEq)]
pub enum SpeakingRate {
    /// A bucket by number, slowest first.
    Bucket(usize),
    /// A bucket by its label, such as `"17-21"` (bytes of text a second).
    Label(String),
    /// The bucket that holds this many bytes of text a second.
    BytesPerSecond(f64),
}

/// Whose voice to speak with.
#[derive(Debug, Clone, PartialEq)]
pub struct Speaker {
    /// The speaker vector, `speaker_embedding_dim` numbers; see [`zonos2::SpeakerVector`].
    pub vector: Vec<f32>,
    /// Prompt row that it replaces; 0 in every known use.
    pub position: usize,
}

/// A text to speak, with everything that shapes its audio.
///
/// Only the text has no default. Values are free until [`plan`](Self::plan) checks them all.
///
/// ```
/// use zonos_tts::SpeechRequest;
///
/// let request = SpeechRequest {
///     seed: Some(7),
///     fade_out_ms: 20.0,
///     ..SpeechRequest::new("Hello, world.")
/// };
/// assert!(request.check().is_ok());
/// assert!(SpeechRequest::new(" \n").check().is_err());
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct SpeechRequest {
    /// The text, spoken byte by byte as it is; nothing is normalised. Text without a letter or a
    /// digit (`"..."`, an emoji) is spoken too, within the same bound on its length; only text of
    /// nothing but white space, control and invisible characters is refused.
    pub text: String,
    /// Whose voice; `None` leaves the voice to the model.
    pub voice: Option<Speaker>,
    /// Speaking rate; `None` leaves it to the model.
    pub speaking_rate: Option<SpeakingRate>,
    /// What the recording should sound like: quality rows by bucket or measured value.
    pub quality: Quality,
    /// With a voice: keep to the text. On by default, as in the original.
    pub accurate: bool,
    /// With a voice: ask for a clean background. Off by default, as in the original.
    pub clean_background: bool,
    /// How codes are drawn.
    pub sampler: SamplerOptions,
    /// Seed of the draws; `None` draws a fresh one, and another when the model ends the speech
    /// before its first frame with it. [`Speech::seed`](crate::Speech::seed) tells which it was.
    pub seed: Option<u64>,
    /// Most generated frames; `None` is what the context holds.
    pub max_frames: Option<usize>,
    /// Bounds on speech whose end the model does not find.
    pub limits: Limits,
    /// Milliseconds at the end over which the audio fades out, as half a cosine.
    pub fade_out_ms: f64,
}

impl SpeechRequest {
    /// `text` with the defaults of the original library and the default limits.
    pub fn new(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            voice: None,
            speaking_rate: None,
            quality: Quality::Default,
            accurate: true,
            clean_background: false,
            sampler: SamplerOptions::default(),
            seed: None,
            max_frames: None,
            limits: Limits::default(),
            fade_out_ms: 0.0,
        }
    }

    /// Checks what can be checked without a model.
    ///
    /// # Errors
    /// [`TtsError::BlankText`] or [`TtsError::OutOfRange`].
    pub fn check(&self) -> Result<(), TtsError> {
        if is_blank(&self.text) {
            return Err(TtsError::BlankText {
                bytes: self.text.len(),
            });
        }
        if !(0.0..=MAX_FADE_MS).contains(&self.fade_out_ms) {
            return Err(TtsError::OutOfRange {
                field: "fade_out_ms",
                problem: format!(
                    "expected 0 to {MAX_FADE_MS} milliseconds, found {}",
                    self.fade_out_ms
                ),
            });
        }
        if self.max_frames == Some(0) {
            return Err(TtsError::OutOfRange {
                field: "max_frames",
                problem: "expected at least one frame, found 0".to_owned(),
            });
        }
        let finite = self.sampler.temperature.is_finite()
            && self.sampler.top_p.is_finite()
            && self.sampler.min_p.is_finite()
            && self.sampler.repetition_penalty.is_finite();
        if !finite {
            return Err(TtsError::OutOfRange {
                field: "sampler",
                problem: format!("expected finite numbers, found {:?}", self.sampler),
            });
        }
        Ok(())
    }

    /// The prompt rows of this request. Unlike [`plan`](Self::plan) it takes any text, empty too.
    ///
    /// # Errors
    /// The request conditions on a bucket or a voice that the model does not have.
    pub fn prompt(&self, config: &Zonos2Config) -> Result<Prompt, TtsError> {
        if let Some(unknown) = self.quality.unknown_features(config).first() {
            let known: Vec<&str> = config
                .quality_features
                .iter()
                .map(|f| f.name.as_str())
                .collect();
            return Err(TtsError::OutOfRange {
                field: "quality",
                problem: format!(
                    "this model has no feature '{unknown}'; it has {}",
                    if known.is_empty() {
                        "none".to_owned()
                    } else {
                        known.join(", ")
                    }
                ),
            });
        }
        let prompt = Prompt::builder(config)
            .text(&self.text)
            .speaker(self.voice.is_some())
            .clean_background(self.clean_background)
            .accurate(self.accurate)
            .rate_bucket(self.rate_bucket(config)?)
            .quality(self.quality.resolve(config).map_err(PromptError::from)?)
            .build()
            .map_err(|error| match error {
                PromptError::TooLong { rows, .. } => self.too_long(rows, config.max_seqlen),
                other => TtsError::Conditioning(other),
            })?;
        match &self.voice {
            None => Ok(prompt),
            Some(voice) => {
                SpeakerVector::new(voice.vector.clone(), config.speaker_embedding_dim)?;
                Ok(prompt.with_speaker_position(voice.position)?)
            }
        }
    }

    fn rate_bucket(&self, config: &Zonos2Config) -> Result<Option<usize>, TtsError> {
        let Some(rate) = &self.speaking_rate else {
            return Ok(None);
        };
        let bucket = match rate {
            SpeakingRate::Bucket(bucket) => *bucket,
            SpeakingRate::BytesPerSecond(rate) => {
                conditioning::rate_bucket(config, *rate).map_err(PromptError::from)?
            }
            SpeakingRate::Label(label) => {
                let labels = &config.speaking_rate_buckets;
                labels
                    .iter()
                    .position(|known| known == label)
                    .ok_or_else(|| TtsError::OutOfRange {
                        field: "speaking_rate",
                        problem: format!(
                            "this model has no bucket labelled '{label}'; its labels are {}",
                            labels.join(", ")
                        ),
                    })?
            }
        };
        Ok(Some(bucket))
    }

    fn too_long(&self, rows: usize, context: usize) -> TtsError {
        let bytes = self.text.len();
        TtsError::TextTooLong {
            bytes,
            rows,
            context,
            fits: context.saturating_sub(rows.saturating_sub(bytes)) / (1 + FEWEST_FRAMES_PER_BYTE),
        }
    }

    /// Checks the request against a model and fixes everything that was left open, the seed too.
    ///
    /// Needs the model's parameters only, so it can be called before any weight is read.
    ///
    /// # Errors
    /// Whatever [`check`](Self::check) and [`prompt`](Self::prompt) refuse, and
    /// [`TtsError::TextTooLong`] when prompt and audio do not fit the model's context.
    pub fn plan(&self, config: &Zonos2Config) -> Result<Plan, TtsError> {
        self.check()?;
        let prompt = self.prompt(config)?;
        let (rows, context, bytes) = (prompt.len(), config.max_seqlen, self.text.len());
        let shortest = bytes.saturating_mul(FEWEST_FRAMES_PER_BYTE).max(1);
        let needed = self.max_frames.map_or(shortest, |most| most.min(shortest));
        if rows + needed > context {
            return Err(self.too_long(rows, context));
        }
        let (bound, _) = self
            .limits
            .frame_cap(bytes, self.max_frames, context - rows);
        let options = GenerateOptions {
            sampler: self.sampler,
            seed: self.seed.unwrap_or_else(random_seed),
            max_frames: self.max_frames,
            limits: Some(self.limits),
            ..GenerateOptions::default()
        };
        let vector = self.voice.as_ref().map(|voice| voice.vector.clone());
        Ok(Plan {
            sequence: Sequence::from_prompt(&prompt, vector)?,
            prompt_rows: rows,
            text_bytes: bytes,
            options,
            bound,
            fade_out_ms: self.fade_out_ms,
            draws_left: if self.seed.is_none() && !self.sampler.greedy {
                FRESH_DRAWS
            } else {
                0
            },
        })
    }
}

/// A request that a model can run as it is: made by [`SpeechRequest::plan`] alone.
#[derive(Debug, Clone)]
pub struct Plan {
    pub(crate) sequence: Sequence,
    pub(crate) options: GenerateOptions,
    pub(crate) fade_out_ms: f64,
    prompt_rows: usize,
    text_bytes: usize,
    bound: usize,
    draws_left: u32,
}

impl Plan {
    /// The request's seed, or the one drawn for it.
    pub fn seed(&self) -> u64 {
        self.options.seed
    }

    /// Draws another seed, if the request left it open and not too many were drawn already.
    pub(crate) fn redraw(&mut self) -> bool {
        if self.draws_left == 0 {
            return false;
        }
        self.draws_left -= 1;
        self.options.seed = random_seed();
        true
    }

    /// Rows of the prompt.
    pub fn prompt_rows(&self) -> usize {
        self.prompt_rows
    }

    /// Bytes of the text.
    pub fn text_bytes(&self) -> usize {
        self.text_bytes
    }

    /// Frames at which generation ends at the latest.
    pub fn frame_bound(&self) -> usize {
        self.bound
    }
}

/// Whether a text holds nothing to speak: only white space, control characters and characters that
/// have no width and no sound (zero-width space and joiners, direction marks, byte order mark).
fn is_blank(text: &str) -> bool {
    text.chars().all(|c| {
        c.is_whitespace()
            || c.is_control()
            || matches!(c,
                '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}'
                | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{fe00}'..='\u{fe0f}'
                | '\u{feff}')
    })
}
