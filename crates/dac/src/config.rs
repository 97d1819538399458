//! Sizes of a codec, from whatever a checkpoint says about them.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use zonos_checkpoint::{Checkpoint, NameMap};

use crate::DacError;

/// Sizes of a codec.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DacConfig {
    /// Sizes of the encoder, where the checkpoint holds one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encoder: Option<EncoderConfig>,
    /// Width of the latents.
    pub latent_dim: usize,
    /// Channels after the decoder's first convolution; each block halves them.
    pub decoder_dim: usize,
    /// How much each decoder block lengthens the signal.
    pub decoder_rates: Vec<usize>,
    /// Codebooks, that is codes a frame.
    pub n_codebooks: usize,
    /// Entries of a codebook.
    pub codebook_size: usize,
    /// Width of the entries, one number a codebook.
    pub codebook_dim: Vec<usize>,
    /// Samples a second.
    pub sample_rate: usize,
}

/// Sizes of an encoder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EncoderConfig {
    /// Channels after the first convolution; each block doubles them.
    pub dim: usize,
    /// How much each encoder block shortens the signal.
    pub rates: Vec<usize>,
}

impl EncoderConfig {
    /// Channels that encoder block `i` takes; it gives twice as many.
    pub fn block_channels(&self, i: usize) -> usize {
        self.dim << i
    }
}

/// Rate of the 44.1 kHz model, taken when a file tells the sizes but not the rate.
const DEFAULT_RATE: usize = 44_100;

impl DacConfig {
    /// Samples that a frame stands for: the product of the rates.
    pub fn hop(&self) -> usize {
        self.decoder_rates.iter().product()
    }

    /// Channels that decoder block `i` takes; it gives half of them.
    pub fn block_channels(&self, i: usize) -> usize {
        self.decoder_dim >> i
    }

    /// Reads the configuration of an opened checkpoint: the package's `metadata.kwargs`, or
    /// `config.json` of a Hugging Face folder, or the metadata of a GGUF file, or else the shapes of the
    /// tensors.
    ///
    /// # Errors
    ///
    /// [`DacError::Config`] names the field; also when the file holds no codec at all.
    pub fn from_checkpoint(checkpoint: &Checkpoint) -> Result<Self, DacError> {
        let kwargs = &checkpoint.metadata()["metadata"]["kwargs"];
        let shapes = Shapes::of(checkpoint);
        let found = if let Some(fields) = crate::gguf::fields(checkpoint) {
            crate::gguf::config(fields)
        } else if kwargs.is_object() {
            Self::from_kwargs(kwargs)
        } else {
            match checkpoint.sidecar("config.json")? {
                Some(json) if json.get("upsampling_ratios").is_some() => {
                    Self::from_hugging_face(&json)
                }
                _ => Self::from_shapes(&shapes),
            }
        };
        found
            .and_then(|config| config.with_encoder(&shapes))
            .and_then(Self::checked)
            .map_err(|problem| DacError::Config {
                file: checkpoint.path().display().to_string(),
                problem,
            })
    }

    /// From the arguments that the package stores with its weights.
    fn from_kwargs(kwargs: &Value) -> Result<Self, String> {
        let fields = Fields {
            json: kwargs,
            place: "metadata.kwargs",
        };
        let n_codebooks = fields.number("n_codebooks")?;
        let latent_dim = match fields.optional("latent_dim") {
            Some(_) => fields.number("latent_dim")?,
            None => {
                let doublings = fields.numbers("encoder_rates")?.len() as u32;
                let width = 1usize.checked_shl(doublings).unwrap_or(0);
                fields.number("encoder_dim")?.saturating_mul(width)
            }
        };
        Ok(Self {
            encoder: fields.encoder("encoder_dim", "encoder_rates")?,
            latent_dim,
            decoder_dim: fields.number("decoder_dim")?,
            decoder_rates: fields.numbers("decoder_rates")?,
            n_codebooks,
            codebook_size: fields.number("codebook_size")?,
            codebook_dim: fields.per_codebook("codebook_dim", n_codebooks)?,
            sample_rate: fields.number("sample_rate")?,
        })
    }

    /// From the `config.json` of a transformers `DacModel`.
    fn from_hugging_face(json: &Value) -> Result<Self, String> {
        let fields = Fields {
            json,
            place: "config.json",
        };
        let n_codebooks = fields.number("n_codebooks")?;
        Ok(Self {
            encoder: fields.encoder("encoder_hidden_size", "downsampling_ratios")?,
            latent_dim: fields.number("hidden_size")?,
            decoder_dim: fields.number("decoder_hidden_size")?,
            decoder_rates: fields.numbers("upsampling_ratios")?,
            n_codebooks,
            codebook_size: fields.number("codebook_size")?,
            codebook_dim: fields.per_codebook("codebook_dim", n_codebooks)?,
            sample_rate: fields.number("sampling_rate")?,
        })
    }

    /// From the shapes of the tensors; the sample rate is that of the 44.1 kHz model then.
    fn from_shapes(shapes: &Shapes<'_>) -> Result<Self, String> {
        let first = shapes.weight(&["decoder.model.0".into(), "decoder.conv1".into()]).ok_or(
            "no tensor decoder.model.0.weight (nor weight_v, nor decoder.conv1.weight): this is no DAC checkpoint",
        )?;
        let decoder_rates = shapes.rates(|i| {
            [
                format!("decoder.model.{}.block.1", i + 1),
                format!("decoder.block.{i}.conv_t1"),
            ]
        })?;
        let mut books = Vec::new();
        while let Some(book) = shapes.find(
            &[format!(
                "quantizer.quantizers.{}.codebook.weight",
                books.len()
            )],
            2,
        ) {
            books.push(book);
        }
        let codebook_size = books
            .first()
            .ok_or("no tensor quantizer.quantizers.0.codebook.weight")?[0];
        Ok(Self {
            encoder: None,
            latent_dim: first[1],
            decoder_dim: first[0],
            decoder_rates,
            n_codebooks: books.len(),
            codebook_size,
            codebook_dim: books.iter().map(|book| book[1]).collect(),
            sample_rate: DEFAULT_RATE,
        })
    }

    /// With the encoder that the tensors show, whatever the configuration says of one: files without
    /// an encoder keep the arguments of the codec they come from.
    fn with_encoder(mut self, shapes: &Shapes<'_>) -> Result<Self, String> {
        if !shapes.any("encoder.") {
            self.encoder = None;
        } else if self.encoder.is_none() {
            let first = shapes
                .weight(&["encoder.block.0".into(), "encoder.conv1".into()])
                .ok_or("no tensor encoder.block.0.weight (nor weight_v, nor encoder.conv1.weight), but others of an encoder")?;
            let rates = shapes.rates(|i| {
                [
                    format!("encoder.block.{}.block.4", i + 1),
                    format!("encoder.block.{i}.conv1"),
                ]
            })?;
            self.encoder = Some(EncoderConfig {
                dim: first[0],
                rates,
            });
        }
        Ok(self)
    }

    /// Refuses what no codec can be, before anything is allocated by it.
    fn checked(self) -> Result<Self, String> {
        let within = |field: &str, value: usize, most: usize| {
            if (1..=most).contains(&value) {
                Ok(())
            } else {
                Err(format!("{field}: expected 1 to {most}, found {value}"))
            }
        };
        within("latent_dim", self.latent_dim, 1 << 16)?;
        within("decoder_dim", self.decoder_dim, 1 << 16)?;
        within("the number of decoder_rates", self.decoder_rates.len(), 8)?;
        for &rate in &self.decoder_rates {
            within("decoder_rates", rate, 64)?;
        }
        within("the product of decoder_rates", self.hop(), 1 << 16)?;
        if self.block_channels(self.decoder_rates.len()) == 0 {
            return Err(format!(
                "decoder_dim: {} cannot be halved {} times",
                self.decoder_dim,
                self.decoder_rates.len()
            ));
        }
        within("n_codebooks", self.n_codebooks, 64)?;
        within("codebook_size", self.codebook_size, 1 << 20)?;
        for &dim in &self.codebook_dim {
            within("codebook_dim", dim, 1 << 12)?;
        }
        within("sample_rate", self.sample_rate, 1_000_000)?;
        if let Some(encoder) = &self.encoder {
            within("encoder_dim", encoder.dim, 1 << 16)?;
            within("the number of encoder_rates", encoder.rates.len(), 8)?;
            for &rate in &encoder.rates {
                within("encoder_rates", rate, 64)?;
            }
            let widest = encoder.block_channels(encoder.rates.len());
            within("encoder_dim, doubled by every block,", widest, 1 << 16)?;
            if encoder.hop() != self.hop() {
                return Err(format!(
                    "encoder_rates: expected a product of {}, that of decoder_rates, found {}",
                    self.hop(),
                    encoder.hop()
                ));
            }
        }
        Ok(self)
    }
}

/// Shapes of a checkpoint's tensors, by their names without those of training wrappers.
struct Shapes<'a>(HashMap<String, &'a [usize]>);

impl<'a> Shapes<'a> {
    fn of(checkpoint: &'a Checkpoint) -> Self {
        let wrappers = NameMap::new().strip_wrappers();
        let named = |name: &str| Some((wrappers.renamed(name), &*checkpoint.info(name)?.shape));
        Self(checkpoint.names().filter_map(named).collect())
    }

    fn any(&self, prefix: &str) -> bool {
        self.0.keys().any(|name| name.starts_with(prefix))
    }

    /// Of the first of these tensors that is there with so many axes.
    fn find(&self, names: &[String], axes: usize) -> Option<&'a [usize]> {
        let mut found = names.iter().filter_map(|name| self.0.get(name));
        found.find(|shape| shape.len() == axes).copied()
    }

    /// Of a convolution's weight: folded, or the direction of a weight-normed pair in either spelling.
    fn weight(&self, layers: &[String]) -> Option<&'a [usize]> {
        let spell = |layer: &String| {
            ["weight", "weight_v", "parametrizations.weight.original1"]
                .map(|leaf| format!("{layer}.{leaf}"))
        };
        self.find(&layers.iter().flat_map(spell).collect::<Vec<_>>(), 3)
    }

    /// Rates of consecutive blocks, each half of the taps of the layer that changes the rate.
    fn rates(&self, names: impl Fn(usize) -> [String; 2]) -> Result<Vec<usize>, String> {
        let mut rates = Vec::new();
        loop {
            let names = names(rates.len());
            let Some(shape) = self.weight(&names) else {
                return Ok(rates);
            };
            if shape[2] % 2 != 0 {
                return Err(format!(
                    "{}: expected an even number of taps, found {}",
                    names[0], shape[2]
                ));
            }
            rates.push(shape[2] / 2);
        }
    }
}

/// Typed access to JSON fields.
struct Fields<'a> {
    json: &'a Value,
    place: &'a str,
}

impl Fields<'_> {
    fn optional(&self, name: &str) -> Option<&Value> {
        self.json.get(name).filter(|value| !value.is_null())
    }

    fn wrong(&self, name: &str, expected: &str) -> String {
        let found = self
            .json
            .get(name)
            .map_or("nothing".to_owned(), Value::to_string);
        format!("{}.{name}: expected {expected}, found {found}", self.place)
    }

    fn number(&self, name: &str) -> Result<usize, String> {
        let value = self.optional(name).and_then(Value::as_u64);
        let value = value.and_then(|value| usize::try_from(value).ok());
        value.ok_or_else(|| self.wrong(name, "a whole number"))
    }

    fn numbers(&self, name: &str) -> Result<Vec<usize>, String> {
        let list = self.optional(name).and_then(Value::as_array);
        let list = list.and_then(|list| {
            list.iter()
                .map(|v| v.as_u64().map(|v| v as usize))
                .collect()
        });
        list.ok_or_else(|| self.wrong(name, "a list of whole numbers"))
    }

    /// The encoder's two fields, where they are given.
    fn encoder(&self, dim: &str, rates: &str) -> Result<Option<EncoderConfig>, String> {
        if self.optional(dim).is_none() && self.optional(rates).is_none() {
            return Ok(None);
        }
        Ok(Some(EncoderConfig {
            dim: self.number(dim)?,
            rates: self.numbers(rates)?,
        }))
    }

    /// One number for all codebooks, or a list of them.
    fn per_codebook(&self, name: &str, codebooks: usize) -> Result<Vec<usize>, String> {
        match self.optional(name) {
            Some(Value::Array(list)) if list.len() == codebooks => self.numbers(name),
            Some(Value::Number(_)) if codebooks <= 64 => Ok(vec![self.number(name)?; codebooks]),
            _ => Err(self.wrong(name, &format!("a number, or {codebooks} of them"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn kwargs() -> Value {
        json!({
            "encoder_dim": 64, "encoder_rates": [2, 4, 8, 8], "latent_dim": null,
            "decoder_dim": 1536, "decoder_rates": [8, 8, 4, 2], "n_codebooks": 9,
            "codebook_size": 1024, "codebook_dim": 8, "quantizer_dropout": false,
            "sample_rate": 44100
        })
    }

    #[test]
    fn the_released_arguments() {
        let config = DacConfig::from_kwargs(&kwargs())
            .and_then(DacConfig::checked)
            .unwrap();
        assert_eq!((config.latent_dim, config.hop()), (1024, 512));
        let encoder = config.encoder.as_ref().unwrap();
        assert_eq!((encoder.block_channels(4), encoder.hop()), (1024, 512));
        assert_eq!(config.codebook_dim, [8; 9]);
        let last = config.block_channels(4);
        assert_eq!(last, 96);
    }

    #[test]
    fn nonsense_is_refused_by_field() {
        for (field, value) in [
            ("decoder_rates", json!([])),
            ("decoder_rates", json!([8, 0])),
            ("decoder_rates", json!("8")),
            ("decoder_dim", json!(7)),
            ("n_codebooks", json!(-9)),
            ("codebook_dim", json!([8, 8])),
            ("codebook_size", json!(null)),
            ("sample_rate", json!(0)),
            ("encoder_dim", json!(u64::MAX)),
            ("encoder_rates", json!([2, 4, 8, 4])),
            ("encoder_rates", json!([2, 4, 8, 0])),
            ("encoder_rates", json!(512)),
        ] {
            let mut kwargs = kwargs();
            kwargs[field] = value;
            let error = DacConfig::from_kwargs(&kwargs)
                .and_then(DacConfig::checked)
                .unwrap_err();
            let named = if field == "encoder_dim" {
                "latent_dim"
            } else {
                field
            };
            assert!(error.contains(named), "{field}: {error}");
        }
    }
}
