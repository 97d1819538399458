//! Goldens of the codec: decoding, its intermediate tensors, windows and streams; encoding.

mod encoder;
mod published_streams;

use std::path::Path;

use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use zonos_audio::{Codes, Waveform, wav::pcm16};
use zonos_checkpoint::{Checkpoint, LoadOptions};
use zonos_dac::Dac;
use zonos_nn::Tap;

use crate::checks::Checks;
use crate::compare::Tolerance;
use crate::error::{GoldenError, Result};
use crate::golden::GoldenFile;
use crate::host::HostTensor;
use crate::report::SkipReason;
use crate::{Request, checkpoints};
use published_streams::{Crossfade, Windows};

/// Largest error of samples of a correct f32 decoder.
const WAVE: f64 = 2e-5;
/// The same inside the decoder, where values are larger.
const STAGE: f64 = 1e-4;
/// The same for the sum of embeddings.
const EMBEDDING: f64 = 2e-6;
/// Relative error of recorded sums of large tensors.
const SUMS: f64 = 3e-7;
/// How far a streamed decode may be from the whole one where summation order depends on lengths.
const STREAM: f64 = 1e-6;
/// Frames whose window decode the `seam.*` keys record, and so the smallest usable length.
const SEAM: std::ops::Range<usize> = 24..32;
/// Id that delayed rows carry where there is no code.
const PAD: i32 = 1025;
const FADE_MS: f64 = 50.0;

pub(crate) fn run(request: &Request, checks: &mut Checks<'_>) -> Result<()> {
    list_skips(checks);
    for (path, name) in checkpoints(request, checks)? {
        checks.enter(&name);
        let suite = Suite::open(request, &path, checks)?;
        suite.decode(checks)?;
        suite.long(checks)?;
        suite.streams(checks)?;
        suite.encode(checks)?;
    }
    Ok(())
}

fn list_skips(checks: &mut Checks<'_>) {
    for (key, what) in [
        ("long.codes", "codes to decode"),
        ("stream.raw", "delayed rows"),
        ("stream.eos", "end frame of the delayed rows"),
    ] {
        checks.input(key, what);
    }
}

fn tolerance(name: &str) -> Tolerance {
    let max_abs = match name {
        "codes" => return Tolerance::Exact,
        "z_q" => EMBEDDING,
        "wav" | "dec.pre_tanh" => WAVE,
        _ => STAGE,
    };
    Tolerance::Absolute { max_abs }
}

fn wave() -> Tolerance {
    Tolerance::Absolute { max_abs: WAVE }
}

struct Suite<'a> {
    request: &'a Request,
    path: &'a Path,
    dac: Dac,
}

impl<'a> Suite<'a> {
    fn open(request: &'a Request, path: &'a Path, checks: &mut Checks<'_>) -> Result<Self> {
        let failed = |problem: String| GoldenError::Model {
            container: path.display().to_string(),
            problem,
        };
        let checkpoint = Checkpoint::open(path).map_err(|e| failed(e.to_string()))?;
        let (dac, _) = Dac::load_with(&checkpoint, &LoadOptions::default(), &request.device)
            .map_err(|e| failed(e.to_string()))?;
        for notice in checkpoint.notices() {
            let note = format!("{}: {notice}", checks.container());
            checks.notes.push(note);
        }
        Ok(Self { request, path, dac })
    }

    fn fail(&self, problem: impl ToString) -> GoldenError {
        GoldenError::Model {
            container: self.path.display().to_string(),
            problem: problem.to_string(),
        }
    }

    /// As users decode.
    fn samples(&self, codes: &Codes) -> Result<Vec<f32>> {
        Ok(self
            .dac
            .decode(codes)
            .map_err(|e| self.fail(e))?
            .into_samples())
    }

    /// In blocks, with the context that makes seams vanish.
    fn streamed(&self, codes: &Codes, block: usize) -> Result<Vec<f32>> {
        let mut stream = self.dac.stream(block);
        let mut samples = Vec::new();
        // Pushes of uneven sizes: a stream must not depend on how its input is cut.
        let (mut at, mut step) = (0, 1);
        while at < codes.frames() {
            let end = (at + step).min(codes.frames());
            let part = rows(codes, at..end);
            samples.extend(stream.push(&part).map_err(|e| self.fail(e))?);
            at = end;
            step = step % 5 + 2;
        }
        samples.extend(stream.flush().map_err(|e| self.fail(e))?);
        Ok(samples)
    }

    /// `codes`: every tapped stage and the samples, then the untapped decode and a streamed one.
    fn decode(&self, checks: &mut Checks<'_>) -> Result<()> {
        let golden = checks.golden();
        let codes = codes(golden, "codes")?;
        let mut tap = Tap::on();
        self.dac
            .decode_tensor(on_device(&codes, &self.request.device), &mut tap);
        for (name, data) in tap.into_records() {
            let tensor = HostTensor::from_data(&data);
            if let Some(shape) = golden.shape(&name) {
                let tensor = tensor.clone().squeeze_to(shape.len());
                checks.key(&name, &tensor, tolerance(&name))?;
            }
            let sums = format!("sum.{name}");
            if golden.has(&sums) {
                let actual = HostTensor::list(tensor.three_sums().to_vec());
                checks.key(&sums, &actual, Tolerance::Sums { relative: SUMS })?;
            }
        }
        let whole = self.samples(&codes)?;
        checks.again("untapped", "wav", &HostTensor::signal(&whole), wave())?;
        self.compare_streams("wav", &codes, &whole, checks)
    }

    fn compare_streams(
        &self,
        key: &str,
        codes: &Codes,
        whole: &[f32],
        checks: &mut Checks<'_>,
    ) -> Result<()> {
        let max_abs = if self.request.bit_exact() {
            0.0
        } else {
            STREAM
        };
        for block in [5, 86] {
            let streamed = self.streamed(codes, block)?;
            checks.own(
                format!("streamed{block}.{key}"),
                &HostTensor::signal(whole),
                &HostTensor::signal(&streamed),
                Tolerance::Absolute { max_abs },
            );
        }
        Ok(())
    }

    /// `long.*` and `seam.*`: what a window sees of its surroundings.
    fn long(&self, checks: &mut Checks<'_>) -> Result<()> {
        let golden = checks.golden();
        if !golden.has("long.codes") {
            return Ok(());
        }
        let codes = codes(golden, "long.codes")?;
        let whole = self.samples(&codes)?;
        checks.key("long.wav", &HostTensor::signal(&whole), wave())?;
        self.compare_streams("long.wav", &codes, &whole, checks)?;

        let hop = whole.len() / codes.frames().max(1);
        for key in [
            "seam.max_delta_by_context_f32",
            "seam.max_delta_by_context_f64",
        ] {
            let Some(contexts) = golden.shape(key).and_then(|s| s.first().copied()) else {
                continue;
            };
            if contexts > SEAM.start + 1 || SEAM.end + contexts > codes.frames() + 1 {
                let why = format!("{contexts} contexts do not fit {} frames", codes.frames());
                checks.skip(key, SkipReason::NotApplicable(why));
                continue;
            }
            let mut worst = Vec::new();
            for context in 0..contexts {
                let window = rows(&codes, SEAM.start - context..SEAM.end + context);
                let samples = self.samples(&window)?;
                let inner = &samples[context * hop..(context + SEAM.len()) * hop];
                let outer = &whole[SEAM.start * hop..SEAM.end * hop];
                let delta = inner
                    .iter()
                    .zip(outer)
                    .map(|(a, b)| f64::from((a - b).abs()))
                    .fold(0.0, f64::max);
                worst.push(delta);
            }
            checks.key(key, &HostTensor::list(worst), wave())?;
        }
        Ok(())
    }

    /// `stream.*`, `fade50.*`, `pcm16`: delayed rows to samples, buffered and in the two published
    /// streaming schemes.
    fn streams(&self, checks: &mut Checks<'_>) -> Result<()> {
        let golden = checks.golden();
        if !golden.has("stream.raw") {
            return Ok(());
        }
        let raw = table(golden, "stream.raw")?;
        let eos = golden
            .need_i32("stream.eos")?
            .first()
            .and_then(|&e| usize::try_from(e).ok());
        let highest = self.dac.config().codebook_size as i32 - 1;
        let aligned = |rows: &Codes| rows.unshear(PAD).clamp_above(highest);
        let all = aligned(&raw);
        let kept = all.clone().truncate(eos.unwrap_or(raw.frames()));

        let buffered = self.samples(&kept)?;
        checks.key("stream.buffered", &HostTensor::signal(&buffered), wave())?;
        self.compare_streams("stream.buffered", &kept, &buffered, checks)?;
        let no_eos = self.samples(&all)?;
        checks.key(
            "stream.buffered_no_eos",
            &HostTensor::signal(&no_eos),
            wave(),
        )?;

        let hop = buffered.len() / kept.frames().max(1);
        let mut decode = |codes: &Codes| self.samples(codes);
        if golden.has("stream.windows") || golden.has("stream.windows_wav") {
            let (plan, samples) = Windows::default().run(&raw, eos, hop, highest, &mut decode)?;
            checks.key(
                "stream.windows",
                &HostTensor::rows(4, &plan),
                Tolerance::Exact,
            )?;
            checks.key("stream.windows_wav", &HostTensor::signal(&samples), wave())?;
        }
        if golden.has("stream.crossfade_sizes") || golden.has("stream.crossfade_wav") {
            let (sizes, samples) =
                Crossfade::default().run(&raw, eos, hop, highest, &mut decode)?;
            let sizes = sizes.into_iter().map(|n| n as i64).collect::<Vec<_>>();
            if let Some(sizes) = HostTensor::ints([sizes.len()], sizes) {
                checks.key("stream.crossfade_sizes", &sizes, Tolerance::Exact)?;
            }
            checks.key(
                "stream.crossfade_wav",
                &HostTensor::signal(&samples),
                wave(),
            )?;
        }

        let rate = self.dac.config().sample_rate as u32;
        if let Some(kept) = golden.shape("fade50.python").and_then(|s| s.first()) {
            let mut faded = Waveform::new(buffered.clone(), rate);
            faded.fade_out(FADE_MS);
            checks.key("fade50.python", &tail(faded.samples(), *kept), wave())?;
        }
        if let Some(kept) = golden.shape("fade50.cpp").and_then(|s| s.first()) {
            let faded = published_streams::fade_without_end_point(&buffered, FADE_MS, rate);
            checks.key("fade50.cpp", &tail(&faded, *kept), wave())?;
        }
        // From the golden's own samples: between two steps, noise of 1e-6 decides the rounding.
        if let (true, Some(exact)) = (golden.has("pcm16"), golden.get("stream.buffered")?) {
            let steps: Vec<i64> = exact
                .to_f32()
                .into_iter()
                .map(|x| pcm16(x).into())
                .collect();
            if let Some(steps) = HostTensor::ints([steps.len()], steps) {
                checks.key("pcm16", &steps, Tolerance::Exact)?;
            }
        }
        Ok(())
    }
}

/// Codes `[codebooks, frames]` of the golden as `[frames, codebooks]`.
pub(crate) fn codes(golden: &GoldenFile, key: &str) -> Result<Codes> {
    let transposed = golden
        .need(key)?
        .transpose()
        .ok_or_else(|| golden.problem(format!("tensor `{key}`: expected two axes")))?;
    to_codes(golden, key, &transposed)
}

/// Rows `[frames, codebooks]` of the golden.
fn table(golden: &GoldenFile, key: &str) -> Result<Codes> {
    to_codes(golden, key, &golden.need(key)?)
}

fn to_codes(golden: &GoldenFile, key: &str, rows: &HostTensor) -> Result<Codes> {
    let bad = |why: String| golden.problem(format!("tensor `{key}`: {why}"));
    let (&[frames, codebooks], Some(values)) = (rows.shape(), rows.to_i32()) else {
        return Err(bad("expected a table of integers".to_owned()));
    };
    Codes::new(frames, codebooks, values).map_err(|e| bad(e.to_string()))
}

/// Frames `range` of `codes`.
fn rows(codes: &Codes, range: std::ops::Range<usize>) -> Codes {
    let q = codes.codebooks();
    let values = codes.values()[range.start * q..range.end * q].to_vec();
    Codes::new(range.len(), q, values).expect("a range of rows has whole rows")
}

fn tail(samples: &[f32], kept: usize) -> HostTensor {
    HostTensor::signal(&samples[samples.len().saturating_sub(kept)..])
}

/// `[frames, codebooks] -> [1, codebooks, frames]` on the device.
pub(crate) fn on_device(codes: &Codes, device: &Device) -> Tensor<3, Int> {
    let data = TensorData::new(
        codes.values().to_vec(),
        [1, codes.frames(), codes.codebooks()],
    );
    Tensor::<3, Int>::from_data(data, (device, DType::I32)).swap_dims(1, 2)
}
