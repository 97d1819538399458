//! Latents to codes and back: residual vector quantisation.

use burn::module::{Module, Param};
use burn::tensor::{Int, Tensor};
use zonos_kernels::ops;
use zonos_nn::quantize::{codebook_loss, commitment_loss, unit_length};
use zonos_nn::{Conv1d, Edges, Tap};

/// Codebooks in a row, each coding what those before it left over.
///
/// Decoding, `z = sum over q of out_proj_q(codebook_q[code_q])`. Source: van den Oord et al. 2017,
/// arXiv:1711.00937; the low-dimensional cosine search of Yu et al. 2021, arXiv:2110.04627; residual
/// coding as in Kumar et al. 2023, arXiv:2306.06546.
#[derive(Module, Debug)]
pub struct Quantizer {
    /// One a codebook.
    pub quantizers: Vec<VectorQuantizer>,
    /// `[latent]`: the sum of all projections' biases, of files that hold projected codebooks.
    pub bias: Option<Param<Tensor<1>>>,
}

/// One codebook and its projections from and to the latents.
#[derive(Module, Debug)]
pub struct VectorQuantizer {
    /// `[entries, code dim]`, used as stored; normalised in the search alone. `[entries, latent]`, the
    /// projection applied, where there is no `out_proj`.
    pub codebook: Param<Tensor<2>>,
    /// One tap, `[code dim, latent, 1]`; there when the encoder is.
    pub in_proj: Option<Conv1d>,
    /// One tap, `[latent, code dim, 1]`; absent from files that hold projected codebooks.
    pub out_proj: Option<Conv1d>,
}

/// What quantising gives.
#[derive(Debug, Clone)]
pub struct Quantized {
    /// `[batch, codebooks, frames]`.
    pub codes: Tensor<3, Int>,
    /// The sum of embeddings, `[batch, latent, frames]`. Its gradient passes straight through the
    /// choice of codes to the latents.
    pub z: Tensor<3>,
    /// What each codebook was searched for, `[batch, code dim, frames]`.
    pub latents: Vec<Tensor<3>>,
    /// The rows found, of the same shapes, as stored; gradients flow to the codebooks.
    pub entries: Vec<Tensor<3>>,
}

impl Quantized {
    /// `sum over q of mean((latents_q - entries_q)^2)` with the entries held fixed: pulls the encoder
    /// towards the codebooks. The original training weighs it by 0.25.
    pub fn commitment_loss(&self) -> Tensor<1> {
        commitment_loss(&self.latents, &self.entries)
    }

    /// The same number with the latents held fixed: pulls the codebooks towards the encoder. The
    /// original training weighs it by 1.
    pub fn codebook_loss(&self) -> Tensor<1> {
        codebook_loss(&self.latents, &self.entries)
    }
}

impl VectorQuantizer {
    /// How well each row fits: `cos(e, c) - |c|^2 / 2` with `c` normalised, so the cosine but for a
    /// constant; `e [batch, code dim, frames]` -> `[batch, entries, frames]`.
    fn scores(&self, e: Tensor<3>) -> Tensor<3> {
        let rows = unit_length(self.codebook.val().detach(), 1);
        let [entries, width] = rows.dims();
        let bias = rows.clone().square().sum_dim(1) * -0.5;
        // As a convolution with one tap: a sum in the same order whatever the number of frames.
        ops::snake_conv1d(
            unit_length(e, 1),
            None,
            rows.reshape([entries, width, 1]),
            bias.reshape([entries]),
            None,
            1,
            (0, 0),
        )
    }

    /// What a row stands for: `rows [batch, code dim, frames]` -> `[batch, latent, frames]`, added to
    /// `sum`.
    fn project(&self, rows: Tensor<3>, sum: Option<Tensor<3>>) -> Tensor<3> {
        match (&self.out_proj, sum) {
            (Some(projection), sum) => projection.forward(rows, None, sum, Edges::WHOLE),
            (None, Some(sum)) => sum + rows,
            (None, None) => rows,
        }
    }

    /// Rows of the codebook as stored, `code [batch, frames]` -> `[batch, code dim, frames]`.
    fn rows(&self, code: Tensor<2, Int>) -> Tensor<3> {
        let [batch, frames] = code.dims();
        let rows = self
            .codebook
            .val()
            .select(0, code.reshape([batch * frames]));
        let width = rows.dims()[1];
        rows.reshape([batch, frames, width]).swap_dims(1, 2)
    }
}

impl Quantizer {
    /// `codes [batch, codebooks, frames]` -> `[batch, latent, frames]`. With fewer codebooks than the
    /// model has, the sum of those given (and the whole [`Quantizer::bias`], which cannot be taken
    /// apart).
    pub fn from_codes(&self, codes: Tensor<3, Int>) -> Tensor<3> {
        let [batch, codebooks, frames] = codes.dims();
        let mut sum = None;
        for (q, quantizer) in self.quantizers.iter().take(codebooks).enumerate() {
            let code = codes.clone().narrow(1, q, 1).reshape([batch, frames]);
            let rows = quantizer.rows(code);
            sum = Some(quantizer.project(rows, sum));
        }
        let sum: Tensor<3> = sum.expect("codes have at least one codebook");
        match &self.bias {
            Some(bias) => sum + bias.val().unsqueeze_dims(&[0, 2]),
            None => sum,
        }
    }

    /// Codes `z [batch, latent, frames]` by the first `codebooks` codebooks, each taking the row of
    /// largest cosine (the first of equals) for what those before it left over.
    ///
    /// Differentiable: the choice is treated as the identity, and what is left over is not cut off
    /// from the gradient. `tap` sees `enc.latents [batch, sum of code dims, frames]`, `enc.codes`,
    /// `enc.z_q` and `enc.margin`, the best cosine minus the second best.
    ///
    /// # Panics
    ///
    /// If the projections were not loaded, or `codebooks` is 0.
    pub fn encode(&self, z: Tensor<3>, codebooks: usize, tap: &mut Tap) -> Quantized {
        let mut left = z;
        let (mut sum, mut margins) = (None::<Tensor<3>>, Vec::new());
        let (mut codes, mut latents, mut entries) = (Vec::new(), Vec::new(), Vec::new());
        for quantizer in self.quantizers.iter().take(codebooks) {
            let in_proj = quantizer.in_proj.as_ref().expect("loaded with the encoder");
            let e = in_proj.forward(left.clone(), None, None, Edges::WHOLE);
            let fixed = e.clone().detach();
            let scores = quantizer.scores(fixed.clone());
            let code = scores.clone().argmax(1);
            if tap.is_on() && scores.dims()[1] > 1 {
                let best = scores.sort_descending(1);
                margins.push(best.clone().narrow(1, 0, 1) - best.narrow(1, 1, 1));
            }
            let c = quantizer.rows(code.clone().squeeze_dim(1));
            // The row's value, bit for bit, with the gradient of what was looked for.
            let through = c.clone().detach() + (e.clone() - fixed);
            let o = quantizer.project(through, None);
            left = left - o.clone();
            sum = Some(match sum {
                Some(sum) => sum + o,
                None => o,
            });
            codes.push(code);
            latents.push(e);
            entries.push(c);
        }
        let found = Quantized {
            codes: Tensor::cat(codes, 1),
            z: sum.expect("at least one codebook"),
            latents,
            entries,
        };
        if tap.is_on() {
            tap.record("enc.latents", &Tensor::cat(found.latents.clone(), 1));
            tap.record("enc.codes", &found.codes);
            tap.record("enc.z_q", &found.z);
            if !margins.is_empty() {
                tap.record("enc.margin", &Tensor::cat(margins, 1));
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, TensorData};
    use zonos_nn::ConvWeight;

    use super::*;

    /// Two code dimensions that are also the latents; the rows given.
    fn quantizer(rows: &[[f32; 2]]) -> VectorQuantizer {
        let device = Device::flex();
        let identity = || {
            let weight = Tensor::<2>::eye(2, &device).reshape([2, 2, 1]);
            Conv1d::new(
                ConvWeight::folded(weight),
                Tensor::zeros([2], &device),
                1,
                1,
            )
        };
        let flat: Vec<f32> = rows.iter().flatten().copied().collect();
        let codebook = Tensor::from_data(TensorData::new(flat, [rows.len(), 2]), &device);
        VectorQuantizer {
            codebook: Param::from_tensor(codebook),
            in_proj: Some(identity()),
            out_proj: Some(identity()),
        }
    }

    fn codes(quantizer: &Quantizer, z: Tensor<3>, codebooks: usize) -> Vec<i32> {
        let found = quantizer.encode(z, codebooks, &mut Tap::off());
        found
            .codes
            .into_data()
            .convert::<i32>()
            .try_to_vec()
            .unwrap()
    }

    /// Lengths do not count, the first of equals wins, and a row of zeros loses to any that points
    /// the right way.
    #[test]
    fn the_direction_decides() {
        let rows = [[0.0, 0.0], [1.0, 0.0], [4.0, 0.0], [0.0, 2.0], [0.0, -0.5]];
        let quantizer = Quantizer {
            quantizers: vec![quantizer(&rows)],
            bias: None,
        };
        // Frames (3, 0.1), (0.1, 9), (0.2, -0.7).
        let z = Tensor::<3>::from_data([[[3.0f32, 0.1, 0.2], [0.1, 9.0, -0.7]]], &Device::flex());
        assert_eq!(codes(&quantizer, z, 1), [1, 3, 4]);
    }

    /// The second codebook codes what the first left over, from its row as stored.
    #[test]
    fn the_rest_is_coded_next() {
        let quantizer = Quantizer {
            quantizers: vec![
                quantizer(&[[1.0, 0.0], [0.0, 1.0]]),
                quantizer(&[[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]]),
            ],
            bias: None,
        };
        let z = || Tensor::<3>::from_data([[[0.5f32], [0.1]]], &Device::flex());
        // (0.5, 0.1) - (1, 0) points to the left.
        assert_eq!(codes(&quantizer, z(), 2), [0, 1]);
        assert_eq!(codes(&quantizer, z(), 1), [0]);
        let sum = quantizer.encode(z(), 2, &mut Tap::off()).z;
        assert_eq!(sum.into_data().try_to_vec::<f32>().unwrap(), [0.0, 0.0]);
    }
}
