//! Products of matrices with panels: a panel holds some rows of a matrix side by side, one row a lane,
//! step after step of what is summed over.
//!
//! The other factor is read a value at a time, where it lies, so it needs no packing; every result is
//! one chain of multiply-adds in the order of the steps, whatever else is computed with it.

use super::simd::{Simd, ask};

/// Vectors that a full panel is wide.
pub(super) const VECTORS: usize = 2;

/// Rows of a full panel.
#[inline(always)]
pub(super) const fn full<S: Simd>() -> usize {
    VECTORS * S::LANES
}

/// Width of the panel of the last `rows` rows: one vector where they fit in it.
#[inline(always)]
pub(super) const fn width<S: Simd>(rows: usize) -> usize {
    if rows <= S::LANES {
        S::LANES
    } else {
        VECTORS * S::LANES
    }
}

/// Writes `rows` rows of `steps` values, `stride` apart, as a panel `[steps, width]`. Lanes beyond the
/// rows repeat the last.
///
/// # Safety
///
/// The instruction set is `S`'s; `from` is readable over the rows, of which there is at least one, and
/// `to` writable over `steps * width` values, `width` a multiple of eight.
#[inline(always)]
pub(super) unsafe fn pack<S: Simd>(
    from: *const f32,
    stride: usize,
    rows: usize,
    steps: usize,
    to: *mut f32,
    width: usize,
) {
    let whole = steps - steps % 8;
    let mut lane = 0;
    while lane < width {
        // SAFETY: rows are clamped to those that exist, and columns stay below `steps`.
        unsafe {
            let mut sources = [from; 8];
            for (i, source) in sources.iter_mut().enumerate() {
                *source = from.add((lane + i).min(rows - 1) * stride);
            }
            let mut k = 0;
            while k < whole {
                S::transpose(sources, to.add(k * width + lane), width);
                for source in &mut sources {
                    *source = source.add(8);
                }
                k += 8;
            }
            while k < steps {
                for (i, source) in sources.iter_mut().enumerate() {
                    *to.add(k * width + lane + i) = **source;
                    *source = source.add(1);
                }
                k += 1;
            }
        }
        lane += 8;
    }
}

/// What is asked for while something else is multiplied: `bytes` more with every step, from `next` on.
#[derive(Clone, Copy)]
pub(super) struct Ahead {
    pub(super) next: *const u8,
    pub(super) bytes: usize,
}

/// `acc[i] += sum over k of rows[i stride + k] panel[k]`, `k` below `steps`: rows of the other factor,
/// each contiguous.
///
/// # Safety
///
/// The instruction set is `S`'s; `MR` rows of `steps` values, `stride` apart, and `steps` times `NR`
/// vectors of the panel are readable.
#[inline(always)]
pub(super) unsafe fn add_rows<S: Simd, const MR: usize, const NR: usize>(
    acc: &mut [[S::V; NR]; MR],
    rows: *const f32,
    stride: usize,
    panel: *const f32,
    steps: usize,
) {
    let ahead = Ahead {
        next: rows.cast(),
        bytes: 0,
    };
    // SAFETY: the caller's contract.
    unsafe { add_rows_asking::<S, MR, NR, false>(acc, rows, stride, panel, steps, ahead) }
}

/// [`add_rows`], asking for what lies ahead if `ASK`.
///
/// # Safety
///
/// As there.
#[inline(always)]
pub(super) unsafe fn add_rows_asking<S: Simd, const MR: usize, const NR: usize, const ASK: bool>(
    acc: &mut [[S::V; NR]; MR],
    rows: *const f32,
    stride: usize,
    panel: *const f32,
    steps: usize,
    ahead: Ahead,
) {
    // SAFETY: the caller's contract.
    unsafe {
        let mut sums = *acc;
        let mut row = [rows; MR];
        for i in 0..MR {
            row[i] = rows.add(i * stride);
        }
        let (mut lane, mut next) = (panel, ahead.next);
        for k in 0..steps {
            if ASK {
                ask(next);
                next = next.wrapping_add(ahead.bytes);
            }
            let mut v = [S::zero(); NR];
            for j in 0..NR {
                v[j] = S::load(lane.add(j * S::LANES));
            }
            for i in 0..MR {
                let factor = S::splat(*row[i].add(k));
                for j in 0..NR {
                    sums[i][j] = S::fma(factor, v[j], sums[i][j]);
                }
            }
            lane = lane.add(NR * S::LANES);
        }
        *acc = sums;
    }
}

/// `acc[i] += sum over k of columns[k stride + i] panel[k]`, `k` below `steps`: `MR` columns of the other
/// factor, side by side.
///
/// # Safety
///
/// The instruction set is `S`'s; `MR` values in each of `steps` rows, `stride` apart, and `steps` times
/// `NR` vectors of the panel are readable.
#[inline(always)]
pub(super) unsafe fn add_columns<S: Simd, const MR: usize, const NR: usize>(
    acc: &mut [[S::V; NR]; MR],
    columns: *const f32,
    stride: usize,
    panel: *const f32,
    steps: usize,
) {
    // SAFETY: the caller's contract.
    unsafe {
        let mut sums = *acc;
        let (mut column, mut lane) = (columns, panel);
        for _ in 0..steps {
            let mut v = [S::zero(); NR];
            for j in 0..NR {
                v[j] = S::load(lane.add(j * S::LANES));
            }
            for i in 0..MR {
                let factor = S::splat(*column.add(i));
                for j in 0..NR {
                    sums[i][j] = S::fma(factor, v[j], sums[i][j]);
                }
            }
            column = column.wrapping_add(stride);
            lane = lane.add(NR * S::LANES);
        }
        *acc = sums;
    }
}

/// Loads `MR` rows of `NR` vectors, `stride` apart.
///
/// # Safety
///
/// The instruction set is `S`'s, and the rows are readable.
#[inline(always)]
pub(super) unsafe fn load_block<S: Simd, const MR: usize, const NR: usize>(
    from: *const f32,
    stride: usize,
) -> [[S::V; NR]; MR] {
    // SAFETY: the caller's contract.
    unsafe {
        let mut block = [[S::zero(); NR]; MR];
        for i in 0..MR {
            for j in 0..NR {
                block[i][j] = S::load(from.add(i * stride + j * S::LANES));
            }
        }
        block
    }
}

/// Stores `MR` rows of `NR` vectors, `stride` apart.
///
/// # Safety
///
/// The instruction set is `S`'s, and the rows are writable.
#[inline(always)]
pub(super) unsafe fn store_block<S: Simd, const MR: usize, const NR: usize>(
    block: &[[S::V; NR]; MR],
    to: *mut f32,
    stride: usize,
) {
    // SAFETY: the caller's contract.
    unsafe {
        for i in 0..MR {
            for j in 0..NR {
                S::store(to.add(i * stride + j * S::LANES), block[i][j]);
            }
        }
    }
}

/// Calls `$call` with `$mr` and `$nr` constants for the next rows, as many at a time as the registers
/// hold for `S`, and advances `$row` until `$rows`: `$width` is one vector or [`VECTORS`].
macro_rules! by_rows {
    ($S:ty, $row:ident in $rows:expr, $width:expr, $function:ident $arguments:tt) => {{
        let wide = $width != <$S>::LANES;
        let mut $row = 0;
        while $row < $rows {
            let left = $rows - $row;
            if wide && <$S>::LANES == 16 && left >= 12 {
                $function::<$S, 12, 2> $arguments;
                $row += 12;
            } else if wide && left >= 6 {
                $function::<$S, 6, 2> $arguments;
                $row += 6;
            } else if wide && left >= 3 {
                $function::<$S, 3, 2> $arguments;
                $row += 3;
            } else if wide {
                $function::<$S, 1, 2> $arguments;
                $row += 1;
            } else if left >= 12 {
                $function::<$S, 12, 1> $arguments;
                $row += 12;
            } else if left >= 4 {
                $function::<$S, 4, 1> $arguments;
                $row += 4;
            } else {
                $function::<$S, 1, 1> $arguments;
                $row += 1;
            }
        }
    }};
}
pub(super) use by_rows;
