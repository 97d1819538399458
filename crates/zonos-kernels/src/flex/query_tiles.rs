//! Attention of many queries: over a causal window, and with relative positions.
//!
//! A tile of queries lies in a panel, a query a lane. Keys go against it a few at a time, which leaves
//! the tile's scores key after key; maximum, exponential and sum are then vertical, and the values go
//! against the weights in the same way. Only one tile's scores are held, by each thread.
//!
//! A query's maximum is exact, and its sums run over its visible keys in order, one multiply-add after
//! the other; keys in the tile that it does not see add an exact 0. So a result does not depend on how
//! queries are cut in tiles or calls.

use burn::backend::{Flex, TensorMetadata};
use burn_flex::FlexTensor;
use rayon::prelude::*;
use std::ops::Range;

use super::conv::{Cut, return_scratch, take_scratch};
use super::math;
use super::panel::{
    VECTORS, add_columns, add_rows, by_rows, full, load_block, pack, store_block, width,
};
use super::rows::SharedOutput;
use super::simd::{Isa, Kernel, Simd, dispatch_on};
use super::weights::{all_f32, contiguous, elements, f32_tensor};
use crate::portable;

/// Keys whose values are visited together: 16 KB of them at 64 values each.
const KEYS: usize = 64;
/// Queries of an item at most: keys and values are copied once an item.
const QUERIES: usize = 1536;
/// Multiply-adds below which one thread does it all: waking another costs more.
const PARALLEL: usize = 1 << 18;

/// A borrowed `[batch, time, heads, dim]` tensor whose last axis is contiguous.
#[derive(Clone, Copy)]
pub(super) struct Heads<'a> {
    pub(super) values: &'a [f32],
    /// Of batch, time and heads.
    pub(super) strides: [usize; 3],
    pub(super) time: usize,
}

impl<'a> Heads<'a> {
    /// A view of an f32 tensor that [`contiguous_heads`] returned.
    fn of(tensor: &'a FlexTensor) -> Self {
        let layout = tensor.layout();
        let stride = |axis: usize| layout.strides()[axis].unsigned_abs();
        Self {
            values: &tensor.storage::<f32>()[layout.start_offset()..],
            strides: [stride(0), stride(1), stride(2)],
            time: tensor.shape()[1],
        }
    }

    /// Positions `range` of one head: where they begin, and how far apart they are.
    fn rows(
        &self,
        batch: usize,
        head: usize,
        range: Range<usize>,
        dim: usize,
    ) -> (&'a [f32], usize) {
        let [batches, times, heads] = self.strides;
        let start = batch * batches + head * heads + range.start * times;
        let rows = &self.values[start..];
        assert!(range.end <= self.time && range.start < range.end);
        assert!((range.len() - 1) * times + dim <= rows.len());
        (rows, times)
    }
}

/// The tensor itself if its last axis is contiguous and none runs backwards, else a copy.
fn contiguous_heads(tensor: FlexTensor) -> FlexTensor {
    let strides = tensor.layout().strides();
    if strides.iter().all(|&s| s >= 0) && (strides[3] == 1 || tensor.shape()[3] <= 1) {
        tensor
    } else {
        tensor.to_contiguous()
    }
}

/// Which keys a query sees, and how.
#[derive(Clone, Copy)]
pub(super) enum View<'a> {
    /// The last `context` positions, of which the queries' own are the last.
    Window { context: usize },
    /// All of them, their distance embedded.
    Relative {
        /// `[left + right + 1, dim]`.
        table: &'a [f32],
        left: usize,
        right: usize,
        /// `[batch, time]`.
        mask: Option<&'a [f32]>,
    },
}

/// Sizes of `q`.
#[derive(Clone, Copy)]
pub(super) struct Sizes {
    pub(super) batch: usize,
    pub(super) queries: usize,
    pub(super) heads: usize,
    pub(super) dim: usize,
}

/// An attention, all its operands in place.
#[derive(Clone, Copy)]
pub(super) struct Attention<'a> {
    pub(super) q: Heads<'a>,
    pub(super) k: Heads<'a>,
    pub(super) v: Heads<'a>,
    pub(super) sizes: Sizes,
    pub(super) view: View<'a>,
}

impl Attention<'_> {
    /// Keys that some of `queries` see.
    fn keys(&self, queries: Range<usize>) -> Range<usize> {
        match self.view {
            View::Window { context } => {
                let past = self.k.time - self.sizes.queries;
                let first = (past + queries.start + 1).saturating_sub(context);
                first..past + queries.end
            }
            View::Relative { .. } => 0..self.k.time,
        }
    }

    /// Runs the attention: `[batch, queries, heads, dim]`; none of the sizes is 0.
    pub(super) fn run(&self, isa: Isa) -> Vec<f32> {
        let Sizes {
            batch,
            queries,
            heads,
            dim,
        } = self.sizes;
        assert!(self.k.time >= queries && self.v.time == self.k.time);
        let mut y = SharedOutput::new(batch, queries, heads * dim);
        // Some items a thread; more items copy more keys anew.
        let wanted = (8 * rayon::current_num_threads()).div_ceil(batch * heads);
        let longest = queries.div_ceil(wanted).clamp(64, QUERIES);
        let pieces = Cut::at_most(queries, longest, 32);
        let item = |index: usize| {
            let (rest, head) = (index / heads, index % heads);
            let (batch, piece) = (rest / pieces.pieces, rest % pieces.pieces);
            let item = Item {
                attention: *self,
                y: &y,
                batch,
                head,
                queries: pieces.range(piece),
            };
            dispatch_on(isa, item);
        };
        let items = batch * pieces.pieces * heads;
        if batch * heads * dim * self.keys(0..queries).len() * queries.min(QUERIES) < PARALLEL {
            (0..items).for_each(item);
        } else {
            (0..items).into_par_iter().with_max_len(1).for_each(item);
        }
        // SAFETY: the items cover every query of every head.
        unsafe { y.take() }
    }
}

/// Some queries of one head.
struct Item<'a> {
    attention: Attention<'a>,
    /// `[batch, queries, heads * dim]`.
    y: &'a SharedOutput,
    batch: usize,
    head: usize,
    queries: Range<usize>,
}

impl Kernel for Item<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Attention {
            q,
            k,
            v,
            sizes,
            view,
        } = self.attention;
        let (dim, full) = (sizes.dim, full::<S>());
        let keys = self.attention.keys(self.queries.clone());
        let (k, k_stride) = k.rows(self.batch, self.head, keys.clone(), dim);
        let (v, v_stride) = v.rows(self.batch, self.head, keys.clone(), dim);
        // Keys and values that several tiles read are copied next to each other.
        let copied = self.queries.len() > full;
        let copy = if copied { keys.len() * dim } else { 0 };
        let entries = match view {
            View::Window { .. } => 0,
            View::Relative { left, right, .. } => left + right + 1,
        };
        let padded = dim.next_multiple_of(8);
        let held = [
            copy,
            copy,
            dim * full,
            keys.len() * full,
            entries * full,
            padded * full,
            full * padded,
        ];
        let mut scratch = take_scratch(held.iter().sum());
        let (k_copy, rest) = scratch.split_at_mut(held[0]);
        let (v_copy, rest) = rest.split_at_mut(held[1]);
        let (panel, rest) = rest.split_at_mut(held[2]);
        let (scores, rest) = rest.split_at_mut(held[3]);
        let (shifts, rest) = rest.split_at_mut(held[4]);
        let (sums, rest) = rest.split_at_mut(held[5]);
        let turned = &mut rest[..held[6]];
        if copied {
            gather(k, k_stride, k_copy, dim);
            gather(v, v_stride, v_copy, dim);
        }
        let (k, k_stride) = if copied {
            (&*k_copy, dim)
        } else {
            (k, k_stride)
        };
        let (v, v_stride) = if copied {
            (&*v_copy, dim)
        } else {
            (v, v_stride)
        };

        for first in self.queries.clone().step_by(full) {
            let tile = first..self.queries.end.min(first + full);
            let width = width::<S>(tile.len());
            let seen = self.attention.keys(tile.clone());
            let skipped = seen.start - keys.start;
            let (q, q_stride) = q.rows(self.batch, self.head, tile.clone(), dim);
            let scores = &mut scores[..seen.len() * width];
            // SAFETY: the instruction set is `S`'s. `rows` checked that queries, keys and values are
            // inside their slices, and the tile's keys are among the item's; the buffers were sized
            // above for a full panel.
            unsafe {
                pack::<S>(
                    q.as_ptr(),
                    q_stride,
                    tile.len(),
                    dim,
                    panel.as_mut_ptr(),
                    width,
                );
                let scale = 1.0 / (dim as f32).sqrt();
                for value in &mut panel[..dim * width] {
                    *value *= scale;
                }
                let keys = k.as_ptr().add(skipped * k_stride);
                let (panel, to) = (panel.as_ptr(), scores.as_mut_ptr());
                by_rows!(S, j in seen.len(), width, products(
                    keys.add(j * k_stride),
                    k_stride,
                    panel,
                    dim,
                    to.add(j * width),
                ));
                match view {
                    View::Window { context } => {
                        let past = self.attention.k.time - sizes.queries;
                        hide(scores, width, seen.clone(), past, tile.clone(), context);
                    }
                    View::Relative {
                        table,
                        left,
                        right,
                        mask,
                    } => {
                        let (table, to) = (table.as_ptr(), shifts.as_mut_ptr());
                        by_rows!(S, e in entries, width, products(
                            table.add(e * dim),
                            dim,
                            panel,
                            dim,
                            to.add(e * width),
                        ));
                        shift(scores, shifts, width, tile.start, left, right);
                        if let Some(mask) = mask {
                            let mask = &mask[self.batch * seen.len()..][..seen.len()];
                            cover(scores, width, mask);
                        }
                    }
                }
                let totals = softmax::<S>(scores, width);
                let values = v.as_ptr().add(skipped * v_stride);
                sums[..padded * width].fill(0.0);
                let to = sums.as_mut_ptr();
                for start in (0..seen.len()).step_by(KEYS) {
                    let steps = KEYS.min(seen.len() - start);
                    let weights = scores.as_ptr().add(start * width);
                    by_rows!(S, d in dim, width, weighted(
                        values.add(start * v_stride + d),
                        v_stride,
                        weights,
                        steps,
                        to.add(d * width),
                    ));
                }
                divide::<S>(&mut sums[..padded * width], &totals, width);
                for d in (0..padded).step_by(8) {
                    for lane in (0..tile.len()).step_by(8) {
                        let from = sums.as_ptr().add(d * width + lane);
                        let mut rows = [from; 8];
                        for (i, row) in rows.iter_mut().enumerate() {
                            *row = from.add(i * width);
                        }
                        S::transpose(rows, turned.as_mut_ptr().add(lane * padded + d), padded);
                    }
                }
                for (t, row) in tile.clone().zip(turned.chunks_exact(padded)) {
                    let to = self.y.at(self.batch, t, self.head * dim);
                    std::ptr::copy_nonoverlapping(row.as_ptr(), to, dim);
                }
            }
        }
        return_scratch(scratch);
    }
}

/// Copies rows of `dim` values, `stride` apart, next to each other.
#[inline(always)]
fn gather(from: &[f32], stride: usize, to: &mut [f32], dim: usize) {
    for (i, row) in to.chunks_exact_mut(dim).enumerate() {
        row.copy_from_slice(&from[i * stride..][..dim]);
    }
}

/// Products of `MR` rows, `stride` apart, with a panel of `steps`.
///
/// # Safety
///
/// As [`add_rows`]; `to` is writable over `MR` rows of `NR` vectors.
#[inline(always)]
unsafe fn products<S: Simd, const MR: usize, const NR: usize>(
    rows: *const f32,
    stride: usize,
    panel: *const f32,
    steps: usize,
    to: *mut f32,
) {
    // SAFETY: the caller's contract.
    unsafe {
        let mut acc = [[S::zero(); NR]; MR];
        add_rows::<S, MR, NR>(&mut acc, rows, stride, panel, steps);
        store_block::<S, MR, NR>(&acc, to, NR * S::LANES);
    }
}

/// Adds the products of `MR` columns with a panel of `steps` to `sums`.
///
/// # Safety
///
/// As [`add_columns`]; `sums` is readable and writable over `MR` rows of `NR` vectors.
#[inline(always)]
unsafe fn weighted<S: Simd, const MR: usize, const NR: usize>(
    columns: *const f32,
    stride: usize,
    panel: *const f32,
    steps: usize,
    sums: *mut f32,
) {
    // SAFETY: the caller's contract.
    unsafe {
        let mut acc = load_block::<S, MR, NR>(sums, NR * S::LANES);
        add_columns::<S, MR, NR>(&mut acc, columns, stride, panel, steps);
        store_block::<S, MR, NR>(&acc, sums, NR * S::LANES);
    }
}

/// Hides the keys of `seen` that queries of the tile do not see: at most `width` at either end.
#[inline(always)]
fn hide(
    scores: &mut [f32],
    width: usize,
    seen: Range<usize>,
    past: usize,
    tile: Range<usize>,
    context: usize,
) {
    for (lane, query) in tile.enumerate() {
        let position = past + query;
        for j in seen.start..(position + 1).saturating_sub(context) {
            scores[(j - seen.start) * width + lane] = f32::NEG_INFINITY;
        }
        for j in position + 1..seen.end {
            scores[(j - seen.start) * width + lane] = f32::NEG_INFINITY;
        }
    }
}

/// Adds to every score of queries from `first` on the entry of its distance, `shifts [left + right + 1,
/// width]`.
#[inline(always)]
fn shift(
    scores: &mut [f32],
    shifts: &[f32],
    width: usize,
    first: usize,
    left: usize,
    right: usize,
) {
    for (j, row) in scores.chunks_exact_mut(width).enumerate() {
        // The distance to the tile's first query, and to its last, in entries of the table.
        let nearest = (j + left).saturating_sub(first);
        let farthest = (j + left).saturating_sub(first + width - 1);
        if nearest == 0 || farthest >= left + right {
            let entry = nearest.min(left + right);
            for (score, shift) in row.iter_mut().zip(&shifts[entry * width..][..width]) {
                *score += shift;
            }
            continue;
        }
        for (lane, score) in row.iter_mut().enumerate() {
            let entry = (j + left).saturating_sub(first + lane).min(left + right);
            *score += shifts[entry * width + lane];
        }
    }
}

/// Gives masked keys the lowest score.
#[inline(always)]
fn cover(scores: &mut [f32], width: usize, mask: &[f32]) {
    for (row, &mask) in scores.chunks_exact_mut(width).zip(mask) {
        if mask < 0.5 {
            row.fill(f32::MIN);
        }
    }
}

/// Replaces the scores `[keys, width]` by `exp(score - largest)`, and returns their sums.
///
/// # Safety
///
/// The instruction set is `S`'s; `width` is one vector or [`VECTORS`], and there are whole rows.
#[inline(always)]
unsafe fn softmax<S: Simd>(scores: &mut [f32], width: usize) -> [S::V; VECTORS] {
    // SAFETY: the caller's contract: rows of `width` values are vectors.
    unsafe {
        if width == S::LANES {
            let [total] = exponentials::<S, 1>(scores);
            [total, S::zero()]
        } else {
            exponentials::<S, VECTORS>(scores)
        }
    }
}

/// [`softmax`] for rows of `NR` vectors.
#[inline(always)]
unsafe fn exponentials<S: Simd, const NR: usize>(scores: &mut [f32]) -> [S::V; NR] {
    // SAFETY: rows hold `NR` vectors.
    unsafe {
        let mut largest = [S::splat(f32::NEG_INFINITY); NR];
        for row in scores.chunks_exact(NR * S::LANES) {
            for (j, largest) in largest.iter_mut().enumerate() {
                *largest = S::max(S::load(row.as_ptr().add(j * S::LANES)), *largest);
            }
        }
        let mut totals = [S::zero(); NR];
        for row in scores.chunks_exact_mut(NR * S::LANES) {
            for j in 0..NR {
                let place = row.as_mut_ptr().add(j * S::LANES);
                let weight = math::exp::<S>(S::sub(S::load(place), largest[j]));
                S::store(place, weight);
                totals[j] = S::add(totals[j], weight);
            }
        }
        totals
    }
}

/// Divides rows of `width` lanes by the lanes' totals.
///
/// # Safety
///
/// As [`softmax`].
#[inline(always)]
unsafe fn divide<S: Simd>(sums: &mut [f32], totals: &[S::V; VECTORS], width: usize) {
    // SAFETY: the caller's contract.
    unsafe {
        let one = S::splat(1.0);
        let inverse = [S::div(one, totals[0]), S::div(one, totals[1])];
        for row in sums.chunks_exact_mut(width) {
            for j in 0..width / S::LANES {
                let place = row.as_mut_ptr().add(j * S::LANES);
                S::store(place, S::mul(S::load(place), inverse[j]));
            }
        }
    }
}

fn sizes_of(q: &FlexTensor) -> Sizes {
    let [batch, queries, heads, dim] = q.shape().dims::<4>();
    Sizes {
        batch,
        queries,
        heads,
        dim,
    }
}

/// Runs an attention on tensors whose sizes belong together.
fn on_tensors(isa: Isa, q: FlexTensor, k: FlexTensor, v: FlexTensor, view: View<'_>) -> FlexTensor {
    let sizes = sizes_of(&q);
    let [q, k, v] = [q, k, v].map(contiguous_heads);
    let attention = Attention {
        q: Heads::of(&q),
        k: Heads::of(&k),
        v: Heads::of(&v),
        sizes,
        view,
    };
    let shape = [sizes.batch, sizes.queries, sizes.heads, sizes.dim];
    f32_tensor(attention.run(isa), shape)
}

/// Whether keys and values are shaped as each other and, but for time, as the queries.
fn belong(sizes: Sizes, k: &FlexTensor, v: &FlexTensor) -> bool {
    let [batch, keys, heads, dim] = k.shape().dims::<4>();
    k.shape() == v.shape()
        && (batch, heads, dim) == (sizes.batch, sizes.heads, sizes.dim)
        && keys >= sizes.queries
}

/// See [`SpeechBackend::window_attention`](crate::SpeechBackend::window_attention).
pub(super) fn window_attention(
    isa: Isa,
    q: FlexTensor,
    k: FlexTensor,
    v: FlexTensor,
    context: usize,
) -> FlexTensor {
    let sizes = sizes_of(&q);
    assert!(
        belong(sizes, &k, &v),
        "window_attention: sizes of q, k and v"
    );
    if q.shape().num_elements() == 0 || !all_f32([&q, &k, &v]) {
        return portable::window_attention::<Flex>(q, k, v, context);
    }
    on_tensors(isa, q, k, v, View::Window { context })
}

/// See [`SpeechBackend::relative_attention`](crate::SpeechBackend::relative_attention).
#[allow(clippy::too_many_arguments)]
pub(super) fn relative_attention(
    isa: Isa,
    q: FlexTensor,
    k: FlexTensor,
    v: FlexTensor,
    table: FlexTensor,
    left: usize,
    right: usize,
    mask: Option<FlexTensor>,
) -> FlexTensor {
    let sizes = sizes_of(&q);
    let square = belong(sizes, &k, &v) && k.shape()[1] == sizes.queries;
    assert!(square, "relative_attention: sizes of q, k and v");
    if q.shape().num_elements() == 0 || !all_f32([&q, &k, &v, &table].into_iter().chain(&mask)) {
        return portable::relative_attention::<Flex>(q, k, v, table, left, right, mask);
    }
    let entries = table.shape().dims::<2>();
    assert_eq!(
        entries,
        [left + right + 1, sizes.dim],
        "relative_attention: the table"
    );
    let (table, mask) = (contiguous(table), mask.map(contiguous));
    if let Some(mask) = &mask {
        let shape = mask.shape().dims::<2>();
        assert_eq!(
            shape,
            [sizes.batch, sizes.queries],
            "relative_attention: the mask"
        );
    }
    let view = View::Relative {
        table: elements(&table),
        left,
        right,
        mask: mask.as_ref().map(elements),
    };
    on_tensors(isa, q, k, v, view)
}
