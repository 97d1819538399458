//! The two ADPCM codings that WAV files carry: IMA (tag 0x11) and Microsoft (tag 0x02).
//!
//! Source: "New Multimedia Data Types and Data Techniques", Microsoft 1994, and "Recommended
//! Practices for Enhancing Digital Audio Compatibility in Multimedia Systems", IMA 1992.

use super::Problem;
use super::sink::Sink;
use super::source::Source;

/// A coding and its block layout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Adpcm {
    Ima,
    Microsoft { coefficients: Vec<(i32, i32)> },
}

const IMA_INDEX: [i32; 8] = [-1, -1, -1, -1, 2, 4, 6, 8];

const IMA_STEP: [i32; 89] = [
    7, 8, 9, 10, 11, 12, 13, 14, 16, 17, 19, 21, 23, 25, 28, 31, 34, 37, 41, 45, 50, 55, 60, 66,
    73, 80, 88, 97, 107, 118, 130, 143, 157, 173, 190, 209, 230, 253, 279, 307, 337, 371, 408, 449,
    494, 544, 598, 658, 724, 796, 876, 963, 1060, 1166, 1282, 1411, 1552, 1707, 1878, 2066, 2272,
    2499, 2749, 3024, 3327, 3660, 4026, 4428, 4871, 5358, 5894, 6484, 7132, 7845, 8630, 9493,
    10442, 11487, 12635, 13899, 15289, 16818, 18500, 20350, 22385, 24623, 27086, 29794, 32767,
];

const MS_ADAPT: [i32; 16] = [
    230, 230, 230, 230, 307, 409, 512, 614, 768, 614, 512, 409, 307, 230, 230, 230,
];

/// The predictors every Microsoft encoder has; files repeat them and may add more.
pub(super) const MS_COEFFICIENTS: [(i32, i32); 7] = [
    (256, 0),
    (512, -256),
    (0, 0),
    (192, 64),
    (240, 0),
    (460, -208),
    (392, -232),
];

/// Far above any real step; keeps hostile ones from overflowing.
const MS_MAX_STEP: i32 = 1 << 20;

impl Adpcm {
    /// Bytes of a block's header.
    pub(super) fn header(&self, channels: usize) -> usize {
        match self {
            Self::Ima => 4 * channels,
            Self::Microsoft { .. } => 7 * channels,
        }
    }

    /// Samples a channel in a block of `bytes` bytes.
    pub(super) fn frames(&self, bytes: usize, channels: usize) -> usize {
        match (bytes.checked_sub(self.header(channels)), self) {
            (None, _) => 0,
            (Some(body), Self::Ima) => 1 + body / (4 * channels) * 8,
            (Some(body), Self::Microsoft { .. }) => 2 + body * 2 / channels,
        }
    }

    /// Appends the frames of a block, or of as much of it as there is, interleaved.
    fn block(&self, block: &[u8], channels: usize, out: &mut Vec<i16>) {
        if block.len() < self.header(channels) {
            return;
        }
        match self {
            Self::Ima => ima(block, channels, out),
            Self::Microsoft { coefficients } => microsoft(block, channels, coefficients, out),
        }
    }
}

fn ima(block: &[u8], channels: usize, out: &mut Vec<i16>) {
    let (header, body) = block.split_at(4 * channels);
    let mut states: Vec<(i32, i32)> = header
        .chunks_exact(4)
        .map(|h| {
            let value = i32::from(i16::from_le_bytes([h[0], h[1]]));
            (value, i32::from(h[2]).min(88))
        })
        .collect();
    out.extend(states.iter().map(|&(value, _)| value as i16));
    let mut eight = vec![[0_i16; 8]; channels];
    for group in body.chunks_exact(4 * channels) {
        for ((word, state), samples) in group.chunks_exact(4).zip(&mut states).zip(&mut eight) {
            for (i, sample) in samples.iter_mut().enumerate() {
                let code = i32::from(word[i / 2] >> (4 * (i % 2))) & 15;
                *sample = ima_step(state, code);
            }
        }
        for i in 0..8 {
            out.extend(eight.iter().map(|samples| samples[i]));
        }
    }
}

fn ima_step((value, index): &mut (i32, i32), code: i32) -> i16 {
    // The index is kept within the table below.
    let step = IMA_STEP[*index as usize];
    let mut delta = step >> 3;
    for (bit, part) in [(4, step), (2, step >> 1), (1, step >> 2)] {
        if code & bit != 0 {
            delta += part;
        }
    }
    let sign = if code & 8 == 0 { 1 } else { -1 };
    *value = (*value + sign * delta).clamp(-32_768, 32_767);
    *index = (*index + IMA_INDEX[(code & 7) as usize]).clamp(0, 88);
    *value as i16
}

struct MsState {
    coefficients: (i32, i32),
    step: i32,
    last: [i32; 2],
}

fn microsoft(block: &[u8], channels: usize, coefficients: &[(i32, i32)], out: &mut Vec<i16>) {
    let (header, body) = block.split_at(7 * channels);
    let (predictors, words) = header.split_at(channels);
    let word = |i: usize| i32::from(i16::from_le_bytes([words[2 * i], words[2 * i + 1]]));
    let mut states: Vec<MsState> = predictors
        .iter()
        .enumerate()
        .map(|(c, &predictor)| MsState {
            coefficients: coefficients
                .get(usize::from(predictor))
                .copied()
                .unwrap_or_default(),
            step: word(c),
            last: [word(channels + c), word(2 * channels + c)],
        })
        .collect();
    out.extend(states.iter().map(|s| s.last[1] as i16));
    out.extend(states.iter().map(|s| s.last[0] as i16));
    let nibbles = body.iter().flat_map(|&b| [b >> 4, b & 15]);
    let whole = body.len() * 2 / channels * channels;
    for (i, code) in nibbles.take(whole).enumerate() {
        out.push(states[i % channels].step(i32::from(code)));
    }
}

impl MsState {
    fn step(&mut self, code: i32) -> i16 {
        let signed = if code < 8 { code } else { code - 16 };
        let (c1, c2) = self.coefficients;
        let sum = |i: usize, c: i32| i64::from(self.last[i]) * i64::from(c);
        let predicted = (sum(0, c1) + sum(1, c2)) / 256;
        let value = predicted + i64::from(signed * self.step);
        let value = value.clamp(-32_768, 32_767) as i32;
        self.last = [value, self.last[0]];
        self.step = (MS_ADAPT[code as usize] * self.step / 256).clamp(16, MS_MAX_STEP);
        value as i16
    }
}

/// Reads `bytes` bytes of blocks from where `source` stands.
pub(super) fn read(
    source: &mut Source,
    coding: &Adpcm,
    channels: usize,
    block: usize,
    bytes: u64,
    sink: &mut Sink,
) -> Result<(), Problem> {
    let mut buffer = vec![0; block];
    let (mut decoded, mut samples) = (Vec::new(), Vec::new());
    let mut left = bytes;
    while left > 0 {
        let want = left.min(block as u64) as usize;
        let got = source.fill(&mut buffer[..want])?;
        left -= got as u64;
        decoded.clear();
        coding.block(&buffer[..got], channels, &mut decoded);
        samples.clear();
        samples.extend(decoded.iter().map(|&v| f32::from(v) / 32_768.0));
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

    #[test]
    fn blocks_have_the_length_they_promise() {
        let ms = Adpcm::Microsoft {
            coefficients: MS_COEFFICIENTS.to_vec(),
        };
        for coding in [Adpcm::Ima, ms] {
            for channels in 1..=3 {
                for bytes in 0..200 {
                    let mut out = Vec::new();
                    let block: Vec<u8> = (0..bytes).map(|i| (i * 89 % 256) as u8).collect();
                    coding.block(&block, channels, &mut out);
                    assert_eq!(out.len(), coding.frames(bytes, channels) * channels);
                }
            }
        }
    }

    #[test]
    fn a_hostile_step_saturates() {
        // Largest step, largest coefficients, and a code that raises the step every time.
        let mut block = vec![0, 0xff, 0x7f, 0xff, 0x7f, 0xff, 0x7f];
        block.extend([0x88; 64]);
        let coding = Adpcm::Microsoft {
            coefficients: vec![(32_767, 32_767)],
        };
        let mut out = Vec::new();
        coding.block(&block, 1, &mut out);
        assert_eq!(out.len(), 130);
    }

    #[test]
    fn ima_follows_its_table() {
        // Header: value 1000, index 16 (step 34); codes 7 (up 63), then 15 (down).
        let mut out = Vec::new();
        Adpcm::Ima.block(&[0xe8, 3, 16, 0, 0xf7, 0, 0, 0], 1, &mut out);
        assert_eq!(&out[..3], &[1000, 1000 + 63, 1063 - (73 + 36 + 18 + 9)]);
    }
}
