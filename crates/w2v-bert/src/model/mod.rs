//! The network.

mod attention;
mod conv;
mod layer;

pub use attention::{DistanceEmbedding, SelfAttention};
pub use conv::{ConvModule, DepthwiseConv};
pub use layer::{FeedForward, Layer};

use burn::module::Module;
use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use zonos_audio::mel::Mel;
use zonos_nn::{Dense, LayerNorm, Tap};

use crate::front_end::{FrontEnd, normalise};
use crate::{Features, TeacherConfig, TeacherError};

/// Wav2Vec2-BERT without a head. Field names are those of the published checkpoint.
#[derive(Module, Debug)]
pub struct Teacher {
    /// Input features to the width of the layers.
    pub feature_projection: FeatureProjection,
    /// The layers.
    pub encoder: Encoder,
    #[module(skip)]
    config: TeacherConfig,
    #[module(skip)]
    front_end: FrontEnd,
}

/// Layer normalisation and a dense layer.
#[derive(Module, Debug)]
pub struct FeatureProjection {
    /// Over one token's features.
    pub layer_norm: LayerNorm,
    /// `[hidden, input]`.
    pub projection: Dense,
}

/// The layers, those that were loaded.
#[derive(Module, Debug)]
pub struct Encoder {
    /// In order.
    pub layers: Vec<Layer>,
}

/// What all layers of one forward pass share.
pub(crate) struct Clip {
    /// Input that reads as zeros: `[tokens, 1]` of 1 and 0.
    pub(crate) kept: Option<Tensor<2>>,
    /// Keys that are seen: `[1, tokens]` of 1 and 0.
    pub(crate) seen: Option<Tensor<2>>,
    /// `[hidden]` of 0.5, for half a feed-forward block.
    pub(crate) half: Tensor<1>,
}

impl Clip {
    fn new(mask: &[bool], hidden: usize, device: &Device) -> Self {
        let place = (device, DType::F32);
        let ones = mask.contains(&false).then(|| {
            let ones: Vec<f32> = mask.iter().map(|&seen| f32::from(u8::from(seen))).collect();
            Tensor::<1>::from_data(TensorData::new(ones, [mask.len()]), place)
        });
        Self {
            kept: ones.clone().map(|ones| ones.unsqueeze_dim(1)),
            seen: ones.map(|ones| ones.unsqueeze_dim(0)),
            half: Tensor::full([hidden], 0.5, place),
        }
    }

    /// `x [tokens, width]` with zeros for masked tokens.
    pub(crate) fn keep(&self, x: Tensor<2>) -> Tensor<2> {
        match &self.kept {
            Some(kept) => x * kept.clone(),
            None => x,
        }
    }
}

impl Teacher {
    /// Puts the parts together; they must fit `config`.
    pub(crate) fn new(
        feature_projection: FeatureProjection,
        encoder: Encoder,
        config: TeacherConfig,
        front_end: FrontEnd,
    ) -> Self {
        Self {
            feature_projection,
            encoder,
            config,
            front_end,
        }
    }

    /// Sizes, those of the checkpoint.
    pub fn config(&self) -> &TeacherConfig {
        &self.config
    }

    /// Layers that were loaded.
    pub fn layers(&self) -> usize {
        self.encoder.layers.len()
    }

    /// Where the weights are.
    pub fn device(&self) -> Device {
        self.feature_projection.projection.weight().device()
    }

    /// The fewest samples that [`features`](Self::features) takes: 560, which make one token.
    pub fn min_samples(&self) -> usize {
        self.front_end.min_samples()
    }

    /// Input features of mono samples at 16 kHz, one token each 320 samples: `1 + (n - 400) / 160`
    /// filterbank frames, two by two.
    ///
    /// Made on the host, in double precision where it matters, whatever the device of the model.
    ///
    /// # Errors
    ///
    /// [`TeacherError::TooFewSamples`] below [`min_samples`](Self::min_samples);
    /// [`TeacherError::BadSample`].
    pub fn features(&self, samples: &[f32]) -> Result<Features, TeacherError> {
        self.features_with(samples, &mut Tap::off())
    }

    /// As [`features`](Self::features). `tap` sees `fbank` and `fbank_normalised [frames, bands]`,
    /// `input_features [tokens, 2 bands]` and `attention_mask [tokens]`.
    ///
    /// # Errors
    ///
    /// As [`features`](Self::features).
    pub fn features_with(&self, samples: &[f32], tap: &mut Tap) -> Result<Features, TeacherError> {
        let device = self.device();
        let show = |tap: &mut Tap, name: &str, mel: &Mel| {
            if tap.is_on() {
                let data = TensorData::new(mel.values.clone(), [mel.frames, mel.bands]);
                tap.record(name, &Tensor::<2>::from_data(data, (&device, DType::F32)));
            }
        };
        let mut fbank = self.front_end.fbank(samples)?;
        show(tap, "fbank", &fbank);
        normalise(&mut fbank);
        show(tap, "fbank_normalised", &fbank);
        let stacked = self.front_end.stack(fbank);
        let shape = [stacked.mask.len(), self.config.feature_projection_input_dim];
        let values = TensorData::new(stacked.values, shape);
        let values = Tensor::<2>::from_data(values, (&device, DType::F32));
        tap.record("input_features", &values);
        if tap.is_on() {
            let ones: Vec<i32> = stacked.mask.iter().map(|&seen| i32::from(seen)).collect();
            let data = TensorData::new(ones, [stacked.mask.len()]);
            let mask = Tensor::<1, Int>::from_data(data, (&device, DType::I32));
            tap.record("attention_mask", &mask);
        }
        Features::new(values, stacked.mask)
    }

    /// The output of layer `layers`, counted from 1, for one clip: `[tokens, hidden]`, f32; 0 gives
    /// the projected input. Layers after it are not run.
    ///
    /// Differentiable. `tap` sees `hidden0`, `hidden1`, .. up to the result. Memory grows with the
    /// length of the clip, on CPU devices not with its square.
    ///
    /// # Errors
    ///
    /// [`TeacherError::Layers`]; [`TeacherError::Features`] of another width than the model's.
    pub fn forward(
        &self,
        features: &Features,
        layers: usize,
        tap: &mut Tap,
    ) -> Result<Tensor<2>, TeacherError> {
        self.run(layers)?; // before anything is computed
        let x = self.project(features)?;
        tap.record("hidden0", &x);
        self.encode(x, features.mask(), layers, tap)
    }

    /// What the first layer reads: `[tokens, hidden]`, zeros for masked tokens.
    ///
    /// # Errors
    ///
    /// [`TeacherError::Features`] of another width than the model's.
    pub fn project(&self, features: &Features) -> Result<Tensor<2>, TeacherError> {
        let values = features.values();
        let ([_, found], expected) = (values.dims(), self.config.feature_projection_input_dim);
        if found != expected {
            return Err(TeacherError::Features(format!(
                "{found} values a token, expected {expected}"
            )));
        }
        let clip = Clip::new(features.mask(), self.config.hidden_size, &values.device());
        let FeatureProjection {
            layer_norm,
            projection,
        } = &self.feature_projection;
        Ok(clip.keep(projection.forward(layer_norm.forward(values))))
    }

    /// The first `layers` layers on `x [tokens, hidden]`, as [`project`](Self::project) makes it;
    /// `mask [tokens]` is false for masked tokens. `tap` sees `hidden1` and on.
    ///
    /// # Errors
    ///
    /// [`TeacherError::Layers`]; [`TeacherError::Features`] when shapes do not fit.
    pub fn encode(
        &self,
        mut x: Tensor<2>,
        mask: &[bool],
        layers: usize,
        tap: &mut Tap,
    ) -> Result<Tensor<2>, TeacherError> {
        let run = self.run(layers)?;
        let expected = [mask.len(), self.config.hidden_size];
        if x.dims() != expected {
            return Err(TeacherError::Features(format!(
                "hidden states {:?}, expected {expected:?}",
                x.dims()
            )));
        }
        let clip = Clip::new(mask, self.config.hidden_size, &x.device());
        for (i, layer) in run.iter().enumerate() {
            x = layer.forward(x, &clip, &self.config);
            tap.record(format_args!("hidden{}", i + 1), &x);
        }
        Ok(x)
    }

    fn run(&self, layers: usize) -> Result<&[Layer], TeacherError> {
        let loaded = self.layers();
        let run = self.encoder.layers.get(..layers);
        run.ok_or(TeacherError::Layers {
            asked: layers,
            loaded,
        })
    }

    /// The published name of the parameter at `path`, the dotted field path that Burn's
    /// [`ModuleVisitor`](burn::module::ModuleVisitor) walks.
    ///
    /// ```text
    /// encoder.layers.0.ffn1.output_dense.weight.weight  encoder.layers.0.ffn1.output_dense.weight
    /// ```
    pub fn checkpoint_name(path: &str) -> String {
        // A matrix is a module of its own, in one of several forms, whose names are capitalised.
        let parts: Vec<&str> = path
            .split('.')
            .filter(|part| !part.starts_with(char::is_uppercase))
            .collect();
        parts.join(".").replace(".weight.weight", ".weight")
    }
}
