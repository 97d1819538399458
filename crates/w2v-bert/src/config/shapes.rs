//! What the shapes of tensors tell.

use zonos_checkpoint::Checkpoint;

use super::PROJECTION;

/// Shapes by the model's own names.
pub(super) struct Shapes<'a> {
    checkpoint: &'a Checkpoint,
    prefix: &'a str,
}

/// What stands in front of the model's own names: `teacher.` in a ZAC-1 encoder file,
/// `wav2vec2_bert.` below a head, nothing in the published folder. `None` if it is another model.
pub(crate) fn prefix(checkpoint: &Checkpoint) -> Option<&str> {
    let fronts = checkpoint
        .names()
        .filter_map(|name| name.strip_suffix(PROJECTION));
    // The shortest: a model may hold another one inside.
    fronts
        .filter(|front| front.is_empty() || front.ends_with('.'))
        .min_by_key(|front| front.len())
}

impl<'a> Shapes<'a> {
    pub(super) fn find(checkpoint: &'a Checkpoint) -> Result<Self, String> {
        let prefix = prefix(checkpoint).ok_or_else(|| {
            format!(
                "no tensor {PROJECTION}: this is no Wav2Vec2-BERT (it looks like: {})",
                checkpoint.model_kind()
            )
        })?;
        Ok(Self { checkpoint, prefix })
    }

    /// The shape of tensor `name`, of `D` axes, none of them empty.
    pub(super) fn of<const D: usize>(&self, name: &str) -> Result<[usize; D], String> {
        let full = format!("{}{name}", self.prefix);
        let info = self
            .checkpoint
            .info(&full)
            .ok_or_else(|| format!("tensor {full} is missing"))?;
        match <[usize; D]>::try_from(info.shape.as_slice()) {
            Ok(shape) if !shape.contains(&0) => Ok(shape),
            _ => Err(format!(
                "tensor {full}: expected {D} axes, none of them empty, found {:?}",
                info.shape
            )),
        }
    }

    /// The shape of a matrix.
    pub(super) fn matrix(&self, name: &str) -> Result<[usize; 2], String> {
        self.of(name)
    }

    /// How many layers there are: one more than the last number, whatever lacks before it.
    pub(super) fn layers(&self) -> Result<usize, String> {
        let layers = format!("{}encoder.layers.", self.prefix);
        let numbers = self.checkpoint.names().filter_map(|name| {
            let (number, _) = name.strip_prefix(&layers)?.split_once('.')?;
            number.parse::<usize>().ok()
        });
        let last = numbers.max();
        last.and_then(|last| last.checked_add(1))
            .ok_or_else(|| format!("no tensor begins with {layers}0"))
    }
}
