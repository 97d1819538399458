//! The ggml side: a small program over its CPU backend that runs one repetition on demand.
//!
//! `$ZONOS_GGML` names a folder with ggml's source, built in its folder `build`. The program is compiled
//! against it when the bench starts; docs/performance.md, "Against ggml", has the commands.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, bail, ensure};
use serde::{Deserialize, Serialize};
use zonos_gguf::GgmlType;

use super::median;
use crate::workspace;

const FOLDER: &str = "ZONOS_GGML";
const HOW: &str = "docs/performance.md, \"Against ggml\", says how to build it";
/// Below this folder: where headers and libraries lie in ggml's own repository and in those that carry it.
const HEADERS: [&str; 2] = ["include", "ggml/include"];
const LIBRARIES: [&str; 3] = ["build/src", "build/bin", "build/ggml/src"];
/// Eight-bit activations stay under 0.017 of the exact product; more is another product.
const MAX_DEVIATION: f64 = 0.03;

/// A folder with headers and libraries.
#[derive(Debug)]
pub(super) struct Build {
    headers: PathBuf,
    libraries: PathBuf,
}

impl Build {
    /// The build in the folder that `$ZONOS_GGML` names.
    pub(super) fn find() -> anyhow::Result<Self> {
        match std::env::var_os(FOLDER).filter(|v| !v.is_empty()) {
            Some(folder) => Self::at(folder.as_ref()),
            None => bail!("${FOLDER} is unset, it names ggml's source folder; {HOW}"),
        }
    }

    fn at(folder: &Path) -> anyhow::Result<Self> {
        let with = |places: &[&str], file: &str| {
            let mut found = places.iter().map(|p| folder.join(p));
            found.find(|dir| dir.join(file).is_file()).with_context(|| {
                let places = places.join(", ");
                format!(
                    "${FOLDER}: {} has no {file} in {places}; {HOW}",
                    folder.display()
                )
            })
        };
        let (prefix, suffix) = (std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
        Ok(Self {
            headers: with(&HEADERS, "ggml-cpu.h")?,
            libraries: with(&LIBRARIES, &format!("{prefix}ggml-cpu{suffix}"))?,
        })
    }

    /// Compiles the program with `$CXX`, or `c++`, into `to`.
    fn compile(&self, to: &Path) -> anyhow::Result<()> {
        let compiler = std::env::var_os("CXX").unwrap_or_else(|| "c++".into());
        let mut rpath = std::ffi::OsString::from("-Wl,-rpath,");
        rpath.push(&self.libraries);
        let output = Command::new(&compiler)
            .args(["-O2", "-std=c++17", "-o"])
            .arg(to)
            .arg(workspace::root().join("xtask/src/bench/ggml_driver.cpp"))
            .arg("-I")
            .arg(&self.headers)
            .arg("-L")
            .arg(&self.libraries)
            .arg(rpath)
            .args(["-lggml-cpu", "-lggml-base"])
            .output()
            .with_context(|| {
                let compiler = compiler.display();
                format!("cannot run the C++ compiler {compiler}; name another with $CXX")
            })?;
        ensure!(
            output.status.success(),
            "{} cannot compile ggml_driver.cpp against {}: {}",
            compiler.display(),
            self.headers.display(),
            String::from_utf8_lossy(&output.stderr).trim()
        );
        Ok(())
    }
}

/// What the program answers to `load`.
#[derive(Deserialize)]
struct Loaded {
    bytes: usize,
    forms: Vec<String>,
}

/// What it answers to `time`, one value of each form.
#[derive(Deserialize)]
struct Timed {
    seconds: Vec<f64>,
    deviation: Vec<f64>,
}

/// The running program.
#[derive(Debug)]
pub(super) struct Ggml {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    /// The forms of the weights that are loaded, as ggml calls them.
    forms: Vec<String>,
    /// Holds the program.
    _folder: tempfile::TempDir,
}

impl Ggml {
    pub(super) fn start(build: &Build, threads: usize) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir().context("no folder for the ggml program")?;
        let program = folder.path().join("ggml_driver");
        build.compile(&program)?;
        let mut child = Command::new(&program)
            .arg(threads.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot run {}", program.display()))?;
        let to = child.stdin.take().context("no pipe to the ggml program")?;
        let from = child
            .stdout
            .take()
            .context("no pipe from the ggml program")?;
        let mut ggml = Self {
            child,
            to,
            from: BufReader::new(from),
            forms: Vec::new(),
            _folder: folder,
        };
        let ready = ggml.line()?;
        match ready.strip_prefix("ready ") {
            Some(features) => println!("ggml side: {features}"),
            None => bail!("the ggml program said {ready:?}, expected ready"),
        }
        Ok(ggml)
    }

    /// As many weights `[outputs, inputs]` as make `bytes`, in every form that ggml multiplies from.
    pub(super) fn load(
        &mut self,
        t: GgmlType,
        [outputs, inputs]: [usize; 2],
        bytes: usize,
    ) -> anyhow::Result<()> {
        let command = format!("load {t} {outputs} {inputs} {bytes}");
        let loaded: Loaded = self.ask(&command)?;
        ensure!(
            loaded.bytes == bytes,
            "'{command}': ggml holds {} bytes",
            loaded.bytes
        );
        self.forms = loaded.forms;
        Ok(())
    }

    /// One repetition of each form with as many `rows` of activations.
    pub(super) fn time(&mut self, rows: usize, times: &mut Times) -> anyhow::Result<()> {
        let command = format!("time {rows}");
        let timed: Timed = self.ask(&command)?;
        let n = self.forms.len();
        ensure!(
            timed.seconds.len() == n && timed.deviation.len() == n,
            "'{command}': the ggml program answered {} times for {n} forms",
            timed.seconds.len()
        );
        for (form, deviation) in self.forms.iter().zip(&timed.deviation) {
            ensure!(
                *deviation < MAX_DEVIATION,
                "'{command}', {form}: ggml's product is {deviation:.3} away from the exact one"
            );
        }
        times.forms.resize_with(n, Default::default);
        for (i, (name, seconds)) in self.forms.iter().zip(timed.seconds).enumerate() {
            times.forms[i].0.clone_from(name);
            times.forms[i].1.push(seconds);
        }
        Ok(())
    }

    fn ask<T: for<'de> Deserialize<'de>>(&mut self, command: &str) -> anyhow::Result<T> {
        writeln!(self.to, "{command}").context("the ggml program ended early")?;
        self.to.flush()?;
        let answer = self.line()?;
        serde_json::from_str(&answer)
            .with_context(|| format!("'{command}': the ggml program answered {answer}"))
    }

    fn line(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        if self.from.read_line(&mut line)? == 0 {
            bail!("the ggml program ended early ({})", self.child.wait()?);
        }
        Ok(line.trim().to_owned())
    }
}

impl Drop for Ggml {
    fn drop(&mut self) {
        // It may have ended by itself; either way it must not outlive the bench.
        let _ = writeln!(self.to, "quit");
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Seconds of each form, repetition by repetition.
#[derive(Debug, Default)]
pub(super) struct Times {
    forms: Vec<(String, Vec<f64>)>,
}

impl Times {
    /// The median of each form after its first repetition, which warms up.
    fn medians(&self) -> Vec<Form> {
        let forms = self.forms.iter().map(|(name, seconds)| Form {
            name: name.clone(),
            seconds: median(&mut seconds.get(1..).unwrap_or_default().to_vec()),
        });
        forms.collect()
    }
}

/// A form of weights and its median.
#[derive(Debug, Serialize)]
struct Form {
    name: String,
    seconds: f64,
}

/// Ours and ggml over the same bytes of weights.
#[derive(Debug, Serialize)]
pub(super) struct Compared {
    #[serde(rename = "type")]
    name: &'static str,
    rows: usize,
    bytes: usize,
    /// Median seconds of ours with f32 activations, and with activations rounded to eight bits.
    exact: f64,
    eight_bit: Option<f64>,
    /// Median seconds of a plain read of as many bytes.
    read: f64,
    ggml: Vec<Form>,
}

impl Compared {
    pub(super) fn new(
        (t, rows, bytes): (GgmlType, usize, usize),
        (exact, eight_bit): (f64, Option<f64>),
        read: f64,
        ggml: &Times,
    ) -> Self {
        Self {
            name: t.name(),
            rows,
            bytes,
            exact,
            eight_bit,
            read,
            ggml: ggml.medians(),
        }
    }

    /// ggml's fastest form.
    fn best(&self) -> Option<&Form> {
        self.ggml
            .iter()
            .min_by(|a, b| a.seconds.total_cmp(&b.seconds))
    }
}

/// Rates of ours and of ggml's fastest form, and how many times faster ours is.
pub(super) fn print_table(lines: &[Compared]) {
    if lines.is_empty() {
        return;
    }
    println!("against ggml, GB/s of weights; ratio: how many times faster ours is");
    println!(
        "{:<8} {:>4} {:>7} {:>7} {:>10} {:>7} {:>11} {:>10}  ggml's fastest form",
        "type", "rows", "read", "exact", "eight bits", "ggml", "exact/ggml", "eight/ggml"
    );
    for line in lines {
        let Some(best) = line.best() else { continue };
        let rate = |seconds: f64| line.bytes as f64 / seconds / 1e9;
        let or_dash = |x: Option<f64>, unit: &str| {
            x.map_or_else(|| "-".to_owned(), |x| format!("{x:.2}{unit}"))
        };
        println!(
            "{:<8} {:>4} {:>7.2} {:>7.2} {:>10} {:>7.2} {:>11} {:>10}  {}",
            line.name,
            line.rows,
            rate(line.read),
            rate(line.exact),
            or_dash(line.eight_bit.map(rate), ""),
            rate(best.seconds),
            format!("{:.2}x", best.seconds / line.exact),
            or_dash(line.eight_bit.map(|x| best.seconds / x), "x"),
            best.name
        );
    }
}

#[cfg(test)]
mod tests {
    use super::{Build, Compared, GgmlType, Times};

    #[test]
    fn a_folder_without_a_build_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let error = Build::at(folder.path()).unwrap_err().to_string();
        assert!(error.contains("ggml-cpu.h"), "{error}");
        std::fs::create_dir(folder.path().join("include")).unwrap();
        std::fs::write(folder.path().join("include/ggml-cpu.h"), "").unwrap();
        let error = Build::at(folder.path()).unwrap_err().to_string();
        assert!(error.contains("build/src"), "{error}");
    }

    #[test]
    fn the_fastest_form_counts_without_its_warm_up() {
        let forms = vec![
            ("CPU".to_owned(), vec![0.1, 3.0, 3.5]),
            ("CPU_REPACK".to_owned(), vec![9.0, 2.0, 2.0]),
        ];
        let line = Compared::new((GgmlType::Q4_0, 1, 8), (1.0, None), 1.0, &Times { forms });
        let best = line.best().unwrap();
        assert_eq!((best.name.as_str(), best.seconds), ("CPU_REPACK", 2.0));
    }
}
