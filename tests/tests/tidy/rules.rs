//! Rules about single files: length, names, descriptions, unfinished code, foreign words and links to documents. Each
//! rule is a function from a file to its violations; `main.rs` runs them and adds the reason and the way out.
use crate::tree::{Source, Tree};

/// Above this number of lines a file is printed as a hint.
const FILE_LINES_HINT: usize = 600;
const FUNCTION_LINES_MAX: usize = 70;

/// Returns a hint for a long file. The hint fails no test, because a file that is cut only to stay below a number is
/// harder to read than a long file with one subject.
pub(crate) fn long_files(source: &Source) -> Vec<String> {
    let lines = source.text.lines().count();
    if lines <= FILE_LINES_HINT {
        return Vec::new();
    }
    vec![format!("{} has {lines} lines; above {FILE_LINES_HINT}, check that it has one subject", source.path)]
}

/// Returns the functions with more than [`FUNCTION_LINES_MAX`] lines.
pub(crate) fn long_functions(source: &Source) -> Vec<String> {
    let all: Vec<&str> = source.text.lines().collect();
    let mut found = Vec::new();
    for (n, line) in source.lines().filter(|(_, line)| starts_function(line)) {
        let length = function_length(&all[n - 1..]);
        if length > FUNCTION_LINES_MAX {
            let text = format!("{length} lines, at most {FUNCTION_LINES_MAX}: {}", line.trim());
            found.push(source.at(n, &text));
        }
    }
    found
}

/// Returns whether a function begins on this line.
pub(crate) fn starts_function(line: &str) -> bool {
    let words: Vec<&str> = line.split_whitespace().take_while(|word| *word != "fn").collect();
    let qualifiers = |word: &&str| word.starts_with("pub") || matches!(*word, "const" | "async" | "unsafe" | "extern");
    words.len() < line.split_whitespace().count() && words.iter().all(qualifiers)
}

/// Returns the number of lines of the function that starts on the first line. In formatted source a function ends with
/// the first closing brace at its own indentation.
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

/// Returns the file if its module name, or that of one of its folders, fits any content.
pub(crate) fn badly_named(source: &Source) -> Vec<String> {
    let name = source.path.rsplit('/').next().unwrap_or_default();
    let empty = ["mod.rs", "util.rs", "utils.rs", "common.rs", "helpers.rs", "types.rs", "manager.rs"];
    let folder = source.path.split('/').any(|part| empty.contains(&format!("{part}.rs").as_str()));
    if empty.contains(&name) || folder { vec![source.path.clone()] } else { Vec::new() }
}

/// Returns the file if its first line is no `//!` comment.
pub(crate) fn unintroduced(source: &Source) -> Vec<String> {
    if source.text.starts_with("//! ") { Vec::new() } else { vec![source.path.clone()] }
}

/// Returns the stubs and ignored tests of a file, and the sleeps of a test file.
pub(crate) fn undone(source: &Source) -> Vec<String> {
    let mut words = vec!["todo!", "unimplemented!", "#[ignore"];
    if source.is_test() {
        words.extend(["thread::sleep", "time::sleep", "sleep(Duration"]);
    }
    words.iter().flat_map(|word| source.mentions(word)).collect()
}

/// Returns the lines with words or paths that have a meaning only outside this repository.
pub(crate) fn foreign_words(path: &str, text: &str) -> Vec<String> {
    let whole = ["checklist", "card"];
    let anywhere = ["/work/", "farm-"];
    let mut found = Vec::new();
    for (n, line) in text.lines().enumerate() {
        let lower = line.to_lowercase();
        let mut words = lower.split(|c: char| !c.is_alphanumeric() && c != '_');
        let named = words.any(|word| whole.contains(&word)) || anywhere.iter().any(|part| line.contains(part));
        // A number with leading zeros is the number of a document, not that of a random generator.
        let paper = lower.match_indices("seed 00").next().is_some();
        if named || paper {
            found.push(format!("{path}:{} {}", n + 1, line.trim()));
        }
    }
    found
}

/// Returns the names of documents (`*.md`) in a file that are names of no file in the tree.
pub(crate) fn missing_documents(path: &str, tree: &Tree) -> Vec<String> {
    let text = tree.text(path);
    let mut found = Vec::new();
    for (n, line) in text.lines().enumerate() {
        for word in line.split(|c: char| !c.is_alphanumeric() && !"_-.".contains(c)) {
            let word = word.trim_matches('.');
            let here = || tree.paths().any(|path| path.rsplit('/').next() == Some(word));
            // NAME.md stands for a page that `./test long` writes; AGENTS.md lies in the workspace of an agent.
            let named = word.ends_with(".md") && word.starts_with(|c: char| c.is_alphabetic());
            if named && !["NAME.md", "AGENTS.md"].contains(&word) && !here() {
                found.push(format!("{path}:{} {word}", n + 1));
            }
        }
    }
    found
}

#[test]
fn function_length_is_counted_to_the_closing_brace() {
    let two = ["    fn a(", "        b: C,", "    ) -> D {", "        e", "    }", "    fn f() {}"];
    assert_eq!((function_length(&two), function_length(&two[5..])), (5, 1));
    assert_eq!(function_length(&["fn g(&self);", "fn h() {", "}"]), 1);
    assert!(starts_function("    pub(crate) async fn x() {") && !starts_function("// a fn of x"));
}

#[test]
fn long_file_is_a_hint_and_long_function_a_violation() {
    let source = |text: String| Source { path: "a.rs".to_owned(), text };
    let body = "    f();\n";
    let long = source(format!("fn a() {{\n{}}}\n", body.repeat(FUNCTION_LINES_MAX)));
    assert_eq!((long_files(&long).len(), long_functions(&long).len()), (0, 1));
    let short = source("fn a() {}\n".repeat(FILE_LINES_HINT + 1));
    assert_eq!((long_files(&short).len(), long_functions(&short).len()), (1, 0));
}
