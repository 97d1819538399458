//! Goldens of the speaker encoder: every stage from the golden's mel frames, and the whole way from the
//! WAV files beside it.
//!
//! Keys are `NAME.STAGE`, NAME an input whose recording is `NAME.wav`, and `NAME.sum.STAGE` for stages
//! that are too large to store.

use std::path::Path;

use burn::tensor::{DType, Tensor, TensorData};
use zonos_audio::decode::{DecodeLimits, decode_file};
use zonos_checkpoint::{Checkpoint, LoadOptions};
use zonos_ecapa::Ecapa;
use zonos_nn::Tap;

use crate::checks::Checks;
use crate::compare::Tolerance;
use crate::error::{GoldenError, Result};
use crate::golden::GoldenFile;
use crate::host::HostTensor;
use crate::report::SkipReason;
use crate::{Request, checkpoints};

/// Largest error of a voice vector, relative to its norm, from the golden's mel frames.
const VECTOR: f64 = 1e-6;
/// The same from a WAV file.
const VECTOR_FROM_WAV: f64 = 5e-6;
/// Largest error of a stage from the golden's mel frames, relative to its largest value.
const STAGE: f64 = 1e-5;
/// Largest error of a stage from a WAV file: the logarithm magnifies the noise of quiet bands.
const STAGE_FROM_WAV: f64 = 1e-3;
/// The same of silence, where variances lie on their floor.
const STAGE_OF_SILENCE: f64 = 5e-3;
/// Resampled samples.
const SAMPLES: f64 = 1e-6;
/// Logarithms of mel bands near the floor, and of those above [`LOUD`].
const LOG_MEL: [f64; 2] = [3e-3, 5e-4];
/// Logarithm of the level from which a band is compared closely.
const LOUD: f64 = -4.605_170_185_988_091;
/// Relative error of recorded sums.
const SUMS: f64 = 1e-6;

pub(crate) fn run(request: &Request, checks: &mut Checks<'_>) -> Result<()> {
    let inputs = inputs(checks.golden());
    for (path, name) in checkpoints(request, checks)? {
        checks.enter(&name);
        let suite = Suite::open(request, &path, checks)?;
        for input in &inputs {
            suite.of_mel(input, checks)?;
            suite.of_wav(input, checks)?;
        }
    }
    Ok(())
}

/// Names of the inputs.
fn inputs(golden: &GoldenFile) -> Vec<String> {
    let found = golden.keys().filter_map(|key| key.strip_suffix(".emb"));
    found.map(str::to_owned).collect()
}

/// How far a stage may be off, from its golden values.
fn tolerance(stage: &str, expected: &HostTensor, from_wav: Option<bool>) -> Tolerance {
    let values = expected.to_f64();
    let max_abs = match (stage, from_wav) {
        ("emb", _) => {
            let share = if from_wav.is_some() {
                VECTOR_FROM_WAV
            } else {
                VECTOR
            };
            share * values.iter().map(|x| x * x).sum::<f64>().sqrt()
        }
        (_, None) => STAGE * values.iter().fold(0.0, |m: f64, x| m.max(x.abs())),
        (_, Some(false)) => STAGE_FROM_WAV,
        (_, Some(true)) => STAGE_OF_SILENCE,
    };
    Tolerance::Absolute { max_abs }
}

struct Suite<'a> {
    request: &'a Request,
    path: &'a Path,
    ecapa: Ecapa,
}

impl<'a> Suite<'a> {
    fn open(request: &'a Request, path: &'a Path, checks: &mut Checks<'_>) -> Result<Self> {
        let failed = |problem: String| GoldenError::Model {
            container: path.display().to_string(),
            problem,
        };
        let checkpoint = Checkpoint::open(path).map_err(|e| failed(e.to_string()))?;
        let options = LoadOptions::default();
        let (ecapa, _) = Ecapa::load_with(&checkpoint, &options, &request.device)
            .map_err(|e| failed(e.to_string()))?;
        for notice in checkpoint.notices() {
            let note = format!("{}: {notice}", checks.container());
            checks.notes.push(note);
        }
        Ok(Self {
            request,
            path,
            ecapa,
        })
    }

    fn fail(&self, problem: impl ToString) -> GoldenError {
        GoldenError::Model {
            container: self.path.display().to_string(),
            problem: problem.to_string(),
        }
    }

    /// Every stage and the vector from the golden's mel frames; then the vector as users get it,
    /// without a tap, and in a batch.
    fn of_mel(&self, input: &str, checks: &mut Checks<'_>) -> Result<()> {
        let golden = checks.golden();
        let key = format!("{input}.mel");
        let Some(frames) = golden.get(&key)? else {
            return Ok(());
        };
        let &[count, bands] = frames.shape() else {
            return Err(golden.problem(format!("tensor `{key}`: expected [frames, bands]")));
        };
        let mel = Tensor::<3>::from_data(
            TensorData::new(frames.to_f32(), [1, count, bands]),
            (&self.request.device, DType::F32),
        );
        let mut tap = Tap::on();
        let voice = self
            .ecapa
            .forward(mel.clone(), &mut tap)
            .map_err(|e| self.fail(e))?;
        for (stage, data) in tap.into_records() {
            if stage == "mel" {
                continue;
            }
            let actual = HostTensor::from_data(&data);
            let key = format!("{input}.{stage}");
            if let Some(expected) = golden.get(&key)? {
                let actual = actual.clone().squeeze_to(expected.shape().len());
                checks.key(&key, &actual, tolerance(&stage, &expected, None))?;
            }
            let sums = format!("{input}.sum.{stage}");
            if golden.has(&sums) {
                let tolerance = Tolerance::Sums { relative: SUMS };
                checks.key(&sums, &HostTensor::list(sums_of(&actual)), tolerance)?;
            }
        }

        let key = format!("{input}.emb");
        let tapped = HostTensor::from_data(&voice.into_data());
        let plain = self
            .ecapa
            .embed_mel(mel.clone())
            .map_err(|e| self.fail(e))?;
        let close = tolerance("emb", &tapped, None);
        let same = if self.request.bit_exact() {
            Tolerance::Exact
        } else {
            close
        };
        let tapped = tapped.squeeze_to(1);
        let plain = HostTensor::signal(&plain);
        checks.own(format!("untapped.{key}"), &tapped, &plain, same);
        // Behind its mirror image in time, which is as long.
        let pair = Tensor::cat(vec![mel.clone().flip([1]), mel], 0);
        let pair = self.ecapa.embed_mel(pair).map_err(|e| self.fail(e))?;
        let second = HostTensor::signal(&pair[pair.len() / 2..]);
        checks.own(format!("batch.{key}"), &tapped, &second, same);
        Ok(())
    }

    /// The whole way from the recording.
    fn of_wav(&self, input: &str, checks: &mut Checks<'_>) -> Result<()> {
        let golden = checks.golden();
        let file = self.request.dir.join(format!("{input}.wav"));
        let (samples_key, mel_key) = (format!("{input}.wav24k"), format!("{input}.mel"));
        if !file.is_file() {
            let why = format!("no {input}.wav beside the golden");
            checks.skip(&samples_key, SkipReason::NotApplicable(why));
            checks.input(&mel_key, "mel frames");
            return Ok(());
        }
        let audio = decode_file(&file, &DecodeLimits::default()).map_err(|e| self.fail(e))?;
        let audio = audio.into_mono();
        let silent = audio.peak() == 0.0;
        let resampled = self.ecapa.resample(&audio).map_err(|e| self.fail(e))?;
        checks.key(
            &samples_key,
            &HostTensor::signal(resampled.samples()),
            Tolerance::Absolute { max_abs: SAMPLES },
        )?;
        let mel = self.ecapa.log_mel(&audio).map_err(|e| self.fail(e))?;
        let mut tap = Tap::on();
        self.ecapa
            .forward(mel, &mut tap)
            .map_err(|e| self.fail(e))?;
        for (stage, data) in tap.into_records() {
            let key = format!("{input}.{stage}");
            let Some(expected) = golden.get(&key)? else {
                continue;
            };
            let actual = HostTensor::from_data(&data).squeeze_to(expected.shape().len());
            if stage == "mel" {
                let [floor, loud] = LOG_MEL.map(|max_abs| Tolerance::Absolute { max_abs });
                checks.key(&key, &actual, floor)?;
                let (expected, actual) = loud_bands(&expected, &actual);
                checks.part(&key, &expected, &actual, loud);
            } else {
                let tolerance = tolerance(&stage, &expected, Some(silent));
                checks.again("wav", &key, &actual, tolerance)?;
            }
        }
        Ok(())
    }
}

/// The entries whose golden value lies above [`LOUD`].
fn loud_bands(expected: &HostTensor, actual: &HostTensor) -> (HostTensor, HostTensor) {
    let pairs = expected.to_f64().into_iter().zip(actual.to_f64());
    let (expected, actual) = pairs.filter(|(expected, _)| *expected > LOUD).unzip();
    (HostTensor::list(expected), HostTensor::list(actual))
}

/// Sum, sum of squares, largest magnitude.
fn sums_of(x: &HostTensor) -> Vec<f64> {
    let values = x.to_f64();
    vec![
        values.iter().sum(),
        values.iter().map(|x| x * x).sum(),
        values.iter().fold(0.0, |m, x| m.max(x.abs())),
    ]
}
