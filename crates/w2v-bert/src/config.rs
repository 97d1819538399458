//! Sizes of a model: from the shapes of its tensors, and from JSON what shapes do not tell.

mod json;
mod shapes;

use serde::{Deserialize, Serialize};
use zonos_checkpoint::{Checkpoint, NameMap};

use crate::TeacherError;
pub(crate) use shapes::prefixes;

use json::Fields;
use shapes::Shapes;

/// Sizes of a model, under the names of the published `config.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TeacherConfig {
    /// Width of hidden states.
    pub hidden_size: usize,
    /// Layers in the checkpoint.
    pub num_hidden_layers: usize,
    /// Attention heads of a layer.
    pub num_attention_heads: usize,
    /// Width inside the feed-forward blocks.
    pub intermediate_size: usize,
    /// Width of input features: two frames of filterbank bands.
    pub feature_projection_input_dim: usize,
    /// Taps of the depthwise convolution.
    pub conv_depthwise_kernel_size: usize,
    /// Distance to the left up to which positions differ.
    pub left_max_position_embeddings: usize,
    /// Distance to the right up to which positions differ.
    pub right_max_position_embeddings: usize,
    /// Added to variances.
    pub layer_norm_eps: f64,
    /// The layer whose output is the feature, counted from 1; 0 is the projected input. Layers after
    /// it are not needed.
    pub feature_layer: usize,
    /// What fills the second half of the last token when the number of frames is odd; that token is
    /// masked.
    pub padding_value: f32,
}

/// What the projection of the input is called, behind any prefix: every model of this kind has it.
const PROJECTION: &str = "feature_projection.projection.weight";

impl TeacherConfig {
    /// The released model with the 16 layers that ZAC-1 keeps of it: 387,050,816 values.
    pub fn released() -> Self {
        Self {
            hidden_size: 1024,
            num_hidden_layers: 16,
            num_attention_heads: 16,
            intermediate_size: 4096,
            feature_projection_input_dim: 160,
            conv_depthwise_kernel_size: 31,
            left_max_position_embeddings: 64,
            right_max_position_embeddings: 8,
            layer_norm_eps: 1e-5,
            feature_layer: 16,
            padding_value: 1.0,
        }
    }

    /// Reads the configuration of an opened checkpoint, and remarks on it.
    ///
    /// Sizes are those of the tensors. JSON adds what they do not tell, and must agree with them where
    /// it speaks of them: `teacher_config` in the metadata of a ZAC-1 encoder file, or `config.json`
    /// beside the weights with, if it is there, `preprocessor_config.json`. Fields left out have the
    /// released values, `feature_layer` the number of layers.
    ///
    /// # Errors
    ///
    /// [`TeacherError::Config`] names the field and both sources; also when the file holds no such
    /// model, and when it is another file of ZAC-1.
    pub fn from_checkpoint(checkpoint: &Checkpoint) -> Result<(Self, Vec<String>), TeacherError> {
        Self::from_mapped(checkpoint, &NameMap::new())
    }

    /// As [`from_checkpoint`](Self::from_checkpoint), of a file with names of its own: `names` has the
    /// rules to the published ones, which may keep a prefix.
    ///
    /// # Errors
    ///
    /// As [`from_checkpoint`](Self::from_checkpoint).
    pub fn from_mapped(
        checkpoint: &Checkpoint,
        names: &NameMap,
    ) -> Result<(Self, Vec<String>), TeacherError> {
        let mut notes = Vec::new();
        let config = Self::read(checkpoint, names, &mut notes)
            .and_then(Self::checked)
            .map_err(|problem| TeacherError::Config {
                file: checkpoint.path().display().to_string(),
                problem,
            })?;
        for note in &notes {
            tracing::warn!("{}: {note}", checkpoint.path().display());
        }
        Ok((config, notes))
    }

    fn read(
        checkpoint: &Checkpoint,
        names: &NameMap,
        notes: &mut Vec<String>,
    ) -> Result<Self, String> {
        json::check_kind(checkpoint)?;
        let shapes = Shapes::find(checkpoint, names)?;
        let fields = Fields::find(checkpoint)?;
        fields.check_structure()?;
        notes.extend(fields.unknown());
        let released = Self::released();

        let [hidden_size, input] = shapes.matrix(PROJECTION)?;
        let name = shapes.shown(PROJECTION);
        fields.agree("hidden_size", hidden_size, &name)?;
        fields.agree("feature_projection_input_dim", input, &name)?;
        let layers = shapes.layers()?;
        let first = |name: &str| format!("encoder.layers.0.{name}");
        let name = first("ffn1.intermediate_dense.weight");
        let [intermediate_size, _] = shapes.matrix(&name)?;
        fields.agree("intermediate_size", intermediate_size, &shapes.shown(&name))?;
        let name = first("conv_module.depthwise_conv.weight");
        let [_, _, taps] = shapes.of(&name)?;
        fields.agree("conv_depthwise_kernel_size", taps, &shapes.shown(&name))?;
        let table = first("self_attn.distance_embedding.weight");
        let [rows, head] = shapes.matrix(&table)?;
        let table = shapes.shown(&table);
        if head == 0 || !hidden_size.is_multiple_of(head) {
            return Err(format!(
                "tensor {table} [{rows}, {head}]: {head} is no head of {hidden_size} values"
            ));
        }
        let heads = hidden_size / head;
        fields.agree("num_attention_heads", heads, &table)?;
        let (left, right) = distances(&fields, rows, &table)?;

        let feature_layer = fields.whole("feature_layer")?;
        let told = fields.whole("num_hidden_layers")?;
        match (told, feature_layer) {
            (Some(told), _) if told == layers => {}
            (None, _) => {}
            // A file that was cut behind the layer that it is used for.
            (Some(told), Some(feature)) if feature <= layers && layers < told => {
                notes.push(format!(
                    "{}: num_hidden_layers is {told}, the file has {layers}",
                    fields.source()
                ));
            }
            (Some(told), _) => {
                return Err(format!(
                    "num_hidden_layers: {} says {told}, the file has tensors of {layers} layers",
                    fields.source()
                ));
            }
        }
        if fields.is_empty() {
            notes.push(format!(
                "no config.json beside it and no teacher_config in it: distances -{left} to {right}, \
                 eps {:e} and the use of the last layer are taken for granted",
                released.layer_norm_eps
            ));
        }
        Ok(Self {
            hidden_size,
            num_hidden_layers: layers,
            num_attention_heads: heads,
            intermediate_size,
            feature_projection_input_dim: input,
            conv_depthwise_kernel_size: taps,
            left_max_position_embeddings: left,
            right_max_position_embeddings: right,
            layer_norm_eps: fields
                .number("layer_norm_eps")?
                .unwrap_or(released.layer_norm_eps),
            feature_layer: feature_layer.unwrap_or(layers),
            padding_value: json::padding_value(checkpoint, input)?
                .unwrap_or(released.padding_value),
        })
    }

    /// Refuses what no model can be, before anything is allocated by it.
    pub(crate) fn checked(self) -> Result<Self, String> {
        let within = |field: &str, value: usize, least: usize, most: usize| {
            if (least..=most).contains(&value) {
                Ok(())
            } else {
                Err(format!(
                    "{field}: expected {least} to {most}, found {value}"
                ))
            }
        };
        within("hidden_size", self.hidden_size, 1, 1 << 16)?;
        within("num_hidden_layers", self.num_hidden_layers, 1, 1 << 10)?;
        within("intermediate_size", self.intermediate_size, 1, 1 << 18)?;
        let input = self.feature_projection_input_dim;
        within("feature_projection_input_dim", input, 2, 1 << 12)?;
        if !input.is_multiple_of(2) {
            return Err(format!(
                "feature_projection_input_dim: expected two frames of equal width, found {input}"
            ));
        }
        let taps = self.conv_depthwise_kernel_size;
        within("conv_depthwise_kernel_size", taps, 1, 1 << 12)?;
        let heads = self.num_attention_heads;
        within("num_attention_heads", heads, 1, self.hidden_size)?;
        if !self.hidden_size.is_multiple_of(heads) {
            return Err(format!(
                "num_attention_heads: hidden_size = {} cannot be split into {heads} heads",
                self.hidden_size
            ));
        }
        for (field, distance) in [
            (
                "left_max_position_embeddings",
                self.left_max_position_embeddings,
            ),
            (
                "right_max_position_embeddings",
                self.right_max_position_embeddings,
            ),
        ] {
            within(field, distance, 0, 1 << 16)?;
        }
        within(
            "feature_layer",
            self.feature_layer,
            0,
            self.num_hidden_layers,
        )?;
        let eps = self.layer_norm_eps;
        // Refuses NaN, too.
        if !(eps > 0.0 && eps < 1.0) {
            return Err(format!("layer_norm_eps: expected 0 to 1, found {eps}"));
        }
        Ok(self)
    }

    /// Filterbank bands of a frame.
    pub fn bands(&self) -> usize {
        self.feature_projection_input_dim / 2
    }

    /// Width of an attention head.
    pub(crate) fn head(&self) -> usize {
        self.hidden_size / self.num_attention_heads
    }

    /// Rows of the table of distances.
    pub(crate) fn distances(&self) -> usize {
        self.left_max_position_embeddings + self.right_max_position_embeddings + 1
    }
}

/// How far a table of `rows` distances reaches to the left and to the right.
fn distances(fields: &Fields, rows: usize, table: &str) -> Result<(usize, usize), String> {
    let released = TeacherConfig::released();
    let left = fields.whole("left_max_position_embeddings")?;
    let right = fields.whole("right_max_position_embeddings")?;
    let usual = (
        released.left_max_position_embeddings,
        released.right_max_position_embeddings,
    );
    let (left, right) = match (left, right) {
        (Some(left), Some(right)) => (left, right),
        (Some(left), None) => (left, rows.saturating_sub(left.saturating_add(1))),
        (None, Some(right)) => (rows.saturating_sub(right.saturating_add(1)), right),
        (None, None) => usual,
    };
    if left.checked_add(right).and_then(|sum| sum.checked_add(1)) == Some(rows) {
        return Ok((left, right));
    }
    Err(format!(
        "left_max_position_embeddings, right_max_position_embeddings: {} says {left} and {right}, \
         tensor {table} has {rows} rows, expected {}",
        fields.source(),
        left.saturating_add(right).saturating_add(1)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_released_sizes_hold() {
        let config = TeacherConfig::released().checked().unwrap();
        assert_eq!(
            (config.bands(), config.head(), config.distances()),
            (80, 64, 73)
        );
        let specs = crate::tensor_specs(&config, 16);
        let values: usize = specs
            .iter()
            .map(|spec| spec.shape.iter().product::<usize>())
            .sum();
        // And `masked_spec_embed`, of 1024 values, which only training reads.
        assert_eq!((specs.len() + 1, values + 1024), (517, 387_050_816));
    }

    type Change = fn(&mut TeacherConfig);

    #[test]
    fn nonsense_is_refused_by_field() {
        let released = TeacherConfig::released;
        let cases: [(&str, Change); 9] = [
            ("hidden_size", |c| c.hidden_size = 0),
            ("num_hidden_layers", |c| c.num_hidden_layers = usize::MAX),
            ("intermediate_size", |c| c.intermediate_size = usize::MAX),
            ("num_attention_heads", |c| c.num_attention_heads = 5),
            ("feature_projection_input_dim", |c| {
                c.feature_projection_input_dim = 161
            }),
            ("conv_depthwise_kernel_size", |c| {
                c.conv_depthwise_kernel_size = 0
            }),
            ("left_max_position_embeddings", |c| {
                c.left_max_position_embeddings = usize::MAX
            }),
            ("layer_norm_eps", |c| c.layer_norm_eps = f64::NAN),
            ("feature_layer", |c| c.feature_layer = 17),
        ];
        for (field, change) in cases {
            let mut config = released();
            change(&mut config);
            let error = config.checked().unwrap_err();
            assert!(error.contains(field), "{field}: {error}");
        }
    }
}
