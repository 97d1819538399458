//! Products of few rows with a large weight matrix; many rows go the way of dense layers.
//!
//! A decode step multiplies one row (or a small batch) with every active weight, so it is bound by
//! reading the weights: each is read once, in its stored type, widened in registers. Sums run in one
//! fixed order whatever the batch, so a batch gives the bits that its rows give alone.

use burn::backend::TensorMetadata;
use burn_flex::FlexTensor;
use rayon::prelude::*;

use super::dense::{End, product};
use super::several_rows::{Batch, MANY, Several, WEIGHTS};
use super::simd::{Isa, Kernel, Simd, ask, ask_page, dispatch_on};
use super::weights::{Element, contiguous, elements, f32_tensor, with_elements};

/// Rows that are multiplied as they are; more are laid out first, see [`Batch`].
const FEW: usize = 4;
/// Weight elements below which one thread does it all: waking another costs more.
pub(super) const PARALLEL: usize = 32 * 1024;
/// Bytes ahead of one weight row's that are asked for.
const AHEAD: usize = 4096;
/// Columns of one row within which a page is asked for.
const PAGE: usize = 1024;
/// Weight rows a work item: whole groups of [`Several`], whose rest would be slower.
const CHUNK: usize = 48;
const _: () = assert!(CHUNK.is_multiple_of(WEIGHTS));
/// Weight rows in blocks that are decoded at a time for GEMM.
const PANEL: usize = 128;

/// Dot products of `W` weight rows with `N` input rows, all of `len` elements. Each is one chain of
/// multiply-adds a lane, whatever `W` and `N`; those of other rows hide its latency.
///
/// If `ASK`, as many bytes as are read are asked for ahead of them and in their order: several rows at a time are
/// not how memory is fastest, and one row's end is where processors stop looking ahead.
///
/// # Safety
///
/// The instruction set is `S`'s, and all rows are readable over `len` elements.
#[inline(always)]
unsafe fn dots<S: Simd, E: Element, const W: usize, const N: usize, const ASK: bool>(
    weights: [*const E; W],
    inputs: [*const f32; N],
    len: usize,
) -> [[f32; N]; W] {
    // SAFETY: every load starts at least `LANES` elements before `len`, or takes one element before it.
    unsafe {
        let mut sums = [[S::zero(); N]; W];
        let mut at = 0;
        while at + S::LANES <= len {
            if ASK {
                let step = W * S::LANES * size_of::<E>();
                let ahead = if W == 1 { AHEAD / size_of::<E>() } else { len };
                let next = weights[W - 1].wrapping_add(ahead).cast::<u8>();
                let next = next.wrapping_add(at / S::LANES * step);
                if at % (PAGE / W) == 0 {
                    ask_page(next);
                }
                for line in 0..step.div_ceil(64) {
                    ask(next.wrapping_add(64 * line));
                }
            }
            let mut wide = [S::zero(); W];
            for w in 0..W {
                wide[w] = E::load::<S>(weights[w].add(at));
            }
            for n in 0..N {
                let x = S::load(inputs[n].add(at));
                for w in 0..W {
                    sums[w][n] = S::fma(wide[w], x, sums[w][n]);
                }
            }
            at += S::LANES;
        }
        let mut result = [[0.0; N]; W];
        for w in 0..W {
            for n in 0..N {
                result[w][n] = S::sum(sums[w][n]);
                for i in at..len {
                    let (w_i, x_i) = ((*weights[w].add(i)).widen(), *inputs[n].add(i));
                    result[w][n] = S::fma1(w_i, x_i, result[w][n]);
                }
            }
        }
        result
    }
}

/// The dot product of an input row with a weight row.
pub(super) struct Dot<'a, E> {
    pub(super) weight: &'a [E],
    pub(super) input: &'a [f32],
}

impl<E: Element> Kernel for Dot<'_, E> {
    type Output = f32;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> f32 {
        let len = self.weight.len();
        assert_eq!(self.input.len(), len);
        let (w, x) = (self.weight.as_ptr(), self.input.as_ptr());
        // SAFETY: the caller dispatched to a processor with `S`; the rows are as long as just seen.
        let [[dot]] = unsafe { dots::<S, E, 1, 1, false>([w], [x], len) };
        dot
    }
}

/// Dot products of input rows with consecutive weight rows.
struct DotRows<'a, E> {
    /// `[weight rows, inner]`
    weight: &'a [E],
    inputs: &'a [&'a [f32]],
    /// `[weight rows, inputs]`
    out: &'a mut [f32],
}

impl<E: Element> Kernel for DotRows<'_, E> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(mut self) {
        let inner = self.inputs[0].len();
        let count = self.weight.len() / inner;
        assert!(self.inputs.iter().all(|x| x.len() == inner));
        assert!(self.weight.len() == count * inner && self.out.len() == count * self.inputs.len());
        // As many weight rows as the registers hold sums for; one at a time where reading them is all that
        // takes time, since memory is fastest in order.
        let group = match self.inputs.len() {
            1 => 1,
            _ if S::LANES == 16 => 4,
            _ => 2,
        };
        let mut first = 0;
        while first < count {
            // SAFETY: the caller dispatched to a processor with `S`; the rows are inside the weights.
            unsafe {
                if group == 1 || count - first < group {
                    self.group::<S, 1>(first);
                    first += 1;
                } else if S::LANES == 16 {
                    self.group::<S, 4>(first);
                    first += 4;
                } else {
                    self.group::<S, 2>(first);
                    first += 2;
                }
            }
        }
    }
}

impl<E: Element> DotRows<'_, E> {
    /// `W` weight rows from `first` on with all input rows.
    ///
    /// # Safety
    ///
    /// The instruction set is `S`'s, and there are `W` rows.
    #[inline(always)]
    unsafe fn group<S: Simd, const W: usize>(&mut self, first: usize) {
        // SAFETY: the caller's contract, and rows of `inner` elements.
        unsafe {
            match *self.inputs {
                [a] => self.some::<S, W, 1>(first, [a]),
                [a, b] => self.some::<S, W, 2>(first, [a, b]),
                [a, b, c] => self.some::<S, W, 3>(first, [a, b, c]),
                [a, b, c, d] => self.some::<S, W, 4>(first, [a, b, c, d]),
                _ => unreachable!("1 to {FEW} rows, not {}", self.inputs.len()),
            }
        }
    }

    /// # Safety
    ///
    /// The instruction set is `S`'s, there are `W` weight rows from `first` on, and `x` are the input rows.
    #[inline(always)]
    unsafe fn some<S: Simd, const W: usize, const N: usize>(
        &mut self,
        first: usize,
        x: [&[f32]; N],
    ) {
        let inner = x[0].len();
        let mut rows = [self.weight.as_ptr(); W];
        for w in 0..W {
            rows[w] = self.weight[(first + w) * inner..].as_ptr();
        }
        let mut inputs = [x[0].as_ptr(); N];
        for n in 0..N {
            inputs[n] = x[n].as_ptr();
        }
        // SAFETY: the caller's contract.
        let dots = unsafe { dots::<S, E, W, N, true>(rows, inputs, inner) };
        for w in 0..W {
            self.out[(first + w) * N..][..N].copy_from_slice(&dots[w]);
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
    /// The buffer lives, and no other work item writes or reads the elements.
    pub(super) unsafe fn write(&self, index: usize, values: &[f32]) {
        assert!(index + values.len() <= self.1);
        // SAFETY: in bounds by the assertion, and the caller's contract.
        unsafe { std::ptr::copy_nonoverlapping(values.as_ptr(), self.0.add(index), values.len()) }
    }
}

/// One weight matrix `[out, inner]` for some rows of the input, less than [`MANY`].
struct Task<'a, E> {
    weight: &'a [E],
    rows: &'a [usize],
    /// The rows laid out, where they are more than [`FEW`].
    batch: Option<&'a Batch>,
    /// `[n, out]`
    y: &'a Shared,
}

/// `rows` of `x [_, inner]` as [`Task`] wants them.
fn laid_out(rows: &[usize], x: &[f32], inner: usize) -> Option<Batch> {
    (rows.len() > FEW).then(|| Batch::new(x, rows, inner))
}

/// `y[i] = W x[i]` for every task's rows: `x [n, inner]`, `y [n, out]`.
fn some_rows<E: Element>(isa: Isa, tasks: &[Task<'_, E>], x: &[f32], inner: usize) {
    // (task, first weight row)
    let items: Vec<(usize, usize)> = (0..tasks.len())
        .flat_map(|t| {
            let out = tasks[t].weight.len() / inner;
            (0..out).step_by(CHUNK).map(move |first| (t, first))
        })
        .collect();
    let run = |&(t, first): &(usize, usize)| {
        let task = &tasks[t];
        let out = task.weight.len() / inner;
        let last = out.min(first + CHUNK);
        let weight = &task.weight[first * inner..last * inner];
        let count = task.rows.len();
        let mut dots = [0.0; MANY * CHUNK];
        let dots = &mut dots[..count * (last - first)];
        if let Some(batch) = task.batch {
            let out = &mut *dots;
            dispatch_on(isa, Several { weight, batch, out });
        } else {
            let mut inputs: [&[f32]; FEW] = [&[]; FEW];
            for (slot, &row) in inputs.iter_mut().zip(task.rows) {
                *slot = &x[row * inner..(row + 1) * inner];
            }
            let (inputs, out) = (&inputs[..count], &mut *dots);
            dispatch_on(
                isa,
                DotRows {
                    weight,
                    inputs,
                    out,
                },
            );
        }
        let mut part = [0.0; CHUNK];
        let part = &mut part[..last - first];
        for (i, &row) in task.rows.iter().enumerate() {
            for (part, dots) in part.iter_mut().zip(dots.chunks_exact(count)) {
                *part = dots[i];
            }
            // SAFETY: a row belongs to one task, and an output of it to one chunk.
            unsafe { task.y.write(row * out + first, part) };
        }
    };
    if tasks.iter().map(|task| task.weight.len()).sum::<usize>() < PARALLEL {
        items.iter().for_each(run);
    } else {
        items.par_iter().for_each(run);
    }
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

/// `x [n, inner] W^T`, [`MANY`] rows and more.
fn many_rows<E: Element>(isa: Isa, x: &[f32], weight: &[E], inner: usize) -> Vec<f32> {
    #[cfg(target_arch = "x86_64")]
    if isa.rounds() && inner.is_multiple_of(2) && E::IS_BF16 {
        // SAFETY: the instruction set was detected.
        return unsafe { super::dense_bf16::product(x, bytemuck::cast_slice(weight), inner) };
    }
    product(isa, x, weight, inner, End::default())
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
    with_elements!(weight, |w| if n < MANY {
        let rows: Vec<usize> = (0..n).collect();
        let (batch, y) = (laid_out(&rows, input, inner), Shared::new(&mut y));
        let task = Task {
            weight: w,
            rows: &rows,
            batch: batch.as_ref(),
            y: &y,
        };
        some_rows(isa, &[task], input, inner);
    } else {
        y = many_rows(isa, input, w, inner);
    });
    f32_tensor(y, [n, out])
}

/// See [`SpeechBackend::joint_linear`](crate::SpeechBackend::joint_linear).
pub(super) fn joint_linear(isa: Isa, x: FlexTensor, weights: [FlexTensor; 3]) -> [FlexTensor; 3] {
    let [n, inner] = x.shape().dims::<2>();
    let dtype = weights[0].dtype();
    let alike = weights.iter().all(|w| w.dtype() == dtype);
    if !alike || n >= MANY || n * inner == 0 {
        return weights.map(|weight| linear(isa, x.clone(), weight));
    }
    let x = contiguous(x);
    let input = elements::<f32>(&x);
    let weights = weights.map(contiguous);
    let outs = weights.each_ref().map(|weight| {
        let [out, width] = weight.shape().dims::<2>();
        assert_eq!(width, inner, "joint_linear: input width and weight differ");
        out
    });
    let mut y = outs.map(|out| vec![0.0; n * out]);
    let targets = y.each_mut().map(|y| Shared::new(y));
    let rows: Vec<usize> = (0..n).collect();
    let batch = laid_out(&rows, input, inner);
    let [first, second, third] = &weights;
    with_elements!(*first, |first| {
        let weights = [first, same_as(first, second), same_as(first, third)];
        let tasks: Vec<_> = weights
            .iter()
            .zip(&targets)
            .map(|(weight, y)| Task {
                weight,
                rows: &rows,
                batch: batch.as_ref(),
                y,
            })
            .collect();
        some_rows(isa, &tasks, input, inner);
    });
    let mut outs = outs.into_iter();
    y.map(|y| f32_tensor(y, [n, outs.next().expect("as many as weights")]))
}

/// The elements of `other`, which has the type of `first`.
fn same_as<'a, E: Element + burn::tensor::Element>(_first: &[E], other: &'a FlexTensor) -> &'a [E] {
    elements(other)
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
            if rows.len() < MANY {
                let batch = laid_out(&rows, input, inner);
                few.push((matrix(e), rows, batch));
                continue;
            }
            let gathered: Vec<f32> = rows
                .iter()
                .flat_map(|&r| &input[r * inner..(r + 1) * inner])
                .copied()
                .collect();
            let part = many_rows(isa, &gathered, matrix(e), inner);
            for (&row, part) in rows.iter().zip(part.chunks_exact(out)) {
                y[row * out..(row + 1) * out].copy_from_slice(part);
            }
        }
        let y = Shared::new(&mut y);
        let tasks: Vec<_> = few
            .iter()
            .map(|(weight, rows, batch)| Task {
                weight,
                rows,
                batch: batch.as_ref(),
                y: &y,
            })
            .collect();
        some_rows(isa, &tasks, input, inner);
    });
    f32_tensor(y, [n, out])
}
