//! Which inputs of the experts matter: mean squares over a corpus, for quantising (`gguf.md` 6).

use std::collections::BTreeMap;

use burn::tensor::TensorData;
use zonos_gguf::{Imatrix, ImatrixEntry};
use zonos_nn::Tap;

use crate::error::Zonos2Error;
use crate::segment::Sequence;
use crate::{Zonos2, Zonos2Config};

/// Collects the squares of what enters the experts' matrices, by expert, over the rows routed to it.
///
/// Gate and up projections see the normalised input of the feed-forward block, the down projection
/// `silu(gate) * up` before the routing weight. Sums are f64; they do not grow with the corpus.
///
/// ```
/// use burn::tensor::Device;
/// use zonos2::{Importance, Prompt, Sequence, Zonos2};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../validation/fixtures/zonos2/tiny");
/// let model = Zonos2::load(dir, &Device::flex())?;
/// let prompt = Prompt::builder(model.config()).text("Hello.").build()?;
/// let mut importance = Importance::new(model.config());
/// importance.push(&model, 0, &Sequence::from_prompt(&prompt, None)?)?;
/// let imatrix = importance.imatrix(4);
/// assert!(imatrix.entries.contains_key("blk.2.ffn_down_exps.weight"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Importance {
    layers: BTreeMap<usize, LayerSums>,
}

/// The sums of one expert layer.
#[derive(Clone, Debug)]
struct LayerSums {
    /// Rows routed to each expert.
    hits: Vec<u64>,
    /// `[experts, dim]`
    rows: Vec<f64>,
    /// `[experts, ffn]`
    inner: Vec<f64>,
}

impl Importance {
    /// No row yet, for every expert layer of a model.
    pub fn new(config: &Zonos2Config) -> Self {
        let experts = config.n_experts;
        let sums = LayerSums {
            hits: vec![0; experts],
            rows: vec![0.0; experts * config.dim],
            inner: vec![0.0; experts * config.ffn_dim()],
        };
        Self {
            layers: (0..config.n_layers)
                .filter(|&n| config.is_expert_layer(n))
                .map(|n| (n, sums.clone()))
                .collect(),
        }
    }

    /// Runs sequence number `index` of a corpus through the model for which this was made.
    ///
    /// # Errors
    ///
    /// A malformed sequence (see [`Sequence::validate`]), or inputs that are not finite, naming the
    /// layer; what was collected is of no use then.
    pub fn push(
        &mut self,
        model: &Zonos2,
        index: usize,
        sequence: &Sequence,
    ) -> Result<(), Zonos2Error> {
        sequence.validate(index, model.config())?;
        let mut shown = Shown::default();
        let mut damaged = None;
        let mut see = |name: &str, data: TensorData| {
            if let Some((n, finite)) = shown.take(name, data, &mut self.layers)
                && !finite
            {
                damaged.get_or_insert(n);
            }
        };
        model.hidden_of(sequence, &mut Tap::watching(&mut see));
        match damaged {
            None => Ok(()),
            Some(layer) => Err(Zonos2Error::NonFiniteInputs {
                sequence: index,
                layer,
            }),
        }
    }

    /// Rows that each expert of each expert layer was given, by the number of the layer.
    pub fn hits(&self) -> impl ExactSizeIterator<Item = (usize, &[u64])> {
        self.layers.iter().map(|(&n, sums)| (n, &sums.hits[..]))
    }

    /// The mean squares, under the names of the GGUF tensors. An expert with fewer than `min_hits`
    /// rows gets zeros, and is quantised without importances.
    pub fn imatrix(&self, min_hits: u64) -> Imatrix {
        let mut imatrix = Imatrix::default();
        for (n, sums) in &self.layers {
            let mut add = |part: &str, values: &[f64]| {
                let experts = sums.hits.len();
                let means = means(values, &sums.hits, min_hits);
                if let Some(entry) = ImatrixEntry::new(experts, values.len() / experts, means) {
                    let name = format!("blk.{n}.ffn_{part}_exps.weight");
                    imatrix.entries.insert(name, entry);
                }
            };
            add("gate", &sums.rows);
            add("up", &sums.rows);
            add("down", &sums.inner);
        }
        imatrix
    }
}

/// Sums `[experts, width]` over their experts' rows.
fn means(sums: &[f64], hits: &[u64], min_hits: u64) -> Vec<f32> {
    let width = sums.len() / hits.len();
    let rows = sums.chunks_exact(width).zip(hits);
    rows.flat_map(|(row, &hits)| {
        let met = hits >= min_hits.max(1);
        row.iter().map(move |&sum| {
            // The file holds finite numbers alone.
            let mean = (sum / hits as f64).min(f64::from(f32::MAX));
            if met { mean as f32 } else { 0.0 }
        })
    })
    .collect()
}

/// What an expert layer has shown so far: its input, then the choice, then the inner activations.
#[derive(Default)]
struct Shown {
    rows: Vec<f32>,
    chosen: Vec<i32>,
}

impl Shown {
    /// Adds a layer's part up once all of it is there: the layer, and whether all of it is finite.
    fn take(
        &mut self,
        name: &str,
        data: TensorData,
        layers: &mut BTreeMap<usize, LayerSums>,
    ) -> Option<(usize, bool)> {
        let (n, part) = name.strip_prefix("layer.")?.split_once(".expert.")?;
        let n = n.parse().ok()?;
        match part {
            "rows" => self.rows = data.iter::<f32>().collect(),
            "chosen" => self.chosen = data.iter::<i32>().collect(),
            "inner" => {
                let inner: Vec<f32> = data.iter::<f32>().collect();
                return Some((n, layers.get_mut(&n)?.add(&self.rows, &self.chosen, &inner)));
            }
            _ => {}
        }
        None
    }
}

impl LayerSums {
    /// `rows [rows, dim]`, `chosen [rows * top_k]`, `inner [rows * top_k, ffn]`; false if a number is not
    /// finite.
    fn add(&mut self, rows: &[f32], chosen: &[i32], inner: &[f32]) -> bool {
        let experts = self.hits.len();
        let (dim, ffn) = (self.rows.len() / experts, self.inner.len() / experts);
        let top_k = chosen.len() / (rows.len() / dim).max(1);
        let mut finite = true;
        for (i, (&expert, inner)) in chosen.iter().zip(inner.chunks_exact(ffn)).enumerate() {
            let expert = expert as usize;
            let row = &rows[i / top_k * dim..][..dim];
            self.hits[expert] += 1;
            finite &= add_squares(&mut self.rows[expert * dim..][..dim], row);
            finite &= add_squares(&mut self.inner[expert * ffn..][..ffn], inner);
        }
        finite
    }
}

fn add_squares(sums: &mut [f64], x: &[f32]) -> bool {
    let mut finite = true;
    for (sum, &x) in sums.iter_mut().zip(x) {
        finite &= x.is_finite();
        *sum += f64::from(x) * f64::from(x);
    }
    finite
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn squares_go_to_the_experts_that_were_chosen() {
        let mut sums = LayerSums {
            hits: vec![0; 3],
            rows: vec![0.0; 6],
            inner: vec![0.0; 3],
        };
        // Two rows, two experts each.
        assert!(sums.add(&[1.0, 2.0, 3.0, 4.0], &[0, 2, 2, 0], &[1.0, 2.0, 3.0, 4.0]));
        assert_eq!(sums.hits, [2, 0, 2]);
        assert_eq!(sums.rows, [10.0, 20.0, 0.0, 0.0, 10.0, 20.0]);
        assert_eq!(sums.inner, [17.0, 0.0, 13.0]);
        assert_eq!(means(&sums.inner, &sums.hits, 2), [8.5, 0.0, 6.5]);
        assert_eq!(means(&sums.inner, &sums.hits, 3), [0.0; 3]);
        assert_eq!(means(&[0.0; 3], &[0; 3], 0), [0.0; 3]);
        assert!(!sums.add(&[1.0, f32::NAN], &[1, 1], &[1.0, 1.0]));
    }
}
