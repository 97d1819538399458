//! Samples to latents.

use burn::module::Module;
use burn::tensor::Tensor;
use zonos_nn::{Conv1d, Edges, Snake, StridedConv1d, Tap};

use crate::model::ResidualUnit;

/// `conv_in`, blocks, `conv_out(snake_out(..))`: the decoder's mirror image.
#[derive(Module, Debug)]
pub struct Encoder {
    /// Seven taps, one channel to the first width.
    pub conv_in: Conv1d,
    /// Each doubles the channels and shortens the signal by its rate.
    pub blocks: Vec<EncoderBlock>,
    /// Before the last convolution.
    pub snake_out: Snake,
    /// Three taps, to the latents.
    pub conv_out: Conv1d,
}

/// Three residual units of dilation 1, 3 and 9, Snake, convolution with a stride.
#[derive(Module, Debug)]
pub struct EncoderBlock {
    /// Dilations 1, 3, 9.
    pub units: Vec<ResidualUnit>,
    /// Before the convolution with a stride.
    pub snake: Snake,
    /// Twice as many taps as its rate.
    pub down: StridedConv1d,
}

impl EncoderBlock {
    /// `x [batch, channels, time]` -> `[batch, 2 channels, time / rate]`.
    fn forward(&self, x: Tensor<3>, edges: Edges) -> Tensor<3> {
        let x = self
            .units
            .iter()
            .fold(x, |x, unit| unit.forward(x, edges).0);
        self.down.forward(x, Some(&self.snake), edges)
    }
}

impl Encoder {
    /// `x [batch, 1, samples]` -> `[batch, latent, frames]`: the frames of
    /// [`EncoderConfig::encoded_span`](crate::EncoderConfig::encoded_span).
    ///
    /// A whole signal is a multiple of the hop long. A window that begins inside a signal must begin
    /// where [`EncoderConfig::samples_needed`](crate::EncoderConfig::samples_needed) of its first
    /// frame does, and settle at least one frame.
    pub fn forward(&self, x: Tensor<3>, edges: Edges, tap: &mut Tap) -> Tensor<3> {
        let mut x = self.conv_in.forward(x, None, None, edges);
        tap.record("enc.0", &x);
        for (block, number) in self.blocks.iter().zip(1..) {
            x = block.forward(x, edges);
            tap.record(format_args!("enc.{number}"), &x);
        }
        let z = self.conv_out.forward(x, Some(&self.snake_out), None, edges);
        tap.record("enc.z", &z);
        z
    }
}
