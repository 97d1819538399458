//! Depthwise convolution over time-major signals, vectors across channels.
//!
//! An item copies its input, a stretch of time by a few vectors of channels, next to each other: rows of
//! the signal lie a power of two apart where channels are, and would compete for the same places in the
//! cache. Every result is `bias`, then one multiply-add a tap in order, however the signal is cut.

use burn::backend::{Flex, TensorMetadata};
use burn_flex::FlexTensor;
use rayon::prelude::*;

use super::conv::{PARALLEL_FROM, return_scratch, take_scratch};
use super::rows::{SharedOutput, contiguous_time};
use super::simd::{Isa, Kernel, Simd, dispatch_on};
use super::weights::{all_f32, contiguous, elements, f32_tensor};
use crate::portable;

/// Channels of an item.
const CHANNELS: usize = 64;
/// Positions of an item.
const TIME: usize = 64;
/// Positions that are summed at a time, in a register each.
const AT_ONCE: usize = 8;

/// See [`SpeechBackend::depthwise_conv1d`](crate::SpeechBackend::depthwise_conv1d).
pub(super) fn depthwise_conv1d(
    isa: Isa,
    x: FlexTensor,
    weight: FlexTensor,
    bias: Option<FlexTensor>,
) -> FlexTensor {
    let [batch, padded, channels] = x.shape().dims::<3>();
    let taps = weight.shape()[2];
    if !all_f32([&x, &weight].into_iter().chain(&bias)) {
        return portable::depthwise_conv1d::<Flex>(x, weight, bias);
    }
    assert_eq!(
        weight.shape().dims::<3>(),
        [channels, 1, taps],
        "one filter a channel"
    );
    assert!(
        taps > 0 && padded >= taps - 1,
        "an input shorter than the taps before it"
    );
    // Channels must be contiguous; positions and batch entries may lie anywhere.
    let (x, weight) = (contiguous_time(x), contiguous(weight));
    let bias = bias.map(contiguous);
    let layout = x.layout();
    let strides = layout.strides();
    let signal = Signal {
        values: &x.storage::<f32>()[layout.start_offset()..],
        batch,
        padded,
        channels,
        batch_stride: strides[0].unsigned_abs(),
        time_stride: strides[1].unsigned_abs(),
    };
    let y = convolved(isa, signal, elements(&weight), bias.as_ref().map(elements));
    f32_tensor(y, [batch, padded + 1 - taps, channels])
}

/// A borrowed `[batch, padded, channels]` tensor with contiguous channels.
#[derive(Clone, Copy)]
pub(super) struct Signal<'a> {
    pub(super) values: &'a [f32],
    pub(super) batch: usize,
    pub(super) padded: usize,
    pub(super) channels: usize,
    pub(super) batch_stride: usize,
    pub(super) time_stride: usize,
}

/// `weight [channels, taps]`, `bias [channels]` -> `[batch, padded + 1 - taps, channels]`.
pub(super) fn convolved(isa: Isa, x: Signal<'_>, weight: &[f32], bias: Option<&[f32]>) -> Vec<f32> {
    let (batch, channels) = (x.batch, x.channels);
    if channels == 0 {
        return Vec::new();
    }
    let taps = weight.len() / channels;
    let time = x.padded + 1 - taps;
    assert!(bias.is_none_or(|bias| bias.len() == channels));
    // [taps, channels], so that a tap's weights are a vector.
    let mut turned = vec![0.0; taps * channels];
    for (c, weights) in weight.chunks_exact(taps).enumerate() {
        for (k, &w) in weights.iter().enumerate() {
            turned[k * channels + c] = w;
        }
    }
    let mut y = SharedOutput::new(batch, time, channels);
    let (stretches, groups) = (time.div_ceil(TIME), channels.div_ceil(CHANNELS));
    let item = |index: usize| {
        let (rest, g) = (index / groups, index % groups);
        let (batch, t) = (rest / stretches, rest % stretches);
        let item = Item {
            x,
            weight: &turned,
            bias,
            taps,
            y: &y,
            batch,
            time: t * TIME..time.min((t + 1) * TIME),
            channels: g * CHANNELS..channels.min((g + 1) * CHANNELS),
        };
        dispatch_on(isa, item);
    };
    let items = batch * stretches * groups;
    if batch * time * channels * taps < PARALLEL_FROM {
        (0..items).for_each(item);
    } else {
        (0..items).into_par_iter().for_each(item);
    }
    // SAFETY: the items cover every position of every channel.
    unsafe { y.take() }
}

struct Item<'a> {
    x: Signal<'a>,
    /// `[taps, channels]`.
    weight: &'a [f32],
    bias: Option<&'a [f32]>,
    taps: usize,
    y: &'a SharedOutput,
    batch: usize,
    time: std::ops::Range<usize>,
    channels: std::ops::Range<usize>,
}

impl Kernel for Item<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let (taps, count) = (self.taps, self.channels.len());
        let columns = count.next_multiple_of(S::LANES);
        let steps = self.time.len().next_multiple_of(AT_ONCE);
        let halo = steps + taps - 1;
        let mut scratch = take_scratch((halo + taps + 1 + AT_ONCE) * columns);
        let (input, rest) = scratch.split_at_mut(halo * columns);
        let (weight, rest) = rest.split_at_mut(taps * columns);
        let (bias, edge) = rest.split_at_mut(columns);
        let start = self.batch * self.x.batch_stride + self.channels.start;
        for (i, row) in input.chunks_exact_mut(columns).enumerate() {
            // Positions behind the last are not there; what they would give is not kept.
            let t = (self.time.start + i).min(self.x.padded - 1);
            let from = &self.x.values[start + t * self.x.time_stride..][..count];
            row[..count].copy_from_slice(from);
        }
        for (k, row) in weight.chunks_exact_mut(columns).enumerate() {
            let from = &self.weight[k * self.x.channels..][self.channels.clone()];
            row[..count].copy_from_slice(from);
        }
        match self.bias {
            Some(from) => bias[..count].copy_from_slice(&from[self.channels.clone()]),
            None => bias.fill(0.0),
        }
        for at in (0..self.time.len()).step_by(AT_ONCE) {
            let valid = AT_ONCE.min(self.time.len() - at);
            for c in (0..columns).step_by(S::LANES) {
                let lanes = S::LANES.min(count - c);
                // SAFETY: `at + AT_ONCE + taps - 1` rows of `columns` values are in `input`, `taps` in
                // `weight`, `AT_ONCE` in `edge`, and `c` is a vector below `columns`; of the output the
                // item's own positions and channels are written.
                unsafe {
                    let mut acc = [S::load(bias.as_ptr().add(c)); AT_ONCE];
                    let first = input.as_ptr().add(at * columns + c);
                    for k in 0..taps {
                        let w = S::load(weight.as_ptr().add(k * columns + c));
                        for i in 0..AT_ONCE {
                            acc[i] = S::fma(w, S::load(first.add((k + i) * columns)), acc[i]);
                        }
                    }
                    for (i, acc) in acc.iter().enumerate().take(valid) {
                        let t = self.time.start + at + i;
                        let to = self.y.at(self.batch, t, self.channels.start + c);
                        if lanes == S::LANES {
                            S::store(to, *acc);
                        } else {
                            S::store(edge.as_mut_ptr(), *acc);
                            std::ptr::copy_nonoverlapping(edge.as_ptr(), to, lanes);
                        }
                    }
                }
            }
        }
        return_scratch(scratch);
    }
}
