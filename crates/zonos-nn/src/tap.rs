//! How a forward pass shows its intermediate tensors.

use std::fmt::Display;

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
pub struct Tap {
    records: Option<Vec<(String, TensorData)>>,
}

impl Tap {
    /// A tap that ignores everything.
    pub fn off() -> Self {
        Self { records: None }
    }

    /// A tap that copies every tensor it is shown to the host.
    pub fn on() -> Self {
        Self {
            records: Some(Vec::new()),
        }
    }

    /// Whether tensors are kept. Lets a model skip work that only a tap needs.
    pub fn is_on(&self) -> bool {
        self.records.is_some()
    }

    /// Shows `x` under `name`.
    pub fn record<const D: usize, K: Basic>(&mut self, name: impl Display, x: &Tensor<D, K>) {
        if let Some(records) = &mut self.records {
            let data = x.clone().into_data();
            // GPU backends copy to the host at first access; by then the model may have reused the buffer.
            let _ = data.as_bytes();
            records.push((name.to_string(), data));
        }
    }

    /// A tap for a part of the model that knows nothing of the whole's names: on when this one is.
    /// [`absorb`](Self::absorb) takes what it was shown.
    pub fn part(&self) -> Self {
        Self {
            records: self.records.as_ref().map(|_| Vec::new()),
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
}
