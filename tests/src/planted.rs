//! Planted bugs of a running node and of the client, each with the one test that must fail because of it
//! (`tests/planted.txt`). Each bug is described at its definition; the binary `planted` plants them.
use std::path::{Path, PathBuf};

const TABLE: &str = include_str!("../planted.txt");

/// A planted bug and the test that detects it.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    pub bug: &'static str,
    pub watch: Watch,
}

/// Place of the test that must detect a planted bug.
#[derive(Clone, Copy, Debug)]
pub enum Watch {
    /// A test that runs a node with the bug: its file and its name.
    Node(&'static str, &'static str),
    /// A test with the bug in its own process: its file (or its crate, for unit tests) and its name.
    Process(&'static str, &'static str),
    /// No test, for this reason.
    Nothing(&'static str),
}

/// Reads every row of the table.
pub fn rows() -> Vec<Row> {
    TABLE.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).map(Row::read).collect()
}

/// Location of the tests that the table calls a suite.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suite {
    /// Directory of the package, in which cargo runs its tests.
    pub package: PathBuf,
    /// Root of the suite's source without its extension, relative to the package.
    pub source: PathBuf,
}

/// Returns the location of a suite: of the tests beside the code if it is named like a crate, of the test file of
/// `core/tests` or `node/tests` that the table names, else of a file of `tests/tests`.
pub fn suite(name: &str) -> Suite {
    let (package, source) = match name {
        "turnway" => ("gateway", "src/lib"),
        "turnway_core" => ("core", "src/lib"),
        "turnway_node" => ("node", "src/lib"),
        "turnway_bindings" => ("bindings", "src/lib"),
        "turnway_client" => ("sdk/rust", "src/lib"),
        "session" => ("core", "tests/session"),
        "one_turn" => ("node", "tests/one_turn"),
        file => return Suite { package: workspace().join("tests"), source: Path::new("tests").join(file) },
    };
    Suite { package: workspace().join(package), source: PathBuf::from(source) }
}

fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace")
}

// === impl Suite ===

impl Suite {
    /// Returns whether this suite is built from a source file, given by its absolute path.
    pub fn is_built_from(&self, source: &Path) -> bool {
        let root = self.package.join(&self.source);
        source == root.with_extension("rs") || source == root.join("main.rs")
    }
}

// === impl Row ===

impl Row {
    fn read(line: &'static str) -> Self {
        let (bug, rest) = line.split_once(' ').unwrap_or((line, ""));
        let (how, what) = rest.trim_start().split_once(' ').unwrap_or((rest, ""));
        let watch = match (how, what.trim_start().split_once(' ')) {
            ("node", Some((suite, test))) => Watch::Node(suite, test.trim()),
            ("process", Some((suite, test))) => Watch::Process(suite, test.trim()),
            ("nothing", Some(_)) => Watch::Nothing(what.trim()),
            (_, _) => {
                panic!("tests/planted.txt: expected BUG node|process FILE TEST, or BUG nothing WHY: {line}")
            }
        };
        Self { bug, watch }
    }
}

#[cfg(test)]
mod tests {
    use super::{Path, PathBuf, Row, Watch, rows, suite, workspace};
    use std::collections::BTreeSet;

    /// Returns the source files of a module path, which is a folder or a `.rs` file.
    fn sources(stem: &Path) -> Vec<PathBuf> {
        let mut found: Vec<PathBuf> = [stem.with_extension("rs")].into_iter().filter(|file| file.is_file()).collect();
        let entries = std::fs::read_dir(stem).into_iter().flatten().flatten().map(|entry| entry.path());
        for path in entries {
            if path.is_dir() {
                found.extend(sources(&path));
            } else if path.extension().is_some_and(|kind| kind == "rs") {
                found.push(path);
            }
        }
        found
    }

    /// Returns the folder or file that has a suite's tests.
    fn tests_of(name: &str) -> PathBuf {
        let at = suite(name);
        at.package.join(if at.source.ends_with("lib") { Path::new("src") } else { &at.source })
    }

    #[test]
    fn each_planted_bug_names_an_existing_test() {
        for Row { bug, watch } in rows() {
            let (Watch::Node(name, test) | Watch::Process(name, test)) = watch else { continue };
            let line = format!("fn {}(", test.rsplit("::").next().unwrap_or_default());
            let has = |file: &PathBuf| std::fs::read_to_string(file).is_ok_and(|text| text.contains(&line));
            assert!(sources(&tests_of(name)).iter().any(has), "{bug}: {name} has no test {test}");
        }
    }

    #[test]
    fn each_suite_is_found_by_the_source_it_is_built_from() {
        for Row { bug, watch } in rows() {
            let (Watch::Node(name, _) | Watch::Process(name, _)) = watch else { continue };
            let at = suite(name);
            let root = at.package.join(&at.source);
            let built = [root.with_extension("rs"), root.join("main.rs")];
            assert!(built.iter().any(|file| file.is_file() && at.is_built_from(file)), "{bug}: no suite {name}");
        }
        let elsewhere = workspace().join("node/tests/shares/main.rs");
        assert!(!suite("shares").is_built_from(&elsewhere));
    }

    #[test]
    fn table_lists_exactly_the_defined_bugs() {
        let named: BTreeSet<&str> = rows().iter().map(|row| row.bug).collect();
        assert_eq!(named.len(), rows().len(), "one stands twice");
        let texts = ["core/src/planted.rs", "sdk/rust/src/planted.rs"];
        let texts = texts.map(|file| std::fs::read_to_string(workspace().join(file)).expect("a source"));
        let lines = texts.iter().flat_map(|text| text.lines());
        let variants = lines.filter_map(|line| line.strip_prefix("    ")?.strip_suffix(','));
        let there: BTreeSet<&str> = variants
            .filter(|name| name.starts_with(char::is_uppercase) && name.chars().all(char::is_alphanumeric))
            .collect();
        assert_eq!(named, there);
    }
}
