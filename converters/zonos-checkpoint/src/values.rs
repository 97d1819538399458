//! Values of float tensors: conversion to f32 and the count of what is not finite.

use burn::tensor::{Bytes, DType, TensorData};
use half::{bf16, f16};
use rayon::prelude::*;

/// Elements per parallel task.
const CHUNK: usize = 1 << 16;

/// Whether the dtype is one the models compute with.
pub(crate) fn is_float(dtype: DType) -> bool {
    matches!(
        dtype,
        DType::F64 | DType::F32 | DType::Flex32 | DType::F16 | DType::BF16
    )
}

/// The same values as f32; `None` when the dtype is not a float or the bytes are misaligned.
pub(crate) fn to_f32(data: TensorData) -> Option<TensorData> {
    let (bytes, shape, dtype) = data.into_parts();
    let values = match dtype {
        DType::F32 => return TensorData::try_from_bytes(bytes, shape, dtype).ok(),
        _ => floats(&bytes, dtype)?,
    };
    TensorData::try_from_bytes(Bytes::from_elems(values), shape, DType::F32).ok()
}

/// The values of float bytes as f32.
pub(crate) fn floats(bytes: &[u8], dtype: DType) -> Option<Vec<f32>> {
    Some(match dtype {
        DType::F32 | DType::Flex32 => convert(cast::<f32>(bytes)?, |v| v),
        DType::F16 => convert(cast::<f16>(bytes)?, f16::to_f32),
        DType::BF16 => convert(cast::<bf16>(bytes)?, bf16::to_f32),
        DType::F64 => convert(cast::<f64>(bytes)?, |v| v as f32),
        _ => return None,
    })
}

fn cast<T: bytemuck::AnyBitPattern>(bytes: &[u8]) -> Option<&[T]> {
    bytemuck::try_cast_slice(bytes).ok()
}

fn convert<T: Copy + Sync>(source: &[T], f: impl Fn(T) -> f32 + Sync + Send) -> Vec<f32> {
    let mut out = vec![0f32; source.len()];
    out.par_chunks_mut(CHUNK)
        .zip(source.par_chunks(CHUNK))
        .for_each(|(to, from)| {
            for (to, &from) in to.iter_mut().zip(from) {
                *to = f(from);
            }
        });
    out
}

/// How many values are NaN and how many infinite; zeros for dtypes that have neither.
pub(crate) fn non_finite(data: &TensorData) -> (u64, u64) {
    let bytes: &[u8] = data.bytes();
    match data.dtype() {
        DType::F32 | DType::Flex32 => count(bytes, |v: f32| (v.is_nan(), v.is_infinite())),
        DType::F16 => count(bytes, |v: f16| (v.is_nan(), v.is_infinite())),
        DType::BF16 => count(bytes, |v: bf16| (v.is_nan(), v.is_infinite())),
        DType::F64 => count(bytes, |v: f64| (v.is_nan(), v.is_infinite())),
        _ => (0, 0),
    }
}

fn count<T: bytemuck::AnyBitPattern + Sync>(
    bytes: &[u8],
    test: impl Fn(T) -> (bool, bool) + Sync + Send,
) -> (u64, u64) {
    cast::<T>(bytes)
        .unwrap_or_default()
        .par_chunks(CHUNK)
        .map(|chunk| {
            chunk.iter().fold((0, 0), |(nan, infinite), &v| {
                let (n, i) = test(v);
                (nan + u64::from(n), infinite + u64::from(i))
            })
        })
        .reduce(|| (0, 0), |a, b| (a.0 + b.0, a.1 + b.1))
}

/// Weight norm over axis 0: `w[i] = g[i] * v[i] / |v[i]|`, no epsilon; both `g` and `v` as f32.
///
/// `v` is `[n, ..]` flattened, `g` holds `n` values. The norm is summed in f64; then the arithmetic is
/// that of models in their factored form, `v * (g / |v|)` in f32. Rounding once at the end would be
/// nearer the formula but farther from those models: the error that all values of a row share adds up
/// over a deep decoder.
pub(crate) fn fold(g: &[f32], v: &[f32]) -> Vec<f32> {
    let run = v.len() / g.len().max(1);
    let mut out = vec![0f32; v.len()];
    if run == 0 {
        return out;
    }
    out.par_chunks_mut(run)
        .zip(v.par_chunks(run))
        .zip(g.par_iter())
        .for_each(|((out, v), &g)| {
            let square: f64 = v.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
            let scale = g / square.sqrt() as f32;
            for (out, &v) in out.iter_mut().zip(v) {
                *out = v * scale;
            }
        });
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folding_is_the_formula_by_hand() {
        // Rows (3, 4) and (0, -2): norms 5 and 2.
        let w = fold(&[10.0, 0.5], &[3.0, 4.0, 0.0, -2.0]);
        assert_eq!(w, [6.0, 8.0, 0.0, -0.5]);
        assert!(fold(&[], &[]).is_empty());
    }

    #[test]
    fn halves_and_doubles_become_f32_exactly() {
        let values = [1.5f32, -0.25, 1024.0, f32::INFINITY];
        let half: Vec<f16> = values.iter().map(|&v| f16::from_f32(v)).collect();
        let brain: Vec<bf16> = values.iter().map(|&v| bf16::from_f32(v)).collect();
        let double: Vec<f64> = values.iter().map(|&v| v.into()).collect();
        for data in [
            TensorData::new(half, [4]),
            TensorData::new(brain, [4]),
            TensorData::new(double, [4]),
        ] {
            assert_eq!(non_finite(&data), (0, 1));
            let out = to_f32(data).unwrap();
            assert_eq!(out.as_slice::<f32>().unwrap(), values);
        }
        let ints = TensorData::new(vec![1i32, 2], [2]);
        assert!(to_f32(ints).is_none());
    }
}
