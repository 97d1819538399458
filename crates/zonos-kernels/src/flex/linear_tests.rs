//! Flex linear and expert kernels against the portable implementations.

use burn::backend::Flex;
use burn::backend::TensorMetadata;
use burn::tensor::{DType, TensorData};
use burn_flex::FlexTensor;
use half::bf16;
use proptest::prelude::*;

use super::conv_tests::values;
use super::linear;
use super::several_rows::MANY;
use super::simd::Isa;
use crate::portable;

pub(super) fn tensor<const D: usize>(shape: [usize; D], seed: u64, dtype: DType) -> FlexTensor {
    let n = shape.iter().product();
    let data = TensorData::new(values(seed, n), shape);
    FlexTensor::from_data(data.convert_dtype(dtype))
}

pub(super) fn ids(values: Vec<i32>) -> FlexTensor {
    let n = values.len();
    FlexTensor::from_data(TensorData::new(values, [n]))
}

pub(super) fn floats(x: FlexTensor) -> Vec<f32> {
    x.into_data().try_into_vec().expect("f32")
}

/// Largest difference, relative to what a sum of `terms` products of values below 1 can round by: every
/// addition rounds by a share of the sum so far, so large sums may differ by more.
pub(super) fn close(got: &[f32], expected: &[f32], terms: usize) -> Result<(), TestCaseError> {
    prop_assert_eq!(got.len(), expected.len());
    let tolerance = 1e-6 * (terms as f32).sqrt().max(1.0);
    for (i, (a, b)) in got.iter().zip(expected).enumerate() {
        let tolerance = tolerance * (b.abs() / 4.0).max(1.0);
        prop_assert!(
            (a - b).abs() <= tolerance,
            "element {}: {} against {}",
            i,
            a,
            b
        );
    }
    Ok(())
}

pub(super) fn float_dtype() -> impl Strategy<Value = DType> {
    prop_oneof![Just(DType::F32), Just(DType::F16), Just(DType::BF16)]
}

/// Whether a product of `n` rows rounds them to BF16.
fn rounds(isa: Isa, n: usize, inner: usize, dtype: DType) -> bool {
    isa.rounds() && n >= MANY && inner.is_multiple_of(2) && dtype == DType::BF16
}

/// Rows of activations as weights meet them: rounded to BF16, or as they are.
fn as_met(x: &FlexTensor, rounded: impl Fn(usize) -> bool) -> FlexTensor {
    let [n, inner] = x.shape().dims::<2>();
    let mut values = floats(x.clone());
    for (row, values) in values.chunks_exact_mut(inner).enumerate() {
        if rounded(row) {
            values
                .iter_mut()
                .for_each(|v| *v = bf16::from_f32(*v).to_f32());
        }
    }
    FlexTensor::from_data(TensorData::new(values, [n, inner]))
}

/// NaN stays in its row, and infinities come out as such.
#[test]
fn rounded_rows_keep_what_is_no_number() {
    let (rows, inner) = (40, 34);
    let w = tensor([9, inner], 3, DType::BF16);
    for isa in Isa::available().into_iter().filter(|isa| isa.rounds()) {
        let mut x = values(4, rows * inner);
        x[5 * inner + 3] = f32::NAN;
        x[7 * inner] = f32::from_bits(0xFFFF_FFFF);
        x[35 * inner + 1] = f32::INFINITY;
        let x = FlexTensor::from_data(TensorData::new(x, [rows, inner]));
        let y = floats(linear::linear(isa, x, w.clone()));
        for (row, y) in y.chunks_exact(9).enumerate() {
            match row {
                5 | 7 => assert!(y.iter().all(|v| v.is_nan())),
                35 => assert!(y.iter().all(|v| v.is_infinite())),
                _ => assert!(y.iter().all(|v| v.is_finite())),
            }
        }
    }
}

#[test]
fn instruction_sets_that_this_processor_lacks_are_said() {
    let here = Isa::available();
    println!("kernels are tested on {here:?}; others do not run on this processor");
    assert!(here.contains(&Isa::Plain));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn linear_equals_portable(
        n in 1usize..40, out in 1usize..150, inner in 1usize..600, dtype in float_dtype(), seed in any::<u64>(),
    ) {
        let x = tensor([n, inner], seed, DType::F32);
        let w = tensor([out, inner], seed ^ 1, dtype);
        for isa in Isa::available() {
            let rounds = rounds(isa, n, inner, dtype);
            let expected = floats(portable::linear::<Flex>(as_met(&x, |_| rounds), w.clone()));
            close(&floats(linear::linear(isa, x.clone(), w.clone())), &expected, inner)?;
        }
    }

    #[test]
    fn a_batch_gives_the_bits_of_its_rows(
        n in 2usize..16, out in 1usize..100, inner in 1usize..1200, dtype in float_dtype(), seed in any::<u64>(),
    ) {
        let x = tensor([n, inner], seed, DType::F32);
        let w = tensor([out, inner], seed ^ 1, dtype);
        for isa in Isa::available() {
            let batch = floats(linear::linear(isa, x.clone(), w.clone()));
            for (row, y) in floats(x.clone()).chunks(inner).zip(batch.chunks(out)) {
                let alone = FlexTensor::from_data(TensorData::new(row.to_vec(), [1, inner]));
                prop_assert_eq!(floats(linear::linear(isa, alone, w.clone())), y);
            }
        }
    }

    #[test]
    fn joint_products_have_the_bits_of_each(
        n in 1usize..20, outs in [1usize..100, 1usize..100, 1usize..20], inner in 1usize..600,
        dtypes in [float_dtype(), float_dtype(), float_dtype()], alike in any::<bool>(), seed in any::<u64>(),
    ) {
        let x = tensor([n, inner], seed, DType::F32);
        let weights = [0, 1, 2].map(|i| {
            let dtype = if alike { dtypes[0] } else { dtypes[i] };
            tensor([outs[i], inner], seed ^ (1 + i as u64), dtype)
        });
        for isa in Isa::available() {
            let joint = linear::joint_linear(isa, x.clone(), weights.clone());
            for (joint, weight) in joint.into_iter().zip(&weights) {
                let expected = linear::linear(isa, x.clone(), weight.clone());
                prop_assert_eq!(joint.shape(), expected.shape());
                prop_assert_eq!(floats(joint), floats(expected));
            }
        }
    }

    #[test]
    fn expert_linear_equals_portable(
        n in 1usize..60, experts in 1usize..6, out in 1usize..70, inner in 1usize..90,
        dtype in float_dtype(), seed in any::<u64>(),
    ) {
        let x = tensor([n, inner], seed, DType::F32);
        let w = tensor([experts, out, inner], seed ^ 1, dtype);
        // Skewed, so that some experts get many rows and some none.
        let chosen: Vec<i32> = (0..n).map(|i| ((seed >> (i % 50)) as usize % 7 % experts) as i32).collect();
        for isa in Isa::available() {
            let rows_of = |e: i32| chosen.iter().filter(|&&c| c == e).count();
            let met = as_met(&x, |row| rounds(isa, rows_of(chosen[row]), inner, dtype));
            let expected = floats(portable::expert_linear::<Flex>(met, w.clone(), ids(chosen.clone())));
            let got = linear::expert_linear(isa, x.clone(), w.clone(), ids(chosen.clone()));
            close(&floats(got), &expected, inner)?;
        }
    }
}
