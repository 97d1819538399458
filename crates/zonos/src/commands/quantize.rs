//! `zonos quantize`: a GGUF file in fewer bits.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Context;
use clap::Args;
use serde_json::{Value, json};
use zonos_audio::AtomicFile;
use zonos_checkpoint::FileBytes;
use zonos_gguf::{
    FromFile, GgmlType, GgufFile, Imatrix, ImatrixEntry, Policy, QuantizeError, QuantizeReport,
    TensorInfo, quantize_pieces,
};

use crate::args::GlobalArgs;
use crate::failure::{Failure, Outcome};
use crate::interrupt::{self, Stepping};
use crate::progress::ByteBar;
use crate::{output, weights};

/// The key that tells whose weights a file holds.
const ARCHITECTURE: &str = "general.architecture";

/// Arguments of `zonos quantize`.
#[derive(Debug, Args)]
#[command(after_help = "\
TYPE is one of q8_0, q4_0, q4_1, q5_0, q5_1, q2_k, q3_k, q4_k, q5_k, q6_k, iq4_nl, iq4_xs, or f32, f16, bf16,
which are no quantisation and go everywhere.

What gets it, unless said otherwise, are the experts; everything else, the spine, is kept as F16. So are
the published files made. A spine of few bits ruins the model: its router decides by small differences.
Norms, biases and other vectors stay as they are in any case.

  (no flag)        experts TYPE, spine F16
  --experts-only   experts TYPE, spine Q8_0; embeddings, head, router and voice projections F16
  --everything     TYPE everywhere, but more bits for embeddings, head, router and voice projections: Q8_0
                   beside K and IQ types, else F16; below eight bits only with --force

Rows that are no whole blocks become F16. The bytes do not depend on the number of threads.

Examples:
  zonos quantize zonos2-f16.gguf zonos2-q4_k.gguf q4_k
  zonos quantize zonos2-f16.gguf zonos2-q4_k.gguf q4_k --imatrix imatrix.bin
  zonos quantize zonos2-f16.gguf small.gguf q3_k --down-tier-up
  zonos quantize zonos2-f16.gguf zonos2-q8_0.gguf q8_0 --everything")]
pub(crate) struct QuantizeArgs {
    /// File to read; F16, BF16 or F32 weights are best, quantised ones lose twice.
    #[arg(value_name = "IN.gguf")]
    input: PathBuf,
    /// File to write.
    #[arg(value_name = "OUT.gguf")]
    output: PathBuf,
    /// The type of the experts.
    #[arg(value_name = "TYPE", value_parser = ggml_type)]
    bulk: GgmlType,
    /// Experts TYPE, spine Q8_0.
    #[arg(long, conflicts_with = "everything")]
    experts_only: bool,
    /// Keep the spine F16; the default, also with --experts-only.
    #[arg(long, conflicts_with = "everything")]
    spine_f16: bool,
    /// TYPE everywhere.
    #[arg(long)]
    everything: bool,
    /// One K type more for the experts' down projections: q4_k becomes q5_k there.
    #[arg(long)]
    down_tier_up: bool,
    /// Importances of the experts' inputs, as `zonos imatrix` writes them.
    #[arg(long, value_name = "F")]
    imatrix: Option<PathBuf>,
    /// Do what ruins the model: few bits for the spine, or files of other models.
    #[arg(long)]
    force: bool,
}

fn ggml_type(text: &str) -> Result<GgmlType, String> {
    let found: GgmlType = text
        .parse()
        .map_err(|e: zonos_gguf::UnknownType| e.to_string())?;
    if found.is_readable() {
        Ok(found)
    } else {
        Err(format!("{found} can be named, but not made here"))
    }
}

impl QuantizeArgs {
    /// Which type goes where.
    fn policy(&self) -> Policy {
        let whole = self.everything || !self.bulk.is_quantized();
        Policy {
            bulk: self.bulk,
            experts_only: !whole,
            spine_f16: !whole && (self.spine_f16 || !self.experts_only),
            down_tier_up: self.down_tier_up,
        }
    }
}

/// Runs the command.
pub(crate) fn run(args: &QuantizeArgs, global: &GlobalArgs) -> Outcome {
    let policy = args.policy();
    output::check_ending(&args.output, "gguf")?;
    let mut files: Vec<(&str, &Path)> = vec![("IN.gguf", &args.input), ("OUT.gguf", &args.output)];
    files.extend(args.imatrix.as_deref().map(|path| ("--imatrix", path)));
    output::distinct(&files)?;
    if policy.starves_the_spine() && policy.bulk.is_quantized() && !args.force {
        return Err(Failure::usage(format!(
            "--everything gives attention and dense layers {:.1} bits too, which ruins routing; leave it out, or insist with --force",
            policy.bulk.bits_per_value()
        )));
    }
    output::check_file(&args.output)?;
    let imatrix = args.imatrix.as_deref().map(read_imatrix).transpose()?;
    let name = args.input.display().to_string();
    // Only the header is read where it is mapped; what is touched there counts as this process's memory.
    let source = GgufFile::read(&name, weights::file_bytes(&args.input)?)?;
    let opened = File::open(&args.input).with_context(|| format!("{name}: cannot read"))?;
    let mut pieces = FromFile::new(opened);
    check_architecture(&source, args)?;
    let mut warnings = Warnings::default();
    warn_of_inputs(&source, args, imatrix.as_ref(), &mut warnings);
    let used = Used::of(&source, &policy);
    used.warn(&policy, &mut warnings);

    let began = Instant::now();
    let _stepping = Stepping::begin();
    let file = AtomicFile::create(&args.output)?;
    let bar = ByteBar::new(global.quiet);
    let out_name = args.output.display().to_string();
    let done = quantize_pieces(
        &source,
        &mut pieces,
        file,
        &out_name,
        &policy,
        imatrix.as_ref(),
        &mut |progress| {
            bar.at(progress.tensor, progress.done, Some(progress.total));
            interrupt::go_on()
        },
    );
    bar.done();
    let (file, report) = done.map_err(|error| match error {
        QuantizeError::Stopped => Failure::Interrupted,
        other => other.into(),
    })?;
    interrupt::check()?;
    file.commit()?;
    let values = source.tensors().iter().map(values_of).sum();
    let done = Done {
        policy: &policy,
        used,
        report: &report,
        values,
        seconds: began.elapsed().as_secs_f64(),
    };
    done.warn(&name, args.imatrix.as_deref(), &mut warnings);
    done.report(args, global, &warnings)?;
    Ok(ExitCode::SUCCESS)
}

/// What the user was warned of, for the report.
#[derive(Default)]
struct Warnings(Vec<String>);

impl Warnings {
    /// Says it on stderr, with `--quiet` too, and keeps it.
    fn say(&mut self, warning: String) {
        output::note(false, format_args!("warning: {warning}"));
        self.0.push(warning);
    }
}

/// What the user should know about the files read.
fn warn_of_inputs(
    source: &GgufFile<FileBytes>,
    args: &QuantizeArgs,
    imatrix: Option<&Imatrix>,
    warnings: &mut Warnings,
) {
    if source.trailing_bytes() > 0 {
        warnings.say(format!(
            "{}: {} bytes after the last tensor belong to nothing and are left out; if nobody put them there, fetch or convert the file again",
            source.file(),
            source.trailing_bytes()
        ));
    }
    let (Some(path), Some(imatrix)) = (&args.imatrix, imatrix) else {
        return;
    };
    let has_any = |entry: &ImatrixEntry| (0..entry.experts()).any(|e| entry.expert(e).is_some());
    if !args.bulk.uses_importance() {
        warnings.say(format!(
            "{} is made without looking at importances; --imatrix changes nothing",
            args.bulk
        ));
    } else if !imatrix.entries.values().any(has_any) {
        warnings.say(format!(
            "{} holds importances of no expert, so it changes nothing; `zonos imatrix` with a longer corpus or a smaller --min-hits makes some",
            path.display()
        ));
    }
}

fn values_of(tensor: &TensorInfo) -> u64 {
    tensor.dims().iter().product()
}

fn read_imatrix(path: &Path) -> Result<Imatrix, Failure> {
    let bytes = weights::file_bytes(path)?;
    Ok(Imatrix::read(&path.display().to_string(), bytes.as_ref())?)
}

/// The rules are made for the names of ZONOS2.
fn check_architecture(source: &GgufFile<FileBytes>, args: &QuantizeArgs) -> Result<(), Failure> {
    let found = source.metadata().get(ARCHITECTURE);
    if found.and_then(zonos_gguf::Value::as_str) == Some("zonos2") || args.force {
        return Ok(());
    }
    let whose = found.map_or_else(
        || format!("{ARCHITECTURE} is missing"),
        |found| format!("{ARCHITECTURE} is '{found}'"),
    );
    Err(Failure::failed(format!(
        "{}: {whose}, expected 'zonos2': which of its tensors stand few bits is not known; --force applies the rules all the same",
        source.file()
    )))
}

/// What of a policy a file has tensors for.
#[derive(Clone, Copy)]
struct Used {
    /// Some tensor gets the type asked for.
    bulk: bool,
    /// Some down projection gets the next type.
    tier_up: bool,
}

impl Used {
    fn of(source: &GgufFile<FileBytes>, policy: &Policy) -> Self {
        let level = Policy {
            down_tier_up: false,
            ..*policy
        };
        let by = |policy: &Policy, t: &TensorInfo| {
            policy.storage_type(t.name(), t.dims(), t.ggml_type())
        };
        let tensors = source.tensors();
        Self {
            bulk: tensors.iter().any(|t| by(policy, t) == policy.bulk),
            tier_up: tensors.iter().any(|t| by(policy, t) != by(&level, t)),
        }
    }

    /// What was asked for in vain.
    fn warn(self, policy: &Policy, warnings: &mut Warnings) {
        let bulk = policy.bulk;
        if !self.bulk {
            warnings.say(format!(
                "no tensor becomes {bulk}: there are no experts, or their rows are no whole blocks of {} values",
                bulk.block_values()
            ));
        }
        if policy.down_tier_up && !self.tier_up {
            warnings.say(format!(
                "--down-tier-up changes nothing: {bulk} has no next type, or no down projection can have it"
            ));
        }
    }
}

/// What was done.
struct Done<'a> {
    policy: &'a Policy,
    used: Used,
    report: &'a QuantizeReport,
    values: u64,
    seconds: f64,
}

impl Done<'_> {
    /// What the user should know about the file.
    fn warn(&self, input: &str, imatrix: Option<&Path>, warnings: &mut Warnings) {
        let mut say = |names: &[String], what: &str, so: &str| {
            if let Some((shown, count)) = weights::first_names(names.iter().map(String::as_str)) {
                let noun = if count == 1 { "tensor" } else { "tensors" };
                warnings.say(format!("{count} {noun} of {what} ({shown}); {so}"));
            }
        };
        let report = self.report;
        say(
            &report.requantized,
            &format!(
                "{input} had lost precision already{}",
                // Halves and floats hold what is left.
                if self.policy.bulk.is_quantized() {
                    " and lost more"
                } else {
                    ", which no type brings back"
                }
            ),
            "quantise the unquantised file",
        );
        let bad: Vec<String> = report.not_finite.iter().map(|(n, _)| n.clone()).collect();
        say(
            &bad,
            &format!("{input} with NaN, infinity or values too large for the new type"),
            "what they became is no number, or none that means anything: check where the file comes from",
        );
        if let Some(imatrix) = imatrix {
            say(
                &report.importance_unused,
                &format!(
                    "{} are not in {input} or have another shape there",
                    imatrix.display()
                ),
                "their importances were not used",
            );
        }
    }

    fn bits(&self, bytes: u64) -> f64 {
        bytes as f64 * 8.0 / self.values.max(1) as f64
    }

    fn report(
        &self,
        args: &QuantizeArgs,
        global: &GlobalArgs,
        warnings: &Warnings,
    ) -> Result<(), Failure> {
        let report = self.report;
        if global.json {
            let types: serde_json::Map<String, Value> = report
                .types
                .iter()
                .map(|(t, (tensors, bytes))| {
                    let bits = t.bits_per_value();
                    let row =
                        json!({ "tensors": tensors, "bytes": bytes, "bits_per_weight": bits });
                    (t.name().to_owned(), row)
                })
                .collect();
            let not_finite: Vec<Value> = report
                .not_finite
                .iter()
                .map(|(name, rows)| json!({ "tensor": name, "rows": rows }))
                .collect();
            return output::print_json(&json!({
                "input": args.input.display().to_string(),
                "output": args.output.display().to_string(),
                "type": self.policy.bulk.name(),
                "experts_only": self.policy.experts_only,
                "spine_f16": self.policy.spine_f16,
                "down_tier_up": self.policy.down_tier_up,
                "imatrix": args.imatrix.as_ref().map(|path| path.display().to_string()),
                "types": types,
                "bytes_before": report.bytes_before,
                "bytes_after": report.bytes_after,
                "bits_per_weight_before": self.bits(report.bytes_before),
                "bits_per_weight": self.bits(report.bytes_after),
                "requantized": report.requantized,
                "not_finite": not_finite,
                "importance_unused": report.importance_unused,
                "seconds": self.seconds,
                "warnings": warnings.0,
            }));
        }
        if global.quiet {
            return Ok(());
        }
        output::print("type    tensors            bytes  bits per weight")?;
        for (t, (tensors, bytes)) in &report.types {
            output::print(format_args!(
                "{:<6}  {tensors:>7}  {bytes:>15}  {:>15.4}",
                t.name(),
                t.bits_per_value()
            ))?;
        }
        let tensors: usize = report.types.values().map(|(tensors, _)| tensors).sum();
        output::print(format_args!(
            "all     {tensors:>7}  {:>15}  {:>15.4}",
            report.bytes_after,
            self.bits(report.bytes_after)
        ))?;
        output::print(format_args!(
            "before  {tensors:>7}  {:>15}  {:>15.4}",
            report.bytes_before,
            self.bits(report.bytes_before)
        ))?;
        output::note(
            false,
            format_args!(
                "{}: {} in {:.2} s",
                args.output.display(),
                self.what(),
                self.seconds
            ),
        );
        Ok(())
    }

    /// The policy in words.
    fn what(&self) -> String {
        let Policy {
            bulk,
            experts_only,
            spine_f16,
            down_tier_up,
        } = self.policy;
        let mut text = match (experts_only, spine_f16) {
            _ if !self.used.bulk => format!("no tensor {bulk}"),
            (true, true) => format!("experts {bulk}, spine F16"),
            (true, false) => format!("experts {bulk}, spine Q8_0"),
            (false, _) => format!("{bulk} everywhere"),
        };
        if *down_tier_up && self.used.tier_up {
            text += ", down projections one tier up";
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: QuantizeArgs,
    }

    fn policy(flags: &str) -> Policy {
        let words = ["zonos", "in.gguf", "out.gguf"].into_iter();
        let line = Line::try_parse_from(words.chain(flags.split(' '))).ok();
        line.expect("a valid line").args.policy()
    }

    #[test]
    fn flags_and_policies() {
        assert_eq!(policy("q4_k"), Policy::recommended(GgmlType::Q4K));
        assert_eq!(
            policy("q8_0 --spine-f16"),
            Policy::recommended(GgmlType::Q8_0)
        );
        assert_eq!(
            policy("Q6_K --experts-only --spine-f16"),
            Policy::recommended(GgmlType::Q6K)
        );
        let spine = policy("q4_k --experts-only");
        assert!(spine.experts_only && !spine.spine_f16);
        assert_eq!(
            policy("q4_k --everything"),
            Policy::everything(GgmlType::Q4K)
        );
        assert_eq!(policy("bf16"), Policy::everything(GgmlType::Bf16));
        assert!(policy("q4_k --down-tier-up").down_tier_up);
        assert!(ggml_type("iq3_s").is_err() && ggml_type("q9").is_err());
    }
}
