//! `zonos inspect`: what is in a checkpoint, and whether it would load.

use std::process::ExitCode;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use serde_json::{Value, json};
use zonos_checkpoint::{Checkpoint, LoadReport, ModelKind, inspect, plan};
use zonos_dac::Dac;
use zonos_ecapa::{Ecapa, EcapaConfig};
use zonos_w2v_bert::Teacher;
use zonos_zac::{ZacDecoder, ZacEncoder};
use zonos2::Zonos2;

use crate::args::GlobalArgs;
use crate::failure::{Failure, Outcome};
use crate::{output, weights};

/// Arguments of `zonos inspect`.
#[derive(Debug, Args)]
#[command(after_help = "\
Only headers are read, so a 15 GB file takes a moment. The last lines say which model the names
belong to and what would not load, tensor by tensor. Where they belong to none, the model that at least
half of them fit is taken for meant. Exit code 1 when the model would not load.

Examples:
  zonos inspect model.pth
  zonos inspect zonos2 --json | jq '.tensors[0]'
  zonos inspect zonos2 --check
      also read every value and look for NaN and infinity")]
pub(crate) struct InspectArgs {
    /// Checkpoint: a file, a folder or hub:owner/name.
    #[arg(value_name = "FILE|DIR|hub:ID", value_parser = NonEmptyStringValueParser::new())]
    checkpoint: String,
    /// Read every value, and report tensors that hold NaN or infinity.
    #[arg(long)]
    check: bool,
}

/// Runs the command.
pub(crate) fn run(args: &InspectArgs, global: &GlobalArgs) -> Outcome {
    let checkpoint = weights::open(&args.checkpoint, global.quiet)?;
    let mut contents = inspect(&checkpoint, args.check)?;
    let (kind, load) = match contents.model {
        ModelKind::Unknown => closest(&checkpoint).unwrap_or((ModelKind::Unknown, Load::NoLoader)),
        kind => (kind, report(&checkpoint, kind)),
    };
    contents.model = kind;
    if global.json {
        let mut value = serde_json::to_value(&contents)?;
        value["loads"] = json!(matches!(load, Load::Clean(_)));
        value["problem"] = match &load {
            Load::Refused { table, .. } => json!(table),
            Load::Clean(_) | Load::NoLoader => Value::Null,
        };
        output::print_json(&value)?;
    } else {
        // A line break in a name would forge a line of the table.
        for tensor in &mut contents.tensors {
            tensor.name = output::visible(&tensor.name);
        }
        for notice in &mut contents.notices {
            *notice = output::visible(notice);
        }
        output::print(format_args!("{contents}\n{}", verdict(&load, kind)))?;
    }
    let file = contents.path.display();
    match (&load, contents.non_finite.as_deref()) {
        (Load::Refused { line, .. }, _) => Err(Failure::failed(format!(
            "{file}: would not load as {kind}: {line}"
        ))),
        (_, Some([first, rest @ ..])) => Err(Failure::failed(format!(
            "{file}: {} tensors hold NaN or infinity, first {}",
            1 + rest.len(),
            first.name
        ))),
        _ => Ok(ExitCode::SUCCESS),
    }
}

fn verdict(load: &Load, kind: ModelKind) -> String {
    let text = match load {
        Load::Clean(report) => format!("loads as {kind}\n{report}"),
        Load::Refused { table, .. } => format!("would not load as {kind}\n{table}"),
        Load::NoLoader => "no model of this build has these names".to_owned(),
    };
    text.trim_end().to_owned()
}

/// Whether the checkpoint would load.
enum Load {
    /// It would.
    Clean(Box<LoadReport>),
    /// It would not, and why.
    Refused {
        /// In one line.
        line: String,
        /// Tensor by tensor.
        table: String,
    },
    /// No loader of this build knows the model.
    NoLoader,
}

/// The model that a checkpoint is closest to, and why it would not load as that: one tensor under another
/// name may be what a model is told by. `None` where less than half of every model is there.
fn closest(checkpoint: &Checkpoint) -> Option<(ModelKind, Load)> {
    let candidates = [ModelKind::Zonos2, ModelKind::Dac, ModelKind::Ecapa];
    let shares = candidates.into_iter().filter_map(|kind| {
        let planned = planned(checkpoint, kind)?;
        let (found, of) = match &planned {
            Ok(report) => {
                let bad =
                    report.missing.len() + report.wrong_shape.len() + report.wrong_dtype.len();
                (report.matched.len(), report.matched.len() + bad)
            }
            Err(_) => names_of(checkpoint, kind),
        };
        (of > 0 && 2 * found >= of).then_some((kind, planned, found, of))
    });
    let (kind, planned, found, of) = shares.max_by_key(|(_, _, found, _)| *found)?;
    let load = match judged(planned) {
        Load::Refused { line, table } => Load::Refused {
            line: format!("{found} of {of} names match; {line}"),
            table: format!("closest: {kind}, {found} of {of} names match\n{table}"),
        },
        other => other,
    };
    Some((kind, load))
}

/// How many of a model's names are there, and of how many, for a file that does not tell its sizes.
fn names_of(checkpoint: &Checkpoint, kind: ModelKind) -> (usize, usize) {
    if kind != ModelKind::Ecapa {
        return (0, 0);
    }
    let specs = zonos_ecapa::tensor_specs(&EcapaConfig::released());
    let is_there = |name: &str| {
        let mut names = checkpoint.names();
        names.any(|found| {
            found
                .strip_suffix(name)
                .is_some_and(|front| front.is_empty() || front.ends_with('.'))
        })
    };
    let found = specs.iter().filter(|spec| is_there(&spec.name)).count();
    (found, specs.len())
}

/// What loading would report; `None` where no loader of this build knows the model.
fn planned(checkpoint: &Checkpoint, kind: ModelKind) -> Option<anyhow::Result<LoadReport>> {
    Some(match kind {
        ModelKind::Zonos2 => plan_backbone(checkpoint),
        ModelKind::Dac => Dac::check(checkpoint).map_err(anyhow::Error::from),
        ModelKind::Ecapa => Ecapa::check(checkpoint).map_err(anyhow::Error::from),
        ModelKind::ZacDecoder => ZacDecoder::check(checkpoint)
            .map(tolerated)
            .map_err(anyhow::Error::from),
        ModelKind::ZacEncoder => ZacEncoder::check(checkpoint)
            .map(tolerated)
            .map_err(anyhow::Error::from),
        ModelKind::W2vBert => Teacher::check(checkpoint)
            .map(tolerated)
            .map_err(anyhow::Error::from),
        _ => return None,
    })
}

/// ZAC-1 and its teacher load with tensors that nothing uses, and warn of each.
fn tolerated(mut report: LoadReport) -> LoadReport {
    for tensor in std::mem::take(&mut report.unexpected) {
        report.notes.push(format!(
            "'{}' {:?} is not used: the model knows no such tensor",
            output::visible(&tensor.name),
            tensor.shape
        ));
    }
    report
}

fn report(checkpoint: &Checkpoint, kind: ModelKind) -> Load {
    planned(checkpoint, kind).map_or(Load::NoLoader, judged)
}

fn judged(planned: anyhow::Result<LoadReport>) -> Load {
    match planned {
        Ok(report) if report.is_clean() => Load::Clean(Box::new(report)),
        Ok(mut report) => {
            let line = report.summary();
            for tensor in &mut report.unexpected {
                tensor.name = output::visible(&tensor.name);
            }
            Load::Refused {
                line,
                table: report.to_string(),
            }
        }
        Err(why) => Load::Refused {
            line: why.to_string(),
            table: why.to_string(),
        },
    }
}

fn plan_backbone(checkpoint: &Checkpoint) -> anyhow::Result<LoadReport> {
    let config = Zonos2::config_of(checkpoint)?;
    Ok(plan(
        checkpoint,
        &zonos2::name_map(&config),
        &zonos2::file_specs(checkpoint, &config),
    )?)
}
