//! The decoder's GGUF layout: names and metadata of Zyphra's C++ converter.
//!
//! Such a file holds no encoder. Weight normalisation is folded, and so are the codebooks' projections:
//! a table holds what each code adds to the latents, and one vector the sum of all biases. Source:
//! Zyphra/zonos2.cpp `models/convert-dac-to-gguf.py`.

use burn::tensor::Tensor;
use zonos_checkpoint::{Checkpoint, GgufFields, NameMap};
use zonos_gguf::{Metadata, ModelMetadata, NamedValues};
use zonos_nn::Snake;

use crate::{Dac, DacConfig};

/// `general.architecture` of such a file.
pub const ARCHITECTURE: &str = "dac";

/// The metadata of `checkpoint` if it is such a file.
pub(crate) fn fields(checkpoint: &Checkpoint) -> Option<GgufFields<'_>> {
    GgufFields::of(checkpoint, ARCHITECTURE)
}

/// The sizes in the metadata; the error is the reason.
pub(crate) fn config(fields: GgufFields<'_>) -> Result<DacConfig, String> {
    let count = |key: &str| fields.count(&format!("dac.{key}"));
    let n_codebooks = count("n_codebooks")?;
    Ok(DacConfig {
        encoder: None,
        latent_dim: count("latent_dim")?,
        decoder_dim: count("decoder_dim")?,
        decoder_rates: fields.counts("dac.decoder_rates")?,
        n_codebooks,
        codebook_size: count("codebook_size")?,
        codebook_dim: vec![count("codebook_dim")?; n_codebooks.min(1 << 10)],
        sample_rate: count("sample_rate")?,
    })
}

/// Rules to the original names, and to `quantizer.quantizers.{q}.table` and `quantizer.bias`.
pub(crate) fn names(map: NameMap, blocks: usize) -> NameMap {
    let last = |n: usize| format!("decoder.model.{}", blocks + n);
    let mut map = map
        .ignore("dec.*.inv_alpha") // computed from alpha
        .rename("quant.{q}.table", "quantizer.quantizers.{q}.table")
        .rename("quant.bias", "quantizer.bias")
        .rename("dec.conv_in.*", "decoder.model.0.*")
        .rename("dec.snake_out.*", &format!("{}.*", last(1)))
        .rename("dec.conv_out.*", &format!("{}.*", last(2)))
        .rename("dec.b{i}.snake.*", "decoder.model.{i+1}.block.0.*")
        .rename("dec.b{i}.convt.*", "decoder.model.{i+1}.block.1.*");
    for (layer, name) in ["snake1", "conv1", "snake2", "conv2"].iter().enumerate() {
        map = map.rename(
            &format!("dec.b{{i}}.res{{r}}.{name}.*"),
            &format!("decoder.model.{{i+1}}.block.{{r+2}}.block.{layer}.*"),
        );
    }
    map
}

impl Dac {
    /// The decoder as such a file holds it: metadata and tensors, in the file's order, all f32.
    pub fn to_gguf(&self) -> (Metadata, Vec<NamedValues>) {
        let config = self.config();
        let widest = config.codebook_dim.iter().max().copied().unwrap_or(0);
        let metadata = ModelMetadata::new(ARCHITECTURE, "DAC-44kHz-8kbps-decoder")
            .count("n_codebooks", config.n_codebooks)
            .count("codebook_size", config.codebook_size)
            .count("codebook_dim", widest)
            .count("latent_dim", config.latent_dim)
            .count("decoder_dim", config.decoder_dim)
            .counts("decoder_rates", &config.decoder_rates)
            .count("sample_rate", config.sample_rate)
            .count("hop_length", config.hop())
            .count("audio_pad_id", config.codebook_size + 1)
            .done();
        let mut out = Tensors(Vec::new());
        out.quantizer(self, config.latent_dim);
        let decoder = &self.decoder;
        out.conv(
            "dec.conv_in",
            decoder.conv_in.weight.value(),
            &decoder.conv_in.bias.val(),
        );
        for (i, block) in decoder.blocks.iter().enumerate() {
            let name = format!("dec.b{i}");
            out.snake(&format!("{name}.snake"), &block.snake);
            let up = &block.up;
            out.conv(&format!("{name}.convt"), up.weight.value(), &up.bias.val());
            for (r, unit) in block.units.iter().enumerate() {
                let name = format!("{name}.res{r}");
                for (n, snake, conv) in [
                    (1, &unit.snake1, &unit.conv1),
                    (2, &unit.snake2, &unit.conv2),
                ] {
                    out.snake(&format!("{name}.snake{n}"), snake);
                    let bias = conv.bias.val();
                    out.conv(&format!("{name}.conv{n}"), conv.weight.value(), &bias);
                }
            }
        }
        out.snake("dec.snake_out", &decoder.snake_out);
        let last = &decoder.conv_out;
        out.conv("dec.conv_out", last.weight.value(), &last.bias.val());
        (metadata, out.0)
    }
}

struct Tensors(Vec<NamedValues>);

impl Tensors {
    fn push(&mut self, name: impl Into<String>, shape: Vec<usize>, values: Vec<f32>) {
        self.0.push(NamedValues {
            name: name.into(),
            shape,
            values,
        });
    }

    fn conv(&mut self, name: &str, weight: Tensor<3>, bias: &Tensor<1>) {
        let shape = weight.dims().to_vec();
        self.push(format!("{name}.weight"), shape, host(weight));
        let shape = vec![bias.dims()[0], 1];
        self.push(format!("{name}.bias"), shape, host(bias.clone()));
    }

    fn snake(&mut self, name: &str, snake: &Snake) {
        let alpha = host(snake.alpha.val());
        let inverse = alpha.iter().map(|a| 1.0 / (a + 1e-9)).collect();
        let shape = vec![alpha.len(), 1];
        self.push(format!("{name}.alpha"), shape.clone(), alpha);
        self.push(format!("{name}.inv_alpha"), shape, inverse);
    }

    /// Tables of what each code adds, and the sum of the projections' biases, summed in f64.
    fn quantizer(&mut self, dac: &Dac, latent: usize) {
        let mut bias = vec![0.0f64; latent];
        if let Some(all) = &dac.quantizer.bias {
            add(&mut bias, &host(all.val()));
        }
        for (q, quantizer) in dac.quantizer.quantizers.iter().enumerate() {
            let codebook = quantizer.codebook.val();
            let [entries, width] = codebook.dims();
            let rows = host(codebook);
            let table = match &quantizer.out_proj {
                None => rows,
                Some(projection) => {
                    add(&mut bias, &host(projection.bias.val()));
                    let weight = host(projection.weight.value());
                    let product = |row: &[f32], out: &[f32]| {
                        let terms = row.iter().zip(out);
                        terms
                            .map(|(a, b)| f64::from(*a) * f64::from(*b))
                            .sum::<f64>() as f32
                    };
                    rows.chunks_exact(width)
                        .flat_map(|row| weight.chunks_exact(width).map(move |w| product(row, w)))
                        .collect()
                }
            };
            self.push(format!("quant.{q}.table"), vec![entries, latent], table);
        }
        let bias = bias.into_iter().map(|b| b as f32).collect();
        self.push("quant.bias", vec![latent], bias);
    }
}

fn add(sum: &mut [f64], values: &[f32]) {
    for (s, v) in sum.iter_mut().zip(values) {
        *s += f64::from(*v);
    }
}

fn host<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().iter::<f32>().collect()
}
