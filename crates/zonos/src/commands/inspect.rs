//! `zonos inspect`: what is in a checkpoint, and whether it would load.

use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};
use zonos_checkpoint::{Checkpoint, LoadReport, ModelKind, plan};
use zonos_dac::Dac;
use zonos2::Zonos2Config;

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
pub struct InspectArgs {
    /// Checkpoint: a file, a folder or hub:owner/name.
    #[arg(value_name = "FILE|DIR|hub:ID")]
    checkpoint: String,
    /// Read every value, and report tensors that hold NaN or infinity.
    #[arg(long)]
    check: bool,
}

/// Runs the command.
pub fn run(args: &InspectArgs, global: &GlobalArgs) -> Outcome {
    let checkpoint = weights::open(&args.checkpoint, global.quiet)?;
    let kind = checkpoint.model_kind();
    let load = report(&checkpoint, kind);
    let non_finite = if args.check {
        non_finite(&checkpoint)?
    } else {
        Vec::new()
    };
    if global.json {
        output::print_json(&as_json(&checkpoint, kind, &load, &non_finite, args.check))?;
    } else {
        print(&checkpoint, kind, &load, &non_finite, args.check)?;
    }
    match &load {
        Load::Refused { line, .. } => Err(Failure::failed(format!(
            "{}: would not load as {kind}: {line}",
            checkpoint.path().display()
        ))),
        _ if !non_finite.is_empty() => Err(Failure::failed(format!(
            "{}: {} tensors hold NaN or infinity, first {}",
            checkpoint.path().display(),
            non_finite.len(),
            non_finite[0].0
        ))),
        _ => Ok(ExitCode::SUCCESS),
    }
}

/// Whether the checkpoint would load.
enum Load {
    /// It would.
    Clean(LoadReport),
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
        _ => return Load::NoLoader,
    };
    match result {
        Ok(report) if report.is_clean() => Load::Clean(report),
        Ok(report) => Load::Refused {
            line: report.summary(),
            table: report.to_string(),
        },
        Err(why) => Load::Refused {
            line: why.to_string(),
            table: why.to_string(),
        },
    }
}

fn plan_backbone(checkpoint: &Checkpoint) -> anyhow::Result<LoadReport> {
    let config = Zonos2Config::from_checkpoint(checkpoint)?;
    Ok(plan(
        checkpoint,
        &zonos2::name_map(),
        &zonos2::tensor_specs(&config),
    )?)
}

/// Names of tensors with values that are not finite, and how many.
fn non_finite(checkpoint: &Checkpoint) -> Result<Vec<(String, usize)>, Failure> {
    let mut found = Vec::new();
    for name in checkpoint.names() {
        let data = checkpoint.tensor_data(name)?;
        if !data.dtype.is_float() {
            continue;
        }
        let bad = data.iter::<f32>().filter(|v| !v.is_finite()).count();
        if bad > 0 {
            found.push((name.to_owned(), bad));
        }
    }
    Ok(found)
}

fn print(
    checkpoint: &Checkpoint,
    kind: ModelKind,
    load: &Load,
    non_finite: &[(String, usize)],
    checked: bool,
) -> Result<(), Failure> {
    let mut text = String::new();
    let mut line = |s: String| {
        text.push_str(&s);
        text.push('\n');
    };
    line(format!("file      {}", checkpoint.path().display()));
    line(format!("format    {}", checkpoint.format()));
    line(format!("model     {kind}"));
    line(format!(
        "tensors   {}, {} bytes",
        checkpoint.len(),
        grouped(checkpoint.total_bytes())
    ));
    line(String::new());
    let width = checkpoint.names().map(str::len).max().unwrap_or(0);
    for name in checkpoint.names() {
        if let Some(info) = checkpoint.info(name) {
            line(format!(
                "{name:<width$}  {:<5}  {:>14}  {:?}",
                format!("{:?}", info.dtype),
                grouped(info.bytes),
                info.shape
            ));
        }
    }
    let empty = checkpoint.metadata().as_object().is_none_or(serde_json::Map::is_empty);
    if !empty {
        line(String::new());
        line(format!("metadata  {}", checkpoint.metadata()));
    }
    for notice in checkpoint.notices() {
        line(format!("note      {notice}"));
    }
    line(String::new());
    match load {
        Load::Clean(report) => line(format!("loads     as {kind}\n{report}").trim_end().to_owned()),
        Load::Refused { table, .. } => {
            line(format!("would not load as {kind}:\n{table}").trim_end().to_owned());
        }
        Load::NoLoader => line("loads     no model of this build has these names".to_owned()),
    }
    if checked {
        match non_finite {
            [] => line("values    all finite".to_owned()),
            bad => {
                for (name, count) in bad {
                    line(format!("values    {name}: {count} are NaN or infinite"));
                }
            }
        }
    }
    output::print(text.trim_end())
}

fn as_json(
    checkpoint: &Checkpoint,
    kind: ModelKind,
    load: &Load,
    non_finite: &[(String, usize)],
    checked: bool,
) -> Value {
    let tensors: Vec<Value> = checkpoint
        .names()
        .filter_map(|name| {
            let info = checkpoint.info(name)?;
            Some(json!({
                "name": name,
                "dtype": format!("{:?}", info.dtype),
                "shape": info.shape,
                "bytes": info.bytes,
                "file": info.file,
            }))
        })
        .collect();
    json!({
        "file": checkpoint.path(),
        "format": checkpoint.format().to_string(),
        "model": kind.to_string(),
        "loads": matches!(load, Load::Clean(_)),
        "problem": match load {
            Load::Refused { table, .. } => Some(table),
            _ => None,
        },
        "bytes": checkpoint.total_bytes(),
        "metadata": checkpoint.metadata(),
        "notices": checkpoint.notices(),
        "non_finite": checked.then(|| {
            non_finite.iter().map(|(name, count)| json!({ "name": name, "values": count })).collect::<Vec<_>>()
        }),
        "tensors": tensors,
    })
}

/// 1234567 as 1,234,567.
fn grouped(value: u64) -> String {
    let digits = value.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::grouped;

    #[test]
    fn digits_are_grouped_by_three() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1_234_567), "1,234,567");
    }
}
