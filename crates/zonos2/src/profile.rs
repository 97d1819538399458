//! Parts of a decode step as `tracing` spans, for whoever wants to time them.
//!
//! Spans have the target [`TARGET`], the level `TRACE` and a part's name; none lies within another. Events of
//! the same target and level say with their field [`EXPERTS`] how many experts a layer reads. Without a
//! subscriber that asks for them both cost a comparison. On a CPU device a span's time is that of its
//! operations; elsewhere it is the time to queue them.

use burn::tensor::{Int, Tensor};

/// Target of spans and events.
pub const TARGET: &str = "zonos2::step";
/// Field of the events: the number of different experts that the rows of a step draw in one layer.
pub const EXPERTS: &str = "experts";

/// Evaluates an expression as a part of the step, named by a literal.
macro_rules! timed {
    ($part:literal, $body:expr) => {
        tracing::trace_span!(target: $crate::profile::TARGET, $part).in_scope(|| $body)
    };
}
pub(crate) use timed;

/// Says how many of the experts drawn differ: each is read once.
pub(crate) fn drawn(expert: &Tensor<1, Int>) {
    if tracing::enabled!(target: TARGET, tracing::Level::TRACE) {
        let mut ids: Vec<i64> = expert.clone().into_data().iter::<i64>().collect();
        ids.sort_unstable();
        ids.dedup();
        tracing::trace!(target: TARGET, experts = ids.len() as u64);
    }
}
