//! From checkpoints to the model.

use std::path::Path;

use burn::module::Param;
use burn::tensor::{DType, Device, Tensor};
use zonos_checkpoint::{
    Checkpoint, LoadError, LoadOptions, LoadReport, Loader, NameMap, TensorSpec, plan,
};
use zonos_nn::{Dense, LayerNorm};

use crate::config::prefixes;
use crate::front_end::FrontEnd;
use crate::model::{
    ConvModule, DepthwiseConv, DistanceEmbedding, Encoder, FeatureProjection, FeedForward, Layer,
    SelfAttention,
};
use crate::{Teacher, TeacherConfig, TeacherError};

/// How a checkpoint is read that is not just the published one.
#[derive(Debug, Clone, Default)]
pub struct TeacherSource {
    /// How many layers; as many as the configuration uses when left out.
    pub layers: Option<usize>,
    /// Rules from the file's names to the published ones, a prefix in front of them or not. Tensors of
    /// another model in the same file need none.
    pub names: NameMap,
}

impl TeacherSource {
    /// A whole file by itself: what else a ZAC-1 encoder holds is known not to be needed.
    fn own(layers: Option<usize>) -> Self {
        Self {
            layers,
            names: NameMap::new().ignore("codec.*"),
        }
    }
}

impl Teacher {
    /// Opens and loads a checkpoint: a file, a folder or a hub id.
    ///
    /// # Errors
    ///
    /// As [`Teacher::load_with`], and when nothing can be opened there.
    pub fn load(path: impl AsRef<Path>, device: &Device) -> Result<Self, TeacherError> {
        let checkpoint = Checkpoint::open(path)?;
        let (teacher, _) = Self::load_with(&checkpoint, &LoadOptions::default(), device)?;
        Ok(teacher)
    }

    /// Loads an opened checkpoint: the published folder, or a ZAC-1 encoder file with the model under
    /// the prefix `teacher.`, whose other tensors are listed as ignored.
    ///
    /// Layers up to [`feature_layer`](TeacherConfig::feature_layer) are loaded, those after it listed
    /// as ignored. Matrices keep the dtype of the file; everything is computed in f32. Tensors that
    /// nothing uses are warned of, and are the report's `unexpected`.
    ///
    /// # Errors
    ///
    /// [`TeacherError::Config`] and [`TeacherError::Load`] name the field or the tensors that do not
    /// fit.
    pub fn load_with(
        checkpoint: &Checkpoint,
        options: &LoadOptions,
        device: &Device,
    ) -> Result<(Self, LoadReport), TeacherError> {
        Self::load_own(checkpoint, None, options, device)
    }

    /// As [`load_with`](Self::load_with), the first `layers` layers, whatever the configuration uses.
    ///
    /// # Errors
    ///
    /// As [`load_with`](Self::load_with), and [`TeacherError::FewLayers`].
    pub fn load_layers(
        checkpoint: &Checkpoint,
        layers: usize,
        options: &LoadOptions,
        device: &Device,
    ) -> Result<(Self, LoadReport), TeacherError> {
        Self::load_own(checkpoint, Some(layers), options, device)
    }

    fn load_own(
        checkpoint: &Checkpoint,
        layers: Option<usize>,
        options: &LoadOptions,
        device: &Device,
    ) -> Result<(Self, LoadReport), TeacherError> {
        let source = TeacherSource::own(layers);
        let (teacher, report) = Self::load_from(checkpoint, &source, options, device)?;
        for stray in &report.unexpected {
            tracing::warn!(
                "{}: tensor '{}' {:?} is not used: the model knows no such tensor",
                report.checkpoint,
                stray.name,
                stray.shape
            );
        }
        Ok((teacher, report))
    }

    /// As [`load_with`](Self::load_with), of a file with names of its own, or of one that holds another
    /// model too: tensors that this one does not use are the report's `unexpected`, and no error.
    ///
    /// # Errors
    ///
    /// As [`load_layers`](Self::load_layers).
    pub fn load_from(
        checkpoint: &Checkpoint,
        source: &TeacherSource,
        options: &LoadOptions,
        device: &Device,
    ) -> Result<(Self, LoadReport), TeacherError> {
        let plan = Plan::of(checkpoint, source)?;
        let front_end = FrontEnd::new(&plan.config)?;
        if !options.partial {
            plan.accept(checkpoint)?;
        }
        let options = LoadOptions {
            partial: true,
            ..options.clone()
        };
        let loader = Loader::new(checkpoint, &plan.map, &plan.specs, &options, device)?;
        let source = Source {
            loader: &loader,
            device,
            config: &plan.config,
        };
        let (projection, encoder) = source.parts(plan.layers)?;
        let mut report = loader.report().clone();
        report.notes.extend(plan.notes);
        let teacher = Self::new(projection, encoder, plan.config, front_end);
        Ok((teacher, report))
    }

    /// What loading would report, without reading a value.
    ///
    /// # Errors
    ///
    /// [`TeacherError::Config`] when the file does not even tell the sizes of a model.
    pub fn check(checkpoint: &Checkpoint) -> Result<LoadReport, TeacherError> {
        Self::check_from(checkpoint, &TeacherSource::own(None))
    }

    /// As [`check`](Self::check), of what [`load_from`](Self::load_from) loads.
    ///
    /// # Errors
    ///
    /// As [`check`](Self::check), and [`TeacherError::FewLayers`].
    pub fn check_from(
        checkpoint: &Checkpoint,
        source: &TeacherSource,
    ) -> Result<LoadReport, TeacherError> {
        let plan = Plan::of(checkpoint, source)?;
        let mut report = plan.report;
        report.notes.extend(plan.notes);
        Ok(report)
    }
}

/// What a checkpoint and the model have to say to each other, before a value is read.
struct Plan {
    config: TeacherConfig,
    notes: Vec<String>,
    layers: usize,
    map: NameMap,
    specs: Vec<TensorSpec>,
    report: LoadReport,
    /// In front of the model's names in the file.
    front: String,
}

impl Plan {
    fn of(checkpoint: &Checkpoint, source: &TeacherSource) -> Result<Self, TeacherError> {
        let (config, notes) = TeacherConfig::from_mapped(checkpoint, &source.names)?;
        let layers = source.layers.unwrap_or(config.feature_layer);
        if layers > config.num_hidden_layers {
            return Err(TeacherError::FewLayers {
                file: checkpoint.path().display().to_string(),
                asked: layers,
                there: config.num_hidden_layers,
            });
        }
        let prefixes = prefixes(checkpoint, &source.names);
        let map = name_map(&source.names, &prefixes, layers);
        let specs = tensor_specs(&config, layers);
        Ok(Self {
            report: plan(checkpoint, &map, &specs)?,
            front: prefixes.into_iter().next().unwrap_or_default(),
            config,
            notes,
            layers,
            map,
            specs,
        })
    }

    /// Refuses a file that lacks something or contradicts itself; what it has besides does no harm.
    fn accept(&self, checkpoint: &Checkpoint) -> Result<(), LoadError> {
        let mut report = self.report.clone();
        let strays = std::mem::take(&mut report.unexpected);
        if report.is_clean() {
            return Ok(());
        }
        report.unexpected = strays;
        for missing in &mut report.missing {
            missing.name.insert_str(0, &self.front);
        }
        Err(LoadError::NotClean {
            report: Box::new(report),
            kind: checkpoint.model_kind(),
        })
    }
}

/// Rules from a file's names to the model's own; layers after the first `layers` are ignored.
fn name_map(names: &NameMap, prefixes: &[String], layers: usize) -> NameMap {
    prefixes
        .iter()
        .fold(names.clone(), |map, prefix| map.strip_prefix(prefix))
        // Stands for masked spans in training.
        .ignore("masked_spec_embed")
        .ignore(&format!("encoder.layers.{{n>={layers}}}.*"))
        // What fine-tuned models have behind the last layer.
        .ignore("adapter.*")
        .ignore("intermediate_ffn.*")
        .ignore("lm_head.*")
        .ignore("projector.*")
        .ignore("classifier.*")
}

/// Names and shapes of the tensors of the first `layers` layers and of what is before them, in the
/// order of the network: `4 + 32 layers`.
pub fn tensor_specs(config: &TeacherConfig, layers: usize) -> Vec<TensorSpec> {
    let mut specs = Specs(Vec::new());
    let (d, inner) = (config.hidden_size, config.intermediate_size);
    let input = config.feature_projection_input_dim;
    specs.norm("feature_projection.layer_norm", input);
    specs.dense("feature_projection.projection", [d, input]);
    for i in 0..layers {
        let name = |part: &str| format!("encoder.layers.{i}.{part}");
        let ffn = |specs: &mut Specs, which: &str| {
            specs.norm(&name(&format!("{which}_layer_norm")), d);
            specs.dense(&name(&format!("{which}.intermediate_dense")), [inner, d]);
            specs.dense(&name(&format!("{which}.output_dense")), [d, inner]);
        };
        ffn(&mut specs, "ffn1");
        specs.norm(&name("self_attn_layer_norm"), d);
        for linear in ["linear_q", "linear_k", "linear_v", "linear_out"] {
            specs.dense(&name(&format!("self_attn.{linear}")), [d, d]);
        }
        let table = name("self_attn.distance_embedding.weight");
        specs.plain(&table, [config.distances(), config.head()]);
        specs.norm(&name("conv_module.layer_norm"), d);
        specs.point(&name("conv_module.pointwise_conv1.weight"), [2 * d, d]);
        let taps = config.conv_depthwise_kernel_size;
        specs.plain(&name("conv_module.depthwise_conv.weight"), [d, 1, taps]);
        specs.norm(&name("conv_module.depthwise_layer_norm"), d);
        specs.point(&name("conv_module.pointwise_conv2.weight"), [d, d]);
        ffn(&mut specs, "ffn2");
        specs.norm(&name("final_layer_norm"), d);
    }
    specs.0
}

struct Specs(Vec<TensorSpec>);

impl Specs {
    fn plain(&mut self, name: &str, shape: impl Into<Vec<usize>>) {
        self.0.push(TensorSpec::plain(name, shape));
    }

    fn norm(&mut self, name: &str, width: usize) {
        self.plain(&format!("{name}.weight"), [width]);
        self.plain(&format!("{name}.bias"), [width]);
    }

    fn dense(&mut self, name: &str, shape: [usize; 2]) {
        self.plain(&format!("{name}.weight"), shape);
        self.plain(&format!("{name}.bias"), [shape[0]]);
    }

    /// A convolution of one tap, `[out, in, 1]` in files.
    fn point(&mut self, name: &str, shape: [usize; 2]) {
        self.0.push(TensorSpec::plain(name, shape).loose_ones());
    }
}

/// Builds modules from the loader's tensors. What a partial load lacks is zero.
struct Source<'a> {
    loader: &'a Loader<'a>,
    device: &'a Device,
    config: &'a TeacherConfig,
}

impl Source<'_> {
    fn zeros<const D: usize>(&self, shape: [usize; D]) -> Tensor<D> {
        Tensor::zeros(shape, (self.device, DType::F32))
    }

    fn f32<const D: usize>(&self, name: &str, shape: [usize; D]) -> Result<Tensor<D>, LoadError> {
        if self.loader.has(name) {
            self.loader.tensor_f32(name)
        } else {
            Ok(self.zeros(shape))
        }
    }

    fn dense(&self, name: &str, shape: [usize; 2], bias: bool) -> Result<Dense, LoadError> {
        let weight = format!("{name}.weight");
        let weight = if self.loader.has(&weight) {
            self.loader.tensor(&weight)?
        } else {
            self.zeros(shape)
        };
        let bias = bias.then(|| self.f32(&format!("{name}.bias"), [shape[0]]));
        Ok(Dense::new(weight, bias.transpose()?))
    }

    fn norm(&self, name: &str, width: usize) -> Result<LayerNorm, LoadError> {
        Ok(LayerNorm::new(
            self.f32(&format!("{name}.weight"), [width])?,
            self.f32(&format!("{name}.bias"), [width])?,
            self.config.layer_norm_eps as f32,
        ))
    }

    fn feed_forward(&self, name: &str) -> Result<FeedForward, LoadError> {
        let (d, inner) = (self.config.hidden_size, self.config.intermediate_size);
        let dense = |part: &str, shape| self.dense(&format!("{name}.{part}"), shape, true);
        Ok(FeedForward {
            intermediate_dense: dense("intermediate_dense", [inner, d])?,
            output_dense: dense("output_dense", [d, inner])?,
        })
    }

    fn attention(&self, name: &str) -> Result<SelfAttention, LoadError> {
        let d = self.config.hidden_size;
        let linear = |part: &str| self.dense(&format!("{name}.{part}"), [d, d], true);
        let table = format!("{name}.distance_embedding.weight");
        let table = self.f32(&table, [self.config.distances(), self.config.head()])?;
        Ok(SelfAttention {
            linear_q: linear("linear_q")?,
            linear_k: linear("linear_k")?,
            linear_v: linear("linear_v")?,
            linear_out: linear("linear_out")?,
            distance_embedding: DistanceEmbedding {
                weight: Param::from_tensor(table),
            },
        })
    }

    fn conv(&self, name: &str) -> Result<ConvModule, LoadError> {
        let d = self.config.hidden_size;
        let taps = self.config.conv_depthwise_kernel_size;
        let part = |part: &str| format!("{name}.{part}");
        let depthwise = self.f32(&part("depthwise_conv.weight"), [d, 1, taps])?;
        Ok(ConvModule {
            layer_norm: self.norm(&part("layer_norm"), d)?,
            pointwise_conv1: self.dense(&part("pointwise_conv1"), [2 * d, d], false)?,
            depthwise_conv: DepthwiseConv {
                weight: Param::from_tensor(depthwise),
            },
            depthwise_layer_norm: self.norm(&part("depthwise_layer_norm"), d)?,
            pointwise_conv2: self.dense(&part("pointwise_conv2"), [d, d], false)?,
        })
    }

    fn layer(&self, i: usize) -> Result<Layer, LoadError> {
        let part = |part: &str| format!("encoder.layers.{i}.{part}");
        let norm = |name: &str| self.norm(&part(name), self.config.hidden_size);
        Ok(Layer {
            ffn1_layer_norm: norm("ffn1_layer_norm")?,
            ffn1: self.feed_forward(&part("ffn1"))?,
            self_attn_layer_norm: norm("self_attn_layer_norm")?,
            self_attn: self.attention(&part("self_attn"))?,
            conv_module: self.conv(&part("conv_module"))?,
            ffn2_layer_norm: norm("ffn2_layer_norm")?,
            ffn2: self.feed_forward(&part("ffn2"))?,
            final_layer_norm: norm("final_layer_norm")?,
        })
    }

    fn parts(&self, layers: usize) -> Result<(FeatureProjection, Encoder), LoadError> {
        let input = self.config.feature_projection_input_dim;
        let shape = [self.config.hidden_size, input];
        let projection = FeatureProjection {
            layer_norm: self.norm("feature_projection.layer_norm", input)?,
            projection: self.dense("feature_projection.projection", shape, true)?,
        };
        let layers = (0..layers).map(|i| self.layer(i));
        let encoder = Encoder {
            layers: layers.collect::<Result<_, _>>()?,
        };
        Ok((projection, encoder))
    }
}
