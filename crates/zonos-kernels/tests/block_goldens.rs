//! Products with quantised weights against those of the GGUF reference, which the folder that
//! `ZONOS_GOLDENS` names holds.

use std::path::PathBuf;

use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use safetensors::SafeTensors;
use zonos_gguf::GgmlType;
use zonos_kernels::{Activations, PackedTensor};

/// The reference's folder of blocks, if there is one; says so if not.
fn folder() -> Option<PathBuf> {
    let Some(goldens) = std::env::var_os("ZONOS_GOLDENS") else {
        println!("ZONOS_GOLDENS is not set: nothing is compared with the reference's products");
        return None;
    };
    Some(PathBuf::from(goldens).join("gguf/blocks"))
}

fn f32s(file: &SafeTensors<'_>, name: &str) -> Vec<f32> {
    let bytes = file.tensor(name).expect(name).data();
    let values = bytes.as_chunks::<4>().0.iter();
    values.map(|b| f32::from_le_bytes(*b)).collect()
}

fn f64s(file: &SafeTensors<'_>, name: &str) -> Vec<f64> {
    let bytes = file.tensor(name).expect(name).data();
    let values = bytes.as_chunks::<8>().0.iter();
    values.map(|b| f64::from_le_bytes(*b)).collect()
}

fn product(
    x: &[f32],
    inner: usize,
    w: &[u8],
    out: usize,
    t: GgmlType,
    activations: Activations,
    device: &Device,
) -> Vec<f32> {
    let x = TensorData::new(x.to_vec(), [x.len() / inner, inner]);
    let x = Tensor::<2>::from_data(x, (device, DType::F32));
    let bytes = TensorData::new(w.to_vec(), [out, w.len() / out]);
    let bytes = Tensor::<2, Int>::from_data(bytes, (device, DType::U8));
    let y = PackedTensor::from_blocks(bytes, t, activations).linear(x);
    y.into_data().try_into_vec().expect("f32")
}

/// Every product within 1e-6 of its sum of magnitudes and 2e-6 of the root mean square where activations
/// are exact; the error of rounded ones at most 1.2 times that of the reference's own.
#[test]
fn products_are_those_of_the_reference() {
    let Some(folder) = folder() else { return };
    let file = std::fs::read(folder.join("products.safetensors")).expect("products.safetensors");
    let file = SafeTensors::deserialize(&file).expect("products.safetensors");
    let report = std::fs::read(folder.join("report.json")).expect("report.json");
    let report: serde_json::Value = serde_json::from_slice(&report).expect("report.json");
    let device = Device::flex();
    let out = 96;
    for t in GgmlType::READABLE {
        if !t.is_quantized() {
            continue;
        }
        for inner in [256, 2048] {
            let case = format!("{t}.{inner}");
            let x = f32s(&file, &format!("x.{inner}"));
            let w = file.tensor(&format!("w.{case}")).expect("weights");
            let y = f64s(&file, &format!("y.{case}"));
            let magnitudes = f64s(&file, &format!("absdot.{case}"));
            let theirs = report["ggml_product_error"][&case]["rms_over_rms_y"]
                .as_f64()
                .expect("the reference's error");
            for rows in [1, 3, 8] {
                for activations in [Activations::Exact, Activations::EightBit] {
                    let x = &x[..rows * inner];
                    let got = product(x, inner, w.data(), out, t, activations, &device);
                    let (mut error, mut size, mut worst) = (0.0, 0.0, 0.0f64);
                    for (i, got) in got.iter().enumerate() {
                        let delta = f64::from(*got) - y[i];
                        error += delta * delta;
                        size += y[i] * y[i];
                        worst = worst.max(delta.abs() / magnitudes[i]);
                    }
                    let relative = (error / size).sqrt();
                    println!("{case} {rows} {activations:?}: {relative:.2e}, worst {worst:.2e}");
                    match activations {
                        Activations::Exact => {
                            assert!(worst <= 1e-6, "{case} {rows}: {worst:e}");
                            assert!(relative <= 2e-6, "{case} {rows}: {relative:e}");
                        }
                        Activations::EightBit => {
                            let limit = 1.2 * theirs;
                            // Their error is that of eight rows; fewer scatter.
                            let limit = if rows == 8 { limit } else { 1.5 * limit };
                            assert!(
                                relative <= limit,
                                "{case} {rows}: {relative:e} of {theirs:e}"
                            );
                        }
                    }
                }
            }
        }
    }
}

/// Blocks that no quantiser makes: every code, scales of any sign and size.
#[test]
fn strange_blocks_are_multiplied_as_they_decode() {
    let Some(folder) = folder() else { return };
    let device = Device::flex();
    let inner = 512;
    for t in GgmlType::READABLE {
        if !t.is_quantized() {
            continue;
        }
        let name = format!("{t}.safetensors");
        let file = std::fs::read(folder.join(&name)).expect(&name);
        let file = SafeTensors::deserialize(&file).expect(&name);
        let (w, decoded) = (file.tensor("rand").expect("rand"), f32s(&file, "rand_deq"));
        let x: Vec<f32> = (0..3 * inner)
            .map(|i| ((i * 37 % 101) as f32 - 50.0) / 50.0)
            .collect();
        let y = product(&x, inner, w.data(), 12, t, Activations::Exact, &device);
        for (i, y) in y.iter().enumerate() {
            let (x, w) = (
                &x[i / 12 * inner..][..inner],
                &decoded[i % 12 * inner..][..inner],
            );
            let terms = x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w));
            let expected: f64 = terms.clone().sum();
            let limit = 2e-6 * terms.map(f64::abs).sum::<f64>();
            let delta = (f64::from(*y) - expected).abs();
            assert!(delta <= limit, "{t} {i}: {y} against {expected}");
        }
    }
}
