//! Dense layers on one to four rows, as a stream of single frames has them: bound by reading weights.
//!
//! Here outputs lie side by side, an output a lane: a few inputs of eight weight rows at a time are
//! turned in cache and meet each input row's values. Each result is the same chain of multiply-adds as
//! with many rows, so the bits are the same.

use super::simd::Simd;
use super::weights::Element;

/// Rows up to which this way is the faster one.
pub(super) const FEW: usize = 4;
/// Vectors of outputs that are summed together: independent chains hide the multiply-add's latency.
const GROUPS: usize = 2;
/// Lanes of the widest vectors.
const WIDEST: usize = 16;
/// Outputs of the widest group.
pub(super) const OUTS: usize = GROUPS * WIDEST;

/// Products of `M` input rows with up to `GROUPS` vectors of weight rows: `rows[m][out]`.
///
/// `weights` are the weight rows' beginnings, `x` those of the input rows, all of `inner` values, of
/// which `steps` at a time are summed before the sum is added to the result.
///
/// # Safety
///
/// The instruction set is `S`'s, and all rows are readable over `inner` values.
#[inline(always)]
pub(super) unsafe fn products<S: Simd, E: Element, const M: usize>(
    weights: &[*const E; OUTS],
    x: &[*const f32; M],
    inner: usize,
    steps: usize,
) -> [[f32; OUTS]; M] {
    let mut totals = [[0.0f32; OUTS]; M];
    // Eight inputs of every output, an input a row.
    let mut turned = [[0.0f32; OUTS]; 8];
    let mut wide = [[0.0f32; WIDEST]; 8];
    let lanes = GROUPS * S::LANES;
    // SAFETY: columns stay below `inner`; buffers hold the widest vectors.
    unsafe {
        let mut start = 0;
        while start < inner {
            let end = inner.min(start + steps);
            let mut acc = [[S::zero(); GROUPS]; M];
            let mut at = start;
            while at < end {
                // As many inputs as a load gives, or one where fewer are left.
                let taken = if end - at >= S::LANES {
                    S::LANES
                } else if E::IS_F32 && end - at >= 8 {
                    8
                } else {
                    1
                };
                let mut done = 0;
                while done < taken {
                    let count = taken.min(8);
                    let mut first = 0;
                    while first < lanes {
                        if taken == 1 {
                            for lane in first..first + 8 {
                                turned[0][lane] = (*weights[lane].add(at)).widen();
                            }
                        } else {
                            let mut rows = [wide[0].as_ptr(); 8];
                            for i in 0..8 {
                                let row = weights[first + i].add(at + done);
                                if E::IS_F32 {
                                    rows[i] = row.cast();
                                } else {
                                    // A load covers all that is taken: eight inputs, or twice that.
                                    let whole = weights[first + i].add(at);
                                    S::store(wide[i].as_mut_ptr(), E::load::<S>(whole));
                                    rows[i] = wide[i].as_ptr().add(done);
                                }
                            }
                            S::transpose(rows, turned[0].as_mut_ptr().add(first), OUTS);
                        }
                        first += 8;
                    }
                    for k in 0..count {
                        let mut w = [S::zero(); GROUPS];
                        for g in 0..GROUPS {
                            w[g] = S::load(turned[k].as_ptr().add(g * S::LANES));
                        }
                        for m in 0..M {
                            let factor = S::splat(*x[m].add(at + done + k));
                            for g in 0..GROUPS {
                                acc[m][g] = S::fma(w[g], factor, acc[m][g]);
                            }
                        }
                    }
                    done += count;
                }
                at += taken;
            }
            for m in 0..M {
                for g in 0..GROUPS {
                    let place = totals[m].as_mut_ptr().add(g * S::LANES);
                    let sum = if start == 0 {
                        acc[m][g]
                    } else {
                        S::add(S::load(place), acc[m][g])
                    };
                    S::store(place, sum);
                }
            }
            start = end;
        }
    }
    totals
}
