//! New rows into a cache.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, TensorMetadata};
use burn::tensor::{Shape, Slice};

/// See [`SpeechBackend::cache_append`](crate::SpeechBackend::cache_append).
pub fn cache_append<B: Backend>(
    mut cache: FloatTensor<B>,
    new: FloatTensor<B>,
    counts: Vec<usize>,
    past: Vec<usize>,
) -> FloatTensor<B> {
    let [_, heads, dim] = new.shape().dims::<3>();
    let dtype = cache.dtype();
    let new = if dtype == new.dtype() {
        new
    } else {
        B::float_cast(new, dtype.into())
    };
    let mut first = 0;
    for (i, (count, past)) in counts.into_iter().zip(past).enumerate() {
        let rows = [first..first + count, 0..heads, 0..dim].map(Slice::from);
        let part = B::float_permute(B::float_slice(new.clone(), &rows), &[1, 0, 2]);
        let part = B::float_reshape(part, Shape::new([1, heads, count, dim]));
        let place = [i..i + 1, 0..heads, past..past + count, 0..dim].map(Slice::from);
        cache = B::float_slice_assign(cache, &place, part);
        first += count;
    }
    cache
}
