//! `zonos convert --zac`: the parts of a ZAC-1 training release into the three files of the codec.
//!
//! What the parts are called inside is not documented. Names are brought to ours by taking wrappers off
//! and putting `codec.` in front; the user's table comes first. Whether the result is whole is for the
//! codec's own loader to say: each file is checked by it before any appears.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use burn::tensor::{DType, TensorData};
use serde_json::{Value, json};
use zonos_audio::resample::{ResampleRecipe, Resampler};
use zonos_checkpoint::{Checkpoint, CheckpointError, LoadReport, NameMap, Part, compose};
use zonos_w2v_bert::TeacherConfig;
use zonos_zac::{NameOverrides, ZacDecoder, ZacEncoder};

use super::{ZacReleaseArgs, follow};
use crate::args::GlobalArgs;
use crate::commands::zac::{ENCODER_FILE, Variant};
use crate::failure::{Failure, Outcome};
use crate::interrupt::{self, Stepping};
use crate::output::{self, Staging};
use crate::progress::ByteBar;
use crate::reading::cannot_read;
use crate::weights;

/// Layers of the teacher that the codec uses, unless its configuration says otherwise.
const TEACHER_LAYERS: usize = 16;
/// Rates outside and inside, unless the configuration says otherwise.
const RATES: [u32; 2] = [44_100, 44_160];
/// A name that every teacher has.
const PROJECTION: &str = "feature_projection.projection.weight";

/// First words of names behind `codec.`, of what both halves hold.
const SHARED: [&str; 3] = ["semantic_quantizer", "quantizer", "semantic_head"];
/// The same of the encoder's own.
const ENCODER: [&str; 4] = [
    "encoder",
    "semantic_encoder",
    "semantic_mean",
    "semantic_std",
];
/// The same of the decoder's own.
const DECODER: [&str; 2] = ["decoder", "head"];

/// A part of the release under our names.
struct Source {
    checkpoint: Checkpoint,
    /// Our names and the file's.
    names: BTreeMap<String, String>,
}

impl Source {
    fn open(reference: &str, map: &NameOverrides, quiet: bool) -> Result<Self, Failure> {
        let checkpoint = weights::open(reference, quiet)?;
        for notice in checkpoint.notices() {
            let name = checkpoint.path().display();
            output::note(quiet, format_args!("note: {name}: {notice}"));
        }
        let wrappers = NameMap::new()
            .strip_wrappers()
            .strip_prefix("generator.")
            .strip_prefix("autoencoder.")
            .strip_wrappers();
        let mut names = BTreeMap::new();
        for file in checkpoint.names() {
            let ours = map.ours(file).map_or_else(
                || {
                    let bare = wrappers.renamed(file);
                    if bare.starts_with("codec.") {
                        bare
                    } else {
                        format!("codec.{bare}")
                    }
                },
                str::to_owned,
            );
            if let Some(other) = names.insert(ours.clone(), file.to_owned()) {
                return Err(Failure::failed(format!(
                    "{}: '{other}' and '{file}' would both be called '{ours}'; tell them apart with --map",
                    checkpoint.path().display()
                )));
            }
        }
        Ok(Self { checkpoint, names })
    }

    /// The first word behind `codec.`.
    fn group(ours: &str) -> &str {
        let rest = ours.strip_prefix("codec.").unwrap_or(ours);
        rest.split('.').next().unwrap_or(rest)
    }

    fn has(&self, group: &str) -> bool {
        self.names.keys().any(|ours| Self::group(ours) == group)
    }

    /// The tensors of these groups, as F32.
    fn parts(&self, groups: &[&str], used: &mut BTreeSet<String>) -> anyhow::Result<Vec<Part<'_>>> {
        let mut parts = Vec::new();
        for (ours, file) in &self.names {
            if groups.contains(&Self::group(ours)) {
                let part = Part::copied(&self.checkpoint, file)?;
                parts.push(part.named(ours.clone()).cast(DType::F32));
                used.insert(file.clone());
            }
        }
        Ok(parts)
    }

    /// A stored resampling filter between these rates, whatever it is called: `[new, 1, orig + 2 width]`.
    fn kernel(
        &self,
        [from, to]: [u32; 2],
        used: &mut BTreeSet<String>,
    ) -> anyhow::Result<Option<Part<'_>>> {
        let resampler = Resampler::new(from, to, ResampleRecipe::Transform)?;
        let kernel = resampler.kernel().context("rates that differ")?;
        let (orig, new) = (kernel.orig_rate(), kernel.new_rate());
        let fits = |file: &str| match self.checkpoint.info(file).map(|info| info.shape.as_slice()) {
            Some(&[rows, 1, taps] | &[rows, taps]) => {
                rows == new && taps > orig && (taps - orig) % 2 == 0
            }
            _ => false,
        };
        let found = self
            .names
            .values()
            .find(|file| file.contains("resampl") && fits(file));
        let Some(file) = found else {
            return Ok(None);
        };
        used.insert(file.clone());
        let part = Part::copied(&self.checkpoint, file)?;
        Ok(Some(part.named("codec.resampler.kernel").cast(DType::F32)))
    }

    /// A JSON object of the metadata or beside the file.
    fn config(&self, keys: &[&str], beside: bool) -> anyhow::Result<Option<Value>> {
        let metadata = self.checkpoint.metadata();
        let inside = keys.iter().map(|key| &metadata[*key]);
        let found = inside.filter_map(|value| match value {
            Value::String(text) => serde_json::from_str::<Value>(text).ok(),
            value => Some(value.clone()),
        });
        if let Some(value) = found.into_iter().find(Value::is_object) {
            return Ok(Some(value));
        }
        if !beside {
            return Ok(None);
        }
        let beside = self.checkpoint.sidecar("config.json")?;
        Ok(beside.map(
            |json| match keys.iter().find(|key| json[**key].is_object()) {
                Some(key) => json[*key].clone(),
                None => json,
            },
        ))
    }

    /// Names in the file that nothing used.
    fn unused(&self, used: &BTreeSet<String>) -> Vec<String> {
        let names = self.names.values().filter(|file| !used.contains(*file));
        names.cloned().collect()
    }
}

/// Configurations that the user gives, over those of the parts.
struct Given(Value);

impl Given {
    fn read(path: Option<&Path>) -> anyhow::Result<Self> {
        let Some(path) = path else {
            return Ok(Self(Value::Null));
        };
        let text = std::fs::read_to_string(path).map_err(|error| cannot_read(path, &error))?;
        let json: Value = serde_json::from_str(&text)
            .with_context(|| format!("{}: not valid JSON", path.display()))?;
        let known = ["model_config", "head_config", "teacher_config"];
        let Some(object) = json.as_object() else {
            bail!("{}: expected a JSON object", path.display());
        };
        if let Some(key) = object.keys().find(|key| !known.contains(&key.as_str())) {
            bail!(
                "{}: key '{key}' is none of {}",
                path.display(),
                known.join(", ")
            );
        }
        Ok(Self(json))
    }

    fn get(&self, key: &str) -> Option<Value> {
        self.0.get(key).filter(|v| v.is_object()).cloned()
    }

    /// The head's configuration may be one for both decoders, or one for each.
    fn head(&self, variant: Variant) -> Option<Value> {
        let head = self.get("head_config")?;
        Some(match head.get(variant.name()) {
            Some(own) => own.clone(),
            None => head,
        })
    }
}

/// Runs the command.
pub(super) fn run(args: &ZacReleaseArgs, global: &GlobalArgs) -> Outcome {
    let (Some(generator), Some(heads), Some(teacher), Some(out)) =
        (&args.zac, &args.heads, &args.teacher, &args.output_dir)
    else {
        return Err(Failure::usage(
            "--zac goes with --heads, --teacher and --output-dir",
        ));
    };
    output::check_folder_or_parent(out)?;
    let map = match &args.map {
        None => NameOverrides::default(),
        Some(path) => NameOverrides::from_file(path)?,
    };
    let given = Given::read(args.config.as_deref())?;
    let variants = args.variant.map_or_else(
        || vec![Variant::Keep2Plain, Variant::FullMr],
        |one| vec![one],
    );

    let generator = Source::open(generator, &map, global.quiet)?;
    let mut used = BTreeSet::new();
    let model = match given.get("model_config") {
        Some(config) => config,
        None => generator
            .config(&["model_config", "config", "kwargs"], true)?
            .unwrap_or_else(|| json!({})),
    };

    let _stepping = Stepping::begin();
    let staging = Staging::begin(out)?;
    let mut written = Vec::new();
    let mut left = Vec::new();

    // The decoders.
    let mut superseded = 0;
    for variant in variants {
        let head = Source::open(&find_head(heads, variant)?, &map, global.quiet)?;
        let mut head_used = BTreeSet::new();
        let mut parts = Vec::new();
        for group in SHARED.iter().chain(&DECODER) {
            let from_head = head.has(group);
            let source = if from_head { &head } else { &generator };
            let used = if from_head { &mut head_used } else { &mut used };
            parts.extend(source.parts(&[*group], used)?);
        }
        // A head that describes the codec describes itself.
        let own = head.config(&["model_config"], false)?;
        let model = own.as_ref().unwrap_or(&model);
        let [outside, inside] = rates(model);
        let kernel = match head.kernel([inside, outside], &mut head_used)? {
            Some(kernel) => kernel,
            None => match generator.kernel([inside, outside], &mut used)? {
                Some(kernel) => kernel,
                None => computed_kernel(inside, outside)?,
            },
        };
        parts.push(kernel);
        let config = match given.head(variant) {
            Some(config) => config,
            None => head
                .config(&["head_config", "config", "kwargs"], true)?
                .unwrap_or_else(|| json!({})),
        };
        let metadata = [
            ("format", "zac-1/1".to_owned()),
            ("kind", "decoder".to_owned()),
            ("model_config", pruned(model, &parts).to_string()),
            ("head_config", config.to_string()),
        ];
        write(
            &parts,
            &metadata,
            &staging,
            out,
            variant.file(),
            global.quiet,
        )?;
        written.push((variant.file(), parts.len()));
        left.push((head.checkpoint.path().to_owned(), head.unused(&head_used)));
    }

    // What the heads replaced is no loss.
    for (ours, file) in &generator.names {
        if DECODER.contains(&Source::group(ours)) && used.insert(file.clone()) {
            superseded += 1;
        }
    }

    // The encoder.
    let teacher = weights::open(teacher, global.quiet)?;
    let mut parts = generator.parts(&SHARED, &mut used)?;
    parts.extend(generator.parts(&ENCODER, &mut used)?);
    let [outside, inside] = rates(&model);
    parts.push(match generator.kernel([outside, inside], &mut used)? {
        Some(kernel) => kernel,
        None => computed_kernel(outside, inside)?,
    });
    let (config, teacher_left) = teacher_parts(&teacher, &given, &mut parts)?;
    let metadata = [
        ("format", "zac-1/1".to_owned()),
        ("kind", "encoder".to_owned()),
        ("model_config", model.to_string()),
        ("teacher_config", config.to_string()),
    ];
    write(&parts, &metadata, &staging, out, ENCODER_FILE, global.quiet)?;
    written.push((ENCODER_FILE, parts.len()));
    left.push((
        generator.checkpoint.path().to_owned(),
        generator.unused(&used),
    ));
    left.push((teacher.path().to_owned(), teacher_left));

    interrupt::check()?;
    check(&staging, &written)?;
    staging.commit()?;
    report(out, &written, superseded, &left, global)
}

/// The decoder of this name among the heads: a file or a folder.
fn find_head(heads: &Path, variant: Variant) -> anyhow::Result<String> {
    let name = variant.name();
    let names = ["", ".pt", ".pth", ".safetensors"].map(|ending| format!("{name}{ending}"));
    let found = names
        .iter()
        .map(|name| heads.join(name))
        .find(|path| path.exists());
    match found {
        Some(path) => Ok(path.to_string_lossy().into_owned()),
        None => bail!(
            "{}: no head '{name}'; looked for {} (--variant converts one decoder alone)",
            heads.display(),
            names.join(", ")
        ),
    }
}

/// Rates outside and inside.
fn rates(model: &Value) -> [u32; 2] {
    let rate = |key: &str, usual| {
        let told = model[key]
            .as_u64()
            .and_then(|rate| u32::try_from(rate).ok());
        told.unwrap_or(usual)
    };
    [
        rate("sample_rate", RATES[0]),
        rate("codec_sample_rate", RATES[1]),
    ]
}

/// The filter that the release computes when it runs.
fn computed_kernel(from: u32, to: u32) -> anyhow::Result<Part<'static>> {
    let resampler = Resampler::new(from, to, ResampleRecipe::Transform)?;
    let kernel = resampler.kernel().context("rates that differ")?;
    let taps = kernel.dense().context("a small filter")?;
    let row = taps.len() / kernel.new_rate();
    let data = TensorData::new(taps, [kernel.new_rate(), 1, row]);
    Ok(Part::own("codec.resampler.kernel", data))
}

/// The model's configuration with the layers that a decoder really has.
fn pruned(model: &Value, parts: &[Part<'_>]) -> Value {
    let mut model = model.clone();
    let Some(stages) = model
        .get_mut("decoder_kwargs")
        .and_then(Value::as_array_mut)
    else {
        return model;
    };
    for (i, stage) in stages.iter_mut().enumerate() {
        let prefix = format!("codec.decoder.{i}.transformer.layers.");
        let layers: BTreeSet<&str> = parts
            .iter()
            .filter_map(|part| part.name().strip_prefix(&prefix)?.split('.').next())
            .collect();
        if !layers.is_empty() && stage.get("num_layers").is_some() {
            stage["num_layers"] = json!(layers.len());
        }
    }
    model
}

/// Adds the teacher as bf16, up to the layer that is used; its configuration, and what was left out.
fn teacher_parts<'a>(
    teacher: &'a Checkpoint,
    given: &Given,
    parts: &mut Vec<Part<'a>>,
) -> anyhow::Result<(Value, Vec<String>)> {
    let (config, _) = TeacherConfig::from_checkpoint(teacher)?;
    let told = given.get("teacher_config");
    let asked = told
        .as_ref()
        .and_then(|json| json["feature_layer"].as_u64());
    let layers = match asked {
        Some(layer) => layer as usize,
        None => config.feature_layer.min(TEACHER_LAYERS),
    };
    let prefix = teacher
        .names()
        .find_map(|name| name.strip_suffix(PROJECTION))
        .unwrap_or("")
        .to_owned();
    let mut left = Vec::new();
    for file in teacher.names() {
        let Some(name) = file.strip_prefix(&prefix) else {
            left.push(file.to_owned());
            continue;
        };
        let layer = name
            .strip_prefix("encoder.layers.")
            .and_then(|rest| rest.split('.').next()?.parse::<usize>().ok());
        let wanted = name == "masked_spec_embed"
            || name.starts_with("feature_projection.")
            || layer.is_some_and(|layer| layer < layers);
        if wanted {
            let part = Part::copied(teacher, file)?.named(format!("teacher.{name}"));
            parts.push(part.cast(DType::BF16));
        } else {
            left.push(file.to_owned());
        }
    }
    let mut json = serde_json::to_value(&config)?;
    json["num_hidden_layers"] = json!(layers);
    json["feature_layer"] = json!(layers);
    json["hidden_act"] = json!("swish");
    json["position_embeddings_type"] = json!("relative_key");
    if let (Some(Value::Object(told)), Some(json)) = (told, json.as_object_mut()) {
        json.extend(told);
    }
    Ok((json, left))
}

fn write(
    parts: &[Part<'_>],
    metadata: &[(&str, String); 4],
    staging: &Staging,
    out: &Path,
    name: &'static str,
    quiet: bool,
) -> Result<(), Failure> {
    let metadata: Vec<(String, String)> = metadata
        .iter()
        .map(|(key, value)| ((*key).to_owned(), value.clone()))
        .collect();
    let temporary = staging.path().join(name);
    let bar = ByteBar::new(quiet);
    let done = compose(parts, &metadata, &temporary, &mut |progress| {
        follow(&bar, progress)
    });
    bar.done();
    done.map_err(|error| match error {
        CheckpointError::Stopped { .. } => Failure::Interrupted,
        error => output::of_target(error, &temporary, &out.join(name)),
    })
}

/// Whether the codec would load each file. All that is wrong is listed.
fn check(staging: &Staging, written: &[(&'static str, usize)]) -> Result<(), Failure> {
    for (name, _) in written {
        let path = staging.path().join(name);
        let hide = |text: String| text.replace(&path.display().to_string(), name);
        let checkpoint = Checkpoint::open(&path)?;
        let checked: anyhow::Result<LoadReport> = if *name == ENCODER_FILE {
            ZacEncoder::check(&checkpoint).map_err(Into::into)
        } else {
            ZacDecoder::check(&checkpoint).map_err(Into::into)
        };
        let report = checked.map_err(|error| Failure::failed(hide(format!("{error:#}"))))?;
        if !report.is_clean() {
            let _ = output::print(hide(report.to_string()).trim_end());
            return Err(Failure::failed(format!(
                "{name} would not load: {}; give the release's names with --map (our name: file name), its configuration with --config",
                report.summary()
            )));
        }
    }
    Ok(())
}

fn report(
    out: &Path,
    written: &[(&'static str, usize)],
    superseded: usize,
    left: &[(PathBuf, Vec<String>)],
    global: &GlobalArgs,
) -> Outcome {
    if global.json {
        let unused: BTreeMap<String, &Vec<String>> = left
            .iter()
            .map(|(path, names)| (path.display().to_string(), names))
            .collect();
        output::print_json(&json!({
            "output": out.display().to_string(),
            "files": written.iter().map(|(name, tensors)| json!({
                "file": name, "tensors": tensors,
            })).collect::<Vec<_>>(),
            "superseded_tensors": superseded,
            "unused": unused,
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    for (name, tensors) in written {
        output::note(
            global.quiet,
            format_args!("{}: {tensors} tensors", out.join(name).display()),
        );
    }
    if superseded > 0 {
        output::note(
            global.quiet,
            format_args!(
                "note: {superseded} tensors of the generator's own decoder gave way to the heads'"
            ),
        );
    }
    // All of them: what nothing used may be what the codec needs under another name.
    for (path, names) in left {
        for name in names {
            output::note(
                false,
                format_args!("warning: {}: '{name}' was not used", path.display()),
            );
        }
    }
    Ok(ExitCode::SUCCESS)
}
