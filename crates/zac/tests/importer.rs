//! Files that spell things otherwise load as the same model; files that say something else are refused
//! by name.

mod common;

use burn::tensor::Device;
use common::{Edited, Stored, bits, codes, decoder, fixture, worst};
use safetensors::tensor::Dtype;
use serde_json::{Value, json};
use zonos_checkpoint::{Checkpoint, LoadOptions};
use zonos_zac::{NameOverrides, ZacConfig, ZacDecoder, ZacError};

fn audio(decoder: &ZacDecoder) -> Vec<f32> {
    decoder.decode(&codes(4, 9, true)).unwrap().into_samples()
}

fn same(edited: &Edited, fixture: &str) {
    let (found, expected) = (audio(&edited.load().unwrap()), audio(&decoder(fixture)));
    assert_eq!(bits(&found), bits(&expected));
}

#[test]
fn other_spellings_of_names() {
    for name in ["mini-keep2", "mini-full"] {
        let mut edited = Edited::of(name);
        edited.rename(|name| {
            name.replace("self_attn.in_proj.weight", "self_attn.in_projs.0.weight")
                .replace("self_attn.out_proj.weight", "self_attn.out_projs.0.weight")
                .replace("ffn.0.", "linear1.")
                .replace("ffn.2.", "linear2.")
                .replace("dwconv.", "dwconv.conv.")
        });
        same(&edited, name);
        edited.rename(|name| {
            let name = name.replace("self_attn.in_projs.0.weight", "self_attn.in_proj_weight");
            format!("module.{name}")
        });
        same(&edited, name);
    }
}

#[test]
fn renumbered_layers() {
    let mut edited = Edited::of("mini-keep2");
    assert!(
        edited
            .tensors
            .keys()
            .any(|n| n.contains("decoder.0.transformer.layers.2."))
    );
    edited.rename(|name| name.replace(".transformer.layers.2.", ".transformer.layers.11."));
    same(&edited, "mini-keep2");
    edited.rename(|name| name.replace(".transformer.layers.11.", ".transformer.layers.1."));
    same(&edited, "mini-keep2");
    // The order is that of the numbers.
    edited.rename(|name| name.replace(".transformer.layers.0.", ".transformer.layers.5."));
    assert_ne!(
        audio(&edited.load().unwrap()),
        audio(&decoder("mini-keep2"))
    );
}

#[test]
fn weight_norm_in_three_forms() {
    for name in ["mini-keep2", "mini-full"] {
        let mut edited = Edited::of(name);
        let (g, v) = (
            "parametrizations.weight.original0",
            "parametrizations.weight.original1",
        );
        let (from, to) = if name == "mini-keep2" {
            ([g, v], ["weight_g", "weight_v"])
        } else {
            (["weight_g", "weight_v"], [g, v])
        };
        edited.rename(|name| name.replace(from[0], to[0]).replace(from[1], to[1]));
        same(&edited, name);
        // Folded by hand, and as a matrix where it was a convolution.
        let stems: Vec<String> = edited
            .tensors
            .keys()
            .filter_map(|n| n.strip_suffix(to[0]).map(str::to_owned))
            .collect();
        assert!(!stems.is_empty());
        for (i, stem) in stems.iter().enumerate() {
            let g = edited
                .tensors
                .remove(&format!("{stem}{}", to[0]))
                .unwrap()
                .values();
            let v = edited.tensors.remove(&format!("{stem}{}", to[1])).unwrap();
            let width = v.shape[1];
            let mut values = v.values();
            for (row, g) in values.chunks_mut(width).zip(&g) {
                let norm = row
                    .iter()
                    .map(|x| f64::from(*x).powi(2))
                    .sum::<f64>()
                    .sqrt();
                row.iter_mut()
                    .for_each(|x| *x = (f64::from(*x) * f64::from(*g) / norm) as f32);
            }
            let shape = if i % 2 == 0 {
                v.shape.clone()
            } else {
                vec![v.shape[0], width]
            };
            edited
                .tensors
                .insert(format!("{stem}weight"), Stored::f32(&shape, &values));
        }
        let (found, expected) = (audio(&edited.load().unwrap()), audio(&decoder(name)));
        let peak = expected.iter().fold(0.0f32, |m, x| m.max(x.abs()));
        assert!(worst(&found, &expected) <= 2e-5 * peak.max(0.5));
    }
}

#[test]
fn a_matrix_stored_as_a_convolution() {
    let mut edited = Edited::of("mini-full");
    for (name, tensor) in &mut edited.tensors {
        let matrix =
            name.ends_with(".weight") && tensor.shape.len() == 2 && !name.contains("codebook");
        if matrix {
            tensor.shape.push(1);
        }
    }
    edited
        .tensors
        .get_mut("codec.resampler.kernel")
        .unwrap()
        .shape
        .remove(1);
    same(&edited, "mini-full");
}

#[test]
fn folded_tables() {
    let mut edited = Edited::of("mini-full");
    let model = decoder("mini-full");
    let all = model
        .semantic_quantizer
        .quantizers
        .iter()
        .map(|q| ("semantic_quantizer", 0, q));
    let acoustic = model.quantizer.quantizers.iter().enumerate();
    let all = all.chain(acoustic.map(|(i, q)| ("quantizer", i, q)));
    for (part, i, quantizer) in all {
        let table = quantizer.table();
        let shape = table.dims();
        let values = table.into_data().try_to_vec::<f32>().unwrap();
        let prefix = format!("codec.{part}.quantizers.{i}.");
        edited.tensors.retain(|name, _| !name.starts_with(&prefix));
        // Either name does.
        let leaf = if i % 2 == 0 {
            "table"
        } else {
            "codebook.weight"
        };
        edited
            .tensors
            .insert(format!("{prefix}{leaf}"), Stored::f32(&shape, &values));
    }
    let (found, expected) = (audio(&edited.load().unwrap()), audio(&model));
    let peak = expected.iter().fold(0.0f32, |m, x| m.max(x.abs()));
    assert!(worst(&found, &expected) <= 2e-5 * peak);
}

#[test]
fn matrices_of_half_precision() {
    let mut edited = Edited::of("mini-keep2");
    for (name, tensor) in &mut edited.tensors {
        if name.ends_with(".weight") && tensor.shape.len() == 2 && !name.contains("quantizer") {
            let halves = tensor.values().into_iter().map(half);
            tensor.bytes = halves.flat_map(u16::to_le_bytes).collect();
            tensor.dtype = Dtype::F16;
        }
    }
    let (found, expected) = (
        audio(&edited.load().unwrap()),
        audio(&decoder("mini-keep2")),
    );
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(a * b)).sum::<f64>();
    let cosine = dot(&found, &expected) / (dot(&found, &found) * dot(&expected, &expected)).sqrt();
    assert!(cosine > 0.999 && cosine < 1.0 - 1e-12, "{cosine}");
}

/// To half precision, cutting off: exact enough for a cosine.
fn half(x: f32) -> u16 {
    let bits = x.to_bits();
    let sign = (bits >> 16) as u16 & 0x8000;
    let exponent = (bits >> 23 & 0xff) as i32 - 127 + 15;
    if exponent <= 0 {
        return sign;
    }
    sign | (exponent as u16) << 10 | (bits >> 13 & 0x3ff) as u16
}

#[test]
fn a_stray_tensor_is_reported_and_no_error() {
    let mut edited = Edited::of("mini-full");
    edited
        .tensors
        .insert("codec.extra.scale".to_owned(), Stored::f32(&[3], &[1.0; 3]));
    let checkpoint = Checkpoint::open(edited.write()).unwrap();
    let report = ZacDecoder::check(&checkpoint).unwrap();
    assert_eq!(report.unexpected.len(), 1, "{report}");
    let (model, report) =
        ZacDecoder::load_with(&checkpoint, &LoadOptions::default(), &Device::flex()).unwrap();
    assert_eq!(report.unexpected[0].name, "codec.extra.scale");
    assert!(!report.is_clean());
    assert_eq!(bits(&audio(&model)), bits(&audio(&decoder("mini-full"))));
    // What searching needs is no stray in a decoder: it is known and not needed.
    let checkpoint = Checkpoint::open(fixture("mini-keep2").join("model.safetensors")).unwrap();
    let report = ZacDecoder::check(&checkpoint).unwrap();
    assert!(report.is_clean(), "{report}");
    assert_eq!(report.ignored.len(), 30);
}

#[test]
fn missing_tensors_are_named_with_the_spellings_tried() {
    for (gone, others) in [
        (
            "codec.decoder.2.transformer.layers.1.ffn.0.weight",
            "linear1.weight",
        ),
        ("codec.head.norm.bias", "codec.head.norm.bias"),
        ("codec.head.trunk.blocks.0.dwconv.bias", "dwconv.conv.bias"),
        ("codec.quantizer.quantizers.3.codebook.weight", "weight_g"),
        ("codec.decoder.4.input_proj.weight", "original0"),
        ("codec.resampler.kernel", "codec.resampler.kernel"),
    ] {
        let mut edited = Edited::of("mini-full");
        assert!(edited.tensors.remove(gone).is_some(), "{gone}");
        let error = edited.refused();
        assert!(error.contains(gone) && error.contains(others), "{error}");
    }
    // A stray elsewhere does not hide it, and half a pair is none.
    let mut edited = Edited::of("mini-full");
    edited
        .tensors
        .remove("codec.semantic_head.proj_out.weight_g");
    edited
        .tensors
        .insert("stray".to_owned(), Stored::f32(&[1], &[0.0]));
    let error = edited.refused();
    assert!(error.contains("codec.semantic_head.proj_out"), "{error}");
}

#[test]
fn names_of_a_map_file() {
    let mut edited = Edited::of("mini-full");
    edited.rename(|name| match name {
        "codec.head.norm.weight" => "vocoder.final.gamma".to_owned(),
        "codec.decoder.0.transformer.layers.1.ffn.2.weight" => "codec.dec.mlp_out".to_owned(),
        _ => name.to_owned(),
    });
    let path = edited.write();
    let map = path.with_file_name("map.toml");
    let text = "\"codec.head.norm.weight\" = 'vocoder.final.gamma'\n\
                \"codec.decoder.0.transformer.layers.1.ffn.2.weight\" = 'codec.dec.mlp_out'\n";
    std::fs::write(&map, text).unwrap();
    let map = NameOverrides::from_file(&map).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    assert!(
        ZacDecoder::check_mapped(&checkpoint, &map)
            .unwrap()
            .is_clean()
    );
    let options = LoadOptions::default();
    let (model, _) = ZacDecoder::load_mapped(&checkpoint, &map, &options, &Device::flex()).unwrap();
    assert_eq!(bits(&audio(&model)), bits(&audio(&decoder("mini-full"))));
    let wrong = NameOverrides::from_json(r#"{"codec.head.norm.weight": "nothing.there"}"#).unwrap();
    let error = ZacDecoder::load_mapped(&checkpoint, &wrong, &options, &Device::flex());
    let error = error.err().unwrap().to_string();
    assert!(error.contains("nothing.there"), "{error}");
    // Without the map both are missing.
    let error = edited.refused();
    assert!(error.contains("2 tensors are missing"), "{error}");
}

#[test]
fn other_files_are_told_apart() {
    let mut edited = Edited::of("mini-full");
    edited
        .metadata
        .insert("format".to_owned(), "zac-2/1".to_owned());
    assert!(matches!(edited.load(), Err(ZacError::Format { .. })));
    assert!(edited.refused().contains("\"zac-2/1\""));
    edited.metadata.remove("format");
    assert!(edited.refused().contains("`format` is missing"));
    edited
        .metadata
        .insert("format".to_owned(), "zac-1/1".to_owned());
    edited
        .metadata
        .insert("kind".to_owned(), "vocoder".to_owned());
    assert!(edited.refused().contains("\"vocoder\""));
    edited.metadata.remove("kind");
    assert!(edited.refused().contains("`kind` is missing"));
    edited
        .metadata
        .insert("kind".to_owned(), "decoder".to_owned());
    edited.metadata.remove("model_config");
    let error = edited.refused();
    assert!(
        error.contains("`model_config`, the codec's configuration as JSON, is missing")
            && error.contains("num_heads is missing"),
        "{error}"
    );
    let encoder = fixture("mini-encoder").join("model.safetensors");
    let error = ZacDecoder::load(encoder, &Device::flex()).err().unwrap();
    assert!(matches!(error, ZacError::Kind { .. }), "{error}");
    let dac = fixture("../dac/tiny/folded.safetensors");
    if dac.exists() {
        let error = ZacDecoder::load(dac, &Device::flex())
            .err()
            .unwrap()
            .to_string();
        assert!(error.contains("not a ZAC-1 file"), "{error}");
    }
    let mut edited = Edited::of("mini-full");
    edited
        .metadata
        .insert("model_config".to_owned(), "{".to_owned());
    assert!(
        edited
            .refused()
            .contains("`model_config` is not valid JSON")
    );
}

#[test]
fn what_a_head_does_not_know_is_refused_and_other_keys_warned_of() {
    for (place, key) in [
        ("", "activation"),
        ("/trunk", "adanorm_num_embeddings"),
        ("/resolutions/1", "hop_length"),
    ] {
        let mut edited = Edited::of("mini-full");
        edited.edit("head_config", |json| {
            json.pointer_mut(place).unwrap()[key] = json!(1)
        });
        let error = edited.refused();
        assert!(error.contains(&format!(".{key}")), "{error}");
    }
    let mut edited = Edited::of("mini-full");
    edited.edit("model_config", |json| {
        json["note"] = json!("x");
        json["decoder_kwargs"][0]["rope_scaling"] = json!(2);
        json["quantizer_kwargs"]["dropout"] = json!(0.5);
    });
    let checkpoint = Checkpoint::open(edited.write()).unwrap();
    let warnings = ZacConfig::from_checkpoint(&checkpoint).unwrap().warnings;
    for key in [
        "model_config.note",
        "model_config.decoder_kwargs[0].rope_scaling",
        "model_config.quantizer_kwargs.dropout",
    ] {
        let sentence = format!("{key} is not known to this build, and not used");
        assert!(warnings.contains(&sentence), "{warnings:?}");
    }
    let mut scaled = Edited::of("mini-full");
    scaled.edit("model_config", |json| {
        json["decoder_kwargs"][2]["layer_scale"] = json!(0.01);
    });
    scaled
        .tensors
        .retain(|name, _| !name.contains("decoder.2.") || !name.contains("layer_scale"));
    let checkpoint = Checkpoint::open(scaled.write()).unwrap();
    let warnings = ZacConfig::from_checkpoint(&checkpoint).unwrap().warnings;
    assert_eq!(
        warnings,
        [
            "model_config.decoder_kwargs[2].layer_scale is given, but the file has no tensor \
             'codec.decoder.2.transformer.layers.0.layer_scale_1.scale': nothing is scaled there"
        ]
    );
    same(&edited, "mini-full");
    for (key, value) in [
        ("padding", json!("center")),
        ("combine", json!("product")),
        ("type", json!("hifigan")),
        ("mag_clip", json!(-1)),
        ("hop_length", json!(5)),
        ("resolutions", json!([])),
    ] {
        let mut edited = Edited::of("mini-full");
        edited.edit("head_config", |json| json[key] = value);
        let error = edited.refused();
        assert!(error.contains(key), "{key}: {error}");
    }
}

#[test]
fn json_may_leave_out_what_tensors_tell_and_may_not_contradict_them() {
    let mut edited = Edited::of("mini-keep2");
    edited.edit("model_config", |json| {
        for key in [
            "sample_rate",
            "codec_sample_rate",
            "hop_length",
            "codec_hop_length",
            "latent_dim",
        ] {
            json.as_object_mut().unwrap().remove(key);
        }
        for key in [
            "semantic_quantizer_kwargs",
            "quantizer_kwargs",
            "semantic_head_kwargs",
        ] {
            json[key] = json!({});
        }
        for stage in json["decoder_kwargs"].as_array_mut().unwrap() {
            let stage = stage.as_object_mut().unwrap();
            stage.retain(|key, _| ["num_heads", "context_duration"].contains(&key.as_str()));
        }
    });
    edited.edit("head_config", |json| *json = json!({}));
    same(&edited, "mini-keep2");
    // Modules of the right kind at the right places, when even the list is not there.
    let checkpoint = |edited: &Edited| Checkpoint::open(edited.write()).unwrap();
    let given = ZacConfig::from_checkpoint(&checkpoint(&edited)).unwrap();
    edited.edit("model_config", |json| {
        json.as_object_mut().unwrap().remove("decoder_kwargs");
    });
    let error = edited.refused();
    assert!(error.contains("num_heads"), "{error}"); // a width of 24 makes no heads of 64
    assert_eq!(given.stages.len(), 9);

    type Change = fn(&mut Value);
    let contradictions: [(&str, Change, [&str; 2]); 6] = [
        (
            "model_config",
            |j| j["decoder_kwargs"][2]["d_model"] = json!(64),
            ["d_model is 64", "norm1.weight' says 16"],
        ),
        (
            "model_config",
            |j| j["decoder_kwargs"][0]["num_layers"] = json!(3),
            ["num_layers is 3", "[0, 2]"],
        ),
        (
            "model_config",
            |j| j["quantizer_kwargs"]["codebook_size"] = json!(4096),
            ["codebook_size is 4096", "64"],
        ),
        (
            "model_config",
            |j| j["quantizer_kwargs"]["n_codebooks"] = json!(8),
            ["n_codebooks is 8", "8]"],
        ),
        (
            "model_config",
            |j| j["semantic_head_kwargs"]["proj_out"] = json!(false),
            ["proj_out is false", "proj_out.weight"],
        ),
        (
            "head_config",
            |j| j["resolutions"][0]["n_fft"] = json!(1024),
            ["n_fft is 1024", "2048"],
        ),
    ];
    for (section, change, says) in contradictions {
        let mut edited = Edited::of("mini-keep2");
        edited.edit(section, change);
        let error = edited.refused();
        assert!(
            says.iter().all(|says| error.contains(says)),
            "{says:?}: {error}"
        );
    }
    let nonsense: [(Change, &str); 8] = [
        (
            |j| j["decoder_kwargs"][0]["num_heads"] = json!(5),
            "num_heads",
        ),
        (
            |j| j["decoder_kwargs"][0]["causal"] = json!(false),
            "causal",
        ),
        (
            |j| j["decoder_kwargs"][0]["gating"] = json!("silu"),
            "gating",
        ),
        (
            |j| j["decoder_kwargs"][0]["context_duration"] = json!(0.01),
            "context_duration",
        ),
        (
            |j| j["decoder_kwargs"][0]["module_type"] = json!("Mamba"),
            "module_type",
        ),
        (
            |j| j["decoder_kwargs"][1]["patch_size"] = json!(3),
            "decoder_kwargs",
        ),
        (|j| j["hop_length"] = json!(2944), "hop_length"),
        (
            |j| j["semantic_head_kwargs"]["causal"] = json!(false),
            "semantic_head_kwargs.causal",
        ),
    ];
    for (change, says) in nonsense {
        let mut edited = Edited::of("mini-keep2");
        edited.edit("model_config", change);
        let error = edited.refused();
        assert!(error.contains(says), "{says}: {error}");
    }
}

#[test]
fn a_head_that_breaks_the_promised_delay_is_refused() {
    let mut edited = Edited::of("mini-full");
    edited.edit("head_config", |json| {
        json["resolutions"].as_array_mut().unwrap().truncate(1);
    });
    edited.tensors.retain(|name, _| {
        !["head.out.1", "head.out.2", "istft.1", "istft.2"]
            .iter()
            .any(|part| name.contains(part))
    });
    assert!(matches!(
        edited.load(),
        Err(ZacError::Lookahead { blocks: 1, .. })
    ));
    let error = edited.refused();
    for says in [
        "head_config.resolutions[0].n_fft is 8",
        "1 x 16 samples",
        "2 x 16 (16 < 2 + 7 <= 32)",
        "must be 24 to 54",
    ] {
        assert!(error.contains(says), "{error}");
    }
}

#[test]
fn windows_that_cannot_be_divided_out_are_refused() {
    let mut edited = Edited::of("mini-full");
    for r in 0..3 {
        let window = edited
            .tensors
            .get_mut(&format!("codec.head.istft.{r}.window"))
            .unwrap();
        window.bytes.fill(0);
    }
    let error = edited.load().err().unwrap().to_string();
    assert!(error.contains("add up to"), "{error}");
    // Without stored windows they are the ones that are stored.
    let mut edited = Edited::of("mini-full");
    edited.tensors.retain(|name, _| !name.contains("istft"));
    let (found, expected) = (audio(&edited.load().unwrap()), audio(&decoder("mini-full")));
    assert!(worst(&found, &expected) < 1e-4);
}

#[test]
fn weights_that_are_no_numbers_are_found_out() {
    let mut edited = Edited::of("mini-full");
    let bias = edited.tensors.get_mut("codec.head.norm.bias").unwrap();
    *bias = Stored::f32(&[16], &[f32::NAN; 16]);
    let model = edited.load().unwrap();
    let error = model.decode(&codes(3, 1, false)).unwrap_err();
    assert!(matches!(error, ZacError::NotFinite { .. }), "{error}");
    // A shape of the wrong length is no such tensor.
    edited.tensors.insert(
        "codec.head.norm.bias".to_owned(),
        Stored::f32(&[15], &[0.0; 15]),
    );
    let error = edited.refused();
    assert!(
        error.contains("codec.head.norm.bias") && error.contains("[15]"),
        "{error}"
    );
}
