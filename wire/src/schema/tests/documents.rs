//! Compares the table with the code, and the checked-in documents with the table.
use crate::channel::json::parse::MESSAGE_TYPES;
use crate::schema::{MessageGroup, asyncapi, dictionary, fact, json_schema, markdown};
use std::collections::BTreeSet;
use turnway_core::protocol::entry::Fact;

/// The lines around the generated part of docs/messages.md.
const BEGIN: &str = "<!-- Made from wire/src/schema: `./test bless` writes it. -->\n";
const END: &str = "\n<!-- The end of the generated part. -->\n";

/// Compares a file with its text; `./test bless` writes the file.
fn compare(path: &str, text: &str) {
    let path = format!("{}/../{path}", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("BLESS").is_some() {
        return std::fs::write(&path, text).expect("written");
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(kept == text, "{path} is stale: `./test bless` writes it");
}

/// The test compares `docs/turnway.v1.schema.json`, which unit tests of parsers and renderers use.
#[test]
fn checked_in_schema_equals_the_table() {
    compare("docs/turnway.v1.schema.json", &json_schema::text());
}

#[test]
fn checked_in_asyncapi_document_equals_the_table() {
    compare("docs/asyncapi.json", &asyncapi::text());
}

#[test]
fn fuzz_dictionary_equals_the_table() {
    compare("fuzz/dictionaries/turnway.v1.dict", &dictionary::text());
}

#[test]
fn documented_fields_equal_the_table() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/messages.md");
    let page = std::fs::read_to_string(path).expect("the page");
    let (before, rest) = page.split_once(BEGIN).expect("the line before the generated part");
    let (_, after) = rest.split_once(END).expect("the line after the generated part");
    compare("docs/messages.md", &format!("{before}{BEGIN}{}{END}{after}", markdown::text()));
}

#[test]
fn schema_is_valid_and_has_no_unused_definition() {
    let document = json_schema::document();
    jsonschema::meta::validate(&document).expect("a schema of its dialect");
    jsonschema::draft202012::new(&document).expect("every reference has a definition");
    let text = document.to_string();
    for name in document["$defs"].as_object().expect("definitions").keys() {
        assert!(text.contains(&format!("\"#/$defs/{name}\"")), "{name} is not used");
    }
}

#[test]
fn asyncapi_document_has_every_message_and_reference() {
    let document = asyncapi::document();
    let mut targets = Vec::new();
    collect_references(&document, &mut targets);
    for target in &targets {
        let path = target.strip_prefix('#').expect("a reference within the document");
        assert!(document.pointer(path).is_some(), "{target}");
    }
    let rows: usize = MessageGroup::ALL.iter().map(|group| group.messages().len()).sum();
    assert_eq!(document["components"]["messages"].as_object().expect("messages").len(), rows);
    let operations = document["operations"].as_object().expect("operations");
    let listed: usize = operations.values().map(|operation| operation["messages"].as_array().map_or(0, Vec::len)).sum();
    assert_eq!((operations.len(), listed), (MessageGroup::ALL.len(), rows));
}

fn collect_references<'a>(value: &'a serde_json::Value, targets: &mut Vec<&'a str>) {
    targets.extend(value.get("$ref").and_then(|target| target.as_str()));
    value
        .as_object()
        .into_iter()
        .flat_map(|members| members.values())
        .for_each(|inner| collect_references(inner, targets));
    value.as_array().into_iter().flatten().for_each(|inner| collect_references(inner, targets));
}

#[test]
fn table_has_every_client_message() {
    let rows = [MessageGroup::FromClient, MessageGroup::FromAdapter].map(MessageGroup::messages).concat();
    let rows: BTreeSet<&str> = rows.iter().map(|row| row.kind).collect();
    let parsed = MESSAGE_TYPES.iter().filter(|(_, is_supported)| *is_supported).map(|(name, _)| *name);
    assert_eq!(rows, parsed.collect());
}

#[test]
fn table_has_every_fact_and_its_messages() {
    let names: Vec<&str> = fact::rows().iter().map(|row| row.name).collect();
    assert_eq!(names, Fact::kinds().map(|kind| kind.name).collect::<Vec<_>>());
    let rows: BTreeSet<String> = MessageGroup::ToClient.messages().iter().map(|row| row.key()).collect();
    let mut of_facts = BTreeSet::new();
    for kind in Fact::kinds() {
        let messages = kind.messages.replace("(error,)", "error,").replace(" <its name>", "");
        if messages.is_empty() {
            of_facts.insert(format!("event.{}", kind.name));
        }
        let messages = messages.split(", ").filter(|message| !message.is_empty());
        of_facts.extend(messages.map(|message| message.replacen(' ', ".", 1)));
    }
    assert!(of_facts.is_subset(&rows), "{:?}", of_facts.difference(&rows));
    let others: Vec<&str> = rows.difference(&of_facts).map(String::as_str).collect();
    let answers_and_text = [
        "account",
        "account_paused",
        "account_resumed",
        "bindings",
        "bindings_updated",
        "bound",
        "child_requested",
        "deliveries",
        "delivery_settled",
        "delta",
        "event.NO_ACTIVE_SPEAKING",
        "event.process.output",
        "go_away",
        "handover",
        "members",
        "message_accepted",
        "paused_accounts",
        "pong",
        "refreshed",
        "resolutions",
        "resolved",
        "session_labelled",
        "stream",
        "subscribed",
        "turn_accepted",
        "unbound",
        "welcome",
    ];
    assert_eq!(others, answers_and_text);
}

#[test]
fn names_within_a_group_are_unique() {
    for group in MessageGroup::ALL {
        let rows = group.messages();
        let names: BTreeSet<String> = rows.iter().map(|row| row.key()).collect();
        assert_eq!(names.len(), rows.len(), "{group:?}");
        for row in rows {
            let fields: BTreeSet<&str> = row.fields.iter().map(|field| field.name).collect();
            assert_eq!(fields.len(), row.fields.len(), "{group:?} {}", row.key());
            assert!(
                row.alternatives.iter().flatten().all(|field| fields.contains(field.name)),
                "{group:?} {}",
                row.key()
            );
        }
    }
}
