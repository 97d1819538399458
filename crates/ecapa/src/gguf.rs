//! The encoder's GGUF layout: metadata and axes of Zyphra's C++ converter.
//!
//! Names are the original ones, but weights stand as `[taps, out, in]`, and the mel filters and the
//! window are stored too; here they are computed. Source: Zyphra/zonos2.cpp
//! `models/convert-spk-encoder-to-gguf.py`.

use zonos_audio::stft::hann_window;
use zonos_checkpoint::{Checkpoint, GgufFields, LoadError, Loader, NameMap};
use zonos_gguf::{Metadata, ModelMetadata, NamedValues};

use crate::front_end::FrontEnd;
use crate::{EcapaConfig, EcapaError};

/// `general.architecture` of such a file.
pub const ARCHITECTURE: &str = "ecapa-tdnn";

/// The metadata of `checkpoint` if it is such a file.
pub(crate) fn fields(checkpoint: &Checkpoint) -> Option<GgufFields<'_>> {
    GgufFields::of(checkpoint, ARCHITECTURE)
}

/// The sizes in the metadata; the error is the reason.
pub(crate) fn config(fields: GgufFields<'_>) -> Result<EcapaConfig, String> {
    let count = |key: &str| fields.count(&format!("{ARCHITECTURE}.{key}"));
    let counts = |key: &str| fields.counts(&format!("{ARCHITECTURE}.{key}"));
    Ok(EcapaConfig {
        mel_dim: count("mel_dim")?,
        enc_dim: count("enc_dim")?,
        enc_channels: counts("enc_channels")?,
        enc_kernel_sizes: counts("enc_kernel_sizes")?,
        enc_dilations: counts("enc_dilations")?,
        enc_attention_channels: count("attention_channels")?,
        enc_res2net_scale: count("res2net_scale")?,
        enc_se_channels: count("se_channels")?,
        sample_rate: count("sample_rate")?,
    })
}

/// Rules that turn the weights' axes, `[taps, out, in]`, to `[out, in, taps]`.
pub(crate) fn names(map: NameMap) -> NameMap {
    map.ignore("mel_fb")
        .ignore("mel_window")
        .transpose("*.weight", "*.out-taps-in", (0, 1))
        .transpose("*.out-taps-in", "*.weight", (1, 2))
}

/// The metadata of a file for an encoder of these sizes.
///
/// # Errors
///
/// [`EcapaError::Mel`] when the sizes allow no mel bands.
pub fn metadata(config: &EcapaConfig) -> Result<Metadata, EcapaError> {
    let mel = FrontEnd::new(config)?.config();
    Ok(
        ModelMetadata::new(ARCHITECTURE, "ECAPA-TDNN-SpeakerEncoder")
            .count("mel_dim", config.mel_dim)
            .count("enc_dim", config.enc_dim)
            .counts("enc_channels", &config.enc_channels)
            .counts("enc_kernel_sizes", &config.enc_kernel_sizes)
            .counts("enc_dilations", &config.enc_dilations)
            .count("attention_channels", config.enc_attention_channels)
            .count("res2net_scale", config.enc_res2net_scale)
            .count("se_channels", config.enc_se_channels)
            .count("sample_rate", config.sample_rate)
            .count("n_fft", mel.n_fft)
            .count("hop_length", mel.hop)
            .count("win_length", mel.win_length)
            .number("mel_fmin", mel.f_min)
            .number("mel_fmax", mel.f_max)
            .done(),
    )
}

/// The tensors of such a file: mel filters and window, then the weights of `checkpoint` by name.
///
/// # Errors
///
/// As loading the encoder.
pub fn tensors(
    checkpoint: &Checkpoint,
    config: &EcapaConfig,
) -> Result<Vec<NamedValues>, EcapaError> {
    let front_end = FrontEnd::new(config)?;
    let mel = front_end.config();
    let bins = mel.n_fft / 2 + 1;
    let bank = front_end.dense_bank();
    let turned = (0..config.mel_dim).flat_map(|band| {
        let bank = &bank;
        (0..bins).map(move |bin| bank[bin * config.mel_dim + band])
    });
    let mut out = vec![
        NamedValues {
            name: "mel_fb".into(),
            shape: vec![config.mel_dim, bins],
            values: turned.collect(),
        },
        NamedValues {
            name: "mel_window".into(),
            shape: vec![mel.win_length],
            values: hann_window(mel.win_length, true),
        },
    ];
    let mut specs = crate::tensor_specs(config);
    specs.sort_by(|a, b| a.name.cmp(&b.name));
    let loader = crate::load::loader(checkpoint, config)?;
    for spec in specs {
        let values = values(&loader, &spec.name)?;
        out.push(match spec.shape[..] {
            [rows, input, taps] => NamedValues {
                name: spec.name,
                shape: vec![taps, rows, input],
                values: (0..taps)
                    .flat_map(|k| {
                        let values = &values;
                        (0..rows * input).map(move |i| values[i * taps + k])
                    })
                    .collect(),
            },
            _ => NamedValues {
                name: spec.name,
                shape: spec.shape,
                values,
            },
        });
    }
    Ok(out)
}

fn values(loader: &Loader<'_>, name: &str) -> Result<Vec<f32>, LoadError> {
    Ok(loader.data(name)?.iter::<f32>().collect())
}
