//! Reports as one HTML page with nothing outside it.

use std::fmt::Write as _;

use crate::report::{Counts, Report, number, percent, scientific, shape};

const STYLE: &str = "\
body{font:14px/1.45 system-ui,sans-serif;margin:2rem;color:#1b1f24;background:#fff}\
h1{font-size:1.4rem}h2{font-size:1.1rem;margin:2rem 0 .3rem}\
table{border-collapse:collapse;font:12px/1.4 ui-monospace,monospace}\
th,td{padding:.15rem .6rem;text-align:left;border-bottom:1px solid #e4e7eb;white-space:nowrap}\
td.n,th.n{text-align:right}tr.fail td{background:#fde8e8}.fail{color:#a40e26}.ok{color:#136f2c}\
.bar{display:inline-block;height:.6em;background:#7aa7e0;vertical-align:middle}\
tr.fail .bar{background:#d9534f}details{margin:.5rem 0}\
@media(prefers-color-scheme:dark){body{color:#dde;background:#14171b}th,td{border-color:#2c323a}\
tr.fail td{background:#3d1c20}.fail{color:#ff8a8a}.ok{color:#7fd893}}";

/// One page over all `reports`. The bar beside `max |d|` shows on a logarithmic scale how much of
/// the tolerance is used: empty at a thousandth, full at the limit.
pub fn page(reports: &[Report]) -> String {
    let mut out = String::new();
    let total = reports
        .iter()
        .map(Report::counts)
        .fold(Counts::default(), |a, b| a + b);
    // Writing to a String cannot fail.
    let _ = write!(
        out,
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>golden-diff</title><style>{STYLE}</style>\
         <h1>golden-diff</h1><p>{} tensors compared, <span class=\"{}\">{} failed</span>, {} not compared.</p>",
        total.compared,
        if total.failed == 0 { "ok" } else { "fail" },
        total.failed,
        total.not_compared
    );
    for report in reports {
        section(&mut out, report);
    }
    out.push_str("</html>\n");
    out
}

fn section(out: &mut String, report: &Report) {
    let class = if report.passed() { "ok" } else { "fail" };
    let _ = write!(
        out,
        "<h2>{} <small>{} on {}</small></h2><p class=\"{class}\">{}</p>",
        escape(&report.dir.display().to_string()),
        report.component,
        escape(&report.device),
        escape(&report.verdict())
    );
    for note in &report.notes {
        let _ = write!(out, "<p>{}</p>", escape(note));
    }
    let mut start = 0;
    while start < report.rows.len() {
        let container = &report.rows[start].container;
        let length = report.rows[start..]
            .iter()
            .take_while(|r| &r.container == container)
            .count();
        let rows = &report.rows[start..start + length];
        let failed = rows.iter().filter(|r| !r.passed()).count();
        let _ = write!(
            out,
            "<details{}><summary>{}: {} compared, {failed} failed</summary><table><tr><th>key<th>shape\
             <th class=n>cosine<th class=n>max |d|<th>of limit<th class=n>rel L2<th class=n>argmax<th class=n>equal\
             <th>tolerance<th>verdict</tr>",
            if failed > 0 || start == 0 {
                " open"
            } else {
                ""
            },
            escape(container),
            rows.len()
        );
        for row in rows {
            let m = &row.metrics;
            let _ = write!(
                out,
                "<tr{}><td>{}<td>{}<td class=n>{}<td class=n>{}<td>{}<td class=n>{}<td class=n>{}<td class=n>{}<td>{}<td>{}</tr>",
                if row.passed() { "" } else { " class=fail" },
                escape(&row.key),
                shape(&row.shape),
                number(m.cosine, |x| format!("{x:.8}")),
                number(m.max_abs, scientific),
                bar(row),
                number(m.relative_l2, scientific),
                number(m.argmax, percent),
                number(m.equal, percent),
                escape(&row.tolerance.to_string()),
                row.miss.as_deref().map_or_else(|| "ok".to_owned(), escape)
            );
        }
        out.push_str("</table></details>");
        start += length;
    }
    if !report.skipped.is_empty() {
        let _ = write!(
            out,
            "<details><summary>{} keys not compared</summary><table>",
            report.skipped.len()
        );
        for s in &report.skipped {
            let _ = write!(
                out,
                "<tr><td>{}<td>{}</tr>",
                escape(&s.key),
                escape(&s.reason.to_string())
            );
        }
        out.push_str("</table></details>");
    }
}

fn bar(row: &crate::report::Row) -> String {
    use crate::compare::Tolerance;
    let limit = match row.tolerance {
        Tolerance::Absolute { max_abs } => max_abs,
        Tolerance::Gradient { relative, max, .. } => relative * max,
        _ => return String::new(),
    };
    let used = match row.metrics.max_abs {
        Some(d) if d > 0.0 && limit > 0.0 => {
            ((d / limit).log10() / 3.0 + 1.0).clamp(0.0, 1.0) * 6.0
        }
        _ => 0.0,
    };
    format!("<span class=bar style=\"width:{used:.2}em\"></span>")
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}
