//! Which entry of a codebook is nearest, and codes by residual quantisation.

use burn::tensor::{Int, Tensor};
use serde::{Deserialize, Serialize};
use zonos_kernels::ops;
use zonos_nn::Tap;
use zonos_nn::quantize::{codebook_loss, commitment_loss, unit_length};

use crate::{ResidualVq, VectorQuantizer};

/// What "nearest" means.
///
/// Source: cosine, Yu et al. 2021, arXiv:2110.04627; Euclidean, van den Oord et al. 2017,
/// arXiv:1711.00937.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Search {
    /// Vectors and entries are first brought to length 1.
    #[default]
    Cosine,
    /// As they are.
    Euclidean,
}

impl Search {
    /// Squared distances of `e [rows, width]` to the entries of `codebook [entries, width]`: `|e|^2 - 2
    /// e c + |c|^2`, `[rows, entries]`.
    pub fn distances(self, e: Tensor<2>, codebook: Tensor<2>) -> Tensor<2> {
        let (e, codebook) = match self {
            Self::Cosine => (unit_length(e, 1), unit_length(codebook, 1)),
            Self::Euclidean => (e, codebook),
        };
        let own = e.clone().square().sum_dim(1);
        let entries = codebook.clone().square().sum_dim(1).transpose();
        own - e.matmul(codebook.transpose()) * 2.0 + entries
    }

    /// The nearest entry of each row, the first of equals: `[rows]`.
    pub fn nearest(self, e: Tensor<2>, codebook: Tensor<2>) -> Tensor<1, Int> {
        self.distances(e, codebook).argmin(1).squeeze_dim(1)
    }

    /// By how much the nearest entry of each row leads, in squared distance: `[rows]`.
    pub fn margins(self, e: Tensor<2>, codebook: Tensor<2>) -> Tensor<1> {
        leads(self.distances(e, codebook))
    }
}

/// What quantising gives.
#[derive(Debug, Clone)]
pub struct Quantized {
    /// `[rows, codebooks]`.
    pub codes: Tensor<2, Int>,
    /// The sum of the vectors chosen, `[rows, latent]`. Its gradient passes straight through the choices.
    pub z: Tensor<2>,
    /// What each codebook was searched for, `[rows, code dim]`.
    pub latents: Vec<Tensor<2>>,
    /// The entries found, of the same shapes, as stored; gradients flow to the codebooks.
    pub entries: Vec<Tensor<2>>,
}

impl Quantized {
    /// `sum over codebooks of mean((latents - entries)^2)` with the entries held fixed: pulls the encoder
    /// towards the codebooks.
    pub fn commitment_loss(&self) -> Tensor<1> {
        commitment_loss(&self.latents, &self.entries)
    }

    /// The same number with the latents held fixed: pulls the codebooks towards the encoder.
    pub fn codebook_loss(&self) -> Tensor<1> {
        codebook_loss(&self.latents, &self.entries)
    }
}

impl VectorQuantizer {
    /// `z [rows, latent]` to the space of the entries, `[rows, code dim]`.
    ///
    /// # Panics
    ///
    /// If the projection was not loaded, as in a decoder.
    pub fn project(&self, z: Tensor<2>) -> Tensor<2> {
        let projection = self.in_proj.as_ref();
        projection.expect("loaded with the encoder").forward(z)
    }
}

impl ResidualVq {
    /// Codes `z [rows, latent]`: each codebook takes the entry nearest to what those before it left
    /// over.
    ///
    /// Differentiable: a choice is treated as the identity between the two projections, and what is
    /// left over is not cut off from the gradient. `tap` sees `residual{q}`, `latent{q}` and
    /// `margin{q}`, the lead of the choice.
    ///
    /// # Panics
    ///
    /// If the projections were not loaded, as in a decoder.
    pub fn encode(&self, z: Tensor<2>, tap: &mut Tap) -> Quantized {
        let mut left = z;
        let mut sum = None::<Tensor<2>>;
        let (mut codes, mut latents, mut entries) = (Vec::new(), Vec::new(), Vec::new());
        for (q, quantizer) in self.quantizers.iter().enumerate() {
            tap.record(format_args!("residual{q}"), &left);
            let e = quantizer.project(left.clone());
            tap.record(format_args!("latent{q}"), &e);
            let codebook = ops::to_f32(quantizer.codebook.val());
            let fixed = e.clone().detach();
            let distances = self
                .search
                .distances(fixed.clone(), codebook.clone().detach());
            if tap.is_on() {
                tap.record(format_args!("margin{q}"), &leads(distances.clone()));
            }
            let code = distances.argmin(1);
            let entry = codebook.select(0, code.clone().squeeze_dim(1));
            // The entry's value, bit for bit, with the gradient of what was looked for.
            let through = entry.clone().detach() + (e.clone() - fixed);
            let vector = match &quantizer.out_proj {
                Some(projection) => projection.forward(through),
                None => through,
            };
            left = left - vector.clone();
            sum = Some(match sum {
                Some(sum) => sum + vector,
                None => vector,
            });
            codes.push(code);
            latents.push(e);
            entries.push(entry);
        }
        Quantized {
            codes: Tensor::cat(codes, 1),
            z: sum.expect("at least one codebook"),
            latents,
            entries,
        }
    }
}

/// The distance of each row to the second nearest entry less that to the nearest: `[rows, entries]` ->
/// `[rows]`. 0 where there is one entry only.
fn leads(distances: Tensor<2>) -> Tensor<1> {
    let [rows, entries] = distances.dims();
    if entries < 2 {
        return Tensor::zeros([rows], &distances.device());
    }
    let sorted = distances.sort(1);
    let at = |i| sorted.clone().narrow(1, i, 1);
    (at(1) - at(0)).squeeze_dim(1)
}

#[cfg(test)]
mod tests {
    use burn::module::Param;
    use burn::tensor::{Device, TensorData};
    use proptest::prelude::*;
    use zonos_nn::ConvWeight;

    use super::*;
    use crate::Pointwise;

    fn tensor(values: &[f32], width: usize) -> Tensor<2> {
        let data = TensorData::new(values.to_vec(), [values.len() / width, width]);
        Tensor::from_data(data, &Device::flex())
    }

    fn found(search: Search, e: &[f32], codebook: &[f32]) -> Vec<i32> {
        let codes = search.nearest(tensor(e, 2), tensor(codebook, 2));
        codes.into_data().convert::<i32>().try_to_vec().unwrap()
    }

    /// The direction decides for one, the place for the other.
    #[test]
    fn near_by_angle_or_by_place() {
        let rows = [10.0, 0.0, 0.0, 0.5, 0.6, 0.2];
        let e = [0.6, 0.02];
        assert_eq!(found(Search::Cosine, &e, &rows), [0]);
        assert_eq!(found(Search::Euclidean, &e, &rows), [2]);
    }

    /// Wherever in a large codebook the equals stand.
    #[test]
    fn the_first_of_equals_wins() {
        for first in [0, 1, 7, 8, 63, 1000, 4094] {
            let mut rows = vec![-1.0; 2 * 4096];
            for entry in [first, 4095] {
                rows[2 * entry..][..2].copy_from_slice(&[0.8, 0.6]);
            }
            for search in [Search::Cosine, Search::Euclidean] {
                let e: Vec<f32> = [0.79, 0.61].repeat(5);
                assert_eq!(found(search, &e, &rows), [first as i32; 5], "{search:?}");
            }
        }
        // A row of zeros has no direction: every entry is as far.
        assert_eq!(
            found(Search::Cosine, &[0.0, 0.0], &[1.0, 0.0, 0.0, 1.0]),
            [0]
        );
    }

    #[test]
    fn a_margin_is_the_lead_of_the_best() {
        let rows = tensor(&[1.0, 0.0, 0.0, 1.0, -1.0, 0.0], 2);
        let distances = Search::Cosine.distances(tensor(&[2.0, 0.0], 2), rows);
        assert_eq!(
            distances.to_data().try_to_vec::<f32>().unwrap(),
            [0.0, 2.0, 4.0]
        );
        let lead = leads(distances).into_data().try_to_vec::<f32>().unwrap();
        assert_eq!(lead, [2.0]);
        let one = tensor(&[1.0, 0.0], 2);
        let lead = Search::Cosine.margins(one.clone(), one);
        assert_eq!(lead.into_data().try_to_vec::<f32>().unwrap(), [0.0]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        /// As a plain loop in f64 finds it, wherever the lead is not in the rounding.
        #[test]
        fn as_a_plain_loop_finds_it(
            e in prop::collection::vec(-2.0f32..2.0, 6..60),
            rows in prop::collection::vec(-2.0f32..2.0, 60..600),
            cosine in any::<bool>(),
        ) {
            let width = 6;
            let (e, rows) = (&e[..e.len() / width * width], &rows[..rows.len() / width * width]);
            let search = if cosine { Search::Cosine } else { Search::Euclidean };
            let length = |v: &[f32]| v.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt();
            let scale = |v: &[f32]| if cosine { 1.0 / length(v).max(1e-12) } else { 1.0 };
            let codes = search.nearest(tensor(e, width), tensor(rows, width));
            let codes: Vec<i32> = codes.into_data().convert::<i32>().try_to_vec().unwrap();
            for (v, code) in e.chunks_exact(width).zip(codes) {
                let distance = |c: &[f32]| {
                    let pairs = v.iter().zip(c);
                    pairs
                        .map(|(&a, &b)| (f64::from(a) * scale(v) - f64::from(b) * scale(c)).powi(2))
                        .sum::<f64>()
                };
                let all: Vec<f64> = rows.chunks_exact(width).map(distance).collect();
                let best = all.iter().copied().fold(f64::INFINITY, f64::min);
                prop_assert!(all[code as usize] <= best + 1e-4);
            }
        }
    }

    /// Two code dimensions that are also the latents; the rows given.
    fn quantizer(rows: &[f32], device: &Device) -> VectorQuantizer {
        let identity = || {
            let weight = Tensor::<2>::eye(2, device).reshape([2, 2, 1]);
            Pointwise::new(ConvWeight::folded(weight), Tensor::zeros([2], device))
        };
        let codebook = TensorData::new(rows.to_vec(), [rows.len() / 2, 2]);
        VectorQuantizer {
            codebook: Param::from_tensor(Tensor::from_data(codebook, device)),
            in_proj: Some(identity()),
            out_proj: Some(identity()),
        }
    }

    /// The second codebook codes what the first left over, from its entry as stored.
    #[test]
    fn the_rest_is_coded_next() {
        let device = Device::flex();
        let quantizers = vec![
            quantizer(&[1.0, 0.0, 0.0, 1.0], &device),
            quantizer(&[1.0, 0.0, -1.0, 0.0, 0.0, 1.0], &device),
        ];
        let vq = ResidualVq {
            quantizers,
            search: Search::Cosine,
        };
        let mut tap = Tap::on();
        // (0.5, 0.1) - (1, 0) points to the left.
        let found = vq.encode(tensor(&[0.5, 0.1], 2), &mut tap);
        let codes: Vec<i32> = found
            .codes
            .into_data()
            .convert::<i32>()
            .try_to_vec()
            .unwrap();
        assert_eq!(codes, [0, 1]);
        assert_eq!(found.z.into_data().try_to_vec::<f32>().unwrap(), [0.0, 0.0]);
        let names: Vec<_> = tap.into_records().into_iter().map(|(n, _)| n).collect();
        let expected = [
            "residual0",
            "latent0",
            "margin0",
            "residual1",
            "latent1",
            "margin1",
        ];
        assert_eq!(names, expected);
    }

    /// A choice passes gradients on as if it were the identity, and the losses move what they say.
    #[test]
    fn gradients_pass_straight_through() {
        let device = Device::flex().autodiff();
        let vq = ResidualVq {
            quantizers: vec![quantizer(&[1.0, 0.0, 0.0, 1.0], &device)],
            search: Search::Euclidean,
        };
        let z = Tensor::<2>::from_data([[0.8f32, 0.1]], &device).require_grad();
        let found = vq.encode(z.clone(), &mut Tap::off());
        let weights = Tensor::<2>::from_data([[3.0f32, -5.0]], &device);
        let grads = (found.z.clone() * weights).sum().backward();
        let g: Vec<f32> = z.grad(&grads).unwrap().into_data().try_to_vec().unwrap();
        assert_eq!(g, [3.0, -5.0]);

        let loss = |value: Tensor<1>| value.into_data().try_to_vec::<f32>().unwrap()[0];
        let expected = (0.2f32 * 0.2 + 0.1 * 0.1) / 2.0;
        assert!((loss(found.commitment_loss()) - expected).abs() < 1e-6);
        let grads = found.codebook_loss().backward();
        assert!(
            z.grad(&grads)
                .is_none_or(|g| g.into_data().try_to_vec::<f32>().unwrap() == [0.0, 0.0])
        );
        let rows = vq.quantizers[0].codebook.val().grad(&grads).unwrap();
        let rows: Vec<f32> = rows.into_data().try_to_vec().unwrap();
        // d/dc of ((0.8 - c)^2 + (0.1 - d)^2) / 2 at (1, 0); the other entry was not chosen.
        for (g, expected) in rows.iter().zip([0.2, -0.1, 0.0, 0.0]) {
            assert!((g - expected).abs() < 1e-6, "{rows:?}");
        }
    }
}
