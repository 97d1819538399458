//! Products of five rows and more with weight rows where they lie.
//!
//! With several rows a product is bound by reading weights and by multiply-adds at once, so neither may wait for
//! the other. Rows of activations are laid out in blocks of columns, which stay in the nearest cache while some
//! weight rows pass; a few weight rows meet a few rows of activations in registers, where each weight is widened
//! once for all of them, and their sums wait in cache for the next block. Meanwhile what comes next is asked for
//! evenly and in its order, which is how memory is fastest. A result is the same chain of multiply-adds as with
//! one row, so the bits are the same.

use super::simd::{Kernel, Simd, ask, ask_page};
use super::weights::Element;

/// Columns of a block.
const COLUMNS: usize = 512;
/// Rows from which panels of them are faster, see [`dense`](super::dense).
pub(super) const MANY: usize = 16;
/// Weight rows that pass a block before the next block.
pub(super) const WEIGHTS: usize = 24;
/// Weight rows of a tile of sums.
const TILE: usize = 3;
/// Lanes of the widest vectors.
const WIDEST: usize = 16;
const _: () = assert!(WEIGHTS.is_multiple_of(TILE));

/// Rows of activations of a tile of sums: with [`TILE`] weight rows they fill the registers.
const fn widest_tile<S: Simd>() -> usize {
    if S::LANES == WIDEST { 8 } else { 4 }
}

/// Less than [`MANY`] rows of activations, one block of columns behind the other: `[block, row, column]`.
pub(super) struct Batch {
    packed: Vec<f32>,
    rows: usize,
    inner: usize,
}

impl Batch {
    /// The `rows` of `x [_, inner]`.
    pub(super) fn new(x: &[f32], rows: &[usize], inner: usize) -> Self {
        assert!(rows.len() < MANY, "{} rows are too many", rows.len());
        let mut packed = Vec::with_capacity(rows.len() * inner);
        for start in (0..inner).step_by(COLUMNS) {
            let columns = COLUMNS.min(inner - start);
            for &row in rows {
                packed.extend_from_slice(&x[row * inner + start..][..columns]);
            }
        }
        Self {
            packed,
            rows: rows.len(),
            inner,
        }
    }
}

/// Dot products of a batch with consecutive weight rows.
pub(super) struct Several<'a, E> {
    /// `[weight rows, inner]`
    pub(super) weight: &'a [E],
    pub(super) batch: &'a Batch,
    /// `[weight rows, rows]`
    pub(super) out: &'a mut [f32],
}

/// Vectors of sums, `[weight rows, rows]`.
#[repr(C, align(64))]
struct Sums([f32; WEIGHTS * MANY * WIDEST]);

/// One block of columns.
#[derive(Clone, Copy)]
struct Block {
    start: usize,
    columns: usize,
}

impl<E: Element> Kernel for Several<'_, E> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(mut self) {
        let (rows, inner) = (self.batch.rows, self.batch.inner);
        let count = self.weight.len() / inner;
        assert!(rows > 0 && inner > 0);
        assert!(self.weight.len() == count * inner && self.out.len() == count * rows);
        let mut sums = std::mem::MaybeUninit::<Sums>::uninit();
        let sums = sums.as_mut_ptr().cast::<f32>();
        let mut first = 0;
        while first < count {
            let taken = (count - first).min(WEIGHTS);
            // SAFETY: the caller dispatched to a processor with `S`; the rows are inside the weights; there is
            // room for the sums, which the first block writes and the others add to.
            unsafe {
                let mut start = 0;
                while start < inner {
                    let columns = COLUMNS.min(inner - start);
                    self.block::<S>(first, taken, Block { start, columns }, sums);
                    start += columns;
                }
                self.finish::<S>(first, taken, sums);
            }
            first += taken;
        }
    }
}

impl<E: Element> Several<'_, E> {
    /// `taken` weight rows from `first` on and all rows over a block of columns.
    ///
    /// # Safety
    ///
    /// The instruction set is `S`'s, the weight rows exist, and `sums` has room for `taken * rows` vectors,
    /// written by earlier blocks if there are any.
    #[inline(always)]
    unsafe fn block<S: Simd>(&self, first: usize, taken: usize, block: Block, sums: *mut f32) {
        let (rows, inner) = (self.batch.rows, self.batch.inner);
        // Even groups: a small one would have too few sums to hide a multiply-add's latency.
        let groups = rows.div_ceil(widest_tile::<S>());
        let mut w = 0;
        while w < taken {
            let tile = if taken - w < TILE { 1 } else { TILE };
            let weight = self.weight[(first + w) * inner..].as_ptr();
            // What lies as far ahead as these weight rows are long, in the order of memory.
            let ahead = taken * inner + taken * block.start + w * block.columns;
            let next = self.weight[first * inner..].as_ptr().wrapping_add(ahead);
            for g in 0..groups {
                let n = rows * g / groups..rows * (g + 1) / groups;
                let at = Tile {
                    weight: weight.wrapping_add(block.start),
                    inner,
                    x: self.batch.packed[rows * block.start + n.start * block.columns..].as_ptr(),
                    columns: block.columns,
                    sums: sums.wrapping_add((w * rows + n.start) * S::LANES),
                    rows,
                    next: if g == 0 {
                        next.cast()
                    } else {
                        std::ptr::null()
                    },
                    fresh: block.start == 0,
                };
                // SAFETY: the caller's contract; the tile's weight rows and rows exist.
                unsafe {
                    match tile {
                        TILE => at.add_rows::<S, TILE>(n.len()),
                        _ => at.add_rows::<S, 1>(n.len()),
                    }
                }
            }
            w += tile;
        }
    }

    /// Sums the lanes, and adds the products of columns behind the last whole vector.
    ///
    /// # Safety
    ///
    /// The instruction set is `S`'s, the weight rows exist, and their sums have been written.
    #[inline(always)]
    unsafe fn finish<S: Simd>(&mut self, first: usize, taken: usize, sums: *const f32) {
        let (rows, inner) = (self.batch.rows, self.batch.inner);
        let whole = inner - inner % S::LANES;
        let last = (inner - 1) / COLUMNS * COLUMNS;
        let columns = inner - last;
        for w in 0..taken {
            let weight = &self.weight[(first + w) * inner..][..inner];
            for n in 0..rows {
                // SAFETY: the caller's contract.
                let mut sum = unsafe { S::sum(S::load(sums.add((w * rows + n) * S::LANES))) };
                let x = &self.batch.packed[rows * last + n * columns..][..columns];
                for i in whole..inner {
                    // SAFETY: the caller's contract.
                    sum = unsafe { S::fma1(weight[i].widen(), x[i - last], sum) };
                }
                self.out[(first + w) * rows + n] = sum;
            }
        }
    }
}

/// A tile of sums over a block of columns.
#[derive(Clone, Copy)]
struct Tile<E> {
    /// The first weight row's columns; the others are `inner` apart.
    weight: *const E,
    inner: usize,
    /// The first row's columns; the others are `columns` apart.
    x: *const f32,
    columns: usize,
    /// The first sum; weight rows are `rows` vectors apart.
    sums: *mut f32,
    rows: usize,
    /// What to ask for meanwhile, or null.
    next: *const u8,
    /// Whether sums begin here.
    fresh: bool,
}

impl<E: Element> Tile<E> {
    /// [`add`](Self::add) for a number of rows, at most [`widest_tile`].
    ///
    /// # Safety
    ///
    /// As [`add`](Self::add).
    #[inline(always)]
    unsafe fn add_rows<S: Simd, const W: usize>(self, rows: usize) {
        // SAFETY: the caller's contract.
        unsafe {
            match rows {
                1 => self.add::<S, W, 1>(),
                2 => self.add::<S, W, 2>(),
                3 => self.add::<S, W, 3>(),
                4 => self.add::<S, W, 4>(),
                5 => self.add::<S, W, 5>(),
                6 => self.add::<S, W, 6>(),
                7 => self.add::<S, W, 7>(),
                _ => self.add::<S, W, 8>(),
            }
        }
    }

    /// Adds the products of `W` weight rows with `N` rows, as far as columns fill vectors.
    ///
    /// # Safety
    ///
    /// The instruction set is `S`'s, and all pointers are valid for the tile; sums need only be written where
    /// they do not begin here.
    #[inline(always)]
    unsafe fn add<S: Simd, const W: usize, const N: usize>(self) {
        // SAFETY: the caller's contract; every load takes whole vectors before `columns`.
        unsafe {
            let mut sums = [[S::zero(); N]; W];
            if !self.fresh {
                for w in 0..W {
                    for n in 0..N {
                        sums[w][n] = S::load(self.sums.add((w * self.rows + n) * S::LANES));
                    }
                }
            }
            let mut at = 0;
            if self.next.is_null() {
                while at + S::LANES <= self.columns {
                    self.step::<S, W, N>(at, &mut sums);
                    at += S::LANES;
                }
            } else {
                let bytes = W * S::LANES * size_of::<E>();
                let mut next = self.next;
                ask_page(next);
                while at + S::LANES <= self.columns {
                    for line in 0..bytes.div_ceil(64) {
                        ask(next.wrapping_add(64 * line));
                    }
                    next = next.wrapping_add(bytes);
                    self.step::<S, W, N>(at, &mut sums);
                    at += S::LANES;
                }
            }
            for w in 0..W {
                for n in 0..N {
                    S::store(self.sums.add((w * self.rows + n) * S::LANES), sums[w][n]);
                }
            }
        }
    }

    /// Adds the products of the columns from `at` on that fill a vector.
    ///
    /// # Safety
    ///
    /// As [`add`](Self::add), and there are as many columns.
    #[inline(always)]
    unsafe fn step<S: Simd, const W: usize, const N: usize>(
        &self,
        at: usize,
        sums: &mut [[S::V; N]; W],
    ) {
        // SAFETY: the caller's contract.
        unsafe {
            let mut wide = [S::zero(); W];
            for w in 0..W {
                wide[w] = E::load::<S>(self.weight.add(w * self.inner + at));
            }
            for n in 0..N {
                let x = S::load(self.x.add(n * self.columns + at));
                for w in 0..W {
                    sums[w][n] = S::fma(wide[w], x, sums[w][n]);
                }
            }
        }
    }
}
