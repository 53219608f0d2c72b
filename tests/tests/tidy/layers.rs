//! Dependencies between top-level modules, which are the modules directly under a crate's `src`. Compares each
//! `crate::…` with the layers table of ARCHITECTURE.md.
use crate::tree::Tree;
use std::collections::{BTreeMap, BTreeSet};

/// The layers table: by crate, the level of each top-level module. The lowest level is 1.
pub(crate) struct Table(BTreeMap<String, BTreeMap<String, usize>>);

impl Table {
    /// Parses the block that is fenced as `layers`: one line for each crate, the highest level first, `▸` between
    /// levels, braces around the modules of one level.
    pub(crate) fn parse(document: &str) -> Self {
        let block = document.split("```layers\n").nth(1).and_then(|rest| rest.split("```").next());
        let block = block.expect("ARCHITECTURE.md, Layers: a block fenced as `layers`");
        let crates = block.lines().filter(|line| !line.trim().is_empty()).map(|line| {
            let split = line.split_once(char::is_whitespace);
            let (krate, levels) = split.expect("ARCHITECTURE.md, Layers: a crate, then its levels");
            let levels: Vec<&str> = levels.split('▸').collect();
            let mut modules = BTreeMap::new();
            for (depth, level) in levels.iter().enumerate() {
                let names = level.split(|c: char| !c.is_alphanumeric() && c != '_');
                for name in names.filter(|name| !name.is_empty()) {
                    let before = modules.insert(name.to_owned(), levels.len() - depth);
                    assert!(before.is_none(), "ARCHITECTURE.md, Layers: {krate} has `{name}` twice");
                }
            }
            (krate.to_owned(), modules)
        });
        Self(crates.collect())
    }
}

/// Returns the dependencies of one crate that do not lead to a lower level, and the modules that are only in the crate
/// or only in the table.
pub(crate) fn violations(tree: &Tree, table: &Table, krate: &str) -> Vec<String> {
    let inside = format!("{krate}/src/");
    let modules: BTreeSet<String> = tree.paths().filter_map(|path| top_module(path.strip_prefix(&inside)?)).collect();
    let none = BTreeMap::new();
    // A crate that is only its `lib.rs` has no line.
    let levels = table.0.get(krate).unwrap_or(&none);
    let mut found = Vec::new();
    for name in modules.iter().filter(|name| !levels.contains_key(*name)) {
        found.push(format!("{krate}: `{name}` is not in the layers table: add it at its level"));
    }
    for name in levels.keys().filter(|name| !modules.contains(*name)) {
        found.push(format!("{krate}: `{name}` is in the layers table but not in the crate: remove it there"));
    }
    for source in tree.sources() {
        let Some(from) = source.path.strip_prefix(&inside).and_then(top_module) else { continue };
        let deep = source.path.strip_prefix(&inside).map_or(0, |path| path.split('/').count());
        for (n, line) in source.lines() {
            let code = line.split("//").next().unwrap_or_default();
            // Only `crate::` may leave a top-level module, so that the dependency is visible to this test.
            let climbs = code.matches("super::").count();
            let inline = usize::from(line.starts_with(' '));
            if code.contains("super::super") && climbs >= deep + inline {
                found.push(source.at(n, "`super::` leaves the top-level module: write `crate::`"));
            }
            for to in dependencies(code).into_iter().filter(|to| modules.contains(to) && *to != from) {
                if levels.get(&from) <= levels.get(&to) {
                    found.push(source.at(n, &format!("`{from}` uses `{to}`, which is not on a lower level")));
                }
            }
        }
    }
    found
}

/// The families of facts; each has modules `FAMILY_…` in the session machine.
const FAMILIES: [&str; 6] = ["session", "member", "handover", "action", "input", "run"];

/// Returns the dependencies of the session machine's families on each other, and on the loop that calls them. The state
/// of a family, `FAMILY_state`, is below all of them.
pub(crate) fn family_violations(tree: &Tree) -> Vec<String> {
    let mut found = Vec::new();
    for source in tree.sources() {
        let name = source.path.strip_prefix("core/src/session/").and_then(|name| name.strip_suffix(".rs"));
        let Some((name, own)) = name.and_then(|name| Some((name, family(name)?))) else { continue };
        for (n, line) in source.lines() {
            for to in session_modules(line.split("//").next().unwrap_or_default()) {
                let foreign = family(&to).is_some_and(|other| other != own && !to.ends_with("_state"));
                if foreign || matches!(to.as_str(), "runtime" | "apply") {
                    found.push(source.at(n, &format!("`{name}` uses `{to}`")));
                }
            }
        }
    }
    found
}

/// Returns the family of a module of the session machine.
fn family(module: &str) -> Option<&'static str> {
    let head = module.split_once('_').map(|(head, _)| head)?;
    FAMILIES.into_iter().find(|family| *family == head)
}

/// Returns the modules that a line of code names directly under `session::`.
fn session_modules(code: &str) -> Vec<String> {
    let rests = code.match_indices("session::").map(|(at, path)| &code[at + path.len()..]);
    let names = rests.flat_map(|rest| match rest.strip_prefix('{') {
        Some(group) => group_heads(group),
        None => first_word(rest).into_iter().collect(),
    });
    names.collect()
}

/// Returns the top-level module of a path below `src`: `link` for `link/flow.rs` and `link.rs`. The crate's roots
/// belong to none.
fn top_module(path: &str) -> Option<String> {
    let name = path.split('/').next()?.trim_end_matches(".rs");
    let exempt = !path.ends_with(".rs") || matches!(path, "lib.rs" | "main.rs");
    (!exempt).then(|| name.to_owned())
}

/// Returns the modules that a line of code names directly under `crate::`; several in `crate::{a, b::c}`.
fn dependencies(code: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices("crate::") {
        let before = code[..at].chars().next_back();
        if before.is_some_and(|c| c == '$' || c == '_' || c.is_alphanumeric()) {
            continue;
        }
        let rest = &code[at + "crate::".len()..];
        match rest.strip_prefix('{') {
            Some(group) => found.extend(group_heads(group)),
            None => found.extend(first_word(rest)),
        }
    }
    found
}

/// Returns the first word of each member of a `use` group.
fn group_heads(group: &str) -> Vec<String> {
    let mut depth = 0;
    let mut fresh = true;
    let mut found = Vec::new();
    for (at, letter) in group.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => fresh = true,
            _ if fresh && letter.is_alphabetic() => {
                found.extend(first_word(&group[at..]));
                fresh = false;
            }
            _ => {}
        }
    }
    found
}

fn first_word(text: &str) -> Option<String> {
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    (end > 0).then(|| text[..end].to_owned())
}

#[test]
fn dependencies_are_found_in_every_form_of_use() {
    let cases: [(&str, &[&str]); 5] = [
        ("use crate::store::{Op, Reply};", &["store"]),
        ("use crate::{id, store::{Op, Reply}, time::Now};", &["id", "store", "time"]),
        ("let x = crate::limits::LEASE; crate::invariant!(x)", &["limits", "invariant"]),
        ("$crate::hidden::x", &[]),
        ("use turnway_core::id;", &[]),
    ];
    for (code, want) in cases {
        assert_eq!(dependencies(code), want, "{code}");
    }
}

#[test]
fn session_modules_are_found_and_belong_to_families() {
    assert_eq!(session_modules("use crate::session::{run_end, text::AttemptText};"), ["run_end", "text"]);
    assert_eq!(session_modules("use crate::session::input_state::Rank;"), ["input_state"]);
    assert_eq!(family("input_state"), Some("input"));
    assert_eq!(family("text_hash"), None);
}

#[test]
fn layers_table_is_parsed_from_the_highest_level_down() {
    let table = Table::parse("x\n```layers\na  top ▸ { left, right } ▸ ground\n```\n");
    let levels = table.0["a"].iter().map(|(name, level)| (name.as_str(), *level));
    let levels: Vec<(&str, usize)> = levels.collect();
    assert_eq!(levels, [("ground", 1), ("left", 2), ("right", 2), ("top", 3)]);
}
