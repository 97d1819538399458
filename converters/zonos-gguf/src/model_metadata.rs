//! The metadata of a model, in the types that ggml's converters give it.

use crate::{Array, Metadata, Value};

/// Puts the metadata of a model together: its architecture and name, then fields whose keys begin with the
/// architecture.
///
/// ```
/// use zonos_gguf::{ModelMetadata, Value};
///
/// let made = ModelMetadata::new("dac", "a codec").count("latent_dim", 64).done();
/// assert_eq!(made.get("general.architecture"), Some(&Value::String("dac".into())));
/// assert_eq!(made.get("dac.latent_dim"), Some(&Value::U32(64)));
/// ```
#[derive(Clone, Debug)]
pub struct ModelMetadata {
    architecture: &'static str,
    entries: Metadata,
}

impl ModelMetadata {
    /// `general.architecture` and `general.name`.
    pub fn new(architecture: &'static str, name: &str) -> Self {
        let mut entries = Metadata::new();
        for (key, text) in [("architecture", architecture), ("name", name)] {
            entries.set(format!("general.{key}"), Value::String(text.into()));
        }
        Self {
            architecture,
            entries,
        }
    }

    /// A size, as u32.
    #[must_use]
    pub fn count(self, key: &str, value: usize) -> Self {
        self.field(key, Value::U32(value as u32))
    }

    /// A number, as f32.
    #[must_use]
    pub fn number(self, key: &str, value: f64) -> Self {
        self.field(key, Value::F32(value as f32))
    }

    /// Sizes, as an array of i32.
    #[must_use]
    pub fn counts(self, key: &str, values: &[usize]) -> Self {
        let values: Vec<i32> = values.iter().map(|&v| v as i32).collect();
        self.field(key, Value::Array(Array::of_i32(&values)))
    }

    /// What was put together.
    pub fn done(self) -> Metadata {
        self.entries
    }

    fn field(mut self, key: &str, value: Value) -> Self {
        self.entries
            .set(format!("{}.{key}", self.architecture), value);
        self
    }
}
