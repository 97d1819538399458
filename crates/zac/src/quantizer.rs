//! Codebooks: from codes to latents.

use burn::module::{Module, Param};
use burn::tensor::{Int, Tensor};
use zonos_kernels::ops;

use crate::Pointwise;
use crate::search::Search;

/// Codebooks whose vectors add up.
///
/// Source: van den Oord et al. 2017, arXiv:1711.00937; residual coding as in Zeghidour et al. 2021,
/// arXiv:2107.03312.
#[derive(Module, Debug)]
pub struct ResidualVq {
    /// One a codebook.
    pub quantizers: Vec<VectorQuantizer>,
    /// How entries are searched.
    #[module(skip)]
    pub search: Search,
}

/// One codebook and its projections.
#[derive(Module, Debug)]
pub struct VectorQuantizer {
    /// `[entries, code dim]`, used as stored; normalised in the search alone. Without `out_proj`
    /// `[entries, latent]`, the projection being applied already.
    pub codebook: Param<Tensor<2>>,
    /// `[code dim, latent, 1]`, where it is needed and the file has it.
    pub in_proj: Option<Pointwise>,
    /// `[latent, code dim, 1]`.
    pub out_proj: Option<Pointwise>,
}

impl VectorQuantizer {
    /// Vectors of `codes [rows]`, each in range: `[rows, latent]`.
    pub fn lookup(&self, codes: Tensor<1, Int>) -> Tensor<2> {
        let entries = ops::to_f32(self.codebook.val().select(0, codes));
        match &self.out_proj {
            Some(projection) => projection.forward(entries),
            None => entries,
        }
    }

    /// The vectors of all entries, `[entries, latent]`.
    pub fn table(&self) -> Tensor<2> {
        let entries = ops::to_f32(self.codebook.val());
        match &self.out_proj {
            Some(projection) => projection.forward(entries),
            None => entries,
        }
    }
}

impl ResidualVq {
    /// `codes [batch, frames, codebooks]` -> `[batch, frames, latent]`. A code of -1 adds nothing, not
    /// even the projection's bias, and gets no gradient.
    pub fn decode(&self, codes: Tensor<3, Int>) -> Tensor<3> {
        let [batch, frames, _] = codes.dims();
        let rows = batch * frames;
        let mut sum: Option<Tensor<2>> = None;
        for (i, quantizer) in self.quantizers.iter().enumerate() {
            let code = codes.clone().narrow(2, i, 1).reshape([rows]);
            let there = code
                .clone()
                .greater_equal_elem(0)
                .float()
                .reshape([rows, 1]);
            let part = quantizer.lookup(code.clamp_min(0)) * there;
            sum = Some(match sum {
                Some(sum) => sum + part,
                None => part,
            });
        }
        let sum = sum.expect("at least one codebook");
        let latent = sum.dims()[1];
        sum.reshape([batch, frames, latent])
    }
}
