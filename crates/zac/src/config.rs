//! Sizes of a codec: from the shapes of its tensors first, from the JSON in its metadata second.
//!
//! What only the JSON can tell (contexts, rates, rules) is taken from there, with defaults for keys
//! that are left out. Where both speak they must agree. Unknown keys of `head_config` would change
//! the sound and are refused; unknown keys elsewhere are listed in [`ZacConfig::warnings`].

mod fields;
mod parts;
mod shapes;

use std::fmt;

use serde::Serialize;
use serde_json::Value;
use zonos_audio::{CodeLimits, Codes};
use zonos_checkpoint::{Checkpoint, ModelKind};

use crate::ZacError;
use crate::lanes::{Align, LanePlan};
use crate::names::{NameOverrides, name_map};
use crate::search::Search;
use fields::Fields;
use parts::{convnext, head, quantizer, stages};
use shapes::Shapes;

/// Most frames of a lane, and of the context in front of it: 19 hours.
const MOST_LANE_FRAMES: f64 = 1_048_576.0;

/// The value of `format` that this build reads.
pub(crate) const FORMAT: &str = "zac-1/1";

/// Which half of the codec a file holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ZacKind {
    /// Codes to samples.
    Decoder,
    /// Samples to codes, with the teacher.
    Encoder,
}

impl fmt::Display for ZacKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Decoder => "decoder",
            Self::Encoder => "encoder",
        })
    }
}

/// Sizes of a codec.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ZacConfig {
    /// Which half this is.
    pub kind: ZacKind,
    /// Samples a second outside, 44100.
    pub sample_rate: usize,
    /// Samples a second inside, 44160.
    pub codec_sample_rate: usize,
    /// Samples a frame outside, 2940.
    pub hop_length: usize,
    /// Samples a frame inside, 2944.
    pub codec_hop_length: usize,
    /// Width of the latents.
    pub latent_dim: usize,
    /// Modules of the decoder, or of the acoustic encoder, in order.
    pub stages: Vec<StageConfig>,
    /// The codebook of codes 0.
    pub semantic_quantizer: QuantizerConfig,
    /// The codebooks of codes 1 on.
    pub quantizer: QuantizerConfig,
    /// From the semantic codebook to latents.
    pub semantic_head: ConvNextConfig,
    /// From features to samples; in a decoder.
    pub head: Option<HeadConfig>,
    /// What an encoder has besides.
    pub encoder: Option<EncoderConfig>,
    /// Taps of each phase of the stored resampling filter.
    pub resampler_taps: usize,
    /// What is odd about the file without making it unusable, in sentences: keys of its JSON that are not
    /// known, and such.
    pub warnings: Vec<String>,
}

/// A module of the decoder or the acoustic encoder.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StageConfig {
    /// A transformer.
    Transformer(TransformerConfig),
    /// So many steps of time become channels, or the other way round.
    Patch(usize),
}

/// A transformer of causal layers that each see a window of the past.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TransformerConfig {
    /// Width of what goes in.
    pub input_dimension: usize,
    /// Width of what comes out.
    pub output_dimension: usize,
    /// Width of the layers.
    pub d_model: usize,
    /// Heads of the attention.
    pub num_heads: usize,
    /// Width inside the feed-forward parts.
    pub dim_feedforward: usize,
    /// The layers' numbers in the file, ascending; a pruned file may have gaps.
    pub layers: Vec<usize>,
    /// Base of the rotary frequencies.
    pub max_period: f64,
    /// Steps that a query sees, itself included.
    pub context: usize,
    /// Whether there is a matrix in front of the layers.
    pub input_proj: bool,
    /// Whether there is one behind them.
    pub output_proj: bool,
}

/// Codebooks and their projections.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct QuantizerConfig {
    /// Entries of a codebook.
    pub codebook_size: usize,
    /// Width of what is coded.
    pub input_dim: usize,
    /// Width of the entries, one number a codebook; `None` where the file stores entries with the
    /// projection applied to them (a folded table).
    pub codebook_dim: Vec<Option<usize>>,
    /// How entries are searched.
    pub search: Search,
}

/// A stack of ConvNeXt blocks.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ConvNextConfig {
    /// Width of what goes in; other than `dim` only with `proj_in`.
    pub input_dim: usize,
    /// Width of what comes out; other than `dim` only with `proj_out`.
    pub output_dim: usize,
    /// Width of the blocks.
    pub dim: usize,
    /// Width inside the blocks.
    pub intermediate_dim: usize,
    /// The blocks' numbers in the file, ascending.
    pub blocks: Vec<usize>,
    /// Taps of the depthwise convolution.
    pub kernel_size: usize,
    /// Whether all taps but one lie in the past.
    pub causal: bool,
    /// Whether there is a projection in front of the blocks.
    pub proj_in: bool,
    /// Whether there is one behind them.
    pub proj_out: bool,
}

/// The waveform head.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct HeadConfig {
    /// Width of the features.
    pub dim: usize,
    /// Samples from one feature to the next.
    pub hop_length: usize,
    /// Points of the inverse transforms, one number a resolution; the windows are as long.
    pub n_fft: Vec<usize>,
    /// How the waveforms of several resolutions become one.
    pub combine: Combine,
    /// Largest magnitude of a bin.
    pub mag_clip: f32,
    /// Epsilon of the normalisation in front of the matrices.
    pub norm_eps: f32,
    /// In front of the normalisation.
    pub trunk: ConvNextConfig,
}

/// How several waveforms become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Combine {
    /// Their sum.
    Sum,
    /// Their mean.
    Mean,
}

/// What an encoder has besides.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EncoderConfig {
    /// From the teacher's features, at the codec's frame rate, to what the semantic codebook codes.
    pub semantic_encoder: ConvNextConfig,
    /// How features of the teacher are brought to the codec's frame rate.
    pub align: Align,
    /// Frames that a lane gives.
    pub lane_frames: usize,
    /// Frames in front of them that it sees.
    pub lane_context_frames: usize,
    /// `teacher_config` as the file has it.
    pub teacher: Value,
}

impl ZacConfig {
    /// Reads the configuration of an opened ZAC-1 file of either kind.
    ///
    /// # Errors
    ///
    /// [`ZacError::Format`] for any other file, [`ZacError::Config`] names the key or the tensor.
    pub fn from_checkpoint(checkpoint: &Checkpoint) -> Result<Self, ZacError> {
        Self::from_mapped(checkpoint, &NameOverrides::default())
    }

    /// As [`from_checkpoint`](Self::from_checkpoint), of a file with names of its own.
    ///
    /// # Errors
    ///
    /// As [`from_checkpoint`](Self::from_checkpoint).
    pub fn from_mapped(
        checkpoint: &Checkpoint,
        overrides: &NameOverrides,
    ) -> Result<Self, ZacError> {
        let kind = Self::kind_of(checkpoint)?;
        let shapes = Shapes::of(checkpoint, &name_map(overrides));
        let metadata = checkpoint.metadata();
        Self::read(metadata, &shapes, kind).map_err(|problem| ZacError::Config {
            file: checkpoint.path().display().to_string(),
            // Tensors alone may do; where they do not, what lacks is the JSON.
            problem: match metadata.get("model_config") {
                None | Some(Value::Null) => {
                    format!(
                        "metadata `model_config`, the codec's configuration as JSON, is missing, and tensors alone do not do: {problem}"
                    )
                }
                Some(_) => problem,
            },
        })
    }

    /// Which half of the codec a file holds.
    ///
    /// # Errors
    ///
    /// [`ZacError::Format`] and [`ZacError::Kind`].
    pub fn kind_of(checkpoint: &Checkpoint) -> Result<ZacKind, ZacError> {
        let file = || checkpoint.path().display().to_string();
        let metadata = checkpoint.metadata();
        let found = metadata.get("format").unwrap_or(&Value::Null);
        if found.as_str() != Some(FORMAT) {
            let kind = checkpoint.model_kind();
            return Err(ZacError::Format {
                file: file(),
                found: or_nothing(found),
                looks_like: match kind {
                    ModelKind::Unknown => String::new(),
                    kind => format!("; the file looks like: {kind}"),
                },
            });
        }
        let found = metadata.get("kind").unwrap_or(&Value::Null);
        match found.as_str() {
            Some("decoder") => Ok(ZacKind::Decoder),
            Some("encoder") => Ok(ZacKind::Encoder),
            _ => Err(ZacError::Config {
                file: file(),
                problem: format!(
                    "metadata `kind` is {}, expected \"decoder\" or \"encoder\"",
                    or_nothing(found)
                ),
            }),
        }
    }

    fn read(metadata: &Value, shapes: &Shapes<'_>, kind: ZacKind) -> Result<Self, String> {
        let model_json = section(metadata, "model_config")?;
        let model = Fields::new(model_json.as_ref(), "model_config")?;
        let mut warnings = Vec::new();
        let (side, kwargs) = match kind {
            ZacKind::Decoder => ("codec.decoder.", "decoder_kwargs"),
            ZacKind::Encoder => ("codec.encoder.", "encoder_kwargs"),
        };
        // The other half's modules are described too; this file does not hold them.
        for other in ["decoder_kwargs", "encoder_kwargs"] {
            model.get(other);
        }
        let sample_rate = model.number("sample_rate")?.unwrap_or(44_100);
        let codec_sample_rate = model.number("codec_sample_rate")?.unwrap_or(44_160);
        let hop_length = model.number("hop_length")?.unwrap_or(2940);
        let codec_hop_length = model.number("codec_hop_length")?.unwrap_or(2944);
        for (name, value) in [
            ("sample_rate", sample_rate),
            ("codec_sample_rate", codec_sample_rate),
            ("hop_length", hop_length),
            ("codec_hop_length", codec_hop_length),
        ] {
            within(&format!("model_config.{name}"), value, 1_000_000)?;
        }
        if sample_rate * codec_hop_length != codec_sample_rate * hop_length {
            return Err(format!(
                "model_config.codec_hop_length: {codec_hop_length} samples at {codec_sample_rate} Hz do not last as \
                 long as hop_length = {hop_length} at {sample_rate} Hz"
            ));
        }
        let context = model
            .positive("causal_transformer_context_duration")?
            .unwrap_or(10.0);
        let (channels, rate) = match kind {
            ZacKind::Decoder => (None, codec_sample_rate as f64 / codec_hop_length as f64),
            ZacKind::Encoder => (Some(1), codec_sample_rate as f64),
        };
        let stages = stages(
            model.list(kwargs)?,
            &format!("model_config.{kwargs}"),
            shapes,
            side,
            channels,
            rate,
            context,
            &mut warnings,
        )?;

        let part = |name: &'static str| -> Result<Fields<'_>, String> {
            Fields::new(model.get(name), format!("model_config.{name}"))
        };
        let fields = part("semantic_quantizer_kwargs")?;
        let semantic_quantizer = quantizer(&fields, shapes, "codec.semantic_quantizer.", 1)?;
        warnings.extend(fields.not_used());
        let fields = part("quantizer_kwargs")?;
        let quantizer = quantizer(&fields, shapes, "codec.quantizer.", 9)?;
        warnings.extend(fields.not_used());
        let fields = part("semantic_head_kwargs")?;
        let semantic_head = convnext(&fields, shapes, "codec.semantic_head.")?;
        warnings.extend(fields.not_used());
        let latent_dim = model.needed(
            "latent_dim",
            Some((quantizer.input_dim, "codec.quantizer.quantizers.0")),
        )?;

        let fields = part("semantic_encoder_kwargs")?;
        let align = match model.one_of(
            "semantic_align",
            &["adaptive_avg_pool", "linear", "nearest"],
        )? {
            "linear" => Align::Linear,
            "nearest" => Align::Nearest,
            _ => Align::AdaptiveAvgPool,
        };
        let frames = |name: &str, seconds: f64, least: f64| {
            let frames = (seconds * sample_rate as f64 / hop_length as f64).round_ties_even();
            if (least..=MOST_LANE_FRAMES).contains(&frames) {
                return Ok(frames as usize);
            }
            Err(format!(
                "model_config.{name}: {seconds} s are {frames} frames, expected {least} to {MOST_LANE_FRAMES}"
            ))
        };
        let lane = model.positive("lane_seconds")?.unwrap_or(20.0);
        let lane_context = match model.get("lane_context_seconds").and_then(Value::as_f64) {
            Some(0.0) => 0.0,
            _ => model.positive("lane_context_seconds")?.unwrap_or(10.0),
        };
        let encoder = match kind {
            ZacKind::Decoder => None,
            ZacKind::Encoder => {
                let semantic_encoder = convnext(&fields, shapes, "codec.semantic_encoder.")?;
                warnings.extend(fields.not_used());
                Some(EncoderConfig {
                    semantic_encoder,
                    align,
                    lane_frames: frames("lane_seconds", lane, 1.0)?,
                    lane_context_frames: frames("lane_context_seconds", lane_context, 0.0)?,
                    teacher: section(metadata, "teacher_config")?.unwrap_or(Value::Null),
                })
            }
        };
        warnings.extend(model.not_used());

        let head = match kind {
            ZacKind::Encoder => None,
            ZacKind::Decoder => {
                let json = section(metadata, "head_config")?;
                let lengthened: usize = stages.iter().map(StageConfig::ratio).product();
                let hop = codec_hop_length / lengthened.max(1);
                Some(head(json.as_ref(), shapes, hop)?)
            }
        };
        let rates = lowest_terms(sample_rate, codec_sample_rate);
        let (new, orig) = match kind {
            ZacKind::Decoder => rates,
            ZacKind::Encoder => (rates.1, rates.0),
        };
        let config = Self {
            kind,
            sample_rate,
            codec_sample_rate,
            hop_length,
            codec_hop_length,
            latent_dim,
            stages,
            semantic_quantizer,
            quantizer,
            semantic_head,
            head,
            encoder,
            resampler_taps: parts::resampler_taps(shapes, orig, new)?,
            warnings,
        };
        config.check()?;
        Ok(config)
    }

    /// Whether the parts fit together.
    fn check(&self) -> Result<(), String> {
        let place = match self.kind {
            ZacKind::Decoder => "model_config.decoder_kwargs",
            ZacKind::Encoder => "model_config.encoder_kwargs",
        };
        let (mut width, expected_end) = match self.kind {
            ZacKind::Decoder => (self.latent_dim, self.head.as_ref().map_or(0, |h| h.dim)),
            ZacKind::Encoder => (1, self.latent_dim),
        };
        let mut ratio = 1usize;
        for (i, stage) in self.stages.iter().enumerate() {
            match stage {
                StageConfig::Transformer(t) => {
                    if t.input_dimension != width {
                        return Err(format!(
                            "{place}[{i}].input_dimension is {}, but {width} channels arrive there",
                            t.input_dimension
                        ));
                    }
                    width = t.output_dimension;
                }
                StageConfig::Patch(size) => {
                    ratio = ratio.saturating_mul(*size);
                    width = match self.kind {
                        ZacKind::Decoder if !width.is_multiple_of(*size) => {
                            return Err(format!(
                                "{place}[{i}].patch_size: {width} channels cannot be cut into {size} steps"
                            ));
                        }
                        ZacKind::Decoder => width / size,
                        ZacKind::Encoder => width.saturating_mul(*size),
                    };
                }
            }
        }
        if width != expected_end {
            return Err(format!(
                "{place}: {width} channels come out of the last module, expected {expected_end}"
            ));
        }
        let hop = self.head.as_ref().map_or(1, |head| head.hop_length);
        if ratio.saturating_mul(hop) != self.codec_hop_length {
            return Err(format!(
                "{place}: patches of {ratio} steps in all with {hop} samples each do not make \
                 model_config.codec_hop_length = {}",
                self.codec_hop_length
            ));
        }
        let head = &self.semantic_head;
        for (name, found, expected) in [
            (
                "semantic_head_kwargs.input_dim",
                head.input_dim,
                self.semantic_quantizer.input_dim,
            ),
            (
                "semantic_head_kwargs.output_dim",
                head.output_dim,
                self.latent_dim,
            ),
            (
                "quantizer_kwargs.input_dim",
                self.quantizer.input_dim,
                self.latent_dim,
            ),
        ] {
            if found != expected {
                return Err(format!(
                    "model_config.{name} is {found}, expected {expected}"
                ));
            }
        }
        if self.semantic_quantizer.codebook_dim.len() != 1 {
            return Err(format!(
                "model_config.semantic_quantizer_kwargs.n_codebooks is {}, expected 1",
                self.semantic_quantizer.codebook_dim.len()
            ));
        }
        if let Some(encoder) = &self.encoder {
            let (found, expected) = (
                encoder.semantic_encoder.output_dim,
                self.semantic_quantizer.input_dim,
            );
            if found != expected {
                return Err(format!(
                    "model_config.semantic_encoder_kwargs.output_dim is {found}, expected {expected}"
                ));
            }
        }
        if let Some(head) = &self.head {
            for (name, stack) in [
                ("model_config.semantic_head_kwargs", &self.semantic_head),
                ("head_config.trunk", &head.trunk),
            ] {
                if !stack.causal {
                    return Err(format!("{name}.causal is false, but decoding is causal"));
                }
            }
        }
        Ok(())
    }

    /// Codes a frame: the semantic one and the acoustic ones.
    pub fn codebooks(&self) -> usize {
        self.semantic_quantizer.codebook_dim.len() + self.quantizer.codebook_dim.len()
    }

    /// Entries of each codebook.
    pub fn codebook_sizes(&self) -> Vec<usize> {
        [&self.semantic_quantizer, &self.quantizer]
            .into_iter()
            .flat_map(|q| vec![q.codebook_size; q.codebook_dim.len()])
            .collect()
    }

    /// Refuses codes that are none of this codec's: columns, range, a missing semantic code.
    ///
    /// # Errors
    ///
    /// [`ZacError::Columns`], [`ZacError::MissingSemantic`], [`ZacError::Codes`].
    pub fn check_codes(&self, codes: &Codes) -> Result<(), ZacError> {
        let expected = self.codebooks();
        if codes.codebooks() != expected {
            return Err(ZacError::Columns {
                expected,
                found: codes.codebooks(),
            });
        }
        if let Some(frame) = codes.rows().position(|row| row[0] == Codes::MISSING) {
            return Err(ZacError::MissingSemantic {
                frame,
                last: expected - 1,
            });
        }
        let limits = CodeLimits::of(self.codebook_sizes());
        Ok(codes.check(&limits.with_markers([Codes::MISSING]))?)
    }

    /// Frames a second.
    pub fn frame_rate(&self) -> f64 {
        self.sample_rate as f64 / self.hop_length as f64
    }

    /// Rates of the resampler, from and to.
    pub(crate) fn resampler_rates(&self) -> (usize, usize) {
        match self.kind {
            ZacKind::Decoder => (self.codec_sample_rate, self.sample_rate),
            ZacKind::Encoder => (self.sample_rate, self.codec_sample_rate),
        }
    }

    /// Samples of a block of the resampler, taken and given: 736 and 735 in a decoder.
    pub(crate) fn resampler_block(&self) -> (usize, usize) {
        let (from, to) = self.resampler_rates();
        lowest_terms(from, to)
    }
}

impl EncoderConfig {
    /// How audio is cut into lanes.
    pub fn lanes(&self) -> LanePlan {
        LanePlan {
            lane: self.lane_frames,
            context: self.lane_context_frames,
        }
    }
}

impl StageConfig {
    /// How many steps of the slower side one module makes of one step.
    pub(crate) fn ratio(&self) -> usize {
        match self {
            Self::Transformer(_) => 1,
            Self::Patch(size) => *size,
        }
    }
}

impl HeadConfig {
    /// Samples that a frame of the longest window reaches beyond its own.
    pub fn padding(&self) -> usize {
        let longest = self.n_fft.iter().copied().max().unwrap_or(0);
        longest.saturating_sub(self.hop_length) / 2
    }
}

/// A JSON object of the metadata, which may be stored as text.
fn section(metadata: &Value, name: &str) -> Result<Option<Value>, String> {
    match metadata.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => serde_json::from_str(text)
            .map(Some)
            .map_err(|e| format!("metadata `{name}` is not valid JSON: {e}")),
        Some(value) => Ok(Some(value.clone())),
    }
}

fn or_nothing(value: &Value) -> String {
    if value.is_null() {
        "missing".to_owned()
    } else {
        value.to_string()
    }
}

fn within(name: &str, value: usize, most: usize) -> Result<(), String> {
    if (1..=most).contains(&value) {
        Ok(())
    } else {
        Err(format!("{name}: expected 1 to {most}, found {value}"))
    }
}

fn lowest_terms(a: usize, b: usize) -> (usize, usize) {
    let (mut x, mut y) = (a, b);
    while y != 0 {
        (x, y) = (y, x % y);
    }
    (a / x.max(1), b / x.max(1))
}
