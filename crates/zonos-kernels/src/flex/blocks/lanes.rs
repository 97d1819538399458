//! Vectors with a weight row in each lane of 32 bits: what panels are made of, eight rows wide or sixteen.
//!
//! # Safety
//!
//! Methods of [`Lanes`] are parts of the loops in `tile` and run on a processor with the instruction set that the
//! implementing type stands for. Pointers are readable as far as a method says.

use std::arch::x86_64::__m128i;

/// Most rows of a panel.
pub(super) const WIDEST: usize = 16;

/// As many rows as a vector has lanes, equally far apart.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    /// Where each fourth begins.
    fourths: [*const u8; WIDEST / 4],
    stride: usize,
}

impl Rows {
    #[inline(always)]
    pub(super) fn new(start: *const u8, stride: usize) -> Self {
        Self {
            fourths: [0, 4, 8, 12].map(|r| start.wrapping_add(r * stride)),
            stride,
        }
    }

    /// Where a row begins.
    #[inline(always)]
    pub(super) fn at(&self, row: usize) -> *const u8 {
        self.fourths[row / 4].wrapping_add(row % 4 * self.stride)
    }

    /// The rows from some bytes on.
    #[inline(always)]
    pub(super) fn from(self, bytes: usize) -> Self {
        Self {
            fourths: self.fourths.map(|p| p.wrapping_add(bytes)),
            ..self
        }
    }
}

/// Vectors of 32-bit lanes.
pub(super) trait Lanes: Copy + 'static {
    /// Lanes.
    const ROWS: usize;
    /// Whether codes of 8 bits are signed as they meet activations. Else they are 128 too high.
    const SIGNED: bool;
    /// Integers: words, or four bytes in each.
    type Ints: Copy;
    /// Floats.
    type Floats: Copy;

    /// A byte in all bytes.
    unsafe fn byte(b: u8) -> Self::Ints;
    /// A word in all lanes.
    unsafe fn word(w: u32) -> Self::Ints;
    unsafe fn and(a: Self::Ints, b: Self::Ints) -> Self::Ints;
    unsafe fn or(a: Self::Ints, b: Self::Ints) -> Self::Ints;
    unsafe fn xor(a: Self::Ints, b: Self::Ints) -> Self::Ints;
    /// Words moved right by `n` bits, left where it is negative.
    unsafe fn right(v: Self::Ints, n: i32) -> Self::Ints;
    /// Differences of bytes.
    unsafe fn sub_bytes(a: Self::Ints, b: Self::Ints) -> Self::Ints;
    /// Sums of the products of the two signed halves of each word.
    unsafe fn multiply_halves(a: Self::Ints, b: Self::Ints) -> Self::Ints;
    /// The lower halves of words, those of `second` above those of `first`.
    unsafe fn join_halves(first: Self::Ints, second: Self::Ints) -> Self::Ints;
    /// Bytes at places of the same sixteen, zero where a place is negative.
    unsafe fn shuffle(v: Self::Ints, places: __m128i) -> Self::Ints;
    /// Bytes of a table, at places below 16.
    unsafe fn look_up(table: __m128i, places: Self::Ints) -> Self::Ints;
    /// 16 where a bit of four is set, from bit `4 q` on: a bit of each word for each of its bytes.
    unsafe fn fifth_bits(words: Self::Ints, q: usize) -> Self::Ints;
    /// 32 bytes of each row from `at` on: bytes `4 q` to `4 q + 3` of all rows in vector `q`.
    unsafe fn turn(rows: &Rows, at: usize) -> [Self::Ints; 8];
    /// 16 bytes of each row from `at` on: bytes `4 q` to `4 q + 3` of all rows in vector `q`.
    unsafe fn turn_short(rows: &Rows, at: usize) -> [Self::Ints; 4];

    /// A number in all lanes.
    unsafe fn splat(x: f32) -> Self::Floats;
    unsafe fn mul(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `a b + c`, rounded once.
    unsafe fn fma(a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    unsafe fn load(p: *const f32) -> Self::Floats;
    unsafe fn store(p: *mut f32, v: Self::Floats);
    /// Signed words as floats.
    unsafe fn floats(words: Self::Ints) -> Self::Floats;
    /// The halves in the lower or upper halves of words.
    unsafe fn halves_in(words: Self::Ints, upper: bool) -> Self::Floats;
    /// Byte `i` of each word in vector `i`, as signed integers.
    unsafe fn integers(words: Self::Ints) -> [Self::Floats; 4];
}
