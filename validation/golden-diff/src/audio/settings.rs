//! Settings as the golden folder's JSON files write them: the arguments of `torch.stft` and of
//! `torchaudio.transforms.MelSpectrogram`.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use zonos_audio::mel::{MelConfig, MelPower, MelScale};
use zonos_audio::stft::{Framing, PadMode, StftConfig, hann_window, ones_window};

use crate::error::{GoldenError, Result};

/// One JSON file of a golden folder.
pub(crate) struct Settings {
    path: PathBuf,
    value: Value,
}

impl Settings {
    pub(crate) fn open(dir: &Path, name: &str) -> Result<Self> {
        let path = dir.join(name);
        let text = std::fs::read(&path).map_err(|source| GoldenError::Io {
            path: path.clone(),
            source,
        })?;
        let value = serde_json::from_slice(&text).map_err(|e| GoldenError::Format {
            path: path.clone(),
            problem: format!("not JSON: {e}"),
        })?;
        Ok(Self { path, value })
    }

    pub(crate) fn value(&self) -> &Value {
        &self.value
    }

    /// The entries of the file.
    pub(crate) fn entries(&self) -> Result<&Map<String, Value>> {
        self.value
            .as_object()
            .ok_or_else(|| self.problem("expected an object"))
    }

    pub(crate) fn problem(&self, problem: impl ToString) -> GoldenError {
        GoldenError::Format {
            path: self.path.clone(),
            problem: problem.to_string(),
        }
    }

    fn size(&self, name: &str, field: &str) -> Result<Option<usize>> {
        match &self.value[name][field] {
            Value::Null => Ok(None),
            value => match value.as_u64().and_then(|n| usize::try_from(n).ok()) {
                Some(n) => Ok(Some(n)),
                None => Err(self.problem(format!("`{name}.{field}` is {value}, expected a size"))),
            },
        }
    }

    /// An entry of `stft.json`.
    pub(crate) fn stft(&self, name: &str) -> Result<StftConfig> {
        let facts = &self.value[name];
        let need = |field: &str| {
            self.size(name, field)?
                .ok_or_else(|| self.problem(format!("`{name}.{field}` is missing")))
        };
        let n_fft = need("n_fft")?;
        let window = match &facts["win"] {
            Value::String(text) if text.ends_with("ones") => ones_window(n_fft),
            Value::String(_) | Value::Null => hann_window(n_fft, true),
            _ => hann_window(need("win")?, true),
        };
        let mode = match facts["pad_mode"].as_str() {
            None | Some("reflect") => PadMode::Reflect,
            Some("constant") => PadMode::Zeros,
            Some("replicate") => PadMode::Edge,
            Some(other) => {
                return Err(self.problem(format!(
                    "`{name}.pad_mode` is {other}, expected reflect, constant or replicate"
                )));
            }
        };
        Ok(StftConfig {
            n_fft,
            hop: need("hop")?,
            window,
            framing: match facts["center"].as_bool() {
                Some(false) => Framing::Bare,
                _ => Framing::Centred(mode),
            },
            normalized: facts["normalized"].as_bool().unwrap_or(false),
        })
    }

    /// An entry of `mel.json`; what it leaves out is as `torchaudio` has it.
    pub(crate) fn mel(&self, name: &str) -> Result<MelConfig> {
        let facts = &self.value[name];
        let rate = self
            .size(name, "sample_rate")?
            .and_then(|rate| u32::try_from(rate).ok())
            .ok_or_else(|| self.problem(format!("`{name}.sample_rate` is missing")))?;
        let defaults = MelConfig::torchaudio(rate);
        let n_fft = self.size(name, "n_fft")?.unwrap_or(defaults.n_fft);
        let win_length = self.size(name, "win_length")?.unwrap_or(n_fft);
        Ok(MelConfig {
            n_fft,
            win_length,
            hop: self.size(name, "hop_length")?.unwrap_or(win_length / 2),
            bands: self.size(name, "n_mels")?.unwrap_or(defaults.bands),
            f_min: facts["f_min"].as_f64().unwrap_or(defaults.f_min),
            f_max: facts["f_max"].as_f64().unwrap_or(defaults.f_max),
            power: match facts["power"].as_f64() {
                None | Some(2.0) => MelPower::Energy,
                Some(1.0) => MelPower::Magnitude,
                Some(other) => {
                    return Err(self.problem(format!("`{name}.power` is {other}, expected 1 or 2")));
                }
            },
            scale: match facts["mel_scale"].as_str() {
                Some("slaney") => MelScale::Slaney,
                _ => MelScale::Htk,
            },
            area_norm: facts["norm"].as_str() == Some("slaney"),
            ..defaults
        })
    }
}
