//! Kernels for quantised blocks against the decoded weight, on every instruction set here.

use burn::tensor::{DType, TensorData};
use burn_flex::FlexTensor;
use proptest::prelude::*;
use zonos_gguf::GgmlType;
use zonos_gguf::blocks::{dequantize_row, quantize_row};

use super::block_linear::{block_expert_gate_up, block_expert_linear, block_linear};
use super::conv_tests::values;
use super::linear_tests::{floats, tensor};
use super::several_rows::MANY;
use super::simd::Isa;
use crate::Activations;
use crate::activations::rounded;

fn any_type() -> impl Strategy<Value = GgmlType> {
    (0..GgmlType::QUANTIZED.len()).prop_map(|i| GgmlType::QUANTIZED[i])
}

/// Bytes that depend on `seed` alone.
fn random_bytes(seed: u64, n: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..n).map(|_| next()).collect()
}

/// Where a block holds halves.
fn half_places(t: GgmlType) -> &'static [usize] {
    match t {
        GgmlType::Q4_1 | GgmlType::Q5_1 | GgmlType::Q4K | GgmlType::Q5K => &[0, 2],
        GgmlType::Q2K => &[80, 82],
        GgmlType::Q3K => &[108],
        GgmlType::Q6K => &[208],
        _ => &[0],
    }
}

/// How blocks are filled.
#[derive(Clone, Copy, Debug)]
enum Fill {
    /// As the quantiser makes them.
    Quantised,
    /// Random bytes, with scales of every finite size and sign.
    Random,
    /// All bits set, or none, with scales of 1: the extremes of every code.
    Extreme(u8),
}

fn any_fill() -> impl Strategy<Value = Fill> {
    prop_oneof![
        2 => Just(Fill::Quantised),
        2 => Just(Fill::Random),
        1 => prop_oneof![Just(0), Just(0xFF), Just(0x80), Just(0x7F)].prop_map(Fill::Extreme),
    ]
}

fn weights(t: GgmlType, fill: Fill, seed: u64, rows: usize, inner: usize) -> Vec<u8> {
    let row = inner / t.block_values() * t.block_bytes();
    match fill {
        Fill::Quantised => {
            let mut bytes = vec![0; rows * row];
            let x = values(seed, rows * inner);
            for (x, bytes) in x.chunks(inner).zip(bytes.chunks_mut(row)) {
                quantize_row(t, x, None, bytes).expect("whole blocks");
            }
            bytes
        }
        Fill::Random | Fill::Extreme(_) => {
            let mut bytes = match fill {
                Fill::Extreme(byte) => vec![byte; rows * row],
                _ => random_bytes(seed, rows * row),
            };
            for (i, block) in bytes.chunks_mut(t.block_bytes()).enumerate() {
                for &at in half_places(t) {
                    let bits = match fill {
                        Fill::Extreme(_) => 0x3C00,
                        // Exponents of 31 are infinities and NaN.
                        _ => match u16::from_le_bytes([block[at], block[at + 1]]) {
                            bits if bits & 0x7C00 == 0x7C00 => {
                                bits & 0x83FF | (i as u16 % 31) << 10
                            }
                            bits => bits,
                        },
                    };
                    block[at..at + 2].copy_from_slice(&bits.to_le_bytes());
                }
            }
            bytes
        }
    }
}

fn decoded(t: GgmlType, bytes: &[u8]) -> Vec<f32> {
    let mut values = vec![0.0; bytes.len() / t.block_bytes() * t.block_values()];
    dequantize_row(t, bytes, &mut values).expect("whole blocks");
    values
}

fn blocks<const D: usize>(bytes: &[u8], shape: [usize; D]) -> FlexTensor {
    let tensor = FlexTensor::from_data(TensorData::new(bytes.to_vec(), shape));
    assert_eq!(tensor.dtype(), DType::U8);
    tensor
}

fn ids(values: Vec<i32>) -> FlexTensor {
    let n = values.len();
    FlexTensor::from_data(TensorData::new(values, [n]))
}

/// A product in f64, and how far f32 may be from it: 1e-6 of the sum of magnitudes. A format whose values
/// are a difference counts with both sides of it.
fn expected(x: &[f32], w: &[f32], slack: f64) -> (f64, f64) {
    let terms = x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w));
    let sum: f64 = terms.clone().sum();
    (sum, slack * terms.map(f64::abs).sum::<f64>() + 1e-30)
}

fn as_seen(x: &[f32], inner: usize, activations: Activations) -> Vec<f32> {
    let mut x = x.to_vec();
    if activations == Activations::EightBit {
        x.chunks_mut(inner).for_each(rounded);
    }
    x
}

const BOTH: [Activations; 2] = [Activations::Exact, Activations::EightBit];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn block_linear_equals_the_decoded_product(
        t in any_type(), fill in any_fill(), n in 1usize..20, out in 1usize..80, blocks_in in 1usize..20,
        seed in any::<u64>(),
    ) {
        let inner = if t.block_values() == 32 { 32 * blocks_in } else { 256 * blocks_in.div_ceil(4) };
        let bytes = weights(t, fill, seed, out, inner);
        let w = decoded(t, &bytes);
        let row = bytes.len() / out;
        let x = tensor([n, inner], seed ^ 1, DType::F32);
        let given = floats(x.clone());
        for activations in BOTH {
            let seen = as_seen(&given, inner, activations);
            for isa in Isa::available() {
                let got = floats(block_linear(isa, x.clone(), blocks(&bytes, [out, row]), t, activations));
                for (i, got) in got.iter().enumerate() {
                    let (x, w) = (&seen[i / out * inner..][..inner], &w[i % out * inner..][..inner]);
                    let (y, limit) = expected(x, w, 2e-6);
                    let delta = (f64::from(*got) - y).abs();
                    prop_assert!(delta <= limit, "{t} {fill:?} {activations:?} {isa:?} {i}: {got} against {y}, {limit:e}");
                }
            }
        }
    }

    #[test]
    fn a_batch_gives_the_bits_of_its_rows(
        t in any_type(), n in 2usize..40, out in 1usize..70, seed in any::<u64>(),
    ) {
        let inner = 768;
        let bytes = weights(t, Fill::Quantised, seed, out, inner);
        let w = blocks(&bytes, [out, bytes.len() / out]);
        let x = tensor([n, inner], seed, DType::F32);
        for activations in BOTH {
            for isa in Isa::available() {
                if n >= MANY && matches!(isa, Isa::Plain | Isa::Wide) {
                    // Many rows are worth decoding for without kernels, and their sums are GEMM's.
                    continue;
                }
                let batch = floats(block_linear(isa, x.clone(), w.clone(), t, activations));
                for (row, y) in floats(x.clone()).chunks(inner).zip(batch.chunks(out)) {
                    let alone = FlexTensor::from_data(TensorData::new(row.to_vec(), [1, inner]));
                    prop_assert_eq!(floats(block_linear(isa, alone, w.clone(), t, activations)), y);
                }
            }
        }
    }

    #[test]
    fn experts_are_their_own_matrices(
        t in any_type(), u in any_type(), n in 1usize..40, experts in 1usize..5, out in 1usize..50,
        seed in any::<u64>(),
    ) {
        let inner = 512;
        let (gate, up) = (
            weights(t, Fill::Quantised, seed, experts * out, inner),
            weights(u, Fill::Quantised, seed ^ 2, experts * out, inner),
        );
        let rows = experts * out;
        let stack = |bytes: &[u8]| blocks(bytes, [experts, out, bytes.len() / rows]);
        let chosen: Vec<i32> = (0..n).map(|i| ((seed >> (i % 50)) as usize % 7 % experts) as i32).collect();
        let x = tensor([n, inner], seed ^ 1, DType::F32);
        let given = floats(x.clone());
        let (w, v) = (decoded(t, &gate), decoded(u, &up));
        for activations in BOTH {
            let seen = as_seen(&given, inner, activations);
            for isa in Isa::available() {
                let choice = ids(chosen.clone());
                let got = floats(block_expert_linear(isa, x.clone(), stack(&gate), choice.clone(), t, activations));
                let both = floats(block_expert_gate_up(
                    isa, x.clone(), stack(&gate), stack(&up), choice, [t, u], activations,
                ));
                for i in 0..n * out {
                    let at = (chosen[i / out] as usize * out + i % out) * inner;
                    let x = &seen[i / out * inner..][..inner];
                    let (y, limit) = expected(x, &w[at..][..inner], 2e-6);
                    let delta = (f64::from(got[i]) - y).abs();
                    prop_assert!(delta <= limit, "{t} {activations:?} {isa:?} {i}: {} against {y}", got[i]);
                    let (z, of_z) = expected(x, &v[at..][..inner], 2e-6);
                    let gated = y / (1.0 + (-y).exp()) * z;
                    let limit = 2.0 * (limit * z.abs() + of_z * y.abs()) + 1e-5;
                    let delta = (f64::from(both[i]) - gated).abs();
                    prop_assert!(delta <= limit, "{t} {u} {activations:?} {isa:?} {i}: {} against {gated}", both[i]);
                }
            }
        }
    }
}

/// The largest codes with the largest activations of one sign: where 16-bit sums would overflow.
#[test]
fn the_largest_sums_do_not_overflow() {
    for t in GgmlType::QUANTIZED {
        for byte in [0u8, 0xFF, 0x7F, 0x80, 0x88, 0xF0, 0x0F] {
            for sign in [1.0f32, -1.0] {
                let inner = 1024;
                let bytes = weights(t, Fill::Extreme(byte), 0, 3, inner);
                let w = decoded(t, &bytes);
                // One row, and as many as kernels take at a time.
                for rows in [1, 4] {
                    let x = TensorData::new(vec![sign; rows * inner], [rows, inner]);
                    let x = FlexTensor::from_data(x);
                    for isa in Isa::available() {
                        for activations in BOTH {
                            let stack = blocks(&bytes, [3, bytes.len() / 3]);
                            let got = floats(block_linear(isa, x.clone(), stack, t, activations));
                            let (y, limit) = expected(&vec![sign; inner], &w[..inner], 2e-6);
                            // Equal codes with a scale of their own: the sum of magnitudes is the sum, and
                            // may be 0 though both sides of a difference are large.
                            let limit = limit.max(2e-6 * 63.0 * 63.0 * inner as f64 / 8.0);
                            for got in got {
                                let delta = (f64::from(got) - y).abs();
                                assert!(
                                    delta <= limit,
                                    "{t} {byte:#x} {sign} {isa:?} {activations:?}: {got} {y}"
                                );
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Codes that stand for little, but are stored far from zero: what their offset adds is taken off exactly.
#[test]
fn offsets_take_nothing_from_small_products() {
    for t in GgmlType::QUANTIZED {
        for byte in [0u8, 0xFF, 0x7F, 0x80] {
            for seed in 0..100 {
                let (rows, inner) = (5, t.block_values());
                let bytes = weights(t, Fill::Extreme(byte), 0, 1, inner);
                let w = decoded(t, &bytes);
                let x = tensor([rows, inner], seed, DType::F32);
                let seen = as_seen(&floats(x.clone()), inner, Activations::EightBit);
                for isa in Isa::available() {
                    let stack = blocks(&bytes, [1, bytes.len()]);
                    let got = block_linear(isa, x.clone(), stack, t, Activations::EightBit);
                    for (x, got) in seen.chunks(inner).zip(floats(got)) {
                        let (y, limit) = expected(x, &w, 2e-6);
                        let delta = (f64::from(got) - y).abs();
                        assert!(
                            delta <= limit,
                            "{t} {byte:#x} {seed} {isa:?}: {got} against {y}, {limit:e}"
                        );
                    }
                }
            }
        }
    }
}

/// Where the decoded product is infinite or no number, so is ours; the rows beside it are not touched.
#[test]
fn scales_that_are_not_finite_stay_in_their_row() {
    for t in GgmlType::QUANTIZED {
        for bits in [0x7C00u16, 0xFC00, 0x7E00] {
            let inner = 512;
            let mut bytes = weights(t, Fill::Quantised, 5, 3, inner);
            let row = bytes.len() / 3;
            for &at in half_places(t) {
                bytes[row + at..row + at + 2].copy_from_slice(&bits.to_le_bytes());
            }
            let x = tensor([2, inner], 9, DType::F32);
            for isa in Isa::available() {
                for activations in BOTH {
                    let y = floats(block_linear(
                        isa,
                        x.clone(),
                        blocks(&bytes, [3, row]),
                        t,
                        activations,
                    ));
                    for (i, y) in y.iter().enumerate() {
                        assert_eq!(
                            y.is_finite(),
                            i % 3 != 1,
                            "{t} {bits:#x} {isa:?} {activations:?} {i}: {y}"
                        );
                    }
                }
            }
        }
    }
}

/// Activations that are not finite make every result of their row infinite or no number, and no other.
#[test]
fn activations_that_are_not_finite_stay_in_their_row() {
    for t in GgmlType::QUANTIZED {
        for bad in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
            let inner = 512;
            let bytes = weights(t, Fill::Quantised, 5, 3, inner);
            let mut x = values(4, 2 * inner);
            x[inner + 77] = bad;
            let x = FlexTensor::from_data(TensorData::new(x, [2, inner]));
            for isa in Isa::available() {
                for activations in BOTH {
                    let w = blocks(&bytes, [3, bytes.len() / 3]);
                    let y = floats(block_linear(isa, x.clone(), w, t, activations));
                    for (i, y) in y.iter().enumerate() {
                        assert_eq!(
                            y.is_finite(),
                            i < 3,
                            "{t} {bad} {isa:?} {activations:?} {i}: {y}"
                        );
                    }
                }
            }
        }
    }
}

/// Rows that start anywhere in memory, as those of a mapped file do.
#[test]
fn blocks_are_read_where_they_lie() {
    for t in GgmlType::QUANTIZED {
        let (out, inner) = (5, 512);
        let bytes = weights(t, Fill::Quantised, 8, out, inner);
        let row = bytes.len() / out;
        let x = tensor([1, inner], 3, DType::F32);
        let whole = blocks(&bytes, [out, row]);
        let y = floats(block_linear(
            Isa::best(),
            x.clone(),
            whole.clone(),
            t,
            Activations::Exact,
        ));
        let layout = whole.layout().narrow(0, 2, 3);
        let part = whole.with_layout(layout);
        let rows = floats(block_linear(Isa::best(), x, part, t, Activations::Exact));
        assert_eq!(y[2..], rows, "{t}");
    }
}
