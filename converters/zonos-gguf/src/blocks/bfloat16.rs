//! BF16: the upper half of a single. Ties to even; a NaN keeps its upper half with bit 6 set.

pub(super) fn dequantize_row(src: &[u8], dst: &mut [f32]) {
    for (bytes, v) in src.as_chunks::<2>().0.iter().zip(dst) {
        *v = f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16);
    }
}

pub(super) fn quantize_row(src: &[f32], dst: &mut [u8]) {
    for (v, bytes) in src.iter().zip(dst.as_chunks_mut::<2>().0) {
        let bits = v.to_bits();
        let upper = bits >> 16;
        let rounded = (bits.wrapping_add(0x7fff + (upper & 1))) >> 16;
        let nan = bits & 0x7fff_ffff > 0x7f80_0000;
        *bytes = (if nan { upper | 64 } else { rounded } as u16).to_le_bytes();
    }
}
