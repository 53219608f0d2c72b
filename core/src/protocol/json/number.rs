//! Numbers exactly as they were written. `serde_json::Value` holds 64-bit integers and floats; any other literal is
//! held as an object with one reserved key, which no peer can send, and is written as that number again.
use serde::ser::{Serialize, SerializeMap, SerializeSeq, Serializer};
use serde_json::value::RawValue;
use serde_json::{Map, Number, Value};

/// The key of the object that stands for a number.
const LITERAL: &str = "$serde_json::private::Literal";

/// Returns a number exactly as written: a literal that `serde_json` would print differently is held as text.
pub(super) fn exact_number(literal: &str) -> Value {
    match to_serde_number(literal) {
        Some(number) if prints_as(&number, literal) => Value::Number(number),
        Some(_) | None => Value::Object(Map::from_iter([(LITERAL.to_owned(), Value::String(literal.to_owned()))])),
    }
}

/// Returns whether `serde_json` prints a number in exactly this form.
fn prints_as(number: &Number, literal: &str) -> bool {
    // An integer has one form only, and `-0` is parsed as a float.
    !number.is_f64() || number.to_string() == literal
}

/// Returns the number that `serde_json` would parse, if any.
fn to_serde_number(literal: &str) -> Option<Number> {
    if !literal.contains(['.', 'e', 'E']) && literal != "-0" {
        let integer = literal.parse::<u64>().map(Number::from).or_else(|_| literal.parse::<i64>().map(Number::from));
        if let Ok(integer) = integer {
            return Some(integer);
        }
    }
    // Beyond the largest float this is infinite, which is not JSON.
    literal.parse::<f64>().ok().and_then(Number::from_f64)
}

/// Returns the literal of a number that is held as text.
pub fn number_literal(value: &Value) -> Option<&str> {
    let map = value.as_object().filter(|map| map.len() == 1)?;
    map.get(LITERAL)?.as_str().filter(|text| text.starts_with(|c: char| c == '-' || c.is_ascii_digit()))
}

/// Returns a value with its numbers as earlier releases read them, for the hashes that those releases stored: every
/// number that fits a float becomes one.
pub(crate) fn with_rounded_numbers(value: &Value) -> Value {
    if let Some(number) = number_literal(value) {
        return to_serde_number(number).map_or_else(|| value.clone(), Value::Number);
    }
    match value {
        Value::Array(list) => Value::Array(list.iter().map(with_rounded_numbers).collect()),
        Value::Object(map) => {
            Value::Object(map.iter().map(|(key, value)| (key.clone(), with_rounded_numbers(value))).collect())
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
    }
}

/// A value that is serialised with each number exactly as it was read.
pub struct ExactJson<'a>(pub &'a Value);

impl Serialize for ExactJson<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        if let Some(number) = number_literal(self.0) {
            let raw: Result<&RawValue, _> = serde_json::from_str(number);
            return raw.map_err(serde::ser::Error::custom)?.serialize(to);
        }
        match self.0 {
            Value::Array(list) => {
                let mut seq = to.serialize_seq(Some(list.len()))?;
                for value in list {
                    seq.serialize_element(&ExactJson(value))?;
                }
                seq.end()
            }
            Value::Object(map) => {
                let mut entries = to.serialize_map(Some(map.len()))?;
                for (key, value) in map {
                    entries.serialize_entry(key, &ExactJson(value))?;
                }
                entries.end()
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => self.0.serialize(to),
        }
    }
}
