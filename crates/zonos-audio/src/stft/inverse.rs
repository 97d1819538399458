//! Inverse transform.

use rayon::prelude::*;

use super::{Complex32, Stft, StftConfig, StftError};

/// `column` gives the bins of a frame.
pub(super) fn run(
    stft: &Stft,
    frames: usize,
    length: Option<usize>,
    column: impl Fn(usize, &mut [Complex32]) + Sync,
) -> Result<Vec<f32>, StftError> {
    let config = &stft.config;
    let (start, natural) = config.kept(frames);
    let length = length.unwrap_or(natural);
    let total = config.n_fft + config.hop * (frames - 1);
    let mut out = vec![0.0; length];
    // Beyond the last frame there is silence.
    let covered = length.min(total.saturating_sub(start));

    // Tasks transform the frames at their seams once more; with blocks this long that is an eighth
    // of the work at most.
    let overlap = config.n_fft.div_ceil(config.hop);
    let block = (8 * overlap + 64) * config.hop;
    out[..covered]
        .par_chunks_mut(block)
        .enumerate()
        .try_for_each(|(i, out)| {
            let first = i * block;
            add_frames(stft, frames, &column, start + first, out);
            divide(stft, frames, start + first, out).map_err(|(at, sum)| StftError::Uncovered {
                sample: first + at,
                sum,
            })
        })?;
    Ok(out)
}

/// The overlapped frames from position `from` on.
fn add_frames(
    stft: &Stft,
    frames: usize,
    column: &impl Fn(usize, &mut [Complex32]),
    from: usize,
    out: &mut [f32],
) {
    let StftConfig {
        n_fft,
        hop,
        normalized,
        ..
    } = stft.config;
    let to = from + out.len();
    let scale = if normalized {
        (n_fft as f32).sqrt() / n_fft as f32
    } else {
        1.0 / n_fft as f32
    };
    let window: Vec<f32> = stft.window.iter().map(|w| w * scale).collect();
    let mut bins = stft.backward.make_input_vec();
    let mut frame = stft.backward.make_output_vec();
    let mut scratch = stft.backward.make_scratch_vec();
    for t in (from + 1).saturating_sub(n_fft).div_ceil(hop)..to.div_ceil(hop).min(frames) {
        column(t, &mut bins);
        bins[0].im = 0.0;
        if n_fft.is_multiple_of(2) {
            bins[n_fft / 2].im = 0.0;
        }
        // Fails for buffers of wrong lengths and for the imaginary parts cleared above only.
        let done = stft
            .backward
            .process_with_scratch(&mut bins, &mut frame, &mut scratch);
        debug_assert!(done.is_ok());
        let at = t * hop;
        let skip = from.saturating_sub(at);
        let target = at.max(from) - from;
        let n = (n_fft - skip).min(out.len() - target);
        let values = frame[skip..][..n].iter().zip(&window[skip..][..n]);
        for (y, (x, w)) in out[target..][..n].iter_mut().zip(values) {
            *y += x * w;
        }
    }
}

/// Divides by what the squared windows add up to; the first sample where that is too little, and how
/// little.
fn divide(stft: &Stft, frames: usize, from: usize, out: &mut [f32]) -> Result<(), (usize, f64)> {
    let StftConfig { n_fft, hop, .. } = stft.config;
    let square = |i: usize| f64::from(stft.window[i]) * f64::from(stft.window[i]);
    for (i, y) in out.iter_mut().enumerate() {
        let at = from + i;
        let sum = if at + 1 >= n_fft && at < frames * hop {
            stft.sums[at % hop]
        } else {
            let first = (at + 1).saturating_sub(n_fft).div_ceil(hop);
            (first..=(at / hop).min(frames - 1))
                .map(|t| at - t * hop)
                .filter(|&i| i < n_fft)
                .map(square)
                .sum()
        };
        if sum < StftConfig::SMALLEST_SUM {
            return Err((i, sum));
        }
        *y /= sum as f32;
    }
    Ok(())
}
