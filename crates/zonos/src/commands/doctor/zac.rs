//! A very small ZAC-1 decoder of random numbers, streamed and whole.

use std::ops::ControlFlow;

use anyhow::{Context, ensure};
use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use serde_json::json;
use zonos_audio::resample::{ResampleRecipe, Resampler};
use zonos_audio::{Codes, ScratchFolder};
use zonos_checkpoint::{Part, compose};
use zonos_nn::Tap;
use zonos_zac::{
    Combine, ConvNextConfig, HeadConfig, QuantizerConfig, Search, StageConfig, TransformerConfig,
    ZacConfig, ZacDecoder, ZacKind, tensor_specs,
};

use super::largest_difference;
use crate::commands::zac::seam_tolerance;

/// Width of everything.
const WIDTH: usize = 16;
/// Entries of a codebook.
const ENTRIES: usize = 32;
const FRAMES: usize = 24;

/// Streams in chunks of several sizes, and a fork, against one whole pass.
pub(super) fn seams(device: &Device) -> anyhow::Result<String> {
    let folder = ScratchFolder::create("zonos-doctor-")?;
    let file = folder.path().join("decoder.safetensors");
    write(&file)?;
    let decoder = ZacDecoder::load(&file, device)?;
    let values: Vec<i32> = (0..FRAMES * 10)
        .map(|i| ((i * 7919 + 13) % ENTRIES) as i32)
        .collect();
    let codes = TensorData::new(values.clone(), [1, FRAMES, 10]);
    let codes = Tensor::<3, Int>::from_data(codes, (device, DType::I32));
    let whole = decoder.decode_tensor(codes, &mut Tap::off())?;
    let whole = whole.into_data().convert::<f32>().try_into_vec::<f32>();
    let whole = whole.ok().context("the device returned no samples")?;
    let peak = whole.iter().fold(0.0f32, |m, x| m.max(x.abs()));
    let mut worst = 0.0f32;
    for chunk in [1, 5, FRAMES] {
        let mut stream = decoder.stream();
        let mut samples = Vec::new();
        for rows in values.chunks(10 * chunk) {
            samples.extend(stream.decode(&Codes::new(rows.len() / 10, 10, rows.to_vec())?)?);
            // Going on must not disturb the stream it comes from.
            stream.fork().decode(&Codes::new(1, 10, vec![1; 10])?)?;
        }
        samples.extend(stream.flush()?);
        worst = worst.max(largest_difference(&whole, &samples)?);
    }
    let allowed = seam_tolerance(peak);
    ensure!(
        worst <= allowed,
        "samples differ by {worst:e}, allowed {allowed:e}"
    );
    Ok(format!(
        "largest difference {worst:e} at a peak of {peak:.2}"
    ))
}

fn config() -> anyhow::Result<ZacConfig> {
    let stack = |proj_out| ConvNextConfig {
        input_dim: WIDTH,
        output_dim: WIDTH,
        dim: WIDTH,
        intermediate_dim: 2 * WIDTH,
        blocks: vec![0],
        kernel_size: 7,
        causal: true,
        proj_in: false,
        proj_out,
    };
    let quantizer = |n| QuantizerConfig {
        codebook_size: ENTRIES,
        input_dim: WIDTH,
        codebook_dim: vec![Some(4); n],
        search: Search::Cosine,
    };
    let mut stages = Vec::new();
    for i in 0..5 {
        let input = if i == 0 { WIDTH } else { WIDTH / 2 };
        if i > 0 {
            stages.push(StageConfig::Patch(2));
        }
        stages.push(StageConfig::Transformer(TransformerConfig {
            input_dimension: input,
            output_dimension: WIDTH,
            d_model: WIDTH,
            num_heads: 2,
            dim_feedforward: 2 * WIDTH,
            layers: vec![0],
            max_period: 10_000.0,
            context: (15 << i) / 2,
            input_proj: input != WIDTH,
            output_proj: false,
        }));
    }
    let kernel = kernel()?;
    Ok(ZacConfig {
        kind: ZacKind::Decoder,
        sample_rate: 44_100,
        codec_sample_rate: 44_160,
        hop_length: 2940,
        codec_hop_length: 2944,
        latent_dim: WIDTH,
        stages,
        semantic_quantizer: quantizer(1),
        quantizer: quantizer(9),
        semantic_head: stack(true),
        head: Some(HeadConfig {
            dim: WIDTH,
            hop_length: 184,
            n_fft: vec![2048],
            combine: Combine::Sum,
            mag_clip: 1e2,
            norm_eps: 1e-6,
            trunk: stack(false),
        }),
        encoder: None,
        resampler_taps: kernel.len() / 735,
        warnings: Vec::new(),
    })
}

/// The filter from the inner to the outer rate.
fn kernel() -> anyhow::Result<Vec<f32>> {
    let resampler = Resampler::new(44_160, 44_100, ResampleRecipe::Transform)?;
    let kernel = resampler.kernel().and_then(|kernel| kernel.dense());
    kernel.context("no filter between the rates")
}

fn write(file: &std::path::Path) -> anyhow::Result<()> {
    let config = config()?;
    let kwargs: Vec<_> = config
        .stages
        .iter()
        .map(|stage| match stage {
            StageConfig::Patch(size) => {
                json!({"module_type": "PatchedPretransform", "patch_size": size})
            }
            // Half a second each.
            StageConfig::Transformer(t) => json!({
                "module_type": "Transformer", "num_layers": 1, "num_heads": t.num_heads,
                "context_duration": 0.5,
            }),
        })
        .collect();
    let mut parts = Vec::new();
    for spec in tensor_specs(&config) {
        let count: usize = spec.shape.iter().product();
        let values = if spec.name == "codec.resampler.kernel" {
            kernel()?
        } else if spec.name.ends_with(".window") {
            continue;
        } else {
            drawn(&spec.name, &spec.shape, count)
        };
        parts.push(Part::own(spec.name, TensorData::new(values, spec.shape)));
    }
    let metadata = [
        ("format", "zac-1/1".to_owned()),
        ("kind", "decoder".to_owned()),
        (
            "model_config",
            json!({ "decoder_kwargs": kwargs }).to_string(),
        ),
        ("head_config", json!({}).to_string()),
    ];
    let metadata = metadata.map(|(key, value)| (key.to_owned(), value));
    compose(&parts, &metadata, file, &mut |_| ControlFlow::Continue(()))?;
    Ok(())
}

/// Random numbers that keep the signal in range: norms near 1, matrices by what they read.
fn drawn(name: &str, shape: &[usize], count: usize) -> Vec<f32> {
    let mut state = name.bytes().fold(0x811c_9dc5_u32, |h, b| {
        (h ^ u32::from(b)).wrapping_mul(16_777_619)
    }) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    let inputs: usize = shape.iter().skip(1).product();
    let (middle, scale) = match shape {
        [_] if name.contains("norm") && name.ends_with("weight") => (1.0, 0.1),
        [_] if name.ends_with(".scale") || name.ends_with(".gamma") => (0.4, 0.1),
        [_] => (0.0, 0.1),
        _ => (0.0, (3.0 / inputs as f32).sqrt()),
    };
    (0..count).map(|_| middle + scale * next()).collect()
}
