//! Goldens of the decoder: every stage, missing codes, batches, and the files of the command line.

use std::path::Path;

use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use zonos_audio::{Codes, npy, wav::pcm16};
use zonos_checkpoint::{Checkpoint, LoadOptions};
use zonos_nn::Tap;
use zonos_zac::ZacDecoder;

use super::{of_largest, streams};
use crate::checks::Checks;
use crate::compare::Tolerance;
use crate::error::{GoldenError, Result};
use crate::golden::GoldenFile;
use crate::host::HostTensor;
use crate::{Request, checkpoints};

/// Largest error of latents and of what stages give, relative to the tensor's largest value.
const STAGE: f64 = 5e-6;
/// The same of spectra, whose magnitudes are exponentials.
const SPECTRUM: f64 = 1e-4;
/// Largest error of samples.
const WAVE: f64 = 1e-5;
/// The same relative to the peak, where that is larger.
const WAVE_OF_PEAK: f64 = 2e-5;

pub(super) fn run(request: &Request, checks: &mut Checks<'_>) -> Result<()> {
    for (key, what) in [
        ("codes", "codes to decode"),
        ("codes_missing", "codes to decode, some missing"),
        ("codes_batch", "codes of two signals"),
        (
            "codes_fork",
            "codes of a stream and of what a fork goes on with",
        ),
    ] {
        checks.input(key, what);
    }
    for (path, name) in checkpoints(request, checks)? {
        checks.enter(&name);
        let suite = Suite::open(request, &path, checks)?;
        suite.stages(checks)?;
        suite.missing(checks)?;
        suite.batch(checks)?;
        streams::run(&suite, checks)?;
        suite.command_line(checks)?;
    }
    Ok(())
}

/// Samples within the documented distance of `golden`.
pub(super) fn wave(golden: &HostTensor) -> Tolerance {
    match of_largest(golden, WAVE_OF_PEAK) {
        Tolerance::Absolute { max_abs } => Tolerance::Absolute {
            max_abs: max_abs.max(WAVE),
        },
        other => other,
    }
}

fn tolerance(key: &str, golden: &HostTensor) -> Tolerance {
    if key.starts_with("audio") || key.starts_with("head.audio") {
        wave(golden)
    } else if key.starts_with("head.spec") {
        of_largest(golden, SPECTRUM)
    } else {
        of_largest(golden, STAGE)
    }
}

pub(super) struct Suite<'a> {
    pub(super) request: &'a Request,
    path: &'a Path,
    pub(super) decoder: ZacDecoder,
}

impl<'a> Suite<'a> {
    fn open(request: &'a Request, path: &'a Path, checks: &mut Checks<'_>) -> Result<Self> {
        let failed = |problem: String| GoldenError::Model {
            container: path.display().to_string(),
            problem,
        };
        let checkpoint = Checkpoint::open(path).map_err(|e| failed(e.to_string()))?;
        let (decoder, report) =
            ZacDecoder::load_with(&checkpoint, &LoadOptions::default(), &request.device)
                .map_err(|e| failed(e.to_string()))?;
        let stray = report
            .unexpected
            .iter()
            .map(|u| format!("tensor '{}' is not used", u.name));
        for note in checkpoint.notices().iter().cloned().chain(stray) {
            checks.notes.push(format!("{}: {note}", checks.container()));
        }
        Ok(Self {
            request,
            path,
            decoder,
        })
    }

    pub(super) fn fail(&self, problem: impl ToString) -> GoldenError {
        GoldenError::Model {
            container: self.path.display().to_string(),
            problem: problem.to_string(),
        }
    }

    /// As users decode.
    pub(super) fn samples(&self, codes: &Codes) -> Result<Vec<f32>> {
        let wave = self.decoder.decode(codes).map_err(|e| self.fail(e))?;
        Ok(wave.into_samples())
    }

    /// One whole pass with a tap.
    fn tapped(&self, codes: Tensor<3, Int>) -> Result<Vec<(String, TensorData)>> {
        let mut tap = Tap::on();
        self.decoder
            .decode_tensor(codes, &mut tap)
            .map_err(|e| self.fail(e))?;
        Ok(tap.into_records())
    }

    /// `codes`: every tapped stage and the samples, then the untapped decode.
    fn stages(&self, checks: &mut Checks<'_>) -> Result<()> {
        let golden = checks.golden();
        let codes = codes(golden, "codes")?;
        for (key, data) in self.tapped(on_device(&codes, &self.request.device))? {
            let Some(expected) = golden.get(&key)? else {
                continue;
            };
            let rank = expected.shape().len();
            let mut actual = HostTensor::from_data(&data).squeeze_to(rank);
            // Of spectra the first frames are recorded.
            let frames = expected.shape()[0];
            if key.starts_with("head.spec") && frames < actual.shape()[0] {
                let first: Vec<usize> = (0..frames).collect();
                actual = actual.pick(&first).unwrap_or(actual);
            }
            checks.key(&key, &actual, tolerance(&key, &expected))?;
        }
        let whole = HostTensor::signal(&self.samples(&codes)?);
        let limit = wave(&golden.need("audio")?);
        checks.again("decode", "audio", &whole, limit)
    }

    /// `*_missing`: codes that are not there.
    fn missing(&self, checks: &mut Checks<'_>) -> Result<()> {
        let golden = checks.golden();
        if !golden.has("codes_missing") {
            return Ok(());
        }
        let codes = codes(golden, "codes_missing")?;
        for (stage, data) in self.tapped(on_device(&codes, &self.request.device))? {
            let key = format!("{stage}_missing");
            if let Some(expected) = golden.get(&key)? {
                let actual = HostTensor::from_data(&data).squeeze_to(expected.shape().len());
                checks.key(&key, &actual, tolerance(&key, &expected))?;
            }
        }
        if let Some(expected) = golden.get("audio_missing")? {
            let whole = HostTensor::signal(&self.samples(&codes)?);
            checks.again("decode", "audio_missing", &whole, wave(&expected))?;
        }
        Ok(())
    }

    /// `*_batch`: several signals in one pass.
    fn batch(&self, checks: &mut Checks<'_>) -> Result<()> {
        let golden = checks.golden();
        let (Some(codes), Some(expected)) =
            (golden.get("codes_batch")?, golden.get("audio_batch")?)
        else {
            return Ok(());
        };
        let (&[batch, frames, columns], Some(values)) = (codes.shape(), codes.to_i32()) else {
            return Err(golden.problem("tensor `codes_batch`: expected integers of three axes"));
        };
        let data = TensorData::new(values, [batch, frames, columns]);
        let codes = Tensor::from_data(data, (&self.request.device, DType::I32));
        let audio = self
            .decoder
            .decode_tensor(codes, &mut Tap::off())
            .map_err(|e| self.fail(e))?;
        let audio = HostTensor::from_data(&audio.into_data());
        checks.key("audio_batch", &audio, wave(&expected))
    }

    /// The files in `cli/`: one signal's codes in several forms, and what they decode to.
    fn command_line(&self, checks: &mut Checks<'_>) -> Result<()> {
        let folder = self.request.dir.join("cli");
        if !folder.is_dir() {
            return Ok(());
        }
        let problem = |name: &str, why: String| GoldenError::Format {
            path: folder.join(name),
            problem: why,
        };
        let floats = |name: &str| -> Result<Vec<f32>> {
            let array = npy::read(folder.join(name)).map_err(|e| problem(name, e.to_string()))?;
            Ok(array.to_f32())
        };
        let raw = HostTensor::signal(&floats("decoded_raw.npy")?);
        let playback = floats("decoded_playback.npy")?;
        let gain = ZacDecoder::output_gain();
        for name in [
            "codes_i4.npy",
            "codes_i8.npy",
            "codes_f4.npy",
            "sheared_f4.npy",
        ] {
            let mut codes =
                Codes::load_npy(folder.join(name)).map_err(|e| problem(name, e.to_string()))?;
            if name.starts_with("sheared") {
                let end = floats(&format!("{name}.eos.npy"))?;
                let end = end.first().map_or(0, |&end| end as usize);
                codes = unsheared(&codes).truncate(end);
            }
            let samples = self.samples(&codes)?;
            let actual = HostTensor::signal(&samples);
            checks.own(format!("cli.{name}"), &raw, &actual, wave(&raw));
            let louder: Vec<f32> = samples.iter().map(|x| x * gain).collect();
            let expected = HostTensor::signal(&playback);
            checks.own(
                format!("cli.{name}.playback"),
                &expected,
                &HostTensor::signal(&louder),
                wave(&expected),
            );
        }
        // From the golden's own samples: between two steps, noise of 1e-6 decides the rounding.
        let name = "decoded_playback.wav";
        let bytes = std::fs::read(folder.join(name)).map_err(|source| GoldenError::Io {
            path: folder.join(name),
            source,
        })?;
        let steps: Vec<i32> = playback.iter().map(|&x| i32::from(pcm16(x))).collect();
        let start = bytes.len().saturating_sub(2 * steps.len());
        let expected: Vec<i32> = bytes[start..]
            .as_chunks::<2>()
            .0
            .iter()
            .map(|b| i32::from(i16::from_le_bytes(*b)))
            .collect();
        checks.own(
            format!("cli.{name}"),
            &HostTensor::rows(1, &expected),
            &HostTensor::rows(1, &steps),
            Tolerance::Exact,
        );
        Ok(())
    }
}

/// Takes the delay off codes; what is no code then counts as missing.
fn unsheared(codes: &Codes) -> Codes {
    let codes = codes.unshear(Codes::MISSING);
    let (frames, columns) = (codes.frames(), codes.codebooks());
    let cell = |code: i32| {
        if (0..4096).contains(&code) {
            code
        } else {
            Codes::MISSING
        }
    };
    let values = codes.into_values().into_iter().map(cell).collect();
    Codes::new(frames, columns, values).expect("as many as before")
}

/// Codes `[frames, codebooks]` of the golden.
pub(crate) fn codes(golden: &GoldenFile, key: &str) -> Result<Codes> {
    let rows = golden.need(key)?;
    let bad = |why: String| golden.problem(format!("tensor `{key}`: {why}"));
    let (&[frames, codebooks], Some(values)) = (rows.shape(), rows.to_i32()) else {
        return Err(bad("expected a table of integers".to_owned()));
    };
    Codes::new(frames, codebooks, values).map_err(|e| bad(e.to_string()))
}

/// `[1, frames, codebooks]` on the device.
pub(crate) fn on_device(codes: &Codes, device: &Device) -> Tensor<3, Int> {
    let shape = [1, codes.frames(), codes.codebooks()];
    let data = TensorData::new(codes.values().to_vec(), shape);
    Tensor::from_data(data, (device, DType::I32))
}
