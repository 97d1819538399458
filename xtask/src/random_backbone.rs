//! Backbones of random numbers, in files as users have them.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use rayon::prelude::*;
use zonos_gguf::{GgmlType, GgufWriter, NewTensor, Policy, convert_rows};
use zonos2::{Zonos2Config, tensor_specs};

/// Layers of [`wide`]: one dense, the others with experts. About 2.6 GB in bf16, of which a step reads a fifth,
/// other experts every time, so that nothing comes from cache.
pub(crate) const LAYERS: usize = 5;

/// The released widths, a few layers deep.
pub(crate) fn wide() -> Zonos2Config {
    Zonos2Config {
        n_layers: LAYERS,
        moe_start_from_layer: 1,
        moe_end_from_layer: 0,
        special_topk_layers: Default::default(),
        ..Zonos2Config::released()
    }
}

/// The weights in a folder.
const SAFETENSORS: &str = "model.safetensors";

/// A file, and what a step reads of it.
pub(crate) struct RandomBackbone {
    pub(crate) path: PathBuf,
    /// Bytes that every step reads once, whatever the batch: all but experts, embedding tables and the
    /// voice's projections.
    pub(crate) spine: f64,
    /// Bytes of one expert of one layer.
    pub(crate) expert: f64,
}

impl RandomBackbone {
    /// The file of the weights.
    #[cfg(target_os = "linux")]
    pub(crate) fn weights(&self) -> PathBuf {
        if self.path.is_dir() {
            self.path.join(SAFETENSORS)
        } else {
            self.path.clone()
        }
    }

    /// Sums up tensors `(name, experts' part, bytes)`.
    fn of(
        path: PathBuf,
        config: &Zonos2Config,
        tensors: impl Iterator<Item = (String, bool, f64)>,
    ) -> Self {
        let (mut spine, mut experts) = (0.0, 0.0);
        for (name, is_expert, bytes) in tensors {
            if is_expert {
                experts += bytes;
            } else if !["embed", "embd", "speaker", "spk_"]
                .iter()
                .any(|unread| name.contains(unread))
            {
                spine += bytes;
            }
        }
        let layers = (0..config.n_layers).filter(|&n| config.is_expert_layer(n));
        let stored = layers.count() * config.n_experts;
        Self {
            path,
            spine,
            expert: experts / stored as f64,
        }
    }
}

/// Writes numbers that keep activations in range: BF16 as safetensors, or a GGUF file whose experts are of
/// a quantised type and whose spine is F16, as `zonos quantize` makes them.
pub(crate) fn write(
    dir: &Path,
    config: &Zonos2Config,
    experts: GgmlType,
) -> anyhow::Result<RandomBackbone> {
    if experts == GgmlType::Bf16 {
        return safetensors(dir, config);
    }
    anyhow::ensure!(
        experts.is_quantized() && experts.is_readable(),
        "--type {experts}: expected bf16 or a quantised type that can be made here"
    );
    gguf(dir, config, experts)
}

fn safetensors(dir: &Path, config: &Zonos2Config) -> anyhow::Result<RandomBackbone> {
    let specs = tensor_specs(config);
    let bytes = |shape: &[usize]| 2 * shape.iter().product::<usize>();
    let mut header = serde_json::Map::new();
    let mut offset = 0;
    for spec in &specs {
        let end = offset + bytes(&spec.shape);
        let entry = serde_json::json!({"dtype": "BF16", "shape": spec.shape, "data_offsets": [offset, end]});
        header.insert(spec.name.clone(), entry);
        offset = end;
    }
    let mut header = serde_json::Value::Object(header).to_string();
    while !header.len().is_multiple_of(8) {
        header.push(' ');
    }
    let mut out = BufWriter::new(File::create(dir.join(SAFETENSORS))?);
    out.write_all(&(header.len() as u64).to_le_bytes())?;
    out.write_all(header.as_bytes())?;
    for (i, spec) in specs.iter().enumerate() {
        let elements: usize = spec.shape.iter().product();
        let value = Values::of(&spec.name, &spec.shape, i as u64);
        let bytes: Vec<u8> = (0..elements)
            .into_par_iter()
            .flat_map_iter(|e| ((value.at(e).to_bits() >> 16) as u16).to_le_bytes())
            .collect();
        out.write_all(&bytes)?;
    }
    out.flush()?;
    std::fs::write(dir.join("params.json"), config.to_json().to_string())?;
    let sizes = specs.iter().map(|spec| {
        let is_expert = spec.name.contains(".experts.");
        (spec.name.clone(), is_expert, bytes(&spec.shape) as f64)
    });
    Ok(RandomBackbone::of(dir.to_owned(), config, sizes))
}

fn gguf(dir: &Path, config: &Zonos2Config, experts: GgmlType) -> anyhow::Result<RandomBackbone> {
    let tensors = zonos2::gguf::tensors(config, true);
    let policy = Policy::recommended(experts);
    let entries: Vec<NewTensor> = tensors.iter().map(|t| t.entry(&policy)).collect();
    let path = dir.join("model.gguf");
    let out = BufWriter::new(File::create(&path)?);
    let metadata = zonos2::gguf::metadata(config, experts.file_type());
    let name = path.display().to_string();
    let mut out = GgufWriter::new(out, name, &metadata, &entries)?;
    let mut sizes = Vec::new();
    for (i, (t, entry)) in tensors.iter().zip(&entries).enumerate() {
        let value = Values::of(&t.name, &t.shape, i as u64);
        let row = t.shape.last().copied().unwrap_or(1);
        let elements: usize = t.shape.iter().product();
        // A stack of experts one by one.
        let parts = if t.shape.len() == 3 { t.shape[0] } else { 1 };
        let each = elements / parts;
        let mut total = 0;
        for part in 0..parts {
            let values: Vec<f32> = (part * each..(part + 1) * each)
                .into_par_iter()
                .map(|e| value.at(e))
                .collect();
            let bytes = entry.ggml_type.bytes_for(each as u64).unwrap_or(0) as usize;
            let mut to = vec![0; bytes];
            let from: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
            convert_rows(GgmlType::F32, &from, row, entry.ggml_type, None, &mut to)?;
            out.write(&t.name, &to)?;
            total += bytes;
        }
        sizes.push((t.name.clone(), t.name.contains("_exps"), total as f64));
    }
    out.finish()?.flush()?;
    Ok(RandomBackbone::of(path, config, sizes.into_iter()))
}

/// Numbers of a tensor: all the same, or noise.
struct Values {
    tensor: u64,
    same: Option<f32>,
    scale: f32,
}

impl Values {
    fn of(name: &str, shape: &[usize], tensor: u64) -> Self {
        let inner = *shape.last().unwrap_or(&1) as f32;
        let same = if name.ends_with("norm.weight") || name.ends_with("eda.weight") {
            Some(1.0)
        } else if name.ends_with("balancing_biases") || name.ends_with("router_bias") {
            // Noise here would outweigh probabilities, and choose the same experts for all rows.
            Some(0.0)
        } else {
            None
        };
        Self {
            tensor,
            same,
            scale: if shape.len() == 1 {
                1.0
            } else {
                1.7 / inner.sqrt()
            },
        }
    }

    fn at(&self, element: usize) -> f32 {
        self.same
            .unwrap_or_else(|| self.scale * noise(self.tensor, element as u64))
    }
}

/// A number in [-1, 1) from a tensor's and an element's index (SplitMix64's finaliser).
fn noise(tensor: u64, element: u64) -> f32 {
    let mut x = element
        .wrapping_add(tensor << 40)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((x ^ (x >> 31)) >> 40) as f32 / (1u64 << 23) as f32 - 1.0
}
