//! Rules for names and comments: openers, empty comments, docs on public items, type names, test names.
use crate::tree::{Source, Tree};
use std::collections::{BTreeMap, BTreeSet};

/// A doc comment that opens with one of these leaves its subject to be guessed.
const OPENERS: [&str; 10] = ["What", "Who", "Whoever", "Whose", "Whom", "Which", "That", "Where", "How", "Whether"];
/// Names that more than one module may have: each machine has its own.
const SHARED_NAMES: [&str; 4] = ["Config", "Error", "Input", "Output"];
const TEST_NAME_MAX: usize = 70;

/// Doc comments that open with a word that needs a sentence before it.
pub(crate) fn odd_openers(source: &Source) -> Vec<String> {
    let opens = |(n, text): (usize, &str)| {
        let first = text.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
        OPENERS
            .contains(&first)
            .then(|| source.at(n, &format!("opens with `{first}`: name the subject first (CONTRIBUTING.md, Style)")))
    };
    openings(source).into_iter().filter_map(opens).collect()
}

/// Doc comments of one or two words: the name says as much, or a sentence is missing.
pub(crate) fn empty_docs(source: &Source) -> Vec<String> {
    let lines: Vec<&str> = source.text.lines().collect();
    let is_doc = |n: usize| lines.get(n).is_some_and(|line| line.trim_start().starts_with("///"));
    let alone = |n: usize| (n == 0 || !is_doc(n - 1)) && !is_doc(n + 1);
    let is_empty = |(n, text): (usize, &str)| {
        let plain = !text.starts_with(['`', '|', '#']) && !text.starts_with("Covers");
        (alone(n - 1) && plain && text.split_whitespace().count() <= 2)
            .then(|| source.at(n, "a comment of one or two words: say the unit, range or reason, or delete it"))
    };
    openings(source).into_iter().filter_map(is_empty).collect()
}

/// The first line of each doc comment, with its number.
fn openings(source: &Source) -> Vec<(usize, &str)> {
    let text = |line: &'_ str| -> Option<&str> {
        let line = line.trim_start();
        line.strip_prefix("///").or_else(|| line.strip_prefix("//!")).map(str::trim)
    };
    let lines: Vec<(usize, &str)> = source.lines().collect();
    let starts = |at: usize| at == 0 || text(lines[at - 1].1).is_none_or(str::is_empty);
    let found = lines.iter().enumerate().filter(|(at, _)| starts(*at));
    found.filter_map(|(_, (n, line))| text(line).filter(|text| !text.is_empty()).map(|text| (*n, text))).collect()
}

/// Public types, traits, functions and constants without a doc comment.
pub(crate) fn undocumented(source: &Source) -> Vec<String> {
    let lines: Vec<(usize, &str)> = source.lines().collect();
    let mut found = Vec::new();
    for (at, (n, line)) in lines.iter().enumerate() {
        let Some(item) = line.trim_start().strip_prefix("pub ") else { continue };
        let kind = item.split_whitespace().find(|word| !matches!(*word, "async" | "unsafe")).unwrap_or_default();
        let at_top = !line.starts_with(' ');
        let wants = matches!(kind, "struct" | "enum" | "trait" | "type") || (at_top && matches!(kind, "fn" | "const"));
        let above = lines[..at].iter().rev().map(|(_, line)| line.trim());
        let documented = above
            .take_while(|line| line.starts_with("#[") || line.starts_with("//") || line.ends_with(")]") || line.ends_with(','))
            .any(|line| line.starts_with("///"));
        if wants && !documented {
            found.push(source.at(*n, &format!("no doc comment: {}", item.trim_end_matches('{').trim())));
        }
    }
    found
}

/// Type names that stand in more than one file of the product.
pub(crate) fn shared_type_names(tree: &Tree) -> Vec<String> {
    let mut homes: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for source in tree.sources().filter(|source| source.is_product()) {
        for name in type_names(&source.text) {
            homes.entry(name).or_default().insert(source.path.clone());
        }
    }
    let shared = homes.into_iter().filter(|(name, files)| files.len() > 1 && !SHARED_NAMES.contains(&name.as_str()));
    shared
        .map(|(name, files)| {
            let files: Vec<String> = files.into_iter().collect();
            format!("`{name}` is in {}: rename all but one after what they are about", files.join(", "))
        })
        .collect()
}

/// The names of the types and traits that a source defines, associated types aside.
pub(crate) fn type_names(text: &str) -> Vec<String> {
    let name = |line: &str| -> Option<String> {
        let indented = line.starts_with(' ');
        let line = line.trim_start();
        let item = line.strip_prefix("pub").map_or(line, |rest| {
            let rest = if rest.starts_with('(') { rest.split_once(')').map_or(rest, |(_, rest)| rest) } else { rest };
            rest.trim_start()
        });
        let (kind, rest) = item.split_once(' ')?;
        let is_type = matches!(kind, "struct" | "enum" | "trait") || (kind == "type" && !indented);
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        (is_type && rest.starts_with(char::is_uppercase)).then(|| rest[..end].to_owned())
    };
    text.lines().filter_map(name).collect()
}

/// Tests whose names are too long to be read in a report.
pub(crate) fn long_test_names(source: &Source) -> Vec<String> {
    let lines: Vec<(usize, &str)> = source.lines().collect();
    let tests = lines.iter().enumerate().filter(|(at, (_, line))| {
        crate::rules::starts_function(line) && lines[..*at].iter().rev().take(4).any(|(_, line)| line.contains("test]") || line.contains("test("))
    });
    tests
        .filter_map(|(_, (n, line))| {
            let name = line.split("fn ").nth(1)?.split('(').next()?;
            (name.len() > TEST_NAME_MAX).then(|| {
                source.at(*n, &format!("{name} has {} characters, at most {TEST_NAME_MAX}: subject_condition_result", name.len()))
            })
        })
        .collect()
}

/// Several bindings packed into one tuple.
pub(crate) fn packed_lets(source: &Source) -> Vec<String> {
    let packed = |(n, line): (usize, &str)| {
        let rest = line.trim_start().strip_prefix("let (")?;
        let (names, value) = rest.split_once(") = (")?;
        let simple = names.split(", ").all(|name| name.trim_start_matches("mut ").chars().all(|c| c.is_alphanumeric() || c == '_'));
        (simple && value.ends_with(");")).then(|| source.at(n, "bindings packed into a tuple: one `let` each"))
    };
    source.lines().filter_map(packed).collect()
}

#[test]
fn type_names_are_found_whatever_their_visibility() {
    let text = "pub struct A;\npub(crate) enum B<T> {\n    struct C(u8);\n    type Output = u8;\ntype D = u8;\n// struct E\nlet struct_f = 1;";
    assert_eq!(type_names(text), ["A", "B", "C", "D"]);
}

#[test]
fn openers_and_empty_docs_are_found() {
    let source = |text: &str| Source { path: "a.rs".to_owned(), text: text.to_owned() };
    let odd = source("//! What it is.\n\n/// Who asked.\n/// Which is fine here.\nstruct A;\n/// Returns that.\nfn b() {}");
    assert_eq!(odd_openers(&odd).len(), 2);
    let empty = source("/// Its name.\nname: u8,\n/// `default`\nb: u8,\n/// A long line\n/// that ends.\nc: u8,");
    assert_eq!(empty_docs(&empty).len(), 1);
    assert_eq!(undocumented(&source("/// A.\n#[derive(Debug)]\npub struct A;\npub struct B;\npub fn c() {}")).len(), 2);
    assert_eq!(packed_lets(&source("let (a, mut b) = (1, 2);\nlet (a, b) = f();")).len(), 1);
}
