//! Edges between rooms: a room is a module directly under a crate's `src`.
use crate::tree::Tree;
use std::collections::{BTreeMap, BTreeSet};

/// Which rooms may lean on which: by crate, each room's height; 0 is the ground.
pub(crate) struct Table(BTreeMap<String, BTreeMap<String, usize>>);

impl Table {
    /// Reads the block between the two `layers` fences: a line for each crate, highest rooms first,
    /// `▸` between levels, braces around rooms of one level.
    pub(crate) fn parse(document: &str) -> Self {
        let block = document.split("```layers\n").nth(1).and_then(|rest| rest.split("```").next());
        let block = block.expect("ARCHITECTURE.md has a block fenced as `layers`");
        let crates = block.lines().filter(|line| !line.trim().is_empty()).map(|line| {
            let (krate, levels) = line.split_once(char::is_whitespace).expect("a crate, then its levels");
            let levels: Vec<&str> = levels.split('▸').collect();
            let mut rooms = BTreeMap::new();
            for (depth, level) in levels.iter().enumerate() {
                for room in
                    level.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|room| !room.is_empty())
                {
                    let before = rooms.insert(room.to_owned(), levels.len() - depth);
                    assert!(before.is_none(), "{krate}: {room} stands twice in the layers table");
                }
            }
            (krate.to_owned(), rooms)
        });
        Self(crates.collect())
    }
}

/// Every edge of one crate that does not lead downwards, and every room that the table and the crate
/// do not agree about.
pub(crate) fn breaches(tree: &Tree, table: &Table, krate: &str) -> Vec<String> {
    let heights = table.0.get(krate).unwrap_or_else(|| panic!("the layers table has no line for {krate}"));
    let inside = format!("{krate}/src/");
    let rooms: BTreeSet<String> = tree.paths().filter_map(|path| room(path.strip_prefix(&inside)?)).collect();
    let mut found = Vec::new();
    for room in rooms.iter().filter(|room| !heights.contains_key(*room)) {
        found.push(format!("{krate}: the room {room} is not in the table"));
    }
    for room in heights.keys().filter(|room| !rooms.contains(*room)) {
        found.push(format!("{krate}: the table names {room}, which does not exist"));
    }
    for source in tree.sources() {
        let Some(from) = source.path.strip_prefix(&inside).and_then(room) else { continue };
        let deep = source.path.strip_prefix(&inside).map_or(0, |path| path.split('/').count());
        for (n, line) in source.lines() {
            let code = line.split("//").next().unwrap_or_default();
            // Only `crate::` may leave a room, so that the edge can be seen.
            let climbs = code.matches("super::").count();
            let inline = usize::from(line.starts_with(' '));
            if code.contains("super::super") && climbs >= deep + inline {
                found.push(source.at(n, "leaves its room by `super::`; say `crate::`"));
            }
            for to in edges(code).into_iter().filter(|to| rooms.contains(to) && *to != from) {
                if heights.get(&from) <= heights.get(&to) {
                    found.push(source.at(n, &format!("{from} leans on {to}, which is not below it")));
                }
            }
        }
    }
    found
}

/// `link/flow.rs` and `link.rs` are in the room `link`; a crate's roots are in none.
fn room(path: &str) -> Option<String> {
    let name = path.split('/').next()?.trim_end_matches(".rs");
    let exempt = !path.ends_with(".rs") || matches!(path, "lib.rs" | "main.rs");
    (!exempt).then(|| name.to_owned())
}

/// What a line of code names directly under `crate::`; more than one thing in `crate::{a, b::c}`.
fn edges(code: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices("crate::") {
        let before = code[..at].chars().next_back();
        if before.is_some_and(|c| c == '$' || c == '_' || c.is_alphanumeric()) {
            continue;
        }
        let rest = &code[at + "crate::".len()..];
        match rest.strip_prefix('{') {
            Some(group) => found.extend(heads(group)),
            None => found.extend(word(rest)),
        }
    }
    found
}

/// The first word of each member of a `use` group.
fn heads(group: &str) -> Vec<String> {
    let (mut depth, mut fresh, mut found) = (0, true, Vec::new());
    for (at, letter) in group.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => fresh = true,
            _ if fresh && letter.is_alphabetic() => {
                found.extend(word(&group[at..]));
                fresh = false;
            }
            _ => {}
        }
    }
    found
}

fn word(text: &str) -> Option<String> {
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    (end > 0).then(|| text[..end].to_owned())
}

#[test]
fn edges_are_seen_however_they_are_written() {
    let cases: [(&str, &[&str]); 5] = [
        ("use crate::store::{Op, Reply};", &["store"]),
        ("use crate::{id, store::{Op, Reply}, time::Now};", &["id", "store", "time"]),
        ("let x = crate::limits::LEASE; crate::invariant!(x)", &["limits", "invariant"]),
        ("$crate::hidden::x", &[]),
        ("use turnway_core::id;", &[]),
    ];
    for (code, want) in cases {
        assert_eq!(edges(code), want, "{code}");
    }
}

#[test]
fn the_table_reads_from_the_top_down() {
    let table = Table::parse("x\n```layers\na  top ▸ { left, right } ▸ ground\n```\n");
    let heights: Vec<(&str, usize)> =
        table.0["a"].iter().map(|(room, height)| (room.as_str(), *height)).collect();
    assert_eq!(heights, [("ground", 1), ("left", 2), ("right", 2), ("top", 3)]);
}
