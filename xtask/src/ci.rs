//! `cargo xtask ci`: what continuous integration runs once its tools are installed.

use std::process::Command;

use anyhow::Context;

use crate::workspace;

const STEPS: [&[&str]; 5] = [
    &["fmt", "--all", "--", "--check"],
    &[
        "clippy",
        "--workspace",
        "--all-targets",
        "--",
        "-D",
        "warnings",
    ],
    &["test", "--workspace"],
    &["doc", "--workspace", "--no-deps"],
    &["run", "--quiet", "--package", "xtask", "--", "golden-diff"],
];

pub(crate) fn run() -> anyhow::Result<bool> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    for step in STEPS {
        println!("$ cargo {}", step.join(" "));
        let status = Command::new(&cargo)
            .args(step)
            .current_dir(workspace::root())
            .env("RUSTDOCFLAGS", "-D warnings")
            .status()
            .with_context(|| format!("cannot run {}", cargo.to_string_lossy()))?;
        if !status.success() {
            println!("failed: cargo {}", step.join(" "));
            return Ok(false);
        }
    }
    Ok(true)
}
