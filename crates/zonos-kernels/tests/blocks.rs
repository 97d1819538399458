//! Products with weights in quantised blocks, on every kind of device, against the decoded weight.

use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use zonos_gguf::{GgmlType, blocks};
use zonos_kernels::{Activations, PackedTensor, expert_gate_up, ops};

const INNER: usize = 512;

/// Values in [-1, 1) that depend on `seed` alone.
fn values(seed: u64, n: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..n).map(|_| next()).collect()
}

/// Quantised rows: their bytes, and the values that those hold.
fn quantised(t: GgmlType, seed: u64, rows: usize) -> (Vec<u8>, Vec<f32>) {
    let row = INNER / t.block_values() * t.block_bytes();
    let (mut bytes, mut held) = (vec![0; rows * row], vec![0.0; rows * INNER]);
    for (r, x) in values(seed, rows * INNER).chunks(INNER).enumerate() {
        let bytes = &mut bytes[r * row..][..row];
        blocks::quantize_row(t, x, None, bytes).expect("whole blocks");
        blocks::dequantize_row(t, bytes, &mut held[r * INNER..][..INNER]).expect("whole blocks");
    }
    (bytes, held)
}

fn bytes_tensor<const D: usize>(bytes: Vec<u8>, lead: &[usize], device: &Device) -> Tensor<D, Int> {
    let rows: usize = lead.iter().product();
    let mut shape = lead.to_vec();
    shape.push(bytes.len() / rows);
    Tensor::from_data(TensorData::new(bytes, shape), (device, DType::U8))
}

fn tensor(values: &[f32], rows: usize, device: &Device) -> Tensor<2> {
    let shape = [rows, values.len() / rows];
    Tensor::from_data(
        TensorData::new(values.to_vec(), shape),
        (device, DType::F32),
    )
}

fn ids(values: &[i32], device: &Device) -> Tensor<1, Int> {
    let data = TensorData::new(values.to_vec(), [values.len()]);
    Tensor::from_data(data, (device, DType::I32))
}

fn host<const D: usize>(x: Tensor<D>) -> Vec<f32> {
    x.into_data().try_into_vec().expect("f32")
}

/// `x W^T` in f64, and the sums of magnitudes.
fn product(x: &[f32], w: &[f32]) -> (Vec<f64>, Vec<f64>) {
    let mut y = Vec::new();
    let mut magnitudes = Vec::new();
    for x in x.chunks(INNER) {
        for w in w.chunks(INNER) {
            let terms = x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w));
            y.push(terms.clone().sum());
            magnitudes.push(terms.map(f64::abs).sum());
        }
    }
    (y, magnitudes)
}

/// Exact products within 1e-6 of the sum of magnitudes; rounded ones within 1 % of the root mean square.
fn check(what: &str, got: &[f32], (y, magnitudes): &(Vec<f64>, Vec<f64>), a: Activations) {
    assert_eq!(got.len(), y.len(), "{what}");
    let (mut error, mut size) = (0.0, 0.0);
    for (i, (got, y)) in got.iter().zip(y).enumerate() {
        let delta = f64::from(*got) - y;
        if a == Activations::Exact {
            assert!(
                delta.abs() <= 1e-6 * magnitudes[i],
                "{what}: {i}: {delta:e}"
            );
        }
        error += delta * delta;
        size += y * y;
    }
    let relative = (error / size).sqrt();
    assert!(
        relative <= 0.01,
        "{what}: {relative:e} of the root mean square"
    );
    assert!(
        a == Activations::Exact || relative > 1e-6,
        "{what}: nothing was rounded"
    );
}

fn devices() -> Vec<(&'static str, Device)> {
    let mut devices = vec![
        ("flex", Device::flex()),
        ("autodiff", Device::flex().autodiff()),
    ];
    #[cfg(feature = "ndarray")]
    devices.push((
        "ndarray",
        zonos_kernels::parse_device("ndarray").expect("compiled in"),
    ));
    devices.reverse();
    devices
}

#[test]
fn products_of_every_type_are_those_of_the_decoded_weight() {
    for (name, device) in devices() {
        for t in GgmlType::QUANTIZED {
            let (bytes, held) = quantised(t, t.id().into(), 24);
            let w = bytes_tensor::<2>(bytes, &[24], &device);
            for rows in [1, 3, 8, 17] {
                let x = values(7, rows * INNER);
                let expected = product(&x, &held);
                for a in [Activations::Exact, Activations::EightBit] {
                    let packed = PackedTensor::from_blocks(w.clone(), t, a);
                    assert_eq!(packed.dims(), [24, INNER]);
                    assert_eq!(packed.storage(), t);
                    let y = host(packed.linear(tensor(&x, rows, &device)));
                    check(&format!("{name} {t} {rows} {a:?}"), &y, &expected, a);
                }
            }
            let packed = PackedTensor::from_blocks(w, t, Activations::Exact);
            assert_eq!(host(packed.value()), held, "{name} {t}: values");
        }
    }
}

#[test]
fn stacks_go_by_expert() {
    let chosen = [2, 0, 2, 2, 3, 0, 2];
    for (name, device) in devices() {
        for t in [GgmlType::Q8_0, GgmlType::Q5_1, GgmlType::Q4K, GgmlType::Q6K] {
            let (bytes, held) = quantised(t, 5, 4 * 16);
            let (up_bytes, up_held) = quantised(t, 6, 4 * 16);
            let w = bytes_tensor::<3>(bytes, &[4, 16], &device);
            let up = bytes_tensor::<3>(up_bytes, &[4, 16], &device);
            let x = values(8, chosen.len() * INNER);
            let (mut expected, mut both) = ((Vec::new(), Vec::new()), Vec::new());
            for (x, &e) in x.chunks(INNER).zip(&chosen) {
                let of = |held: &[f32]| product(x, &held[e as usize * 16 * INNER..][..16 * INNER]);
                let (gate, up) = (of(&held), of(&up_held));
                let gated = gate.0.iter().zip(&up.0);
                both.extend(gated.map(|(g, u)| g / (1.0 + (-g).exp()) * u));
                expected.0.extend(gate.0);
                expected.1.extend(gate.1);
            }
            for a in [Activations::Exact, Activations::EightBit] {
                let what = format!("{name} {t} {a:?}");
                let packed = PackedTensor::from_blocks(w.clone(), t, a);
                let up = PackedTensor::from_blocks(up.clone(), t, a);
                let (x, chosen) = (tensor(&x, chosen.len(), &device), ids(&chosen, &device));
                let y = host(packed.expert_linear(x.clone(), chosen.clone()));
                check(&what, &y, &expected, a);
                let y = host(expert_gate_up(&packed, &up, x, chosen));
                let size = both.iter().map(|v| v * v).sum::<f64>().sqrt();
                let error: f64 = y
                    .iter()
                    .zip(&both)
                    .map(|(a, b)| (f64::from(*a) - b).powi(2))
                    .sum();
                let limit = if a == Activations::Exact { 1e-6 } else { 0.02 };
                assert!(error.sqrt() <= limit * size, "{what}: gate and up");
            }
        }
    }
}

#[test]
fn a_matrix_in_parts_is_one_matrix() {
    let device = Device::flex();
    let (bytes, held) = quantised(GgmlType::Q4K, 3, 2 * 8);
    let w = bytes_tensor::<3>(bytes, &[2, 8], &device);
    let packed = PackedTensor::from_blocks(w, GgmlType::Q4K, Activations::Exact);
    let x = values(4, INNER);
    let y = host(packed.linear_flat(tensor(&x, 1, &device)));
    check("parts", &y, &product(&x, &held), Activations::Exact);
}

#[test]
fn no_rows_give_no_results() {
    let device = Device::flex();
    let (bytes, _) = quantised(GgmlType::Q8_0, 3, 8);
    let w = bytes_tensor::<2>(bytes, &[8], &device);
    let x = Tensor::<2>::zeros([0, INNER], &device);
    let y = ops::block_linear(x, w, GgmlType::Q8_0, Activations::EightBit);
    assert_eq!(y.dims(), [0, 8]);
}

/// The gradient of the input is that of a product with the decoded weight, and none reaches the blocks.
#[test]
fn gradients_flow_to_the_input() {
    let device = Device::flex().autodiff();
    for t in [GgmlType::Q5_0, GgmlType::Q3K] {
        let (bytes, held) = quantised(t, 9, 3 * 8);
        let decoded = tensor(&held, 24, &device).reshape([3, 8, INNER]);
        let w = bytes_tensor::<3>(bytes, &[3, 8], &device);
        let chosen = ids(&[1, 1, 0, 2, 1], &device);
        let r = tensor(&values(10, 5 * 8), 5, &device);
        let gradient = |y: &dyn Fn(Tensor<2>) -> Tensor<2>, r: Tensor<2>| {
            let x = tensor(&values(11, 5 * INNER), 5, &device).require_grad();
            let grads = (y(x.clone()) * r).sum().backward();
            host(x.grad(&grads).expect("a gradient"))
        };
        let packed = PackedTensor::from_blocks(w.clone(), t, Activations::Exact);
        let up = PackedTensor::new(decoded.clone().mul_scalar(0.5).detach());
        let flat = w.reshape([24, INNER / t.block_values() * t.block_bytes()]);
        let whole = decoded.clone().reshape([24, INNER]);
        let wide = tensor(&values(12, 5 * 24), 5, &device);
        let same_type = packed.clone();
        let pairs: [(Vec<f32>, Vec<f32>); 4] = [
            (
                gradient(
                    &|x| ops::block_linear(x, flat.clone(), t, Activations::Exact),
                    wide.clone(),
                ),
                gradient(&|x| ops::linear(x, whole.clone()), wide.clone()),
            ),
            (
                gradient(&|x| packed.expert_linear(x, chosen.clone()), r.clone()),
                gradient(
                    &|x| ops::expert_linear(x, decoded.clone(), chosen.clone()),
                    r.clone(),
                ),
            ),
            (
                gradient(
                    &|x| expert_gate_up(&packed, &up, x, chosen.clone()),
                    r.clone(),
                ),
                gradient(
                    &|x| {
                        let gate = ops::expert_linear(x.clone(), decoded.clone(), chosen.clone());
                        let half = decoded.clone().mul_scalar(0.5);
                        let up = ops::expert_linear(x, half, chosen.clone());
                        burn::tensor::activation::silu(gate) * up
                    },
                    r.clone(),
                ),
            ),
            (
                gradient(
                    &|x| expert_gate_up(&packed, &same_type, x, chosen.clone()),
                    r.clone(),
                ),
                gradient(
                    &|x| {
                        let gate = ops::expert_linear(x, decoded.clone(), chosen.clone());
                        burn::tensor::activation::silu(gate.clone()) * gate
                    },
                    r.clone(),
                ),
            ),
        ];
        for (i, (ours, theirs)) in pairs.iter().enumerate() {
            let largest = theirs.iter().fold(0.0f32, |m, v| m.max(v.abs()));
            for (a, b) in ours.iter().zip(theirs) {
                assert!((a - b).abs() <= 2e-5 * largest, "{t} {i}: {a} against {b}");
            }
        }
    }
}
