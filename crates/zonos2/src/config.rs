//! Architecture and conditioning layout, read from a checkpoint's `params.json`.
//!
//! Everything else in this crate takes its sizes from [`Zonos2Config`]: tensor shapes, the expert
//! pattern, the number of codebooks, and where the conditioning ids sit in the text table.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

/// The file name looked for when [`Zonos2Config::load`] is given a directory.
pub const PARAMS_FILE: &str = "params.json";

/// A `params.json` is a few kilobytes; anything near this is another file.
const MAX_PARAMS_BYTES: u64 = 16 << 20;

/// Text ids below this one are control ids and UTF-8 bytes (192 + 0..=255); conditioning ids and
/// the text padding id come after them.
pub const FIRST_CONDITIONING_ID: usize = 448;

/// Why a configuration was refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file could not be read.
    #[error("{}: cannot read the model parameters: {source}", path.display())]
    Io {
        /// The file that was opened.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is far larger than any parameter file.
    #[error("{}: {bytes} bytes is too large for model parameters; expected a params.json of a few kilobytes", path.display())]
    TooLarge {
        /// The file that was opened.
        path: PathBuf,
        /// Its size.
        bytes: u64,
    },
    /// The file is not JSON.
    #[error("{}: not a JSON parameter file: {source}", path.display())]
    Json {
        /// The file that was parsed.
        path: PathBuf,
        /// Where parsing stopped.
        source: serde_json::Error,
    },
    /// The metadata of a GGUF file are wrong.
    #[error("{}: {problem}", path.display())]
    Metadata {
        /// The file.
        path: PathBuf,
        /// Which key, what was expected and what was found.
        problem: String,
    },
    /// A field is missing, has the wrong type or a value the model cannot have.
    #[error("{}field `{field}`: {problem}", prefix(path))]
    Field {
        /// The file, when the values came from one.
        path: Option<PathBuf>,
        /// Name of the field in `params.json`.
        field: String,
        /// What was expected and what was found.
        problem: String,
    },
}

fn prefix(path: &Option<PathBuf>) -> String {
    path.as_ref()
        .map_or_else(String::new, |p| format!("{}: ", p.display()))
}

impl ConfigError {
    fn field(field: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Field {
            path: None,
            field: field.into(),
            problem: problem.into(),
        }
    }

    fn in_file(mut self, file: &Path) -> Self {
        if let Self::Field { path, .. } = &mut self {
            *path = Some(file.to_path_buf());
        }
        self
    }
}

/// How the per-expert balancing bias enters the routing score.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Balancing {
    /// `score = probability + bias`; what the released checkpoint uses (its file has no key).
    #[default]
    Legacy,
    /// `score = probability - bias`.
    Quantile,
}

impl Balancing {
    /// The sign the bias is multiplied with before it is added to the probability.
    pub fn sign(self) -> f32 {
        match self {
            Self::Legacy => 1.0,
            Self::Quantile => -1.0,
        }
    }

    fn parse(name: &str) -> Option<Self> {
        match name.trim().to_lowercase().replace('-', "_").as_str() {
            "old" | "legacy" | "aux" | "aux_loss" => Some(Self::Legacy),
            "current" | "quantile" | "qbalancing" => Some(Self::Quantile),
            _ => None,
        }
    }
}

/// One conditioning feature of the recording's quality, with the labels of its buckets in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QualityFeature {
    /// Name used in requests, for example `lufs`.
    pub name: String,
    /// One label a bucket: a range `"0-0.5"`, an open range `"4+"`, or an exact value.
    pub labels: Vec<String>,
}

/// Sizes and conditioning of a ZONOS2 backbone.
///
/// Built by [`from_json`](Self::from_json), [`load`](Self::load) or [`released`](Self::released),
/// which check that the values fit together; a configuration edited by hand can be checked again
/// with [`validate`](Self::validate).
///
/// ```
/// let config = zonos2::Zonos2Config::released();
/// assert_eq!((config.n_layers, config.n_heads(), config.n_kv_heads()), (28, 16, 4));
/// assert_eq!(config.ffn_dim(), 3072);
/// assert!(!config.is_expert_layer(2) && config.is_expert_layer(3) && !config.is_expert_layer(27));
/// assert_eq!((config.experts_per_token(25), config.experts_per_token(26)), (1, 2));
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Zonos2Config {
    /// Transformer layers.
    pub n_layers: usize,
    /// Width of the residual stream.
    pub dim: usize,
    /// Width of one attention head.
    pub head_dim: usize,
    /// Query heads as the file gives them; `None` means `dim / head_dim`. See [`n_heads`](Self::n_heads).
    pub n_heads: Option<usize>,
    /// Key/value heads as the file gives them; `None` means as many as query heads.
    pub n_kv_heads: Option<usize>,
    /// Feed-forward width as a multiple of `dim`, before rounding. See [`ffn_dim`](Self::ffn_dim).
    pub ffn_dim_multiplier: f64,
    /// The feed-forward width is rounded up to a multiple of this.
    pub multiple_of: usize,
    /// Epsilon of every norm but the one on queries and keys.
    pub norm_eps: f64,
    /// Base of the rotary angles.
    pub rope_theta: f64,
    /// Positions a sequence may have, prompt included.
    pub max_seqlen: usize,
    /// Audio codebooks a frame.
    pub n_codebooks: usize,
    /// Entries of a codebook; codec codes are `0..codebook_size`.
    pub codebook_size: usize,
    /// Id that marks the end of the audio.
    pub eoa_id: usize,
    /// Id of a cell that carries no audio.
    pub audio_pad_id: usize,
    /// Text ids, conditioning ids included; the padding id is this number, so the table has one row more.
    pub text_vocab: usize,
    /// Logits are `cap * tanh(raw / cap)`; zero or less leaves them alone. See [`softcap`](Self::softcap).
    pub loss_softcap: f64,
    /// Whether the model takes a speaker vector.
    pub speaker_enabled: bool,
    /// Length of a speaker vector.
    pub speaker_embedding_dim: usize,
    /// Width between the two speaker projections; `None` means there is only one projection.
    pub speaker_lda_dim: Option<usize>,
    /// Whether prompts with a speaker carry a clean/noisy background marker.
    pub speaker_background_token_enabled: bool,
    /// Whether the accurate-mode marker exists; counts only together with the background marker.
    pub accurate_mode_token_enabled: bool,
    /// Speaking-rate buckets.
    pub speaking_rate_num_buckets: usize,
    /// Labels of the speaking-rate buckets, in UTF-8 bytes a second; empty when the file has none.
    pub speaking_rate_buckets: Vec<String>,
    /// Quality features in the order of their ids.
    pub quality_features: Vec<QualityFeature>,
    /// Experts of an expert layer; one or none means that every layer is dense.
    pub n_experts: usize,
    /// Experts a token visits, unless the layer is listed in `special_topk_layers`.
    pub router_topk: usize,
    /// Width of the router's state.
    pub router_dim: usize,
    /// Layers whose number of visited experts differs.
    pub special_topk_layers: BTreeMap<usize, usize>,
    /// First layer that may have experts.
    pub moe_start_from_layer: usize,
    /// Dense layers at the end.
    pub moe_end_from_layer: usize,
    /// Expert implementation named by the file; `"sonic"` means that gate and up rows are
    /// interleaved in one tensor. Information for the loader, which goes by the tensors' names.
    pub moe_impl: String,
    /// How the balancing bias enters the score.
    pub balancing: Balancing,
}

impl Zonos2Config {
    /// The released 28-layer model.
    pub fn released() -> Self {
        let text = include_str!("released_params.json");
        let value: Value = serde_json::from_str(text).expect("the built-in parameters are JSON");
        Self::from_json(&value).expect("the built-in parameters are valid")
    }

    /// Reads `path`, a parameter file or a directory that holds [`PARAMS_FILE`].
    ///
    /// # Errors
    /// The file cannot be read or is not JSON, or a field is not usable; the message names the file
    /// and the field.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, ConfigError> {
        let mut path = path.as_ref().to_path_buf();
        if path.is_dir() {
            path.push(PARAMS_FILE);
        }
        let io = |source| ConfigError::Io {
            path: path.clone(),
            source,
        };
        // Opening a pipe would wait for its writer.
        if !std::fs::metadata(&path).map_err(io)?.is_file() {
            return Err(io(std::io::Error::other("not a regular file")));
        }
        let file = File::open(&path).map_err(io)?;
        let bytes = file.metadata().map_err(io)?.len();
        if bytes > MAX_PARAMS_BYTES {
            return Err(ConfigError::TooLarge { path, bytes });
        }
        let mut text = Vec::new();
        // The size may change between the check and the read; `take` keeps the bound.
        file.take(MAX_PARAMS_BYTES)
            .read_to_end(&mut text)
            .map_err(io)?;
        let value: Value = serde_json::from_slice(&text).map_err(|source| ConfigError::Json {
            path: path.clone(),
            source,
        })?;
        Self::from_json(&value).map_err(|e| e.in_file(&path))
    }

    /// Reads the fields of `params.json`, at the top level or inside an object `model`.
    ///
    /// Absent fields take the defaults of the original; unknown fields are ignored.
    ///
    /// # Errors
    /// A field has the wrong type, or the values describe no model.
    pub fn from_json(value: &Value) -> Result<Self, ConfigError> {
        let Some(top) = value.as_object() else {
            return Err(ConfigError::field(
                "(top level)",
                format!("expected a JSON object, found {}", kind(value)),
            ));
        };
        let map = match top.get("model") {
            Some(Value::Object(nested)) => nested,
            _ => top,
        };
        let fields = Fields(map);
        // Either level may carry the type when the fields are nested.
        for level in [top, map] {
            match level.get("model_type") {
                None | Some(Value::Null) => {}
                Some(Value::String(s)) if s == "zonos2" => {}
                Some(other) => {
                    return Err(ConfigError::field(
                        "model_type",
                        format!("expected \"zonos2\", found {other}; this is another model"),
                    ));
                }
            }
        }

        let quality_features = fields.quality_features()?;
        let config = Self {
            n_layers: fields.count("n_layers", 8)?,
            dim: fields.count("dim", 512)?,
            head_dim: fields.count("head_dim", 128)?,
            n_heads: fields.optional_count("n_heads")?,
            n_kv_heads: fields.optional_count("n_kv_heads")?,
            ffn_dim_multiplier: fields.number("ffn_dim_multiplier", 4.0)?,
            multiple_of: fields.count("multiple_of", 256)?,
            norm_eps: fields.number("norm_eps", 1e-5)?,
            rope_theta: fields.number("rope_theta", 1e4)?,
            max_seqlen: fields.count("max_seqlen", 2048)?,
            n_codebooks: fields.count("n_codebooks", 9)?,
            codebook_size: fields.count("codebook_size", 1024)?,
            eoa_id: fields.count("eoa_id", 1024)?,
            audio_pad_id: fields.count("audio_pad_id", 1025)?,
            text_vocab: fields.optional_count("text_vocab")?.ok_or_else(|| {
                ConfigError::field(
                    "text_vocab",
                    "missing; speech needs the size of the text table",
                )
            })?,
            loss_softcap: fields.number("loss_softcap", 15.0)?,
            speaker_enabled: fields.flag("speaker_enabled")?,
            speaker_embedding_dim: fields.count("speaker_embedding_dim", 128)?,
            // Zero stands for "none" in the original.
            speaker_lda_dim: fields.optional_count("speaker_lda_dim")?.filter(|&d| d > 0),
            speaker_background_token_enabled: fields.flag("speaker_background_token_enabled")?,
            accurate_mode_token_enabled: fields.flag("accurate_mode_token_enabled")?,
            speaking_rate_num_buckets: fields.count("speaking_rate_num_buckets", 0)?,
            speaking_rate_buckets: fields.labels("speaking_rate_buckets")?,
            quality_features,
            n_experts: fields.count("moe_n_experts", 1)?,
            router_topk: fields.count("moe_router_topk", 1)?.max(1),
            router_dim: fields.count("moe_router_dim", 128)?,
            special_topk_layers: fields.special_topk()?,
            moe_start_from_layer: fields.count("moe_start_from_layer", 0)?,
            moe_end_from_layer: fields.count("moe_end_from_layer", 0)?,
            moe_impl: fields
                .text("moe_impl")?
                .unwrap_or_else(|| "grouped".to_string()),
            balancing: match fields.text("moe_balancing_strategy")? {
                None => Balancing::default(),
                Some(name) => Balancing::parse(&name).ok_or_else(|| {
                    ConfigError::field(
                        "moe_balancing_strategy",
                        format!("unknown strategy {name:?}; expected legacy or quantile"),
                    )
                })?,
            },
        };
        config.validate()?;
        Ok(config)
    }

    /// The fields as they would stand in a `params.json`; [`from_json`](Self::from_json) reads them back.
    pub fn to_json(&self) -> Value {
        let labels: Map<String, Value> = self
            .quality_features
            .iter()
            .map(|f| (f.name.clone(), json!(f.labels)))
            .collect();
        let special: Map<String, Value> = self
            .special_topk_layers
            .iter()
            .map(|(layer, k)| (layer.to_string(), json!(k)))
            .collect();
        json!({
            "model_type": "zonos2",
            "n_layers": self.n_layers,
            "dim": self.dim,
            "head_dim": self.head_dim,
            "n_heads": self.n_heads,
            "n_kv_heads": self.n_kv_heads,
            "ffn_dim_multiplier": self.ffn_dim_multiplier,
            "multiple_of": self.multiple_of,
            "norm_eps": self.norm_eps,
            "rope_theta": self.rope_theta,
            "max_seqlen": self.max_seqlen,
            "n_codebooks": self.n_codebooks,
            "codebook_size": self.codebook_size,
            "eoa_id": self.eoa_id,
            "audio_pad_id": self.audio_pad_id,
            "text_vocab": self.text_vocab,
            "loss_softcap": self.loss_softcap,
            "speaker_enabled": self.speaker_enabled,
            "speaker_embedding_dim": self.speaker_embedding_dim,
            "speaker_lda_dim": self.speaker_lda_dim,
            "speaker_background_token_enabled": self.speaker_background_token_enabled,
            "accurate_mode_token_enabled": self.accurate_mode_token_enabled,
            "speaking_rate_num_buckets": self.speaking_rate_num_buckets,
            "speaking_rate_buckets": self.speaking_rate_buckets,
            "quality_num_buckets": self.quality_counts().sum::<usize>(),
            "quality_features": self.quality_features.iter().map(|f| &f.name).collect::<Vec<_>>(),
            "quality_buckets": labels,
            "moe_impl": self.moe_impl,
            "moe_n_experts": self.n_experts,
            "moe_router_topk": self.router_topk,
            "moe_router_dim": self.router_dim,
            "special_topk_layers": special,
            "moe_start_from_layer": self.moe_start_from_layer,
            "moe_end_from_layer": self.moe_end_from_layer,
            "moe_balancing_strategy": match self.balancing {
                Balancing::Legacy => "legacy",
                Balancing::Quantile => "quantile",
            },
        })
    }

    /// Checks that the values describe a model this crate can run.
    ///
    /// # Errors
    /// The first field that does not fit, with what was expected.
    pub fn validate(&self) -> Result<(), ConfigError> {
        // Bounds far above any real model; they keep products of sizes within 64 bits and refuse
        // absurd files before anything is allocated.
        bounded("n_layers", self.n_layers, 1, 4096)?;
        bounded("dim", self.dim, 1, 1 << 20)?;
        bounded("head_dim", self.head_dim, 2, 1 << 16)?;
        bounded("max_seqlen", self.max_seqlen, 1, 1 << 24)?;
        bounded("n_codebooks", self.n_codebooks, 1, 256)?;
        bounded("codebook_size", self.codebook_size, 1, 1 << 20)?;
        bounded("audio_pad_id", self.audio_pad_id, 1, 1 << 21)?;
        bounded(
            "text_vocab",
            self.text_vocab,
            FIRST_CONDITIONING_ID,
            1 << 24,
        )?;
        bounded("multiple_of", self.multiple_of, 1, 1 << 20)?;
        bounded(
            "speaker_embedding_dim",
            self.speaker_embedding_dim,
            1,
            1 << 20,
        )?;
        bounded("moe_n_experts", self.n_experts, 0, 1 << 16)?;
        bounded("moe_router_dim", self.router_dim, 1, 1 << 20)?;
        if let Some(lda) = self.speaker_lda_dim {
            bounded("speaker_lda_dim", lda, 1, 1 << 20)?;
        }
        if !self.head_dim.is_multiple_of(2) {
            return Err(ConfigError::field(
                "head_dim",
                format!(
                    "expected an even number (rotary pairs), found {}",
                    self.head_dim
                ),
            ));
        }
        if self.n_heads.is_none() && self.dim < self.head_dim {
            return Err(ConfigError::field(
                "n_heads",
                format!(
                    "null means dim / head_dim, but dim {} is below head_dim {}",
                    self.dim, self.head_dim
                ),
            ));
        }
        let (heads, kv) = (self.n_heads(), self.n_kv_heads());
        bounded("n_heads", heads, 1, 1 << 16)?;
        bounded("n_kv_heads", kv, 1, heads)?;
        if !heads.is_multiple_of(kv) {
            return Err(ConfigError::field(
                "n_kv_heads",
                format!("expected a divisor of the {heads} query heads, found {kv}"),
            ));
        }
        positive("ffn_dim_multiplier", self.ffn_dim_multiplier)?;
        positive("norm_eps", self.norm_eps)?;
        positive("rope_theta", self.rope_theta)?;
        if !self.loss_softcap.is_finite() {
            return Err(ConfigError::field(
                "loss_softcap",
                format!("expected a finite number, found {}", self.loss_softcap),
            ));
        }
        bounded("ffn_dim_multiplier", self.ffn_dim(), 1, 1 << 24)?;
        bounded(
            "eoa_id",
            self.eoa_id,
            self.codebook_size,
            self.audio_pad_id.saturating_sub(1),
        )?;

        let rates = self.speaking_rate_buckets.len();
        if self.speaking_rate_num_buckets > 0
            && rates > 0
            && rates != self.speaking_rate_num_buckets
        {
            return Err(ConfigError::field(
                "speaking_rate_buckets",
                format!(
                    "expected {} labels (speaking_rate_num_buckets), found {rates}",
                    self.speaking_rate_num_buckets
                ),
            ));
        }
        let conditioning = self
            .conditioning_count()
            .filter(|&n| n <= self.text_vocab - FIRST_CONDITIONING_ID)
            .is_some();
        if !conditioning {
            return Err(ConfigError::field(
                "text_vocab",
                format!(
                    "{} leaves no room for the conditioning ids after the {FIRST_CONDITIONING_ID} text ids",
                    self.text_vocab
                ),
            ));
        }

        if self.n_experts > 1 {
            let special = self.special_topk_layers.iter().map(|(&l, &k)| (Some(l), k));
            for (layer, k) in std::iter::once((None, self.router_topk)).chain(special) {
                if k < 1 || k > self.n_experts {
                    let field = match layer {
                        None => "moe_router_topk".to_string(),
                        Some(layer) => format!("special_topk_layers[\"{layer}\"]"),
                    };
                    return Err(ConfigError::field(
                        field,
                        format!("expected 1 to {} experts, found {k}", self.n_experts),
                    ));
                }
            }
        }
        Ok(())
    }

    /// Query heads `H`. `H * head_dim` may differ from `dim` when the file gives `H`.
    pub fn n_heads(&self) -> usize {
        self.n_heads.unwrap_or(self.dim / self.head_dim.max(1))
    }

    /// Key/value heads `K`; query head `j` reads kv head `j * K / H`.
    pub fn n_kv_heads(&self) -> usize {
        self.n_kv_heads.unwrap_or_else(|| self.n_heads())
    }

    /// Width of the feed-forward layers, dense and expert: `ffn_dim_multiplier * dim`, truncated,
    /// then rounded up to `multiple_of`.
    pub fn ffn_dim(&self) -> usize {
        // `as` saturates, so an absurd multiplier ends in the range check of `validate`.
        let wanted = (self.ffn_dim_multiplier * self.dim as f64) as usize;
        let step = self.multiple_of.max(1);
        wanted.div_ceil(step).saturating_mul(step)
    }

    /// Whether layer `n` routes to experts: at or after `moe_start_from_layer`, and with more than
    /// `moe_end_from_layer` layers left.
    pub fn is_expert_layer(&self, n: usize) -> bool {
        self.n_experts > 1
            && n < self.n_layers
            && n >= self.moe_start_from_layer
            && self.n_layers - n > self.moe_end_from_layer
    }

    /// Experts a token visits in layer `n`; 0 for a dense layer.
    pub fn experts_per_token(&self, n: usize) -> usize {
        if !self.is_expert_layer(n) {
            return 0;
        }
        self.special_topk_layers
            .get(&n)
            .copied()
            .unwrap_or(self.router_topk)
    }

    /// The first layer with experts; its router has no `router_states_scale`.
    pub fn first_expert_layer(&self) -> Option<usize> {
        (0..self.n_layers).find(|&n| self.is_expert_layer(n))
    }

    /// Rows of an audio table and logits of a codebook: `audio_pad_id + 1`.
    pub fn audio_vocab(&self) -> usize {
        self.audio_pad_id + 1
    }

    /// Ids of one prompt row: the codebooks and the text id.
    pub fn row_width(&self) -> usize {
        self.n_codebooks + 1
    }

    /// The softcap to apply to logits, `None` when the file turns it off.
    pub fn softcap(&self) -> Option<f64> {
        (self.loss_softcap > 0.0).then_some(self.loss_softcap)
    }

    /// Text id of rows that carry no text: every audio row and the speaker slot.
    pub fn text_pad_id(&self) -> usize {
        self.text_vocab
    }

    /// Buckets of each quality feature, in order.
    pub fn quality_counts(&self) -> impl Iterator<Item = usize> + '_ {
        self.quality_features.iter().map(|f| f.labels.len())
    }

    /// Background markers: 2 (clean, noisy) or 0.
    pub fn background_count(&self) -> usize {
        if self.speaker_background_token_enabled {
            2
        } else {
            0
        }
    }

    /// Accurate-mode markers: 1 or 0. Without background markers there is none.
    pub fn accurate_count(&self) -> usize {
        usize::from(self.accurate_mode_token_enabled && self.speaker_background_token_enabled)
    }

    fn conditioning_count(&self) -> Option<usize> {
        self.quality_counts()
            .try_fold(self.speaking_rate_num_buckets, usize::checked_add)?
            .checked_add(self.background_count() + self.accurate_count())
    }

    /// First conditioning id, 448 in the release. The ids follow in the order speaking rate,
    /// quality features, background, accurate mode, and end at `text_vocab`.
    pub fn conditioning_base(&self) -> usize {
        self.text_vocab
            .saturating_sub(self.conditioning_count().unwrap_or(usize::MAX))
    }

    /// Text id of speaking-rate bucket `bucket`, `None` when there is no such bucket.
    pub fn rate_id(&self, bucket: usize) -> Option<usize> {
        (bucket < self.speaking_rate_num_buckets).then(|| self.conditioning_base() + bucket)
    }

    /// Text id of bucket `bucket` of quality feature `feature`, `None` when there is no such one.
    pub fn quality_id(&self, feature: usize, bucket: usize) -> Option<usize> {
        let labels = self.quality_features.get(feature)?.labels.len();
        let before: usize = self.quality_counts().take(feature).sum();
        (bucket < labels)
            .then(|| self.conditioning_base() + self.speaking_rate_num_buckets + before + bucket)
    }

    /// Text id of the background marker, `None` when the model has none.
    pub fn background_id(&self, clean: bool) -> Option<usize> {
        (self.background_count() > 0).then(|| self.background_base() + usize::from(!clean))
    }

    /// Text id of the accurate-mode marker, `None` when the model has none.
    pub fn accurate_id(&self) -> Option<usize> {
        (self.accurate_count() > 0).then(|| self.background_base() + self.background_count())
    }

    fn background_base(&self) -> usize {
        self.conditioning_base()
            + self.speaking_rate_num_buckets
            + self.quality_counts().sum::<usize>()
    }
}

fn bounded(field: &str, value: usize, low: usize, high: usize) -> Result<(), ConfigError> {
    if (low..=high).contains(&value) {
        return Ok(());
    }
    Err(ConfigError::field(
        field,
        format!("expected {low} to {high}, found {value}"),
    ))
}

fn positive(field: &str, value: f64) -> Result<(), ConfigError> {
    if value.is_finite() && value > 0.0 {
        return Ok(());
    }
    Err(ConfigError::field(
        field,
        format!("expected a positive number, found {value}"),
    ))
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// Typed access to the fields; a null counts as absent, as in the original.
struct Fields<'a>(&'a Map<String, Value>);

impl Fields<'_> {
    fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name).filter(|v| !v.is_null())
    }

    fn optional_count(&self, name: &str) -> Result<Option<usize>, ConfigError> {
        self.get(name).map(|v| count(name, v)).transpose()
    }

    fn count(&self, name: &str, default: usize) -> Result<usize, ConfigError> {
        Ok(self.optional_count(name)?.unwrap_or(default))
    }

    fn number(&self, name: &str, default: f64) -> Result<f64, ConfigError> {
        let Some(value) = self.get(name) else {
            return Ok(default);
        };
        value.as_f64().ok_or_else(|| {
            ConfigError::field(name, format!("expected a number, found {}", kind(value)))
        })
    }

    fn flag(&self, name: &str) -> Result<bool, ConfigError> {
        let Some(value) = self.get(name) else {
            return Ok(false);
        };
        value.as_bool().ok_or_else(|| {
            ConfigError::field(
                name,
                format!("expected true or false, found {}", kind(value)),
            )
        })
    }

    fn text(&self, name: &str) -> Result<Option<String>, ConfigError> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        match value {
            Value::String(s) => Ok(Some(s.clone())),
            _ => Err(ConfigError::field(
                name,
                format!("expected a string, found {}", kind(value)),
            )),
        }
    }

    fn labels(&self, name: &str) -> Result<Vec<String>, ConfigError> {
        self.get(name).map_or(Ok(Vec::new()), |v| labels(name, v))
    }

    fn quality_features(&self) -> Result<Vec<QualityFeature>, ConfigError> {
        let empty = Map::new();
        let buckets = match self.get("quality_buckets") {
            None => &empty,
            Some(Value::Object(map)) => map,
            Some(other) => {
                return Err(ConfigError::field(
                    "quality_buckets",
                    format!("expected an object of label lists, found {}", kind(other)),
                ));
            }
        };
        let mut order = self.labels("quality_features")?;
        if order.is_empty() {
            // The ids follow the order of the features, and a JSON object has none to rely on.
            if buckets.len() > 1 {
                return Err(ConfigError::field(
                    "quality_features",
                    "missing; it gives the order of the features in quality_buckets",
                ));
            }
            order = buckets.keys().cloned().collect();
        }
        let features = order
            .into_iter()
            .map(|name| {
                let field = format!("quality_buckets.{name}");
                let labels = match buckets.get(&name) {
                    None | Some(Value::Null) => Vec::new(),
                    Some(list) => labels(&field, list)?,
                };
                Ok(QualityFeature { name, labels })
            })
            .collect::<Result<Vec<_>, ConfigError>>()?;
        let total = features.iter().map(|f| f.labels.len()).sum::<usize>();
        let stated = self.count("quality_num_buckets", 0)?;
        if stated != 0 && stated != total {
            return Err(ConfigError::field(
                "quality_num_buckets",
                format!("expected {total}, the labels in quality_buckets, found {stated}"),
            ));
        }
        Ok(features)
    }

    fn special_topk(&self) -> Result<BTreeMap<usize, usize>, ConfigError> {
        let name = "special_topk_layers";
        let map = match self.get(name) {
            None => return Ok(BTreeMap::new()),
            Some(Value::Object(map)) => map,
            Some(other) => {
                return Err(ConfigError::field(
                    name,
                    format!(
                        "expected an object such as {{\"26\": 2}}, found {}",
                        kind(other)
                    ),
                ));
            }
        };
        map.iter()
            .map(|(key, value)| {
                let layer = key.trim().parse().map_err(|_| {
                    ConfigError::field(
                        name,
                        format!("expected layer numbers as keys, found {key:?}"),
                    )
                })?;
                let field = format!("{name}[{key:?}]");
                match count(&field, value)? {
                    0 => Err(ConfigError::field(
                        field,
                        "expected at least 1 expert, found 0",
                    )),
                    k => Ok((layer, k)),
                }
            })
            .collect()
    }
}

/// A non-negative whole number; `9.0` is accepted because Python writers produce it.
fn count(field: &str, value: &Value) -> Result<usize, ConfigError> {
    let whole = value.as_u64().or_else(|| {
        let f = value.as_f64()?;
        (f >= 0.0 && f.fract() == 0.0 && f < 9e15).then_some(f as u64)
    });
    whole.and_then(|n| usize::try_from(n).ok()).ok_or_else(|| {
        let found = match value {
            Value::Number(n) => n.to_string(),
            other => kind(other).to_string(),
        };
        ConfigError::field(
            field,
            format!("expected a non-negative integer, found {found}"),
        )
    })
}

fn labels(field: &str, value: &Value) -> Result<Vec<String>, ConfigError> {
    let Some(list) = value.as_array() else {
        return Err(ConfigError::field(
            field,
            format!("expected a list, found {}", kind(value)),
        ));
    };
    list.iter()
        .map(|item| match item {
            Value::String(s) => Ok(s.clone()),
            Value::Number(n) => Ok(n.to_string()),
            other => Err(ConfigError::field(
                field,
                format!("expected text labels, found {}", kind(other)),
            )),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(value: Value) -> String {
        Zonos2Config::from_json(&value).unwrap_err().to_string()
    }

    fn with(field: &str, value: Value) -> Value {
        let mut all = Zonos2Config::released().to_json();
        all[field] = value;
        all
    }

    #[test]
    fn released_model() {
        let c = Zonos2Config::released();
        assert_eq!((c.n_layers, c.dim, c.head_dim), (28, 2048, 128));
        assert_eq!((c.n_heads(), c.n_kv_heads(), c.ffn_dim()), (16, 4, 3072));
        assert_eq!(
            (c.n_codebooks, c.audio_vocab(), c.text_vocab),
            (9, 1026, 519)
        );
        let experts: Vec<usize> = (0..28).map(|n| c.experts_per_token(n)).collect();
        assert_eq!(experts.iter().sum::<usize>(), 25);
        assert_eq!(&experts[..4], &[0, 0, 0, 1]);
        assert_eq!(&experts[25..], &[1, 2, 0]);
        assert_eq!(c.first_expert_layer(), Some(3));
        assert_eq!(c.conditioning_base(), 448);
        assert_eq!(c.rate_id(7), Some(455));
        assert_eq!(c.rate_id(8), None);
        assert_eq!(c.quality_id(0, 0), Some(456));
        assert_eq!(c.quality_id(5, 3), Some(511));
        assert_eq!(c.quality_id(5, 8), None);
        assert_eq!(c.quality_id(6, 0), None);
        assert_eq!(
            (c.background_id(true), c.background_id(false)),
            (Some(516), Some(517))
        );
        assert_eq!(c.accurate_id(), Some(518));
        assert_eq!(c.softcap(), Some(15.0));
        assert_eq!(
            (c.speaker_embedding_dim, c.speaker_lda_dim),
            (2048, Some(1024))
        );
    }

    #[test]
    fn json_round_trip() {
        let c = Zonos2Config::released();
        assert_eq!(Zonos2Config::from_json(&c.to_json()).unwrap(), c);
    }

    #[test]
    fn defaults_of_an_almost_empty_file() {
        let c = Zonos2Config::from_json(&json!({"text_vocab": 448, "unknown": [1]})).unwrap();
        assert_eq!(
            (c.n_layers, c.dim, c.head_dim, c.n_heads(), c.n_kv_heads()),
            (8, 512, 128, 4, 4)
        );
        assert_eq!((c.ffn_dim(), c.max_seqlen, c.n_experts), (2048, 2048, 1));
        assert!((0..8).all(|n| !c.is_expert_layer(n)));
        assert_eq!(
            (
                c.speaker_enabled,
                c.speaker_embedding_dim,
                c.speaker_lda_dim
            ),
            (false, 128, None)
        );
        assert_eq!(
            (
                c.conditioning_base(),
                c.accurate_id(),
                c.background_id(true)
            ),
            (448, None, None)
        );
        assert_eq!(c.balancing, Balancing::Legacy);
        assert_eq!(c.moe_impl, "grouped");
    }

    #[test]
    fn nested_model_and_its_type() {
        let inner = json!({"model_type": "zonos2", "text_vocab": 519, "n_layers": 3});
        assert_eq!(
            Zonos2Config::from_json(&json!({"model": inner}))
                .unwrap()
                .n_layers,
            3
        );
        let e = refused(json!({"model_type": "qwen3", "model": {"text_vocab": 519}}));
        assert!(e.contains("model_type") && e.contains("qwen3"), "{e}");
    }

    #[test]
    fn width_truncates_then_rounds_up() {
        let mut c = Zonos2Config::released();
        (c.dim, c.ffn_dim_multiplier, c.multiple_of) = (64, 0.6, 16);
        assert_eq!(c.ffn_dim(), 48); // int(38.4) = 38 -> 48
        (c.ffn_dim_multiplier, c.multiple_of) = (0.759, 16);
        assert_eq!(c.ffn_dim(), 48); // int(48.576) = 48 stays
    }

    #[test]
    fn balancing_names() {
        for (name, want) in [
            ("Aux-Loss", Balancing::Legacy),
            (" OLD ", Balancing::Legacy),
            ("QBalancing", Balancing::Quantile),
            ("current", Balancing::Quantile),
        ] {
            let c = Zonos2Config::from_json(&with("moe_balancing_strategy", json!(name))).unwrap();
            assert_eq!(c.balancing, want, "{name}");
        }
        assert!(
            refused(with("moe_balancing_strategy", json!("loss")))
                .contains("moe_balancing_strategy")
        );
    }

    #[test]
    fn accurate_needs_background() {
        let c = Zonos2Config::from_json(&with("speaker_background_token_enabled", json!(false)))
            .unwrap();
        assert_eq!((c.accurate_id(), c.conditioning_base()), (None, 451));
    }

    #[test]
    fn refusals_name_the_field() {
        for (field, value) in [
            ("n_layers", json!("28")),
            ("n_layers", json!(-1)),
            ("n_layers", json!(0)),
            ("n_layers", json!(1e18)),
            ("dim", json!(2.5)),
            ("head_dim", json!(127)),
            ("n_kv_heads", json!(5)),
            ("n_kv_heads", json!(0)),
            ("norm_eps", json!(0)),
            ("ffn_dim_multiplier", json!(1e300)),
            ("eoa_id", json!(3)),
            ("audio_pad_id", json!(u64::MAX)),
            ("text_vocab", json!(null)),
            ("text_vocab", json!(500)),
            ("speaking_rate_num_buckets", json!(true)),
            ("speaking_rate_buckets", json!(["0-8"])),
            ("quality_num_buckets", json!(59)),
            ("quality_features", json!(null)),
            ("quality_buckets", json!([1])),
            ("moe_router_topk", json!(17)),
            ("special_topk_layers", json!({"26": 0})),
            ("special_topk_layers", json!({"last": 2})),
            ("special_topk_layers", json!([2])),
            ("speaker_enabled", json!("yes")),
            ("moe_impl", json!(3)),
        ] {
            let e = refused(with(field, value.clone()));
            assert!(
                e.contains(field) && !e.contains('\n'),
                "{field} = {value}: {e}"
            );
        }
        assert!(refused(json!([])).contains("JSON object"));
    }

    #[test]
    fn files() {
        let dir = tempfile::tempdir().unwrap();
        let missing = Zonos2Config::load(dir.path()).unwrap_err().to_string();
        assert!(missing.contains(PARAMS_FILE), "{missing}");
        let path = dir.path().join(PARAMS_FILE);
        std::fs::write(&path, Zonos2Config::released().to_json().to_string()).unwrap();
        assert_eq!(
            Zonos2Config::load(dir.path()).unwrap(),
            Zonos2Config::released()
        );
        std::fs::write(&path, "version https://git-lfs.github.com/spec/v1").unwrap();
        assert!(matches!(
            Zonos2Config::load(&path),
            Err(ConfigError::Json { .. })
        ));
        std::fs::write(&path, r#"{"n_layers": []}"#).unwrap();
        let e = Zonos2Config::load(&path).unwrap_err().to_string();
        assert!(e.contains(PARAMS_FILE) && e.contains("n_layers"), "{e}");
    }
}
