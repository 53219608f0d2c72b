//! Compares the messages of tests with the schema of `turnway.v1`: each message that a client receives from a node, and
//! each message of a client that a node has accepted.
use jsonschema::Validator;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use turnway_wire::schema::{MessageGroup, json_schema};

/// The schema, from the table that also makes docs/turnway.v1.schema.json.
static SCHEMA: LazyLock<Value> = LazyLock::new(json_schema::document);
/// The validators of definitions that the test has met so far.
static VALIDATORS: Mutex<BTreeMap<String, Arc<Validator>>> = Mutex::new(BTreeMap::new());

/// Asserts that a message from a node is valid. The connection's role is not known here, so a row of any role fits.
pub fn assert_sent_by_node(message: &Value) {
    assert_in(
        [MessageGroup::ToClient, MessageGroup::ToAdapter, MessageGroup::ToAgent, MessageGroup::ToToolRunner],
        message,
    );
}

/// Asserts that a message to a node is valid. For messages that the node has accepted: tests also send invalid ones.
pub fn assert_accepted_by_node(message: &Value) {
    assert_in(
        [MessageGroup::FromClient, MessageGroup::FromAdapter, MessageGroup::FromAgent, MessageGroup::FromToolRunner],
        message,
    );
}

/// Asserts that the data of a server-sent event is valid: a message to a client, or a fact in its envelope. Other data,
/// such as that of the OpenAI-compatible API, is left out.
pub fn assert_event_data(data: &Value) {
    if data.get("specversion").is_some() {
        let errors = errors("fact", data);
        assert!(errors.is_empty(), "not as documented: {errors:#?}\n{data:#}");
    } else if data["type"].is_string() {
        assert_in([MessageGroup::ToClient], data);
    }
}

fn assert_in<const N: usize>(groups: [MessageGroup; N], message: &Value) {
    let rows: Vec<String> = groups.iter().filter_map(|group| definition(*group, message)).collect();
    assert!(!rows.is_empty(), "no such message in the schema: {message:#}");
    let errors: Vec<Vec<String>> = rows.iter().map(|row| errors(row, message)).collect();
    assert!(errors.iter().any(Vec::is_empty), "not as documented: {rows:?}: {errors:#?}\n{message:#}");
}

/// Returns the definition of a message in a group, if the group has its type.
fn definition(group: MessageGroup, message: &Value) -> Option<String> {
    let row = format!("{}.{}", group.as_str(), message["type"].as_str()?);
    let variant = format!("{row}.{}", message["name"].as_str().unwrap_or_default());
    [variant, row].into_iter().find(|name| SCHEMA["$defs"].get(name).is_some())
}

fn errors(definition: &str, value: &Value) -> Vec<String> {
    let validator = validator(definition);
    validator.iter_errors(value).map(|error| format!("{}: {error}", error.instance_path())).collect()
}

/// Returns the validator of a definition. Each takes some milliseconds to make, so it is made once.
fn validator(definition: &str) -> Arc<Validator> {
    let mut validators = VALIDATORS.lock().unwrap_or_else(PoisonError::into_inner);
    let validator = validators.entry(definition.to_owned()).or_insert_with(|| {
        let schema = json!({"$defs": SCHEMA["$defs"], "$ref": format!("#/$defs/{definition}")});
        Arc::new(jsonschema::draft202012::new(&schema).expect("a schema"))
    });
    Arc::clone(validator)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::catch_unwind;

    #[test]
    fn undocumented_message_fails_the_test() {
        let pong = json!({"type": "pong", "ts": 5, "of_a_later_release": 1});
        assert_sent_by_node(&pong);
        assert_accepted_by_node(&json!({"type": "ping", "request_id": null}));
        assert_event_data(&json!({"object": "chat.completion.chunk"}));
        let bad = [json!({"type": "pong"}), json!({"type": "pong", "ts": "5"}), json!({"type": "news", "ts": 5})];
        for message in bad {
            assert!(catch_unwind(|| assert_sent_by_node(&message)).is_err(), "{message}");
            assert!(catch_unwind(|| assert_event_data(&message)).is_err(), "{message}");
        }
    }
}
