//! The sections of the configuration.

use serde_json::Value;

use super::fields::Fields;
use super::shapes::Shapes;
use super::{
    Combine, ConvNextConfig, HeadConfig, QuantizerConfig, StageConfig, TransformerConfig, within,
};
use crate::search::Search;

/// Widest layer of any kind.
const WIDEST: usize = 1 << 16;
/// Most layers, blocks or modules of one kind.
const MOST: usize = 1 << 10;

/// The modules under `prefix`. `channels` are those in front of the first (`None`: as many as the
/// first transformer takes), `rate` its steps a second, which patches multiply in a decoder and
/// divide in an encoder (the one that begins with known channels).
#[allow(clippy::too_many_arguments)] // everything that a module's meaning depends on
pub(super) fn stages(
    list: Option<&[Value]>,
    place: &str,
    shapes: &Shapes<'_>,
    prefix: &str,
    channels: Option<usize>,
    rate: f64,
    context: f64,
    warnings: &mut Vec<String>,
) -> Result<Vec<StageConfig>, String> {
    let present = shapes.indices(prefix);
    let count = match list {
        Some(list) => list.len(),
        None => present.last().map_or(0, |last| last + 1),
    };
    within(&format!("{place}: the number of modules"), count, MOST)?;
    let nothing = Value::Null;
    let modules: Vec<Fields<'_>> = (0..count)
        .map(|i| {
            Fields::new(
                Some(list.map_or(&nothing, |l| &l[i])),
                format!("{place}[{i}]"),
            )
        })
        .collect::<Result<_, _>>()?;
    let kinds: Vec<bool> = modules
        .iter()
        .enumerate()
        .map(|(i, fields)| match (fields.get("module_type"), list) {
            (None, _) => Ok(present.contains(&i)),
            (Some(_), _) => Ok(fields
                .one_of("module_type", &["Transformer", "PatchedPretransform"])?
                == "Transformer"),
        })
        .collect::<Result<_, String>>()?;
    let shortens = channels.is_some();
    let mut rate = rate;
    let mut width = channels;
    let mut stages = Vec::with_capacity(count);
    for (i, fields) in modules.iter().enumerate() {
        let stage = if kinds[i] {
            let stage = transformer(
                fields,
                shapes,
                &format!("{prefix}{i}."),
                rate,
                context,
                warnings,
            )?;
            width = Some(stage.output_dimension);
            StageConfig::Transformer(stage)
        } else {
            let next = shapes
                .matrix(&format!("{prefix}{}.input_proj", i + 1))
                .map(|[_, input]| input)
                .or_else(|| width_of(shapes, &format!("{prefix}{}.", i + 1)));
            // Without JSON the neighbours' widths tell the size.
            let guess = match (width, next) {
                (Some(here), Some(next)) if shortens => next / here.max(1),
                (Some(here), Some(next)) => here / next.max(1),
                _ => 0,
            };
            let size = fields.number("patch_size")?.unwrap_or(guess);
            within(&format!("{}.patch_size", fields.place()), size, 1 << 12)?;
            rate = if shortens {
                rate / size as f64
            } else {
                rate * size as f64
            };
            width = width.map(|w| {
                if shortens {
                    w.saturating_mul(size)
                } else {
                    w / size
                }
            });
            StageConfig::Patch(size)
        };
        warnings.extend(fields.not_used());
        stages.push(stage);
    }
    Ok(stages)
}

fn layers(shapes: &Shapes<'_>, prefix: &str) -> Vec<usize> {
    shapes.indices(&format!("{prefix}transformer.layers."))
}

/// Width of the layers under `prefix`.
fn width_of(shapes: &Shapes<'_>, prefix: &str) -> Option<usize> {
    let first = *layers(shapes, prefix).first()?;
    shapes.list(&format!("{prefix}transformer.layers.{first}.norm1.weight"))
}

fn transformer(
    fields: &Fields<'_>,
    shapes: &Shapes<'_>,
    prefix: &str,
    rate: f64,
    context: f64,
    warnings: &mut Vec<String>,
) -> Result<TransformerConfig, String> {
    for (key, only) in [
        ("norm", "layer_norm"),
        ("gating", "none"),
        ("positional_embedding", "rope"),
    ] {
        fields.one_of(key, &[only])?;
    }
    if fields.flag("causal")? == Some(false) {
        return Err(format!(
            "{}.causal: expected true, found false",
            fields.place()
        ));
    }
    fields.get("conv_layout");
    let layers = layers(shapes, prefix);
    let names = format!("{prefix}transformer.layers.*");
    match fields.number("num_layers")? {
        Some(count) if count != layers.len() => {
            return Err(format!(
                "{}.num_layers is {count}, but the file has {} layers under '{names}': {layers:?}",
                fields.place(),
                layers.len()
            ));
        }
        _ => {}
    }
    within(
        &format!("{}: layers under '{names}'", fields.place()),
        layers.len(),
        MOST,
    )?;
    let first = format!("{prefix}transformer.layers.{}", layers[0]);
    let tensor = format!("{first}.norm1.weight");
    let d_model = fields.needed(
        "d_model",
        shapes.list(&tensor).map(|d| (d, tensor.as_str())),
    )?;
    let tensor = format!("{first}.ffn.0.weight");
    let inner = shapes.matrix(&format!("{first}.ffn.0")).map(|[out, _]| out);
    let dim_feedforward = fields.needed("dim_feedforward", inner.map(|d| (d, tensor.as_str())))?;
    let tensor = format!("{prefix}input_proj.weight");
    let found = shapes.matrix(&format!("{prefix}input_proj"));
    let input_dimension = fields
        .agreed(
            "input_dimension",
            found.map(|[_, input]| (input, tensor.as_str())),
        )?
        .unwrap_or(d_model);
    let input_proj = found.is_some() || input_dimension != d_model;
    let tensor = format!("{prefix}output_proj.weight");
    let found = shapes.matrix(&format!("{prefix}output_proj"));
    let output_dimension = fields
        .agreed(
            "output_dimension",
            found.map(|[out, _]| (out, tensor.as_str())),
        )?
        .unwrap_or(d_model);
    let output_proj = found.is_some() || output_dimension != d_model;
    for (name, value) in [
        ("d_model", d_model),
        ("dim_feedforward", dim_feedforward),
        ("input_dimension", input_dimension),
        ("output_dimension", output_dimension),
    ] {
        within(&format!("{}.{name}", fields.place()), value, WIDEST)?;
    }
    let given = fields.number("num_heads")?;
    if given.is_none() && (d_model < 64 || !d_model.is_multiple_of(2 * (d_model / 64))) {
        return Err(format!(
            "{}.num_heads is missing, and the tensors do not tell it: {d_model} channels are not cut into heads of 64",
            fields.place()
        ));
    }
    let num_heads = given.unwrap_or(d_model / 64);
    if num_heads == 0 || !d_model.is_multiple_of(2 * num_heads) {
        return Err(format!(
            "{}.num_heads: {d_model} channels cannot be cut into {num_heads} heads of an even width",
            fields.place()
        ));
    }
    // The value is what scales begin with in training; the tensors are what counts.
    let scaled = shapes
        .list(&format!("{first}.layer_scale_1.scale"))
        .is_some();
    if fields.get("layer_scale").is_some() && !scaled {
        warnings.push(format!(
            "{}.layer_scale is given, but the file has no tensor '{first}.layer_scale_1.scale': nothing is scaled there",
            fields.place()
        ));
    }
    let seconds = fields.positive("context_duration")?.unwrap_or(context);
    let steps = (rate * seconds).floor();
    if !(1.0..=1e7).contains(&steps) {
        return Err(format!(
            "{}.context_duration: {seconds} s at {rate} steps a second are {steps} steps, expected 1 to 10 million",
            fields.place()
        ));
    }
    Ok(TransformerConfig {
        input_dimension,
        output_dimension,
        d_model,
        num_heads,
        dim_feedforward,
        layers,
        max_period: fields.positive("max_period")?.unwrap_or(10_000.0),
        context: steps as usize,
        input_proj,
        output_proj,
    })
}

/// The codebooks under `prefix`, as many as the file has; `usual` when it has none, so that they are
/// reported as missing.
pub(super) fn quantizer(
    fields: &Fields<'_>,
    shapes: &Shapes<'_>,
    prefix: &str,
    usual: usize,
) -> Result<QuantizerConfig, String> {
    let present = shapes.indices(&format!("{prefix}quantizers."));
    let count = match (fields.number("n_codebooks")?, present.last()) {
        (Some(written), Some(last)) if written != last + 1 => {
            return Err(format!(
                "{}.n_codebooks is {written}, but the file has codebooks {present:?} under '{prefix}quantizers.*'",
                fields.place()
            ));
        }
        (Some(written), _) => written,
        (None, Some(last)) => last + 1,
        (None, None) => usual,
    };
    within(&format!("{}.n_codebooks", fields.place()), count, 64)?;
    let name = |q: usize| format!("{prefix}quantizers.{q}");
    let book = |q: usize| shapes.matrix(&format!("{}.codebook", name(q)));
    let out = |q: usize| shapes.matrix(&format!("{}.out_proj", name(q)));
    let first = format!("'{}'", name(0));
    let size = book(0).map(|[size, _]| (size, first.as_str()));
    let codebook_size = fields.needed("codebook_size", size)?;
    // A codebook without a projection is one to which it has been applied.
    let width = out(0)
        .map(|[width, _]| width)
        .or(book(0).map(|[_, width]| width));
    let width = width.map(|width| (width, first.as_str()));
    let input_dim = fields.needed("input_dim", width)?;
    within(
        &format!("{}.codebook_size", fields.place()),
        codebook_size,
        1 << 20,
    )?;
    within(&format!("{}.input_dim", fields.place()), input_dim, WIDEST)?;
    let written = fields.number("codebook_dim")?;
    let dims = (0..count).map(|q| {
        if out(q).is_none() && book(q).is_some_and(|[_, width]| width == input_dim) {
            return Ok(None);
        }
        let tensor = format!("{}.codebook.weight", name(q));
        let found = book(q).map(|[_, width]| (width, tensor.as_str()));
        let dim = match (found, written) {
            (Some((found, tensor)), Some(written)) if found != written => {
                return Err(format!(
                    "{}.codebook_dim is {written}, but tensor '{tensor}' says {found}",
                    fields.place()
                ));
            }
            (Some((found, _)), _) => found,
            (None, written) => written.unwrap_or(8),
        };
        within(&format!("{}.codebook_dim", fields.place()), dim, WIDEST)?;
        Ok(Some(dim))
    });
    let codebook_dim = dims.collect::<Result<_, String>>()?;
    let search = match fields.one_of("search", &["cosine", "euclidean"])? {
        "euclidean" => Search::Euclidean,
        _ => Search::Cosine,
    };
    Ok(QuantizerConfig {
        codebook_size,
        input_dim,
        codebook_dim,
        search,
    })
}

/// The stack under `prefix`.
pub(super) fn convnext(
    fields: &Fields<'_>,
    shapes: &Shapes<'_>,
    prefix: &str,
) -> Result<ConvNextConfig, String> {
    let blocks = shapes.indices(&format!("{prefix}blocks."));
    match fields.number("num_layers")? {
        Some(count) if count != blocks.len() => {
            return Err(format!(
                "{}.num_layers is {count}, but the file has {} blocks under '{prefix}blocks.*': {blocks:?}",
                fields.place(),
                blocks.len()
            ));
        }
        _ => {}
    }
    if blocks.len() > MOST {
        return Err(format!(
            "{}: {} blocks, expected at most {MOST}",
            fields.place(),
            blocks.len()
        ));
    }
    let first = blocks.first().map(|i| format!("{prefix}blocks.{i}"));
    let of = |leaf: &str| first.as_ref().map(|first| format!("{first}.{leaf}"));
    let norm = of("norm.weight");
    let dim = norm
        .as_deref()
        .and_then(|name| Some((shapes.list(name)?, name)));
    let dim = fields.needed("dim", dim)?;
    let inner = of("pwconv1");
    let inner = inner
        .as_deref()
        .and_then(|name| Some((shapes.matrix(name)?[0], name)));
    let intermediate_dim = fields.agreed("intermediate_dim", inner)?.unwrap_or(dim);
    let taps = of("dwconv");
    let taps = taps
        .as_deref()
        .and_then(|name| Some((*shapes.weight(name)?.last()?, name)));
    let kernel_size = fields.agreed("kernel_size", taps)?.unwrap_or(7);
    let causal = fields.flag("causal")?.unwrap_or(true);
    let project = |name: &'static str| -> Result<Option<[usize; 2]>, String> {
        let written = fields.flag(name)?;
        let found = shapes.matrix(&format!("{prefix}{name}"));
        match (written, found) {
            (Some(false), Some(_)) => Err(format!(
                "{}.{name} is false, but the file has '{prefix}{name}.weight'",
                fields.place()
            )),
            // Not there: listed as missing when the file is loaded.
            (Some(true), None) => Ok(Some([dim, dim])),
            (_, found) => Ok(found),
        }
    };
    let proj_in = project("proj_in")?;
    let proj_out = project("proj_out")?;
    let tensor = format!("{prefix}proj_in.weight");
    let found = proj_in.filter(|_| shapes.weight(&format!("{prefix}proj_in")).is_some());
    let input_dim = fields
        .agreed(
            "input_dim",
            found.map(|[_, input]| (input, tensor.as_str())),
        )?
        .unwrap_or(dim);
    let tensor = format!("{prefix}proj_out.weight");
    let found = proj_out.filter(|_| shapes.weight(&format!("{prefix}proj_out")).is_some());
    let output_dim = fields
        .agreed("output_dim", found.map(|[out, _]| (out, tensor.as_str())))?
        .unwrap_or(dim);
    for (name, value) in [
        ("dim", dim),
        ("intermediate_dim", intermediate_dim),
        ("kernel_size", kernel_size),
        ("input_dim", input_dim),
        ("output_dim", output_dim),
    ] {
        within(&format!("{}.{name}", fields.place()), value, WIDEST)?;
    }
    for (name, there, width) in [
        ("proj_in", proj_in.is_some(), input_dim),
        ("proj_out", proj_out.is_some(), output_dim),
    ] {
        if !there && width != dim {
            return Err(format!(
                "{}: {width} channels outside and {dim} inside need a '{prefix}{name}.weight'",
                fields.place()
            ));
        }
    }
    if !causal && kernel_size.is_multiple_of(2) {
        return Err(format!(
            "{}.kernel_size: expected an odd number where causal is false, found {kernel_size}",
            fields.place()
        ));
    }
    Ok(ConvNextConfig {
        input_dim,
        output_dim,
        dim,
        intermediate_dim,
        blocks,
        kernel_size,
        causal,
        proj_in: proj_in.is_some(),
        proj_out: proj_out.is_some(),
    })
}

/// The waveform head; `hop` are the samples of a feature by the rest of the file.
pub(super) fn head(
    json: Option<&Value>,
    shapes: &Shapes<'_>,
    hop: usize,
) -> Result<HeadConfig, String> {
    const PREFIX: &str = "codec.head.";
    let fields = Fields::new(json, "head_config")?;
    if let Some(name) = fields.text("type")?
        && !name.to_ascii_lowercase().contains("istft")
    {
        return Err(format!(
            "head_config.type: expected an iSTFT head, found {name:?}"
        ));
    }
    fields.one_of("padding", &["same"])?;
    let combine = match fields.one_of("combine", &["sum", "mean"])? {
        "mean" => Combine::Mean,
        _ => Combine::Sum,
    };
    let hop_length = fields.number("hop_length")?.unwrap_or(hop);
    within("head_config.hop_length", hop_length, 1 << 16)?;
    let trunk_fields = Fields::new(fields.get("trunk"), "head_config.trunk")?;
    let trunk = convnext(&trunk_fields, shapes, &format!("{PREFIX}trunk."))?;
    let norm = format!("{PREFIX}norm.weight");
    let dim = fields
        .agreed("dim", shapes.list(&norm).map(|d| (d, norm.as_str())))?
        .unwrap_or(trunk.output_dim);
    if dim != trunk.output_dim {
        return Err(format!(
            "head_config.dim is {dim}, but the trunk gives {} channels",
            trunk.output_dim
        ));
    }
    let mut unknown = fields.unknown();
    unknown.extend(trunk_fields.unknown());

    let list = fields.list("resolutions")?;
    let present = shapes.indices(&format!("{PREFIX}out."));
    let count = match (list, present.last()) {
        (Some(list), Some(last)) if list.len() != last + 1 => {
            return Err(format!(
                "head_config.resolutions has {} entries, but the file has matrices {present:?} under '{PREFIX}out.*'",
                list.len()
            ));
        }
        (Some(list), _) => list.len(),
        (None, Some(last)) => last + 1,
        (None, None) => 0,
    };
    within("head_config.resolutions: the number of entries", count, 64)?;
    let mut n_fft = Vec::with_capacity(count);
    for r in 0..count {
        let entry = Fields::new(
            list.map(|list| &list[r]),
            format!("head_config.resolutions[{r}]"),
        )?;
        let tensor = format!("{PREFIX}out.{r}.weight");
        let rows = shapes
            .matrix(&format!("{PREFIX}out.{r}"))
            .map(|[rows, _]| rows);
        let found = rows.map(|rows| (rows.saturating_sub(2), tensor.as_str()));
        let points = entry.needed("n_fft", found)?;
        let window = entry.number("win_length")?.unwrap_or(points);
        unknown.extend(entry.unknown());
        within(&format!("{}.n_fft", entry.place()), points, 1 << 16)?;
        if window != points {
            return Err(format!(
                "{}.win_length is {window}, expected n_fft = {points}",
                entry.place()
            ));
        }
        if points < hop_length
            || !(points - hop_length).is_multiple_of(2)
            || !points.is_multiple_of(2)
        {
            return Err(format!(
                "{}.n_fft: expected hop_length = {hop_length} or more by an even number, and itself even, found \
                 {points}",
                entry.place()
            ));
        }
        n_fft.push(points);
    }
    let mag_clip = fields.positive("mag_clip")?.unwrap_or(1e2) as f32;
    let norm_eps = fields.positive("norm_eps")?.unwrap_or(1e-6) as f32;
    let known = ["resolutions", "mag_clip", "norm_eps"].map(|key| format!("head_config.{key}"));
    unknown.retain(|key| !known.contains(key));
    if !unknown.is_empty() {
        return Err(format!(
            "{}: not known to this build, and what a head does not understand would change the sound",
            unknown.join(", ")
        ));
    }
    Ok(HeadConfig {
        dim,
        hop_length,
        n_fft,
        combine,
        mag_clip,
        norm_eps,
        trunk,
    })
}

/// Taps a phase of the stored filter `[new, 1, 2 width + orig]`.
pub(super) fn resampler_taps(
    shapes: &Shapes<'_>,
    orig: usize,
    new: usize,
) -> Result<usize, String> {
    const NAME: &str = "codec.resampler.kernel";
    let Some(shape) = shapes.shape(NAME) else {
        // Listed as missing when the file is loaded; as long as such filters usually are.
        let width = (6.0 * orig as f64 / (0.99 * orig.min(new) as f64)).ceil() as usize;
        return Ok(orig + 2 * width);
    };
    match *shape {
        [rows, 1, taps] | [rows, taps]
            if rows == new
                && taps >= orig
                && (taps - orig).is_multiple_of(2)
                && taps <= 1 << 20 =>
        {
            Ok(taps)
        }
        _ => Err(format!(
            "tensor '{NAME}' has shape {shape:?}, expected [{new}, 1, {orig} + 2 width]"
        )),
    }
}
