//! Products of weight rows in blocks with a few rows of f32 activations, with AVX2.
//!
//! Codes are unpacked once into a register and meet all activation rows there. Every result is summed in
//! an order that depends on the length of the rows alone.
//!
//! # Safety
//!
//! The loops have the contract of [`Loops`], and what they call has it too: the `unsafe` blocks of their
//! bodies rest on that where none says more.

use std::arch::x86_64::*;

use zonos_gguf::GgmlType;

use super::super::simd;
use super::formats::*;
use super::input::{Floats, Rounded, SLICE, SPAN};

/// Weight rows whose sums are kept at a time.
pub(super) const CHUNK: usize = 32;
/// Bytes of activations that stay in the nearest cache while weight rows pass.
const NEAR: usize = 12 * 1024;
/// Bytes ahead of what is multiplied that are asked for.
const AHEAD: usize = 1024;

/// A format's inner loops over some blocks of `R` weight rows and `M` rows of activations. `sums [R][M]` are
/// added to.
///
/// # Safety
///
/// The processor has AVX2, FMA and F16C. `blocks` blocks are readable in each row, and the spans that they
/// cover in each row of activations.
pub(super) trait Loops: Format {
    /// With f32 activations.
    unsafe fn floats<const R: usize, const M: usize>(
        rows: [*const u8; R],
        x: [*const Floats; M],
        blocks: usize,
        sums: *mut [__m256; M],
        pitch: usize,
    );
    /// Values in a block.
    const VALUES: usize;
}

macro_rules! loops {
    ($values:expr, $floats:ident: $($name:ident)*) => {$(
        impl Loops for $name {
            const VALUES: usize = $values;
            #[inline(always)]
            unsafe fn floats<const R: usize, const M: usize>(
                rows: [*const u8; R],
                x: [*const Floats; M],
                blocks: usize,
                sums: *mut [__m256; M],
                pitch: usize,
            ) {
                // SAFETY: the caller's contract.
                unsafe { $floats::<Self, R, M>(rows, x, blocks, sums, pitch) }
            }
        }
    )*};
}

loops!(SLICE, short: Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Iq4Nl);
loops!(SPAN, long: Q2K Q3K Q4K Q5K Q6K Iq4Xs);

/// Asks for the `size` bytes that come some time after those at `block`. They need not be readable.
#[inline(always)]
fn ask(block: *const u8, size: usize) {
    let mut at = 0;
    while at < size {
        simd::ask(block.wrapping_add(AHEAD + at));
        at += 64;
    }
}

#[inline(always)]
unsafe fn splat(p: *const f32) -> __m256 {
    unsafe { _mm256_broadcast_ss(&*p) }
}

/// Signed codes of 8 bits as floats, value `4 i + b` in lane `i` of vector `b`, 2^24 times too large.
#[inline(always)]
unsafe fn widen(codes: __m256i) -> [__m256; 4] {
    unsafe {
        let upper = _mm256_set1_epi32(0xFF00_0000_u32 as i32);
        let first = _mm256_slli_epi32::<24>(codes);
        let second = _mm256_and_si256(_mm256_slli_epi32::<16>(codes), upper);
        let third = _mm256_and_si256(_mm256_slli_epi32::<8>(codes), upper);
        let fourth = _mm256_and_si256(codes, upper);
        [
            _mm256_cvtepi32_ps(first),
            _mm256_cvtepi32_ps(second),
            _mm256_cvtepi32_ps(third),
            _mm256_cvtepi32_ps(fourth),
        ]
    }
}

/// The dot product of a slice, in eight lanes.
#[inline(always)]
unsafe fn dot(wide: &[__m256; 4], x: *const Floats, j: usize) -> __m256 {
    unsafe {
        let v = (&raw const (*x).x).cast::<f32>().wrapping_add(SLICE * j);
        let a = _mm256_mul_ps(wide[0], _mm256_load_ps(v));
        let b = _mm256_mul_ps(wide[1], _mm256_load_ps(v.wrapping_add(8)));
        let a = _mm256_fmadd_ps(wide[2], _mm256_load_ps(v.wrapping_add(16)), a);
        let b = _mm256_fmadd_ps(wide[3], _mm256_load_ps(v.wrapping_add(24)), b);
        _mm256_add_ps(a, b)
    }
}

/// Eight times the function for slices 0 to 7.
macro_rules! each_slice {
    ($function:ident::<$F:ident, $M:ident> $arguments:tt) => {
        $function::<$F, $M, 0> $arguments;
        $function::<$F, $M, 1> $arguments;
        $function::<$F, $M, 2> $arguments;
        $function::<$F, $M, 3> $arguments;
        $function::<$F, $M, 4> $arguments;
        $function::<$F, $M, 5> $arguments;
        $function::<$F, $M, 6> $arguments;
        $function::<$F, $M, 7> $arguments;
    };
}

/// Eight values that each get into all lanes later.
#[repr(align(32))]
struct Eight([f32; 8]);

/// The way through the blocks of formats of 32 values.
#[inline(always)]
unsafe fn short<F: Short, const R: usize, const M: usize>(
    rows: [*const u8; R],
    x: [*const Floats; M],
    blocks: usize,
    sums: *mut [__m256; M],
    pitch: usize,
) {
    unsafe {
        let mut acc = [[_mm256_setzero_ps(); M]; R];
        for r in 0..R {
            acc[r] = *sums.add(r * pitch);
        }
        let whole = blocks / 8;
        for s in 0..whole {
            for r in 0..R {
                let at = rows[r].add(s * 8 * F::SIZE);
                ask(at, 8 * F::SIZE);
                span::<F, M, true>(at, &x, s, 8, &mut acc[r]);
            }
        }
        if 8 * whole < blocks {
            for r in 0..R {
                let at = rows[r].add(8 * whole * F::SIZE);
                span::<F, M, false>(at, &x, whole, blocks - 8 * whole, &mut acc[r]);
            }
        }
        for r in 0..R {
            *sums.add(r * pitch) = acc[r];
        }
    }
}

/// The first `count` blocks of a span of a short format, all 8 where `WHOLE`.
#[inline(always)]
unsafe fn span<F: Short, const M: usize, const WHOLE: bool>(
    span: *const u8,
    x: &[*const Floats; M],
    s: usize,
    count: usize,
    acc: &mut [__m256; M],
) {
    #[inline(always)]
    unsafe fn one<F: Short, const M: usize>(
        span: *const u8,
        x: &[*const Floats; M],
        s: usize,
        factors: &Eight,
        j: usize,
        acc: &mut [__m256; M],
    ) {
        unsafe {
            let wide = widen(F::codes(span.add(j * F::SIZE)));
            let factor = splat(factors.0.as_ptr().add(j));
            for m in 0..M {
                let x = x[m].add(s);
                let p = dot(&wide, x, j);
                acc[m] = _mm256_fmadd_ps(p, factor, acc[m]);
            }
        }
    }
    unsafe {
        let (scales, minima) = F::scales(span, if WHOLE { 8 } else { count });
        let mut factors = Eight([0.0; 8]);
        _mm256_store_ps(factors.0.as_mut_ptr(), scales);
        if F::MINIMUM {
            for m in 0..M {
                let sums = _mm256_load_ps((*x[m].add(s)).sum.as_ptr());
                acc[m] = _mm256_fmadd_ps(minima, sums, acc[m]);
            }
        }
        if WHOLE {
            one::<F, M>(span, x, s, &factors, 0, acc);
            one::<F, M>(span, x, s, &factors, 1, acc);
            one::<F, M>(span, x, s, &factors, 2, acc);
            one::<F, M>(span, x, s, &factors, 3, acc);
            one::<F, M>(span, x, s, &factors, 4, acc);
            one::<F, M>(span, x, s, &factors, 5, acc);
            one::<F, M>(span, x, s, &factors, 6, acc);
            one::<F, M>(span, x, s, &factors, 7, acc);
        } else {
            for j in 0..count {
                one::<F, M>(span, x, s, &factors, j, acc);
            }
        }
    }
}

/// `acc` less minima times sums.
#[inline(always)]
unsafe fn less(
    which: Minima,
    minima: [__m256; 2],
    slices: *const f32,
    halves: *const f32,
    acc: __m256,
) -> __m256 {
    unsafe {
        match which {
            Minima::None => acc,
            Minima::Slices => _mm256_fnmadd_ps(minima[0], _mm256_load_ps(slices), acc),
            Minima::Halves => {
                let acc = _mm256_fnmadd_ps(minima[0], _mm256_load_ps(halves), acc);
                _mm256_fnmadd_ps(minima[1], _mm256_load_ps(halves.add(8)), acc)
            }
        }
    }
}

#[inline(always)]
unsafe fn slice<F: Long, const M: usize, const J: usize>(
    block: *const u8,
    head: &F::Head,
    x: &[*const Floats; M],
    b: usize,
    p: &mut [__m256; M],
) {
    unsafe {
        let wide = widen(F::codes::<J>(block, head));
        // The words of a pair are equal: the upper one, with its sign, is the scale.
        let scale = _mm256_srai_epi32::<16>(F::multipliers::<J>(head));
        let scale = _mm256_cvtepi32_ps(scale);
        for m in 0..M {
            let x = x[m].add(b);
            let dot = dot(&wide, x, J);
            p[m] = if J == 0 {
                _mm256_mul_ps(dot, scale)
            } else {
                _mm256_fmadd_ps(dot, scale, p[m])
            };
        }
    }
}

/// The way through the blocks of formats of 256 values: slices of a block are summed under their integer
/// scales, then under the block's factor, and what the minima take off comes last.
#[inline(always)]
unsafe fn long<F: Long, const R: usize, const M: usize>(
    rows: [*const u8; R],
    x: [*const Floats; M],
    blocks: usize,
    sums: *mut [__m256; M],
    pitch: usize,
) {
    unsafe {
        let mut acc = [[_mm256_setzero_ps(); M]; R];
        for r in 0..R {
            acc[r] = *sums.add(r * pitch);
        }
        for b in 0..blocks {
            for r in 0..R {
                let block = rows[r].add(b * F::SIZE);
                ask(block, F::SIZE);
                let head = F::head(block);
                let mut p = [_mm256_setzero_ps(); M];
                each_slice!(slice::<F, M>(block, &head, &x, b, &mut p));
                let factor = F::factor(&head);
                let minima = F::minima(&head);
                for m in 0..M {
                    let x = x[m].add(b);
                    acc[r][m] = _mm256_fmadd_ps(p[m], factor, acc[r][m]);
                    acc[r][m] = less(
                        F::MINIMA,
                        minima,
                        (*x).sum.as_ptr(),
                        (*x).halves.as_ptr(),
                        acc[r][m],
                    );
                }
            }
        }
        for r in 0..R {
            *sums.add(r * pitch) = acc[r];
        }
    }
}

/// Some weight rows, one behind the other.
#[derive(Clone, Copy)]
pub(super) struct Weights {
    pub(super) start: *const u8,
    /// Bytes of a row.
    pub(super) row: usize,
    /// At most [`CHUNK`].
    pub(super) count: usize,
}

#[inline(always)]
unsafe fn sum(v: __m256) -> f32 {
    unsafe {
        let half = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
        let pair = _mm_add_ps(half, _mm_movehl_ps(half, half));
        _mm_cvtss_f32(_mm_add_ss(pair, _mm_shuffle_ps::<1>(pair, pair)))
    }
}

/// Products of some weight rows with f32 activations, `[weight rows, M]`.
///
/// # Safety
///
/// The processor has AVX2, FMA and F16C; the weights are readable, and the spans of their rows in `x`.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn chunk<F: Loops, const M: usize>(
    weights: Weights,
    x: [*const Floats; M],
    out: &mut [f32],
) {
    let Weights { start, row, count } = weights;
    assert!(count <= CHUNK && out.len() == count * M);
    let blocks = row / F::SIZE;
    let per_span = SPAN / F::VALUES;
    let spans = (NEAR / (M * size_of::<Floats>())).max(1);
    let mut sums = [[_mm256_setzero_ps(); M]; CHUNK];
    let mut first = 0;
    while first < blocks {
        let taken = (blocks - first).min(spans * per_span);
        let mut part = x;
        for m in 0..M {
            part[m] = x[m].wrapping_add(first / per_span);
        }
        let mut at = 0;
        // SAFETY: rows and blocks are those that exist, and `sums` has a place for each row.
        unsafe {
            if M == 1 {
                // Two rows at a time hide each other's latency; far apart, so that what is asked
                // for ahead is what comes next.
                let pairs = count / 2;
                while at < pairs {
                    let near = start.add(at * row + first * F::SIZE);
                    let rows = [near, near.add(pairs * row)];
                    F::floats::<2, M>(rows, part, taken, sums.as_mut_ptr().add(at), pairs);
                    at += 1;
                }
                at = 2 * pairs;
            }
            while at < count {
                let rows = [start.add(at * row + first * F::SIZE)];
                F::floats::<1, M>(rows, part, taken, sums.as_mut_ptr().add(at), 0);
                at += 1;
            }
        }
        first += taken;
    }
    for r in 0..count {
        for m in 0..M {
            // SAFETY: within a function that has the instruction set.
            out[r * M + m] = unsafe { sum(sums[r][m]) };
        }
    }
}

/// Calls a function for the format of a type.
macro_rules! by_format {
    ($type:expr, $call:ident $arguments:tt) => {
        match $type {
            zonos_gguf::GgmlType::Q8_0 => $call::<Q8_0> $arguments,
            zonos_gguf::GgmlType::Q4_0 => $call::<Q4_0> $arguments,
            zonos_gguf::GgmlType::Q4_1 => $call::<Q4_1> $arguments,
            zonos_gguf::GgmlType::Q5_0 => $call::<Q5_0> $arguments,
            zonos_gguf::GgmlType::Q5_1 => $call::<Q5_1> $arguments,
            zonos_gguf::GgmlType::Iq4Nl => $call::<Iq4Nl> $arguments,
            zonos_gguf::GgmlType::Q2K => $call::<Q2K> $arguments,
            zonos_gguf::GgmlType::Q3K => $call::<Q3K> $arguments,
            zonos_gguf::GgmlType::Q4K => $call::<Q4K> $arguments,
            zonos_gguf::GgmlType::Q5K => $call::<Q5K> $arguments,
            zonos_gguf::GgmlType::Q6K => $call::<Q6K> $arguments,
            zonos_gguf::GgmlType::Iq4Xs => $call::<Iq4Xs> $arguments,
            other => unreachable!("{other} is no block format"),
        }
    };
}

pub(super) use by_format;

/// Rows of activations that one pass takes at most.
pub(super) const MOST: usize = 4;

/// Rows that the next pass takes of those left.
pub(super) fn pass(left: usize) -> usize {
    if left >= MOST {
        MOST
    } else {
        // The largest power of two.
        1 << left.ilog2()
    }
}

/// `out [weight rows, rows]` of f32 activations, as many rows as [`pass`] gives.
///
/// # Safety
///
/// The processor has AVX2, FMA and F16C; the weights are whole readable rows of blocks of the type, and each row
/// of `x` covers them.
pub(super) unsafe fn floats(
    ggml_type: GgmlType,
    weights: Weights,
    x: &[&[Floats]],
    out: &mut [f32],
) {
    unsafe fn of<F: Loops>(weights: Weights, x: &[&[Floats]], out: &mut [f32]) {
        let at = |m: usize| x[m].as_ptr();
        // SAFETY: the caller's contract.
        unsafe {
            match x.len() {
                1 => chunk::<F, 1>(weights, [at(0)], out),
                2 => chunk::<F, 2>(weights, [at(0), at(1)], out),
                4 => chunk::<F, 4>(weights, [at(0), at(1), at(2), at(3)], out),
                n => unreachable!("{n} rows in a pass"),
            }
        }
    }
    // SAFETY: the caller's contract.
    unsafe { by_format!(ggml_type, of(weights, x, out)) }
}

/// [`super::input::round`] with AVX2.
///
/// # Safety
///
/// The processor has AVX2, FMA and F16C.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn round(x: &[f32], spans: &mut [Rounded]) {
    super::input::round(x, spans);
}

/// [`super::input::spread`] with AVX2.
///
/// # Safety
///
/// The processor has AVX2, FMA and F16C.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn spread(x: &[f32], spans: &mut [Floats]) {
    super::input::spread(x, spans);
}
