//! Spectrograms as PNG pictures: one sound, or several with common axes.
//!
//! ```
//! use zonos_audio::{Waveform, plot};
//!
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("spectra.png");
//! let before = Waveform::new((0..22_050).map(|i| (i as f32 * 0.1).sin()).collect(), 22_050);
//! let mut after = before.clone();
//! after.fade_out(200.0);
//! plot::before_after("tone.wav", &before, &after).save(&path)?;
//! assert!(std::fs::read(&path)?.starts_with(b"\x89PNG"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::io::Write;
use std::ops::Range;
use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::{FontStyle, register_font};

use crate::atomic::{AtomicFile, FileError};
use crate::levels::Levels;
use crate::spectrum::{SILENCE_DB, Spectrogram};
use crate::waveform::Waveform;

/// Why a picture could not be drawn.
#[derive(Debug, thiserror::Error)]
pub enum PlotError {
    /// A sound without samples or without a sample rate.
    #[error("'{0}' has no samples, so there is no spectrogram to draw")]
    Empty(String),
    /// The picture could not be drawn or encoded.
    #[error("cannot draw the picture: {0}")]
    Draw(String),
    /// The file could not be written.
    #[error(transparent)]
    File(#[from] FileError),
}

impl PlotError {
    /// What the drawing library says.
    pub fn draw(problem: impl std::fmt::Display) -> Self {
        Self::Draw(problem.to_string())
    }
}

/// Pixels.
const WIDTH: u32 = 1200;
const TITLE_HEIGHT: u32 = 44;
const PANEL_HEIGHT: u32 = 340;
const SCALE_WIDTH: u32 = 104;
/// Levels drawn, from the loudest down.
const RANGE_DB: f32 = 90.0;
/// Frames measured for each column of pixels, at most.
const OVERSAMPLING: usize = 4;

/// The font of [`picture`]s, of a name of its own, so that other users of the drawing library keep theirs.
pub const FONT: &str = "zonos-audio-plot";
/// The colour of their lines and letters.
pub const INK: RGBColor = RGBColor(0x22, 0x26, 0x2b);
/// Where a panel has no sound: beyond its end or above half its rate.
const NOTHING: RGBColor = RGBColor(0xe6, 0xe8, 0xea);

/// One sound.
pub fn spectrogram<'a>(title: &str, wave: &'a Waveform) -> Figure<'a> {
    Figure::new(title).panel("", wave)
}

/// Two sounds above each other, with common axes and colours.
pub fn before_after<'a>(title: &str, before: &'a Waveform, after: &'a Waveform) -> Figure<'a> {
    Figure::new(title)
        .panel("before", before)
        .panel("after", after)
}

/// A picture of one or more spectrograms.
#[derive(Debug, Clone)]
pub struct Figure<'a> {
    title: String,
    panels: Vec<(String, &'a Waveform)>,
}

impl<'a> Figure<'a> {
    /// No panels yet.
    pub fn new(title: &str) -> Self {
        Self {
            title: title.to_owned(),
            panels: Vec::new(),
        }
    }

    /// Adds a sound below those there are.
    #[must_use]
    pub fn panel(mut self, name: &str, wave: &'a Waveform) -> Self {
        self.panels.push((name.to_owned(), wave));
        self
    }

    /// Writes a PNG file, complete or not at all.
    ///
    /// # Errors
    /// A sound has no samples, or the file cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), PlotError> {
        Ok(self.stage(path)?.commit()?)
    }

    /// As [`save`](Self::save), but leaves the commit to the caller, for files that belong together.
    ///
    /// # Errors
    /// As [`save`](Self::save).
    pub fn stage(&self, path: impl AsRef<Path>) -> Result<AtomicFile, PlotError> {
        let png = self.to_png()?;
        let mut file = AtomicFile::create(path)?;
        file.write_all(&png).map_err(|e| file.error(e))?;
        Ok(file)
    }

    /// The PNG file's bytes.
    ///
    /// # Errors
    /// A sound has no samples.
    pub fn to_png(&self) -> Result<Vec<u8>, PlotError> {
        let (pixels, width, height) = self.render()?;
        encode(&pixels, width, height)
    }

    /// RGB pixels, width and height.
    fn render(&self) -> Result<(Vec<u8>, u32, u32), PlotError> {
        if self.panels.is_empty() {
            return Err(PlotError::Empty(self.title.clone()));
        }
        let columns = (WIDTH - SCALE_WIDTH) as usize;
        let maps = self
            .panels
            .iter()
            .map(|(name, wave)| {
                Spectrogram::of(wave, OVERSAMPLING * columns).map_err(|_| {
                    PlotError::Empty(if name.is_empty() { &self.title } else { name }.clone())
                })
            })
            .collect::<Result<Vec<_>, _>>()?;
        let axes = Axes::around(&self.panels, &maps);

        let height = TITLE_HEIGHT + PANEL_HEIGHT * self.panels.len() as u32;
        let pixels = canvas(WIDTH, height, |root| {
            let (title, body) = root.split_vertically(TITLE_HEIGHT);
            title
                .draw(&Text::new(
                    printable(&self.title, 90),
                    (60, 14),
                    (FONT, 22).into_font().color(&INK),
                ))
                .map_err(PlotError::draw)?;
            let (body, scale) = body.split_horizontally(WIDTH - SCALE_WIDTH);
            for (i, area) in body.split_evenly((self.panels.len(), 1)).iter().enumerate() {
                let (name, wave) = &self.panels[i];
                draw_panel(area, &caption(name, wave), &maps[i], &axes)?;
            }
            draw_scale(&scale, &axes)
        })?;
        Ok((pixels, WIDTH, height))
    }
}

/// The bytes of a PNG file of `width` by `height` pixels. `draw` gets it in white; [`FONT`] is known
/// to the drawing library then.
///
/// # Errors
/// What `draw` says, or the picture cannot be encoded.
pub fn picture(
    width: u32,
    height: u32,
    draw: impl FnOnce(&Area<'_>) -> Result<(), PlotError>,
) -> Result<Vec<u8>, PlotError> {
    encode(&canvas(width, height, draw)?, width, height)
}

/// RGB pixels.
fn canvas(
    width: u32,
    height: u32,
    draw: impl FnOnce(&Area<'_>) -> Result<(), PlotError>,
) -> Result<Vec<u8>, PlotError> {
    register_font(FONT, FontStyle::Normal, ttf_noto_sans::REGULAR)
        .map_err(|_| PlotError::draw("the font is damaged"))?;
    let mut pixels = vec![0; (width * height * 3) as usize];
    {
        let root = BitMapBackend::with_buffer(&mut pixels, (width, height)).into_drawing_area();
        root.fill(&WHITE).map_err(PlotError::draw)?;
        draw(&root)?;
        root.present().map_err(PlotError::draw)?;
    }
    Ok(pixels)
}

fn encode(pixels: &[u8], width: u32, height: u32) -> Result<Vec<u8>, PlotError> {
    let mut png = Vec::new();
    let mut encoder = png::Encoder::new(&mut png, width, height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    let mut writer = encoder.write_header().map_err(PlotError::draw)?;
    writer.write_image_data(pixels).map_err(PlotError::draw)?;
    writer.finish().map_err(PlotError::draw)?;
    Ok(png)
}

/// What the panels have in common.
struct Axes {
    seconds: f64,
    kilohertz: f64,
    decibels: Range<f32>,
}

impl Axes {
    fn around(panels: &[(String, &Waveform)], maps: &[Spectrogram]) -> Self {
        let seconds = panels.iter().map(|(_, w)| w.seconds()).fold(0.0, f64::max);
        let rate = panels.iter().map(|(_, w)| w.sample_rate()).max();
        let loudest = maps
            .iter()
            .map(Spectrogram::loudest)
            .fold(SILENCE_DB, f32::max);
        // In whole tens, and quiet sounds not blown up to look loud.
        let top = ((loudest / 10.0).ceil() * 10.0).clamp(-30.0, 60.0);
        Self {
            seconds,
            kilohertz: f64::from(rate.unwrap_or(0)) / 2000.0,
            decibels: top - RANGE_DB..top,
        }
    }

    /// 0 at the bottom of the range, 1 at its top.
    fn share(&self, decibel: f32) -> f32 {
        ((decibel - self.decibels.start) / RANGE_DB).clamp(0.0, 1.0)
    }
}

/// A part of a picture.
pub type Area<'a> = DrawingArea<BitMapBackend<'a>, Shift>;

fn draw_panel(
    area: &Area<'_>,
    caption: &str,
    map: &Spectrogram,
    axes: &Axes,
) -> Result<(), PlotError> {
    let mut chart = ChartBuilder::on(area)
        .margin_top(4)
        .margin_left(10)
        .margin_right(12)
        .caption(caption, (FONT, 17).into_font().color(&INK))
        .set_label_area_size(LabelAreaPosition::Left, 62)
        .set_label_area_size(LabelAreaPosition::Bottom, 48)
        .build_cartesian_2d(0.0..axes.seconds, 0.0..axes.kilohertz)
        .map_err(PlotError::draw)?;
    let (columns, rows) = chart.plotting_area().get_pixel_range();
    let (width, height) = (columns.end - columns.start, rows.end - rows.start);
    let mut pixels = Vec::with_capacity((width * height * 3).max(0) as usize);
    for y in 0..height {
        let hz = |y: i32| f64::from(height - y) / f64::from(height) * axes.kilohertz * 1000.0;
        for x in 0..width {
            let seconds = |x: i32| f64::from(x) / f64::from(width) * axes.seconds;
            let level = map.level((seconds(x), seconds(x + 1)), (hz(y + 1), hz(y)));
            let RGBColor(r, g, b) = level.map_or(NOTHING, |level| colour(axes.share(level)));
            pixels.extend([r, g, b]);
        }
    }
    let size = (width.max(0) as u32, height.max(0) as u32);
    if let Some(picture) = BitMapElement::with_owned_buffer((0.0, axes.kilohertz), size, pixels) {
        chart
            .draw_series(std::iter::once(picture))
            .map_err(PlotError::draw)?;
    }
    // Drawn last: the axes lie on the picture.
    chart
        .configure_mesh()
        .disable_mesh()
        .axis_style(INK)
        .label_style((FONT, 15).into_font().color(&INK))
        .axis_desc_style((FONT, 16).into_font().color(&INK))
        .x_labels(12)
        .y_labels(7)
        .x_label_formatter(&|x| number(*x))
        .y_label_formatter(&|y| number(*y))
        .x_desc("seconds")
        .y_desc("kHz")
        .draw()
        .map_err(PlotError::draw)
}

fn draw_scale(area: &Area<'_>, axes: &Axes) -> Result<(), PlotError> {
    let (top, bottom) = (f64::from(axes.decibels.end), f64::from(axes.decibels.start));
    let mut chart = ChartBuilder::on(area)
        .margin_top(34)
        .margin_bottom(48)
        .margin_left(8)
        .margin_right(8)
        .set_label_area_size(LabelAreaPosition::Right, 58)
        .build_cartesian_2d(0.0..1.0, bottom..top)
        .map_err(PlotError::draw)?;
    let steps = 256;
    let bars = (0..steps).map(|i| {
        let at = |i: i32| bottom + (top - bottom) * f64::from(i) / f64::from(steps);
        let colour = colour((i as f32 + 0.5) / steps as f32);
        Rectangle::new([(0.0, at(i)), (1.0, at(i + 1))], colour.filled())
    });
    chart.draw_series(bars).map_err(PlotError::draw)?;
    chart
        .configure_mesh()
        .disable_mesh()
        .axis_style(INK)
        .label_style((FONT, 15).into_font().color(&INK))
        .axis_desc_style((FONT, 16).into_font().color(&INK))
        .x_labels(0)
        .y_labels(10)
        .y_label_formatter(&|y| number(*y))
        .y_desc("dB, full-scale sine = 0")
        .draw()
        .map_err(PlotError::draw)
}

/// `before: 44.1 kHz, 3.21 s, peak -1.0 dBFS, RMS -20.3 dBFS`.
fn caption(name: &str, wave: &Waveform) -> String {
    let Levels { peak, .. } = wave.levels();
    let kilohertz = number(f64::from(wave.sample_rate()) / 1000.0);
    let mut text = format!("{kilohertz} kHz, {:.2} s", wave.seconds());
    if peak > 0.0 {
        let levels = wave.levels();
        text += &format!(
            ", peak {:.1} dBFS, RMS {:.1} dBFS",
            levels.peak_dbfs(),
            levels.rms_dbfs()
        );
    } else {
        text += ", silence";
    }
    match printable(name, 60) {
        name if name.is_empty() => text,
        name => format!("{name}: {text}"),
    }
}

/// As few digits as the number needs, three decimals at most.
fn number(x: f64) -> String {
    let text = format!("{x:.3}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" { "0" } else { text }.to_owned()
}

/// Names come from anywhere: one line, not too long.
fn printable(text: &str, most: usize) -> String {
    let clean = |c: char| if c.is_control() { ' ' } else { c };
    if text.chars().count() <= most {
        return text.chars().map(clean).collect();
    }
    let kept = text.chars().take(most - 1).map(clean);
    kept.chain(['…']).collect()
}

/// Dark to bright, brightness rising evenly, so that the picture also reads in grey.
fn colour(share: f32) -> RGBColor {
    const STOPS: [[u8; 3]; 8] = [
        [4, 4, 16],
        [32, 14, 68],
        [78, 18, 110],
        [130, 36, 112],
        [184, 56, 90],
        [228, 96, 52],
        [248, 160, 32],
        [252, 244, 164],
    ];
    let position = share.clamp(0.0, 1.0) * (STOPS.len() - 1) as f32;
    let below = (position as usize).min(STOPS.len() - 2);
    let part = position - below as f32;
    let mix = |i: usize| {
        let (a, b) = (f32::from(STOPS[below][i]), f32::from(STOPS[below + 1][i]));
        (a + (b - a) * part).round() as u8
    };
    RGBColor(mix(0), mix(1), mix(2))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chirp(seconds: f64, rate: u32, to_hz: f64) -> Waveform {
        let n = (seconds * f64::from(rate)) as usize;
        let samples = (0..n).map(|i| {
            let t = i as f64 / f64::from(rate);
            (0.5 * (std::f64::consts::PI * to_hz / seconds * t * t).sin()) as f32
        });
        Waveform::new(samples.collect(), rate)
    }

    #[test]
    fn the_brightest_line_is_the_chirp() {
        let wave = chirp(2.0, 16_000, 8000.0);
        let (pixels, width, _) = spectrogram("chirp", &wave).render().unwrap();
        let bright = |x: u32| {
            let value = |y: u32| {
                let at = ((y * width + x) * 3) as usize;
                // The brightest colour is yellow, which the paper is not.
                let [r, g, b] = [pixels[at], pixels[at + 1], pixels[at + 2]].map(i32::from);
                if b < 200 { r + g } else { 0 }
            };
            (TITLE_HEIGHT + 30..TITLE_HEIGHT + PANEL_HEIGHT - 50).max_by_key(|&y| value(y))
        };
        // Higher means nearer to the top, and a straight line.
        let [a, b, c] = [300, 550, 800].map(|x| i64::from(bright(x).unwrap()));
        assert!(a > b && b > c, "{a}, {b}, {c}");
        assert!(((a - b) - (b - c)).abs() < 8, "{a}, {b}, {c}");
    }

    #[test]
    fn panels_share_their_axes() {
        let (long, short) = (chirp(2.0, 24_000, 9000.0), chirp(1.0, 8000, 3000.0));
        let (pixels, width, height) = before_after("both", &long, &short).render().unwrap();
        assert_eq!(height, TITLE_HEIGHT + 2 * PANEL_HEIGHT);
        let at = |x: u32, y: u32| {
            let i = ((y * width + x) * 3) as usize;
            RGBColor(pixels[i], pixels[i + 1], pixels[i + 2])
        };
        let second = TITLE_HEIGHT + PANEL_HEIGHT;
        // The short one ends in the middle, and has nothing above 4 kHz.
        assert_eq!(at(900, second + 200), NOTHING);
        assert_eq!(at(200, second + 80), NOTHING);
        assert_ne!(at(200, second + 270), NOTHING);
        assert_ne!(at(900, TITLE_HEIGHT + 200), NOTHING);
    }

    #[test]
    fn sounds_without_samples_are_refused_by_name() {
        let (empty, good) = (Waveform::new(vec![], 8000), chirp(0.1, 8000, 100.0));
        let error = before_after("x", &good, &empty)
            .to_png()
            .unwrap_err()
            .to_string();
        assert!(error.contains("'after' has no samples"), "{error}");
        assert!(Figure::new("none").to_png().is_err());
        let silence = Waveform::new(vec![0.0; 100], 8000);
        assert!(spectrogram("", &silence).to_png().is_ok());
    }

    #[test]
    fn names_are_one_line() {
        assert_eq!(printable("a\nb\u{1b}[2J", 90), "a b [2J");
        assert_eq!(printable(&"x".repeat(100), 5), "xxxx…");
        assert_eq!(number(0.25), "0.25");
        assert_eq!(number(-0.0001), "0");
        assert_eq!(number(12.0), "12");
        let text = caption("before", &Waveform::new(vec![0.5, -0.5], 44_100));
        assert_eq!(
            text,
            "before: 44.1 kHz, 0.00 s, peak -6.0 dBFS, RMS -6.0 dBFS"
        );
    }

    #[test]
    fn nothing_is_left_of_a_picture_that_failed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.png");
        let empty = Waveform::new(vec![], 8000);
        assert!(spectrogram("e", &empty).save(&path).is_err());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        spectrogram("e", &chirp(0.1, 8000, 100.0))
            .save(&path)
            .unwrap();
        assert!(path.is_file());
    }
}
