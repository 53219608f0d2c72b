//! The conformance table: which test covers which requirement.
use crate::rules::starts_function;
use crate::tree::{Source, Tree};
use std::collections::{BTreeMap, BTreeSet};

/// Which tests cover which requirement: by id, `file::function`, or `file` where its first lines say it.
pub(crate) type Coverage = BTreeMap<String, BTreeSet<String>>;

/// What the sources' own `Covers:` say.
pub(crate) fn coverage(tree: &Tree) -> Coverage {
    let mut covered = Coverage::new();
    for source in tree.sources().filter(|source| !source.is_tidy() || source.path.ends_with("/main.rs")) {
        let stem = stem(&source.path);
        let lines: Vec<&str> = source.text.lines().collect();
        for (n, _) in lines.iter().enumerate().filter(|(_, line)| line.contains("Covers:")) {
            let comment = lines[n..].iter().take_while(|line| line.trim_start().starts_with("//"));
            let ids: Vec<String> = comment.flat_map(|line| ids(line)).collect();
            let whole = lines[n].trim_start().starts_with("//!");
            let next =
                lines[n..].iter().find(|line| starts_function(line)).and_then(|line| function_name(line));
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

/// What a test calls the file it is in: its name, or its folder's where it is `main.rs`.
fn stem(path: &str) -> &str {
    let path = path.strip_suffix("/main.rs").unwrap_or(path);
    path.rsplit('/').next().unwrap_or_default().trim_end_matches(".rs")
}

/// The document with its last column made anew.
pub(crate) fn table(document: &str, covered: &Coverage) -> String {
    let row = |line: &str| -> Option<String> {
        let mut cells = line.strip_prefix("| ")?.split(" | ");
        let (id, text, tests) = (cells.next()?, cells.next()?, cells.next()?);
        let names = covered.get(id).filter(|_| is_id(id)).map(|names| {
            let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
            names.join(", ")
        });
        let fallback = if tests.starts_with("not a goal") { "not a goal" } else { "open" };
        is_id(id).then(|| format!("| {id} | {text} | {} |", names.as_deref().unwrap_or(fallback)))
    };
    let lines: Vec<String> =
        document.lines().map(|line| row(line).unwrap_or_else(|| line.to_owned())).collect();
    lines.join("\n") + "\n"
}

/// The first cell of every row.
pub(crate) fn known(document: &str) -> BTreeSet<String> {
    let first = document.lines().filter_map(|line| line.strip_prefix("| ")?.split(" |").next());
    first.filter(|id| is_id(id)).map(str::to_owned).collect()
}

/// Every requirement id that a source's comments cite, with its line.
pub(crate) fn cited(source: &Source) -> Vec<(usize, String)> {
    let comments = source.lines().filter_map(|(n, line)| line.find("//").map(|at| (n, &line[at..])));
    comments.flat_map(|(n, comment)| ids(comment).map(move |id| (n, id))).collect()
}

fn ids(text: &str) -> impl Iterator<Item = String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '-');
    words.filter(|word| is_id(word)).map(str::to_owned)
}

/// `SR-K1`, `LN-SR2`, `ST-12`, `S-06`, `G-11`, `G3`.
fn is_id(word: &str) -> bool {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let lettered = |text: &str| {
        let name = text.trim_end_matches(|c: char| c.is_ascii_digit());
        (1..=2).contains(&name.len())
            && name.bytes().all(|b| b.is_ascii_uppercase())
            && digits(&text[name.len()..])
    };
    match word.split_once('-') {
        Some(("SR" | "TP" | "EV" | "MP" | "BD" | "LN", rest)) => lettered(rest),
        Some(("ST" | "RX" | "S" | "G", rest)) => digits(rest),
        Some(_) => false,
        None => word.strip_prefix('G').is_some_and(|n| n.len() == 1 && digits(n) && n != "0"),
    }
}

fn function_name(line: &str) -> Option<String> {
    let rest = line.split("fn ").nth(1)?;
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_')?;
    Some(rest[..end].to_owned())
}

#[test]
fn ids_are_told_from_other_words() {
    for id in ["SR-K1", "LN-SR2", "ST-12", "S-06", "G-11", "G3", "RX-23", "EV-N4", "MP-D14"] {
        assert!(is_id(id), "{id}");
    }
    for word in ["UTF-8", "SHA-256", "G", "G10", "SR", "SR-1", "S-", "A-1", "x86-64", "I1"] {
        assert!(!is_id(word), "{word}");
    }
}

#[test]
fn a_row_is_made_from_what_covers_it() {
    let covered = Coverage::from([("G1".to_owned(), BTreeSet::from(["a::b".to_owned(), "c".to_owned()]))]);
    let document = "| id | x | y |\n| G1 | one | open |\n| G2 | two | `gone` |\n| G3 | no | not a goal |\n";
    let want = "| id | x | y |\n| G1 | one | `a::b`, `c` |\n| G2 | two | open |\n| G3 | no | not a goal |\n";
    assert_eq!(table(document, &covered), want);
}
