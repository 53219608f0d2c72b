//! Random messages, made from the schema, at the parsers.
use crate::agent::message as agent_message;
use crate::channel::command::{ControlAnswer, ControlKind, LinkCommand};
use crate::channel::json::{documented, parse, render};
use crate::channel::notification::Notification;
use crate::runner::FromRunner;
use crate::schema::{MessageGroup, json_schema};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;
use turnway_core::id::{Epoch, QualifiedRun, RunId, Seq, SessionId, TenantId};
use turnway_core::protocol::entry::{Entry, Fact};
use turnway_core::rng::Rng;
use turnway_core::time::Millis;

/// Messages of each row.
const ROUNDS: usize = 200;

/// A maker of random values that match a schema.
struct Maker {
    definitions: Map<String, Value>,
    rng: Rng,
}

impl Maker {
    fn new() -> Self {
        Self { definitions: json_schema::definitions(), rng: Rng::from_number(7) }
    }

    fn coin(&mut self) -> bool {
        self.rng.below(2) == 0
    }

    fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.rng.below(items.len() as u64) as usize]
    }

    fn resolve(&self, schema: &Value) -> Value {
        match schema["$ref"].as_str() {
            Some(target) => self.definitions[target.trim_start_matches("#/$defs/")].clone(),
            None => schema.clone(),
        }
    }

    /// Makes a message of this row, with an unknown field.
    fn message(&mut self, definition: &str) -> Value {
        let schema = self.definitions[definition].clone();
        let mut message = self.object(&schema);
        if let Some(alternatives) = schema["anyOf"].as_array() {
            let alternative = self.pick(alternatives).clone();
            let members = message.as_object_mut().expect("an object");
            members.retain(|name, _| alternative["properties"].get(name).is_none());
            let Value::Object(more) = self.object(&alternative) else { panic!("an object") };
            message.as_object_mut().expect("an object").extend(more);
        }
        message["x_unknown"] = self.any();
        message
    }

    fn object(&mut self, schema: &Value) -> Value {
        let mut object = Map::new();
        let required = schema["required"].as_array().cloned().unwrap_or_default();
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            if required.contains(&name.as_str().into()) || self.coin() {
                object.insert(name.clone(), self.value(property));
            }
        }
        if schema["additionalProperties"].is_object() {
            let key = self.value(&schema["propertyNames"]);
            object.insert(key.as_str().expect("a text").to_owned(), self.value(&schema["additionalProperties"]));
        }
        object.into()
    }

    fn value(&mut self, schema: &Value) -> Value {
        let schema = self.resolve(schema);
        if let Some(value) = schema.get("const") {
            return value.clone();
        }
        if let Some(words) = schema["enum"].as_array() {
            return self.pick(words).clone();
        }
        if let Some(shapes) = schema["anyOf"].as_array() {
            let shape = self.pick(shapes).clone();
            return self.value(&shape);
        }
        match schema["type"].as_str() {
            Some("null") => Value::Null,
            Some("boolean") => self.coin().into(),
            Some("integer") => {
                let max = schema["maximum"].as_u64().expect("a maximum");
                let min = schema["minimum"].as_i64().expect("a minimum");
                let small = self.rng.below(10).min(max);
                self.pick(&[json!(min), json!(small), json!(max)]).clone()
            }
            Some("string") => self.text(&schema),
            Some("object") => self.object(&schema),
            Some("array") => (0..=self.rng.below(2)).map(|_| self.value(&schema["items"])).collect(),
            _ => self.any(),
        }
    }

    fn text(&mut self, schema: &Value) -> Value {
        if let Some(examples) = schema["examples"].as_array() {
            return self.pick(examples).clone();
        }
        assert!(schema.get("pattern").is_none(), "a pattern without examples: {schema}");
        let longest = schema["x-max-bytes"].as_u64().map(|max| "a".repeat(max as usize));
        let texts = ["hi", "é \"\\\n", "@bob hi"].map(str::to_owned).into_iter().chain(longest);
        self.pick(&texts.collect::<Vec<_>>()).as_str().into()
    }

    fn any(&mut self) -> Value {
        let values = [json!(true), json!(7), json!("x"), json!([1, {"a": null}]), json!({"k": -0.5})];
        self.pick(&values).clone()
    }
}

/// Returns the paths of the fields that a schema requires in this value.
fn required_fields(maker: &Maker, schema: &Value, value: &Value, path: &str) -> Vec<String> {
    let schema = maker.resolve(schema);
    // A field of the message that may be `null` has two shapes.
    let shapes = schema["anyOf"].as_array().filter(|shapes| schema["properties"].is_null() && shapes.len() == 2);
    if let Some(shapes) = shapes.filter(|shapes| shapes[1] == json!({"type": "null"})) {
        return if value.is_null() { Vec::new() } else { required_fields(maker, &shapes[0], value, path) };
    }
    let mut paths = Vec::new();
    let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
    paths.extend(required.map(|name| format!("{path}/{name}")));
    for (name, inner) in value.as_object().into_iter().flatten() {
        if let Some(property) = schema["properties"].get(name) {
            paths.extend(required_fields(maker, property, inner, &format!("{path}/{name}")));
        }
    }
    for (at, inner) in value.as_array().into_iter().flatten().enumerate() {
        if let Some(item) = schema.get("items") {
            paths.extend(required_fields(maker, item, inner, &format!("{path}/{at}")));
        }
    }
    paths
}

/// Removes the field at a path.
fn without(message: &Value, path: &str) -> Value {
    let mut less = message.clone();
    let (parent, name) = path.rsplit_once('/').expect("a path");
    let object = less.pointer_mut(parent).and_then(Value::as_object_mut).expect("an object");
    assert!(object.remove(name).is_some(), "{path}: {message}");
    less
}

/// Offers random messages of a group to a parser, and then the same messages without each required field. `accepts`
/// returns `None` for a type that another parser reads.
fn try_group(group: MessageGroup, optional_here: &[&str], accepts: impl Fn(&str, &str) -> Option<bool>) {
    let mut maker = Maker::new();
    let mut tried = 0;
    for row in group.messages() {
        let definition = json_schema::definition_name(group, &row);
        for _ in 0..ROUNDS {
            let message = maker.message(&definition);
            documented::assert_valid(&definition, &message);
            let Some(accepted) = accepts(row.kind, &message.to_string()) else { break };
            assert!(accepted, "refused: {message:.300}");
            tried += 1;
            for path in required_fields(&maker, &maker.definitions[&definition], &message, "") {
                if optional_here.contains(&path.as_str()) {
                    continue;
                }
                let less = without(&message, &path);
                assert_eq!(accepts(row.kind, &less.to_string()), Some(false), "accepted without {path}: {less:#}");
            }
            let alternative_fields = row.alternative_fields();
            if !alternative_fields.is_empty() {
                let mut less = message.clone();
                less.as_object_mut().expect("an object").retain(|name, _| !alternative_fields.contains(&name.as_str()));
                // `say` is an action of its own: its text may be empty.
                if less["action_type"] != "say" {
                    assert_eq!(accepts(row.kind, &less.to_string()), Some(false), "accepted: {less:#}");
                }
            }
        }
    }
    assert!(tried >= ROUNDS, "{group:?}: {tried}");
}

/// Every refusal of the parser is answered by `invalid_message`. A request that the session's owner answers without data
/// has an answer in the table.
#[test]
fn client_messages_of_the_schema_are_parsed() {
    let answers: BTreeSet<&str> = MessageGroup::ToClient.messages().iter().map(|row| row.kind).collect();
    try_group(MessageGroup::FromClient, &[], |_, text| {
        let read = parse::parse(text);
        if let Ok(parse::ClientMessage::Command(LinkCommand::Control { request, .. })) = &read
            && let ControlAnswer::Performed(kind) | ControlAnswer::PerformedOrFact(kind) =
                ControlKind::of(request).answer
        {
            assert!(answers.contains(kind), "the answer {kind} has no row");
        }
        Some(read.is_ok())
    });
}

/// Fields that only some events or outcomes need are optional in the schema: they are added here.
#[test]
fn adapter_messages_of_the_schema_are_parsed() {
    try_group(MessageGroup::FromAdapter, &["/role"], |_, text| {
        let mut message: Value = serde_json::from_str(text).expect("JSON");
        let place = json!({"channel": "rooms", "account_id": "main", "conversation_id": "7"});
        let decision = json!({"press_id": "p1", "button_id": "yes"});
        let mut fields = vec![("moved_to", json!("8")), ("code", json!("gone")), ("decision", decision)];
        if message["type"] == "delivered" {
            fields.push(("place", place));
        } else if message["type"] == "conversation_created" {
            fields.push(("conversation", place));
        }
        for (name, value) in fields {
            if message[name].is_null() {
                message[name] = value;
            }
        }
        if message["message"].is_object() && message["message"]["content"].is_null() {
            message["message"]["content"] = "hello".into();
        }
        Some(parse::parse(&message.to_string()).is_ok())
    });
}

/// The node reads `run_id` and `type` before the agent's parser does.
#[test]
fn agent_messages_of_the_schema_are_parsed() {
    let run_id = RunId::parse("s1.abcdefghijklmnopqrstuvwxyz").expect("a run");
    let run = QualifiedRun { tenant: TenantId::default_tenant(), run_id };
    try_group(MessageGroup::FromAgent, &["/run_id", "/type"], |kind, text| match kind {
        "hello" | "ping" | "refresh" | "input_ack" | "cancel_ack" => None,
        kind => Some(agent_message::parse(kind, text, None, &run).is_ok()),
    });
}

/// The node reads `type` before the tool runner's parser does.
#[test]
fn tool_runner_messages_of_the_schema_are_parsed() {
    try_group(MessageGroup::FromToolRunner, &["/type"], |kind, text| {
        FromRunner::parse(kind, text).map(|read| read.is_ok())
    });
}

/// The connections of all roles begin with the same parser.
#[test]
fn first_messages_of_the_schema_are_parsed() {
    let mut maker = Maker::new();
    for group in [MessageGroup::FromAdapter, MessageGroup::FromAgent, MessageGroup::FromToolRunner] {
        for _ in 0..ROUNDS {
            let message = maker.message(&format!("{}.hello", group.as_str()));
            let read = parse::parse(&message.to_string());
            assert!(matches!(read, Ok(parse::ClientMessage::Hello { .. })), "{message:#}");
        }
    }
}

/// The messages of plain facts follow from the data in the table, so their facts need no samples.
#[test]
fn plain_facts_are_rendered_as_their_data() {
    let mut maker = Maker::new();
    for kind in Fact::kinds() {
        let Some((message_type, name)) = kind.plain_message() else { continue };
        let schema = maker.definitions[&format!("fact.{}", kind.name)].clone();
        for _ in 0..ROUNDS {
            let data = maker.object(&schema);
            let envelope = json!({
                "specversion": "1.0",
                "id": "00000000-0000-0000-0000-000000000000",
                "time": "1970-01-01T00:00:00.005Z",
                "source": "turnway",
                "session_id": "s1",
                "seq": 9,
                "epoch": 4,
                "correlation_id": "c",
                "type": kind.name,
                "data": data,
            });
            let entry = Arc::new(Entry::from_json(&envelope.to_string()).expect("an envelope").entry);
            assert_eq!(serde_json::to_value(&entry.fact).expect("JSON")["data"], data);
            let session = SessionId::parse("s1").expect("a name");
            let note = Notification::Fact { session, seq: Seq(9), epoch: Epoch(4), entry, requested: false };
            let mut messages = Vec::new();
            render::render(Millis(7), "fsync", &note, &mut |text| messages.push(text));
            assert_eq!(messages.len(), 1, "{messages:?}");
            let mut message: Value = serde_json::from_str(&messages[0]).expect("JSON");
            documented::assert_documented("to_client", &message);
            let fields = message.as_object_mut().expect("an object");
            let mut take = |field: &str| fields.remove(field).unwrap_or_default();
            assert_eq!((take("type"), take("name")), (json!(message_type), json!(name)));
            assert_eq!(
                (take("ts"), take("session_id"), take("seq"), take("epoch")),
                (json!(5), json!("s1"), json!(9), json!(4))
            );
            assert_eq!(message, data);
        }
    }
}
