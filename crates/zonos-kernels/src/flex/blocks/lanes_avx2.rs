//! Eight rows: AVX2, FMA and F16C.
//!
//! # Safety
//!
//! As [`lanes`](super::lanes) says, which the `unsafe` blocks rest on.

use std::arch::x86_64::*;

use super::lanes::{Lanes, Rows};

/// With AVX2, FMA and F16C.
#[derive(Clone, Copy)]
pub(super) struct Eight;

/// Two places of 16 bytes, one behind the other.
#[inline(always)]
unsafe fn load(a: *const u8, b: *const u8) -> __m256i {
    unsafe {
        let a = _mm256_castsi128_si256(_mm_loadu_si128(a.cast()));
        _mm256_inserti128_si256::<1>(a, _mm_loadu_si128(b.cast()))
    }
}

impl Lanes for Eight {
    const ROWS: usize = 8;
    const SIGNED: bool = true;
    type Ints = __m256i;
    type Floats = __m256;

    #[inline(always)]
    unsafe fn byte(b: u8) -> __m256i {
        unsafe { _mm256_set1_epi8(b as i8) }
    }
    #[inline(always)]
    unsafe fn word(w: u32) -> __m256i {
        unsafe { _mm256_set1_epi32(w as i32) }
    }
    #[inline(always)]
    unsafe fn and(a: __m256i, b: __m256i) -> __m256i {
        unsafe { _mm256_and_si256(a, b) }
    }
    #[inline(always)]
    unsafe fn or(a: __m256i, b: __m256i) -> __m256i {
        unsafe { _mm256_or_si256(a, b) }
    }
    #[inline(always)]
    unsafe fn xor(a: __m256i, b: __m256i) -> __m256i {
        unsafe { _mm256_xor_si256(a, b) }
    }
    #[inline(always)]
    unsafe fn right(v: __m256i, n: i32) -> __m256i {
        unsafe {
            if n >= 0 {
                _mm256_srl_epi32(v, _mm_cvtsi32_si128(n))
            } else {
                _mm256_sll_epi32(v, _mm_cvtsi32_si128(-n))
            }
        }
    }
    #[inline(always)]
    unsafe fn sub_bytes(a: __m256i, b: __m256i) -> __m256i {
        unsafe { _mm256_sub_epi8(a, b) }
    }
    #[inline(always)]
    unsafe fn multiply_halves(a: __m256i, b: __m256i) -> __m256i {
        unsafe { _mm256_madd_epi16(a, b) }
    }
    #[inline(always)]
    unsafe fn join_halves(first: __m256i, second: __m256i) -> __m256i {
        unsafe { _mm256_blend_epi16::<0b1010_1010>(first, _mm256_slli_epi32::<16>(second)) }
    }
    #[inline(always)]
    unsafe fn shuffle(v: __m256i, places: __m128i) -> __m256i {
        unsafe { _mm256_shuffle_epi8(v, _mm256_broadcastsi128_si256(places)) }
    }
    #[inline(always)]
    unsafe fn look_up(table: __m128i, places: __m256i) -> __m256i {
        unsafe { _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), places) }
    }
    #[inline(always)]
    unsafe fn fifth_bits(words: __m256i, q: usize) -> __m256i {
        unsafe {
            // The byte that has the four bits in all four bytes of the lane, then one bit in each.
            let byte = (q / 2) as i32 * 0x0101_0101;
            let lanes = _mm256_setr_epi32(
                0,
                0x0404_0404,
                0x0808_0808,
                0x0C0C_0C0C,
                0,
                0x0404_0404,
                0x0808_0808,
                0x0C0C_0C0C,
            );
            let places = _mm256_or_si256(lanes, _mm256_set1_epi32(byte));
            let bit = _mm256_set1_epi32(0x0804_0201 << (4 * (q & 1)));
            let each = _mm256_and_si256(_mm256_shuffle_epi8(words, places), bit);
            _mm256_and_si256(_mm256_cmpeq_epi8(each, bit), _mm256_set1_epi8(16))
        }
    }
    #[inline(always)]
    unsafe fn turn(rows: &Rows, at: usize) -> [__m256i; 8] {
        unsafe {
            let [a, b, c, d] = Self::turn_short(rows, at);
            let [e, f, g, h] = Self::turn_short(rows, at + 16);
            [a, b, c, d, e, f, g, h]
        }
    }
    #[inline(always)]
    unsafe fn turn_short(rows: &Rows, at: usize) -> [__m256i; 4] {
        unsafe {
            let rows = rows.from(at);
            let a = load(rows.at(0), rows.at(4));
            let b = load(rows.at(1), rows.at(5));
            let c = load(rows.at(2), rows.at(6));
            let d = load(rows.at(3), rows.at(7));
            let (low, high) = (_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
            let (later_low, later_high) =
                (_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
            [
                _mm256_unpacklo_epi64(low, later_low),
                _mm256_unpackhi_epi64(low, later_low),
                _mm256_unpacklo_epi64(high, later_high),
                _mm256_unpackhi_epi64(high, later_high),
            ]
        }
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> __m256 {
        unsafe { _mm256_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn mul(a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn fma(a: __m256, b: __m256, c: __m256) -> __m256 {
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> __m256 {
        unsafe { _mm256_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: __m256) {
        unsafe { _mm256_storeu_ps(p, v) }
    }
    #[inline(always)]
    unsafe fn floats(words: __m256i) -> __m256 {
        unsafe { _mm256_cvtepi32_ps(words) }
    }
    #[inline(always)]
    unsafe fn halves_in(words: __m256i, upper: bool) -> __m256 {
        unsafe {
            let words = if upper {
                _mm256_srli_epi32::<16>(words)
            } else {
                _mm256_and_si256(words, _mm256_set1_epi32(0xFFFF))
            };
            let both = _mm256_packus_epi32(words, words);
            let both = _mm256_permute4x64_epi64::<0b1000>(both);
            _mm256_cvtph_ps(_mm256_castsi256_si128(both))
        }
    }
    #[inline(always)]
    unsafe fn integers(words: __m256i) -> [__m256; 4] {
        unsafe {
            let mut floats = [_mm256_setzero_ps(); 4];
            for i in 0..4 {
                let top = Self::right(words, 8 * i as i32 - 24);
                floats[i] = _mm256_cvtepi32_ps(_mm256_srai_epi32::<24>(top));
            }
            floats
        }
    }
}
