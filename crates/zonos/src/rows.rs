//! Prompt rows in .npy files.

use std::path::Path;

use anyhow::{Context, bail};
use zonos_audio::npy;
use zonos_tts::Speaker;
use zonos2::{Sequence, Zonos2Config};

/// Reads prompt rows, `[rows, codebooks + 1]`: audio ids, then the text id. Integers of any width,
/// or floats that hold integers, as other tools write them.
pub(crate) fn read_rows(
    path: &Path,
    config: &Zonos2Config,
    speaker: Option<Speaker>,
) -> anyhow::Result<Sequence> {
    let array = npy::read(path)?;
    let width = config.row_width();
    if !matches!(array.shape(), &[rows, columns] if rows > 0 && columns == width) {
        bail!(array.shape_error(format_args!(
            "prompt rows, [rows, {width}] ({} codebooks and the text id)",
            config.n_codebooks
        )));
    }
    let mut sequence = Sequence::new(array.to_i32()?);
    sequence.speaker = speaker.map(|speaker| (speaker.vector, speaker.position));
    sequence
        .validate(0, config)
        .with_context(|| path.display().to_string())?;
    Ok(sequence)
}
