//! Replays the corpus of the fuzz targets.

#[allow(dead_code)] // the targets themselves use the rest
#[path = "../../../fuzz/targets.rs"]
mod targets;

use std::path::Path;

#[test]
fn every_seed_is_read_without_a_panic() {
    let corpus = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus"));
    let mut folders: Vec<String> = names(corpus);
    for (target, work) in targets::ALL {
        let known = folders.iter().position(|name| name == target);
        folders.remove(known.unwrap_or_else(|| panic!("no corpus for {target}")));
        let seeds = names(&corpus.join(target));
        assert!(!seeds.is_empty(), "{target}: no seeds");
        for seed in seeds {
            let bytes = std::fs::read(corpus.join(target).join(&seed)).unwrap();
            assert!(bytes.len() <= 16 << 10, "{target}/{seed} is no small seed");
            if std::panic::catch_unwind(|| work(&bytes)).is_err() {
                panic!("{target}/{seed}");
            }
        }
    }
    assert_eq!(folders, [""; 0], "folders without a target");
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}
