//! Inverse transform.

use rayon::prelude::*;

use super::{Complex32, Spectrum, Stft, StftConfig, StftError};

pub(super) fn run(
    stft: &Stft,
    spectrum: &Spectrum,
    length: Option<usize>,
) -> Result<Vec<f32>, StftError> {
    let config = &stft.config;
    let (frames, bins) = (spectrum.frames, config.bins());
    if frames == 0
        || spectrum.bins != bins
        || frames.checked_mul(bins) != Some(spectrum.values.len())
    {
        return Err(StftError::Spectrum {
            expected: format!("at least one frame of {bins} bins"),
            found: format!(
                "{frames} frames of {} bins, {} values",
                spectrum.bins,
                spectrum.values.len()
            ),
        });
    }
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
        .try_for_each(|(i, out)| part(stft, spectrum, start, i * block, out))?;
    Ok(out)
}

/// Samples of the result from `first` on.
fn part(
    stft: &Stft,
    spectrum: &Spectrum,
    start: usize,
    first: usize,
    out: &mut [f32],
) -> Result<(), StftError> {
    let StftConfig {
        n_fft,
        hop,
        normalized,
        ..
    } = stft.config;
    // Positions in the overlapped frames.
    let (from, to) = (start + first, start + first + out.len());
    let frames =
        (from + 1).saturating_sub(n_fft).div_ceil(hop)..to.div_ceil(hop).min(spectrum.frames);
    let scale = if normalized {
        (n_fft as f32).sqrt() / n_fft as f32
    } else {
        1.0 / n_fft as f32
    };
    let mut column = stft.backward.make_input_vec();
    let mut frame = stft.backward.make_output_vec();
    let mut scratch = stft.backward.make_scratch_vec();
    let mut sums = vec![0.0f64; out.len()];
    for t in frames {
        column.copy_from_slice(spectrum.frame(t));
        real(&mut column[0]);
        if n_fft.is_multiple_of(2) {
            real(&mut column[n_fft / 2]);
        }
        // Fails for buffers of wrong lengths and for the imaginary parts cleared above only.
        let done = stft
            .backward
            .process_with_scratch(&mut column, &mut frame, &mut scratch);
        debug_assert!(done.is_ok());
        let at = t * hop;
        let skip = from.saturating_sub(at);
        let target = at.max(from) - from;
        let n = (n_fft - skip).min(out.len() - target);
        let values = frame[skip..][..n].iter().zip(&stft.window[skip..][..n]);
        let targets = out[target..][..n].iter_mut().zip(&mut sums[target..][..n]);
        for ((y, sum), (x, &w)) in targets.zip(values) {
            *y += x * scale * w;
            *sum += f64::from(w) * f64::from(w);
        }
    }
    for (i, (y, &sum)) in out.iter_mut().zip(&sums).enumerate() {
        if sum < StftConfig::SMALLEST_SUM {
            return Err(StftError::Uncovered {
                sample: first + i,
                sum,
            });
        }
        *y /= sum as f32;
    }
    Ok(())
}

fn real(z: &mut Complex32) {
    z.im = 0.0;
}
