//! ZAC-1's encoder against its goldens.

use std::path::{Path, PathBuf};

use golden_diff::{Component, Request, run};

fn passes(dir: PathBuf) {
    let report = run(&Request::new(&dir, "cpu").unwrap()).unwrap();
    println!("{report}");
    assert_eq!(report.component, Component::Zac);
    assert!(report.passed(), "{}: {}", dir.display(), report.verdict());
}

#[test]
fn the_fixture() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/zac/mini-encoder");
    passes(dir);
}

/// With the real rates, hops, codebooks and resampling filters.
#[test]
fn the_golden_folder() {
    match std::env::var_os("ZONOS_GOLDENS") {
        Some(goldens) => passes(Path::new(&goldens).join("zac/tiny-encoder")),
        None => println!("ZONOS_GOLDENS is not set: zac/tiny-encoder was not compared"),
    }
}
