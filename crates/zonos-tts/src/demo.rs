//! The built-in demo model: tiny random weights in the layouts of the released checkpoints.
//!
//! It exists so that the whole pipeline (loader, prompt, backbone, sampler, codec, file) runs on a
//! machine that has no weights and no network. It speaks noise.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::TtsError;

const FILES: [(&str, &[u8]); 3] = [
    (
        "model.safetensors",
        include_bytes!("../assets/demo/backbone/model.safetensors"),
    ),
    (
        "params.json",
        include_bytes!("../assets/demo/backbone/params.json"),
    ),
    (
        "codec/weights.pth",
        include_bytes!("../assets/demo/codec/weights.pth"),
    ),
];

/// Where the two halves of a demo model lie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DemoPaths {
    /// Folder of the backbone: `model.safetensors` and `params.json`.
    pub model: PathBuf,
    /// File of the codec: `codec/weights.pth` in that folder.
    pub codec: PathBuf,
}

/// Writes the demo model into `dir`, creating it, and says where its halves lie.
///
/// The codec is in the folder `codec` of the model's folder, one of the places where the `zonos`
/// command looks for it, so `--model DIR` alone runs it. Existing files of those names are replaced.
///
/// # Errors
/// [`TtsError::Demo`] naming the file or folder that cannot be written.
pub fn write_demo_checkpoint(dir: impl AsRef<Path>) -> Result<DemoPaths, TtsError> {
    let dir = dir.as_ref();
    let failed = |path: &Path| {
        let path = path.to_path_buf();
        move |source| TtsError::Demo { path, source }
    };
    for (name, bytes) in FILES {
        let path = dir.join(name);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(failed(folder))?;
        }
        // Written beside the target and renamed, so that no half file is ever opened.
        let folder = path.parent().unwrap_or(dir);
        let mut temporary = tempfile::NamedTempFile::new_in(folder).map_err(failed(folder))?;
        std::io::Write::write_all(&mut temporary, bytes).map_err(failed(&path))?;
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let readable = fs::Permissions::from_mode(0o644);
            fs::set_permissions(temporary.path(), readable).map_err(failed(&path))?;
        }
        temporary
            .persist(&path)
            .map_err(|error| failed(&path)(error.error))?;
    }
    Ok(DemoPaths {
        model: dir.to_path_buf(),
        codec: dir.join("codec").join("weights.pth"),
    })
}

/// A demo model in a temporary folder, which goes away with this value.
#[derive(Debug)]
pub struct DemoCheckpoint {
    paths: DemoPaths,
    _dir: TempDir,
}

impl DemoCheckpoint {
    /// Writes the demo model into a fresh temporary folder.
    ///
    /// # Errors
    /// The system's temporary folder cannot be written to.
    pub fn create() -> Result<Self, TtsError> {
        let dir = tempfile::Builder::new()
            .prefix("zonos-demo-")
            .tempdir()
            .map_err(|source| TtsError::Demo {
                path: std::env::temp_dir(),
                source,
            })?;
        Ok(Self {
            paths: write_demo_checkpoint(dir.path())?,
            _dir: dir,
        })
    }

    /// Folder of the backbone.
    pub fn model(&self) -> &Path {
        &self.paths.model
    }

    /// File of the codec.
    pub fn codec(&self) -> &Path {
        &self.paths.codec
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_embedded_files_are_the_fixtures_and_small() {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../validation/fixtures");
        let sources = [
            "zonos2/tiny/model.safetensors",
            "zonos2/tiny/params.json",
            "dac/tiny/weights.pth",
        ];
        let mut total = 0;
        for ((name, bytes), source) in FILES.iter().zip(sources) {
            assert_eq!(fs::read(fixtures.join(source)).unwrap(), *bytes, "{name}");
            total += bytes.len();
        }
        assert!(total < 8 << 20, "{total} bytes");
    }

    #[test]
    fn the_temporary_copy_goes_away() {
        let demo = DemoCheckpoint::create().unwrap();
        let folder = demo.model().to_path_buf();
        assert!(demo.codec().is_file() && folder.join("params.json").is_file());
        drop(demo);
        assert!(!folder.exists());
    }
}
