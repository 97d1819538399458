//! From features to a waveform, through spectra of one or more resolutions.

use burn::module::Module;
use burn::tensor::Tensor;
use zonos_audio::stft::{Framing, PadMode, StftConfig, StftError, hann_window};
use zonos_nn::{Dense, Istft, LayerNorm, Tap};

use crate::convnext::{ConvNextStack, ConvNextState};
use crate::{Combine, HeadConfig};

/// Beyond this log-magnitude a magnitude is cut anyway; keeps its gradient a number.
const MAX_LOG: f32 = 80.0;

/// Trunk, normalisation, and for each resolution a matrix and an inverse transform.
///
/// A feature `x` gives `[m, p] = W x + b`, the spectrum `min(e^m, clip) (cos p + i sin p)`, and with it
/// a frame of the waveform. Source: Siuzdak 2023, arXiv:2306.00814, with several resolutions.
#[derive(Module, Debug)]
pub struct IstftHead {
    /// In front of the normalisation.
    pub trunk: ConvNextStack,
    /// In front of the matrices.
    pub norm: LayerNorm,
    /// `[n_fft + 2, dim]`, one a resolution: log-magnitudes, then phases.
    pub out: Vec<Dense>,
    /// One a resolution.
    istft: Vec<Istft>,
    #[module(skip)]
    config: HeadConfig,
}

/// Where a stream of an [`IstftHead`] stands.
#[derive(Debug, Clone)]
pub struct HeadState {
    trunk: ConvNextState,
    /// Features taken.
    taken: usize,
    /// Samples given.
    given: usize,
    /// Of each resolution, spectra that later samples need.
    spectra: Vec<Past>,
}

/// Real and imaginary parts `[batch, frames, bins]` of the frames from `first` on.
#[derive(Debug, Clone, Default)]
struct Past {
    parts: Option<[Tensor<3>; 2]>,
    first: usize,
}

impl IstftHead {
    /// Puts the parts together; they must fit `config`. A window that is `None` is a periodic Hann
    /// window.
    ///
    /// # Errors
    ///
    /// Windows that cannot be divided out again, or whose transform is not to be had.
    pub(crate) fn new(
        trunk: ConvNextStack,
        norm: LayerNorm,
        out: Vec<Dense>,
        windows: Vec<Option<Vec<f32>>>,
        config: HeadConfig,
    ) -> Result<Self, StftError> {
        let transform = |(window, &n_fft): (Option<Vec<f32>>, &usize)| {
            let stft = StftConfig {
                n_fft,
                hop: config.hop_length,
                window: window.unwrap_or_else(|| hann_window(n_fft, true)),
                framing: Framing::Same(PadMode::Zeros),
                normalized: false,
            };
            let istft = Istft::new(stft)?;
            covered(&istft)?;
            Ok(istft)
        };
        let istft = windows.into_iter().zip(&config.n_fft).map(transform);
        Ok(Self {
            trunk,
            norm,
            out,
            istft: istft.collect::<Result<_, StftError>>()?,
            config,
        })
    }

    /// What comes before the matrices: `x [batch, time, dim]` -> the same shape.
    pub fn features(&self, x: Tensor<3>, state: Option<&mut ConvNextState>) -> Tensor<3> {
        self.norm.forward(self.trunk.forward(x, state))
    }

    /// Real and imaginary parts, `[batch, time, n_fft / 2 + 1]` each, of resolution `r`.
    fn spectrum(&self, features: Tensor<3>, r: usize) -> [Tensor<3>; 2] {
        let [batch, time, dim] = features.dims();
        let both = self.out[r].forward(features.reshape([batch * time, dim]));
        let bins = self.config.n_fft[r] / 2 + 1;
        let both = both.reshape([batch, time, 2 * bins]);
        let magnitude = both.clone().narrow(2, 0, bins).clamp_max(MAX_LOG).exp();
        let magnitude = magnitude.clamp_max(self.config.mag_clip);
        let phase = both.narrow(2, bins, bins);
        [
            magnitude.clone() * phase.clone().cos(),
            magnitude * phase.sin(),
        ]
    }

    fn combined(&self, waves: Vec<Tensor<2>>) -> Tensor<2> {
        let count = waves.len();
        let sum = waves.into_iter().reduce(|sum, wave| sum + wave);
        let sum = sum.expect("at least one resolution");
        match self.config.combine {
            Combine::Sum => sum,
            Combine::Mean => sum / count as f64,
        }
    }

    /// A whole signal's waveform of its features: `[batch, time, dim]` -> `[batch, time * hop]`.
    /// `tap` sees `specR.re`, `specR.im` and `audioR` of each resolution R.
    ///
    /// # Errors
    ///
    /// None that construction has not refused.
    pub fn waveform(&self, features: Tensor<3>, tap: &mut Tap) -> Result<Tensor<2>, StftError> {
        let [_, time, _] = features.dims();
        let samples = time * self.config.hop_length;
        let mut waves = Vec::with_capacity(self.istft.len());
        for (r, istft) in self.istft.iter().enumerate() {
            let [re, im] = self.spectrum(features.clone(), r);
            tap.record(format_args!("spec{r}.re"), &re);
            tap.record(format_args!("spec{r}.im"), &im);
            let wave = istft.forward(re.swap_dims(1, 2), im.swap_dims(1, 2), Some(samples))?;
            tap.record(format_args!("audio{r}"), &wave);
            waves.push(wave);
        }
        Ok(self.combined(waves))
    }

    /// A stream at its start.
    pub fn begin(&self) -> HeadState {
        HeadState {
            trunk: self.trunk.begin(),
            taken: 0,
            given: 0,
            spectra: vec![Past::default(); self.istft.len()],
        }
    }

    /// Takes `x [batch, time, dim]` of a stream and gives the samples that are final now, `[batch,
    /// samples]`; `None` where there are none.
    ///
    /// # Errors
    ///
    /// As [`waveform`](Self::waveform).
    pub fn push(
        &self,
        x: Tensor<3>,
        state: &mut HeadState,
    ) -> Result<Option<Tensor<2>>, StftError> {
        let features = self.features(x, Some(&mut state.trunk));
        state.taken += features.dims()[1];
        for (r, past) in state.spectra.iter_mut().enumerate() {
            let new = self.spectrum(features.clone(), r).map(Tensor::detach);
            past.parts = Some(match past.parts.take() {
                None => new,
                Some(old) => {
                    let mut pairs = old.into_iter().zip(new);
                    [(); 2].map(|()| {
                        let (old, new) = pairs.next().expect("two parts");
                        Tensor::cat(vec![old, new], 1)
                    })
                }
            });
        }
        // The longest window decides for all: their sum is final when each part is.
        let end = (state.taken * self.config.hop_length).saturating_sub(self.config.padding());
        self.give(state, end)
    }

    /// Ends a stream: the rest of its samples.
    ///
    /// # Errors
    ///
    /// As [`waveform`](Self::waveform).
    pub fn flush(&self, state: &mut HeadState) -> Result<Option<Tensor<2>>, StftError> {
        self.give(state, state.taken * self.config.hop_length)
    }

    /// Samples `given..end`, and forgets the frames that no later sample needs.
    fn give(&self, state: &mut HeadState, end: usize) -> Result<Option<Tensor<2>>, StftError> {
        if end <= state.given {
            return Ok(None);
        }
        let hop = self.config.hop_length;
        let mut waves = Vec::with_capacity(self.istft.len());
        for (istft, past) in self.istft.iter().zip(&mut state.spectra) {
            let Some([re, im]) = &past.parts else {
                return Ok(None);
            };
            // As if the signal began with the first frame that is held: where it does not, that frame
            // lies so far back that it and what is missing before it do not reach what is given.
            let start = past.first * hop;
            let turned = |x: &Tensor<3>| x.clone().swap_dims(1, 2);
            let wave = istft.forward(turned(re), turned(im), Some(end - start))?;
            waves.push(wave.narrow(1, state.given - start, end - state.given));
            let first = first_needed(istft.config(), end);
            let [_, held, _] = re.dims();
            let drop = (first - past.first).min(held);
            if drop > 0 {
                past.first += drop;
                past.parts = (held > drop).then(|| {
                    // Copies: views would keep all of the spectra alive.
                    [re, im].map(|x| Tensor::cat(vec![x.clone().narrow(1, drop, held - drop)], 1))
                });
            }
        }
        state.given = end;
        Ok(Some(self.combined(waves)))
    }
}

/// The first frame that samples from `sample` on depend on, taken so early that the frames in front of
/// it reach none of them.
fn first_needed(config: &StftConfig, sample: usize) -> usize {
    (sample + config.padding() + 1).saturating_sub(config.n_fft) / config.hop
}

/// Refuses windows that leave a sample which nothing can be divided by.
fn covered(istft: &Istft) -> Result<(), StftError> {
    let config = istft.config();
    let overlap = config.n_fft.div_ceil(config.hop);
    for frames in [1, 2, 2 * overlap + 2] {
        let sums = istft.window_sums(frames);
        let (start, length) = config.kept(frames);
        let kept = &sums[start..start + length];
        if let Some(sample) = kept.iter().position(|&s| s < StftConfig::SMALLEST_SUM) {
            return Err(StftError::Uncovered {
                sample,
                sum: kept[sample],
            });
        }
    }
    Ok(())
}
