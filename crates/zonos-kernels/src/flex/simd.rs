//! One kernel source, three instruction sets.
//!
//! A kernel is written once, generic over [`Simd`], as an `#[inline(always)]` function, and entered
//! through [`dispatch`], which calls it inside a function compiled for the best instruction set that
//! the processor has. So a build needs no `target-cpu` flag, and the plain version that the tests
//! compare against is the same source.

use std::sync::OnceLock;

/// Vector operations that the kernels use. Lanes are f32.
///
/// # Safety
///
/// Methods may only be called inside a function compiled for the instruction set that the
/// implementing type stands for, which [`dispatch`] guarantees. Pointers must be valid for
/// [`LANES`](Simd::LANES) elements.
pub(crate) unsafe trait Simd: Copy + Send + Sync + 'static {
    /// f32 lanes in a vector.
    const LANES: usize;
    /// The vector register.
    type V: Copy;

    unsafe fn splat(x: f32) -> Self::V;
    unsafe fn load(p: *const f32) -> Self::V;
    /// Loads IEEE half floats, widened.
    unsafe fn load_f16(p: *const u16) -> Self::V;
    /// Loads bfloat16, widened.
    unsafe fn load_bf16(p: *const u16) -> Self::V;
    unsafe fn store(p: *mut f32, v: Self::V);
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V;
    /// The larger of each pair, `b` where either is NaN.
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`: fused where the instruction set has it.
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// Sum of the lanes, in a fixed order.
    unsafe fn sum(v: Self::V) -> f32;
    /// `2^n` in each lane, for integers `n` from -126 to 127 given as `n + 1.5 * 2^23`.
    unsafe fn power_of_two(shifted: Self::V) -> Self::V;
    /// `y`, zero in the lanes where `x < limit`; where `x` is NaN, `y`.
    unsafe fn zero_below(x: Self::V, limit: Self::V, y: Self::V) -> Self::V;

    /// Writes `block[c][r]` to `to + c * step + r`, for the eight rows `r` of eight columns `c` that
    /// begin at `rows`.
    #[inline(always)]
    unsafe fn transpose(rows: [*const f32; 8], to: *mut f32, step: usize) {
        for (r, row) in rows.into_iter().enumerate() {
            for c in 0..8 {
                // SAFETY: the caller's pointers are valid for the block.
                unsafe { *to.add(c * step + r) = *row.add(c) };
            }
        }
    }

    /// Scalar `a * b + c` that rounds as [`fma`](Simd::fma) does.
    unsafe fn fma1(a: f32, b: f32, c: f32) -> f32;

    /// Zero vector.
    #[inline(always)]
    unsafe fn zero() -> Self::V {
        // SAFETY: same contract as this method.
        unsafe { Self::splat(0.0) }
    }
}

/// A kernel with its arguments, run by [`dispatch`] for the instruction set `S`.
pub(crate) trait Kernel {
    /// What the kernel returns.
    type Output;
    /// Runs the kernel. Implementations are `#[inline(always)]`.
    ///
    /// # Safety
    ///
    /// The processor must support `S`.
    unsafe fn run<S: Simd>(self) -> Self::Output;
}

/// Instruction sets that kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Isa {
    /// Plain Rust, eight lanes in an array.
    Plain,
    /// Plain Rust, sixteen lanes: takes the paths that AVX-512 takes, on any processor.
    #[cfg(test)]
    Wide,
    /// AVX2, FMA and F16C.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// AVX-512 F.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// AVX-512 F, BW, VL and VNNI: floats as with [`Avx512`](Isa::Avx512), and products of bytes.
    #[cfg(target_arch = "x86_64")]
    Vnni,
    /// As [`Vnni`](Isa::Vnni), and AVX-512 BF16: many rows that meet BF16 weights are rounded to BF16. Only where
    /// it is asked for, since it gives other results.
    #[cfg(target_arch = "x86_64")]
    Bf16,
}

/// Names an instruction set, as [`Isa::name`] does, to use instead of the processor's best.
const CHOICE: &str = "ZONOS_ISA";

impl Isa {
    /// The instruction set that kernels run with: the best of this processor, or the one that `$ZONOS_ISA`
    /// names, if the processor has it.
    pub(crate) fn best() -> Self {
        static BEST: OnceLock<Isa> = OnceLock::new();
        *BEST.get_or_init(|| {
            let here = Self::available();
            let named = std::env::var(CHOICE).ok();
            let named = here.iter().find(|isa| named.as_deref() == Some(isa.name()));
            let best = here.iter().rev().find(|isa| !isa.rounds());
            named.or(best).copied().unwrap_or(Isa::Plain)
        })
    }

    /// What `$ZONOS_ISA` calls it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Isa::Plain => "plain",
            #[cfg(test)]
            Isa::Wide => "wide",
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => "avx512",
            #[cfg(target_arch = "x86_64")]
            Isa::Vnni => "vnni",
            #[cfg(target_arch = "x86_64")]
            Isa::Bf16 => "bf16",
        }
    }

    /// Whether bytes are multiplied with AVX-512 VNNI.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn multiplies_bytes(self) -> bool {
        matches!(self, Isa::Vnni | Isa::Bf16)
    }

    /// Whether activations that meet BF16 weights are rounded to BF16 where there are many rows.
    pub(crate) fn rounds(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        return self == Isa::Bf16;
        #[cfg(not(target_arch = "x86_64"))]
        return false;
    }

    /// All instruction sets that this processor can run, worst first.
    pub(crate) fn available() -> Vec<Self> {
        #[allow(unused_mut)]
        let mut list = vec![
            Isa::Plain,
            #[cfg(test)]
            Isa::Wide,
        ];
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("f16c")
            {
                list.push(Isa::Avx2);
                if is_x86_feature_detected!("avx512f") {
                    list.push(Isa::Avx512);
                    if is_x86_feature_detected!("avx512bw")
                        && is_x86_feature_detected!("avx512vl")
                        && is_x86_feature_detected!("avx512vnni")
                    {
                        list.push(Isa::Vnni);
                        if is_x86_feature_detected!("avx512bf16") {
                            list.push(Isa::Bf16);
                        }
                    }
                }
            }
        }
        list
    }
}

/// Runs `kernel` compiled for the best instruction set of this processor.
#[inline]
pub(crate) fn dispatch<K: Kernel>(kernel: K) -> K::Output {
    dispatch_on(Isa::best(), kernel)
}

/// Runs `kernel` compiled for `isa`, which must be one of [`Isa::available`].
pub(crate) fn dispatch_on<K: Kernel>(isa: Isa, kernel: K) -> K::Output {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn avx2<K: Kernel>(kernel: K) -> K::Output {
            // SAFETY: the caller checked that the processor has these features.
            unsafe { kernel.run::<x86::Avx2>() }
        }
        #[target_feature(enable = "avx2,fma,f16c,avx512f")]
        unsafe fn avx512<K: Kernel>(kernel: K) -> K::Output {
            // SAFETY: the caller checked that the processor has these features.
            unsafe { kernel.run::<x86::Avx512>() }
        }
        match isa {
            // SAFETY: `Isa` values other than `Plain` come from `Isa::available`, which detected them.
            Isa::Avx2 => return unsafe { avx2(kernel) },
            // SAFETY: as above.
            Isa::Avx512 | Isa::Vnni | Isa::Bf16 => return unsafe { avx512(kernel) },
            _ => {}
        }
    }
    #[cfg(test)]
    if isa == Isa::Wide {
        // SAFETY: plain code runs everywhere.
        return unsafe { kernel.run::<Plain<16>>() };
    }
    let _ = isa;
    // SAFETY: plain code runs everywhere.
    unsafe { kernel.run::<Plain<8>>() }
}

/// Asks for the cache line of an address, which need not be readable.
#[inline(always)]
pub(crate) fn ask(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: part of SSE, which every x86-64 has; it has no effect but in caches, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Asks for a cache line far behind `address`, for the sake of its page: finding out where a page lies takes
/// longer than reading a line of it, on virtual machines several times as long, so what asks for lines in order
/// should call this once or more a page of them.
#[inline(always)]
pub(crate) fn ask_page(address: *const u8) {
    ask(address.wrapping_add(64 << 10));
}

/// Asks for the cache line of `values[index]`; nothing happens beyond the end, or where there is no
/// such instruction.
#[inline(always)]
pub(crate) fn prefetch(values: &[f32], index: usize) {
    if index < values.len() {
        ask(values[index..].as_ptr().cast());
    }
}

/// Plain Rust, `N` lanes in an array.
#[derive(Clone, Copy)]
pub(crate) struct Plain<const N: usize>;

// SAFETY: plain code has no instruction set requirement; pointers are the caller's contract.
unsafe impl<const N: usize> Simd for Plain<N> {
    const LANES: usize = N;
    type V = [f32; N];

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::V {
        [x; N]
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self::V {
        // SAFETY: the caller gives a pointer to `N` f32.
        unsafe { p.cast::<[f32; N]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> Self::V {
        // SAFETY: the caller gives a pointer to `N` u16.
        let bits = unsafe { p.cast::<[u16; N]>().read_unaligned() };
        bits.map(|b| half::f16::from_bits(b).to_f32())
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> Self::V {
        // SAFETY: the caller gives a pointer to `N` u16.
        let bits = unsafe { p.cast::<[u16; N]>().read_unaligned() };
        bits.map(|b| f32::from_bits(u32::from(b) << 16))
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: Self::V) {
        // SAFETY: the caller gives a pointer to `N` writable f32.
        unsafe { p.cast::<[f32; N]>().write_unaligned(v) }
    }
    #[inline(always)]
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V {
        std::array::from_fn(|i| a[i] + b[i])
    }
    #[inline(always)]
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V {
        std::array::from_fn(|i| a[i] - b[i])
    }
    #[inline(always)]
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V {
        std::array::from_fn(|i| a[i] * b[i])
    }
    #[inline(always)]
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V {
        std::array::from_fn(|i| a[i] / b[i])
    }
    #[inline(always)]
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V {
        std::array::from_fn(|i| if a[i] > b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        std::array::from_fn(|i| a[i] * b[i] + c[i])
    }
    #[inline(always)]
    unsafe fn sum(v: Self::V) -> f32 {
        let (mut v, mut lanes) = (v, N);
        while lanes > 1 {
            lanes /= 2;
            for i in 0..lanes {
                v[i] += v[i + lanes];
            }
        }
        v[0]
    }
    #[inline(always)]
    unsafe fn power_of_two(shifted: Self::V) -> Self::V {
        shifted.map(|x| f32::from_bits(x.to_bits().wrapping_add(127) << 23))
    }
    #[inline(always)]
    unsafe fn zero_below(x: Self::V, limit: Self::V, y: Self::V) -> Self::V {
        std::array::from_fn(|i| if x[i] < limit[i] { 0.0 } else { y[i] })
    }
    #[inline(always)]
    unsafe fn fma1(a: f32, b: f32, c: f32) -> f32 {
        a * b + c
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::Simd;
    use std::arch::x86_64::*;

    /// AVX2 with FMA and F16C.
    #[derive(Clone, Copy)]
    pub(crate) struct Avx2;

    // SAFETY: only used behind `dispatch`, which detected avx2, fma and f16c.
    unsafe impl Simd for Avx2 {
        const LANES: usize = 8;
        type V = __m256;

        #[inline(always)]
        unsafe fn splat(x: f32) -> __m256 {
            unsafe { _mm256_set1_ps(x) }
        }
        #[inline(always)]
        unsafe fn load(p: *const f32) -> __m256 {
            unsafe { _mm256_loadu_ps(p) }
        }
        #[inline(always)]
        unsafe fn load_f16(p: *const u16) -> __m256 {
            unsafe { _mm256_cvtph_ps(_mm_loadu_si128(p.cast())) }
        }
        #[inline(always)]
        unsafe fn load_bf16(p: *const u16) -> __m256 {
            unsafe {
                let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
            }
        }
        #[inline(always)]
        unsafe fn store(p: *mut f32, v: __m256) {
            unsafe { _mm256_storeu_ps(p, v) }
        }
        #[inline(always)]
        unsafe fn add(a: __m256, b: __m256) -> __m256 {
            unsafe { _mm256_add_ps(a, b) }
        }
        #[inline(always)]
        unsafe fn sub(a: __m256, b: __m256) -> __m256 {
            unsafe { _mm256_sub_ps(a, b) }
        }
        #[inline(always)]
        unsafe fn mul(a: __m256, b: __m256) -> __m256 {
            unsafe { _mm256_mul_ps(a, b) }
        }
        #[inline(always)]
        unsafe fn div(a: __m256, b: __m256) -> __m256 {
            unsafe { _mm256_div_ps(a, b) }
        }
        #[inline(always)]
        unsafe fn max(a: __m256, b: __m256) -> __m256 {
            unsafe { _mm256_max_ps(a, b) }
        }
        #[inline(always)]
        unsafe fn fma(a: __m256, b: __m256, c: __m256) -> __m256 {
            unsafe { _mm256_fmadd_ps(a, b, c) }
        }
        #[inline(always)]
        unsafe fn sum(v: __m256) -> f32 {
            unsafe {
                let half = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
                let pair = _mm_add_ps(half, _mm_movehl_ps(half, half));
                _mm_cvtss_f32(_mm_add_ss(pair, _mm_shuffle_ps::<1>(pair, pair)))
            }
        }
        #[inline(always)]
        unsafe fn power_of_two(shifted: __m256) -> __m256 {
            unsafe {
                let bits = _mm256_add_epi32(_mm256_castps_si256(shifted), _mm256_set1_epi32(127));
                _mm256_castsi256_ps(_mm256_slli_epi32::<23>(bits))
            }
        }
        #[inline(always)]
        unsafe fn zero_below(x: __m256, limit: __m256, y: __m256) -> __m256 {
            unsafe { _mm256_and_ps(_mm256_cmp_ps::<_CMP_NLT_UQ>(x, limit), y) }
        }
        #[inline(always)]
        unsafe fn transpose(rows: [*const f32; 8], to: *mut f32, step: usize) {
            unsafe { transpose(rows, to, step) }
        }
        #[inline(always)]
        unsafe fn fma1(a: f32, b: f32, c: f32) -> f32 {
            a.mul_add(b, c)
        }
    }

    /// [`Simd::transpose`] with AVX2, pairs of rows, then pairs of pairs, then halves.
    #[inline(always)]
    unsafe fn transpose(rows: [*const f32; 8], to: *mut f32, step: usize) {
        // SAFETY: the caller's pointers are valid for the block, and the processor has AVX2.
        unsafe {
            // Written out: a closure would be compiled without the instruction set.
            let mut fours = [[_mm256_setzero_ps(); 4]; 2];
            for half in 0..2 {
                let [a, b, c, d] = [
                    _mm256_loadu_ps(rows[4 * half]),
                    _mm256_loadu_ps(rows[4 * half + 1]),
                    _mm256_loadu_ps(rows[4 * half + 2]),
                    _mm256_loadu_ps(rows[4 * half + 3]),
                ];
                let (low, high) = (_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
                let (later_low, later_high) = (_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
                fours[half] = [
                    _mm256_shuffle_ps::<0x44>(low, later_low),
                    _mm256_shuffle_ps::<0xEE>(low, later_low),
                    _mm256_shuffle_ps::<0x44>(high, later_high),
                    _mm256_shuffle_ps::<0xEE>(high, later_high),
                ];
            }
            let [first, second] = fours;
            for c in 0..4 {
                let near = _mm256_permute2f128_ps::<0x20>(first[c], second[c]);
                let far = _mm256_permute2f128_ps::<0x31>(first[c], second[c]);
                _mm256_storeu_ps(to.add(c * step), near);
                _mm256_storeu_ps(to.add((c + 4) * step), far);
            }
        }
    }

    /// AVX-512 F.
    #[derive(Clone, Copy)]
    pub(crate) struct Avx512;

    // SAFETY: only used behind `dispatch`, which detected avx512f.
    unsafe impl Simd for Avx512 {
        const LANES: usize = 16;
        type V = __m512;

        #[inline(always)]
        unsafe fn splat(x: f32) -> __m512 {
            unsafe { _mm512_set1_ps(x) }
        }
        #[inline(always)]
        unsafe fn load(p: *const f32) -> __m512 {
            unsafe { _mm512_loadu_ps(p) }
        }
        #[inline(always)]
        unsafe fn load_f16(p: *const u16) -> __m512 {
            unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
        }
        #[inline(always)]
        unsafe fn load_bf16(p: *const u16) -> __m512 {
            unsafe {
                let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
            }
        }
        #[inline(always)]
        unsafe fn store(p: *mut f32, v: __m512) {
            unsafe { _mm512_storeu_ps(p, v) }
        }
        #[inline(always)]
        unsafe fn add(a: __m512, b: __m512) -> __m512 {
            unsafe { _mm512_add_ps(a, b) }
        }
        #[inline(always)]
        unsafe fn sub(a: __m512, b: __m512) -> __m512 {
            unsafe { _mm512_sub_ps(a, b) }
        }
        #[inline(always)]
        unsafe fn mul(a: __m512, b: __m512) -> __m512 {
            unsafe { _mm512_mul_ps(a, b) }
        }
        #[inline(always)]
        unsafe fn div(a: __m512, b: __m512) -> __m512 {
            unsafe { _mm512_div_ps(a, b) }
        }
        #[inline(always)]
        unsafe fn max(a: __m512, b: __m512) -> __m512 {
            unsafe { _mm512_max_ps(a, b) }
        }
        #[inline(always)]
        unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
            unsafe { _mm512_fmadd_ps(a, b, c) }
        }
        #[inline(always)]
        unsafe fn sum(v: __m512) -> f32 {
            unsafe { _mm512_reduce_add_ps(v) }
        }
        #[inline(always)]
        unsafe fn power_of_two(shifted: __m512) -> __m512 {
            unsafe {
                let bits = _mm512_add_epi32(_mm512_castps_si512(shifted), _mm512_set1_epi32(127));
                _mm512_castsi512_ps(_mm512_slli_epi32::<23>(bits))
            }
        }
        #[inline(always)]
        unsafe fn zero_below(x: __m512, limit: __m512, y: __m512) -> __m512 {
            unsafe { _mm512_maskz_mov_ps(_mm512_cmp_ps_mask::<_CMP_NLT_UQ>(x, limit), y) }
        }
        #[inline(always)]
        unsafe fn transpose(rows: [*const f32; 8], to: *mut f32, step: usize) {
            unsafe { transpose(rows, to, step) }
        }
        #[inline(always)]
        unsafe fn fma1(a: f32, b: f32, c: f32) -> f32 {
            a.mul_add(b, c)
        }
    }
}
