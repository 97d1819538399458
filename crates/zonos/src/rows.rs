//! Prompt rows and speaker vectors in .npy files.

use std::path::Path;

use anyhow::{Context, anyhow, bail, ensure};
use zonos_audio::npy::{self, Array};
use zonos_tts::SpeakerVector;
use zonos2::{Sequence, Zonos2Config};

/// Reads prompt rows, `[rows, codebooks + 1]`: audio ids, then the text id. Integers of any width,
/// or floats that hold integers, as other tools write them.
pub fn read_rows(
    path: &Path,
    config: &Zonos2Config,
    speaker: Option<&SpeakerVector>,
) -> anyhow::Result<Sequence> {
    let array = npy::read(path)?;
    let width = config.row_width();
    let [rows, columns] = array.shape() else {
        bail!(
            "{}: expected prompt rows of shape [rows, {width}], found {:?}",
            path.display(),
            array.shape()
        );
    };
    ensure!(
        *columns == width,
        "{}: expected {width} columns ({} codebooks and the text id), found {columns}",
        path.display(),
        config.n_codebooks
    );
    ensure!(*rows > 0, "{}: no rows; a prompt has at least one", path.display());
    ensure!(
        *rows <= config.max_seqlen,
        "{}: {rows} rows, and the model has {} positions",
        path.display(),
        config.max_seqlen
    );
    let ids = integers(&array).with_context(|| path.display().to_string())?;
    for (at, &id) in ids.iter().enumerate() {
        let (row, column) = (at / width, at % width);
        let (most, what) = if column + 1 == width {
            (config.text_vocab, "text")
        } else {
            (config.audio_pad_id, "audio")
        };
        ensure!(
            (0..=most as i64).contains(&id),
            "{}: row {row}, column {column}: {what} id {id} is outside 0..={most}",
            path.display()
        );
    }
    let ids = ids.into_iter().map(|id| id as i32).collect();
    let speaker = speaker.map(|s| (s.vector.clone(), s.position));
    Ok(Sequence::new(config, ids, speaker)?)
}

/// Reads a speaker vector: `[D]` or `[1, D]`, any float width.
pub fn read_speaker(path: &Path, position: usize) -> anyhow::Result<SpeakerVector> {
    let array = npy::read(path)?;
    ensure!(
        matches!(array.shape(), [_] | [1, _]),
        "{}: expected a speaker vector of shape [D] or [1, D], found {:?}",
        path.display(),
        array.shape()
    );
    let vector = array
        .to_f32()
        .ok_or_else(|| anyhow!("{}: expected floating-point numbers", path.display()))?;
    if let Some(at) = vector.iter().position(|v| !v.is_finite()) {
        bail!(
            "{}: value {at} is {}; a speaker vector is finite",
            path.display(),
            vector[at]
        );
    }
    Ok(SpeakerVector { vector, position })
}

fn integers(array: &Array) -> anyhow::Result<Vec<i64>> {
    array.to_i64().ok_or_else(|| anyhow!("expected whole numbers"))
}
