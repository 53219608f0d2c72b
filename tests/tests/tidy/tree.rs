//! The project's files, as git would track them.
use std::path::{Path, PathBuf};
use std::process::Command;

/// Every tracked file and every new one that is not ignored, by path from the root.
pub(crate) struct Tree {
    root: PathBuf,
    paths: Vec<String>,
}

/// One Rust file.
pub(crate) struct Source {
    /// From the root.
    pub(crate) path: String,
    /// As it is.
    pub(crate) text: String,
}

impl Tree {
    pub(crate) fn read() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the root").to_owned();
        let listed = Command::new("git")
            .args(["ls-files", "--cached", "--others", "--exclude-standard"])
            .current_dir(&root)
            .output();
        let listed = listed.ok().filter(|output| output.status.success());
        let mut paths: Vec<String> = match listed {
            Some(output) => String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect(),
            None => walk(&root, ""),
        };
        paths.retain(|path| root.join(path).is_file());
        paths.sort_unstable();
        assert!(paths.iter().any(|path| path == "Cargo.toml"), "this is not the project's root");
        Self { root, paths }
    }

    pub(crate) fn paths(&self) -> impl Iterator<Item = &str> {
        self.paths.iter().map(String::as_str)
    }

    /// A file's text; empty where it is not there or not text.
    pub(crate) fn text(&self, path: &str) -> String {
        std::fs::read_to_string(self.root.join(path)).unwrap_or_default()
    }

    pub(crate) fn write(&self, path: &str, text: &str) {
        std::fs::write(self.root.join(path), text).expect("the file can be written");
    }

    pub(crate) fn sources(&self) -> impl Iterator<Item = Source> {
        let rust = self.paths().filter(|path| path.ends_with(".rs"));
        rust.map(|path| Source { path: path.to_owned(), text: self.text(path) })
    }
}

/// Every file below a directory, where git cannot say: an unpacked archive has no history.
fn walk(root: &Path, below: &str) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(root.join(below)) else { return Vec::new() };
    let paths = entries.filter_map(|entry| {
        let name = entry.ok()?.file_name().into_string().ok()?;
        let skip = matches!(name.as_str(), "target" | ".git" | "__pycache__" | "turnway-data");
        (!skip).then(|| if below.is_empty() { name } else { format!("{below}/{name}") })
    });
    paths.flat_map(|path| if root.join(&path).is_dir() { walk(root, &path) } else { vec![path] }).collect()
}

impl Source {
    /// True if it is part of these rules, which must name what they forbid.
    pub(crate) fn is_tidy(&self) -> bool {
        self.path.starts_with("tests/tests/tidy")
    }
    /// True if it only exists for tests: code of the product may not lean on it.
    pub(crate) fn is_test(&self) -> bool {
        let apart = ["tests/", "simulator/", "benches/", "fuzz/"].iter().any(|top| self.path.starts_with(top));
        apart || self.path.contains("/tests/")
    }
    /// True if it is code of the product itself: no test, bench, fuzz target or example, and no unit test's own file.
    pub(crate) fn is_product(&self) -> bool {
        !self.is_test() && !self.path.starts_with("examples/") && !self.path.ends_with("tests.rs")
    }
    /// Its lines with their numbers, from 1.
    pub(crate) fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.lines().enumerate().map(|(n, line)| (n + 1, line))
    }
    /// Returns a violation for each line that contains a word.
    pub(crate) fn mentions(&self, word: &str) -> Vec<String> {
        self.lines().filter(|(_, line)| line.contains(word)).map(|(n, line)| self.at(n, line.trim())).collect()
    }
    /// A breach on one of its lines.
    pub(crate) fn at(&self, line: usize, what: &str) -> String {
        format!("{}:{line} {what}", self.path)
    }
}
