//! Gaussian error linear unit with its own gradient.

use burn::tensor::Tensor;

/// `x (1 + erf(x / sqrt 2)) / 2`, exact forward and backward on every device.
///
/// Burn's `activation::gelu` is exact forward, but backends without a kernel for its gradient (all of Burn's
/// GPU backends) differentiate the tanh approximation instead, which is off by up to 1e-3.
///
/// Source: Hendrycks and Gimpel 2016, arXiv:1606.08415.
pub fn gelu<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    let cdf = (x.clone() * std::f64::consts::FRAC_1_SQRT_2).erf() + 1.0;
    x * cdf * 0.5
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, Tensor};

    use super::gelu;

    /// `(x, gelu(x), gelu'(x))` from f64 arithmetic: `Phi(x) + x phi(x)` is the slope.
    const POINTS: [(f32, f32, f32); 5] = [
        (-3.0, -0.004_049_694, -0.011_945_647),
        (-0.75, -0.169_970_52, 0.000_774_278),
        (0.0, 0.0, 0.5),
        (1.0, 0.841_344_7, 1.083_315_5),
        (2.5, 2.484_475_8, 1.037_611_1),
    ];

    #[test]
    fn value_and_slope_are_exact() {
        let device = Device::flex().autodiff();
        let x = Tensor::<1>::from_data(POINTS.map(|p| p.0), &device).require_grad();
        let y = gelu(x.clone());
        let slope = x.grad(&y.clone().sum().backward()).expect("tracked");
        let y: Vec<f32> = y.into_data().try_into_vec().expect("f32");
        let slope: Vec<f32> = slope.into_data().try_into_vec().expect("f32");
        for (i, (x, value, expected)) in POINTS.into_iter().enumerate() {
            assert!((y[i] - value).abs() < 1e-6, "gelu({x}) = {}", y[i]);
            assert!(
                (slope[i] - expected).abs() < 1e-6,
                "gelu'({x}) = {}",
                slope[i]
            );
        }
    }
}
