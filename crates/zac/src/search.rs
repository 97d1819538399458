//! Which entry of a codebook is nearest.

use burn::tensor::{Int, Tensor};
use serde::{Deserialize, Serialize};

/// Least length by which a vector is divided; a zero vector stays one.
const LEAST_NORM: f32 = 1e-12;

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
            Self::Cosine => (normalised(e), normalised(codebook)),
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
}

/// The distance of each row to the second nearest entry less that to the nearest: `[rows, entries]` ->
/// `[rows]`. 0 where there is one entry only.
pub(crate) fn margins(distances: Tensor<2>) -> Tensor<1> {
    let [rows, entries] = distances.dims();
    if entries < 2 {
        return Tensor::zeros([rows], &distances.device());
    }
    let sorted = distances.sort(1);
    let at = |i| sorted.clone().narrow(1, i, 1);
    (at(1) - at(0)).squeeze_dim(1)
}

/// `x / max(|x|, 1e-12)`, lengths over the last axis.
fn normalised(x: Tensor<2>) -> Tensor<2> {
    let norm = x.clone().square().sum_dim(1).sqrt();
    x / norm.clamp_min(LEAST_NORM)
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, TensorData};
    use proptest::prelude::*;

    use super::*;

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
        let e = [0.5, 0.1];
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
        let lead = margins(distances).into_data().try_to_vec::<f32>().unwrap();
        assert_eq!(lead, [2.0]);
        let one = tensor(&[1.0, 0.0], 2);
        let lead = margins(Search::Cosine.distances(one.clone(), one));
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
}
