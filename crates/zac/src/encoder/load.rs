//! From checkpoints to the encoder.

use std::path::Path;

use burn::tensor::Device;
use zonos_checkpoint::{Checkpoint, LoadOptions, LoadReport, NameMap};
use zonos_nn::Resample;
use zonos_w2v_bert::{Teacher, TeacherConfig};

use super::{Parts, ZacEncoder};
use crate::load::{Source, opened, planned, rules, tensor_specs};
use crate::prepare::{HOP, SAMPLE_RATE};
use crate::{NameOverrides, ZacConfig, ZacError, ZacKind};

/// In front of the names of the teacher's tensors.
const TEACHER: &str = "teacher.";

impl ZacEncoder {
    /// Opens and loads an encoder file: a file, a folder that holds one, or a hub id; weight norm is
    /// folded.
    ///
    /// # Errors
    ///
    /// As [`load_with`](Self::load_with), and when nothing can be opened there.
    pub fn load(path: impl AsRef<Path>, device: &Device) -> Result<Self, ZacError> {
        let checkpoint = Checkpoint::open(path)?;
        let (encoder, _) = Self::load_with(&checkpoint, &LoadOptions::default(), device)?;
        Ok(encoder)
    }

    /// Loads an opened file, the teacher inside it included, under the names that this build knows.
    ///
    /// Matrices of transformers, of ConvNeXt blocks and of the teacher keep the file's dtype, all else
    /// is f32; everything is computed in f32. With
    /// [`WeightNormPolicy::Keep`](zonos_checkpoint::WeightNormPolicy::Keep), as
    /// [`LoadOptions::training`] has it, projections that the file stores in factors are trained so.
    /// Tensors that nothing uses are warned of, and are the report's `unexpected`.
    ///
    /// # Errors
    ///
    /// [`ZacError::Format`], [`ZacError::Kind`], [`ZacError::Config`], [`ZacError::Missing`],
    /// [`ZacError::Load`] and [`ZacError::Teacher`] name what does not fit.
    pub fn load_with(
        checkpoint: &Checkpoint,
        options: &LoadOptions,
        device: &Device,
    ) -> Result<(Self, LoadReport), ZacError> {
        Self::load_mapped(checkpoint, None, &NameOverrides::default(), options, device)
    }

    /// Loads an opened file with names of its own, and the teacher from `teacher` where that is given:
    /// the published Wav2Vec2-BERT, or another encoder's file.
    ///
    /// # Errors
    ///
    /// As [`load_with`](Self::load_with), and [`ZacError::Map`] for a name that the file does not have.
    pub fn load_mapped(
        checkpoint: &Checkpoint,
        teacher: Option<&Checkpoint>,
        overrides: &NameOverrides,
        options: &LoadOptions,
        device: &Device,
    ) -> Result<(Self, LoadReport), ZacError> {
        let config = encoder_config(checkpoint, teacher, overrides)?;
        for warning in &config.warnings {
            tracing::warn!("{}: {warning}", checkpoint.path().display());
        }
        let specs = tensor_specs(&config);
        let map = codec_rules(&config, overrides);
        let loader = opened(checkpoint, &map, &specs, overrides, options, device)?;
        let source = Source {
            loader: &loader,
            device,
        };
        let (inner, report) = match (teacher, teacher_layers(&config)) {
            // A published teacher goes on after the layer that the encoder was made for.
            (Some(teacher), Some(layers)) => {
                Teacher::load_layers(teacher, layers, options, device)?
            }
            _ => Teacher::load_with(teacher.unwrap_or(checkpoint), options, device)?,
        };
        let report = joined(loader.report().clone(), report, teacher.is_none());
        let parts = parts(&source, &config, inner)?;
        let file = checkpoint.path().display().to_string();
        Ok((Self::new(parts, config, file)?, report))
    }

    /// What loading would report, without reading a value.
    ///
    /// # Errors
    ///
    /// [`ZacError::Format`], [`ZacError::Kind`], [`ZacError::Config`] and [`ZacError::Teacher`] when the
    /// file does not even tell the sizes of an encoder.
    pub fn check(checkpoint: &Checkpoint) -> Result<LoadReport, ZacError> {
        Self::check_mapped(checkpoint, None, &NameOverrides::default())
    }

    /// As [`check`](Self::check), of a file with names of its own, and of its teacher where that is
    /// elsewhere.
    ///
    /// # Errors
    ///
    /// As [`check`](Self::check), and [`ZacError::Map`].
    pub fn check_mapped(
        checkpoint: &Checkpoint,
        teacher: Option<&Checkpoint>,
        overrides: &NameOverrides,
    ) -> Result<LoadReport, ZacError> {
        let config = encoder_config(checkpoint, teacher, overrides)?;
        let (map, specs) = (codec_rules(&config, overrides), tensor_specs(&config));
        let report = planned(checkpoint, &map, &specs, overrides)?;
        let inner = match (teacher, teacher_layers(&config)) {
            (Some(teacher), Some(layers)) => Teacher::check_layers(teacher, layers)?,
            _ => Teacher::check(teacher.unwrap_or(checkpoint))?,
        };
        Ok(joined(report, inner, teacher.is_none()))
    }
}

/// The teacher's layer that the encoder was made for, where its file tells.
fn teacher_layers(config: &ZacConfig) -> Option<usize> {
    let told = &config.encoder.as_ref()?.teacher;
    let keys = ["feature_layer", "num_hidden_layers"];
    let layers = keys.iter().find_map(|&key| told[key].as_u64())?;
    usize::try_from(layers).ok()
}

/// The codec's modules, with the teacher.
fn parts(source: &Source<'_>, config: &ZacConfig, teacher: Teacher) -> Result<Parts, ZacError> {
    let own = config.encoder.as_ref().ok_or_else(|| ZacError::Config {
        file: source.loader.report().checkpoint.clone(),
        problem: "no encoder".to_owned(),
    })?;
    let quantizers = |prefix: &str, sizes| source.quantizers(prefix, sizes, true);
    Ok(Parts {
        encoder: source.stages(config)?,
        semantic_encoder: source.stack("codec.semantic_encoder.", &own.semantic_encoder)?,
        semantic_quantizer: quantizers("codec.semantic_quantizer.", &config.semantic_quantizer)?,
        semantic_head: source.stack("codec.semantic_head.", &config.semantic_head)?,
        quantizer: quantizers("codec.quantizer.", &config.quantizer)?,
        mean: source.optional("codec.semantic_mean")?,
        std: source.optional("codec.semantic_std")?,
        teacher,
        resampler: Resample::with_kernel(source.kernel(config)?),
    })
}

/// Rules from the file's names to the codec's; the teacher has rules of its own.
fn codec_rules(config: &ZacConfig, overrides: &NameOverrides) -> NameMap {
    rules(config, overrides).ignore(&format!("{TEACHER}*"))
}

/// One report of both parts. In one file each ignores the other's tensors.
fn joined(mut codec: LoadReport, teacher: LoadReport, one_file: bool) -> LoadReport {
    let mut ignored = teacher.ignored;
    if one_file {
        codec.ignored.retain(|i| !i.name.starts_with(TEACHER));
        ignored.retain(|i| i.name.starts_with(TEACHER));
        codec.ignored.extend(ignored);
    }
    let named = |name: String| format!("{TEACHER}{name}");
    codec
        .matched
        .extend(teacher.matched.into_iter().map(|mut m| {
            m.name = named(m.name);
            m
        }));
    codec
        .missing
        .extend(teacher.missing.into_iter().map(|mut m| {
            m.name = named(m.name);
            m
        }));
    codec
        .wrong_shape
        .extend(teacher.wrong_shape.into_iter().map(|mut w| {
            w.name = named(w.name);
            w
        }));
    codec
        .wrong_dtype
        .extend(teacher.wrong_dtype.into_iter().map(|mut w| {
            w.name = named(w.name);
            w
        }));
    codec.absent.extend(teacher.absent.into_iter().map(named));
    codec.unexpected.extend(teacher.unexpected);
    codec.problems.extend(teacher.problems);
    codec.non_finite.extend(teacher.non_finite);
    for note in teacher.notes {
        if !codec.notes.contains(&note) {
            codec.notes.push(note);
        }
    }
    codec
}

/// The configuration of a file that must hold an encoder which takes what [`prepare_audio`](crate::prepare_audio)
/// gives, and hears what its teacher says.
fn encoder_config(
    checkpoint: &Checkpoint,
    teacher: Option<&Checkpoint>,
    overrides: &NameOverrides,
) -> Result<ZacConfig, ZacError> {
    let file = || checkpoint.path().display().to_string();
    if ZacConfig::kind_of(checkpoint)? == ZacKind::Decoder {
        return Err(ZacError::Kind {
            file: file(),
            expected: ZacKind::Encoder,
            found: "\"decoder\"".to_owned(),
            hint: "encode with a file such as zac-1-encoder.safetensors",
        });
    }
    let config = ZacConfig::from_mapped(checkpoint, overrides)?;
    let wrong = |problem: String| ZacError::Config {
        file: file(),
        problem,
    };
    for (key, found, expected) in [
        ("sample_rate", config.sample_rate, SAMPLE_RATE as usize),
        ("hop_length", config.hop_length, HOP),
    ] {
        if found != expected {
            return Err(wrong(format!(
                "model_config.{key} is {found}, expected {expected}: ZAC-1 takes 44.1 kHz audio at 15 frames a second"
            )));
        }
    }
    for (name, sizes) in [
        ("semantic_quantizer", &config.semantic_quantizer),
        ("quantizer", &config.quantizer),
    ] {
        if let Some(q) = sizes.codebook_dim.iter().position(Option::is_none) {
            return Err(wrong(format!(
                "codec.{name}.quantizers.{q} has no out_proj: its codebook is a folded table, which decodes but \
                 cannot be searched"
            )));
        }
    }
    if teacher.is_none() && !checkpoint.names().any(|name| name.contains(TEACHER)) {
        return Err(wrong(format!(
            "holds no teacher (no tensor {TEACHER}*); give a Wav2Vec2-BERT 2.0 model beside it"
        )));
    }
    let source = teacher.unwrap_or(checkpoint);
    let (sizes, _) = TeacherConfig::from_checkpoint(source)?;
    let width = config
        .encoder
        .as_ref()
        .map_or(0, |own| own.semantic_encoder.input_dim);
    if sizes.hidden_size != width {
        return Err(wrong(format!(
            "the semantic encoder takes {width} features, but the teacher of {} gives {}",
            source.path().display(),
            sizes.hidden_size
        )));
    }
    Ok(config)
}
