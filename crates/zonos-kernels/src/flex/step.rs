//! The small steps between the matrices of a transformer layer, one pass each.

use burn::backend::{Flex, TensorMetadata};
use burn_flex::FlexTensor;
use rayon::prelude::*;

use super::conv::PARALLEL_FROM;
use super::layer_norm::sum;
use super::math;
use super::simd::{Isa, Kernel, Simd, dispatch_on};
use super::weights::{all_f32, contiguous, elements, f32_tensor};
use crate::{GateOrder, portable};

/// Values a work item.
const VALUES: usize = 32 * 1024;

/// Runs `item(first row, rows of y)` over groups of rows of `y [rows, width]`.
fn by_rows(y: &mut [f32], width: usize, item: impl Fn(usize, &mut [f32]) + Sync) {
    let group = (VALUES / width).max(1);
    if y.len() < PARALLEL_FROM {
        item(0, y);
    } else {
        let groups = y.par_chunks_mut(group * width).enumerate();
        groups.for_each(|(g, y)| item(g * group, y));
    }
}

/// `1 / sqrt(mean(x^2) + eps)`.
///
/// # Safety
///
/// The instruction set is `S`'s.
#[inline(always)]
pub(super) unsafe fn inverse_rms<S: Simd>(x: &[f32], eps: f32) -> f32 {
    // SAFETY: the caller's contract.
    let square = unsafe { sum::<S, true>(x, 0.0) } / x.len() as f32;
    1.0 / (square + eps).sqrt()
}

struct RmsRows<'a> {
    x: &'a [f32],
    weight: Option<&'a [f32]>,
    width: usize,
    eps: f32,
    y: &'a mut [f32],
}

impl Kernel for RmsRows<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let rows = self.x.chunks_exact(self.width);
        for (x, y) in rows.zip(self.y.chunks_exact_mut(self.width)) {
            // SAFETY: the instruction set is `S`'s.
            let inverse = unsafe { inverse_rms::<S>(x, self.eps) };
            match self.weight {
                Some(weight) => {
                    for ((y, x), w) in y.iter_mut().zip(x).zip(weight) {
                        *y = x * inverse * w;
                    }
                }
                None => {
                    for (y, x) in y.iter_mut().zip(x) {
                        *y = x * inverse;
                    }
                }
            }
        }
    }
}

/// See [`SpeechBackend::rms_norm`](crate::SpeechBackend::rms_norm).
pub(super) fn rms_norm(
    isa: Isa,
    x: FlexTensor,
    weight: Option<FlexTensor>,
    eps: f32,
) -> FlexTensor {
    let [rows, width] = x.shape().dims::<2>();
    if !all_f32(weight.iter().chain([&x])) || rows * width == 0 {
        return portable::rms_norm::<Flex>(x, weight, eps);
    }
    let (x, weight) = (contiguous(x), weight.map(contiguous));
    let weight = weight.as_ref().map(elements::<f32>);
    assert!(weight.is_none_or(|weight| weight.len() == width));
    let input = elements::<f32>(&x);
    let mut y = vec![0.0; rows * width];
    by_rows(&mut y, width, |first, y| {
        let x = &input[first * width..][..y.len()];
        dispatch_on(
            isa,
            RmsRows {
                x,
                weight,
                width,
                eps,
                y,
            },
        );
    });
    f32_tensor(y, [rows, width])
}

struct Rotate<'a> {
    /// `[rows, heads, dim]`
    x: &'a [f32],
    /// `[heads]`
    scale: Option<&'a [f32]>,
    /// `[rows, dim]`
    cos: &'a [f32],
    sin: &'a [f32],
    heads: usize,
    dim: usize,
    eps: f32,
    y: &'a mut [f32],
}

impl Kernel for Rotate<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let (heads, dim) = (self.heads, self.dim);
        let all = self.x.chunks_exact(dim).zip(self.y.chunks_exact_mut(dim));
        for (i, (x, y)) in all.enumerate() {
            let (row, head) = (i / heads, i % heads);
            // SAFETY: the instruction set is `S`'s.
            let mut factor = unsafe { inverse_rms::<S>(x, self.eps) };
            if let Some(scale) = self.scale {
                factor *= scale[head];
            }
            let cos = self.cos[row * dim..][..dim].as_chunks::<2>().0;
            let sin = self.sin[row * dim..][..dim].as_chunks::<2>().0;
            let pairs = x.as_chunks::<2>().0.iter().zip(cos.iter().zip(sin));
            for ([a, b], ([x0, x1], (cos, sin))) in y.as_chunks_mut::<2>().0.iter_mut().zip(pairs) {
                let (first, second) = (x0 * factor, x1 * factor);
                *a = first * cos[0] + second * sin[0];
                *b = second * cos[1] + first * sin[1];
            }
        }
    }
}

/// See [`SpeechBackend::norm_rotate`](crate::SpeechBackend::norm_rotate).
pub(super) fn norm_rotate(
    isa: Isa,
    x: FlexTensor,
    scale: Option<FlexTensor>,
    cos: FlexTensor,
    sin: FlexTensor,
    eps: f32,
) -> FlexTensor {
    let [rows, heads, dim] = x.shape().dims::<3>();
    let f32s = all_f32(scale.iter().chain([&x, &cos, &sin]));
    if !f32s || rows * heads * dim == 0 || !dim.is_multiple_of(2) {
        return portable::norm_rotate::<Flex>(x, scale, cos, sin, eps);
    }
    let [x, cos, sin] = [x, cos, sin].map(contiguous);
    let scale = scale.map(contiguous);
    let scale = scale.as_ref().map(elements::<f32>);
    let [input, cos, sin] = [&x, &cos, &sin].map(elements::<f32>);
    assert!(scale.is_none_or(|scale| scale.len() == heads));
    assert!(cos.len() == rows * dim && sin.len() == rows * dim);
    let width = heads * dim;
    let mut y = vec![0.0; rows * width];
    by_rows(&mut y, width, |first, y| {
        let rows = y.len() / width;
        dispatch_on(
            isa,
            Rotate {
                x: &input[first * width..][..y.len()],
                scale,
                cos: &cos[first * dim..][..rows * dim],
                sin: &sin[first * dim..][..rows * dim],
                heads,
                dim,
                eps,
                y,
            },
        );
    });
    f32_tensor(y, [rows, heads, dim])
}

/// See [`SpeechBackend::sigmoid_gate`](crate::SpeechBackend::sigmoid_gate).
pub(super) fn sigmoid_gate(x: FlexTensor, gate: FlexTensor) -> FlexTensor {
    let [rows, heads, dim] = x.shape().dims::<3>();
    if !all_f32([&x, &gate]) || rows * heads * dim == 0 {
        return portable::sigmoid_gate::<Flex>(x, gate);
    }
    let [x, gate] = [x, gate].map(contiguous);
    let (input, gate) = (elements::<f32>(&x), elements::<f32>(&gate));
    assert_eq!(gate.len(), rows * heads, "a gate for each head");
    let width = heads * dim;
    let mut y = vec![0.0; rows * width];
    by_rows(&mut y, width, |first, y| {
        let gates = &gate[first * heads..];
        let x = input[first * width..].chunks_exact(dim);
        for ((y, x), gate) in y.chunks_exact_mut(dim).zip(x).zip(gates) {
            let open = 1.0 / (1.0 + (-gate).exp());
            for (y, x) in y.iter_mut().zip(x) {
                *y = x * open;
            }
        }
    });
    f32_tensor(y, [rows, heads, dim])
}

/// `y = silu(gate) * up`.
pub(super) struct SiluTimes<'a> {
    pub(super) gate: &'a [f32],
    pub(super) up: &'a [f32],
    pub(super) y: &'a mut [f32],
}

impl Kernel for SiluTimes<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let len = self.y.len();
        assert!(self.gate.len() == len && self.up.len() == len);
        let whole = len - len % S::LANES;
        let mut at = 0;
        while at < whole {
            // SAFETY: a vector from `at` on is inside all three.
            unsafe {
                let gate = math::silu::<S>(S::load(self.gate.as_ptr().add(at)));
                let y = S::mul(gate, S::load(self.up.as_ptr().add(at)));
                S::store(self.y.as_mut_ptr().add(at), y);
            }
            at += S::LANES;
        }
        if whole < len {
            // The rest goes through the same arithmetic, in buffers of the widest vector.
            let mut buffers = [[0.0f32; 16]; 2];
            buffers[0][..len - whole].copy_from_slice(&self.gate[whole..]);
            buffers[1][..len - whole].copy_from_slice(&self.up[whole..]);
            // SAFETY: the buffers hold a vector.
            unsafe {
                let gate = math::silu::<S>(S::load(buffers[0].as_ptr()));
                let y = S::mul(gate, S::load(buffers[1].as_ptr()));
                S::store(buffers[0].as_mut_ptr(), y);
            }
            self.y[whole..].copy_from_slice(&buffers[0][..len - whole]);
        }
    }
}

struct SoftCap<'a> {
    x: &'a [f32],
    cap: f32,
    y: &'a mut [f32],
}

impl Kernel for SoftCap<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let whole = self.y.len() - self.y.len() % S::LANES;
        assert_eq!(self.x.len(), self.y.len());
        // SAFETY: the instruction set is `S`'s; vectors end before `whole`, and the buffer holds one.
        unsafe {
            let (inverse, cap) = (S::splat(1.0 / self.cap), S::splat(self.cap));
            let capped = |x| S::mul(math::tanh::<S>(S::mul(x, inverse)), cap);
            for at in (0..whole).step_by(S::LANES) {
                let x = S::load(self.x.as_ptr().add(at));
                S::store(self.y.as_mut_ptr().add(at), capped(x));
            }
            // What is left goes through the same arithmetic, in a buffer of the widest vector.
            let mut rest = [0.0f32; 16];
            rest[..self.x.len() - whole].copy_from_slice(&self.x[whole..]);
            S::store(rest.as_mut_ptr(), capped(S::load(rest.as_ptr())));
            self.y[whole..].copy_from_slice(&rest[..self.x.len() - whole]);
        }
    }
}

/// See [`SpeechBackend::soft_cap`](crate::SpeechBackend::soft_cap).
pub(super) fn soft_cap(isa: Isa, x: FlexTensor, cap: f32) -> FlexTensor {
    let [rows, width] = x.shape().dims::<2>();
    if !all_f32([&x]) || rows * width == 0 {
        return portable::soft_cap::<Flex>(x, cap);
    }
    let x = contiguous(x);
    let input = elements::<f32>(&x);
    let mut y = vec![0.0; rows * width];
    by_rows(&mut y, width, |first, y| {
        let x = &input[first * width..][..y.len()];
        dispatch_on(isa, SoftCap { x, cap, y });
    });
    f32_tensor(y, [rows, width])
}

/// See [`SpeechBackend::silu_gate`](crate::SpeechBackend::silu_gate).
pub(super) fn silu_gate(isa: Isa, both: FlexTensor, order: GateOrder) -> FlexTensor {
    let [rows, double] = both.shape().dims::<2>();
    let width = double / 2;
    if !all_f32([&both]) || rows * width == 0 {
        return portable::silu_gate::<Flex>(both, order);
    }
    let both = contiguous(both);
    let input = elements::<f32>(&both);
    let mut y = vec![0.0; rows * width];
    by_rows(&mut y, width, |first, y| {
        let mut apart = [Vec::new(), Vec::new()];
        let rows = input[first * double..].chunks_exact(double);
        for (y, both) in y.chunks_exact_mut(width).zip(rows) {
            let (gate, up) = match order {
                GateOrder::UpThenGate => (&both[width..], &both[..width]),
                GateOrder::Interleaved => {
                    let pairs = both.as_chunks::<2>().0.iter();
                    let [gate, up] = &mut apart;
                    gate.clear();
                    up.clear();
                    gate.extend(pairs.clone().map(|pair| pair[0]));
                    up.extend(pairs.map(|pair| pair[1]));
                    (&gate[..], &up[..])
                }
            };
            dispatch_on(isa, SiluTimes { gate, up, y });
        }
    });
    f32_tensor(y, [rows, width])
}
