//! F32: little-endian singles.

pub(super) fn dequantize_row(src: &[u8], dst: &mut [f32]) {
    for (bytes, v) in src.as_chunks::<4>().0.iter().zip(dst) {
        *v = f32::from_le_bytes(*bytes);
    }
}

pub(super) fn quantize_row(src: &[f32], dst: &mut [u8]) {
    for (v, bytes) in src.iter().zip(dst.as_chunks_mut::<4>().0) {
        *bytes = v.to_le_bytes();
    }
}
