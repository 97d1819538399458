//! `zonos perplexity`: how surprised a model is by a corpus, and how far a quantised one is from it.

mod plot;
mod report;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use clap::builder::NonEmptyStringValueParser;
use clap::{ArgGroup, Args};
use zonos_audio::AtomicFile;
use zonos_checkpoint::FileBytes;
use zonos_gguf::Perplexity;
use zonos_gguf::kld::{Comparison, KldBase, KldSequence, KldWriter};
use zonos_kernels::Activations;
use zonos2::{Sequence, Zonos2, Zonos2Config, kld_shape};

use crate::args::{DeviceArgs, GlobalArgs};
use crate::failure::{Failure, Outcome};
use crate::progress::RowBar;
use crate::sequences::Corpus;
use crate::{output, weights};

use report::Run;

/// Arguments of `zonos perplexity`.
#[derive(Debug, Args)]
#[command(
    override_usage = "zonos perplexity [OPTIONS] <MODEL> <IDS.npy>...
       zonos perplexity [OPTIONS] <MODEL> --manifest <FILE> [--save-base <REF.kld>]
       zonos perplexity [OPTIONS] <MODEL> --base <REF.kld> [--plot <KLD.png>]",
    group(ArgGroup::new("corpus").required(true).args(["ids", "manifest", "base"])),
    after_help = "\
Everything is teacher-forced: each row of a sequence is given, and the model is asked for the next one.
An event is a codebook of a row; those whose label is the padding are no events. Perplexity is exp of the
mean negative log-probability of the labels.

Two passes compare models. The first runs the reference over a corpus and keeps its log-probabilities
(4 kB an event) in a base file, which holds the corpus, too; the second runs another model over the same
rows. Reported are the divergence KL(reference || model), mean, median, p90, p95, p99, largest and
smallest; how often both find the same id likeliest; and by how much the labels' log-probability differs.
A single short prompt tells nothing: `zonos corpus` makes a corpus that does.

A manifest ending in .toml has a table a sequence; names are relative to its folder:
  [[sequence]]
  ids = \"trace-000.npy\"       # [rows, 10] whole numbers: prompt rows, then generated ones
  speaker = \"voice-00.npy\"    # optional: the voice vector
  position = 0                # optional: the row it takes
Any other has a line a sequence, `ids.npy [speaker.npy [position]]`, # begins a comment.

Examples:
  zonos perplexity zonos2-q4_k.gguf trace-000.npy trace-001.npy
  zonos corpus zonos2-f16.gguf -o corpus
  zonos perplexity zonos2-f16.gguf --manifest corpus/manifest.toml --save-base ref.kld
  zonos perplexity zonos2-q4_k.gguf --base ref.kld --plot kld.png"
)]
pub(crate) struct PerplexityArgs {
    /// ZONOS2 checkpoint: a folder, a file (.gguf, .pth, .safetensors, .bpk) or hub:owner/name[@revision].
    #[arg(value_name = "MODEL", value_parser = NonEmptyStringValueParser::new())]
    model: String,
    /// Sequences without a voice, [rows, 10] whole numbers each.
    #[arg(value_name = "IDS.npy")]
    ids: Vec<PathBuf>,
    /// The corpus: sequences with their voices.
    #[arg(long, value_name = "FILE")]
    manifest: Option<PathBuf>,
    /// Also keep the log-probabilities, for --base.
    #[arg(long, value_name = "REF.kld", conflicts_with = "base")]
    save_base: Option<PathBuf>,
    /// Compare with the reference of this base file, over its corpus.
    #[arg(long, value_name = "REF.kld")]
    base: Option<PathBuf>,
    /// With --base: draw the divergences, over all events and by codebook.
    #[arg(long, value_name = "KLD.png", requires = "base")]
    plot: Option<PathBuf>,
    /// Round activations to eight bits where `zonos tts` does so for speed, at quantised weights; exact
    /// activations tell what the weights lost.
    #[arg(long)]
    fast: bool,
    #[command(flatten)]
    device: DeviceArgs,
}

/// Runs the command.
pub(crate) fn run(args: &PerplexityArgs, global: &GlobalArgs) -> Outcome {
    let device = args.device.open()?;
    // The parser lets it pass beside other inputs, which exclude the one that it requires.
    if args.plot.is_some() && args.base.is_none() {
        return Err(Failure::usage(
            "--plot draws divergences; it goes with --base REF.kld",
        ));
    }
    let mut outputs: Vec<(&str, &Path)> = Vec::new();
    if let Some(path) = &args.plot {
        output::check_ending(path, "png")?;
        outputs.push(("--plot", path));
    }
    outputs.extend(args.save_base.as_deref().map(|path| ("--save-base", path)));
    let mut files = outputs.clone();
    files.extend(args.base.as_deref().map(|path| ("--base", path)));
    output::distinct(&files)?;
    for (_, path) in &outputs {
        output::check_file(path)?;
    }
    let (checkpoint, config) = weights::open_backbone(&args.model, global.quiet)?;
    output::spares(&checkpoint, &args.model, &outputs)?;
    // What is wrong with a corpus is said before a weight is read.
    let input = Input::read(args, &config)?;
    if let Input::Rows(corpus) = &input {
        corpus.spares(&outputs)?;
    }
    let warning = args
        .save_base
        .as_ref()
        .and_then(|_| weights::warn_quantised(&checkpoint, "the logits"));
    let model = weights::load_backbone(&checkpoint, config, &device)?;
    let model = if args.fast {
        model
    } else {
        model.with_activations(Activations::Exact)
    };
    let began = Instant::now();
    let done = match &input {
        Input::Rows(corpus) => measure(&model, corpus, args.save_base.as_deref(), global.quiet),
        Input::Base(path, base) => compare(&model, path, base, global.quiet),
    }
    .map_err(|failure| weights::of_model(failure, &args.model))?;
    let run = Run {
        model: &args.model,
        device: &args.device.device,
        fast: args.fast,
        seconds: began.elapsed().as_secs_f64(),
        sequences: done.sequences,
        rows: done.rows,
    };
    match done.what {
        Measured::Perplexity(perplexity) => {
            let base = args.save_base.as_deref();
            report::perplexity(&run, &perplexity, base, warning.as_slice(), global)?;
        }
        Measured::Comparison(comparison) => {
            let base = args.base.as_deref().unwrap_or(Path::new(""));
            let numbers = comparison
                .report()
                .ok_or_else(|| Failure::failed(format!("{}: holds no event", base.display())))?;
            if let Some(path) = &args.plot {
                plot::draw(path, &args.model, &comparison, &numbers)?.commit()?;
            }
            report::comparison(&run, &numbers, base, args.plot.as_deref(), global)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// What the model is run on.
enum Input<'a> {
    Rows(Corpus),
    Base(&'a Path, KldBase<FileBytes>),
}

impl<'a> Input<'a> {
    fn read(args: &'a PerplexityArgs, config: &Zonos2Config) -> Result<Self, Failure> {
        let Some(path) = &args.base else {
            return Ok(Self::Rows(match &args.manifest {
                Some(path) => Corpus::of_manifest(path, config)?,
                None => Corpus::of_files(&args.ids, config)?,
            }));
        };
        let name = path.display().to_string();
        let base = KldBase::read(&name, weights::file_bytes(path)?)?;
        let (made, wanted) = (base.shape(), kld_shape(config));
        if made != wanted {
            return Err(Failure::failed(format!(
                "{name}: made by a model of {made}; this one has {wanted}, so they cannot be compared"
            )));
        }
        for (i, sequence) in base.sequences().iter().enumerate() {
            Sequence::from(sequence)
                .validate(i, config)
                .map_err(|error| Failure::failed(format!("{name}: {error}")))?;
        }
        Ok(Self::Base(path, base))
    }
}

/// What came of it.
struct Done {
    sequences: usize,
    rows: usize,
    what: Measured,
}

enum Measured {
    Perplexity(Perplexity),
    Comparison(Comparison),
}

/// The perplexity of a corpus, and its base file where one is asked for.
fn measure(
    model: &Zonos2,
    corpus: &Corpus,
    save: Option<&Path>,
    quiet: bool,
) -> Result<Done, Failure> {
    let config = model.config();
    let mut base = match save {
        None => None,
        Some(path) => {
            let listed: Vec<KldSequence> = corpus.sequences.iter().map(Into::into).collect();
            let file = AtomicFile::create(path)?;
            let name = path.display().to_string();
            Some(KldWriter::new(file, &name, kld_shape(config), &listed)?)
        }
    };
    let mut perplexity = Perplexity::new(config.n_codebooks);
    let rows = each_sequence(model, &corpus.sequences, quiet, |i, sequence| {
        model.score(i, sequence, |event, logits| -> Result<(), Failure> {
            perplexity.push(&event, logits);
            if let Some(base) = &mut base {
                base.write(logits)?;
            }
            Ok(())
        })
    })?;
    if perplexity.events() == 0 {
        return Err(Failure::failed(
            "these sequences hold no event: no row has an audio id other than the padding behind it",
        ));
    }
    if let Some(base) = base {
        base.finish()?.commit()?;
    }
    Ok(Done {
        sequences: corpus.sequences.len(),
        rows,
        what: Measured::Perplexity(perplexity),
    })
}

/// A model against the reference of a base file.
fn compare(
    model: &Zonos2,
    path: &Path,
    base: &KldBase<FileBytes>,
    quiet: bool,
) -> Result<Done, Failure> {
    let sequences: Vec<Sequence> = base.sequences().iter().map(Into::into).collect();
    let mut comparison = Comparison::new(model.config().n_codebooks);
    let mut next = 0;
    let rows = each_sequence(model, &sequences, quiet, |i, sequence| {
        model.score(i, sequence, |event, logits| -> Result<(), Failure> {
            let reference = base.log_probabilities(next).filter(|row| is_distribution(row));
            let Some(reference) = reference else {
                return Err(Failure::failed(format!(
                    "{}: event {next} (sequence {i}, row {}, codebook {}) holds no log-probabilities, whose exponentials add up to 1; the file is damaged, write it again with --save-base",
                    path.display(),
                    event.row,
                    event.codebook
                )));
            };
            comparison.push(&event, &reference, logits);
            next += 1;
            Ok(())
        })
    })?;
    Ok(Done {
        sequences: sequences.len(),
        rows,
        what: Measured::Comparison(comparison),
    })
}

/// Whether these are the logarithms of probabilities of everything there is: finite, as the writer makes them,
/// and of sum 1, of which f32 values near -20 miss some millionths.
fn is_distribution(log_probabilities: &[f32]) -> bool {
    let sum: f64 = log_probabilities.iter().map(|&x| f64::from(x).exp()).sum();
    log_probabilities.iter().all(|x| x.is_finite()) && (sum - 1.0).abs() <= 1e-3
}

/// Runs sequence after sequence with a bar; an interrupt ends the process, and with it what is not
/// written yet. Returns how many rows there were.
fn each_sequence(
    model: &Zonos2,
    sequences: &[Sequence],
    quiet: bool,
    mut run: impl FnMut(usize, &Sequence) -> Result<(), Failure>,
) -> Result<usize, Failure> {
    let width = model.config().row_width();
    let rows = sequences.iter().map(|s| s.len(width)).sum();
    let bar = RowBar::new(quiet, "scoring", rows as u64);
    let mut done = 0;
    for (i, sequence) in sequences.iter().enumerate() {
        run(i, sequence)?;
        done += sequence.len(width);
        bar.at(done as u64);
    }
    bar.done();
    Ok(rows)
}
