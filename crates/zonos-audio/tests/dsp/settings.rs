//! Settings as the goldens' JSON files write them.

use serde_json::Value;
use zonos_audio::mel::{MelConfig, MelPower, MelScale};
use zonos_audio::stft::{Framing, PadMode, StftConfig, hann_window, ones_window};

/// The arguments of `torchaudio.transforms.MelSpectrogram` in `mel.json`.
pub(crate) fn mel_config(args: &Value) -> MelConfig {
    let rate = args["sample_rate"].as_u64().unwrap() as u32;
    let defaults = MelConfig::torchaudio(rate);
    let size = |name: &str, default| args[name].as_u64().map_or(default, |n| n as usize);
    let n_fft = size("n_fft", defaults.n_fft);
    let win_length = size("win_length", n_fft);
    MelConfig {
        n_fft,
        win_length,
        hop: size("hop_length", win_length / 2),
        bands: size("n_mels", defaults.bands),
        f_min: args["f_min"].as_f64().unwrap_or(defaults.f_min),
        f_max: args["f_max"].as_f64().unwrap_or(defaults.f_max),
        power: match args["power"].as_f64() {
            Some(1.0) => MelPower::Magnitude,
            None | Some(2.0) => MelPower::Energy,
            Some(other) => panic!("power {other}"),
        },
        scale: match args["mel_scale"].as_str() {
            Some("slaney") => MelScale::Slaney,
            _ => MelScale::Htk,
        },
        area_norm: args["norm"].as_str() == Some("slaney"),
        ..defaults
    }
}

/// An entry of `stft.json`.
pub(crate) fn stft_config(facts: &Value) -> StftConfig {
    let size = |name: &str| facts[name].as_u64().unwrap() as usize;
    let window = match &facts["win"] {
        Value::Number(n) => hann_window(n.as_u64().unwrap() as usize, true),
        Value::String(text) if text.ends_with("ones") => ones_window(size("n_fft")),
        Value::String(_) => hann_window(size("n_fft"), true),
        other => panic!("{other}"),
    };
    let mode = match facts["pad_mode"].as_str() {
        Some("constant") => PadMode::Zeros,
        Some("replicate") => PadMode::Edge,
        _ => PadMode::Reflect,
    };
    StftConfig {
        n_fft: size("n_fft"),
        hop: size("hop"),
        window,
        framing: match facts["center"].as_bool() {
            Some(false) => Framing::Bare,
            _ => Framing::Centred(mode),
        },
        normalized: facts["normalized"].as_bool().unwrap_or(false),
    }
}
