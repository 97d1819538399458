//! Convolution with Snake fused into the pass that reads its input, at stride 1 or shortening the
//! signal.
//!
//! The work is cut in items, each a range of time and of output channels. An item goes through its
//! input channels a block at a time: it copies them, halo included, to a scratch buffer, applying Snake
//! on the way and writing zeros or the mirrored signal where it has ended; then a few output channels
//! by two vectors of time accumulate in registers over the block's channels and taps, weights read
//! where the checkpoint put them, and are added to the item's sums.
//!
//! With a stride, the copy sorts a channel's positions by their remainder, a row each: what consecutive
//! outputs need for one tap then lies side by side, as at stride 1.
//!
//! Every output is `bias + block + block + ... + residual` in that order, rectified last where that is
//! wanted, a block being the sum over some input channels and all taps, one fused multiply-add a term.
//! Blocks depend on the weight's shape alone, so how the work is cut does not show in the bits.

use std::cell::Cell;

use rayon::prelude::*;

use super::rows::{Rows, SharedOutput};
use super::simd::{Isa, Kernel, Simd, dispatch_on};
use super::snake::snake_row;

/// Products that are summed before the sum is added to the output: short sums lose less to rounding
/// than one long one, and the inputs and weights of one of them fit the first-level cache.
const TERMS: usize = 224;

/// Channels by positions of an item, where that leaves it at least 64 positions long: its sums, about
/// 200 KB, stay in the second-level cache beside the weights passing through.
const OUTPUTS: usize = 48 * 1024;

/// Multiply-adds below which a convolution stays on the calling thread.
pub(super) const PARALLEL_FROM: usize = 1 << 18;

/// A convolution, all its operands in place.
#[derive(Clone, Copy)]
pub(super) struct Conv<'a> {
    /// `[batch, in, time]`.
    pub(super) x: Rows<'a>,
    /// Snake's `[in]`, where it is wanted.
    pub(super) alpha: Option<&'a [f32]>,
    /// `[out, in, taps]`.
    pub(super) weight: &'a [f32],
    /// `[out]`.
    pub(super) bias: &'a [f32],
    /// `[batch, out, out_time]`.
    pub(super) residual: Option<Rows<'a>>,
    pub(super) taps: usize,
    /// 1, or a divisor of `taps` where `dilation` is 1.
    pub(super) stride: usize,
    pub(super) dilation: usize,
    /// Positions added before and after the activated input.
    pub(super) padding: (usize, usize),
    /// Whether they mirror the signal without repeating its ends, instead of being zero; needs more
    /// positions than are added at an end, and no Snake.
    pub(super) reflect: bool,
    /// Whether negative results become zero.
    pub(super) relu: bool,
}

impl Conv<'_> {
    /// Columns of an item's input beside those of its outputs.
    fn halo(&self) -> usize {
        match self.stride {
            1 => self.dilation * (self.taps - 1),
            stride => self.taps / stride - 1,
        }
    }

    pub(super) fn out_time(&self) -> usize {
        let padded = self.x.time + self.padding.0 + self.padding.1;
        let reach = self.dilation * (self.taps - 1);
        padded.saturating_sub(reach).div_ceil(self.stride)
    }

    /// Runs the convolution: `[batch, out, out_time]`.
    pub(super) fn run(&self, isa: Isa) -> Vec<f32> {
        let (out, time) = (self.bias.len(), self.out_time());
        assert_eq!(self.weight.len(), out * self.x.channels * self.taps);
        assert!(
            self.stride == 1
                || (self.dilation == 1 && !self.reflect && self.taps.is_multiple_of(self.stride))
        );
        assert!(
            !self.reflect
                || (self.alpha.is_none() && self.padding.0.max(self.padding.1) < self.x.time)
        );
        assert!(
            self.alpha
                .is_none_or(|alpha| alpha.len() == self.x.channels)
        );
        assert!(
            self.residual
                .is_none_or(|r| { (r.batch, r.channels, r.time) == (self.x.batch, out, time) })
        );
        let mut y = SharedOutput::new(self.x.batch, out, time);
        let (times, channels) = self.cut(out, time);
        let item = |index: usize| {
            let (rest, o) = (index / channels.pieces, index % channels.pieces);
            let (batch, t) = (rest / times.pieces, rest % times.pieces);
            // Channel ranges are cut at multiples of the register block.
            dispatch_on(
                isa,
                Item {
                    conv: *self,
                    y: &y,
                    batch,
                    time: times.range(t),
                    out: channels.range(o),
                },
            );
        };
        let items = self.x.batch * times.pieces * channels.pieces;
        if self.x.batch * out * self.x.channels * self.taps * time < PARALLEL_FROM {
            (0..items).for_each(item);
        } else {
            (0..items).into_par_iter().with_max_len(1).for_each(item);
        }
        // SAFETY: the items cover every position of every channel of every batch entry, and each
        // writes its whole range.
        unsafe { y.take() }
    }

    /// How time and output channels are cut: so that an item's input block, its outputs and the
    /// weights in use share the second-level cache, and there are items enough to share out evenly.
    fn cut(&self, out: usize, time: usize) -> (Cut, Cut) {
        let longest = (OUTPUTS / out.max(self.x.channels)).clamp(64, 512);
        let times = Cut::at_most(time, longest, 16);
        // An item copies its input anew, so channels are cut only where time gives too few items.
        let wanted = 8 * rayon::current_num_threads();
        let wanted = wanted.div_ceil(self.x.batch * times.pieces.max(1));
        let channels = Cut::at_most(out, out.div_ceil(wanted).max(48), 12);
        (times, channels)
    }
}

/// `len` cut in equal pieces whose borders are multiples of `grain`.
#[derive(Clone, Copy)]
pub(super) struct Cut {
    len: usize,
    piece: usize,
    pub(super) pieces: usize,
}

impl Cut {
    pub(super) fn at_most(len: usize, longest: usize, grain: usize) -> Self {
        let pieces = len.div_ceil(longest).max(1);
        let piece = len.div_ceil(pieces).next_multiple_of(grain).max(grain);
        Self {
            len,
            piece,
            pieces: len.div_ceil(piece),
        }
    }

    pub(super) fn range(&self, index: usize) -> std::ops::Range<usize> {
        index * self.piece..((index + 1) * self.piece).min(self.len)
    }
}

thread_local! {
    /// The input copy, kept between items and calls.
    static SCRATCH_BUFFER: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
}

/// This thread's scratch buffer, at least `len` values long, contents undefined; given back by
/// [`return_scratch`]. Not lent to a closure: a closure would be compiled without the kernel's
/// instruction set.
pub(super) fn take_scratch(len: usize) -> Vec<f32> {
    let mut buffer = SCRATCH_BUFFER.take();
    if buffer.len() < len {
        buffer.resize(len, 0.0);
    }
    buffer
}

/// Keeps the buffer for the next item of this thread.
pub(super) fn return_scratch(buffer: Vec<f32>) {
    SCRATCH_BUFFER.set(buffer);
}

struct Item<'a> {
    conv: Conv<'a>,
    y: &'a SharedOutput,
    batch: usize,
    time: std::ops::Range<usize>,
    out: std::ops::Range<usize>,
}

impl Kernel for Item<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let conv = &self.conv;
        let (taps, halo, channels) = (conv.taps, conv.halo(), conv.x.channels);
        let steps = (self.time.end - self.time.start).next_multiple_of(4 * S::LANES);
        let width = steps + halo;
        // A channel's columns, one row a remainder.
        let columns = conv.stride * width;
        let block = (TERMS / taps).clamp(1, channels);
        let line = if conv.stride == 1 { 0 } else { columns };
        let mut scratch = take_scratch(block * columns + self.out.len() * steps + line);
        let (input, rest) = scratch.split_at_mut(block * columns);
        let (sums, line) = rest.split_at_mut(self.out.len() * steps);
        for first in (0..channels).step_by(block) {
            let last = (first + block).min(channels);
            for c in first..last {
                let alpha = conv.alpha.map(|alpha| alpha[c]);
                let rows = &mut input[(c - first) * columns..][..columns];
                let start = (self.time.start * conv.stride) as isize - conv.padding.0 as isize;
                let x = conv.x.row(self.batch, c);
                // SAFETY: the instruction set is `S`'s.
                unsafe {
                    if conv.stride == 1 {
                        fill_row::<S>(rows, x, start, alpha);
                    } else {
                        let line = &mut line[..columns];
                        fill_row::<S>(line, x, start, alpha);
                        deal(line, rows, conv.stride);
                    }
                }
                if conv.reflect {
                    mirror_ends(rows, x, start);
                }
            }
            let pass = Pass {
                item: &self,
                weight: &conv.weight[first * taps..],
                weight_stride: channels * taps,
                input,
                width,
                sums: sums.as_mut_ptr(),
                steps,
                channels: last - first,
                first: first == 0,
                last: last == channels,
            };
            let mut o = self.out.start;
            while o < self.out.end {
                let left = self.out.end - o;
                // SAFETY: the instruction set is `S`'s; `Pass` describes memory that it owns
                // or borrows, and rows `o..o + MR` exist.
                o += unsafe {
                    if S::LANES == 16 && left >= 12 {
                        pass.rows::<S, 12, 2>(o)
                    } else if left >= 6 {
                        pass.rows::<S, 6, 2>(o)
                    } else if left >= 3 {
                        pass.rows::<S, 3, 4>(o)
                    } else if left == 2 {
                        pass.rows::<S, 2, 4>(o)
                    } else {
                        pass.rows::<S, 1, 4>(o)
                    }
                };
            }
        }
        return_scratch(scratch);
    }
}

/// Copies positions `start..start + row.len()` of `x` to `row`, through Snake if `alpha` is given;
/// zeros where the signal has not begun or has ended.
///
/// # Safety
///
/// The instruction set is `S`'s.
#[inline(always)]
pub(super) unsafe fn fill_row<S: Simd>(
    row: &mut [f32],
    x: &[f32],
    start: isize,
    alpha: Option<f32>,
) {
    let lead = start.min(0).unsigned_abs().min(row.len());
    let from = start.max(0).unsigned_abs().min(x.len());
    let len = (x.len() - from).min(row.len() - lead);
    row[..lead].fill(0.0);
    row[lead + len..].fill(0.0);
    let (src, dst) = (&x[from..from + len], &mut row[lead..lead + len]);
    match alpha {
        // SAFETY: both slices hold `len` values and are distinct.
        Some(alpha) => unsafe { snake_row::<S>(src.as_ptr(), dst.as_mut_ptr(), len, alpha) },
        None => dst.copy_from_slice(src),
    }
}

/// Overwrites what [`fill_row`] left zero: before the signal's first position with those after it, and
/// behind its last with those before it.
#[inline(always)]
fn mirror_ends(row: &mut [f32], x: &[f32], start: isize) {
    let lead = start.min(0).unsigned_abs().min(row.len());
    for i in 0..lead {
        row[i] = x.get(start.unsigned_abs() - i).copied().unwrap_or(0.0);
    }
    // The position behind the last, in the row.
    let end = (x.len() as isize - start).max(0).unsigned_abs();
    for i in end..row.len().min(end + x.len() - 1) {
        row[i] = x[x.len() - 2 - (i - end)];
    }
}

/// Sorts positions by their remainder: `rows [stride, width]` from `line [width, stride]`.
#[inline(always)]
fn deal(line: &[f32], rows: &mut [f32], stride: usize) {
    match stride {
        2 => deal_by::<2>(line, rows, stride),
        4 => deal_by::<4>(line, rows, stride),
        8 => deal_by::<8>(line, rows, stride),
        _ => deal_by::<0>(line, rows, stride),
    }
}

/// [`deal`], the stride known when `STRIDE` is not 0.
#[inline(always)]
fn deal_by<const STRIDE: usize>(line: &[f32], rows: &mut [f32], stride: usize) {
    let stride = if STRIDE == 0 { stride } else { STRIDE };
    let width = line.len() / stride;
    for (r, row) in rows.chunks_exact_mut(width).enumerate() {
        for (to, group) in row.iter_mut().zip(line.chunks_exact(stride)) {
            *to = group[r];
        }
    }
}

/// One block of input channels over one item.
struct Pass<'a, 'b> {
    item: &'b Item<'a>,
    /// From the first channel of the block on.
    weight: &'b [f32],
    /// From one output channel to the next.
    weight_stride: usize,
    /// `[channels, stride, width]`.
    input: &'b [f32],
    width: usize,
    /// `[item's output channels, steps]`: sums of the blocks so far. Not kept in the output, whose
    /// rows lie far apart and compete for the same places in the cache.
    sums: *mut f32,
    steps: usize,
    channels: usize,
    /// Whether sums begin here, with the bias.
    first: bool,
    /// Whether sums end here, with the residual.
    last: bool,
}

impl Pass<'_, '_> {
    /// Adds the block's terms to output channels `o..o + MR`. Returns `MR`.
    ///
    /// # Safety
    ///
    /// The instruction set is `S`'s, and the channels are the item's.
    #[inline(always)]
    unsafe fn rows<S: Simd, const MR: usize, const NR: usize>(&self, o: usize) -> usize {
        let Item {
            conv,
            y,
            batch,
            time,
            out,
        } = self.item;
        let step = NR * S::LANES;
        let len = time.end - time.start;
        let weight = self.weight[o * self.weight_stride..].as_ptr();
        let mut at = 0;
        while at < len {
            let valid = (len - at).min(step);
            let t = time.start + at;
            // SAFETY: input rows hold `len` rounded up to four vectors plus the halo, and rows of
            // sums as much without the halo, so full vectors can be read and written there; the
            // output and the residual, which end at `len`, are accessed through `edge`.
            unsafe {
                let mut acc: [[S::V; NR]; MR] = [[S::zero(); NR]; MR];
                let (width, stride) = (self.width, conv.stride);
                let walk = match conv.taps {
                    // With one tap, channels are steps of a single longer loop.
                    1 => [(1, 0), (1, 0), (self.channels, width)],
                    taps if stride == 1 => [(self.channels, width), (1, 0), (taps, conv.dilation)],
                    // Tap `q stride + r` of an output is column `q` further in row `r`.
                    taps => [
                        (self.channels, stride * width),
                        (taps / stride, 1),
                        (stride, width),
                    ],
                };
                let x = self.input.as_ptr().add(at);
                accumulate::<S, MR, NR>(&mut acc, weight, self.weight_stride, x, walk);
                for (i, row) in acc.iter_mut().enumerate() {
                    let sums = self.sums.add((o - out.start + i) * self.steps + at);
                    let before = if self.first {
                        [S::splat(*conv.bias.get_unchecked(o + i)); NR]
                    } else {
                        load_vectors::<S, NR>(sums)
                    };
                    for j in 0..NR {
                        row[j] = S::add(before[j], row[j]);
                    }
                    if !self.last {
                        store_vectors::<S, NR>(sums, row);
                        continue;
                    }
                    if let Some(residual) = &conv.residual {
                        let r = residual.row(*batch, o + i)[t..].as_ptr();
                        let r = load_edge::<S, NR>(r, valid);
                        for j in 0..NR {
                            row[j] = S::add(row[j], r[j]);
                        }
                    }
                    if conv.relu {
                        for j in 0..NR {
                            // In this order a NaN stays one.
                            row[j] = S::max(S::zero(), row[j]);
                        }
                    }
                    store_edge::<S, NR>(y.at(*batch, o + i, t), row, valid);
                }
            }
            at += step;
        }
        MR
    }
}

/// Loads `NR` vectors.
#[inline(always)]
unsafe fn load_vectors<S: Simd, const NR: usize>(p: *const f32) -> [S::V; NR] {
    // SAFETY: the caller gives a pointer to `NR` vectors.
    unsafe {
        let mut v = [S::zero(); NR];
        for (j, v) in v.iter_mut().enumerate() {
            *v = S::load(p.add(j * S::LANES));
        }
        v
    }
}

/// Loads `NR` vectors of which `valid` values exist.
#[inline(always)]
unsafe fn load_edge<S: Simd, const NR: usize>(p: *const f32, valid: usize) -> [S::V; NR] {
    // SAFETY: reads `valid` values at `p`, the rest from the buffer.
    unsafe {
        if valid == NR * S::LANES {
            return load_vectors::<S, NR>(p);
        }
        let mut buffer = [0.0f32; 64];
        std::ptr::copy_nonoverlapping(p, buffer.as_mut_ptr(), valid);
        load_vectors::<S, NR>(buffer.as_ptr())
    }
}

/// Stores `NR` vectors.
#[inline(always)]
unsafe fn store_vectors<S: Simd, const NR: usize>(p: *mut f32, v: &[S::V; NR]) {
    // SAFETY: the caller gives a pointer to `NR` writable vectors.
    unsafe {
        for (j, v) in v.iter().enumerate() {
            S::store(p.add(j * S::LANES), *v);
        }
    }
}

/// Stores the first `valid` values of `NR` vectors.
#[inline(always)]
unsafe fn store_edge<S: Simd, const NR: usize>(p: *mut f32, v: &[S::V; NR], valid: usize) {
    // SAFETY: writes `valid` values at `p`.
    unsafe {
        if valid == NR * S::LANES {
            return store_vectors::<S, NR>(p, v);
        }
        let mut buffer = [0.0f32; 64];
        store_vectors::<S, NR>(buffer.as_mut_ptr(), v);
        std::ptr::copy_nonoverlapping(buffer.as_ptr(), p, valid);
    }
}

/// `acc[i][t] += sum over the walk of w[i][step] x[t + place]`: three nested loops over inputs, each a
/// count and how far apart its places are, one weight a step.
///
/// # Safety
///
/// The instruction set is `S`'s; `MR` rows of as many weights as there are steps, `stride` apart, and
/// the inputs at all places of the walk are readable over the vectors used.
#[inline(always)]
unsafe fn accumulate<S: Simd, const MR: usize, const NR: usize>(
    acc: &mut [[S::V; NR]; MR],
    weight: *const f32,
    stride: usize,
    x: *const f32,
    walk: [(usize, usize); 3],
) {
    // SAFETY: the caller's contract.
    unsafe {
        let mut sums = *acc;
        let mut w = [weight; MR];
        for (i, w) in w.iter_mut().enumerate() {
            *w = weight.add(i * stride);
        }
        let [
            (outer, outer_step),
            (middle, middle_step),
            (inner, inner_step),
        ] = walk;
        for a in 0..outer {
            for b in 0..middle {
                let mut p = x.add(a * outer_step + b * middle_step);
                for _ in 0..inner {
                    let v = load_vectors::<S, NR>(p);
                    for i in 0..MR {
                        let factor = S::splat(*w[i]);
                        for j in 0..NR {
                            sums[i][j] = S::fma(factor, v[j], sums[i][j]);
                        }
                        w[i] = w[i].add(1);
                    }
                    p = p.add(inner_step);
                }
            }
        }
        *acc = sums;
    }
}
