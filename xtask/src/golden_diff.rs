//! `cargo xtask golden-diff`.

use std::path::{Path, PathBuf};

use anyhow::Context;
use golden_diff::{Component, Counts, GoldenError, Override, Report, Request};

use crate::{dac_recipe, ecapa_recipe, workspace};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only this component: zonos2, dac, ecapa, w2v-bert, audio, or one of them with -gradients behind it
    #[arg(long, value_name = "C")]
    component: Option<Component>,
    /// Where to run: cpu, flex, ndarray, cuda or cuda:N, wgpu, vulkan or vulkan:N, metal
    #[arg(long, value_name = "D", default_value = "cpu")]
    device: String,
    /// One golden folder; without it, the fixtures and the folders under $ZONOS_GOLDENS
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Checkpoint for a folder that holds none
    #[arg(long, value_name = "FILE", requires = "dir")]
    checkpoint: Option<PathBuf>,
    /// Write everything that was measured as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the report as one HTML page
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Another limit for keys that match, as in layer.*.out=1e-3; may be repeated
    #[arg(long, value_name = "KEY=LIMIT", value_parser = Override::parse)]
    tolerance: Vec<Override>,
    /// Rules for half precision: cosines and shares of equal choices
    #[arg(long)]
    half: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<bool> {
    let mut request = Request::new(PathBuf::new(), &args.device)?;
    request.component = args.component;
    request.checkpoint.clone_from(&args.checkpoint);
    request.overrides.clone_from(&args.tolerance);
    request.half = args.half;

    let folders = match &args.dir {
        Some(dir) => vec![dir.clone()],
        None => known_folders()?,
    };
    let mut reports = Vec::new();
    let mut broken = 0;
    for dir in folders {
        request.dir.clone_from(&dir);
        match compare(&mut request, args.dir.is_none()) {
            Ok(Some(report)) => {
                print!("{report}");
                reports.push(report);
            }
            Ok(None) => {}
            Err(error) => {
                println!("{}: FAILED: {error:#}", dir.display());
                broken += 1;
            }
        }
    }

    let mut total = reports
        .iter()
        .map(Report::counts)
        .fold(Counts::default(), |a, b| a + b);
    total.failed += broken;
    if let Some(path) = &args.json {
        let value = serde_json::json!({ "totals": total, "folders": reports });
        workspace::write(path, &serde_json::to_string_pretty(&value)?)?;
    }
    if let Some(path) = &args.html {
        workspace::write(path, &golden_diff::html_page(&reports))?;
    }
    for report in &reports {
        println!("{}: {}", report.dir.display(), report.verdict());
    }
    println!(
        "golden-diff: {} tensors compared, {} failed, {} not compared",
        total.compared, total.failed, total.not_compared
    );
    Ok(total.compared > 0 && total.failed == 0 && reports.iter().all(Report::passed))
}

/// Compares one folder. With `listed` the folder was found, not asked for: another component's is
/// passed over.
fn compare(request: &mut Request, listed: bool) -> anyhow::Result<Option<Report>> {
    match golden_diff::run(request) {
        Ok(report) => Ok(Some(report)),
        Err(GoldenError::WrongComponent { .. } | GoldenError::Unrecognised { .. }) if listed => {
            Ok(None)
        }
        // Full-size models: their weights are numbers of a recipe, too many to store.
        Err(GoldenError::NoCheckpoint { dir }) if dir.join(dac_recipe::FACTS).is_file() => {
            let folder = tempfile::Builder::new().prefix("golden-diff-").tempdir()?;
            let made = match ecapa_recipe::Recipe::load(&dir)? {
                Some(recipe) => {
                    let made = folder.path().to_path_buf();
                    recipe.write(&made).map(|()| made)
                }
                None => {
                    let made = folder.path().join("recipe.safetensors");
                    dac_recipe::Recipe::load(&dir)?.write(&made).map(|()| made)
                }
            };
            let made =
                made.with_context(|| format!("{}: cannot make its weights", dir.display()))?;
            request.checkpoint = Some(made);
            let report = golden_diff::run(request);
            request.checkpoint = None;
            let mut report = report?;
            for row in &mut report.rows {
                "weights made by the recipe in facts.json".clone_into(&mut row.container);
            }
            Ok(Some(report))
        }
        Err(error) => Err(error.into()),
    }
}

fn known_folders() -> anyhow::Result<Vec<PathBuf>> {
    let mut bases = vec![workspace::fixtures()];
    bases.extend(workspace::goldens()?);
    let mut found = Vec::new();
    for base in bases {
        for area in workspace::GOLDEN_AREAS {
            let area = base.join(area);
            if area.is_dir() {
                found.extend(children(&area)?);
                found.push(area);
            }
        }
    }
    found.retain(|dir| golden_diff::is_golden_folder(dir));
    anyhow::ensure!(
        !found.is_empty(),
        "{}: no golden folders in it",
        workspace::fixtures().display()
    );
    Ok(found)
}

fn children(dir: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut paths = std::fs::read_dir(dir)
        .with_context(|| format!("{}: cannot read", dir.display()))?
        .map(|entry| entry.map(|e| e.path()))
        .collect::<Result<Vec<_>, _>>()?;
    paths.sort();
    Ok(paths)
}
