//! Products of weight rows in blocks with rounded activations, by panels.
//!
//! Eight or sixteen weight rows lie side by side, a row a lane ([`Lanes`]): their codes are unpacked and turned
//! once into a panel in the nearest cache, four neighbouring codes of every row in a vector, and each row of
//! activations passes over it ([`multiply`]). So the eight products of a slice add up in integers before
//! they become a float, whose factor is a lane's own, and no sum is ever taken across lanes. A result is the
//! same chain of additions whatever the number of rows.
//!
//! # Safety
//!
//! What is `unsafe` here runs on a processor with the instruction set that [`Lanes`] stands for, and reads
//! within the whole, readable blocks that its pointers are given for. The `unsafe` blocks of the bodies rest on
//! that where none says more.

use std::arch::x86_64::_mm_setr_epi8;

use super::CHUNK;
use super::input::{Rounded, SLICE, SLICES, SPAN};
use super::kernels::Weights;
use super::lanes::{Lanes, Rows, WIDEST};
use super::tile_formats::{Heads, Slice, Tiled, ask_rest};

/// Panels that a value of the activations meets at once.
pub(super) const PANELS: usize = 2;
const _: () = assert!(CHUNK.is_multiple_of(PANELS * WIDEST));
/// Rows of activations that meet a vector of codes at once.
const GROUP: usize = 4;
/// Bytes of the longest span: eight blocks of Q8_0.
const LONGEST: usize = 272;
/// Vectors of four codes a row in a slice.
pub(super) const QUADS: usize = SLICE / 4;

/// A span of weight rows, ready to be multiplied.
#[repr(C, align(64))]
pub(super) struct Panel<L: Lanes> {
    /// Four codes of each row in a vector, signed or [`above`] too high.
    pub(super) codes: [Slice<L>; SLICES],
    /// Of slices, or of half slices where [`Tiled::HALVES`]: integers where a block is the span.
    scales: [L::Floats; 2 * SLICES],
    /// What is added for each unit of the sum of a slice's activations: integers where a block is the span.
    minima: [L::Floats; SLICES],
    /// Where [`Tiled::PAIRED`], integer scales of half slices, four signed bytes of each row.
    four_scales: [L::Ints; 4],
    /// Integer minima alike.
    four_minima: [L::Ints; 4],
    /// What is multiplied with integer scales, where a block is the span.
    d: L::Floats,
    /// What is multiplied with integer minima: negative.
    minimum: L::Floats,
}

/// Sums of products in integers, of the halves of a slice where [`Tiled::HALVES`], else of the slice in the
/// first: of `R` panels with `M` rows of activations each.
pub(super) type Sums<L, const R: usize, const M: usize> = [[[<L as Lanes>::Ints; 2]; M]; R];

/// How panels of a width are multiplied.
pub(super) trait Tile: Lanes {
    /// Panels times rows of activations up to which registers hold the sums of minima too.
    const AT_ONCE: usize;

    /// What [`slice`](Tile::slice) is given as `steps`.
    fn steps<F: Tiled>(_panels: usize) -> usize {
        0
    }

    /// Sums of slice `j`, each of them begun with [`begin`].
    unsafe fn slice<F: Tiled, const R: usize, const M: usize>(
        panels: *const [Panel<Self>; PANELS],
        x: &[*const Rounded; M],
        j: usize,
        steps: usize,
    ) -> Sums<Self, R, M>;
}

/// Whether a format's codes in a panel are signed. Else they are [`above`] too high.
pub(super) const fn signed<F: Tiled, L: Lanes>() -> bool {
    F::BITS == 8 && L::SIGNED
}

/// How much too high a panel's codes are.
pub(super) const fn above<F: Tiled, L: Lanes>() -> u8 {
    match F::BITS {
        8 if L::SIGNED => 0,
        8 => 128,
        _ => F::OFFSET,
    }
}

/// What the sum of slice `j` begins with, or of its half `part` where [`Tiled::HALVES`], so that it ends as if codes
/// were not [`above`].
#[inline(always)]
pub(super) unsafe fn begin<F: Tiled, L: Lanes>(
    x: *const Rounded,
    j: usize,
    part: usize,
) -> L::Ints {
    let above = const { above::<F, L>() };
    unsafe {
        if above == 0 {
            return L::word(0);
        }
        let below = if F::HALVES {
            (*x).below_halves[2 * j + part]
        } else {
            (*x).below[j]
        };
        // Multiplied as a shift: it is a power of two.
        L::word((below << above.trailing_zeros()) as u32)
    }
}

/// Fills a panel with the first `slices` slices of its rows. As many bytes from `next` on are asked for.
#[inline(always)]
unsafe fn pack<F: Tiled, L: Lanes>(
    rows: &Rows,
    next: *const u8,
    slices: usize,
    panel: *mut Panel<L>,
) {
    unsafe {
        let codes = (&raw mut (*panel).codes).cast();
        if F::VALUES == SLICE {
            let mut heads = std::mem::MaybeUninit::<Heads<L>>::uninit();
            let heads = heads.as_mut_ptr();
            F::heads::<L>(rows, next, slices, heads);
            F::codes::<L>(rows, heads, next, slices, codes);
            for j in 0..slices {
                let first = (*heads).first[j];
                (*panel).scales[j] = L::halves_in(first, false);
                if F::MINIMUM {
                    (*panel).minima[j] = L::halves_in(first, true);
                }
            }
            return;
        }
        F::codes::<L>(rows, std::ptr::null(), next, slices, codes);
        let head = F::head::<L>(rows);
        // Pairs are multiplied in the upper bytes of their halves, 256 times too large.
        let share = if F::PAIRED { 1.0 / 256.0 } else { 1.0 };
        (*panel).d = L::mul(head.d, L::splat(share));
        (*panel).minimum = L::mul(head.minimum, L::splat(-share));
        for g in 0..if F::HALVES { 4 } else { 2 } {
            let scales = L::sub_bytes(head.scales[g], L::byte(F::SCALES_ABOVE));
            if F::PAIRED {
                (*panel).four_scales[g] = scales;
                if F::MINIMUM {
                    (*panel).four_minima[g] = head.minima[g];
                }
                continue;
            }
            for (i, scales) in L::integers(scales).into_iter().enumerate() {
                let place = if F::ALTERNATE { 2 * i + g } else { 4 * g + i };
                (*panel).scales[place] = scales;
            }
            if F::MINIMUM {
                for (i, minima) in L::integers(head.minima[g]).into_iter().enumerate() {
                    (*panel).minima[4 * g + i] = minima;
                }
            }
        }
    }
}

/// Two of four signed bytes of each row, those of slice `j`, as halves of words: 256 times too large.
#[inline(always)]
unsafe fn pair<L: Lanes>(fours: &[L::Ints; 4], j: usize) -> L::Ints {
    unsafe {
        // Each byte behind an empty one.
        let places = if j.is_multiple_of(2) {
            _mm_setr_epi8(-1, 0, -1, 1, -1, 4, -1, 5, -1, 8, -1, 9, -1, 12, -1, 13)
        } else {
            _mm_setr_epi8(-1, 2, -1, 3, -1, 6, -1, 7, -1, 10, -1, 11, -1, 14, -1, 15)
        };
        L::shuffle(fours[j / 2], places)
    }
}

/// Adds the products of `R` panels' first `slices` slices with a span of `M` rows of activations, asking for what
/// [`ask_rest`] says on the way: `sums [M][R, ROWS]`, whose rows are [`CHUNK`] apart.
#[inline(always)]
unsafe fn multiply<F: Tiled, T: Tile, const R: usize, const M: usize>(
    panels: *const [Panel<T>; PANELS],
    x: [*const Rounded; M],
    slices: usize,
    next: [*const u8; R],
    sums: *mut f32,
) {
    unsafe {
        let place = |r: usize, m: usize| sums.add(m * CHUNK + r * T::ROWS);
        let short = F::VALUES == SLICE;
        let mut totals = [[T::splat(0.0); M]; R];
        if short {
            for m in 0..M {
                for r in 0..R {
                    totals[r][m] = T::load(place(r, m));
                }
            }
        }
        let mut lows = [[T::splat(0.0); M]; R];
        let at_once = R * M <= T::AT_ONCE;
        let steps = T::steps::<F>(R * M);
        for j in 0..slices {
            for r in 0..R {
                ask_rest::<F, T>(next[r], j);
            }
            if F::MINIMUM && !short && at_once {
                add_minima::<F, T, R, M>(panels, &x, j, &mut lows);
            }
            let sums = T::slice::<F, R, M>(panels, &x, j, steps);
            for r in 0..R {
                let panel = &(*panels)[r];
                for m in 0..M {
                    let [first, second] = sums[r][m];
                    let sum = if F::PAIRED {
                        let scales = pair::<T>(&panel.four_scales, j);
                        T::floats(T::multiply_halves(T::join_halves(first, second), scales))
                    } else if F::HALVES {
                        let sum = T::mul(T::floats(first), panel.scales[2 * j]);
                        T::fma(T::floats(second), panel.scales[2 * j + 1], sum)
                    } else {
                        T::mul(T::floats(first), panel.scales[j])
                    };
                    totals[r][m] = T::fma(sum, T::splat((*x[m]).scale[j]), totals[r][m]);
                }
            }
            if F::MINIMUM && short {
                add_minima::<F, T, R, M>(panels, &x, j, &mut totals);
            }
        }
        if F::MINIMUM && !short && !at_once {
            for j in 0..slices {
                add_minima::<F, T, R, M>(panels, &x, j, &mut lows);
            }
        }
        for r in 0..R {
            let panel = &raw const (*panels)[r];
            for m in 0..M {
                let mut sum = totals[r][m];
                if !short {
                    sum = T::fma(sum, (*panel).d, T::load(place(r, m)));
                    if F::MINIMUM {
                        sum = T::fma(lows[r][m], (*panel).minimum, sum);
                    }
                }
                T::store(place(r, m), sum);
            }
        }
    }
}

/// Adds what slice `j` has for its minima to `sums`.
#[inline(always)]
unsafe fn add_minima<F: Tiled, T: Tile, const R: usize, const M: usize>(
    panels: *const [Panel<T>; PANELS],
    x: &[*const Rounded; M],
    j: usize,
    sums: &mut [[T::Floats; M]; R],
) {
    unsafe {
        for r in 0..R {
            let panel = &raw const (*panels)[r];
            for m in 0..M {
                let (minima, of) = if F::PAIRED {
                    let pairs = (&raw const (*x[m]).pairs[j]).cast::<u32>();
                    let minima = pair::<T>(&(*panel).four_minima, j);
                    let minima = T::multiply_halves(minima, T::word(pairs.read()));
                    (T::floats(minima), (*x[m]).scale[j])
                } else {
                    ((*panel).minima[j], (*x[m]).sum[j])
                };
                sums[r][m] = T::fma(minima, T::splat(of), sums[r][m]);
            }
        }
    }
}

/// Products of a chunk of weight rows in a format, `[activations, weight rows]`.
///
/// # Safety
///
/// The processor has the instruction set that `T` stands for, and the caller is compiled for it; the weights are
/// whole readable rows of blocks of the format, and each row of `x` covers them.
#[inline(always)]
pub(super) unsafe fn chunk<F: Tiled, T: Tile>(
    weights: Weights,
    x: &[&[Rounded]],
    out: &mut [[f32; CHUNK]],
) {
    let Weights { start, row, count } = weights;
    assert!(0 < count && count <= CHUNK && x.len() == out.len());
    out.fill([0.0; CHUNK]);
    // One row of activations is done with a panel so soon that a second one only spreads what is read from
    // memory, unless arithmetic takes longer.
    let together = if x.len() == 1 && !F::HALVES {
        1
    } else {
        PANELS
    };
    for first in (0..count).step_by(together * T::ROWS) {
        let weights = Weights {
            // SAFETY: one of the rows.
            start: unsafe { start.add(first * row) },
            row,
            count: (count - first).min(together * T::ROWS),
        };
        // SAFETY: the caller's contract; there is a place for each row from `first` on.
        unsafe {
            some::<F, T>(
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
/// As [`chunk`].
#[inline(always)]
unsafe fn some<F: Tiled, T: Tile>(
    weights: Weights,
    x: &[&[Rounded]],
    together: usize,
    out: *mut f32,
) {
    let Weights { start, row, count } = weights;
    let slices = row / F::SIZE * (F::VALUES / SLICE);
    let used = count.div_ceil(T::ROWS);
    let mut panels = std::mem::MaybeUninit::<[Panel<T>; PANELS]>::uninit();
    for s in 0..slices.div_ceil(SLICES) {
        let taken = (slices - s * SLICES).min(SLICES);
        let bytes = s * SLICES * SLICE / F::VALUES * F::SIZE;
        // SAFETY: only rows that exist are read. Panels are written before they are read, as far
        // as they are read; all bits are numbers.
        unsafe {
            let panels = panels.as_mut_ptr();
            // What comes after this chunk is most likely next, and memory is fastest in order.
            let part = T::ROWS * F::SIZE * SPAN / F::VALUES;
            let next = start.wrapping_add(together * (T::ROWS * row + s * part));
            let mut next = [next, next.wrapping_add(part)];
            for p in 0..used {
                let from = start.add(p * T::ROWS * row + bytes);
                let present = (count - p * T::ROWS).min(T::ROWS);
                if present == T::ROWS {
                    let rows = Rows::new(from, row);
                    pack::<F, T>(&rows, next[p], taken, &raw mut (*panels)[p]);
                } else {
                    // Rows that are missing are zeros.
                    let mut copy = [0u8; WIDEST * LONGEST];
                    let len = taken * SLICE / F::VALUES * F::SIZE;
                    for r in 0..present {
                        let to = copy.as_mut_ptr().add(r * LONGEST);
                        std::ptr::copy_nonoverlapping(from.add(r * row), to, len);
                    }
                    let rows = Rows::new(copy.as_ptr(), LONGEST);
                    pack::<F, T>(&rows, next[p], taken, &raw mut (*panels)[p]);
                }
            }
            let mut done = 0;
            while done < x.len() {
                let sums = out.add(done * CHUNK);
                let at = |m: usize| x[done + m].as_ptr().add(s);
                let left = x.len() - done;
                macro_rules! go {
                    ($r:literal, $($m:literal),*) => {
                        multiply::<F, T, $r, { [$($m),*].len() }>(
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
