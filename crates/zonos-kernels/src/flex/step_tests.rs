//! The small steps between matrices against their portable forms.

use burn::backend::Flex;
use burn::backend::ops::FloatTensorOps;
use burn::tensor::{DType, TensorData};
use burn_flex::FlexTensor;
use proptest::prelude::*;

use super::linear_tests::{close, floats, tensor};
use super::simd::Isa;
use super::step;
use super::weights::to_f32;
use crate::{GateOrder, portable};

/// Every bit pattern of a half, read where it lies in a larger tensor too.
#[test]
fn halves_are_widened_as_they_are() {
    for dtype in [DType::F16, DType::BF16] {
        let bytes = (0..=u16::MAX).flat_map(u16::to_ne_bytes).collect();
        let x = FlexTensor::from_data(TensorData::from_bytes_vec(bytes, [256, 256], dtype));
        for x in [Flex::float_swap_dims(x.clone(), 0, 1), x] {
            let expected = floats(portable::to_f32::<Flex>(x.clone()));
            let y = floats(to_f32(x));
            for (y, expected) in y.iter().zip(expected) {
                assert!(y.is_nan() && expected.is_nan() || y.to_bits() == expected.to_bits());
            }
        }
    }
}

#[test]
fn what_is_no_number_is_not_capped() {
    for isa in Isa::available() {
        let x = FlexTensor::from_data(TensorData::new(vec![f32::NAN, 1e38, f32::INFINITY], [1, 3]));
        let y = floats(step::soft_cap(isa, x, 15.0));
        assert!(y[0].is_nan() && y[1..] == [15.0, 15.0], "{y:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn rms_norm_equals_portable(
        rows in 1usize..20, width in 1usize..200, weighted in any::<bool>(), many in any::<bool>(),
        seed in any::<u64>(),
    ) {
        // Many: enough for several threads.
        let rows = if many { rows + 300_000 / width } else { rows };
        let x = tensor([rows, width], seed, DType::F32);
        let weight = weighted.then(|| tensor([width], seed ^ 1, DType::F32));
        let expected = floats(portable::rms_norm::<Flex>(x.clone(), weight.clone(), 1e-5));
        for isa in Isa::available() {
            close(&floats(step::rms_norm(isa, x.clone(), weight.clone(), 1e-5)), &expected, width)?;
        }
    }

    #[test]
    fn soft_cap_equals_portable(
        rows in 1usize..12, width in 1usize..200, cap in 0.5f32..40.0, stretch in 0.1f32..300.0, seed in any::<u64>(),
    ) {
        let x: Vec<f32> = floats(tensor([rows * width], seed, DType::F32)).iter().map(|x| x * stretch).collect();
        let x = FlexTensor::from_data(TensorData::new(x, [rows, width]));
        let expected = floats(portable::soft_cap::<Flex>(x.clone(), cap));
        for isa in Isa::available() {
            let got = floats(step::soft_cap(isa, x.clone(), cap));
            for (a, b) in got.iter().zip(&expected) {
                prop_assert!((a - b).abs() <= 3e-7 * cap, "{a} against {b}");
            }
        }
    }

    #[test]
    fn norm_rotate_equals_portable(
        rows in 1usize..12, heads in 1usize..5, half in 1usize..40, scaled in any::<bool>(), seed in any::<u64>(),
    ) {
        let x = tensor([rows, heads, 2 * half], seed, DType::F32);
        let scale = scaled.then(|| tensor([heads], seed ^ 1, DType::F32));
        let table = |s: u64| tensor([rows, 2 * half], seed ^ s, DType::F32);
        let expected = floats(portable::norm_rotate::<Flex>(x.clone(), scale.clone(), table(2), table(3), 1e-6));
        for isa in Isa::available() {
            let got = step::norm_rotate(isa, x.clone(), scale.clone(), table(2), table(3), 1e-6);
            close(&floats(got), &expected, 2 * half)?;
        }
    }

    #[test]
    fn gates_equal_portable(
        rows in 1usize..12, heads in 1usize..6, dim in 1usize..40, seed in any::<u64>(),
    ) {
        let x = tensor([rows, heads, dim], seed, DType::F32);
        let gate = tensor([rows, heads], seed ^ 1, DType::F32);
        let expected = floats(portable::sigmoid_gate::<Flex>(x.clone(), gate.clone()));
        close(&floats(step::sigmoid_gate(x, gate)), &expected, 4)?;
        let both = tensor([rows, 2 * dim], seed ^ 2, DType::F32);
        for order in [GateOrder::UpThenGate, GateOrder::Interleaved] {
            let expected = floats(portable::silu_gate::<Flex>(both.clone(), order));
            for isa in Isa::available() {
                close(&floats(step::silu_gate(isa, both.clone(), order)), &expected, 4)?;
            }
        }
    }
}
