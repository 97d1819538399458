//! The built-in demo model: tiny random weights in the layouts of the released checkpoints.
//!
//! It exists so that the whole pipeline (loader, prompt, backbone, sampler, codec, file) runs on a
//! machine that has no weights and no network. It speaks noise.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use zonos_audio::{AtomicFile, FileError, ScratchFolder};

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
/// command looks for it, so `--model DIR` alone runs it. Files that are there already and hold the
/// same are left alone.
///
/// # Errors
/// [`TtsError::Demo`] naming the file or folder that cannot be written, or the file of one of those
/// names that holds something else; nothing is replaced.
pub fn write_demo_checkpoint(dir: impl AsRef<Path>) -> Result<DemoPaths, TtsError> {
    let dir = dir.as_ref();
    fs::create_dir_all(dir).map_err(|source| TtsError::Demo {
        path: dir.to_path_buf(),
        source,
    })?;
    fill(dir)
}

/// [`write_demo_checkpoint`] for a folder that is there. It is not made again when it is not: an
/// interrupt may have just removed it.
fn fill(dir: &Path) -> Result<DemoPaths, TtsError> {
    let failed = |path: &Path| {
        let path = path.to_path_buf();
        move |source| TtsError::Demo { path, source }
    };
    let mut missing = Vec::new();
    for (name, bytes) in FILES {
        let path = dir.join(name);
        match holds(&path, bytes).map_err(failed(&path))? {
            None => missing.push((path, bytes)),
            Some(true) => {}
            Some(false) => {
                return Err(failed(&path)(io::Error::other(
                    "it exists and holds something else; give another folder",
                )));
            }
        }
    }
    for (path, bytes) in missing {
        if let Some(folder) = path.parent().filter(|f| *f != dir && !f.exists()) {
            fs::create_dir(folder).map_err(failed(folder))?;
        }
        let written = AtomicFile::create(&path).and_then(|mut file| {
            file.write_all(bytes).map_err(|e| file.error(e))?;
            file.commit()
        });
        written.map_err(|error| match error {
            FileError::Create { source, .. } | FileError::Write { source, .. } => {
                failed(&path)(source)
            }
            other => failed(&path)(io::Error::other(other)),
        })?;
    }
    Ok(DemoPaths {
        model: dir.to_path_buf(),
        codec: dir.join("codec").join("weights.pth"),
    })
}

/// Whether `path` holds exactly `bytes`; `None` when nothing is there.
fn holds(path: &Path, bytes: &[u8]) -> io::Result<Option<bool>> {
    match fs::metadata(path) {
        Ok(meta) if meta.is_file() && meta.len() == bytes.len() as u64 => {
            Ok(Some(fs::read(path)? == bytes))
        }
        Ok(_) => Ok(Some(false)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// A demo model in a temporary folder, which goes away with this value.
#[derive(Debug)]
pub struct DemoCheckpoint {
    paths: DemoPaths,
    _dir: ScratchFolder,
}

impl DemoCheckpoint {
    /// Writes the demo model into a fresh temporary folder.
    ///
    /// # Errors
    /// The system's temporary folder cannot be written to.
    pub fn create() -> Result<Self, TtsError> {
        let dir = ScratchFolder::create("zonos-demo-").map_err(|source| TtsError::Demo {
            path: std::env::temp_dir(),
            source,
        })?;
        Ok(Self {
            paths: fill(dir.path())?,
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
    fn files_of_others_are_not_replaced() {
        let demo = DemoCheckpoint::create().unwrap();
        let params = demo.model().join("params.json");
        assert!(write_demo_checkpoint(demo.model()).is_ok());
        fs::write(&params, "{}").unwrap();
        fs::remove_file(demo.codec()).unwrap();
        let error = write_demo_checkpoint(demo.model()).unwrap_err().to_string();
        assert!(error.contains("params.json"), "{error}");
        assert_eq!(fs::read(&params).unwrap(), b"{}");
        assert!(!demo.codec().exists());
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
