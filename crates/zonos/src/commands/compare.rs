//! How far what a codec gives is from what it should be: for the commands of both codecs.

use std::path::Path;

use serde_json::json;
use zonos_audio::{AtomicFile, Levels, Waveform, plot};
use zonos_dac::snr_db;

use crate::failure::Failure;
use crate::output;

/// The largest difference of a sample between streamed and whole decoding; NaN where one is NaN.
pub(crate) fn seam(whole: &Waveform, pieces: &[f32]) -> Result<f32, Failure> {
    if whole.len() != pieces.len() {
        return Err(Failure::failed(format!(
            "streaming gave {} samples, the whole decode {}",
            pieces.len(),
            whole.len()
        )));
    }
    let differences = whole
        .samples()
        .iter()
        .zip(pieces)
        .map(|(a, b)| (a - b).abs());
    // `max` would drop a NaN; here it must win.
    Ok(differences.fold(0.0f32, |m, d| if d.is_nan() || d > m { d } else { m }))
}

/// What became of audio that went through a codec.
pub(crate) struct Change {
    snr_db: Option<f64>,
    before: Levels,
    after: Levels,
}

impl Change {
    pub(crate) fn of(before: &Waveform, after: &Waveform) -> Self {
        Self {
            snr_db: snr_db(before.samples(), after.samples()),
            before: before.levels(),
            after: after.levels(),
        }
    }

    /// Signal to noise in dB. JSON has no infinity: null for what has no finite value.
    pub(crate) fn snr_json(&self) -> serde_json::Value {
        json!(self.snr_db.filter(|snr| snr.is_finite()))
    }

    pub(crate) fn before_json(&self) -> serde_json::Value {
        levels_json(&self.before)
    }

    pub(crate) fn after_json(&self) -> serde_json::Value {
        levels_json(&self.after)
    }

    /// The three lines of a table.
    pub(crate) fn print(&self) -> Result<(), Failure> {
        let snr = self.snr_db.map_or_else(
            || "none, the input is silent".to_owned(),
            |snr| format!("{snr:.2} dB"),
        );
        output::print(format_args!("signal to noise  {snr}"))?;
        output::print(format_args!("before           {}", levels(&self.before)))?;
        output::print(format_args!("after            {}", levels(&self.after)))?;
        Ok(())
    }
}

fn levels(levels: &Levels) -> String {
    format!(
        "peak {:.2} dBFS, RMS {:.2} dBFS, {} samples at full scale",
        levels.peak_dbfs(),
        levels.rms_dbfs(),
        levels.clipped
    )
}

fn levels_json(levels: &Levels) -> serde_json::Value {
    let finite = |x: f32| x.is_finite().then_some(x);
    json!({
        "peak": levels.peak,
        "rms": levels.rms,
        "peak_dbfs": finite(levels.peak_dbfs()),
        "rms_dbfs": finite(levels.rms_dbfs()),
        "clipped": levels.clipped,
    })
}

/// Spectrograms of both, one above the other.
pub(crate) fn draw(
    path: &Path,
    audio: &Path,
    before: &Waveform,
    after: &Waveform,
) -> Result<AtomicFile, Failure> {
    let name = audio.file_name().unwrap_or(audio.as_os_str());
    let name = output::visible(&name.to_string_lossy());
    Ok(plot::before_after(&name, before, after).stage(path)?)
}
