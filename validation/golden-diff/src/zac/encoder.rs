//! Goldens of the encoder: preparing audio, every stage of every lane, and each choice of a code.
//!
//! Stages are compared from the golden's prepared audio. What depends on codes is compared from the
//! stored tensor in front of it (a quantizer from its residual, the semantic head from its vectors),
//! so that one choice within the rounding does not hide the rest; the codes of the whole way from
//! audio to codes are rows of their own. Choices must agree where the recorded lead, `margin`, is
//! above [`MARGIN`].

use std::ops::ControlFlow;
use std::path::Path;

use burn::tensor::{DType, Int, Tensor, TensorData};
use zonos_audio::{Codes, Waveform};
use zonos_checkpoint::{Checkpoint, LoadOptions};
use zonos_nn::Tap;
use zonos_w2v_bert::Features;
use zonos_zac::{Align, Lane, PrepareOptions, SAMPLE_RATE, ZacEncoder, prepare_audio};

use crate::checks::Checks;
use crate::compare::Tolerance;
use crate::error::{GoldenError, Result};
use crate::golden::GoldenFile;
use crate::host::HostTensor;
use crate::report::SkipReason;
use crate::{Request, checkpoints};

/// The lead, in squared distance, that a choice must have to be the same everywhere.
const MARGIN: f64 = 1e-4;
/// Largest error of prepared and of resampled samples.
const SAMPLES: f64 = 2e-6;
/// Largest error of a stage, relative to its largest value.
const STAGE: f64 = 5e-6;
/// Filterbank energies, logarithms, and normalised features, from the golden's samples.
const FBANK: f64 = 1e-4;
/// A quiet band's deviation divides its error.
const FEATURES: f64 = 3e-4;
/// Energies from our own resampling: between its cut-off and the Nyquist frequency a band of a quiet
/// frame holds little but what rounding left there.
const FBANK_FROM_AUDIO: f64 = 5e-3;
/// Largest error of what is behind them, relative to its largest value: normalisation brings such bands to
/// unit deviation, and the teacher passes them on.
const FROM_AUDIO: f64 = 2e-4;
/// Largest error of a recorded lead, from the stored residual.
const LEAD: f64 = 1e-5;
/// Share of codes that must agree with an original that ran in bfloat16: one choice that falls the other
/// way takes all later ones of its frame with it. The limit of the original's own tests.
const SHARE_OF_HALF: f64 = 0.65;

pub(super) fn run(request: &Request, half: bool, checks: &mut Checks<'_>) -> Result<()> {
    for (key, what) in [
        ("wav_in", "samples to prepare"),
        ("rate_in", "their rate"),
        ("loud_in", "samples to prepare"),
        ("loud_rate", "their rate"),
    ] {
        checks.input(key, what);
    }
    // Small folders store these without what they come from; then they say only what is sure, or feed
    // the teacher.
    let keys: Vec<String> = checks.golden().keys().map(str::to_owned).collect();
    for key in keys {
        if key.contains("margin") {
            checks.input(&key, "leads of choices");
        } else if key.ends_with(".input_features") || key.ends_with(".attention_mask") {
            checks.input(&key, "what the teacher reads");
        }
    }
    checks.enter(Path::new(""));
    prepared(request, checks)?;
    for (path, name) in checkpoints(request, checks)? {
        checks.enter(&name);
        let suite = Suite::open(request, &path, half, checks)?;
        suite.whole(checks)?;
        suite.alignment(checks)?;
        for (k, lane) in suite.encoder.lanes(suite.audio.len()).enumerate() {
            suite.whole_lane(k, &lane, checks)?;
            suite.front_end(k, checks)?;
            suite.teacher(k, checks)?;
            suite.semantic(k, checks)?;
            suite.acoustic(k, checks)?;
        }
    }
    Ok(())
}

/// `prepared`, `loud_prepared`, `cut_prepared_tail`.
fn prepared(request: &Request, checks: &mut Checks<'_>) -> Result<()> {
    let golden = checks.golden();
    let tolerance = Tolerance::Absolute { max_abs: SAMPLES };
    let options = PrepareOptions::default();
    for (key, input, rate) in [
        ("prepared", "wav_in", "rate_in"),
        ("loud_prepared", "loud_in", "loud_rate"),
    ] {
        if golden.has(key) && golden.has(input) && golden.has(rate) {
            let samples = prepare(golden, input, rate, &options)?;
            checks.key(key, &HostTensor::signal(&samples), tolerance)?;
        }
    }
    let Some(kept) = golden
        .shape("cut_prepared_tail")
        .and_then(|s| s.first().copied())
    else {
        return Ok(());
    };
    let facts = facts(&request.dir);
    let (Some(seconds), Some(length)) = (
        facts["cut_seconds"].as_f64(),
        facts["cut_prepared_samples"].as_i64(),
    ) else {
        let why = "info.json does not say where the audio is cut".to_owned();
        checks.skip("cut_prepared_tail", SkipReason::NotApplicable(why));
        return Ok(());
    };
    let options = PrepareOptions {
        max_seconds: seconds,
        ..options
    };
    let samples = prepare(golden, "wav_in", "rate_in", &options)?;
    checks.own(
        "cut_prepared_samples".to_owned(),
        &HostTensor::int(length),
        &HostTensor::int(samples.len() as i64),
        Tolerance::Exact,
    );
    let tail = HostTensor::signal(&samples[samples.len().saturating_sub(kept)..]);
    checks.key("cut_prepared_tail", &tail, tolerance)
}

/// Tensor `input`, `[samples]` or `[channels, samples]` at the rate that tensor `rate` gives, prepared.
fn prepare(
    golden: &GoldenFile,
    input: &str,
    rate: &str,
    options: &PrepareOptions,
) -> Result<Vec<f32>> {
    let samples = golden.need(input)?;
    let rate = golden.need_i32(rate)?.first().copied().unwrap_or(0);
    let count = samples.shape().last().copied().unwrap_or(0);
    let values = samples.to_f32();
    let channels: Vec<&[f32]> = values.chunks(count.max(1)).collect();
    let rate = u32::try_from(rate).map_err(|_| golden.problem("a negative rate"))?;
    let audio = prepare_audio(&channels, rate, options)
        .map_err(|e| golden.problem(format!("tensor `{input}`: {e}")))?;
    Ok(audio.into_samples())
}

/// `info.json` of the folder; null when there is none.
fn facts(dir: &Path) -> serde_json::Value {
    std::fs::read_to_string(dir.join("info.json"))
        .ok()
        .and_then(|text| serde_json::from_str(&text).ok())
        .unwrap_or_default()
}

struct Suite<'a> {
    request: &'a Request,
    path: &'a Path,
    half: bool,
    encoder: ZacEncoder,
    audio: Waveform,
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
        let options = LoadOptions::default();
        let (encoder, _) = ZacEncoder::load_with(&checkpoint, &options, &request.device)
            .map_err(|e| failed(e.to_string()))?;
        for notice in checkpoint.notices() {
            let note = format!("{}: {notice}", checks.container());
            checks.notes.push(note);
        }
        let golden = checks.golden();
        let samples = match golden.get("prepared")? {
            Some(prepared) => prepared.to_f32(),
            // Small folders leave out what follows from their input.
            None => prepare(golden, "wav_in", "rate_in", &PrepareOptions::default())?,
        };
        Ok(Self {
            request,
            path,
            half,
            encoder,
            audio: Waveform::new(samples, SAMPLE_RATE),
        })
    }

    fn fail(&self, problem: impl ToString) -> GoldenError {
        GoldenError::Model {
            container: self.path.display().to_string(),
            problem: problem.to_string(),
        }
    }

    /// `codes`: from prepared audio, as users encode.
    fn whole(&self, checks: &mut Checks<'_>) -> Result<()> {
        let codes = self
            .encoder
            .encode_prepared(&self.audio, &mut |_| ControlFlow::Continue(()))
            .map_err(|e| self.fail(e))?;
        let golden = checks.golden();
        let theirs = table(golden, "codes")?;
        let mut sure = Vec::new();
        for (k, lane) in self.encoder.lanes(self.audio.len()).enumerate() {
            sure.extend(certain(golden, k, lane.frames.len())?.split_off(lane.context));
        }
        let codes = or(&sure, &theirs, &codes);
        checks.key("codes", &rows(&codes), self.codes())
    }

    fn codes(&self) -> Tolerance {
        if self.half {
            let at_least = SHARE_OF_HALF;
            Tolerance::Share {
                at_least,
                sets: false,
            }
        } else {
            Tolerance::Exact
        }
    }

    /// `lane0.aligned_alternative_*`: the same features under each rule.
    fn alignment(&self, checks: &mut Checks<'_>) -> Result<()> {
        let golden = checks.golden();
        let (Some(features), Some(aligned)) = (
            golden.get("lane0.teacher_normalised")?,
            golden.shape("lane0.semantic_aligned"),
        ) else {
            return Ok(());
        };
        let frames = aligned[0];
        for (name, align) in [("linear", Align::Linear), ("pool", Align::AdaptiveAvgPool)] {
            let key = format!("lane0.aligned_alternative_{name}");
            let x = self.on_device(golden, "lane0.teacher_normalised", &features)?;
            let y = HostTensor::from_data(&align.apply(x, frames).into_data());
            self.stage(&key, &y, STAGE, checks)?;
        }
        Ok(())
    }

    /// A lane from prepared audio to codes: every stage of the acoustic half, and again what the teacher's
    /// half makes.
    fn whole_lane(&self, k: usize, lane: &Lane, checks: &mut Checks<'_>) -> Result<()> {
        let golden = checks.golden();
        let mut tap = Tap::on();
        let codes = self
            .encoder
            .encode_lane(&self.audio, lane, &mut tap, &mut |_| {
                ControlFlow::Continue(())
            })
            .map_err(|e| self.fail(e))?;
        for (name, data) in tap.into_records() {
            let key = format!("lane{k}.{name}");
            let actual = HostTensor::from_data(&data);
            let again = match name.as_str() {
                "audio_44160" | "audio_16000" => {
                    checks.key(&key, &actual, Tolerance::Absolute { max_abs: SAMPLES })?;
                    continue;
                }
                name if name.starts_with("encoder.") => {
                    self.stage(&key, &actual, STAGE, checks)?;
                    continue;
                }
                "fbank" => Tolerance::Absolute {
                    max_abs: FBANK_FROM_AUDIO,
                },
                "attention_mask" => Tolerance::Exact,
                "input_features" | "teacher_normalised" | "semantic_aligned"
                | "semantic_encoded" | "semantic.latent" => relative(golden, &key, FROM_AUDIO)?,
                name if name.starts_with("teacher.") => relative(golden, &key, FROM_AUDIO)?,
                // Behind the choice of code 0: from stored tensors below.
                _ => continue,
            };
            checks.again("from_audio", &key, &actual, again)?;
        }
        let key = format!("lane{k}.codes");
        if golden.has(&key) {
            let theirs = table(golden, &key)?;
            let sure = certain(golden, k, lane.frames.len())?;
            checks.key(&key, &rows(&or(&sure, &theirs, &codes)), self.codes())?;
        }
        Ok(())
    }

    /// `fbank`, `input_features` and `attention_mask`, from the golden's samples at 16 kHz.
    fn front_end(&self, k: usize, checks: &mut Checks<'_>) -> Result<()> {
        let golden = checks.golden();
        let Some(samples) = golden.get(&format!("lane{k}.audio_16000"))? else {
            return Ok(());
        };
        let mut tap = Tap::on();
        let features = self
            .encoder
            .teacher
            .features_with(&samples.to_f32(), &mut tap);
        features.map_err(|e| self.fail(e))?;
        for (name, data) in tap.into_records() {
            let tolerance = match name.as_str() {
                "fbank" => Tolerance::Absolute { max_abs: FBANK },
                "attention_mask" => Tolerance::Exact,
                _ => Tolerance::Absolute { max_abs: FEATURES },
            };
            let actual = HostTensor::from_data(&data);
            checks.key(&format!("lane{k}.{name}"), &actual, tolerance)?;
        }
        Ok(())
    }

    /// `teacher.hidden*` and the semantic half up to its choice, from the golden's input features.
    fn teacher(&self, k: usize, checks: &mut Checks<'_>) -> Result<()> {
        let golden = checks.golden();
        let name = |key: &str| format!("lane{k}.{key}");
        let (Some(values), Some(mask), Some(codes)) = (
            golden.get(&name("input_features"))?,
            golden.get(&name("attention_mask"))?,
            golden.shape(&name("codes")),
        ) else {
            return Ok(());
        };
        let values = self.on_device(golden, &name("input_features"), &values)?;
        let mask = mask.to_f64().into_iter().map(|seen| seen != 0.0).collect();
        let features = Features::new(values, mask).map_err(|e| self.fail(e))?;
        let teacher = &self.encoder.teacher;
        let (mut inside, mut behind) = (Tap::on(), Tap::on());
        let hidden = teacher.forward(&features, teacher.layers(), &mut inside);
        let hidden = hidden.map_err(|e| self.fail(e))?;
        self.encoder.semantic(hidden, codes[0], &mut behind);
        let mut tap = Tap::on();
        tap.absorb("teacher.", inside);
        tap.absorb("", behind);
        for (key, data) in tap.into_records() {
            self.stage(&name(&key), &HostTensor::from_data(&data), STAGE, checks)?;
        }
        Ok(())
    }

    /// `semantic.latent`, `semantic.margin`, `semantic_vq`, `semantic_head`, and code 0, from
    /// `semantic_encoded`.
    fn semantic(&self, k: usize, checks: &mut Checks<'_>) -> Result<()> {
        let golden = checks.golden();
        let name = |key: &str| format!("lane{k}.{key}");
        let Some(encoded) = golden.get(&name("semantic_encoded"))? else {
            return Ok(());
        };
        let vq = &self.encoder.semantic_quantizer;
        let quantizer = &vq.quantizers[0];
        let x = self.on_device(golden, "semantic_encoded", &encoded)?;
        let e = quantizer.project(x);
        let latent = HostTensor::from_data(&e.clone().into_data());
        self.stage(&name("semantic.latent"), &latent, STAGE, checks)?;
        self.choice(
            k,
            0,
            &name("semantic.margin"),
            vq.search,
            e,
            quantizer.codebook.val(),
            checks,
        )?;

        let vectors = quantizer.lookup(self.column(golden, k, 0)?);
        let vectors = HostTensor::from_data(&vectors.into_data());
        self.stage(&name("semantic_vq"), &vectors, STAGE, checks)?;
        if let Some(vectors) = golden.get(&name("semantic_vq"))? {
            let x = self.on_device(golden, "semantic_vq", &vectors)?;
            let said = self.encoder.semantic_head.forward(x.unsqueeze::<3>(), None);
            let said = HostTensor::from_data(&said.into_data()).squeeze_to(2);
            self.stage(&name("semantic_head"), &said, STAGE, checks)?;
        }
        Ok(())
    }

    /// `rvq.*` and `acoustic_vq`: each quantizer from its stored residual, each residual from the one
    /// before it and the stored code.
    fn acoustic(&self, k: usize, checks: &mut Checks<'_>) -> Result<()> {
        let golden = checks.golden();
        let name = |key: &str| format!("lane{k}.{key}");
        let vq = &self.encoder.quantizer;
        if !golden.has(&name("codes")) {
            return Ok(());
        }
        // What is left over in front of quantizer q.
        let mut left = None::<Tensor<2>>;
        if let (Some(z), Some(said)) = (
            golden.get(&name(&self.last_stage()))?,
            golden.get(&name("semantic_head"))?,
        ) {
            let z = self.on_device(golden, "latent", &z)?;
            left = Some(z - self.on_device(golden, "semantic_head", &said)?);
        }
        let mut sum = None::<Tensor<2>>;
        for (q, quantizer) in vq.quantizers.iter().enumerate() {
            let key = name(&format!("rvq.residual{q}"));
            if let Some(left) = left.take() {
                let left = HostTensor::from_data(&left.into_data());
                self.stage(&key, &left, STAGE, checks)?;
            }
            let vector = quantizer.lookup(self.column(golden, k, q + 1)?);
            if let Some(stored) = golden.get(&key)? {
                let x = self.on_device(golden, &key, &stored)?;
                left = Some(x.clone() - vector.clone());
                let e = quantizer.project(x);
                let latent = HostTensor::from_data(&e.clone().into_data());
                self.stage(&name(&format!("rvq.latent{q}")), &latent, STAGE, checks)?;
                let margin = name(&format!("rvq.margin{q}"));
                self.choice(
                    k,
                    q + 1,
                    &margin,
                    vq.search,
                    e,
                    quantizer.codebook.val(),
                    checks,
                )?;
            }
            sum = Some(match sum {
                Some(sum) => sum + vector,
                None => vector,
            });
        }
        if let Some(sum) = sum {
            let sum = HostTensor::from_data(&sum.into_data());
            self.stage(&name("acoustic_vq"), &sum, STAGE, checks)?;
        }
        Ok(())
    }

    /// The lead of each choice of codebook `c`, and the choices themselves.
    #[allow(clippy::too_many_arguments)]
    fn choice(
        &self,
        k: usize,
        c: usize,
        margin: &str,
        search: zonos_zac::Search,
        e: Tensor<2>,
        codebook: Tensor<2>,
        checks: &mut Checks<'_>,
    ) -> Result<()> {
        let golden = checks.golden();
        let lead = search.margins(e.clone(), codebook.clone());
        let lead = HostTensor::from_data(&lead.into_data());
        checks.key(margin, &lead, Tolerance::Absolute { max_abs: LEAD })?;
        let Some(margins) = golden.get(margin)? else {
            return Ok(());
        };
        let found = HostTensor::from_data(&search.nearest(e, codebook).into_data());
        let found = found.to_i32().unwrap_or_default();
        let theirs = column(golden, k, c)?;
        let chosen = found.iter().zip(&theirs).zip(margins.to_f64());
        let chosen: Vec<i64> = chosen
            .map(|((&ours, &theirs), lead)| i64::from(if lead > MARGIN { ours } else { theirs }))
            .collect();
        let theirs: Vec<i64> = theirs.into_iter().map(i64::from).collect();
        if let (Some(theirs), Some(chosen)) = (
            HostTensor::ints([theirs.len()], theirs),
            HostTensor::ints([chosen.len()], chosen),
        ) {
            let key = format!("lane{k}.stored.code{c}");
            checks.own(key, &theirs, &chosen, Tolerance::Exact);
        }
        Ok(())
    }

    /// Key of the latents.
    fn last_stage(&self) -> String {
        format!("encoder.{}", self.encoder.encoder.len().saturating_sub(1))
    }

    /// Compares within a share of the golden's largest value.
    fn stage(
        &self,
        key: &str,
        actual: &HostTensor,
        share: f64,
        checks: &mut Checks<'_>,
    ) -> Result<()> {
        let tolerance = relative(checks.golden(), key, share)?;
        checks.key(key, actual, tolerance)
    }

    fn on_device(&self, golden: &GoldenFile, key: &str, x: &HostTensor) -> Result<Tensor<2>> {
        let &[rows, width] = x.shape() else {
            return Err(golden.problem(format!("tensor `{key}`: expected two axes")));
        };
        let data = TensorData::new(x.to_f32(), [rows, width]);
        Ok(Tensor::from_data(data, (&self.request.device, DType::F32)))
    }

    /// The stored codes of codebook `c` in lane `k`.
    fn column(&self, golden: &GoldenFile, k: usize, c: usize) -> Result<Tensor<1, Int>> {
        let codes = column(golden, k, c)?;
        let data = TensorData::new(codes.clone(), [codes.len()]);
        Ok(Tensor::from_data(data, (&self.request.device, DType::I32)))
    }
}

fn relative(golden: &GoldenFile, key: &str, share: f64) -> Result<Tolerance> {
    let largest = match golden.get(key)? {
        Some(expected) => expected
            .to_f64()
            .into_iter()
            .fold(0.0, |m: f64, x| m.max(x.abs())),
        None => 0.0,
    };
    Ok(Tolerance::Absolute {
        max_abs: share * largest,
    })
}

/// Rows `[frames, codebooks]` of the golden.
fn table(golden: &GoldenFile, key: &str) -> Result<Codes> {
    let found = golden.need(key)?;
    let bad = |why: String| golden.problem(format!("tensor `{key}`: {why}"));
    let (&[frames, codebooks], Some(values)) = (found.shape(), found.to_i32()) else {
        return Err(bad("expected a table of integers".to_owned()));
    };
    Codes::new(frames, codebooks, values).map_err(|e| bad(e.to_string()))
}

fn column(golden: &GoldenFile, k: usize, c: usize) -> Result<Vec<i32>> {
    let codes = table(golden, &format!("lane{k}.codes"))?;
    Ok(codes
        .rows()
        .map(|row| row.get(c).copied().unwrap_or(0))
        .collect())
}

fn rows(codes: &Codes) -> HostTensor {
    HostTensor::rows(codes.codebooks(), codes.values())
}

/// How many codebooks of each frame of lane `k` choose surely. Without recorded leads all do. The
/// semantic code decides about what is left for the others.
fn certain(golden: &GoldenFile, k: usize, frames: usize) -> Result<Vec<usize>> {
    let mut sure = vec![usize::MAX; frames];
    let names = (0..).map(|q| match q {
        0 => format!("lane{k}.semantic.margin"),
        q => format!("lane{k}.rvq.margin{}", q - 1),
    });
    for (q, key) in names.enumerate() {
        let Some(margins) = golden.get(&key)? else {
            break;
        };
        for (sure, lead) in sure.iter_mut().zip(margins.to_f64()) {
            if lead <= MARGIN {
                *sure = (*sure).min(q);
            }
        }
    }
    // The semantic head is causal and sees frames before: a doubtful code 0 makes later rests doubtful.
    if let Some(first) = sure.iter().position(|&q| q == 0) {
        for sure in &mut sure[first..] {
            *sure = (*sure).min(1);
        }
        sure[first] = 0;
    }
    Ok(sure)
}

/// `ours` where the choice is sure, else `theirs`.
fn or(sure: &[usize], theirs: &Codes, ours: &Codes) -> Codes {
    if (theirs.frames(), theirs.codebooks()) != (ours.frames(), ours.codebooks()) {
        return ours.clone();
    }
    let q = ours.codebooks();
    let chosen = ours.values().iter().zip(theirs.values()).enumerate();
    let chosen = chosen.map(|(i, (&ours, &theirs))| match sure.get(i / q) {
        Some(&sure) if i % q >= sure => theirs,
        _ => ours,
    });
    Codes::new(ours.frames(), q, chosen.collect()).unwrap_or_else(|_| ours.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsure_choices_are_not_compared() {
        let theirs = Codes::new(2, 3, vec![1, 2, 3, 4, 5, 6]).unwrap();
        let ours = Codes::new(2, 3, vec![1, 9, 9, 9, 5, 6]).unwrap();
        // Frame 0 is sure of its first code only, frame 1 of all, and differs in its first.
        assert_eq!(or(&[1, 3], &theirs, &ours).values(), [1, 2, 3, 9, 5, 6]);
        assert_eq!(or(&[usize::MAX; 2], &theirs, &ours), ours);
        let longer = Codes::new(1, 3, vec![1, 2, 3]).unwrap();
        assert_eq!(or(&[0, 0], &theirs, &longer), longer);
    }
}
