//! Rules for names and comments: openers, empty comments, docs on public items, type names, test names, the glossary.
use crate::tree::{Source, Tree};
use std::collections::{BTreeMap, BTreeSet};

/// A doc comment that opens with one of these leaves its subject to be guessed.
const OPENERS: [&str; 10] = ["What", "Who", "Whoever", "Whose", "Whom", "Which", "That", "Where", "How", "Whether"];
/// Names that more than one module may have: each machine has its own, and so has each crate with planted bugs.
const SHARED_NAMES: [&str; 5] = ["Config", "Error", "Input", "Output", "Planted"];
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
    let is_doc = |n: usize| lines.get(n).is_some_and(|line| doc_text(line).is_some());
    let alone = |n: usize| (n == 0 || !is_doc(n - 1)) && !is_doc(n + 1);
    let is_empty = |(n, text): (usize, &str)| {
        let plain = !text.starts_with(['`', '|', '#']) && !text.starts_with("Covers");
        // The summary of a route in the OpenAPI document.
        let is_summary = lines.get(n).is_some_and(|line| line.starts_with("#[utoipa"));
        (alone(n - 1) && plain && !is_summary && text.split_whitespace().count() <= 2)
            .then(|| source.at(n, "a comment of one or two words: say the unit, range or reason, or delete it"))
    };
    openings(source).into_iter().filter_map(is_empty).collect()
}

/// The first line of each doc comment, with its number.
fn openings(source: &Source) -> Vec<(usize, &str)> {
    let lines: Vec<(usize, &str)> = source.lines().collect();
    let starts = |at: usize| at == 0 || doc_text(lines[at - 1].1).is_none_or(str::is_empty);
    let found = lines.iter().enumerate().filter(|(at, _)| starts(*at));
    found.filter_map(|(_, (n, line))| doc_text(line).filter(|text| !text.is_empty()).map(|text| (*n, text))).collect()
}

/// Returns the text of a line of a doc comment.
fn doc_text(line: &str) -> Option<&str> {
    let line = line.trim_start();
    line.strip_prefix("///").or_else(|| line.strip_prefix("//!")).map(str::trim)
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
        let above: Vec<&str> = above.take_while(|line| !line.is_empty() && !line.ends_with(['{', '}', ';'])).collect();
        let documented = above.iter().any(|line| line.starts_with("///"));
        // Names that a macro makes are documented where it is used; docs of a command's arguments would be its help.
        let exempt = item.contains('$') || above.iter().any(|line| line.contains("Args"));
        if wants && !documented && !exempt {
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

/// Returns the names of all types and modules of the product.
pub(crate) fn product_names(tree: &Tree) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for source in tree.sources().filter(Source::is_product) {
        names.extend(type_names(&source.text));
        names.extend(macro_type_names(&source.text));
        names.extend(source.path.trim_end_matches(".rs").rsplit('/').next().map(str::to_owned));
    }
    names
}

/// Returns the names of the types that `define_name!` and `define_number!` define: each call ends with a line that has
/// the name first.
fn macro_type_names(text: &str) -> Vec<String> {
    let mut in_call = false;
    let mut found = Vec::new();
    for line in text.lines() {
        in_call |= line.starts_with("define_name!(") || line.starts_with("define_number!(");
        if in_call && line.ends_with(");") {
            in_call = false;
            found.extend(line.trim_start().split_once(',').map(|(name, _)| name.to_owned()));
        }
    }
    found
}

/// Returns the terms of the table under `## Glossary` whose second cell does not name, in backticks, one of these types
/// and modules.
pub(crate) fn unknown_terms(document: &str, names: &BTreeSet<String>) -> Vec<String> {
    let section = document.lines().skip_while(|line| line.trim_end() != "## Glossary").skip(1);
    let rows: Vec<Vec<&str>> = section
        .take_while(|line| !line.starts_with("## "))
        .filter(|line| line.starts_with('|'))
        .map(|line| line.trim().trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    if rows.is_empty() {
        return vec!["there is no table under `## Glossary`".to_owned()];
    }
    let mut found = Vec::new();
    for row in &rows {
        let term = row.first().copied().unwrap_or_default();
        if term == "term" || term.starts_with(['-', ':']) {
            continue;
        }
        let cell = row.get(1).copied().unwrap_or_default();
        let code: Vec<&str> = cell.split('`').skip(1).step_by(2).collect();
        if code.is_empty() {
            found.push(format!("{term}: the second column has no name in backticks"));
        }
        let unknown = code.into_iter().filter(|path| !is_known(path, names));
        found.extend(unknown.map(|path| format!("{term}: no type or module is named `{path}`")));
    }
    found
}

/// Returns whether a path in the glossary ends in a known name. In `Op::Claim` the type counts, which is the first part
/// with a capital letter; in `session/steer.rs` the module.
fn is_known(path: &str, names: &BTreeSet<String>) -> bool {
    let path = path.strip_suffix(".rs").unwrap_or(path);
    let parts: Vec<&str> =
        path.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|part| !part.is_empty()).collect();
    let named = parts.iter().find(|part| part.starts_with(char::is_uppercase)).or_else(|| parts.last());
    named.is_some_and(|name| names.contains(*name))
}

/// Tests whose names are too long to be read in a report.
pub(crate) fn long_test_names(source: &Source) -> Vec<String> {
    let lines: Vec<(usize, &str)> = source.lines().collect();
    let tests = lines.iter().enumerate().filter(|(at, (_, line))| {
        crate::rules::starts_function(line)
            && lines[..*at].iter().rev().take(4).any(|(_, line)| line.contains("test]") || line.contains("test("))
    });
    tests
        .filter_map(|(_, (n, line))| {
            let name = crate::conformance::function_name(line)?;
            (name.len() > TEST_NAME_MAX).then(|| {
                source.at(
                    *n,
                    &format!("{name} has {} characters, at most {TEST_NAME_MAX}: subject_condition_result", name.len()),
                )
            })
        })
        .collect()
}

/// Several bindings packed into one tuple.
pub(crate) fn packed_lets(source: &Source) -> Vec<String> {
    let packed = |(n, line): (usize, &str)| {
        let rest = line.trim_start().strip_prefix("let (")?;
        let (names, value) = rest.split_once(") = (")?;
        let simple = names
            .split(", ")
            .all(|name| name.trim_start_matches("mut ").chars().all(|c| c.is_alphanumeric() || c == '_'));
        (simple && value.ends_with(");") && value.contains(", "))
            .then(|| source.at(n, "bindings packed into a tuple: one `let` each"))
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
    let odd =
        source("//! What it is.\n\n/// Who asked.\n/// Which is fine here.\nstruct A;\n/// Returns that.\nfn b() {}");
    assert_eq!(odd_openers(&odd).len(), 2);
    let empty = source("/// Its name.\nname: u8,\n/// `default`\nb: u8,\n/// A long line\n/// that ends.\nc: u8,");
    assert_eq!(empty_docs(&empty).len(), 1);
    assert_eq!(undocumented(&source("/// A.\n#[derive(Debug)]\npub struct A;\npub struct B;\npub fn c() {}")).len(), 2);
    assert_eq!(packed_lets(&source("let (a, mut b) = (1, 2);\nlet (a, b) = f();")).len(), 1);
}

#[test]
fn glossary_term_must_name_a_type_or_module() {
    let names: BTreeSet<String> = ["Op", "steer", "RunId"].into_iter().map(str::to_owned).collect();
    let head = "## Glossary\n\n| term | in code | meaning |\n|---|---|---|\n";
    let table = |cell: &str| format!("{head}| x | {cell} | y |\n## End\n| z |");
    for cell in ["`Op`", "`Op::Claim`", "`session/steer.rs`", "`core::steer`", "`RunId`, a `store::Op`"] {
        assert_eq!(unknown_terms(&table(cell), &names), Vec::<String>::new(), "{cell}");
    }
    for cell in ["Op", "`Gone`", "`Op` and `gone`", "`Gone::steer`"] {
        assert_eq!(unknown_terms(&table(cell), &names).len(), 1, "{cell}");
    }
    assert_eq!(unknown_terms("## Vocabulary\n| term | code |", &names).len(), 1);
}

#[test]
fn types_defined_by_macros_are_found() {
    let text = "define_name!(/// A run:\n/// `a.b`.\n    RunId, is_run, \"run_id\");\nf(\n    A, b);\n";
    assert_eq!(macro_type_names(text), ["RunId"]);
}
