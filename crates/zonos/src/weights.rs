//! From `--model` and `--codec` to open checkpoints.

use std::path::{Path, PathBuf};

use zonos_checkpoint::{Checkpoint, LoadReport};

use crate::failure::Failure;
use crate::output;

/// Names under which the codec is looked for in the model's folder, in this order.
pub const CODEC_NAMES: [&str; 6] = [
    "codec",
    "dac",
    "dac.safetensors",
    "dac.pth",
    "dac.bpk",
    "weights_44khz_8kbps.pth",
];

/// What a command that speaks runs on.
#[derive(Debug, PartialEq, Eq)]
pub enum Source {
    /// The built-in demo model.
    Demo,
    /// Given weights.
    Given {
        /// Backbone: a path or `hub:` reference.
        model: String,
        /// Codec: a path or `hub:` reference.
        codec: String,
    },
}

impl Source {
    /// The demo when neither is given; otherwise both, the codec being found beside the model when
    /// it is not given.
    pub fn find(model: Option<&str>, codec: Option<&str>) -> Result<Self, Failure> {
        match (model, codec) {
            (None, None) => Ok(Self::Demo),
            (None, Some(codec)) => Err(Failure::usage(format!(
                "--codec {codec} is given without --model; give both, or neither for the demo model"
            ))),
            (Some(model), Some(codec)) => Ok(Self::Given {
                model: model.to_owned(),
                codec: codec.to_owned(),
            }),
            (Some(model), None) => {
                let codec = beside(model).ok_or_else(|| {
                    Failure::usage(format!(
                        "--model {model} is given without --codec, and no {} lies in its folder; give the DAC 44.1 kHz weights with --codec",
                        CODEC_NAMES.join(", ")
                    ))
                })?;
                Ok(Self::Given {
                    model: model.to_owned(),
                    codec: codec.to_string_lossy().into_owned(),
                })
            }
        }
    }
}

fn beside(model: &str) -> Option<PathBuf> {
    if model.starts_with("hub:") {
        return None;
    }
    let model = Path::new(model);
    let folder = if model.is_dir() {
        model
    } else {
        output::folder_of(model)
    };
    CODEC_NAMES
        .iter()
        .map(|name| folder.join(name))
        .find(|path| path.exists() && path != model)
}

/// Opens a checkpoint: reads headers, and downloads a `hub:` one that is not cached.
pub fn open(reference: &str, _quiet: bool) -> Result<Checkpoint, Failure> {
    Ok(Checkpoint::open(reference)?)
}

/// Says on stderr which weights are NaN or infinite. They are loaded all the same: a value that no
/// text reaches does no harm, and one that does stops the run with the frame and layer.
pub fn warn(report: &LoadReport) {
    for tensor in &report.non_finite {
        output::note(
            false,
            format_args!(
                "warning: {}: tensor {} holds {} NaN and {} infinite values; fetch or convert the file again",
                report.checkpoint, tensor.name, tensor.nan, tensor.infinite
            ),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_or_neither_or_a_codec_beside_the_model() {
        assert_eq!(Source::find(None, None).ok(), Some(Source::Demo));
        assert!(Source::find(None, Some("c")).is_err());
        assert!(Source::find(Some("hub:a/b"), None).is_err());

        let dir = tempfile::tempdir().unwrap();
        let model = dir.path().to_string_lossy().into_owned();
        assert!(Source::find(Some(&model), None).is_err());
        std::fs::create_dir(dir.path().join("dac")).unwrap();
        let Ok(Source::Given { codec, .. }) = Source::find(Some(&model), None) else {
            unreachable!("the codec folder must be found");
        };
        assert!(codec.ends_with("dac"));
    }
}
