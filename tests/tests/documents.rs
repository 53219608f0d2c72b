//! The reference documents match the code wherever the two can be compared.
use std::collections::BTreeMap;
use turnway_core::protocol::entry::Fact;
use turnway_core::protocol::refusal::Code;
use turnway_wire::channel::close_code::CLOSE_CODES;
use turnway_wire::channel::openai::ChatError;

fn document(name: &str) -> String {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|why| panic!("{}: {why}", path.display()))
}

/// Returns the table under this header as a map from the first cell, without backticks, to the second.
fn table(document: &str, header: &str) -> BTreeMap<String, String> {
    let (_, rows) = document.split_once(header).unwrap_or_else(|| panic!("no table {header}"));
    let rows = rows.lines().skip(2).take_while(|line| line.starts_with('|'));
    let cells = rows.map(|row| {
        let mut cells = row.trim_matches('|').split('|').map(|cell| cell.trim().replace('`', ""));
        (cells.next().unwrap_or_default(), cells.next().unwrap_or_default())
    });
    cells.collect()
}

#[test]
fn documented_display_of_facts_matches_the_code() {
    let written = table(&document("protocol.md"), "| fact | shown on a link as |");
    let shown = Fact::kinds().map(|kind| {
        let shown = if kind.messages.is_empty() { "nothing" } else { kind.messages };
        (kind.name.to_owned(), shown.to_owned())
    });
    let written: BTreeMap<_, _> = written
        .into_iter()
        .map(|(fact, shown)| (fact, shown.split(';').next().unwrap_or_default().to_owned()))
        .collect();
    assert_eq!(written, shown.collect::<BTreeMap<_, _>>());
}

#[test]
fn documented_error_codes_match_the_code() {
    let written = table(&document("protocol.md"), "| code | retryable |");
    let codes = Code::ALL.iter().map(|code| {
        let retryable = if code.retryable() { "yes" } else { "no" };
        (code.as_str().to_owned(), retryable.to_owned())
    });
    assert_eq!(written, codes.collect::<BTreeMap<_, _>>());
}

#[test]
fn documented_close_codes_match_the_code() {
    let page = document("protocol.md");
    let (_, rows) = page.split_once("| code | | reconnect? |").expect("the table");
    let rows = rows.lines().skip(2).take_while(|line| line.starts_with('|'));
    let written = rows.map(|row| {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [code, _, reconnect] = cells[..] else { panic!("three cells: {row}") };
        (code.parse().expect("a number"), !reconnect.starts_with("no"))
    });
    let codes = CLOSE_CODES.iter().map(|code| (code.number, code.reconnect));
    assert_eq!(written.collect::<Vec<(u16, bool)>>(), codes.collect::<Vec<_>>());
}

/// Covers: ST-41.
#[test]
fn documented_openai_statuses_match_the_code() {
    let document = document("openai.md");
    let (_, rows) = document.split_once("| status | type | codes |").expect("the table");
    let rows = rows.lines().skip(2).take_while(|line| line.starts_with('|'));
    let mut written = BTreeMap::new();
    for row in rows {
        let cells: Vec<String> = row.trim_matches('|').split('|').map(|cell| cell.trim().replace('`', "")).collect();
        let [status, kind, codes] = &cells[..] else { panic!("three cells: {row}") };
        written.extend(codes.split(", ").map(|code| (code.to_owned(), (status.clone(), kind.clone()))));
    }
    let codes = Code::ALL.iter().map(|code| {
        let trouble = ChatError::new(*code, "");
        let object: serde_json::Value = serde_json::from_str(&trouble.to_json()).expect("JSON");
        let kind = object["error"]["type"].as_str().expect("a type").to_owned();
        (code.as_str().to_owned(), (trouble.status.to_string(), kind))
    });
    assert_eq!(written, codes.collect::<BTreeMap<_, _>>());
}
