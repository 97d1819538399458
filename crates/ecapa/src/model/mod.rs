//! The network.

mod block;
mod conv;
mod pooling;

pub use block::{Res2Net, SeRes2Net, SqueezeExcitation};
pub use conv::{Conv, Tdnn};
pub use pooling::AttentiveStatisticsPooling;

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use zonos_audio::Waveform;
use zonos_nn::Tap;

use crate::front_end::FrontEnd;
use crate::{EcapaConfig, EcapaError};

/// Largest magnitude of a sample. A thousand of them are summed into a level, which is squared in f32;
/// beyond this the levels would be infinite, or NaN, of which the floor below the logarithm makes
/// silence.
const LOUDEST: f32 = 1e15;

/// The speaker encoder. Field names are those of the checkpoint.
#[derive(Module, Debug)]
pub struct Ecapa {
    /// The convolution that reads mel bands, then the SE-Res2Net blocks.
    pub blocks: Vec<Block>,
    /// Joins what all SE-Res2Net blocks gave.
    pub mfa: Tdnn,
    /// Frames to one vector.
    pub asp: AttentiveStatisticsPooling,
    /// That vector to the voice vector; one tap.
    pub fc: Conv,
    #[module(skip)]
    config: EcapaConfig,
    #[module(skip)]
    front_end: FrontEnd,
}

/// A stage of [`Ecapa::blocks`].
#[derive(Module, Debug)]
#[allow(clippy::large_enum_variant)] // a handful of them in a model
pub enum Block {
    /// The first.
    Tdnn(Tdnn),
    /// All others.
    SeRes2Net(SeRes2Net),
}

impl Block {
    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        match self {
            Self::Tdnn(tdnn) => tdnn.forward(x),
            Self::SeRes2Net(block) => block.forward(x),
        }
    }
}

impl Ecapa {
    /// Puts the parts together; they must fit `config`.
    pub(crate) fn new(
        blocks: Vec<Block>,
        mfa: Tdnn,
        asp: AttentiveStatisticsPooling,
        fc: Conv,
        config: EcapaConfig,
        front_end: FrontEnd,
    ) -> Self {
        Self {
            blocks,
            mfa,
            asp,
            fc,
            config,
            front_end,
        }
    }

    /// Sizes.
    pub fn config(&self) -> &EcapaConfig {
        &self.config
    }

    /// Where the weights are.
    pub fn device(&self) -> Device {
        self.fc.bias.val().device()
    }

    /// The voice vector of `audio`, mono, at any rate: `[enc_dim]`.
    ///
    /// # Errors
    ///
    /// As [`log_mel`](Self::log_mel), and [`EcapaError::NotFinite`].
    pub fn embed(&self, audio: &Waveform) -> Result<Vec<f32>, EcapaError> {
        self.embed_mel(self.log_mel(audio)?)
    }

    /// The voice vector of mel frames `[1, frames, mel_dim]` as [`log_mel`](Self::log_mel) makes them:
    /// `[enc_dim]`; of several clips `[batch, ..]` all vectors, one after another.
    ///
    /// # Errors
    ///
    /// As [`forward`](Self::forward), and [`EcapaError::NotFinite`].
    pub fn embed_mel(&self, mel: Tensor<3>) -> Result<Vec<f32>, EcapaError> {
        let voice = self.forward(mel, &mut Tap::off())?.into_data();
        let voice = voice.convert::<f32>().try_into_vec::<f32>();
        let voice = voice.expect("converted to f32");
        match voice.iter().position(|x| !x.is_finite()) {
            None => Ok(voice),
            Some(index) => Err(EcapaError::NotFinite { index }),
        }
    }

    /// The encoder's input for `audio`, mono, at any rate: `[1, frames, mel_dim]`, natural logarithms.
    ///
    /// Brought to [`sample_rate`](EcapaConfig::sample_rate) as torchaudio's `Resample` transform does;
    /// `floor(samples / 256)` frames.
    ///
    /// # Errors
    ///
    /// [`EcapaError::TooFewSamples`] below [`EcapaConfig::min_samples`]; [`EcapaError::Rate`];
    /// [`EcapaError::BadSample`]; [`EcapaError::TooLoud`]; [`EcapaError::Mel`].
    pub fn log_mel(&self, audio: &Waveform) -> Result<Tensor<3>, EcapaError> {
        let bad = audio.samples().iter().position(|x| !x.is_finite());
        if let Some(index) = bad {
            // The floor below the logarithm would make silence of it.
            let value = audio.samples()[index];
            return Err(EcapaError::BadSample { index, value });
        }
        let audio = self.resample(audio)?;
        // NaN is what sums of infinities overflow to.
        let is_loud = |x: &f32| x.is_nan() || x.abs() > LOUDEST;
        if let Some(index) = audio.samples().iter().position(is_loud) {
            let value = audio.samples()[index];
            return Err(EcapaError::TooLoud { index, value });
        }
        let (found, least) = (audio.len(), self.config.min_samples());
        if found < least {
            let rate = audio.sample_rate();
            return Err(EcapaError::TooFewSamples { found, least, rate });
        }
        Ok(self.front_end.log_mel(audio.samples(), &self.device())?)
    }

    /// `audio` at the encoder's rate.
    ///
    /// # Errors
    ///
    /// [`EcapaError::Rate`].
    pub fn resample(&self, audio: &Waveform) -> Result<Waveform, EcapaError> {
        self.front_end.resample(audio)
    }

    /// Voice vectors `[batch, enc_dim]` of log-mel frames `[batch, frames, mel_dim]`, f32.
    ///
    /// Clips of a batch have the same length and do not see each other. Differentiable. `tap` sees
    /// `mel` as given, `block0`, `block1`, .., `mfa` as `[batch, channels, frames]`, `asp` as `[batch,
    /// channels]` and `emb`.
    ///
    /// # Errors
    ///
    /// [`EcapaError::Bands`]; [`EcapaError::TooFewFrames`] below [`EcapaConfig::min_frames`].
    pub fn forward(&self, mel: Tensor<3>, tap: &mut Tap) -> Result<Tensor<2>, EcapaError> {
        let [_, frames, bands] = mel.dims();
        if bands != self.config.mel_dim {
            return Err(EcapaError::Bands {
                expected: self.config.mel_dim,
                found: bands,
            });
        }
        let least = self.config.min_frames();
        if frames < least {
            let found = frames;
            return Err(EcapaError::TooFewFrames { found, least });
        }
        tap.record("mel", &mel);
        let mut x = mel.swap_dims(1, 2);
        let mut joined = Vec::with_capacity(self.config.blocks());
        for (i, block) in self.blocks.iter().enumerate() {
            x = block.forward(x);
            tap.record(format_args!("block{i}"), &x);
            if i > 0 {
                joined.push(x.clone());
            }
        }
        let x = self.mfa.forward(Tensor::cat(joined, 1));
        tap.record("mfa", &x);
        let pooled = self.asp.forward(x);
        tap.record("asp", &pooled);
        let voice = self.fc.affine(pooled);
        tap.record("emb", &voice);
        Ok(voice)
    }

    /// The checkpoint's name of the parameter at `path`, the dotted field path that Burn's
    /// [`ModuleVisitor`](burn::module::ModuleVisitor) walks: the same without names of enum variants.
    ///
    /// ```text
    /// blocks.1.SeRes2Net.tdnn1.conv.weight      blocks.1.tdnn1.conv.weight
    /// ```
    pub fn checkpoint_name(path: &str) -> String {
        let parts = path.split('.');
        let parts: Vec<&str> = parts
            .filter(|part| !part.starts_with(char::is_uppercase))
            .collect();
        parts.join(".")
    }
}
