//! Products with weights in quantised blocks.
//!
//! Rows of activations are prepared once ([`Input`]) and meet the weight rows a chunk at a time. With AVX2
//! codes are unpacked in registers; elsewhere a chunk is decoded to f32 first, and rounded activations
//! are f32 too, with the values that rounding leaves.

#[cfg(target_arch = "x86_64")]
mod formats;
#[cfg(target_arch = "x86_64")]
mod input;
#[cfg(target_arch = "x86_64")]
mod kernels;

#[cfg(target_arch = "x86_64")]
use input::{Floats, Rounded};
use std::ops::Range;

use zonos_gguf::GgmlType;
use zonos_gguf::blocks::dequantize_row;

use super::simd::Isa;
use crate::Activations;
use crate::activations::rounded;

/// Weight rows of a chunk.
pub(super) const CHUNK: usize = 32;
#[cfg(target_arch = "x86_64")]
const _: () = assert!(CHUNK == kernels::CHUNK);

/// Weight rows in blocks: `[out, bytes of a row]`.
#[derive(Clone, Copy)]
pub(super) struct Matrix<'a> {
    pub(super) ggml_type: GgmlType,
    bytes: &'a [u8],
    row: usize,
    inner: usize,
}

impl<'a> Matrix<'a> {
    /// `bytes` are whole rows of `row` bytes.
    pub(super) fn new(ggml_type: GgmlType, bytes: &'a [u8], row: usize) -> Self {
        let inner = row / ggml_type.block_bytes() * ggml_type.block_values();
        assert!(
            row > 0 && bytes.len().is_multiple_of(row),
            "whole rows of weights"
        );
        Self {
            ggml_type,
            bytes,
            row,
            inner,
        }
    }

    /// Values in a row.
    pub(super) fn inner(&self) -> usize {
        self.inner
    }

    /// Decodes some rows.
    pub(super) fn decode(&self, rows: Range<usize>, to: &mut [f32]) {
        let bytes = &self.bytes[rows.start * self.row..rows.end * self.row];
        dequantize_row(self.ggml_type, bytes, to).expect("whole rows");
    }
}

/// Rows of activations, prepared.
pub(super) enum Input {
    /// As they are, or as rounding leaves them: `[rows, inner]`.
    Plain(Vec<f32>),
    /// For the kernels: `[rows, spans]`.
    #[cfg(target_arch = "x86_64")]
    Rounded(Vec<Rounded>),
    /// For the kernels, not rounded: `[rows, spans]`.
    #[cfg(target_arch = "x86_64")]
    Floats(Vec<Floats>),
}

/// Whether the kernels with AVX2 run.
#[cfg(target_arch = "x86_64")]
fn fast(isa: Isa) -> bool {
    matches!(isa, Isa::Avx2 | Isa::Avx512)
}

impl Input {
    /// `x [rows, inner]`, `inner` above 0.
    pub(super) fn new(isa: Isa, x: &[f32], inner: usize, activations: Activations) -> Self {
        let _ = isa;
        #[cfg(target_arch = "x86_64")]
        if fast(isa) {
            let spans = inner.div_ceil(input::SPAN);
            let rows = x.len() / inner;
            return match activations {
                Activations::EightBit => {
                    let mut all = Vec::with_capacity(rows * spans);
                    // SAFETY: all spans are written just below; any bits are a valid span.
                    #[allow(clippy::uninit_vec)]
                    unsafe {
                        all.set_len(rows * spans);
                    }
                    for (x, spans) in x.chunks_exact(inner).zip(all.chunks_exact_mut(spans)) {
                        // SAFETY: `fast` saw the instruction set.
                        unsafe { kernels::round(x, spans) };
                    }
                    Self::Rounded(all)
                }
                Activations::Exact => {
                    let mut all = Vec::with_capacity(rows * spans);
                    // SAFETY: as above.
                    #[allow(clippy::uninit_vec)]
                    unsafe {
                        all.set_len(rows * spans);
                    }
                    for (x, spans) in x.chunks_exact(inner).zip(all.chunks_exact_mut(spans)) {
                        // SAFETY: as above.
                        unsafe { kernels::spread(x, spans) };
                    }
                    Self::Floats(all)
                }
            };
        }
        let mut plain = x.to_vec();
        if activations == Activations::EightBit {
            plain.chunks_exact_mut(inner).for_each(rounded);
        }
        Self::Plain(plain)
    }

    /// The values, where they are plain.
    pub(super) fn plain(&self) -> Option<&[f32]> {
        match self {
            Self::Plain(x) => Some(x),
            #[cfg(target_arch = "x86_64")]
            _ => None,
        }
    }
}

/// Products of a chunk of weight rows (at most [`CHUNK`]) with some rows of the input: `give(weight row
/// within the chunk, index into rows, product)`.
pub(super) fn products(
    matrix: Matrix<'_>,
    chunk: Range<usize>,
    input: &Input,
    rows: &[usize],
    dot: impl Fn(&[f32], &[f32]) -> f32,
    mut give: impl FnMut(usize, usize, f32),
) {
    assert!(chunk.len() <= CHUNK && chunk.end * matrix.row <= matrix.bytes.len());
    let inner = matrix.inner;
    match input {
        Input::Plain(x) => {
            let mut weights = vec![0.0; chunk.len() * inner];
            matrix.decode(chunk, &mut weights);
            for (o, w) in weights.chunks_exact(inner).enumerate() {
                for (i, &row) in rows.iter().enumerate() {
                    give(o, i, dot(w, &x[row * inner..][..inner]));
                }
            }
        }
        #[cfg(target_arch = "x86_64")]
        Input::Rounded(x) => {
            passes(
                matrix,
                chunk,
                x,
                rows,
                kernels::MOST_ROUNDED,
                give,
                kernels::rounded,
            );
        }
        #[cfg(target_arch = "x86_64")]
        Input::Floats(x) => {
            passes(
                matrix,
                chunk,
                x,
                rows,
                kernels::MOST_FLOATS,
                give,
                kernels::floats,
            );
        }
    }
}

/// [`products`], some rows of the input at a time.
#[cfg(target_arch = "x86_64")]
fn passes<I>(
    matrix: Matrix<'_>,
    chunk: Range<usize>,
    x: &[I],
    rows: &[usize],
    most: usize,
    mut give: impl FnMut(usize, usize, f32),
    kernel: unsafe fn(GgmlType, kernels::Weights, &[&[I]], &mut [f32]),
) {
    let spans = matrix.inner.div_ceil(input::SPAN);
    let weights = kernels::Weights {
        start: matrix.bytes[chunk.start * matrix.row..].as_ptr(),
        row: matrix.row,
        count: chunk.len(),
    };
    let mut out = [0.0; CHUNK * kernels::MOST_ROUNDED];
    let mut done = 0;
    while done < rows.len() {
        let n = kernels::pass(rows.len() - done, most);
        let mut group: [&[I]; kernels::MOST_ROUNDED] = [&[]; kernels::MOST_ROUNDED];
        for (slot, &row) in group.iter_mut().zip(&rows[done..done + n]) {
            *slot = &x[row * spans..][..spans];
        }
        let out = &mut out[..chunk.len() * n];
        // SAFETY: only inputs made for a processor with the instruction set come here; the chunk is inside
        // the matrix, and each row of the input has the spans of a weight row.
        unsafe { kernel(matrix.ggml_type, weights, &group[..n], out) };
        for (o, products) in out.chunks_exact(n).enumerate() {
            for (i, &product) in products.iter().enumerate() {
                give(o, done + i, product);
            }
        }
        done += n;
    }
}
