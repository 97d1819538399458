//! ZAC-1 decoders of random numbers, for the bench: each tensor drawn from its name and a seed, scaled so
//! that the signal stays in range.

use std::io::Write;
use std::path::Path;

use rayon::prelude::*;
use serde_json::{Map, Value, json};
use zonos_audio::AtomicFile;
use zonos_audio::resample::{ResampleRecipe, Resampler};
use zonos_zac::{
    Align, Combine, ConvNextConfig, EncoderConfig, HeadConfig, QuantizerConfig, Search,
    StageConfig, TransformerConfig, ZacConfig, ZacKind, tensor_specs,
};

use crate::dac_recipe::{fnv1a64, philox};

const SEED: u64 = 31;
/// Seconds that each transformer sees.
const CONTEXTS: [f64; 5] = [10.0, 10.0, 8.0, 4.0, 2.0];

/// The sizes that the released decoders' file sizes point to.
pub(crate) fn full_size(pruned: bool) -> ZacConfig {
    let stack = |dim, inner, output, blocks: usize, proj_out| ConvNextConfig {
        input_dim: dim,
        output_dim: output,
        dim,
        intermediate_dim: inner,
        blocks: (0..blocks).collect(),
        kernel_size: 7,
        causal: true,
        proj_in: false,
        proj_out,
    };
    let quantizer = |n| QuantizerConfig {
        codebook_size: 4096,
        input_dim: 1024,
        codebook_dim: vec![Some(8); n],
        search: Search::Cosine,
    };
    let mut stages = Vec::new();
    for (i, seconds) in CONTEXTS.into_iter().enumerate() {
        let (input, d, layers) = match i {
            0 => (1024, 1280, 32),
            1 => (640, 768, 12),
            _ => (384, 768, 12),
        };
        if i > 0 {
            stages.push(StageConfig::Patch(2));
        }
        stages.push(StageConfig::Transformer(TransformerConfig {
            input_dimension: input,
            output_dimension: d,
            d_model: d,
            num_heads: d / 64,
            dim_feedforward: 4 * d,
            layers: if pruned {
                vec![0, layers - 1]
            } else {
                (0..layers).collect()
            },
            max_period: 10_000.0,
            context: ((15 << i) as f64 * seconds) as usize,
            input_proj: true,
            output_proj: false,
        }));
    }
    ZacConfig {
        kind: ZacKind::Decoder,
        sample_rate: 44_100,
        codec_sample_rate: 44_160,
        hop_length: 2940,
        codec_hop_length: 2944,
        latent_dim: 1024,
        stages,
        semantic_quantizer: quantizer(1),
        quantizer: quantizer(9),
        semantic_head: stack(1024, 2048, 1024, 4, true),
        head: Some(HeadConfig {
            dim: 768,
            hop_length: 184,
            n_fft: vec![512, 1024, 2048],
            combine: Combine::Sum,
            mag_clip: 1e2,
            norm_eps: 1e-6,
            trunk: stack(768, 3072, 768, 5, false),
        }),
        encoder: None,
        resampler_taps: 750,
        warnings: Vec::new(),
    }
}

/// The same of the encoder, whose transformers see `contexts` seconds, the fastest first.
pub(crate) fn encoder_size(contexts: [f64; 5]) -> ZacConfig {
    let decoder = full_size(false);
    let mut stages = vec![StageConfig::Patch(184)];
    for (i, seconds) in contexts.into_iter().enumerate() {
        let (input, d, layers, output) = match i {
            0 => (184, 768, 12, 384),
            3 => (768, 768, 12, 640),
            4 => (1280, 1280, 32, 1024),
            _ => (768, 768, 12, 384),
        };
        if i > 0 {
            stages.push(StageConfig::Patch(2));
        }
        stages.push(StageConfig::Transformer(TransformerConfig {
            input_dimension: input,
            output_dimension: output,
            d_model: d,
            num_heads: d / 64,
            dim_feedforward: 4 * d,
            layers: (0..layers).collect(),
            max_period: 10_000.0,
            context: (f64::from(240 >> i) * seconds) as usize,
            input_proj: input != d,
            output_proj: output != d,
        }));
    }
    let semantic_encoder = ConvNextConfig {
        proj_in: true,
        proj_out: false,
        ..decoder.semantic_head.clone()
    };
    ZacConfig {
        kind: ZacKind::Encoder,
        stages,
        head: None,
        encoder: Some(EncoderConfig {
            semantic_encoder,
            align: Align::AdaptiveAvgPool,
            lane_frames: 300,
            lane_context_frames: 150,
            teacher: Value::Null,
        }),
        resampler_taps: 749,
        ..decoder
    }
}

/// Writes a decoder file in f32.
pub(crate) fn write(config: &ZacConfig, path: &Path) -> anyhow::Result<()> {
    let specs = tensor_specs(config);
    let mut header = Map::new();
    let kwargs: Vec<Value> = config
        .stages
        .iter()
        .enumerate()
        .map(|(i, stage)| match stage {
            StageConfig::Patch(size) => json!({"module_type": "PatchedPretransform", "patch_size": size}),
            StageConfig::Transformer(stage) => json!({
                "module_type": "Transformer", "num_layers": stage.layers.len(), "num_heads": stage.num_heads,
                "context_duration": CONTEXTS[i / 2],
            }),
        })
        .collect();
    let metadata = json!({
        "format": "zac-1/1", "kind": "decoder", "model_config": json!({"decoder_kwargs": kwargs}).to_string(),
        "head_config": json!({"combine": "sum"}).to_string(),
    });
    header.insert("__metadata__".to_owned(), metadata);
    let mut offset = 0usize;
    for spec in &specs {
        let end = offset + 4 * spec.shape.iter().product::<usize>();
        let entry = json!({ "dtype": "F32", "shape": spec.shape, "data_offsets": [offset, end] });
        header.insert(spec.name.clone(), entry);
        offset = end;
    }
    let mut text = serde_json::to_vec(&Value::Object(header))?;
    text.resize(text.len().next_multiple_of(8), b' ');
    let mut weights = AtomicFile::create(path)?;
    weights.write_all(&(text.len() as u64).to_le_bytes())?;
    weights.write_all(&text)?;
    for spec in &specs {
        weights.write_all(&values(&spec.name, &spec.shape, config)?)?;
    }
    weights.commit()?;
    Ok(())
}

/// One tensor: matrices keep the variance of what they read, norms are near the identity, and what
/// stands on a residual path is small.
fn values(name: &str, shape: &[usize], config: &ZacConfig) -> anyhow::Result<Vec<u8>> {
    if name == "codec.resampler.kernel" {
        let (from, to) = (config.codec_sample_rate as u32, config.sample_rate as u32);
        let resampler = Resampler::new(from, to, ResampleRecipe::Transform)?;
        let taps = resampler.kernel().and_then(|kernel| kernel.dense());
        let taps = taps.ok_or_else(|| anyhow::anyhow!("no filter from {from} to {to} Hz"))?;
        return Ok(taps.iter().flat_map(|tap| tap.to_le_bytes()).collect());
    }
    if name.ends_with(".window") {
        let window = zonos_audio::stft::hann_window(shape[0], true);
        return Ok(window.iter().flat_map(|x| x.to_le_bytes()).collect());
    }
    Ok(drawn(name, shape))
}

/// One tensor of random numbers.
pub(crate) fn drawn(name: &str, shape: &[usize]) -> Vec<u8> {
    let inputs: usize = shape.iter().skip(1).product();
    let (middle, scale) = match shape {
        [_] if name.ends_with("norm.weight")
            || name.ends_with("norm1.weight")
            || name.ends_with("norm2.weight") =>
        {
            (1.0, 0.1)
        }
        [_] if name.ends_with(".scale") || name.ends_with(".gamma") => (0.2, 0.1),
        [_] => (0.0, 0.05),
        _ => (0.0, (3.0 / inputs as f64).sqrt() as f32),
    };
    let key = [SEED, fnv1a64(name)];
    let mut bytes = vec![0u8; 4 * shape.iter().product::<usize>()];
    bytes
        .par_chunks_mut(16)
        .enumerate()
        .for_each(|(block, out)| {
            let words = philox([block as u64 + 1, 0, 0, 0], key);
            for (slot, word) in out.chunks_mut(4).zip(words) {
                let u = (word >> 40) as f32 * (2.0f32).powi(-23) - 1.0;
                slot.copy_from_slice(&(middle + scale * u).to_le_bytes());
            }
        });
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers of values that the published file sizes leave room for.
    #[test]
    fn sizes_of_the_released_files() {
        for (pruned, gigabytes) in [(true, 0.58), (false, 4.07)] {
            let specs = tensor_specs(&full_size(pruned));
            let windows = |name: &str| name.ends_with(".window");
            let values: usize = specs
                .iter()
                .filter(|spec| !windows(&spec.name))
                .map(|spec| spec.shape.iter().product::<usize>())
                .sum();
            let found = 4.0 * values as f64 / 1e9;
            assert!((found - gigabytes).abs() < 0.006, "{found} GB");
        }
    }
}
