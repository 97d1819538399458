//! `zonos inspect`: what is in a checkpoint, and whether it would load.

use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};
use zonos_checkpoint::{Checkpoint, LoadReport, ModelKind, inspect, plan};
use zonos_dac::Dac;
use zonos_ecapa::Ecapa;
use zonos2::Zonos2;

use crate::args::GlobalArgs;
use crate::failure::{Failure, Outcome};
use crate::{output, weights};

/// Arguments of `zonos inspect`.
#[derive(Debug, Args)]
#[command(after_help = "\
Only headers are read, so a 15 GB file takes a moment. The last lines say which model the names
belong to and what would not load, tensor by tensor. Exit code 1 when the model would not load.

Examples:
  zonos inspect model.pth
  zonos inspect zonos2 --json | jq '.tensors[0]'
  zonos inspect zonos2 --check
      also read every value and look for NaN and infinity")]
pub(crate) struct InspectArgs {
    /// Checkpoint: a file, a folder or hub:owner/name.
    #[arg(value_name = "FILE|DIR|hub:ID")]
    checkpoint: String,
    /// Read every value, and report tensors that hold NaN or infinity.
    #[arg(long)]
    check: bool,
}

/// Runs the command.
pub(crate) fn run(args: &InspectArgs, global: &GlobalArgs) -> Outcome {
    let checkpoint = weights::open(&args.checkpoint, global.quiet)?;
    let mut contents = inspect(&checkpoint, args.check)?;
    let kind = contents.model;
    let load = report(&checkpoint, kind);
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

fn report(checkpoint: &Checkpoint, kind: ModelKind) -> Load {
    let result = match kind {
        ModelKind::Zonos2 => plan_backbone(checkpoint),
        ModelKind::Dac => Dac::check(checkpoint).map_err(anyhow::Error::from),
        ModelKind::Ecapa => Ecapa::check(checkpoint).map_err(anyhow::Error::from),
        _ => return Load::NoLoader,
    };
    match result {
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
        &zonos2::name_map(),
        &zonos2::tensor_specs(&config),
    )?)
}
