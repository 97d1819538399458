//! From `--model` and `--codec` to open checkpoints.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use burn::tensor::Device;
use zonos_checkpoint::hub::Hub;
use zonos_checkpoint::{
    Checkpoint, FileBytes, LoadOptions, LoadReport, ModelKind, OpenOptions, TensorInfo,
};
use zonos2::{ConfigError, Zonos2, Zonos2Config, Zonos2Error};

use crate::failure::Failure;
use crate::output;
use crate::progress::ByteBar;

/// Names under which the codec is looked for in the model's folder, in this order.
pub(crate) const CODEC_NAMES: [&str; 8] = [
    "codec",
    "dac",
    // As the C++ programs call it.
    "dac.gguf",
    "dac.safetensors",
    "dac.pth",
    "dac.bpk",
    "weights_44khz_8kbps.pth",
    // As the Python package of the codec calls it.
    "weights_44khz_8kbps_0.0.1.pth",
];

/// Where the codec can be had.
pub(crate) const CODEC_HUB: &str = "hub:descript/dac_44khz";

/// What a command that speaks runs on.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Source {
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
    pub(crate) fn find(model: Option<&str>, codec: Option<&str>) -> Result<Self, Failure> {
        let given = |name: Option<&'_ str>| name.filter(|name| !name.is_empty()).map(str::to_owned);
        match (given(model).as_deref(), given(codec).as_deref()) {
            (None, None) => Ok(Self::Demo),
            (None, Some(codec)) => Err(Failure::usage(lonely_codec(
                codec,
                std::env::var("ZONOS_CODEC").ok().as_deref(),
            ))),
            (Some(model), Some(codec)) => Ok(Self::Given {
                model: model.to_owned(),
                codec: codec.to_owned(),
            }),
            (Some(model), None) => {
                if !model.starts_with("hub:") && !Path::new(model).exists() {
                    return Err(Failure::failed(format!("--model {model} does not exist")));
                }
                let codec = beside(model, &CODEC_NAMES).ok_or_else(|| {
                    let name = Path::new(model).file_name().and_then(|name| name.to_str());
                    Failure::usage(if name.is_some_and(|name| CODEC_NAMES.contains(&name)) {
                        format!(
                            "--model {model} has the name of a codec; give the ZONOS2 weights with --model, and this file with --codec"
                        )
                    } else if model.starts_with("hub:") {
                        format!(
                            "--model {model} is given without --codec, and beside a hub: id none is looked for; give the DAC 44.1 kHz weights too, --codec {CODEC_HUB}"
                        )
                    } else {
                        format!(
                            "--model {model} is given without --codec, and no {} lies in its folder; give the DAC 44.1 kHz weights with --codec, such as {CODEC_HUB}",
                            CODEC_NAMES.join(", ")
                        )
                    })
                })?;
                Ok(Self::Given {
                    model: model.to_owned(),
                    codec: codec.to_string_lossy().into_owned(),
                })
            }
        }
    }
}

/// The complaint about a codec without a model. Who set a variable long ago looks for no flag.
fn lonely_codec(codec: &str, variable: Option<&str>) -> String {
    let said = if variable == Some(codec) {
        format!("the environment variable ZONOS_CODEC is set to {codec}, and")
    } else {
        format!("--codec {codec} is given, and")
    };
    format!("{said} neither --model nor ZONOS_MODEL is; give both, or neither for the demo model")
}

/// The first of `names` in the folder of a model.
pub(crate) fn beside(model: &str, names: &[&str]) -> Option<PathBuf> {
    if model.starts_with("hub:") {
        return None;
    }
    let model = Path::new(model);
    let folder = if model.is_dir() {
        model
    } else {
        output::folder_of(model)
    };
    names
        .iter()
        .map(|name| folder.join(name))
        .find(|path| path.exists() && path != model)
}

/// The bytes of a file that is no checkpoint.
pub(crate) fn file_bytes(path: &Path) -> Result<FileBytes, Failure> {
    if !path.exists() {
        return Err(Failure::failed(format!(
            "{}: no such file; check its name and folder",
            path.display()
        )));
    }
    Ok(FileBytes::open(path)?)
}

/// Opens a checkpoint: reads headers, and downloads a `hub:` one that is not cached, with a bar.
pub(crate) fn open(reference: &str, quiet: bool) -> Result<Checkpoint, Failure> {
    open_file(reference, None, quiet)
}

/// As [`open`]; of a folder or repository that holds several checkpoints, the file `name`.
pub(crate) fn open_file(
    reference: &str,
    name: Option<&str>,
    quiet: bool,
) -> Result<Checkpoint, Failure> {
    let options = OpenOptions {
        file: name.map(str::to_owned),
        ..OpenOptions::default()
    };
    if !reference.starts_with("hub:") {
        return Ok(Checkpoint::open_with(reference, &options)?);
    }
    let bar = Arc::new(ByteBar::new(quiet));
    let shown = Arc::clone(&bar);
    let hub = Hub::from_env().on_progress(Arc::new(move |progress| {
        shown.at(&progress.file, progress.done, progress.total);
    }));
    let options = OpenOptions {
        hub: Some(hub),
        ..options
    };
    let opened = Checkpoint::open_with(reference, &options);
    bar.done();
    Ok(opened?)
}

/// Opens a backbone and reads its parameters; its weights stay untouched.
pub(crate) fn open_backbone(
    reference: &str,
    quiet: bool,
) -> Result<(Checkpoint, Zonos2Config), Failure> {
    let checkpoint = open_as(reference, ModelKind::Zonos2, quiet)?;
    let config = Zonos2::config_of(&checkpoint).map_err(|error| match error {
        Zonos2Error::Config(error @ ConfigError::Metadata { .. }) => {
            Failure::failed(error.to_string())
        }
        // These come without their file.
        Zonos2Error::Config(error) => Failure::failed(format!(
            "params.json of {}: {error}",
            checkpoint.path().display()
        )),
        other => other.into(),
    })?;
    Ok((checkpoint, config))
}

/// Opens a codec; its weights stay untouched.
pub(crate) fn open_codec(reference: &str, quiet: bool) -> Result<Checkpoint, Failure> {
    open_as(reference, ModelKind::Dac, quiet)
}

/// Opens a speaker encoder; its weights stay untouched.
pub(crate) fn open_speaker_encoder(reference: &str, quiet: bool) -> Result<Checkpoint, Failure> {
    open_as(reference, ModelKind::Ecapa, quiet)
}

/// As [`open_codec`], where `reference` may also be the folder of a model that its codec lies in.
pub(crate) fn find_codec(reference: &str, quiet: bool) -> Result<Checkpoint, Failure> {
    let inside = Path::new(reference)
        .is_dir()
        .then(|| beside(reference, &CODEC_NAMES))
        .flatten();
    match inside {
        // A folder that is a codec itself may well hold something of such a name.
        Some(inside)
            if !Checkpoint::open(reference).is_ok_and(|c| c.model_kind() == ModelKind::Dac) =>
        {
            open_codec(&inside.to_string_lossy(), quiet)
        }
        _ => open_codec(reference, quiet),
    }
}

/// Opens a checkpoint, says what it leaves out, and refuses one of another model by name. One that
/// looks like none goes on: its loader says what is missing.
fn open_as(reference: &str, wanted: ModelKind, quiet: bool) -> Result<Checkpoint, Failure> {
    let checkpoint = open(reference, quiet)?;
    for notice in checkpoint.notices() {
        output::note(
            quiet,
            format_args!("note: {}: {notice}", checkpoint.path().display()),
        );
    }
    let found = checkpoint.model_kind();
    if found == wanted || found == ModelKind::Unknown {
        return Ok(checkpoint);
    }
    Err(Failure::failed(format!(
        "{}: holds the weights of another model ({found}); expected those of: {wanted}",
        checkpoint.path().display()
    )))
}

/// A failure of running `model`, such as logits that are no numbers, with its name; others as they are.
pub(crate) fn of_model(failure: Failure, model: &str) -> Failure {
    match failure {
        Failure::Failed(error) if error.is::<Zonos2Error>() => {
            Failure::Failed(error.context(model.to_owned()))
        }
        other => other,
    }
}

/// Which tensors are quantised, if any: how many, of which types, the first of them.
pub(crate) fn quantised(checkpoint: &Checkpoint) -> Option<String> {
    let mut types = BTreeSet::new();
    let quantised = checkpoint.names().filter(|name| {
        let info = checkpoint.info(name).filter(|info| info.blocks.is_some());
        types.extend(info.map(TensorInfo::type_name));
        info.is_some()
    });
    let (names, count) = first_names(quantised)?;
    let types: Vec<String> = types.into_iter().collect();
    let tensors = if count == 1 {
        "tensor is"
    } else {
        "tensors are"
    };
    Some(format!(
        "{}: {count} {tensors} quantised ({}; {names})",
        checkpoint.path().display(),
        types.join(", ")
    ))
}

/// Says on stderr, and returns for reports, that `made` come of a model that lost precision.
pub(crate) fn warn_quantised(checkpoint: &Checkpoint, made: &str) -> Option<String> {
    let quantised = quantised(checkpoint)?;
    let told = format!(
        "{quantised}: {made} of a model that has lost precision tell less of the original; take the unquantised file"
    );
    output::note(false, format_args!("warning: {told}"));
    Some(told)
}

/// Loads the weights of an opened backbone, and says which of them are no numbers.
pub(crate) fn load_backbone(
    checkpoint: &Checkpoint,
    config: Zonos2Config,
    device: &Device,
) -> Result<Zonos2, Failure> {
    let (model, report) = Zonos2::load_with(checkpoint, config, &LoadOptions::default(), device)?;
    warn(&report, false);
    Ok(model)
}

/// Says on stderr how many weights are NaN or infinite. They are loaded all the same: a value that no
/// text reaches does no harm, and one that does stops the run with the frame and layer.
pub(crate) fn warn(report: &LoadReport, silent: bool) {
    let Some((names, count)) = first_names(report.non_finite.iter().map(|t| t.name.as_str()))
    else {
        return;
    };
    output::note(
        silent,
        format_args!(
            "warning: {}: {count} tensors hold NaN or infinite values ({names}); `zonos inspect {} --check` lists them; fetch or convert the file again",
            report.checkpoint, report.checkpoint
        ),
    );
}

/// The first three names and how many there are; `None` when there is none.
pub(crate) fn first_names<'a>(names: impl Iterator<Item = &'a str>) -> Option<(String, usize)> {
    let names: Vec<&str> = names.collect();
    let (head, rest) = names.split_at(names.len().min(3));
    let more = if rest.is_empty() { "" } else { ", .." };
    (!names.is_empty()).then(|| (head.join(", ") + more, names.len()))
}

/// Refuses decoded samples that are no numbers: nothing plays them, and the weights are to blame.
pub(crate) fn check_audio(samples: &[f32], codec: &Checkpoint) -> Result<(), Failure> {
    match samples.iter().position(|x| !x.is_finite()) {
        None => Ok(()),
        Some(at) => Err(bad_audio(at, samples[at], codec)),
    }
}

/// The failure of [`check_audio`], for sample `at`.
pub(crate) fn bad_audio(at: usize, value: f32, codec: &Checkpoint) -> Failure {
    let name = codec.path().display();
    Failure::failed(format!(
        "{name}: decodes to audio that is not finite (sample {at} is {value}), so nothing more was written; `zonos inspect {name} --check` tells whether the weights hold NaN or infinity"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_names_stand_for_all() {
        assert_eq!(first_names([].into_iter()), None);
        assert_eq!(
            first_names(["a", "b"].into_iter()),
            Some(("a, b".to_owned(), 2))
        );
        assert_eq!(
            first_names(["a", "b", "c", "d"].into_iter()),
            Some(("a, b, c, ..".to_owned(), 4))
        );
    }

    #[test]
    fn both_or_neither_or_a_codec_beside_the_model() {
        assert_eq!(Source::find(None, None).ok(), Some(Source::Demo));
        assert_eq!(Source::find(Some(""), Some("")).ok(), Some(Source::Demo));
        assert!(Source::find(None, Some("c")).is_err());
        assert!(matches!(
            Source::find(Some("/gone"), None),
            Err(Failure::Failed(_))
        ));
        assert!(Source::find(Some("hub:a/b"), None).is_err());

        let flag = lonely_codec("c", None);
        assert!(
            flag.contains("--codec c is given") && flag.contains("--model"),
            "{flag}"
        );
        assert_eq!(lonely_codec("c", Some("d")), flag);
        let variable = lonely_codec("c", Some("c"));
        assert!(variable.contains("ZONOS_CODEC is set to c"), "{variable}");

        let dir = tempfile::tempdir().unwrap();
        let model = dir.path().to_string_lossy().into_owned();
        assert!(Source::find(Some(&model), None).is_err());
        let published = dir.path().join("weights_44khz_8kbps_0.0.1.pth");
        std::fs::write(&published, "").unwrap();
        let found = Source::find(Some(&model), None).ok();
        let codec = published.to_string_lossy().into_owned();
        assert_eq!(
            found,
            Some(Source::Given {
                model: model.clone(),
                codec
            })
        );
        std::fs::create_dir(dir.path().join("dac")).unwrap();
        let Ok(Source::Given { codec, .. }) = Source::find(Some(&model), None) else {
            unreachable!("the codec folder must be found");
        };
        assert!(codec.ends_with("dac"));
    }
}
