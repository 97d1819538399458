//! How a forward pass shows its intermediate tensors.

use std::fmt::{self, Display};

use burn::tensor::kind::Basic;
use burn::tensor::{Tensor, TensorData};

/// Receives named intermediate tensors of a forward pass, under the names of the golden keys.
///
/// A tap that is off formats no name and reads no tensor, so models record without asking.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use zonos_nn::Tap;
///
/// let x = Tensor::<1>::from_data([1.0f32, 2.0], &Device::flex());
/// let mut tap = Tap::on();
/// tap.record(format_args!("layer.{}.out", 3), &x);
/// let records = tap.into_records();
/// assert_eq!(records[0].0, "layer.3.out");
/// ```
#[derive(Debug, Default)]
pub struct Tap<'a> {
    records: Option<Vec<(String, TensorData)>>,
    watcher: Option<Watcher<'a>>,
}

/// Takes tensors as they come, so that none is kept.
struct Watcher<'a>(&'a mut dyn FnMut(&str, TensorData));

impl fmt::Debug for Watcher<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watcher")
    }
}

impl<'a> Tap<'a> {
    /// A tap that ignores everything.
    pub fn off() -> Self {
        Self::default()
    }

    /// A tap that copies every tensor it is shown to the host.
    pub fn on() -> Self {
        Self {
            records: Some(Vec::new()),
            watcher: None,
        }
    }

    /// A tap that keeps nothing: what a model shows with [`watch`](Self::watch) is copied to the host
    /// and handed to `see`. For tensors that are too many to keep and are no golden keys.
    pub fn watching(see: &'a mut dyn FnMut(&str, TensorData)) -> Self {
        Self {
            records: None,
            watcher: Some(Watcher(see)),
        }
    }

    /// Whether tensors are kept. Lets a model skip work that only a tap needs.
    pub fn is_on(&self) -> bool {
        self.records.is_some()
    }

    /// Shows `x` under `name`.
    pub fn record<const D: usize, K: Basic>(&mut self, name: impl Display, x: &Tensor<D, K>) {
        if let Some(records) = &mut self.records {
            records.push((name.to_string(), on_host(x)));
        }
    }

    /// Shows `x` under `name` to a tap that is [`watching`](Self::watching); others do not keep it.
    pub fn watch<const D: usize, K: Basic>(&mut self, name: impl Display, x: &Tensor<D, K>) {
        if let Some(Watcher(see)) = &mut self.watcher {
            see(&name.to_string(), on_host(x));
        }
    }

    /// A tap for a part of the model that knows nothing of the whole's names: on when this one is.
    /// [`absorb`](Self::absorb) takes what it was shown.
    pub fn part(&self) -> Self {
        Self {
            records: self.records.as_ref().map(|_| Vec::new()),
            watcher: None,
        }
    }

    /// Takes what a [`part`](Self::part) was shown, with `prefix` before each name.
    pub fn absorb(&mut self, prefix: impl Display, part: Self) {
        if let (Some(records), Some(shown)) = (&mut self.records, part.records) {
            records.extend(
                shown
                    .into_iter()
                    .map(|(name, data)| (format!("{prefix}{name}"), data)),
            );
        }
    }

    /// Everything shown so far, in order.
    pub fn into_records(self) -> Vec<(String, TensorData)> {
        self.records.unwrap_or_default()
    }
}

/// A copy of `x` that no later operation changes.
fn on_host<const D: usize, K: Basic>(x: &Tensor<D, K>) -> TensorData {
    let data = x.clone().into_data();
    // GPU backends copy to the host at first access; by then the model may have reused the buffer.
    let _ = data.as_bytes();
    data
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;

    #[test]
    fn parts_are_named_by_the_whole() {
        let x = Tensor::<1>::zeros([2], &Device::flex());
        let mut tap = Tap::on();
        let mut part = tap.part();
        part.record("out", &x);
        tap.absorb(format_args!("layer{}.", 3), part);
        let names: Vec<_> = tap.into_records().into_iter().map(|(n, _)| n).collect();
        assert_eq!(names, ["layer3.out"]);

        let mut off = Tap::off();
        let mut part = off.part();
        part.record("out", &x);
        off.absorb("", part);
        assert!(off.into_records().is_empty());
    }

    #[test]
    fn what_is_watched_is_not_kept() {
        let x = Tensor::<1>::zeros([2], &Device::flex());
        let mut seen = Vec::new();
        let mut see =
            |name: &str, data: TensorData| seen.push((name.to_owned(), data.num_elements()));
        let mut tap = Tap::watching(&mut see);
        tap.record("kept", &x);
        tap.watch(format_args!("part.{}", 1), &x);
        assert!(!tap.is_on() && tap.into_records().is_empty());
        assert_eq!(seen, [("part.1".to_owned(), 2)]);

        let mut on = Tap::on();
        on.watch("part", &x);
        assert!(on.into_records().is_empty());
    }
}
