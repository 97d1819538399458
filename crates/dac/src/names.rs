//! Names of the model's parameters in the original checkpoints.

use crate::Dac;

impl Dac {
    /// The original checkpoint's name of the parameter at `path`, the dotted field path that Burn's
    /// [`ModuleVisitor`](burn::module::ModuleVisitor) walks (names of enum variants may be in it or
    /// not); `None` if no parameter lies there.
    ///
    /// ```text
    /// decoder.blocks.0.units.2.conv1.weight     decoder.model.1.block.4.block.1.weight
    /// decoder.blocks.0.up.weight.Factored.g     decoder.model.1.block.1.weight_g
    /// quantizer.quantizers.3.codebook           quantizer.quantizers.3.codebook.weight
    /// ```
    pub fn checkpoint_name(&self, path: &str) -> Option<String> {
        let parts = path
            .split('.')
            .filter(|part| !part.starts_with(char::is_uppercase));
        let parts: Vec<&str> = parts.collect();
        let blocks = self.config().decoder_rates.len();
        let number = |text: &str| text.parse::<usize>().ok();
        let (layer, rest) = match parts.as_slice() {
            ["quantizer", "quantizers", q, "codebook"] => {
                return Some(format!("quantizer.quantizers.{q}.codebook.weight"));
            }
            ["quantizer", "quantizers", q, "out_proj", rest @ ..] => {
                (format!("quantizer.quantizers.{q}.out_proj"), rest)
            }
            ["decoder", "conv_in", rest @ ..] => ("decoder.model.0".to_owned(), rest),
            ["decoder", "snake_out", rest @ ..] => (format!("decoder.model.{}", blocks + 1), rest),
            ["decoder", "conv_out", rest @ ..] => (format!("decoder.model.{}", blocks + 2), rest),
            ["decoder", "blocks", i, rest @ ..] => {
                let block = format!("decoder.model.{}.block", number(i)? + 1);
                match rest {
                    ["snake", rest @ ..] => (format!("{block}.0"), rest),
                    ["up", rest @ ..] => (format!("{block}.1"), rest),
                    ["units", r, layer, rest @ ..] => {
                        let layers = ["snake1", "conv1", "snake2", "conv2"];
                        let layer = layers.iter().position(|name| name == layer)?;
                        (format!("{block}.{}.block.{layer}", number(r)? + 2), rest)
                    }
                    _ => return None,
                }
            }
            _ => return None,
        };
        let leaf = match rest {
            ["alpha"] => "alpha",
            ["bias"] => "bias",
            ["weight"] => "weight",
            ["weight", "g"] => "weight_g",
            ["weight", "v"] => "weight_v",
            _ => return None,
        };
        Some(format!("{layer}.{leaf}"))
    }
}
