//! `stft.*`: spectra of `NAME.x`, inverses of `NAME.re` and `.im`, windows.

use std::path::Path;

use serde_json::Value;
use zonos_audio::stft::{StftError, hann_window};
use zonos_nn::{Istft, Stft};

use super::{Run, SAMPLES, Settings, at, host, largest};
use crate::checks::Checks;
use crate::compare::Tolerance;
use crate::error::Result;
use crate::host::HostTensor;

/// Largest error of a spectrum, relative to its largest magnitude.
const SPECTRUM: f64 = 1e-6;
/// One bit of a cosine.
const WINDOW: f64 = 6e-8;
/// Samples are compared where the squared windows add up to this at least: elsewhere they are divided
/// by so little that their rounding is large.
const WELL_CONDITIONED: f64 = 0.05;

pub(super) fn run(run: &Run, dir: &Path, checks: &mut Checks<'_>) -> Result<()> {
    let golden = checks.golden();
    if !golden.keys().any(|key| key.starts_with("stft.")) {
        return Ok(());
    }
    if run.first() {
        windows(checks)?;
    }
    let facts = Settings::open(dir, "stft.json")?;
    for (name, row) in facts.entries()? {
        let config = facts.stft(name)?;
        let key = |what: &str| format!("stft.{name}.{what}");
        let (Some(re), Some(im)) = (golden.get(&key("re"))?, golden.get(&key("im"))?) else {
            continue;
        };
        let x = golden.get(&key("x"))?;
        if let Some(x) = &x {
            let stft = Stft::new(config.clone()).map_err(|e| facts.problem(e))?;
            let limit = SPECTRUM * largest(&magnitudes(&re, &im));
            let tolerance = Tolerance::Absolute { max_abs: limit };
            match stft.forward(run.rows(x)) {
                Ok((a, b)) => {
                    run.compare(&key("re"), &re, &host(a, 2), tolerance, checks);
                    run.compare(&key("im"), &im, &host(b, 2), tolerance, checks);
                }
                Err(error) => run.fail(&key("re"), error, checks),
            }
        } else {
            checks.input(&key("re"), "spectrum");
            checks.input(&key("im"), "spectrum");
        }
        let istft = Istft::new(config).map_err(|e| facts.problem(e))?;
        let samples = x.map_or(0, |x| x.len());
        for (tag, length) in [
            ("istft", None),
            ("istft_len", Some(samples)),
            ("istft_long", Some(samples + istft.config().n_fft)),
        ] {
            inverse(
                run,
                &istft,
                (&re, &im),
                length,
                &row[tag],
                &key(tag),
                checks,
            )?;
        }
    }
    Ok(())
}

fn magnitudes(re: &HostTensor, im: &HostTensor) -> HostTensor {
    let pairs = re.to_f64().into_iter().zip(im.to_f64());
    HostTensor::list(pairs.map(|(a, b)| a.hypot(b)).collect())
}

fn inverse(
    run: &Run,
    istft: &Istft,
    (re, im): (&HostTensor, &HostTensor),
    length: Option<usize>,
    fact: &Value,
    key: &str,
    checks: &mut Checks<'_>,
) -> Result<()> {
    let (Some(re), Some(im)) = (run.plane(re), run.plane(im)) else {
        run.fail(key, "expected two axes", checks);
        return Ok(());
    };
    let frames = re.dims()[2];
    let expected = checks.golden().get(key)?;
    if expected.is_none() && !fact.is_string() {
        return Ok(());
    }
    let result = istft.forward(re, im, length);
    let Some(expected) = expected else {
        // What the reference refuses is refused here.
        let refused = matches!(result, Err(StftError::Uncovered { .. }));
        let one = |x: bool| HostTensor::int(i64::from(x));
        let key = format!("{key} (refused)");
        run.compare(&key, &one(true), &one(refused), Tolerance::Exact, checks);
        return Ok(());
    };
    let actual = match result {
        Ok(samples) => host(samples, 1),
        Err(error) => {
            run.fail(key, error, checks);
            return Ok(());
        }
    };
    let start = istft.config().kept(frames).0;
    let sums = istft.window_sums(frames);
    let picks: Vec<_> = (0..expected.len())
        .filter(|i| {
            let sum = sums.get(start + i).copied().unwrap_or(0.0);
            sum >= WELL_CONDITIONED || sum == 0.0
        })
        .collect();
    let tolerance = Tolerance::Absolute { max_abs: SAMPLES };
    if actual.len() != expected.len() {
        run.compare(key, &expected, &actual, tolerance, checks);
    } else if let (Some(expected), Some(actual)) = (at(&expected, &picks), at(&actual, &picks)) {
        run.compare(key, &expected, &actual, tolerance, checks);
    }
    Ok(())
}

/// `hannN.periodic` and `hannN.symmetric`.
fn windows(checks: &mut Checks<'_>) -> Result<()> {
    let keys: Vec<_> = checks.golden().keys().map(str::to_owned).collect();
    for key in keys {
        let Some((n, kind)) = key
            .strip_prefix("stft.hann")
            .and_then(|rest| rest.split_once('.'))
        else {
            continue;
        };
        let (Ok(n), periodic) = (n.parse(), kind == "periodic") else {
            continue;
        };
        checks.key(
            &key,
            &HostTensor::signal(&hann_window(n, periodic)),
            Tolerance::Absolute { max_abs: WINDOW },
        )?;
    }
    Ok(())
}
