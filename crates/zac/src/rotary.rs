//! Rotary position embedding over adjacent pairs, positions without end.

use burn::tensor::{DType, Tensor, TensorData};
use zonos_kernels::device::is_cpu;

/// Frequencies of the pairs of a head.
///
/// Pair `i`, elements `2i` and `2i + 1`, of a head of width `D` turns by `position *
/// exp(-ln(max_period) 2i / D)`. The angle is the f32 product of the position and the f32 frequency,
/// as the model was trained: at minutes of audio an exact one differs by up to 1e-2 radians.
///
/// Source: Su et al. 2021, arXiv:2104.09864.
#[derive(Debug, Clone)]
pub(crate) struct Frequencies(Vec<f32>);

impl Frequencies {
    pub(crate) fn new(head_dim: usize, max_period: f64) -> Self {
        let slope = (-max_period.ln() * 2.0 / head_dim as f64) as f32;
        let exponent = |i: usize| i as f32 * slope;
        Self(
            (0..head_dim / 2)
                .map(|i| f64::from(exponent(i)).exp() as f32)
                .collect(),
        )
    }

    /// Cosine and sine of each of `rows` positions from `first` on and of each pair, `[rows, pairs]`.
    fn table(&self, first: usize, rows: usize) -> Vec<(f32, f32)> {
        let mut table = Vec::with_capacity(rows * self.0.len());
        for row in 0..rows {
            // Whole numbers up to 2^24, 19 hours at 240 steps a second, are exact in f32.
            let position = (first + row) as f32;
            table.extend(self.0.iter().map(|frequency| {
                let (sin, cos) = f64::from(position * frequency).sin_cos();
                (cos as f32, sin as f32)
            }));
        }
        table
    }

    /// Cuts `qkv [batch * rows, 3 heads * dim]` into queries, keys and values, each `[batch, rows,
    /// heads, dim]`, and turns queries and keys; the first row stands at position `first`.
    pub(crate) fn split(
        &self,
        qkv: Tensor<2>,
        [batch, rows, heads]: [usize; 3],
        first: usize,
    ) -> [Tensor<4>; 3] {
        let table = self.table(first, rows);
        let dim = 2 * self.0.len();
        let device = qkv.device();
        if !qkv.is_tracked()
            && is_cpu(&device)
            && let Ok(values) = qkv.clone().into_data().try_into_vec::<f32>()
        {
            // One pass over memory instead of a dozen tensor operations.
            let parts = split_values(&values, &table, rows, heads * dim, dim / 2);
            let shape = [batch, rows, heads, dim];
            return parts.map(|part| {
                Tensor::from_data(TensorData::new(part, shape), (&device, DType::F32))
            });
        }
        let part = |i: usize| {
            qkv.clone()
                .narrow(1, i * heads * dim, heads * dim)
                .reshape([batch, rows, heads, dim])
        };
        let (cos, sin): (Vec<f32>, Vec<f32>) = table.into_iter().unzip();
        let constant = |values: Vec<f32>| {
            let data = TensorData::new(values, [1, rows, 1, dim / 2, 1]);
            Tensor::<5>::from_data(data, (&device, DType::F32))
        };
        let (cos, sin) = (constant(cos), constant(sin));
        let turned = |x: Tensor<4>| {
            let x = x.reshape([batch, rows, heads, dim / 2, 2]);
            let (re, im) = (x.clone().narrow(4, 0, 1), x.narrow(4, 1, 1));
            let turned_re = re.clone() * cos.clone() - im.clone() * sin.clone();
            let turned_im = re * sin.clone() + im * cos.clone();
            Tensor::cat(vec![turned_re, turned_im], 4).reshape([batch, rows, heads, dim])
        };
        [turned(part(0)), turned(part(1)), part(2)]
    }
}

/// The same on the host: `qkv [batch * rows, 3 width]`.
fn split_values(
    qkv: &[f32],
    table: &[(f32, f32)],
    rows: usize,
    width: usize,
    pairs: usize,
) -> [Vec<f32>; 3] {
    let count = qkv.len() / 3;
    let mut parts = [(); 3].map(|()| Vec::with_capacity(count));
    for (row, qkv) in qkv.chunks_exact(3 * width).enumerate() {
        let table = &table[row % rows * pairs..][..pairs];
        for (part, x) in parts.iter_mut().zip(qkv.chunks_exact(width)).take(2) {
            for head in x.chunks_exact(2 * pairs) {
                let pairs = head.as_chunks::<2>().0.iter().zip(table);
                part.extend(
                    pairs.flat_map(|([re, im], (cos, sin))| {
                        [re * cos - im * sin, re * sin + im * cos]
                    }),
                );
            }
        }
        parts[2].extend_from_slice(&qkv[2 * width..]);
    }
    parts
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;

    /// The path through memory and the one of tensor operations give the same bits, and turning keeps
    /// lengths.
    #[test]
    fn both_paths_agree() {
        let frequencies = Frequencies::new(6, 10_000.0);
        let (batch, rows, heads) = (2, 3, 2);
        let values: Vec<f32> = (0..batch * rows * 3 * heads * 6)
            .map(|i| (i as f32 * 0.37).sin())
            .collect();
        let qkv = |device: &Device| {
            let data = TensorData::new(values.clone(), [batch * rows, 36]);
            Tensor::<2>::from_data(data, (device, DType::F32))
        };
        let run = |x: Tensor<2>| {
            frequencies
                .split(x, [batch, rows, heads], 5)
                .map(|t| t.into_data().convert::<f32>().try_to_vec::<f32>().unwrap())
        };
        let host = run(qkv(&Device::flex()));
        let tracked = run(qkv(&Device::flex().autodiff()).require_grad());
        assert_eq!(host, tracked);
        let norm = |x: &[f32]| x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>();
        let before: Vec<f32> = values
            .chunks(36)
            .flat_map(|row| row[..12].to_vec())
            .collect();
        assert!((norm(&host[0]) - norm(&before)).abs() < 1e-5);
        assert_ne!(host[0], before);
    }

    /// Position times frequency in f32, not in f64.
    #[test]
    fn angles_are_f32_products() {
        let frequencies = Frequencies::new(64, 10_000.0);
        let f = frequencies.0[7];
        let (cos, sin) = frequencies.table(100_001, 1)[7];
        let angle = f64::from(100_001.0f32 * f);
        assert_eq!((cos, sin), (angle.cos() as f32, angle.sin() as f32));
        let exact = 100_001.0 * f64::from(f);
        assert!((angle - exact).abs() > 1e-5);
    }
}
