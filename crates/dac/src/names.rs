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
    /// encoder.blocks.0.down.bias                encoder.block.1.block.4.bias
    /// quantizer.quantizers.3.codebook           quantizer.quantizers.3.codebook.weight
    /// ```
    pub fn checkpoint_name(&self, path: &str) -> Option<String> {
        let parts = path
            .split('.')
            .filter(|part| !part.starts_with(char::is_uppercase));
        let parts: Vec<&str> = parts.collect();
        let blocks = self.config().decoder_rates.len();
        let shortenings = self.config().encoder.as_ref().map_or(0, |e| e.rates.len());
        let number = |text: &str| text.parse::<usize>().ok();
        let (layer, rest) = match parts.as_slice() {
            ["quantizer", "quantizers", q, "codebook"] => {
                return Some(format!("quantizer.quantizers.{q}.codebook.weight"));
            }
            [
                "quantizer",
                "quantizers",
                q,
                name @ ("in_proj" | "out_proj"),
                rest @ ..,
            ] => (format!("quantizer.quantizers.{q}.{name}"), rest),
            ["encoder", "conv_in", rest @ ..] => ("encoder.block.0".to_owned(), rest),
            ["encoder", "snake_out", rest @ ..] => {
                (format!("encoder.block.{}", shortenings + 1), rest)
            }
            ["encoder", "conv_out", rest @ ..] => {
                (format!("encoder.block.{}", shortenings + 2), rest)
            }
            ["encoder", "blocks", i, rest @ ..] => {
                let block = format!("encoder.block.{}.block", number(i)? + 1);
                match rest {
                    ["snake", rest @ ..] => (format!("{block}.3"), rest),
                    ["down", rest @ ..] => (format!("{block}.4"), rest),
                    ["units", r, layer, rest @ ..] => {
                        (format!("{block}.{r}.block.{}", unit_layer(layer)?), rest)
                    }
                    _ => return None,
                }
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
                        let layer = unit_layer(layer)?;
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

/// Place of a layer within a residual unit.
fn unit_layer(name: &str) -> Option<usize> {
    ["snake1", "conv1", "snake2", "conv2"]
        .iter()
        .position(|layer| *layer == name)
}
