//! Time to channels and back; the modules between which transformers stand.

use burn::module::Module;
use burn::tensor::Tensor;

use crate::Transformer;

/// A module of the decoder or of the acoustic encoder.
// There are nine of them in a codec, so their size does not matter.
#[allow(clippy::large_enum_variant)]
#[derive(Module, Debug)]
pub enum Stage {
    /// Keeps the rate.
    Transformer(Transformer),
    /// Changes the rate: up in a decoder, down in an encoder.
    Patch(Patch),
}

/// So many steps of time become channels, or the other way round.
#[derive(Module, Debug)]
pub struct Patch {
    /// Steps.
    #[module(skip)]
    pub size: usize,
}

/// `x [batch, time, channels * size]` -> `[batch, time * size, channels]`: output `[t size + j, c]` is
/// input `[t, c size + j]`.
pub fn patch_up(x: Tensor<3>, size: usize) -> Tensor<3> {
    let [batch, time, width] = x.dims();
    x.reshape([batch, time, width / size, size])
        .swap_dims(2, 3)
        .reshape([batch, time * size, width / size])
}

/// The inverse of [`patch_up`]: `x [batch, time * size, channels]` -> `[batch, time, channels * size]`.
pub fn patch_down(x: Tensor<3>, size: usize) -> Tensor<3> {
    let [batch, time, channels] = x.dims();
    x.reshape([batch, time / size, size, channels])
        .swap_dims(2, 3)
        .reshape([batch, time / size, channels * size])
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, TensorData};

    use super::*;

    #[test]
    fn time_is_the_fastest_index() {
        let values: Vec<f32> = (0..12).map(|i| i as f32).collect();
        let x = Tensor::<3>::from_data(TensorData::new(values.clone(), [1, 2, 6]), &Device::flex());
        let up = patch_up(x, 2);
        let found: Vec<f32> = up.clone().into_data().try_to_vec().unwrap();
        assert_eq!(found, [0., 2., 4., 1., 3., 5., 6., 8., 10., 7., 9., 11.]);
        let back: Vec<f32> = patch_down(up, 2).into_data().try_to_vec().unwrap();
        assert_eq!(back, values);
    }
}
