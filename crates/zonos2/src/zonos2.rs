//! The front door: configuration, network and device together.

use std::path::Path;

use burn::tensor::{Device, Tensor};
use zonos_checkpoint::{Checkpoint, LoadOptions, LoadReport};
use zonos_kernels::Activations;
use zonos_nn::Tap;

use crate::Zonos2Config;
use crate::error::Zonos2Error;
use crate::load;
use crate::model::Backbone;
use crate::segment::{Packed, Sequence};

/// A loaded ZONOS2 backbone.
///
/// ```
/// use burn::tensor::Device;
/// use zonos_nn::Tap;
/// use zonos2::{Prompt, Sequence, Zonos2};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../validation/fixtures/zonos2/tiny");
/// let model = Zonos2::load(dir, &Device::flex())?;
/// let prompt = Prompt::builder(model.config()).text("Hello.").build()?;
/// let sequence = Sequence::from_prompt(&prompt, None)?;
/// let out = model.forward(&[sequence], &mut Tap::off())?;
/// assert_eq!(out.logits.dims(), [prompt.len(), 9, 1026]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Zonos2 {
    config: Zonos2Config,
    backbone: Backbone,
    device: Device,
}

/// What [`Zonos2::forward`] computes for each row of all sequences, one sequence after another.
#[derive(Debug, Clone)]
pub struct Forward {
    /// `[rows, dim]`, after the output norm
    pub final_hidden: Tensor<2>,
    /// `[rows, codebooks, entries]`, softly capped
    pub logits: Tensor<3>,
}

impl Zonos2 {
    /// Loads a checkpoint (file, directory or `hub:owner/name`) with the `params.json` beside it.
    ///
    /// # Errors
    ///
    /// When the checkpoint or its `params.json` cannot be read, or do not fit each other.
    pub fn load(path: impl AsRef<Path>, device: &Device) -> Result<Self, Zonos2Error> {
        let checkpoint = Checkpoint::open(path)?;
        let config = Self::config_of(&checkpoint)?;
        let (model, _) = Self::load_with(&checkpoint, config, &LoadOptions::default(), device)?;
        Ok(model)
    }

    /// The configuration in the `params.json` beside a checkpoint's weights, or in the metadata of a
    /// GGUF file.
    ///
    /// # Errors
    ///
    /// [`Zonos2Error::NoParams`] when there is none, [`Zonos2Error::Config`] when it is wrong.
    pub fn config_of(checkpoint: &Checkpoint) -> Result<Zonos2Config, Zonos2Error> {
        if let Some(config) = crate::gguf::config(checkpoint) {
            return config;
        }
        let params = checkpoint.sidecar("params.json")?.ok_or_else(|| {
            crate::gguf::unsaid(checkpoint)
                .unwrap_or_else(|| Zonos2Error::NoParams(checkpoint.path().to_owned()))
        })?;
        Ok(Zonos2Config::from_json(&params)?)
    }

    /// Loads the weights of an opened checkpoint for a configuration.
    ///
    /// Weights stay in the file's dtype, on a CPU device as views of the mapped file. For training,
    /// load with [`LoadOptions::training`] onto an autodiff device.
    ///
    /// # Errors
    ///
    /// [`Zonos2Error::Load`] listing every tensor that is missing, unknown or of another shape.
    pub fn load_with(
        checkpoint: &Checkpoint,
        config: Zonos2Config,
        options: &LoadOptions,
        device: &Device,
    ) -> Result<(Self, LoadReport), Zonos2Error> {
        let (backbone, report) = load::load(checkpoint, &config, options, device)?;
        let model = Self {
            config,
            backbone,
            device: device.clone(),
        };
        Ok((model, report))
    }

    /// The same model with quantised weights that meet activations as `activations` says; loading chooses
    /// by [`Activations::default_for`]. Weights that are plain numbers are not concerned.
    #[must_use]
    pub fn with_activations(mut self, activations: Activations) -> Self {
        self.backbone = self.backbone.with_activations(activations);
        self
    }

    /// The configuration.
    pub fn config(&self) -> &Zonos2Config {
        &self.config
    }

    /// The device that the weights are on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The network: a Burn module, to visit, train or save.
    pub fn backbone(&self) -> &Backbone {
        &self.backbone
    }

    /// The network, to replace its parameters.
    pub fn backbone_mut(&mut self) -> &mut Backbone {
        &mut self.backbone
    }

    /// Runs whole sequences, teacher-forced: every row sees the rows before it in its own sequence.
    ///
    /// # Errors
    ///
    /// When a sequence is malformed; see [`Sequence::validate`].
    pub fn forward(&self, sequences: &[Sequence], tap: &mut Tap) -> Result<Forward, Zonos2Error> {
        self.validate(sequences)?;
        let packed = Packed::sequences(sequences, self.config.row_width(), &self.device);
        let final_hidden = self.backbone.hidden(&packed, None, tap);
        let logits = self.backbone.logits(final_hidden.clone());
        tap.record("logits", &logits);
        Ok(Forward {
            final_hidden,
            logits,
        })
    }

    pub(crate) fn validate(&self, sequences: &[Sequence]) -> Result<(), Zonos2Error> {
        if sequences.is_empty() {
            return Err(Zonos2Error::Empty);
        }
        for (i, sequence) in sequences.iter().enumerate() {
            sequence.validate(i, &self.config)?;
        }
        Ok(())
    }
}
