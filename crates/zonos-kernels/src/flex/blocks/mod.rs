//! Products with weights in quantised blocks.
//!
//! Rows of activations are prepared once ([`Input`]) and meet the weight rows a chunk at a time. Rounded ones
//! meet panels of weight rows ([`tile`]): sixteen with AVX-512 VNNI, eight with AVX2. With f32 ones and AVX2
//! codes are unpacked in registers for one weight row or two ([`kernels`]). Elsewhere a chunk is decoded to f32
//! first, and rounded activations are f32 too, with the values that rounding leaves.

#[cfg(target_arch = "x86_64")]
mod formats;
#[cfg(target_arch = "x86_64")]
mod input;
#[cfg(target_arch = "x86_64")]
mod kernels;
#[cfg(target_arch = "x86_64")]
mod lanes;
#[cfg(target_arch = "x86_64")]
mod lanes_avx2;
#[cfg(target_arch = "x86_64")]
mod lanes_avx512;
#[cfg(target_arch = "x86_64")]
mod tile;
#[cfg(target_arch = "x86_64")]
mod tile_avx2;
#[cfg(target_arch = "x86_64")]
mod tile_avx512;
#[cfg(target_arch = "x86_64")]
mod tile_formats;

#[cfg(target_arch = "x86_64")]
use input::{Floats, Rounded};
use std::ops::Range;

use zonos_gguf::GgmlType;
use zonos_gguf::blocks::dequantize_row;

use super::linear::Dot;
use super::simd::{Isa, dispatch_on};
use crate::Activations;
use crate::activations::rounded;

/// Weight rows of a chunk.
pub(super) const CHUNK: usize = 32;
/// Rows of the input that [`products`] takes at most.
pub(super) const MOST: usize = 32;
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

    /// Some rows, for the kernels.
    #[cfg(target_arch = "x86_64")]
    fn weights(&self, chunk: &Range<usize>) -> kernels::Weights {
        kernels::Weights {
            start: self.bytes[chunk.start * self.row..].as_ptr(),
            row: self.row,
            count: chunk.len(),
        }
    }

    /// Some rows of the input, each as many spans as a weight row has.
    #[cfg(target_arch = "x86_64")]
    fn gather<'x, 'g, I>(
        &self,
        x: &'x [I],
        rows: &[usize],
        group: &'g mut [&'x [I]; MOST],
    ) -> &'g [&'x [I]] {
        let spans = self.inner.div_ceil(input::SPAN);
        for (slot, &row) in group.iter_mut().zip(rows) {
            *slot = &x[row * spans..][..spans];
        }
        &group[..rows.len()]
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
    matches!(isa, Isa::Avx2 | Isa::Avx512) || isa.multiplies_bytes()
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

/// Products of a chunk of weight rows (at most [`CHUNK`]) with some rows of the input (at most [`MOST`]):
/// `to [rows, chunk]`, of which each row begins [`CHUNK`] values.
pub(super) fn products(
    isa: Isa,
    matrix: Matrix<'_>,
    chunk: Range<usize>,
    input: &Input,
    rows: &[usize],
    to: &mut [[f32; CHUNK]],
) {
    assert!(chunk.len() <= CHUNK && chunk.end * matrix.row <= matrix.bytes.len());
    assert!(rows.len() <= MOST && rows.len() == to.len());
    let inner = matrix.inner;
    match input {
        Input::Plain(x) => {
            let mut weights = vec![0.0; chunk.len() * inner];
            matrix.decode(chunk, &mut weights);
            for (o, weight) in weights.chunks_exact(inner).enumerate() {
                for (&row, to) in rows.iter().zip(to.iter_mut()) {
                    let input = &x[row * inner..][..inner];
                    to[o] = dispatch_on(isa, Dot { weight, input });
                }
            }
        }
        #[cfg(target_arch = "x86_64")]
        Input::Rounded(x) => {
            let mut group: [&[Rounded]; MOST] = [&[]; MOST];
            let group = matrix.gather(x, rows, &mut group);
            let weights = matrix.weights(&chunk);
            // SAFETY: the instruction set was detected; the chunk is inside the matrix, and each row of the
            // input has the spans of a weight row.
            unsafe {
                if isa.multiplies_bytes() {
                    tile_avx512::products(matrix.ggml_type, weights, group, to);
                } else {
                    tile_avx2::products(matrix.ggml_type, weights, group, to);
                }
            }
        }
        #[cfg(target_arch = "x86_64")]
        Input::Floats(x) => {
            let mut group: [&[Floats]; MOST] = [&[]; MOST];
            let group = matrix.gather(x, rows, &mut group);
            passes(matrix.ggml_type, matrix.weights(&chunk), group, to);
        }
    }
}

/// [`products`] with rows that are not rounded, some at a time.
#[cfg(target_arch = "x86_64")]
fn passes(
    ggml_type: GgmlType,
    weights: kernels::Weights,
    x: &[&[Floats]],
    to: &mut [[f32; CHUNK]],
) {
    let mut out = [0.0; CHUNK * kernels::MOST];
    let mut done = 0;
    while done < x.len() {
        let n = kernels::pass(x.len() - done);
        let out = &mut out[..weights.count * n];
        // SAFETY: only inputs made for a processor with the instruction set come here; the weights are inside
        // their matrix, and each row of the input has the spans of a weight row.
        unsafe { kernels::floats(ggml_type, weights, &x[done..done + n], out) };
        for (o, products) in out.chunks_exact(n).enumerate() {
            for (to, &product) in to[done..].iter_mut().zip(products) {
                to[o] = product;
            }
        }
        done += n;
    }
}
