//! The decoder's GGUF layout: names and metadata of Zyphra's C++ converter.
//!
//! Such a file holds no encoder. Weight normalisation is folded, and so are the codebooks' projections:
//! a table holds what each code adds to the latents, and one vector the sum of all biases. Source:
//! Zyphra/zonos2.cpp `models/convert-dac-to-gguf.py`.

use zonos_checkpoint::{Checkpoint, GgufFields, NameMap};

use crate::DacConfig;

/// `general.architecture` of such a file.
pub const ARCHITECTURE: &str = "dac";

/// The metadata of `checkpoint` if it is such a file.
pub(crate) fn fields(checkpoint: &Checkpoint) -> Option<GgufFields<'_>> {
    GgufFields::of(checkpoint, ARCHITECTURE)
}

/// The sizes in the metadata; the error is the reason.
pub(crate) fn config(fields: GgufFields<'_>) -> Result<DacConfig, String> {
    let count = |key: &str| fields.count(&format!("dac.{key}"));
    let n_codebooks = count("n_codebooks")?;
    Ok(DacConfig {
        encoder: None,
        latent_dim: count("latent_dim")?,
        decoder_dim: count("decoder_dim")?,
        decoder_rates: fields.counts("dac.decoder_rates")?,
        n_codebooks,
        codebook_size: count("codebook_size")?,
        codebook_dim: vec![count("codebook_dim")?; n_codebooks.min(1 << 10)],
        sample_rate: count("sample_rate")?,
    })
}

/// Rules to the original names, and to `quantizer.quantizers.{q}.table` and `quantizer.bias`.
pub(crate) fn names(map: NameMap, blocks: usize) -> NameMap {
    let last = |n: usize| format!("decoder.model.{}", blocks + n);
    let mut map = map
        .ignore("dec.*.inv_alpha") // computed from alpha
        .rename("quant.{q}.table", "quantizer.quantizers.{q}.table")
        .rename("quant.bias", "quantizer.bias")
        .rename("dec.conv_in.*", "decoder.model.0.*")
        .rename("dec.snake_out.*", &format!("{}.*", last(1)))
        .rename("dec.conv_out.*", &format!("{}.*", last(2)))
        .rename("dec.b{i}.snake.*", "decoder.model.{i+1}.block.0.*")
        .rename("dec.b{i}.convt.*", "decoder.model.{i+1}.block.1.*");
    for (layer, name) in ["snake1", "conv1", "snake2", "conv2"].iter().enumerate() {
        map = map.rename(
            &format!("dec.b{{i}}.res{{r}}.{name}.*"),
            &format!("decoder.model.{{i+1}}.block.{{r+2}}.block.{layer}.*"),
        );
    }
    map
}
