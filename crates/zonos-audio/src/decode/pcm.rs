//! Samples of fixed size, as they lie in WAV and AIFF files.

use super::Problem;
use super::g711;
use super::sink::Sink;
use super::source::Source;

/// How one sample is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sample {
    U8,
    I8,
    /// Signed, of 2 to 4 bytes.
    Int {
        bytes: usize,
        big: bool,
    },
    F32 {
        big: bool,
    },
    F64 {
        big: bool,
    },
    ALaw,
    MuLaw,
}

impl Sample {
    pub(super) fn bytes(self) -> usize {
        match self {
            Self::U8 | Self::I8 | Self::ALaw | Self::MuLaw => 1,
            Self::Int { bytes, .. } => bytes,
            Self::F32 { .. } => 4,
            Self::F64 { .. } => 8,
        }
    }

    pub(super) fn codec(self) -> &'static str {
        match self {
            Self::U8 | Self::I8 | Self::Int { .. } => "PCM",
            Self::F32 { .. } | Self::F64 { .. } => "float PCM",
            Self::ALaw => "A-law",
            Self::MuLaw => "mu-law",
        }
    }

    pub(super) fn bits(self) -> u32 {
        8 * self.bytes() as u32
    }

    /// Appends the samples in `bytes`, a whole number of them.
    fn expand(self, bytes: &[u8], out: &mut Vec<f32>) {
        const I16: f32 = 1.0 / 32_768.0;
        match self {
            Self::U8 => out.extend(bytes.iter().map(|&b| (f32::from(b) - 128.0) / 128.0)),
            Self::I8 => out.extend(bytes.iter().map(|&b| f32::from(b.cast_signed()) / 128.0)),
            Self::ALaw => out.extend(bytes.iter().map(|&b| f32::from(g711::alaw(b)) * I16)),
            Self::MuLaw => out.extend(bytes.iter().map(|&b| f32::from(g711::mulaw(b)) * I16)),
            Self::Int { bytes: width, big } => {
                out.extend(bytes.chunks_exact(width).map(|sample| {
                    // Left-justified in 32 bits, so that one scale serves all widths.
                    let mut wide = [0; 4];
                    if big {
                        wide[..width].copy_from_slice(sample);
                    } else {
                        for (to, from) in wide.iter_mut().zip(sample.iter().rev()) {
                            *to = *from;
                        }
                    }
                    (f64::from(i32::from_be_bytes(wide)) / 2_147_483_648.0) as f32
                }));
            }
            Self::F32 { big } => out.extend(bytes.as_chunks().0.iter().map(|&b| {
                if big {
                    f32::from_be_bytes(b)
                } else {
                    f32::from_le_bytes(b)
                }
            })),
            Self::F64 { big } => out.extend(bytes.as_chunks().0.iter().map(|&b| {
                let x = if big {
                    f64::from_be_bytes(b)
                } else {
                    f64::from_le_bytes(b)
                };
                x as f32
            })),
        }
    }
}

/// Reads `bytes` bytes of samples from where `source` stands. An incomplete last frame is dropped.
pub(super) fn read(
    source: &mut Source,
    sample: Sample,
    channels: usize,
    bytes: u64,
    sink: &mut Sink,
) -> Result<(), Problem> {
    const FRAMES: usize = 4096;
    let frame = sample.bytes() * channels;
    let mut buffer = vec![0; FRAMES * frame];
    let mut samples = Vec::new();
    let mut left = bytes;
    while left > 0 {
        let want = left.min(buffer.len() as u64) as usize;
        let got = source.fill(&mut buffer[..want])?;
        left -= got as u64;
        samples.clear();
        sample.expand(&buffer[..got - got % frame], &mut samples);
        sink.push_interleaved(&samples)?;
        if got < want {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(sample: Sample, bytes: &[u8]) -> f32 {
        let mut out = Vec::new();
        sample.expand(bytes, &mut out);
        assert_eq!(out.len(), 1);
        out[0]
    }

    #[test]
    fn every_width_and_order() {
        assert_eq!(one(Sample::U8, &[0]), -1.0);
        assert_eq!(one(Sample::U8, &[192]), 0.5);
        assert_eq!(one(Sample::I8, &[0xc0]), -0.5);
        for bytes in 2..=4 {
            let mut half = vec![0; bytes];
            half[0] = 0xc0;
            assert_eq!(one(Sample::Int { bytes, big: true }, &half), -0.5);
            half.reverse();
            assert_eq!(one(Sample::Int { bytes, big: false }, &half), -0.5);
        }
        let s16 = Sample::Int {
            bytes: 2,
            big: false,
        };
        assert_eq!(one(s16, &32_767_i16.to_le_bytes()), 32_767.0 / 32_768.0);
        assert_eq!(one(Sample::F32 { big: true }, &1.5_f32.to_be_bytes()), 1.5);
        assert_eq!(
            one(Sample::F64 { big: false }, &(-2.5_f64).to_le_bytes()),
            -2.5
        );
        assert_eq!(one(Sample::MuLaw, &[0x80]), 32_124.0 / 32_768.0);
    }
}
