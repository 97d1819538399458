//! `zonos imatrix`: which inputs of the experts matter, for `zonos quantize`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use serde_json::{Value, json};
use zonos_audio::AtomicFile;
use zonos2::Importance;

use crate::args::{DeviceArgs, GlobalArgs, whole};
use crate::failure::{Failure, Outcome};
use crate::progress::RowBar;
use crate::sequences::Corpus;
use crate::{output, weights};

/// Arguments of `zonos imatrix`.
#[derive(Debug, Args)]
#[command(after_help = "\
The model runs over the corpus, teacher-forced, and the squares of what enters the experts' matrices are
summed up by expert, over the rows routed to it: the normalised input of the feed-forward block for gate
and up, silu(gate) * up for down. OUT.bin (Z2IMAT01) holds their means; `zonos quantize --imatrix OUT.bin`
keeps the weights of large inputs more exactly. An expert that was given fewer than --min-hits rows gets
none, and is quantised as without.

Use the unquantised model, and a corpus other than the one that quantised models are compared on.

Example:
  zonos corpus zonos2-f16.gguf -o calibration --seed 1
  zonos imatrix zonos2-f16.gguf --manifest calibration/manifest.toml -o imatrix.bin
  zonos quantize zonos2-f16.gguf zonos2-q4_k.gguf q4_k --imatrix imatrix.bin")]
pub(crate) struct ImatrixArgs {
    /// ZONOS2 checkpoint: a folder, a file (.gguf, .pth, .safetensors, .bpk) or hub:owner/name[@revision].
    #[arg(value_name = "MODEL", value_parser = NonEmptyStringValueParser::new())]
    model: String,
    /// The corpus; `zonos perplexity --help` tells the form.
    #[arg(long, value_name = "FILE")]
    manifest: PathBuf,
    /// File to write.
    #[arg(long, short, value_name = "OUT.bin")]
    output: PathBuf,
    /// Rows that an expert must be given to have importances.
    #[arg(long, value_name = "N", default_value = "32", allow_negative_numbers = true, value_parser = whole::<u32>(1, u32::MAX))]
    min_hits: u32,
    #[command(flatten)]
    device: DeviceArgs,
}

/// Runs the command.
pub(crate) fn run(args: &ImatrixArgs, global: &GlobalArgs) -> Outcome {
    let device = args.device.open()?;
    let outputs: [(&str, &Path); 1] = [("--output", &args.output)];
    output::distinct(&[outputs[0], ("--manifest", &args.manifest)])?;
    output::check_file(&args.output)?;
    let (checkpoint, config) = weights::open_backbone(&args.model, global.quiet)?;
    output::spares(&checkpoint, &args.model, &outputs)?;
    if config.first_expert_layer().is_none() {
        return Err(Failure::failed(format!(
            "{}: a model without experts; importances are theirs alone",
            checkpoint.path().display()
        )));
    }
    let corpus = Corpus::of_manifest(&args.manifest, &config)?;
    corpus.spares(&outputs)?;
    let warning = weights::warn_quantised(&checkpoint, "importances");
    let width = config.row_width();
    let model = weights::load_backbone(&checkpoint, config, &device)?;

    let began = Instant::now();
    let mut importance = Importance::new(model.config());
    let rows: usize = corpus.sequences.iter().map(|s| s.len(width)).sum();
    let bar = RowBar::new(global.quiet, "collecting", rows as u64);
    let mut done = 0;
    for (i, sequence) in corpus.sequences.iter().enumerate() {
        importance
            .push(&model, i, sequence)
            .map_err(|error| weights::of_model(error.into(), &args.model))?;
        done += sequence.len(width);
        bar.at(done as u64);
    }
    bar.done();
    let mut file = AtomicFile::create(&args.output)?;
    importance
        .imatrix(args.min_hits.into())
        .write(&mut file)
        .map_err(|error| file.error(error))?;
    file.commit()?;
    report(
        args,
        global,
        &importance,
        corpus.sequences.len(),
        rows,
        began,
        warning,
    )
}

fn report(
    args: &ImatrixArgs,
    global: &GlobalArgs,
    importance: &Importance,
    sequences: usize,
    rows: usize,
    began: Instant,
    warning: Option<String>,
) -> Outcome {
    let starved = |hits: &[u64]| -> Vec<usize> {
        let few = |(_, hits): &(usize, &u64)| **hits < u64::from(args.min_hits);
        hits.iter()
            .enumerate()
            .filter(few)
            .map(|(e, _)| e)
            .collect()
    };
    if global.json {
        let layers: Vec<Value> = importance
            .hits()
            .map(|(n, hits)| json!({ "layer": n, "hits": hits, "without": starved(hits) }))
            .collect();
        output::print_json(&json!({
            "output": args.output.display().to_string(),
            "model": args.model,
            "device": args.device.device,
            "sequences": sequences,
            "rows": rows,
            "min_hits": args.min_hits,
            "layers": layers,
            "warnings": warning.as_slice(),
            "seconds": began.elapsed().as_secs_f64(),
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let experts: usize = importance.hits().map(|(_, hits)| hits.len()).sum();
    let without: usize = importance.hits().map(|(_, hits)| starved(hits).len()).sum();
    output::note(
        global.quiet,
        format_args!(
            "{}: {} of {experts} experts in {} layers, from {rows} rows of {sequences} sequences",
            args.output.display(),
            experts - without,
            importance.hits().len()
        ),
    );
    if without > 0 {
        let listed: Vec<String> = importance
            .hits()
            .filter(|(_, hits)| !starved(hits).is_empty())
            .take(4)
            .map(|(n, hits)| format!("{} of layer {n}", starved(hits).len()))
            .collect();
        output::note(
            false,
            format_args!(
                "warning: {without} experts were given fewer than {} rows ({}{}) and have no importances; a longer corpus reaches more",
                args.min_hits,
                listed.join(", "),
                if importance
                    .hits()
                    .filter(|(_, hits)| !starved(hits).is_empty())
                    .count()
                    > 4
                {
                    ", .."
                } else {
                    ""
                }
            ),
        );
    }
    Ok(ExitCode::SUCCESS)
}
