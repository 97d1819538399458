//! A WAV writer that writes what it is told, right or wrong.

/// The fields of a WAV header, and the samples.
#[derive(Clone)]
pub(crate) struct Wav {
    pub(crate) tag: u16,
    pub(crate) channels: u16,
    pub(crate) rate: u32,
    pub(crate) bits: u16,
    pub(crate) extensible: bool,
    pub(crate) riff_size: Option<u32>,
    pub(crate) data_size: Option<u32>,
    pub(crate) data: Vec<u8>,
}

impl Default for Wav {
    fn default() -> Self {
        Self {
            tag: 1,
            channels: 1,
            rate: 16_000,
            bits: 16,
            extensible: false,
            riff_size: None,
            data_size: None,
            data: Vec::new(),
        }
    }
}

impl Wav {
    pub(crate) fn pcm16(rate: u32, channels: u16, samples: &[f32]) -> Self {
        let to = |x: &f32| ((x * 32_768.0).round() as i16).to_le_bytes();
        Self {
            rate,
            channels,
            data: samples.iter().flat_map(to).collect(),
            ..Self::default()
        }
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let block = u32::from(self.channels) * u32::from(self.bits) / 8;
        let mut format = Vec::new();
        format.extend(if self.extensible { 0xfffe } else { self.tag }.to_le_bytes());
        format.extend(self.channels.to_le_bytes());
        format.extend(self.rate.to_le_bytes());
        format.extend(self.rate.wrapping_mul(block).to_le_bytes());
        format.extend((block as u16).to_le_bytes());
        format.extend(self.bits.to_le_bytes());
        if self.extensible {
            format.extend(22_u16.to_le_bytes());
            format.extend(self.bits.to_le_bytes());
            format.extend(4_u32.to_le_bytes());
            format.extend(self.tag.to_le_bytes());
            format.extend([0, 0, 0, 0, 0x10, 0, 0x80, 0, 0, 0xaa, 0, 0x38, 0x9b, 0x71]);
        }
        let len = self.data.len() as u32;
        let mut out = b"RIFF".to_vec();
        let riff = self.riff_size.unwrap_or(20 + format.len() as u32 + len);
        out.extend(riff.to_le_bytes());
        out.extend(b"WAVEfmt ");
        out.extend((format.len() as u32).to_le_bytes());
        out.extend(format);
        out.extend(b"data");
        out.extend(self.data_size.unwrap_or(len).to_le_bytes());
        out.extend(&self.data);
        out
    }
}

/// A decaying tone of `seconds`, the same sound at every rate.
pub(crate) fn tone(rate: u32, seconds: f64) -> Vec<f32> {
    let frames = (f64::from(rate) * seconds) as usize;
    (0..frames)
        .map(|i| {
            let t = i as f64 / f64::from(rate);
            (0.6 * (-t).exp() * (std::f64::consts::TAU * 440.0 * t).sin()) as f32
        })
        .collect()
}
