//! `decode/`: audio files in many containers, with what is in them. `broken/`: files that are to be
//! refused, or read as far as they go.

use std::path::Path;

use serde_json::Value;
use zonos_audio::decode::{DecodeLimits, Decoded, decode_file};

use super::Settings;
use super::resample::compare_ints;
use crate::checks::Checks;
use crate::compare::Tolerance;
use crate::error::Result;
use crate::host::HostTensor;

/// Errors of levels of lossless files, relative; of their samples, absolute.
const LEVEL: f64 = 1e-5;
const SAMPLE: f64 = 1e-7;
/// Samples of which `first` holds some.
const FIRST: usize = 100;
/// Furthest delay of a lossy codec that is looked for, in samples.
const REACH: usize = 4000;
/// Samples compared to find the delay.
const PROBE: usize = 2048;

pub(super) fn run(dir: &Path, checks: &mut Checks<'_>) -> Result<()> {
    for (folder, compare) in [
        ("decode", readable as Compare),
        ("broken", broken as Compare),
    ] {
        let place = dir.join(folder);
        if !place.join("expected.json").is_file() {
            checks.notes.push(format!(
                "{folder}: not in this folder, so no audio files were read from it"
            ));
            continue;
        }
        let expected = Settings::open(&place, "expected.json")?;
        for (name, facts) in expected.entries()? {
            let decoded = decode_file(place.join(name), &DecodeLimits::default());
            let decoded = decoded.map_err(|e| e.to_string());
            compare(&format!("{folder}/{name}"), facts, decoded, checks)?;
        }
    }
    Ok(())
}

type Compare = fn(&str, &Value, Result<Decoded, String>, &mut Checks<'_>) -> Result<()>;

fn readable(
    name: &str,
    facts: &Value,
    decoded: Result<Decoded, String>,
    checks: &mut Checks<'_>,
) -> Result<()> {
    let decoded = match decoded {
        Ok(decoded) => decoded,
        Err(error) => {
            checks.fail(name, Tolerance::Exact, error);
            return Ok(());
        }
    };
    let channels = &decoded.channels;
    let frames = channels.first().map_or(0, Vec::len);
    let number = |field: &str| facts[field].as_i64();
    compare_ints(
        &format!("{name}: rate, channels"),
        vec![
            number("rate").unwrap_or(-1),
            number("channels").unwrap_or(-1),
        ],
        vec![i64::from(decoded.info.sample_rate), channels.len() as i64],
        checks,
    );
    // Of lossy files priming may be cut or not.
    let lossless = facts["lossless"].as_bool().unwrap_or(false);
    let length = match (lossless, number("samples_min"), number("samples_max")) {
        (false, Some(least), Some(most)) => (frames as i64).clamp(least, most.max(least)),
        _ => number("samples").unwrap_or(-1),
    };
    compare_ints(
        &format!("{name}: samples"),
        vec![length],
        vec![frames as i64],
        checks,
    );
    let levels = channels.iter().map(|x| {
        let squares: f64 = x.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
        (squares / x.len().max(1) as f64).sqrt()
    });
    let relative = if lossless {
        LEVEL
    } else {
        facts["rms_tolerance"].as_f64().unwrap_or(LEVEL)
    };
    checks.part(
        &format!("{name}: level of each channel"),
        &HostTensor::list(numbers(&facts["rms"])),
        &HostTensor::list(levels.collect()),
        Tolerance::Relative { relative },
    );

    let rate = facts["rate"].as_u64().unwrap_or(0);
    let key = format!("decode.speech.{rate}.{}", channels.len());
    let source = checks.golden().get(&key)?;
    if lossless {
        let first = numbers(&facts["first"]);
        let found: Vec<_> = channels[0].iter().skip(FIRST).take(first.len()).collect();
        checks.part(
            &format!("{name}: samples {FIRST}.."),
            &HostTensor::list(first),
            &HostTensor::list(found.into_iter().map(|&x| f64::from(x)).collect()),
            Tolerance::Absolute { max_abs: SAMPLE },
        );
        if let Some(source) = source {
            // Rounded to the file's bits.
            let bits = decoded.info.bits_per_sample.unwrap_or(32).min(32);
            let step = f64::from(-(bits as i32)).exp2();
            let joined = channels.iter().flatten().map(|&x| f64::from(x)).collect();
            if let Some(joined) = HostTensor::floats([channels.len(), frames], joined) {
                let tolerance = Tolerance::Absolute {
                    max_abs: step + SAMPLE,
                };
                checks.part(&format!("{name}: samples"), &source, &joined, tolerance);
            }
        }
    } else if let (Some(source), Some(least)) = (source, facts["min_correlation"].as_f64()) {
        let source = source.to_f64();
        let source = &source[..source.len() / channels.len().max(1)];
        let (expected, actual) = aligned(source, &channels[0]);
        checks.part(
            &format!("{name}: likeness"),
            &HostTensor::list(expected),
            &HostTensor::list(actual),
            Tolerance::Cosine { at_least: least },
        );
    }
    Ok(())
}

fn numbers(list: &Value) -> Vec<f64> {
    let list = list.as_array().into_iter().flatten();
    list.filter_map(Value::as_f64).collect()
}

/// The parts of `source` and of what was decoded that lie on each other at the best delay.
fn aligned(source: &[f64], decoded: &[f32]) -> (Vec<f64>, Vec<f64>) {
    // The loudest stretch, which is heard best.
    let n = PROBE.min(source.len());
    let energy = |at: usize| -> f64 { source[at..at + n].iter().map(|x| x * x).sum() };
    let steps = (0..=source.len() - n).step_by(n.div_ceil(4).max(1));
    let at = steps
        .max_by(|&a, &b| energy(a).total_cmp(&energy(b)))
        .unwrap_or(0);
    let likeness = |delay: isize| -> f64 {
        let from = at as isize + delay;
        let before = usize::try_from(-from).unwrap_or(0);
        let source = source.get(at + before..at + n).unwrap_or_default();
        let decoded = decoded.get(from.max(0) as usize..).unwrap_or_default();
        let pairs = source.iter().zip(decoded);
        pairs.map(|(x, &y)| x * f64::from(y)).sum()
    };
    let reach = REACH as isize;
    let delay = (-reach..=reach)
        .max_by(|&a, &b| likeness(a).total_cmp(&likeness(b)))
        .unwrap_or(0);
    source
        .iter()
        .enumerate()
        .filter_map(|(i, x)| {
            let j = usize::try_from(i as isize + delay).ok()?;
            Some((*x, f64::from(*decoded.get(j)?)))
        })
        .unzip()
}

fn broken(
    name: &str,
    facts: &Value,
    decoded: Result<Decoded, String>,
    checks: &mut Checks<'_>,
) -> Result<()> {
    let said = facts["tell_the_user"].as_str().unwrap_or_default();
    match (facts["outcome"].as_str(), decoded) {
        (Some("error"), Ok(_)) => {
            let why = format!("was read; expected an error such as: {said}");
            checks.fail(name, Tolerance::Exact, why);
        }
        (Some("accept"), Err(error)) => {
            let why = format!("was refused ({error}); expected: {said}");
            checks.fail(name, Tolerance::Exact, why);
        }
        (Some("error" | "accept" | "error_or_accept"), decoded) => {
            let frames = match &decoded {
                Ok(decoded) => decoded.channels.first().map_or(0, Vec::len) as i64,
                Err(_) => 0,
            };
            let expected = match (&decoded, &facts["samples"], &facts["samples_at_least"]) {
                (Ok(_), Value::Number(n), _) => n.as_i64().unwrap_or(-1),
                (Ok(_), _, Value::Number(n)) => frames.max(n.as_i64().unwrap_or(i64::MAX)),
                _ => frames,
            };
            compare_ints(
                &format!("{name}: samples"),
                vec![expected],
                vec![frames],
                checks,
            );
        }
        (other, _) => checks.fail(
            name,
            Tolerance::Exact,
            format!("expected.json: outcome {other:?}, expected error, accept or error_or_accept"),
        ),
    }
    Ok(())
}
