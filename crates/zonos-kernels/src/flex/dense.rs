//! Dense layers: a blocked product with bias, activation, scale and residual in its last pass.
//!
//! Input rows are packed in panels, a row a lane, so one weight at a time meets a vector of rows and
//! weights are read in the order they lie in: once, where all rows fit one panel, as in a stream. With
//! more rows, an item of work copies a block of weights next to each other (widening half ones) and
//! takes all its panels through them while they are in cache.
//!
//! One to four rows go another way, see [`few_rows`](super::few_rows), with the same bits.
//!
//! A result is `block + block + ... + bias` in that order, a block being the chain of multiply-adds over
//! [`STEPS`] inputs, whatever the number of rows: rows in pieces give the bits of the whole.

use std::cell::Cell;
use std::ops::Range;

use burn::backend::{Flex, TensorMetadata};
use burn_flex::FlexTensor;
use rayon::prelude::*;

use super::conv::{Cut, return_scratch, take_scratch};
use super::few_rows::{self, FEW};
use super::math;
use super::panel::{Ahead, add_rows_asking, by_rows, full, load_block, pack, store_block, width};
use super::rows::SharedOutput;
use super::simd::{Isa, Kernel, Simd, dispatch_on};
use super::weights::{Element, all_f32, contiguous, elements, f32_tensor, with_elements};
use crate::{Activation, portable};

/// Inputs that are summed before the sum is added to the output: a full panel of them takes half of the
/// first-level cache.
const STEPS: usize = 256;
/// Rows that are packed at a time: bounds what is held beside input and output.
const ROWS: usize = 768;
/// Weight rows of an item with many panels: with their sums they stay in the second-level cache.
const OUTS: usize = 192;
/// Panels of an item at least, where there are as many.
const PANELS_OF_ITEM: usize = 8;
/// Weight rows that go through all inputs together where there is a single panel.
const FEW_OUTS: usize = 12;
/// Multiply-adds below which one thread does it all: waking another costs more.
const PARALLEL: usize = 1 << 18;

/// What stands behind the product.
#[derive(Clone, Copy, Default)]
pub(super) struct End<'a> {
    /// `[out]`.
    pub(super) bias: Option<&'a [f32]>,
    pub(super) activation: Activation,
    /// `[out]`.
    pub(super) scale: Option<&'a [f32]>,
    /// `[rows, out]`.
    pub(super) residual: Option<&'a [f32]>,
}

/// A layer at work on a chunk of rows.
struct Chunk<'a, E> {
    /// `[out, inner]`.
    weight: &'a [E],
    inner: usize,
    out: usize,
    end: End<'a>,
    /// The chunk's rows, packed: panels of `[inner, width]`, one after another.
    panels: &'a [f32],
    /// Rows of the whole input that the chunk holds.
    rows: Range<usize>,
    /// `[1, all rows, out]`.
    y: &'a SharedOutput,
}

thread_local! {
    /// Packed rows, kept between calls.
    static PANELS: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
}

/// One panel to be packed.
struct Pack<'a> {
    /// Its rows `[rows, inner]`.
    x: &'a [f32],
    inner: usize,
    /// `[inner, width]`.
    panel: &'a mut [f32],
}

impl Kernel for Pack<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let rows = self.x.len() / self.inner;
        let width = self.panel.len() / self.inner;
        assert!(rows > 0 && width.is_multiple_of(S::LANES) && rows <= width);
        // SAFETY: the slices hold `rows` and `inner * width` values; lanes come in multiples of eight.
        unsafe {
            pack::<S>(
                self.x.as_ptr(),
                self.inner,
                rows,
                self.inner,
                self.panel.as_mut_ptr(),
                width,
            );
        }
    }
}

/// Rows of a full panel and of one vector, for an instruction set that is chosen at run time.
struct Widths;

impl Kernel for Widths {
    type Output = (usize, usize);

    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> (usize, usize) {
        (full::<S>(), S::LANES)
    }
}

/// Some weight rows of a chunk, of some panels.
struct Item<'a, E> {
    chunk: &'a Chunk<'a, E>,
    panels: Range<usize>,
    outs: Range<usize>,
}

impl<E: Element> Kernel for Item<'_, E> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let alone = self.panels.len() == 1;
        let group = if alone { FEW_OUTS } else { self.outs.len() };
        let outs = self.outs.clone();
        for first in outs.clone().step_by(group) {
            let last = outs.end.min(first + group);
            // SAFETY: the instruction set is `S`'s.
            unsafe { self.group::<S>(first..last) };
        }
    }
}

impl<E: Element> Item<'_, E> {
    /// Weight rows `outs` through all inputs.
    ///
    /// # Safety
    ///
    /// The instruction set is `S`'s.
    #[inline(always)]
    unsafe fn group<S: Simd>(&self, outs: Range<usize>) {
        let chunk = self.chunk;
        let (inner, full) = (chunk.inner, full::<S>());
        let (count, padded) = (outs.len(), outs.len().next_multiple_of(8));
        // Half weights are widened first; f32 ones are copied where they are used again and again,
        // since rows far apart compete for the same places in the cache.
        let copied = !E::IS_F32 || self.panels.len() > 3;
        let (copy, sums, turned) = (
            if copied { count * STEPS } else { 0 },
            self.panels.len() * padded * full,
            full * padded,
        );
        let mut scratch = take_scratch(copy + sums + turned);
        let (copy, rest) = scratch.split_at_mut(copy);
        let (sums, turned) = rest.split_at_mut(sums);
        for start in (0..inner).step_by(STEPS) {
            let steps = STEPS.min(inner - start);
            let from = &chunk.weight[outs.start * inner + start..];
            let (rows, stride) = if copied {
                for (i, to) in copy.chunks_exact_mut(STEPS).enumerate() {
                    // SAFETY: the instruction set is `S`'s; both slices hold `steps` values.
                    unsafe { widen::<S, E>(&from[i * inner..][..steps], &mut to[..steps]) };
                }
                (copy.as_ptr(), STEPS)
            } else {
                assert!((count - 1) * inner + steps <= from.len());
                (from.as_ptr().cast::<f32>(), inner)
            };
            for (i, p) in self.panels.clone().enumerate() {
                let valid = (chunk.rows.len() - p * full).min(full);
                let width = width::<S>(valid);
                let panel = &chunk.panels[p * full * inner..][..width * inner][start * width..];
                let sums = &mut sums[i * padded * full..][..padded * full];
                // What this takes the time of multiplying to fetch: as many weights as the block has, of the
                // rows behind these and in the order they lie in, each panel a share of them.
                let behind = chunk.weight.as_ptr().wrapping_add(outs.end * inner);
                let share = |o: usize| {
                    let at = count * start + (i * count + o) * steps / self.panels.len();
                    behind.wrapping_add(at).cast::<u8>()
                };
                let of_row = size_of::<E>().div_ceil(self.panels.len());
                // SAFETY: `rows` points to `count` rows of `steps` values, `stride` apart: to the copy,
                // or to f32 weights, whose bounds were just checked; the panel holds `steps` times
                // `width` values from here on, and the sums `padded` rows of `width`.
                unsafe {
                    let (panel, sums) = (panel.as_ptr(), sums.as_mut_ptr());
                    by_rows!(S, o in count, width, block(
                        rows.add(o * stride),
                        stride,
                        panel,
                        steps,
                        sums.add(o * width),
                        start == 0,
                        Ahead {
                            next: share(o),
                            bytes: of_row,
                        },
                    ));
                }
                if start + steps == inner {
                    let first = chunk.rows.start + p * full;
                    let tile = Tile {
                        chunk,
                        outs: outs.clone(),
                        rows: first..first + valid,
                        padded,
                        width,
                    };
                    // SAFETY: the instruction set is `S`'s.
                    unsafe { tile.finish::<S>(sums, turned) };
                }
            }
        }
        return_scratch(scratch);
    }
}

/// Copies a stretch of a weight row, widened.
///
/// # Safety
///
/// The instruction set is `S`'s, and the slices are equally long.
#[inline(always)]
unsafe fn widen<S: Simd, E: Element>(from: &[E], to: &mut [f32]) {
    let whole = from.len() - from.len() % S::LANES;
    for at in (0..whole).step_by(S::LANES) {
        // SAFETY: a vector from `at` on is inside both slices.
        unsafe { S::store(to.as_mut_ptr().add(at), E::load::<S>(from.as_ptr().add(at))) };
    }
    for (to, from) in to[whole..].iter_mut().zip(&from[whole..]) {
        *to = from.widen();
    }
}

/// One block of inputs for `MR` weight rows and a panel: its sum goes to `sums`, or is added to them. Of what lies
/// `ahead`, as many bytes are asked for with each of the `MR` rows' inputs.
///
/// # Safety
///
/// As [`add_rows`]; `sums` holds `MR` rows of `NR` vectors.
#[inline(always)]
unsafe fn block<S: Simd, const MR: usize, const NR: usize>(
    rows: *const f32,
    stride: usize,
    panel: *const f32,
    steps: usize,
    sums: *mut f32,
    first: bool,
    ahead: Ahead,
) {
    let ahead = Ahead {
        bytes: MR * ahead.bytes,
        ..ahead
    };
    // SAFETY: the caller's contract.
    unsafe {
        let mut acc = [[S::zero(); NR]; MR];
        add_rows_asking::<S, MR, NR, true>(&mut acc, rows, stride, panel, steps, ahead);
        if !first {
            let before = load_block::<S, MR, NR>(sums, NR * S::LANES);
            for i in 0..MR {
                for j in 0..NR {
                    acc[i][j] = S::add(before[i][j], acc[i][j]);
                }
            }
        }
        store_block::<S, MR, NR>(&acc, sums, NR * S::LANES);
    }
}

/// Some weight rows of a few input rows.
struct FewItem<'a, E> {
    chunk: &'a Chunk<'a, E>,
    /// `[rows, inner]`, at most [`FEW`] rows.
    x: &'a [f32],
    outs: Range<usize>,
}

impl<E: Element> Kernel for FewItem<'_, E> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: the instruction set is `S`'s.
        unsafe {
            match self.chunk.rows.len() {
                1 => self.rows::<S, 1>(),
                2 => self.rows::<S, 2>(),
                3 => self.rows::<S, 3>(),
                4 => self.rows::<S, 4>(),
                rows => unreachable!("at most {FEW} rows, not {rows}"),
            }
        }
    }
}

impl<E: Element> FewItem<'_, E> {
    /// # Safety
    ///
    /// The instruction set is `S`'s, and there are `M` rows.
    #[inline(always)]
    unsafe fn rows<S: Simd, const M: usize>(&self) {
        let chunk = self.chunk;
        let inner = chunk.inner;
        assert!(self.x.len() == M * inner && self.outs.end * inner <= chunk.weight.len());
        let mut x = [self.x.as_ptr(); M];
        for m in 0..M {
            x[m] = self.x[m * inner..].as_ptr();
        }
        for first in self.outs.clone().step_by(full::<S>()) {
            let outs = first..self.outs.end.min(first + full::<S>());
            let mut weights = [chunk.weight.as_ptr(); few_rows::OUTS];
            for (i, row) in weights.iter_mut().enumerate() {
                // Beyond the last, the last again: what it gives is not kept.
                *row = chunk.weight[(first + i).min(outs.end - 1) * inner..].as_ptr();
            }
            let tile = Tile {
                chunk,
                outs: outs.clone(),
                rows: chunk.rows.clone(),
                padded: 0,
                width: 0,
            };
            // SAFETY: `M` input rows and the weight rows hold `inner` values each, as just checked.
            unsafe {
                let products = few_rows::products::<S, E, M>(&weights, &x, inner, STEPS);
                for (row, products) in chunk.rows.clone().zip(&products) {
                    tile.end::<S>(row, &products[..outs.len()]);
                }
            }
        }
    }
}

/// The finished sums of one panel and some weight rows.
struct Tile<'a, E> {
    chunk: &'a Chunk<'a, E>,
    outs: Range<usize>,
    /// Of the whole input.
    rows: Range<usize>,
    /// Outputs, rounded up to eight.
    padded: usize,
    /// Of the panel.
    width: usize,
}

impl<E> Tile<'_, E> {
    /// Turns `sums [padded, width]` and writes them, with what stands behind the product.
    ///
    /// # Safety
    ///
    /// The instruction set is `S`'s.
    #[inline(always)]
    unsafe fn finish<S: Simd>(&self, sums: &[f32], turned: &mut [f32]) {
        let (padded, width) = (self.padded, self.width);
        assert!(sums.len() >= padded * width && turned.len() >= padded * width);
        // SAFETY: `padded` and `width` are multiples of eight, and both buffers hold their product.
        unsafe {
            for o in (0..padded).step_by(8) {
                for lane in (0..self.rows.len()).step_by(8) {
                    let from = sums.as_ptr().add(o * width + lane);
                    let mut rows = [from; 8];
                    for (i, row) in rows.iter_mut().enumerate() {
                        *row = from.add(i * width);
                    }
                    S::transpose(rows, turned.as_mut_ptr().add(lane * padded + o), padded);
                }
            }
            for (row, products) in self.rows.clone().zip(turned.chunks_exact(padded)) {
                self.end::<S>(row, &products[..self.outs.len()]);
            }
        }
    }

    /// Writes one row with what stands behind the product.
    ///
    /// # Safety
    ///
    /// The instruction set is `S`'s; `products` holds a value for each of the tile's outputs.
    #[inline(always)]
    unsafe fn end<S: Simd>(&self, row: usize, products: &[f32]) {
        // SAFETY: the caller's contract.
        unsafe {
            match self.chunk.end.activation {
                Activation::None => self.write::<S, NONE>(row, products),
                Activation::Gelu => self.write::<S, GELU>(row, products),
                Activation::Silu => self.write::<S, SILU>(row, products),
            }
        }
    }

    /// [`end`](Self::end) for an activation known when compiled.
    ///
    /// # Safety
    ///
    /// As there.
    #[inline(always)]
    unsafe fn write<S: Simd, const ACTIVATION: u8>(&self, row: usize, products: &[f32]) {
        let (end, out) = (&self.chunk.end, self.chunk.out);
        let bias = end.bias.map(|bias| &bias[self.outs.clone()]);
        let scale = end.scale.map(|scale| &scale[self.outs.clone()]);
        let residual = end.residual.map(|all| &all[row * out..][self.outs.clone()]);
        let len = products.len();
        // SAFETY: the row and the outputs are the tile's, which no other item writes.
        let y = unsafe { self.chunk.y.at(0, row, self.outs.start) };
        let whole = len - len % S::LANES;
        for at in (0..whole).step_by(S::LANES) {
            // SAFETY: a vector from `at` on is inside all slices and the output.
            unsafe {
                let product = S::load(products.as_ptr().add(at));
                let bias = part::<S>(bias, at);
                let scale = part::<S>(scale, at);
                let residual = part::<S>(residual, at);
                let v = end_of::<S, ACTIVATION>(product, bias, scale, residual);
                S::store(y.add(at), v);
            }
        }
        if whole < len {
            // The rest goes through the same arithmetic, in buffers of a vector.
            let mut buffers = [[0.0f32; 16]; 4];
            let parts = [Some(products), bias, scale, residual];
            for (buffer, part) in buffers.iter_mut().zip(parts) {
                if let Some(part) = part {
                    buffer[..len - whole].copy_from_slice(&part[whole..]);
                }
            }
            let [mut result, bias_rest, scale_rest, residual_rest] = buffers;
            // SAFETY: the buffers hold a vector; the rest of the output is the tile's.
            unsafe {
                let product = S::load(result.as_ptr());
                let bias = part::<S>(bias.is_some().then_some(&bias_rest[..]), 0);
                let scale = part::<S>(scale.is_some().then_some(&scale_rest[..]), 0);
                let residual = part::<S>(residual.is_some().then_some(&residual_rest[..]), 0);
                let v = end_of::<S, ACTIVATION>(product, bias, scale, residual);
                S::store(result.as_mut_ptr(), v);
                std::ptr::copy_nonoverlapping(result.as_ptr(), y.add(whole), len - whole);
            }
        }
    }
}

/// The vector at `at` of a slice that need not be there.
///
/// # Safety
///
/// The instruction set is `S`'s, and the vector is inside the slice.
#[inline(always)]
unsafe fn part<S: Simd>(slice: Option<&[f32]>, at: usize) -> Option<S::V> {
    // Not `map`: a closure would be compiled without the kernel's instruction set.
    #[allow(clippy::manual_map)]
    match slice {
        // SAFETY: the caller's contract.
        Some(slice) => Some(unsafe { S::load(slice.as_ptr().add(at)) }),
        None => None,
    }
}

const NONE: u8 = 0;
const GELU: u8 = 1;
const SILU: u8 = 2;

/// `residual + scale * activation(product + bias)`.
///
/// # Safety
///
/// The instruction set is `S`'s.
#[inline(always)]
unsafe fn end_of<S: Simd, const ACTIVATION: u8>(
    product: S::V,
    bias: Option<S::V>,
    scale: Option<S::V>,
    residual: Option<S::V>,
) -> S::V {
    // SAFETY: the caller's contract.
    unsafe {
        let mut v = product;
        if let Some(bias) = bias {
            v = S::add(v, bias);
        }
        v = match ACTIVATION {
            GELU => math::gelu::<S>(v),
            SILU => math::silu::<S>(v),
            _ => v,
        };
        if let Some(scale) = scale {
            v = S::mul(v, scale);
        }
        if let Some(residual) = residual {
            v = S::add(residual, v);
        }
        v
    }
}

/// `x [rows, inner]`, `weight [out, inner]` -> `[rows, out]`; none of the sizes is 0.
pub(super) fn product<E: Element>(
    isa: Isa,
    x: &[f32],
    weight: &[E],
    inner: usize,
    end: End<'_>,
) -> Vec<f32> {
    let (rows, out) = (x.len() / inner, weight.len() / inner);
    assert!(x.len() == rows * inner && weight.len() == out * inner);
    assert!(end.bias.is_none_or(|bias| bias.len() == out));
    assert!(end.scale.is_none_or(|scale| scale.len() == out));
    assert!(end.residual.is_none_or(|all| all.len() == rows * out));
    let (full, lanes) = dispatch_on(isa, Widths);
    let mut y = SharedOutput::new(1, rows, out);
    if rows <= FEW {
        let chunk = Chunk {
            weight,
            inner,
            out,
            end,
            panels: &[],
            rows: 0..rows,
            y: &y,
        };
        chunk.run_few(isa, x);
        // SAFETY: the items cover every output of the rows.
        return unsafe { y.take() };
    }
    let mut buffer = PANELS.take();
    // Chunks are even, so that the last is not a small one.
    let chunks = Cut::at_most(rows, ROWS, full);
    for c in 0..chunks.pieces {
        let rows = chunks.range(c);
        let x = &x[rows.start * inner..rows.end * inner];
        let (whole, rest) = (rows.len() / full, rows.len() % full);
        let last = match rest {
            0 => 0,
            rest if rest <= lanes => lanes,
            _ => full,
        };
        let len = (whole * full + last) * inner;
        if buffer.len() < len {
            buffer.resize(len, 0.0);
        }
        let parallel = rows.len() * inner * out >= PARALLEL;
        let one = |(panel, x): (&mut [f32], &[f32])| dispatch_on(isa, Pack { x, inner, panel });
        if parallel && whole > 1 {
            let panels = buffer[..len].par_chunks_mut(full * inner);
            panels.zip(x.par_chunks(full * inner)).for_each(one);
        } else {
            let panels = buffer[..len].chunks_mut(full * inner);
            panels.zip(x.chunks(full * inner)).for_each(one);
        }
        let chunk = Chunk {
            weight,
            inner,
            out,
            end,
            panels: &buffer[..len],
            rows,
            y: &y,
        };
        chunk.run(isa, whole + usize::from(rest > 0), parallel);
    }
    PANELS.set(buffer);
    // SAFETY: the chunks hold all rows, and the items of each cover every output of them.
    unsafe { y.take() }
}

impl<E: Element> Chunk<'_, E> {
    /// Runs a few rows, `x [rows, inner]`.
    fn run_few(&self, isa: Isa, x: &[f32]) {
        let wanted = 4 * rayon::current_num_threads();
        let outs = Cut::at_most(self.out, self.out.div_ceil(wanted).clamp(64, 512), 32);
        let item = |index: usize| {
            let outs = outs.range(index);
            dispatch_on(
                isa,
                FewItem {
                    chunk: self,
                    x,
                    outs,
                },
            );
        };
        if self.inner * self.out < PARALLEL / 4 {
            (0..outs.pieces).for_each(item);
        } else {
            (0..outs.pieces)
                .into_par_iter()
                .with_max_len(1)
                .for_each(item);
        }
    }

    fn run(&self, isa: Isa, panels: usize, parallel: bool) {
        // Some items a thread, so that one that is slowed down does not keep the others waiting: of
        // many panels, since weights are copied once an item, or of few weight rows.
        let wanted = 8 * rayon::current_num_threads();
        let longest = if panels >= 2 * PANELS_OF_ITEM {
            OUTS
        } else {
            self.out.div_ceil(wanted).clamp(48, OUTS)
        };
        let outs = Cut::at_most(self.out, longest, 12);
        let wanted = wanted.div_ceil(outs.pieces);
        let panels = Cut::at_most(panels, panels.div_ceil(wanted).max(PANELS_OF_ITEM), 1);
        let item = |index: usize| {
            let (p, o) = (index / outs.pieces, index % outs.pieces);
            let (panels, outs) = (panels.range(p), outs.range(o));
            dispatch_on(
                isa,
                Item {
                    chunk: self,
                    panels,
                    outs,
                },
            );
        };
        let items = outs.pieces * panels.pieces;
        if parallel {
            (0..items).into_par_iter().with_max_len(1).for_each(item);
        } else {
            (0..items).for_each(item);
        }
    }
}

/// See [`SpeechBackend::dense`](crate::SpeechBackend::dense).
pub(super) fn dense(
    isa: Isa,
    x: FlexTensor,
    weight: FlexTensor,
    bias: Option<FlexTensor>,
    activation: Activation,
    scale: Option<FlexTensor>,
    residual: Option<FlexTensor>,
) -> FlexTensor {
    let [out, inner] = weight.shape().dims::<2>();
    let [rows, columns] = x.shape().dims::<2>();
    assert_eq!(columns, inner, "dense: input width and weight differ");
    let others = [&bias, &scale, &residual].into_iter().flatten();
    let f32s = all_f32(others.chain([&x]));
    if rows * out * inner == 0 || !f32s {
        return portable::dense::<Flex>(x, weight, bias, activation, scale, residual);
    }
    let (x, weight) = (contiguous(x), contiguous(weight));
    let [bias, scale, residual] = [bias, scale, residual].map(|part| part.map(contiguous));
    let end = End {
        bias: bias.as_ref().map(elements),
        activation,
        scale: scale.as_ref().map(elements),
        residual: residual.as_ref().map(elements),
    };
    let y = with_elements!(weight, |w| product(isa, elements(&x), w, inner, end));
    f32_tensor(y, [rows, out])
}
