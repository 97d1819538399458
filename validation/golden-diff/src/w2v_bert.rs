//! Goldens of Wav2Vec2-BERT: every layer from the golden's input features, and the whole way from the
//! samples.
//!
//! Keys are `CLIP.STAGE`; `stats.*` are statistics of a layer's channels and `frontend.*` tables of the
//! filterbank.

use std::path::Path;

use burn::tensor::{DType, Tensor, TensorData};
use zonos_audio::decode::{DecodeLimits, decode_file};
use zonos_audio::mel::{KaldiBank, KaldiConfig, povey_window};
use zonos_checkpoint::{Checkpoint, LoadOptions};
use zonos_nn::Tap;
use zonos_w2v_bert::{Features, Teacher, TeacherConfig};

use crate::checks::Checks;
use crate::compare::Tolerance;
use crate::error::{GoldenError, Result};
use crate::golden::GoldenFile;
use crate::host::HostTensor;
use crate::report::SkipReason;
use crate::{Request, checkpoints};

/// Filterbank energies, logarithms.
const FBANK: f64 = 1e-4;
/// Normalised features: a quiet band's deviation divides its error.
const FEATURES: f64 = 3e-4;
/// Outputs of layers, from the golden's input features and from samples.
const HIDDEN: f64 = 5e-5;
/// Entries of the window and of the bands, in double precision.
const TABLES: f64 = 1e-9;
/// Cosine of a layer's output with that of a run in bfloat16, whose weights and activations were
/// rounded to 8 bits: it tells how far the original's precision moves it, not how exact we are.
const COSINE_OF_HALF: f64 = 0.999;

pub(crate) fn run(request: &Request, half: bool, checks: &mut Checks<'_>) -> Result<()> {
    let clips = clips(checks.golden());
    for (path, name) in checkpoints(request, checks)? {
        checks.enter(&name);
        let suite = Suite::open(request, &path, half, checks)?;
        suite.tables(checks)?;
        for clip in &clips {
            suite.of_features(clip, checks)?;
            suite.of_samples(clip, checks)?;
        }
    }
    for key in ["stats.mean", "stats.var"] {
        checks.input(key, "statistics of a layer's channels");
    }
    Ok(())
}

/// Names of the clips.
fn clips(golden: &GoldenFile) -> Vec<String> {
    let found = golden.keys().filter_map(|key| key.strip_suffix(".hidden0"));
    found.map(str::to_owned).collect()
}

struct Suite<'a> {
    request: &'a Request,
    path: &'a Path,
    half: bool,
    teacher: Teacher,
}

impl<'a> Suite<'a> {
    fn open(
        request: &'a Request,
        path: &'a Path,
        half: bool,
        checks: &mut Checks<'_>,
    ) -> Result<Self> {
        let failed = |problem: String| GoldenError::Model {
            container: path.display().to_string(),
            problem,
        };
        let checkpoint = Checkpoint::open(path).map_err(|e| failed(e.to_string()))?;
        // The golden may show layers that the configuration does not use.
        let (config, notes) =
            TeacherConfig::from_checkpoint(&checkpoint).map_err(|e| failed(e.to_string()))?;
        let layers = config.num_hidden_layers;
        let options = LoadOptions::default();
        let (teacher, _) = Teacher::load_layers(&checkpoint, layers, &options, &request.device)
            .map_err(|e| failed(e.to_string()))?;
        for notice in checkpoint.notices().iter().chain(&notes) {
            let note = format!("{}: {notice}", checks.container());
            checks.notes.push(note);
        }
        Ok(Self {
            request,
            path,
            half,
            teacher,
        })
    }

    fn fail(&self, problem: impl ToString) -> GoldenError {
        GoldenError::Model {
            container: self.path.display().to_string(),
            problem: problem.to_string(),
        }
    }

    fn hidden(&self, max_abs: f64) -> Tolerance {
        if self.half {
            Tolerance::Cosine {
                at_least: COSINE_OF_HALF,
            }
        } else {
            Tolerance::Absolute { max_abs }
        }
    }

    /// Bit for bit where that is promised.
    fn same(&self) -> Tolerance {
        if self.request.bit_exact() {
            Tolerance::Exact
        } else {
            Tolerance::Absolute { max_abs: HIDDEN }
        }
    }

    /// Window and bands of the filterbank.
    fn tables(&self, checks: &mut Checks<'_>) -> Result<()> {
        let config = KaldiConfig {
            bands: self.teacher.config().bands(),
            ..KaldiConfig::speech()
        };
        let bank = KaldiBank::new(&config).map_err(|e| self.fail(e))?;
        let near = Tolerance::Absolute { max_abs: TABLES };
        let window = HostTensor::list(povey_window(config.window));
        checks.key("frontend.window", &window, near)?;
        let shape = [bank.bins(), bank.bands()];
        if let Some(dense) = HostTensor::floats(shape, bank.dense()) {
            checks.key("frontend.mel_filters", &dense, near)?;
        }
        Ok(())
    }

    /// Every layer from the golden's input features.
    fn of_features(&self, clip: &str, checks: &mut Checks<'_>) -> Result<()> {
        let golden = checks.golden();
        let key = format!("{clip}.input_features");
        let Some(values) = golden.get(&key)? else {
            return Ok(());
        };
        let &[tokens, width] = values.shape() else {
            return Err(golden.problem(format!("tensor `{key}`: expected [tokens, width]")));
        };
        let mask = golden.need_i32(&format!("{clip}.attention_mask"))?;
        let mask = mask.iter().map(|&seen| seen != 0).collect();
        let values = Tensor::<2>::from_data(
            TensorData::new(values.to_f32(), [tokens, width]),
            (&self.request.device, DType::F32),
        );
        let features = Features::new(values, mask).map_err(|e| self.fail(e))?;
        let mut tap = Tap::on();
        let layers = self.teacher.layers();
        let last = self
            .teacher
            .forward(&features, layers, &mut tap)
            .map_err(|e| self.fail(e))?;
        let records: Vec<_> = tap
            .into_records()
            .into_iter()
            .map(|(stage, data)| (stage, HostTensor::from_data(&data)))
            .collect();
        for (stage, actual) in &records {
            checks.key(&format!("{clip}.{stage}"), actual, self.hidden(HIDDEN))?;
        }
        let last = HostTensor::from_data(&last.into_data());
        let key = format!("{clip}.hidden{layers}");
        let tapped = &records[layers].1;
        checks.own(format!("untapped.{key}"), tapped, &last, self.same());
        // Stopping early changes nothing before.
        let middle = layers / 2;
        let early = self
            .teacher
            .forward(&features, middle, &mut Tap::off())
            .map_err(|e| self.fail(e))?;
        let early = HostTensor::from_data(&early.into_data());
        let key = format!("{clip}.hidden{middle}");
        checks.own(
            format!("alone.{key}"),
            &records[middle].1,
            &early,
            self.same(),
        );
        self.derived(clip, &records, checks)
    }

    /// What goldens make of a layer's output: `layerN_WHAT`.
    fn derived(
        &self,
        clip: &str,
        records: &[(String, HostTensor)],
        checks: &mut Checks<'_>,
    ) -> Result<()> {
        let golden = checks.golden();
        let front = format!("{clip}.layer");
        let keys: Vec<String> = golden
            .keys()
            .filter(|key| key.starts_with(&front))
            .map(str::to_owned)
            .collect();
        for key in keys {
            let Some((layer, what)) = key[front.len()..].split_once('_') else {
                continue;
            };
            let hidden = format!("hidden{layer}");
            let Some((_, hidden)) = records.iter().find(|(stage, _)| *stage == hidden) else {
                continue;
            };
            match what {
                // The second is of the layer that its name says, one after that of ZAC-1.
                "normalised" | "normalised_dualcodec_index" => {
                    let (normalised, magnified) = normalised(golden, hidden)?;
                    checks.key(&key, &normalised, self.hidden(HIDDEN * magnified))?;
                }
                "bf16_run" => {
                    let at_least = COSINE_OF_HALF;
                    checks.key(&key, hidden, Tolerance::Cosine { at_least })?;
                }
                _ if what.starts_with("15hz_") => {
                    let why = "alignment to codec frames is ZAC-1's own, compared in its goldens";
                    checks.skip(&key, SkipReason::NotApplicable(why.to_owned()));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The front end, and the last layer behind it.
    fn of_samples(&self, clip: &str, checks: &mut Checks<'_>) -> Result<()> {
        let golden = checks.golden();
        let key = format!("{clip}.wav");
        let Some(samples) = golden.get(&key)? else {
            return Ok(());
        };
        checks.input(&key, "samples at 16 kHz");
        let file = self.request.dir.join(format!("{clip}.wav"));
        if file.is_file() {
            let audio = decode_file(&file, &DecodeLimits::default()).map_err(|e| self.fail(e))?;
            let audio = HostTensor::signal(audio.into_mono().samples());
            checks.own(format!("file.{key}"), &samples, &audio, Tolerance::Exact);
        }
        let mut tap = Tap::on();
        let features = self
            .teacher
            .features_with(&samples.to_f32(), &mut tap)
            .map_err(|e| self.fail(e))?;
        for (stage, data) in tap.into_records() {
            let tolerance = match stage.as_str() {
                "attention_mask" => Tolerance::Exact,
                "fbank" => Tolerance::Absolute { max_abs: FBANK },
                _ => Tolerance::Absolute { max_abs: FEATURES },
            };
            let actual = HostTensor::from_data(&data);
            checks.key(&format!("{clip}.{stage}"), &actual, tolerance)?;
        }
        let mut tap = Tap::on();
        self.teacher
            .forward(&features, self.teacher.layers(), &mut tap)
            .map_err(|e| self.fail(e))?;
        for (stage, data) in tap.into_records() {
            let actual = HostTensor::from_data(&data);
            let tolerance = self.hidden(HIDDEN);
            checks.again("samples", &format!("{clip}.{stage}"), &actual, tolerance)?;
        }
        Ok(())
    }
}

/// `(hidden - mean) / sqrt(var)` by channel, and by how much that magnifies an error.
fn normalised(golden: &GoldenFile, hidden: &HostTensor) -> Result<(HostTensor, f64)> {
    let mean = golden.need("stats.mean")?.to_f64();
    let var = golden.need("stats.var")?.to_f64();
    let width = mean.len();
    if var.len() != width || hidden.shape().last() != Some(&width) {
        return Err(golden.problem(format!(
            "tensors `stats.mean` [{width}], `stats.var` [{}]: expected as many entries as hidden states {:?} have channels",
            var.len(),
            hidden.shape()
        )));
    }
    let values = hidden.to_f64();
    let values = values.iter().enumerate();
    let values = values.map(|(i, x)| (x - mean[i % width]) / var[i % width].sqrt());
    let magnified = var.iter().fold(1.0, |m: f64, v| m.max(v.sqrt().recip()));
    let normalised = HostTensor::floats(hidden.shape().to_vec(), values.collect());
    Ok((normalised.unwrap_or_else(|| hidden.clone()), magnified))
}
