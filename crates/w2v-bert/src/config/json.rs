//! What JSON tells, in the metadata of a ZAC-1 file or beside the weights.

use serde_json::{Map, Value};
use zonos_checkpoint::Checkpoint;

/// The format of ZAC-1 files that is read.
const FORMAT: &str = "zac-1/1";

/// Fields of the published configuration that say nothing about the layers that are used: training,
/// heads, adapters behind the last layer, vocabulary.
const IMMATERIAL: [&str; 34] = [
    "_name_or_path",
    "activation_dropout",
    "adapter_act",
    "adapter_kernel_size",
    "adapter_stride",
    "add_adapter",
    "apply_spec_augment",
    "architectures",
    "attention_dropout",
    "bos_token_id",
    "classifier_proj_size",
    "conformer_conv_dropout",
    "dtype",
    "eos_token_id",
    "feat_proj_dropout",
    "final_dropout",
    "hidden_dropout",
    "initializer_range",
    "layerdrop",
    "max_source_positions",
    "model_type",
    "num_adapter_layers",
    "output_hidden_size",
    "pad_token_id",
    "rotary_embedding_base",
    "torch_dtype",
    "transformers_version",
    "use_cache",
    "use_intermediate_ffn_before_adapter",
    "use_weighted_layer_sum",
    "vocab_size",
    "xvector_output_dim",
    "id2label",
    "label2id",
];

/// Beginnings of further such names.
const IMMATERIAL_BEGINNINGS: [&str; 3] = ["mask_", "ctc_", "tdnn_"];

/// Fields that are read.
const READ: [&str; 12] = [
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "feature_projection_input_dim",
    "conv_depthwise_kernel_size",
    "left_max_position_embeddings",
    "right_max_position_embeddings",
    "layer_norm_eps",
    "feature_layer",
    "hidden_act",
    "position_embeddings_type",
];

/// The configuration, and where it stands.
pub(super) struct Fields {
    source: &'static str,
    fields: Map<String, Value>,
}

impl Fields {
    pub(super) fn find(checkpoint: &Checkpoint) -> Result<Self, String> {
        const METADATA: &str = "teacher_config in the metadata";
        const SIDECAR: &str = "config.json";
        let inside = &checkpoint.metadata()["teacher_config"];
        let (source, value) = match inside {
            Value::Null => {
                let beside = checkpoint.sidecar(SIDECAR).map_err(|e| e.to_string())?;
                // Another model's configuration may lie beside a single file.
                let ours = beside.filter(|json| {
                    json["model_type"] == "wav2vec2-bert" || json.get("hidden_size").is_some()
                });
                (SIDECAR, ours.unwrap_or_else(|| Value::Object(Map::new())))
            }
            Value::String(text) => {
                let value =
                    serde_json::from_str(text).map_err(|e| format!("{METADATA}: not JSON: {e}"))?;
                (METADATA, value)
            }
            other => (METADATA, other.clone()),
        };
        match value {
            Value::Object(fields) => Ok(Self { source, fields }),
            other => Err(format!(
                "{source}: expected an object, found {}",
                kind(&other)
            )),
        }
    }

    pub(super) fn source(&self) -> &'static str {
        self.source
    }

    pub(super) fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }

    fn get(&self, name: &str) -> Option<&Value> {
        self.fields.get(name).filter(|value| !value.is_null())
    }

    /// A whole number, if the field is there.
    pub(super) fn whole(&self, name: &str) -> Result<Option<usize>, String> {
        self.get(name)
            .map(|value| {
                let number = value.as_u64().and_then(|n| usize::try_from(n).ok());
                number.ok_or_else(|| self.wrong(name, "a whole number", value))
            })
            .transpose()
    }

    /// A number, if the field is there.
    pub(super) fn number(&self, name: &str) -> Result<Option<f64>, String> {
        self.get(name)
            .map(|value| {
                let number = value.as_f64();
                number.ok_or_else(|| self.wrong(name, "a number", value))
            })
            .transpose()
    }

    /// Whether field `name`, if it is there, says what tensor `tensor` says.
    pub(super) fn agree(&self, name: &str, found: usize, tensor: &str) -> Result<(), String> {
        match self.whole(name)? {
            Some(told) if told != found => Err(format!(
                "{name}: {} says {told}, the shape of tensor {tensor} says {found}",
                self.source
            )),
            _ => Ok(()),
        }
    }

    /// Refuses structures that this crate does not compute.
    pub(super) fn check_structure(&self) -> Result<(), String> {
        for (name, known) in [
            ("hidden_act", &["swish", "silu"][..]),
            ("position_embeddings_type", &["relative_key"][..]),
        ] {
            let Some(value) = self.get(name) else {
                continue;
            };
            if !value.as_str().is_some_and(|text| known.contains(&text)) {
                return Err(self.wrong(name, &known.join(" or "), value));
            }
        }
        Ok(())
    }

    /// A remark on fields that nobody knows.
    pub(super) fn unknown(&self) -> Option<String> {
        let known = |name: &str| {
            READ.contains(&name)
                || IMMATERIAL.contains(&name)
                || IMMATERIAL_BEGINNINGS
                    .iter()
                    .any(|beginning| name.starts_with(beginning))
        };
        let names: Vec<&str> = self
            .fields
            .keys()
            .map(String::as_str)
            .filter(|name| !known(name))
            .collect();
        (!names.is_empty()).then(|| format!("{}: not known: {}", self.source, names.join(", ")))
    }

    fn wrong(&self, name: &str, expected: &str, found: &Value) -> String {
        format!(
            "{}: {name}: expected {expected}, found {found}",
            self.source
        )
    }
}

/// Refuses files of ZAC-1 that hold no teacher.
pub(super) fn check_kind(checkpoint: &Checkpoint) -> Result<(), String> {
    let metadata = checkpoint.metadata();
    let Some(format) = metadata["format"].as_str().filter(|f| f.starts_with("zac")) else {
        return Ok(());
    };
    if format != FORMAT {
        return Err(format!(
            "format: expected {FORMAT}, found {format}; it was written by another version"
        ));
    }
    match metadata["kind"].as_str() {
        Some("encoder") => Ok(()),
        Some(kind) => Err(format!(
            "kind: expected encoder, found {kind}; the teacher is in the encoder's file"
        )),
        None => Err("kind: expected encoder, found nothing".to_owned()),
    }
}

/// The padding value of `preprocessor_config.json`, if there is one. What else it says must be what
/// the front end does.
pub(super) fn padding_value(checkpoint: &Checkpoint, input: usize) -> Result<Option<f32>, String> {
    const FILE: &str = "preprocessor_config.json";
    // In a ZAC-1 file the front end is given; what lies beside it is not its own.
    if !checkpoint.metadata()["teacher_config"].is_null() {
        return Ok(None);
    }
    let json = checkpoint.sidecar(FILE).map_err(|e| e.to_string())?;
    let Some(json) =
        json.filter(|json| json["feature_extractor_type"] == "SeamlessM4TFeatureExtractor")
    else {
        return Ok(None);
    };
    for (name, expected) in [
        ("sampling_rate", 16_000),
        ("stride", 2),
        ("num_mel_bins", input / 2),
    ] {
        match &json[name] {
            Value::Null => {}
            found if found.as_f64() == Some(expected as f64) => {}
            found => {
                return Err(format!(
                    "{FILE}: {name}: expected {expected}, found {found}"
                ));
            }
        }
    }
    match &json["padding_value"] {
        Value::Null => Ok(None),
        found => match found.as_f64().filter(|value| value.is_finite()) {
            Some(value) => Ok(Some(value as f32)),
            None => Err(format!(
                "{FILE}: padding_value: expected a number, found {found}"
            )),
        },
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
