//! Panels of sixteen weight rows, with AVX-512 and its byte products (VNNI).
//!
//! # Safety
//!
//! What is `unsafe` here runs on a processor with the instruction sets of [`products`], which the `unsafe` blocks
//! rest on.

use std::arch::x86_64::*;

use zonos_gguf::GgmlType;

use super::CHUNK;
use super::formats::*;
use super::input::{Rounded, SLICE};
use super::kernels::{Weights, by_format};
use super::lanes_avx512::Sixteen;
use super::tile::{self, PANELS, Panel, QUADS, Sums, Tile, begin};
use super::tile_formats::Tiled;

impl Tile for Sixteen {
    const AT_ONCE: usize = 4;

    #[inline(always)]
    unsafe fn slice<F: Tiled, const R: usize, const M: usize>(
        panels: *const [Panel<Self>; PANELS],
        x: &[*const Rounded; M],
        j: usize,
        _: usize,
    ) -> Sums<Self, R, M> {
        unsafe {
            // The halves of a slice, or two chains for the longer sums, so that latency stays hidden.
            let mut acc = [[[_mm512_setzero_si512(); 2]; M]; R];
            for m in 0..M {
                for r in 0..R {
                    for part in 0..if F::HALVES { 2 } else { 1 } {
                        acc[r][m][part] = begin::<F, Self>(x[m], j, part);
                    }
                }
            }
            for q in 0..QUADS {
                let chain = if F::HALVES { q / (QUADS / 2) } else { q % 2 };
                let mut codes = [_mm512_setzero_si512(); R];
                for r in 0..R {
                    codes[r] = (*panels)[r].codes[j][q];
                }
                for m in 0..M {
                    let four = (*x[m]).codes.as_ptr().add(SLICE * j + 4 * q);
                    let four = _mm512_set1_epi32(four.cast::<i32>().read_unaligned());
                    for r in 0..R {
                        let acc = &mut acc[r][m][chain];
                        *acc = _mm512_dpbusd_epi32(*acc, codes[r], four);
                    }
                }
            }
            if !F::HALVES {
                for r in 0..R {
                    for m in 0..M {
                        acc[r][m][0] = _mm512_add_epi32(acc[r][m][0], acc[r][m][1]);
                    }
                }
            }
            acc
        }
    }
}

/// [`tile::chunk`] with this instruction set.
///
/// # Safety
///
/// As [`products`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn chunk<F: Tiled>(weights: Weights, x: &[&[Rounded]], out: &mut [[f32; CHUNK]]) {
    // SAFETY: the caller's contract.
    unsafe { tile::chunk::<F, Sixteen>(weights, x, out) }
}

/// Sums of some weight rows and of rows of activations, `[activations, weight rows]`.
///
/// # Safety
///
/// The processor has AVX-512 F, BW, VL and VNNI; the weights are whole readable rows of blocks of the type, and
/// each row of `x` covers them.
pub(super) unsafe fn products(
    ggml_type: GgmlType,
    weights: Weights,
    x: &[&[Rounded]],
    out: &mut [[f32; CHUNK]],
) {
    // SAFETY: the caller's contract.
    unsafe { by_format!(ggml_type, chunk(weights, x, out)) }
}
