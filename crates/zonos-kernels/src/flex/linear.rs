//! Products of few rows with a large weight matrix, and of many rows through GEMM panels.
//!
//! A decode step multiplies one row (or a small batch) with every active weight, so it is bound by
//! reading the weights: each is read once, in its stored type, widened in registers. Sums run in one
//! fixed order whatever the batch, so a batch gives the bits that its rows give alone.

use burn::backend::TensorMetadata;
use burn_flex::FlexTensor;
use rayon::prelude::*;

use super::simd::{Isa, Kernel, Simd, dispatch_on};
use super::weights::{Element, contiguous, elements, f32_tensor, with_elements};

/// Input rows that share one pass over a weight row.
const ROWS: usize = 4;
/// Independent sums along a weight row, to hide the latency of the multiply-add.
const SUMS: usize = 4;
/// Rows from which GEMM over widened panels is faster than a pass a group of [`ROWS`].
pub(super) const GEMM_ROWS: usize = 16;
/// Weight elements below which one thread does it all: waking another costs more.
pub(super) const PARALLEL: usize = 32 * 1024;
/// Weight rows a work item.
const CHUNK: usize = 64;
/// Weight rows that are widened at a time for GEMM.
const PANEL: usize = 128;

/// Dot products of `N` input rows with one weight row of `len` elements.
pub(super) struct Dots<'a, E, const N: usize> {
    pub(super) weight: &'a [E],
    pub(super) inputs: [&'a [f32]; N],
}

impl<E: Element, const N: usize> Kernel for Dots<'_, E, N> {
    type Output = [f32; N];

    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> [f32; N] {
        let len = self.weight.len();
        debug_assert!(self.inputs.iter().all(|x| x.len() == len));
        let w = self.weight.as_ptr();
        // SAFETY: every load starts at most `LANES` elements before `len`, in the weight row and in
        // the input rows, which have the same length.
        unsafe {
            let mut sums = [[S::zero(); SUMS]; N];
            let mut at = 0;
            while at + SUMS * S::LANES <= len {
                for s in 0..SUMS {
                    let offset = at + s * S::LANES;
                    let wide = E::load::<S>(w.add(offset));
                    for (n, x) in self.inputs.iter().enumerate() {
                        sums[n][s] = S::fma(wide, S::load(x.as_ptr().add(offset)), sums[n][s]);
                    }
                }
                at += SUMS * S::LANES;
            }
            while at + S::LANES <= len {
                let wide = E::load::<S>(w.add(at));
                for (n, x) in self.inputs.iter().enumerate() {
                    sums[n][0] = S::fma(wide, S::load(x.as_ptr().add(at)), sums[n][0]);
                }
                at += S::LANES;
            }
            let mut result = [0.0; N];
            for n in 0..N {
                let [a, b, c, d] = sums[n];
                result[n] = S::sum(S::add(S::add(a, b), S::add(c, d)));
                for i in at..len {
                    result[n] = S::fma1(self.weight[i].widen(), self.inputs[n][i], result[n]);
                }
            }
            result
        }
    }
}

/// Dot products of the rows `inputs` (at most [`ROWS`]) with consecutive weight rows.
struct DotRows<'a, E> {
    /// `[rows, inner]`
    weight: &'a [E],
    inputs: &'a [&'a [f32]],
    /// `[weight rows, inputs]`
    out: &'a mut [f32],
}

impl<E: Element> Kernel for DotRows<'_, E> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        #[inline(always)]
        unsafe fn rows<S: Simd, E: Element, const N: usize>(
            weight: &[E],
            inputs: [&[f32]; N],
            out: &mut [f32],
        ) {
            let inner = inputs[0].len();
            for (row, y) in weight.chunks_exact(inner).zip(out.chunks_exact_mut(N)) {
                // SAFETY: the caller dispatched to a processor with `S`.
                let dots = unsafe {
                    Dots {
                        weight: row,
                        inputs,
                    }
                    .run::<S>()
                };
                y.copy_from_slice(&dots);
            }
        }
        let x = self.inputs;
        // SAFETY: the caller dispatched to a processor with `S`.
        unsafe {
            match x.len() {
                1 => rows::<S, E, 1>(self.weight, [x[0]], self.out),
                2 => rows::<S, E, 2>(self.weight, [x[0], x[1]], self.out),
                3 => rows::<S, E, 3>(self.weight, [x[0], x[1], x[2]], self.out),
                4 => rows::<S, E, 4>(self.weight, [x[0], x[1], x[2], x[3]], self.out),
                n => unreachable!("groups hold 1 to {ROWS} rows, not {n}"),
            }
        }
    }
}

/// A pointer that work items share; each writes its own elements.
#[derive(Clone, Copy)]
pub(super) struct Shared(*mut f32, usize);
// SAFETY: work items write disjoint elements of a buffer that outlives them.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    /// The buffer must outlive what is written through this.
    pub(super) fn new(buffer: &mut [f32]) -> Self {
        Self(buffer.as_mut_ptr(), buffer.len())
    }

    /// # Safety
    ///
    /// The buffer lives, and no other work item writes or reads the element.
    pub(super) unsafe fn write(&self, index: usize, value: f32) {
        assert!(index < self.1);
        // SAFETY: in bounds by the assertion, and the caller's contract.
        unsafe { *self.0.add(index) = value }
    }
}

/// One weight matrix `[out, inner]` for some rows of the input.
struct Task<'a, E> {
    weight: &'a [E],
    rows: Vec<usize>,
}

/// `y[i] = W x[i]` for every task's rows: `x [n, inner]`, `y [n, out]`, zeroed.
fn few_rows<E: Element>(
    isa: Isa,
    tasks: &[Task<'_, E>],
    x: &[f32],
    y: &mut [f32],
    inner: usize,
    out: usize,
) {
    let target = Shared::new(y);
    // (task, group of its rows, first weight row)
    let items: Vec<(usize, usize, usize)> = tasks
        .iter()
        .enumerate()
        .flat_map(|(t, task)| {
            let groups = task.rows.len().div_ceil(ROWS);
            (0..out)
                .step_by(CHUNK)
                .flat_map(move |first| (0..groups).map(move |g| (t, g, first)))
        })
        .collect();
    let run = |&(t, g, first): &(usize, usize, usize)| {
        let task = &tasks[t];
        let group = &task.rows[g * ROWS..task.rows.len().min((g + 1) * ROWS)];
        let last = out.min(first + CHUNK);
        let mut inputs: [&[f32]; ROWS] = [&[]; ROWS];
        for (slot, &row) in inputs.iter_mut().zip(group) {
            *slot = &x[row * inner..(row + 1) * inner];
        }
        let mut dots = [0.0; ROWS * CHUNK];
        let dots = &mut dots[..group.len() * (last - first)];
        dispatch_on(
            isa,
            DotRows {
                weight: &task.weight[first * inner..last * inner],
                inputs: &inputs[..group.len()],
                out: dots,
            },
        );
        for (o, dots) in (first..last).zip(dots.chunks_exact(group.len())) {
            for (&row, &dot) in group.iter().zip(dots) {
                // SAFETY: a row belongs to one task, and an output element of it to one chunk.
                unsafe { target.write(row * out + o, dot) };
            }
        }
    };
    if tasks.len() * inner * out < PARALLEL {
        items.iter().for_each(run);
    } else {
        items.par_iter().for_each(run);
    }
}

/// `y = x W^T` by GEMM over panels of widened weight rows.
fn many_rows<E: Element>(weight: &[E], x: &[f32], y: &mut [f32], inner: usize, out: usize) {
    by_panels(x, y, inner, out, |rows, panel| {
        let weights = &weight[rows.start * inner..rows.end * inner];
        for (to, w) in panel.iter_mut().zip(weights) {
            *to = w.widen();
        }
    });
}

/// `y [n, out] = x [n, inner] W^T` by GEMM over panels of weight rows, which `widen` writes as f32.
pub(super) fn by_panels(
    x: &[f32],
    y: &mut [f32],
    inner: usize,
    out: usize,
    widen: impl Fn(std::ops::Range<usize>, &mut [f32]) + Sync,
) {
    let n = x.len() / inner;
    assert!(x.len() == n * inner && y.len() == n * out);
    let target = Shared::new(y);
    let panels: Vec<usize> = (0..out).step_by(PANEL).collect();
    panels.into_par_iter().for_each(|first| {
        // The closure must capture the wrapper, which is `Sync`, and not its pointer.
        let target = &target;
        let last = out.min(first + PANEL);
        let mut panel = vec![0.0; (last - first) * inner];
        widen(first..last, &mut panel);
        // SAFETY: `panel` is [last - first, inner], `x` is [n, inner] and `y` is [n, out], all
        // row-major; this item writes columns first..last of `y` and no other item does.
        unsafe {
            gemm::gemm(
                n,
                last - first,
                inner,
                target.0.add(first),
                1,
                out as isize,
                false,
                x.as_ptr(),
                1,
                inner as isize,
                panel.as_ptr(),
                inner as isize,
                1,
                0.0,
                1.0,
                false,
                false,
                false,
                gemm::Parallelism::None,
            );
        }
    });
}

/// See [`SpeechBackend::packed_linear`](crate::SpeechBackend::packed_linear).
pub(super) fn linear(isa: Isa, x: FlexTensor, weight: FlexTensor) -> FlexTensor {
    let (x, weight) = (contiguous(x), contiguous(weight));
    let [out, inner] = weight.shape().dims::<2>();
    let n = x.shape()[0];
    assert_eq!(x.shape()[1], inner, "linear: input width and weight differ");
    let input = elements::<f32>(&x);
    let mut y = vec![0.0; n * out];
    if y.is_empty() || inner == 0 {
        return f32_tensor(y, [n, out]);
    }
    with_elements!(weight, |w| if n < GEMM_ROWS {
        let task = Task {
            weight: w,
            rows: (0..n).collect(),
        };
        few_rows(isa, &[task], input, &mut y, inner, out);
    } else {
        many_rows(w, input, &mut y, inner, out);
    });
    f32_tensor(y, [n, out])
}

/// See [`SpeechBackend::expert_linear`](crate::SpeechBackend::expert_linear).
pub(super) fn expert_linear(
    isa: Isa,
    x: FlexTensor,
    weight: FlexTensor,
    expert: FlexTensor,
) -> FlexTensor {
    let (x, weight) = (contiguous(x), contiguous(weight));
    let [experts, out, inner] = weight.shape().dims::<3>();
    let n = x.shape()[0];
    assert_eq!(
        x.shape()[1],
        inner,
        "expert_linear: input width and weight differ"
    );
    let input = elements::<f32>(&x);
    let mut y = vec![0.0; n * out];
    if y.is_empty() || inner == 0 {
        return f32_tensor(y, [n, out]);
    }
    let chosen = expert.into_data().convert::<i64>();
    let chosen = chosen.as_slice::<i64>().expect("converted to i64");
    let groups = crate::portable::group_by_expert(chosen, experts);
    with_elements!(weight, |w| {
        let matrix = |e: usize| &w[e * out * inner..(e + 1) * out * inner];
        let mut few = Vec::new();
        for (e, rows) in groups {
            let rows: Vec<usize> = rows.into_iter().map(|r| r as usize).collect();
            if rows.len() < GEMM_ROWS {
                few.push(Task {
                    weight: matrix(e),
                    rows,
                });
                continue;
            }
            let gathered: Vec<f32> = rows
                .iter()
                .flat_map(|&r| &input[r * inner..(r + 1) * inner])
                .copied()
                .collect();
            let mut part = vec![0.0; rows.len() * out];
            many_rows(matrix(e), &gathered, &mut part, inner, out);
            for (&row, part) in rows.iter().zip(part.chunks_exact(out)) {
                y[row * out..(row + 1) * out].copy_from_slice(part);
            }
        }
        few_rows(isa, &few, input, &mut y, inner, out);
    });
    f32_tensor(y, [n, out])
}
