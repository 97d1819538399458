//! DAC weights from a recipe: every number is drawn from its tensor's name and a seed, so that
//! full-size checkpoints need not be stored. Philox4x64-10 (Salmon et al., 2011) with the key
//! `(seed, FNV-1a of the name)` and a counter that starts at 1.

use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::{Context, bail, ensure};
use rayon::prelude::*;
use serde_json::{Map, Value, json};

/// The file of a golden folder that holds the recipe: `facts.config`, `facts.seed`, `facts.init`.
pub(crate) const FACTS: &str = "facts.json";

/// Sizes of a DAC model, under the names of the original's constructor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sizes {
    pub(crate) encoder_dim: usize,
    pub(crate) encoder_rates: Vec<usize>,
    pub(crate) latent_dim: usize,
    pub(crate) decoder_dim: usize,
    pub(crate) decoder_rates: Vec<usize>,
    pub(crate) codebook_size: usize,
    pub(crate) codebook_dims: Vec<usize>,
    pub(crate) sample_rate: usize,
}

impl Sizes {
    /// The published 44.1 kHz model.
    pub(crate) fn full() -> Self {
        Self {
            encoder_dim: 64,
            encoder_rates: vec![2, 4, 8, 8],
            latent_dim: 1024,
            decoder_dim: 1536,
            decoder_rates: vec![8, 8, 4, 2],
            codebook_size: 1024,
            codebook_dims: vec![8; 9],
            sample_rate: 44_100,
        }
    }

    /// Samples a frame.
    pub(crate) fn hop(&self) -> usize {
        self.decoder_rates.iter().product()
    }

    /// Floating-point operations (two a multiply-add) that decoding `frames` frames takes,
    /// activations aside.
    pub(crate) fn decode_flops(&self, frames: usize) -> f64 {
        let out = self.codebook_dims.iter().sum::<usize>() * self.latent_dim;
        let mut macs = (out + self.decoder_dim * self.latent_dim * 7) as f64 * frames as f64;
        let (mut width, mut length) = (self.decoder_dim, frames as f64);
        for &rate in &self.decoder_rates {
            let half = width / 2;
            length *= rate as f64;
            // Two taps reach each output sample of the transposed convolution.
            macs += (width * half * 2) as f64 * length;
            macs += (3 * half * half * (7 + 1)) as f64 * length;
            width = half;
        }
        2.0 * (macs + (width * 7) as f64 * length)
    }

    /// The same for encoding `samples` samples, the search in the codebooks included.
    pub(crate) fn encode_flops(&self, samples: usize) -> f64 {
        let (mut width, mut length) = (self.encoder_dim, samples as f64);
        let mut macs = (7 * width) as f64 * length;
        for &rate in &self.encoder_rates {
            macs += (3 * width * width * (7 + 1)) as f64 * length;
            length /= rate as f64;
            macs += (width * 2 * width * 2 * rate) as f64 * length;
            width *= 2;
        }
        macs += (width * self.latent_dim * 3) as f64 * length;
        let dims: usize = self.codebook_dims.iter().sum();
        macs += (dims * (2 * self.latent_dim + self.codebook_size)) as f64 * length;
        2.0 * macs
    }
}

/// A layer with parameters: name, kind, dimensions.
enum Layer {
    Snake(String, usize),
    Conv(String, [usize; 3], f32),
    Transposed(String, [usize; 3], f32),
    Table(String, [usize; 2]),
}

/// Sizes, seed and gains.
pub(crate) struct Recipe {
    pub(crate) sizes: Sizes,
    seed: u64,
    /// Gain of the decoder's last convolution; sets the loudness.
    gain_out: f32,
    /// Gain of the encoder's first.
    gain_in: f32,
    /// Whether the first four slopes of wide enough snakes are 0, 1e-4, -0.7 and 6.
    special_alpha: bool,
}

impl Recipe {
    /// The full-size model with usual gains.
    pub(crate) fn full(seed: u64) -> Self {
        Self {
            sizes: Sizes::full(),
            seed,
            gain_out: 0.22,
            gain_in: 4.0,
            special_alpha: false,
        }
    }

    /// Reads `facts.json` of a golden folder.
    pub(crate) fn load(dir: &Path) -> anyhow::Result<Self> {
        let path = dir.join(FACTS);
        let parse = || -> anyhow::Result<Self> {
            let value: Value = serde_json::from_slice(&std::fs::read(&path)?)?;
            let facts = &value["facts"];
            let config = &facts["config"];
            let number = |v: &Value, name: &str| -> anyhow::Result<usize> {
                v[name]
                    .as_u64()
                    .map(|n| n as usize)
                    .with_context(|| format!("`{name}`: expected a number, found {}", v[name]))
            };
            let list = |name: &str| -> anyhow::Result<Vec<usize>> {
                config[name]
                    .as_array()
                    .with_context(|| format!("`{name}`: expected a list"))?
                    .iter()
                    .map(|v| v.as_u64().map(|n| n as usize).context("expected numbers"))
                    .collect()
            };
            let encoder_rates = list("encoder_rates")?;
            let encoder_dim = number(config, "encoder_dim")?;
            let books = number(config, "n_codebooks")?;
            let codebook_dims = match &config["codebook_dim"] {
                Value::Array(_) => list("codebook_dim")?,
                _ => vec![number(config, "codebook_dim")?; books],
            };
            ensure!(
                codebook_dims.len() == books,
                "`codebook_dim`: not {books} entries"
            );
            let gain =
                |name: &str, usual: f32| facts["init"][name].as_f64().map_or(usual, |x| x as f32);
            Ok(Self {
                sizes: Sizes {
                    latent_dim: match config["latent_dim"].as_u64() {
                        Some(n) if n > 0 => n as usize,
                        _ => encoder_dim << encoder_rates.len(),
                    },
                    encoder_dim,
                    encoder_rates,
                    decoder_dim: number(config, "decoder_dim")?,
                    decoder_rates: list("decoder_rates")?,
                    codebook_size: number(config, "codebook_size")?,
                    codebook_dims,
                    sample_rate: number(config, "sample_rate")?,
                },
                seed: number(facts, "seed")? as u64,
                gain_out: gain("out", 0.22),
                gain_in: gain("in", 4.0),
                special_alpha: facts["special_alpha"].as_bool().unwrap_or(false),
            })
        };
        parse().with_context(|| format!("{}: no recipe in it", path.display()))
    }

    /// Writes a safetensors file in the layout of the published checkpoint, weight norm factored.
    pub(crate) fn write(&self, path: &Path) -> anyhow::Result<()> {
        let tensors = self.tensors();
        let mut header = Map::new();
        let mut offset = 0usize;
        for (name, shape, _) in &tensors {
            let bytes = 4 * shape.iter().product::<usize>();
            header.insert(
                name.clone(),
                json!({ "dtype": "F32", "shape": shape, "data_offsets": [offset, offset + bytes] }),
            );
            offset += bytes;
        }
        let mut text = serde_json::to_vec(&Value::Object(header))?;
        text.resize(text.len().next_multiple_of(8), b' ');
        let mut file = BufWriter::new(std::fs::File::create(path)?);
        file.write_all(&(text.len() as u64).to_le_bytes())?;
        file.write_all(&text)?;
        for (name, shape, value) in &tensors {
            let values = self.values(name, shape, value);
            file.write_all(&values)?;
        }
        file.flush()?;
        Ok(())
    }

    fn values(&self, name: &str, shape: &[usize], rule: &Rule) -> Vec<u8> {
        let key = [self.seed, fnv1a64(name)];
        let count: usize = shape.iter().product();
        let mut bytes = vec![0u8; 4 * count];
        bytes
            .par_chunks_mut(16)
            .enumerate()
            .for_each(|(block, out)| {
                let words = philox([block as u64 + 1, 0, 0, 0], key);
                for (slot, word) in out.chunks_mut(4).zip(words) {
                    let u = (word >> 40) as f32 * (2.0f32).powi(-23) - 1.0;
                    slot.copy_from_slice(&rule.apply(u).to_le_bytes());
                }
            });
        if self.special_alpha && matches!(rule, Rule::Alpha) && count >= 4 {
            for (slot, x) in bytes.chunks_mut(4).zip([0.0f32, 1e-4, -0.7, 6.0]) {
                slot.copy_from_slice(&x.to_le_bytes());
            }
        }
        bytes
    }

    fn tensors(&self) -> Vec<(String, Vec<usize>, Rule)> {
        let mut out = Vec::new();
        for layer in self.layers() {
            match layer {
                Layer::Snake(p, c) => out.push((format!("{p}.alpha"), vec![1, c, 1], Rule::Alpha)),
                Layer::Table(p, [rows, columns]) => {
                    out.push((format!("{p}.weight"), vec![rows, columns], Rule::Plain));
                }
                Layer::Conv(p, dims, gain) => push_factors(&mut out, &p, dims, dims[0], gain),
                Layer::Transposed(p, dims, gain) => push_factors(&mut out, &p, dims, dims[1], gain),
            }
        }
        out
    }

    fn layers(&self) -> Vec<Layer> {
        let s = &self.sizes;
        let mut out = Vec::new();
        let unit = |out: &mut Vec<Layer>, p: String, d: usize| {
            out.push(Layer::Snake(format!("{p}.block.0"), d));
            out.push(Layer::Conv(format!("{p}.block.1"), [d, d, 7], 0.6));
            out.push(Layer::Snake(format!("{p}.block.2"), d));
            out.push(Layer::Conv(format!("{p}.block.3"), [d, d, 1], 0.3));
        };
        let mut width = s.encoder_dim;
        out.push(Layer::Conv(
            "encoder.block.0".into(),
            [width, 1, 7],
            self.gain_in,
        ));
        for (i, &rate) in s.encoder_rates.iter().enumerate() {
            let p = format!("encoder.block.{}.block", i + 1);
            for r in 0..3 {
                unit(&mut out, format!("{p}.{r}"), width);
            }
            out.push(Layer::Snake(format!("{p}.3"), width));
            out.push(Layer::Conv(
                format!("{p}.4"),
                [2 * width, width, 2 * rate],
                0.9,
            ));
            width *= 2;
        }
        let n = s.encoder_rates.len();
        out.push(Layer::Snake(format!("encoder.block.{}", n + 1), width));
        out.push(Layer::Conv(
            format!("encoder.block.{}", n + 2),
            [s.latent_dim, width, 3],
            0.9,
        ));
        for (q, &dim) in s.codebook_dims.iter().enumerate() {
            let p = format!("quantizer.quantizers.{q}");
            out.push(Layer::Conv(
                format!("{p}.in_proj"),
                [dim, s.latent_dim, 1],
                1.0,
            ));
            out.push(Layer::Conv(
                format!("{p}.out_proj"),
                [s.latent_dim, dim, 1],
                0.35,
            ));
            out.push(Layer::Table(
                format!("{p}.codebook"),
                [s.codebook_size, dim],
            ));
        }
        let mut width = s.decoder_dim;
        out.push(Layer::Conv(
            "decoder.model.0".into(),
            [width, s.latent_dim, 7],
            0.9,
        ));
        for (i, &rate) in s.decoder_rates.iter().enumerate() {
            let p = format!("decoder.model.{}.block", i + 1);
            out.push(Layer::Snake(format!("{p}.0"), width));
            let gain = (0.9 * (rate as f64 / 2.0).sqrt()) as f32;
            out.push(Layer::Transposed(
                format!("{p}.1"),
                [width, width / 2, 2 * rate],
                gain,
            ));
            width /= 2;
            for r in 2..5 {
                unit(&mut out, format!("{p}.{r}"), width);
            }
        }
        let n = s.decoder_rates.len();
        out.push(Layer::Snake(format!("decoder.model.{}", n + 1), width));
        out.push(Layer::Conv(
            format!("decoder.model.{}", n + 2),
            [1, width, 7],
            self.gain_out,
        ));
        out
    }
}

/// How a draw `u` in [-1, 1) becomes an entry.
enum Rule {
    Alpha,
    Bias,
    Gain(f32),
    Plain,
}

impl Rule {
    fn apply(&self, u: f32) -> f32 {
        match self {
            Self::Alpha => 1.0 + 0.5 * u,
            Self::Bias => 0.05 * u,
            Self::Gain(gain) => gain * (1.0 + 0.25 * u),
            Self::Plain => u,
        }
    }
}

fn push_factors(
    out: &mut Vec<(String, Vec<usize>, Rule)>,
    p: &str,
    dims: [usize; 3],
    biases: usize,
    gain: f32,
) {
    out.push((format!("{p}.bias"), vec![biases], Rule::Bias));
    out.push((
        format!("{p}.weight_g"),
        vec![dims[0], 1, 1],
        Rule::Gain(gain),
    ));
    out.push((format!("{p}.weight_v"), dims.to_vec(), Rule::Plain));
}

pub(crate) fn fnv1a64(text: &str) -> u64 {
    text.bytes().fold(0xCBF2_9CE4_8422_2325, |h, b| {
        (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01B3)
    })
}

pub(crate) fn philox(mut c: [u64; 4], mut k: [u64; 2]) -> [u64; 4] {
    let wide = |a: u64, b: u64| {
        let p = u128::from(a) * u128::from(b);
        ((p >> 64) as u64, p as u64)
    };
    for round in 0..10 {
        if round > 0 {
            k[0] = k[0].wrapping_add(0x9E37_79B9_7F4A_7C15);
            k[1] = k[1].wrapping_add(0xBB67_AE85_84CA_A73B);
        }
        let (h0, l0) = wide(0xD2E7_470E_E14C_6C93, c[0]);
        let (h1, l1) = wide(0xCA5A_8263_9512_1157, c[2]);
        c = [h1 ^ c[1] ^ k[0], l1, h0 ^ c[3] ^ k[1], l0];
    }
    c
}

/// Codes `[frames, codebooks]`, drawn from the seed.
pub(crate) fn draw_codes(sizes: &Sizes, frames: usize, seed: u64) -> anyhow::Result<Vec<i32>> {
    let Ok(size) = u64::try_from(sizes.codebook_size) else {
        bail!("codebook size {} is not usable", sizes.codebook_size)
    };
    let key = [seed, fnv1a64("bench.codes")];
    let count = frames * sizes.codebook_dims.len();
    Ok((0..count.div_ceil(4))
        .flat_map(|block| philox([block as u64 + 1, 0, 0, 0], key))
        .take(count)
        .map(|word| ((word >> 32) % size) as i32)
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_are_those_of_the_specification() {
        let name = "decoder.model.0.weight_v";
        assert_eq!(fnv1a64(name), 0x7fa5_33da_e1c5_e929);
        let words = philox([1, 0, 0, 0], [7, fnv1a64(name)]);
        assert_eq!(
            words,
            [
                0x1964_8199_ff84_9b2e,
                0x925e_417d_22ce_cb79,
                0x82a2_7c1e_5d0c_5f56,
                0xe62a_fb2f_156e_f68b
            ]
        );
    }

    #[test]
    fn the_full_model_has_the_published_size() {
        let recipe = Recipe::full(1);
        let tensors = recipe.tensors();
        let values: usize = tensors
            .iter()
            .map(|(_, shape, _)| shape.iter().product::<usize>())
            .sum();
        assert_eq!((tensors.len(), values), (301, 76_651_890));
        // 61.3 GFLOP a second of audio, and 0.04 for the codebooks.
        let second = recipe.sizes.encode_flops(44_100);
        assert!((second / 61.32e9 - 1.0).abs() < 2e-3, "{second:e}");
        // 138.5 GFLOP a second of audio.
        let second = recipe.sizes.decode_flops(861) / 861.0 * 44_100.0 / 512.0;
        assert!((second / 138.5e9 - 1.0).abs() < 2e-3, "{second:e}");
    }

    #[test]
    fn fixtures_are_remade_number_for_number() {
        let dir = crate::workspace::fixtures().join("dac/tiny");
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("made.safetensors");
        Recipe::load(&dir).unwrap().write(&file).unwrap();
        let made = zonos_checkpoint::Checkpoint::open(&file).unwrap();
        let stored = zonos_checkpoint::Checkpoint::open(dir.join("weights.pth")).unwrap();
        assert_eq!(made.names().count(), stored.names().count());
        for name in stored.names() {
            let (a, b) = (
                made.tensor_data(name).unwrap(),
                stored.tensor_data(name).unwrap(),
            );
            assert_eq!(a, b, "{name}");
        }
    }
}
