//! Transposed convolution with `taps = 2 stride`, Snake fused into the pass that reads its input.
//!
//! As a product, `P[i, (o, k)] = sum over c of snake(x)[c, i] w[c, o, k]` needs no rearranged input,
//! and the weights of one input channel lie in a row; each output then adds two entries of `P`:
//!
//! `y[o, q stride + k - trim.0] = bias[o] + P[q, (o, k)] + P[q - 1, (o, stride + k)]`.
//!
//! An item holds the input of a range of positions in scratch, and goes through its output channels a
//! few at a time: their weights are copied to contiguous panels once, `P` is accumulated, and folded
//! into the output. Sums run over blocks of input channels in order, and within a block one fused
//! multiply-add a channel.

use std::ops::Range;

use rayon::prelude::*;

use super::conv::{Cut, PARALLEL_FROM, fill_row, return_scratch, take_scratch};
use super::rows::{Rows, SharedOutput};
use super::simd::prefetch;
use super::simd::{Isa, Kernel, Simd, dispatch_on};

/// Output channels whose weights are packed together: their columns are a multiple of 16.
const OUT_BLOCK: usize = 8;

/// Input channels whose weights are packed together.
const CHANNEL_BLOCK: usize = 128;

/// Inputs that an item keeps, where that leaves it at least 96 positions long.
const INPUTS: usize = 64 * 1024;

/// Input channels ahead of which weights are fetched: far apart in memory, they would be waited for.
const AHEAD: usize = 6;

/// A transposed convolution, all its operands in place.
#[derive(Clone, Copy)]
pub(super) struct ConvTransposed<'a> {
    /// `[batch, in, time]`.
    pub(super) x: Rows<'a>,
    /// Snake's `[in]`, where it is wanted.
    pub(super) alpha: Option<&'a [f32]>,
    /// `[in, out, 2 stride]`.
    pub(super) weight: &'a [f32],
    /// `[out]`.
    pub(super) bias: &'a [f32],
    pub(super) stride: usize,
    /// Positions cut from the start and the end of the full result.
    pub(super) trim: (usize, usize),
}

impl ConvTransposed<'_> {
    pub(super) fn out_time(&self) -> usize {
        ((self.x.time + 1) * self.stride).saturating_sub(self.trim.0 + self.trim.1)
    }

    /// Runs the convolution: `[batch, out, out_time]`.
    pub(super) fn run(&self, isa: Isa) -> Vec<f32> {
        let (out, time, channels) = (self.bias.len(), self.out_time(), self.x.channels);
        assert_eq!(self.weight.len(), channels * out * 2 * self.stride);
        assert!(self.alpha.is_none_or(|alpha| alpha.len() == channels));
        let mut y = SharedOutput::new(self.x.batch, out, time);
        // Blocks of `stride` outputs, one more than there are inputs.
        let blocks = self.x.time + 1;
        let longest = (INPUTS / channels).clamp(96, 512);
        let positions = Cut::at_most(blocks, longest, 1);
        let wanted = (4 * rayon::current_num_threads()).div_ceil(self.x.batch * positions.pieces);
        let groups = Cut::at_most(out, out.div_ceil(wanted).max(4 * OUT_BLOCK), OUT_BLOCK);
        let item = |index: usize| {
            let (rest, o) = (index / groups.pieces, index % groups.pieces);
            let (batch, q) = (rest / positions.pieces, rest % positions.pieces);
            dispatch_on(
                isa,
                Item {
                    conv: *self,
                    y: &y,
                    batch,
                    blocks: positions.range(q),
                    out: groups.range(o),
                    out_time: time,
                },
            );
        };
        let items = self.x.batch * positions.pieces * groups.pieces;
        if self.x.batch * out * channels * time < PARALLEL_FROM {
            (0..items).for_each(item);
        } else {
            (0..items).into_par_iter().with_max_len(1).for_each(item);
        }
        // SAFETY: the items cover every block of every channel, hence every position kept.
        unsafe { y.take() }
    }
}

struct Item<'a> {
    conv: ConvTransposed<'a>,
    y: &'a SharedOutput,
    batch: usize,
    /// Blocks of `stride` outputs of the full result.
    blocks: Range<usize>,
    out: Range<usize>,
    out_time: usize,
}

/// Positions by vectors that the product accumulates in registers.
const ROWS: usize = 6;
const VECTORS: usize = 2;

impl Kernel for Item<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let conv = &self.conv;
        let channels = conv.x.channels;
        let columns = VECTORS * S::LANES;
        let per_block = (OUT_BLOCK * 2 * conv.stride).next_multiple_of(columns);
        // Inputs of the blocks: the one before, and their own.
        let inputs = self.blocks.len() + 1;
        let width = inputs.next_multiple_of(ROWS);
        let sizes = [
            channels * width,
            CHANNEL_BLOCK * per_block,
            width * per_block,
        ];
        let mut scratch = take_scratch(sizes.iter().sum());
        let (x, rest) = scratch.split_at_mut(sizes[0]);
        let (panel, product) = rest.split_at_mut(sizes[1]);
        for c in 0..channels {
            let alpha = conv.alpha.map(|alpha| alpha[c]);
            let row = &mut x[c * width..][..width];
            let start = self.blocks.start as isize - 1;
            // SAFETY: the instruction set is `S`'s.
            unsafe { fill_row::<S>(row, conv.x.row(self.batch, c), start, alpha) };
        }
        for o in self.out.clone().step_by(OUT_BLOCK) {
            let group = o..(o + OUT_BLOCK).min(self.out.end);
            for first in (0..channels).step_by(CHANNEL_BLOCK) {
                let block = first..(first + CHANNEL_BLOCK).min(channels);
                self.pack(panel, &group, &block, columns, per_block);
                // SAFETY: the instruction set is `S`'s; the three buffers have the sizes that
                // `multiply` names.
                unsafe {
                    multiply::<S>(
                        &x[first * width..block.end * width],
                        width,
                        panel,
                        product,
                        per_block,
                        first == 0,
                    );
                }
            }
            self.fold(product, &group, per_block);
        }
        return_scratch(scratch);
    }
}

impl Item<'_> {
    /// Copies the weights of output channels `group` and input channels `block` to panels
    /// `[column / columns, c, columns]`, the last of them filled up with zeros.
    #[inline(always)]
    fn pack(
        &self,
        panel: &mut [f32],
        group: &Range<usize>,
        block: &Range<usize>,
        columns: usize,
        per_block: usize,
    ) {
        let taps = 2 * self.conv.stride;
        let used = group.len() * taps;
        for (i, c) in block.clone().enumerate() {
            let start = (c * self.conv.bias.len() + group.start) * taps;
            let row = &self.conv.weight[start..start + used];
            let ahead = start + AHEAD * self.conv.bias.len() * taps;
            for line in (ahead..ahead + used).step_by(16) {
                prefetch(self.conv.weight, line);
            }
            for (p, from) in (0..per_block).step_by(columns).enumerate() {
                let to = &mut panel[(p * block.len() + i) * columns..][..columns];
                let len = used.saturating_sub(from).min(columns);
                if len == columns {
                    to.copy_from_slice(&row[from..from + columns]);
                } else {
                    to[..len].copy_from_slice(&row[from.min(used)..][..len]);
                    to[len..].fill(0.0);
                }
            }
        }
    }

    /// Adds the two entries of the product that meet in each output.
    #[inline(always)]
    fn fold(&self, product: &[f32], group: &Range<usize>, per_block: usize) {
        match self.conv.stride {
            2 => self.fold_by::<2>(product, group, per_block),
            4 => self.fold_by::<4>(product, group, per_block),
            8 => self.fold_by::<8>(product, group, per_block),
            _ => self.fold_by::<0>(product, group, per_block),
        }
    }

    /// [`fold`](Self::fold), the stride known when `STRIDE` is not 0.
    #[inline(always)]
    fn fold_by<const STRIDE: usize>(
        &self,
        product: &[f32],
        group: &Range<usize>,
        per_block: usize,
    ) {
        let stride = if STRIDE == 0 {
            self.conv.stride
        } else {
            STRIDE
        };
        let (trim, end) = (self.conv.trim.0, self.out_time + self.conv.trim.0);
        assert!(product.len() >= (self.blocks.len() + 1) * per_block);
        assert!(group.len() * 2 * stride <= per_block);
        for (g, o) in group.clone().enumerate() {
            let bias = self.conv.bias[o];
            for (i, q) in self.blocks.clone().enumerate() {
                // Phases that the trim leaves.
                let from = trim.saturating_sub(q * stride).min(stride);
                let to = end.saturating_sub(q * stride).min(stride);
                // SAFETY: both entries are within `product` by the assertions above; the output
                // positions are below `out_time`, and no other item has this block of this channel.
                unsafe {
                    let before = product
                        .as_ptr()
                        .add(i * per_block + g * 2 * stride + stride);
                    let own = product.as_ptr().add((i + 1) * per_block + g * 2 * stride);
                    if to - from.min(to) == stride {
                        let y = self.y.at(self.batch, o, q * stride - trim);
                        for k in 0..stride {
                            *y.add(k) = (bias + *own.add(k)) + *before.add(k);
                        }
                    } else {
                        for k in from..to {
                            let y = self.y.at(self.batch, o, q * stride + k - trim);
                            *y = (bias + *own.add(k)) + *before.add(k);
                        }
                    }
                }
            }
        }
    }
}

/// `product[i, j] (+)= sum over c of x[c, i] panel[c, j]` over the channels of `x [channels, width]`,
/// `panel` as `pack` wrote it, `product [width, per_block]`; `width` is a multiple of [`ROWS`].
///
/// # Safety
///
/// The instruction set is `S`'s, and the buffers have these sizes.
#[inline(always)]
unsafe fn multiply<S: Simd>(
    x: &[f32],
    width: usize,
    panel: &[f32],
    product: &mut [f32],
    per_block: usize,
    first: bool,
) {
    let columns = VECTORS * S::LANES;
    let channels = x.len() / width;
    for (p, column) in (0..per_block).step_by(columns).enumerate() {
        let panel = panel[p * channels * columns..][..channels * columns].as_ptr();
        for at in (0..width).step_by(ROWS) {
            // SAFETY: rows `at..at + ROWS` and the panel's columns exist by the caller's contract.
            unsafe {
                let to = product.as_mut_ptr().add(at * per_block + column);
                let mut acc = [[S::zero(); VECTORS]; ROWS];
                let mut x = x.as_ptr().add(at);
                let mut w = panel;
                for _ in 0..channels {
                    let mut v = [S::zero(); VECTORS];
                    for (j, v) in v.iter_mut().enumerate() {
                        *v = S::load(w.add(j * S::LANES));
                    }
                    for (i, row) in acc.iter_mut().enumerate() {
                        let factor = S::splat(*x.add(i));
                        for j in 0..VECTORS {
                            row[j] = S::fma(factor, v[j], row[j]);
                        }
                    }
                    x = x.add(width);
                    w = w.add(columns);
                }
                for (i, row) in acc.iter().enumerate() {
                    for (j, v) in row.iter().enumerate() {
                        let to = to.add(i * per_block + j * S::LANES);
                        let sum = if first { *v } else { S::add(S::load(to), *v) };
                        S::store(to, sum);
                    }
                }
            }
        }
    }
}
