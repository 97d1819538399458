//! Audio in, codes out, in windows; and there and back.

use std::borrow::Cow;
use std::ops::Range;

use burn::tensor::{DType, Int, Tensor, TensorData};
use zonos_audio::resample::{ResampleRecipe, Resampler};
use zonos_audio::{Codes, Waveform};
use zonos_nn::{Edges, Tap};

use crate::quantizer::Quantized;
use crate::{Dac, DacError, Encoder, EncoderConfig};

/// Seconds of audio that [`Dac::encode`] works on at a time: long enough that the samples of context,
/// 0.17 s a window for the 44.1 kHz model, cost little, short enough that memory stays bounded.
const WINDOW_SECONDS: f64 = 2.0;

/// Largest magnitude that is encoded, 1 being full scale: 60 dB above it. Beyond that samples are damage,
/// or integers that were stored as floats; at some point the latents would not be finite, and the weights
/// seem to blame.
const LOUDEST: f32 = 1e3;

impl Dac {
    /// Whether the encoder is there.
    pub fn can_encode(&self) -> bool {
        self.encoder.is_some()
    }

    /// Encodes mono audio of any rate: `[frames, codebooks]`, a frame for every hop or part of one.
    /// `codebooks` takes the first of them only, all when `None`.
    ///
    /// Audio of another rate is resampled ([`ResampleRecipe::Functional`]); the end is filled up with
    /// zeros to a whole frame. Long audio is encoded in windows, whose latents are those of one whole
    /// pass: bit for bit on the Flex device, to rounding elsewhere.
    ///
    /// # Errors
    ///
    /// [`DacError::NoEncoder`], [`DacError::DecoderOnly`], [`DacError::Codebooks`],
    /// [`DacError::NoSamples`], [`DacError::NotFinite`], [`DacError::TooLoud`], [`DacError::Resample`],
    /// and [`DacError::Latents`] for weights that are no numbers.
    pub fn encode(&self, audio: &Waveform, codebooks: Option<usize>) -> Result<Codes, DacError> {
        let encoding = self.encoding(audio, codebooks)?;
        let codebooks = encoding.codebooks;
        let mut values = Vec::with_capacity(encoding.frames() * codebooks);
        for codes in encoding {
            values.extend_from_slice(codes?.values());
        }
        Ok(Codes::new(values.len() / codebooks, codebooks, values)?)
    }

    /// As [`encode`](Self::encode), a window at a time: an iterator over consecutive rows.
    ///
    /// # Errors
    ///
    /// As [`encode`](Self::encode); its items have [`DacError::Latents`] alone.
    pub fn encoding<'a>(
        &'a self,
        audio: &'a Waveform,
        codebooks: Option<usize>,
    ) -> Result<Encoding<'a>, DacError> {
        let (encoder, sizes) = self.encoder()?;
        let codebooks = self.codebooks(codebooks)?;
        let samples = self.prepared(audio)?;
        let frames = sizes.encoded_len(samples.len());
        let rate = self.config().sample_rate as f64;
        let window = (WINDOW_SECONDS * rate / sizes.hop() as f64).ceil() as usize;
        Ok(Encoding {
            dac: self,
            encoder,
            sizes,
            samples,
            codebooks,
            frames,
            windows: frames.div_ceil(window.max(1)),
            done: 0,
        })
    }

    /// Audio as the encoder takes it: checked, at the codec's rate, not yet filled up.
    ///
    /// # Errors
    ///
    /// [`DacError::NoSamples`], [`DacError::NotFinite`], [`DacError::TooLoud`], [`DacError::Resample`].
    pub fn prepared<'a>(&self, audio: &'a Waveform) -> Result<Cow<'a, [f32]>, DacError> {
        let samples = audio.samples();
        if samples.is_empty() {
            return Err(DacError::NoSamples);
        }
        if let Some(sample) = samples.iter().position(|x| !x.is_finite()) {
            let value = samples[sample];
            return Err(DacError::NotFinite { sample, value });
        }
        if let Some(sample) = samples.iter().position(|x| x.abs() > LOUDEST) {
            let value = samples[sample];
            return Err(DacError::TooLoud { sample, value });
        }
        let rate = self.config().sample_rate as u32;
        if audio.sample_rate() == rate {
            return Ok(Cow::Borrowed(samples));
        }
        let resampler = Resampler::new(audio.sample_rate(), rate, ResampleRecipe::Functional)?;
        Ok(Cow::Owned(resampler.resample(samples)))
    }

    /// One whole pass: `x [batch, 1, samples]` at the codec's rate, filled up with zeros to whole
    /// frames.
    ///
    /// Differentiable, see [`Quantizer::encode`](crate::Quantizer::encode). `tap` sees `enc.padded`,
    /// `enc.0`, `enc.{i}`, `enc.z`, `enc.latents`, `enc.codes`, `enc.z_q`, `enc.margin`.
    ///
    /// # Errors
    ///
    /// [`DacError::NoEncoder`], [`DacError::DecoderOnly`], [`DacError::Codebooks`],
    /// [`DacError::NoSamples`].
    pub fn encode_tensor(
        &self,
        x: Tensor<3>,
        codebooks: Option<usize>,
        tap: &mut Tap,
    ) -> Result<Quantized, DacError> {
        let (encoder, sizes) = self.encoder()?;
        let codebooks = self.codebooks(codebooks)?;
        let [batch, channels, samples] = x.dims();
        if batch * channels * samples == 0 {
            return Err(DacError::NoSamples);
        }
        let fill = sizes.padded_len(samples) - samples;
        let x = if fill > 0 {
            let zeros = Tensor::zeros([batch, channels, fill], (&x.device(), DType::F32));
            Tensor::cat(vec![x, zeros], 2)
        } else {
            x
        };
        tap.record("enc.padded", &x);
        let z = encoder.forward(x, Edges::WHOLE, tap);
        Ok(self.quantizer.encode(z, codebooks, tap))
    }

    /// Encodes and decodes. What comes back is as long as what went in, or a few samples shorter
    /// where a rate of the decoder is odd.
    ///
    /// # Errors
    ///
    /// As [`encode`](Self::encode).
    pub fn roundtrip(
        &self,
        audio: &Waveform,
        codebooks: Option<usize>,
    ) -> Result<Roundtrip, DacError> {
        let rate = self.config().sample_rate as u32;
        let original = Waveform::new(self.prepared(audio)?.into_owned(), rate);
        let codes = self.encode(&original, codebooks)?;
        let mut decoded = self.decode(&codes)?;
        decoded.samples_mut().truncate(original.len());
        Ok(Roundtrip {
            codes,
            original,
            decoded,
        })
    }

    fn encoder(&self) -> Result<(&Encoder, &EncoderConfig), DacError> {
        match (&self.encoder, &self.config().encoder) {
            (Some(encoder), Some(sizes)) => Ok((encoder, sizes)),
            (None, Some(_)) => Err(DacError::DecoderOnly {
                file: self.file().to_owned(),
            }),
            (_, None) => Err(DacError::NoEncoder {
                file: self.file().to_owned(),
            }),
        }
    }

    fn codebooks(&self, asked: Option<usize>) -> Result<usize, DacError> {
        let has = self.config().n_codebooks;
        let asked = asked.unwrap_or(has);
        if (1..=has).contains(&asked) {
            Ok(asked)
        } else {
            Err(DacError::Codebooks { asked, has })
        }
    }
}

/// Audio and what became of it, both at the codec's rate.
#[derive(Debug, Clone)]
pub struct Roundtrip {
    /// `[frames, codebooks]`.
    pub codes: Codes,
    /// What was encoded, resampled if need be.
    pub original: Waveform,
    /// What the codes decode to, cut to the length of the original.
    pub decoded: Waveform,
}

impl Roundtrip {
    /// See [`snr_db`].
    pub fn snr_db(&self) -> Option<f64> {
        snr_db(self.original.samples(), self.decoded.samples())
    }
}

/// Signal to noise in decibels over the common length, noise being the difference: `10 log10(sum x^2 /
/// sum (x - y)^2)`. Infinite when nothing differs; `None` when the original is silent.
pub fn snr_db(original: &[f32], decoded: &[f32]) -> Option<f64> {
    let (mut signal, mut noise) = (0.0, 0.0);
    for (&x, &y) in original.iter().zip(decoded) {
        let (x, y) = (f64::from(x), f64::from(y));
        signal += x * x;
        noise += (x - y) * (x - y);
    }
    (signal > 0.0).then(|| 10.0 * (signal / noise).log10())
}

/// An encode in progress: consecutive rows `[frames, codebooks]`, a window at a time.
#[derive(Debug)]
pub struct Encoding<'a> {
    dac: &'a Dac,
    encoder: &'a Encoder,
    sizes: &'a EncoderConfig,
    samples: Cow<'a, [f32]>,
    codebooks: usize,
    frames: usize,
    /// Of nearly equal length, so that the last is not a sliver that pays for its context alone.
    windows: usize,
    done: usize,
}

impl Encoding<'_> {
    /// Frames in all.
    pub fn frames(&self) -> usize {
        self.frames
    }

    /// Codes a frame.
    pub fn codebooks(&self) -> usize {
        self.codebooks
    }

    /// The samples at the codec's rate.
    pub fn samples(&self) -> &[f32] {
        &self.samples
    }

    /// Latents `[1, latent, frames]` of a range of frames.
    fn latents(&self, frames: Range<usize>) -> Tensor<3> {
        let padded = self.sizes.padded_len(self.samples.len());
        let needed = self.sizes.samples_needed(frames.clone());
        let range = needed.start..needed.end.min(padded);
        let edges = Edges {
            start: range.start == 0,
            end: range.end == padded,
        };
        let given = range.start.min(self.samples.len())..range.end.min(self.samples.len());
        let mut window = self.samples[given].to_vec();
        window.resize(range.len(), 0.0);
        let device = self.dac.quantizer.quantizers[0].codebook.val().device();
        let window = TensorData::new(window, [1, 1, range.len()]);
        let window = Tensor::from_data(window, (&device, DType::F32));
        let z = self.encoder.forward(window, edges, &mut Tap::off());
        let span = self.sizes.encoded_span(range, edges);
        debug_assert_eq!(z.dims()[2], span.len());
        z.narrow(2, frames.start - span.start, frames.len())
    }

    fn window(&self, frames: Range<usize>) -> Result<Codes, DacError> {
        let z = self.latents(frames.clone());
        let found = self
            .dac
            .quantizer
            .encode(z, self.codebooks, &mut Tap::off());
        // A latent that is no number reaches all of its frame's first projection.
        let first = host(found.latents[0].clone());
        if let Some(at) = first.iter().position(|x| !x.is_finite()) {
            return Err(DacError::Latents {
                file: self.dac.file().to_owned(),
                frame: frames.start + at % frames.len(),
            });
        }
        let rows: Tensor<3, Int> = found.codes.swap_dims(1, 2);
        let values = rows
            .into_data()
            .convert::<i32>()
            .try_into_vec()
            .expect("converted to i32");
        Ok(Codes::new(frames.len(), self.codebooks, values)?)
    }
}

fn host(x: Tensor<3>) -> Vec<f32> {
    x.into_data()
        .convert::<f32>()
        .try_into_vec()
        .expect("converted to f32")
}

impl Iterator for Encoding<'_> {
    type Item = Result<Codes, DacError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done == self.windows {
            return None;
        }
        let border = |i: usize| self.frames * i / self.windows;
        let frames = border(self.done)..border(self.done + 1);
        self.done += 1;
        Some(self.window(frames))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.windows - self.done;
        (left, Some(left))
    }
}

impl ExactSizeIterator for Encoding<'_> {}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use burn::tensor::Device;
    use proptest::prelude::*;

    use super::*;

    fn load(model: &str) -> Dac {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../validation/fixtures/dac");
        Dac::load(fixtures.join(model).join("weights.pth"), &Device::flex()).unwrap()
    }

    fn noise(len: usize, seed: u32) -> Vec<f32> {
        let mut state = seed | 1;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        (0..len).map(|_| next()).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        /// Any window of any signal gives the latents of the whole, bit for bit.
        #[test]
        fn windows_give_the_bits_of_the_whole(
            model in prop_oneof![Just("odd"), Just("alt"), Just("tiny")],
            frames in 1usize..60,
            cut in 0usize..12,
            place in 0.0f64..1.0,
            share in 0.0f64..1.0,
            seed in any::<u32>(),
        ) {
            let dac = load(model);
            let hop = dac.config().hop();
            let rate = dac.config().sample_rate as u32;
            let audio = Waveform::new(noise(frames * hop - cut.min(hop - 1), seed), rate);
            let encoding = dac.encoding(&audio, None).unwrap();
            prop_assert_eq!(encoding.frames(), frames);
            let whole = host(encoding.latents(0..frames));
            let start = (place * frames as f64) as usize;
            let len = 1 + (share * (frames - start - 1) as f64) as usize;
            let part = host(encoding.latents(start..start + len));
            for (c, row) in part.chunks_exact(len).enumerate() {
                prop_assert!(row == &whole[c * frames + start..][..len], "{} channel {}", model, c);
            }
        }
    }

    #[test]
    fn extremely_loud_audio_is_refused_with_its_level() {
        let dac = load("tiny");
        let rate = dac.config().sample_rate as u32;
        for (value, decibels) in [(2e3, "66 dB"), (-1e19, "380 dB"), (3e38, "770 dB")] {
            for rate in [rate, 16_000] {
                let mut samples = noise(4000, 1);
                samples[70] = value;
                let error = dac.encode(&Waveform::new(samples, rate), None).unwrap_err();
                let text = error.to_string();
                assert!(
                    text.contains("sample 70 is") && text.contains(decibels),
                    "{text}"
                );
            }
        }
        let mut loud = noise(4000, 1);
        loud[70] = 999.0;
        assert!(dac.encode(&Waveform::new(loud, rate), None).is_ok());
    }

    #[test]
    fn signal_to_noise() {
        let x = [1.0f32, -1.0, 1.0, -1.0];
        let near = x.map(|v| v * 0.9);
        let ratio = snr_db(&x, &near).unwrap();
        assert!((ratio - 20.0).abs() < 1e-4, "{ratio}");
        assert_eq!(snr_db(&x, &x), Some(f64::INFINITY));
        assert_eq!(snr_db(&[0.0; 4], &near), None);
        // Over the common length.
        assert_eq!(snr_db(&x, &x[..2]), Some(f64::INFINITY));
    }
}
