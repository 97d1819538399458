//! Wav2Vec2-BERT weights of random numbers, for the bench: each drawn from its tensor's name and a
//! seed, scaled so that the signal stays in range, and rounded to bf16, as ZAC-1's files store them.

use std::io::Write;
use std::path::Path;

use rayon::prelude::*;
use serde_json::{Map, Value, json};
use zonos_audio::AtomicFile;
use zonos_w2v_bert::{TeacherConfig, tensor_specs};

use crate::dac_recipe::{fnv1a64, philox};

const SEED: u64 = 16;

/// Writes `config.json` and `model.safetensors` (bf16) as the published folder has them.
pub(crate) fn write(config: &TeacherConfig, dir: &Path) -> anyhow::Result<()> {
    let specs = tensor_specs(config, config.num_hidden_layers);
    let mut header = Map::new();
    let mut offset = 0usize;
    for spec in &specs {
        let end = offset + 2 * spec.shape.iter().product::<usize>();
        let mut shape = spec.shape.clone();
        if spec.loose_ones {
            shape.push(1); // a convolution of one tap
        }
        let entry = json!({ "dtype": "BF16", "shape": shape, "data_offsets": [offset, end] });
        header.insert(spec.name.clone(), entry);
        offset = end;
    }
    let mut text = serde_json::to_vec(&Value::Object(header))?;
    text.resize(text.len().next_multiple_of(8), b' ');
    let mut weights = AtomicFile::create(dir.join("model.safetensors"))?;
    weights.write_all(&(text.len() as u64).to_le_bytes())?;
    weights.write_all(&text)?;
    for spec in &specs {
        weights.write_all(&values(&spec.name, &spec.shape))?;
    }
    weights.commit()?;
    let text = serde_json::to_string_pretty(config)?;
    crate::workspace::write(&dir.join("config.json"), &(text + "\n"))
}

/// One tensor in bf16: matrices keep the variance of what they read, norms are near the identity.
pub(crate) fn values(name: &str, shape: &[usize]) -> Vec<u8> {
    let inputs: usize = shape.iter().skip(1).product();
    let (middle, scale) = match shape {
        [_] if name.ends_with("norm.weight") => (1.0, 0.1),
        [_] => (0.0, 0.05),
        _ => (0.0, (3.0 / inputs as f64).sqrt() as f32),
    };
    let key = [SEED, fnv1a64(name)];
    let mut bytes = vec![0u8; 2 * shape.iter().product::<usize>()];
    bytes
        .par_chunks_mut(8)
        .enumerate()
        .for_each(|(block, out)| {
            let words = philox([block as u64 + 1, 0, 0, 0], key);
            for (slot, word) in out.chunks_mut(2).zip(words) {
                let u = (word >> 40) as f32 * (2.0f32).powi(-23) - 1.0;
                let bits = (middle + scale * u).to_bits();
                slot.copy_from_slice(&((bits >> 16) as u16).to_le_bytes());
            }
        });
    bytes
}
