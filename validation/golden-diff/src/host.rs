//! Tensors on the host, as comparisons need them.

use burn::tensor::TensorData;

/// A dense row-major tensor on the host. Floats are widened to f64 so that metrics add up in f64.
#[derive(Debug, Clone, PartialEq)]
pub struct HostTensor {
    shape: Vec<usize>,
    values: Values,
}

/// The entries of a [`HostTensor`].
#[derive(Debug, Clone, PartialEq)]
pub enum Values {
    /// Real numbers.
    Float(Vec<f64>),
    /// Ids, codes, expert numbers, lengths.
    Int(Vec<i64>),
}

impl HostTensor {
    /// Real numbers in row-major order. `None` unless `shape` has as many entries as `values`.
    pub fn floats(shape: impl Into<Vec<usize>>, values: Vec<f64>) -> Option<Self> {
        let shape = shape.into();
        (count(&shape) == Some(values.len())).then_some(Self {
            shape,
            values: Values::Float(values),
        })
    }

    /// Integers in row-major order. `None` unless `shape` has as many entries as `values`.
    pub fn ints(shape: impl Into<Vec<usize>>, values: Vec<i64>) -> Option<Self> {
        let shape = shape.into();
        (count(&shape) == Some(values.len())).then_some(Self {
            shape,
            values: Values::Int(values),
        })
    }

    /// A one-dimensional signal.
    pub fn signal(samples: &[f32]) -> Self {
        Self {
            shape: vec![samples.len()],
            values: Values::Float(samples.iter().map(|&x| f64::from(x)).collect()),
        }
    }

    /// A one-dimensional list of f64.
    pub fn list(values: Vec<f64>) -> Self {
        Self {
            shape: vec![values.len()],
            values: Values::Float(values),
        }
    }

    /// A matrix of integers, `[rows, columns]`, from rows laid end to end. Codes and prompt rows.
    pub fn rows(columns: usize, flat: &[i32]) -> Self {
        Self {
            shape: vec![flat.len().checked_div(columns).unwrap_or(0), columns],
            values: Values::Int(flat.iter().map(|&x| i64::from(x)).collect()),
        }
    }

    /// One integer, shape `[1]`.
    pub fn int(value: i64) -> Self {
        Self {
            shape: vec![1],
            values: Values::Int(vec![value]),
        }
    }

    /// What a tap or a tensor gave.
    pub fn from_data(data: &TensorData) -> Self {
        let shape = data.shape().as_slice().to_vec();
        let values = if data.dtype().is_float() {
            Values::Float(data.iter::<f64>().collect())
        } else {
            Values::Int(data.iter::<i64>().collect())
        };
        Self { shape, values }
    }

    /// Row-major shape.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The entries.
    pub fn values(&self) -> &Values {
        &self.values
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        match &self.values {
            Values::Float(v) => v.len(),
            Values::Int(v) => v.len(),
        }
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The entries as f64, integers converted.
    pub fn to_f64(&self) -> Vec<f64> {
        match &self.values {
            Values::Float(v) => v.clone(),
            Values::Int(v) => v.iter().map(|&x| x as f64).collect(),
        }
    }

    /// The entries as f32, integers converted.
    pub fn to_f32(&self) -> Vec<f32> {
        match &self.values {
            Values::Float(v) => v.iter().map(|&x| x as f32).collect(),
            Values::Int(v) => v.iter().map(|&x| x as f32).collect(),
        }
    }

    /// The entries as i32. `None` for real numbers and for integers that do not fit.
    pub fn to_i32(&self) -> Option<Vec<i32>> {
        match &self.values {
            Values::Float(_) => None,
            Values::Int(v) => v.iter().map(|&x| i32::try_from(x).ok()).collect(),
        }
    }

    /// The same entries under another shape. `None` when the counts differ.
    pub fn reshape(self, shape: impl Into<Vec<usize>>) -> Option<Self> {
        let shape = shape.into();
        (count(&shape) == Some(self.len())).then_some(Self { shape, ..self })
    }

    /// Drops leading axes of length one until `rank` axes are left, as golden keys have no batch
    /// axis. Does nothing when the tensor already has `rank` axes or fewer.
    pub fn squeeze_to(mut self, rank: usize) -> Self {
        while self.shape.len() > rank && self.shape[0] == 1 {
            self.shape.remove(0);
        }
        self
    }

    /// `[rows, columns]` to `[columns, rows]`. `None` unless there are two axes.
    pub fn transpose(&self) -> Option<Self> {
        let &[rows, columns] = self.shape.as_slice() else {
            return None;
        };
        let order = (0..columns).flat_map(|c| (0..rows).map(move |r| r * columns + c));
        let values = match &self.values {
            Values::Float(v) => Values::Float(order.map(|i| v[i]).collect()),
            Values::Int(v) => Values::Int(order.map(|i| v[i]).collect()),
        };
        Some(Self {
            shape: vec![columns, rows],
            values,
        })
    }

    /// The rows `picks` of the first axis, in that order. `None` when one is out of range.
    pub fn pick(&self, picks: &[usize]) -> Option<Self> {
        let (&rows, rest) = self.shape.split_first()?;
        let width = count(rest)?;
        if picks.iter().any(|&p| p >= rows) {
            return None;
        }
        let order = picks.iter().flat_map(|&p| p * width..(p + 1) * width);
        let values = match &self.values {
            Values::Float(v) => Values::Float(order.map(|i| v[i]).collect()),
            Values::Int(v) => Values::Int(order.map(|i| v[i]).collect()),
        };
        let mut shape = vec![picks.len()];
        shape.extend_from_slice(rest);
        Some(Self { shape, values })
    }

    /// Position of the largest entry along the last axis, the lowest position winning ties.
    pub fn argmax_last(&self) -> Self {
        let width = self.shape.last().copied().unwrap_or(1).max(1);
        let values = self.to_f64();
        Self {
            shape: self.shape[..self.shape.len().saturating_sub(1)].to_vec(),
            values: Values::Int(values.chunks(width).map(|row| argmax(row) as i64).collect()),
        }
    }

    /// `ln sum exp` along the last axis.
    pub fn logsumexp_last(&self) -> Self {
        let width = self.shape.last().copied().unwrap_or(1).max(1);
        let values = self.to_f64();
        let of = |row: &[f64]| {
            let top = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            top + row.iter().map(|x| (x - top).exp()).sum::<f64>().ln()
        };
        Self {
            shape: self.shape[..self.shape.len().saturating_sub(1)].to_vec(),
            values: Values::Float(values.chunks(width).map(of).collect()),
        }
    }

    /// Sum, sum of squares and `sum x_i cos(0.1 i mod 2 pi)` over the flattened tensor: how large
    /// activations are recorded without storing them.
    pub fn three_sums(&self) -> [f64; 3] {
        let turn = std::f64::consts::TAU;
        let mut sums = [0.0; 3];
        for (i, x) in self.to_f64().into_iter().enumerate() {
            sums[0] += x;
            sums[1] += x * x;
            sums[2] += x * (0.1 * i as f64 % turn).cos();
        }
        sums
    }
}

pub(crate) fn argmax(row: &[f64]) -> usize {
    let mut best = 0;
    for (i, x) in row.iter().enumerate() {
        if *x > row[best] || (row[best].is_nan() && !x.is_nan()) {
            best = i;
        }
    }
    best
}

fn count(shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn picks_rows_and_transposes() {
        let x = HostTensor::ints([3, 2], vec![0, 1, 10, 11, 20, 21]).unwrap();
        assert_eq!(
            x.pick(&[2, 0]),
            HostTensor::ints([2, 2], vec![20, 21, 0, 1])
        );
        assert_eq!(x.pick(&[3]), None);
        assert_eq!(
            x.transpose(),
            HostTensor::ints([2, 3], vec![0, 10, 20, 1, 11, 21])
        );
    }

    #[test]
    fn reductions_along_the_last_axis() {
        let x = HostTensor::floats([2, 3], vec![1.0, 3.0, 3.0, -1.0, -2.0, -3.0]).unwrap();
        assert_eq!(x.argmax_last(), HostTensor::ints([2], vec![1, 0]).unwrap());
        let Values::Float(lse) = x.logsumexp_last().values else {
            panic!("real numbers in, real numbers out")
        };
        assert!((lse[0] - (1f64.exp() + 2.0 * 3f64.exp()).ln()).abs() < 1e-12);
    }

    #[test]
    fn shapes_must_fit() {
        assert_eq!(HostTensor::floats([2, 2], vec![0.0; 3]), None);
        assert_eq!(HostTensor::ints([usize::MAX, 2], vec![]), None);
    }
}
