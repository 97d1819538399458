//! The block formats as panels take them: codes of neighbouring weight rows side by side, and heads.
//!
//! Layouts are those of `zonos_gguf::blocks`.
//!
//! # Safety
//!
//! All functions here are parts of the loops in `tile`: they run on a processor with the instruction set of
//! their [`Lanes`], and read within the whole, readable blocks that their pointers are given for. The `unsafe`
//! blocks of their bodies rest on that.

use std::arch::x86_64::*;

use zonos_gguf::blocks::iq4::GRID;

use super::super::simd;
use super::formats::*;
use super::input::{SLICE, SLICES, SPAN};
use super::lanes::{Lanes, Rows};

/// The heads of a span's short blocks, a row a lane.
pub(super) struct Heads<L: Lanes> {
    /// The first word: `d`, and a minimum above it where there is one.
    pub(super) first: [L::Ints; SLICES],
    fifth: [L::Ints; SLICES],
}

/// A slice of all rows: vectors of four codes of each.
pub(super) type Slice<L> = [<L as Lanes>::Ints; 8];

/// What the slices of blocks of 256 values share, a row a lane.
pub(super) struct Head<L: Lanes> {
    /// What integer scales are multiplied with.
    pub(super) d: L::Floats,
    /// What integer minima are multiplied with.
    pub(super) minimum: L::Floats,
    /// Integer scales, four bytes of each row. Vector `g` has those of slices or half slices from `4 g` on, or
    /// those of every other slice from `g` on where [`Tiled::ALTERNATE`].
    pub(super) scales: [L::Ints; 4],
    pub(super) minima: [L::Ints; 4],
}

/// A format whose rows can lie side by side.
///
/// # Safety
///
/// Methods need the instruction set of their [`Lanes`], and pointers to readable blocks: one of 256 values, or
/// as many short ones as slices are asked for.
pub(super) trait Tiled: Format {
    /// Values in a block.
    const VALUES: usize;
    /// Whether there are minima.
    const MINIMUM: bool;
    /// Whether half slices have scales of their own.
    const HALVES: bool = false;
    /// Bits of a code.
    const BITS: u32;
    /// Whether sums of half a slice's products fit in 16 bits, so that integer scales are multiplied in pairs.
    const PAIRED: bool = false;
    /// How much too high the integer scales are.
    const SCALES_ABOVE: u8 = 0;
    /// Whether integer scales of every other slice lie together.
    const ALTERNATE: bool = false;
    /// What the first `slices` slices of all rows are multiplied with, for short blocks.
    unsafe fn heads<L: Lanes>(_: &Rows, _: *const u8, _: usize, _: *mut Heads<L>) {}
    /// What slices share, for blocks of 256 values.
    unsafe fn head<L: Lanes>(_: &Rows) -> Head<L> {
        unreachable!("short blocks have no such head")
    }
    /// The codes of the first `slices` slices of all rows, four neighbouring ones of each row in a vector.
    /// On the way most of as many bytes from `next` on are asked for; the rest is left for the slices'
    /// products, [`ask_rest`].
    unsafe fn codes<L: Lanes>(
        rows: &Rows,
        heads: *const Heads<L>,
        next: *const u8,
        slices: usize,
        to: *mut Slice<L>,
    );
}

/// 16 bytes of nibbles of each row from `at` on: the low ones, then the high ones.
#[inline(always)]
unsafe fn turn_nibbles<L: Lanes>(rows: &Rows, at: usize) -> Slice<L> {
    unsafe {
        let both = L::turn_short(rows, at);
        let mut codes = [L::byte(0); 8];
        for q in 0..4 {
            codes[q] = L::and(both[q], L::byte(15));
            codes[q + 4] = L::and(L::right(both[q], 4), L::byte(15));
        }
        codes
    }
}

/// Nibbles at `at`, 16 more where the bit of the value is set in its row's word.
#[inline(always)]
unsafe fn turn_five_bits<L: Lanes>(rows: &Rows, at: usize, set: L::Ints) -> Slice<L> {
    unsafe {
        let mut codes = turn_nibbles::<L>(rows, at);
        for q in 0..8 {
            codes[q] = L::or(codes[q], L::fifth_bits(set, q));
        }
        codes
    }
}

/// What the nibbles at `at` stand for on the uneven grid: signed or 128 too high, as [`Lanes::SIGNED`] says.
#[inline(always)]
unsafe fn turn_on_grid<L: Lanes>(rows: &Rows, at: usize) -> Slice<L> {
    unsafe {
        let grid = _mm_loadu_si128(GRID.as_ptr().cast());
        let grid = _mm_xor_si128(grid, _mm_set1_epi8(if L::SIGNED { 0 } else { -128 }));
        let mut codes = turn_nibbles::<L>(rows, at);
        for q in 0..8 {
            codes[q] = L::look_up(grid, codes[q]);
        }
        codes
    }
}

/// Some bits of each byte, moved right by `n`.
#[inline(always)]
unsafe fn bits<L: Lanes>(v: L::Ints, n: i32, mask: u8) -> L::Ints {
    unsafe { L::and(L::right(v, n), L::byte(mask)) }
}

/// Asks for what is left when slice `j` of a panel is multiplied.
#[inline(always)]
pub(super) fn ask_rest<F: Tiled, L: Lanes>(next: *const u8, j: usize) {
    let (lines, parts) = (lines::<F, L>(), parts::<F>());
    let first = (parts - SLICES) * lines / parts;
    let each = (lines - first).div_ceil(SLICES);
    for line in 0..each {
        simd::ask(next.wrapping_add(64 * (first + j * each + line)));
    }
}

/// Cache lines of a panel's bytes.
const fn lines<F: Tiled, L: Lanes>() -> usize {
    (L::ROWS * F::SIZE * (SPAN / F::VALUES)).div_ceil(64)
}

/// How often a panel's making and multiplying ask for more.
const fn parts<F: Tiled>() -> usize {
    SLICES * if F::VALUES == SLICE { 3 } else { 5 }
}

/// Asks for part `i` of a panel's bytes, 24 parts for short blocks and 40 for others. They need not be readable.
///
/// Evenly, a few lines at a time: more at once than the processor keeps track of would hold it up.
#[inline(always)]
fn ask_for<F: Tiled, L: Lanes>(next: *const u8, i: usize) {
    let (lines, parts) = (lines::<F, L>(), parts::<F>());
    for line in i * lines / parts..(i + 1) * lines / parts {
        simd::ask(next.wrapping_add(64 * line));
    }
}

/// Calls a function for some constants.
macro_rules! each {
    ($function:ident $arguments:tt, $($i:literal)*) => {{$(
        $function::<L, $i> $arguments;
    )*}};
}

/// Calls a function for the slices there are.
macro_rules! each_slice {
    ($slices:expr, $function:ident $arguments:tt) => {
        each_slice!($slices, $function $arguments, 0 1 2 3 4 5 6 7)
    };
    ($slices:expr, $function:ident $arguments:tt, $($j:literal)*) => {{$(
        if $j < $slices {
            $function::<L, $j> $arguments;
        }
    )*}};
}

macro_rules! short {
    ($($name:ident: $minimum:literal, $bits:literal, $fifth:expr, |$rows:ident, $words:ident| $codes:expr;)*) => {$(
        impl Tiled for $name {
            const VALUES: usize = SLICE;
            const MINIMUM: bool = $minimum;
            const BITS: u32 = $bits;
            #[inline(always)]
            unsafe fn heads<L: Lanes>(rows: &Rows, next: *const u8, slices: usize, to: *mut Heads<L>) {
                #[inline(always)]
                unsafe fn slice<L: Lanes, const J: usize>(rows: &Rows, next: *const u8, to: *mut Heads<L>) {
                    unsafe {
                        let fifth: Option<usize> = $fifth;
                        ask_for::<$name, L>(next, J);
                        let rows = rows.from(J * $name::SIZE);
                        let [first, second, _, _] = L::turn_short(&rows, 0);
                        (*to).first[J] = first;
                        if let Some(at) = fifth {
                            (*to).fifth[J] = if at == 4 {
                                second
                            } else {
                                L::or(L::right(first, 16), L::right(second, -16))
                            };
                        }
                    }
                }
                unsafe { each_slice!(slices, slice(rows, next, to)) }
            }
            #[inline(always)]
            unsafe fn codes<L: Lanes>(
                rows: &Rows,
                heads: *const Heads<L>,
                next: *const u8,
                slices: usize,
                to: *mut Slice<L>,
            ) {
                #[inline(always)]
                unsafe fn slice<L: Lanes, const J: usize>(
                    rows: &Rows,
                    heads: *const Heads<L>,
                    next: *const u8,
                    to: *mut Slice<L>,
                ) {
                    unsafe {
                        ask_for::<$name, L>(next, SLICES + J);
                        let $rows = &rows.from(J * $name::SIZE);
                        let $words = &raw const (*heads).fifth[J];
                        *to.add(J) = $codes;
                    }
                }
                unsafe { each_slice!(slices, slice(rows, heads, next, to)) }
            }
        }
    )*};
}

short! {
    Q8_0: false, 8, None, |rows, _none| {
        let mut codes = L::turn(rows, 2);
        for q in 0..8 {
            if !L::SIGNED {
                codes[q] = L::xor(codes[q], L::byte(128));
            }
        }
        codes
    };
    Q4_0: false, 4, None, |rows, _none| turn_nibbles::<L>(rows, 2);
    Q4_1: true, 4, None, |rows, _none| turn_nibbles::<L>(rows, 4);
    Q5_0: false, 5, Some(2), |rows, words| turn_five_bits::<L>(rows, 6, *words);
    Q5_1: true, 5, Some(4), |rows, words| turn_five_bits::<L>(rows, 8, *words);
    Iq4Nl: false, 8, None, |rows, _none| turn_on_grid::<L>(rows, 2);
}

/// A byte in all bytes of a word.
#[inline(always)]
unsafe fn and<L: Lanes>(words: L::Ints, byte: u8) -> L::Ints {
    unsafe { L::and(words, L::byte(byte)) }
}

/// Scales and minima of six bits: `d`, `dmin` and three words.
#[inline(always)]
unsafe fn six_bits<L: Lanes>(rows: &Rows) -> Head<L> {
    unsafe {
        let [both, a, b, c] = L::turn_short(rows, 0);
        // Bits of neighbouring bytes that come along are masked away.
        let high =
            |nibbles, pairs| L::or(and::<L>(nibbles, 0x0F), and::<L>(L::right(pairs, 2), 0x30));
        let zero = L::byte(0);
        Head {
            d: L::halves_in(both, false),
            minimum: L::halves_in(both, true),
            scales: [and::<L>(a, 0x3F), high(c, a), zero, zero],
            minima: [and::<L>(b, 0x3F), high(L::right(c, 4), b), zero, zero],
        }
    }
}

/// A pair of slices of Q4_K.
#[inline(always)]
unsafe fn four_bits<L: Lanes, const PAIR: usize>(rows: &Rows, next: *const u8, to: *mut Slice<L>) {
    unsafe {
        let both = L::turn(rows, 16 + 32 * PAIR);
        for q in 0..8 {
            ask_for::<Q4K, L>(next, 8 * PAIR + q);
            (*to.add(2 * PAIR))[q] = bits::<L>(both[q], 0, 15);
            (*to.add(2 * PAIR + 1))[q] = bits::<L>(both[q], 4, 15);
        }
    }
}

impl Tiled for Q4K {
    const VALUES: usize = SPAN;
    const MINIMUM: bool = true;
    const BITS: u32 = 4;
    #[inline(always)]
    unsafe fn codes<L: Lanes>(
        rows: &Rows,
        _: *const Heads<L>,
        next: *const u8,
        _: usize,
        to: *mut Slice<L>,
    ) {
        unsafe {
            four_bits::<L, 0>(rows, next, to);
            four_bits::<L, 1>(rows, next, to);
            four_bits::<L, 2>(rows, next, to);
            four_bits::<L, 3>(rows, next, to);
        }
    }
    #[inline(always)]
    unsafe fn head<L: Lanes>(rows: &Rows) -> Head<L> {
        unsafe { six_bits::<L>(rows) }
    }
}

/// A pair of slices of Q5_K. Shifts are known when compiled.
#[inline(always)]
unsafe fn five_bits<L: Lanes, const PAIR: usize>(
    rows: &Rows,
    fifth: &[L::Ints; 8],
    next: *const u8,
    to: *mut Slice<L>,
) {
    unsafe {
        let both = L::turn(rows, 48 + 32 * PAIR);
        for q in 0..8 {
            ask_for::<Q5K, L>(next, 8 * PAIR + q);
            for u in 0..2 {
                let j = 2 * PAIR + u;
                let low = bits::<L>(both[q], 4 * u as i32, 15);
                let high = bits::<L>(fifth[q], j as i32 - 4, 16);
                (*to.add(j))[q] = L::or(low, high);
            }
        }
    }
}

impl Tiled for Q5K {
    const VALUES: usize = SPAN;
    const MINIMUM: bool = true;
    const BITS: u32 = 5;
    #[inline(always)]
    unsafe fn codes<L: Lanes>(
        rows: &Rows,
        _: *const Heads<L>,
        next: *const u8,
        _: usize,
        to: *mut Slice<L>,
    ) {
        unsafe {
            let fifth = L::turn(rows, 16);
            five_bits::<L, 0>(rows, &fifth, next, to);
            five_bits::<L, 1>(rows, &fifth, next, to);
            five_bits::<L, 2>(rows, &fifth, next, to);
            five_bits::<L, 3>(rows, &fifth, next, to);
        }
    }
    #[inline(always)]
    unsafe fn head<L: Lanes>(rows: &Rows) -> Head<L> {
        unsafe { six_bits::<L>(rows) }
    }
}

/// Two slices of half `H` of Q6_K, `V` and `V + 2`.
#[inline(always)]
unsafe fn six_bit_codes<L: Lanes, const H: usize, const V: usize>(
    rows: &Rows,
    upper: &[L::Ints; 8],
    next: *const u8,
    to: *mut Slice<L>,
) {
    unsafe {
        let both = L::turn(rows, 64 * H + 32 * V);
        for q in 0..8 {
            ask_for::<Q6K, L>(next, 16 * H + 8 * V + q);
            for u in 0..2 {
                let low = bits::<L>(both[q], 4 * u as i32, 15);
                let high = bits::<L>(upper[q], 2 * (2 * u + V) as i32 - 4, 0x30);
                (*to.add(4 * H + 2 * u + V))[q] = L::or(low, high);
            }
        }
    }
}

impl Tiled for Q6K {
    const VALUES: usize = SPAN;
    const MINIMUM: bool = false;
    const HALVES: bool = true;
    const BITS: u32 = 6;
    #[inline(always)]
    unsafe fn codes<L: Lanes>(
        rows: &Rows,
        _: *const Heads<L>,
        next: *const u8,
        _: usize,
        to: *mut Slice<L>,
    ) {
        unsafe {
            let upper = L::turn(rows, 128);
            six_bit_codes::<L, 0, 0>(rows, &upper, next, to);
            six_bit_codes::<L, 0, 1>(rows, &upper, next, to);
            let upper = L::turn(rows, 160);
            six_bit_codes::<L, 1, 0>(rows, &upper, next, to);
            six_bit_codes::<L, 1, 1>(rows, &upper, next, to);
        }
    }
    #[inline(always)]
    unsafe fn head<L: Lanes>(rows: &Rows) -> Head<L> {
        unsafe {
            // The block ends with `d`.
            let [_, _, _, last] = L::turn_short(rows, 194);
            Head {
                d: L::halves_in(last, true),
                minimum: L::splat(0.0),
                scales: L::turn_short(rows, 192),
                minima: [L::byte(0); 4],
            }
        }
    }
}

/// Vector `I % 8` of half the slices of Q3_K. What depends on `I` is known when compiled.
#[inline(always)]
unsafe fn three_bits<L: Lanes, const I: usize>(
    four: &[L::Ints; 8],
    upper: &[L::Ints; 8],
    next: *const u8,
    to: *mut Slice<L>,
) {
    let (h, q) = (I / 8, I % 8);
    ask_for::<Q3K, L>(next, 2 * I);
    ask_for::<Q3K, L>(next, 2 * I + 1);
    unsafe {
        for u in 0..4 {
            let low = bits::<L>(four[q], 2 * u as i32, 3);
            let high = bits::<L>(upper[q], (4 * h + u) as i32 - 2, 4);
            (*to.add(4 * h + u))[q] = L::or(low, high);
        }
    }
}

impl Tiled for Q3K {
    const VALUES: usize = SPAN;
    const MINIMUM: bool = false;
    const HALVES: bool = true;
    const PAIRED: bool = true;
    const BITS: u32 = 3;
    const SCALES_ABOVE: u8 = 32;
    #[inline(always)]
    unsafe fn codes<L: Lanes>(
        rows: &Rows,
        _: *const Heads<L>,
        next: *const u8,
        _: usize,
        to: *mut Slice<L>,
    ) {
        unsafe {
            let upper = L::turn(rows, 0);
            let four = L::turn(rows, 32);
            each!(three_bits(&four, &upper, next, to), 0 1 2 3 4 5 6 7);
            let four = L::turn(rows, 64);
            each!(three_bits(&four, &upper, next, to), 8 9 10 11 12 13 14 15);
        }
    }
    #[inline(always)]
    unsafe fn head<L: Lanes>(rows: &Rows) -> Head<L> {
        unsafe {
            // The last sixteen bytes: two of codes, three words, `d`.
            let [p, q, r, s] = L::turn_short(rows, 94);
            let across = |low, high| L::or(L::right(low, 16), L::right(high, -16));
            let (a, b, c) = (across(p, q), across(q, r), across(r, s));
            let join = |nibbles, pairs| {
                let pairs = L::right(and::<L>(pairs, 3), -4);
                L::or(and::<L>(nibbles, 15), pairs)
            };
            Head {
                d: L::halves_in(s, true),
                minimum: L::splat(0.0),
                scales: [
                    join(a, c),
                    join(b, L::right(c, 2)),
                    join(L::right(a, 4), L::right(c, 4)),
                    join(L::right(b, 4), L::right(c, 6)),
                ],
                minima: [L::byte(0); 4],
            }
        }
    }
}

/// Vector `I % 8` of half the slices of Q2_K.
#[inline(always)]
unsafe fn two_bits<L: Lanes, const I: usize>(
    four: &[L::Ints; 8],
    next: *const u8,
    to: *mut Slice<L>,
) {
    ask_for::<Q2K, L>(next, 2 * I);
    ask_for::<Q2K, L>(next, 2 * I + 1);
    unsafe {
        for u in 0..4 {
            (*to.add(I / 8 * 4 + u))[I % 8] = bits::<L>(four[I % 8], 2 * u as i32, 3);
        }
    }
}

impl Tiled for Q2K {
    const VALUES: usize = SPAN;
    const MINIMUM: bool = true;
    const HALVES: bool = true;
    const PAIRED: bool = true;
    const BITS: u32 = 2;
    #[inline(always)]
    unsafe fn codes<L: Lanes>(
        rows: &Rows,
        _: *const Heads<L>,
        next: *const u8,
        _: usize,
        to: *mut Slice<L>,
    ) {
        unsafe {
            let four = L::turn(rows, 16);
            each!(two_bits(&four, next, to), 0 1 2 3 4 5 6 7);
            let four = L::turn(rows, 48);
            each!(two_bits(&four, next, to), 8 9 10 11 12 13 14 15);
        }
    }
    #[inline(always)]
    unsafe fn head<L: Lanes>(rows: &Rows) -> Head<L> {
        unsafe {
            // The block's last sixteen bytes end with `d` and `dmin`.
            let [_, _, _, both] = L::turn_short(rows, 68);
            let mut head = Head {
                d: L::halves_in(both, false),
                minimum: L::halves_in(both, true),
                scales: L::turn_short(rows, 0),
                minima: [L::byte(0); 4],
            };
            for g in 0..4 {
                head.minima[g] = and::<L>(L::right(head.scales[g], 4), 15);
                head.scales[g] = and::<L>(head.scales[g], 15);
            }
            head
        }
    }
}

impl Tiled for Iq4Xs {
    const VALUES: usize = SPAN;
    const MINIMUM: bool = false;
    const BITS: u32 = 8;
    const SCALES_ABOVE: u8 = 32;
    const ALTERNATE: bool = true;
    #[inline(always)]
    unsafe fn codes<L: Lanes>(
        rows: &Rows,
        _: *const Heads<L>,
        next: *const u8,
        _: usize,
        to: *mut Slice<L>,
    ) {
        unsafe {
            #[inline(always)]
            unsafe fn slice<L: Lanes, const J: usize>(
                rows: &Rows,
                next: *const u8,
                to: *mut Slice<L>,
            ) {
                for i in 4 * J..4 * J + 4 {
                    ask_for::<Iq4Xs, L>(next, i);
                }
                unsafe { *to.add(J) = turn_on_grid::<L>(rows, 8 + 16 * J) };
            }
            each!(slice(rows, next, to), 0 1 2 3 4 5 6 7);
        }
    }
    #[inline(always)]
    unsafe fn head<L: Lanes>(rows: &Rows) -> Head<L> {
        unsafe {
            let [both, low, _, _] = L::turn_short(rows, 0);
            // Two slices' upper bits in each nibble, moved apart, into a byte each.
            let high = L::right(both, 16);
            let high = L::or(high, L::right(high, -8));
            let high = L::and(high, L::word(0x00FF_00FF));
            let high = and::<L>(L::or(high, L::right(high, -4)), 15);
            let join = |nibbles, pairs| {
                let pairs = L::right(and::<L>(pairs, 3), -4);
                L::or(and::<L>(nibbles, 15), pairs)
            };
            let zero = L::byte(0);
            let odd = join(L::right(low, 4), L::right(high, 2));
            Head {
                d: L::halves_in(both, false),
                minimum: L::splat(0.0),
                scales: [join(low, high), odd, zero, zero],
                minima: [zero; 4],
            }
        }
    }
}
