//! The base file of a KL comparison, `Z2KLDIV2` (`gguf.md` 7), and the numbers of the report
//! (`zonos2.md` 10.2).

use std::fmt;
use std::io::Write;

use crate::container::remedy;
use crate::shown::told;

const MAGIC: &[u8; 8] = b"Z2KLDIV2";
const VERSION: u32 = 2;

/// Why a base file cannot be read or written, or two models not be compared.
#[derive(Debug, thiserror::Error)]
#[error("{file}: {}", told(problem))]
pub struct KldError {
    file: String,
    problem: String,
}

fn wrong(file: &str, problem: impl Into<String>) -> KldError {
    KldError {
        file: file.into(),
        problem: problem.into(),
    }
}

fn unwritten(error: &std::io::Error) -> String {
    format!("cannot write: {error}{}", remedy(error))
}

/// The shape of the model that made a base file; a model to be compared has the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KldShape {
    /// Audio codebooks: a row of ids has one more.
    pub codebooks: u32,
    /// Logits of a codebook.
    pub vocabulary: u32,
    /// The audio id that stands for nothing; never an event's label.
    pub pad: u32,
}

impl fmt::Display for KldShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            codebooks,
            vocabulary,
            pad,
        } = self;
        write!(f, "{codebooks} codebooks of {vocabulary} ids, pad {pad}")
    }
}

/// A teacher-forced sequence.
#[derive(Clone, Debug, PartialEq)]
pub struct KldSequence {
    /// `[rows, codebooks + 1]`.
    pub ids: Vec<i32>,
    /// The voice vector and the row it takes.
    pub voice: Option<(Vec<f32>, u32)>,
}

/// A label that a model is asked to predict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The sequence.
    pub sequence: usize,
    /// The row whose logits count; the label stands in the next one.
    pub row: usize,
    /// The codebook.
    pub codebook: usize,
    /// What comes next, `0..vocabulary` and not the pad.
    pub label: usize,
}

/// The events of sequence number `sequence`, in file order: row by row, codebook by codebook.
pub fn events<'a>(
    shape: KldShape,
    sequence: usize,
    ids: &'a [i32],
) -> impl Iterator<Item = Event> + 'a {
    let codebooks = shape.codebooks as usize;
    let rows = ids.chunks_exact(codebooks + 1);
    rows.skip(1).enumerate().flat_map(move |(row, next)| {
        next[..codebooks]
            .iter()
            .enumerate()
            .filter_map(move |(codebook, &id)| {
                let label = u32::try_from(id).ok()?;
                (label != shape.pad && label < shape.vocabulary).then_some(Event {
                    sequence,
                    row,
                    codebook,
                    label: label as usize,
                })
            })
    })
}

/// Log-softmax: f32 maximum, f64 sum of the exponentials of f32 differences, its logarithm rounded to
/// f32 and added in f32. `out` has the length of `logits`.
pub fn log_softmax(logits: &[f32], out: &mut [f32]) {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&v| f64::from(v - largest).exp()).sum();
    let whole = largest + sum.ln() as f32;
    for (o, &v) in out.iter_mut().zip(logits) {
        *o = v - whole;
    }
}

/// A base file that lies in memory.
#[derive(Debug)]
pub struct KldBase<B> {
    shape: KldShape,
    sequences: Vec<KldSequence>,
    events: Vec<Event>,
    data_start: usize,
    bytes: B,
}

impl<B: AsRef<[u8]>> KldBase<B> {
    /// Reads everything but the log-probabilities. `file` is what errors call the file.
    ///
    /// # Errors
    /// If it is no base file of version 2, holds no event, is longer or shorter than its events
    /// take, or its ids are not numbers.
    pub fn read(file: &str, bytes: B) -> Result<Self, KldError> {
        let all = bytes.as_ref();
        let mut c = Cursor {
            file,
            all,
            rest: all,
        };
        let magic = c.take(8, "the magic")?;
        if magic != MAGIC {
            let old = magic.starts_with(b"Z2KLDIV");
            return Err(wrong(
                file,
                if old {
                    "a base file of another version; write it again with --save-base"
                } else {
                    "not a KL base file: it does not start with 'Z2KLDIV2'"
                },
            ));
        }
        let version = c.u32("the version")?;
        if version != VERSION {
            return Err(wrong(
                file,
                format!(
                    "base file version {version}; only 2 is read, write it again with --save-base"
                ),
            ));
        }
        let shape = KldShape {
            codebooks: c.u32("the codebooks")?,
            vocabulary: c.u32("the vocabulary")?,
            pad: c.u32("the pad id")?,
        };
        let count = c.u32("the sequences")?;
        if u64::from(count) > c.rest.len() as u64 / 12 {
            let left = c.rest.len();
            return Err(wrong(
                file,
                format!("{count} sequences announced, but only {left} bytes follow"),
            ));
        }
        let mut heads = Vec::new();
        for i in 0..count {
            let what = format!("the header of sequence {i}");
            let (rows, position, length) = (c.u32(&what)?, c.u32(&what)? as i32, c.u32(&what)?);
            let fits = if length == 0 {
                position == -1
            } else {
                u32::try_from(position).is_ok_and(|p| p < rows)
            };
            if !fits {
                return Err(wrong(
                    file,
                    format!(
                        "sequence {i}: a voice of {length} numbers at row {position} of {rows}"
                    ),
                ));
            }
            heads.push((rows, position, length));
        }
        let (mut sequences, mut found) = (Vec::new(), Vec::new());
        for (i, (rows, position, length)) in heads.into_iter().enumerate() {
            let width = u128::from(shape.codebooks) + 1;
            let ids = c.floats(
                u128::from(rows) * width,
                &format!("the ids of sequence {i}"),
            )?;
            let width = shape.codebooks as usize + 1;
            let number = |(at, v): (usize, f32)| {
                whole_number(v).ok_or_else(|| {
                    let (row, column) = (at / width, at % width);
                    wrong(
                        file,
                        format!("sequence {i}, row {row}, column {column}: the id is {v}"),
                    )
                })
            };
            let ids: Vec<i32> = ids.enumerate().map(number).collect::<Result<_, _>>()?;
            let voice = c.floats(length.into(), &format!("the voice of sequence {i}"))?;
            let voice = (length > 0).then(|| (voice.collect(), position as u32));
            found.extend(events(shape, i, &ids));
            sequences.push(KldSequence { ids, voice });
        }
        if found.is_empty() {
            return Err(wrong(file, "a base file without a single event"));
        }
        let data_start = all.len() - c.rest.len();
        let needed = found.len() as u128 * u128::from(shape.vocabulary) * 4;
        if needed != c.rest.len() as u128 {
            return Err(wrong(
                file,
                format!(
                    "{} events take {needed} bytes, {} follow the sequences",
                    found.len(),
                    c.rest.len()
                ),
            ));
        }
        Ok(Self {
            shape,
            sequences,
            events: found,
            data_start,
            bytes,
        })
    }

    /// The shape of the model that made it.
    pub fn shape(&self) -> KldShape {
        self.shape
    }

    /// The sequences that it was made on.
    pub fn sequences(&self) -> &[KldSequence] {
        &self.sequences
    }

    /// All events, in file order.
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// The log-probabilities of event number `event`, `vocabulary` of them; none past the last.
    pub fn log_probabilities(&self, event: usize) -> Option<Vec<f32>> {
        let size = self.shape.vocabulary as usize * 4;
        let start = event.checked_mul(size)?.checked_add(self.data_start)?;
        let raw = self.bytes.as_ref().get(start..start.checked_add(size)?)?;
        Some(floats(raw).collect())
    }
}

fn floats(raw: &[u8]) -> impl Iterator<Item = f32> + '_ {
    raw.as_chunks::<4>()
        .0
        .iter()
        .map(|b| f32::from_le_bytes(*b))
}

/// The nearest integer, for an id stored as a float.
fn whole_number(v: f32) -> Option<i32> {
    v.is_finite().then(|| v.round() as i32)
}

struct Cursor<'a> {
    file: &'a str,
    all: &'a [u8],
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    fn take(&mut self, n: u128, what: &str) -> Result<&'a [u8], KldError> {
        let cut = usize::try_from(n)
            .ok()
            .and_then(|n| self.rest.split_at_checked(n));
        let Some((taken, after)) = cut else {
            let (at, left) = (self.all.len() - self.rest.len(), self.rest.len());
            return Err(wrong(
                self.file,
                format!("the file ends inside {what}: {n} bytes needed at byte {at}, {left} left"),
            ));
        };
        self.rest = after;
        Ok(taken)
    }

    fn u32(&mut self, what: &str) -> Result<u32, KldError> {
        let mut out = [0; 4];
        out.copy_from_slice(self.take(4, what)?);
        Ok(u32::from_le_bytes(out))
    }

    fn floats(&mut self, n: u128, what: &str) -> Result<impl Iterator<Item = f32> + 'a, KldError> {
        Ok(floats(self.take(n * 4, what)?))
    }
}

/// Writes a base file event by event.
#[derive(Debug)]
pub struct KldWriter<W> {
    out: W,
    file: String,
    shape: KldShape,
    due: std::vec::IntoIter<Event>,
    log_probabilities: Vec<f32>,
}

impl<W: Write> KldWriter<W> {
    /// Writes everything but the log-probabilities. `file` is what errors call the file.
    ///
    /// # Errors
    /// If the ids of a sequence do not fill rows, its voice lies past the last row, there is no
    /// event, or writing fails.
    pub fn new(
        mut out: W,
        file: &str,
        shape: KldShape,
        sequences: &[KldSequence],
    ) -> Result<Self, KldError> {
        let mut header = MAGIC.to_vec();
        let small =
            |n: usize| u32::try_from(n).map_err(|_| wrong(file, format!("{n} is too many")));
        for v in [VERSION, shape.codebooks, shape.vocabulary, shape.pad] {
            header.extend(v.to_le_bytes());
        }
        header.extend(small(sequences.len())?.to_le_bytes());
        let width = shape.codebooks as usize + 1;
        let (mut body, mut due) = (Vec::new(), Vec::new());
        for (i, s) in sequences.iter().enumerate() {
            let rows = small(s.ids.len() / width)?;
            if !s.ids.len().is_multiple_of(width) {
                return Err(wrong(
                    file,
                    format!(
                        "sequence {i}: {} ids do not fill rows of {width}",
                        s.ids.len()
                    ),
                ));
            }
            header.extend(rows.to_le_bytes());
            match &s.voice {
                None => {
                    header.extend((-1i32).to_le_bytes());
                    header.extend(0u32.to_le_bytes());
                }
                Some((voice, position)) => {
                    if *position >= rows || voice.is_empty() || *position > i32::MAX as u32 {
                        return Err(wrong(
                            file,
                            format!(
                                "sequence {i}: a voice of {} numbers at row {position} of {rows}",
                                voice.len()
                            ),
                        ));
                    }
                    header.extend(position.to_le_bytes());
                    header.extend(small(voice.len())?.to_le_bytes());
                }
            }
            body.extend(s.ids.iter().flat_map(|&id| (id as f32).to_le_bytes()));
            let voice = s.voice.iter().flat_map(|(voice, _)| voice);
            body.extend(voice.flat_map(|v| v.to_le_bytes()));
            due.extend(events(shape, i, &s.ids));
        }
        if due.is_empty() {
            return Err(wrong(
                file,
                "these sequences hold no event; nothing to compare",
            ));
        }
        out.write_all(&header)
            .and_then(|()| out.write_all(&body))
            .map_err(|e| wrong(file, unwritten(&e)))?;
        Ok(Self {
            out,
            file: file.into(),
            shape,
            due: due.into_iter(),
            log_probabilities: vec![0.0; shape.vocabulary as usize],
        })
    }

    /// The event whose logits come next; none when all are written.
    pub fn next_event(&self) -> Option<Event> {
        self.due.as_slice().first().copied()
    }

    /// Writes the log-softmax of the logits of the next event.
    ///
    /// # Errors
    /// If there is none left, the logits are not as many as the vocabulary, or writing fails.
    pub fn write(&mut self, logits: &[f32]) -> Result<(), KldError> {
        if logits.len() != self.shape.vocabulary as usize || self.due.next().is_none() {
            return Err(wrong(
                &self.file,
                format!(
                    "{} logits for one more event; {} each and {} events are left",
                    logits.len(),
                    self.shape.vocabulary,
                    self.due.len()
                ),
            ));
        }
        log_softmax(logits, &mut self.log_probabilities);
        let raw: Vec<u8> = self
            .log_probabilities
            .iter()
            .flat_map(|v| v.to_le_bytes())
            .collect();
        self.out
            .write_all(&raw)
            .map_err(|e| wrong(&self.file, unwritten(&e)))
    }

    /// Flushes and returns the output.
    ///
    /// # Errors
    /// If events are missing or flushing fails.
    pub fn finish(mut self) -> Result<W, KldError> {
        if self.due.len() > 0 {
            let missing = format!("{} events were not written", self.due.len());
            return Err(wrong(&self.file, missing));
        }
        match self.out.flush() {
            Ok(()) => Ok(self.out),
            Err(e) => Err(wrong(&self.file, unwritten(&e))),
        }
    }
}

/// Means over the events of one codebook, or over all.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct KldMeans {
    /// Number of events.
    pub events: usize,
    /// `exp` of the mean negative log-probability of the label, by the reference.
    pub ppl_reference: f64,
    /// The same by the model compared.
    pub ppl_test: f64,
    /// Mean divergence.
    pub kld_mean: f64,
    /// Share of events where both models' likeliest id is the same.
    pub top1_agreement: f64,
}

/// How far a model is from its reference.
#[derive(Clone, Debug, PartialEq)]
pub struct KldReport {
    /// Over all events.
    pub all: KldMeans,
    /// For each codebook.
    pub codebooks: Vec<KldMeans>,
    /// The divergence at rank `round(q (n - 1))` of the sorted ones: q = 0.5.
    pub kld_median: f64,
    /// q = 0.9.
    pub kld_p90: f64,
    /// q = 0.95.
    pub kld_p95: f64,
    /// q = 0.99.
    pub kld_p99: f64,
    /// The largest.
    pub kld_max: f64,
    /// The smallest.
    pub kld_min: f64,
    /// Mean of `log test - log reference` of the label.
    pub dlogp_mean: f64,
    /// Root mean square of the same.
    pub dlogp_rms: f64,
}

/// One event, compared.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Compared {
    /// The codebook.
    pub codebook: usize,
    /// `KL(reference || test)`, not negative.
    pub kld: f64,
    /// Log-probability of the label by the reference.
    pub log_reference: f64,
    /// Log-probability of the label by the model compared.
    pub log_test: f64,
    /// Whether both find the same id likeliest.
    pub top1: bool,
}

/// Collects compared events.
#[derive(Clone, Debug)]
pub struct Comparison {
    codebooks: usize,
    compared: Vec<Compared>,
    scratch: Vec<f32>,
}

impl Comparison {
    /// None yet, of so many codebooks.
    pub fn new(codebooks: usize) -> Self {
        Self {
            codebooks,
            compared: Vec::new(),
            scratch: Vec::new(),
        }
    }

    /// Compares the logits of a model with the reference's log-probabilities of the same event. Both
    /// have the length of the vocabulary.
    pub fn push(&mut self, event: &Event, reference: &[f32], logits: &[f32]) -> Compared {
        self.scratch.resize(logits.len(), 0.0);
        log_softmax(logits, &mut self.scratch);
        let kld: f64 = reference
            .iter()
            .zip(&self.scratch)
            .map(|(&p, &q)| f64::from(p).exp() * f64::from(p - q))
            .sum();
        let at = |row: &[f32]| {
            row.get(event.label)
                .map_or(f64::NEG_INFINITY, |&v| v.into())
        };
        let compared = Compared {
            codebook: event.codebook,
            kld: kld.max(0.0),
            log_reference: at(reference),
            log_test: at(&self.scratch),
            top1: likeliest(reference) == likeliest(logits),
        };
        self.compared.push(compared);
        compared
    }

    /// The events compared so far, in order.
    pub fn compared(&self) -> &[Compared] {
        &self.compared
    }

    /// The report; codebooks without an event have means that are no numbers. None without any event.
    pub fn report(&self) -> Option<KldReport> {
        let mut sorted: Vec<f64> = self.compared.iter().map(|c| c.kld).collect();
        sorted.sort_by(f64::total_cmp);
        let n = sorted.len();
        let rank = |q: f64| sorted.get((q * (n as f64 - 1.0)).round() as usize).copied();
        let differences = || self.compared.iter().map(|c| c.log_test - c.log_reference);
        Some(KldReport {
            all: means(self.compared.iter()),
            codebooks: (0..self.codebooks)
                .map(|b| means(self.compared.iter().filter(|c| c.codebook == b)))
                .collect(),
            kld_median: rank(0.5)?,
            kld_p90: rank(0.9)?,
            kld_p95: rank(0.95)?,
            kld_p99: rank(0.99)?,
            kld_max: *sorted.last()?,
            kld_min: *sorted.first()?,
            dlogp_mean: differences().sum::<f64>() / n as f64,
            dlogp_rms: (differences().map(|d| d * d).sum::<f64>() / n as f64).sqrt(),
        })
    }
}

fn means<'a>(compared: impl Iterator<Item = &'a Compared>) -> KldMeans {
    let (mut out, mut reference, mut test, mut same) = (KldMeans::default(), 0.0, 0.0, 0usize);
    for c in compared {
        out.events += 1;
        out.kld_mean += c.kld;
        reference -= c.log_reference;
        test -= c.log_test;
        same += usize::from(c.top1);
    }
    // Without an event, NaN.
    let n = out.events as f64;
    out.kld_mean /= n;
    out.ppl_reference = (reference / n).exp();
    out.ppl_test = (test / n).exp();
    out.top1_agreement = same as f64 / n;
    out
}

/// The first of the largest.
fn likeliest(row: &[f32]) -> Option<usize> {
    let mut best: Option<(usize, f32)> = None;
    for (i, &v) in row.iter().enumerate() {
        if best.is_none_or(|(_, b)| v > b) {
            best = Some((i, v));
        }
    }
    best.map(|(i, _)| i)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: KldShape = KldShape {
        codebooks: 2,
        vocabulary: 4,
        pad: 3,
    };

    fn sequences() -> Vec<KldSequence> {
        vec![
            // The label 3 is the pad, 4 and -1 are outside.
            KldSequence {
                ids: vec![0, 1, 9, 2, 3, 9, 0, -1, 9, 4, 1, 9],
                voice: None,
            },
            KldSequence {
                ids: vec![0, 0, 9, 1, 1, 9],
                voice: Some((vec![0.5, -0.5], 1)),
            },
        ]
    }

    fn logits(i: usize) -> [f32; 4] {
        [0.0, 1.5, -2.0, i as f32]
    }

    fn base() -> Vec<u8> {
        let mut w = KldWriter::new(Vec::new(), "b", SHAPE, &sequences()).unwrap();
        let mut i = 0;
        while w.next_event().is_some() {
            w.write(&logits(i)).unwrap();
            i += 1;
        }
        assert!(w.write(&logits(0)).is_err());
        w.finish().unwrap()
    }

    #[test]
    fn events_skip_pads_and_strangers() {
        let all: Vec<_> = events(SHAPE, 7, &sequences()[0].ids).collect();
        let event = |row, codebook, label| Event {
            sequence: 7,
            row,
            codebook,
            label,
        };
        assert_eq!(all, [event(0, 0, 2), event(1, 0, 0), event(2, 1, 1)]);
    }

    #[test]
    fn written_read_and_compared_with_itself() {
        let bytes = base();
        let read = KldBase::read("b", &bytes).unwrap();
        assert_eq!((read.shape(), read.sequences()), (SHAPE, &sequences()[..]));
        let mut c = Comparison::new(3);
        for (i, e) in read.events().iter().enumerate() {
            c.push(e, &read.log_probabilities(i).unwrap(), &logits(i));
        }
        let report = c.report().unwrap();
        assert_eq!((report.all.events, report.codebooks.len()), (5, 3));
        assert_eq!(
            (report.kld_max, report.all.kld_mean, report.dlogp_rms),
            (0.0, 0.0, 0.0)
        );
        assert_eq!(report.all.top1_agreement, 1.0);
        assert_eq!(report.all.ppl_reference, report.all.ppl_test);
        assert!(read.log_probabilities(5).is_none());
    }

    #[test]
    fn a_known_divergence() {
        let mut c = Comparison::new(3);
        let event = Event {
            sequence: 0,
            row: 0,
            codebook: 0,
            label: 1,
        };
        let reference = [0.25f32.ln(), 0.75f32.ln()];
        let got = c.push(&event, &reference, &[0.0, 0.0]);
        let expected = 0.25 * (0.5f64).ln() + 0.75 * (1.5f64).ln();
        assert!((got.kld - expected).abs() < 1e-6, "{}", got.kld);
        assert!((got.log_test - 0.5f64.ln()).abs() < 1e-6);
        // The first of equals is the likeliest.
        assert!(!got.top1);
    }

    #[test]
    fn files_that_are_cut_or_too_long_are_refused() {
        let mut bytes = base();
        for n in 0..bytes.len() {
            assert!(KldBase::read("b", &bytes[..n]).is_err(), "{n}");
        }
        bytes.push(0);
        assert!(KldBase::read("b", &bytes).is_err());
        let mut old = base();
        old[7] = b'1';
        let e = KldBase::read("b", &old).unwrap_err().to_string();
        assert!(e.contains("another version"), "{e}");
        for at in 8..base().len().min(60) {
            for v in [0, 0x7f, 0xff] {
                let mut bytes = base();
                bytes[at] = v;
                let _ = KldBase::read("b", &bytes);
            }
        }
    }

    #[test]
    fn no_event_is_an_error() {
        let none = [KldSequence {
            ids: vec![0, 0, 9],
            voice: None,
        }];
        assert!(KldWriter::new(Vec::new(), "b", SHAPE, &none).is_err());
    }
}
