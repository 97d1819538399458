//! The encoder's GGUF layout: metadata and axes of Zyphra's C++ converter.
//!
//! Names are the original ones, but weights stand as `[taps, out, in]`, and the mel filters and the
//! window are stored too; here they are computed. Source: Zyphra/zonos2.cpp
//! `models/convert-spk-encoder-to-gguf.py`.

use zonos_checkpoint::{Checkpoint, GgufFields, NameMap};

use crate::EcapaConfig;

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
