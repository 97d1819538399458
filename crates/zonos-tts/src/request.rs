//! What to speak and how: plain values, checked once into a [`Plan`] that cannot be wrong.

use std::hash::{BuildHasher, Hasher};

use zonos2::{
    Conditioning, GenerateOptions, Limits, Prompt, SamplerOptions, Sequence, Zonos2Config,
};

use crate::TtsError;

/// The longest fade-out, in milliseconds.
pub const MAX_FADE_MS: f64 = 60_000.0;

/// Frames that a byte of text takes at the very least: 43 bytes a second, faster than the fastest
/// speaking-rate bucket of the released model. A text that does not fit even so is refused.
const FEWEST_FRAMES_PER_BYTE: usize = 2;

/// The quality row that the original puts into every prompt: feature and bucket.
///
/// Source: zonos2 `server/api_server.py` and `tts/llm.py`.
pub const DEFAULT_QUALITY: (&str, usize) = ("trailing_silence_s", 3);

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

/// The quality rows to put into the prompt.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum Quality {
    /// [`DEFAULT_QUALITY`], where the model has that feature.
    #[default]
    Default,
    /// No quality row.
    None,
    /// One row for each feature named, by bucket.
    Buckets(Vec<(String, usize)>),
    /// One row for each feature named, by measured value: decibels, seconds or hertz as the
    /// feature's labels have them.
    Values(Vec<(String, f64)>),
}

/// Whose voice to speak with.
#[derive(Debug, Clone, PartialEq)]
pub struct SpeakerVector {
    /// The speaker embedding, `speaker_embedding_dim` numbers.
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
    pub voice: Option<SpeakerVector>,
    /// Speaking rate; `None` leaves it to the model.
    pub speaking_rate: Option<SpeakingRate>,
    /// Quality rows.
    pub quality: Quality,
    /// With a voice: keep to the text. On by default, as in the original.
    pub accurate: bool,
    /// With a voice: ask for a clean background. Off by default, as in the original.
    pub clean_background: bool,
    /// How codes are drawn.
    pub sampler: SamplerOptions,
    /// Take the likeliest code instead of drawing.
    pub greedy: bool,
    /// Seed of the draws; `None` draws a fresh one, which [`Plan::seed`] tells.
    pub seed: Option<u64>,
    /// Most generated frames; `None` is what the context holds.
    pub max_frames: Option<usize>,
    /// Bounds on speech whose end the model does not find; `None` for no bound but the context.
    pub limits: Option<Limits>,
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
            greedy: false,
            seed: None,
            max_frames: None,
            limits: Some(Limits::default()),
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
        if let Some(voice) = &self.voice {
            check_voice(voice, config)?;
        }
        let conditioning = Conditioning {
            speaker: self.voice.is_some(),
            clean_background: self.clean_background,
            accurate: self.accurate,
            rate_bucket: self.rate_bucket(config)?,
            quality: self.quality_buckets(config)?,
        };
        Ok(Prompt::build(config, &self.text, &conditioning)?)
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
        let (rows, context) = (prompt.rows(), config.max_seqlen);
        let bytes = self.text.len();
        let shortest = bytes.saturating_mul(FEWEST_FRAMES_PER_BYTE).max(1);
        let needed = self.max_frames.map_or(shortest, |most| most.min(shortest));
        if rows + needed > context {
            let around = rows.saturating_sub(bytes);
            return Err(TtsError::TextTooLong {
                bytes,
                rows,
                context,
                fits: context.saturating_sub(around) / (1 + FEWEST_FRAMES_PER_BYTE),
            });
        }
        let seed = self.seed.unwrap_or_else(fresh_seed);
        let room = context - rows;
        let options = GenerateOptions {
            sampler: self.sampler.clone(),
            greedy: self.greedy,
            seed,
            max_frames: self.max_frames.map_or(room, |most| most.min(room)),
            limits: self.limits.clone(),
            ..GenerateOptions::default()
        };
        let bound = self
            .limits
            .as_ref()
            .and_then(|limits| limits.frame_cap(bytes))
            .map_or(options.max_frames, |cap| cap.min(options.max_frames));
        Ok(Plan {
            sequence: Sequence::from_prompt(&prompt),
            prompt_rows: rows,
            text_bytes: bytes,
            options,
            bound,
            fade_out_ms: self.fade_out_ms,
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
}

impl Plan {
    /// The seed in use: the request's, or the one drawn for it.
    pub fn seed(&self) -> u64 {
        self.options.seed
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

/// A seed nobody chose. Below 2^32, so that it is short to type and exact in any JSON reader.
pub fn fresh_seed() -> u64 {
    // The standard library's hasher keys come from the system's randomness.
    let mut hasher = std::hash::RandomState::new().build_hasher();
    hasher.write_u64(
        std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |since| since.as_nanos() as u64),
    );
    hasher.finish() >> 32
}
