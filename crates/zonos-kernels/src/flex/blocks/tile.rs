//! Products of weight rows in blocks with rounded activations, with AVX-512 and its byte products (VNNI).
//!
//! Sixteen weight rows lie side by side, a row a lane: their codes are unpacked and turned once into a panel
//! in the nearest cache, four neighbouring codes of every row in a vector, and each row of activations
//! passes over it. So the eight products of a slice add up in integers before they become a float, whose
//! factor is a lane's own, and no sum is ever taken across lanes. A result is the same chain of additions
//! whatever the number of rows.
//!
//! # Safety
//!
//! What is `unsafe` here runs on a processor with the instruction sets of [`products`], and reads within the
//! whole, readable blocks that its pointers are given for. The `unsafe` blocks of the bodies rest on that where
//! none says more.

use std::arch::x86_64::*;

use zonos_gguf::GgmlType;

use super::CHUNK;
use super::formats::*;
use super::input::{Rounded, SLICE, SLICES, SPAN};
use super::kernels::{Weights, by_format};
use super::tile_formats::{Heads, Rows, Tiled, ask_rest};

/// Weight rows of a panel: lanes of a vector.
const ROWS: usize = 16;
/// Panels that a value of the activations meets at once.
const PANELS: usize = 2;
const _: () = assert!(CHUNK == PANELS * ROWS);
/// Rows of activations that meet a vector of codes at once.
const GROUP: usize = 4;
/// Bytes of the longest span: eight blocks of Q8_0.
const LONGEST: usize = 272;
/// Vectors of four codes a row in a slice.
const QUADS: usize = SLICE / 4;

/// A span of sixteen weight rows, ready to be multiplied.
#[repr(C, align(64))]
struct Panel {
    /// `[slice, four codes]`: four codes of each row. They are unsigned, [`Tiled::ABOVE`] too high.
    codes: [[[u8; 4 * ROWS]; QUADS]; SLICES],
    /// Of slices, or of half slices where [`Tiled::HALVES`].
    scales: [[f32; ROWS]; 2 * SLICES],
    /// What is added for each unit of the sum of a slice's activations, or of half a slice's.
    minima: [[f32; ROWS]; 2 * SLICES],
}

/// Sixteen halves as floats.
#[inline(always)]
unsafe fn halves(bits: &[u16; ROWS]) -> __m512 {
    unsafe { _mm512_cvtph_ps(_mm256_load_si256(bits.as_ptr().cast())) }
}

/// Four bytes of each row: byte `i` of each.
#[repr(C, align(64))]
struct Turned([[u8; ROWS]; 4]);

#[inline(always)]
unsafe fn turn_bytes(words: __m512i) -> Turned {
    unsafe {
        let fours = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
        let words = _mm512_shuffle_epi8(words, _mm512_broadcast_i32x4(fours));
        let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
        let mut turned = Turned([[0; ROWS]; 4]);
        let bytes = _mm512_permutexvar_epi32(order, words);
        _mm512_store_si512((&raw mut turned.0).cast(), bytes);
        turned
    }
}

/// Integer scales as floats.
#[inline(always)]
unsafe fn integers(bytes: &[u8; ROWS], signed: bool) -> __m512 {
    unsafe {
        let bytes = _mm_load_si128(bytes.as_ptr().cast());
        _mm512_cvtepi32_ps(if signed {
            _mm512_cvtepi8_epi32(bytes)
        } else {
            _mm512_cvtepu8_epi32(bytes)
        })
    }
}

/// Writes what codes that are too high add, to be taken off.
#[inline(always)]
unsafe fn take_off<F: Tiled>(scales: __m512, to: *mut f32) {
    unsafe {
        if F::ABOVE > 0 {
            let above = _mm512_set1_ps(-(F::ABOVE as f32));
            _mm512_store_ps(to, _mm512_mul_ps(scales, above));
        }
    }
}

/// Fills a panel with the first `slices` slices of sixteen rows. As many bytes from `next` on are asked for.
#[inline(always)]
unsafe fn pack<F: Tiled>(rows: &Rows, next: *const u8, slices: usize, panel: *mut Panel) {
    unsafe {
        let codes = (&raw mut (*panel).codes).cast();
        let scale = |place: usize| (&raw mut (*panel).scales[place]).cast::<f32>();
        let minimum = |place: usize| (&raw mut (*panel).minima[place]).cast::<f32>();
        if F::VALUES == SLICE {
            let mut heads = std::mem::MaybeUninit::<Heads>::uninit();
            let heads = heads.as_mut_ptr();
            // Written a number at a time and read a vector at a time, so not just after: the codes come
            // between.
            F::heads(rows, next, slices, heads);
            F::codes(rows, heads, next, slices, codes);
            for j in 0..slices {
                let scales = halves(&(*heads).d[j]);
                _mm512_store_ps(scale(j), scales);
                if F::MINIMUM {
                    _mm512_store_ps(minimum(j), halves(&(*heads).minimum[j]));
                } else {
                    take_off::<F>(scales, minimum(j));
                }
            }
            return;
        }
        F::codes(rows, std::ptr::null(), next, slices, codes);
        let head = F::head(rows);
        let factor = _mm512_sub_ps(_mm512_setzero_ps(), head.minimum);
        for g in 0..if F::HALVES { 4 } else { 2 } {
            let scales = turn_bytes(head.scales[g]);
            let minima = turn_bytes(head.minima[g]);
            for i in 0..4 {
                let place = if F::ALTERNATE { 2 * i + g } else { 4 * g + i };
                // A half times an integer of 8 bits is exact.
                let mut scales = integers(&scales.0[i], F::SIGNED_SCALES);
                if F::SCALES_ABOVE > 0.0 {
                    scales = _mm512_sub_ps(scales, _mm512_set1_ps(F::SCALES_ABOVE));
                }
                let scales = _mm512_mul_ps(scales, head.d);
                _mm512_store_ps(scale(place), scales);
                if F::MINIMUM {
                    let minima = _mm512_mul_ps(integers(&minima.0[i], false), factor);
                    _mm512_store_ps(minimum(place), minima);
                } else {
                    take_off::<F>(scales, minimum(place));
                }
            }
        }
    }
}

/// Adds the products of `R` panels' first `slices` slices with a span of `M` rows of activations:
/// `sums [M][R, 16]`.
#[inline(always)]
unsafe fn multiply<F: Tiled, const R: usize, const M: usize>(
    panels: *const [Panel; PANELS],
    x: [*const Rounded; M],
    slices: usize,
    next: [*const u8; R],
    sums: *mut f32,
) {
    unsafe {
        let mut totals = [[_mm512_setzero_ps(); M]; R];
        for m in 0..M {
            for r in 0..R {
                totals[r][m] = _mm512_loadu_ps(sums.add(m * CHUNK + r * ROWS));
            }
        }
        for j in 0..slices {
            for r in 0..R {
                ask_rest::<F>(next[r], j);
            }
            let parts = if F::HALVES { 2 } else { 1 };
            for part in 0..parts {
                let place = parts * j + part;
                // Two chains for the longer sums, so that latency stays hidden.
                let mut acc = [[[_mm512_setzero_si512(); 2]; M]; R];
                for q in part * QUADS / 2..QUADS / (parts - part) {
                    let mut codes = [_mm512_setzero_si512(); R];
                    for r in 0..R {
                        codes[r] = _mm512_load_si512((&raw const (*panels)[r].codes[j][q]).cast());
                    }
                    for m in 0..M {
                        let four = (*x[m]).codes.as_ptr().add(SLICE * j + 4 * q);
                        let four = _mm512_set1_epi32(four.cast::<i32>().read_unaligned());
                        for r in 0..R {
                            let acc = &mut acc[r][m][if F::HALVES { 0 } else { q % 2 }];
                            *acc = _mm512_dpbusd_epi32(*acc, codes[r], four);
                        }
                    }
                }
                for r in 0..R {
                    let scales = _mm512_load_ps((&raw const (*panels)[r].scales[place]).cast());
                    for m in 0..M {
                        let scale = _mm512_mul_ps(scales, _mm512_set1_ps((*x[m]).scale[j]));
                        let mut sum = acc[r][m][0];
                        if !F::HALVES {
                            sum = _mm512_add_epi32(sum, acc[r][m][1]);
                        }
                        let sum = _mm512_cvtepi32_ps(sum);
                        totals[r][m] = _mm512_fmadd_ps(sum, scale, totals[r][m]);
                    }
                    if F::MINIMUM || F::ABOVE > 0 {
                        let minima = _mm512_load_ps((&raw const (*panels)[r].minima[place]).cast());
                        for m in 0..M {
                            let of = if F::HALVES {
                                (*x[m]).halves[place]
                            } else {
                                (*x[m]).sum[place]
                            };
                            let of = _mm512_set1_ps(of);
                            totals[r][m] = _mm512_fmadd_ps(minima, of, totals[r][m]);
                        }
                    }
                }
            }
        }
        for m in 0..M {
            for r in 0..R {
                _mm512_storeu_ps(sums.add(m * CHUNK + r * ROWS), totals[r][m]);
            }
        }
    }
}

/// [`products`] of a format.
///
/// # Safety
///
/// As there.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn chunk<F: Tiled>(weights: Weights, x: &[&[Rounded]], out: &mut [[f32; CHUNK]]) {
    let Weights { start, row, count } = weights;
    assert!(0 < count && count <= PANELS * ROWS && x.len() == out.len());
    out.fill([0.0; CHUNK]);
    // One row of activations is done with a panel so soon that a second one only spreads what is read from
    // memory, unless arithmetic takes longer.
    let together = if x.len() == 1 && !F::HALVES {
        1
    } else {
        PANELS
    };
    for first in (0..count).step_by(together * ROWS) {
        let weights = Weights {
            // SAFETY: one of the rows.
            start: unsafe { start.add(first * row) },
            row,
            count: (count - first).min(together * ROWS),
        };
        // SAFETY: the caller's contract; there is a place for each row from `first` on.
        unsafe {
            some::<F>(
                weights,
                x,
                together,
                out.as_mut_ptr().cast::<f32>().add(first),
            )
        };
    }
}

/// Adds the products of a panel or two to `out`, whose rows are [`CHUNK`] apart.
///
/// # Safety
///
/// As [`products`].
#[inline(always)]
unsafe fn some<F: Tiled>(weights: Weights, x: &[&[Rounded]], together: usize, out: *mut f32) {
    let Weights { start, row, count } = weights;
    let slices = row / F::SIZE * (F::VALUES / SLICE);
    let used = count.div_ceil(ROWS);
    let mut panels = std::mem::MaybeUninit::<[Panel; PANELS]>::uninit();
    for s in 0..slices.div_ceil(SLICES) {
        let taken = (slices - s * SLICES).min(SLICES);
        let bytes = s * SLICES * SLICE / F::VALUES * F::SIZE;
        // SAFETY: only rows that exist are read. Panels are written before they are read, as far
        // as they are read; all bits are numbers.
        unsafe {
            let panels = panels.as_mut_ptr();
            // What comes after this chunk is most likely next, and memory is fastest in order.
            let part = ROWS * F::SIZE * SPAN / F::VALUES;
            let next = start.wrapping_add(together * (ROWS * row + s * part));
            let mut next = [next, next.wrapping_add(part)];
            for p in 0..used {
                let from = start.add(p * ROWS * row + bytes);
                let present = (count - p * ROWS).min(ROWS);
                if present == ROWS {
                    pack::<F>(&Rows::new(from, row), next[p], taken, &raw mut (*panels)[p]);
                } else {
                    // Rows that are missing are zeros.
                    let mut copy = [0u8; ROWS * LONGEST];
                    let len = taken * SLICE / F::VALUES * F::SIZE;
                    for r in 0..present {
                        let to = copy.as_mut_ptr().add(r * LONGEST);
                        std::ptr::copy_nonoverlapping(from.add(r * row), to, len);
                    }
                    let rows = Rows::new(copy.as_ptr(), LONGEST);
                    pack::<F>(&rows, next[p], taken, &raw mut (*panels)[p]);
                }
            }
            let mut done = 0;
            while done < x.len() {
                let sums = out.add(done * CHUNK);
                let at = |m: usize| x[done + m].as_ptr().add(s);
                let left = x.len() - done;
                macro_rules! go {
                    ($r:literal, $($m:literal),*) => {
                        multiply::<F, $r, { [$($m),*].len() }>(
                            panels,
                            [$(at($m)),*],
                            taken,
                            std::array::from_fn(|r| next[r]),
                            sums,
                        )
                    };
                }
                match (used, left) {
                    (1, 1) => go!(1, 0),
                    (1, 2) => go!(1, 0, 1),
                    (1, 3) => go!(1, 0, 1, 2),
                    (1, _) => go!(1, 0, 1, 2, 3),
                    (_, 1) => go!(2, 0),
                    (_, 2) => go!(2, 0, 1),
                    (_, 3) => go!(2, 0, 1, 2),
                    _ => go!(2, 0, 1, 2, 3),
                }
                done += left.min(GROUP);
                // Once is enough: from here on what is asked for is near.
                next = [panels.cast(); PANELS];
            }
        }
    }
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
