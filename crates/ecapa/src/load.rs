//! From checkpoints to the model.

use std::path::Path;

use burn::tensor::{DType, Device, Tensor};
use zonos_checkpoint::{
    Checkpoint, LoadError, LoadOptions, LoadReport, Loader, NameMap, TensorSpec, plan,
};

use crate::front_end::FrontEnd;
use crate::model::{
    AttentiveStatisticsPooling, Block, Conv, Res2Net, SeRes2Net, SqueezeExcitation, Tdnn,
};
use crate::{Ecapa, EcapaConfig, EcapaError, gguf};

/// In front of the encoder's names in a checkpoint that holds a whole text-to-speech model.
pub(crate) const PREFIX: &str = "speaker_encoder.";

impl Ecapa {
    /// Opens and loads a checkpoint: a file, a folder or a hub id.
    ///
    /// # Errors
    ///
    /// As [`Ecapa::load_with`], and when nothing can be opened there.
    pub fn load(path: impl AsRef<Path>, device: &Device) -> Result<Self, EcapaError> {
        let checkpoint = Checkpoint::open(path)?;
        let (ecapa, _) = Self::load_with(&checkpoint, &LoadOptions::default(), device)?;
        Ok(ecapa)
    }

    /// Loads an opened checkpoint: the encoder alone, or the one inside a text-to-speech checkpoint
    /// under the prefix `speaker_encoder.`, whose other tensors are listed as ignored.
    ///
    /// Weights become f32: convolutions read each of them hundreds of times a clip.
    ///
    /// # Errors
    ///
    /// [`EcapaError::Config`] and [`EcapaError::Load`] name the field or the tensors that do not fit.
    pub fn load_with(
        checkpoint: &Checkpoint,
        options: &LoadOptions,
        device: &Device,
    ) -> Result<(Self, LoadReport), EcapaError> {
        let config = EcapaConfig::from_checkpoint(checkpoint)?;
        let front_end = FrontEnd::new(&config)?;
        let specs = tensor_specs(&config);
        let map = name_map(checkpoint);
        let loader = Loader::new(checkpoint, &map, &specs, options, device)?;
        let source = Source {
            loader: &loader,
            device,
        };
        let ecapa = source.ecapa(config, front_end)?;
        Ok((ecapa, loader.report().clone()))
    }

    /// What loading would report, without reading a value.
    ///
    /// # Errors
    ///
    /// [`EcapaError::Config`] when the file does not even tell the sizes of an encoder.
    pub fn check(checkpoint: &Checkpoint) -> Result<LoadReport, EcapaError> {
        let config = EcapaConfig::from_checkpoint(checkpoint)?;
        Ok(plan(checkpoint, &name_map(checkpoint), &tensor_specs(&config))?)
    }
}

/// Rules from any file's names to the encoder's own.
fn name_map(checkpoint: &Checkpoint) -> NameMap {
    if gguf::fields(checkpoint).is_some() {
        return gguf::names(NameMap::new());
    }
    NameMap::new()
        .strip_wrappers()
        // The language model of a text-to-speech checkpoint.
        .ignore("talker.*")
        .strip_prefix(PREFIX)
}

/// Names and shapes of all tensors, in the order of the network: 76 of the released model.
pub fn tensor_specs(config: &EcapaConfig) -> Vec<TensorSpec> {
    let mut specs = Vec::new();
    let mut conv = |name: &str, out: usize, input: usize, taps: usize| {
        specs.push(TensorSpec::plain(
            format!("{name}.weight"),
            [out, input, taps],
        ));
        specs.push(TensorSpec::plain(format!("{name}.bias"), [out]));
    };
    let (width, se) = (config.width(), config.enc_se_channels);
    let group = width / config.enc_res2net_scale;
    conv(
        "blocks.0.conv",
        width,
        config.mel_dim,
        config.enc_kernel_sizes[0],
    );
    for b in 1..=config.blocks() {
        let name = format!("blocks.{b}");
        conv(&format!("{name}.tdnn1.conv"), width, width, 1);
        for j in 0..config.enc_res2net_scale - 1 {
            let name = format!("{name}.res2net_block.blocks.{j}.conv");
            conv(&name, group, group, config.enc_kernel_sizes[b]);
        }
        conv(&format!("{name}.tdnn2.conv"), width, width, 1);
        conv(&format!("{name}.se_block.conv1"), se, width, 1);
        conv(&format!("{name}.se_block.conv2"), width, se, 1);
    }
    let (joined, attention) = (config.joined(), config.enc_attention_channels);
    let taps = config.enc_kernel_sizes[config.blocks() + 1];
    conv("mfa.conv", joined, joined, taps);
    conv("asp.tdnn.conv", attention, 3 * joined, 1);
    conv("asp.conv", joined, attention, 1);
    conv("fc", config.enc_dim, 2 * joined, 1);
    specs
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

    fn conv(&self, name: &str, shape: [usize; 3], dilation: usize) -> Result<Conv, LoadError> {
        Ok(Conv::new(
            self.tensor(&format!("{name}.weight"), shape)?,
            self.tensor(&format!("{name}.bias"), [shape[0]])?,
            dilation,
        ))
    }

    fn tdnn(&self, name: &str, shape: [usize; 3], dilation: usize) -> Result<Tdnn, LoadError> {
        let conv = self.conv(&format!("{name}.conv"), shape, dilation)?;
        Ok(Tdnn { conv })
    }

    fn block(&self, config: &EcapaConfig, b: usize) -> Result<SeRes2Net, LoadError> {
        let name = format!("blocks.{b}");
        let (width, se) = (config.width(), config.enc_se_channels);
        let group = width / config.enc_res2net_scale;
        let (taps, dilation) = (config.enc_kernel_sizes[b], config.enc_dilations[b]);
        let groups = (0..config.enc_res2net_scale - 1).map(|j| {
            let name = format!("{name}.res2net_block.blocks.{j}");
            self.tdnn(&name, [group, group, taps], dilation)
        });
        Ok(SeRes2Net {
            tdnn1: self.tdnn(&format!("{name}.tdnn1"), [width, width, 1], 1)?,
            res2net_block: Res2Net {
                blocks: groups.collect::<Result<_, _>>()?,
            },
            tdnn2: self.tdnn(&format!("{name}.tdnn2"), [width, width, 1], 1)?,
            se_block: SqueezeExcitation {
                conv1: self.conv(&format!("{name}.se_block.conv1"), [se, width, 1], 1)?,
                conv2: self.conv(&format!("{name}.se_block.conv2"), [width, se, 1], 1)?,
            },
        })
    }

    fn ecapa(&self, config: EcapaConfig, front_end: FrontEnd) -> Result<Ecapa, LoadError> {
        let (taps, dilations) = (&config.enc_kernel_sizes, &config.enc_dilations);
        let first = [config.width(), config.mel_dim, taps[0]];
        let mut blocks = vec![Block::Tdnn(self.tdnn("blocks.0", first, dilations[0])?)];
        for b in 1..=config.blocks() {
            blocks.push(Block::SeRes2Net(self.block(&config, b)?));
        }
        let (joined, attention) = (config.joined(), config.enc_attention_channels);
        let last = config.blocks() + 1;
        let mfa = self.tdnn("mfa", [joined, joined, taps[last]], dilations[last])?;
        let asp = AttentiveStatisticsPooling {
            tdnn: self.tdnn("asp.tdnn", [attention, 3 * joined, 1], 1)?,
            conv: self.conv("asp.conv", [joined, attention, 1], 1)?,
        };
        let fc = self.conv("fc", [config.enc_dim, 2 * joined, 1], 1)?;
        Ok(Ecapa::new(blocks, mfa, asp, fc, config, front_end))
    }
}
