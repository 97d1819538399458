//! Windows.

use std::f64::consts::TAU;

/// The Hann window, `0.5 - 0.5 cos(2 pi i / d)`: with `d = n` if periodic, as for spectra, else with
/// `d = n - 1`, so that both ends are zero.
///
/// Rounded like `torch.hann_window` in f32: the angle to f32, and its cosine to f32.
pub fn hann_window(n: usize, periodic: bool) -> Vec<f32> {
    if n == 1 {
        return vec![1.0];
    }
    let steps = if periodic { n } else { n.saturating_sub(1) };
    let step = (TAU / steps as f64) as f32;
    (0..n)
        .map(|i| {
            let angle = f64::from(i as f32 * step);
            0.5 - 0.5 * angle.cos() as f32
        })
        .collect()
}

/// The rectangular window.
pub fn ones_window(n: usize) -> Vec<f32> {
    vec![1.0; n]
}
