//! A-law and mu-law (ITU-T G.711), expanded to the range of 16-bit PCM.

/// One mu-law byte: 14-bit value in 16.
pub(super) fn mulaw(byte: u8) -> i16 {
    let v = !byte;
    let magnitude = ((i16::from(v & 0x0f) << 3) + 0x84) << ((v >> 4) & 7);
    let value = magnitude - 0x84;
    if v & 0x80 == 0 { value } else { -value }
}

/// One A-law byte: 13-bit value in 16.
pub(super) fn alaw(byte: u8) -> i16 {
    let v = byte ^ 0x55;
    let mantissa = (i16::from(v & 0x0f) << 4) + 8;
    let value = match (v >> 4) & 7 {
        0 => mantissa,
        exponent => (mantissa + 0x100) << (exponent - 1),
    };
    if v & 0x80 == 0 { -value } else { value }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extremes_and_zero() {
        assert_eq!((mulaw(0xff), mulaw(0x7f)), (0, 0));
        assert_eq!((mulaw(0x80), mulaw(0x00)), (32_124, -32_124));
        assert_eq!((alaw(0xd5), alaw(0x55)), (8, -8));
        assert_eq!((alaw(0xaa), alaw(0x2a)), (32_256, -32_256));
    }
}
