//! The decoder.

use std::path::Path;

use burn::module::Module;
use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use zonos_audio::{Codes, Waveform};
use zonos_checkpoint::{Checkpoint, LoadOptions, LoadReport, Loader};
use zonos_nn::{Resample, Tap};

use crate::convnext::{ConvNextStack, ConvNextState};
use crate::head::IstftHead;
use crate::load::{Source, accept, planned, rules, tensor_specs, tolerant, warn_unused};
use crate::names::{NameOverrides, checkpoint_name, spellings};
use crate::patch::{Stage, patch_up};
use crate::quantizer::ResidualVq;
use crate::{ZacConfig, ZacError, ZacKind, ZacStream};

/// Headroom of playback level below the raw level, in dB.
const HEADROOM_DB: f64 = 3.0;

/// Codes to samples.
///
/// ```text
/// code 0 - semantic_quantizer - semantic_head -+
/// codes 1.. - quantizer -----------------------+- decoder.0 .. decoder.8 - head - resampler
/// ```
#[derive(Module, Debug)]
pub struct ZacDecoder {
    /// The codebook of codes 0.
    pub semantic_quantizer: ResidualVq,
    /// The codebooks of codes 1 on.
    pub quantizer: ResidualVq,
    /// From the semantic codebook to latents.
    pub semantic_head: ConvNextStack,
    /// Transformers, and patches between them that double the rate.
    pub decoder: Vec<Stage>,
    /// From features to samples at 44160 Hz.
    pub head: IstftHead,
    resampler: Resample,
    #[module(skip)]
    config: ZacConfig,
    /// Where the weights come from, for messages.
    #[module(skip)]
    file: String,
}

impl ZacDecoder {
    /// Opens and loads a decoder file: a file, a folder that holds one, or a hub id; weight norm is
    /// folded.
    ///
    /// # Errors
    ///
    /// As [`load_with`](Self::load_with), and when nothing can be opened there.
    pub fn load(path: impl AsRef<Path>, device: &Device) -> Result<Self, ZacError> {
        let checkpoint = Checkpoint::open(path)?;
        let (decoder, _) = Self::load_with(&checkpoint, &LoadOptions::default(), device)?;
        Ok(decoder)
    }

    /// Loads an opened file under the names that this build knows.
    ///
    /// Matrices of transformers and of ConvNeXt blocks keep the file's dtype, all else is f32. With
    /// [`WeightNormPolicy::Keep`](zonos_checkpoint::WeightNormPolicy::Keep), as
    /// [`LoadOptions::training`] has it, projections that the file stores in factors are trained so.
    /// Tensors that nothing uses are warned of, and are the report's `unexpected`.
    ///
    /// # Errors
    ///
    /// [`ZacError::Format`], [`ZacError::Kind`], [`ZacError::Config`], [`ZacError::Missing`],
    /// [`ZacError::Load`] and [`ZacError::Lookahead`] name what does not fit.
    pub fn load_with(
        checkpoint: &Checkpoint,
        options: &LoadOptions,
        device: &Device,
    ) -> Result<(Self, LoadReport), ZacError> {
        Self::load_mapped(checkpoint, &NameOverrides::default(), options, device)
    }

    /// Loads an opened file with names of its own.
    ///
    /// # Errors
    ///
    /// As [`load_with`](Self::load_with), and [`ZacError::MapName`].
    pub fn load_mapped(
        checkpoint: &Checkpoint,
        overrides: &NameOverrides,
        options: &LoadOptions,
        device: &Device,
    ) -> Result<(Self, LoadReport), ZacError> {
        let config = decoder_config(checkpoint, overrides)?;
        for warning in &config.warnings {
            tracing::warn!("{}: {warning}", checkpoint.path().display());
        }
        let (map, specs) = (rules(&config, overrides), tensor_specs(&config));
        let report = planned(checkpoint, &map, &specs, overrides)?;
        if !options.partial {
            accept(&report, checkpoint, |name| spellings(name, overrides))?;
        }
        warn_unused(&report);
        let loader = Loader::new(checkpoint, &map, &specs, &tolerant(options), device)?;
        let source = Source {
            loader: &loader,
            device,
        };
        let file = checkpoint.path().display().to_string();
        let decoder = Self::build(&source, config, file)?;
        Ok((decoder, loader.report().clone()))
    }

    /// What loading would report, without reading a value.
    ///
    /// # Errors
    ///
    /// [`ZacError::Format`], [`ZacError::Kind`] and [`ZacError::Config`] when the file does not even
    /// tell the sizes of a decoder.
    pub fn check(checkpoint: &Checkpoint) -> Result<LoadReport, ZacError> {
        Self::check_mapped(checkpoint, &NameOverrides::default())
    }

    /// As [`check`](Self::check), of a file with names of its own.
    ///
    /// # Errors
    ///
    /// As [`check`](Self::check), and [`ZacError::MapName`].
    pub fn check_mapped(
        checkpoint: &Checkpoint,
        overrides: &NameOverrides,
    ) -> Result<LoadReport, ZacError> {
        let config = decoder_config(checkpoint, overrides)?;
        let (map, specs) = (rules(&config, overrides), tensor_specs(&config));
        planned(checkpoint, &map, &specs, overrides)
    }

    fn build(source: &Source<'_>, config: ZacConfig, file: String) -> Result<Self, ZacError> {
        let Some(head) = config.head.clone() else {
            return Err(ZacError::Config {
                file,
                problem: "no head_config".to_owned(),
            });
        };
        let kernel = source.kernel(&config)?;
        let trunk = source.stack("codec.head.trunk.", &head.trunk)?;
        let norm = source.norm("codec.head.norm", head.dim, head.norm_eps)?;
        let (mut out, mut windows) = (Vec::new(), Vec::new());
        for (r, n_fft) in head.n_fft.iter().enumerate() {
            let name = format!("codec.head.out.{r}");
            out.push(source.dense(&name, [n_fft + 2, head.dim], true)?);
            let window = source.optional(&format!("codec.head.istft.{r}.window"))?;
            windows.push(window.map(host));
        }
        let head = IstftHead::new(trunk, norm, out, windows, head)?;
        Ok(Self {
            semantic_quantizer: source.quantizers(
                "codec.semantic_quantizer.",
                &config.semantic_quantizer,
                false,
            )?,
            quantizer: source.quantizers("codec.quantizer.", &config.quantizer, false)?,
            semantic_head: source.stack("codec.semantic_head.", &config.semantic_head)?,
            decoder: source.stages(&config)?,
            head,
            resampler: Resample::with_kernel(kernel),
            config,
            file,
        })
    }

    /// Sizes.
    pub fn config(&self) -> &ZacConfig {
        &self.config
    }

    /// The file's name of the parameter at `path`, the dotted field path that Burn's
    /// [`ModuleVisitor`](burn::module::ModuleVisitor) walks (names of enum variants may be in it or
    /// not); `None` if no parameter lies there. The factors of a weight-normed projection are
    /// `weight_g` and `weight_v`, however the file spells them.
    ///
    /// ```text
    /// decoder.0.transformer.layers.1.ffn.linear1.weight.weight  codec.decoder.0.transformer.layers.31.ffn.0.weight
    /// quantizer.quantizers.3.out_proj.weight.Factored.g         codec.quantizer.quantizers.3.out_proj.weight_g
    /// head.out.0.bias                                           codec.head.out.0.bias
    /// ```
    pub fn checkpoint_name(&self, path: &str) -> Option<String> {
        checkpoint_name(&self.config, path)
    }

    /// What to multiply samples by for playback: 3 dB below the raw level.
    pub fn output_gain() -> f32 {
        Self::gain(HEADROOM_DB)
    }

    /// The gain that leaves `headroom_db` below the raw level, `10^(-headroom_db / 20)`.
    pub fn gain(headroom_db: f64) -> f32 {
        10f64.powf(-headroom_db / 20.0) as f32
    }

    /// Where the weights come from.
    pub(crate) fn file(&self) -> &str {
        &self.file
    }

    pub(crate) fn device(&self) -> Device {
        self.quantizer.quantizers[0].codebook.val().device()
    }

    /// From the codec's rate to 44.1 kHz, with the file's filter: `[batch, samples]`.
    pub fn resampler(&self) -> &Resample {
        &self.resampler
    }

    /// Refuses codes that are none of this codec's: columns, range, a missing semantic code.
    ///
    /// # Errors
    ///
    /// [`ZacError::Columns`], [`ZacError::MissingSemantic`], [`ZacError::Codes`].
    pub fn check_codes(&self, codes: &Codes) -> Result<(), ZacError> {
        self.config.check_codes(codes)
    }

    /// Decodes `codes [frames, 10]`: 2940 samples a frame at 44.1 kHz, at the raw level, neither
    /// clipped nor scaled. A code of -1 in codebooks 1 to 9 is missing and adds nothing.
    ///
    /// Works through the signal in pieces, as a [`ZacStream`] does, so memory does not grow with its
    /// length but for the samples themselves.
    ///
    /// # Errors
    ///
    /// Codes as [`check_codes`](Self::check_codes) refuses them, [`ZacError::Empty`],
    /// [`ZacError::NotFinite`].
    pub fn decode(&self, codes: &Codes) -> Result<Waveform, ZacError> {
        self.check_codes(codes)?;
        if codes.is_empty() {
            return Err(ZacError::Empty);
        }
        let mut stream = self.stream();
        let mut samples = stream.decode(codes)?;
        samples.extend(stream.flush()?);
        Ok(Waveform::new(samples, self.config.sample_rate as u32))
    }

    /// Begins a stream.
    pub fn stream(&self) -> ZacStream<'_> {
        ZacStream::new(self)
    }

    /// Prepares streams that are fed so many frames at a time. Nothing is to be prepared on the devices
    /// of this build; the call exists so that programs written for a CUDA graph run unchanged.
    pub fn capture_stream_graphs(&self, _frames: &[usize]) {}

    /// One whole pass: `codes [batch, frames, codebooks]`, in range or -1, -> `[batch, frames * 2940]`.
    ///
    /// Differentiable. `tap` sees `semantic_vq`, `semantic_head`, `acoustic_vq`, `latent`, `decoder.N`
    /// and `decoder.N.layerK`, `head.features`, `head.specR.re`, `head.specR.im` and `head.audioR`,
    /// `audio_44160` and `audio`.
    ///
    /// # Errors
    ///
    /// None that loading has not refused.
    pub fn decode_tensor(
        &self,
        codes: Tensor<3, Int>,
        tap: &mut Tap,
    ) -> Result<Tensor<2>, ZacError> {
        let latent = self.latents(codes, None, tap);
        self.decode_latents(latent, tap)
    }

    /// `codes [batch, frames, codebooks]` -> latents `[batch, frames, latent]`.
    pub fn latents(
        &self,
        codes: Tensor<3, Int>,
        state: Option<&mut ConvNextState>,
        tap: &mut Tap,
    ) -> Tensor<3> {
        let [_, _, codebooks] = codes.dims();
        let semantic = self
            .semantic_quantizer
            .decode(codes.clone().narrow(2, 0, 1));
        let acoustic = self.quantizer.decode(codes.narrow(2, 1, codebooks - 1));
        tap.record("semantic_vq", &semantic);
        let semantic = self.semantic_head.forward(semantic, state);
        tap.record("semantic_head", &semantic);
        tap.record("acoustic_vq", &acoustic);
        let latent = semantic + acoustic;
        tap.record("latent", &latent);
        latent
    }

    /// The rest of [`decode_tensor`](Self::decode_tensor): latents `[batch, frames, latent]` ->
    /// `[batch, frames * 2940]`.
    ///
    /// # Errors
    ///
    /// As [`decode_tensor`](Self::decode_tensor).
    pub fn decode_latents(&self, latent: Tensor<3>, tap: &mut Tap) -> Result<Tensor<2>, ZacError> {
        let mut x = latent;
        for (i, stage) in self.decoder.iter().enumerate() {
            x = match stage {
                Stage::Transformer(stage) => {
                    let mut part = tap.part();
                    let x = stage.forward(x, None, &mut part);
                    tap.absorb(format_args!("decoder.{i}."), part);
                    x
                }
                Stage::Patch(patch) => patch_up(x, patch.size),
            };
            tap.record(format_args!("decoder.{i}"), &x);
        }
        let features = self.head.features(x, None);
        tap.record("head.features", &features);
        let mut part = tap.part();
        let inner = self.head.waveform(features, &mut part)?;
        tap.absorb("head.", part);
        tap.record("audio_44160", &inner);
        let audio = self.resampler.forward(inner);
        tap.record("audio", &audio);
        Ok(audio)
    }
}

/// The configuration of a file that must hold a decoder which streams as promised.
fn decoder_config(
    checkpoint: &Checkpoint,
    overrides: &NameOverrides,
) -> Result<ZacConfig, ZacError> {
    let file = || checkpoint.path().display().to_string();
    if ZacConfig::kind_of(checkpoint)? == ZacKind::Encoder {
        return Err(ZacError::Kind {
            file: file(),
            expected: ZacKind::Decoder,
            found: "\"encoder\"".to_owned(),
            hint: "decode with a file such as zac-1-decoder-keep2_plain.safetensors",
        });
    }
    let config = ZacConfig::from_mapped(checkpoint, overrides)?;
    let padding = config.head.as_ref().map_or(0, crate::HeadConfig::padding);
    let (orig, new) = config.resampler_block();
    let width = (config.resampler_taps - orig) / 2;
    let blocks = (padding + width).div_ceil(orig);
    // A stream is half a frame behind: two blocks of the resampler.
    if blocks * new * 2 != config.hop_length {
        let head = config.head.as_ref();
        let windows = head.iter().flat_map(|head| head.n_fft.iter().enumerate());
        let longest = windows.max_by_key(|(_, n_fft)| **n_fft);
        let (resolution, n_fft) = longest.map_or((0, 0), |(r, n_fft)| (r, *n_fft));
        return Err(ZacError::Lookahead {
            file: file(),
            resolution,
            n_fft,
            hop: head.map_or(0, |head| head.hop_length),
            most: config.hop_length / (2 * new).max(1) * orig,
            padding,
            width,
            blocks,
            block: orig,
        });
    }
    Ok(config)
}

/// Values in host memory.
pub(crate) fn host<const D: usize>(x: Tensor<D>) -> Vec<f32> {
    let data = x.into_data();
    match data.dtype() {
        DType::F32 => data.try_into_vec(),
        _ => data.convert::<f32>().try_into_vec(),
    }
    .expect("f32 values")
}

/// `[1, frames, codebooks]` on a device, from checked rows.
pub(crate) fn on_device(rows: &[i32], codebooks: usize, device: &Device) -> Tensor<3, Int> {
    let data = TensorData::new(rows.to_vec(), [1, rows.len() / codebooks, codebooks]);
    Tensor::from_data(data, (device, DType::I32))
}
