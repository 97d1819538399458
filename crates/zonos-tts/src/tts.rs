//! The two halves together, and the two ways to run them.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Instant;

use burn::tensor::Device;
use zonos_audio::{Codes, Waveform};
use zonos_checkpoint::{Checkpoint, LoadOptions, LoadReport};
use zonos_dac::{Dac, DacParts};
use zonos_kernels::Activations;
use zonos2::{EndReason, Generation, PromptError, Zonos2, Zonos2Config};

use crate::demo::DemoCheckpoint;
use crate::live::Live;
use crate::request::{Plan, SpeechRequest};
use crate::speech::{Chunk, Speech, Timings};
use crate::{SpeakerEncoder, TtsError, Voice};

/// Frames that the codec decodes at a time while audio streams: half a second.
pub const STREAM_BLOCK: usize = 40;

/// Frames that the codec decodes at a time when all are there: a second. Longer blocks decode less
/// context twice, but leave the cache.
const DECODE_BLOCK: usize = 86;

/// Text to audio: a ZONOS2 backbone and a DAC codec, each on its device.
///
/// ```
/// use zonos_tts::{SpeechRequest, Tts};
/// use burn::tensor::Device;
///
/// let tts = Tts::demo(&Device::flex())?;
/// let request = SpeechRequest {
///     seed: Some(1),
///     max_frames: Some(30),
///     ..SpeechRequest::new("Hello, world.")
/// };
/// let speech = tts.speak(&request)?;
/// assert_eq!(speech.waveform.sample_rate(), 44_100);
/// assert_eq!(speech.waveform.samples().len(), 512 * speech.codes.frames());
/// # Ok::<(), zonos_tts::TtsError>(())
/// ```
#[derive(Debug)]
pub struct Tts {
    backbone: Zonos2,
    codec: Dac,
    encoder: Option<SpeakerEncoder>,
    // The demo's weights may be mapped from its folder, which must live as long as they do.
    _demo: Option<DemoCheckpoint>,
}

impl Tts {
    /// Opens a backbone and a codec, each a file, a folder or `hub:owner/name`, on one device.
    ///
    /// # Errors
    /// A checkpoint cannot be opened or is not the model it should be, or the two do not fit.
    pub fn load(
        model: impl AsRef<Path>,
        codec: impl AsRef<Path>,
        device: &Device,
    ) -> Result<Self, TtsError> {
        TtsBuilder::new(device).load(model, codec)
    }

    /// The built-in demo model: random weights that speak noise, through the same loaders.
    ///
    /// # Errors
    /// The system's temporary folder cannot be written to.
    pub fn demo(device: &Device) -> Result<Self, TtsError> {
        TtsBuilder::new(device).demo()
    }

    /// Puts two loaded models together.
    ///
    /// # Errors
    /// [`TtsError::Mismatch`] when the codec cannot play what the backbone makes.
    pub fn new(backbone: Zonos2, codec: Dac) -> Result<Self, TtsError> {
        let (b, c) = (backbone.config(), codec.config());
        if b.n_codebooks > c.n_codebooks || b.codebook_size != c.codebook_size {
            return Err(TtsError::Mismatch(format!(
                "the backbone makes {} codebooks of {} codes, the codec plays {} of {}",
                b.n_codebooks, b.codebook_size, c.n_codebooks, c.codebook_size
            )));
        }
        Ok(Self {
            backbone,
            codec,
            encoder: None,
            _demo: None,
        })
    }

    /// Adds a speaker encoder, for [`clone_voice`](Self::clone_voice).
    ///
    /// # Errors
    /// [`TtsError::EncoderWidth`] when the backbone takes vectors of another length, and
    /// [`TtsError::Conditioning`] when it takes none.
    pub fn with_speaker_encoder(mut self, encoder: SpeakerEncoder) -> Result<Self, TtsError> {
        check_encoder(&encoder, self.backbone.config())?;
        self.encoder = Some(encoder);
        Ok(self)
    }

    /// The speaker encoder, if there is one.
    pub fn speaker_encoder(&self) -> Option<&SpeakerEncoder> {
        self.encoder.as_ref()
    }

    /// The voice of a recording, for [`SpeechRequest::voice`]: see [`SpeakerEncoder::clone_voice`].
    ///
    /// # Errors
    /// [`TtsError::NoSpeakerEncoder`] when none was given to the builder, and a recording that makes no
    /// voice.
    pub fn clone_voice(&self, recording: &Waveform) -> Result<Voice, TtsError> {
        self.encoder
            .as_ref()
            .ok_or(TtsError::NoSpeakerEncoder)?
            .clone_voice(recording)
    }

    /// The backbone.
    pub fn backbone(&self) -> &Zonos2 {
        &self.backbone
    }

    /// The codec.
    pub fn codec(&self) -> &Dac {
        &self.codec
    }

    /// The backbone alone; the rest is let go.
    pub fn into_backbone(self) -> Zonos2 {
        self.backbone
    }

    /// Samples a second of the audio, in Hz.
    pub fn sample_rate(&self) -> u32 {
        self.codec.config().sample_rate as u32
    }

    /// Seconds of audio in a frame.
    pub fn frame_seconds(&self) -> f64 {
        self.codec.config().hop() as f64 / f64::from(self.sample_rate())
    }

    /// Checks a request against this model; see [`SpeechRequest::plan`].
    ///
    /// # Errors
    /// The request is not one this model can run.
    pub fn plan(&self, request: &SpeechRequest) -> Result<Plan, TtsError> {
        request.plan(self.backbone.config())
    }

    /// Speaks a text and returns all of its audio.
    ///
    /// # Errors
    /// The request is refused, or the run fails; see [`TtsError`].
    pub fn speak(&self, request: &SpeechRequest) -> Result<Speech, TtsError> {
        self.run(&self.plan(request)?, &mut |_| ControlFlow::Continue(()))
    }

    /// Speaks a text and hands its audio to `on_chunk` while it is made.
    ///
    /// `on_chunk` is called after every generated frame; most chunks carry no samples, since the
    /// codec works in blocks of [`STREAM_BLOCK`] frames and needs the frames after a block: audio
    /// comes at most `STREAM_BLOCK + 18` frames (0.7 s of audio) behind generation. The samples of
    /// all chunks, joined, are those of [`speak`](Self::speak).
    ///
    /// # Errors
    /// As [`speak`](Self::speak), and [`TtsError::Stopped`] when `on_chunk` breaks.
    pub fn speak_streaming(
        &self,
        request: &SpeechRequest,
        on_chunk: &mut dyn FnMut(Chunk<'_>) -> ControlFlow<()>,
    ) -> Result<Speech, TtsError> {
        self.run_streaming(&self.plan(request)?, on_chunk)
    }

    /// Runs a plan and returns all of its audio. `on_frame` is told after each frame how many were
    /// generated, and again after each block that the codec decodes; it can stop the run each time.
    ///
    /// # Errors
    /// As [`speak`](Self::speak), and [`TtsError::Stopped`] when `on_frame` breaks.
    pub fn run(
        &self,
        plan: &Plan,
        on_frame: &mut dyn FnMut(usize) -> ControlFlow<()>,
    ) -> Result<Speech, TtsError> {
        redrawing(plan, |plan| self.run_once(plan, on_frame))
    }

    fn run_once(
        &self,
        plan: &Plan,
        on_frame: &mut dyn FnMut(usize) -> ControlFlow<()>,
    ) -> Result<Speech, TtsError> {
        let began = Instant::now();
        let generation = self.generate(plan, &mut |row| on_frame(row + 1))?;
        let generate = began.elapsed();
        let codes = self.playable(plan, &generation)?;
        let frames = generation.frames.frames();
        let mut waveform = self.decode(&codes, &mut || on_frame(frames))?;
        waveform.fade_out(plan.fade_out_ms);
        Ok(Speech {
            waveform,
            codes,
            end: generation.end,
            seed: plan.seed(),
            ids: self.ids(plan, &generation),
            prompt_rows: plan.prompt_rows(),
            frames,
            timings: Timings {
                first_audio: began.elapsed(),
                generate,
                total: began.elapsed(),
            },
        })
    }

    /// Runs a plan and hands the audio out while it is made; see
    /// [`speak_streaming`](Self::speak_streaming).
    ///
    /// # Errors
    /// As [`speak_streaming`](Self::speak_streaming).
    pub fn run_streaming(
        &self,
        plan: &Plan,
        on_chunk: &mut dyn FnMut(Chunk<'_>) -> ControlFlow<()>,
    ) -> Result<Speech, TtsError> {
        redrawing(plan, |plan| self.run_streaming_once(plan, on_chunk))
    }

    fn run_streaming_once(
        &self,
        plan: &Plan,
        on_chunk: &mut dyn FnMut(Chunk<'_>) -> ControlFlow<()>,
    ) -> Result<Speech, TtsError> {
        let began = Instant::now();
        let mut live = Live::new(self, plan, began);
        let mut failure = None;
        let generation = self.generate_rows(plan, &mut |index, row| {
            let samples = match live.push(row) {
                Ok(samples) => samples,
                Err(error) => {
                    failure = Some(error);
                    return ControlFlow::Break(());
                }
            };
            on_chunk(Chunk {
                samples: &samples,
                frames: index + 1,
            })
        });
        if let Some(error) = failure {
            return Err(error);
        }
        let generation = generation?;
        let generate = began.elapsed();
        let codes = self.playable(plan, &generation)?;
        let frames = generation.frames.frames();
        let (rest, waveform, first_audio) = live.finish(&codes)?;
        if on_chunk(Chunk {
            samples: &rest,
            frames,
        })
        .is_break()
        {
            return Err(TtsError::Stopped { frames });
        }
        Ok(Speech {
            waveform,
            codes,
            end: generation.end,
            seed: plan.seed(),
            ids: self.ids(plan, &generation),
            prompt_rows: plan.prompt_rows(),
            frames,
            timings: Timings {
                first_audio,
                generate,
                total: began.elapsed(),
            },
        })
    }

    /// Prompt and generated rows.
    fn ids(&self, plan: &Plan, generation: &Generation) -> Vec<i32> {
        let sequence = plan.sequence.clone();
        let frames = generation.frames.values();
        sequence.followed_by(frames, self.backbone.config()).rows
    }

    /// Decodes all codes, in blocks only so that the caller can stop in between.
    fn decode(
        &self,
        codes: &Codes,
        on_block: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<Waveform, TtsError> {
        let (frames, q) = (codes.frames(), codes.codebooks());
        let mut stream = self.codec.stream(DECODE_BLOCK);
        let mut samples = Vec::new();
        for start in (0..frames).step_by(DECODE_BLOCK) {
            let end = frames.min(start + DECODE_BLOCK);
            let block = Codes::new(end - start, q, codes.values()[start * q..end * q].to_vec())?;
            samples.extend(stream.push(&block)?);
            if on_block().is_break() {
                return Err(TtsError::Stopped { frames });
            }
        }
        samples.extend(stream.flush()?);
        Ok(Waveform::new(samples, self.sample_rate()))
    }

    fn generate(
        &self,
        plan: &Plan,
        on_frame: &mut dyn FnMut(usize) -> ControlFlow<()>,
    ) -> Result<Generation, TtsError> {
        self.generate_rows(plan, &mut |index, _| on_frame(index))
    }

    /// Generates delayed rows. A caller that stops gets no audio.
    fn generate_rows(
        &self,
        plan: &Plan,
        on_row: &mut dyn FnMut(usize, &[i32]) -> ControlFlow<()>,
    ) -> Result<Generation, TtsError> {
        let mut done = self.backbone.generate(
            std::slice::from_ref(&plan.sequence),
            std::slice::from_ref(&plan.options),
            &mut |frame| on_row(frame.index, frame.codes),
        )?;
        let generation = done.pop().ok_or(TtsError::NoAudio { seed: plan.seed() })?;
        if generation.end == EndReason::Stopped {
            return Err(TtsError::Stopped {
                frames: generation.frames.frames(),
            });
        }
        Ok(generation)
    }

    /// The codec's codes of a generation: unsheared, cut at the end of speech, markers clamped.
    fn playable(&self, plan: &Plan, generation: &Generation) -> Result<Codes, TtsError> {
        let codes = generation.codec_codes(self.backbone.config());
        if codes.frames() == 0 {
            return Err(TtsError::NoAudio { seed: plan.seed() });
        }
        Ok(codes)
    }
}

/// How to open the two halves.
///
/// ```
/// use burn::tensor::Device;
/// use zonos_tts::TtsBuilder;
///
/// // The codec may sit on another device than the backbone.
/// let tts = TtsBuilder::new(&Device::flex()).codec_device(&Device::flex()).demo()?;
/// assert_eq!(tts.backbone().config().n_codebooks, 9);
/// # Ok::<(), zonos_tts::TtsError>(())
/// ```
#[derive(Debug, Clone)]
pub struct TtsBuilder {
    device: Device,
    codec_device: Device,
    options: LoadOptions,
    activations: Option<Activations>,
    encoder: Option<PathBuf>,
}

impl TtsBuilder {
    /// Both halves on `device`, weights in their file's dtype.
    pub fn new(device: &Device) -> Self {
        Self {
            device: device.clone(),
            codec_device: device.clone(),
            options: LoadOptions::default(),
            activations: None,
            encoder: None,
        }
    }

    /// Puts the codec on another device.
    pub fn codec_device(mut self, device: &Device) -> Self {
        self.codec_device = device.clone();
        self
    }

    /// Also opens a speaker encoder, a path or `hub:owner/name`, on the backbone's device, so that the
    /// result can clone voices.
    pub fn speaker_encoder(mut self, encoder: impl Into<PathBuf>) -> Self {
        self.encoder = Some(encoder.into());
        self
    }

    /// How weights are read: their dtype, weight norm, partial loading.
    pub fn load_options(mut self, options: LoadOptions) -> Self {
        self.options = options;
        self
    }

    /// How the backbone's quantised weights meet activations; without this, by
    /// [`Activations::default_for`].
    pub fn activations(mut self, activations: Activations) -> Self {
        self.activations = Some(activations);
        self
    }

    /// Opens the halves by path or `hub:owner/name`.
    ///
    /// # Errors
    /// As [`Tts::load`].
    pub fn load(&self, model: impl AsRef<Path>, codec: impl AsRef<Path>) -> Result<Tts, TtsError> {
        let (tts, _) = self.open(&Checkpoint::open(model)?, &Checkpoint::open(codec)?)?;
        Ok(tts)
    }

    /// Loads the halves from checkpoints that are already open. The reports, the backbone's and the
    /// codec's, also tell which weights are NaN or infinite; such weights are loaded.
    ///
    /// # Errors
    /// As [`Tts::load`].
    pub fn open(
        &self,
        model: &Checkpoint,
        codec: &Checkpoint,
    ) -> Result<(Tts, [LoadReport; 2]), TtsError> {
        let config = Zonos2::config_of(model)?;
        // The small model first: one that does not fit is found before the large one is read.
        let encoder = match &self.encoder {
            Some(path) => {
                let encoder = SpeakerEncoder::load(path, &self.device)?;
                check_encoder(&encoder, &config)?;
                Some(encoder)
            }
            None => None,
        };
        let (mut backbone, of_backbone) =
            Zonos2::load_with(model, config, &self.options, &self.device)?;
        if let Some(activations) = self.activations {
            backbone = backbone.with_activations(activations);
        }
        let (codec, of_codec) =
            Dac::load_parts(codec, DacParts::Decoder, &self.options, &self.codec_device)?;
        let mut tts = Tts::new(backbone, codec)?;
        tts.encoder = encoder;
        Ok((tts, [of_backbone, of_codec]))
    }

    /// Opens the built-in demo model.
    ///
    /// # Errors
    /// As [`Tts::demo`].
    pub fn demo(&self) -> Result<Tts, TtsError> {
        let files = DemoCheckpoint::create()?;
        let mut tts = self.load(files.model(), files.codec())?;
        tts._demo = Some(files);
        Ok(tts)
    }
}

fn check_encoder(encoder: &SpeakerEncoder, config: &Zonos2Config) -> Result<(), TtsError> {
    if !config.speaker_enabled {
        return Err(TtsError::Conditioning(PromptError::NoSpeaker));
    }
    encoder.check(config.speaker_embedding_dim)
}

/// Runs a plan again with another seed while it gives no audio and its seed is open.
fn redrawing(
    plan: &Plan,
    mut run: impl FnMut(&Plan) -> Result<Speech, TtsError>,
) -> Result<Speech, TtsError> {
    let mut plan = plan.clone();
    loop {
        match run(&plan) {
            Err(TtsError::NoAudio { .. }) if plan.redraw() => {}
            done => return done,
        }
    }
}
