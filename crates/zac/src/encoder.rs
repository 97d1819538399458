//! Samples to codes.

mod load;

use std::ops::{ControlFlow, Range};

use burn::module::{Module, Param};
use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use zonos_audio::resample::{ResampleRecipe, Resampler};
use zonos_audio::{Codes, Waveform};
use zonos_nn::{Resample, Tap};
use zonos_w2v_bert::Teacher;

use crate::config::{EncoderConfig, StageConfig};
use crate::lanes::Lane;
use crate::prepare::{HOP, PrepareOptions, SAMPLE_RATE, prepare_audio};
use crate::search::Quantized;
use crate::{ConvNextStack, ResidualVq, Stage, ZacConfig, ZacError, patch_down};

/// Rate that the teacher hears, in Hz.
const TEACHER_RATE: u32 = 16_000;
/// The teacher's frames a second.
const TEACHER_TOKENS: f64 = 50.0;

/// The encoder: 44.1 kHz audio to ten codes a frame.
///
/// ```text
/// audio ─ resampler ─ encoder: patches, transformers ─ z ──────────────── - ─ quantizer ─ codes 1..9
///       └ 16 kHz ─ teacher ─ align ─ semantic_encoder ─ semantic_quantizer ┴─ code 0
///                                                             └ semantic_head ┘
/// ```
///
/// Long audio is encoded in lanes, one after another, each with what came before it as context:
/// memory does not grow with the length. Everything but the choice of codes is differentiable, see
/// [`acoustic`](Self::acoustic), [`semantic`](Self::semantic) and [`quantize`](Self::quantize).
#[derive(Module, Debug)]
pub struct ZacEncoder {
    /// From samples at the codec's inner rate to latents.
    pub encoder: Vec<Stage>,
    /// From the teacher's features, at the frame rate, to what the semantic codebook codes.
    pub semantic_encoder: ConvNextStack,
    /// The codebook of code 0.
    pub semantic_quantizer: ResidualVq,
    /// From its vectors to what is taken off the latents.
    pub semantic_head: ConvNextStack,
    /// The codebooks of what is left.
    pub quantizer: ResidualVq,
    /// `[features]`: mean of each of the teacher's features, where the file has it.
    pub semantic_mean: Option<Param<Tensor<1>>>,
    /// `[features]`: their deviations.
    pub semantic_std: Option<Param<Tensor<1>>>,
    /// The model whose features code 0 codes.
    pub teacher: Teacher,
    /// To the codec's inner rate, by the file's filter.
    resampler: Resample,
    #[module(skip)]
    to_teacher: Resampler,
    #[module(skip)]
    config: ZacConfig,
    /// Where the weights come from, for messages.
    #[module(skip)]
    file: String,
}

/// What the encoder is made of.
struct Parts {
    encoder: Vec<Stage>,
    semantic_encoder: ConvNextStack,
    semantic_quantizer: ResidualVq,
    semantic_head: ConvNextStack,
    quantizer: ResidualVq,
    mean: Option<Tensor<1>>,
    std: Option<Tensor<1>>,
    teacher: Teacher,
    resampler: Resample,
}

/// How far an encode is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EncodeProgress {
    /// Frames that are done; of a lane at work, in proportion to what has been computed.
    pub frames: usize,
    /// Frames in all.
    pub of: usize,
}

/// What [`ZacEncoder::quantize`] gives.
#[derive(Debug, Clone)]
pub struct Encoded {
    /// `[frames, codebooks]`, the semantic one first.
    pub codes: Tensor<2, Int>,
    /// Of the semantic codebook.
    pub semantic: Quantized,
    /// Of the acoustic ones.
    pub acoustic: Quantized,
}

impl ZacEncoder {
    /// Puts the parts together; they must fit `config`.
    fn new(parts: Parts, config: ZacConfig, file: String) -> Result<Self, ZacError> {
        Ok(Self {
            encoder: parts.encoder,
            semantic_encoder: parts.semantic_encoder,
            semantic_quantizer: parts.semantic_quantizer,
            semantic_head: parts.semantic_head,
            quantizer: parts.quantizer,
            semantic_mean: parts.mean.map(Param::from_tensor),
            semantic_std: parts.std.map(Param::from_tensor),
            teacher: parts.teacher,
            resampler: parts.resampler,
            to_teacher: Resampler::new(SAMPLE_RATE, TEACHER_RATE, ResampleRecipe::Functional)?,
            config,
            file,
        })
    }

    /// Sizes.
    pub fn config(&self) -> &ZacConfig {
        &self.config
    }

    /// Where the weights are.
    pub fn device(&self) -> Device {
        self.quantizer.quantizers[0].codebook.val().device()
    }

    /// Encodes mono audio of any rate: `[frames, 10]`, a frame for every 2940 samples at 44.1 kHz or
    /// part of them.
    ///
    /// The audio is prepared ([`prepare_audio`] with default options: at most ten minutes, peaks above
    /// full scale divided by).
    ///
    /// # Errors
    ///
    /// [`ZacError::Prepare`], and those of [`encode_lane`](Self::encode_lane).
    pub fn encode(&self, audio: &Waveform) -> Result<Codes, ZacError> {
        let options = PrepareOptions::default();
        let prepared = prepare_audio(&[audio.samples()], audio.sample_rate(), &options)?;
        self.encode_prepared(&prepared, &mut |_| ControlFlow::Continue(()))
    }

    /// As [`encode`](Self::encode), of audio that is prepared already: 44.1 kHz, taken as it is.
    /// `progress` is told after every step, a few dozen a lane, and can stop it.
    ///
    /// # Errors
    ///
    /// Those of [`encode_lane`](Self::encode_lane).
    pub fn encode_prepared(
        &self,
        audio: &Waveform,
        progress: &mut dyn FnMut(&EncodeProgress) -> ControlFlow<()>,
    ) -> Result<Codes, ZacError> {
        let q = self.config.codebooks();
        let mut values = Vec::with_capacity(self.frames(audio.len()) * q);
        for lane in self.lanes(audio.len()) {
            let codes = self.encode_lane(audio, &lane, &mut Tap::off(), progress)?;
            values.extend_from_slice(&codes.values()[lane.context * q..]);
        }
        Ok(Codes::new(values.len() / q, q, values)?)
    }

    /// Frames that so many samples at 44.1 kHz become.
    pub fn frames(&self, samples: usize) -> usize {
        samples.div_ceil(HOP)
    }

    /// The lanes in which so many samples at 44.1 kHz are encoded.
    pub fn lanes(&self, samples: usize) -> impl ExactSizeIterator<Item = Lane> + use<> {
        self.own().lanes().lanes(self.frames(samples))
    }

    /// Codes of one lane of prepared audio, those of its context included: `[lane.frames.len(), 10]`.
    /// The last frame is filled up with zeros.
    ///
    /// `tap` sees `audio_44160`, `encoder.{i}` after each module, `audio_16000`, `fbank`,
    /// `input_features`, `attention_mask`, `teacher.hidden{i}`, `teacher_normalised`,
    /// `semantic_aligned`, `semantic_encoded`, and what [`quantize`](Self::quantize) shows.
    ///
    /// # Errors
    ///
    /// [`ZacError::Rate`] of audio at another rate, [`ZacError::Stopped`] when `progress` says so,
    /// [`ZacError::Latents`] for weights that are no numbers, [`ZacError::Teacher`] for audio too
    /// short for the teacher.
    ///
    /// # Panics
    ///
    /// If the lane is none of the audio's.
    pub fn encode_lane(
        &self,
        audio: &Waveform,
        lane: &Lane,
        tap: &mut Tap,
        progress: &mut dyn FnMut(&EncodeProgress) -> ControlFlow<()>,
    ) -> Result<Codes, ZacError> {
        if audio.sample_rate() != SAMPLE_RATE {
            return Err(ZacError::Rate {
                found: audio.sample_rate(),
                expected: SAMPLE_RATE,
            });
        }
        let frames = lane.frames.len();
        let mut steps = Steps::new(self, lane, self.frames(audio.len()), progress);
        let samples = padded(
            audio.samples(),
            lane.frames.start * HOP..lane.frames.end * HOP,
        );
        let z = {
            let data = TensorData::new(samples.clone(), [1, samples.len()]);
            let x = Tensor::<2>::from_data(data, (&self.device(), DType::F32));
            self.stages(x, tap, &mut |cost| steps.done(cost))?
        };
        let z = z.squeeze_dim::<2>(0);
        let hidden = self.hidden(&samples, tap)?;
        steps.done(self.teacher_cost(frames))?;
        let e = self.semantic(hidden, frames, tap);
        let encoded = self.quantize(z, e, tap);
        // A value that is no number reaches all of its frame's first projection.
        for latents in [&encoded.semantic.latents[0], &encoded.acoustic.latents[0]] {
            let values = host(latents.clone());
            let width = values.len() / frames;
            if let Some(at) = values.iter().position(|x| !x.is_finite()) {
                return Err(ZacError::Latents {
                    file: self.file.clone(),
                    frame: lane.frames.start + at / width,
                });
            }
        }
        steps.finish()?;
        let values = encoded.codes.into_data().convert::<i32>();
        let values = values.try_into_vec().expect("converted to i32");
        Ok(Codes::new(frames, self.config.codebooks(), values)?)
    }

    /// The acoustic half: `x [batch, samples]` at 44.1 kHz, whole frames, -> latents `[batch, frames,
    /// latent]`. Differentiable. `tap` sees `audio_44160` and `encoder.{i}`, without the batch when it
    /// is 1.
    pub fn acoustic(&self, x: Tensor<2>, tap: &mut Tap) -> Tensor<3> {
        self.stages(x, tap, &mut |_| Ok(()))
            .expect("nothing stops it")
    }

    fn stages(
        &self,
        x: Tensor<2>,
        tap: &mut Tap,
        step: &mut dyn FnMut(f64) -> Result<(), ZacError>,
    ) -> Result<Tensor<3>, ZacError> {
        let x = self.resampler.forward(x);
        if tap.is_on() {
            let [batch, samples] = x.dims();
            match batch {
                1 => tap.record("audio_44160", &x.clone().reshape([samples])),
                _ => tap.record("audio_44160", &x),
            }
        }
        let mut x = x.unsqueeze_dim::<3>(2);
        for (i, (stage, sizes)) in self.encoder.iter().zip(&self.config.stages).enumerate() {
            let [batch, steps, _] = x.dims();
            x = match stage {
                Stage::Transformer(transformer) => transformer.forward(x, None, &mut Tap::off()),
                Stage::Patch(patch) => patch_down(x, patch.size),
            };
            show(tap, format_args!("encoder.{i}"), &x);
            step(cost(sizes) * (batch * steps) as f64)?;
        }
        Ok(x)
    }

    /// The teacher's features of samples at 44.1 kHz: `[tokens, features]`, 50 tokens a second.
    ///
    /// # Errors
    ///
    /// [`ZacError::Teacher`].
    pub fn teacher_features(&self, samples: &[f32]) -> Result<Tensor<2>, ZacError> {
        self.hidden(samples, &mut Tap::off())
    }

    fn hidden(&self, samples: &[f32], tap: &mut Tap) -> Result<Tensor<2>, ZacError> {
        let samples = self.to_teacher.resample(samples);
        if tap.is_on() {
            let data = TensorData::new(samples.clone(), [samples.len()]);
            let x = Tensor::<1>::from_data(data, (&self.device(), DType::F32));
            tap.record("audio_16000", &x);
        }
        let features = self.teacher.features_with(&samples, tap)?;
        let mut inside = tap.part();
        let layer = self.teacher.layers();
        let hidden = self.teacher.forward(&features, layer, &mut inside)?;
        tap.absorb("teacher.", inside);
        Ok(hidden)
    }

    /// The semantic half: `hidden [tokens, features]`, the teacher's, -> what the semantic codebook
    /// codes, `[frames, width]`. Differentiable. `tap` sees `teacher_normalised`, `semantic_aligned` and
    /// `semantic_encoded`.
    pub fn semantic(&self, hidden: Tensor<2>, frames: usize, tap: &mut Tap) -> Tensor<2> {
        let mut x = hidden;
        if let Some(mean) = &self.semantic_mean {
            x = x - mean.val().unsqueeze();
        }
        if let Some(std) = &self.semantic_std {
            x = x / std.val().unsqueeze();
        }
        tap.record("teacher_normalised", &x);
        let x = self.own().align.apply(x, frames);
        tap.record("semantic_aligned", &x);
        let x = self.semantic_encoder.forward(x.unsqueeze::<3>(), None);
        let x = x.squeeze_dim::<2>(0);
        tap.record("semantic_encoded", &x);
        x
    }

    fn own(&self) -> &EncoderConfig {
        let own = self.config.encoder.as_ref();
        own.expect("only encoder files are loaded")
    }

    /// Latents to codes: `z [frames, latent]` of the acoustic half, `e [frames, width]` of the semantic
    /// one. What the semantic code says, through the semantic head, is taken off the latents; the
    /// residual codebooks code what is left.
    ///
    /// Gradients pass straight through the choices, see [`ResidualVq::encode`]. `tap` sees
    /// `semantic.latent`, `semantic.margin`, `semantic_vq`, `semantic_head`, `rvq.residual{q}`,
    /// `rvq.latent{q}`, `rvq.margin{q}`, `acoustic_vq`, `codes`.
    ///
    /// # Panics
    ///
    /// If `z` and `e` have different numbers of frames.
    pub fn quantize(&self, z: Tensor<2>, e: Tensor<2>, tap: &mut Tap) -> Encoded {
        let semantic = self.semantic_quantizer.encode(e, &mut Tap::off());
        if tap.is_on() {
            let quantizer = &self.semantic_quantizer.quantizers[0];
            let e = semantic.latents[0].clone();
            let margin = self
                .semantic_quantizer
                .search
                .margins(e.clone(), quantizer.codebook.val());
            tap.record("semantic.latent", &e);
            tap.record("semantic.margin", &margin);
        }
        tap.record("semantic_vq", &semantic.z);
        let said = semantic.z.clone().unsqueeze::<3>();
        let said = self.semantic_head.forward(said, None).squeeze_dim::<2>(0);
        tap.record("semantic_head", &said);
        let mut inside = tap.part();
        let acoustic = self.quantizer.encode(z - said, &mut inside);
        tap.absorb("rvq.", inside);
        tap.record("acoustic_vq", &acoustic.z);
        let codes = Tensor::cat(vec![semantic.codes.clone(), acoustic.codes.clone()], 1);
        tap.record("codes", &codes);
        Encoded {
            codes,
            semantic,
            acoustic,
        }
    }

    /// Multiply-adds of the teacher for a lane.
    fn teacher_cost(&self, frames: usize) -> f64 {
        let config = self.teacher.config();
        let (d, inner) = (config.hidden_size as f64, config.intermediate_size as f64);
        let layer = 4.0 * d * inner + 7.0 * d * d;
        let tokens = frames as f64 / self.config.frame_rate() * TEACHER_TOKENS;
        tokens * self.teacher.layers() as f64 * layer
    }
}

/// Multiply-adds of a module for a step of what goes in.
fn cost(stage: &StageConfig) -> f64 {
    match stage {
        StageConfig::Patch(_) => 0.0,
        StageConfig::Transformer(t) => {
            let d = t.d_model as f64;
            t.layers.len() as f64 * (4.0 * d * d + 2.0 * d * t.dim_feedforward as f64)
        }
    }
}

/// Tells a caller how far a lane is.
struct Steps<'a> {
    progress: &'a mut dyn FnMut(&EncodeProgress) -> ControlFlow<()>,
    /// Frames that this lane adds.
    new: Range<usize>,
    of: usize,
    done: f64,
    whole: f64,
}

impl<'a> Steps<'a> {
    fn new(
        encoder: &ZacEncoder,
        lane: &Lane,
        of: usize,
        progress: &'a mut dyn FnMut(&EncodeProgress) -> ControlFlow<()>,
    ) -> Self {
        let frames = lane.frames.len();
        let mut steps = (frames * encoder.config.codec_hop_length) as f64;
        let mut whole = encoder.teacher_cost(frames);
        for stage in &encoder.config.stages {
            whole += cost(stage) * steps;
            if let StageConfig::Patch(size) = stage {
                steps /= *size as f64;
            }
        }
        Self {
            progress,
            new: lane.frames.start + lane.context..lane.frames.end,
            of,
            done: 0.0,
            whole: whole.max(1.0),
        }
    }

    fn done(&mut self, cost: f64) -> Result<(), ZacError> {
        self.done += cost;
        let share = (self.done / self.whole).min(1.0);
        self.tell((share * self.new.len() as f64) as usize)
    }

    fn finish(&mut self) -> Result<(), ZacError> {
        self.tell(self.new.len())
    }

    fn tell(&mut self, frames: usize) -> Result<(), ZacError> {
        let progress = EncodeProgress {
            frames: self.new.start + frames,
            of: self.of,
        };
        match (self.progress)(&progress) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(ZacError::Stopped),
        }
    }
}

/// Samples `range`, zeros where there are none any more.
fn padded(samples: &[f32], range: Range<usize>) -> Vec<f32> {
    let given = range.start.min(samples.len())..range.end.min(samples.len());
    let mut piece = Vec::with_capacity(range.len());
    piece.extend_from_slice(&samples[given]);
    piece.resize(range.len(), 0.0);
    piece
}

/// Shows `x [batch, time, channels]`, without the batch when it is 1.
fn show(tap: &mut Tap, name: impl std::fmt::Display, x: &Tensor<3>) {
    if !tap.is_on() {
        return;
    }
    match x.dims() {
        [1, time, channels] => tap.record(name, &x.clone().reshape([time, channels])),
        _ => tap.record(name, x),
    }
}

fn host(x: Tensor<2>) -> Vec<f32> {
    x.into_data()
        .convert::<f32>()
        .try_into_vec()
        .expect("converted to f32")
}
