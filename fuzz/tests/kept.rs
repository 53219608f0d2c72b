//! Tests the fuzz targets without a fuzzer: replays the seed corpus and every input that caused a crash.
//!
//! Covers: G-18.
use std::path::{Path, PathBuf};
use turnway_fuzz::{TARGETS, target};

/// Returns the files of a directory; none if the directory does not exist.
fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    paths
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Covers: G-18, S-13, S-14.
#[test]
fn corpus_and_crash_inputs_cause_no_panic() {
    for target in TARGETS {
        let corpus = files(&root().join("corpus").join(target.name));
        assert!(!corpus.is_empty(), "{} has nothing to begin with", target.name);
        for path in corpus.into_iter().chain(files(&root().join("crashes").join(target.name))) {
            let bytes = std::fs::read(&path).expect("a file");
            let read = std::panic::catch_unwind(|| (target.read)(&bytes));
            assert!(read.is_ok(), "{} breaks it", path.display());
        }
    }
}

/// Each corpus file must be accepted: a target that refuses everything would never crash.
#[test]
fn corpus_inputs_are_accepted_by_their_target() {
    for target in TARGETS {
        let corpus = files(&root().join("corpus").join(target.name));
        let makes_sense = |path: &PathBuf| (target.read)(&std::fs::read(path).expect("a file")) > 0;
        let nonsense: Vec<_> = corpus.iter().filter(|path| !makes_sense(path)).collect();
        assert!(nonsense.is_empty(), "{}: {nonsense:?}", target.name);
    }
}

#[test]
fn kept_directories_belong_to_a_target() {
    for dir in ["corpus", "crashes"].map(|dir| files(&root().join(dir))).concat() {
        let name = dir.file_name().and_then(|name| name.to_str()).expect("a name");
        assert!(target(name).is_some(), "{} is of no target", dir.display());
    }
}
