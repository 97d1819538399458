//! `cargo xtask fixtures`: the fixtures are copies; this keeps them so. It also makes what is too large
//! to be one.

use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::{dac_recipe, ecapa_recipe, random_backbone, workspace};

/// Fixtures travel with every clone.
const MOST_BYTES: u64 = 40_000_000;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Copy what differs, instead of only naming it
    #[arg(long)]
    copy: bool,
    /// Write a checkpoint of real sizes, of random numbers, to --out and do nothing else
    #[arg(long, value_name = "WHICH", requires = "out", conflicts_with = "copy")]
    make: Option<Make>,
    /// Where --make writes: a folder for ecapa-full (24 MB) and zonos2-wide (2.6 GB), a .safetensors file for
    /// dac-full (306 MB)
    #[arg(long, value_name = "PATH", requires = "make")]
    out: Option<PathBuf>,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Make {
    /// The speaker encoder, whose goldens are among the fixtures; name the folder to the tests with $ZONOS_ECAPA_FULL
    EcapaFull,
    /// The codec, whose goldens are among the fixtures; name the file to the tests with $ZONOS_DAC_FULL
    DacFull,
    /// A backbone of the released widths, five layers deep, in BF16: what to try conversion, quantising and
    /// speaking at real sizes on
    Zonos2Wide,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<bool> {
    if let (Some(make), Some(out)) = (args.make, &args.out) {
        match make {
            Make::EcapaFull => {
                ecapa_recipe::Recipe::full(ecapa_recipe::FULL_SEED).write(out)?;
            }
            Make::DacFull => {
                dac_recipe::Recipe::load(&workspace::fixtures().join("dac/full"))?.write(out)?;
            }
            Make::Zonos2Wide => {
                std::fs::create_dir_all(out).with_context(|| out.display().to_string())?;
                random_backbone::write(out, &random_backbone::wide(), zonos_gguf::GgmlType::Bf16)?;
            }
        }
        println!("{}: written", out.display());
        return Ok(true);
    }
    let Some(source) = workspace::goldens()? else {
        anyhow::bail!(
            "${} is not set; name the folder that the fixtures were copied from",
            workspace::GOLDENS
        );
    };
    let target = workspace::fixtures();
    let (mut bytes, mut same, mut differ) = (0, 0, 0);
    for file in workspace::files_below(&target)? {
        let (from, to) = (source.join(&file), target.join(&file));
        bytes += std::fs::metadata(&to)?.len();
        // Others are made by a script beside them.
        let within = |areas: &[&str]| areas.iter().any(|area| file.starts_with(area));
        if !within(&workspace::GOLDEN_AREAS) || within(&workspace::SMALLER_AREAS) {
            continue;
        }
        if !from.is_file() {
            println!("{}: not in {}", file.display(), source.display());
            differ += 1;
        } else if equal(&from, &to)? {
            same += 1;
        } else if args.copy {
            std::fs::copy(&from, &to)
                .with_context(|| format!("{}: cannot copy", file.display()))?;
            println!("{}: copied", file.display());
            same += 1;
        } else {
            println!("{}: differs", file.display());
            differ += 1;
        }
    }
    println!(
        "fixtures: {same} as in {}, {differ} not; {:.1} MB",
        source.display(),
        bytes as f64 / 1e6
    );
    if bytes > MOST_BYTES {
        println!("fixtures: more than {} MB", MOST_BYTES / 1_000_000);
    }
    Ok(differ == 0 && bytes <= MOST_BYTES)
}

fn equal(a: &Path, b: &Path) -> anyhow::Result<bool> {
    let read = |path: &Path| {
        std::fs::read(path).with_context(|| format!("{}: cannot read", path.display()))
    };
    Ok(read(a)? == read(b)?)
}
