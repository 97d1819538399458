//! Divergences as a picture: how they are distributed, and what each codebook has of them.

use std::io::Write;
use std::path::Path;

use plotters::prelude::*;
use zonos_audio::AtomicFile;
use zonos_audio::plot::{Area, FONT, INK, PlotError, picture};
use zonos_gguf::kld::{Comparison, KldReport};

use crate::failure::Failure;
use crate::output;

const WIDTH: u32 = 1200;
const HEIGHT: u32 = 860;
const TITLE: u32 = 44;
const LINE: RGBColor = RGBColor(0x1f, 0x5f, 0xa8);
const BAR: RGBColor = RGBColor(0x7a, 0xa6, 0xd6);
const MARK: RGBColor = RGBColor(0xb0, 0x3a, 0x2e);

/// Where the logarithmic axis ends below: beside it a divergence is none.
const LEAST: f64 = 1e-8;

/// Draws the picture for `path`; the caller commits it.
pub(super) fn draw(
    path: &Path,
    model: &str,
    comparison: &Comparison,
    report: &KldReport,
) -> Result<AtomicFile, Failure> {
    let model = output::visible(model);
    let name = model.rsplit('/').next().unwrap_or(&model);
    let name: String = name.chars().take(60).collect();
    let title = format!(
        "{name}: mean KL divergence {:.6}, same likeliest id {:.2} % of {} events",
        report.all.kld_mean,
        100.0 * report.all.top1_agreement,
        report.all.events
    );
    let mut sorted: Vec<f64> = comparison.compared().iter().map(|c| c.kld).collect();
    sorted.sort_by(f64::total_cmp);
    let png = picture(WIDTH, HEIGHT, |root| {
        let (head, body) = root.split_vertically(TITLE);
        let style = (FONT, 22).into_font().color(&INK);
        head.draw(&Text::new(title, (60, 14), style))
            .map_err(PlotError::draw)?;
        let (above, below) = body.split_vertically((HEIGHT - TITLE) / 2);
        distribution(&above, &sorted, report)?;
        let (left, right) = below.split_horizontally(WIDTH / 2);
        let klds: Vec<f64> = report.codebooks.iter().map(|c| c.kld_mean).collect();
        let same = report.codebooks.iter().map(|c| 100.0 * c.top1_agreement);
        bars(&left, "mean KL divergence", &klds, None)?;
        bars(
            &right,
            "same likeliest id, %",
            &same.collect::<Vec<_>>(),
            Some(100.0),
        )
    })?;
    let mut file = AtomicFile::create(path)?;
    file.write_all(&png).map_err(|error| file.error(error))?;
    Ok(file)
}

/// The share of events up to each divergence, with the percentiles of the report.
fn distribution(area: &Area<'_>, sorted: &[f64], report: &KldReport) -> Result<(), PlotError> {
    let top = (report.kld_max * 1.5).max(LEAST * 100.0);
    let bottom = (report.kld_min / 1.5).clamp(LEAST, top / 10.0);
    let mut chart = ChartBuilder::on(area)
        .margin_top(6)
        .margin_left(10)
        .margin_right(24)
        .set_label_area_size(LabelAreaPosition::Left, 92)
        .set_label_area_size(LabelAreaPosition::Bottom, 48)
        .build_cartesian_2d(0.0..100.0, (bottom..top).log_scale())
        .map_err(PlotError::draw)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .axis_style(INK)
        .label_style((FONT, 15).into_font().color(&INK))
        .axis_desc_style((FONT, 16).into_font().color(&INK))
        .x_labels(11)
        .x_label_formatter(&|x| format!("{x:.0}"))
        .y_label_formatter(&|y| format!("{y:.0e}"))
        .x_desc("events, %, by growing divergence")
        .y_desc("KL divergence")
        .draw()
        .map_err(PlotError::draw)?;
    let share = |i: usize| 100.0 * (i as f64 + 0.5) / sorted.len() as f64;
    // More points than pixels would only cost time.
    let step = (sorted.len() / (2 * WIDTH as usize)).max(1);
    let mut points: Vec<(f64, f64)> = (0..sorted.len())
        .step_by(step)
        .map(|i| (share(i), sorted[i].max(bottom)))
        .collect();
    points.extend(
        sorted
            .last()
            .map(|kld| (share(sorted.len() - 1), kld.max(bottom))),
    );
    let line = PathElement::new(points, LINE.stroke_width(2));
    chart
        .draw_series(std::iter::once(line))
        .map_err(PlotError::draw)?;
    for (name, at, kld) in [
        ("median", 50.0, report.kld_median),
        ("p90", 90.0, report.kld_p90),
        ("p99", 99.0, report.kld_p99),
    ] {
        let point = (at, kld.max(bottom));
        let text = EmptyElement::at(point)
            + Circle::new((0, 0), 4, MARK.filled())
            + Text::new(
                format!("{name} {kld:.2e}"),
                (-118, -22),
                (FONT, 15).into_font().color(&MARK),
            );
        chart
            .draw_series(std::iter::once(text))
            .map_err(PlotError::draw)?;
    }
    Ok(())
}

/// A bar a codebook.
fn bars(area: &Area<'_>, name: &str, values: &[f64], top: Option<f64>) -> Result<(), PlotError> {
    let largest = values.iter().copied().fold(0.0, f64::max);
    let top = top.unwrap_or((largest * 1.15).max(LEAST));
    let mut chart = ChartBuilder::on(area)
        .margin_top(6)
        .margin_left(10)
        .margin_right(24)
        .caption(name, (FONT, 17).into_font().color(&INK))
        .set_label_area_size(LabelAreaPosition::Left, 72)
        .set_label_area_size(LabelAreaPosition::Bottom, 48)
        .build_cartesian_2d(-0.5..values.len() as f64 - 0.5, 0.0..top)
        .map_err(PlotError::draw)?;
    // Codebooks without an event have no bar.
    let numbers = values.iter().enumerate().filter(|(_, v)| !v.is_nan());
    let bars = numbers.map(|(i, &value)| {
        let middle = i as f64;
        let corners = [(middle - 0.35, 0.0), (middle + 0.35, value.min(top))];
        Rectangle::new(corners, BAR.filled())
    });
    chart.draw_series(bars).map_err(PlotError::draw)?;
    chart
        .configure_mesh()
        .disable_mesh()
        .axis_style(INK)
        .label_style((FONT, 15).into_font().color(&INK))
        .axis_desc_style((FONT, 16).into_font().color(&INK))
        .x_labels(values.len().clamp(2, 32))
        .y_labels(6)
        .x_label_formatter(&|x| whole(*x))
        .y_label_formatter(&|y| short(*y))
        .x_desc("codebook")
        .draw()
        .map_err(PlotError::draw)
}

/// Numbers of codebooks are whole; between them no label stands.
fn whole(x: f64) -> String {
    if (x - x.round()).abs() < 1e-6 {
        format!("{x:.0}")
    } else {
        String::new()
    }
}

fn short(y: f64) -> String {
    if y == 0.0 || y >= 0.01 {
        let text = format!("{y:.3}");
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        format!("{y:.1e}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zonos_gguf::kld::Event;

    fn comparison(events: usize, apart: f32) -> Comparison {
        let mut comparison = Comparison::new(9);
        for i in 0..events {
            let event = Event {
                sequence: 0,
                row: i / 9,
                codebook: i % 9,
                label: 0,
            };
            let reference = [0.5f32.ln(); 2];
            comparison.push(&event, &reference, &[apart * i as f32, 0.0]);
        }
        comparison
    }

    #[test]
    fn any_number_of_events_can_be_drawn() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("k.png");
        // Equal models have divergences of zero alone, which no logarithm shows.
        for (events, apart) in [(1, 0.0), (81, 0.0), (1, 2.0), (9000, 1e-3)] {
            let comparison = comparison(events, apart);
            let report = comparison.report().unwrap();
            draw(&path, "a/b.gguf", &comparison, &report)
                .unwrap()
                .commit()
                .unwrap();
            assert!(std::fs::read(&path).unwrap().starts_with(b"\x89PNG"));
        }
    }

    #[test]
    fn labels() {
        assert_eq!((whole(3.0), whole(3.5)), ("3".into(), String::new()));
        assert_eq!(short(0.0), "0");
        assert_eq!(short(0.25), "0.25");
        assert_eq!(short(100.0), "100");
        assert_eq!(short(0.00025), "2.5e-4");
    }
}
