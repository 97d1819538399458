//! Resampling, spectra and mel spectrograms as modules: differentiable, on any device, in time
//! proportional to the signal's length.
//!
//! The numbers come from [`zonos_audio`]: filters, windows and mel bands are made there, once, and
//! these modules hold them as constants of the device that a signal lies on. They have no parameters
//! and nothing to save. The work is matrix products over overlapping frames ([`frames`],
//! [`overlap_add`]); on CPU devices a signal that no gradient is asked for takes the fast path of
//! [`zonos_audio`] instead.

mod dft;
mod frames;
mod mel;
mod resample;
mod stft;

use std::sync::{Arc, Mutex, PoisonError};

use burn::tensor::{DType, Device, Tensor, TensorData};
use zonos_kernels::device::is_cpu;
use zonos_kernels::ops::to_f32;

pub use frames::{frames, overlap_add};
pub use mel::MelSpectrogram;
pub use resample::Resample;
pub use stft::{Istft, Stft};

/// Frames that are multiplied at once: bounds memory, and keeps a GPU's grids small, however long
/// the signal.
const ROWS: usize = 1 << 13;

/// Constants, made once for each device that asks.
#[derive(Debug)]
struct Tables<T>(Arc<Mutex<Vec<(Device, T)>>>);

impl<T> Clone for Tables<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Default for Tables<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T: Clone> Tables<T> {
    fn get(&self, device: &Device, make: impl FnOnce(&Device) -> T) -> T {
        // A panic while making an entry leaves the list as it was.
        let mut list = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, found)) = list.iter().find(|(d, _)| d == device) {
            return found.clone();
        }
        let made = make(device);
        list.push((device.clone(), made.clone()));
        made
    }
}

/// The values of `x` in host memory, if that is where they lie and nothing tracks what becomes of
/// them.
fn host_values<const D: usize>(x: &Tensor<D>) -> Option<Vec<f32>> {
    if x.is_tracked() || !is_cpu(&x.device()) {
        return None;
    }
    to_f32(x.clone()).into_data().try_into_vec().ok()
}

fn constant<const D: usize>(values: Vec<f32>, shape: [usize; D], device: &Device) -> Tensor<D> {
    Tensor::from_data(TensorData::new(values, shape), (device, DType::F32))
}

fn zeros<const D: usize>(shape: [usize; D], device: &Device) -> Tensor<D> {
    Tensor::zeros(shape, (device, DType::F32))
}

/// `x [batch, samples]` with zeros before it, and zeros after it or its end cut, so that it has
/// `length` samples.
fn fit(x: Tensor<2>, before: usize, length: usize) -> Tensor<2> {
    let device = x.device();
    let [batch, samples] = x.dims();
    let kept = samples.min(length.saturating_sub(before));
    let after = length - before - kept;
    let mut parts = Vec::with_capacity(3);
    if before > 0 {
        parts.push(zeros([batch, before], &device));
    }
    if kept > 0 {
        parts.push(x.slice([0..batch, 0..kept]));
    }
    if after > 0 {
        parts.push(zeros([batch, after], &device));
    }
    join(parts, 1)
}

fn join<const D: usize>(mut parts: Vec<Tensor<D>>, dim: usize) -> Tensor<D> {
    if parts.len() == 1 {
        parts.swap_remove(0)
    } else {
        Tensor::cat(parts, dim)
    }
}

/// `x [batch, rows, in]`, `matrix [in, out]` -> `[batch, rows, out]`.
fn product(x: Tensor<3>, matrix: Tensor<2>) -> Tensor<3> {
    let [batch, rows, width] = x.dims();
    let [_, out] = matrix.dims();
    x.reshape([batch * rows, width])
        .matmul(matrix)
        .reshape([batch, rows, out])
}
