//! Speaker-encoder weights from a recipe: every number is drawn from its tensor's name and a seed, as
//! those of [`dac_recipe`](crate::dac_recipe) are, and rounded to bf16.

use std::io::Write;
use std::path::Path;

use anyhow::{Context, ensure};
use rayon::prelude::*;
use serde_json::{Map, Value, json};
use zonos_audio::AtomicFile;
use zonos_ecapa::{EcapaConfig, tensor_specs};

use crate::dac_recipe::{FACTS, fnv1a64, philox};

/// The seed of the full-size goldens.
pub(crate) const FULL_SEED: u64 = 31_337;

/// Sizes and seed.
pub(crate) struct Recipe {
    pub(crate) config: EcapaConfig,
    seed: u64,
}

impl Recipe {
    /// The released sizes.
    pub(crate) fn full(seed: u64) -> Self {
        Self {
            config: EcapaConfig::released(),
            seed,
        }
    }

    /// Reads `facts.json` of a golden folder; `None` if it describes another model.
    pub(crate) fn load(dir: &Path) -> anyhow::Result<Option<Self>> {
        let path = dir.join(FACTS);
        let parse = || -> anyhow::Result<Option<Self>> {
            let facts: Value = serde_json::from_slice(&std::fs::read(&path)?)?;
            if facts["config"].get("enc_channels").is_none() {
                return Ok(None);
            }
            let config = serde_json::from_value(facts["config"].clone())?;
            let seed = facts["seed"]
                .as_u64()
                .context("`seed`: expected a number")?;
            Ok(Some(Self { config, seed }))
        };
        parse().with_context(|| format!("{}: no recipe in it", path.display()))
    }

    /// Writes `config.json` and `model.safetensors` (bf16), as the published folder has them.
    pub(crate) fn write(&self, dir: &Path) -> anyhow::Result<()> {
        std::fs::create_dir_all(dir)
            .with_context(|| format!("{}: cannot create the folder", dir.display()))?;
        let mut config = json!({
            "architectures": ["EcapaTdnnSpeakerEncoder"],
            "model_type": "ecapa_tdnn_speaker_encoder",
            "torch_dtype": "bfloat16",
        });
        if let (Some(all), Value::Object(sizes)) =
            (config.as_object_mut(), serde_json::to_value(&self.config)?)
        {
            all.extend(sizes);
        }
        let mut specs = tensor_specs(&self.config);
        specs.sort_by(|a, b| a.name.cmp(&b.name));
        let mut header = Map::new();
        header.insert("__metadata__".to_owned(), json!({ "format": "pt" }));
        let mut offset = 0usize;
        for spec in &specs {
            let end = offset + 2 * spec.shape.iter().product::<usize>();
            let entry =
                json!({ "dtype": "BF16", "shape": spec.shape, "data_offsets": [offset, end] });
            header.insert(spec.name.clone(), entry);
            offset = end;
        }
        let mut text = serde_json::to_vec(&Value::Object(header))?;
        text.resize(text.len().next_multiple_of(8), b' ');
        let mut weights = AtomicFile::create(dir.join("model.safetensors"))?;
        weights.write_all(&(text.len() as u64).to_le_bytes())?;
        weights.write_all(&text)?;
        for spec in &specs {
            let values = self.values(&spec.name, &spec.shape)?;
            let bytes: Vec<u8> = values
                .iter()
                .flat_map(|x| ((x.to_bits() >> 16) as u16).to_le_bytes())
                .collect();
            weights.write_all(&bytes)?;
        }
        weights.commit()?;
        crate::workspace::write(
            &dir.join("config.json"),
            &(serde_json::to_string_pretty(&config)? + "\n"),
        )
    }

    /// One tensor, exact in bf16.
    fn values(&self, name: &str, shape: &[usize]) -> anyhow::Result<Vec<f32>> {
        let scale = match shape {
            [_, input, taps] => (gain(name) * (3.0 / (input * taps) as f64).sqrt()) as f32,
            _ => 0.05,
        };
        ensure!(
            !shape.contains(&0),
            "{name}: shape {shape:?} has no entries"
        );
        let key = [self.seed, fnv1a64(name)];
        let mut values = vec![0.0f32; shape.iter().product()];
        values
            .par_chunks_mut(4)
            .enumerate()
            .for_each(|(block, out)| {
                let words = philox([block as u64 + 1, 0, 0, 0], key);
                for (slot, word) in out.iter_mut().zip(words) {
                    let u = (word >> 40) as f32 * (2.0f32).powi(-23) - 1.0;
                    *slot = round_bf16(scale * u);
                }
            });
        Ok(values)
    }
}

/// Gains that keep the signal in range, and an attention that really chooses frames.
fn gain(name: &str) -> f64 {
    match name {
        // Log-mel values lie around -7.
        "blocks.0.conv.weight" => 0.25,
        "asp.conv.weight" => 6.0,
        "fc.weight" => 1.0,
        _ if name.ends_with("se_block.conv2.weight") => 4.0,
        _ => std::f64::consts::SQRT_2,
    }
}

/// The nearest number of eight significant bits, ties to even.
fn round_bf16(x: f32) -> f32 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7FFF + ((bits >> 16) & 1));
    f32::from_bits(rounded & 0xFFFF_0000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use zonos_checkpoint::Checkpoint;

    #[test]
    fn the_full_model_is_the_published_one() {
        let recipe = Recipe::full(FULL_SEED);
        let specs = tensor_specs(&recipe.config);
        let values: usize = specs
            .iter()
            .map(|s| s.shape.iter().product::<usize>())
            .sum();
        assert_eq!((specs.len(), values), (76, 12_001_088));
        let first = recipe
            .values("blocks.0.conv.weight", &[512, 128, 5])
            .unwrap();
        let start = [0.003_173_828_1, 0.007_019_043, -0.006_469_726_6];
        assert_eq!(first[..3], start);
        let last = recipe.values("fc.weight", &[2048, 3072, 1]).unwrap();
        let sum: f64 = last.iter().map(|x| f64::from(x.abs())).sum();
        assert!((sum - 98_315.476_2).abs() < 1e-3, "{sum}");
    }

    #[test]
    fn fixtures_are_remade_number_for_number() {
        for model in ["tiny", "alt"] {
            let dir = crate::workspace::fixtures().join("ecapa").join(model);
            let folder = tempfile::tempdir().unwrap();
            let recipe = Recipe::load(&dir).unwrap().expect("a speaker encoder");
            recipe.write(folder.path()).unwrap();
            let made = Checkpoint::open(folder.path()).unwrap();
            let stored = Checkpoint::open(dir.join("hf")).unwrap();
            assert_eq!(made.names().count(), stored.names().count());
            for name in stored.names() {
                let [a, b] = [&made, &stored].map(|c| c.tensor_data(name).unwrap());
                assert_eq!(a, b, "{model}: {name}");
            }
            let [a, b] = [&made, &stored].map(|c| c.sidecar("config.json").unwrap());
            assert_eq!(a, b, "{model}");
        }
        let codec = crate::workspace::fixtures().join("dac/tiny");
        assert!(Recipe::load(&codec).unwrap().is_none());
    }
}
