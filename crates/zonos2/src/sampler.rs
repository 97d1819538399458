//! From logits to the nine codes of a frame.
//!
//! Each codebook is sampled on its own, in this order: repetition penalty, temperature, top-k,
//! softmax, top-p, min-p, and if nothing is left the largest logit. The end-of-audio and padding ids
//! are ordinary outcomes. The order and the handling of odd option values follow the original
//! server, see [`SamplerOptions`].

use std::collections::VecDeque;
use std::hash::{BuildHasher, Hasher, RandomState};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha12Rng;

use crate::config::Zonos2Config;

/// Temperatures below this are raised to it, which leaves practically only the largest logit.
const MIN_TEMPERATURE: f32 = 1e-6;

/// Keeps a division by an underflowed sum finite, as in the original.
const MIN_SUM: f32 = 1e-8;

/// Scaled logits are kept within this, far from where a difference of two overflows.
const SCALED_LIMIT: f32 = 1e38;

/// Frames of history that get room at the beginning; a longer window grows.
const RESERVED_FRAMES: usize = 1024;

/// Ids that top-p puts in order first; more only if their mass is not enough.
const SORTED: usize = 64;

/// Why a frame could not be sampled.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SamplerError {
    /// An option that is not a number.
    #[error("{name}: expected a finite number, found {value}")]
    Option {
        /// Name of the option.
        name: &'static str,
        /// Its value.
        value: f32,
    },
    /// The model has no codebook or no id.
    #[error("sampler: {codebooks} codebooks of {vocab} ids; expected at least one of each")]
    Empty {
        /// Codebooks.
        codebooks: usize,
        /// Ids of a codebook.
        vocab: usize,
    },
    /// Another number of logits than codebooks x ids.
    #[error("frame {frame}: expected {expected} logits, found {found}")]
    Length {
        /// Index of the frame, counted from the first generated one.
        frame: usize,
        /// Codebooks x ids.
        expected: usize,
        /// Logits given.
        found: usize,
    },
    /// NaN or plus infinity among the logits: the model's arithmetic has broken down.
    #[error(
        "frame {frame}, codebook {codebook}: the logit of id {id} is {value}; the weights or the device's arithmetic are broken"
    )]
    NotFinite {
        /// Index of the frame, counted from the first generated one.
        frame: usize,
        /// Codebook.
        codebook: usize,
        /// Id.
        id: usize,
        /// The logit.
        value: f32,
    },
    /// Every id of a codebook is forbidden (minus infinity).
    #[error(
        "frame {frame}, codebook {codebook}: every id is forbidden (all logits are minus infinity)"
    )]
    NothingLeft {
        /// Index of the frame, counted from the first generated one.
        frame: usize,
        /// Codebook.
        codebook: usize,
    },
}

/// How codes are drawn. The default is that of the original library and server.
///
/// Values outside their range mean the nearest sensible thing, as in the original, rather than an
/// error; only NaN and infinities are refused (by [`Sampler::new`]).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SamplerOptions {
    /// Divides the logits. Zero or less picks the largest logit, like [`greedy`](Self::greedy).
    pub temperature: f32,
    /// Ids kept, by logit; ids equal to the last kept one stay too. Below 1 means the codebook's
    /// entries.
    pub top_k: i64,
    /// Keeps the most probable ids until their mass exceeds this. Counts only between 0 and 1.
    pub top_p: f32,
    /// Drops ids less probable than this times the most probable one. Zero or less is off; above 1
    /// leaves nothing, so that the largest logit is taken.
    pub min_p: f32,
    /// Generated frames that count as repetition; zero or less is off.
    pub repetition_window: i64,
    /// Divides (or multiplies, below zero) the logits of repeated ids, once however often they were
    /// repeated. 1 or less is off.
    pub repetition_penalty: f32,
    /// Codebooks, from the first, that the penalty is for; below zero means all.
    pub repetition_codebooks: i64,
    /// Always take the largest logit after the penalty, the lowest id of equal ones.
    pub greedy: bool,
}

impl Default for SamplerOptions {
    fn default() -> Self {
        Self {
            temperature: 1.15,
            top_k: 106,
            top_p: 0.0,
            min_p: 0.18,
            repetition_window: 50,
            repetition_penalty: 1.2,
            repetition_codebooks: 8,
            greedy: false,
        }
    }
}

impl SamplerOptions {
    /// The defaults of the original's `/v1/audio/speech` route, which has no repetition penalty.
    pub fn speech_route() -> Self {
        Self {
            repetition_window: 0,
            repetition_penalty: 1.0,
            repetition_codebooks: -1,
            ..Self::default()
        }
    }

    /// The defaults, but always the largest logit.
    pub fn greedy() -> Self {
        Self {
            greedy: true,
            ..Self::default()
        }
    }
}

/// Options after cleaning, in the types the arithmetic uses.
#[derive(Debug, Clone, Copy)]
struct Cleaned {
    greedy: bool,
    temperature: f32,
    top_k: usize,
    top_p: f32,
    min_p: f32,
    window: usize,
    penalty: f32,
    penalised: usize,
}

impl Cleaned {
    fn new(
        o: &SamplerOptions,
        codebooks: usize,
        codebook_size: usize,
    ) -> Result<Self, SamplerError> {
        for (name, value) in [
            ("temperature", o.temperature),
            ("top-p", o.top_p),
            ("min-p", o.min_p),
            ("repetition penalty", o.repetition_penalty),
        ] {
            if !value.is_finite() {
                return Err(SamplerError::Option { name, value });
            }
        }
        let count = |n: i64| usize::try_from(n).unwrap_or(0);
        Ok(Self {
            greedy: o.greedy || o.temperature <= 0.0,
            temperature: o.temperature.max(MIN_TEMPERATURE),
            top_k: if o.top_k < 1 {
                codebook_size
            } else {
                count(o.top_k)
            },
            top_p: o.top_p.clamp(0.0, 1.0),
            min_p: o.min_p.max(0.0),
            window: if o.repetition_penalty <= 1.0 {
                0
            } else {
                count(o.repetition_window)
            },
            penalty: o.repetition_penalty.max(1.0),
            penalised: if o.repetition_codebooks < 0 {
                codebooks
            } else {
                count(o.repetition_codebooks).min(codebooks)
            },
        })
    }
}

/// Draws frames, one after the other, and remembers them for the repetition penalty.
///
/// One sampler belongs to one generation: its random numbers and its history are its own, so that
/// a sequence in a batch gets the same codes as alone. Equal seeds and logits give equal codes, bit
/// for bit on one build (the exponential function may differ in the last bit between platforms).
/// All buffers are made once.
///
/// ```
/// use zonos2::{Sampler, SamplerOptions};
/// let mut sampler = Sampler::new(SamplerOptions::default(), 2, 4, 4, 7)?;
/// let frame = sampler.sample(&[9.0, 0.0, 0.0, 0.0, /* codebook 1 */ 0.0, 0.0, 9.0, 0.0])?;
/// assert_eq!(frame, &[0, 2]);
/// # Ok::<(), zonos2::sampler::SamplerError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Sampler {
    options: Cleaned,
    codebooks: usize,
    vocab: usize,
    codebook_size: usize,
    seed: u64,
    rng: ChaCha12Rng,
    frames: usize,
    // The last `window` frames, oldest first.
    history: VecDeque<i32>,
    frame: Vec<i32>,
    work: Work,
}

/// Buffers of one codebook.
#[derive(Debug, Clone, Default)]
struct Work {
    /// Logits after penalty (and temperature).
    scaled: Vec<f32>,
    /// A copy for finding the k-th largest.
    order: Vec<f32>,
    /// Ids that are left, in ascending order but inside top-p.
    kept: Vec<(u32, f32)>,
    /// Per id, the step that last penalised it.
    stamp: Vec<u64>,
    step: u64,
}

impl Sampler {
    /// A sampler for `codebooks` codebooks of `vocab` ids each, of which the first `codebook_size`
    /// are codes (the others, end of audio and padding, are never penalised).
    ///
    /// # Errors
    /// An option that is NaN or infinite, or no codebook or id at all.
    pub fn new(
        options: SamplerOptions,
        codebooks: usize,
        vocab: usize,
        codebook_size: usize,
        seed: u64,
    ) -> Result<Self, SamplerError> {
        if codebooks == 0 || vocab == 0 {
            return Err(SamplerError::Empty { codebooks, vocab });
        }
        // Written out rather than left to the library's seed expansion, so that a seed keeps its
        // meaning when the library changes that.
        let mut key = [0_u8; 32];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        let options = Cleaned::new(&options, codebooks, codebook_size)?;
        let window = options.window.min(RESERVED_FRAMES);
        Ok(Self {
            options,
            codebooks,
            vocab,
            codebook_size,
            seed,
            rng: ChaCha12Rng::from_seed(key),
            frames: 0,
            history: VecDeque::with_capacity(codebooks * (window + 1)),
            frame: Vec::with_capacity(codebooks),
            work: Work {
                scaled: Vec::with_capacity(vocab),
                order: Vec::with_capacity(vocab),
                kept: Vec::with_capacity(vocab),
                stamp: vec![0; vocab],
                step: 0,
            },
        })
    }

    /// A sampler for a model.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn for_config(
        options: SamplerOptions,
        config: &Zonos2Config,
        seed: u64,
    ) -> Result<Self, SamplerError> {
        Self::new(
            options,
            config.n_codebooks,
            config.audio_vocab(),
            config.codebook_size,
            seed,
        )
    }

    /// The seed, to report it.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Frames drawn or observed so far.
    pub fn frames(&self) -> usize {
        self.frames
    }

    /// Draws a frame from `logits`, `[codebooks, vocab]` row-major and already soft-capped, and
    /// remembers it. Minus infinity forbids an id.
    ///
    /// # Errors
    /// Another number of logits, NaN or plus infinity, or a codebook without any possible id. The
    /// sampler is then unchanged but for the random numbers drawn for earlier codebooks.
    pub fn sample(&mut self, logits: &[f32]) -> Result<&[i32], SamplerError> {
        self.check_length(logits.len())?;
        self.frame.clear();
        for (codebook, row) in logits.chunks_exact(self.vocab).enumerate() {
            let id = if self.options.greedy {
                self.penalise(codebook, row)?;
                argmax(&self.work.scaled)
            } else {
                self.distribute(codebook, row)?;
                // One number a codebook, whatever the logits are.
                let u = uniform(&mut self.rng);
                pick(&self.work.kept, u)
            };
            self.frame.push(id as i32);
        }
        let frame = std::mem::take(&mut self.frame);
        self.observe(&frame);
        self.frame = frame;
        Ok(&self.frame)
    }

    /// Remembers a frame that was not drawn here, for example a forced one. Codebooks beyond the
    /// frame's length count as having no code.
    pub fn observe(&mut self, frame: &[i32]) {
        self.frames += 1;
        if self.options.window == 0 {
            return;
        }
        for c in 0..self.codebooks {
            self.history.push_back(frame.get(c).copied().unwrap_or(-1));
        }
        while self.history.len() > self.options.window.saturating_mul(self.codebooks) {
            self.history.drain(..self.codebooks);
        }
    }

    /// The ids of `codebook` that can be drawn from its `logits`, `[vocab]`, with their
    /// probabilities, in ascending order of ids. Draws nothing.
    ///
    /// # Errors
    /// As [`sample`](Self::sample), or no such codebook.
    pub fn distribution(
        &mut self,
        codebook: usize,
        logits: &[f32],
    ) -> Result<&[(u32, f32)], SamplerError> {
        self.check_row(codebook, logits)?;
        self.distribute(codebook, logits)?;
        Ok(&self.work.kept)
    }

    /// The largest of the `logits` of `codebook`, `[vocab]`, after the repetition penalty; of equal
    /// ones the lowest id. Draws nothing.
    ///
    /// # Errors
    /// As [`sample`](Self::sample), or no such codebook.
    pub fn argmax(&mut self, codebook: usize, logits: &[f32]) -> Result<usize, SamplerError> {
        self.check_row(codebook, logits)?;
        self.penalise(codebook, logits)?;
        Ok(argmax(&self.work.scaled))
    }

    fn check_length(&self, found: usize) -> Result<(), SamplerError> {
        let expected = self.codebooks.saturating_mul(self.vocab);
        if found == expected {
            return Ok(());
        }
        Err(SamplerError::Length {
            frame: self.frames,
            expected,
            found,
        })
    }

    fn check_row(&self, codebook: usize, logits: &[f32]) -> Result<(), SamplerError> {
        if codebook < self.codebooks && logits.len() == self.vocab {
            return Ok(());
        }
        Err(SamplerError::Length {
            frame: self.frames,
            expected: if codebook < self.codebooks {
                self.vocab
            } else {
                0
            },
            found: logits.len(),
        })
    }

    /// Fills `work.scaled` with the logits after the repetition penalty.
    fn penalise(&mut self, codebook: usize, logits: &[f32]) -> Result<(), SamplerError> {
        let frame = self.frames;
        // All are looked at, which goes by the vector; then, rarely, the first of them is searched.
        let possible = |x: &f32| *x < f32::INFINITY;
        if !logits.iter().fold(true, |all, x| all & possible(x))
            && let Some(id) = logits.iter().position(|x| !possible(x))
        {
            return Err(SamplerError::NotFinite {
                frame,
                codebook,
                id,
                value: logits[id],
            });
        }
        if logits.iter().all(|&x| x == f32::NEG_INFINITY) {
            return Err(SamplerError::NothingLeft { frame, codebook });
        }
        let work = &mut self.work;
        work.scaled.clear();
        work.scaled.extend_from_slice(logits);
        if codebook >= self.options.penalised {
            return Ok(());
        }
        work.step += 1;
        let codes = self.codebook_size.min(self.vocab);
        for &id in self.history.iter().skip(codebook).step_by(self.codebooks) {
            let Some(id) = usize::try_from(id).ok().filter(|&id| id < codes) else {
                continue;
            };
            if work.stamp[id] == work.step {
                continue;
            }
            work.stamp[id] = work.step;
            let x = &mut work.scaled[id];
            if *x > 0.0 {
                *x /= self.options.penalty;
            } else if *x > f32::NEG_INFINITY {
                // An overflow must not forbid the id.
                *x = (*x * self.options.penalty).max(f32::MIN);
            }
        }
        Ok(())
    }

    /// Fills `work.kept` with the ids that can be drawn and their probabilities.
    fn distribute(&mut self, codebook: usize, logits: &[f32]) -> Result<(), SamplerError> {
        self.penalise(codebook, logits)?;
        let Cleaned {
            temperature,
            top_k,
            top_p,
            min_p,
            ..
        } = self.options;
        let Work {
            scaled,
            order,
            kept,
            ..
        } = &mut self.work;
        for x in scaled.iter_mut() {
            // Both are computed, so that this goes by the vector.
            let tempered = (*x / temperature).clamp(-SCALED_LIMIT, SCALED_LIMIT);
            *x = if *x > f32::NEG_INFINITY { tempered } else { *x };
        }

        let mut threshold = f32::NEG_INFINITY;
        if top_k < scaled.len() {
            order.clear();
            order.extend_from_slice(scaled);
            let (_, kth, _) = order.select_nth_unstable_by(top_k - 1, |a, b| b.total_cmp(a));
            threshold = *kth;
        }
        // Every id is written and the next one over it unless it stays: which stay cannot be foreseen, so branches
        // would cost more.
        kept.resize(scaled.len(), (0, 0.0));
        let mut count = 0;
        for (id, &x) in (0_u32..).zip(scaled.iter()) {
            kept[count] = (id, x);
            // With fewer than k possible ids the threshold itself is minus infinity.
            count += usize::from((x >= threshold) & (x > f32::NEG_INFINITY));
        }
        kept.truncate(count);

        let largest = kept.iter().fold(f32::NEG_INFINITY, |m, &(_, x)| m.max(x));
        let mut sum = 0.0_f64;
        for (_, x) in kept.iter_mut() {
            *x = (*x - largest).exp();
            sum += f64::from(*x);
        }
        for (_, x) in kept.iter_mut() {
            *x = (f64::from(*x) / sum) as f32;
        }

        if 0.0 < top_p && top_p < 1.0 {
            most_probable(kept, top_p);
            kept.sort_unstable_by_key(|&(id, _)| id);
            normalise(kept);
        }
        if min_p > 0.0 {
            let most = kept.iter().fold(0.0_f32, |m, &(_, p)| m.max(p));
            kept.retain(|&(_, p)| p >= min_p * most);
            normalise(kept);
        }
        kept.retain(|&(_, p)| p > 0.0);
        if kept.is_empty() {
            kept.push((argmax(scaled) as u32, 1.0));
        }
        Ok(())
    }
}

/// Keeps the most probable ids, the lowest of equal ones first, until their mass exceeds `top_p`. Sorts no
/// more than twice as many as are kept.
fn most_probable(kept: &mut Vec<(u32, f32)>, top_p: f32) {
    let order = |a: &(u32, f32), b: &(u32, f32)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
    let (mut sorted, mut keep, mut before) = (0, 0, 0.0_f32);
    while keep < kept.len() && before <= top_p {
        if keep == sorted {
            let rest = &mut kept[sorted..];
            let next = rest.len().min(sorted.max(SORTED));
            if next < rest.len() {
                rest.select_nth_unstable_by(next - 1, order);
            }
            rest[..next].sort_unstable_by(order);
            sorted += next;
        }
        before += kept[keep].1;
        keep += 1;
    }
    kept.truncate(keep);
}

fn normalise(kept: &mut [(u32, f32)]) {
    let sum: f64 = kept.iter().map(|&(_, p)| f64::from(p)).sum();
    let sum = (sum as f32).max(MIN_SUM);
    for (_, p) in kept {
        *p /= sum;
    }
}

/// Index of the largest value, the first of equal ones; 0 for none.
fn argmax(values: &[f32]) -> usize {
    let mut best = 0;
    for (i, &x) in values.iter().enumerate() {
        if x > values[best] {
            best = i;
        }
    }
    best
}

/// A number in `[0, 1)` with 53 random bits.
fn uniform(rng: &mut ChaCha12Rng) -> f64 {
    (rng.next_u64() >> 11) as f64 * (1.0 / (1_u64 << 53) as f64)
}

/// The id at position `u` of the total mass, walking the ids in ascending order.
fn pick(kept: &[(u32, f32)], u: f64) -> usize {
    let total: f64 = kept.iter().map(|&(_, p)| f64::from(p)).sum();
    let target = u * total;
    let mut mass = 0.0;
    let mut last = 0;
    for &(id, p) in kept {
        mass += f64::from(p);
        last = id as usize;
        if mass > target {
            break;
        }
    }
    last
}

/// A seed for those who gave none; report it, so that the result can be had again. 32 bits, short
/// enough to type.
pub fn random_seed() -> u64 {
    // The standard library keys its hash maps from the system's random source.
    RandomState::new().build_hasher().finish() >> 32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn noise(seed: u32, n: usize) -> Vec<f32> {
        (0..n as u32)
            .map(|i| {
                let x = (i ^ seed).wrapping_mul(0x9E37_79B1);
                ((x ^ (x >> 15)).wrapping_mul(0x85EB_CA77) >> 8) as f32 / (1 << 24) as f32 * 24.0
                    - 12.0
            })
            .collect()
    }

    proptest! {
        #[test]
        fn top_p_keeps_what_sorting_everything_would(
            steps in prop::collection::vec(0u8..20, 1..400), top_p in 0.0f32..1.0,
        ) {
            // Few different probabilities, so that many are equal.
            let total: f32 = steps.iter().map(|&s| f32::from(s)).sum::<f32>().max(1.0);
            let mut kept: Vec<(u32, f32)> =
                (0..).zip(steps.iter().map(|&s| f32::from(s) / total)).collect();
            let mut sorted = kept.clone();
            sorted.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
            let mut before = 0.0;
            sorted.retain(|&(_, p)| {
                let keep = before <= top_p;
                before += p;
                keep
            });
            most_probable(&mut kept, top_p);
            prop_assert_eq!(kept, sorted);
        }
    }

    fn run(seed: u64, options: SamplerOptions) -> Vec<i32> {
        let mut s = Sampler::new(options, 9, 1026, 1024, seed).unwrap();
        (0..20_u32)
            .flat_map(|t| s.sample(&noise(t, 9 * 1026)).unwrap().to_vec())
            .collect()
    }

    #[test]
    fn seeds() {
        let o = SamplerOptions::default();
        assert_eq!(run(7, o), run(7, o));
        assert_ne!(run(7, o), run(8, o));
        assert_ne!(run(0, o), run(1 << 40, o));
        assert_ne!(random_seed(), random_seed());
        assert!(random_seed() <= u64::from(u32::MAX));
    }

    /// The codes of a seed are part of the product: a change here changes everybody's audio.
    #[test]
    fn seed_is_stable() {
        let mut key = [0_u8; 32];
        key[0] = 7;
        let mut rng = ChaCha12Rng::from_seed(key);
        let first: Vec<u64> = (0..3).map(|_| rng.next_u64()).collect();
        let mut again = Sampler::new(SamplerOptions::default(), 1, 2, 2, 7)
            .unwrap()
            .rng;
        assert_eq!(first, (0..3).map(|_| again.next_u64()).collect::<Vec<_>>());
        let ids = &run(7, SamplerOptions::default())[..9];
        assert_eq!(ids, STABLE_FRAME);
    }

    const STABLE_FRAME: &[i32] = &[867, 876, 66, 572, 711, 719, 539, 761, 555];

    #[test]
    fn draws_follow_the_distribution() {
        let options = SamplerOptions {
            temperature: 1.0,
            min_p: 0.0,
            repetition_window: 0,
            ..SamplerOptions::default()
        };
        let logits = [0.0, 1.0, 2.0, f32::NEG_INFINITY];
        let mut s = Sampler::new(options, 1, 4, 4, 1).unwrap();
        let want: Vec<(u32, f32)> = s.distribution(0, &logits).unwrap().to_vec();
        let mut counts = [0_u32; 4];
        let n = 40_000;
        for _ in 0..n {
            counts[s.sample(&logits).unwrap()[0] as usize] += 1;
        }
        assert_eq!(counts[3], 0);
        for (id, p) in want {
            let got = counts[id as usize] as f32 / n as f32;
            // Four standard deviations of a share near one half.
            assert!((got - p).abs() < 0.01, "{id}: {got} against {p}");
        }
    }

    #[test]
    fn broken_logits_name_frame_and_codebook() {
        let mut s = Sampler::new(SamplerOptions::default(), 2, 3, 3, 0).unwrap();
        s.sample(&[0.0; 6]).unwrap();
        let e = s
            .sample(&[0.0, 0.0, 0.0, 0.0, f32::NAN, 0.0])
            .unwrap_err()
            .to_string();
        assert!(
            e.contains("frame 1, codebook 1") && e.contains("id 1"),
            "{e}"
        );
        assert!(s.sample(&[0.0, 0.0, f32::INFINITY, 0.0, 0.0, 0.0]).is_err());
        let none = [
            0.0,
            0.0,
            0.0,
            f32::NEG_INFINITY,
            f32::NEG_INFINITY,
            f32::NEG_INFINITY,
        ];
        assert_eq!(
            s.sample(&none),
            Err(SamplerError::NothingLeft {
                frame: 1,
                codebook: 1
            })
        );
        assert!(matches!(
            s.sample(&[0.0; 5]),
            Err(SamplerError::Length { expected: 6, .. })
        ));
        assert!(s.distribution(2, &[0.0; 3]).is_err());
        assert!(s.argmax(0, &[0.0; 2]).is_err());
        assert_eq!(s.frames(), 1);
    }

    #[test]
    fn options() {
        for options in [
            SamplerOptions {
                temperature: f32::NAN,
                ..Default::default()
            },
            SamplerOptions {
                top_p: f32::NAN,
                ..Default::default()
            },
            SamplerOptions {
                min_p: f32::INFINITY,
                ..Default::default()
            },
            SamplerOptions {
                repetition_penalty: f32::NEG_INFINITY,
                ..Default::default()
            },
        ] {
            assert!(matches!(
                Sampler::new(options, 1, 1, 1, 0),
                Err(SamplerError::Option { .. })
            ));
        }
        assert!(Sampler::new(SamplerOptions::default(), 0, 1, 1, 0).is_err());
        let speech = SamplerOptions::speech_route();
        assert_eq!((speech.repetition_window, speech.temperature), (0, 1.15));
    }

    #[test]
    fn greedy_is_the_lowest_of_equal_ones_after_the_penalty() {
        let options = SamplerOptions {
            repetition_penalty: 2.0,
            ..SamplerOptions::greedy()
        };
        let mut s = Sampler::new(options, 1, 4, 4, 0).unwrap();
        let logits = [1.0, 4.0, 4.0, 3.0];
        let drawn: Vec<i32> = (0..4).map(|_| s.sample(&logits).unwrap()[0]).collect();
        assert_eq!(drawn, [1, 2, 3, 1]);
        let cold = SamplerOptions {
            temperature: 0.0,
            ..options
        };
        let mut s = Sampler::new(cold, 1, 4, 4, 0).unwrap();
        assert_eq!(s.sample(&logits).unwrap(), &[1]);
    }

    #[test]
    fn window_forgets() {
        let options = SamplerOptions {
            repetition_penalty: 2.0,
            repetition_window: 2,
            ..SamplerOptions::greedy()
        };
        let mut s = Sampler::new(options, 1, 4, 4, 0).unwrap();
        let logits = [4.0, 3.0, 2.5, 0.0];
        let drawn: Vec<i32> = (0..5).map(|_| s.sample(&logits).unwrap()[0]).collect();
        assert_eq!(drawn, [0, 1, 2, 0, 1]);
        assert_eq!(s.history.len(), 2);
        s.observe(&[]);
        assert_eq!(s.history, [1, -1]);
    }

    prop_compose! {
        fn any_options()(
            temperature in prop_oneof![Just(0.0), Just(1e-30), -1.0_f32..4.0, any::<f32>()],
            top_k in prop_oneof![Just(0), 1_i64..20, any::<i64>()],
            top_p in prop_oneof![Just(0.5), -0.5_f32..1.5, any::<f32>()],
            min_p in prop_oneof![Just(0.1), -0.5_f32..1.5, any::<f32>()],
            repetition_window in prop_oneof![0_i64..4, any::<i64>()],
            repetition_penalty in prop_oneof![0.5_f32..3.0, any::<f32>()],
            repetition_codebooks in prop_oneof![-2_i64..4, any::<i64>()],
            greedy: bool,
        ) -> SamplerOptions {
            SamplerOptions {
                temperature, top_k, top_p, min_p, repetition_window, repetition_penalty,
                repetition_codebooks, greedy,
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn never_panics(
            options in any_options(),
            logits in prop::collection::vec(
                prop_oneof![8 => -20.0_f32..20.0, 1 => any::<f32>(), 1 => Just(f32::NEG_INFINITY)], 24),
            frames in 1_usize..4,
            seed: u64,
        ) {
            let Ok(mut s) = Sampler::new(options, 2, 12, 10, seed) else { return Ok(()) };
            for _ in 0..frames {
                match s.sample(&logits) {
                    Ok(frame) => {
                        for (c, &id) in frame.iter().enumerate() {
                            prop_assert!((0..12).contains(&id));
                            prop_assert!(logits[c * 12 + id as usize] > f32::NEG_INFINITY);
                        }
                    }
                    Err(SamplerError::NotFinite { .. } | SamplerError::NothingLeft { .. }) => {}
                    Err(other) => prop_assert!(false, "{}", other),
                }
                for c in 0..2 {
                    if let Ok(kept) = s.distribution(c, &logits[c * 12..][..12]) {
                        let sum: f32 = kept.iter().map(|k| k.1).sum();
                        prop_assert!((sum - 1.0).abs() < 1e-5, "sum {}", sum);
                        prop_assert!(kept.windows(2).all(|w| w[0].0 < w[1].0));
                    }
                }
            }
        }
    }
}
