//! Goldens of quantised backbones: one model in several storage forms.
//!
//! The folder holds the F16 file, and of every other form an overlay with the tensors that differ. Keys
//! are `FORM.PROMPT.NAME`; the numbers were made with f32 activations on the decoded weights.

use std::io::BufWriter;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use zonos_checkpoint::{Checkpoint, DTypePolicy, LoadOptions};
use zonos_gguf::{GgufFile, overlay};
use zonos_kernels::{Activations, reads_blocks};
use zonos_nn::Tap;
use zonos2::{GenerateOptions, SamplerOptions, Sequence, Zonos2};

use crate::Request;
use crate::checks::Checks;
use crate::compare::Tolerance;
use crate::error::{GoldenError, Result};
use crate::host::HostTensor;
use crate::report::SkipReason;
use crate::zonos2::{host, model_error};

/// The form that the others are overlays of.
const BASE: &str = "f16";
/// Residual stream, about six times the noise of f32 against f64.
const LAYER: f64 = 3e-4;
/// After the output norm.
const HIDDEN: f64 = 1e-4;
const LOGITS: f64 = 5e-4;

pub(crate) fn run(request: &Request, checks: &mut Checks<'_>) -> Result<()> {
    list_inputs(checks);
    let mut forms: Vec<String> = checks
        .golden()
        .keys()
        .filter_map(|key| key.strip_suffix(".plain.final_hidden"))
        .map(str::to_owned)
        .collect();
    forms.sort_by_key(|form| (form != BASE, form.clone()));
    let place = tempfile::tempdir().map_err(|source| GoldenError::Io {
        path: std::env::temp_dir(),
        source,
    })?;
    for form in forms {
        let file = place.path().join(format!("{form}.gguf"));
        assemble(&request.dir, &form, &file)?;
        checks.enter(Path::new(&format!("{form}.gguf")));
        let model = open(request, &file)?;
        for prompt in ["plain", "speaker"] {
            teacher_forced(&model, &form, prompt, checks)?;
        }
        generations(&model, &form, checks)?;
        drop(model);
        std::fs::remove_file(&file).map_err(|source| GoldenError::Io { path: file, source })?;
    }
    Ok(())
}

fn list_inputs(checks: &mut Checks<'_>) {
    let keys: Vec<_> = checks.golden().keys().map(str::to_owned).collect();
    for key in keys {
        if key.starts_with("kld.") || key.starts_with("importance.") {
            checks.input(&key, "a sequence of the perplexity and importance tests");
        } else if key == "speaker.vector" {
            checks.input(&key, "voice");
        } else if key.ends_with(".input_ids") {
            checks.input(&key, "prompt");
        } else if key.contains(".gen.") && key.ends_with(".logits_last") {
            let why = "the codes chosen from these logits are compared";
            checks.skip(&key, SkipReason::Input(why.into()));
        }
    }
}

/// The whole file of one form.
fn assemble(dir: &Path, form: &str, out: &Path) -> Result<()> {
    let io = |path: &Path| {
        let path = path.to_path_buf();
        move |source| GoldenError::Io { path, source }
    };
    let read = |path: PathBuf| -> Result<GgufFile<Vec<u8>>> {
        let bytes = std::fs::read(&path).map_err(io(&path))?;
        GgufFile::read(path.display().to_string(), bytes).map_err(|e| model_error(&path, e))
    };
    let base = dir.join(format!("{BASE}.gguf"));
    if form == BASE {
        return std::fs::copy(&base, out).map(drop).map_err(io(&base));
    }
    let over = read(dir.join(format!("{form}.overlay.gguf")))?;
    let file = BufWriter::new(std::fs::File::create(out).map_err(io(out))?);
    overlay(&read(base)?, &over, file, &out.display().to_string())
        .map(drop)
        .map_err(|e| model_error(out, e))
}

/// Loaded with f32 activations; decoded to f32 where the device does not multiply by blocks.
fn open(request: &Request, file: &Path) -> Result<Zonos2> {
    let checkpoint = Checkpoint::open(file).map_err(|e| model_error(file, e))?;
    let config = Zonos2::config_of(&checkpoint).map_err(|e| model_error(file, e))?;
    let options = LoadOptions {
        dtype: if reads_blocks(&request.device) {
            DTypePolicy::Keep
        } else {
            DTypePolicy::F32
        },
        ..LoadOptions::default()
    };
    let (model, _) = Zonos2::load_with(&checkpoint, config, &options, &request.device)
        .map_err(|e| model_error(file, e))?;
    Ok(model.with_activations(Activations::Exact))
}

fn sequence(prompt: &str, checks: &Checks<'_>) -> Result<Sequence> {
    let golden = checks.golden();
    let voice = golden.get(&format!("{prompt}.vector"))?;
    Ok(Sequence {
        rows: golden.need_i32(&format!("{prompt}.input_ids"))?,
        speaker: voice.map(|v| (v.to_f32(), 0)),
    })
}

fn teacher_forced(model: &Zonos2, form: &str, prompt: &str, checks: &mut Checks<'_>) -> Result<()> {
    let mut tap = Tap::on();
    let out = model
        .forward(&[sequence(prompt, checks)?], &mut tap)
        .map_err(|e| model_error(Path::new(form), e))?;
    for (name, data) in tap.into_records() {
        let tolerance = match name.rsplit('.').next() {
            Some("expert") => Tolerance::SameSet,
            Some("out" | "emb_norm") => Tolerance::Absolute { max_abs: LAYER },
            Some("final_hidden") => Tolerance::Absolute { max_abs: HIDDEN },
            _ => continue,
        };
        let key = format!("{form}.{prompt}.{name}");
        checks.key(&key, &HostTensor::from_data(&data), tolerance)?;
    }
    let logits = host(out.logits);
    let last = logits.shape()[0].saturating_sub(1);
    if let Some(row) = logits.pick(&[last]) {
        checks.key(
            &format!("{form}.{prompt}.logits_last"),
            &row.squeeze_to(2),
            Tolerance::Absolute { max_abs: LOGITS },
        )?;
    }
    checks.key(
        &format!("{form}.{prompt}.logits_argmax"),
        &logits.argmax_last(),
        Tolerance::Exact,
    )
}

/// Greedy frames from the plain prompt, end of audio ignored, with and without the penalty.
fn generations(model: &Zonos2, form: &str, checks: &mut Checks<'_>) -> Result<()> {
    for (name, penalty) in [("greedy", 1.0), ("penalty", 1.2)] {
        let key = format!("{form}.gen.{name}.codes");
        let Some(frames) = checks.golden().shape(&key).and_then(|s| s.first().copied()) else {
            continue;
        };
        let options = GenerateOptions {
            sampler: SamplerOptions {
                repetition_penalty: penalty,
                repetition_window: 50,
                repetition_codebooks: 8,
                ..SamplerOptions::greedy()
            },
            max_frames: Some(frames),
            ignore_eos: true,
            ..GenerateOptions::default()
        };
        let made = model
            .generate(&[sequence("plain", checks)?], &[options], &mut |_| {
                ControlFlow::Continue(())
            })
            .map_err(|e| model_error(Path::new(form), e))?;
        let codes = &made[0].frames;
        let table = HostTensor::rows(codes.codebooks(), codes.values());
        checks.key(&key, &table, Tolerance::Exact)?;
    }
    Ok(())
}
