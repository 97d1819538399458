//! F16: little-endian halves. Ties to even, overflow to infinity.

use half::f16;
use half::slice::HalfFloatSliceExt;

/// Values converted at a time: enough for the processor's own conversion, little enough for the stack.
const CHUNK: usize = 256;

pub(super) fn dequantize_row(src: &[u8], dst: &mut [f32]) {
    if cfg!(target_endian = "little")
        && let Ok(halves) = bytemuck::try_cast_slice::<u8, f16>(src)
    {
        let values = dst.len().min(halves.len());
        halves[..values].convert_to_f32_slice(&mut dst[..values]);
        return;
    }
    let mut halves = [f16::ZERO; CHUNK];
    for (bytes, out) in src.chunks(2 * CHUNK).zip(dst.chunks_mut(CHUNK)) {
        let halves = &mut halves[..out.len()];
        for (h, pair) in halves.iter_mut().zip(bytes.as_chunks::<2>().0) {
            *h = f16::from_le_bytes(*pair);
        }
        halves.convert_to_f32_slice(out);
    }
}

pub(super) fn quantize_row(src: &[f32], dst: &mut [u8]) {
    let mut halves = [f16::ZERO; CHUNK];
    for (values, bytes) in src.chunks(CHUNK).zip(dst.chunks_mut(2 * CHUNK)) {
        let halves = &mut halves[..values.len()];
        halves.convert_from_f32_slice(values);
        for (h, pair) in halves.iter().zip(bytes.as_chunks_mut::<2>().0) {
            *pair = h.to_le_bytes();
        }
    }
}
