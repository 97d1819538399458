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
    /// Of slices, or of half slices where [`Tiled::HALVES`]: integers where a block is the span.
    scales: [[f32; ROWS]; 2 * SLICES],
    /// What is added for each unit of the sum of a slice's activations: integers where a block is the span.
    minima: [[f32; ROWS]; SLICES],
    /// Where [`Tiled::PAIRED`], integer scales of half slices, four signed bytes of each row.
    four_scales: [[u8; 4 * ROWS]; 4],
    /// Integer minima alike.
    four_minima: [[u8; 4 * ROWS]; 4],
    /// What is multiplied with integer scales, where a block is the span.
    d: [f32; ROWS],
    /// What is multiplied with integer minima: negative.
    minimum: [f32; ROWS],
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

/// Signed bytes as floats.
#[inline(always)]
unsafe fn integers(bytes: &[u8; ROWS]) -> __m512 {
    unsafe {
        let bytes = _mm_load_si128(bytes.as_ptr().cast());
        _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes))
    }
}

/// Fills a panel with the first `slices` slices of sixteen rows. As many bytes from `next` on are asked for.
#[inline(always)]
unsafe fn pack<F: Tiled>(rows: &Rows, next: *const u8, slices: usize, panel: *mut Panel) {
    unsafe {
        let codes = (&raw mut (*panel).codes).cast();
        let scales_to = (&raw mut (*panel).scales).cast::<f32>();
        let minima_to = (&raw mut (*panel).minima).cast::<f32>();
        let scale = |place: usize| scales_to.add(ROWS * place);
        let minimum = |place: usize| minima_to.add(ROWS * place);
        if F::VALUES == SLICE {
            let mut heads = std::mem::MaybeUninit::<Heads>::uninit();
            let heads = heads.as_mut_ptr();
            F::heads(rows, next, slices, heads);
            F::codes(rows, heads, next, slices, codes);
            for j in 0..slices {
                _mm512_store_ps(scale(j), halves(&(*heads).d[j]));
                if F::MINIMUM {
                    _mm512_store_ps(minimum(j), halves(&(*heads).minimum[j]));
                }
            }
            return;
        }
        F::codes(rows, std::ptr::null(), next, slices, codes);
        let head = F::head(rows);
        // Pairs are multiplied in the upper bytes of their words.
        let (d, low) = if F::PAIRED {
            let share = _mm512_set1_ps(1.0 / 256.0);
            (
                _mm512_mul_ps(head.d, share),
                _mm512_mul_ps(head.minimum, share),
            )
        } else {
            (head.d, head.minimum)
        };
        _mm512_store_ps((&raw mut (*panel).d).cast(), d);
        let low = _mm512_sub_ps(_mm512_setzero_ps(), low);
        _mm512_store_ps((&raw mut (*panel).minimum).cast(), low);
        for g in 0..if F::HALVES { 4 } else { 2 } {
            let above = _mm512_set1_epi8(F::SCALES_ABOVE as i8);
            let scales = _mm512_sub_epi8(head.scales[g], above);
            if F::PAIRED {
                _mm512_store_si512((&raw mut (*panel).four_scales[g]).cast(), scales);
                if F::MINIMUM {
                    let minima = (&raw mut (*panel).four_minima[g]).cast();
                    _mm512_store_si512(minima, head.minima[g]);
                }
                continue;
            }
            let scales = turn_bytes(scales);
            for i in 0..4 {
                let place = if F::ALTERNATE { 2 * i + g } else { 4 * g + i };
                _mm512_store_ps(scale(place), integers(&scales.0[i]));
            }
            if F::MINIMUM {
                let minima = turn_bytes(head.minima[g]);
                for i in 0..4 {
                    _mm512_store_ps(minimum(4 * g + i), integers(&minima.0[i]));
                }
            }
        }
    }
}

/// The scales or minima of a slice's halves as signed words of each row, 256 times too large.
#[inline(always)]
unsafe fn pair(fours: *const [[u8; 4 * ROWS]; 4], slice: usize) -> __m512i {
    unsafe {
        let fours = _mm512_load_si512((&raw const (*fours)[slice / 2]).cast());
        // Each byte behind an empty one.
        let bytes = if slice.is_multiple_of(2) {
            _mm_setr_epi8(-1, 0, -1, 1, -1, 4, -1, 5, -1, 8, -1, 9, -1, 12, -1, 13)
        } else {
            _mm_setr_epi8(-1, 2, -1, 3, -1, 6, -1, 7, -1, 10, -1, 11, -1, 14, -1, 15)
        };
        _mm512_shuffle_epi8(fours, _mm512_broadcast_i32x4(bytes))
    }
}

/// What a sum of products begins with, so that it ends as if codes were not [`Tiled::ABOVE`] too high.
#[inline(always)]
unsafe fn begin<F: Tiled>(below: i32) -> __m512i {
    unsafe {
        if F::ABOVE == 0 {
            _mm512_setzero_si512()
        } else {
            _mm512_set1_epi32(below << F::ABOVE.trailing_zeros())
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
        let place = |r: usize, m: usize| sums.add(m * CHUNK + r * ROWS);
        let short = F::VALUES == SLICE;
        let mut totals = [[_mm512_setzero_ps(); M]; R];
        if short {
            for m in 0..M {
                for r in 0..R {
                    totals[r][m] = _mm512_loadu_ps(place(r, m));
                }
            }
        }
        // With the slices' products where registers are enough.
        let at_once = R * M <= 4;
        let mut lows = [[_mm512_setzero_ps(); M]; R];
        for j in 0..slices {
            for r in 0..R {
                ask_rest::<F>(next[r], j);
            }
            if F::MINIMUM && !short && at_once {
                add_minima::<F, R, M>(panels, &x, j, &mut lows);
            }
            // The halves of a slice, or two chains for the longer sums, so that latency stays hidden.
            let mut acc = [[[_mm512_setzero_si512(); 2]; M]; R];
            for m in 0..M {
                for r in 0..R {
                    if F::HALVES {
                        acc[r][m] = [
                            begin::<F>((*x[m]).below_halves[2 * j]),
                            begin::<F>((*x[m]).below_halves[2 * j + 1]),
                        ];
                    } else {
                        acc[r][m][0] = begin::<F>((*x[m]).below[j]);
                    }
                }
            }
            for q in 0..QUADS {
                let chain = if F::HALVES { q / (QUADS / 2) } else { q % 2 };
                let mut codes = [_mm512_setzero_si512(); R];
                for r in 0..R {
                    codes[r] = _mm512_load_si512((&raw const (*panels)[r].codes[j][q]).cast());
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
            for r in 0..R {
                let scales =
                    |place: usize| _mm512_load_ps((&raw const (*panels)[r].scales[place]).cast());
                for m in 0..M {
                    let factor = _mm512_set1_ps((*x[m]).scale[j]);
                    let [first, second] = acc[r][m];
                    let total = &mut totals[r][m];
                    if F::PAIRED {
                        let both = _mm512_mask_blend_epi16(
                            0xAAAA_AAAA,
                            first,
                            _mm512_slli_epi32::<16>(second),
                        );
                        let scales = pair(&raw const (*panels)[r].four_scales, j);
                        let sum = _mm512_cvtepi32_ps(_mm512_madd_epi16(both, scales));
                        *total = _mm512_fmadd_ps(sum, factor, *total);
                    } else if F::HALVES {
                        let sum = _mm512_mul_ps(_mm512_cvtepi32_ps(first), scales(2 * j));
                        let second = _mm512_cvtepi32_ps(second);
                        let sum = _mm512_fmadd_ps(second, scales(2 * j + 1), sum);
                        *total = _mm512_fmadd_ps(sum, factor, *total);
                    } else {
                        let sum = _mm512_cvtepi32_ps(_mm512_add_epi32(first, second));
                        let sum = _mm512_mul_ps(sum, scales(j));
                        *total = _mm512_fmadd_ps(sum, factor, *total);
                    }
                }
            }
            if F::MINIMUM && short {
                add_minima::<F, R, M>(panels, &x, j, &mut totals);
            }
        }
        if F::MINIMUM && !short && !at_once {
            for j in 0..slices {
                add_minima::<F, R, M>(panels, &x, j, &mut lows);
            }
        }
        for r in 0..R {
            let panel = &raw const (*panels)[r];
            for m in 0..M {
                let mut sum = totals[r][m];
                if !short {
                    let d = _mm512_load_ps((&raw const (*panel).d).cast());
                    sum = _mm512_fmadd_ps(sum, d, _mm512_loadu_ps(place(r, m)));
                    if F::MINIMUM {
                        let minimum = _mm512_load_ps((&raw const (*panel).minimum).cast());
                        sum = _mm512_fmadd_ps(lows[r][m], minimum, sum);
                    }
                }
                _mm512_storeu_ps(place(r, m), sum);
            }
        }
    }
}

/// Adds what slice `j` has for its minima to `sums`.
#[inline(always)]
unsafe fn add_minima<F: Tiled, const R: usize, const M: usize>(
    panels: *const [Panel; PANELS],
    x: &[*const Rounded; M],
    j: usize,
    sums: &mut [[__m512; M]; R],
) {
    unsafe {
        for r in 0..R {
            let panel = &raw const (*panels)[r];
            for m in 0..M {
                let (minima, of) = if F::PAIRED {
                    let pairs = (&raw const (*x[m]).pairs[j]).cast::<i32>();
                    let minima = pair(&raw const (*panel).four_minima, j);
                    let minima = _mm512_madd_epi16(minima, _mm512_set1_epi32(pairs.read()));
                    (_mm512_cvtepi32_ps(minima), (*x[m]).scale[j])
                } else {
                    let minima = _mm512_load_ps((&raw const (*panel).minima[j]).cast());
                    (minima, (*x[m]).sum[j])
                };
                sums[r][m] = _mm512_fmadd_ps(minima, _mm512_set1_ps(of), sums[r][m]);
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
