//! The convolution kernels against the portable implementation, on every instruction set at hand.

use burn::backend::Flex;
use burn::tensor::TensorData;
use burn_flex::FlexTensor;
use proptest::prelude::*;

use super::conv::Conv;
use super::conv_transposed::ConvTransposed;
use super::rows::Rows;
use super::simd::{Isa, Kernel, Simd, dispatch_on};
use super::snake::snake_row;
use crate::portable;

/// Values in [-1, 1) that depend on `seed` and position alone.
pub(super) fn values(seed: u64, len: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
        })
        .collect()
}

fn tensor<const D: usize>(values: &[f32], shape: [usize; D]) -> FlexTensor {
    FlexTensor::from_data(TensorData::new(values.to_vec(), shape))
}

fn host(tensor: FlexTensor) -> Vec<f32> {
    tensor.into_data().try_to_vec().expect("f32 tensor")
}

/// Largest difference, and the bound it must keep: sums of `terms` products of values below 2.
fn assert_close(isa: Isa, ours: &[f32], portable: &[f32], terms: usize) {
    assert_eq!(ours.len(), portable.len());
    let bound = 3e-7 * (terms as f32).sqrt().max(1.0) * 4.0;
    for (i, (a, b)) in ours.iter().zip(portable).enumerate() {
        assert!(
            (a - b).abs() <= bound,
            "{isa:?}: value {i}: {a} against {b}, bound {bound}"
        );
    }
}

/// Channels' alphas, with the awkward ones first.
fn alphas(seed: u64, channels: usize) -> Vec<f32> {
    let mut alphas: Vec<f32> = values(seed, channels)
        .iter()
        .map(|u| 1.0 + 0.5 * u)
        .collect();
    for (alpha, awkward) in alphas.iter_mut().zip([0.0, 1e-4, -0.7, 6.0]) {
        *alpha = awkward;
    }
    alphas
}

/// The Snake kernel on one row, for one instruction set.
fn snake_on(isa: Isa, x: &[f32], alpha: f32) -> Vec<f32> {
    struct Row<'a>(&'a [f32], f32, &'a mut [f32]);
    impl Kernel for Row<'_> {
        type Output = ();
        #[inline(always)]
        unsafe fn run<S: Simd>(self) {
            // SAFETY: the instruction set is `S`'s; both slices have the same length.
            unsafe { snake_row::<S>(self.0.as_ptr(), self.2.as_mut_ptr(), self.0.len(), self.1) };
        }
    }
    let mut y = vec![f32::NAN; x.len()];
    dispatch_on(isa, Row(x, alpha, &mut y));
    y
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Against f64, from tiny angles to some beyond the range reduction; each value alone, in the
    /// body of a row and in its tail has the same bits.
    #[test]
    fn snake_is_accurate_and_position_does_not_matter(
        len in 1usize..70,
        log_reach in -3.0f32..5.0,
        alpha in prop_oneof![Just(0.0f32), Just(1e-4), Just(-0.7), Just(6.0), 0.1f32..3.0],
        seed in any::<u64>(),
    ) {
        let reach = 10f32.powf(log_reach);
        let x: Vec<f32> = values(seed, len).iter().map(|x| x * reach).collect();
        for isa in Isa::available() {
            let y = snake_on(isa, &x, alpha);
            for (i, (&x, &y)) in x.iter().zip(&y).enumerate() {
                if alpha == 0.0 {
                    prop_assert_eq!(x, y);
                    continue;
                }
                let angle = f64::from(alpha * x);
                let divisor = f64::from(alpha + 1e-9f32);
                let exact = f64::from(x) + angle.sin().powi(2) / divisor;
                let bound = 4e-7 / divisor.abs() + 1.2e-7 * exact.abs();
                let error = (f64::from(y) - exact).abs();
                prop_assert!(error <= bound, "{isa:?}: x {x}, alpha {alpha}: {y}, not {exact}");
                let alone = snake_on(isa, &[x], alpha)[0];
                prop_assert_eq!(alone.to_bits(), y.to_bits(), "{:?} at {}", isa, i);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn convolution_equals_the_portable_one(
        batch in 1usize..3,
        channels in prop_oneof![1usize..20, 125usize..140],
        out in prop_oneof![1usize..30, 45usize..70],
        time in 1usize..150,
        taps in prop_oneof![Just(1usize), Just(2), Just(3), Just(7)],
        dilation in 1usize..10,
        padding in (0usize..30, 0usize..30),
        snake in any::<bool>(),
        residual in any::<bool>(),
        seed in any::<u64>(),
    ) {
        prop_assume!(time + padding.0 + padding.1 > dilation * (taps - 1));
        let out_time = time + padding.0 + padding.1 - dilation * (taps - 1);
        let x = values(seed, batch * channels * time);
        let scale = 1.0 / ((channels * taps) as f32).sqrt();
        let w: Vec<f32> = values(seed ^ 1, out * channels * taps).iter().map(|w| w * scale).collect();
        let b = values(seed ^ 2, out);
        let r = values(seed ^ 3, batch * out * out_time);
        let alpha = alphas(seed ^ 4, channels);
        let expected = host(portable::snake_conv1d::<Flex>(
            tensor(&x, [batch, channels, time]),
            snake.then(|| tensor(&alpha, [channels])),
            tensor(&w, [out, channels, taps]),
            tensor(&b, [out]),
            residual.then(|| tensor(&r, [batch, out, out_time])),
            dilation,
            padding,
        ));
        for isa in Isa::available() {
            let conv = Conv {
                x: Rows::dense(&x, batch, channels, time),
                alpha: snake.then_some(&alpha[..]),
                weight: &w,
                bias: &b,
                residual: residual.then(|| Rows::dense(&r, batch, out, out_time)),
                taps,
                stride: 1,
                dilation,
                padding,
                reflect: false,
                relu: false,
            };
            assert_close(isa, &conv.run(isa), &expected, channels * taps);
        }
    }

    #[test]
    fn reflected_convolution_equals_the_portable_one(
        batch in 1usize..3,
        channels in prop_oneof![1usize..20, 125usize..140],
        out in prop_oneof![1usize..30, 45usize..70],
        time in 1usize..150,
        taps in 1usize..6,
        dilation in 1usize..6,
        relu in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let added = dilation * (taps - 1);
        prop_assume!(time > added - added / 2);
        let x = values(seed, batch * channels * time);
        let scale = 1.0 / ((channels * taps) as f32).sqrt();
        let w: Vec<f32> = values(seed ^ 1, out * channels * taps).iter().map(|w| w * scale).collect();
        let b = values(seed ^ 2, out);
        let expected = host(portable::reflect_conv1d::<Flex>(
            tensor(&x, [batch, channels, time]),
            tensor(&w, [out, channels, taps]),
            tensor(&b, [out]),
            dilation,
            relu,
        ));
        for isa in Isa::available() {
            let conv = Conv {
                x: Rows::dense(&x, batch, channels, time),
                alpha: None,
                weight: &w,
                bias: &b,
                residual: None,
                taps,
                stride: 1,
                dilation,
                padding: portable::same_padding(taps, dilation),
                reflect: true,
                relu,
            };
            assert_close(isa, &conv.run(isa), &expected, channels * taps);
        }
    }

    #[test]
    fn strided_convolution_equals_the_portable_one(
        batch in 1usize..3,
        channels in prop_oneof![1usize..20, 125usize..140],
        out in prop_oneof![1usize..30, 45usize..70],
        time in 1usize..300,
        stride in 1usize..10,
        repeats in 1usize..4,
        padding in (0usize..12, 0usize..12),
        snake in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let taps = stride * repeats;
        prop_assume!(time + padding.0 + padding.1 >= taps);
        let x = values(seed, batch * channels * time);
        let scale = 1.0 / ((channels * taps) as f32).sqrt();
        let w: Vec<f32> = values(seed ^ 1, out * channels * taps).iter().map(|w| w * scale).collect();
        let b = values(seed ^ 2, out);
        let alpha = alphas(seed ^ 4, channels);
        let expected = host(portable::snake_strided_conv1d::<Flex>(
            tensor(&x, [batch, channels, time]),
            snake.then(|| tensor(&alpha, [channels])),
            tensor(&w, [out, channels, taps]),
            tensor(&b, [out]),
            stride,
            padding,
        ));
        for isa in Isa::available() {
            let conv = Conv {
                x: Rows::dense(&x, batch, channels, time),
                alpha: snake.then_some(&alpha[..]),
                weight: &w,
                bias: &b,
                residual: None,
                taps,
                stride,
                dilation: 1,
                padding,
                reflect: false,
                relu: false,
            };
            assert_close(isa, &conv.run(isa), &expected, channels * taps);
        }
    }

    #[test]
    fn transposed_convolution_equals_the_portable_one(
        batch in 1usize..3,
        channels in prop_oneof![1usize..20, 125usize..140],
        out in prop_oneof![1usize..12, 30usize..40],
        time in 1usize..120,
        stride in 1usize..10,
        trims in (0usize..10, 0usize..10),
        snake in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let trim = (trims.0.min(stride), trims.1.min(stride));
        prop_assume!((time + 1) * stride > trim.0 + trim.1);
        let x = values(seed, batch * channels * time);
        let scale = 1.0 / (channels as f32).sqrt();
        let w: Vec<f32> =
            values(seed ^ 1, channels * out * 2 * stride).iter().map(|w| w * scale).collect();
        let b = values(seed ^ 2, out);
        let alpha = alphas(seed ^ 4, channels);
        let expected = host(portable::snake_conv_transpose1d::<Flex>(
            tensor(&x, [batch, channels, time]),
            snake.then(|| tensor(&alpha, [channels])),
            tensor(&w, [channels, out, 2 * stride]),
            tensor(&b, [out]),
            stride,
            trim,
        ));
        for isa in Isa::available() {
            let conv = ConvTransposed {
                x: Rows::dense(&x, batch, channels, time),
                alpha: snake.then_some(&alpha[..]),
                weight: &w,
                bias: &b,
                stride,
                trim,
            };
            assert_close(isa, &conv.run(isa), &expected, channels * 2);
        }
    }

    /// However a signal is cut, the outputs that see only real input have the same bits.
    #[test]
    fn bits_do_not_depend_on_the_cut(
        time in 40usize..400,
        start in 0usize..20,
        len in 20usize..200,
        seed in any::<u64>(),
    ) {
        let (channels, out, taps, dilation, stride) = (130, 20, 7, 2, 3);
        let x = values(seed, channels * time);
        let w = values(seed ^ 1, out * channels * taps);
        let w_up = values(seed ^ 1, out * channels * 2 * stride);
        let (b, alpha) = (values(seed ^ 2, out), alphas(seed ^ 3, channels));
        let end = (start + len).min(time);
        let rows = Rows::dense(&x, 1, channels, time);
        let part: Vec<f32> =
            (0..channels).flat_map(|c| rows.row(0, c)[start..end].to_vec()).collect();
        let part = Rows::dense(&part, 1, channels, end - start);
        for isa in Isa::available() {
            let conv = |x, padding| Conv {
                x,
                alpha: Some(&alpha),
                weight: &w,
                bias: &b,
                residual: None,
                taps,
                stride: 1,
                dilation,
                padding,
                reflect: false,
                relu: false,
            };
            let halo = dilation * (taps - 1);
            if end - start > halo {
                let (whole, cut) = (conv(rows, (0, 0)), conv(part, (0, 0)));
                let (whole_time, cut_time) = (whole.out_time(), cut.out_time());
                let (whole, cut) = (whole.run(isa), cut.run(isa));
                for o in 0..out {
                    let whole = &whole[o * whole_time + start..][..cut_time];
                    prop_assert!(whole == &cut[o * cut_time..][..cut_time], "{:?}", isa);
                }
            }
            // A cut that begins at a multiple of the stride.
            let down = |x| Conv {
                x,
                alpha: Some(&alpha),
                weight: &w_up,
                bias: &b,
                residual: None,
                taps: 2 * stride,
                stride,
                dilation: 1,
                padding: (0, 0),
                reflect: false,
                relu: false,
            };
            if start % stride == 0 {
                let (whole, cut) = (down(rows), down(part));
                let (whole_time, cut_time) = (whole.out_time(), cut.out_time());
                let (whole, cut) = (whole.run(isa), cut.run(isa));
                for o in 0..out {
                    let whole = &whole[o * whole_time + start / stride..][..cut_time];
                    prop_assert!(whole == &cut[o * cut_time..][..cut_time], "{:?}", isa);
                }
            }
            let up = |x, trim| ConvTransposed {
                x, alpha: Some(&alpha), weight: &w_up, bias: &b, stride, trim,
            };
            let (whole, cut) = (up(rows, (stride, stride)), up(part, (stride, stride)));
            let (whole_time, cut_time) = (whole.out_time(), cut.out_time());
            let (whole, cut) = (whole.run(isa), cut.run(isa));
            for o in 0..out {
                let whole = &whole[o * whole_time + start * stride..][..cut_time];
                prop_assert!(whole == &cut[o * cut_time..][..cut_time], "{:?}", isa);
            }
        }
    }
}

/// Says which instruction sets the other tests could not reach on this machine.
#[test]
fn instruction_sets_tried() {
    let available = Isa::available();
    assert!(available.contains(&Isa::Plain));
    println!("kernels tested on: {available:?}");
    #[cfg(target_arch = "x86_64")]
    for isa in [Isa::Avx2, Isa::Avx512] {
        if !available.contains(&isa) {
            println!("not available here, so not tested: {isa:?}");
        }
    }
}
