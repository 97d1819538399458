//! The discrete Fourier transform of real frames as two matrix products.
//!
//! With `n = a b`, sample `i = b i1 + i2` and bin `k = k1 + a k2`,
//!
//! ```text
//! X[k] = sum_i2 W_n^(i2 k1) W_b^(i2 k2) sum_i1 W_a^(i1 k1) x[i]
//! ```
//!
//! so a frame costs about `2 n (a + b)` products and not `n^2`, and its sums are short, which keeps
//! f32 as exact as a fast transform is: one sum over 1024 products would be ten times noisier.
//!
//! Source: Cooley and Tukey 1965, "An algorithm for the machine calculation of complex Fourier
//! series", one step of it.

use std::f64::consts::TAU;

use burn::tensor::{Device, Tensor};

use super::{constant, zeros};

/// Largest table, in values (256 MiB).
const MAX_TABLE: usize = 1 << 26;

/// The factors `(a, b)` of `n`, `a` the largest not above the root; `None` if the tables of such a
/// transform would be too large, as those of large primes are.
pub(super) fn factors(n: usize) -> Option<(usize, usize)> {
    let a = (1..=n.isqrt()).rev().find(|a| n.is_multiple_of(*a))?;
    let b = n / a;
    let table = n.checked_mul(4 * (b / 2 + 1))?;
    (table <= MAX_TABLE).then_some((a, b))
}

/// Tables on a device.
#[derive(Debug, Clone)]
pub(super) struct Dft {
    a: usize,
    b: usize,
    /// `[a, 2 a]`: `W_a^(i1 k1)`, real and imaginary part side by side.
    first: Tensor<2>,
    /// `[a, 2 b, 2 half]`: for each `k1`, the rest as a matrix of real numbers, for the `half = b / 2 +
    /// 1` values of `k2` that bins up to `n / 2` have.
    second: Tensor<3>,
}

impl Dft {
    /// `n_fft = a b` as [`factors`] gives them.
    pub(super) fn new((a, b): (usize, usize), device: &Device) -> Self {
        let n = a * b;
        let half = b / 2 + 1;
        let turn = |part: usize, whole: usize| {
            let angle = TAU * (part % whole) as f64 / whole as f64;
            (angle.cos(), angle.sin())
        };
        let mut first = Vec::with_capacity(2 * a * a);
        for i1 in 0..a {
            for k1 in 0..a {
                let (cos, sin) = turn(i1 * k1, a);
                first.extend([cos as f32, -sin as f32]);
            }
        }
        // (re, im) times cos - i sin: what a real part adds to both, then what an imaginary one does.
        let mut second = Vec::with_capacity(a * 4 * b * half);
        for k1 in 0..a {
            let row = |i2: usize| (0..half).map(move |k2| turn(i2 * (k1 + a * k2), n));
            for i2 in 0..b {
                second.extend(row(i2).map(|(cos, _)| cos as f32));
                second.extend(row(i2).map(|(_, sin)| -sin as f32));
            }
            for i2 in 0..b {
                second.extend(row(i2).map(|(_, sin)| sin as f32));
                second.extend(row(i2).map(|(cos, _)| cos as f32));
            }
        }
        Self {
            a,
            b,
            first: constant(first, [a, 2 * a], device),
            second: constant(second, [a, 2 * b, 2 * half], device),
        }
    }

    fn half(&self) -> usize {
        self.b / 2 + 1
    }

    fn bins(&self) -> usize {
        self.a * self.b / 2 + 1
    }

    /// `x [batch, rows, n]` -> `[batch, rows, 2 bins]`, real parts before imaginary ones.
    pub(super) fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let (a, b, half, bins) = (self.a, self.b, self.half(), self.bins());
        let [batch, rows, _] = x.dims();
        let count = batch * rows;
        let inner = x
            .reshape([count, a, b])
            .swap_dims(1, 2)
            .reshape([count * b, a])
            .matmul(self.first.clone())
            // [frame, i2, k1, part] -> [k1, frame, part, i2]
            .reshape([count, b, a, 2])
            .permute([2, 0, 3, 1])
            .reshape([a, count, 2 * b]);
        inner
            .matmul(self.second.clone())
            // [k1, frame, part, k2] -> [frame, part, k2, k1]
            .reshape([a, count, 2, half])
            .permute([1, 2, 3, 0])
            .reshape([count, 2, half * a])
            .slice([0..count, 0..2, 0..bins])
            .reshape([batch, rows, 2 * bins])
    }

    /// The transpose of [`forward`](Self::forward): `x [batch, rows, 2 bins]` -> `[batch, rows, n]`,
    /// `sum_k re[k] cos(2 pi i k / n) - im[k] sin(2 pi i k / n)`.
    pub(super) fn transposed(&self, x: Tensor<3>) -> Tensor<3> {
        let (a, b, half, bins) = (self.a, self.b, self.half(), self.bins());
        let [batch, rows, _] = x.dims();
        let count = batch * rows;
        let mut x = x.reshape([count, 2, bins]);
        if half * a > bins {
            let rest = zeros([count, 2, half * a - bins], &x.device());
            x = Tensor::cat(vec![x, rest], 2);
        }
        let inner = x
            // [frame, part, k2, k1] -> [k1, frame, part, k2]
            .reshape([count, 2, half, a])
            .permute([3, 0, 1, 2])
            .reshape([a, count, 2 * half])
            .matmul(self.second.clone().swap_dims(1, 2));
        inner
            // [k1, frame, part, i2] -> [frame, i2, k1, part]
            .reshape([a, count, 2, b])
            .permute([1, 3, 0, 2])
            .reshape([count * b, 2 * a])
            .matmul(self.first.clone().swap_dims(0, 1))
            .reshape([count, b, a])
            .swap_dims(1, 2)
            .reshape([batch, rows, a * b])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(factors(1024), Some((32, 32)));
        assert_eq!(factors(400), Some((20, 20)));
        assert_eq!(factors(30), Some((5, 6)));
        assert_eq!(factors(97), Some((1, 97)));
        assert_eq!(factors(1), Some((1, 1)));
        assert_eq!(factors(1 << 16), Some((256, 256)));
        assert_eq!(factors(65_537), None);
        assert_eq!(factors(usize::MAX), None);
    }
}
