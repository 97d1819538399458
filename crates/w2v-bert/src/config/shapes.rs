//! What the shapes of tensors tell.

use std::collections::{BTreeSet, HashMap};

use zonos_checkpoint::{Checkpoint, NameMap};

use super::PROJECTION;

/// In front of the model's names in a ZAC-1 encoder file.
const TEACHER: &str = "teacher.";

/// Tensors that every model of this kind has; by any of them its place in a file is found.
const ANCHORS: [&str; 3] = [
    PROJECTION,
    "feature_projection.layer_norm.weight",
    "encoder.layers.0.conv_module.depthwise_conv.weight",
];

/// What stands in front of the model's own names, after the rules of `names`: `teacher.` in a ZAC-1
/// encoder file, `wav2vec2_bert.` below a head, nothing in the published folder. Several where a table of
/// names moved some of the tensors; none if it is another model.
pub(crate) fn prefixes(checkpoint: &Checkpoint, names: &NameMap) -> Vec<String> {
    let renamed: Vec<String> = checkpoint.names().map(|name| names.renamed(name)).collect();
    let front = |anchor: &&str| {
        let fronts = renamed.iter().filter_map(|name| name.strip_suffix(*anchor));
        // The shortest: a model may hold another one inside.
        fronts
            .filter(|front| front.is_empty() || front.ends_with('.'))
            .min_by_key(|front| front.len())
            .map(str::to_owned)
    };
    let mut found: Vec<String> = Vec::new();
    for front in ANCHORS.iter().filter_map(front) {
        if !found.contains(&front) {
            found.push(front);
        }
    }
    // A table of names calls tensors so, whatever is in front of the others.
    if !found.is_empty() && !found.iter().any(|front| front == TEACHER) {
        found.push(TEACHER.to_owned());
    }
    found
}

/// A tensor of the file.
struct Stored<'a> {
    /// Its name there.
    name: &'a str,
    shape: &'a [usize],
}

/// Shapes by the model's own names.
pub(super) struct Shapes<'a> {
    tensors: HashMap<String, Stored<'a>>,
    /// In front of names that the file lacks.
    front: String,
}

impl<'a> Shapes<'a> {
    pub(super) fn find(checkpoint: &'a Checkpoint, names: &NameMap) -> Result<Self, String> {
        let prefixes = prefixes(checkpoint, names);
        let Some(front) = prefixes.first().cloned() else {
            return Err(format!(
                "no tensor {PROJECTION}: this is no Wav2Vec2-BERT (it looks like: {})",
                checkpoint.model_kind()
            ));
        };
        let map = prefixes
            .iter()
            .fold(names.clone(), |map, prefix| map.strip_prefix(prefix));
        let stored = |name: &'a str| {
            let shape = &*checkpoint.info(name)?.shape;
            Some((map.renamed(name), Stored { name, shape }))
        };
        Ok(Self {
            tensors: checkpoint.names().filter_map(stored).collect(),
            front,
        })
    }

    /// What the file calls tensor `name`, or would.
    pub(super) fn shown(&self, name: &str) -> String {
        match self.tensors.get(name) {
            Some(stored) => stored.name.to_owned(),
            None => format!("{}{name}", self.front),
        }
    }

    /// The shape of tensor `name`, of `D` axes, none of them empty.
    pub(super) fn of<const D: usize>(&self, name: &str) -> Result<[usize; D], String> {
        let Some(stored) = self.tensors.get(name) else {
            return Err(format!("tensor {} is missing", self.shown(name)));
        };
        match <[usize; D]>::try_from(stored.shape) {
            Ok(shape) if !shape.contains(&0) => Ok(shape),
            _ => Err(format!(
                "tensor {}: expected {D} axes, none of them empty, found {:?}",
                stored.name, stored.shape
            )),
        }
    }

    /// The shape of a matrix.
    pub(super) fn matrix(&self, name: &str) -> Result<[usize; 2], String> {
        self.of(name)
    }

    /// How many layers there are: one more than the last number, whatever lacks before it.
    pub(super) fn layers(&self) -> Result<usize, String> {
        const LAYERS: &str = "encoder.layers.";
        let numbers: BTreeSet<usize> = self
            .tensors
            .keys()
            .filter_map(|name| {
                let (number, _) = name.strip_prefix(LAYERS)?.split_once('.')?;
                number.parse().ok()
            })
            .collect();
        let last = numbers.last();
        last.and_then(|last| last.checked_add(1))
            .ok_or_else(|| format!("no tensor begins with {}{LAYERS}0", self.front))
    }
}
