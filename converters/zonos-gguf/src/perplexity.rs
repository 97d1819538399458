//! How surprised a model is by labels (`zonos2.md` 10.2).

use crate::kld::{Event, log_softmax};

/// Collects the log-probabilities of labels: `exp` of their negative mean, over all events and for
/// each codebook.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Perplexity {
    /// Events and the sum of negative log-probabilities, by codebook.
    codebooks: Vec<(usize, f64)>,
    scratch: Vec<f32>,
}

impl Perplexity {
    /// No event yet.
    pub fn new(codebooks: usize) -> Self {
        Self {
            codebooks: vec![(0, 0.0); codebooks],
            scratch: Vec::new(),
        }
    }

    /// Adds an event with the logits of its row and codebook, `[vocabulary]`. Returns the label's
    /// log-probability; an event of an unknown codebook or label does not count.
    pub fn push(&mut self, event: &Event, logits: &[f32]) -> Option<f64> {
        let codebook = self.codebooks.get_mut(event.codebook)?;
        self.scratch.resize(logits.len(), 0.0);
        log_softmax(logits, &mut self.scratch);
        let log = f64::from(*self.scratch.get(event.label)?);
        codebook.0 += 1;
        codebook.1 -= log;
        Some(log)
    }

    /// Number of events.
    pub fn events(&self) -> usize {
        self.codebooks.iter().map(|c| c.0).sum()
    }

    /// Over all events; none without one.
    pub fn all(&self) -> Option<f64> {
        let sum: f64 = self.codebooks.iter().map(|c| c.1).sum();
        mean_exp(self.events(), sum)
    }

    /// Events and perplexity of each codebook; no perplexity for one without an event.
    pub fn codebooks(&self) -> impl ExactSizeIterator<Item = (usize, Option<f64>)> + '_ {
        self.codebooks.iter().map(|&(n, sum)| (n, mean_exp(n, sum)))
    }
}

fn mean_exp(n: usize, sum: f64) -> Option<f64> {
    (n > 0).then(|| (sum / n as f64).exp())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_is_taken_before_the_exponential() {
        let mut p = Perplexity::new(2);
        assert_eq!((p.events(), p.all()), (0, None));
        let event = |codebook, label| Event {
            sequence: 0,
            row: 0,
            codebook,
            label,
        };
        // Probabilities 1/4, 3/4 and 1/2.
        let unequal = [0.25f32.ln(), 0.75f32.ln()];
        p.push(&event(0, 0), &unequal);
        p.push(&event(0, 1), &unequal);
        p.push(&event(1, 0), &[7.0, 7.0]);
        assert_eq!(p.push(&event(2, 0), &unequal), None);
        assert_eq!(p.push(&event(0, 2), &unequal), None);
        let near = |a: Option<f64>, b: f64| assert!((a.unwrap() - b).abs() < 1e-6, "{a:?} {b}");
        near(p.all(), (0.25f64 * 0.75 * 0.5).powf(-1.0 / 3.0));
        let each: Vec<_> = p.codebooks().collect();
        assert_eq!((each[0].0, each[1].0), (2, 1));
        near(each[0].1, (0.25f64 * 0.75).powf(-0.5));
        near(each[1].1, 2.0);
    }
}
