//! What vector quantisers share.

use burn::tensor::Tensor;

/// Least length by which a vector is divided; a zero vector stays one.
const LEAST_NORM: f32 = 1e-12;

/// `x / max(|x|, 1e-12)`, lengths over `axis`: what a cosine search compares.
pub fn unit_length<const D: usize>(x: Tensor<D>, axis: usize) -> Tensor<D> {
    let norm = x.clone().square().sum_dim(axis).sqrt();
    x / norm.clamp_min(LEAST_NORM)
}

/// `sum over codebooks of mean((latents - entries)^2)` with the entries held fixed: pulls the encoder
/// towards the codebooks. One tensor a codebook, of equal shapes.
///
/// Source: van den Oord et al. 2017, arXiv:1711.00937.
///
/// # Panics
///
/// Without codebooks.
pub fn commitment_loss<const D: usize>(latents: &[Tensor<D>], entries: &[Tensor<D>]) -> Tensor<1> {
    distance(latents, entries, Tensor::clone, |c| c.clone().detach())
}

/// The number of [`commitment_loss`] with the latents held fixed: pulls the codebooks towards the
/// encoder.
///
/// # Panics
///
/// Without codebooks.
pub fn codebook_loss<const D: usize>(latents: &[Tensor<D>], entries: &[Tensor<D>]) -> Tensor<1> {
    distance(latents, entries, |e| e.clone().detach(), Tensor::clone)
}

fn distance<const D: usize>(
    latents: &[Tensor<D>],
    entries: &[Tensor<D>],
    latent: impl Fn(&Tensor<D>) -> Tensor<D>,
    entry: impl Fn(&Tensor<D>) -> Tensor<D>,
) -> Tensor<1> {
    let pairs = latents.iter().zip(entries);
    let terms = pairs.map(|(e, c)| (latent(e) - entry(c)).square().mean());
    terms
        .reduce(|sum, term| sum + term)
        .expect("at least one codebook")
}
