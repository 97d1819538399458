//! What the K formats share: packing, and the choice of scales, minima and codes of those with
//! minima (Q2_K, Q4_K, Q5_K).

use pulp::Simd;

use crate::numeric::{half_bits, half_value, nearest};
use crate::search::{Affine, Each, Grid, MOST, Vector, Weights, affine, positive, put_whole};

/// Values in a block of any of them.
pub(super) const VALUES: usize = 256;

/// Blocks that are searched together, as many as have [`MOST`] groups of 16.
pub(super) const TOGETHER: usize = MOST * 16 / VALUES;

/// Their values.
pub(super) const SPAN: usize = TOGETHER * VALUES;

/// Sum of squares of each block, from left to right; the blocks take turns.
#[inline(always)]
pub(super) fn squares_of_blocks(x: &[f32]) -> [f32; TOGETHER] {
    let mut out = [0.0; TOGETHER];
    let blocks = x.as_chunks::<VALUES>().0;
    if let [a, b, c, d] = blocks {
        for (((a, b), c), d) in a.iter().zip(b).zip(c).zip(d) {
            for (sum, v) in out.iter_mut().zip([a, b, c, d]) {
                *sum += v * v;
            }
        }
    } else {
        for (sum, x) in out.iter_mut().zip(blocks) {
            *sum = crate::numeric::sum_of_squares(x);
        }
    }
    out
}

/// Packs two-bit codes: byte `32 h + l` holds codes `128 h + l + {0, 32, 64, 96}`.
#[inline(always)]
pub(super) fn put_two_bits(codes: &[u8; VALUES], out: &mut [u8]) {
    let halves = codes.as_chunks::<128>().0.iter();
    for (codes, out) in halves.zip(out.as_chunks_mut::<32>().0) {
        for l in 0..32 {
            out[l] = (codes[l] & 3)
                | (codes[l + 32] & 3) << 2
                | (codes[l + 64] & 3) << 4
                | (codes[l + 96] & 3) << 6;
        }
    }
}

/// The two-bit codes.
#[inline(always)]
pub(super) fn two_bits(bytes: &[u8]) -> [u8; VALUES] {
    let mut out = [0u8; VALUES];
    let halves = out.as_chunks_mut::<128>().0.iter_mut();
    for (codes, bytes) in halves.zip(bytes.as_chunks::<32>().0) {
        for l in 0..32 {
            for p in 0..4 {
                codes[32 * p + l] = bytes[l] >> (2 * p) & 3;
            }
        }
    }
    out
}

/// Packs nibbles: byte `32 p + l` holds codes `64 p + l` (low) and `64 p + 32 + l`.
#[inline(always)]
pub(super) fn put_nibbles(codes: &[u8; VALUES], out: &mut [u8]) {
    let parts = codes.as_chunks::<64>().0.iter();
    for (codes, out) in parts.zip(out.as_chunks_mut::<32>().0) {
        for l in 0..32 {
            out[l] = (codes[l] & 15) | (codes[l + 32] & 15) << 4;
        }
    }
}

/// The nibbles.
#[inline(always)]
pub(super) fn nibbles(bytes: &[u8]) -> [u8; VALUES] {
    let mut out = [0u8; VALUES];
    let parts = out.as_chunks_mut::<64>().0.iter_mut();
    for (codes, bytes) in parts.zip(bytes.as_chunks::<32>().0) {
        for l in 0..32 {
            codes[l] = bytes[l] & 15;
            codes[l + 32] = bytes[l] >> 4;
        }
    }
    out
}

/// Packs one bit a code, bit `bit` of it: bit `i / 32` of byte `i % 32`.
#[inline(always)]
pub(super) fn put_bit(codes: &[u8; VALUES], bit: u32, out: &mut [u8]) {
    out[..32].fill(0);
    for (p, codes) in codes.as_chunks::<32>().0.iter().enumerate() {
        for l in 0..32 {
            out[l] |= (codes[l] >> bit & 1) << p;
        }
    }
}

/// Adds `1 << bit` to the codes whose bit is set.
#[inline(always)]
pub(super) fn add_bit(bytes: &[u8], bit: u32, codes: &mut [u8; VALUES]) {
    let Some(bytes) = bytes.first_chunk::<32>() else {
        return;
    };
    for (p, codes) in codes.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        for l in 0..32 {
            codes[l] |= (bytes[l] >> p & 1) << bit;
        }
    }
}

/// Codes once more with the stored scale and minimum: `nearest((x + m) / d)` in `0..=top`, in the low
/// bits.
#[inline(always)]
pub(super) fn recode<S: Simd, const N: usize>(
    simd: S,
    x: &[f32; N],
    [d, m]: [f32; 2],
    top: i32,
    out: &mut [u32; N],
) {
    let of = |v: f32| Vector::splat(simd, v);
    let (d, m, zero, top) = (of(d), of(m), of(0.0), of(top as f32));
    let out = S::as_mut_simd_u32s(out).0.iter_mut();
    for (x, out) in S::as_simd_f32s(x).0.iter().zip(out) {
        put_whole(
            ((Vector::new(simd, *x) + m) / d).nearest_within(zero, top),
            out,
        );
    }
}

/// Codes once more with the stored scale: `nearest(x / d)` in `-top..top`, `top` added, in the low bits.
#[inline(always)]
pub(super) fn recode_signed<S: Simd, const N: usize>(
    simd: S,
    x: &[f32; N],
    d: f32,
    top: i32,
    out: &mut [u32; N],
) {
    let of = |v: f32| Vector::splat(simd, v);
    let (d, top, low, high) = (of(d), of(top as f32), of(-top as f32), of((top - 1) as f32));
    let out = S::as_mut_simd_u32s(out).0.iter_mut();
    for (x, out) in S::as_simd_f32s(x).0.iter().zip(out) {
        let q = (Vector::new(simd, *x) / d).nearest_within(low, high);
        put_whole(q + top, out);
    }
}

/// The low bits alone.
#[inline(always)]
pub(super) fn narrow(codes: &[u32; VALUES]) -> [u8; VALUES] {
    let mut out = [0; VALUES];
    for (q, code) in out.iter_mut().zip(codes) {
        *q = *code as u8;
    }
    out
}

/// Six-bit scales and minima of eight groups in twelve bytes (Q4_K, Q5_K). Of a number past 63 the upper
/// bits go where the reference puts them.
#[inline(always)]
pub(super) fn packed_scales(sc: &[u8; 8], mn: &[u8; 8]) -> [u8; 12] {
    let mut out = [0u8; 12];
    for g in 0..4 {
        out[g] = sc[g] | (sc[g + 4] >> 4) << 6;
        out[g + 4] = mn[g] | (mn[g + 4] >> 4) << 6;
        out[g + 8] = (sc[g + 4] & 15) | (mn[g + 4] & 15) << 4;
    }
    out
}

/// The scales and minima that [`packed_scales`] packed.
#[inline(always)]
pub(super) fn scales(bytes: &[u8; 12]) -> ([u8; 8], [u8; 8]) {
    let (mut sc, mut mn) = ([0u8; 8], [0u8; 8]);
    for g in 0..4 {
        sc[g] = bytes[g] & 63;
        mn[g] = bytes[g + 4] & 63;
        sc[g + 4] = bytes[g + 8] & 15 | bytes[g] >> 6 << 4;
        mn[g + 4] = bytes[g + 8] >> 4 | bytes[g + 4] >> 6 << 4;
    }
    (sc, mn)
}

/// `values = d scale code - dmin minimum` in groups of 32 (Q4_K, Q5_K).
#[inline(always)]
pub(super) fn affine_groups(
    [d, dmin]: [f32; 2],
    (sc, mn): ([u8; 8], [u8; 8]),
    codes: &[u8; VALUES],
    out: &mut [f32; VALUES],
) {
    let groups = out.as_chunks_mut::<32>().0.iter_mut();
    for (g, (values, codes)) in groups.zip(codes.as_chunks::<32>().0).enumerate() {
        let (scale, low) = (d * f32::from(sc[g]), dmin * f32::from(mn[g]));
        for (v, q) in values.iter_mut().zip(codes) {
            *v = scale * f32::from(*q) - low;
        }
    }
}

/// A scale and a minimum for each group.
pub(super) type ScalesMinima<const G: usize> = ([u8; G], [u8; G]);

/// How a format with minima is searched.
pub(super) struct Spec<const G: usize> {
    /// Largest code.
    pub(super) top: i32,
    /// Largest scale or minimum of a group.
    pub(super) cap: i32,
    /// What scales and minima are limited to without importance, and with: past `cap` only where a search
    /// ended below zero and its code lost its sign.
    pub(super) limits: [u8; 2],
    /// What is read back of scales and minima that are stored.
    pub(super) stored: fn(&[u8; G], &[u8; G]) -> ScalesMinima<G>,
    /// Grid without importance.
    pub(super) plain: Grid,
    /// Mean square counts this often in the weights with importance.
    pub(super) spread: f32,
    /// The weights without.
    pub(super) weights: Weights<'static>,
}

const WEIGHTED: Grid = Grid {
    first: -0.9,
    step: 0.05,
    steps: 36,
};

/// A block before packing.
pub(super) struct Parts<const G: usize> {
    /// Bits of the half scale.
    pub(super) d: u16,
    /// Bits of the half minimum.
    pub(super) dmin: u16,
    /// A scale for each group.
    pub(super) sc: [u8; G],
    /// A minimum for each group.
    pub(super) mn: [u8; G],
    pub(super) codes: [u8; VALUES],
}

/// Chooses everything for each block of a row, of `G` groups of `N` values: `put(block, parts)`.
/// Without importance the error is absolute if `ABSOLUTE`, else squared.
#[inline(always)]
pub(super) fn choose<S: Simd, const G: usize, const N: usize, const ABSOLUTE: bool>(
    simd: S,
    src: &[f32],
    importance: Option<&[f32]>,
    spec: &Spec<G>,
    mut put: impl FnMut(usize, &Parts<G>),
) {
    for (part, x) in src.chunks(SPAN).enumerate() {
        let found = match importance {
            Some(w) => {
                let mut spread: Each = [0.0; MOST];
                let squares = squares_of_blocks(x);
                for (g, spread) in spread.iter_mut().take(TOGETHER * G).enumerate() {
                    *spread = spec.spread * squares[g / G] / VALUES as f32;
                }
                let weights = Weights::Spread(&w[part * SPAN..][..x.len()], &spread);
                affine::<S, N, false>(simd, x, weights, spec.top, WEIGHTED)
            }
            None => affine::<S, N, ABSOLUTE>(simd, x, spec.weights, spec.top, spec.plain),
        };
        for (block, x) in x.as_chunks::<VALUES>().0.iter().enumerate() {
            let parts = finish::<S, G, N>(simd, x, &found, block * G, importance.is_some(), spec);
            put(part * TOGETHER + block, &parts);
        }
    }
}

/// The numbers of the groups from `first` on.
#[inline(always)]
fn own<const G: usize>(numbers: &Each, first: usize) -> [f32; G] {
    let mut out = [0.0; G];
    out.copy_from_slice(&numbers[first..first + G]);
    out
}

/// A block whose groups, from `first` on, are `found`.
#[inline(always)]
fn finish<S: Simd, const G: usize, const N: usize>(
    simd: S,
    x: &[f32; VALUES],
    found: &Affine,
    first: usize,
    weighted: bool,
    spec: &Spec<G>,
) -> Parts<G> {
    let (scale, min) = (own(&found.scale, first), own(&found.min, first));
    let ((d, sc), (dmin, mn), limit) = if weighted {
        let weight = own(&found.weight, first);
        let scales = positive(&scale, &weight, spec.cap);
        (scales, positive(&min, &weight, spec.cap), spec.limits[1])
    } else {
        let scales = by_largest(&scale, spec.cap);
        (scales, by_largest(&min, spec.cap), spec.limits[0])
    };
    let limited = |codes: [u8; G]| codes.map(|v| v.min(limit));
    let (sc, mn) = (spec.stored)(&limited(sc), &limited(mn));
    let (d, dmin) = (half_bits(d), half_bits(dmin));
    let mut codes = [0u32; VALUES];
    for (g, (x, codes)) in x
        .as_chunks::<N>()
        .0
        .iter()
        .zip(codes.as_chunks_mut::<N>().0)
        .enumerate()
    {
        let step = half_value(d) * f32::from(sc[g]);
        if step != 0.0 {
            let low = half_value(dmin) * f32::from(mn[g]);
            recode(simd, x, [step, low], spec.top, codes);
        } else {
            *codes = x.map(|v| found.code(first + g, v).into());
        }
    }
    Parts {
        d,
        dmin,
        sc,
        mn,
        codes: narrow(&codes),
    }
}

/// Scales as fractions of the largest: `(largest / cap, codes)`.
#[inline(always)]
fn by_largest<const G: usize>(x: &[f32; G], cap: i32) -> (f32, [u8; G]) {
    let mut high = 0.0f32;
    for &v in x {
        high = if v > high { v } else { high };
    }
    let factor = if high > 0.0 { cap as f32 / high } else { 0.0 };
    let codes = x.map(|v| nearest(factor * v) as u8);
    (high / cap as f32, codes)
}
