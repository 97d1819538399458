//! Mel spectrograms.

use burn::module::Module;
use burn::tensor::Tensor;
use zonos_audio::mel::{Mel, MelConfig, MelError, MelPower, MelSpectrogram as HostMelSpectrogram};
use zonos_kernels::ops::to_f32;

use super::{Stft, Tables, constant, host_values, product};

/// [`zonos_audio::mel`] as a module.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use zonos_audio::mel::MelConfig;
/// use zonos_nn::MelSpectrogram;
///
/// let front_end = MelSpectrogram::new(MelConfig::speaker())?;
/// let x = Tensor::<2>::zeros([1, 2560], &Device::flex());
/// assert_eq!(front_end.log(x, 1e-5)?.dims(), [1, 10, 128]);
/// # Ok::<(), zonos_audio::mel::MelError>(())
/// ```
#[derive(Module, Debug)]
pub struct MelSpectrogram {
    #[module(skip)]
    host: HostMelSpectrogram,
    stft: Stft,
    #[module(skip)]
    banks: Tables<Tensor<2>>,
}

impl MelSpectrogram {
    /// Plans the transform and makes the bands.
    ///
    /// # Errors
    /// Sizes, rates or frequencies that do not fit together; an `n_fft` that [`Stft`] refuses.
    pub fn new(config: MelConfig) -> Result<Self, MelError> {
        Ok(Self {
            stft: Stft::new(config.stft())?,
            host: HostMelSpectrogram::new(config)?,
            banks: Tables::default(),
        })
    }

    /// Sizes and scales.
    pub fn config(&self) -> &MelConfig {
        self.host.config()
    }

    /// What runs on the host, for signals that are no tensors.
    pub fn host(&self) -> &HostMelSpectrogram {
        &self.host
    }

    /// `x [batch, samples]` -> `[batch, frames, bands]`, f32.
    ///
    /// # Errors
    /// The signal is too short for its framing.
    pub fn linear(&self, x: Tensor<2>) -> Result<Tensor<3>, MelError> {
        match self.on_host(&x, |row| self.host.linear(row)) {
            Some(done) => done,
            None => self.levels(x),
        }
    }

    /// `ln(max(linear, floor))`, the shape of [`linear`](Self::linear). No gradient passes where the
    /// floor acts.
    ///
    /// # Errors
    /// As [`linear`](Self::linear).
    pub fn log(&self, x: Tensor<2>, floor: f32) -> Result<Tensor<3>, MelError> {
        match self.on_host(&x, |row| self.host.log(row, floor)) {
            Some(done) => done,
            None => Ok(self.levels(x)?.clamp_min(floor).log()),
        }
    }

    fn on_host(
        &self,
        x: &Tensor<2>,
        run: impl Fn(&[f32]) -> Result<Mel, MelError>,
    ) -> Option<Result<Tensor<3>, MelError>> {
        let [batch, samples] = x.dims();
        let rows = host_values(x)?;
        let run = || {
            let frames = self.stft.config().frames(samples)?;
            let mut values = Vec::with_capacity(batch * frames * self.config().bands);
            for row in rows.chunks(samples.max(1)).take(batch) {
                values.extend(run(row)?.values);
            }
            let shape = [batch, frames, self.config().bands];
            Ok(constant(values, shape, &x.device()))
        };
        Some(run())
    }

    fn levels(&self, x: Tensor<2>) -> Result<Tensor<3>, MelError> {
        let x = to_f32(x);
        let frames = self.stft.config().frames(x.dims()[1])?;
        let bins = self.stft.config().bins();
        let bank = self.banks.get(&x.device(), |device| {
            let bank = self.host.bank();
            constant(bank.dense(), [bank.bins(), bank.bands()], device)
        });
        Ok(self.stft.spectra(x, frames, |both| {
            let [batch, rows, _] = both.dims();
            let part = |from: usize| both.clone().slice([0..batch, 0..rows, from..from + bins]);
            let (re, im) = (part(0), part(bins));
            let energy = re.clone() * re + im.clone() * im;
            let level = match self.config().power {
                MelPower::Energy => energy,
                MelPower::Magnitude => root(energy),
            };
            product(level, bank.clone())
        }))
    }
}

/// The square root, whose gradient at 0 is 0, as that of the magnitude of a complex number is in
/// `torch`, and not infinite.
fn root(x: Tensor<3>) -> Tensor<3> {
    let zero = x.clone().equal_elem(0.0);
    x.mask_fill(zero.clone(), 1.0).sqrt().mask_fill(zero, 0.0)
}
