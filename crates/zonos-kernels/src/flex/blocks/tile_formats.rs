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

/// The heads of a span's blocks, a row a lane.
#[repr(C, align(64))]
pub(super) struct Heads {
    /// Halves: a scale of each slice for short formats, the blocks' own for long ones.
    pub(super) d: [[u16; 16]; SLICES],
    pub(super) minimum: [[u16; 16]; SLICES],
    /// Fifth bits of the slices of short formats.
    fifth: [[u32; 16]; SLICES],
    /// Integer scales, four bytes of each row.
    pub(super) scales: [[u32; 16]; 4],
    pub(super) minima: [[u32; 16]; 4],
}

/// Writes a number as it is: compilers that see sixteen of them gather them in a vector, which is slower.
#[inline(always)]
unsafe fn put<T>(to: *mut T, value: T) {
    unsafe { to.write_volatile(value) }
}

/// A slice of sixteen rows: vectors of four codes of each.
pub(super) type Slice = [__m512i; 8];

/// What the slices of a block of 256 values share.
#[derive(Clone, Copy, Default)]
struct Head {
    /// The bits of the block's scale, and of what its minima are multiplied with.
    d: u16,
    minimum: u16,
    /// A byte for each slice or half slice.
    scales: [u32; 4],
    minima: [u32; 4],
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
    /// How much too high the codes are: 0 or a power of two.
    const ABOVE: u32;
    /// How much too high the integer scales are.
    const SCALES_ABOVE: f32 = 0.0;
    /// Whether integer scales are signed bytes.
    const SIGNED_SCALES: bool = false;
    /// What the first `slices` slices of sixteen rows are multiplied with.
    unsafe fn heads(rows: &Rows, slices: usize, to: *mut Heads);
    /// The codes of the first `slices` slices of sixteen rows, four neighbouring ones of each row in a vector.
    /// On the way as many bytes from `next` on are asked for.
    unsafe fn codes(
        rows: &Rows,
        heads: *const Heads,
        next: *const u8,
        slices: usize,
        to: *mut Slice,
    );
}

/// Asks for part `i` of `OF` of the `BYTES` bytes from `next` on. They need not be readable.
///
/// A few lines at a time: more at once than the processor keeps track of would hold it up.
#[inline(always)]
unsafe fn ask<const BYTES: usize, const OF: usize>(next: *const u8, i: usize) {
    let lines = BYTES.div_ceil(64);
    for line in i * lines / OF..(i + 1) * lines / OF {
        // SAFETY: asking for a line has no effect but in caches, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(next.wrapping_add(64 * line).cast()) };
    }
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
unsafe fn word(p: *const u8) -> u32 {
    unsafe { p.cast::<u32>().read_unaligned() }
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

macro_rules! short {
    ($($name:ident: $minimum:literal, $above:literal, $fifth:expr, |$rows:ident, $words:ident| $codes:expr;)*) => {$(
        impl Tiled for $name {
            const VALUES: usize = SLICE;
            const MINIMUM: bool = $minimum;
            const ABOVE: u32 = $above;
            #[inline(always)]
            unsafe fn heads(rows: &Rows, slices: usize, to: *mut Heads) {
                unsafe {
                    let fifth: Option<usize> = $fifth;
                    for j in 0..slices {
                        let rows = rows.from(j * Self::SIZE);
                        for r in 0..16 {
                            let block = rows.at(r);
                            put(&raw mut (*to).d[j][r], half(block));
                            if <Self as Tiled>::MINIMUM {
                                put(&raw mut (*to).minimum[j][r], half(block.add(2)));
                            }
                            if let Some(at) = fifth {
                                put(&raw mut (*to).fifth[j][r], word(block.add(at)));
                            }
                        }
                    }
                }
            }
            #[inline(always)]
            unsafe fn codes(
                rows: &Rows,
                heads: *const Heads,
                next: *const u8,
                slices: usize,
                to: *mut Slice,
            ) {
                unsafe {
                    for j in 0..slices {
                        ask::<{ 8 * 16 * Self::SIZE }, 8>(next, j);
                        let $rows = &rows.from(j * Self::SIZE);
                        let $words = &raw const (*heads).fifth[j];
                        *to.add(j) = $codes;
                    }
                }
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

macro_rules! long_heads {
    ($head:ident) => {
        #[inline(always)]
        unsafe fn heads(rows: &Rows, _: usize, to: *mut Heads) {
            unsafe {
                for r in 0..16 {
                    let head = $head(rows.at(r));
                    put(&raw mut (*to).d[0][r], head.d);
                    if <Self as Tiled>::MINIMUM {
                        put(&raw mut (*to).minimum[0][r], head.minimum);
                    }
                    for g in 0..if Self::HALVES { 4 } else { 2 } {
                        put(&raw mut (*to).scales[g][r], head.scales[g]);
                        if <Self as Tiled>::MINIMUM {
                            put(&raw mut (*to).minima[g][r], head.minima[g]);
                        }
                    }
                }
            }
        }
    };
}

/// Scales and minima of six bits at `block + 4`.
#[inline(always)]
unsafe fn six_bits(block: *const u8) -> Head {
    unsafe {
        let (a, b, c) = (word(block.add(4)), word(block.add(8)), word(block.add(12)));
        let low = |x: u32| x & 0x3F3F_3F3F;
        let high = |nibbles: u32, pairs: u32| nibbles & 0x0F0F_0F0F | pairs >> 2 & 0x3030_3030;
        Head {
            d: half(block),
            minimum: half(block.add(2)),
            scales: [low(a), high(c, a), 0, 0],
            minima: [low(b), high(c >> 4, b), 0, 0],
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
            for pair in 0..4 {
                let both = turn(rows, 16 + 32 * pair);
                for q in 0..8 {
                    ask::<{ 16 * Self::SIZE }, 32>(next, 8 * pair + q);
                    (*to.add(2 * pair))[q] = bits(both[q], 0, 15);
                    (*to.add(2 * pair + 1))[q] = bits(both[q], 4, 15);
                }
            }
        }
    }
    long_heads!(six_bits);
}

impl Tiled for Q5K {
    const VALUES: usize = SPAN;
    const MINIMUM: bool = true;
    const ABOVE: u32 = 0;
    #[inline(always)]
    unsafe fn codes(rows: &Rows, _: *const Heads, next: *const u8, _: usize, to: *mut Slice) {
        unsafe {
            let fifth = turn(rows, 16);
            for pair in 0..4 {
                let both = turn(rows, 48 + 32 * pair);
                for q in 0..8 {
                    ask::<{ 16 * Self::SIZE }, 32>(next, 8 * pair + q);
                    for u in 0..2 {
                        let j = 2 * pair + u;
                        let low = bits(both[q], 4 * u as i32, 15);
                        let high = bits(fifth[q], j as i32 - 4, 16);
                        (*to.add(j))[q] = _mm512_or_si512(low, high);
                    }
                }
            }
        }
    }
    long_heads!(six_bits);
}

/// Of Q6K.
#[inline(always)]
unsafe fn q6_head(block: *const u8) -> Head {
    unsafe {
        let at = |i: usize| word(block.add(192 + 4 * i));
        Head {
            d: half(block.add(208)),
            scales: [at(0), at(1), at(2), at(3)],
            ..Head::default()
        }
    }
}

impl Tiled for Q6K {
    const VALUES: usize = SPAN;
    const MINIMUM: bool = false;
    const HALVES: bool = true;
    const ABOVE: u32 = 32;
    const SIGNED_SCALES: bool = true;
    #[inline(always)]
    unsafe fn codes(rows: &Rows, _: *const Heads, next: *const u8, _: usize, to: *mut Slice) {
        unsafe {
            for h in 0..2 {
                let upper = turn(rows, 128 + 32 * h);
                for v in 0..2 {
                    let both = turn(rows, 64 * h + 32 * v);
                    for q in 0..8 {
                        ask::<{ 16 * Self::SIZE }, 32>(next, 16 * h + 8 * v + q);
                        for u in 0..2 {
                            let low = bits(both[q], 4 * u as i32, 15);
                            let high = bits(upper[q], 2 * (2 * u + v) as i32 - 4, 0x30);
                            (*to.add(4 * h + 2 * u + v))[q] = _mm512_or_si512(low, high);
                        }
                    }
                }
            }
        }
    }
    long_heads!(q6_head);
}

/// Of Q3K.
#[inline(always)]
unsafe fn q3_head(block: *const u8) -> Head {
    unsafe {
        let (a, b, c) = (
            word(block.add(96)),
            word(block.add(100)),
            word(block.add(104)),
        );
        let join = |nibbles: u32, at: u32, pairs: u32| {
            nibbles >> at & 0x0F0F_0F0F | (pairs & 0x0303_0303) << 4
        };
        Head {
            d: half(block.add(108)),
            scales: [
                join(a, 0, c),
                join(b, 0, c >> 2),
                join(a, 4, c >> 4),
                join(b, 4, c >> 6),
            ],
            ..Head::default()
        }
    }
}

impl Tiled for Q3K {
    const VALUES: usize = SPAN;
    const MINIMUM: bool = false;
    const HALVES: bool = true;
    const ABOVE: u32 = 4;
    const SCALES_ABOVE: f32 = 32.0;
    #[inline(always)]
    unsafe fn codes(rows: &Rows, _: *const Heads, next: *const u8, _: usize, to: *mut Slice) {
        unsafe {
            let upper = turn(rows, 0);
            for h in 0..2 {
                let four = turn(rows, 32 + 32 * h);
                for q in 0..8 {
                    ask::<{ 16 * Self::SIZE }, 16>(next, 8 * h + q);
                    for u in 0..4 {
                        let low = bits(four[q], 2 * u as i32, 3);
                        let high = bits(upper[q], (4 * h + u) as i32 - 2, 4);
                        (*to.add(4 * h + u))[q] = _mm512_or_si512(low, high);
                    }
                }
            }
        }
    }
    long_heads!(q3_head);
}

/// Of Q2K.
#[inline(always)]
unsafe fn q2_head(block: *const u8) -> Head {
    unsafe {
        let at = |i: usize| word(block.add(4 * i));
        let both = [at(0), at(1), at(2), at(3)];
        Head {
            d: half(block.add(80)),
            minimum: half(block.add(82)),
            scales: both.map(|v| v & 0x0F0F_0F0F),
            minima: both.map(|v| v >> 4 & 0x0F0F_0F0F),
        }
    }
}

impl Tiled for Q2K {
    const VALUES: usize = SPAN;
    const MINIMUM: bool = true;
    const HALVES: bool = true;
    const ABOVE: u32 = 0;
    #[inline(always)]
    unsafe fn codes(rows: &Rows, _: *const Heads, next: *const u8, _: usize, to: *mut Slice) {
        unsafe {
            for h in 0..2 {
                let four = turn(rows, 16 + 32 * h);
                for q in 0..8 {
                    ask::<{ 16 * Self::SIZE }, 16>(next, 8 * h + q);
                    for u in 0..4 {
                        (*to.add(4 * h + u))[q] = bits(four[q], 2 * u as i32, 3);
                    }
                }
            }
        }
    }
    long_heads!(q2_head);
}

/// Of Iq4Xs.
#[inline(always)]
unsafe fn iq4_head(block: *const u8) -> Head {
    unsafe {
        // Nibbles and pairs of bits moved apart, into a byte each.
        let mut low = u64::from(word(block.add(4)));
        low = (low | low << 16) & 0x0000_FFFF_0000_FFFF;
        low = (low | low << 8) & 0x00FF_00FF_00FF_00FF;
        low = (low | low << 4) & 0x0F0F_0F0F_0F0F_0F0F;
        let mut high = u64::from(half(block.add(2)));
        high = (high | high << 24) & 0x0000_00FF_0000_00FF;
        high = (high | high << 12) & 0x000F_000F_000F_000F;
        high = (high | high << 6) & 0x0303_0303_0303_0303;
        let scales = low | high << 4;
        Head {
            d: half(block),
            scales: [scales as u32, (scales >> 32) as u32, 0, 0],
            ..Head::default()
        }
    }
}

impl Tiled for Iq4Xs {
    const VALUES: usize = SPAN;
    const MINIMUM: bool = false;
    const ABOVE: u32 = 128;
    const SCALES_ABOVE: f32 = 32.0;
    #[inline(always)]
    unsafe fn codes(rows: &Rows, _: *const Heads, next: *const u8, _: usize, to: *mut Slice) {
        unsafe {
            for j in 0..8 {
                ask::<{ 16 * Self::SIZE }, 8>(next, j);
                *to.add(j) = turn_on_grid(rows, 8 + 16 * j);
            }
        }
    }
    long_heads!(iq4_head);
}
