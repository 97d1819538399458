//! `mel.*`: the speaker front end (`speaker.NAME.x` -> `.linear`, `.mel`), other settings of `mel.json`
//! (`NAME.x` -> `NAME.mel`), banks and windows.

use std::path::Path;

use zonos_audio::mel::MelConfig;
use zonos_nn::MelSpectrogram;

use super::{Run, Settings, at, host, largest, refused};
use crate::checks::Checks;
use crate::compare::Tolerance;
use crate::error::Result;
use crate::host::HostTensor;

/// Largest error of a linear level, absolute, and of large ones relative to the largest.
const LINEAR: f64 = 5e-6;
const LINEAR_RELATIVE: f64 = 1e-6;
/// Largest error of a logarithm, and of one whose level is above [`LOUD`]: the logarithm magnifies the
/// noise of quiet bands.
const LOG: f64 = 3e-3;
const LOG_LOUD: f64 = 5e-4;
const LOUD: f64 = 1e-2;
/// Smallest level that is taken the logarithm of.
const FLOOR: f32 = 1e-5;
/// Entries of banks are f32 results of a power or an exponential.
const BANK: f64 = 2e-6;
/// One bit of a cosine.
const WINDOW: f64 = 6e-8;

pub(super) fn run(run: &Run, dir: &Path, checks: &mut Checks<'_>) -> Result<()> {
    let golden = checks.golden();
    if !golden.keys().any(|key| key.starts_with("mel.")) {
        return Ok(());
    }
    if let Some(bank) = golden.get("mel.speaker.bank")? {
        let config = MelConfig {
            bands: bank.shape().get(1).copied().unwrap_or(0),
            ..MelConfig::speaker()
        };
        let module = MelSpectrogram::new(config).map_err(|e| refused(dir, e))?;
        speaker(run, &module, checks)?;
    }
    let facts = Settings::open(dir, "mel.json")?;
    for (name, row) in facts.entries()? {
        if row["sample_rate"].is_null() {
            continue;
        }
        let module = MelSpectrogram::new(facts.mel(name)?).map_err(|e| facts.problem(e))?;
        if run.first() {
            bank(&module, &format!("mel.{name}.bank"), checks)?;
        }
        let key = format!("mel.{name}.mel");
        let (Some(x), Some(expected)) = (golden.get(&format!("mel.{name}.x"))?, golden.get(&key)?)
        else {
            continue;
        };
        match module.linear(run.rows(&x)) {
            Ok(mel) => {
                let limit = LINEAR.max(LINEAR_RELATIVE * largest(&expected));
                let actual = host(mel.swap_dims(1, 2), 2);
                let tolerance = Tolerance::Absolute { max_abs: limit };
                run.compare(&key, &expected, &actual, tolerance, checks);
            }
            Err(error) => run.fail(&key, error, checks),
        }
    }
    Ok(())
}

fn speaker(run: &Run, module: &MelSpectrogram, checks: &mut Checks<'_>) -> Result<()> {
    let golden = checks.golden();
    if run.first() {
        bank(module, "mel.speaker.bank", checks)?;
        checks.key(
            "mel.speaker.window",
            &HostTensor::signal(&module.config().stft().window),
            Tolerance::Absolute { max_abs: WINDOW },
        )?;
    }
    let names: Vec<_> = golden
        .keys()
        .filter_map(|key| key.strip_prefix("mel.speaker.")?.strip_suffix(".x"))
        .map(str::to_owned)
        .collect();
    for name in names {
        let key = |what: &str| format!("mel.speaker.{name}.{what}");
        let x = golden.need(&key("x"))?;
        let linear = golden.get(&key("linear"))?;
        if let Some(expected) = &linear {
            match module.linear(run.rows(&x)) {
                Ok(mel) => run.compare(
                    &key("linear"),
                    expected,
                    &host(mel, 2),
                    Tolerance::Absolute { max_abs: LINEAR },
                    checks,
                ),
                Err(error) => run.fail(&key("linear"), error, checks),
            }
        }
        let Some(expected) = golden.get(&key("mel"))? else {
            continue;
        };
        let actual = match module.log(run.rows(&x), FLOOR) {
            Ok(mel) => host(mel, 2),
            Err(error) => {
                run.fail(&key("mel"), error, checks);
                continue;
            }
        };
        let tolerance = Tolerance::Absolute { max_abs: LOG };
        run.compare(&key("mel"), &expected, &actual, tolerance, checks);
        let loud: Vec<_> = expected
            .to_f64()
            .into_iter()
            .enumerate()
            .filter(|(_, level)| *level > LOUD.ln())
            .map(|(i, _)| i)
            .collect();
        if let (false, Some(expected), Some(actual)) =
            (loud.is_empty(), at(&expected, &loud), at(&actual, &loud))
        {
            let tolerance = Tolerance::Absolute { max_abs: LOG_LOUD };
            let key = format!("{} (levels above 1e-2)", key("mel"));
            run.compare(&key, &expected, &actual, tolerance, checks);
        }
    }
    Ok(())
}

fn bank(module: &MelSpectrogram, key: &str, checks: &mut Checks<'_>) -> Result<()> {
    let bank = module.host().bank();
    let dense = bank.dense().into_iter().map(f64::from).collect();
    if let Some(dense) = HostTensor::floats([bank.bins(), bank.bands()], dense) {
        checks.key(key, &dense, Tolerance::Absolute { max_abs: BANK })?;
    }
    Ok(())
}
