//! Panels of eight weight rows, with AVX2.
//!
//! Products of bytes come as sums of two in 16 bits. As many of those are added there as 16 bits hold for the
//! format's codes, before they are widened. Codes of 8 bits are signed, and give their sign to the activations.
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
use super::lanes_avx2::Eight;
use super::tile::{self, PANELS, Panel, QUADS, Sums, Tile, begin, signed};
use super::tile_formats::Tiled;

/// How the products of a format's codes are added up.
struct Plan {
    /// Parts of a slice with scales of their own.
    parts: usize,
    /// Vectors of four codes a row in a part.
    vectors: usize,
    /// Vectors whose sums of two products 16 bits hold the sum of.
    together: usize,
    /// Vectors that a step of a loop takes.
    step: usize,
    /// Steps of a loop: as many vectors as go together, or a part's if that is a step.
    steps: usize,
}

const fn plan<F: Tiled>() -> Plan {
    let parts = if F::HALVES { 2 } else { 1 };
    let vectors = QUADS / parts;
    let largest = if F::BITS == 8 {
        128
    } else {
        (1 << F::BITS) - 1
    };
    let mut together = vectors;
    while together * 2 * 127 * largest > i16::MAX as usize {
        together /= 2;
    }
    let step = if together < 2 { together } else { 2 };
    let steps = if together > step { together } else { vectors } / step;
    Plan {
        parts,
        vectors,
        together,
        step,
        steps,
    }
}

/// Sums of two products each, of codes with four activations in each lane.
#[inline(always)]
unsafe fn pairs<F: Tiled>(codes: __m256i, four: __m256i) -> __m256i {
    unsafe {
        if signed::<F, Eight>() {
            _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(four, codes))
        } else {
            _mm256_maddubs_epi16(codes, four)
        }
    }
}

/// Sums, of `R` panels with `M` rows of activations each.
type Some<const R: usize, const M: usize> = [[__m256i; M]; R];

/// Adds sums to those there are, by lanes of a width.
#[inline(always)]
fn add<const R: usize, const M: usize>(
    sums: &mut Some<R, M>,
    more: &Some<R, M>,
    lanes: impl Fn(__m256i, __m256i) -> __m256i,
) {
    for r in 0..R {
        for m in 0..M {
            sums[r][m] = lanes(sums[r][m], more[r][m]);
        }
    }
}

/// Sums in 16 bits of the products of `n` vectors of codes with `4 n` activations.
#[inline(always)]
unsafe fn short<F: Tiled, const R: usize, const M: usize>(
    codes: [*const __m256i; R],
    x: [*const i8; M],
    n: usize,
) -> Some<R, M> {
    unsafe {
        let mut sums = [[_mm256_setzero_si256(); M]; R];
        for i in 0..n {
            for m in 0..M {
                let four = x[m].add(4 * i).cast::<i32>().read_unaligned();
                let four = _mm256_set1_epi32(four);
                for r in 0..R {
                    let pairs = pairs::<F>(*codes[r].add(i), four);
                    sums[r][m] = if i == 0 {
                        pairs
                    } else {
                        _mm256_add_epi16(sums[r][m], pairs)
                    };
                }
            }
        }
        sums
    }
}

/// [`short`] sums, in 32 bits.
#[inline(always)]
unsafe fn long<const R: usize, const M: usize>(mut sums: Some<R, M>) -> Some<R, M> {
    unsafe {
        for r in 0..R {
            for m in 0..M {
                sums[r][m] = _mm256_madd_epi16(sums[r][m], _mm256_set1_epi16(1));
            }
        }
        sums
    }
}

/// Sums in 32 bits of the products of a part's vectors of codes with as many activations. Loops take
/// [`Plan::steps`] steps, given here as what compilers see or do not see.
#[inline(always)]
unsafe fn part<F: Tiled, const R: usize, const M: usize>(
    codes: [*const __m256i; R],
    x: [*const i8; M],
    steps: usize,
) -> Some<R, M> {
    unsafe {
        let plan = const { plan::<F>() };
        let mut total = [[_mm256_setzero_si256(); M]; R];
        // Either steps are widened one by one, or they add up in 16 bits before.
        let wide = plan.together == plan.step;
        let groups = if wide {
            1
        } else {
            plan.vectors / plan.together
        };
        for g in 0..groups {
            let mut group = [[_mm256_setzero_si256(); M]; R];
            for i in 0..steps {
                let at = g * plan.together + i * plan.step;
                let (codes, x) = (codes.map(|p| p.add(at)), x.map(|p| p.add(4 * at)));
                let more = short::<F, R, M>(codes, x, plan.step);
                if wide {
                    add(&mut group, &long(more), |a, b| _mm256_add_epi32(a, b));
                } else {
                    add(&mut group, &more, |a, b| _mm256_add_epi16(a, b));
                }
            }
            if !wide {
                group = long(group);
            }
            if g == 0 {
                total = group;
            } else {
                add(&mut total, &group, |a, b| _mm256_add_epi32(a, b));
            }
        }
        total
    }
}

impl Tile for Eight {
    const AT_ONCE: usize = 2;

    #[inline(always)]
    fn steps<F: Tiled>(panels: usize) -> usize {
        let steps = const { plan::<F>().steps };
        if panels > 2 {
            // A loop whose end the compiler sees is unrolled, and wants more registers than there are.
            std::hint::black_box(steps)
        } else {
            steps
        }
    }

    #[inline(always)]
    unsafe fn slice<F: Tiled, const R: usize, const M: usize>(
        panels: *const [Panel<Self>; PANELS],
        x: &[*const Rounded; M],
        j: usize,
        steps: usize,
    ) -> Sums<Self, R, M> {
        unsafe {
            let Plan { parts, vectors, .. } = const { plan::<F>() };
            let mut all = [[[_mm256_setzero_si256(); 2]; M]; R];
            for p in 0..parts {
                let first = p * vectors;
                let mut codes = [std::ptr::null(); R];
                for r in 0..R {
                    codes[r] = (&raw const (*panels)[r].codes[j][first]).cast();
                }
                let fours = x.map(|x| (*x).codes.as_ptr().add(SLICE * j + 4 * first));
                let sums = part::<F, R, M>(codes, fours, steps);
                for r in 0..R {
                    for m in 0..M {
                        let begin = begin::<F, Self>(x[m], j, p);
                        all[r][m][p] = _mm256_add_epi32(sums[r][m], begin);
                    }
                }
            }
            all
        }
    }
}

/// [`tile::chunk`] with this instruction set.
///
/// # Safety
///
/// As [`products`].
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn chunk<F: Tiled>(weights: Weights, x: &[&[Rounded]], out: &mut [[f32; CHUNK]]) {
    // SAFETY: the caller's contract.
    unsafe { tile::chunk::<F, Eight>(weights, x, out) }
}

/// Sums of some weight rows and of rows of activations, `[activations, weight rows]`.
///
/// # Safety
///
/// The processor has AVX2, FMA and F16C; the weights are whole readable rows of blocks of the type, and each row
/// of `x` covers them.
pub(super) unsafe fn products(
    ggml_type: GgmlType,
    weights: Weights,
    x: &[&[Rounded]],
    out: &mut [[f32; CHUNK]],
) {
    // SAFETY: the caller's contract.
    unsafe { by_format!(ggml_type, chunk(weights, x, out)) }
}
