//! x ~ s l with l in [-4, 3] by coordinate descent, weights x^2 (Q3_K without importance).

use super::{Groups, Lanes, peaks};
use crate::numeric::{ZERO_GROUP, nearest};

const TOP: i32 = 4;

/// Scales and codes (`[value][group]`, 4 added; 0 for a group of zeros).
///
/// A group whose sweep changed nothing would not change in the next one either, so groups need no
/// end of their own.
pub(crate) fn descent<const L: usize, const N: usize>(
    x: &Groups<L, N>,
) -> (Lanes<L>, [[u8; L]; N]) {
    let (largest, peak) = peaks(x);
    let mut inverse = [0.0f32; L];
    for l in 0..L {
        inverse[l] = -(TOP as f32)
            / if largest[l] < ZERO_GROUP {
                1.0
            } else {
                peak[l]
            };
    }
    let mut codes = [[0.0f32; L]; N];
    let (mut a, mut b) = ([0.0f32; L], [0.0f32; L]);
    for i in 0..N {
        for l in 0..L {
            let (v, w) = (x[i][l], x[i][l] * x[i][l]);
            let q = nearest(inverse[l] * v).clamp(-TOP, TOP - 1) as f32;
            codes[i][l] = q;
            a[l] += w * v * q;
            b[l] += w * q * q;
        }
    }
    for _ in 0..5 {
        let mut moved = 0u32;
        for i in 0..N {
            for l in 0..L {
                let (v, q) = (x[i][l], codes[i][l]);
                let w = v * v;
                let (less_a, less_b) = (a[l] - w * v * q, b[l] - w * q * q);
                let some = less_a > 0.0;
                let to = nearest(v * less_b / if some { less_a } else { 1.0 });
                let to = to.clamp(-TOP, TOP - 1) as f32;
                let (more_a, more_b) = (less_a + w * v * to, less_b + w * to * to);
                let take = some
                    & (to != q)
                    & (more_b > 0.0)
                    & (more_a * more_a * b[l] > a[l] * a[l] * more_b);
                codes[i][l] = if take { to } else { q };
                a[l] = if take { more_a } else { a[l] };
                b[l] = if take { more_b } else { b[l] };
                moved |= u32::from(take);
            }
        }
        if moved == 0 {
            break;
        }
    }
    let mut scale = [0.0f32; L];
    let mut out = [[0u8; L]; N];
    for l in 0..L {
        if largest[l] < ZERO_GROUP {
            continue;
        }
        scale[l] = if b[l] > 0.0 { a[l] / b[l] } else { 0.0 };
        for i in 0..N {
            out[i][l] = (codes[i][l] as i32 + TOP) as u8;
        }
    }
    (scale, out)
}
