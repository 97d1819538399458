//! Sizes of a speaker encoder, from whatever a checkpoint says about them.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use zonos_checkpoint::Checkpoint;

use crate::EcapaError;
use crate::load::PREFIX;

/// Sizes of a speaker encoder, under the names of its `config.json`.
///
/// The first entry of the three lists is the convolution that reads the mel bands, the last the one
/// that joins the blocks, and those between are the SE-Res2Net blocks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EcapaConfig {
    /// Mel bands of the input.
    pub mel_dim: usize,
    /// Length of the voice vector.
    pub enc_dim: usize,
    /// Channels that each stage gives; the last is the sum of the blocks' own.
    pub enc_channels: Vec<usize>,
    /// Taps of each stage's convolution.
    pub enc_kernel_sizes: Vec<usize>,
    /// Dilation of each stage's convolution.
    pub enc_dilations: Vec<usize>,
    /// Width inside the attention of the pooling.
    pub enc_attention_channels: usize,
    /// Groups that a Res2Net splits its channels into.
    pub enc_res2net_scale: usize,
    /// Width inside squeeze and excitation.
    pub enc_se_channels: usize,
    /// Samples a second of the audio that the mel bands are made of.
    pub sample_rate: usize,
}

/// Samples between two frames of the mel front end, whatever the model.
pub(crate) const HOP: usize = 256;
/// Samples of the front end's window.
pub(crate) const WINDOW: usize = 1024;
/// Samples that the front end mirrors at each end.
pub(crate) const MIRRORED: usize = (WINDOW - HOP) / 2;

impl EcapaConfig {
    /// The released encoder: 12,001,088 parameters, vectors of 2048.
    pub fn released() -> Self {
        Self {
            mel_dim: 128,
            enc_dim: 2048,
            enc_channels: vec![512, 512, 512, 512, 1536],
            enc_kernel_sizes: vec![5, 3, 3, 3, 1],
            enc_dilations: vec![1, 2, 3, 4, 1],
            enc_attention_channels: 128,
            enc_res2net_scale: 8,
            enc_se_channels: 128,
            sample_rate: 24_000,
        }
    }

    /// What fields left out of a section stand for.
    fn library() -> Self {
        Self {
            enc_dim: 1024,
            ..Self::released()
        }
    }

    /// Reads the configuration of an opened checkpoint: `config.json` beside the weights, or its
    /// section `speaker_encoder_config` in the folder of a whole text-to-speech model, or else the
    /// shapes of the tensors.
    ///
    /// Of a section, fields that are left out have the values that they have in the library that
    /// writes such files: the released ones, but vectors of 1024. Shapes tell everything but the dilations and the sample rate; those of the
    /// released model are taken where the number of stages is its own, and a warning is logged.
    ///
    /// # Errors
    ///
    /// [`EcapaError::Config`] names the field; also when the file holds no such encoder at all.
    pub fn from_checkpoint(checkpoint: &Checkpoint) -> Result<Self, EcapaError> {
        let of_gguf = crate::gguf::fields(checkpoint).map(crate::gguf::config);
        let found = match (of_gguf, checkpoint.sidecar("config.json")?) {
            (Some(found), _) => found,
            (_, Some(json)) if json.get("enc_channels").is_some() => Self::from_fields(&json, None),
            (_, Some(json)) if json["speaker_encoder_config"].is_object() => {
                Self::from_fields(&json["speaker_encoder_config"], Some(Self::library()))
            }
            _ => Self::from_shapes(checkpoint),
        };
        found
            .and_then(Self::checked)
            .map_err(|problem| EcapaError::Config {
                file: checkpoint.path().display().to_string(),
                problem,
            })
    }

    /// From JSON fields; other fields are ignored, and a missing one is `usual`'s.
    fn from_fields(json: &Value, usual: Option<Self>) -> Result<Self, String> {
        let mut fields = match usual {
            Some(usual) => serde_json::to_value(usual).map_err(|e| e.to_string())?,
            None => Value::Object(serde_json::Map::new()),
        };
        if let (Some(fields), Some(given)) = (fields.as_object_mut(), json.as_object()) {
            let given = given.iter().filter(|(_, value)| !value.is_null());
            fields.extend(given.map(|(name, value)| (name.clone(), value.clone())));
        }
        let number = |name: &str| {
            let value = fields.get(name).and_then(Value::as_u64);
            let value = value.and_then(|value| usize::try_from(value).ok());
            value.ok_or_else(|| wrong(&fields, name, "a whole number"))
        };
        let numbers = |name: &str| -> Result<Vec<usize>, String> {
            let list = fields.get(name).and_then(Value::as_array);
            let list = list.and_then(|list| {
                let whole = |v: &Value| v.as_u64().and_then(|v| usize::try_from(v).ok());
                list.iter().map(whole).collect()
            });
            list.ok_or_else(|| wrong(&fields, name, "a list of whole numbers"))
        };
        Ok(Self {
            mel_dim: number("mel_dim")?,
            enc_dim: number("enc_dim")?,
            enc_channels: numbers("enc_channels")?,
            enc_kernel_sizes: numbers("enc_kernel_sizes")?,
            enc_dilations: numbers("enc_dilations")?,
            enc_attention_channels: number("enc_attention_channels")?,
            enc_res2net_scale: number("enc_res2net_scale")?,
            enc_se_channels: number("enc_se_channels")?,
            sample_rate: number("sample_rate")?,
        })
    }

    fn from_shapes(checkpoint: &Checkpoint) -> Result<Self, String> {
        let shape = |name: &str| {
            let weight = format!("{name}.weight");
            let mut found = checkpoint
                .names()
                .filter(|n| n.strip_suffix(&weight).is_some_and(is_wrapper));
            found.find_map(|name| {
                let shape = &checkpoint.info(name)?.shape;
                <[usize; 3]>::try_from(shape.as_slice()).ok()
            })
        };
        let need = |name: &str| {
            shape(name).ok_or_else(|| {
                format!(
                    "no tensor {name}.weight of three axes: this is no ECAPA-TDNN speaker encoder"
                )
            })
        };
        let [first, mel_dim, taps] = need("blocks.0.conv")?;
        let (mut channels, mut kernels) = (vec![first], vec![taps]);
        while let Some([out, ..]) = shape(&format!("blocks.{}.tdnn1.conv", channels.len())) {
            let inner = format!("blocks.{}.res2net_block.blocks.0.conv", channels.len());
            channels.push(out);
            kernels.push(need(&inner)?[2]);
        }
        if channels.len() == 1 {
            need("blocks.1.tdnn1.conv")?;
        }
        let groups = (0..).map(|j| format!("blocks.1.res2net_block.blocks.{j}.conv"));
        let scale = 1 + groups.take_while(|name| shape(name).is_some()).count();
        let [joined, _, taps] = need("mfa.conv")?;
        channels.push(joined);
        kernels.push(taps);
        let released = Self::released();
        if channels.len() != released.enc_dilations.len() {
            return Err(format!(
                "shapes do not tell the dilations of {} stages (those of {} are known); put config.json beside the weights",
                channels.len(),
                released.enc_dilations.len()
            ));
        }
        tracing::warn!(
            "{}: no config.json beside it; dilations {:?} and {} Hz are taken from the released model",
            checkpoint.path().display(),
            released.enc_dilations,
            released.sample_rate
        );
        Ok(Self {
            mel_dim,
            enc_dim: need("fc")?[0],
            enc_channels: channels,
            enc_kernel_sizes: kernels,
            enc_attention_channels: need("asp.tdnn.conv")?[0],
            enc_res2net_scale: scale,
            enc_se_channels: need("blocks.1.se_block.conv1")?[0],
            ..released
        })
    }

    /// Refuses what no encoder can be, before anything is allocated by it.
    fn checked(self) -> Result<Self, String> {
        let within = |field: &str, value: usize, most: usize| {
            if (1..=most).contains(&value) {
                Ok(())
            } else {
                Err(format!("{field}: expected 1 to {most}, found {value}"))
            }
        };
        let stages = self.enc_channels.len();
        if !(3..=32).contains(&stages) {
            return Err(format!(
                "enc_channels: expected 3 to 32 entries, found {stages}"
            ));
        }
        for (field, list) in [
            ("enc_kernel_sizes", &self.enc_kernel_sizes),
            ("enc_dilations", &self.enc_dilations),
        ] {
            if list.len() != stages {
                return Err(format!(
                    "{field}: expected {stages} entries as in enc_channels, found {}",
                    list.len()
                ));
            }
            for &entry in list {
                within(field, entry, 64)?;
            }
        }
        within("mel_dim", self.mel_dim, 1 << 12)?;
        within("enc_dim", self.enc_dim, 1 << 16)?;
        within(
            "enc_attention_channels",
            self.enc_attention_channels,
            1 << 16,
        )?;
        within("enc_se_channels", self.enc_se_channels, 1 << 16)?;
        within("enc_res2net_scale", self.enc_res2net_scale, 1 << 10)?;
        within("sample_rate", self.sample_rate, 1_000_000)?;
        for &channels in &self.enc_channels {
            within("enc_channels", channels, 1 << 16)?;
        }
        if self.enc_res2net_scale < 2 {
            return Err("enc_res2net_scale: expected at least 2, found 1".to_owned());
        }
        for pair in self.enc_channels[..stages - 1].windows(2) {
            if pair[0] != pair[1] {
                return Err(format!(
                    "enc_channels: a block adds its input to its output, so {} and {} must be equal",
                    pair[0], pair[1]
                ));
            }
        }
        let width = self.width();
        if !width.is_multiple_of(self.enc_res2net_scale) {
            return Err(format!(
                "enc_channels: {width} cannot be split into enc_res2net_scale = {} equal groups",
                self.enc_res2net_scale
            ));
        }
        let (joined, sum) = (self.joined(), width * self.blocks());
        if joined != sum {
            return Err(format!(
                "enc_channels: the last entry must be the sum of the blocks' channels, {sum}; found {joined}"
            ));
        }
        Ok(self)
    }

    /// SE-Res2Net blocks.
    pub fn blocks(&self) -> usize {
        self.enc_channels.len() - 2
    }

    /// Channels of the blocks.
    pub(crate) fn width(&self) -> usize {
        self.enc_channels[0]
    }

    /// Channels of the joined blocks.
    pub(crate) fn joined(&self) -> usize {
        self.enc_channels[self.enc_channels.len() - 1]
    }

    /// The fewest frames the convolutions accept: each mirrors its input at both ends, which takes
    /// more frames than it mirrors.
    pub fn min_frames(&self) -> usize {
        let stages = self.enc_kernel_sizes.iter().zip(&self.enc_dilations);
        let mirrored = stages.map(|(taps, dilation)| (dilation * (taps - 1)).div_ceil(2));
        1 + mirrored.max().unwrap_or(0)
    }

    /// The fewest samples at [`sample_rate`](Self::sample_rate) that make
    /// [`min_frames`](Self::min_frames) and that the front end can mirror.
    pub fn min_samples(&self) -> usize {
        (self.min_frames() * HOP).max(MIRRORED + 1)
    }
}

/// Whether `text` is nothing, or what stands in front of the model's own names.
fn is_wrapper(text: &str) -> bool {
    text.is_empty()
        || text.ends_with(PREFIX)
        || ["module.", "_orig_mod.", "model."]
            .iter()
            .any(|wrapper| text.ends_with(wrapper))
}

fn wrong(fields: &Value, name: &str, expected: &str) -> String {
    let found = fields
        .get(name)
        .map_or("nothing".to_owned(), Value::to_string);
    format!("config.json: {name}: expected {expected}, found {found}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn released() -> Value {
        let mut json = serde_json::to_value(EcapaConfig::released()).unwrap();
        json["torch_dtype"] = json!("bfloat16");
        json["pad_mode"] = json!("reflect");
        json
    }

    fn read(json: &Value) -> Result<EcapaConfig, String> {
        EcapaConfig::from_fields(json, None).and_then(EcapaConfig::checked)
    }

    #[test]
    fn the_released_configuration() {
        let config = read(&released()).unwrap();
        assert_eq!(config, EcapaConfig::released());
        assert_eq!((config.blocks(), config.min_frames()), (3, 5));
        assert_eq!(config.min_samples(), 1280);
    }

    #[test]
    fn a_section_may_leave_fields_out() {
        let section = json!({"mel_dim": 80, "sample_rate": 24000, "model_type": "x"});
        let config = EcapaConfig::from_fields(&section, Some(EcapaConfig::library())).unwrap();
        assert_eq!((config.enc_dim, config.mel_dim), (1024, 80));
        assert!(read(&section).unwrap_err().contains("enc_dim"));
    }

    #[test]
    fn nonsense_is_refused_by_field() {
        for (field, value) in [
            ("mel_dim", json!(0)),
            ("mel_dim", json!("128")),
            ("enc_dim", json!(-1)),
            ("enc_dim", json!(u64::MAX)),
            ("enc_channels", json!([512, 1536])),
            ("enc_channels", json!([512, 512, 512, 512, 1535])),
            ("enc_channels", json!([512, 256, 512, 512, 1280])),
            ("enc_channels", json!([u64::MAX, 512, 512, 512, 1536])),
            ("enc_kernel_sizes", json!([5, 3, 3, 1])),
            ("enc_kernel_sizes", json!([5, 3, 3, 0, 1])),
            ("enc_dilations", json!([1, 2, 3, 4, 1_000_000])),
            ("enc_res2net_scale", json!(7)),
            ("enc_res2net_scale", json!(1)),
            ("enc_attention_channels", json!(null)),
            ("enc_se_channels", json!(0)),
            ("sample_rate", json!(0)),
        ] {
            let mut json = released();
            json[field] = value.clone();
            let error = read(&json).unwrap_err();
            assert!(error.contains(field), "{field} = {value}: {error}");
        }
    }
}
