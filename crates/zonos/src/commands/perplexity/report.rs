//! The numbers of `zonos perplexity`, for people and for programs.

use std::path::Path;

use serde_json::{Value, json};
use zonos_gguf::Perplexity;
use zonos_gguf::kld::{KldMeans, KldReport};

use crate::args::GlobalArgs;
use crate::failure::Failure;
use crate::output;

/// What ran.
pub(super) struct Run<'a> {
    pub(super) model: &'a str,
    pub(super) device: &'a str,
    pub(super) fast: bool,
    pub(super) seconds: f64,
    pub(super) sequences: usize,
    pub(super) rows: usize,
}

impl Run<'_> {
    fn json(&self) -> Value {
        json!({
            "model": self.model,
            "device": self.device,
            "fast": self.fast,
            "sequences": self.sequences,
            "rows": self.rows,
            "seconds": self.seconds,
        })
    }

    fn size(&self, events: usize) -> String {
        format!(
            "{events} events in {} rows of {} sequences",
            self.rows, self.sequences
        )
    }
}

/// One object of two.
fn merged(mut first: Value, second: Value) -> Value {
    if let (Value::Object(first), Value::Object(second)) = (&mut first, second) {
        first.extend(second);
    }
    first
}

/// How surprised a model is.
pub(super) fn perplexity(
    run: &Run<'_>,
    perplexity: &Perplexity,
    base: Option<&Path>,
    warnings: &[String],
    global: &GlobalArgs,
) -> Result<(), Failure> {
    if global.json {
        let codebooks: Vec<Value> = perplexity
            .codebooks()
            .enumerate()
            .map(|(c, (events, ppl))| json!({ "codebook": c, "events": events, "ppl": ppl }))
            .collect();
        let numbers = json!({
            "base": base.map(|path| path.display().to_string()),
            "events": perplexity.events(),
            "ppl": perplexity.all(),
            "codebooks": codebooks,
            "warnings": warnings,
        });
        return output::print_json(&merged(run.json(), numbers));
    }
    output::print(format_args!("{}", run.size(perplexity.events())))?;
    output::print(format_args!(
        "perplexity  {:.4}",
        perplexity.all().unwrap_or(f64::NAN)
    ))?;
    output::print("\ncodebook  events  perplexity")?;
    for (c, (events, ppl)) in perplexity.codebooks().enumerate() {
        let ppl = ppl.map_or_else(|| "none".to_owned(), |ppl| format!("{ppl:.4}"));
        output::print(format_args!("{c:>8}  {events:>6}  {ppl:>10}"))?;
    }
    if let Some(base) = base {
        let name = base.display();
        output::note(
            global.quiet,
            format_args!("{name}: base of {} events", perplexity.events()),
        );
    }
    Ok(())
}

/// How far a model is from its reference. The names in JSON are those of the golden numbers.
pub(super) fn comparison(
    run: &Run<'_>,
    report: &KldReport,
    base: &Path,
    plot: Option<&Path>,
    global: &GlobalArgs,
) -> Result<(), Failure> {
    let all = &report.all;
    if global.json {
        let means = |means: &KldMeans| {
            json!({
                "events": means.events,
                "ppl_ref": means.ppl_reference,
                "ppl_test": means.ppl_test,
                "kld_mean": means.kld_mean,
                "top1_agreement": means.top1_agreement,
            })
        };
        let codebooks: Vec<Value> = report
            .codebooks
            .iter()
            .enumerate()
            .map(|(c, of)| merged(json!({ "codebook": c }), means(of)))
            .collect();
        let numbers = json!({
            "base": base.display().to_string(),
            "plot": plot.map(|path| path.display().to_string()),
            "kld_median": report.kld_median,
            "kld_p90": report.kld_p90,
            "kld_p95": report.kld_p95,
            "kld_p99": report.kld_p99,
            "kld_max": report.kld_max,
            "kld_min": report.kld_min,
            "dlogp_mean": report.dlogp_mean,
            "dlogp_rms": report.dlogp_rms,
            "codebooks": codebooks,
        });
        return output::print_json(&merged(merged(run.json(), means(all)), numbers));
    }
    output::print(format_args!("{}", run.size(all.events)))?;
    output::print(format_args!(
        "perplexity      {:.4}, of the reference {:.4}",
        all.ppl_test, all.ppl_reference
    ))?;
    output::print(format_args!(
        "KL divergence   mean {:.6}, median {:.6}, p90 {:.6}, p95 {:.6}, p99 {:.6}",
        all.kld_mean, report.kld_median, report.kld_p90, report.kld_p95, report.kld_p99
    ))?;
    output::print(format_args!(
        "                largest {:.6}, smallest {:.6}",
        report.kld_max, report.kld_min
    ))?;
    output::print(format_args!(
        "same likeliest  {:.2} %",
        100.0 * all.top1_agreement
    ))?;
    output::print(format_args!(
        "label's log p   differs by {:+.6} on average, RMS {:.6}",
        report.dlogp_mean, report.dlogp_rms
    ))?;
    output::print("\ncodebook  events  perplexity   reference  mean KLD  same likeliest")?;
    for (c, of) in report.codebooks.iter().enumerate() {
        if of.events == 0 {
            output::print(format_args!(
                "{c:>8}  {:>6}  {:>10}  {:>10}  {:>8}  {:>12}",
                0, "none", "none", "none", "none"
            ))?;
            continue;
        }
        output::print(format_args!(
            "{c:>8}  {:>6}  {:>10.4}  {:>10.4}  {:>8.6}  {:>12.2} %",
            of.events,
            of.ppl_test,
            of.ppl_reference,
            of.kld_mean,
            100.0 * of.top1_agreement
        ))?;
    }
    if let Some(plot) = plot {
        output::note(global.quiet, format_args!("{}: drawn", plot.display()));
    }
    Ok(())
}
