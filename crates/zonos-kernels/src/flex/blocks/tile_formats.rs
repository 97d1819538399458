//! The block formats as panels of sixteen rows take them: unsigned codes of two rows at a time, and heads.
//!
//! Layouts are those of `zonos_gguf::blocks`.
//!
//! # Safety
//!
//! All functions here are parts of the loops in `tile`: they run on a processor with AVX-512 F, BW and VL, and
//! read within the whole, readable blocks that their pointers are given for. The `unsafe` blocks of their
//! bodies rest on that.

use std::arch::x86_64::*;

use zonos_gguf::blocks::iq4::GRID;

use super::super::simd;
use super::formats::*;
use super::input::{SLICE, SLICES, SPAN};

/// Sixteen rows, equally far apart.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    /// Where each fourth begins.
    fourths: [*const u8; 4],
    stride: usize,
}

impl Rows {
    #[inline(always)]
    pub(super) fn new(start: *const u8, stride: usize) -> Self {
        Self {
            fourths: [0, 4, 8, 12].map(|r| start.wrapping_add(r * stride)),
            stride,
        }
    }

    /// Where a row begins.
    #[inline(always)]
    pub(super) fn at(&self, row: usize) -> *const u8 {
        self.fourths[row / 4].wrapping_add(row % 4 * self.stride)
    }

    /// The rows from some bytes on.
    #[inline(always)]
    fn from(self, bytes: usize) -> Self {
        Self {
            fourths: self.fourths.map(|p| p.wrapping_add(bytes)),
            ..self
        }
    }
}

/// The heads of a span's short blocks, a row a lane.
#[repr(C, align(64))]
pub(super) struct Heads {
    /// Halves.
    pub(super) d: [[u16; 16]; SLICES],
    pub(super) minimum: [[u16; 16]; SLICES],
    fifth: [[u32; 16]; SLICES],
}

/// A slice of sixteen rows: vectors of four codes of each.
pub(super) type Slice = [__m512i; 8];

/// What the slices of blocks of 256 values share, a row a lane.
pub(super) struct Head {
    /// What integer scales are multiplied with.
    pub(super) d: __m512,
    /// What integer minima are multiplied with.
    pub(super) minimum: __m512,
    /// Integer scales, four bytes of each row. Vector `g` has those of slices or half slices from `4 g` on, or
    /// those of every other slice from `g` on where [`Tiled::ALTERNATE`].
    pub(super) scales: [__m512i; 4],
    pub(super) minima: [__m512i; 4],
}

/// A format whose rows can lie side by side.
///
/// # Safety
///
/// Methods need AVX-512 F, BW and VL, and pointers to readable blocks: one of 256 values, or as many short ones
/// as slices are asked for.
pub(super) trait Tiled: Format {
    /// Values in a block.
    const VALUES: usize;
    /// Whether there are minima.
    const MINIMUM: bool;
    /// Whether half slices have scales of their own.
    const HALVES: bool = false;
    /// Whether sums of half a slice's products fit in 16 bits, so that integer scales are multiplied in pairs.
    const PAIRED: bool = false;
    /// How much too high the codes are: a power of two, or nothing.
    const ABOVE: u32;
    /// How much too high the integer scales are.
    const SCALES_ABOVE: u8 = 0;
    /// Whether integer scales of every other slice lie together.
    const ALTERNATE: bool = false;
    /// What the first `slices` slices of sixteen rows are multiplied with, for short blocks.
    unsafe fn heads(_: &Rows, _: *const u8, _: usize, _: *mut Heads) {}
    /// What slices share, for blocks of 256 values.
    unsafe fn head(_: &Rows) -> Head {
        unreachable!("short blocks have no such head")
    }
    /// The codes of the first `slices` slices of sixteen rows, four neighbouring ones of each row in a vector.
    /// On the way most of as many bytes from `next` on are asked for; the rest is left for the slices'
    /// products, [`ask_rest`].
    unsafe fn codes(
        rows: &Rows,
        heads: *const Heads,
        next: *const u8,
        slices: usize,
        to: *mut Slice,
    );
}

/// Two places of 32 bytes, one behind the other.
#[inline(always)]
unsafe fn load(a: *const u8, b: *const u8) -> __m512i {
    unsafe {
        let a = _mm512_castsi256_si512(_mm256_loadu_si256(a.cast()));
        _mm512_inserti64x4::<1>(a, _mm256_loadu_si256(b.cast()))
    }
}

/// Four places of 16 bytes, one behind the other.
#[inline(always)]
unsafe fn load_short(a: *const u8, b: *const u8, c: *const u8, d: *const u8) -> __m512i {
    unsafe {
        let v = _mm512_castsi128_si512(_mm_loadu_si128(a.cast()));
        let v = _mm512_inserti32x4::<1>(v, _mm_loadu_si128(b.cast()));
        let v = _mm512_inserti32x4::<2>(v, _mm_loadu_si128(c.cast()));
        _mm512_inserti32x4::<3>(v, _mm_loadu_si128(d.cast()))
    }
}

/// Rows of four words each, in each 128 bits, into columns.
#[inline(always)]
unsafe fn turn_words(rows: [__m512i; 4]) -> [__m512i; 4] {
    unsafe {
        let [a, b, c, d] = rows;
        let (low, high) = (_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
        let (later_low, later_high) = (_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
        [
            _mm512_unpacklo_epi64(low, later_low),
            _mm512_unpackhi_epi64(low, later_low),
            _mm512_unpacklo_epi64(high, later_high),
            _mm512_unpackhi_epi64(high, later_high),
        ]
    }
}

/// 32 bytes of each row from `at` on: bytes `4 q` to `4 q + 3` of all rows in vector `q`.
#[inline(always)]
unsafe fn turn(rows: &Rows, at: usize) -> [__m512i; 8] {
    unsafe {
        let rows = rows.from(at);
        let mut pairs = [_mm512_setzero_si512(); 8];
        for i in 0..4 {
            pairs[i] = load(rows.at(i), rows.at(i + 4));
            pairs[i + 4] = load(rows.at(i + 8), rows.at(i + 12));
        }
        let [a, b, c, d, e, f, g, h] = pairs;
        // In 128 bits each: rows 0 to 3 with their first words, then their last, 4 to 7 alike.
        let first = turn_words([a, b, c, d]);
        let second = turn_words([e, f, g, h]);
        let mut all = [_mm512_setzero_si512(); 8];
        for q in 0..4 {
            all[q] = _mm512_shuffle_i32x4::<0x88>(first[q], second[q]);
            all[q + 4] = _mm512_shuffle_i32x4::<0xDD>(first[q], second[q]);
        }
        all
    }
}

/// 16 bytes of each row from `at` on: bytes `4 q` to `4 q + 3` of all rows in vector `q`.
#[inline(always)]
unsafe fn turn_short(rows: &Rows, at: usize) -> [__m512i; 4] {
    unsafe {
        let rows = rows.from(at);
        let mut fours = [_mm512_setzero_si512(); 4];
        for i in 0..4 {
            fours[i] = load_short(rows.at(i), rows.at(i + 4), rows.at(i + 8), rows.at(i + 12));
        }
        turn_words(fours)
    }
}

/// A half of each row at `at`.
#[inline(always)]
unsafe fn words(rows: &Rows, at: usize) -> __m256i {
    unsafe {
        let rows = rows.from(at);
        let mut both = [_mm_setzero_si128(); 2];
        for i in 0..2 {
            let at = |r: usize| i32::from(half(rows.at(8 * i + r)));
            let v = _mm_cvtsi32_si128(at(0));
            let v = _mm_insert_epi16::<1>(v, at(1));
            let v = _mm_insert_epi16::<2>(v, at(2));
            let v = _mm_insert_epi16::<3>(v, at(3));
            let v = _mm_insert_epi16::<4>(v, at(4));
            let v = _mm_insert_epi16::<5>(v, at(5));
            let v = _mm_insert_epi16::<6>(v, at(6));
            both[i] = _mm_insert_epi16::<7>(v, at(7));
        }
        _mm256_set_m128i(both[1], both[0])
    }
}

/// 16 bytes of nibbles of each row from `at` on: the low ones, then the high ones.
#[inline(always)]
unsafe fn turn_nibbles(rows: &Rows, at: usize) -> Slice {
    unsafe {
        let both = turn_short(rows, at);
        let mut codes = [_mm512_setzero_si512(); 8];
        for q in 0..4 {
            codes[q] = _mm512_and_si512(both[q], bytes(15));
            codes[q + 4] = _mm512_and_si512(right(both[q], 4), bytes(15));
        }
        codes
    }
}

#[inline(always)]
unsafe fn bytes(b: u8) -> __m512i {
    unsafe { _mm512_set1_epi8(b as i8) }
}

#[inline(always)]
unsafe fn half(p: *const u8) -> u16 {
    unsafe { p.cast::<u16>().read_unaligned() }
}

/// Bits of words moved right by `n`, left where it is negative; bits of neighbouring bytes come along.
#[inline(always)]
unsafe fn right(v: __m512i, n: i32) -> __m512i {
    unsafe {
        if n >= 0 {
            _mm512_srl_epi16(v, _mm_cvtsi32_si128(n))
        } else {
            _mm512_sll_epi16(v, _mm_cvtsi32_si128(-n))
        }
    }
}

/// For four bits, 16 in the byte of each that is set.
const FIFTH: [i32; 16] = {
    let mut all = [0; 16];
    let mut bits = 0;
    while bits < 16 {
        let mut b = 0;
        while b < 4 {
            all[bits] |= (bits as i32 >> b & 1) << (8 * b + 4);
            b += 1;
        }
        bits += 1;
    }
    all
};

/// Nibbles at `at`, 16 more where the bit of the value is set in its row's word.
#[inline(always)]
unsafe fn turn_five_bits(rows: &Rows, at: usize, words: &[u32; 16]) -> Slice {
    unsafe {
        let mut codes = turn_nibbles(rows, at);
        let set = _mm512_load_si512(words.as_ptr().cast());
        let fifth = _mm512_loadu_si512(FIFTH.as_ptr().cast());
        for q in 0..8 {
            // The permutation looks at the four lowest bits of an index alone.
            let four = _mm512_srl_epi32(set, _mm_cvtsi32_si128(4 * q as i32));
            codes[q] = _mm512_or_si512(codes[q], _mm512_permutexvar_epi32(four, fifth));
        }
        codes
    }
}

/// Nibbles at `at`, and what they stand for on the uneven grid, 128 too high.
#[inline(always)]
unsafe fn turn_on_grid(rows: &Rows, at: usize) -> Slice {
    unsafe {
        let grid = _mm512_broadcast_i32x4(_mm_loadu_si128(GRID.as_ptr().cast()));
        let grid = _mm512_xor_si512(grid, bytes(128));
        let mut codes = turn_nibbles(rows, at);
        for q in 0..8 {
            codes[q] = _mm512_shuffle_epi8(grid, codes[q]);
        }
        codes
    }
}

/// Some bits of each byte, moved right by `n`.
#[inline(always)]
unsafe fn bits(v: __m512i, n: i32, mask: u8) -> __m512i {
    unsafe { _mm512_and_si512(right(v, n), bytes(mask)) }
}

/// Asks for what is left when slice `j` of a panel is multiplied.
#[inline(always)]
pub(super) fn ask_rest<F: Tiled>(next: *const u8, j: usize) {
    let (lines, parts) = (lines::<F>(), parts::<F>());
    let first = (parts - SLICES) * lines / parts;
    let each = (lines - first).div_ceil(SLICES);
    for line in 0..each {
        simd::ask(next.wrapping_add(64 * (first + j * each + line)));
    }
}

/// Cache lines of a panel's bytes.
const fn lines<F: Tiled>() -> usize {
    (16 * F::SIZE * (SPAN / F::VALUES)).div_ceil(64)
}

/// How often a panel's making and multiplying ask for more.
const fn parts<F: Tiled>() -> usize {
    SLICES * if F::VALUES == SLICE { 3 } else { 5 }
}

/// Asks for part `i` of a panel's bytes, 24 parts for short blocks and 40 for others. They need not be readable.
///
/// Evenly, a few lines at a time: more at once than the processor keeps track of would hold it up.
#[inline(always)]
fn ask_for<F: Tiled>(next: *const u8, i: usize) {
    let (lines, parts) = (lines::<F>(), parts::<F>());
    for line in i * lines / parts..(i + 1) * lines / parts {
        simd::ask(next.wrapping_add(64 * line));
    }
}

/// Calls a function for some constants.
macro_rules! each {
    ($function:ident $arguments:tt, $($i:literal)*) => {{$(
        $function::<$i> $arguments;
    )*}};
}

/// Calls a function for the slices there are.
macro_rules! each_slice {
    ($slices:expr, $function:ident $arguments:tt) => {
        each_slice!($slices, $function $arguments, 0 1 2 3 4 5 6 7)
    };
    ($slices:expr, $function:ident $arguments:tt, $($j:literal)*) => {{$(
        if $j < $slices {
            $function::<$j> $arguments;
        }
    )*}};
}

macro_rules! short {
    ($($name:ident: $minimum:literal, $above:literal, $fifth:expr, |$rows:ident, $words:ident| $codes:expr;)*) => {$(
        impl Tiled for $name {
            const VALUES: usize = SLICE;
            const MINIMUM: bool = $minimum;
            const ABOVE: u32 = $above;
            #[inline(always)]
            unsafe fn heads(rows: &Rows, next: *const u8, slices: usize, to: *mut Heads) {
                #[inline(always)]
                unsafe fn slice<const J: usize>(rows: &Rows, next: *const u8, to: *mut Heads) {
                    unsafe {
                        let fifth: Option<usize> = $fifth;
                        ask_for::<$name>(next, J);
                        let rows = rows.from(J * $name::SIZE);
                        let [first, second, _, _] = turn_short(&rows, 0);
                        let d = (&raw mut (*to).d[J]).cast();
                        _mm256_store_si256(d, _mm512_cvtepi32_epi16(first));
                        let upper = _mm512_srli_epi32::<16>(first);
                        if <$name as Tiled>::MINIMUM {
                            let minimum = (&raw mut (*to).minimum[J]).cast();
                            _mm256_store_si256(minimum, _mm512_cvtepi32_epi16(upper));
                        }
                        if let Some(at) = fifth {
                            let words = if at == 4 {
                                second
                            } else {
                                _mm512_or_si512(upper, _mm512_slli_epi32::<16>(second))
                            };
                            _mm512_store_si512((&raw mut (*to).fifth[J]).cast(), words);
                        }
                    }
                }
                unsafe { each_slice!(slices, slice(rows, next, to)) }
            }
            #[inline(always)]
            unsafe fn codes(
                rows: &Rows,
                heads: *const Heads,
                next: *const u8,
                slices: usize,
                to: *mut Slice,
            ) {
                #[inline(always)]
                unsafe fn slice<const J: usize>(
                    rows: &Rows,
                    heads: *const Heads,
                    next: *const u8,
                    to: *mut Slice,
                ) {
                    unsafe {
                        ask_for::<$name>(next, SLICES + J);
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
    Q8_0: false, 128, None, |rows, _none| {
        let mut codes = turn(rows, 2);
        for q in 0..8 {
            codes[q] = _mm512_xor_si512(codes[q], bytes(128));
        }
        codes
    };
    Q4_0: false, 8, None, |rows, _none| turn_nibbles(rows, 2);
    Q4_1: true, 0, None, |rows, _none| turn_nibbles(rows, 4);
    Q5_0: false, 16, Some(2), |rows, words| turn_five_bits(rows, 6, &*words);
    Q5_1: true, 0, Some(4), |rows, words| turn_five_bits(rows, 8, &*words);
    Iq4Nl: false, 128, None, |rows, _none| turn_on_grid(rows, 2);
}

/// The halves in the lower or upper words of lanes, as floats.
#[inline(always)]
unsafe fn halves(words: __m512i, upper: bool) -> __m512 {
    unsafe {
        let words = if upper {
            _mm512_srli_epi32::<16>(words)
        } else {
            words
        };
        _mm512_cvtph_ps(_mm512_cvtepi32_epi16(words))
    }
}

/// A byte in all bytes of a word.
#[inline(always)]
unsafe fn and(words: __m512i, byte: u8) -> __m512i {
    unsafe { _mm512_and_si512(words, bytes(byte)) }
}

/// Scales and minima of six bits: `d`, `dmin` and three words.
#[inline(always)]
unsafe fn six_bits(rows: &Rows) -> Head {
    unsafe {
        let [both, a, b, c] = turn_short(rows, 0);
        // Bits of neighbouring bytes that come along are masked away.
        let high = |nibbles, pairs| {
            _mm512_or_si512(and(nibbles, 0x0F), and(_mm512_srli_epi32::<2>(pairs), 0x30))
        };
        let zero = _mm512_setzero_si512();
        Head {
            d: halves(both, false),
            minimum: halves(both, true),
            scales: [and(a, 0x3F), high(c, a), zero, zero],
            minima: [and(b, 0x3F), high(_mm512_srli_epi32::<4>(c), b), zero, zero],
        }
    }
}

/// A pair of slices of Q4_K.
#[inline(always)]
unsafe fn four_bits<const PAIR: usize>(rows: &Rows, next: *const u8, to: *mut Slice) {
    unsafe {
        let both = turn(rows, 16 + 32 * PAIR);
        for q in 0..8 {
            ask_for::<Q4K>(next, 8 * PAIR + q);
            (*to.add(2 * PAIR))[q] = bits(both[q], 0, 15);
            (*to.add(2 * PAIR + 1))[q] = bits(both[q], 4, 15);
        }
    }
}

impl Tiled for Q4K {
    const VALUES: usize = SPAN;
    const MINIMUM: bool = true;
    const ABOVE: u32 = 0;
    #[inline(always)]
    unsafe fn codes(rows: &Rows, _: *const Heads, next: *const u8, _: usize, to: *mut Slice) {
        unsafe {
            four_bits::<0>(rows, next, to);
            four_bits::<1>(rows, next, to);
            four_bits::<2>(rows, next, to);
            four_bits::<3>(rows, next, to);
        }
    }
    #[inline(always)]
    unsafe fn head(rows: &Rows) -> Head {
        unsafe { six_bits(rows) }
    }
}

/// A pair of slices of Q5_K. Shifts are known when compiled.
#[inline(always)]
unsafe fn five_bits<const PAIR: usize>(
    rows: &Rows,
    fifth: &[__m512i; 8],
    next: *const u8,
    to: *mut Slice,
) {
    unsafe {
        let both = turn(rows, 48 + 32 * PAIR);
        for q in 0..8 {
            ask_for::<Q5K>(next, 8 * PAIR + q);
            for u in 0..2 {
                let j = 2 * PAIR + u;
                let low = bits(both[q], 4 * u as i32, 15);
                let high = bits(fifth[q], j as i32 - 4, 16);
                (*to.add(j))[q] = _mm512_or_si512(low, high);
            }
        }
    }
}

impl Tiled for Q5K {
    const VALUES: usize = SPAN;
    const MINIMUM: bool = true;
    const ABOVE: u32 = 0;
    #[inline(always)]
    unsafe fn codes(rows: &Rows, _: *const Heads, next: *const u8, _: usize, to: *mut Slice) {
        unsafe {
            let fifth = turn(rows, 16);
            five_bits::<0>(rows, &fifth, next, to);
            five_bits::<1>(rows, &fifth, next, to);
            five_bits::<2>(rows, &fifth, next, to);
            five_bits::<3>(rows, &fifth, next, to);
        }
    }
    #[inline(always)]
    unsafe fn head(rows: &Rows) -> Head {
        unsafe { six_bits(rows) }
    }
}

/// Two slices of half `H` of Q6_K, `V` and `V + 2`.
#[inline(always)]
unsafe fn six_bit_codes<const H: usize, const V: usize>(
    rows: &Rows,
    upper: &[__m512i; 8],
    next: *const u8,
    to: *mut Slice,
) {
    unsafe {
        let both = turn(rows, 64 * H + 32 * V);
        for q in 0..8 {
            ask_for::<Q6K>(next, 16 * H + 8 * V + q);
            for u in 0..2 {
                let low = bits(both[q], 4 * u as i32, 15);
                let high = bits(upper[q], 2 * (2 * u + V) as i32 - 4, 0x30);
                (*to.add(4 * H + 2 * u + V))[q] = _mm512_or_si512(low, high);
            }
        }
    }
}

impl Tiled for Q6K {
    const VALUES: usize = SPAN;
    const MINIMUM: bool = false;
    const HALVES: bool = true;
    const ABOVE: u32 = 32;
    #[inline(always)]
    unsafe fn codes(rows: &Rows, _: *const Heads, next: *const u8, _: usize, to: *mut Slice) {
        unsafe {
            let upper = turn(rows, 128);
            six_bit_codes::<0, 0>(rows, &upper, next, to);
            six_bit_codes::<0, 1>(rows, &upper, next, to);
            let upper = turn(rows, 160);
            six_bit_codes::<1, 0>(rows, &upper, next, to);
            six_bit_codes::<1, 1>(rows, &upper, next, to);
        }
    }
    #[inline(always)]
    unsafe fn head(rows: &Rows) -> Head {
        unsafe {
            Head {
                d: _mm512_cvtph_ps(words(rows, 208)),
                minimum: _mm512_setzero_ps(),
                scales: turn_short(rows, 192),
                minima: [_mm512_setzero_si512(); 4],
            }
        }
    }
}

/// Vector `I % 8` of half the slices of Q3_K. What depends on `I` is known when compiled.
#[inline(always)]
unsafe fn three_bits<const I: usize>(
    four: &[__m512i; 8],
    upper: &[__m512i; 8],
    next: *const u8,
    to: *mut Slice,
) {
    let (h, q) = (I / 8, I % 8);
    ask_for::<Q3K>(next, 2 * I);
    ask_for::<Q3K>(next, 2 * I + 1);
    unsafe {
        for u in 0..4 {
            let low = bits(four[q], 2 * u as i32, 3);
            let high = bits(upper[q], (4 * h + u) as i32 - 2, 4);
            (*to.add(4 * h + u))[q] = _mm512_or_si512(low, high);
        }
    }
}

impl Tiled for Q3K {
    const VALUES: usize = SPAN;
    const MINIMUM: bool = false;
    const HALVES: bool = true;
    const PAIRED: bool = true;
    const ABOVE: u32 = 4;
    const SCALES_ABOVE: u8 = 32;
    #[inline(always)]
    unsafe fn codes(rows: &Rows, _: *const Heads, next: *const u8, _: usize, to: *mut Slice) {
        unsafe {
            let upper = turn(rows, 0);
            let four = turn(rows, 32);
            each!(three_bits(&four, &upper, next, to), 0 1 2 3 4 5 6 7);
            let four = turn(rows, 64);
            each!(three_bits(&four, &upper, next, to), 8 9 10 11 12 13 14 15);
        }
    }
    #[inline(always)]
    unsafe fn head(rows: &Rows) -> Head {
        unsafe {
            // The last sixteen bytes: two of codes, three words, `d`.
            let [p, q, r, s] = turn_short(rows, 94);
            let across = |low, high| {
                _mm512_or_si512(_mm512_srli_epi32::<16>(low), _mm512_slli_epi32::<16>(high))
            };
            let (a, b, c) = (across(p, q), across(q, r), across(r, s));
            let join = |nibbles, pairs| {
                let pairs = _mm512_slli_epi32::<4>(and(pairs, 3));
                _mm512_or_si512(and(nibbles, 15), pairs)
            };
            Head {
                d: halves(s, true),
                minimum: _mm512_setzero_ps(),
                scales: [
                    join(a, c),
                    join(b, _mm512_srli_epi32::<2>(c)),
                    join(_mm512_srli_epi32::<4>(a), _mm512_srli_epi32::<4>(c)),
                    join(_mm512_srli_epi32::<4>(b), _mm512_srli_epi32::<6>(c)),
                ],
                minima: [_mm512_setzero_si512(); 4],
            }
        }
    }
}

/// Vector `I % 8` of half the slices of Q2_K.
#[inline(always)]
unsafe fn two_bits<const I: usize>(four: &[__m512i; 8], next: *const u8, to: *mut Slice) {
    ask_for::<Q2K>(next, 2 * I);
    ask_for::<Q2K>(next, 2 * I + 1);
    unsafe {
        for u in 0..4 {
            (*to.add(I / 8 * 4 + u))[I % 8] = bits(four[I % 8], 2 * u as i32, 3);
        }
    }
}

impl Tiled for Q2K {
    const VALUES: usize = SPAN;
    const MINIMUM: bool = true;
    const HALVES: bool = true;
    const PAIRED: bool = true;
    const ABOVE: u32 = 0;
    #[inline(always)]
    unsafe fn codes(rows: &Rows, _: *const Heads, next: *const u8, _: usize, to: *mut Slice) {
        unsafe {
            let four = turn(rows, 16);
            each!(two_bits(&four, next, to), 0 1 2 3 4 5 6 7);
            let four = turn(rows, 48);
            each!(two_bits(&four, next, to), 8 9 10 11 12 13 14 15);
        }
    }
    #[inline(always)]
    unsafe fn head(rows: &Rows) -> Head {
        unsafe {
            // The block's last sixteen bytes end with `d` and `dmin`.
            let [_, _, _, both] = turn_short(rows, 68);
            let mut head = Head {
                d: halves(both, false),
                minimum: halves(both, true),
                scales: turn_short(rows, 0),
                minima: [_mm512_setzero_si512(); 4],
            };
            for g in 0..4 {
                head.minima[g] = and(_mm512_srli_epi32::<4>(head.scales[g]), 15);
                head.scales[g] = and(head.scales[g], 15);
            }
            head
        }
    }
}

impl Tiled for Iq4Xs {
    const VALUES: usize = SPAN;
    const MINIMUM: bool = false;
    const ABOVE: u32 = 128;
    const SCALES_ABOVE: u8 = 32;
    const ALTERNATE: bool = true;
    #[inline(always)]
    unsafe fn codes(rows: &Rows, _: *const Heads, next: *const u8, _: usize, to: *mut Slice) {
        unsafe {
            #[inline(always)]
            unsafe fn slice<const J: usize>(rows: &Rows, next: *const u8, to: *mut Slice) {
                for i in 4 * J..4 * J + 4 {
                    ask_for::<Iq4Xs>(next, i);
                }
                unsafe { *to.add(J) = turn_on_grid(rows, 8 + 16 * J) };
            }
            each!(slice(rows, next, to), 0 1 2 3 4 5 6 7);
        }
    }
    #[inline(always)]
    unsafe fn head(rows: &Rows) -> Head {
        unsafe {
            let [both, low, _, _] = turn_short(rows, 0);
            // Two slices' upper bits in each nibble, moved apart, into a byte each.
            let high = _mm512_srli_epi32::<16>(both);
            let high = _mm512_or_si512(high, _mm512_slli_epi32::<8>(high));
            let high = _mm512_and_si512(high, _mm512_set1_epi32(0x00FF_00FF));
            let high = and(_mm512_or_si512(high, _mm512_slli_epi32::<4>(high)), 15);
            let join = |nibbles, pairs| {
                let pairs = _mm512_slli_epi32::<4>(and(pairs, 3));
                _mm512_or_si512(and(nibbles, 15), pairs)
            };
            let zero = _mm512_setzero_si512();
            let odd = join(_mm512_srli_epi32::<4>(low), _mm512_srli_epi32::<2>(high));
            Head {
                d: halves(both, false),
                minimum: _mm512_setzero_ps(),
                scales: [join(low, high), odd, zero, zero],
                minima: [zero; 4],
            }
        }
    }
}
