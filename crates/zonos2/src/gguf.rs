//! The backbone's GGUF layout: names, order and metadata of Zyphra's C++ converter.
//!
//! Keys, values and projections that the original stores joined stand apart here, the router has flat
//! names, and the attention temperature comes as its absolute value. Source: Zyphra/zonos2.cpp
//! `models/convert-zonos2-to-gguf.py`.

use serde_json::{Map, Value, json};
use zonos_checkpoint::{Checkpoint, GgufFields, NameMap};

use crate::config::{ConfigError, FIRST_CONDITIONING_ID, PARAMS_FILE};
use crate::{Zonos2Config, Zonos2Error};

/// `general.architecture` of such a file.
pub const ARCHITECTURE: &str = "zonos2";

/// Whether gate and up rows of the experts stand in stacks of their own, as GGUF files have them.
pub(crate) fn has_split_experts(checkpoint: &Checkpoint) -> bool {
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
        .rename("audio_embd.{c}.weight", "multi_embedder.embedders.{c}.weight")
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

fn read(checkpoint: &Checkpoint, fields: GgufFields<'_>) -> Result<Zonos2Config, Zonos2Error> {
    let wrong = |problem: String| {
        Zonos2Error::Config(ConfigError::Field {
            path: Some(checkpoint.path().to_owned()),
            field: "GGUF metadata".into(),
            problem,
        })
    };
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
    Zonos2Config::from_json(&params).map_err(|error| wrong(error.to_string()))
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
