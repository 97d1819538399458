//! Where the time of a decode step goes, from the spans of [`zonos2::profile`].

use std::cell::Cell;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use serde::Serialize;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Event, Metadata, Subscriber};
use zonos2::profile::{EXPERTS, TARGET};

/// Parts that are products with weights and nothing else worth naming.
const PRODUCTS: [&str; 8] = [
    "projections",
    "output",
    "router down",
    "experts up",
    "experts down",
    "dense up",
    "dense down",
    "head",
];

/// What was seen since the last [`begin`].
static SEEN: Mutex<Seen> = Mutex::new(Seen {
    on: false,
    parts: Vec::new(),
    experts: 0,
});

thread_local! {
    /// When the span that is open on this thread was entered: none lies within another.
    static ENTERED: Cell<Option<Instant>> = const { Cell::new(None) };
}

struct Seen {
    on: bool,
    parts: Vec<(&'static str, Duration)>,
    experts: u64,
}

fn seen() -> std::sync::MutexGuard<'static, Seen> {
    SEEN.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Times spans by name, and counts experts.
struct Collector;

impl Subscriber for Collector {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if metadata.target() == TARGET {
            Interest::always()
        } else {
            Interest::never()
        }
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == TARGET
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::TRACE)
    }

    /// The id is the part's place, from 1.
    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let name = span.metadata().name();
        let parts = &mut seen().parts;
        let place = parts.iter().position(|&(part, _)| part == name);
        let place = place.unwrap_or_else(|| {
            parts.push((name, Duration::ZERO));
            parts.len() - 1
        });
        Id::from_u64(place as u64 + 1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        struct Experts(u64);
        impl Visit for Experts {
            fn record_u64(&mut self, field: &Field, value: u64) {
                if field.name() == EXPERTS {
                    self.0 = value;
                }
            }
            fn record_debug(&mut self, _: &Field, _: &dyn std::fmt::Debug) {}
        }
        let mut experts = Experts(0);
        event.record(&mut experts);
        let mut seen = seen();
        if seen.on {
            seen.experts += experts.0;
        }
    }

    fn enter(&self, _: &Id) {
        ENTERED.set(Some(Instant::now()));
    }

    fn exit(&self, id: &Id) {
        let Some(entered) = ENTERED.take() else {
            return;
        };
        let took = entered.elapsed();
        let mut seen = seen();
        if seen.on
            && let Some((_, total)) = seen.parts.get_mut(id.into_u64() as usize - 1)
        {
            *total += took;
        }
    }
}

/// Has spans collected from now on, in all of this process. A second call changes nothing.
pub(super) fn install() {
    // The only other error is that somebody else's is there, which is nobody.
    let _ = tracing::subscriber::set_global_default(Collector);
}

/// Starts counting.
pub(super) fn begin() {
    let mut seen = seen();
    seen.on = true;
    seen.experts = 0;
    for (_, total) in &mut seen.parts {
        *total = Duration::ZERO;
    }
}

/// Stops counting: what `steps` steps in `took` seconds were made of.
pub(super) fn end(steps: usize, took: f64) -> Profile {
    let mut seen = seen();
    seen.on = false;
    let a_step = |seconds: f64| seconds / steps.max(1) as f64;
    let parts = seen.parts.iter().filter(|(_, time)| !time.is_zero());
    Profile {
        steps,
        step: a_step(took),
        experts: a_step(seen.experts as f64),
        parts: parts
            .map(|&(name, time)| Part {
                name,
                product: PRODUCTS.contains(&name),
                seconds: a_step(time.as_secs_f64()),
            })
            .collect(),
    }
}

/// One part of a step.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Part {
    name: &'static str,
    /// Whether it is a product with weights.
    product: bool,
    /// Mean seconds a step, over all layers.
    seconds: f64,
}

/// Means over some steps.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Profile {
    steps: usize,
    /// Seconds of a step.
    step: f64,
    /// Different experts read in a step, over all layers.
    pub(super) experts: f64,
    parts: Vec<Part>,
}

impl Profile {
    /// Several profiles of the same thing as one.
    pub(super) fn merged(profiles: Vec<Self>) -> Option<Self> {
        let n = profiles.len() as f64;
        let mut profiles = profiles.into_iter();
        let mut all = profiles.next()?;
        for other in profiles {
            all.steps += other.steps;
            all.step += other.step;
            all.experts += other.experts;
            for part in other.parts {
                match all.parts.iter_mut().find(|p| p.name == part.name) {
                    Some(same) => same.seconds += part.seconds,
                    None => all.parts.push(part),
                }
            }
        }
        all.step /= n;
        all.experts /= n;
        for part in &mut all.parts {
            part.seconds /= n;
        }
        Some(all)
    }

    /// Share of the step that is in a named part, 0 to 1.
    pub(super) fn named(&self) -> f64 {
        self.parts.iter().map(|p| p.seconds).sum::<f64>() / self.step
    }

    /// Share of the step that is products with weights, 0 to 1.
    pub(super) fn products(&self) -> f64 {
        let products = self.parts.iter().filter(|p| p.product);
        products.map(|p| p.seconds).sum::<f64>() / self.step
    }

    pub(super) fn print(&self, title: &str) {
        println!(
            "\n{title}: {} steps of {:.2} ms, {:.1} experts read in each",
            self.steps,
            self.step * 1e3,
            self.experts
        );
        println!("{:<16} {:>10} {:>7}", "part", "us a step", "share");
        let row = |name: &str, seconds: f64, product: bool| {
            println!(
                "{name:<16} {:>10.1} {:>5.1} % {}",
                seconds * 1e6,
                seconds / self.step * 100.0,
                if product { "product" } else { "" }
            );
        };
        for part in &self.parts {
            row(part.name, part.seconds, part.product);
        }
        let named = self.named();
        row("rest", self.step * (1.0 - named), false);
        println!(
            "named parts {:.1} %, products with weights {:.1} %",
            named * 100.0,
            self.products() * 100.0
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(step: f64, parts: &[(&'static str, f64)]) -> Profile {
        let parts = parts.iter().map(|&(name, seconds)| Part {
            name,
            product: PRODUCTS.contains(&name),
            seconds,
        });
        Profile {
            steps: 10,
            step,
            experts: 4.0,
            parts: parts.collect(),
        }
    }

    #[test]
    fn shares_are_of_the_step() {
        let one = profile(1.0, &[("head", 0.5), ("norms", 0.25)]);
        assert_eq!((one.named(), one.products()), (0.75, 0.5));
        let other = profile(3.0, &[("head", 0.5), ("sampling", 1.5)]);
        let both = Profile::merged(vec![one, other]).expect("two profiles");
        assert_eq!((both.steps, both.step, both.experts), (20, 2.0, 4.0));
        assert_eq!((both.named(), both.products()), (0.6875, 0.25));
        assert!(Profile::merged(Vec::new()).is_none());
    }
}
