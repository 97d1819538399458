//! The backbone's GGUF layout: names, order and metadata of Zyphra's C++ converter.
//!
//! Keys, values and projections that the original stores joined stand apart here, the router has flat
//! names, and the attention temperature comes as its absolute value. Source: Zyphra/zonos2.cpp
//! `models/convert-zonos2-to-gguf.py`.

use serde_json::{Map, Value, json};
use zonos_checkpoint::{Checkpoint, Format, GgufFields, NameMap, SIDECAR_PREFIX};
use zonos_gguf::{GgmlType, Metadata, ModelMetadata, NewTensor, Policy, Value as GgufValue};

use crate::config::{ConfigError, FIRST_CONDITIONING_ID, PARAMS_FILE};
use crate::model::QK_EPS;
use crate::{Zonos2Config, Zonos2Error};

/// `general.architecture` of such a file.
pub const ARCHITECTURE: &str = "zonos2";

/// Whether gate and up rows of the experts stand in stacks of their own, as GGUF files have them.
pub fn has_split_experts(checkpoint: &Checkpoint) -> bool {
    checkpoint
        .names()
        .any(|name| name.ends_with(".ffn_gate_exps.weight"))
}

/// Rules from GGUF names to those of [`crate::tensor_specs`] (the experts' to `experts.gate` and
/// `experts.up`).
pub(crate) fn names(map: NameMap, codebooks: usize) -> NameMap {
    const LAYER: [(&str, &str); 19] = [
        ("attn_norm.weight", "attention_norm.weight"),
        ("ffn_norm.weight", "ffn_norm.weight"),
        ("attn_q.weight", "attention.wq.weight"),
        ("attn_k.weight", "attention.wkv.apart.0"),
        ("attn_v.weight", "attention.wkv.apart.1"),
        ("attn_output.weight", "attention.wo.weight"),
        ("attn_temp", "attention.temp"),
        ("attn_gate.weight", "attention.gater.weight"),
        ("ffn_up.weight", "feed_forward.w_in.apart.0"),
        ("ffn_gate.weight", "feed_forward.w_in.apart.1"),
        ("ffn_down.weight", "feed_forward.w_out.weight"),
        ("ffn_gate_exps.weight", "feed_forward.experts.gate"),
        ("ffn_up_exps.weight", "feed_forward.experts.up"),
        ("ffn_down_exps.weight", "feed_forward.experts.w2"),
        ("router_down.*", "feed_forward.router.down_proj.*"),
        ("router_mlp{m}.*", "feed_forward.router.router_mlp.{m}.*"),
        (
            "router_norm.weight",
            "feed_forward.router.rmsnorm_eda.weight",
        ),
        ("router_bias", "feed_forward.router.balancing_biases"),
        (
            "router_eda_scale",
            "feed_forward.router.router_states_scale",
        ),
    ];
    let mut map = map
        .rename(
            "audio_embd.{c}.weight",
            "multi_embedder.embedders.{c}.weight",
        )
        .rename(
            "text_embd.weight",
            &format!("multi_embedder.embedders.{codebooks}.weight"),
        )
        .rename("spk_lda.*", "speaker_lda_projection.*")
        .rename("spk_proj.*", "speaker_projection.*")
        .rename("output_norm.weight", "out_norm.weight")
        .rename("output.weight", "multi_output.weight");
    for (from, to) in LAYER {
        map = map.rename(&format!("blk.{{n}}.{from}"), &format!("layers.{{n}}.{to}"));
    }
    map.stack(
        "layers.{n}.attention.wkv.apart.{i}",
        "i",
        "layers.{n}.attention.wkv.weight",
    )
    .stack(
        "layers.{n}.feed_forward.w_in.apart.{i}",
        "i",
        "layers.{n}.feed_forward.w_in.weight",
    )
}

/// The configuration in a GGUF file's metadata; `None` when `checkpoint` is no such file.
///
/// The metadata holds sizes alone. Conditioning comes from a `params.json` (packed into the file, or
/// beside it) that agrees with them, and otherwise is that of the released model, which the C++
/// programs assume.
pub(crate) fn config(checkpoint: &Checkpoint) -> Option<Result<Zonos2Config, Zonos2Error>> {
    let fields = GgufFields::of(checkpoint, ARCHITECTURE)?;
    Some(read(checkpoint, fields))
}

/// Why a GGUF file is not read as this model's, unless it is one of another container.
pub(crate) fn unsaid(checkpoint: &Checkpoint) -> Option<Zonos2Error> {
    if checkpoint.format() != Format::Gguf {
        return None;
    }
    let found = checkpoint.metadata().get("general.architecture");
    let found = found.map_or_else(|| "missing".into(), |found| format!("{found}"));
    Some(Zonos2Error::Config(ConfigError::Metadata {
        path: checkpoint.path().to_owned(),
        problem: format!("`general.architecture` is {found}, expected \"{ARCHITECTURE}\""),
    }))
}

fn read(checkpoint: &Checkpoint, fields: GgufFields<'_>) -> Result<Zonos2Config, Zonos2Error> {
    let wrong = |problem: String| {
        Zonos2Error::Config(ConfigError::Metadata {
            path: checkpoint.path().to_owned(),
            problem,
        })
    };
    check_fixed(fields).map_err(wrong)?;
    let sizes = sizes(checkpoint, fields).map_err(wrong)?;
    let text_vocab = &sizes["text_vocab"];
    let given = checkpoint.sidecar(PARAMS_FILE)?;
    let given = given.map(|json| match json.get("model") {
        Some(nested @ Value::Object(_)) => nested.clone(),
        _ => json,
    });
    let mut params = match given {
        Some(given) if &given["text_vocab"] == text_vocab => given,
        _ => Zonos2Config::released().to_json(),
    };
    if &params["text_vocab"] != text_vocab {
        return Err(wrong(format!(
            "zonos2.text_vocab is {text_vocab}, which is not the released model's {}, and the file does not say how its conditioning ids (from {FIRST_CONDITIONING_ID} on) are laid out; put the model's params.json beside it",
            params["text_vocab"]
        )));
    }
    if let Some(map) = params.as_object_mut() {
        map.extend(sizes);
    }
    Zonos2Config::from_json(&params).map_err(|error| {
        wrong(match error {
            ConfigError::Field { field, problem, .. } => match key_of(&field) {
                Some(key) => format!("`zonos2.{key}`: {problem}"),
                None => format!("field `{field}` of its params.json: {problem}"),
            },
            other => other.to_string(),
        })
    })
}

/// The key whose value became a field of `params.json`.
fn key_of(field: &str) -> Option<&'static str> {
    Some(match field {
        "n_layers" => "block_count",
        "dim" => "embedding_length",
        "head_dim" => "head_dim",
        "n_heads" => "attention.head_count",
        "n_kv_heads" => "attention.head_count_kv",
        "ffn_dim_multiplier" | "multiple_of" => "feed_forward_length",
        "norm_eps" => "attention.layer_norm_rms_epsilon",
        "rope_theta" => "rope.freq_base",
        "max_seqlen" => "context_length",
        "n_codebooks" => "n_codebooks",
        "codebook_size" => "codebook_size",
        "eoa_id" => "eoa_id",
        "audio_pad_id" => "audio_pad_id",
        "text_vocab" => "text_vocab",
        "loss_softcap" => "logit_softcap",
        "speaker_embedding_dim" => "speaker.embedding_dim",
        "speaker_lda_dim" => "speaker.lda_dim",
        "moe_n_experts" => "expert_count",
        "moe_router_topk" | "special_topk_layers" => "expert_used_count_per_layer",
        _ => return None,
    })
}

/// Refuses values that this model has no choice of, where a file gives them.
fn check_fixed(fields: GgufFields<'_>) -> Result<(), String> {
    let (eps, vocabulary) = ("zonos2.attention.qk_norm_epsilon", "zonos2.audio_vocab");
    if let Some(value) = fields.get(eps)
        // As f32 has it.
        && value.as_f64().is_none_or(|v| (v - QK_EPS).abs() > 1e-12)
    {
        return Err(format!("`{eps}` should be {QK_EPS:e}, found {value}"));
    }
    let wanted = fields.count("zonos2.codebook_size")?.saturating_add(2);
    if let Some(value) = fields.get(vocabulary)
        && value.as_u64() != Some(wanted as u64)
    {
        return Err(format!(
            "`{vocabulary}` should be {wanted}, `zonos2.codebook_size` and two more, found {value}"
        ));
    }
    Ok(())
}

/// The fields of `params.json` that the metadata and the tensors tell.
fn sizes(checkpoint: &Checkpoint, fields: GgufFields<'_>) -> Result<Map<String, Value>, String> {
    let count = |key: &str| fields.count(&format!("zonos2.{key}"));
    let number = |key: &str| fields.number(&format!("zonos2.{key}"));
    let layers = count("block_count")?;
    let (dim, ffn) = (count("embedding_length")?, count("feed_forward_length")?);
    let multiplier = ffn as f64 / dim.max(1) as f64;
    // Rounding up to the width itself gives it back where the quotient is not exact.
    let exact = (multiplier * dim as f64) as usize == ffn;
    let used = fields.counts("zonos2.expert_used_count_per_layer")?;
    if used.len() != layers {
        return Err(format!(
            "`zonos2.expert_used_count_per_layer` has {} entries for {layers} layers",
            used.len()
        ));
    }
    let experts = count("expert_count")?;
    let first = used.iter().position(|&k| k > 0);
    let last = used.iter().rposition(|&k| k > 0);
    let mut special = Map::new();
    let (mut start, mut end, mut top_k) = (layers, 0, 1);
    if let (Some(first), Some(last)) = (first, last) {
        if let Some(gap) = used[first..=last].iter().position(|&k| k == 0) {
            return Err(format!(
                "`zonos2.expert_used_count_per_layer` has a dense layer, {}, between expert layers; this model has dense layers at its ends alone",
                first + gap
            ));
        }
        (start, end, top_k) = (first, layers - 1 - last, used[first]);
        for (n, &k) in used.iter().enumerate().filter(|&(_, &k)| k > 0) {
            if k != top_k {
                special.insert(n.to_string(), json!(k));
            }
        }
    }
    // Not in the metadata: the rows of the first projection of any router.
    let router = checkpoint
        .names()
        .filter(|name| name.ends_with(".router_down.weight"))
        .find_map(|name| checkpoint.info(name)?.shape.first().copied());
    let speaker = checkpoint.info("spk_proj.weight").is_some();
    let lda = checkpoint.info("spk_lda.weight").is_some();
    let fields = json!({
        "model_type": "zonos2",
        "n_layers": layers,
        "dim": dim,
        "head_dim": count("head_dim")?,
        "n_heads": count("attention.head_count")?,
        "n_kv_heads": count("attention.head_count_kv")?,
        "ffn_dim_multiplier": multiplier,
        "multiple_of": if exact { 1 } else { ffn },
        "norm_eps": number("attention.layer_norm_rms_epsilon")?,
        "rope_theta": number("rope.freq_base")?,
        "max_seqlen": count("context_length")?,
        "n_codebooks": count("n_codebooks")?,
        "codebook_size": count("codebook_size")?,
        "eoa_id": count("eoa_id")?,
        "audio_pad_id": count("audio_pad_id")?,
        "text_vocab": count("text_vocab")?,
        "loss_softcap": number("logit_softcap")?,
        "speaker_enabled": speaker,
        "speaker_embedding_dim": count("speaker.embedding_dim")?,
        "speaker_lda_dim": if lda { count("speaker.lda_dim")? } else { 0 },
        "moe_n_experts": experts,
        "moe_router_topk": top_k,
        "moe_router_dim": router.unwrap_or(128),
        "special_topk_layers": special,
        "moe_start_from_layer": start,
        "moe_end_from_layer": end,
        "moe_impl": "grouped",
    });
    match fields {
        Value::Object(map) => Ok(map),
        _ => Err("the sizes are no object".into()),
    }
}

/// Which part of a tensor of [`crate::tensor_specs`] a GGUF tensor is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// All of it.
    Whole,
    /// One entry of the first axis.
    Entry(usize),
    /// Every second row of the second axis, from this one on.
    EverySecond(usize),
    /// Absolute values, as a vector.
    Magnitude,
}

/// A tensor of a GGUF file and where its values come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GgufTensor {
    /// Name in the file.
    pub name: String,
    /// Slowest axis first.
    pub shape: Vec<usize>,
    /// Name among those of [`crate::file_specs`].
    pub from: String,
    /// Which part of that.
    pub part: Part,
}

impl GgufTensor {
    /// What a file says of the tensor, in the type that `policy` gives it.
    pub fn entry(&self, policy: &Policy) -> NewTensor {
        let dims: Vec<u64> = self.shape.iter().rev().map(|&d| d as u64).collect();
        NewTensor {
            name: self.name.clone(),
            ggml_type: policy.storage_type(&self.name, &dims, GgmlType::F32),
            dims,
        }
    }
}

/// All tensors of a file, in the order of the C++ converter. `split` says whether the source keeps gate
/// and up rows of the experts in stacks of their own.
pub fn tensors(config: &Zonos2Config, split: bool) -> Vec<GgufTensor> {
    let d = config.dim;
    let (heads, kv) = (config.n_heads(), config.n_kv_heads() * config.head_dim);
    let (q, ffn, router) = (heads * config.head_dim, config.ffn_dim(), config.router_dim);
    let mut all = Vec::new();
    let mut add = |name: String, shape: &[usize], from: String, part: Part| {
        all.push(GgufTensor {
            name,
            shape: shape.to_vec(),
            from,
            part,
        });
    };
    let embedder = |c: usize| format!("multi_embedder.embedders.{c}.weight");
    for c in 0..config.n_codebooks {
        let name = format!("audio_embd.{c}.weight");
        add(name, &[config.audio_vocab(), d], embedder(c), Part::Whole);
    }
    let text = embedder(config.n_codebooks);
    add(
        "text_embd.weight".into(),
        &[config.text_vocab + 1, d],
        text,
        Part::Whole,
    );
    if config.speaker_enabled {
        let vector = config.speaker_embedding_dim;
        let inner = config.speaker_lda_dim.unwrap_or(vector);
        let mut pair = |ours: &str, theirs: &str, out: usize, input: usize| {
            add(
                format!("{ours}.weight"),
                &[out, input],
                format!("{theirs}.weight"),
                Part::Whole,
            );
            add(
                format!("{ours}.bias"),
                &[out],
                format!("{theirs}.bias"),
                Part::Whole,
            );
        };
        if config.speaker_lda_dim.is_some() {
            pair("spk_lda", "speaker_lda_projection", inner, vector);
        }
        pair("spk_proj", "speaker_projection", d, inner);
    }
    add(
        "output_norm.weight".into(),
        &[d],
        "out_norm.weight".into(),
        Part::Whole,
    );
    let entries = config.n_codebooks * config.audio_vocab();
    add(
        "output.weight".into(),
        &[entries, d],
        "multi_output.weight".into(),
        Part::Whole,
    );
    for n in 0..config.n_layers {
        let mut add = |ours: &str, shape: &[usize], theirs: &str, part: Part| {
            let (ours, theirs) = (format!("blk.{n}.{ours}"), format!("layers.{n}.{theirs}"));
            add(ours, shape, theirs, part);
        };
        add(
            "attn_norm.weight",
            &[d],
            "attention_norm.weight",
            Part::Whole,
        );
        add("ffn_norm.weight", &[d], "ffn_norm.weight", Part::Whole);
        add("attn_q.weight", &[q, d], "attention.wq.weight", Part::Whole);
        add(
            "attn_k.weight",
            &[kv, d],
            "attention.wkv.weight",
            Part::Entry(0),
        );
        add(
            "attn_v.weight",
            &[kv, d],
            "attention.wkv.weight",
            Part::Entry(1),
        );
        add(
            "attn_output.weight",
            &[d, q],
            "attention.wo.weight",
            Part::Whole,
        );
        add("attn_temp", &[heads], "attention.temp", Part::Magnitude);
        add(
            "attn_gate.weight",
            &[heads, d],
            "attention.gater.weight",
            Part::Whole,
        );
        if !config.is_expert_layer(n) {
            let w_in = "feed_forward.w_in.weight";
            add("ffn_up.weight", &[ffn, d], w_in, Part::Entry(0));
            add("ffn_gate.weight", &[ffn, d], w_in, Part::Entry(1));
            add(
                "ffn_down.weight",
                &[d, ffn],
                "feed_forward.w_out.weight",
                Part::Whole,
            );
            continue;
        }
        let experts = config.n_experts;
        let half = [("gate", 0), ("up", 1)].map(|(name, first)| match split {
            true => (format!("feed_forward.experts.{name}"), Part::Whole),
            false => ("feed_forward.experts.w13".into(), Part::EverySecond(first)),
        });
        for (name, (from, part)) in ["gate", "up"].iter().zip(&half) {
            add(
                &format!("ffn_{name}_exps.weight"),
                &[experts, ffn, d],
                from,
                *part,
            );
        }
        add(
            "ffn_down_exps.weight",
            &[experts, d, ffn],
            "feed_forward.experts.w2",
            Part::Whole,
        );
        let mut add = |ours: &str, shape: &[usize], theirs: &str| {
            let from = format!("feed_forward.router.{theirs}");
            add(&format!("router_{ours}"), shape, &from, Part::Whole);
        };
        add("down.weight", &[router, d], "down_proj.weight");
        add("down.bias", &[router], "down_proj.bias");
        for m in [0, 2] {
            let (ours, theirs) = (format!("mlp{m}"), format!("router_mlp.{m}"));
            add(
                &format!("{ours}.weight"),
                &[router, router],
                &format!("{theirs}.weight"),
            );
            add(
                &format!("{ours}.bias"),
                &[router],
                &format!("{theirs}.bias"),
            );
        }
        add("mlp4.weight", &[experts, router], "router_mlp.4.weight");
        add("norm.weight", &[router], "rmsnorm_eda.weight");
        add("bias", &[experts], "balancing_biases");
        if config.first_expert_layer() != Some(n) {
            add("eda_scale", &[router], "router_states_scale");
        }
    }
    all
}

/// The metadata of a file, in the order of the C++ converter. What it has no keys for, conditioning and
/// the sign of the balancing bias, is added as a `params.json` where it is not the released model's.
pub fn metadata(config: &Zonos2Config, file_type: Option<u32>) -> Metadata {
    let used: Vec<usize> = (0..config.n_layers)
        .map(|n| config.experts_per_token(n))
        .collect();
    let mut all = ModelMetadata::new(ARCHITECTURE, "ZONOS2")
        .count("block_count", config.n_layers)
        .count("context_length", config.max_seqlen)
        .count("embedding_length", config.dim)
        .count("head_dim", config.head_dim)
        .count("attention.head_count", config.n_heads())
        .count("attention.head_count_kv", config.n_kv_heads())
        .count("feed_forward_length", config.ffn_dim())
        .number("rope.freq_base", config.rope_theta)
        .number("attention.layer_norm_rms_epsilon", config.norm_eps)
        .number("attention.qk_norm_epsilon", QK_EPS)
        .number("logit_softcap", config.loss_softcap)
        .count("expert_count", config.n_experts)
        .counts("expert_used_count_per_layer", &used)
        .count("n_codebooks", config.n_codebooks)
        .count("codebook_size", config.codebook_size)
        .count("audio_vocab", config.audio_vocab())
        .count("eoa_id", config.eoa_id)
        .count("audio_pad_id", config.audio_pad_id)
        .count("text_vocab", config.text_vocab)
        .count("speaker.embedding_dim", config.speaker_embedding_dim)
        .count("speaker.lda_dim", config.speaker_lda_dim.unwrap_or(0))
        .done();
    if let Some(id) = file_type {
        all.set("general.file_type", GgufValue::U32(id));
    }
    let released = Zonos2Config::released();
    let unsaid = |c: &Zonos2Config| {
        (
            c.text_vocab,
            c.speaker_background_token_enabled,
            c.accurate_mode_token_enabled,
            c.speaking_rate_num_buckets,
            c.speaking_rate_buckets.clone(),
            c.quality_features.clone(),
            c.balancing,
        )
    };
    if unsaid(config) != unsaid(&released) {
        let params = config.to_json().to_string();
        all.set(
            format!("{SIDECAR_PREFIX}{PARAMS_FILE}"),
            GgufValue::String(params),
        );
    }
    all
}
