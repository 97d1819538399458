//! What a golden folder is, and which checkpoints it holds.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::audio;
use crate::error::{GoldenError, Result};
use crate::golden::GoldenFile;

/// A part of the project that has goldens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Component {
    /// The backbone: forward pass, batch, generation.
    Zonos2,
    /// Gradients of the backbone.
    Zonos2Gradients,
    /// The backbone in several quantised forms of GGUF.
    Gguf,
    /// The codec: decode, streams.
    Dac,
    /// Gradients of the codec.
    DacGradients,
    /// The speaker encoder: from WAV files and from mel frames to voice vectors.
    Ecapa,
    /// Gradients of the speaker encoder.
    EcapaGradients,
    /// Wav2Vec2-BERT: from samples to the output of every layer.
    W2vBert,
    /// Gradients of Wav2Vec2-BERT.
    W2vBertGradients,
    /// ZAC-1: decoder and streams, or encoder.
    Zac,
    /// Gradients of the ZAC-1 decoder.
    ZacGradients,
    /// The audio front ends: resampling, mel, spectra, audio files.
    Audio,
    /// Gradients of the audio front ends.
    AudioGradients,
}

impl Component {
    /// Every component.
    pub const ALL: [Self; 13] = [
        Self::Zonos2,
        Self::Zonos2Gradients,
        Self::Gguf,
        Self::Dac,
        Self::DacGradients,
        Self::Ecapa,
        Self::EcapaGradients,
        Self::W2vBert,
        Self::W2vBertGradients,
        Self::Zac,
        Self::ZacGradients,
        Self::Audio,
        Self::AudioGradients,
    ];

    /// The name in tables and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Zonos2 => "zonos2",
            Self::Zonos2Gradients => "zonos2-gradients",
            Self::Gguf => "gguf",
            Self::Dac => "dac",
            Self::DacGradients => "dac-gradients",
            Self::Ecapa => "ecapa",
            Self::EcapaGradients => "ecapa-gradients",
            Self::W2vBert => "w2v-bert",
            Self::W2vBertGradients => "w2v-bert-gradients",
            Self::Zac => "zac",
            Self::ZacGradients => "zac-gradients",
            Self::Audio => "audio",
            Self::AudioGradients => "audio-gradients",
        }
    }

    /// Whether a request for `self` also means folders of `other`: a model's name means its
    /// gradients too.
    pub fn includes(self, other: Self) -> bool {
        self == other
            || matches!(
                (self, other),
                (Self::Zonos2, Self::Zonos2Gradients)
                    | (Self::Dac, Self::DacGradients)
                    | (Self::Ecapa, Self::EcapaGradients)
                    | (Self::W2vBert, Self::W2vBertGradients)
                    | (Self::Zac, Self::ZacGradients)
                    | (Self::Audio, Self::AudioGradients)
            )
    }
}

impl fmt::Display for Component {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for Component {
    type Err = String;
    fn from_str(text: &str) -> std::result::Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|c| c.name() == text)
            .ok_or_else(|| {
                let names: Vec<_> = Self::ALL.iter().map(|c| c.name()).collect();
                format!(
                    "unknown component '{text}'; expected one of {}",
                    names.join(", ")
                )
            })
    }
}

/// Opens the golden file of `dir` and tells whose it is by its keys.
pub(crate) fn recognise(dir: &Path) -> Result<(Component, GoldenFile)> {
    for (name, gradients) in [("golden.safetensors", false), ("grad.safetensors", true)] {
        let path = dir.join(name);
        if !path.is_file() {
            continue;
        }
        let golden = GoldenFile::open(&path)?;
        let ends = |tail: &str| golden.keys().any(|k| k.ends_with(tail));
        let component = if gradients {
            if ends(".in.input_ids") {
                Some(Component::Zonos2Gradients)
            } else if golden
                .keys()
                .any(|k| k.contains("grad.quantizer.quantizers."))
            {
                Some(Component::DacGradients)
            } else if golden.keys().any(|k| k.contains(".grad.asp.tdnn.")) {
                Some(Component::EcapaGradients)
            } else if golden.keys().any(|k| k.starts_with("grad.codec.")) {
                Some(Component::ZacGradients)
            } else if golden.has("grad.feature_projection.projection.weight") {
                Some(Component::W2vBertGradients)
            } else if golden
                .keys()
                .any(|k| k.starts_with("istft.") || k.starts_with("resample."))
            {
                Some(Component::AudioGradients)
            } else {
                None
            }
        } else if golden.has("f16.plain.final_hidden") {
            Some(Component::Gguf)
        } else if ends(".input_ids") {
            Some(Component::Zonos2)
        } else if golden.has("codes") && (golden.has("wav_in") || golden.has("audio")) {
            Some(Component::Zac)
        } else if golden.has("codes") && golden.has("wav") {
            Some(Component::Dac)
        } else if ends(".emb") {
            Some(Component::Ecapa)
        } else if ends(".attention_mask") && ends(".hidden0") && !golden.has("codes") {
            Some(Component::W2vBert)
        } else {
            None
        };
        return match component {
            Some(component) => Ok((component, golden)),
            None => Err(GoldenError::Unrecognised {
                first_key: golden.keys().next().unwrap_or_default().to_owned(),
                path,
            }),
        };
    }
    if !dir.is_dir() {
        return Err(GoldenError::Io {
            path: dir.to_path_buf(),
            source: std::io::Error::new(std::io::ErrorKind::NotFound, "no such folder"),
        });
    }
    if is_audio_folder(dir) {
        let golden = GoldenFile::open_parts(dir, &audio::FILES)?;
        return Ok((Component::Audio, golden));
    }
    Err(GoldenError::NoGolden {
        dir: dir.to_path_buf(),
    })
}

/// Whether `dir` looks like a golden folder.
pub fn is_golden_folder(dir: &Path) -> bool {
    ["golden.safetensors", "grad.safetensors"]
        .iter()
        .any(|name| dir.join(name).is_file())
        || is_audio_folder(dir)
}

/// The audio front ends have a golden file for each, and no checkpoint.
fn is_audio_folder(dir: &Path) -> bool {
    audio::FILES
        .iter()
        .any(|(_, name)| dir.join(name).is_file())
}

/// Checkpoints of a folder: those the loaders read, and those that no loader of this build reads.
pub(crate) struct Containers {
    /// Paths inside the folder, the released layout first.
    pub(crate) usable: Vec<PathBuf>,
    /// Paths of other checkpoints, with the reason.
    pub(crate) ignored: Vec<(PathBuf, &'static str)>,
}

/// Finds checkpoints in `dir` and in its direct subfolders (a sharded or a Hugging Face folder).
pub(crate) fn containers(dir: &Path) -> Result<Containers> {
    let mut found = Containers {
        usable: Vec::new(),
        ignored: Vec::new(),
    };
    for entry in entries(dir)? {
        let name = PathBuf::from(entry.file_name().unwrap_or_default());
        if entry.is_dir() {
            if entries(&entry)?.iter().any(|f| is_weights(f)) {
                found.usable.push(name);
            }
        } else if is_weights(&entry) {
            found.usable.push(name);
        } else if is_overlay(&entry) {
            found
                .ignored
                .push((name, "holds only what differs from another file"));
        }
    }
    // The container that the original writes first: its run stands for all keys in a reader's mind.
    let rank = |p: &PathBuf| match p.to_str() {
        Some("model.pth" | "weights.pth") => 0,
        Some(name) if name.ends_with(".pth") || name.ends_with(".pt") => 1,
        _ => 2,
    };
    found
        .usable
        .sort_by(|a, b| rank(a).cmp(&rank(b)).then_with(|| a.cmp(b)));
    Ok(found)
}

fn entries(dir: &Path) -> Result<Vec<PathBuf>> {
    let io = |source| GoldenError::Io {
        path: dir.to_path_buf(),
        source,
    };
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(io)? {
        paths.push(entry.map_err(io)?.path());
    }
    paths.sort();
    Ok(paths)
}

fn extension(path: &Path) -> Option<&str> {
    path.extension().and_then(|e| e.to_str())
}

/// Part of a GGUF file, in the goldens of quantised backbones.
fn is_overlay(path: &Path) -> bool {
    let name = path.file_name().and_then(|n| n.to_str());
    name.is_some_and(|n| n.ends_with(".overlay.gguf"))
}

fn is_weights(path: &Path) -> bool {
    let name = path
        .file_name()
        .and_then(|n| n.to_str())
        .unwrap_or_default();
    path.is_file()
        && matches!(
            extension(path),
            Some("pth" | "pt" | "safetensors" | "bpk" | "gguf")
        )
        && !is_overlay(path)
        && !matches!(name, "golden.safetensors" | "grad.safetensors")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_original_container_comes_first() {
        let dir = tempfile::tempdir().unwrap();
        for name in [
            "folded.safetensors",
            "golden.safetensors",
            "weights.cuda.pth",
            "weights.pth",
            "dac.gguf",
            "q.overlay.gguf",
            "facts.json",
        ] {
            std::fs::write(dir.path().join(name), b"x").unwrap();
        }
        std::fs::create_dir(dir.path().join("hf")).unwrap();
        std::fs::write(dir.path().join("hf/model.safetensors"), b"x").unwrap();
        std::fs::create_dir(dir.path().join("notes")).unwrap();
        let found = containers(dir.path()).unwrap();
        let names: Vec<_> = found.usable.iter().map(|p| p.to_str().unwrap()).collect();
        assert_eq!(
            names,
            [
                "weights.pth",
                "weights.cuda.pth",
                "dac.gguf",
                "folded.safetensors",
                "hf"
            ]
        );
        assert_eq!(found.ignored.len(), 1);
    }

    #[test]
    fn a_model_name_means_its_gradients_too() {
        assert!(Component::Dac.includes(Component::DacGradients));
        assert!(!Component::DacGradients.includes(Component::Dac));
        assert!(!Component::Dac.includes(Component::Zonos2Gradients));
        assert_eq!("dac".parse(), Ok(Component::Dac));
        assert!("tac".parse::<Component>().is_err());
    }

    #[test]
    fn a_folder_without_goldens_says_so() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(
            recognise(dir.path()),
            Err(GoldenError::NoGolden { .. })
        ));
        assert!(matches!(
            recognise(&dir.path().join("absent")),
            Err(GoldenError::Io { .. })
        ));
    }
}
