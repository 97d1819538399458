//! Short-time Fourier transform and its inverse.

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use zonos_audio::stft::{PadMode, Stft as HostStft, StftConfig, StftError};
use zonos_kernels::ops::to_f32;

use super::dft::{Dft, factors};
use super::{ROWS, Tables, constant, fit, frames, host_values, join, overlap_add};

/// Short-time Fourier transform; sizes and conventions are those of [`StftConfig`].
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use zonos_audio::stft::StftConfig;
/// use zonos_nn::{Istft, Stft};
///
/// let config = StftConfig::hann(400, 160);
/// let x = Tensor::<2>::ones([1, 3200], &Device::flex());
/// let (re, im) = Stft::new(config.clone())?.forward(x)?;
/// assert_eq!(re.dims(), [1, 201, 21]);
/// let back = Istft::new(config)?.forward(re, im, Some(3200))?;
/// assert_eq!(back.dims(), [1, 3200]);
/// # Ok::<(), zonos_audio::stft::StftError>(())
/// ```
#[derive(Module, Debug)]
pub struct Stft {
    #[module(skip)]
    host: HostStft,
    #[module(skip)]
    tables: Tables<Table>,
}

impl Stft {
    /// Plans the transform.
    ///
    /// # Errors
    /// [`StftConfig::check`] refuses the sizes, or the tables for `n_fft` would be larger than 256 MiB,
    /// which those of primes above 5793 are, and of all numbers above 104,000.
    pub fn new(config: StftConfig) -> Result<Self, StftError> {
        Ok(Self {
            host: plan(config)?,
            tables: Tables::default(),
        })
    }

    /// Sizes and window.
    pub fn config(&self) -> &StftConfig {
        self.host.config()
    }

    /// `x [batch, samples]` -> real and imaginary parts, each `[batch, bins, frames]`, f32.
    ///
    /// # Errors
    /// [`StftError::TooShort`].
    pub fn forward(&self, x: Tensor<2>) -> Result<(Tensor<3>, Tensor<3>), StftError> {
        let x = to_f32(x);
        let [batch, samples] = x.dims();
        let frames = self.config().frames(samples)?;
        let bins = self.config().bins();
        if let Some(rows) = host_values(&x) {
            let (mut re, mut im) = (Vec::new(), Vec::new());
            for row in rows.chunks(samples.max(1)).take(batch) {
                let parts = self.host.forward_parts(row)?;
                append(&mut re, parts.0);
                append(&mut im, parts.1);
            }
            // Frames are rows in memory; turning them costs more than making them.
            let device = x.device();
            let part = |values| constant(values, [batch, frames, bins], &device).swap_dims(1, 2);
            return Ok((part(re), part(im)));
        }
        let both = self.spectra(x, frames, |both| both).swap_dims(1, 2);
        Ok((
            both.clone().slice([0..batch, 0..bins, 0..frames]),
            both.slice([0..batch, bins..2 * bins, 0..frames]),
        ))
    }

    /// Spectra `[batch, rows, 2 bins]`, real parts before imaginary ones, through `each` some rows at
    /// a time, joined along the rows.
    pub(super) fn spectra(
        &self,
        x: Tensor<2>,
        count: usize,
        each: impl Fn(Tensor<3>) -> Tensor<3>,
    ) -> Tensor<3> {
        let StftConfig { n_fft, hop, .. } = *self.config();
        let [batch, _] = x.dims();
        let x = pad(x, self.config());
        let table = self
            .tables
            .get(&x.device(), |d| Table::analysis(self.config(), d));
        let parts = (0..count).step_by(ROWS).map(|first| {
            let rows = ROWS.min(count - first);
            let part = first * hop..(first + rows - 1) * hop + n_fft;
            let part = frames(x.clone().slice([0..batch, part]), n_fft, hop, rows);
            each(table.dft.forward(part * table.window.clone()))
        });
        join(parts.collect(), 1)
    }
}

/// Inverse of [`Stft`] for any spectrum, also one that is no signal's: see
/// [`zonos_audio::stft::Stft::inverse`].
///
/// A vocoder's head with several resolutions has one of these for each. One that streams takes
/// [`frames`](Self::frames), [`overlap_add`] and [`window_sums`](Self::window_sums), and divides what
/// is final.
#[derive(Module, Debug)]
pub struct Istft {
    #[module(skip)]
    host: HostStft,
    #[module(skip)]
    tables: Tables<Table>,
}

impl Istft {
    /// Plans the transform.
    ///
    /// # Errors
    /// As [`Stft::new`].
    pub fn new(config: StftConfig) -> Result<Self, StftError> {
        Ok(Self {
            host: plan(config)?,
            tables: Tables::default(),
        })
    }

    /// Sizes and window.
    pub fn config(&self) -> &StftConfig {
        self.host.config()
    }

    /// `re` and `im`, each `[batch, bins, frames]` -> `[batch, samples]`, f32. With `length` the
    /// result has that many samples.
    ///
    /// # Errors
    /// Parts of other shapes; [`StftError::Uncovered`] where the squared windows add up to less than
    /// 1e-11.
    pub fn forward(
        &self,
        re: Tensor<3>,
        im: Tensor<3>,
        length: Option<usize>,
    ) -> Result<Tensor<2>, StftError> {
        let [batch, bins, count] = self.shape(&re, &im)?;
        let (start, natural) = self.config().kept(count);
        let length = length.unwrap_or(natural);
        let device = re.device();
        let (re, im) = (to_f32(re), to_f32(im));
        let rows = |x: &Tensor<3>| host_values(&x.clone().swap_dims(1, 2));
        if let (Some(re), Some(im)) = (rows(&re), rows(&im)) {
            let mut out = Vec::new();
            for (re, im) in re.chunks(bins * count).zip(im.chunks(bins * count)) {
                append(&mut out, self.host.inverse_parts(re, im, Some(length))?);
            }
            return Ok(constant(out, [batch, length], &device));
        }
        let sums = self.window_sums(count);
        let covered = length.min(sums.len().saturating_sub(start));
        let sums = &sums[start.min(sums.len())..][..covered];
        if let Some(sample) = sums.iter().position(|&s| s < StftConfig::SMALLEST_SUM) {
            return Err(StftError::Uncovered {
                sample,
                sum: sums[sample],
            });
        }
        if batch * covered == 0 {
            return Ok(super::zeros([batch, length], &device));
        }
        let sums = sums.iter().map(|&s| s as f32).collect();
        let sums = constant(sums, [1, covered], &device);
        // Cut before the division: outside of what is kept the sums may be zero, and a gradient of
        // zero divided by zero would not be zero.
        let kept = self
            .overlapped(re, im)
            .slice([0..batch, start..start + covered]);
        Ok(fit(kept / sums, 0, length))
    }

    /// Windowed frames `[batch, frames, n_fft]` of spectra `[batch, bins, frames]`, before they are
    /// added up.
    ///
    /// # Errors
    /// Parts of other shapes.
    pub fn frames(&self, re: Tensor<3>, im: Tensor<3>) -> Result<Tensor<3>, StftError> {
        self.shape(&re, &im)?;
        Ok(self.windowed(join(vec![to_f32(re), to_f32(im)], 1).swap_dims(1, 2)))
    }

    /// What the squared windows of `frames` frames add up to, `(frames - 1) hop + n_fft` values from
    /// the start of the first frame on.
    pub fn window_sums(&self, frames: usize) -> Vec<f64> {
        self.config().window_sums(frames)
    }

    fn shape(&self, re: &Tensor<3>, im: &Tensor<3>) -> Result<[usize; 3], StftError> {
        let ([batch, bins, count], expected) = (re.dims(), self.config().bins());
        if re.dims() != im.dims() || bins != expected || count == 0 {
            return Err(StftError::Spectrum {
                expected: format!(
                    "two parts of shape [batch, {expected}, frames], at least one frame"
                ),
                found: format!("{:?} and {:?}", re.dims(), im.dims()),
            });
        }
        Ok([batch, bins, count])
    }

    /// `[batch, rows, 2 bins]` -> `[batch, rows, n_fft]`.
    fn windowed(&self, both: Tensor<3>) -> Tensor<3> {
        let table = self
            .tables
            .get(&both.device(), |d| Table::synthesis(self.config(), d));
        table.dft.transposed(both * table.weights.clone()) * table.window.clone()
    }

    /// All frames added up, some rows at a time.
    fn overlapped(&self, re: Tensor<3>, im: Tensor<3>) -> Tensor<2> {
        let StftConfig { n_fft, hop, .. } = *self.config();
        let [batch, bins, count] = re.dims();
        let both = join(vec![re, im], 1).swap_dims(1, 2);
        let tail = n_fft.saturating_sub(hop);
        let mut parts: Vec<Tensor<2>> = Vec::new();
        let mut carry: Option<Tensor<2>> = None;
        for first in (0..count).step_by(ROWS) {
            let rows = ROWS.min(count - first);
            let part = both
                .clone()
                .slice([0..batch, first..first + rows, 0..2 * bins]);
            let mut part = fit(overlap_add(self.windowed(part), hop), 0, rows * hop + tail);
            if let Some(carry) = carry.take() {
                part = part + fit(carry, 0, rows * hop + tail);
            }
            if first + rows < count && tail > 0 {
                carry = Some(
                    part.clone()
                        .slice([0..batch, rows * hop..rows * hop + tail]),
                );
                part = part.slice([0..batch, 0..rows * hop]);
            }
            parts.push(part);
        }
        join(parts, 1)
    }
}

/// The first row is taken as it is: most batches have one.
fn append(all: &mut Vec<f32>, row: Vec<f32>) {
    if all.is_empty() {
        *all = row;
    } else {
        all.extend(row);
    }
}

fn plan(config: StftConfig) -> Result<HostStft, StftError> {
    config.check()?;
    if factors(config.n_fft).is_none() {
        return Err(StftError::Config(format!(
            "n_fft is {}, whose tables would be too large for a module: take a smaller one, or one of many \
             factors, such as a power of two",
            config.n_fft
        )));
    }
    HostStft::new(config)
}

/// Constants of a transform on a device.
#[derive(Debug, Clone)]
struct Table {
    dft: Dft,
    /// `[1, 1, n_fft]`, the scale of a normalised transform included.
    window: Tensor<3>,
    /// `[1, 1, 2 bins]`: what each part of the spectrum counts in the inverse. Inner bins stand for two
    /// of the full spectrum; imaginary parts of those without a mirror image count nothing, and get no
    /// gradient.
    weights: Tensor<3>,
}

impl Table {
    fn analysis(config: &StftConfig, device: &Device) -> Self {
        let scale = if config.normalized {
            (config.n_fft as f64).sqrt().recip()
        } else {
            1.0
        };
        Self::new(config, scale, device)
    }

    fn synthesis(config: &StftConfig, device: &Device) -> Self {
        let n = config.n_fft as f64;
        let scale = if config.normalized {
            n.sqrt().recip()
        } else {
            n.recip()
        };
        Self::new(config, scale, device)
    }

    fn new(config: &StftConfig, scale: f64, device: &Device) -> Self {
        let (n, bins) = (config.n_fft, config.bins());
        let window = config.full_window();
        let window = window.into_iter().map(|w| (f64::from(w) * scale) as f32);
        let alone = |k: usize| k == 0 || 2 * k == n;
        let re = (0..bins).map(|k| if alone(k) { 1.0 } else { 2.0 });
        let im = (0..bins).map(|k| if alone(k) { 0.0 } else { 2.0 });
        Self {
            // `plan` has refused what has no such factors.
            dft: Dft::new(factors(n).unwrap_or((1, n)), device),
            window: constant(window.collect(), [1, 1, n], device),
            weights: constant(re.chain(im).collect(), [1, 1, 2 * bins], device),
        }
    }
}

/// Ends as the framing has them. `x` is long enough.
fn pad(x: Tensor<2>, config: &StftConfig) -> Tensor<2> {
    let padding = config.padding();
    let [batch, samples] = x.dims();
    if padding == 0 {
        return x;
    }
    match config.pad_mode() {
        None | Some(PadMode::Zeros) => fit(x, padding, samples + 2 * padding),
        Some(PadMode::Reflect) => {
            let mirror = |part: std::ops::Range<usize>| x.clone().slice([0..batch, part]).flip([1]);
            let before = mirror(1..padding + 1);
            let after = mirror(samples - 1 - padding..samples - 1);
            Tensor::cat(vec![before, x, after], 1)
        }
        Some(PadMode::Edge) => {
            let repeat = |at: usize| {
                x.clone()
                    .slice([0..batch, at..at + 1])
                    .repeat_dim(1, padding)
            };
            let (before, after) = (repeat(0), repeat(samples - 1));
            Tensor::cat(vec![before, x, after], 1)
        }
    }
}
