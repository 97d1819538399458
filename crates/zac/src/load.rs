//! From checkpoints to modules: what a file must hold, and the modules made of it.

use burn::module::Param;
use burn::tensor::{DType, Device, Tensor};
use zonos_audio::resample::ResampleKernel;
use zonos_checkpoint::{
    Checkpoint, LoadError, LoadOptions, LoadReport, Loader, NameMap, TensorSpec, WeightNormed, plan,
};
use zonos_nn::{ConvWeight, Dense, LayerNorm};

use crate::convnext::{BLOCK_EPS, ConvNextBlock, ConvNextStack, Depthwise};
use crate::names::{NameOverrides, name_map};
use crate::patch::{Patch, Stage};
use crate::quantizer::{ResidualVq, VectorQuantizer};
use crate::transformer::{FeedForward, LayerScale, SelfAttention, TransformerLayer};
use crate::{
    ConvNextConfig, Pointwise, QuantizerConfig, StageConfig, Transformer, TransformerConfig,
    ZacConfig, ZacError, ZacKind,
};

/// Epsilon of the normalisations in transformers.
const LAYER_EPS: f32 = 1e-5;

/// The resampling filter's name.
const KERNEL: &str = "codec.resampler.kernel";

/// Rules from a file's names to the model's own.
pub(crate) fn rules(config: &ZacConfig, overrides: &NameOverrides) -> NameMap {
    let map = name_map(overrides);
    match config.kind {
        // Decoding looks codes up and searches none.
        ZacKind::Decoder => map
            .ignore("codec.semantic_quantizer.quantizers.{q}.in_proj.*")
            .ignore("codec.quantizer.quantizers.{q}.in_proj.*"),
        ZacKind::Encoder => map,
    }
}

/// What loading would report, without reading a value.
pub(crate) fn planned(
    checkpoint: &Checkpoint,
    map: &NameMap,
    specs: &[TensorSpec],
    overrides: &NameOverrides,
) -> Result<LoadReport, ZacError> {
    overrides.check_codec(checkpoint)?;
    Ok(plan(checkpoint, map, specs)?)
}

/// Refuses a file that lacks tensors, each named with the `spellings` tried, or contradicts itself.
/// Tensors that nothing uses do no harm.
pub(crate) fn accept(
    report: &LoadReport,
    checkpoint: &Checkpoint,
    spellings: impl Fn(&str) -> Vec<String>,
) -> Result<(), ZacError> {
    if !report.missing.is_empty() {
        return Err(ZacError::Missing {
            file: report.checkpoint.clone(),
            tensors: report
                .missing
                .iter()
                .map(|m| {
                    let others = spellings(&m.name);
                    let others: Vec<_> = others.iter().filter(|o| **o != m.name).collect();
                    let others: Vec<_> = others.iter().map(|o| format!("'{o}'")).collect();
                    match others.as_slice() {
                        [] => format!("'{}' {:?}", m.name, m.shape),
                        others => format!("'{}' {:?} (nor {})", m.name, m.shape, others.join(", ")),
                    }
                })
                .collect(),
        });
    }
    let mut report = report.clone();
    let strays = std::mem::take(&mut report.unexpected);
    if report.is_clean() {
        return Ok(());
    }
    report.unexpected = strays;
    Err(ZacError::Load(LoadError::NotClean {
        report: Box::new(report),
        kind: checkpoint.model_kind(),
    }))
}

/// Warns of each tensor that nothing uses.
pub(crate) fn warn_unused(report: &LoadReport) {
    for stray in &report.unexpected {
        tracing::warn!(
            "{}: tensor '{}' {:?} is not used: the model knows no such tensor",
            report.checkpoint,
            stray.name,
            stray.shape
        );
    }
}

/// Options for loading what [`accept`] has looked at.
pub(crate) fn tolerant(options: &LoadOptions) -> LoadOptions {
    LoadOptions {
        partial: true,
        ..options.clone()
    }
}

/// Names and shapes of all tensors of the codec, in the order of the signal; an encoder's teacher is
/// not among them.
///
/// ```text
/// codec.quantizer.quantizers.0.codebook.weight         [4096, 8]
/// codec.decoder.0.transformer.layers.31.ffn.0.weight   [5120, 1280]
/// ```
pub fn tensor_specs(config: &ZacConfig) -> Vec<TensorSpec> {
    let mut specs = Specs(Vec::new());
    let searches = config.kind == ZacKind::Encoder;
    specs.quantizers(
        "codec.semantic_quantizer.",
        &config.semantic_quantizer,
        searches,
    );
    specs.quantizers("codec.quantizer.", &config.quantizer, searches);
    specs.stack("codec.semantic_head.", &config.semantic_head);
    let side = side(config.kind);
    for (i, stage) in config.stages.iter().enumerate() {
        if let StageConfig::Transformer(stage) = stage {
            specs.transformer(&format!("{side}{i}."), stage);
        }
    }
    if let Some(head) = &config.head {
        specs.stack("codec.head.trunk.", &head.trunk);
        specs.norm("codec.head.norm", head.dim);
        for (r, &n_fft) in head.n_fft.iter().enumerate() {
            specs.matrix(&format!("codec.head.out.{r}"), n_fft + 2, head.dim);
            specs.vector(format!("codec.head.out.{r}.bias"), n_fft + 2);
            specs.optional(format!("codec.head.istft.{r}.window"), n_fft);
        }
    }
    if let Some(encoder) = &config.encoder {
        let stack = &encoder.semantic_encoder;
        specs.stack("codec.semantic_encoder.", stack);
        specs.optional("codec.semantic_mean".to_owned(), stack.input_dim);
        specs.optional("codec.semantic_std".to_owned(), stack.input_dim);
    }
    let (_, new) = config.resampler_block();
    specs
        .0
        .push(TensorSpec::plain(KERNEL, [new, 1, config.resampler_taps]).loose_ones());
    specs.0
}

/// In front of the names of the decoder's or the acoustic encoder's modules.
fn side(kind: ZacKind) -> &'static str {
    match kind {
        ZacKind::Decoder => "codec.decoder.",
        ZacKind::Encoder => "codec.encoder.",
    }
}

struct Specs(Vec<TensorSpec>);

impl Specs {
    fn vector(&mut self, name: String, length: usize) {
        self.0.push(TensorSpec::plain(name, [length]));
    }

    fn optional(&mut self, name: String, length: usize) {
        self.0.push(TensorSpec::plain(name, [length]).optional());
    }

    /// A matrix, or a convolution with one tap, or either of them in two factors.
    fn matrix(&mut self, name: &str, out: usize, input: usize) {
        let name = format!("{name}.weight");
        self.0
            .push(TensorSpec::weight_norm(name, [out, input]).loose_ones());
    }

    fn pointwise(&mut self, name: &str, out: usize, input: usize) {
        let weight = format!("{name}.weight");
        self.0
            .push(TensorSpec::weight_norm(weight, [out, input, 1]).loose_ones());
        self.vector(format!("{name}.bias"), out);
    }

    fn norm(&mut self, name: &str, width: usize) {
        self.vector(format!("{name}.weight"), width);
        self.vector(format!("{name}.bias"), width);
    }

    fn quantizers(&mut self, prefix: &str, config: &QuantizerConfig, searches: bool) {
        for (q, dim) in config.codebook_dim.iter().enumerate() {
            let name = format!("{prefix}quantizers.{q}");
            let width = dim.unwrap_or(config.input_dim);
            let codebook = format!("{name}.codebook.weight");
            self.0
                .push(TensorSpec::plain(codebook, [config.codebook_size, width]));
            if let Some(dim) = *dim {
                self.pointwise(&format!("{name}.out_proj"), config.input_dim, dim);
                if searches {
                    self.pointwise(&format!("{name}.in_proj"), dim, config.input_dim);
                }
            }
        }
    }

    fn stack(&mut self, prefix: &str, config: &ConvNextConfig) {
        let (dim, inner) = (config.dim, config.intermediate_dim);
        if config.proj_in {
            self.pointwise(&format!("{prefix}proj_in"), dim, config.input_dim);
        }
        for i in &config.blocks {
            let name = format!("{prefix}blocks.{i}");
            self.0.push(TensorSpec::weight_norm(
                format!("{name}.dwconv.weight"),
                [dim, 1, config.kernel_size],
            ));
            self.vector(format!("{name}.dwconv.bias"), dim);
            self.norm(&format!("{name}.norm"), dim);
            self.matrix(&format!("{name}.pwconv1"), inner, dim);
            self.vector(format!("{name}.pwconv1.bias"), inner);
            self.matrix(&format!("{name}.pwconv2"), dim, inner);
            self.vector(format!("{name}.pwconv2.bias"), dim);
            self.optional(format!("{name}.gamma"), dim);
        }
        if config.proj_out {
            self.pointwise(&format!("{prefix}proj_out"), config.output_dim, dim);
        }
    }

    fn transformer(&mut self, prefix: &str, config: &TransformerConfig) {
        let (d, inner) = (config.d_model, config.dim_feedforward);
        if config.input_proj {
            self.matrix(&format!("{prefix}input_proj"), d, config.input_dimension);
        }
        for i in &config.layers {
            let name = format!("{prefix}transformer.layers.{i}");
            self.norm(&format!("{name}.norm1"), d);
            self.matrix(&format!("{name}.self_attn.in_proj"), 3 * d, d);
            self.matrix(&format!("{name}.self_attn.out_proj"), d, d);
            self.optional(format!("{name}.layer_scale_1.scale"), d);
            self.norm(&format!("{name}.norm2"), d);
            self.matrix(&format!("{name}.ffn.0"), inner, d);
            self.matrix(&format!("{name}.ffn.2"), d, inner);
            self.optional(format!("{name}.layer_scale_2.scale"), d);
        }
        if config.output_proj {
            self.matrix(&format!("{prefix}output_proj"), config.output_dimension, d);
        }
    }
}

/// Builds modules from the loader's tensors. What a partial load lacks is zero.
pub(crate) struct Source<'a> {
    pub(crate) loader: &'a Loader<'a>,
    pub(crate) device: &'a Device,
}

impl Source<'_> {
    fn zeros<const D: usize>(&self, shape: [usize; D]) -> Tensor<D> {
        Tensor::zeros(shape, (self.device, DType::F32))
    }

    /// In f32.
    pub(crate) fn tensor<const D: usize>(
        &self,
        name: &str,
        shape: [usize; D],
    ) -> Result<Tensor<D>, LoadError> {
        if self.loader.has(name) {
            self.loader.tensor_f32(name)
        } else {
            Ok(self.zeros(shape))
        }
    }

    /// In f32, if the file has it.
    pub(crate) fn optional(&self, name: &str) -> Result<Option<Tensor<1>>, LoadError> {
        let there = self.loader.has(name);
        there.then(|| self.loader.tensor_f32(name)).transpose()
    }

    /// The filter of the resampler.
    pub(crate) fn kernel(&self, config: &ZacConfig) -> Result<ResampleKernel, ZacError> {
        let (from, to) = config.resampler_rates();
        let (_, new) = config.resampler_block();
        let taps = if self.loader.has(KERNEL) {
            let data = self.loader.data(KERNEL)?.convert::<f32>();
            data.try_into_vec().map_err(|e| ZacError::Config {
                file: self.loader.report().checkpoint.clone(),
                problem: format!("tensor '{KERNEL}': {e:?}"),
            })?
        } else {
            vec![0.0f32; new * config.resampler_taps]
        };
        Ok(ResampleKernel::from_dense(from as u32, to as u32, &taps)?)
    }

    pub(crate) fn dense(
        &self,
        name: &str,
        [out, input]: [usize; 2],
        bias: bool,
    ) -> Result<Dense, LoadError> {
        let weight = format!("{name}.weight");
        let weight = if self.loader.has(&weight) {
            self.loader.tensor(&weight)?
        } else {
            self.zeros([out, input])
        };
        let bias = bias.then(|| self.tensor(&format!("{name}.bias"), [out]));
        Ok(Dense::new(weight, bias.transpose()?))
    }

    pub(crate) fn pointwise(
        &self,
        name: &str,
        out: usize,
        input: usize,
    ) -> Result<Pointwise, LoadError> {
        let weight = format!("{name}.weight");
        let weight = if !self.loader.has(&weight) {
            ConvWeight::folded(self.zeros([out, input, 1]))
        } else {
            match self.loader.weight_norm::<3>(&weight)? {
                WeightNormed::Folded(w) if w.dtype() == DType::F32 => ConvWeight::folded(w),
                WeightNormed::Folded(w) => ConvWeight::folded(w.cast(DType::F32)),
                WeightNormed::Factored { g, v } => ConvWeight::factored(g, v),
            }
        };
        let bias = self.tensor(&format!("{name}.bias"), [out])?;
        Ok(Pointwise::new(weight, bias))
    }

    pub(crate) fn norm(&self, name: &str, width: usize, eps: f32) -> Result<LayerNorm, LoadError> {
        let part = |leaf: &str| self.tensor(&format!("{name}.{leaf}"), [width]);
        Ok(LayerNorm::new(part("weight")?, part("bias")?, eps))
    }

    /// `searches`: with what finding codes needs.
    pub(crate) fn quantizers(
        &self,
        prefix: &str,
        config: &QuantizerConfig,
        searches: bool,
    ) -> Result<ResidualVq, LoadError> {
        let one = |(q, dim): (usize, &Option<usize>)| {
            let name = format!("{prefix}quantizers.{q}");
            let latent = config.input_dim;
            let codebook = self.tensor(
                &format!("{name}.codebook.weight"),
                [config.codebook_size, dim.unwrap_or(latent)],
            )?;
            let projection =
                |leaf: &str, out, input| self.pointwise(&format!("{name}.{leaf}"), out, input);
            Ok(VectorQuantizer {
                codebook: Param::from_tensor(codebook),
                in_proj: dim
                    .filter(|_| searches)
                    .map(|dim| projection("in_proj", dim, latent))
                    .transpose()?,
                out_proj: dim
                    .map(|dim| projection("out_proj", latent, dim))
                    .transpose()?,
            })
        };
        let numbered = config.codebook_dim.iter().enumerate();
        Ok(ResidualVq {
            quantizers: numbered.map(one).collect::<Result<_, LoadError>>()?,
            search: config.search,
        })
    }

    pub(crate) fn stack(
        &self,
        prefix: &str,
        config: &ConvNextConfig,
    ) -> Result<ConvNextStack, LoadError> {
        let (dim, inner) = (config.dim, config.intermediate_dim);
        let block = |i: &usize| {
            let name = format!("{prefix}blocks.{i}");
            let dwconv = Depthwise {
                weight: Param::from_tensor(self.tensor(
                    &format!("{name}.dwconv.weight"),
                    [dim, 1, config.kernel_size],
                )?),
                bias: Param::from_tensor(self.tensor(&format!("{name}.dwconv.bias"), [dim])?),
            };
            let norm = self.norm(&format!("{name}.norm"), dim, BLOCK_EPS)?;
            let pwconv = [
                self.dense(&format!("{name}.pwconv1"), [inner, dim], true)?,
                self.dense(&format!("{name}.pwconv2"), [dim, inner], true)?,
            ];
            let gamma = self.optional(&format!("{name}.gamma"))?;
            Ok(ConvNextBlock::new(dwconv, norm, pwconv, gamma, config))
        };
        let projection =
            |leaf: &str, out, input| self.pointwise(&format!("{prefix}{leaf}"), out, input);
        Ok(ConvNextStack {
            proj_in: config
                .proj_in
                .then(|| projection("proj_in", dim, config.input_dim))
                .transpose()?,
            blocks: config
                .blocks
                .iter()
                .map(block)
                .collect::<Result<_, LoadError>>()?,
            proj_out: config
                .proj_out
                .then(|| projection("proj_out", config.output_dim, dim))
                .transpose()?,
        })
    }

    pub(crate) fn transformer(
        &self,
        prefix: &str,
        config: &TransformerConfig,
    ) -> Result<Transformer, LoadError> {
        let (d, inner) = (config.d_model, config.dim_feedforward);
        let layer = |i: &usize| {
            let name = format!("{prefix}transformer.layers.{i}");
            let scale = |leaf: &str| -> Result<Option<LayerScale>, LoadError> {
                let scale = self.optional(&format!("{name}.{leaf}.scale"))?;
                Ok(scale.map(|scale| LayerScale {
                    scale: Param::from_tensor(scale),
                }))
            };
            Ok(TransformerLayer {
                norm1: self.norm(&format!("{name}.norm1"), d, LAYER_EPS)?,
                self_attn: SelfAttention {
                    in_proj: self.dense(&format!("{name}.self_attn.in_proj"), [3 * d, d], false)?,
                    out_proj: self.dense(&format!("{name}.self_attn.out_proj"), [d, d], false)?,
                },
                norm2: self.norm(&format!("{name}.norm2"), d, LAYER_EPS)?,
                ffn: FeedForward {
                    linear1: self.dense(&format!("{name}.ffn.0"), [inner, d], false)?,
                    linear2: self.dense(&format!("{name}.ffn.2"), [d, inner], false)?,
                },
                layer_scale_1: scale("layer_scale_1")?,
                layer_scale_2: scale("layer_scale_2")?,
            })
        };
        let layers = config
            .layers
            .iter()
            .map(layer)
            .collect::<Result<_, LoadError>>()?;
        let projection =
            |leaf: &str, out, input| self.dense(&format!("{prefix}{leaf}"), [out, input], false);
        let input_proj = config
            .input_proj
            .then(|| projection("input_proj", d, config.input_dimension))
            .transpose()?;
        let output_proj = config
            .output_proj
            .then(|| projection("output_proj", config.output_dimension, d))
            .transpose()?;
        Ok(Transformer::new(input_proj, layers, output_proj, config))
    }

    /// The decoder's or the acoustic encoder's modules.
    pub(crate) fn stages(&self, config: &ZacConfig) -> Result<Vec<Stage>, LoadError> {
        let side = side(config.kind);
        let stages = config.stages.iter().enumerate();
        stages
            .map(|(i, stage)| {
                Ok(match stage {
                    StageConfig::Transformer(stage) => {
                        Stage::Transformer(self.transformer(&format!("{side}{i}."), stage)?)
                    }
                    StageConfig::Patch(size) => Stage::Patch(Patch { size: *size }),
                })
            })
            .collect()
    }
}
