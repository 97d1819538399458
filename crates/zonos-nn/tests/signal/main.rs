//! Resampling, spectra and mel as modules: against `torch` and `torchaudio`, against the host, and
//! their gradients.

// The same goldens and settings as the host's.
#[allow(dead_code)]
#[path = "../../../zonos-audio/tests/dsp/golden.rs"]
mod golden;
#[path = "../../../zonos-audio/tests/dsp/settings.rs"]
mod settings;

mod forward;
mod gradients;

use burn::tensor::{DType, Device, Tensor, TensorData};

/// A tensor on the CPU that nothing tracks: modules take their host path.
fn plain<const D: usize>(values: Vec<f32>, shape: [usize; D]) -> Tensor<D> {
    Tensor::from_data(
        TensorData::new(values, shape),
        (&Device::flex(), DType::F32),
    )
}

/// A tensor whose gradient is asked for: modules are made of Burn's operations.
fn tracked<const D: usize>(values: Vec<f32>, shape: [usize; D]) -> Tensor<D> {
    let device = Device::flex().autodiff();
    Tensor::from_data(TensorData::new(values, shape), (&device, DType::F32)).require_grad()
}

fn values<const D: usize>(x: Tensor<D>) -> Vec<f32> {
    x.into_data().try_into_vec().unwrap()
}

fn noise(n: usize) -> Vec<f32> {
    let mut state = 3u32;
    (0..n)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        })
        .collect()
}
