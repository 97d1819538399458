//! What the K formats share: packing, and the choice of scales, minima and codes of those with
//! minima (Q2_K, Q4_K, Q5_K).

use crate::numeric::{half_bits, half_value, nearest, sum_of_squares};
use crate::search::{
    Affine, F4, Grid, Groups, LANES, affine, gather, importance_weights, in_order, positive,
    squares, sums,
};

/// Values in a block of any of them.
pub(super) const VALUES: usize = 256;

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

/// Codes once more with the stored scale and minimum: `nearest((x + m) / d)` in `0..=top`.
#[inline(always)]
pub(super) fn recode<const N: usize>(x: &[f32; N], d: f32, m: f32, top: i32, out: &mut [u8; N]) {
    let (d, m, top) = (F4::splat(d), F4::splat(m), F4::splat(top as f32));
    for (x, out) in x.as_chunks::<4>().0.iter().zip(out.as_chunks_mut::<4>().0) {
        *out = ((F4(*x) + m) / d).nearest_within(F4::ZERO, top).bytes();
    }
}

/// Codes once more with the stored scale: `nearest(x / d)` in `-top..top`, `top` added.
#[inline(always)]
pub(super) fn recode_signed<const N: usize>(x: &[f32; N], d: f32, top: i32, out: &mut [u8; N]) {
    let (d, top) = (F4::splat(d), F4::splat(top as f32));
    let high = top - F4::splat(1.0);
    for (x, out) in x.as_chunks::<4>().0.iter().zip(out.as_chunks_mut::<4>().0) {
        let q = (F4(*x) / d).nearest_within(top.neg(), high);
        *out = (q + top).bytes();
    }
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

/// Chooses everything for a block of `G` groups of `N` values. Without importance the weights are
/// `|x|` and the error absolute if `ABSOLUTE`, else `rms + |x|` and squared.
pub(super) fn choose<const G: usize, const N: usize, const ABSOLUTE: bool>(
    x: &[f32; VALUES],
    importance: Option<&[f32; VALUES]>,
    spec: &Spec<G>,
) -> Parts<G> {
    let (mut scale, mut min, mut weight) = ([0.0f32; G], [0.0f32; G], [0.0f32; G]);
    let mut found: [Option<Affine>; 2] = [None, None];
    let span = LANES * N;
    let spread =
        importance.map(|_| [F4::splat(spec.spread * sum_of_squares(x) / VALUES as f32); 2]);
    for (part, x) in x.chunks_exact(span).enumerate() {
        let groups = gather::<N>(x);
        let fit = match (importance, &spread) {
            (Some(w), Some(spread)) => {
                let w = gather(&w[part * span..]);
                let weights = importance_weights(&groups, &w, spread);
                weight[part * LANES..][..LANES].copy_from_slice(&in_order(&sums(&weights)));
                affine::<N, false>(&groups, &weights, spec.top, WEIGHTED)
            }
            _ => {
                let weights = plain_weights::<N, ABSOLUTE>(&groups);
                affine::<N, ABSOLUTE>(&groups, &weights, spec.top, spec.plain)
            }
        };
        scale[part * LANES..][..LANES].copy_from_slice(&fit.scale);
        min[part * LANES..][..LANES].copy_from_slice(&fit.min);
        found[part] = Some(fit);
    }
    let ((d, sc), (dmin, mn), limit) = if importance.is_some() {
        let scales = positive(&scale, &weight, spec.cap);
        (scales, positive(&min, &weight, spec.cap), spec.limits[1])
    } else {
        let scales = by_largest(&scale, spec.cap);
        (scales, by_largest(&min, spec.cap), spec.limits[0])
    };
    let limited = |codes: [u8; G]| codes.map(|v| v.min(limit));
    let (sc, mn) = (spec.stored)(&limited(sc), &limited(mn));
    let (d, dmin) = (half_bits(d), half_bits(dmin));
    let mut codes = [0u8; VALUES];
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
            recode(x, step, low, spec.top, codes);
        } else if let Some(fit) = &found[g / LANES] {
            *codes = x.map(|v| fit.code(g % LANES, v));
        }
    }
    Parts {
        d,
        dmin,
        sc,
        mn,
        codes,
    }
}

fn plain_weights<const N: usize, const ABSOLUTE: bool>(x: &Groups<N>) -> Groups<N> {
    let mut rms = [F4::ZERO; 2];
    if !ABSOLUTE {
        rms = sums(&squares(x)).map(|v| (v / F4::splat(N as f32)).sqrt());
    }
    let mut out = *x;
    for h in 0..2 {
        for v in &mut out[h] {
            *v = if ABSOLUTE { v.abs() } else { rms[h] + v.abs() };
        }
    }
    out
}

/// Scales as fractions of the largest: `(largest / cap, codes)`.
fn by_largest<const G: usize>(x: &[f32; G], cap: i32) -> (f32, [u8; G]) {
    let mut high = 0.0f32;
    for &v in x {
        high = if v > high { v } else { high };
    }
    let factor = if high > 0.0 { cap as f32 / high } else { 0.0 };
    let codes = x.map(|v| nearest(factor * v) as u8);
    (high / cap as f32, codes)
}
