//! From checkpoints of every layout to the model.
//!
//! Names are those of the original `state_dict`. The transformers layout is renamed to them; weight
//! normalisation is recognised in both spellings, or may have been folded into the weights.

use std::path::Path;

use burn::tensor::{DType, Device, Tensor};
use zonos_checkpoint::{
    Checkpoint, LoadError, LoadOptions, LoadReport, Loader, NameMap, TensorSpec, WeightNormed, plan,
};
use zonos_nn::{Conv1d, ConvTranspose1d, ConvWeight, Snake, StridedConv1d};

use crate::encoder::{Encoder, EncoderBlock};
use crate::model::{Decoder, DecoderBlock, ResidualUnit};
use crate::quantizer::{Quantizer, VectorQuantizer};
use crate::window::{DILATIONS, LAST_TAPS, TAPS};
use crate::{Dac, DacConfig, DacError, EncoderConfig, gguf};

/// The sum of the projections' biases, of files with projected codebooks.
pub(crate) const PROJECTED_BIAS: &str = "quantizer.bias";

/// How much of a codec to load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DacParts {
    /// Everything that the file holds.
    #[default]
    Whole,
    /// What decoding needs. The encoder's tensors, 22 of the 77 million values of the 44.1 kHz model,
    /// are not read.
    Decoder,
}

impl Dac {
    /// Opens and loads a checkpoint: a file, a folder or a hub id; weight norm is folded. The encoder
    /// is loaded where the file has one.
    ///
    /// # Errors
    ///
    /// As [`Dac::load_with`], and when nothing can be opened there.
    pub fn load(path: impl AsRef<Path>, device: &Device) -> Result<Self, DacError> {
        let checkpoint = Checkpoint::open(path)?;
        let (dac, _) = Self::load_with(&checkpoint, &LoadOptions::default(), device)?;
        Ok(dac)
    }

    /// Loads all of an opened checkpoint, as [`Dac::load_parts`] does.
    ///
    /// # Errors
    ///
    /// As [`Dac::load_parts`].
    pub fn load_with(
        checkpoint: &Checkpoint,
        options: &LoadOptions,
        device: &Device,
    ) -> Result<(Self, LoadReport), DacError> {
        Self::load_parts(checkpoint, DacParts::Whole, options, device)
    }

    /// Loads an opened checkpoint, original, parametrised, folded or of transformers, all in f32.
    ///
    /// A file without an encoder loads as well and decodes. With [`WeightNormPolicy::Keep`](zonos_checkpoint::WeightNormPolicy::Keep), as
    /// [`LoadOptions::training`] has it, weights that the file stores in factors are trained so.
    /// Of [`DacParts::Decoder`] the report lists the encoder's tensors as ignored.
    ///
    /// # Errors
    ///
    /// [`DacError::Config`] and [`DacError::Load`] name the field or the tensors that do not fit.
    pub fn load_parts(
        checkpoint: &Checkpoint,
        parts: DacParts,
        options: &LoadOptions,
        device: &Device,
    ) -> Result<(Self, LoadReport), DacError> {
        let config = DacConfig::from_checkpoint(checkpoint)?;
        let loader = Loader::new(
            checkpoint,
            &name_map(&config, parts),
            &specs(checkpoint, &config, parts),
            options,
            device,
        )?;
        let source = Source {
            loader: &loader,
            device,
        };
        let file = checkpoint.path().display().to_string();
        let dac = source.dac(config, parts, file)?;
        Ok((dac, loader.report().clone()))
    }

    /// What loading all of it would report, without reading a value.
    ///
    /// # Errors
    ///
    /// [`DacError::Config`] when the file does not even tell the sizes of a codec.
    pub fn check(checkpoint: &Checkpoint) -> Result<LoadReport, DacError> {
        let config = DacConfig::from_checkpoint(checkpoint)?;
        let parts = DacParts::Whole;
        let (map, specs) = (name_map(&config, parts), specs(checkpoint, &config, parts));
        Ok(plan(checkpoint, &map, &specs)?)
    }
}

/// The encoder to load, if there is one.
fn encoder_of(config: &DacConfig, parts: DacParts) -> Option<&EncoderConfig> {
    let encoder = config.encoder.as_ref();
    encoder.filter(|_| parts == DacParts::Whole)
}

/// Layers of a residual unit, by their names in transformers, in their order in the original.
const UNIT_LAYERS: [&str; 4] = ["snake1", "conv1", "snake2", "conv2"];

/// Rules from any layout's names to the original ones.
fn name_map(config: &DacConfig, parts: DacParts) -> NameMap {
    let blocks = config.decoder_rates.len();
    // No layout has names of its own that begin so; `decoder.model.` does not.
    let mut map = gguf::names(NameMap::new().strip_wrappers(), blocks);
    map = match encoder_of(config, parts) {
        Some(encoder) => encoder_names(map, encoder.rates.len()),
        None => map
            .ignore("encoder.*")
            .ignore("quantizer.quantizers.{q}.in_proj.*"),
    };
    map = map
        .rename("decoder.conv1.*", "decoder.model.0.*")
        .rename(
            "decoder.snake1.*",
            &format!("decoder.model.{}.*", blocks + 1),
        )
        .rename(
            "decoder.conv2.*",
            &format!("decoder.model.{}.*", blocks + 2),
        )
        .rename(
            "decoder.block.{i}.snake1.*",
            "decoder.model.{i+1}.block.0.*",
        )
        .rename(
            "decoder.block.{i}.conv_t1.*",
            "decoder.model.{i+1}.block.1.*",
        );
    for (layer, name) in UNIT_LAYERS.iter().enumerate() {
        map = map.rename(
            &format!("decoder.block.{{i}}.res_unit{{r}}.{name}.*"),
            &format!("decoder.model.{{i+1}}.block.{{r+1}}.block.{layer}.*"),
        );
    }
    map
}

/// The encoder's rules.
fn encoder_names(mut map: NameMap, blocks: usize) -> NameMap {
    for (layer, name) in UNIT_LAYERS.iter().enumerate() {
        map = map.rename(
            &format!("encoder.block.{{i}}.res_unit{{r}}.{name}.*"),
            &format!("encoder.block.{{i+1}}.block.{{r-1}}.block.{layer}.*"),
        );
    }
    map.rename("encoder.conv1.*", "encoder.block.0.*")
        .rename(
            "encoder.snake1.*",
            &format!("encoder.block.{}.*", blocks + 1),
        )
        .rename(
            "encoder.conv2.*",
            &format!("encoder.block.{}.*", blocks + 2),
        )
        .rename(
            "encoder.block.{i}.snake1.*",
            "encoder.block.{i+1}.block.3.*",
        )
        .rename("encoder.block.{i}.conv1.*", "encoder.block.{i+1}.block.4.*")
}

/// Original names and shapes of everything that is to be loaded.
fn specs(checkpoint: &Checkpoint, config: &DacConfig, parts: DacParts) -> Vec<TensorSpec> {
    let mut specs = Specs(Vec::new());
    let encoder = encoder_of(config, parts);
    let projected = gguf::fields(checkpoint).is_some();
    if projected {
        let bias = TensorSpec::plain(PROJECTED_BIAS, [config.latent_dim]);
        specs.0.push(bias);
    }
    if let Some(encoder) = encoder {
        specs.encoder(encoder, config.latent_dim);
    }
    for (q, &dim) in config.codebook_dim.iter().enumerate() {
        let name = format!("quantizer.quantizers.{q}");
        if projected {
            specs.0.push(TensorSpec::plain(
                format!("{name}.table"),
                [config.codebook_size, config.latent_dim],
            ));
            continue;
        }
        specs.0.push(TensorSpec::plain(
            format!("{name}.codebook.weight"),
            [config.codebook_size, dim],
        ));
        if encoder.is_some() {
            specs.conv(&format!("{name}.in_proj"), dim, config.latent_dim, 1);
        }
        specs.conv(&format!("{name}.out_proj"), config.latent_dim, dim, 1);
    }
    specs.conv(
        "decoder.model.0",
        config.decoder_dim,
        config.latent_dim,
        TAPS,
    );
    let blocks = config.decoder_rates.len();
    for (i, &rate) in config.decoder_rates.iter().enumerate() {
        let name = format!("decoder.model.{}.block", i + 1);
        let (input, output) = (config.block_channels(i), config.block_channels(i + 1));
        specs.snake(&format!("{name}.0"), input);
        specs.weighted(&format!("{name}.1"), [input, output, 2 * rate], output);
        for r in 0..DILATIONS.len() {
            specs.unit(&format!("{name}.{}.block", r + 2), output);
        }
    }
    let channels = config.block_channels(blocks);
    specs.snake(&format!("decoder.model.{}", blocks + 1), channels);
    specs.conv(&format!("decoder.model.{}", blocks + 2), 1, channels, TAPS);
    if projected {
        // Biases and alphas come with axes of length 1 at either end.
        return specs.0.into_iter().map(TensorSpec::loose_ones).collect();
    }
    specs.0
}

struct Specs(Vec<TensorSpec>);

impl Specs {
    fn weighted(&mut self, name: &str, weight: [usize; 3], bias: usize) {
        self.0
            .push(TensorSpec::weight_norm(format!("{name}.weight"), weight));
        self.0
            .push(TensorSpec::plain(format!("{name}.bias"), [bias]));
    }

    fn conv(&mut self, name: &str, out: usize, input: usize, taps: usize) {
        self.weighted(name, [out, input, taps], out);
    }

    fn snake(&mut self, name: &str, channels: usize) {
        self.0
            .push(TensorSpec::plain(format!("{name}.alpha"), [1, channels, 1]));
    }

    fn unit(&mut self, name: &str, channels: usize) {
        self.snake(&format!("{name}.0"), channels);
        self.conv(&format!("{name}.1"), channels, channels, TAPS);
        self.snake(&format!("{name}.2"), channels);
        self.conv(&format!("{name}.3"), channels, channels, 1);
    }

    fn encoder(&mut self, config: &EncoderConfig, latent: usize) {
        self.conv("encoder.block.0", config.dim, 1, TAPS);
        for (i, &rate) in config.rates.iter().enumerate() {
            let name = format!("encoder.block.{}.block", i + 1);
            let (input, output) = (config.block_channels(i), config.block_channels(i + 1));
            for r in 0..DILATIONS.len() {
                self.unit(&format!("{name}.{r}.block"), input);
            }
            self.snake(&format!("{name}.3"), input);
            self.conv(&format!("{name}.4"), output, input, 2 * rate);
        }
        let blocks = config.rates.len();
        let channels = config.block_channels(blocks);
        self.snake(&format!("encoder.block.{}", blocks + 1), channels);
        let last = format!("encoder.block.{}", blocks + 2);
        self.conv(&last, latent, channels, LAST_TAPS);
    }
}

/// Builds modules from the loader's tensors. What a partial load lacks is zero.
struct Source<'a> {
    loader: &'a Loader<'a>,
    device: &'a Device,
}

impl Source<'_> {
    fn tensor<const D: usize>(
        &self,
        name: &str,
        shape: [usize; D],
    ) -> Result<Tensor<D>, LoadError> {
        if self.loader.has(name) {
            self.loader.tensor_f32(name)
        } else {
            Ok(Tensor::zeros(shape, (self.device, DType::F32)))
        }
    }

    fn weight(&self, name: &str, shape: [usize; 3]) -> Result<ConvWeight, LoadError> {
        let name = format!("{name}.weight");
        if !self.loader.has(&name) {
            return Ok(ConvWeight::folded(Tensor::zeros(
                shape,
                (self.device, DType::F32),
            )));
        }
        Ok(match self.loader.weight_norm::<3>(&name)? {
            WeightNormed::Folded(weight) if weight.dtype() == DType::F32 => {
                ConvWeight::folded(weight)
            }
            WeightNormed::Folded(weight) => ConvWeight::folded(weight.cast(DType::F32)),
            WeightNormed::Factored { g, v } => ConvWeight::factored(g, v),
        })
    }

    fn conv(
        &self,
        name: &str,
        out: usize,
        input: usize,
        taps: usize,
        dilation: usize,
    ) -> Result<Conv1d, LoadError> {
        let weight = self.weight(name, [out, input, taps])?;
        let bias = self.tensor(&format!("{name}.bias"), [out])?;
        Ok(Conv1d::new(weight, bias, taps, dilation))
    }

    fn snake(&self, name: &str, channels: usize) -> Result<Snake, LoadError> {
        Ok(Snake::new(
            self.tensor(&format!("{name}.alpha"), [1, channels, 1])?,
        ))
    }

    fn unit(
        &self,
        name: &str,
        channels: usize,
        dilation: usize,
    ) -> Result<ResidualUnit, LoadError> {
        Ok(ResidualUnit {
            snake1: self.snake(&format!("{name}.0"), channels)?,
            conv1: self.conv(&format!("{name}.1"), channels, channels, TAPS, dilation)?,
            snake2: self.snake(&format!("{name}.2"), channels)?,
            conv2: self.conv(&format!("{name}.3"), channels, channels, 1, 1)?,
        })
    }

    /// The three units of a block, the first named `name.first`.
    fn units(
        &self,
        name: &str,
        first: usize,
        channels: usize,
    ) -> Result<Vec<ResidualUnit>, LoadError> {
        let numbered = DILATIONS.into_iter().enumerate();
        numbered
            .map(|(r, dilation)| {
                self.unit(&format!("{name}.{}.block", r + first), channels, dilation)
            })
            .collect()
    }

    fn encoder(&self, config: &EncoderConfig, latent: usize) -> Result<Encoder, LoadError> {
        let blocks = config.rates.len();
        let block = |(i, &rate): (usize, &usize)| {
            let name = format!("encoder.block.{}.block", i + 1);
            let (input, output) = (config.block_channels(i), config.block_channels(i + 1));
            let weight = self.weight(&format!("{name}.4"), [output, input, 2 * rate])?;
            let bias = self.tensor(&format!("{name}.4.bias"), [output])?;
            Ok(EncoderBlock {
                units: self.units(&name, 0, input)?,
                snake: self.snake(&format!("{name}.3"), input)?,
                down: StridedConv1d::new(weight, bias, rate),
            })
        };
        let channels = config.block_channels(blocks);
        let last = format!("encoder.block.{}", blocks + 2);
        Ok(Encoder {
            conv_in: self.conv("encoder.block.0", config.dim, 1, TAPS, 1)?,
            blocks: config
                .rates
                .iter()
                .enumerate()
                .map(block)
                .collect::<Result<_, LoadError>>()?,
            snake_out: self.snake(&format!("encoder.block.{}", blocks + 1), channels)?,
            conv_out: self.conv(&last, latent, channels, LAST_TAPS, 1)?,
        })
    }

    fn block(&self, config: &DacConfig, i: usize) -> Result<DecoderBlock, LoadError> {
        let name = format!("decoder.model.{}.block", i + 1);
        let rate = config.decoder_rates[i];
        let (input, output) = (config.block_channels(i), config.block_channels(i + 1));
        let weight = self.weight(&format!("{name}.1"), [input, output, 2 * rate])?;
        let bias = self.tensor(&format!("{name}.1.bias"), [output])?;
        Ok(DecoderBlock {
            snake: self.snake(&format!("{name}.0"), input)?,
            up: ConvTranspose1d::new(weight, bias, rate),
            units: self.units(&name, 2, output)?,
        })
    }

    fn quantizer(
        &self,
        config: &DacConfig,
        q: usize,
        encodes: bool,
    ) -> Result<VectorQuantizer, LoadError> {
        let name = format!("quantizer.quantizers.{q}");
        let dim = config.codebook_dim[q];
        let table = format!("{name}.table");
        if self.loader.has(&table) {
            let table = self.loader.tensor_f32(&table)?;
            return Ok(VectorQuantizer {
                codebook: burn::module::Param::from_tensor(table),
                in_proj: None,
                out_proj: None,
            });
        }
        let codebook = self.tensor(
            &format!("{name}.codebook.weight"),
            [config.codebook_size, dim],
        )?;
        Ok(VectorQuantizer {
            codebook: burn::module::Param::from_tensor(codebook),
            in_proj: encodes
                .then(|| self.conv(&format!("{name}.in_proj"), dim, config.latent_dim, 1, 1))
                .transpose()?,
            out_proj: Some(self.conv(
                &format!("{name}.out_proj"),
                config.latent_dim,
                dim,
                1,
                1,
            )?),
        })
    }

    fn dac(&self, config: DacConfig, parts: DacParts, file: String) -> Result<Dac, LoadError> {
        let encoder = encoder_of(&config, parts)
            .map(|encoder| self.encoder(encoder, config.latent_dim))
            .transpose()?;
        let encodes = encoder.is_some();
        let quantizers = (0..config.n_codebooks).map(|q| self.quantizer(&config, q, encodes));
        let quantizer = Quantizer {
            quantizers: quantizers.collect::<Result<_, _>>()?,
            bias: self
                .loader
                .has(PROJECTED_BIAS)
                .then(|| self.loader.tensor_f32(PROJECTED_BIAS))
                .transpose()?
                .map(burn::module::Param::from_tensor),
        };
        let n = config.decoder_rates.len();
        let blocks = (0..n).map(|i| self.block(&config, i));
        let channels = config.block_channels(n);
        let decoder = Decoder {
            conv_in: self.conv(
                "decoder.model.0",
                config.decoder_dim,
                config.latent_dim,
                TAPS,
                1,
            )?,
            blocks: blocks.collect::<Result<_, _>>()?,
            snake_out: self.snake(&format!("decoder.model.{}", n + 1), channels)?,
            conv_out: self.conv(&format!("decoder.model.{}", n + 2), 1, channels, TAPS, 1)?,
        };
        Ok(Dac::new(encoder, quantizer, decoder, config, file))
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    /// Weights that a training wrapper saved load as the codec's own.
    #[test]
    fn prefixes_of_training_wrappers_are_taken_off() {
        let fixture =
            PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../validation/fixtures/dac/tiny/hf");
        let folder = tempfile::tempdir().unwrap();
        let config = fixture.join("config.json");
        std::fs::copy(config, folder.path().join("config.json")).unwrap();
        let bytes = std::fs::read(fixture.join("model.safetensors")).unwrap();
        let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        for wrapper in ["module.", "_orig_mod.", "model.", "module._orig_mod."] {
            let path = folder.path().join("model.safetensors");
            let renamed = tensors
                .tensors()
                .into_iter()
                .map(|(name, view)| (format!("{wrapper}{name}"), view));
            safetensors::serialize_to_file(renamed, None, &path).unwrap();
            let checkpoint = Checkpoint::open(folder.path()).unwrap();
            let report = Dac::check(&checkpoint).unwrap();
            assert!(report.is_clean(), "{wrapper}: {report}");
            assert!(
                Dac::load(folder.path(), &Device::flex()).is_ok(),
                "{wrapper}"
            );
            std::fs::remove_file(&path).unwrap();
        }
    }
}
