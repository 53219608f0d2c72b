//! The last column of docs/conformance.md, made from the `Covers:` comments of the tests.
use crate::rules::starts_function;
use crate::tree::{Source, Tree};
use std::collections::{BTreeMap, BTreeSet};
use turnway_tests::conformance::{Row, is_id};

/// By requirement id, the tests that cover it: `file::function`, or `file` if the file's `//!` comment has the id.
pub(crate) type Coverage = BTreeMap<String, BTreeSet<String>>;

/// Collects the `Covers:` comments of all sources.
pub(crate) fn coverage(tree: &Tree) -> Coverage {
    let mut covered = Coverage::new();
    for source in tree.sources().filter(|source| !source.is_tidy() || source.path.ends_with("/main.rs")) {
        let stem = stem(&source.path);
        let lines: Vec<&str> = source.text.lines().collect();
        for (n, _) in lines.iter().enumerate().filter(|(_, line)| line.contains("Covers:")) {
            let comment = lines[n..].iter().take_while(|line| line.trim_start().starts_with("//"));
            let ids: Vec<String> = comment.flat_map(|line| ids(line)).collect();
            let whole = lines[n].trim_start().starts_with("//!");
            let next = lines[n..].iter().find(|line| starts_function(line)).and_then(|line| function_name(line));
            let test = match next {
                Some(name) if !whole => format!("{stem}::{name}"),
                Some(_) | None => stem.to_owned(),
            };
            for id in ids {
                covered.entry(id).or_default().insert(test.clone());
            }
        }
    }
    covered
}

/// Returns the name of a test file: its file name, or the name of its folder if the file is `main.rs`.
fn stem(path: &str) -> &str {
    let path = path.strip_suffix("/main.rs").unwrap_or(path);
    path.rsplit('/').next().unwrap_or_default().trim_end_matches(".rs")
}

/// Returns the document with a new list of tests in each row. Steps, waiting scopes and `not a goal` stay as they are.
pub(crate) fn table(document: &str, covered: &Coverage) -> String {
    let renewed = |line: &str| -> Option<String> {
        let mut row = Row::read(line)?;
        row.proof.tests = covered.get(&row.id).into_iter().flatten().cloned().collect();
        Some(row.line())
    };
    let lines: Vec<String> = document.lines().map(|line| renewed(line).unwrap_or_else(|| line.to_owned())).collect();
    lines.join("\n") + "\n"
}

/// Returns the requirement ids of the table.
pub(crate) fn known(document: &str) -> BTreeSet<String> {
    Row::all(document).into_iter().map(|row| row.id).collect()
}

/// Returns every requirement id in a source's comments, with its line.
pub(crate) fn cited(source: &Source) -> Vec<(usize, String)> {
    let comments = source.lines().filter_map(|(n, line)| line.find("//").map(|at| (n, &line[at..])));
    comments.flat_map(|(n, comment)| ids(comment).map(move |id| (n, id))).collect()
}

/// Returns each `Covers:` comment above a function that is no test: no report of a run has its name.
pub(crate) fn no_tests(source: &Source) -> Vec<String> {
    let lines: Vec<&str> = source.text.lines().collect();
    let violation = |(n, line): (usize, &&str)| {
        let line = line.trim_start();
        if !line.starts_with("///") || !line.contains("Covers:") {
            return None;
        }
        let below = &lines[n..];
        let function = below.iter().position(|line| starts_function(line))?;
        let is_test = below[..function].iter().any(|line| line.trim_start().starts_with("#[") && line.contains("test"));
        (!is_test).then(|| format!("{}:{}", source.path, n + 1))
    };
    lines.iter().enumerate().filter_map(violation).collect()
}

fn ids(text: &str) -> impl Iterator<Item = String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '-');
    words.filter(|word| is_id(word)).map(str::to_owned)
}

pub(crate) fn function_name(line: &str) -> Option<String> {
    let rest = line.split("fn ").nth(1)?;
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_')?;
    Some(rest[..end].to_owned())
}

#[test]
fn requirements_above_a_shared_function_are_found() {
    let covers = "/// Covers: G1.\n";
    let test = format!("{covers}#[tokio::test]\nasync fn a() {{}}\n");
    let shared = format!("{test}{covers}async fn b() {{}}\n");
    let source = |text: String| Source { path: "tests/tests/x.rs".to_owned(), text };
    assert!(no_tests(&source(test)).is_empty());
    assert_eq!(no_tests(&source(shared)), ["tests/tests/x.rs:4"]);
}

#[test]
fn table_row_lists_the_covering_tests() {
    let covered = Coverage::from([("G1".to_owned(), BTreeSet::from(["a::b".to_owned(), "c".to_owned()]))]);
    let document = "| id | x | y |\n| G1 | one | open |\n| G2 | two | `gone` |\n| G3 | no | not a goal |\n";
    let want = "| id | x | y |\n| G1 | one | `a::b`, `c` |\n| G2 | two | open |\n| G3 | no | not a goal |\n";
    assert_eq!(table(document, &covered), want);
}
