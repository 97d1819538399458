//! Sample-rate conversion.

use burn::module::Module;
use burn::tensor::{DType, Int, Tensor, TensorData};
use zonos_audio::resample::{ResampleError, ResampleKernel, ResampleRecipe, Resampler};
use zonos_kernels::ops::to_f32;

use super::{ROWS, Tables, constant, fit, frames, host_values, join, product};

/// [`zonos_audio::resample`] as a module.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use zonos_audio::ResampleRecipe;
/// use zonos_nn::Resample;
///
/// let resample = Resample::new(44_100, 24_000, ResampleRecipe::Transform)?;
/// let x = Tensor::<2>::zeros([2, 44_100], &Device::flex());
/// assert_eq!(resample.forward(x).dims(), [2, 24_000]);
/// # Ok::<(), zonos_audio::ResampleError>(())
/// ```
#[derive(Module, Debug)]
pub struct Resample {
    #[module(skip)]
    resampler: Resampler,
    #[module(skip)]
    tables: Tables<Table>,
}

/// Samples that a row of the matrix product covers at least: enough to fill vector units when a frame
/// is one or two samples.
const ROW: usize = 256;
/// Largest matrix, in values (16 MiB). Rates with a small common divisor go tap by tap.
const MATRIX: usize = 1 << 22;

/// The filter on a device.
#[derive(Debug, Clone)]
enum Table {
    /// `group` frames side by side: `[group orig + 2 width, group new]`, zero off the band.
    Matrix { group: usize, matrix: Tensor<2> },
    /// Taps `[span, new]`.
    Taps(Tensor<2>),
}

impl Resample {
    /// From `from` Hz to `to` Hz.
    ///
    /// # Errors
    /// A rate is 0 or above [`MAX_RATE`](zonos_audio::resample::MAX_RATE).
    pub fn new(from: u32, to: u32, recipe: ResampleRecipe) -> Result<Self, ResampleError> {
        Ok(Self::from_resampler(Resampler::new(from, to, recipe)?))
    }

    /// Applies a filter from elsewhere, for example one stored in a checkpoint.
    pub fn with_kernel(kernel: ResampleKernel) -> Self {
        Self::from_resampler(Resampler::with_kernel(kernel))
    }

    fn from_resampler(resampler: Resampler) -> Self {
        Self {
            resampler,
            tables: Tables::default(),
        }
    }

    /// What runs on the host, for signals that are no tensors.
    pub fn resampler(&self) -> &Resampler {
        &self.resampler
    }

    /// `x [batch, samples]` -> `[batch, output_len(samples)]`, f32.
    pub fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let x = to_f32(x);
        let [batch, samples] = x.dims();
        let length = self.resampler.output_len(samples);
        let Some(kernel) = self.resampler.kernel() else {
            return x;
        };
        let device = x.device();
        if batch * length == 0 {
            return super::zeros([batch, length], &device);
        }
        if let Some(rows) = host_values(&x) {
            let out: Vec<f32> = rows
                .chunks_exact(samples)
                .flat_map(|row| self.resampler.resample(row))
                .collect();
            return constant(out, [batch, length], &device);
        }
        match self
            .tables
            .get(&device, |device| Table::new(kernel, device))
        {
            Table::Matrix { group, matrix } => by_matrix(x, kernel, group, &matrix, length),
            Table::Taps(taps) => by_taps(x, kernel, &taps, length),
        }
    }
}

impl Table {
    fn new(kernel: &ResampleKernel, device: &burn::tensor::Device) -> Self {
        let (orig, new, width) = (kernel.orig_rate(), kernel.new_rate(), kernel.width());
        let group = ROW.div_ceil(orig);
        let (rows, columns) = (group * orig + 2 * width, group * new);
        if rows.saturating_mul(columns) <= MATRIX {
            let mut matrix = vec![0.0; rows * columns];
            for phase in 0..new {
                let (start, taps) = kernel.phase(phase);
                for frame in 0..group {
                    let column = frame * new + phase;
                    for (i, &tap) in taps.iter().enumerate().filter(|(_, t)| **t != 0.0) {
                        matrix[(frame * orig + start + i) * columns + column] = tap;
                    }
                }
            }
            let matrix = constant(matrix, [rows, columns], device);
            return Self::Matrix { group, matrix };
        }
        let span = kernel.phase(0).1.len();
        let taps = (0..span).flat_map(|i| (0..new).map(move |phase| kernel.phase(phase).1[i]));
        Self::Taps(constant(taps.collect(), [span, new], device))
    }
}

/// Rows of `group` frames with what they see before and after, times the filter.
fn by_matrix(
    x: Tensor<2>,
    kernel: &ResampleKernel,
    group: usize,
    matrix: &Tensor<2>,
    length: usize,
) -> Tensor<2> {
    let [batch, _] = x.dims();
    let [size, columns] = matrix.dims();
    let hop = group * kernel.orig_rate();
    let rows = length.div_ceil(columns);
    let x = fit(x, kernel.width(), (rows - 1) * hop + size);
    let parts = (0..rows).step_by(ROWS).map(|first| {
        let count = ROWS.min(rows - first);
        let part = first * hop..(first + count - 1) * hop + size;
        let part = frames(x.clone().slice([0..batch, part]), size, hop, count);
        product(part, matrix.clone()).reshape([batch, count * columns])
    });
    join(parts.collect(), 1).slice([0..batch, 0..length])
}

/// One tap of every phase at a time, picked from the signal by position.
fn by_taps(x: Tensor<2>, kernel: &ResampleKernel, taps: &Tensor<2>, length: usize) -> Tensor<2> {
    let device = x.device();
    let [batch, _] = x.dims();
    let [span, new] = taps.dims();
    let count = length.div_ceil(new);
    let positions: Vec<i32> = (0..count)
        .flat_map(|frame| (0..new).map(move |phase| (frame, phase)))
        .map(|(frame, phase)| (frame * kernel.orig_rate() + kernel.phase(phase).0) as i32)
        .collect();
    let reach = positions.iter().max().map_or(0, |&p| p as usize) + span;
    let positions = Tensor::<1, Int>::from_data(
        TensorData::new(positions, [count * new]),
        (&device, DType::I32),
    );
    let x = fit(x, kernel.width(), reach);
    let mut sum: Option<Tensor<3>> = None;
    for i in 0..span {
        let picked = x
            .clone()
            .select(1, positions.clone() + i as i32)
            .reshape([batch, count, new]);
        let tap = taps.clone().slice([i..i + 1, 0..new]).unsqueeze::<3>();
        let part = picked * tap;
        sum = Some(match sum {
            Some(sum) => sum + part,
            None => part,
        });
    }
    match sum {
        Some(sum) => sum
            .reshape([batch, count * new])
            .slice([0..batch, 0..length]),
        None => super::zeros([batch, length], &device),
    }
}
