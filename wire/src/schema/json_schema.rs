//! Renders the table as one JSON Schema (draft 2020-12). A message is valid if it matches a definition of its group,
//! such as `from_client`; each row has a definition of its own, such as `from_client.hello`.
use super::shape::{FieldSpec, JsonShape, MessageSpec, TextShape};
use super::{MessageGroup, definition, fact};
use serde_json::{Map, Value, json};

/// The schema's id. A URN, since the document is not served under a fixed address.
pub const ID: &str = "urn:turnway:turnway.v1";
/// The dialect of the schema.
const DIALECT: &str = "https://json-schema.org/draft/2020-12/schema";
/// The place of the definitions in the document.
pub(super) const DEFINITIONS: &str = "#/$defs/";

/// Renders the document as it is checked in.
pub fn text() -> String {
    format!("{:#}\n", document())
}

/// Returns the document.
pub fn document() -> Value {
    let groups: Vec<Value> = MessageGroup::ALL.iter().map(|group| reference(group.as_str())).collect();
    json!({
        "$schema": DIALECT,
        "$id": ID,
        "title": crate::channel::PROTOCOL,
        "description": "Every message between a node and its clients, agents that dial in and tool runners. Readers \
            ignore unknown fields. Lengths in characters are upper bounds; `x-max-bytes` counts UTF-8.",
        "anyOf": groups,
        "$defs": definitions(),
    })
}

/// Returns the name of the definition of a row.
pub fn definition_name(group: MessageGroup, message: &MessageSpec) -> String {
    format!("{}.{}", group.as_str(), message.key())
}

/// Returns the definitions of all rows, groups, facts and named shapes.
pub(super) fn definitions() -> Map<String, Value> {
    let mut definitions = Map::new();
    for named in definition::all() {
        let mut schema = of_shape(&named.shape, false);
        schema.insert("description".to_owned(), named.summary.into());
        definitions.insert(named.name.to_owned(), schema.into());
    }
    for row in fact::rows() {
        let mut schema = of_object(&row.fields, false);
        schema.insert("description".to_owned(), format!("The data of `{}`. {}", row.name, row.summary).into());
        definitions.insert(row.definition().to_owned(), schema.into());
    }
    definitions.insert("fact".to_owned(), envelope());
    for group in MessageGroup::ALL {
        let rows = group.messages();
        let names: Vec<Value> = rows.iter().map(|row| reference(&definition_name(group, row))).collect();
        definitions.insert(group.as_str().to_owned(), json!({"description": group.title(), "anyOf": names}));
        for row in rows {
            definitions.insert(definition_name(group, &row), of_message(group, &row));
        }
    }
    definitions
}

fn reference(name: &str) -> Value {
    json!({"$ref": format!("{DEFINITIONS}{name}")})
}

/// Returns the schema of a message.
fn of_message(group: MessageGroup, message: &MessageSpec) -> Value {
    let mut schema = of_object(&message.fields, group.is_received());
    let Some(Value::Object(properties)) = schema.get_mut("properties") else { return schema.into() };
    properties.insert("type".to_owned(), json!({"const": message.kind}));
    if let Some(Value::Array(required)) = schema.get_mut("required") {
        required.insert(0, "type".into());
    } else {
        schema.insert("required".to_owned(), json!(["type"]));
    }
    if !message.alternatives.is_empty() {
        let alternative = |fields: &Vec<FieldSpec>| Value::Object(of_object(fields, group.is_received()));
        let any_of: Vec<Value> = message.alternatives.iter().map(alternative).collect();
        schema.insert("anyOf".to_owned(), any_of.into());
    }
    if let Some(bytes_max) = message.bytes_max {
        schema.insert("x-max-json-bytes".to_owned(), bytes_max.into());
    }
    schema.insert("description".to_owned(), message.summary.as_str().into());
    schema.into()
}

/// Returns the schema of a fact in its envelope. The data of an unknown type may be anything.
fn envelope() -> Value {
    let mut schema = of_object(&fact::envelope(), false);
    if let Some(Value::Object(properties)) = schema.get_mut("properties") {
        properties.insert("type".to_owned(), json!({"type": "string"}));
        properties.insert("data".to_owned(), json!({}));
    }
    if let Some(Value::Array(required)) = schema.get_mut("required") {
        required.push("type".into());
    }
    let of_type = |row: fact::FactRow| {
        let data = json!({"required": ["data"], "properties": {"data": reference(row.definition())}});
        json!({"if": {"properties": {"type": {"const": row.name}}, "required": ["type"]}, "then": data})
    };
    let types: Vec<Value> = fact::rows().into_iter().map(of_type).collect();
    schema.insert("allOf".to_owned(), types.into());
    schema.insert("description".to_owned(), "A fact as in `GET …/events`: a CloudEvents 1.0 shape.".into());
    schema.into()
}

/// Returns the schema of an object. With `null_is_absent`, optional fields may be `null`.
fn of_object(fields: &[FieldSpec], null_is_absent: bool) -> Map<String, Value> {
    let mut properties = Map::new();
    for field in fields {
        let shape = of_shape(&field.shape, null_is_absent);
        let takes_null = matches!(field.shape, JsonShape::Any | JsonShape::Nullable(_));
        let mut schema = if null_is_absent && !field.is_required && !takes_null {
            object(json!({"anyOf": [shape, {"type": "null"}]}))
        } else {
            shape
        };
        if !field.description.is_empty() {
            schema.insert("description".to_owned(), field.description.as_str().into());
        }
        if let Some(bytes_max) = field.json_bytes_max {
            schema.insert("x-max-json-bytes".to_owned(), bytes_max.into());
        }
        properties.insert(field.name.to_owned(), schema.into());
    }
    let required: Vec<&str> = fields.iter().filter(|field| field.is_required).map(|field| field.name).collect();
    let mut schema = object(json!({"type": "object", "properties": properties}));
    // Draft 4, which some tools still assume, forbids an empty list.
    if !required.is_empty() {
        schema.insert("required".to_owned(), required.into());
    }
    schema
}

/// Returns the schema of a value.
fn of_shape(shape: &JsonShape, null_is_absent: bool) -> Map<String, Value> {
    let inner = |shape: &JsonShape| Value::Object(of_shape(shape, null_is_absent));
    object(match shape {
        JsonShape::Any => json!({}),
        JsonShape::NotNull => json!({"not": {"type": "null"}}),
        JsonShape::Flag => json!({"type": "boolean"}),
        JsonShape::Range(min, max) => json!({"type": "integer", "minimum": min, "maximum": max}),
        JsonShape::Integer(max) => json!({"type": "integer", "minimum": 0, "maximum": max}),
        JsonShape::Text(text) => return of_text(text),
        JsonShape::Words(words) => match &words[..] {
            [word] => json!({"const": word}),
            words => json!({"type": "string", "enum": words}),
        },
        JsonShape::OtherText(words) => json!({"type": "string", "not": {"enum": words}}),
        JsonShape::List(item, None) => json!({"type": "array", "items": inner(item)}),
        JsonShape::List(item, Some(max)) => json!({"type": "array", "items": inner(item), "maxItems": max}),
        JsonShape::Object(fields) => return of_object(fields, null_is_absent),
        JsonShape::Map { key, value, entries_max } => json!({
            "type": "object",
            "propertyNames": reference(key),
            "additionalProperties": inner(value),
            "maxProperties": entries_max,
        }),
        JsonShape::OneOf(shapes) => json!({"anyOf": shapes.iter().map(inner).collect::<Vec<_>>()}),
        JsonShape::Nullable(shape) => json!({"anyOf": [inner(shape), {"type": "null"}]}),
        JsonShape::Defined(name) => reference(name),
    })
}

fn of_text(text: &TextShape) -> Map<String, Value> {
    let TextShape { bytes_min, bytes_max, pattern, examples } = text;
    let mut schema = object(json!({"type": "string"}));
    if *bytes_min > 0 {
        // Every character has at least one byte, and every text of one byte or more has a character.
        schema.insert("minLength".to_owned(), 1.into());
    }
    if let Some(max) = bytes_max {
        schema.insert("maxLength".to_owned(), (*max).into());
        schema.insert("x-max-bytes".to_owned(), (*max).into());
    }
    if let Some(pattern) = pattern {
        schema.insert("pattern".to_owned(), pattern.as_str().into());
    }
    if !examples.is_empty() {
        schema.insert("examples".to_owned(), examples.as_slice().into());
    }
    schema
}

/// Returns the members of a value that is an object.
fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(members) => members,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => Map::new(),
    }
}
