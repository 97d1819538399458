//! Products of many rows with BF16 weights where activations are rounded to BF16 too, with AVX-512 BF16: pairs of
//! products an instruction, twice as many as of f32.
//!
//! Only where `$ZONOS_ISA` asks for it: rounding costs what BF16 inference costs elsewhere (an activation is off by
//! up to one part in 256, a product by some tenths of a percent of its root mean square), and rows in a batch no
//! longer have the bits that they have alone.
//!
//! Rows of activations lie in panels, a row a lane and two neighbouring columns in it; weights are read where they
//! lie, a pair for all lanes. A result is one chain over all columns, so it does not depend on the other rows of a
//! product that goes this way.

use std::arch::x86_64::*;

use half::bf16;
use rayon::prelude::*;

use super::linear::Shared;
use super::simd::ask;

/// Weight rows of a tile of sums.
const TILE: usize = 12;
/// Lanes of a vector.
const LANES: usize = 16;
/// Rows of a panel: two vectors.
const PANEL: usize = 2 * LANES;
/// Weight rows of a work item, as many tiles.
const CHUNK: usize = 4 * TILE;

/// `x [rows, inner]`, `weight [out, inner]` -> `[rows, out]`; `inner` is even, and none of the sizes is 0.
///
/// # Safety
///
/// The processor has AVX-512 F, BW, VL and BF16.
pub(super) unsafe fn product(x: &[f32], weight: &[bf16], inner: usize) -> Vec<f32> {
    let (rows, out) = (x.len() / inner, weight.len() / inner);
    assert!(inner.is_multiple_of(2) && x.len() == rows * inner && weight.len() == out * inner);
    let mut panels = vec![[0u32; PANEL]; rows.div_ceil(PANEL) * inner / 2];
    panels
        .par_chunks_mut(inner / 2)
        .zip(x.par_chunks(PANEL * inner))
        // SAFETY: the caller's contract.
        .for_each(|(panel, x)| unsafe { pack(x, inner, panel) });
    let mut y = vec![0.0; rows * out];
    let target = Shared::new(&mut y);
    let weights = weight.par_chunks(CHUNK * inner).enumerate();
    weights.for_each(|(chunk, weight)| {
        for (t, weight) in weight.chunks(TILE * inner).enumerate() {
            let (first, count) = (chunk * CHUNK + t * TILE, weight.len() / inner);
            for (p, panel) in panels.chunks_exact(inner / 2).enumerate() {
                let mut sums = [[0.0; PANEL]; TILE];
                let present = (rows - p * PANEL).min(PANEL);
                // SAFETY: the caller's contract; the weight rows are as long as the panel.
                unsafe {
                    match (count, present <= LANES) {
                        (TILE, true) => tile::<TILE, 1>(weight, panel, &mut sums),
                        (TILE, false) => tile::<TILE, 2>(weight, panel, &mut sums),
                        _ => {
                            for (w, sums) in weight.chunks_exact(inner).zip(&mut sums) {
                                tile::<1, 2>(w, panel, std::array::from_mut(sums));
                            }
                        }
                    }
                }
                for row in 0..present {
                    let mut part = [0.0; TILE];
                    for (part, sums) in part.iter_mut().zip(&sums) {
                        *part = sums[row];
                    }
                    let at = (p * PANEL + row) * out + first;
                    // SAFETY: the outputs of these weight rows and rows belong to this item.
                    unsafe { target.write(at, &part[..count]) };
                }
            }
        }
    });
    y
}

/// Rows of activations as a panel; rows that are missing are left as they are.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,fma,f16c")]
unsafe fn pack(x: &[f32], inner: usize, panel: &mut [[u32; PANEL]]) {
    for (lane, x) in x.chunks_exact(inner).enumerate() {
        for (pair, to) in x.chunks_exact(2).zip(panel.iter_mut()) {
            let [low, high] = [pair[0], pair[1]].map(|x| u32::from(bf16::from_f32(x).to_bits()));
            to[lane] = low | high << 16;
        }
    }
}

/// Products of `W` weight rows with `N` vectors of a panel's rows: `sums [W][N LANES]`. As many bytes behind the
/// weights are asked for.
///
/// # Safety
///
/// The processor has the instruction sets; the `W` weight rows are twice as long as the panel.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16,avx2,fma,f16c")]
unsafe fn tile<const W: usize, const N: usize>(
    weight: &[bf16],
    panel: &[[u32; PANEL]],
    sums: &mut [[f32; PANEL]; W],
) {
    let inner = 2 * panel.len();
    assert!(weight.len() == W * inner);
    let start = weight.as_ptr();
    // SAFETY: pairs end before `inner`; what is asked for need not be there.
    unsafe {
        let mut acc = [[_mm512_setzero_ps(); N]; W];
        let mut next = start.wrapping_add(W * inner).cast::<u8>();
        for (k, lanes) in panel.iter().enumerate() {
            ask(next);
            next = next.wrapping_add(2 * W * size_of::<bf16>());
            let mut x = [_mm512_setzero_si512(); N];
            for n in 0..N {
                x[n] = _mm512_loadu_si512(lanes.as_ptr().add(n * LANES).cast());
            }
            for w in 0..W {
                let pair = start.add(w * inner + 2 * k).cast::<i32>().read_unaligned();
                let pair = std::mem::transmute::<__m512i, __m512bh>(_mm512_set1_epi32(pair));
                for n in 0..N {
                    let x = std::mem::transmute::<__m512i, __m512bh>(x[n]);
                    acc[w][n] = _mm512_dpbf16_ps(acc[w][n], pair, x);
                }
            }
        }
        for w in 0..W {
            for n in 0..N {
                _mm512_storeu_ps(sums[w].as_mut_ptr().add(n * LANES), acc[w][n]);
            }
        }
    }
}
