//! The codec and its decoder.

use burn::module::Module;
use burn::tensor::{Int, Tensor, TensorData};
use zonos_audio::{CodeLimits, Codes, Waveform};
use zonos_nn::{Conv1d, ConvTranspose1d, Edges, Snake, Tap};

use crate::quantizer::Quantizer;
use crate::{DacConfig, DacError, DacStream, Encoder};

/// Seconds of audio that [`Dac::decode`] works on at a time: long enough that the frames of context
/// cost little, short enough that activations stay in cache and memory stays bounded.
const WINDOW_SECONDS: f64 = 1.0;

/// The codec.
#[derive(Module, Debug)]
pub struct Dac {
    /// Samples to latents, where the file has it and it was asked for.
    pub encoder: Option<Encoder>,
    /// Latents to codes, codes to latents.
    pub quantizer: Quantizer,
    /// Latents to samples.
    pub decoder: Decoder,
    #[module(skip)]
    config: DacConfig,
    /// Where the weights come from, for messages.
    #[module(skip)]
    file: String,
}

/// `conv_in`, blocks, `conv_out(snake_out(..))`, tanh.
#[derive(Module, Debug)]
pub struct Decoder {
    /// Seven taps, latents to `decoder_dim`.
    pub conv_in: Conv1d,
    /// Each halves the channels and lengthens the signal by its rate.
    pub blocks: Vec<DecoderBlock>,
    /// Before the last convolution.
    pub snake_out: Snake,
    /// Seven taps, to one channel.
    pub conv_out: Conv1d,
}

/// Snake, transposed convolution, three residual units of dilation 1, 3 and 9.
#[derive(Module, Debug)]
pub struct DecoderBlock {
    /// Before the transposed convolution.
    pub snake: Snake,
    /// Twice as many taps as its rate.
    pub up: ConvTranspose1d,
    /// Dilations 1, 3, 9.
    pub units: Vec<ResidualUnit>,
}

/// `x + conv2(snake2(conv1(snake1(x))))`.
#[derive(Module, Debug)]
pub struct ResidualUnit {
    /// Before the dilated convolution.
    pub snake1: Snake,
    /// Seven taps, dilated.
    pub conv1: Conv1d,
    /// Before the second convolution.
    pub snake2: Snake,
    /// One tap.
    pub conv2: Conv1d,
}

impl ResidualUnit {
    /// `x [batch, channels, time]`; also gives what `conv1` made.
    pub(crate) fn forward(&self, x: Tensor<3>, edges: Edges) -> (Tensor<3>, Tensor<3>) {
        let inner = self
            .conv1
            .forward(x.clone(), Some(&self.snake1), None, edges);
        // Where the signal goes on, the convolution has consumed the border.
        let (start, end) = edges.choose(0, self.conv1.padding());
        let time = x.dims()[2];
        let x = if start + end > 0 {
            x.narrow(2, start, time - start - end)
        } else {
            x
        };
        let y = self
            .conv2
            .forward(inner.clone(), Some(&self.snake2), Some(x), edges);
        (y, inner)
    }
}

impl DecoderBlock {
    /// `x [batch, channels, time]` -> `[batch, channels / 2, ~ time * rate]`.
    fn forward(&self, x: Tensor<3>, edges: Edges, number: usize, tap: &mut Tap) -> Tensor<3> {
        // Stages inside a block are golden keys of the first block alone.
        let detailed = number == 1 && tap.is_on();
        if detailed {
            tap.record("dec.1.snake", &self.snake.forward(x.clone()));
        }
        let mut x = self.up.forward(x, Some(&self.snake), edges);
        tap.record(format_args!("dec.{number}.up"), &x);
        for (unit, r) in self.units.iter().zip(1..) {
            let (y, inner) = unit.forward(x, edges);
            if detailed && r == 1 {
                tap.record("dec.1.res1.conv1", &inner);
            }
            if detailed {
                tap.record(format_args!("dec.1.res{r}"), &y);
            }
            x = y;
        }
        tap.record(format_args!("dec.{number}"), &x);
        x
    }
}

impl Decoder {
    /// `z [batch, latent, frames]` -> `[batch, 1, samples]`: the samples of
    /// [`DacConfig::decoded_span`]. The frames must settle at least one.
    pub fn forward(&self, z: Tensor<3>, edges: Edges, tap: &mut Tap) -> Tensor<3> {
        let mut x = self.conv_in.forward(z, None, None, edges);
        tap.record("dec.0", &x);
        for (block, number) in self.blocks.iter().zip(1..) {
            x = block.forward(x, edges, number, tap);
        }
        if tap.is_on() {
            tap.record("dec.snake_out", &self.snake_out.forward(x.clone()));
        }
        let y = self.conv_out.forward(x, Some(&self.snake_out), None, edges);
        tap.record("dec.pre_tanh", &y);
        y.tanh()
    }
}

impl Dac {
    /// Puts the parts together; they must fit `config`.
    pub(crate) fn new(
        encoder: Option<Encoder>,
        quantizer: Quantizer,
        decoder: Decoder,
        config: DacConfig,
        file: String,
    ) -> Self {
        Self {
            encoder,
            quantizer,
            decoder,
            config,
            file,
        }
    }

    /// Sizes.
    pub fn config(&self) -> &DacConfig {
        &self.config
    }

    /// Where the weights come from.
    pub(crate) fn file(&self) -> &str {
        &self.file
    }

    /// What [`Codes::check`] needs to know about this codec.
    pub fn limits(&self) -> CodeLimits {
        CodeLimits::uniform(self.config.n_codebooks, self.config.codebook_size)
    }

    /// Decodes `codes [frames, codebooks]`; with fewer codebooks than the model has, those given.
    ///
    /// Works through the signal in windows, which give the samples of one whole pass: bit for bit on
    /// the Flex device, to rounding (1e-6) elsewhere.
    ///
    /// # Errors
    ///
    /// [`DacError::Codes`] names the frame and codebook of the first code out of range;
    /// [`DacError::Empty`].
    pub fn decode(&self, codes: &Codes) -> Result<Waveform, DacError> {
        if codes.is_empty() {
            return Err(DacError::Empty);
        }
        let mut stream = self.stream(1);
        let samples = stream.push_and_flush(codes)?;
        Ok(Waveform::new(samples, self.config.sample_rate as u32))
    }

    /// Decodes codes as they arrive, at least `block` frames at a time (a block costs the same
    /// context whatever its size, so small blocks are quick to begin and slower in all).
    pub fn stream(&self, block: usize) -> DacStream<'_> {
        DacStream::new(self, block)
    }

    /// One whole pass: `codes [batch, codebooks, frames]`, in range, -> `[batch, 1, samples]`.
    ///
    /// Differentiable. `tap` sees `codes`, `z_q`, `dec.0`, `dec.{i}.up`, `dec.{i}`,
    /// `dec.snake_out`, `dec.pre_tanh`, `wav`, and stages inside block 1.
    pub fn decode_tensor(&self, codes: Tensor<3, Int>, tap: &mut Tap) -> Tensor<3> {
        tap.record("codes", &codes);
        let z = self.quantizer.from_codes(codes);
        tap.record("z_q", &z);
        let y = self.decoder.forward(z, Edges::WHOLE, tap);
        tap.record("wav", &y);
        y
    }

    /// Frames of a decoding window.
    pub(crate) fn window_frames(&self) -> usize {
        let frames = WINDOW_SECONDS * self.config.sample_rate as f64 / self.config.hop() as f64;
        (frames.ceil() as usize).max(1)
    }

    /// Decodes checked rows `[frames, codebooks]`: the samples of [`DacConfig::decoded_span`].
    pub(crate) fn decode_window(&self, rows: &[i32], codebooks: usize, edges: Edges) -> Vec<f32> {
        let frames = rows.len() / codebooks;
        let mut values = vec![0i32; rows.len()];
        for (t, row) in rows.chunks_exact(codebooks).enumerate() {
            for (q, &code) in row.iter().enumerate() {
                values[q * frames + t] = code;
            }
        }
        let device = self.quantizer.quantizers[0].codebook.val().device();
        let codes = TensorData::new(values, [1, codebooks, frames]);
        let z = self.quantizer.from_codes(Tensor::from_data(codes, &device));
        let y = self.decoder.forward(z, edges, &mut Tap::off());
        y.into_data()
            .convert::<f32>()
            .try_into_vec()
            .expect("converted to f32")
    }
}
