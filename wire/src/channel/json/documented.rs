//! Compares messages of unit tests with docs/turnway.v1.schema.json. The document itself is compared with the table of
//! `schema`, which this module must not use: the table lies above the parsers.
use jsonschema::Validator;
use serde_json::{Value, json};
use std::cell::RefCell;
use std::collections::BTreeMap;

const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/turnway.v1.schema.json");

thread_local! {
    static VALIDATORS: RefCell<BTreeMap<String, Validator>> = const { RefCell::new(BTreeMap::new()) };
}

/// Asserts that a message of a group, such as `to_client`, is valid.
pub(crate) fn assert_documented(group: &str, message: &Value) {
    let kind = message["type"].as_str().expect("a type");
    let document = document();
    let row = format!("{group}.{kind}");
    let variant = format!("{row}.{}", message["name"].as_str().unwrap_or_default());
    let is_variant = document["$defs"].get(&variant).is_some();
    assert_valid(if is_variant { &variant } else { &row }, message);
}

/// Asserts that a message that a parser has accepted is valid.
pub(crate) fn assert_received(text: &str) {
    let message: Value = serde_json::from_str(text).expect("JSON");
    let group = match (message["type"].as_str(), message["role"].as_str()) {
        (Some("hello"), Some("agent")) => "from_agent",
        (Some("hello"), Some("tool_runner")) => "from_tool_runner",
        (Some("hello"), Some("adapter"))
        | (Some("inbound" | "prepare_files" | "delivered" | "conversation_created" | "capabilities"), _) => {
            "from_adapter"
        }
        (_, _) => "from_client",
    };
    assert_documented(group, &message);
}

/// Asserts that a value matches a definition of the document.
pub(crate) fn assert_valid(definition: &str, value: &Value) {
    VALIDATORS.with_borrow_mut(|validators| {
        let validator = validators.entry(definition.to_owned()).or_insert_with(|| {
            let document = document();
            assert!(document["$defs"].get(definition).is_some(), "not in the schema: {definition}: {value}");
            let schema = json!({"$defs": document["$defs"], "$ref": format!("#/$defs/{definition}")});
            jsonschema::draft202012::new(&schema).expect("a schema")
        });
        let errors: Vec<String> =
            validator.iter_errors(value).map(|error| format!("{}: {error}", error.instance_path())).collect();
        assert!(errors.is_empty(), "{definition}: {errors:#?}\n{value:#}");
    });
}

fn document() -> Value {
    serde_json::from_str(&std::fs::read_to_string(DOCUMENT).expect("the document")).expect("JSON")
}
