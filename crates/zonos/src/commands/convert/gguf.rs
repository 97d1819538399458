//! `zonos convert IN OUT.gguf`: the layouts of the C++ programs, so that both read each other's files.

use std::collections::HashSet;
use std::path::Path;

use anyhow::{Context, anyhow};
use burn::tensor::Device;
use zonos_audio::AtomicFile;
use zonos_checkpoint::{Checkpoint, LoadOptions, LoadReport, Loader, ModelKind};
use zonos_dac::{Dac, DacParts};
use zonos_ecapa::{Ecapa, EcapaConfig};
use zonos_gguf::{
    GgmlType, GgufWriter, Metadata, NamedValues, NewTensor, Policy, Value, convert_rows,
};
use zonos2::gguf::{GgufTensor, Part};
use zonos2::{Zonos2, Zonos2Config};

use crate::failure::Failure;
use crate::interrupt::{self, Stepping};
use crate::progress::ByteBar;
use crate::{output, weights};

/// What came of a conversion.
pub(super) struct Written {
    /// Tensors of the new file.
    pub(super) tensors: usize,
    /// Tensors of the input that the layout has no place for.
    pub(super) left_out: Vec<String>,
}

impl Written {
    /// `report` tells which tensors of the input were not asked for; those of the same name in the file
    /// were made anew.
    fn new<'a>(names: impl Iterator<Item = &'a str>, report: &LoadReport) -> Self {
        let names: HashSet<&str> = names.collect();
        let ignored = report.ignored.iter().map(|tensor| &tensor.name);
        Self {
            tensors: names.len(),
            left_out: ignored
                .filter(|name| !names.contains(name.as_str()))
                .cloned()
                .collect(),
        }
    }

    /// Says what was left out of `output`, and which files keep it. Who can no longer encode is warned.
    pub(super) fn tell(&self, input: &Checkpoint, output: &Path, quiet: bool) {
        let names = self.left_out.iter().map(String::as_str);
        let Some((names, count)) = weights::first_names(names) else {
            return;
        };
        let (word, quiet, why) = match input.model_kind() {
            ModelKind::Dac => (
                "warning",
                false,
                "the GGUF layout of a codec holds its decoder alone, so this file decodes and does not encode",
            ),
            _ => (
                "note",
                quiet,
                "the GGUF layout has no place for what the model does not use",
            ),
        };
        let (tensors, are) = if count == 1 {
            ("tensor", "is")
        } else {
            ("tensors", "are")
        };
        output::note(
            quiet,
            format_args!(
                "{word}: {}: {count} {tensors} of {} {are} left out ({names}): {why}; .safetensors and .bpk keep all of them",
                output.display(),
                input.path().display()
            ),
        );
    }
}

/// Writes `input`. `wanted` is the type of matrices.
pub(super) fn write(
    input: &Checkpoint,
    output: &Path,
    wanted: Option<GgmlType>,
    quiet: bool,
) -> Result<Written, Failure> {
    match input.model_kind() {
        ModelKind::Zonos2 => backbone(input, output, wanted.unwrap_or(GgmlType::F16), quiet),
        ModelKind::Dac => {
            if let Some(other) = wanted.filter(|&t| t != GgmlType::F32) {
                return Err(Failure::usage(format!(
                    "--type {other}: a codec's GGUF file holds f32, whose convolutions are no matrices"
                )));
            }
            let (dac, report) = Dac::load_parts(
                input,
                DacParts::Decoder,
                &LoadOptions::default(),
                &Device::default(),
            )?;
            weights::warn(&report, quiet);
            let (metadata, tensors) = dac.to_gguf();
            values(input, output, &metadata, &tensors, GgmlType::F32, quiet)?;
            Ok(Written::new(names(&tensors), &report))
        }
        ModelKind::Ecapa => {
            let config = EcapaConfig::from_checkpoint(input)?;
            let wanted = wanted.unwrap_or(GgmlType::F16);
            if !matches!(wanted, GgmlType::F16 | GgmlType::F32) {
                return Err(Failure::usage(format!(
                    "--type {wanted}: a speaker encoder's GGUF file holds f16 or f32"
                )));
            }
            let metadata = zonos_ecapa::gguf::metadata(&config)?;
            let tensors = zonos_ecapa::gguf::tensors(input, &config)?;
            values(input, output, &metadata, &tensors, wanted, quiet)?;
            Ok(Written::new(names(&tensors), &Ecapa::check(input)?))
        }
        ModelKind::ZacDecoder | ModelKind::ZacEncoder | ModelKind::W2vBert => {
            as_it_is(input, output, wanted.unwrap_or(GgmlType::F16), quiet)
        }
        _ => Err(Failure::failed(format!(
            "{}: none of the models that have a GGUF layout here (ZONOS2, DAC, ECAPA, ZAC-1, Wav2Vec2-BERT); `zonos inspect` says what it looks like",
            input.path().display()
        ))),
    }
}

fn names(tensors: &[NamedValues]) -> impl Iterator<Item = &str> {
    tensors.iter().map(|tensor| tensor.name.as_str())
}

/// A file on its way, with its bar.
struct Target {
    /// Where the values come from, for errors.
    input: String,
    writer: GgufWriter<AtomicFile>,
    bar: ByteBar,
    done: u64,
    total: u64,
}

impl Target {
    fn create(
        input: &Checkpoint,
        output: &Path,
        metadata: &Metadata,
        tensors: &[NewTensor],
        quiet: bool,
    ) -> Result<Self, Failure> {
        let bytes = |t: &NewTensor| t.ggml_type.bytes_for(t.dims.iter().product());
        let file = AtomicFile::create(output)?;
        Ok(Self {
            input: input.path().display().to_string(),
            writer: GgufWriter::new(file, output.display().to_string(), metadata, tensors)?,
            bar: ByteBar::new(quiet),
            done: 0,
            total: tensors.iter().filter_map(bytes).sum(),
        })
    }

    /// Rows of `row` values, stored as `ggml_type`.
    fn rows(
        &mut self,
        name: &str,
        values: &[f32],
        row: usize,
        ggml_type: GgmlType,
    ) -> Result<(), Failure> {
        interrupt::check()?;
        self.bar.at(name, self.done, Some(self.total));
        let bytes = ggml_type.bytes_for(values.len() as u64).unwrap_or(0) as usize;
        let mut out = vec![0u8; bytes];
        let source = bytemuck::cast_slice(values);
        let lost = convert_rows(GgmlType::F32, source, row, ggml_type, None, &mut out)
            .map_err(|e| anyhow!("{}: tensor '{name}': {e}", self.input))?;
        if lost > 0 {
            // Large ones that are finite fit another type; nothing mends the others.
            let (what, remedy) = if values.iter().all(|v| v.is_finite()) {
                (
                    format!("values that {ggml_type} cannot hold"),
                    "give another --type, such as bf16 or f32".to_owned(),
                )
            } else {
                (
                    "NaN or infinity".to_owned(),
                    format!(
                        "`zonos inspect {} --check` tells which tensors do; fetch or make the file again",
                        self.input
                    ),
                )
            };
            return Err(Failure::failed(format!(
                "{}: tensor '{name}': {lost} of its rows hold {what}; {remedy}",
                self.input
            )));
        }
        self.writer.write(name, &out)?;
        self.done += bytes as u64;
        Ok(())
    }

    fn finish(self) -> Result<(), Failure> {
        let file = self.writer.finish()?;
        self.bar.done();
        interrupt::check()?;
        file.commit()?;
        Ok(())
    }
}

/// Vectors are f32, whatever matrices are.
fn stored(shape: &[usize], wanted: GgmlType) -> GgmlType {
    if shape.iter().filter(|&&d| d > 1).count() < 2 {
        GgmlType::F32
    } else {
        wanted
    }
}

/// Tensors that are in memory already.
fn values(
    input: &Checkpoint,
    output: &Path,
    metadata: &Metadata,
    tensors: &[NamedValues],
    wanted: GgmlType,
    quiet: bool,
) -> Result<(), Failure> {
    let _stepping = Stepping::begin();
    // The speaker encoder's filters stay exact, and so does a matrix with one column.
    let kind = |t: &NamedValues| match t.name.as_str() {
        "mel_fb" => GgmlType::F32,
        _ if t.shape.len() > 1 => wanted,
        _ => GgmlType::F32,
    };
    let entries: Vec<NewTensor> = tensors.iter().map(|t| t.entry(kind(t))).collect();
    let mut target = Target::create(input, output, metadata, &entries, quiet)?;
    for t in tensors {
        let row = t.shape.last().copied().unwrap_or(1);
        target.rows(&t.name, &t.values, row, kind(t))?;
    }
    target.finish()
}

/// The backbone, a stack of experts one expert at a time.
fn backbone(
    input: &Checkpoint,
    output: &Path,
    wanted: GgmlType,
    quiet: bool,
) -> Result<Written, Failure> {
    let config: Zonos2Config = Zonos2::config_of(input)?;
    let options = LoadOptions {
        check_values: false,
        ..LoadOptions::default()
    };
    let loader = Loader::new(
        input,
        &zonos2::name_map(&config),
        &zonos2::file_specs(input, &config),
        &options,
        &Device::default(),
    )?;
    let tensors = zonos2::gguf::tensors(&config, zonos2::gguf::has_split_experts(input));
    let policy = Policy::everything(wanted);
    let entries: Vec<NewTensor> = tensors.iter().map(|t| t.entry(&policy)).collect();
    let _stepping = Stepping::begin();
    let metadata = zonos2::gguf::metadata(&config, wanted.file_type());
    let mut target = Target::create(input, output, &metadata, &entries, quiet)?;
    for (t, entry) in tensors.iter().zip(&entries) {
        let row = t.shape.last().copied().unwrap_or(1);
        let parts = if t.shape.len() == 3 { t.shape[0] } else { 1 };
        for i in 0..parts {
            let values = part(&loader, t, i).with_context(|| format!("tensor '{}'", t.name))?;
            target.rows(&t.name, &values, row, entry.ggml_type)?;
        }
    }
    target.finish()?;
    let names = tensors.iter().map(|tensor| tensor.name.as_str());
    Ok(Written::new(names, loader.report()))
}

/// Values of `t`; of a stack, those of entry `i`.
fn part(loader: &Loader<'_>, t: &GgufTensor, i: usize) -> anyhow::Result<Vec<f32>> {
    let data = match t.part {
        Part::Entry(entry) => loader.data_rows(&t.from, entry..entry + 1)?,
        _ if t.shape.len() == 3 => loader.data_rows(&t.from, i..i + 1)?,
        _ => loader.data(&t.from)?,
    };
    let values: Vec<f32> = data.iter::<f32>().collect();
    Ok(match t.part {
        Part::Magnitude => values.iter().map(|v| v.abs()).collect(),
        Part::EverySecond(first) => {
            let row = t.shape[2];
            let rows = values.chunks_exact(row).skip(first).step_by(2);
            rows.flatten().copied().collect()
        }
        Part::Whole | Part::Entry(_) => values,
    })
}

/// A name that fits the 63 bytes of the format: the older spelling of weight norm's factors, and a short
/// prefix for the teacher. The loader knows both.
fn short(name: &str) -> String {
    let name = match name.split_once("parametrizations.") {
        Some((head, tail)) => match tail.rsplit_once('.') {
            Some((leaf, "original0")) => format!("{head}{leaf}_g"),
            Some((leaf, "original1")) => format!("{head}{leaf}_v"),
            _ => name.to_owned(),
        },
        None => name.to_owned(),
    };
    match name.strip_prefix("teacher.") {
        Some(rest) => format!("ssl.{rest}"),
        None => name,
    }
}

/// Models whose layout in GGUF is not public: names (but for their length) and metadata stay what they are,
/// matrices become `wanted`, everything else f32.
fn as_it_is(
    input: &Checkpoint,
    output: &Path,
    wanted: GgmlType,
    quiet: bool,
) -> Result<Written, Failure> {
    let mut metadata = Metadata::new();
    let name = match input.model_kind() {
        ModelKind::W2vBert => "wav2vec2-bert",
        _ => "zac-1",
    };
    metadata.set("general.architecture", Value::String(name.into()));
    for (key, value) in input.metadata().as_object().into_iter().flatten() {
        if let Some(text) = value.as_str() {
            metadata.set(key, Value::String(text.into()));
        }
    }
    if let Some(config) = input.sidecar("config.json")? {
        let key = format!("{}config.json", zonos_checkpoint::SIDECAR_PREFIX);
        metadata.set(key, Value::String(config.to_string()));
    }
    let infos: Vec<_> = input
        .names()
        .filter_map(|name| Some((name, input.info(name)?)))
        .collect();
    let entries: Vec<NewTensor> = infos
        .iter()
        .map(|(name, info)| {
            let shape: Vec<usize> = match info.shape.len() {
                0 => vec![1],
                _ => info.shape.clone(),
            };
            let row = shape.last().copied().unwrap_or(1) as u64;
            let kind = match shape.len() {
                2 => stored(&shape, wanted),
                _ => GgmlType::F32,
            };
            let kind = if kind.bytes_for(row).is_some() {
                kind
            } else {
                GgmlType::F16
            };
            NewTensor {
                name: short(name),
                dims: shape.iter().rev().map(|&d| d as u64).collect(),
                ggml_type: kind,
            }
        })
        .collect();
    let _stepping = Stepping::begin();
    let mut target = Target::create(input, output, &metadata, &entries, quiet)?;
    for ((name, _), entry) in infos.iter().zip(&entries) {
        let values: Vec<f32> = input.tensor_data(name)?.iter::<f32>().collect();
        let row = entry.dims.first().copied().unwrap_or(1) as usize;
        target.rows(&entry.name, &values, row, entry.ggml_type)?;
    }
    target.finish()?;
    Ok(Written {
        tensors: infos.len(),
        left_out: Vec::new(),
    })
}
