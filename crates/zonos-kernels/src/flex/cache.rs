//! New rows into a cache, in place.

use burn::backend::{Flex, TensorMetadata};
use burn::tensor::DType;
use burn_flex::FlexTensor;
use half::f16;
use half::slice::HalfFloatSliceExt;

use super::weights::contiguous;
use crate::portable;

/// See [`SpeechBackend::cache_append`](crate::SpeechBackend::cache_append).
pub(super) fn cache_append(
    mut cache: FlexTensor,
    new: FlexTensor,
    counts: Vec<usize>,
    past: Vec<usize>,
) -> FlexTensor {
    let [batch, heads, capacity, dim] = cache.shape().dims::<4>();
    let [rows, new_heads, new_dim] = new.shape().dims::<3>();
    assert!(
        (new_heads, new_dim) == (heads, dim),
        "cache_append: rows of [{new_heads}, {new_dim}] into a cache of [{heads}, {dim}]"
    );
    assert!(
        counts.len() == batch && past.len() == batch && counts.iter().sum::<usize>() == rows,
        "cache_append: counts {counts:?} and pasts {past:?} for {batch} sequences and {rows} rows"
    );
    let fits = |(&count, &past): (&usize, &usize)| past + count <= capacity;
    assert!(
        counts.iter().zip(&past).all(fits),
        "cache_append: {counts:?} rows behind {past:?} in a cache of {capacity}"
    );
    let plain = cache.is_contiguous() && cache.layout().start_offset() == 0;
    let known = matches!(cache.dtype(), DType::F32 | DType::F16) && new.dtype() == DType::F32;
    if !plain || !known {
        return portable::cache_append::<Flex>(cache, new, counts, past);
    }
    // Heads cut from a wider row are read where they lie.
    let strides = new.layout().strides();
    let new = if strides[2] == 1 && strides.iter().all(|&s| s >= 0) {
        new
    } else {
        contiguous(new)
    };
    let strides = new.layout().strides();
    let [row_stride, head_stride] = [strides[0], strides[1]].map(isize::unsigned_abs);
    let values = &new.storage::<f32>()[new.layout().start_offset()..];
    let mut copies = Vec::with_capacity(rows);
    let mut row = 0;
    for (sequence, (&count, &past)) in counts.iter().zip(&past).enumerate() {
        for position in past..past + count {
            copies.push((row, sequence, position));
            row += 1;
        }
    }
    let each = |write: &mut dyn FnMut(usize, &[f32])| {
        for &(row, sequence, position) in &copies {
            for head in 0..heads {
                let from = &values[row * row_stride + head * head_stride..][..dim];
                write(
                    ((sequence * heads + head) * capacity + position) * dim,
                    from,
                );
            }
        }
    };
    if cache.dtype() == DType::F32 {
        let to = cache.storage_mut::<f32>();
        each(&mut |at, from| to[at..at + dim].copy_from_slice(from));
    } else {
        let to = cache.storage_mut::<f16>();
        each(&mut |at, from| to[at..at + dim].convert_from_f32_slice(from));
    }
    cache
}
