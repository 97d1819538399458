//! What every reader hands to [`crate::Checkpoint`].

use serde_json::{Map, Value};

use crate::format::Format;
use crate::tensor::Entry;

/// The metadata key under which [`crate::convert`] keeps nested metadata and sidecar files in
/// containers whose own metadata are strings only.
pub(crate) const NESTED_KEY: &str = "zonos_checkpoint.json";

/// Something under a name of the checkpoint that is not a tensor this crate reads.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Skipped {
    /// The dotted name, spelled as tensor names are.
    pub name: String,
    /// The Python class or the dtype that stands there.
    pub what: String,
}

#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) format: Format,
    /// In file order.
    pub(crate) entries: Vec<Entry>,
    pub(crate) metadata: Value,
    /// Files such as `params.json` that a conversion packed into the container.
    pub(crate) sidecars: Map<String, Value>,
    pub(crate) skipped: Vec<Skipped>,
    pub(crate) notices: Vec<String>,
}

impl Opened {
    pub(crate) fn new(format: Format) -> Self {
        Self {
            format,
            entries: Vec::new(),
            metadata: Value::Object(Map::new()),
            sidecars: Map::new(),
            skipped: Vec::new(),
            notices: Vec::new(),
        }
    }

    /// Takes flat string metadata, undoing what [`pack_metadata`] did.
    pub(crate) fn set_flat_metadata(&mut self, mut flat: Map<String, Value>) {
        let nested = flat
            .get(NESTED_KEY)
            .and_then(Value::as_str)
            .and_then(|text| serde_json::from_str::<Value>(text).ok());
        if let Some(Value::Object(mut nested)) = nested {
            if let Some(Value::Object(sidecars)) = nested.remove("sidecars") {
                self.sidecars = sidecars;
            }
            if let Some(metadata @ Value::Object(_)) = nested.remove("metadata") {
                self.metadata = metadata;
                return;
            }
        }
        flat.remove(NESTED_KEY);
        self.metadata = Value::Object(flat);
    }
}

/// Flattens metadata for a container that stores strings: string values under their own keys, and
/// everything, nested values and sidecars included, as one JSON text under [`NESTED_KEY`].
pub(crate) fn pack_metadata(
    metadata: &Value,
    sidecars: &Map<String, Value>,
) -> Vec<(String, String)> {
    let mut flat = Vec::new();
    let mut plain = true;
    match metadata {
        Value::Object(map) => {
            for (key, value) in map {
                match value {
                    Value::String(text) => flat.push((key.clone(), text.clone())),
                    _ => plain = false,
                }
            }
        }
        _ => plain = false,
    }
    if !plain || !sidecars.is_empty() {
        let nested = serde_json::json!({ "metadata": metadata, "sidecars": sidecars });
        flat.push((NESTED_KEY.to_string(), nested.to_string()));
    }
    flat
}
