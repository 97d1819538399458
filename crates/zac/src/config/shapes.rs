//! What the tensors alone tell.

use std::collections::{BTreeSet, HashMap};

use zonos_checkpoint::{Checkpoint, NameMap};

/// Shapes of a checkpoint's tensors, by the model's own names.
pub(super) struct Shapes<'a>(HashMap<String, &'a [usize]>);

impl<'a> Shapes<'a> {
    pub(super) fn of(checkpoint: &'a Checkpoint, map: &NameMap) -> Self {
        let named = |name: &str| Some((map.renamed(name), &*checkpoint.info(name)?.shape));
        Self(checkpoint.names().filter_map(named).collect())
    }

    /// The shape of weight `layer.weight`, or of the direction it is factored into.
    pub(super) fn weight(&self, layer: &str) -> Option<&'a [usize]> {
        ["weight", "weight_v", "parametrizations.weight.original1"]
            .iter()
            .find_map(|leaf| self.0.get(&format!("{layer}.{leaf}")).copied())
    }

    /// `[out, in]` of a matrix or of a convolution with one tap.
    pub(super) fn matrix(&self, layer: &str) -> Option<[usize; 2]> {
        match *self.weight(layer)? {
            [out, input] | [out, input, 1] => Some([out, input]),
            _ => None,
        }
    }

    /// The length of a list.
    pub(super) fn list(&self, name: &str) -> Option<usize> {
        match **self.0.get(name)? {
            [length] => Some(length),
            _ => None,
        }
    }

    pub(super) fn shape(&self, name: &str) -> Option<&'a [usize]> {
        self.0.get(name).copied()
    }

    /// The numbers that stand behind `prefix` in names, ascending.
    pub(super) fn indices(&self, prefix: &str) -> Vec<usize> {
        let found: BTreeSet<usize> = self
            .0
            .keys()
            .filter_map(|name| name.strip_prefix(prefix)?.split('.').next()?.parse().ok())
            .collect();
        found.into_iter().collect()
    }
}
