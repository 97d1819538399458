//! One source of a quantiser, compiled for each instruction set and chosen when it runs.
//!
//! Sums stay in their order whatever the width, and nothing is fused, so that the bytes are the same on
//! every processor.

use std::marker::PhantomData;

use pulp::{Arch, Scalar128b, Simd, WithSimd};

/// A format that encodes rows.
pub(crate) trait Encode {
    /// Encodes the row `src`, whole blocks, into `dst`. Implementations are `#[inline(always)]`, and so
    /// is what they call, or it would be compiled for the plainest processor.
    fn encode<S: Simd>(simd: S, src: &[f32], importance: Option<&[f32]>, dst: &mut [u8]);
}

struct Row<'a, E> {
    src: &'a [f32],
    importance: Option<&'a [f32]>,
    dst: &'a mut [u8],
    format: PhantomData<E>,
}

impl<E: Encode> WithSimd for Row<'_, E> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        E::encode(simd, self.src, self.importance, self.dst);
    }
}

/// Encodes a row with the widest registers that this processor has.
pub(crate) fn encode<E: Encode>(src: &[f32], importance: Option<&[f32]>, dst: &mut [u8]) {
    encode_on::<E>(Arch::new(), src, importance, dst);
}

/// [`encode`] with the registers of `arch`.
pub(crate) fn encode_on<E: Encode>(
    arch: Arch,
    src: &[f32],
    importance: Option<&[f32]>,
    dst: &mut [u8],
) {
    let row = Row::<E> {
        src,
        importance,
        dst,
        format: PhantomData,
    };
    // Without known registers, four numbers at a time are what compilers find vectors for.
    match arch {
        #[cfg(target_arch = "x86_64")]
        Arch::V4(simd) => Simd::vectorize(simd, row),
        #[cfg(target_arch = "x86_64")]
        Arch::V3(simd) => Simd::vectorize(simd, row),
        #[cfg(target_arch = "aarch64")]
        Arch::Neon(simd) => Simd::vectorize(simd, row),
        _ => Simd::vectorize(Scalar128b, row),
    }
}
