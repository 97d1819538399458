//! From checkpoints to the encoder.

use std::collections::BTreeSet;
use std::path::Path;

use burn::tensor::Device;
use zonos_checkpoint::{Checkpoint, LoadOptions, LoadReport, Loader, NameMap};
use zonos_nn::Resample;
use zonos_w2v_bert::{Teacher, TeacherConfig, TeacherSource};

use super::{Parts, ZacEncoder};
use crate::load::{Source, accept, planned, rules, tensor_specs, tolerant, warn_unused};
use crate::names::{TEACHER, spellings};
use crate::prepare::{HOP, SAMPLE_RATE};
use crate::{NameOverrides, ZacConfig, ZacError, ZacKind};

/// A tensor that every teacher has.
const PROJECTION: &str = "feature_projection.projection.weight";

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
    /// the published Wav2Vec2-BERT, or another encoder's file. Names that begin with `teacher.` are looked
    /// up where the teacher is.
    ///
    /// # Errors
    ///
    /// As [`load_with`](Self::load_with), and [`ZacError::MapName`].
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
        let inside = teacher.is_none();
        let (map, specs) = (
            codec_rules(&config, inside, overrides),
            tensor_specs(&config),
        );
        let heard = teacher.unwrap_or(checkpoint);
        let taught = source_of(&config, inside, overrides);
        let found = [
            planned(checkpoint, &map, &specs, overrides)?,
            Teacher::check_from(heard, &taught)?,
        ];
        let spelled = |name: &str| spellings_in(name, overrides, &found[1]);
        let [codec, own] = separated(found.clone(), inside);
        if !options.partial {
            accept(&codec, checkpoint, spelled)?;
            accept(&own, heard, spelled)?;
        }
        warn_unused(&codec);
        warn_unused(&own);
        let options = tolerant(options);
        let loader = Loader::new(checkpoint, &map, &specs, &options, device)?;
        let source = Source {
            loader: &loader,
            device,
        };
        let (inner, report) = Teacher::load_from(heard, &taught, &options, device)?;
        let report = joined([loader.report().clone(), report], inside);
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
    /// As [`check`](Self::check), and [`ZacError::MapName`].
    pub fn check_mapped(
        checkpoint: &Checkpoint,
        teacher: Option<&Checkpoint>,
        overrides: &NameOverrides,
    ) -> Result<LoadReport, ZacError> {
        let config = encoder_config(checkpoint, teacher, overrides)?;
        let inside = teacher.is_none();
        let (map, specs) = (
            codec_rules(&config, inside, overrides),
            tensor_specs(&config),
        );
        let codec = planned(checkpoint, &map, &specs, overrides)?;
        let taught = source_of(&config, inside, overrides);
        let own = Teacher::check_from(teacher.unwrap_or(checkpoint), &taught)?;
        Ok(joined([codec, own], inside))
    }
}

/// Rules from the file's names to the codec's. Where a teacher from elsewhere stands for the file's own,
/// that one is not needed.
fn codec_rules(config: &ZacConfig, inside: bool, overrides: &NameOverrides) -> NameMap {
    let map = rules(config, overrides);
    if inside {
        return map;
    }
    map.ignore(&format!("{TEACHER}*"))
}

/// How the teacher is read. One from elsewhere goes on after the layer that the encoder was made for, and
/// the codec in its file is not needed.
fn source_of(config: &ZacConfig, inside: bool, overrides: &NameOverrides) -> TeacherSource {
    let names = overrides.teacher_names();
    if inside {
        return TeacherSource {
            layers: None,
            names,
        };
    }
    TeacherSource {
        layers: teacher_layers(config),
        names: names.ignore("codec.*"),
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

/// What stands in front of the teacher's names in its file.
fn front_of(teacher: &LoadReport) -> &str {
    let whole = teacher.matched.iter().find(|m| m.name == PROJECTION);
    let front = whole.and_then(|m| m.from.first()?.strip_suffix(PROJECTION));
    front.unwrap_or(TEACHER)
}

/// The spellings under which a tensor of the codec or of the teacher is looked for.
fn spellings_in(name: &str, overrides: &NameOverrides, teacher: &LoadReport) -> Vec<String> {
    let mut all = spellings(name, overrides);
    let front = front_of(teacher);
    if let Some(own) = name.strip_prefix(TEACHER).filter(|_| front != TEACHER) {
        all.push(format!("{front}{own}"));
    }
    all
}

/// The reports of the codec and of the teacher, each with the tensors that are for it to report, the
/// teacher's names as the codec has them. In one file (`inside`) each finds the other's tensors
/// unexpected: what both do is the codec's to report, and nobody's.
fn separated([mut codec, mut teacher]: [LoadReport; 2], inside: bool) -> [LoadReport; 2] {
    let front = front_of(&teacher).to_owned();
    if inside {
        let known = |report: &LoadReport| -> BTreeSet<String> {
            let matched = report.matched.iter().flat_map(|m| &m.from);
            let shapes = report.wrong_shape.iter().flat_map(|w| &w.from);
            let dtypes = report.wrong_dtype.iter().flat_map(|w| &w.from);
            matched.chain(shapes).chain(dtypes).cloned().collect()
        };
        let mut theirs = known(&teacher);
        teacher.ignored.retain(|i| i.name.starts_with(&front));
        theirs.extend(teacher.ignored.iter().map(|i| i.name.clone()));
        codec.unexpected.retain(|u| !theirs.contains(&u.name));
        teacher.unexpected.clear();
        teacher.problems.retain(|p| !codec.problems.contains(p));
    }
    let named = |name: &mut String| name.insert_str(0, TEACHER);
    teacher.matched.iter_mut().for_each(|m| named(&mut m.name));
    teacher.missing.iter_mut().for_each(|m| named(&mut m.name));
    teacher.absent.iter_mut().for_each(named);
    let (shapes, dtypes) = (&mut teacher.wrong_shape, &mut teacher.wrong_dtype);
    shapes.iter_mut().for_each(|w| named(&mut w.name));
    dtypes.iter_mut().for_each(|w| named(&mut w.name));
    [codec, teacher]
}

/// One report of both parts. Notes on a teacher's own file, and what that has besides, begin with its
/// name.
fn joined(reports: [LoadReport; 2], inside: bool) -> LoadReport {
    let [mut codec, mut teacher] = separated(reports, inside);
    codec.matched.extend(teacher.matched);
    codec.missing.extend(teacher.missing);
    codec.wrong_shape.extend(teacher.wrong_shape);
    codec.wrong_dtype.extend(teacher.wrong_dtype);
    codec.absent.extend(teacher.absent);
    codec.ignored.extend(teacher.ignored);
    codec.problems.extend(teacher.problems);
    codec.non_finite.extend(teacher.non_finite);
    let strays = teacher.unexpected.iter().map(|u| {
        format!(
            "tensor '{}' {:?} is not used: the model knows no such tensor",
            u.name, u.shape
        )
    });
    teacher.notes.extend(strays);
    if !inside {
        for note in &mut teacher.notes {
            *note = format!("{}: {note}", teacher.checkpoint);
        }
    }
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
    let names = overrides.teacher_names();
    let is_teachers = |name: &str| name.contains(TEACHER) || name.ends_with(PROJECTION);
    if teacher.is_none() && !checkpoint.names().any(|n| is_teachers(&names.renamed(n))) {
        return Err(wrong(format!(
            "holds no teacher (no tensor {TEACHER}*); give a Wav2Vec2-BERT 2.0 model beside it"
        )));
    }
    let source = teacher.unwrap_or(checkpoint);
    overrides.check_teacher(source)?;
    let (sizes, _) = TeacherConfig::from_mapped(source, &names)?;
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
