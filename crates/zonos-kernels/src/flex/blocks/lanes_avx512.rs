//! Sixteen rows: AVX-512 F, BW and VL.
//!
//! # Safety
//!
//! As [`lanes`](super::lanes) says, which the `unsafe` blocks rest on.

use std::arch::x86_64::*;

use super::lanes::{Lanes, Rows};

/// With AVX-512 F, BW and VL.
#[derive(Clone, Copy)]
pub(super) struct Sixteen;

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

/// Four bytes of each row: byte `i` of each.
#[repr(C, align(64))]
struct Turned([[u8; 16]; 4]);

impl Lanes for Sixteen {
    const ROWS: usize = 16;
    const SIGNED: bool = false;
    type Ints = __m512i;
    type Floats = __m512;

    #[inline(always)]
    unsafe fn byte(b: u8) -> __m512i {
        unsafe { _mm512_set1_epi8(b as i8) }
    }
    #[inline(always)]
    unsafe fn word(w: u32) -> __m512i {
        unsafe { _mm512_set1_epi32(w as i32) }
    }
    #[inline(always)]
    unsafe fn and(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_and_si512(a, b) }
    }
    #[inline(always)]
    unsafe fn or(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_or_si512(a, b) }
    }
    #[inline(always)]
    unsafe fn xor(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_xor_si512(a, b) }
    }
    #[inline(always)]
    unsafe fn right(v: __m512i, n: i32) -> __m512i {
        unsafe {
            if n >= 0 {
                _mm512_srl_epi32(v, _mm_cvtsi32_si128(n))
            } else {
                _mm512_sll_epi32(v, _mm_cvtsi32_si128(-n))
            }
        }
    }
    #[inline(always)]
    unsafe fn sub_bytes(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_sub_epi8(a, b) }
    }
    #[inline(always)]
    unsafe fn multiply_halves(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_madd_epi16(a, b) }
    }
    #[inline(always)]
    unsafe fn join_halves(first: __m512i, second: __m512i) -> __m512i {
        unsafe { _mm512_mask_blend_epi16(0xAAAA_AAAA, first, _mm512_slli_epi32::<16>(second)) }
    }
    #[inline(always)]
    unsafe fn shuffle(v: __m512i, places: __m128i) -> __m512i {
        unsafe { _mm512_shuffle_epi8(v, _mm512_broadcast_i32x4(places)) }
    }
    #[inline(always)]
    unsafe fn look_up(table: __m128i, places: __m512i) -> __m512i {
        unsafe { _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), places) }
    }
    #[inline(always)]
    unsafe fn fifth_bits(words: __m512i, q: usize) -> __m512i {
        unsafe {
            // The permutation looks at the four lowest bits of an index alone.
            let four = _mm512_srl_epi32(words, _mm_cvtsi32_si128(4 * q as i32));
            _mm512_permutexvar_epi32(four, _mm512_loadu_si512(FIFTH.as_ptr().cast()))
        }
    }
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

    #[inline(always)]
    unsafe fn splat(x: f32) -> __m512 {
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> __m512 {
        unsafe { _mm512_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: __m512) {
        unsafe { _mm512_storeu_ps(p, v) }
    }
    #[inline(always)]
    unsafe fn floats(words: __m512i) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(words) }
    }
    #[inline(always)]
    unsafe fn halves_in(words: __m512i, upper: bool) -> __m512 {
        unsafe {
            let words = if upper {
                _mm512_srli_epi32::<16>(words)
            } else {
                words
            };
            _mm512_cvtph_ps(_mm512_cvtepi32_epi16(words))
        }
    }
    #[inline(always)]
    unsafe fn integers(words: __m512i) -> [__m512; 4] {
        unsafe {
            let fours = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
            let words = _mm512_shuffle_epi8(words, _mm512_broadcast_i32x4(fours));
            let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
            let mut bytes = Turned([[0; 16]; 4]);
            let turned = _mm512_permutexvar_epi32(order, words);
            _mm512_store_si512((&raw mut bytes.0).cast(), turned);
            let mut floats = [_mm512_setzero_ps(); 4];
            for i in 0..4 {
                let bytes = _mm_load_si128(bytes.0[i].as_ptr().cast());
                floats[i] = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
            }
            floats
        }
    }
}
