//! Planted bugs of a running node and of the client, each with the one test that must fail because of it
//! (`tests/planted.txt`). Each bug is described at its definition; the binary `planted` plants them.

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
    use super::*;
    use std::collections::BTreeSet;
    use std::path::{Path, PathBuf};

    fn root() -> &'static Path {
        Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace")
    }

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

    fn crate_of(suite: &str) -> PathBuf {
        match suite {
            "turnway" => root().join("gateway/src"),
            "turnway_core" => root().join("core/src"),
            "turnway_node" => root().join("node/src"),
            "turnway_bindings" => root().join("bindings/src"),
            "session" => root().join("core/tests/session"),
            "one_turn" => root().join("node/tests/one_turn"),
            "turnway_client" => root().join("sdk/rust/src"),
            file => root().join("tests/tests").join(file),
        }
    }

    #[test]
    fn each_planted_bug_names_an_existing_test() {
        for Row { bug, watch } in rows() {
            let (Watch::Node(suite, test) | Watch::Process(suite, test)) = watch else { continue };
            let name = format!("fn {}(", test.rsplit("::").next().unwrap_or_default());
            let has = |file: &PathBuf| std::fs::read_to_string(file).is_ok_and(|text| text.contains(&name));
            assert!(sources(&crate_of(suite)).iter().any(has), "{bug}: {suite} has no test {test}");
        }
    }

    #[test]
    fn table_lists_exactly_the_defined_bugs() {
        let named: BTreeSet<&str> = rows().iter().map(|row| row.bug).collect();
        assert_eq!(named.len(), rows().len(), "one stands twice");
        let texts = ["core/src/planted.rs", "sdk/rust/src/planted.rs"];
        let texts = texts.map(|file| std::fs::read_to_string(root().join(file)).expect("a source"));
        let lines = texts.iter().flat_map(|text| text.lines());
        let variants = lines.filter_map(|line| line.strip_prefix("    ")?.strip_suffix(','));
        let there: BTreeSet<&str> = variants
            .filter(|name| name.starts_with(char::is_uppercase) && name.chars().all(char::is_alphanumeric))
            .collect();
        assert_eq!(named, there);
    }
}
