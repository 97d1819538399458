//! The block formats with AVX2: codes of 32 values in a register, and what they are multiplied with.
//!
//! A value is `scale (code - offset) - minimum`. Layouts are those of `zonos_gguf::blocks`.
//!
//! # Safety
//!
//! All functions here are parts of the loops in `kernels`: they run on a processor with AVX2, FMA and F16C, and
//! read within the whole, readable blocks that their pointers are given for. The `unsafe` blocks of their
//! bodies rest on that.

use std::arch::x86_64::*;

use zonos_gguf::blocks::iq4::GRID;

/// What all formats say of themselves.
///
/// # Safety
///
/// Methods of the traits below need AVX2, FMA and F16C, and a pointer to a whole readable block.
pub(super) trait Format: 'static {
    /// Bytes of a block.
    const SIZE: usize;
    /// What stands for zero among the codes as they are stored.
    const OFFSET: u8;
}

/// A format whose blocks are 32 values.
pub(super) trait Short: Format {
    /// Whether there is a minimum.
    const MINIMUM: bool;
    /// Of the first `count` of up to 8 blocks side by side: scales, and minima, which are added for each unit of
    /// the sum of activations. Zero beyond `count`.
    unsafe fn scales(span: *const u8, count: usize) -> (__m256, __m256);
    /// The codes.
    unsafe fn codes(block: *const u8) -> __m256i;
}

/// Which of the activations' sums minima are multiplied with.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Minima {
    /// There are none.
    None,
    /// Those of 32 values.
    Slices,
    /// Those of 16 values.
    Halves,
}

/// A format whose blocks are 8 slices of 32 values.
pub(super) trait Long: Format {
    /// Which minima there are.
    const MINIMA: Minima;
    /// What slices share.
    type Head: Copy;
    unsafe fn head(block: *const u8) -> Self::Head;
    /// The codes of a slice.
    unsafe fn codes<const J: usize>(block: *const u8, head: &Self::Head) -> __m256i;
    /// The integer scales of a slice, those of its values in 16 bits.
    unsafe fn multipliers<const J: usize>(head: &Self::Head) -> __m256i;
    /// What the integer scales are multiplied with, in all lanes.
    unsafe fn factor(head: &Self::Head) -> __m256;
    /// What is subtracted, for each unit of a sum of activations: 8 slices or 16 halves.
    unsafe fn minima(head: &Self::Head) -> [__m256; 2];
}

/// A half, in all lanes.
#[inline(always)]
unsafe fn half(p: *const u8) -> __m256 {
    unsafe { _mm256_cvtph_ps(_mm_set1_epi16(half_bits(p))) }
}

/// Two halves side by side, each in all lanes.
#[inline(always)]
unsafe fn halves(p: *const u8) -> (__m256, __m256) {
    unsafe {
        let both = _mm256_cvtph_ps(_mm_set1_epi32(word(p) as i32));
        (_mm256_moveldup_ps(both), _mm256_movehdup_ps(both))
    }
}

#[inline(always)]
unsafe fn half_bits(p: *const u8) -> i16 {
    unsafe { p.cast::<i16>().read_unaligned() }
}

/// The halves that `count` blocks of `SIZE` bytes begin with.
#[inline(always)]
unsafe fn first_halves<const SIZE: usize>(span: *const u8, count: usize) -> __m256 {
    unsafe {
        if count == 8 {
            let mut v = _mm_cvtsi32_si128(i32::from(half_bits(span)));
            v = _mm_insert_epi16::<1>(v, half_bits(span.add(SIZE)).into());
            v = _mm_insert_epi16::<2>(v, half_bits(span.add(2 * SIZE)).into());
            v = _mm_insert_epi16::<3>(v, half_bits(span.add(3 * SIZE)).into());
            v = _mm_insert_epi16::<4>(v, half_bits(span.add(4 * SIZE)).into());
            v = _mm_insert_epi16::<5>(v, half_bits(span.add(5 * SIZE)).into());
            v = _mm_insert_epi16::<6>(v, half_bits(span.add(6 * SIZE)).into());
            v = _mm_insert_epi16::<7>(v, half_bits(span.add(7 * SIZE)).into());
            return _mm256_cvtph_ps(v);
        }
        let mut bits = [0i16; 8];
        for j in 0..count {
            bits[j] = half_bits(span.add(j * SIZE));
        }
        _mm256_cvtph_ps(_mm_loadu_si128(bits.as_ptr().cast()))
    }
}

/// The two halves that each of `count` blocks of `SIZE` bytes begins with.
#[inline(always)]
unsafe fn first_pairs<const SIZE: usize>(span: *const u8, count: usize) -> (__m256, __m256) {
    unsafe {
        let (near, far) = if count == 8 {
            let mut near = _mm_cvtsi32_si128(word(span) as i32);
            near = _mm_insert_epi32::<1>(near, word(span.add(SIZE)) as i32);
            near = _mm_insert_epi32::<2>(near, word(span.add(2 * SIZE)) as i32);
            near = _mm_insert_epi32::<3>(near, word(span.add(3 * SIZE)) as i32);
            let mut far = _mm_cvtsi32_si128(word(span.add(4 * SIZE)) as i32);
            far = _mm_insert_epi32::<1>(far, word(span.add(5 * SIZE)) as i32);
            far = _mm_insert_epi32::<2>(far, word(span.add(6 * SIZE)) as i32);
            far = _mm_insert_epi32::<3>(far, word(span.add(7 * SIZE)) as i32);
            (near, far)
        } else {
            let mut words = [0u32; 8];
            for j in 0..count {
                words[j] = word(span.add(j * SIZE));
            }
            let p: *const __m128i = words.as_ptr().cast();
            (_mm_loadu_si128(p), _mm_loadu_si128(p.add(1)))
        };
        let (near, far) = (_mm256_cvtph_ps(near), _mm256_cvtph_ps(far));
        // Pairs apart, then the quarters in order.
        let first = _mm256_castps_pd(_mm256_shuffle_ps::<0x88>(near, far));
        let second = _mm256_castps_pd(_mm256_shuffle_ps::<0xDD>(near, far));
        (
            _mm256_castpd_ps(_mm256_permute4x64_pd::<0xD8>(first)),
            _mm256_castpd_ps(_mm256_permute4x64_pd::<0xD8>(second)),
        )
    }
}

#[inline(always)]
unsafe fn load(p: *const u8) -> __m256i {
    unsafe { _mm256_loadu_si256(p.cast()) }
}

#[inline(always)]
unsafe fn both_lanes(p: *const u8) -> __m256i {
    unsafe { _mm256_broadcastsi128_si256(_mm_loadu_si128(p.cast())) }
}

#[inline(always)]
unsafe fn word(p: *const u8) -> u32 {
    unsafe { p.cast::<u32>().read_unaligned() }
}

#[inline(always)]
unsafe fn bytes(b: u8) -> __m256i {
    unsafe { _mm256_set1_epi8(b as i8) }
}

/// Bits of words moved right by `n`, left where it is negative; bits of neighbouring bytes come along.
#[inline(always)]
unsafe fn right(v: __m256i, n: i32) -> __m256i {
    unsafe {
        if n >= 0 {
            _mm256_srl_epi16(v, _mm_cvtsi32_si128(n))
        } else {
            _mm256_sll_epi16(v, _mm_cvtsi32_si128(-n))
        }
    }
}

/// 16 bytes of nibbles: the low ones, then the high ones.
#[inline(always)]
unsafe fn nibbles(p: *const u8) -> __m256i {
    unsafe {
        let shifted = _mm256_srlv_epi64(both_lanes(p), _mm256_setr_epi64x(0, 0, 4, 4));
        _mm256_and_si256(shifted, bytes(15))
    }
}

/// 16 where the bit of the value is set in the 32 bits at `p`.
#[inline(always)]
unsafe fn fifth_bits(p: *const u8) -> __m256i {
    unsafe {
        let spread = _mm256_setr_epi64x(
            0,
            0x0101_0101_0101_0101,
            0x0202_0202_0202_0202,
            0x0303_0303_0303_0303,
        );
        let each = _mm256_shuffle_epi8(_mm256_set1_epi32(word(p) as i32), spread);
        let bit = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
        let set = _mm256_cmpeq_epi8(_mm256_and_si256(each, bit), bit);
        _mm256_and_si256(set, bytes(16))
    }
}

/// What the nibbles of the uneven grid stand for.
#[inline(always)]
unsafe fn on_grid(codes: __m256i) -> __m256i {
    unsafe { _mm256_shuffle_epi8(both_lanes(GRID.as_ptr().cast()), codes) }
}

/// Codes less their offset.
#[inline(always)]
unsafe fn centred<F: Format>(codes: __m256i) -> __m256i {
    unsafe {
        if F::OFFSET > 0 {
            _mm256_sub_epi8(codes, bytes(F::OFFSET))
        } else {
            codes
        }
    }
}

macro_rules! formats {
    ($($(#[$doc:meta])* $name:ident, $size:literal, $offset:literal;)*) => {$(
        $(#[$doc])*
        pub(super) struct $name;
        impl Format for $name {
            const SIZE: usize = $size;
            const OFFSET: u8 = $offset;
        }
    )*};
}

formats! {
    /// `d` at 0, codes at 2.
    Q8_0, 34, 0;
    /// `d` at 0, nibbles at 2.
    Q4_0, 18, 8;
    /// `d` at 0, minimum at 2, nibbles at 4.
    Q4_1, 20, 0;
    /// `d` at 0, fifth bits at 2, nibbles at 6.
    Q5_0, 22, 16;
    /// `d` at 0, minimum at 2, fifth bits at 4, nibbles at 8.
    Q5_1, 24, 0;
    /// `d` at 0, nibbles at 2.
    Iq4Nl, 18, 0;
    /// Scales and minima at 0, codes at 16, `d` at 80, `dmin` at 82.
    Q2K, 84, 0;
    /// Upper bits at 0, lower two at 32, scales at 96, `d` at 108.
    Q3K, 110, 4;
    /// `d` at 0, `dmin` at 2, scales and minima at 4, nibbles at 16.
    Q4K, 144, 0;
    /// `d` at 0, `dmin` at 2, scales and minima at 4, fifth bits at 16, nibbles at 48.
    Q5K, 176, 0;
    /// Nibbles at 0, upper bits at 128, scales at 192, `d` at 208.
    Q6K, 210, 32;
    /// `d` at 0, upper bits of the scales at 2, lower at 4, nibbles at 8.
    Iq4Xs, 136, 0;
}

impl Short for Q8_0 {
    const MINIMUM: bool = false;
    #[inline(always)]
    unsafe fn scales(span: *const u8, count: usize) -> (__m256, __m256) {
        unsafe {
            (
                first_halves::<{ Self::SIZE }>(span, count),
                _mm256_setzero_ps(),
            )
        }
    }
    #[inline(always)]
    unsafe fn codes(block: *const u8) -> __m256i {
        unsafe { load(block.add(2)) }
    }
}

impl Short for Q4_0 {
    const MINIMUM: bool = false;
    #[inline(always)]
    unsafe fn scales(span: *const u8, count: usize) -> (__m256, __m256) {
        unsafe {
            (
                first_halves::<{ Self::SIZE }>(span, count),
                _mm256_setzero_ps(),
            )
        }
    }
    #[inline(always)]
    unsafe fn codes(block: *const u8) -> __m256i {
        unsafe { centred::<Self>(nibbles(block.add(2))) }
    }
}

impl Short for Q4_1 {
    const MINIMUM: bool = true;
    #[inline(always)]
    unsafe fn scales(span: *const u8, count: usize) -> (__m256, __m256) {
        unsafe { first_pairs::<{ Self::SIZE }>(span, count) }
    }
    #[inline(always)]
    unsafe fn codes(block: *const u8) -> __m256i {
        unsafe { nibbles(block.add(4)) }
    }
}

impl Short for Q5_0 {
    const MINIMUM: bool = false;
    #[inline(always)]
    unsafe fn scales(span: *const u8, count: usize) -> (__m256, __m256) {
        unsafe {
            (
                first_halves::<{ Self::SIZE }>(span, count),
                _mm256_setzero_ps(),
            )
        }
    }
    #[inline(always)]
    unsafe fn codes(block: *const u8) -> __m256i {
        unsafe {
            let codes = _mm256_or_si256(nibbles(block.add(6)), fifth_bits(block.add(2)));
            centred::<Self>(codes)
        }
    }
}

impl Short for Q5_1 {
    const MINIMUM: bool = true;
    #[inline(always)]
    unsafe fn scales(span: *const u8, count: usize) -> (__m256, __m256) {
        unsafe { first_pairs::<{ Self::SIZE }>(span, count) }
    }
    #[inline(always)]
    unsafe fn codes(block: *const u8) -> __m256i {
        unsafe { _mm256_or_si256(nibbles(block.add(8)), fifth_bits(block.add(4))) }
    }
}

impl Short for Iq4Nl {
    const MINIMUM: bool = false;
    #[inline(always)]
    unsafe fn scales(span: *const u8, count: usize) -> (__m256, __m256) {
        unsafe {
            (
                first_halves::<{ Self::SIZE }>(span, count),
                _mm256_setzero_ps(),
            )
        }
    }
    #[inline(always)]
    unsafe fn codes(block: *const u8) -> __m256i {
        unsafe { on_grid(nibbles(block.add(2))) }
    }
}

/// Shuffles that put a scale byte into the words of its values; `HIGH` into their upper bytes, which
/// multiplies it by 256 and keeps its sign.
const fn pattern(j: usize, halves: bool, high: bool) -> [u8; 32] {
    let mut pattern = [0x80; 32];
    let mut i = 0;
    while i < 16 {
        let index = if halves { 2 * j + i / 8 } else { j };
        pattern[2 * i + high as usize] = index as u8;
        i += 1;
    }
    pattern
}

const fn patterns(halves: bool, high: bool) -> [[u8; 32]; 8] {
    let mut all = [[0; 32]; 8];
    let mut j = 0;
    while j < 8 {
        all[j] = pattern(j, halves, high);
        j += 1;
    }
    all
}

/// A scale for 32 values.
static SLICE: [[u8; 32]; 8] = patterns(false, false);
/// A signed scale for 32 values.
static SLICE_SIGNED: [[u8; 32]; 8] = patterns(false, true);
/// A scale for 16 values.
static HALF: [[u8; 32]; 8] = patterns(true, false);
/// A signed scale for 16 values.
static HALF_SIGNED: [[u8; 32]; 8] = patterns(true, true);

/// What [`SLICE_SIGNED`] and [`HALF_SIGNED`] multiply by, undone.
const UNSIGNED: f32 = 1.0 / 256.0;

#[inline(always)]
unsafe fn pick(scales: __m256i, pattern: &[u8; 32]) -> __m256i {
    unsafe { _mm256_shuffle_epi8(scales, load(pattern.as_ptr())) }
}

/// Bytes as floats.
#[inline(always)]
unsafe fn unsigned_floats(bytes: __m128i) -> __m256 {
    unsafe { _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes)) }
}

/// The head of a block with a scale and a minimum for each slice.
#[derive(Clone, Copy)]
pub(super) struct SliceMinima {
    scales: __m256i,
    minima: __m256,
    factor: __m256,
}

/// Scales and minima of six bits at `block + 4`.
#[inline(always)]
unsafe fn slice_minima(block: *const u8) -> SliceMinima {
    unsafe {
        let (a, b, c) = (word(block.add(4)), word(block.add(8)), word(block.add(12)));
        let low = |x: u32| x & 0x3F3F_3F3F;
        let high = |nibbles: u32, pairs: u32| nibbles & 0x0F0F_0F0F | pairs >> 2 & 0x3030_3030;
        let join = |low: u32, high: u32| (u64::from(low) | u64::from(high) << 32) as i64;
        let scales = join(low(a), high(c, a));
        let minima = join(low(b), high(c >> 4, b));
        let (factor, of_minima) = halves(block);
        SliceMinima {
            scales: _mm256_set1_epi64x(scales),
            minima: _mm256_mul_ps(unsigned_floats(_mm_cvtsi64_si128(minima)), of_minima),
            factor,
        }
    }
}

macro_rules! slice_minima_head {
    () => {
        const MINIMA: Minima = Minima::Slices;
        type Head = SliceMinima;
        #[inline(always)]
        unsafe fn head(block: *const u8) -> SliceMinima {
            unsafe { slice_minima(block) }
        }
        #[inline(always)]
        unsafe fn multipliers<const J: usize>(head: &SliceMinima) -> __m256i {
            unsafe { pick(head.scales, &SLICE[J]) }
        }
        #[inline(always)]
        unsafe fn factor(head: &SliceMinima) -> __m256 {
            head.factor
        }
        #[inline(always)]
        unsafe fn minima(head: &SliceMinima) -> [__m256; 2] {
            [head.minima; 2]
        }
    };
}

/// Nibbles of slice `J`, 32 bytes for each pair of slices.
#[inline(always)]
unsafe fn slice_nibbles<const J: usize>(p: *const u8) -> __m256i {
    unsafe {
        let pair = load(p.add(32 * (J / 2)));
        _mm256_and_si256(right(pair, 4 * (J % 2) as i32), bytes(15))
    }
}

impl Long for Q4K {
    slice_minima_head!();
    #[inline(always)]
    unsafe fn codes<const J: usize>(block: *const u8, _: &SliceMinima) -> __m256i {
        unsafe { slice_nibbles::<J>(block.add(16)) }
    }
}

impl Long for Q5K {
    slice_minima_head!();
    #[inline(always)]
    unsafe fn codes<const J: usize>(block: *const u8, _: &SliceMinima) -> __m256i {
        unsafe {
            let fifth = right(load(block.add(16)), J as i32 - 4);
            _mm256_or_si256(
                slice_nibbles::<J>(block.add(48)),
                _mm256_and_si256(fifth, bytes(16)),
            )
        }
    }
}

/// The head of a block with signed scales.
#[derive(Clone, Copy)]
pub(super) struct HalfScales {
    /// In both lanes.
    scales: __m256i,
    factor: __m256,
}

macro_rules! half_scales_head {
    () => {
        const MINIMA: Minima = Minima::None;
        type Head = HalfScales;
        #[inline(always)]
        unsafe fn multipliers<const J: usize>(head: &HalfScales) -> __m256i {
            unsafe { pick(head.scales, &HALF_SIGNED[J]) }
        }
        #[inline(always)]
        unsafe fn factor(head: &HalfScales) -> __m256 {
            head.factor
        }
        #[inline(always)]
        unsafe fn minima(_: &HalfScales) -> [__m256; 2] {
            unsafe { [_mm256_setzero_ps(); 2] }
        }
    };
}

/// Two-bit codes of slice `J`, 32 bytes for each four slices, at bits `at` and `at + 1`.
#[inline(always)]
unsafe fn two_bits<const J: usize>(p: *const u8, at: i32) -> __m256i {
    unsafe {
        let four = load(p.add(32 * (J / 4)));
        let moved = right(four, 2 * (J % 4) as i32 - at);
        _mm256_and_si256(moved, bytes(3 << at))
    }
}

impl Long for Q6K {
    half_scales_head!();
    #[inline(always)]
    unsafe fn head(block: *const u8) -> HalfScales {
        unsafe {
            HalfScales {
                scales: both_lanes(block.add(192)),
                factor: _mm256_mul_ps(half(block.add(208)), _mm256_set1_ps(UNSIGNED)),
            }
        }
    }
    #[inline(always)]
    unsafe fn codes<const J: usize>(block: *const u8, _: &HalfScales) -> __m256i {
        unsafe {
            let (h, u, v) = (J / 4, J / 2 % 2, J % 2);
            let low = right(load(block.add(64 * h + 32 * v)), 4 * u as i32);
            let low = _mm256_and_si256(low, bytes(15));
            let high = two_bits::<J>(block.add(128), 4);
            centred::<Self>(_mm256_or_si256(low, high))
        }
    }
}

impl Long for Q3K {
    half_scales_head!();
    #[inline(always)]
    unsafe fn head(block: *const u8) -> HalfScales {
        unsafe {
            let (a, b, c) = (
                word(block.add(96)),
                word(block.add(100)),
                word(block.add(104)),
            );
            let join = |a: u32, b: u32, shift: u32| {
                let low =
                    u64::from(a >> shift & 0x0F0F_0F0F) | u64::from(b >> shift & 0x0F0F_0F0F) << 32;
                let high = u64::from(c >> shift & 0x0303_0303)
                    | u64::from(c >> (shift + 2) & 0x0303_0303) << 32;
                (low | high << 4) as i64
            };
            let scales = _mm_set_epi64x(join(a, b, 4), join(a, b, 0));
            let scales = _mm_sub_epi8(scales, _mm_set1_epi8(32));
            HalfScales {
                scales: _mm256_broadcastsi128_si256(scales),
                factor: _mm256_mul_ps(half(block.add(108)), _mm256_set1_ps(UNSIGNED)),
            }
        }
    }
    #[inline(always)]
    unsafe fn codes<const J: usize>(block: *const u8, _: &HalfScales) -> __m256i {
        unsafe {
            let upper = _mm256_and_si256(right(load(block), J as i32 - 2), bytes(4));
            centred::<Self>(_mm256_or_si256(two_bits::<J>(block.add(32), 0), upper))
        }
    }
}

/// The head of Q2_K.
#[derive(Clone, Copy)]
pub(super) struct HalfMinima {
    scales: __m256i,
    /// A byte each.
    minima: __m128i,
    factor: __m256,
    of_minima: __m256,
}

impl Long for Q2K {
    const MINIMA: Minima = Minima::Halves;
    type Head = HalfMinima;
    #[inline(always)]
    unsafe fn head(block: *const u8) -> HalfMinima {
        unsafe {
            let both = both_lanes(block);
            let (factor, of_minima) = halves(block.add(80));
            HalfMinima {
                scales: _mm256_and_si256(both, bytes(15)),
                minima: _mm256_castsi256_si128(_mm256_and_si256(right(both, 4), bytes(15))),
                factor,
                of_minima,
            }
        }
    }
    #[inline(always)]
    unsafe fn codes<const J: usize>(block: *const u8, _: &HalfMinima) -> __m256i {
        unsafe { two_bits::<J>(block.add(16), 0) }
    }
    #[inline(always)]
    unsafe fn multipliers<const J: usize>(head: &HalfMinima) -> __m256i {
        unsafe { pick(head.scales, &HALF[J]) }
    }
    #[inline(always)]
    unsafe fn factor(head: &HalfMinima) -> __m256 {
        head.factor
    }
    #[inline(always)]
    unsafe fn minima(head: &HalfMinima) -> [__m256; 2] {
        unsafe {
            let second = _mm_unpackhi_epi64(head.minima, head.minima);
            [
                _mm256_mul_ps(unsigned_floats(head.minima), head.of_minima),
                _mm256_mul_ps(unsigned_floats(second), head.of_minima),
            ]
        }
    }
}

impl Long for Iq4Xs {
    const MINIMA: Minima = Minima::None;
    type Head = HalfScales;
    #[inline(always)]
    unsafe fn head(block: *const u8) -> HalfScales {
        unsafe {
            let all = u64::from(word(block));
            // Nibbles and pairs of bits moved apart, into a byte each.
            let mut low = u64::from(word(block.add(4)));
            low = (low | low << 16) & 0x0000_FFFF_0000_FFFF;
            low = (low | low << 8) & 0x00FF_00FF_00FF_00FF;
            low = (low | low << 4) & 0x0F0F_0F0F_0F0F_0F0F;
            let mut high = all >> 16;
            high = (high | high << 24) & 0x0000_00FF_0000_00FF;
            high = (high | high << 12) & 0x000F_000F_000F_000F;
            high = (high | high << 6) & 0x0303_0303_0303_0303;
            let scales = _mm256_set1_epi64x((low | high << 4) as i64);
            HalfScales {
                scales: _mm256_sub_epi8(scales, bytes(32)),
                factor: _mm256_mul_ps(half(block), _mm256_set1_ps(UNSIGNED)),
            }
        }
    }
    #[inline(always)]
    unsafe fn codes<const J: usize>(block: *const u8, _: &HalfScales) -> __m256i {
        unsafe { on_grid(nibbles(block.add(8 + 16 * J))) }
    }
    #[inline(always)]
    unsafe fn multipliers<const J: usize>(head: &HalfScales) -> __m256i {
        unsafe { pick(head.scales, &SLICE_SIGNED[J]) }
    }
    #[inline(always)]
    unsafe fn factor(head: &HalfScales) -> __m256 {
        head.factor
    }
    #[inline(always)]
    unsafe fn minima(_: &HalfScales) -> [__m256; 2] {
        unsafe { [_mm256_setzero_ps(); 2] }
    }
}
