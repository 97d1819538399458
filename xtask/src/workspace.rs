//! Where things are, and output files.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;
use zonos_audio::AtomicFile;

/// Environment variable that names a folder of larger goldens (`zonos2/*`, `dac/*`, `ecapa/*`,
/// `w2v-bert/*`, `zac/*`, `audio`, `gguf/*`, `gradients/*` inside).
pub(crate) const GOLDENS: &str = "ZONOS_GOLDENS";

/// Folders of golden folders, or golden folders themselves, among the fixtures and in `$ZONOS_GOLDENS`.
pub(crate) const GOLDEN_AREAS: [&str; 8] = [
    "zonos2",
    "dac",
    "ecapa",
    "w2v-bert",
    "zac",
    "audio",
    "gguf",
    "gradients",
];

/// Those of them whose fixtures are smaller models with makers of their own, not copies.
pub(crate) const SMALLER_AREAS: [&str; 3] = ["w2v-bert", "zac", "gguf"];

/// The root of the repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .map_or_else(|| PathBuf::from("."), Path::to_path_buf)
}

/// The fixtures of the repository.
pub(crate) fn fixtures() -> PathBuf {
    root().join("validation/fixtures")
}

/// The folder that `$ZONOS_GOLDENS` names, if it is set and not empty.
pub(crate) fn goldens() -> anyhow::Result<Option<PathBuf>> {
    match std::env::var_os(GOLDENS).filter(|v| !v.is_empty()) {
        None => Ok(None),
        Some(dir) => {
            let dir = PathBuf::from(dir);
            anyhow::ensure!(dir.is_dir(), "${GOLDENS}: {} is no folder", dir.display());
            Ok(Some(dir))
        }
    }
}

/// All files below `dir`, sorted, as paths inside it.
pub(crate) fn files_below(dir: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut open = vec![dir.to_path_buf()];
    while let Some(folder) = open.pop() {
        let entries = std::fs::read_dir(&folder)
            .with_context(|| format!("{}: cannot read", folder.display()))?;
        for entry in entries {
            let path = entry?.path();
            if path.is_dir() {
                open.push(path);
            } else if let Ok(inside) = path.strip_prefix(dir) {
                found.push(inside.to_path_buf());
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Writes `text` to a temporary file beside `path` and renames it.
pub(crate) fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    let mut file = AtomicFile::create(path)?;
    file.write_all(text.as_bytes())
        .with_context(|| format!("{}: cannot write", path.display()))?;
    file.commit()?;
    Ok(())
}
