//! `resample.*`: `PAIR.x` through both recipes, its first samples alone, filters, lengths.

use std::path::Path;

use serde_json::Value;
use zonos_audio::resample::{ResampleRecipe, Resampler};
use zonos_nn::Resample;

use super::{Run, SAMPLES, Settings, host, refused};
use crate::checks::Checks;
use crate::compare::Tolerance;
use crate::error::Result;
use crate::host::HostTensor;

const FACTS: &str = "resample.json";

pub(super) fn run(run: &Run, dir: &Path, checks: &mut Checks<'_>) -> Result<()> {
    let golden = checks.golden();
    let keys: Vec<_> = golden
        .keys()
        .filter_map(|key| key.strip_prefix("resample."))
        .map(str::to_owned)
        .collect();
    for key in &keys {
        let Some((name, what)) = key.rsplit_once('.') else {
            continue;
        };
        // `44100-24000.transform` of `44100-24000.x`, or `stereo.44100-24000` of `stereo.x`.
        let (pair, recipe) = match (rates(name), rates(what)) {
            (Some(pair), _) if what == "functional" => (pair, ResampleRecipe::Functional),
            (Some(pair), _) if what == "kernel" => {
                if run.first() {
                    filter(&format!("resample.{key}"), pair, dir, checks)?;
                }
                continue;
            }
            (Some(pair), _) if what != "x" => (pair, ResampleRecipe::Transform),
            (None, Some(pair)) => (pair, ResampleRecipe::Transform),
            _ => continue,
        };
        let full = format!("resample.{key}");
        let (Some(mut x), Some(expected)) = (
            golden.get(&format!("resample.{name}.x"))?,
            golden.get(&full)?,
        ) else {
            continue;
        };
        if let Some(n) = what.strip_prefix("short") {
            let picks: Vec<_> = (0..n.parse().unwrap_or(0)).collect();
            match x.pick(&picks) {
                Some(first) => x = first,
                None => continue,
            }
        }
        let module = Resample::new(pair.0, pair.1, recipe).map_err(|e| refused(dir, e))?;
        let actual = host(module.forward(run.rows(&x)), expected.shape().len());
        run.compare(
            &full,
            &expected,
            &actual,
            Tolerance::Absolute { max_abs: SAMPLES },
            checks,
        );
    }
    if run.first() && dir.join(FACTS).is_file() {
        facts(&Settings::open(dir, FACTS)?, checks)?;
    }
    Ok(())
}

fn rates(pair: &str) -> Option<(u32, u32)> {
    let (from, to) = pair.split_once('-')?;
    Some((from.parse().ok()?, to.parse().ok()?))
}

/// Bit for bit; a zero may have either sign.
fn filter(key: &str, (from, to): (u32, u32), dir: &Path, checks: &mut Checks<'_>) -> Result<()> {
    let resampler =
        Resampler::new(from, to, ResampleRecipe::Transform).map_err(|e| refused(dir, e))?;
    let dense = resampler.kernel().and_then(|kernel| {
        let shape = [kernel.new_rate(), 2 * kernel.width() + kernel.orig_rate()];
        let taps = kernel.dense()?.into_iter().map(f64::from).collect();
        HostTensor::floats(shape, taps)
    });
    match dense {
        Some(dense) => checks.key(key, &dense, Tolerance::Exact)?,
        None => checks.fail(key, Tolerance::Exact, "too large to store whole".to_owned()),
    }
    Ok(())
}

/// Sizes of the filters, and lengths of outputs.
fn facts(facts: &Settings, checks: &mut Checks<'_>) -> Result<()> {
    let wrong = || facts.problem("`lengths`: expected rows of five numbers");
    let (mut expected, mut actual) = (Vec::new(), Vec::new());
    for row in facts.value()["lengths"].as_array().into_iter().flatten() {
        let number = |i: usize| row[i].as_u64().ok_or_else(wrong);
        let rate = |i: usize| number(i).and_then(|n| u32::try_from(n).map_err(|_| wrong()));
        let resampler = Resampler::new(rate(0)?, rate(1)?, ResampleRecipe::Transform)
            .map_err(|e| facts.problem(e))?;
        expected.push(number(3)? as i64);
        actual.push(resampler.output_len(number(2)? as usize) as i64);
    }
    if !expected.is_empty() {
        compare_ints("resample.json: lengths", expected, actual, checks);
    }
    for (pair, row) in facts.value()["pairs"].as_object().into_iter().flatten() {
        let Some((from, to)) = rates(pair) else {
            continue;
        };
        let resampler =
            Resampler::new(from, to, ResampleRecipe::Transform).map_err(|e| facts.problem(e))?;
        let Some(kernel) = resampler.kernel() else {
            continue;
        };
        let number = |value: &Value| value.as_i64().unwrap_or(-1);
        let expected = ["orig", "new", "width", "out"].map(|field| number(&row[field]));
        let taken = row["in"].as_u64().unwrap_or(0) as usize;
        let actual = [
            kernel.orig_rate(),
            kernel.new_rate(),
            kernel.width(),
            resampler.output_len(taken),
        ];
        compare_ints(
            &format!("resample.json: {pair}"),
            expected.to_vec(),
            actual.map(|n| n as i64).to_vec(),
            checks,
        );
    }
    Ok(())
}

pub(super) fn compare_ints(
    key: &str,
    expected: Vec<i64>,
    actual: Vec<i64>,
    checks: &mut Checks<'_>,
) {
    let list = |values: Vec<i64>| HostTensor::ints([values.len()], values);
    if let (Some(expected), Some(actual)) = (list(expected), list(actual)) {
        checks.part(key, &expected, &actual, Tolerance::Exact);
    }
}
