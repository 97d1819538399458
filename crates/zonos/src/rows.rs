//! Rows of ids in .npy files.

use std::path::Path;

use anyhow::{Context, bail, ensure};
use zonos_audio::{AtomicFile, NpyData, npy};
use zonos_tts::Speaker;
use zonos2::{Sequence, Zonos2Config};

/// Reads prompt rows, `[rows, codebooks + 1]`: audio ids, then the text id. Integers of any width,
/// or floats that hold integers, as other tools write them.
pub(crate) fn read_rows(
    path: &Path,
    config: &Zonos2Config,
    speaker: Option<Speaker>,
) -> anyhow::Result<Sequence> {
    let width = config.row_width();
    // The header alone tells of a file that is none of these, however large it is.
    match *npy::read_shape(path)? {
        [rows, columns] if rows > 0 && columns == width => ensure!(
            rows <= config.max_seqlen,
            "{}: {rows} rows, but the model has {} positions (max_seqlen)",
            path.display(),
            config.max_seqlen
        ),
        ref shape => bail!(
            "{}: shape: expected prompt rows, [rows, {width}] ({} codebooks and the text id), found {shape:?}",
            path.display(),
            config.n_codebooks
        ),
    }
    let array = npy::read(path)?;
    ensure!(
        !matches!(array.data(), NpyData::Bool(_)),
        "{}: descr: expected whole numbers (int8 to int64, uint8 to uint64, or floats that hold whole numbers), found truth values (bool), which are no ids; save the ids as int32",
        path.display()
    );
    let mut sequence = Sequence::new(array.to_i32()?);
    sequence.speaker = speaker.map(|speaker| (speaker.vector, speaker.position));
    sequence
        .validate(0, config)
        .with_context(|| path.display().to_string())?;
    Ok(sequence)
}

/// Writes rows, `[rows, codebooks + 1]`, as other tools read them: floats that hold whole numbers. The
/// caller commits the file.
pub(crate) fn stage_rows(
    path: &Path,
    rows: &[i32],
    config: &Zonos2Config,
) -> anyhow::Result<AtomicFile> {
    let width = config.row_width();
    let ids: Vec<f32> = rows.iter().map(|&id| id as f32).collect();
    Ok(npy::stage_f32(path, &[rows.len() / width, width], &ids)?)
}
