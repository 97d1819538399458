//! Goldens of the backbone: teacher-forced tensors, routing, batches, generation.
//!
//! Keys are `PREFIX.NAME`. A prefix with `PREFIX.input_ids` is one prompt run teacher-forced,
//! with the voice `PREFIX.vector` if there is one; `quantile`, `batch` and `gen.NAME` are explained
//! where they are run.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;

use burn::tensor::Tensor;
use zonos_audio::Codes;
use zonos_checkpoint::{Checkpoint, Format, LoadOptions};
use zonos_nn::Tap;
use zonos2::{
    Balancing, CacheDType, GenerateOptions, Generation, KvCache, Packed, SamplerOptions, Sequence,
    Zonos2, Zonos2Config,
};

use crate::checks::Checks;
use crate::compare::Tolerance;
use crate::error::{GoldenError, Result};
use crate::golden::GoldenFile;
use crate::host::HostTensor;
use crate::report::SkipReason;
use crate::{Request, checkpoints};

/// Largest error of residuals, hidden states and logits of a correct f32 implementation: about five
/// times what two of them were seen to differ by.
const HIDDEN: f64 = 2e-4;
/// The same for routing probabilities.
const PROBABILITY: f64 = 5e-5;
/// Row whose embedding a voice replaces.
const VOICE_ROW: usize = 0;
/// More frames than a generation that ended by itself had, to see it end by itself again.
const ROOM: usize = 8;

/// Tolerances under the rules in force.
#[derive(Clone, Copy)]
struct Rules {
    half: bool,
}

impl Rules {
    fn of(self, name: &str) -> Tolerance {
        let leaf = name.rsplit('.').next().unwrap_or(name);
        match (leaf, self.half) {
            ("input_ids", _) => Tolerance::Exact,
            ("expert", false) => Tolerance::SameSet,
            ("expert", true) => Tolerance::Share {
                at_least: 0.95,
                sets: true,
            },
            ("logits_argmax", false) => Tolerance::Exact,
            ("logits_argmax", true) => Tolerance::Share {
                at_least: 0.90,
                sets: false,
            },
            ("router_prob", false) => Tolerance::Absolute {
                max_abs: PROBABILITY,
            },
            (_, false) => Tolerance::Absolute { max_abs: HIDDEN },
            // Wrong expert choices of single rows leave large differences, so angles are compared.
            (_, true) => Tolerance::Cosine { at_least: 0.995 },
        }
    }
}

pub(crate) fn run(request: &Request, half: bool, checks: &mut Checks<'_>) -> Result<()> {
    let rules = Rules { half };
    list_inputs(checks);
    for (path, name) in checkpoints(request, checks)? {
        checks.enter(&name);
        let suite = Suite::open(request, &path, rules, checks)?;
        for prefix in prompts(checks.golden()) {
            suite.teacher_forced(&prefix, checks)?;
        }
        suite.quantile(checks)?;
        suite.batch(checks)?;
        suite.generations(checks)?;
    }
    Ok(())
}

/// Prefixes of single prompts, the plain one first.
fn prompts(golden: &GoldenFile) -> Vec<String> {
    let mut found: Vec<_> = golden
        .keys()
        .filter_map(|k| k.strip_suffix(".input_ids"))
        .filter(|p| *p != "batch")
        .map(str::to_owned)
        .collect();
    found.sort_by_key(|p| (p != "plain", p.clone()));
    found
}

fn list_inputs(checks: &mut Checks<'_>) {
    let keys: Vec<_> = checks.golden().keys().map(str::to_owned).collect();
    for key in keys {
        let what = match key.rsplit('.').next().unwrap_or_default() {
            "vector" | "speaker_vector" => "voice",
            "logits_row_index" => "which rows `logits_rows` holds",
            "logits_steps" => "which steps `logits` holds",
            "lengths" => "prompt lengths",
            "has_speaker" => "which prompts have the voice",
            _ => continue,
        };
        checks.input(&key, what);
    }
}

/// The configuration of a checkpoint: a GGUF file's own, else `params.json` beside it or in the golden
/// folder.
pub(crate) fn config(checkpoint: &Checkpoint, path: &Path, dir: &Path) -> Result<Zonos2Config> {
    if checkpoint.format() == Format::Gguf {
        return Zonos2::config_of(checkpoint).map_err(|e| model_error(path, e));
    }
    let beside = if path.is_dir() {
        path.to_path_buf()
    } else {
        path.parent().unwrap_or(Path::new(".")).to_path_buf()
    };
    let place = if beside.join("params.json").is_file() {
        beside
    } else {
        dir.to_path_buf()
    };
    Zonos2Config::load(place).map_err(|e| model_error(path, e))
}

pub(crate) fn model_error(container: &Path, problem: impl ToString) -> GoldenError {
    GoldenError::Model {
        container: container.display().to_string(),
        problem: problem.to_string(),
    }
}

/// A loaded model and what it is run with.
struct Suite<'a> {
    request: &'a Request,
    rules: Rules,
    path: &'a Path,
    checkpoint: Checkpoint,
    model: Zonos2,
}

impl<'a> Suite<'a> {
    fn open(
        request: &'a Request,
        path: &'a Path,
        rules: Rules,
        checks: &mut Checks<'_>,
    ) -> Result<Self> {
        let checkpoint = Checkpoint::open(path).map_err(|e| model_error(path, e))?;
        let (model, _) = Zonos2::load_with(
            &checkpoint,
            config(&checkpoint, path, &request.dir)?,
            &LoadOptions::default(),
            &request.device,
        )
        .map_err(|e| model_error(path, e))?;
        for notice in checkpoint.notices() {
            let note = format!("{}: {notice}", checks.container());
            checks.notes.push(note);
        }
        Ok(Self {
            request,
            rules,
            path,
            checkpoint,
            model,
        })
    }

    fn fail(&self, problem: impl ToString) -> GoldenError {
        model_error(self.path, problem)
    }

    fn sequence(&self, golden: &GoldenFile, prefix: &str) -> Result<Sequence> {
        let rows = golden.need_i32(&format!("{prefix}.input_ids"))?;
        let voice = golden.get(&format!("{prefix}.vector"))?;
        Ok(Sequence {
            rows,
            speaker: voice.map(|v| (v.to_f32(), VOICE_ROW)),
        })
    }

    /// Every tapped tensor, then what is derived from the logits; then the run as users run it,
    /// without a tap.
    fn teacher_forced(&self, prefix: &str, checks: &mut Checks<'_>) -> Result<()> {
        let golden = checks.golden();
        let sequence = self.sequence(golden, prefix)?;
        let mut tap = Tap::on();
        let tapped = self
            .model
            .forward(std::slice::from_ref(&sequence), &mut tap)
            .map_err(|e| self.fail(e))?;
        for (name, data) in tap.into_records() {
            let name = name.replacen("speaker_projected", "projected", 1);
            let key = format!("{prefix}.{name}");
            if let Some(shape) = golden.shape(&key) {
                let actual = HostTensor::from_data(&data).squeeze_to(shape.len());
                checks.key(&key, &actual, self.rules.of(&name))?;
            }
        }
        let logits = host(tapped.logits);
        let rows_key = format!("{prefix}.logits_rows");
        if golden.has(&rows_key) {
            let picks = self.picks(golden, &format!("{prefix}.logits_row_index"))?;
            match logits.pick(&picks) {
                Some(rows) => checks.key(&rows_key, &rows, self.rules.of("logits_rows"))?,
                None => checks.fail(
                    &rows_key,
                    self.rules.of("logits_rows"),
                    format!(
                        "rows {picks:?} do not all exist: there are {:?}",
                        logits.shape()
                    ),
                ),
            }
        }
        for (name, actual) in [
            ("logits", logits.clone()),
            ("logits_argmax", logits.argmax_last()),
            ("logits_logsumexp", logits.logsumexp_last()),
        ] {
            checks.key(&format!("{prefix}.{name}"), &actual, self.rules.of(name))?;
        }

        let plain = self
            .model
            .forward(std::slice::from_ref(&sequence), &mut Tap::off())
            .map_err(|e| self.fail(e))?;
        checks.own(
            format!("untapped.{prefix}.final_hidden"),
            &host(tapped.final_hidden),
            &host(plain.final_hidden),
            Tolerance::Absolute { max_abs: HIDDEN },
        );
        checks.own(
            format!("untapped.{prefix}.logits"),
            &logits,
            &host(plain.logits),
            Tolerance::Absolute { max_abs: HIDDEN },
        );
        Ok(())
    }

    fn picks(&self, golden: &GoldenFile, key: &str) -> Result<Vec<usize>> {
        golden
            .need_i32(key)?
            .into_iter()
            .map(|i| {
                usize::try_from(i)
                    .map_err(|_| golden.problem(format!("tensor `{key}`: {i} is no row number")))
            })
            .collect()
    }

    /// `quantile.*`: the plain prompt through the same weights with the balancing bias subtracted.
    fn quantile(&self, checks: &mut Checks<'_>) -> Result<()> {
        let golden = checks.golden();
        if !golden.keys().any(|k| k.starts_with("quantile."))
            || !golden.has("plain.input_ids")
            || golden.has("quantile.input_ids")
        {
            return Ok(());
        }
        let config = Zonos2Config {
            balancing: Balancing::Quantile,
            ..self.model.config().clone()
        };
        let (model, _) = Zonos2::load_with(
            &self.checkpoint,
            config,
            &LoadOptions::default(),
            &self.request.device,
        )
        .map_err(|e| self.fail(e))?;
        let sequence = self.sequence(golden, "plain")?;
        let mut tap = Tap::on();
        let out = model
            .forward(&[sequence], &mut tap)
            .map_err(|e| self.fail(e))?;
        for (name, data) in tap.into_records() {
            checks.key(
                &format!("quantile.{name}"),
                &HostTensor::from_data(&data),
                self.rules.of(&name),
            )?;
        }
        let logits = host(out.logits);
        let last = logits.shape()[0].saturating_sub(1);
        if let Some(row) = logits.pick(&[last]) {
            checks.key(
                "quantile.logits_last",
                &row.squeeze_to(2),
                self.rules.of("logits_last"),
            )?;
        }
        Ok(())
    }

    /// `batch.*`: prompts of different lengths, padded with -1 on the right, packed in one pass.
    fn batch(&self, checks: &mut Checks<'_>) -> Result<()> {
        let golden = checks.golden();
        if !golden.has("batch.input_ids") {
            return Ok(());
        }
        let padded = golden.need("batch.input_ids")?;
        let &[count, longest, width] = padded.shape() else {
            return Err(golden.problem("tensor `batch.input_ids`: expected three axes"));
        };
        let ids = golden.need_i32("batch.input_ids")?;
        let lengths = self.picks(golden, "batch.lengths")?;
        let has_voice = golden.need_i32("batch.has_speaker")?;
        if lengths.len() != count
            || has_voice.len() != count
            || lengths.iter().any(|&n| n == 0 || n > longest)
        {
            return Err(golden.problem(
                "tensors `batch.lengths` and `batch.has_speaker` do not fit `batch.input_ids`",
            ));
        }
        let voice = golden.get("batch.speaker_vector")?.map(|v| v.to_f32());
        let sequences: Vec<_> = (0..count)
            .map(|i| Sequence {
                rows: ids[i * longest * width..][..lengths[i] * width].to_vec(),
                speaker: voice
                    .clone()
                    .filter(|_| has_voice[i] != 0)
                    .map(|v| (v, VOICE_ROW)),
            })
            .collect();
        checks.input("batch.input_ids", "padded prompts");

        let out = self
            .model
            .forward(&sequences, &mut Tap::off())
            .map_err(|e| self.fail(e))?;
        let (hidden, logits) = (host(out.final_hidden), host(out.logits));
        let mut start = 0;
        let mut last_rows = Vec::new();
        for (i, &n) in lengths.iter().enumerate() {
            let rows: Vec<_> = (start..start + n).collect();
            if let Some(part) = hidden.pick(&rows) {
                checks.key(
                    &format!("batch.final_hidden.{i}"),
                    &part,
                    self.rules.of("final_hidden"),
                )?;
            }
            start += n;
            last_rows.push(start - 1);
        }
        if let Some(last) = logits.pick(&last_rows) {
            checks.key("batch.logits_last", &last, self.rules.of("logits_last"))?;
            let mut alone = Vec::new();
            for sequence in &sequences {
                let out = self
                    .model
                    .forward(std::slice::from_ref(sequence), &mut Tap::off())
                    .map_err(|e| self.fail(e))?;
                let logits = host(out.logits);
                let end = logits.shape()[0].saturating_sub(1);
                alone.extend(logits.pick(&[end]).map(|x| x.to_f64()).unwrap_or_default());
            }
            if let Some(alone) = HostTensor::floats(last.shape().to_vec(), alone) {
                checks.own(
                    "alone.batch.logits_last".to_owned(),
                    &last,
                    &alone,
                    Tolerance::Absolute { max_abs: HIDDEN },
                );
            }
        }
        self.batch_codes(&sequences, checks)
    }

    /// `batch.codes`: all prompts together, greedy with the default penalty, end of audio ignored.
    fn batch_codes(&self, sequences: &[Sequence], checks: &mut Checks<'_>) -> Result<()> {
        let golden = checks.golden();
        let Some(shape) = golden.shape("batch.codes").map(<[usize]>::to_vec) else {
            return Ok(());
        };
        if self.rules.half {
            checks.skip("batch.codes", free_running());
            return Ok(());
        }
        let options = greedy(true, shape.get(1).copied().unwrap_or(0), true);
        let stack = |generations: &[Generation]| {
            let flat: Vec<i64> = generations
                .iter()
                .flat_map(|g| g.frames.values().iter().map(|&x| i64::from(x)))
                .collect();
            HostTensor::ints(shape.clone(), flat)
        };
        let together = self.generate(sequences, &options)?;
        let mut single = Vec::new();
        for sequence in sequences {
            single.extend(self.generate(std::slice::from_ref(sequence), &options)?);
        }
        match (stack(&together), stack(&single)) {
            (Some(together), Some(single)) => {
                checks.key("batch.codes", &together, Tolerance::Exact)?;
                checks.own(
                    "alone.batch.codes".to_owned(),
                    &together,
                    &single,
                    Tolerance::Exact,
                );
            }
            _ => checks.fail(
                "batch.codes",
                Tolerance::Exact,
                "the generations have other lengths".to_owned(),
            ),
        }
        Ok(())
    }

    /// `gen.NAME.*`: greedy generation; `greedy` without the repetition penalty, every other name
    /// with the default one; `speaker` from that prompt and its voice, every other name from `plain`.
    fn generations(&self, checks: &mut Checks<'_>) -> Result<()> {
        let golden = checks.golden();
        let names: Vec<_> = golden
            .keys()
            .filter_map(|k| k.strip_prefix("gen.")?.strip_suffix(".codes"))
            .map(str::to_owned)
            .collect();
        for name in names {
            self.generation(&name, checks)?;
        }
        Ok(())
    }

    fn generation(&self, name: &str, checks: &mut Checks<'_>) -> Result<()> {
        let golden = checks.golden();
        let key = |leaf: &str| format!("gen.{name}.{leaf}");
        let prompt = if golden.has(&format!("{name}.input_ids")) {
            name
        } else {
            "plain"
        };
        let sequence = self.sequence(golden, prompt)?;
        let expected = golden.need(&key("codes"))?;
        let codes = golden.need_i32(&key("codes"))?;
        let config = self.model.config();
        let &[frames, codebooks] = expected.shape() else {
            return Err(golden.problem(format!("tensor `{}`: expected two axes", key("codes"))));
        };
        if codebooks != config.n_codebooks {
            checks.fail(
                &key("codes"),
                Tolerance::Exact,
                format!("the model has {} codebooks", config.n_codebooks),
            );
            return Ok(());
        }

        // Logits first: over the golden's own frames they can be compared even when free-running
        // codes cannot.
        if golden.has(&key("logits")) {
            let steps = self.picks(golden, &key("logits_steps"))?;
            // First, because it checks every id.
            let whole = self.forced_logits(&sequence, &codes, &steps)?;
            let cached = self.cached_logits(&sequence, &codes, &steps)?;
            match &cached {
                Some(rows) => checks.key(&key("logits"), rows, self.rules.of("logits"))?,
                None => checks.fail(
                    &key("logits"),
                    self.rules.of("logits"),
                    format!("steps {steps:?} do not all exist in {frames} frames"),
                ),
            }
            if let (Some(cached), Some(whole)) = (&cached, &whole) {
                checks.own(
                    format!("recompute.{}", key("logits")),
                    cached,
                    whole,
                    Tolerance::Absolute { max_abs: HIDDEN },
                );
            }
        }
        if self.rules.half {
            for leaf in ["codes", "eos_frame", "codec_codes"] {
                checks.skip(&key(leaf), free_running());
            }
            return Ok(());
        }

        let end = golden
            .get(&key("eos_frame"))?
            .and_then(|t| t.to_i32())
            .and_then(|v| v.first().copied())
            .unwrap_or(-1);
        let marks_end = codes.contains(&(config.eoa_id as i32));
        let ignore_eos = end < 0 && marks_end;
        // A generation that ended by itself must do so again, with room to go on.
        let by_itself = end >= 0 && ended_by_itself(&codes, codebooks, config.eoa_id as i32);
        let max_frames = if by_itself { frames + ROOM } else { frames };
        let options = greedy(name != "greedy", max_frames, ignore_eos);
        let generation = self.generate_one(&sequence, &options)?;
        let table = |codes: &Codes| HostTensor::rows(codes.codebooks(), codes.values());
        checks.key(&key("codes"), &table(&generation.frames), Tolerance::Exact)?;
        checks.key(
            &key("eos_frame"),
            &HostTensor::int(generation.eos_frame.map_or(-1, |f| f as i64)),
            Tolerance::Exact,
        )?;
        checks.key(
            &key("codec_codes"),
            &table(&generation.codec_codes(config)),
            Tolerance::Exact,
        )?;
        let again = self.generate_one(
            &sequence,
            &GenerateOptions {
                recompute: true,
                ..options
            },
        )?;
        checks.own(
            format!("recompute.{}", key("codes")),
            &table(&generation.frames),
            &table(&again.frames),
            Tolerance::Exact,
        );
        Ok(())
    }

    /// Logits of generation steps over given frames, one decode step a frame with a cache.
    fn cached_logits(
        &self,
        sequence: &Sequence,
        codes: &[i32],
        steps: &[usize],
    ) -> Result<Option<HostTensor>> {
        let config = self.model.config();
        let (width, codebooks) = (config.row_width(), config.n_codebooks);
        let device = &self.request.device;
        let rows = sequence.rows.len() / width;
        let frames = codes.len() / codebooks;
        sequence.validate(0, config).map_err(|e| self.fail(e))?;
        let mut cache = KvCache::new(config, 1, rows + frames, CacheDType::F32, device);
        let backbone = self.model.backbone();
        let mut packed = Packed::sequences(std::slice::from_ref(sequence), width, device);
        let mut found = BTreeMap::new();
        for (step, frame) in codes.chunks(codebooks).enumerate() {
            let hidden = backbone.hidden(&packed, Some(&mut cache), &mut Tap::off());
            if steps.contains(&step) {
                let last = hidden.dims()[0] - 1;
                let logits = backbone.logits(hidden.narrow(0, last, 1));
                found.insert(step, host(logits).to_f64());
            }
            let mut row = frame.to_vec();
            row.push(config.text_pad_id() as i32);
            packed = Packed::decode(row, cache.lengths(), width, device);
        }
        let flat: Option<Vec<_>> = steps.iter().map(|s| found.get(s).cloned()).collect();
        Ok(flat.and_then(|rows| {
            let shape = [steps.len(), codebooks, config.audio_vocab()];
            HostTensor::floats(shape, rows.concat())
        }))
    }

    /// The same logits from one teacher-forced pass without a cache.
    fn forced_logits(
        &self,
        sequence: &Sequence,
        codes: &[i32],
        steps: &[usize],
    ) -> Result<Option<HostTensor>> {
        let config = self.model.config();
        let frames = codes.chunks(config.n_codebooks);
        let mut forced = sequence.clone();
        let first = sequence.rows.len() / config.row_width() - 1;
        let fed = frames.len().saturating_sub(1);
        for frame in frames.take(fed) {
            forced.rows.extend_from_slice(frame);
            forced.rows.push(config.text_pad_id() as i32);
        }
        let out = self
            .model
            .forward(&[forced], &mut Tap::off())
            .map_err(|e| self.fail(e))?;
        let picks: Vec<_> = steps.iter().map(|s| first + s).collect();
        Ok(host(out.logits).pick(&picks))
    }

    fn generate(
        &self,
        sequences: &[Sequence],
        options: &GenerateOptions,
    ) -> Result<Vec<Generation>> {
        let each = vec![options.clone(); sequences.len()];
        self.model
            .generate(sequences, &each, &mut |_| ControlFlow::Continue(()))
            .map_err(|e| self.fail(e))
    }

    fn generate_one(&self, sequence: &Sequence, options: &GenerateOptions) -> Result<Generation> {
        self.generate(std::slice::from_ref(sequence), options)?
            .pop()
            .ok_or_else(|| self.fail("generate returned no generation"))
    }
}

fn free_running() -> SkipReason {
    SkipReason::NotApplicable(
        "free-running codes differ between precisions after the first near-tie".to_owned(),
    )
}

/// Options of the golden generations.
fn greedy(penalty: bool, max_frames: usize, ignore_eos: bool) -> GenerateOptions {
    let defaults = SamplerOptions::default();
    GenerateOptions {
        sampler: SamplerOptions {
            repetition_penalty: if penalty {
                defaults.repetition_penalty
            } else {
                1.0
            },
            greedy: true,
            ..defaults
        },
        max_frames: Some(max_frames),
        ignore_eos,
        ..GenerateOptions::default()
    }
}

/// Whether the frames stop where the countdown from the first end-of-audio code ends.
fn ended_by_itself(codes: &[i32], codebooks: usize, eoa: i32) -> bool {
    let frames = codes.len() / codebooks;
    codes
        .chunks(codebooks)
        .position(|frame| frame.contains(&eoa))
        .is_some_and(|first| frames == first + codebooks + 1)
}

pub(crate) fn host<const D: usize>(x: Tensor<D>) -> HostTensor {
    HostTensor::from_data(&x.into_data())
}
