//! Attention over a window and with relative positions in terms of Burn's operations.
//!
//! Queries go in tiles, so what is held at a time is a tile by the keys that it can see.

use burn::backend::tensor::{BoolTensor, Device, FloatTensor, IntTensor};
use burn::backend::{Backend, TensorMetadata};
use burn::tensor::{BoolDType, IntDType, Shape, Slice};
use std::ops::Range;

/// Queries of a tile.
const TILE: usize = 256;

/// `[batch, time, heads, dim]` -> `[batch, heads, time, dim]`.
fn heads_first<B: Backend>(x: FloatTensor<B>) -> FloatTensor<B> {
    B::float_permute(x, &[0, 2, 1, 3])
}

/// Positions `range` of `x [batch, heads, time, dim]`.
fn positions<B: Backend>(x: &FloatTensor<B>, range: Range<usize>) -> FloatTensor<B> {
    let [batch, heads, _, dim] = x.shape().dims::<4>();
    let ranges = [0..batch, 0..heads, range, 0..dim];
    B::float_slice(x.clone(), &ranges.map(Slice::from))
}

/// `key - query + shift` for queries `0..rows` and keys `0..columns`: `[1, 1, rows, columns]`.
fn distances<B: Backend>(
    rows: usize,
    columns: usize,
    shift: i64,
    device: &Device<B>,
) -> IntTensor<B> {
    let count = |from: i64, n: usize| B::int_arange(from..from + n as i64, device, IntDType::I32);
    let grid = Shape::new([1, 1, rows, columns]);
    let keys = B::int_reshape(count(shift, columns), Shape::new([1, 1, 1, columns]));
    let queries = B::int_reshape(count(0, rows), Shape::new([1, 1, rows, 1]));
    B::int_sub(
        B::int_expand(keys, grid.clone()),
        B::int_expand(queries, grid),
    )
}

fn bools<B: Backend>(device: &Device<B>) -> BoolDType {
    burn::backend::get_device_settings::<B>(device).bool_dtype
}

/// `softmax(scores) v` over the last axis of `scores`.
fn weighted<B: Backend>(scores: FloatTensor<B>, v: FloatTensor<B>) -> FloatTensor<B> {
    let largest = B::float_max_dim(B::float_detach(scores.clone()), 3);
    let weights = B::float_exp(B::float_sub(scores, largest));
    let weights = B::float_div(weights.clone(), B::float_sum_dim(weights, 3));
    B::float_matmul(weights, v)
}

/// Tiles `[batch, heads, time, dim]` one after another, as `[batch, time, heads, dim]`.
fn joined<B: Backend>(mut tiles: Vec<FloatTensor<B>>, empty: FloatTensor<B>) -> FloatTensor<B> {
    let whole = match tiles.len() {
        0 => return empty,
        1 => tiles.remove(0),
        _ => B::float_cat(tiles, 2),
    };
    B::float_permute(whole, &[0, 2, 1, 3])
}

/// See [`SpeechBackend::window_attention`](crate::SpeechBackend::window_attention).
pub fn window_attention<B: Backend>(
    q: FloatTensor<B>,
    k: FloatTensor<B>,
    v: FloatTensor<B>,
    context: usize,
) -> FloatTensor<B> {
    let device = q.device();
    let [batch, queries, heads, dim] = q.shape().dims::<4>();
    let past = k.shape()[1] - queries;
    let context = context.min(past + queries);
    let empty = q.clone();
    let q = B::float_mul_scalar(heads_first::<B>(q), (1.0 / (dim as f64).sqrt()).into());
    let (k, v) = (heads_first::<B>(k), heads_first::<B>(v));
    let mut tiles = Vec::with_capacity(queries.div_ceil(TILE));
    for first in (0..queries).step_by(TILE) {
        let last = queries.min(first + TILE);
        let start = (past + first + 1).saturating_sub(context);
        let (rows, columns) = (last - first, past + last - start);
        let keys = positions::<B>(&k, start..past + last);
        let scores = B::float_matmul(
            positions::<B>(&q, first..last),
            B::float_swap_dims(keys, 2, 3),
        );
        // How far a key lies ahead of its query.
        let ahead = distances::<B>(rows, columns, start as i64 - (past + first) as i64, &device);
        let reach = 1 - context as i64;
        let dtype = bools::<B>(&device);
        let hidden: BoolTensor<B> = B::bool_or(
            B::int_greater_elem(ahead.clone(), 0i64.into(), dtype),
            B::int_lower_elem(ahead, reach.into(), dtype),
        );
        let hidden = B::bool_expand(hidden, Shape::new([batch, heads, rows, columns]));
        let scores = B::float_mask_fill(scores, hidden, f32::NEG_INFINITY.into());
        tiles.push(weighted::<B>(
            scores,
            positions::<B>(&v, start..past + last),
        ));
    }
    joined::<B>(tiles, empty)
}

/// See [`SpeechBackend::relative_attention`](crate::SpeechBackend::relative_attention).
#[allow(clippy::too_many_arguments)]
pub fn relative_attention<B: Backend>(
    q: FloatTensor<B>,
    k: FloatTensor<B>,
    v: FloatTensor<B>,
    table: FloatTensor<B>,
    left: usize,
    right: usize,
    mask: Option<FloatTensor<B>>,
) -> FloatTensor<B> {
    let device = q.device();
    let [batch, time, heads, dim] = q.shape().dims::<4>();
    let entries = left + right + 1;
    let empty = q.clone();
    let q = B::float_mul_scalar(heads_first::<B>(q), (1.0 / (dim as f64).sqrt()).into());
    let keys = B::float_swap_dims(heads_first::<B>(k), 2, 3);
    let v = heads_first::<B>(v);
    let table = B::float_reshape(
        B::float_swap_dims(table, 0, 1),
        Shape::new([1, dim, entries]),
    );
    let absent = mask.map(|mask| {
        let absent = B::float_lower_elem(mask, 0.5f32.into(), bools::<B>(&device));
        B::bool_reshape(absent, Shape::new([batch, 1, 1, time]))
    });
    let mut tiles = Vec::with_capacity(time.div_ceil(TILE));
    for first in (0..time).step_by(TILE) {
        let rows = TILE.min(time - first);
        let grid = Shape::new([batch, heads, rows, time]);
        let q = positions::<B>(&q, first..first + rows);
        let scores = B::float_matmul(q.clone(), keys.clone());
        // Every query with every entry of the table, then each key takes its distance's.
        let all = B::float_reshape(q, Shape::new([1, batch * heads * rows, dim]));
        let all = B::float_matmul(all, table.clone());
        let all = B::float_reshape(all, Shape::new([batch, heads, rows, entries]));
        let entry = distances::<B>(rows, time, left as i64 - first as i64, &device);
        let entry = B::int_clamp(entry, 0i64.into(), (entries as i64 - 1).into());
        let entry = B::int_expand(entry, grid.clone());
        let mut scores = B::float_add(scores, B::float_gather(3, all, entry));
        if let Some(absent) = &absent {
            let absent = B::bool_expand(absent.clone(), grid);
            scores = B::float_mask_fill(scores, absent, f32::MIN.into());
        }
        tiles.push(weighted::<B>(scores, v.clone()));
    }
    joined::<B>(tiles, empty)
}
