//! From a checkpoint's tensors to the network.

use burn::module::Param;
use burn::tensor::Device;
use zonos_checkpoint::{
    Checkpoint, LoadError, LoadOptions, LoadReport, Loader, NameMap, StoredWeight, TensorSpec,
};
use zonos_kernels::{Activations, PackedTensor};
use zonos_nn::{BiasedLinear, Embedding, RmsNorm, Rotary};

use crate::model::{
    Attention, Backbone, DenseFeedForward, ExpertFeedForward, Experts, FeedForward, GateUp, Layer,
    MultiEmbedding, Router, SpeakerProjection, SplitGateUp,
};
use crate::{Balancing, Zonos2Config, gguf};

/// Every tensor of the model with its shape, in checkpoint order. Nothing is allocated.
///
/// Source: Zyphra/ZONOS2 `models/zonos2.py`, `models/weight.py`.
pub fn tensor_specs(config: &Zonos2Config) -> Vec<TensorSpec> {
    let d = config.dim;
    let (heads, kv_heads) = (config.n_heads(), config.n_kv_heads());
    let (ffn, router) = (config.ffn_dim(), config.router_dim);
    let mut specs = Vec::new();
    let mut add = |name: String, shape: Vec<usize>| {
        // `[1, heads, 1]` is a vector in GGUF files.
        let loose = name.ends_with(".temp");
        let spec = TensorSpec::plain(name, shape);
        specs.push(if loose { spec.loose_ones() } else { spec });
    };
    for c in 0..config.n_codebooks {
        add(embedder(c), vec![config.audio_vocab(), d]);
    }
    add(embedder(config.n_codebooks), vec![config.text_vocab + 1, d]);
    if config.speaker_enabled {
        let vector = config.speaker_embedding_dim;
        let inner = config.speaker_lda_dim.unwrap_or(vector);
        if config.speaker_lda_dim.is_some() {
            add("speaker_lda_projection.weight".into(), vec![inner, vector]);
            add("speaker_lda_projection.bias".into(), vec![inner]);
        }
        add("speaker_projection.weight".into(), vec![d, inner]);
        add("speaker_projection.bias".into(), vec![d]);
    }
    for n in 0..config.n_layers {
        let mut add =
            |name: &str, shape: &[usize]| add(format!("layers.{n}.{name}"), shape.to_vec());
        add("attention.wq.weight", &[heads * config.head_dim, d]);
        add("attention.wkv.weight", &[2, kv_heads * config.head_dim, d]);
        add("attention.wo.weight", &[d, heads * config.head_dim]);
        add("attention.temp", &[1, heads, 1]);
        add("attention.gater.weight", &[heads, d]);
        add("attention_norm.weight", &[d]);
        add("ffn_norm.weight", &[d]);
        if !config.is_expert_layer(n) {
            add("feed_forward.w_in.weight", &[2, ffn, d]);
            add("feed_forward.w_out.weight", &[d, ffn]);
            continue;
        }
        let experts = config.n_experts;
        add("feed_forward.experts.w13", &[experts, 2 * ffn, d]);
        add("feed_forward.experts.w2", &[experts, d, ffn]);
        add("feed_forward.router.down_proj.weight", &[router, d]);
        add("feed_forward.router.down_proj.bias", &[router]);
        add("feed_forward.router.rmsnorm_eda.weight", &[router]);
        for layer in ["0", "2"] {
            add(
                &format!("feed_forward.router.router_mlp.{layer}.weight"),
                &[router, router],
            );
            add(
                &format!("feed_forward.router.router_mlp.{layer}.bias"),
                &[router],
            );
        }
        add(
            "feed_forward.router.router_mlp.4.weight",
            &[experts, router],
        );
        add("feed_forward.router.balancing_biases", &[experts]);
        if config.first_expert_layer() != Some(n) {
            add("feed_forward.router.router_states_scale", &[router]);
        }
    }
    add("out_norm.weight".into(), vec![d]);
    add(
        "multi_output.weight".into(),
        vec![config.n_codebooks * config.audio_vocab(), d],
    );
    specs
}

fn embedder(c: usize) -> String {
    format!("multi_embedder.embedders.{c}.weight")
}

/// As [`tensor_specs`], for the layout of `checkpoint`: GGUF files keep the experts' gate and up rows in
/// stacks of their own, `experts.gate` and `experts.up`, which stay apart so that they can be used
/// where they lie in the file.
pub fn file_specs(checkpoint: &Checkpoint, config: &Zonos2Config) -> Vec<TensorSpec> {
    let mut specs = tensor_specs(config);
    if !gguf::has_split_experts(checkpoint) {
        return specs;
    }
    let apart = [config.n_experts, config.ffn_dim(), config.dim];
    specs = specs
        .into_iter()
        .flat_map(|spec| match spec.name.strip_suffix(".experts.w13") {
            Some(of) => ["gate", "up"]
                .map(|part| TensorSpec::plain(format!("{of}.experts.{part}"), apart))
                .to_vec(),
            None => vec![spec],
        })
        .collect();
    specs
}

/// How names in ZONOS2 files become those of [`tensor_specs`]: wrappers of training, parametrised leaves, training-only
/// statistics, and the expert layouts that the original accepts.
pub fn name_map(config: &Zonos2Config) -> NameMap {
    const EXPERTS: &str = "layers.{n}.feed_forward.experts";
    let at = |suffix: &str| format!("{EXPERTS}.{suffix}");
    let map = NameMap::new().strip_wrappers();
    gguf::names(map, config.n_codebooks)
        .rename("*.parametrizations.*.original", "*.*")
        .ignore("*.router.ent_denom")
        .ignore("*.router.normalized_entropy")
        // One matrix an expert: gate, up, down.
        .interleave(
            &at("{e}.w1.weight"),
            &at("{e}.w3.weight"),
            &at("{e}.w13"),
            0,
        )
        .stack(&at("{e}.w13"), "e", &at("w13"))
        .stack(&at("{e}.w2.weight"), "e", &at("w2"))
        // Stacked by kind.
        .interleave(&at("w1.weight"), &at("w3.weight"), &at("w13"), 1)
        .rename(&at("w2.weight"), &at("w2"))
        // Gate rows first, then up rows.
        .interleave_halves(&at("gate_up_proj"), &at("w13"), 1)
        .rename(&at("down_proj"), &at("w2"))
}

/// Puts the network together from a checkpoint.
pub(crate) fn load(
    checkpoint: &Checkpoint,
    config: &Zonos2Config,
    options: &LoadOptions,
    device: &Device,
) -> Result<(Backbone, LoadReport), LoadError> {
    let loader = Loader::new(
        checkpoint,
        &name_map(config),
        &file_specs(checkpoint, config),
        options,
        device,
    )?;
    let backbone = build(&loader, config, device)?;
    Ok((backbone, loader.report().clone()))
}

fn build(
    loader: &Loader<'_>,
    config: &Zonos2Config,
    device: &Device,
) -> Result<Backbone, LoadError> {
    let embedders = (0..=config.n_codebooks)
        .map(|c| Ok(Embedding::new(loader.tensor(&embedder(c))?)))
        .collect::<Result<_, LoadError>>()?;
    let speaker = if config.speaker_enabled {
        let speaker_lda_projection = config
            .speaker_lda_dim
            .map(|_| biased(loader, "speaker_lda_projection"))
            .transpose()?;
        Some(SpeakerProjection {
            speaker_lda_projection,
            speaker_projection: biased(loader, "speaker_projection")?,
        })
    } else {
        None
    };
    Ok(Backbone {
        multi_embedder: MultiEmbedding { embedders },
        speaker,
        layers: (0..config.n_layers)
            .map(|n| layer(loader, config, n))
            .collect::<Result<_, LoadError>>()?,
        out_norm: norm(loader, "out_norm.weight", config.norm_eps)?,
        multi_output: weight(loader, "multi_output.weight")?,
        rotary: Rotary::new(
            config.max_seqlen,
            config.head_dim,
            config.rope_theta,
            device,
        ),
        norm_eps: config.norm_eps,
        softcap: config.softcap(),
        n_codebooks: config.n_codebooks,
    })
}

fn layer(loader: &Loader<'_>, config: &Zonos2Config, n: usize) -> Result<Layer, LoadError> {
    let at = |suffix: &str| format!("layers.{n}.{suffix}");
    let attention = Attention {
        wq: weight(loader, &at("attention.wq.weight"))?,
        wkv: weight(loader, &at("attention.wkv.weight"))?,
        wo: weight(loader, &at("attention.wo.weight"))?,
        temp: Param::from_tensor(loader.tensor_f32(&at("attention.temp"))?),
        gater: weight(loader, &at("attention.gater.weight"))?,
        head_dim: config.head_dim,
    };
    let feed_forward = if config.is_expert_layer(n) {
        FeedForward::Experts(ExpertFeedForward {
            experts: Experts {
                w13: gate_up(loader, &at("feed_forward.experts"))?,
                w2: weight(loader, &at("feed_forward.experts.w2"))?,
            },
            router: router(loader, config, n)?,
        })
    } else {
        FeedForward::Dense(DenseFeedForward {
            w_in: weight(loader, &at("feed_forward.w_in.weight"))?,
            w_out: weight(loader, &at("feed_forward.w_out.weight"))?,
        })
    };
    Ok(Layer {
        attention,
        attention_norm: norm(loader, &at("attention_norm.weight"), config.norm_eps)?,
        ffn_norm: norm(loader, &at("ffn_norm.weight"), config.norm_eps)?,
        feed_forward,
    })
}

fn router(loader: &Loader<'_>, config: &Zonos2Config, n: usize) -> Result<Router, LoadError> {
    let at = |suffix: &str| format!("layers.{n}.feed_forward.router.{suffix}");
    let scale = at("router_states_scale");
    Ok(Router {
        down_proj: biased(loader, &at("down_proj"))?,
        router_states_scale: loader
            .has(&scale)
            .then(|| loader.tensor_f32(&scale).map(Param::from_tensor))
            .transpose()?,
        rmsnorm_eda: norm(loader, &at("rmsnorm_eda.weight"), config.norm_eps)?,
        router_mlp: [
            biased(loader, &at("router_mlp.0"))?,
            biased(loader, &at("router_mlp.2"))?,
        ],
        // As numbers, as the biased layers: the router is one operation, and small.
        router_mlp_out: PackedTensor::new(loader.tensor(&at("router_mlp.4.weight"))?),
        balancing_biases: Param::from_tensor(loader.tensor_f32(&at("balancing_biases"))?),
        balancing_sign: match config.balancing {
            Balancing::Legacy => 1.0,
            Balancing::Quantile => -1.0,
        },
        top_k: config.experts_per_token(n),
    })
}

fn gate_up(loader: &Loader<'_>, experts: &str) -> Result<GateUp, LoadError> {
    let gate = format!("{experts}.gate");
    if !loader.has(&gate) {
        return Ok(GateUp::Interleaved(weight(
            loader,
            &format!("{experts}.w13"),
        )?));
    }
    Ok(GateUp::Split(SplitGateUp {
        gate: weight(loader, &gate)?,
        up: weight(loader, &format!("{experts}.up"))?,
    }))
}

/// A matrix as the file stores it; quantised blocks stay blocks where the device's kernels read them.
fn weight<const D: usize>(loader: &Loader<'_>, name: &str) -> Result<PackedTensor<D>, LoadError> {
    let packed = zonos_kernels::reads_blocks(loader.device());
    Ok(match loader.stored_weight(name, packed)? {
        StoredWeight::Blocks { rows, blocks } => {
            PackedTensor::from_blocks(rows, blocks, Activations::default_for(blocks))
        }
        StoredWeight::Dense(weight) => PackedTensor::new(weight),
    })
}

fn biased(loader: &Loader<'_>, name: &str) -> Result<BiasedLinear, LoadError> {
    Ok(BiasedLinear::new(
        loader.tensor(&format!("{name}.weight"))?,
        loader.tensor_f32(&format!("{name}.bias"))?,
    ))
}

fn norm(loader: &Loader<'_>, name: &str, eps: f64) -> Result<RmsNorm, LoadError> {
    Ok(RmsNorm::new(loader.tensor_f32(name)?, eps))
}
