//! From checkpoints of every layout to the model.
//!
//! Names are those of the original `state_dict`. The transformers layout is renamed to them; weight
//! normalisation is recognised in both spellings, or may have been folded into the weights.

use std::path::Path;

use burn::tensor::{DType, Device, Tensor};
use zonos_checkpoint::{
    Checkpoint, LoadError, LoadOptions, LoadReport, Loader, NameMap, TensorSpec, WeightNormed, plan,
};
use zonos_nn::{Conv1d, ConvTranspose1d, ConvWeight, Snake};

use crate::model::{Decoder, DecoderBlock, Quantizer, ResidualUnit, VectorQuantizer};
use crate::window::{DILATIONS, TAPS};
use crate::{Dac, DacConfig, DacError};

impl Dac {
    /// Opens and loads a checkpoint: a file, a folder or a hub id; weight norm is folded.
    ///
    /// # Errors
    ///
    /// As [`Dac::load_with`], and when nothing can be opened there.
    pub fn load(path: impl AsRef<Path>, device: &Device) -> Result<Self, DacError> {
        let checkpoint = Checkpoint::open(path)?;
        let (dac, _) = Self::load_with(&checkpoint, &LoadOptions::default(), device)?;
        Ok(dac)
    }

    /// Loads an opened checkpoint, original, parametrised, folded or of transformers, all in f32.
    ///
    /// With [`WeightNormPolicy::Keep`](zonos_checkpoint::WeightNormPolicy::Keep), as
    /// [`LoadOptions::training`] has it, weights that the file stores in factors are trained so.
    /// The encoder's tensors are listed as ignored.
    ///
    /// # Errors
    ///
    /// [`DacError::Config`] and [`DacError::Load`] name the field or the tensors that do not fit.
    pub fn load_with(
        checkpoint: &Checkpoint,
        options: &LoadOptions,
        device: &Device,
    ) -> Result<(Self, LoadReport), DacError> {
        let config = DacConfig::from_checkpoint(checkpoint)?;
        let loader = Loader::new(
            checkpoint,
            &name_map(&config),
            &specs(&config),
            options,
            device,
        )?;
        let source = Source {
            loader: &loader,
            device,
        };
        let dac = source.dac(config)?;
        Ok((dac, loader.report().clone()))
    }

    /// What loading would report, without reading a value.
    ///
    /// # Errors
    ///
    /// [`DacError::Config`] when the file does not even tell the sizes of a codec.
    pub fn check(checkpoint: &Checkpoint) -> Result<LoadReport, DacError> {
        let config = DacConfig::from_checkpoint(checkpoint)?;
        Ok(plan(checkpoint, &name_map(&config), &specs(&config))?)
    }
}

/// Rules from any layout's names to the original ones.
fn name_map(config: &DacConfig) -> NameMap {
    let blocks = config.decoder_rates.len();
    let mut map = NameMap::new()
        // No layout has names of its own that begin so; `decoder.model.` does not.
        .strip_wrappers()
        // Encoding is not implemented yet.
        .ignore("encoder.*")
        .ignore("quantizer.quantizers.{q}.in_proj.*")
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
    for (layer, name) in ["snake1", "conv1", "snake2", "conv2"].iter().enumerate() {
        map = map.rename(
            &format!("decoder.block.{{i}}.res_unit{{r}}.{name}.*"),
            &format!("decoder.model.{{i+1}}.block.{{r+1}}.block.{layer}.*"),
        );
    }
    map
}

/// Original names and shapes of everything that decoding needs.
fn specs(config: &DacConfig) -> Vec<TensorSpec> {
    let mut specs = Specs(Vec::new());
    for (q, &dim) in config.codebook_dim.iter().enumerate() {
        let name = format!("quantizer.quantizers.{q}");
        specs.0.push(TensorSpec::plain(
            format!("{name}.codebook.weight"),
            [config.codebook_size, dim],
        ));
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
            let unit = format!("{name}.{}.block", r + 2);
            specs.snake(&format!("{unit}.0"), output);
            specs.conv(&format!("{unit}.1"), output, output, TAPS);
            specs.snake(&format!("{unit}.2"), output);
            specs.conv(&format!("{unit}.3"), output, output, 1);
        }
    }
    let channels = config.block_channels(blocks);
    specs.snake(&format!("decoder.model.{}", blocks + 1), channels);
    specs.conv(&format!("decoder.model.{}", blocks + 2), 1, channels, TAPS);
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

    fn block(&self, config: &DacConfig, i: usize) -> Result<DecoderBlock, LoadError> {
        let name = format!("decoder.model.{}.block", i + 1);
        let rate = config.decoder_rates[i];
        let (input, output) = (config.block_channels(i), config.block_channels(i + 1));
        let weight = self.weight(&format!("{name}.1"), [input, output, 2 * rate])?;
        let bias = self.tensor(&format!("{name}.1.bias"), [output])?;
        let unit = |(r, dilation)| self.unit(&format!("{name}.{}.block", r + 2), output, dilation);
        Ok(DecoderBlock {
            snake: self.snake(&format!("{name}.0"), input)?,
            up: ConvTranspose1d::new(weight, bias, rate),
            units: DILATIONS
                .into_iter()
                .enumerate()
                .map(unit)
                .collect::<Result<_, _>>()?,
        })
    }

    fn quantizer(&self, config: &DacConfig, q: usize) -> Result<VectorQuantizer, LoadError> {
        let name = format!("quantizer.quantizers.{q}");
        let dim = config.codebook_dim[q];
        let codebook = self.tensor(
            &format!("{name}.codebook.weight"),
            [config.codebook_size, dim],
        )?;
        Ok(VectorQuantizer {
            codebook: burn::module::Param::from_tensor(codebook),
            out_proj: self.conv(&format!("{name}.out_proj"), config.latent_dim, dim, 1, 1)?,
        })
    }

    fn dac(&self, config: DacConfig) -> Result<Dac, LoadError> {
        let quantizers = (0..config.n_codebooks).map(|q| self.quantizer(&config, q));
        let quantizer = Quantizer {
            quantizers: quantizers.collect::<Result<_, _>>()?,
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
        Ok(Dac::new(quantizer, decoder, config))
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
