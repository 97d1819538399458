//! Audio to log-mel frames.

use burn::tensor::{DType, Device, Tensor, TensorData};
use zonos_audio::Waveform;
use zonos_audio::mel::{MelConfig, MelError, MelSpectrogram};
use zonos_audio::resample::{ResampleRecipe, Resampler};

use crate::{EcapaConfig, EcapaError};

/// Level below which a band counts as silent, before the logarithm.
const FLOOR: f32 = 1e-5;

/// Resampling and mel bands as the encoder was trained with them; on the host, whatever the device of
/// the model.
#[derive(Debug, Clone)]
pub(crate) struct FrontEnd {
    mel: MelSpectrogram,
}

impl FrontEnd {
    pub(crate) fn new(config: &EcapaConfig) -> Result<Self, MelError> {
        let mel = MelSpectrogram::new(MelConfig {
            sample_rate: config.sample_rate as u32,
            bands: config.mel_dim,
            ..MelConfig::speaker()
        })?;
        Ok(Self { mel })
    }

    /// How mel bands are made.
    pub(crate) fn config(&self) -> MelConfig {
        self.mel.config().clone()
    }

    /// The filters, `[bins, bands]`.
    pub(crate) fn dense_bank(&self) -> Vec<f32> {
        self.mel.bank().dense()
    }

    /// See [`Ecapa::resample`](crate::Ecapa::resample).
    pub(crate) fn resample(&self, audio: &Waveform) -> Result<Waveform, EcapaError> {
        let (from, to) = (audio.sample_rate(), self.mel.config().sample_rate);
        let resampler = Resampler::new(from, to, ResampleRecipe::Transform);
        let resampler = resampler.map_err(|problem| EcapaError::Rate {
            from,
            to,
            problem: problem.to_string(),
        })?;
        Ok(Waveform::new(resampler.resample(audio.samples()), to))
    }

    /// `[1, frames, bands]` of samples at the encoder's rate.
    pub(crate) fn log_mel(&self, samples: &[f32], device: &Device) -> Result<Tensor<3>, MelError> {
        let mel = self.mel.log(samples, FLOOR)?;
        let data = TensorData::new(mel.values, [1, mel.frames, mel.bands]);
        Ok(Tensor::from_data(data, (device, DType::F32)))
    }
}
