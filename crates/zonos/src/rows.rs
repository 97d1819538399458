//! Prompt rows and speaker vectors in .npy files.

use std::path::Path;

use anyhow::{bail, ensure};
use zonos_audio::npy;
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
    let &[rows, columns] = array.shape() else {
        bail!(array.shape_error(format_args!("prompt rows, [rows, {width}]")));
    };
    if columns != width {
        bail!(array.shape_error(format_args!(
            "[rows, {width}] ({} codebooks and the text id)",
            config.n_codebooks
        )));
    }
    ensure!(
        rows > 0,
        "{}: no rows; a prompt has at least one",
        path.display()
    );
    ensure!(
        rows <= config.max_seqlen,
        "{}: {rows} rows, and the model has {} positions",
        path.display(),
        config.max_seqlen
    );
    let ids = array.to_i32()?;
    for (at, &id) in ids.iter().enumerate() {
        let (row, column) = (at / width, at % width);
        let (most, what) = if column + 1 == width {
            (config.text_vocab, "text")
        } else {
            (config.audio_pad_id, "audio")
        };
        ensure!(
            (0..=most as i32).contains(&id),
            "{}: row {row}, column {column}: {what} id {id} is outside 0..={most}",
            path.display()
        );
    }
    let speaker = speaker.map(|s| (s.vector.clone(), s.position));
    Ok(Sequence::new(config, ids, speaker)?)
}

/// Reads a speaker vector: `[D]` or `[1, D]`, any float width.
pub fn read_speaker(path: &Path, position: usize) -> anyhow::Result<SpeakerVector> {
    let array = npy::read(path)?;
    if !matches!(array.shape(), [_] | [1, _]) {
        bail!(array.shape_error("a speaker vector, [D] or [1, D]"));
    }
    let vector = array.to_f32();
    if let Some(at) = vector.iter().position(|v| !v.is_finite()) {
        bail!(array.element_error(at, vector[at], "a finite number"));
    }
    Ok(SpeakerVector { vector, position })
}
