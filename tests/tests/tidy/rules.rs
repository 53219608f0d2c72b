//! The rules, each a function from a file to its breaches.
use crate::tree::{Source, Tree};

const FILE_LINES_MAX: usize = 600;
/// A test is a story; it may be a little longer.
const TEST_FILE_LINES_MAX: usize = 600;
const FUNCTION_LINES_MAX: usize = 70;

pub(crate) fn too_long(source: &Source) -> Vec<String> {
    let mut found = Vec::new();
    let (lines, max) =
        (source.text.lines().count(), if source.is_test() { TEST_FILE_LINES_MAX } else { FILE_LINES_MAX });
    if lines > max {
        found.push(format!("{}: {lines} lines, of at most {max}", source.path));
    }
    let all: Vec<&str> = source.text.lines().collect();
    for (n, line) in source.lines().filter(|(_, line)| starts_function(line)) {
        let length = function_length(&all[n - 1..]);
        if length > FUNCTION_LINES_MAX {
            found.push(source.at(n, &format!("{length} lines: {}", line.trim())));
        }
    }
    found
}

pub(crate) fn starts_function(line: &str) -> bool {
    let words: Vec<&str> = line.split_whitespace().take_while(|word| *word != "fn").collect();
    let qualifiers =
        |word: &&str| word.starts_with("pub") || matches!(*word, "const" | "async" | "unsafe" | "extern");
    words.len() < line.split_whitespace().count() && words.iter().all(qualifiers)
}

/// The sources are formatted, so a function ends with the first brace at its own depth.
fn function_length(from: &[&str]) -> usize {
    let depth = from[0].len() - from[0].trim_start().len();
    let mut open = false;
    for (n, line) in from.iter().enumerate() {
        open |= line.contains('{');
        let own = line.len() - line.trim_start().len() == depth;
        let ends = if open { line.trim_end().ends_with('}') } else { line.trim_end().ends_with(';') };
        if own && ends {
            return n + 1;
        }
    }
    from.len()
}

pub(crate) fn badly_named(source: &Source) -> Vec<String> {
    let name = source.path.rsplit('/').next().unwrap_or_default();
    let empty = ["mod.rs", "util.rs", "utils.rs", "common.rs", "helpers.rs", "types.rs", "manager.rs"];
    let folder = source.path.split('/').any(|part| empty.contains(&format!("{part}.rs").as_str()));
    if empty.contains(&name) || folder { vec![source.path.clone()] } else { Vec::new() }
}

pub(crate) fn unintroduced(source: &Source) -> Vec<String> {
    if source.text.starts_with("//! ") { Vec::new() } else { vec![source.path.clone()] }
}

pub(crate) fn undone(source: &Source) -> Vec<String> {
    let mut words = vec!["todo!", "unimplemented!", "#[ignore"];
    if source.is_test() {
        words.extend(["thread::sleep", "time::sleep", "sleep(Duration"]);
    }
    words.iter().flat_map(|word| source.mentions(word)).collect()
}

pub(crate) fn foreign_words(path: &str, text: &str) -> Vec<String> {
    let whole = ["checklist", "card"];
    let anywhere = ["/work/", "farm-"];
    let mut found = Vec::new();
    for (n, line) in text.lines().enumerate() {
        let lower = line.to_lowercase();
        let mut words = lower.split(|c: char| !c.is_alphanumeric() && c != '_');
        let named =
            words.any(|word| whole.contains(&word)) || anywhere.iter().any(|part| line.contains(part));
        // `seed 7` of a generator is ordinary; a numbered paper is not.
        let paper = lower.match_indices("seed 00").next().is_some();
        if named || paper {
            found.push(format!("{path}:{} {}", n + 1, line.trim()));
        }
    }
    found
}

/// `something.md` that is said but is nowhere in the tree.
pub(crate) fn missing_documents(path: &str, tree: &Tree) -> Vec<String> {
    let text = tree.text(path);
    let mut found = Vec::new();
    for (n, line) in text.lines().enumerate() {
        for word in line.split(|c: char| !c.is_alphanumeric() && !"_-.".contains(c)) {
            let word = word.trim_matches('.');
            let here = || tree.paths().any(|path| path.rsplit('/').next() == Some(word));
            // What `./test long` writes is there once somebody has run it; AGENTS.md is in an agent's workspace.
            let named = word.ends_with(".md") && word.starts_with(|c: char| c.is_alphabetic());
            if named && !["NAME.md", "AGENTS.md"].contains(&word) && !here() {
                found.push(format!("{path}:{} {word}", n + 1));
            }
        }
    }
    found
}

#[test]
fn a_function_ends_where_its_braces_do() {
    let two = ["    fn a(", "        b: C,", "    ) -> D {", "        e", "    }", "    fn f() {}"];
    assert_eq!((function_length(&two), function_length(&two[5..])), (5, 1));
    assert_eq!(function_length(&["fn g(&self);", "fn h() {", "}"]), 1);
    assert!(starts_function("    pub(crate) async fn x() {") && !starts_function("// a fn of x"));
}
