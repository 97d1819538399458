use proptest::prelude::*;

use super::*;

fn noise(n: usize) -> Vec<f32> {
    let mut state = 1u32;
    (0..n)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        })
        .collect()
}

/// The sum as it is written in the module's description, in f64 with the dense filter.
fn by_definition(kernel: &ResampleKernel, x: &[f32]) -> Vec<f64> {
    let dense = kernel.dense().unwrap();
    let row = 2 * kernel.width() + kernel.orig_rate();
    (0..kernel.output_len(x.len()))
        .map(|at| {
            let (frame, phase) = (at / kernel.new_rate(), at % kernel.new_rate());
            let taps = &dense[phase * row..][..row];
            taps.iter()
                .enumerate()
                .filter_map(|(i, &tap)| {
                    let at = (frame * kernel.orig_rate() + i).checked_sub(kernel.width())?;
                    Some(f64::from(tap) * f64::from(*x.get(at)?))
                })
                .sum()
        })
        .collect()
}

#[test]
fn follows_the_definition() {
    for (from, to) in [
        (44_100, 24_000),
        (48_000, 24_000),
        (3, 2),
        (1, 7),
        (7, 1),
        (11_025, 8_000),
    ] {
        let resampler = Resampler::new(from, to, ResampleRecipe::Transform).unwrap();
        let kernel = resampler.kernel().unwrap();
        for n in [0, 1, 2, 5, 40, 3000] {
            let x = noise(n);
            let y = resampler.resample(&x);
            let expected = by_definition(kernel, &x);
            assert_eq!(y.len(), expected.len(), "{from} to {to}, {n} samples");
            for (i, (y, e)) in y.iter().zip(&expected).enumerate() {
                assert!(
                    (f64::from(*y) - e).abs() < 1e-6,
                    "{from} to {to}, sample {i} of {n}: {y}, {e}"
                );
            }
        }
    }
}

#[test]
fn a_long_signal_is_the_same_on_many_cores() {
    let x = noise(200_000);
    let resampler = Resampler::new(44_100, 48_000, ResampleRecipe::Functional).unwrap();
    let whole = resampler.resample(&x);
    let mut serial = vec![0.0; whole.len()];
    resampler.kernel().unwrap().frames(&x, 0, 0, &mut serial);
    assert_eq!(whole, serial);
}

#[test]
fn equal_rates_pass_the_signal_on() {
    let resampler = Resampler::new(24_000, 24_000, ResampleRecipe::Transform).unwrap();
    assert!(resampler.kernel().is_none());
    assert_eq!(resampler.output_len(17), 17);
    assert_eq!(resampler.resample(&[1.0, 2.0]), [1.0, 2.0]);
}

#[test]
fn rates_that_no_recording_has_are_refused() {
    for (from, to) in [
        (0, 24_000),
        (24_000, 0),
        (u32::MAX, 24_000),
        (24_000, MAX_RATE + 1),
    ] {
        let error = Resampler::new(from, to, ResampleRecipe::Transform).unwrap_err();
        assert!(matches!(error, ResampleError::Rate(_)), "{error}");
    }
}

#[test]
fn rates_without_a_common_divisor_need_no_large_filter() {
    // Whole, this filter would have two thousand million taps.
    let resampler = Resampler::new(44_101, 44_100, ResampleRecipe::Transform).unwrap();
    let kernel = resampler.kernel().unwrap();
    assert_eq!(kernel.dense(), None);
    assert!(kernel.phase(44_099).1.len() <= 16);
    let x: Vec<f32> = (0..44_101).map(|i| (i as f32 * 0.05).sin()).collect();
    let y = resampler.resample(&x);
    assert_eq!(y.len(), 44_100);
    for (i, y) in y.iter().enumerate().skip(100).take(1000) {
        let t = i as f64 * 44_101.0 / 44_100.0;
        assert!((f64::from(*y) - (t * 0.05).sin()).abs() < 2e-3, "{i}");
    }
}

#[test]
fn a_stored_filter_gives_what_it_was_made_from() {
    for (from, to) in [(44_160, 44_100), (2, 1), (1, 3)] {
        let resampler = Resampler::new(from, to, ResampleRecipe::Transform).unwrap();
        let kernel = resampler.kernel().unwrap();
        let stored = ResampleKernel::from_dense(from, to, &kernel.dense().unwrap()).unwrap();
        assert_eq!(&stored, kernel);
        let x = noise(2000);
        assert_eq!(
            Resampler::with_kernel(stored).resample(&x),
            resampler.resample(&x)
        );
    }
}

#[test]
fn a_stored_filter_must_fit() {
    for (taps, says) in [
        (vec![0.5; 3], "expected 3 rows of 2 taps"),
        (vec![0.5; 17], "expected 3 rows of 2 taps"),
        (vec![], "expected 3 rows of 2 taps"),
        (vec![f32::NAN; 12], "tap 0 of phase 0 is NaN"),
    ] {
        let error = ResampleKernel::from_dense(16_000, 24_000, &taps)
            .unwrap_err()
            .to_string();
        assert!(error.contains(says), "{error}");
    }
    // Silence is a filter, too.
    let silent = ResampleKernel::from_dense(2, 3, &[0.0; 12]).unwrap();
    assert_eq!(Resampler::with_kernel(silent).resample(&[1.0; 4]), [0.0; 6]);
}

proptest! {
    #[test]
    fn pieces_joined_are_the_whole(
        from in 1u32..60, to in 1u32..60,
        n in 0usize..900,
        cuts in prop::collection::vec(0usize..150, 0..12),
    ) {
        let resampler = Resampler::new(from, to, ResampleRecipe::Transform).unwrap();
        let x = noise(n);
        let mut stream = resampler.stream();
        let (mut joined, mut rest) = (Vec::new(), x.as_slice());
        for cut in cuts {
            let (now, later) = rest.split_at(cut.min(rest.len()));
            stream.push(now, &mut joined);
            rest = later;
        }
        stream.push(rest, &mut joined);
        stream.finish(&mut joined);
        prop_assert_eq!(joined, resampler.resample(&x));
    }
}
