//! x ~ s l with l in [-top, top - 1].

use super::{Groups, Lanes, peaks};
use crate::numeric::{ZERO_GROUP, nearest, nearest_within};

/// What [`signed`] found, a number for each group.
pub(crate) struct Signed<const L: usize> {
    /// The scale; 0 for a group of zeros.
    pub(crate) scale: Lanes<L>,
    /// The grid that gave it: codes are `nearest(inverse * x)`, clamped.
    inverse: Lanes<L>,
    zero: [bool; L],
    top: i32,
}

impl<const L: usize> Signed<L> {
    /// The code of `x`, a value of group `lane`, with `top` added: 0..2 top.
    #[inline]
    pub(crate) fn code(&self, lane: usize, x: f32) -> u8 {
        if self.zero[lane] {
            return 0;
        }
        (nearest(self.inverse[lane] * x).clamp(-self.top, self.top - 1) + self.top) as u8
    }
}

/// The best of nineteen grids around `-top / peak` by `(sum w x l)^2 / sum w l^2`.
pub(crate) fn signed<const L: usize, const N: usize>(
    x: &Groups<L, N>,
    w: &Groups<L, N>,
    top: i32,
) -> Signed<L> {
    let (largest, peak) = peaks(x);
    let zero = largest.map(|v| v < ZERO_GROUP);
    let mut safe = peak;
    for l in 0..L {
        safe[l] = if zero[l] { 1.0 } else { peak[l] };
    }
    let mut wx = *w;
    for i in 0..N {
        for l in 0..L {
            wx[i][l] *= x[i][l];
        }
    }
    let ftop = top as f32;
    let mut inverse = safe.map(|v| -ftop / v);
    let (a, b) = grid_sums(x, w, &wx, &inverse, ftop);
    let (mut scale, mut best) = ([0.0f32; L], [0.0f32; L]);
    for l in 0..L {
        scale[l] = if b[l] != 0.0 { a[l] / b[l] } else { 0.0 };
        best[l] = scale[l] * a[l];
    }
    for step in (-9..=9).filter(|&step| step != 0) {
        let candidate = safe.map(|v| -(ftop + 0.1f32 * step as f32) / v);
        let (a, b) = grid_sums(x, w, &wx, &candidate, ftop);
        for l in 0..L {
            let take = b[l] > 0.0 && a[l] * a[l] > best[l] * b[l];
            let s = a[l] / if take { b[l] } else { 1.0 };
            scale[l] = if take { s } else { scale[l] };
            best[l] = if take { s * a[l] } else { best[l] };
            inverse[l] = if take { candidate[l] } else { inverse[l] };
        }
    }
    for l in 0..L {
        scale[l] = if zero[l] { 0.0 } else { scale[l] };
    }
    Signed {
        scale,
        inverse,
        zero,
        top,
    }
}

/// `(sum (w x) l, sum (w l) l)` of each group. No product passes 2^22 here, since no value passes
/// the peak, so limiting before rounding is the same as after.
#[inline(always)]
fn grid_sums<const L: usize, const N: usize>(
    x: &Groups<L, N>,
    w: &Groups<L, N>,
    wx: &Groups<L, N>,
    inverse: &Lanes<L>,
    top: f32,
) -> (Lanes<L>, Lanes<L>) {
    let (mut a, mut b) = ([0.0f32; L], [0.0f32; L]);
    for i in 0..N {
        for l in 0..L {
            let q = nearest_within(inverse[l] * x[i][l], -top, top - 1.0);
            a[l] += wx[i][l] * q;
            b[l] += w[i][l] * q * q;
        }
    }
    (a, b)
}
